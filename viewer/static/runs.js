// The list of recordings: what is under way, files that are brought, and which two to compare.

import { element } from "./dom.js";
import { loadJson } from "./load.js";
import { connectTheme } from "./theme.js";

const POLL_MS = 1500;
const byId = (id) => document.getElementById(id);

/** Show what is under way, again and again; when something has ended the list is loaded anew. */
function followLive(place) {
  let known = new Set([...place.querySelectorAll("[data-live]")].map((row) => row.dataset.live));
  const look = async () => {
    if (!document.hidden) {
      try {
        const { recordings } = await loadJson(place.dataset.source);
        const now = new Set(recordings.map(({ name }) => name));
        if ([...known].some((name) => !now.has(name))) {
          window.location.reload();
          return;
        }
        known = now;
        place.replaceChildren(...recordings.map((each) => liveRow(each, place.dataset.page)));
        place.hidden = recordings.length === 0;
      } catch {
        // The viewer is away; the next look will tell.
      }
    }
    setTimeout(look, POLL_MS);
  };
  setTimeout(look, POLL_MS);
}

function liveRow(recording, page) {
  const { name, state, message, steps_done: done, steps_asked: asked, engines } = recording;
  return element(
    "p",
    { class: "live-row", "data-live": name },
    element("span", { class: "state live" }, state),
    " ",
    element("a", { href: page + encodeURIComponent(name) }, name),
    " ",
    element("progress", { max: Math.max(asked, 1), value: done, "aria-label": `Steps of ${name}` }),
    " ",
    `${done} of ${asked} steps on ${engines.length} engine${engines.length === 1 ? "" : "s"} · ${message}`,
  );
}

/** Files can be dropped anywhere, or chosen. */
function takeFiles(form) {
  const field = form.querySelector("input[type=file]");
  const status = form.querySelector("[role=status]");
  const send = async (file) => {
    status.textContent = `Reading ${file.name}…`;
    try {
      if (file.size > Number(form.dataset.most)) {
        throw new Error(`it has over ${form.dataset.most / 2 ** 20} MiB; \`vime-otel view FILE\` takes larger ones`);
      }
      const response = await fetch(`${form.dataset.target}?name=${encodeURIComponent(file.name)}`, {
        method: "POST",
        body: file,
      });
      const answer = await response.json();
      if (!response.ok) {
        throw new Error(answer.error.message);
      }
      window.location.href = answer.address;
    } catch (error) {
      status.textContent = `${file.name} can't be shown: ${error.message}`;
    }
  };
  field.addEventListener("change", () => field.files[0] && send(field.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) {
      send(event.dataTransfer.files[0]);
    }
  });
}

/** Two ticked runs are compared, the older one first. */
function connectCompare(button) {
  const boxes = [...document.querySelectorAll("input[name=compare]")];
  const ticked = () => boxes.filter((box) => box.checked);
  const update = () => {
    button.disabled = ticked().length !== 2;
  };
  for (const box of boxes) {
    box.addEventListener("change", update);
  }
  button.addEventListener("click", () => {
    const [newer, older] = ticked().map((box) => box.value);
    window.location.href = `${button.dataset.target}?a=${encodeURIComponent(older)}&b=${encodeURIComponent(newer)}`;
  });
  update();
}

function main() {
  connectTheme();
  followLive(byId("live"));
  if (byId("bring")) {
    takeFiles(byId("bring"));
  }
  if (byId("compare")) {
    connectCompare(byId("compare"));
  }
}

main();
