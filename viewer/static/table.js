// The table of frames: sortable, filtered by the search, only as many rows in the page as can be seen.

import { count, percent } from "./format.js";
import { element } from "./dom.js";

const ROW = 30;
const SPARE = 8;

/** Columns by key: heading, and whether the greatest stands first. */
const COLUMNS = {
  layer: ["Layer", false],
  name: ["Frame", false],
  self: ["Self", true],
  total: ["Total", true],
  share: ["Share", true],
  calls: ["Calls", true],
  perCall: ["Per call", true],
};

/** `listen` = {onSort(key), onChoose(frame), onSandwich(frame)}. */
export class FrameTable {
  constructor(listen) {
    this.listen = listen;
    this.sort = "-self";
    this.head = element("tr");
    this.body = element("tbody");
    this.table = element("table", { class: "frames" }, element("thead", {}, this.head), this.body);
    this.scroller = element(
      "div",
      { class: "frames-scroll", tabindex: "0", role: "region", "aria-label": "Frames" },
      this.table,
    );
    this.scroller.addEventListener("scroll", () => this.#render());
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#render()).observe(this.scroller);
    this.empty = element("p", { class: "faint", hidden: true }, "No frame fits the search.");
    this.root = element("div", { class: "frames-side" }, this.scroller, this.empty);
    this.frames = [];
    this.shown = [];
    this.matches = null;
  }

  /** Show frames; `units` tells their values, `whole` is what shares are of, `steps` divides calls. */
  show(frames, units, whole, steps) {
    Object.assign(this, { frames, units, whole, steps });
    this.hasLayers = frames.some((frame) => frame.layer);
    this.update();
  }

  setUnits(units) {
    this.units = units;
    this.update();
  }

  setSearch(matches) {
    this.matches = matches;
    this.update();
  }

  setSort(sort) {
    this.sort = sort;
    this.update();
  }

  update() {
    const key = this.sort.replace("-", "");
    const direction = this.sort.startsWith("-") ? -1 : 1;
    const value = (frame) =>
      key === "share" ? frame.self : key === "perCall" ? frame.total / (frame.calls || Infinity) : frame[key];
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    this.shown = this.frames.filter((frame) => !this.matches || this.matches(frame.name));
    this.shown.sort((a, b) => direction * compare(value(a), value(b)) || a.name.localeCompare(b.name));
    this.#renderHead();
    this.empty.hidden = this.shown.length > 0;
    this.#render();
  }

  get keys() {
    return Object.keys(COLUMNS).filter((key) => key !== "layer" || this.hasLayers);
  }

  #renderHead() {
    const [current, descending] = [this.sort.replace("-", ""), this.sort.startsWith("-")];
    const cells = this.keys.map((key) => {
      const [heading, greatestFirst] = COLUMNS[key];
      const sorted = key === current;
      const next = sorted ? (descending ? key : `-${key}`) : greatestFirst ? `-${key}` : key;
      const unit = ["self", "total"].includes(key) && this.units ? ` ${this.units.short}` : "";
      return element(
        "th",
        {
          class: key === "name" || key === "layer" ? null : "num",
          scope: "col",
          "aria-sort": sorted ? (descending ? "descending" : "ascending") : null,
        },
        element(
          "button",
          { type: "button", "data-sort": key, onclick: () => this.listen.onSort(next) },
          `${heading}${unit}`,
        ),
      );
    });
    const focusedKey = document.activeElement?.dataset?.sort;
    this.head.replaceChildren(...cells);
    if (focusedKey && !this.head.contains(document.activeElement)) {
      this.head.querySelector(`[data-sort="${focusedKey}"]`)?.focus();
    }
  }

  /** Put the rows in sight into the page, and rows as high as the others before and after them. */
  #render() {
    const first = Math.max(Math.floor(this.scroller.scrollTop / ROW) - SPARE, 0);
    const last = Math.min(first + Math.ceil((this.scroller.clientHeight || 400) / ROW) + 2 * SPARE, this.shown.length);
    const focused = document.activeElement?.closest?.("tr[data-row]")?.dataset.row;
    this.body.replaceChildren(
      this.#filler(first),
      ...this.shown.slice(first, last).map((frame, at) => this.#row(frame, first + at)),
      this.#filler(this.shown.length - last),
    );
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    if (focused !== undefined) {
      this.body.querySelector(`tr[data-row="${focused}"] button`)?.focus({ preventScroll: true });
    }
  }

  #filler(rows) {
    const filler = element(
      "tr",
      { class: "filler", "aria-hidden": "true", hidden: rows === 0 },
      element("td", { colspan: this.keys.length }),
    );
    filler.style.height = `${rows * ROW}px`;
    return filler;
  }

  #row(frame, number) {
    const { units } = this;
    const share = frame.self / (this.whole || 1);
    const bar = element("meter", { min: "0", max: "1", value: share, "aria-hidden": "true" });
    const cells = {
      layer: () => element("td", {}, frame.layer || "–"),
      name: () =>
        element("td", {}, element("div", { class: "name" }, this.#nameButton(frame), this.#sandwichButton(frame))),
      self: () => element("td", { class: "num strong" }, units.text(frame.self)),
      total: () => element("td", { class: "num" }, units.text(frame.total)),
      share: () => element("td", { class: "num share" }, bar, element("span", {}, percent(share))),
      calls: () =>
        element("td", { class: "num" }, frame.calls ? count(Math.round((10 * frame.calls) / this.steps) / 10) : "–"),
      perCall: () => element("td", { class: "num" }, frame.calls ? (frame.total / 1000 / frame.calls).toFixed(3) : "–"),
    };
    return element("tr", { "data-row": number, "aria-rowindex": number + 2 }, ...this.keys.map((key) => cells[key]()));
  }

  #nameButton(frame) {
    return element(
      "button",
      { type: "button", class: "frame-name", title: frame.name, onclick: () => this.listen.onChoose(frame) },
      element("i", { class: "swatch", "data-category": frame.category }),
      frame.name,
    );
  }

  #sandwichButton(frame) {
    const what = {
      title: "Callers and callees",
      "aria-label": `Callers and callees of ${frame.name}`,
      onclick: () => this.listen.onSandwich(frame),
    };
    return element("button", { type: "button", class: "quiet", ...what }, "⇅");
  }

  /** Arrow keys walk over the rows' names. */
  #key(event) {
    const row = Number(document.activeElement?.closest?.("tr[data-row]")?.dataset.row ?? -1);
    const to = { ArrowDown: row + 1, ArrowUp: row - 1, Home: 0, End: this.shown.length - 1 }[event.key];
    if (to === undefined || to < 0 || to >= this.shown.length) {
      return;
    }
    event.preventDefault();
    const top = to * ROW;
    if (top < this.scroller.scrollTop) {
      this.scroller.scrollTop = top;
    } else if (top + 2 * ROW > this.scroller.scrollTop + this.scroller.clientHeight) {
      this.scroller.scrollTop = top + 2 * ROW - this.scroller.clientHeight;
    }
    this.#render();
    this.body.querySelector(`tr[data-row="${to}"] .frame-name`)?.focus({ preventScroll: true });
  }
}
