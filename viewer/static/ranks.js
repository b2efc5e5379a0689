// The spread over ranks: which one is the slowest, and in which frames they differ.

import { element, plainTable } from "./dom.js";
import { ms, percent } from "./format.js";
import { unescapeFrame } from "./tree.js";

const ENGINES_OWN = new Set(["step", "step;schedule", "step;wait", "step;update_from_output"]);
const STRAGGLES = 1.05; // times the median
const FRAMES_SHOWN = 30;

/** `listen` = {onRank(name)}. */
export class RankSpread {
  constructor(place, listen) {
    this.place = place;
    this.listen = listen;
  }

  say(text) {
    this.place.replaceChildren(element("p", { class: "faint", role: "status" }, text));
  }

  show(answer) {
    if (answer.ranks.length < 2) {
      this.say("There is one rank only.");
      return;
    }
    this.place.replaceChildren(this.#ranks(answer), this.#frames(answer));
  }

  #ranks({ ranks, stacks, self }) {
    const work = stacks.map((stack) => !ENGINES_OWN.has(stack));
    const busy = self.map((values) => values.reduce((sum, value, i) => sum + (work[i] ? value : 0), 0));
    const middle = median(busy);
    const most = Math.max(...busy, 1e-9);
    const order = [...ranks.keys()].sort((a, b) => busy[b] - busy[a]);
    const rows = order.map((at) => {
      const off = busy[at] / (middle || 1) - 1;
      const straggler = busy[at] > STRAGGLES * middle;
      return element(
        "tr",
        { class: straggler ? "straggler" : null },
        element(
          "td",
          {},
          element(
            "button",
            {
              type: "button",
              class: "frame-name",
              title: "Show this rank alone",
              onclick: () => this.listen.onRank(ranks[at].name),
            },
            ranks[at].label,
          ),
          straggler ? element("span", { class: "kind outlier" }, "straggler") : null,
        ),
        element("td", { class: "num strong" }, ms(busy[at] / 1000)),
        element("td", { class: "num" }, `${off >= 0 ? "+" : "−"}${percent(Math.abs(off))}`),
        element(
          "td",
          { class: "bar" },
          element("meter", { min: "0", max: "1", value: busy[at] / most, "aria-hidden": "true" }),
        ),
      );
    });
    return plainTable(
      "ranks",
      [
        ["Rank", 0],
        ["At work, ms per step", 1],
        ["From the median", 1],
        ["", 0],
      ],
      rows,
      "Ranks",
    );
  }

  #frames({ ranks, stacks, self }) {
    const byFrame = new Map();
    stacks.forEach((stack, at) => {
      if (ENGINES_OWN.has(stack)) {
        return;
      }
      const frame = stack.slice(stack.lastIndexOf(";") + 1);
      const sums =
        byFrame.get(frame) ??
        byFrame
          .set(
            frame,
            ranks.map(() => 0),
          )
          .get(frame);
      self.forEach((values, rank) => {
        sums[rank] += values[at];
      });
    });
    const frames = [...byFrame].map(([frame, values]) => {
      const greatest = Math.max(...values);
      const least = Math.min(...values);
      return { frame, least, middle: median(values), greatest, slowest: ranks[values.indexOf(greatest)].label };
    });
    frames.sort((a, b) => b.greatest - b.least - (a.greatest - a.least));
    const rows = frames
      .slice(0, FRAMES_SHOWN)
      .map((each) =>
        element(
          "tr",
          {},
          element("td", {}, unescapeFrame(each.frame)),
          element("td", { class: "num" }, ms(each.least / 1000)),
          element("td", { class: "num" }, ms(each.middle / 1000)),
          element("td", { class: "num" }, ms(each.greatest / 1000)),
          element("td", { class: "num strong" }, ms((each.greatest - each.least) / 1000)),
          element("td", {}, each.slowest),
        ),
      );
    return plainTable(
      "spread",
      [
        ["Frame, self ms per step", 0],
        ["Min", 1],
        ["Median", 1],
        ["Max", 1],
        ["Spread", 1],
        ["Slowest rank", 0],
      ],
      rows,
      "Frames over ranks",
    );
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
