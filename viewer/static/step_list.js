// The list of steps: every number of each, its flame graph and its trace one click away.

import { element, plainTable } from "./dom.js";
import { ms } from "./format.js";

const AT_ONCE = 100;

/** `listen` = {onChoose(i)}, i being a place in the API's columns. */
export class StepList {
  constructor(place, listen) {
    this.listen = listen;
    this.filter = element(
      "select",
      { "aria-label": "Which steps", onchange: () => this.#show() },
      element("option", { value: "all" }, "all steps"),
      element("option", { value: "outliers" }, "outliers"),
      element("option", { value: "chosen" }, "the selection"),
    );
    this.told = element("small");
    this.more = element("button", { type: "button", onclick: () => this.#grow() }, "Show more");
    const headings = [
      ["Step", 1],
      ["Engine", 0],
      ["Kind", 0],
      ["Interval ms", 1],
      ["Duration ms", 1],
      ["Tokens", 1],
      ["Requests", 1],
      ["Execution", 0],
      ["Trace", 0],
    ];
    this.table = plainTable("steps", headings, [], "Steps");
    this.body = this.table.querySelector("tbody");
    place.replaceChildren(
      element(
        "div",
        { class: "heading" },
        element("h2", {}, "Steps ", this.told),
        element("span", { class: "gap" }),
        this.filter,
      ),
      this.table,
      this.more,
    );
  }

  show(columns, isChosen) {
    this.columns = columns;
    this.isChosen = isChosen;
    this.#show();
  }

  setChosen(isChosen) {
    this.isChosen = isChosen;
    if (this.filter.value === "chosen") {
      this.#show();
    }
  }

  #show() {
    const { count, outlier } = this.columns;
    const all = [...Array(count).keys()];
    const fits = { all: () => true, outliers: (i) => outlier[i] > 0, chosen: (i) => this.isChosen(i) }[
      this.filter.value
    ];
    this.places = all.filter(fits);
    if (this.filter.value === "outliers") {
      this.places.sort((a, b) => outlier[b] - outlier[a]);
    }
    const engines = this.columns.engines.length;
    this.told.textContent = `${this.places.length.toLocaleString("en")} of ${count.toLocaleString("en")} on ${engines} engine${engines === 1 ? "" : "s"}`;
    this.body.replaceChildren();
    this.#grow();
  }

  #grow() {
    const shown = this.body.children.length;
    this.body.append(...this.places.slice(shown, shown + AT_ONCE).map((i) => this.#row(i)));
    this.more.hidden = this.body.children.length >= this.places.length;
  }

  #row(i) {
    const all = this.columns;
    const number = (text, strong = false) => element("td", { class: strong ? "num strong" : "num" }, text);
    const tokens = all.context_tokens[i]
      ? `${all.context_tokens[i]} + ${all.generation_tokens[i]}`
      : String(all.generation_tokens[i]);
    return element(
      "tr",
      {},
      element(
        "td",
        { class: "num" },
        element(
          "button",
          {
            type: "button",
            class: "frame-name",
            title: "Show this step's flame graph",
            onclick: () => this.listen.onChoose(i),
          },
          String(all.index[i]),
        ),
      ),
      element("td", {}, all.engines[all.engine[i]].label),
      element(
        "td",
        {},
        element("span", { class: `kind ${all.kind[i]}` }, all.kind[i]),
        " ",
        all.mixed[i] ? element("span", { class: "kind" }, "mixed") : null,
        " ",
        all.outlier[i]
          ? element("span", { class: "kind outlier", title: "Far from the median of its kind" }, `${all.outlier[i]} ×`)
          : null,
      ),
      number(ms(all.interval_ns[i] / 1e6), true),
      number(ms(all.duration_ns[i] / 1e6)),
      number(tokens),
      number(String(all.requests[i])),
      element("td", {}, all.execution[i].replaceAll("_", " ")),
      element("td", {}, traceOf(all, i)),
    );
  }
}

/** The trace's id, and a link to it where one is known. */
export function traceOf(columns, i) {
  const id = columns.trace_id[i];
  const short = element("code", { class: "trace", title: id }, id);
  if (!columns.trace_link || !id) {
    return short;
  }
  const href = columns.trace_link.replaceAll("{trace_id}", encodeURIComponent(id));
  return element("a", { href, target: "_blank", rel: "noopener noreferrer", class: "trace-link" }, short);
}
