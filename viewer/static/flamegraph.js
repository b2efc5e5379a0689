// The flame graph of one view, drawn by d3-flame-graph.

import { ms } from "./format.js";
import { makeTooltip } from "./tooltip.js";

const ROW = 24;
const PADDING = 10;
const MOTION_MS = window.matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 250;

// Narrower boxes are not drawn; a search still counts them.
const NARROWEST = 0.2;

/** Draw `view` (the API's answer) into `place`; `onZoom(zoomed)` hears of every zoom. */
export function drawFlamegraph(place, view, onZoom) {
  const steps = Math.max(view.steps, 1);
  const widthOf = textMeasure(place);
  let searching = false;

  // As much as the box has room for: a number cut short would read as another number.
  function label(node) {
    const name = node.data.name;
    const room = (node.x1 - node.x0) * chart.width() - PADDING;
    const full = `${name}  ${ms(node.data.value / 1000 / steps)} ms`;
    const shortest = name.split(":")[0].split(".").pop(); // moe.route → route, attn:Attention → attn
    return [full, name].find((text) => widthOf(text) <= room) ?? (shortest || name);
  }

  // d3-flame-graph gives every box its classes anew whenever it draws, so hits are marked after it.
  function markHits() {
    place.classList.toggle("searching", searching);
    window.d3
      .select(place)
      .selectAll("g.frame")
      .classed("hit", (node) => searching && node.highlight)
      .filter((node) => searching && node.highlight)
      .raise();
  }

  const chart = window.flamegraph
    .default()
    .width(place.clientWidth)
    .height(view.depth * ROW)
    .cellHeight(ROW)
    .inverted(true)
    .sort(false)
    .minFrameSize(NARROWEST)
    .transitionDuration(0)
    .tooltip(makeTooltip(steps, view.root.value || 1))
    .getName(label)
    .setColorMapper((node) => `var(--frame-${node.data.category})`)
    .setSearchMatch((node, text) => node.data.name.toLowerCase().includes(text.toLowerCase()))
    .onClick((node) => {
      markHits();
      onZoom(node.depth > 0);
    });

  window.d3.select(place).datum(view.root).call(chart);
  chart.transitionDuration(MOTION_MS);

  new ResizeObserver(() => {
    if (place.clientWidth !== chart.width()) {
      chart.width(place.clientWidth).update();
      markHits();
    }
  }).observe(place);

  return {
    reset: () => chart.resetZoom(),

    /** Mark the frames whose name holds `text`; tells how many and which share of the step they cover. */
    search(text) {
      searching = text !== "";
      let found = { frames: 0, share: 0 };
      chart.setSearchHandler((nodes) => {
        found = { frames: nodes.length, share: covered(nodes) / (view.root.value || 1) };
      });
      if (searching) {
        chart.search(text);
      } else {
        chart.clear();
      }
      markHits();
      return found;
    },
  };
}

/** Measures texts in pixels, in the font of the boxes. */
function textMeasure(place) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `12px ${getComputedStyle(place).fontFamily}`;
  return (text) => context.measureText(text).width;
}

/** The time that hits cover together: a hit below another hit counts once. */
function covered(nodes) {
  const hits = new Set(nodes);
  const outermost = nodes.filter((node) => !node.ancestors().slice(1).some((above) => hits.has(above)));
  return outermost.reduce((sum, node) => sum + node.data.value, 0);
}
