// Hands a torch trace to the Perfetto UI in a window of its own, without uploading it anywhere.

const PING_MS = 50;
const PATIENCE_MS = 60000;

/** Must be called from a click: the browser lets only that open a window. `say` tells how it goes. */
export async function openInPerfetto(ui, url, fileName, say) {
  const perfetto = window.open(ui);
  if (!perfetto) {
    say("the browser blocked the window; allow pop-ups here and click again");
    return;
  }
  try {
    say("reading the trace…");
    const trace = fetch(url).then((response) => {
      if (!response.ok) {
        throw new Error(`the trace can't be read (status ${response.status})`);
      }
      return response.arrayBuffer();
    });
    const [buffer] = await Promise.all([trace, untilReady(perfetto, new URL(ui).origin)]);
    const message = { perfetto: { buffer, title: fileName, fileName } };
    perfetto.postMessage(message, new URL(ui).origin, [buffer]);
    say("opened");
  } catch (error) {
    say(`${error.message}; download it and open it at ${ui}`);
  }
}

/** PING until the first PONG: the window does not listen before its page has loaded. */
function untilReady(perfetto, origin) {
  return new Promise((resolve, reject) => {
    const started = Date.now();
    const timer = setInterval(() => {
      if (perfetto.closed || Date.now() - started > PATIENCE_MS) {
        finish(() => reject(new Error(perfetto.closed ? "the window was closed" : "Perfetto did not answer")));
      } else {
        perfetto.postMessage("PING", origin);
      }
    }, PING_MS);
    function listen(event) {
      if (event.source === perfetto && event.origin === origin && event.data === "PONG") {
        finish(resolve);
      }
    }
    function finish(settle) {
      clearInterval(timer);
      window.removeEventListener("message", listen);
      settle();
    }
    window.addEventListener("message", listen);
  });
}
