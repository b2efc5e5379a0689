// Getting JSON, telling how far it is.

/** The answer of an address; `say(text)` hears of the progress of long loads. Throws an Error with a clear line. */
export async function loadJson(address, say = () => {}, signal = undefined) {
  const started = performance.now();
  const waiting = setInterval(() => say(`Summing up… ${Math.round((performance.now() - started) / 1000)} s`), 1000);
  try {
    const response = await fetch(address, { signal });
    clearInterval(waiting);
    const text = await readText(response, say);
    let content = null;
    try {
      content = JSON.parse(text);
    } catch {
      throw new Error(`the viewer answered no JSON (status ${response.status})`);
    }
    if (!response.ok) {
      throw new Error(content.error?.message ?? `status ${response.status}`);
    }
    return content;
  } catch (error) {
    if (error instanceof TypeError) {
      throw new Error("the viewer does not answer; is it still running?");
    }
    throw error;
  } finally {
    clearInterval(waiting);
  }
}

async function readText(response, say) {
  const whole = Number(response.headers.get("X-Content-Bytes"));
  if (!response.body || whole < 4e6) {
    return response.text();
  }
  const decoder = new TextDecoder();
  const parts = [];
  let got = 0;
  const reader = response.body.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    got += read.value.length;
    parts.push(decoder.decode(read.value, { stream: true }));
    say(`Loading… ${(got / 1e6).toFixed(1)} of ${(whole / 1e6).toFixed(1)} MB`);
  }
  return parts.join("") + decoder.decode();
}
