// The strip of all recorded steps: a bar each, as high as its interval, in a lane for each engine.

import { Colors } from "./colors.js";
import { element } from "./dom.js";
import { count, ms } from "./format.js";
import { Tooltip } from "./tooltip.js";

const LANE = 54;
const NARROW_LANE = 26;
const FEW_ENGINES = 3;
const MOST_HEIGHT = 230;
const MARK = 5;
const DRAG_PIXELS = 3;

/** `listen` = {onSelect({steps, engine} or null)}; `steps` is "3" or "3-9", `engine` an id where one is meant. */
export class StepStrip {
  constructor(place, listen) {
    this.listen = listen;
    this.tooltip = new Tooltip();
    this.canvas = element("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "strip of steps",
      "aria-label": "Steps: arrow keys choose one, Shift a range, Enter shows it",
    });
    this.scroller = element("div", { class: "strip-scroll" }, this.canvas);
    this.told = element("p", { class: "strip-told faint", "aria-live": "polite" });
    place.replaceChildren(this.scroller, this.told);
    this.cursor = -1;
    this.chosen = null;
    this.#connect();
  }

  /** Show the API's columns; `chosen` = {first, last, engine} or null. */
  show(columns, chosen, kind) {
    this.columns = columns;
    this.lanes = columns.engines.length || 1;
    this.lane = this.lanes > FEW_ENGINES ? NARROW_LANE : LANE;
    this.kind = "";
    this.least = columns.count ? columns.index[0] : 0;
    this.slots = columns.count ? columns.index[columns.count - 1] - this.least + 1 : 1;
    this.setChosen(chosen);
    this.setKind(kind);
    this.#resize();
  }

  /** Bars are as high as suits this kind of step; those of others may be cut off. */
  setKind(kind) {
    this.kind = kind;
    this.top = this.#scaleTop();
    if (this.cursor < 0) {
      this.told.replaceChildren(...this.#legend());
    }
    this.draw();
  }

  setChosen(chosen) {
    this.chosen = chosen;
    this.draw();
  }

  /** Outliers by how far they are out, the furthest first: places in the columns. */
  get outliers() {
    const { outlier, count } = this.columns;
    return [...Array(count).keys()].filter((i) => outlier[i]).sort((a, b) => outlier[b] - outlier[a]);
  }

  /** Select the outlier after the last one that was selected this way. */
  nextOutlier() {
    const found = this.outliers;
    if (found.length) {
      this.outlierAt = ((this.outlierAt ?? -1) + 1) % found.length;
      this.choose(found[this.outlierAt]);
    }
  }

  /** Select one step, of its engine. */
  choose(i) {
    this.cursor = i;
    const { index, engine, engines } = this.columns;
    this.#tell(i);
    this.listen.onSelect({ steps: String(index[i]), engine: engines[engine[i]].id });
  }

  /** Bars end where nearly all of the kind do. */
  #scaleTop() {
    const { interval_ns: interval, kind } = this.columns;
    const own = interval.filter((_, i) => kind[i] === this.kind);
    const sorted = Float64Array.from(own.length ? own : interval).sort();
    const high = sorted[Math.floor(0.98 * (sorted.length - 1))] || 1;
    return Math.max(Math.min(sorted[sorted.length - 1] || 1, 1.6 * high), 1);
  }

  /** What the colours are, and how far the bars reach. */
  #legend() {
    const { interval_ns: interval, kind } = this.columns;
    const kinds = ["prefill", "decode", "idle"].filter((each) => kind.includes(each));
    const cut = interval.filter((value) => value > this.top).length;
    const reach = `bars end at ${ms(this.top / 1e6)} ms${cut ? `, ${count(cut)} longer step${cut === 1 ? "" : "s"} cut off` : ""}`;
    const swatches = kinds.map((each) => element("span", {}, element("i", { class: `swatch step-${each}` }), each, " "));
    return [...(kinds.length > 1 ? swatches : []), reach];
  }

  #resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.scroller.clientWidth;
    this.height = this.lanes * this.lane;
    this.scroller.style.maxHeight = `${MOST_HEIGHT}px`;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.draw();
  }

  draw() {
    if (!this.columns || !this.width) {
      return;
    }
    const colors = new Colors([]);
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.#drawSelection(context, colors);
    this.#drawBars(context, colors);
    this.#drawLanes(context, colors);
  }

  #drawSelection(context, colors) {
    if (!this.chosen) {
      return;
    }
    const { first, last, engine } = this.chosen;
    const lane = engine ? this.columns.engines.findIndex((each) => each.id === engine) : -1;
    const y = lane >= 0 ? lane * this.lane : 0;
    const height = lane >= 0 ? this.lane : this.height;
    const left = this.#x(first);
    const width = Math.max(this.#x(last + 1) - left, 2);
    context.fillStyle = colors.accent;
    context.globalAlpha = 0.16;
    context.fillRect(left, y, width, height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.5, y + 0.75, Math.max(width - 1, 1), height - 1.5);
  }

  #drawBars(context, colors) {
    const { count, index, engine, kind, mixed, interval_ns: interval, outlier } = this.columns;
    const slot = this.width / this.slots;
    const room = this.lane - MARK - 3;
    for (let i = 0; i < count; i += 1) {
      const height = Math.max(Math.min(interval[i] / this.top, 1) * room, 1);
      const bottom = (engine[i] + 1) * this.lane - 1;
      const x = this.#x(index[i]);
      const width = Math.max(slot - (slot > 4 ? 1 : 0), 0.8);
      context.fillStyle = kind[i] === "prefill" ? colors.prefill : kind[i] === "idle" ? colors.line : colors.decode;
      context.fillRect(x, bottom - height, width, height);
      if (mixed[i]) {
        context.fillStyle = colors.decode;
        context.fillRect(x, bottom - height / 2, width, height / 2);
      }
      if (outlier[i]) {
        context.fillStyle = colors.hit;
        context.fillRect(x + width / 2 - 2, bottom - height - MARK, 4, 4);
      }
    }
    if (this.cursor >= 0) {
      context.strokeStyle = colors.text;
      context.lineWidth = 1.5;
      context.strokeRect(
        this.#x(index[this.cursor]) - 1,
        engine[this.cursor] * this.lane + 1,
        Math.max(slot, 3) + 1,
        this.lane - 3,
      );
    }
  }

  #drawLanes(context, colors) {
    context.fillStyle = colors.line;
    for (let lane = 1; lane <= this.lanes; lane += 1) {
      context.fillRect(0, lane * this.lane - 1, this.width, 1);
    }
    if (this.lanes < 2) {
      return;
    }
    context.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textBaseline = "top";
    this.columns.engines.forEach(({ label }, lane) => {
      context.fillStyle = colors.panel;
      context.globalAlpha = 0.92;
      context.fillRect(0, lane * this.lane + 1, context.measureText(label).width + 8, 14);
      context.globalAlpha = 1;
      context.fillStyle = colors.faint;
      context.fillText(label, 3, lane * this.lane + 3);
    });
  }

  #x(index) {
    return ((index - this.least) / this.slots) * this.width;
  }

  #slotAt(pixel) {
    const slot = Math.floor((pixel / this.width) * this.slots);
    return this.least + Math.min(Math.max(slot, 0), this.slots - 1);
  }

  /** The step under a place of the canvas, or −1. */
  #stepAt(x, y) {
    const lane = Math.min(Math.floor(y / this.lane), this.lanes - 1);
    const wanted = this.#slotAt(x);
    const { index, engine, count } = this.columns;
    let nearest = -1;
    for (let i = 0; i < count; i += 1) {
      if (engine[i] === lane && (nearest < 0 || Math.abs(index[i] - wanted) < Math.abs(index[nearest] - wanted))) {
        nearest = i;
      }
    }
    return nearest;
  }

  #rows(i) {
    const {
      kind,
      mixed,
      interval_ns: interval,
      duration_ns: duration,
      context_tokens: context,
      generation_tokens: generated,
      requests,
      outlier,
      execution,
    } = this.columns;
    return [
      ["kind", mixed[i] ? `${kind[i]}, mixed` : kind[i]],
      ["interval ms", ms(interval[i] / 1e6)],
      ["duration ms", ms(duration[i] / 1e6)],
      ["tokens", context[i] ? `${context[i]} + ${generated[i]}` : String(generated[i])],
      ["requests", String(requests[i])],
      ["execution", execution[i].replaceAll("_", " ")],
      ...(outlier[i] ? [["outlier", `${outlier[i]} × the median`]] : []),
    ];
  }

  #heading(i) {
    const { index, engine, engines } = this.columns;
    return `step ${index[i]} on ${engines[engine[i]].label}`;
  }

  #tell(i) {
    this.told.textContent = `${this.#heading(i)}: ${this.#rows(i)
      .map(([term, value]) => `${term} ${value}`)
      .join(", ")}`;
    this.draw();
  }

  #connect() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.tooltip.hide());
    canvas.addEventListener("pointerdown", (event) => this.#startDrag(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("themechange", () => this.draw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => {
      if (this.columns && this.scroller.clientWidth !== this.width) {
        this.#resize();
      }
    }).observe(this.scroller);
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #hover(event) {
    const i = this.columns ? this.#stepAt(...this.#place(event)) : -1;
    if (i < 0) {
      this.tooltip.hide();
    } else {
      this.tooltip.show(event, this.#heading(i), this.#rows(i));
    }
  }

  /** A click selects a step of its engine, a drag a range of all. */
  #startDrag(event) {
    if (event.button !== 0 || !this.columns?.count) {
      return;
    }
    const [from, y] = this.#place(event);
    this.canvas.setPointerCapture(event.pointerId);
    const range = (to) => [this.#slotAt(Math.min(from, to)), this.#slotAt(Math.max(from, to))];
    const move = (moved) => {
      const [to] = this.#place(moved);
      if (Math.abs(to - from) > DRAG_PIXELS) {
        const [first, last] = range(to);
        this.setChosen({ first, last, engine: "" });
      }
    };
    const up = (ended) => {
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", up);
      const [to] = this.#place(ended);
      if (Math.abs(to - from) > DRAG_PIXELS) {
        this.listen.onSelect({ steps: range(to).join("-"), engine: "" });
      } else {
        const i = this.#stepAt(from, y);
        if (i >= 0) {
          this.choose(i);
        }
      }
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up);
  }

  #key(event) {
    const { index, engine, count } = this.columns ?? { count: 0 };
    if (!count || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (moves[event.key]) {
      const [lanes, steps] = moves[event.key];
      const at = this.cursor < 0 ? 0 : this.cursor;
      const lane = Math.min(Math.max(engine[at] + lanes, 0), this.lanes - 1);
      const wanted = index[at] + steps;
      const x = ((wanted - this.least + 0.5) / this.slots) * this.width;
      if (event.shiftKey && this.anchor === undefined) {
        this.anchor = index[at];
      }
      this.cursor = this.#stepAt(x, (lane + 0.5) * this.lane);
      this.#tell(this.cursor);
      if (event.shiftKey) {
        const [first, last] = [this.anchor, index[this.cursor]].sort((a, b) => a - b);
        this.setChosen({ first, last, engine: "" });
      } else {
        this.anchor = undefined;
      }
    } else if (event.key === "Enter" && this.cursor >= 0) {
      if (this.anchor === undefined) {
        this.choose(this.cursor);
      } else {
        this.listen.onSelect({ steps: `${this.chosen.first}-${this.chosen.last}`, engine: "" });
        this.anchor = undefined;
      }
    } else if (event.key === "Escape" && this.chosen) {
      this.listen.onSelect(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
