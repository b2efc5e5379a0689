// The page of one run: its controls, and what they move.

import { drawFlamegraph } from "./flamegraph.js";
import { percent } from "./format.js";
import { openInPerfetto } from "./perfetto.js";

const byId = (id) => document.getElementById(id);

async function showFlamegraph(place) {
  const note = byId("flamegraph-note");
  const response = await fetch(place.dataset.source);
  const view = await response.json();
  if (!response.ok) {
    note.textContent = view.error.message;
    return;
  }
  if (!view.root.value) {
    note.textContent = "These steps took no measurable time.";
    return;
  }
  note.remove();
  const graph = drawFlamegraph(place, view, (zoomed) => {
    byId("reset").disabled = !zoomed;
  });
  byId("reset").addEventListener("click", () => graph.reset());
  connectSearch(graph);
  keepUsedLegend(view.root);
}

function connectSearch(graph) {
  const field = byId("search");
  const search = () => {
    const found = graph.search(field.value.trim());
    const frames = `${found.frames} frame${found.frames === 1 ? "" : "s"}`;
    byId("hits").textContent = field.value.trim() ? `${frames} · ${percent(found.share)}` : "";
  };
  field.addEventListener("input", search);
  for (const button of document.querySelectorAll(".frame-name")) {
    button.addEventListener("click", () => {
      field.value = button.dataset.frame;
      search();
      byId("flamegraph").scrollIntoView({ block: "nearest" });
    });
  }
  search();
}

function keepUsedLegend(root) {
  const used = new Set();
  const waiting = [root];
  while (waiting.length) {
    const frame = waiting.pop();
    used.add(frame.category);
    waiting.push(...frame.children);
  }
  for (const entry of document.querySelectorAll(".legend li")) {
    entry.hidden = !used.has(entry.dataset.category);
  }
}

function connectPerfetto(table) {
  for (const button of table.querySelectorAll(".perfetto")) {
    const status = button.parentElement.querySelector("[role=status]");
    button.addEventListener("click", () => {
      openInPerfetto(table.dataset.perfetto, button.dataset.trace, button.dataset.name, (text) => {
        status.textContent = text;
      });
    });
  }
}

const place = byId("flamegraph");
if (place) {
  byId("rank-form").addEventListener("change", (event) => event.currentTarget.submit());
  showFlamegraph(place).catch((error) => {
    byId("flamegraph-note")?.replaceChildren(`The flame graph can't be shown: ${error.message}`);
  });
}
const traces = document.querySelector("table.torch");
if (traces) {
  connectPerfetto(traces);
}
