// The tooltip of the flame graph: beside the pointer, always within the window.

import { count, ms, percent } from "./format.js";

const GAP = 14;

/** A tooltip as d3-flame-graph takes one: a function with show and hide. `steps` divides all times. */
export function makeTooltip(steps, whole) {
  const box = document.createElement("div");
  box.className = "tooltip";
  box.hidden = true;
  box.setAttribute("role", "tooltip");
  document.body.append(box);

  function place(event) {
    const left = Math.min(event.clientX + GAP, window.innerWidth - box.offsetWidth - GAP);
    const below = event.clientY + GAP;
    const fits = below + box.offsetHeight < window.innerHeight;
    box.style.left = `${Math.max(left, GAP)}px`;
    box.style.top = `${fits ? below : Math.max(event.clientY - box.offsetHeight - GAP, 0)}px`;
  }

  function tooltip() {}
  tooltip.show = (event, node) => {
    box.replaceChildren(...content(node, steps, whole));
    box.hidden = false;
    place(event);
    document.addEventListener("mousemove", place);
  };
  tooltip.hide = () => {
    box.hidden = true;
    document.removeEventListener("mousemove", place);
  };
  return tooltip;
}

function content(node, steps, whole) {
  const frame = node.data;
  const rows = [
    ["ms per step", ms(frame.value / 1000 / steps)],
    ["share of step", percent(frame.value / whole)],
    ["self ms", ms(frame.self / 1000 / steps)],
  ];
  if (frame.calls) {
    rows.push(["calls per step", count(frame.calls / steps)]);
    rows.push(["ms per call", ms(frame.value / 1000 / frame.calls)]);
  }
  const name = document.createElement("strong");
  name.textContent = frame.name;
  const list = document.createElement("dl");
  for (const [term, value] of rows) {
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = term;
    dd.textContent = value;
    list.append(dt, dd);
  }
  return [name, list];
}
