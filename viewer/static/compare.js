// Two recordings side by side: the verdict, what changed, and the flame graph of the changes.

import { Colors } from "./colors.js";
import { copyText, element, plainTable, segments } from "./dom.js";
import { FlameGraph } from "./flamegraph.js";
import { percent, signed, unitsOf } from "./format.js";
import { Keys } from "./keys.js";
import { loadJson } from "./load.js";
import { Search, makeMatcher } from "./search.js";
import { State } from "./state.js";
import { connectTheme, toggleTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";
import { Tree } from "./tree.js";

const API_KEYS = ["a", "b", "kind", "layers", "mixed", "a_rank", "b_rank", "a_steps", "b_steps"];
const STRONGEST_SHARE = 0.1; // of a step: a change of so much has the full colour
const STRONGEST_RELATIVE = 0.5; // of the frame itself
const byId = (id) => document.getElementById(id);

class ComparePage {
  constructor(place) {
    this.state = new State();
    this.place = place;
    this.tooltip = new Tooltip();
    this.#load();
    document.addEventListener("themechange", () => this.#paint());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  async #load() {
    try {
      const query = this.state.part(API_KEYS).toString();
      this.answer = await loadJson(`${this.place.dataset.source}?${query}`, (text) => {
        byId("verdict").textContent = text;
      });
      this.#show();
    } catch (error) {
      byId("verdict").textContent = `This can't be compared: ${error.message}`;
    }
  }

  #show() {
    const { answer } = this;
    byId("verdict").textContent = answer.summary;
    byId("verdict").dataset.verdict = answer.verdict;
    const loads = answer.loads.length
      ? this.#loads()
      : element("p", { class: "faint" }, "Without step rows on both sides their work can't be compared.");
    const notes = answer.notes.length
      ? element("ul", {}, ...answer.notes.map((text) => element("li", {}, text)))
      : null;
    byId("loads").replaceChildren(...[loads, notes].filter(Boolean));
    this.place.parentElement.hidden = !answer.tree;
    if (!answer.tree) {
      new Keys([["d", "light or dark", toggleTheme]]);
      return;
    }
    this.#showGraph();
    this.#showChanges();
  }

  #loads() {
    const three = ([low, middle, high]) => `${middle} (${low}–${high})`;
    const rows = this.answer.loads.map((load) =>
      element(
        "tr",
        { class: load.alike ? null : "unlike" },
        element("td", {}, load.name),
        element("td", { class: "num" }, three(load.a)),
        element("td", { class: "num" }, three(load.b)),
        element("td", {}, load.alike ? "alike" : "differ"),
      ),
    );
    return plainTable(
      "loads",
      [
        ["Per step, median (middle half)", 0],
        ["A", 1],
        ["B", 1],
        ["", 0],
      ],
      rows,
    );
  }

  #showGraph() {
    const { answer } = this;
    this.tree = new Tree(answer.tree);
    [this.unit] = Object.values(unitsOf({ unit: answer.unit, steps: 1 }));
    this.graph = new FlameGraph("Flame graph of the changes", {
      onFocus: (i) => this.#focused(i),
      onZoom: (isZoomed) => {
        this.resetButton.disabled = !isZoomed;
      },
      onHover: (i, event) =>
        i < 0 ? this.tooltip.hide() : this.tooltip.show(event, this.tree.nameOf(i), this.#numbers(i)),
    });
    this.graph.root.id = "flamegraph";
    this.field = element("input", {
      type: "search",
      id: "search",
      placeholder: "Search frames",
      "aria-label": "Search frames",
      autocomplete: "off",
    });
    this.field.value = this.state.get("q");
    this.field.addEventListener("input", () => this.#search());
    this.hits = element("output", { id: "hits", for: "search" });
    this.resetButton = element(
      "button",
      { type: "button", disabled: true, onclick: () => this.graph.reset() },
      "Reset zoom",
    );
    this.mode = segments(
      "Colour",
      [
        ["", "Absolute", "Colour by the change's share of a step"],
        ["1", "Relative", "Colour by the change's share of the frame"],
      ],
      this.state.get("relative"),
      (value) => this.#setMode(value),
    );
    this.path = element("p", { class: "path", "aria-live": "polite" });
    this.place.replaceChildren(
      element(
        "div",
        { class: "controls graph-controls" },
        element("div", { class: "search" }, this.field, this.hits),
        element("span", { class: "gap" }),
        this.mode.group,
        this.resetButton,
      ),
      this.graph.root,
      this.path,
      element(
        "p",
        { class: "legend changes" },
        swatch("faster", "faster in B"),
        swatch("neutral", "within the noise"),
        swatch("slower", "slower in B"),
        element("span", { class: "faint" }, "A box is as wide as the mean of both sides."),
      ),
    );
    this.graph.show(this.tree, this.#look());
    this.#focused(0);
    this.#search();
    new Keys([
      ["/", "search", () => this.field.focus()],
      ["g", "go to the flame graph", () => this.graph.canvas.focus()],
      ["Arrows", "in the graph: parent, child, neighbours", null, "← → ↑ ↓"],
      ["Enter", "in the graph: zoom to the frame", null, "Enter"],
      ["0", "reset the zoom", () => this.graph.reset()],
      ["v", "absolute or relative", () => this.#setMode(this.state.get("relative") ? "" : "1")],
      ["x", "the other way round", () => this.#swap()],
      ["C", "copy the summary", () => copyText(this.answer.summary)],
      ["d", "light or dark", toggleTheme],
    ]);
    byId("swap")?.addEventListener("click", () => this.#swap());
  }

  #swap() {
    const now = Object.fromEntries(API_KEYS.map((key) => [key, this.state.get(key)]));
    const other = {
      a: now.b || now.a,
      b: now.a,
      a_rank: now.b_rank,
      b_rank: now.a_rank,
      a_steps: now.b_steps,
      b_steps: now.a_steps,
    };
    this.state.set(other);
    window.location.reload();
  }

  #setMode(value) {
    this.state.set({ relative: value });
    this.mode.set(value);
    this.#paint();
  }

  #paint() {
    this.graph?.setLook(this.#look());
  }

  #look() {
    const { a, b, noise } = this.tree.extra;
    const colors = new Colors([]);
    const relative = this.state.get("relative") === "1";
    const step = Math.max(a[0], b[0], 1e-9);
    const fillOf = (i) => {
      const delta = b[i] - a[i];
      if (Math.abs(delta) <= noise[i]) {
        return colors.change(0);
      }
      return colors.change(
        relative ? delta / Math.max(a[i], b[i]) / STRONGEST_RELATIVE : delta / step / STRONGEST_SHARE,
      );
    };
    return { colors, fillOf, amountOf: (i) => signed(this.unit.withUnit(b[i] - a[i]), b[i] - a[i]) };
  }

  #numbers(i) {
    const { unit } = this;
    const { a, b, noise } = this.tree.extra;
    const delta = b[i] - a[i];
    return [
      [`A, ${unit.name}`, unit.text(a[i])],
      [`B, ${unit.name}`, unit.text(b[i])],
      ["change", signed(unit.withUnit(delta), delta) + (a[i] ? ` (${signed(percent(delta / a[i]), delta)})` : "")],
      ["noise", `± ${unit.withUnit(noise[i])}`],
    ];
  }

  #focused(i) {
    const numbers = this.#numbers(i)
      .map(([term, value]) => `${term} ${value}`)
      .join(" · ");
    this.path.replaceChildren(
      element("span", { class: "crumbs" }, this.tree.path(i).join(" › ")),
      element("span", { class: "faint" }, numbers),
    );
  }

  #search() {
    const text = this.field.value.trim();
    this.state.set({ q: text });
    const matches = makeMatcher(text, false);
    const found = matches ? new Search(this.tree, matches) : null;
    this.graph.setSearch(found);
    this.hits.textContent = found ? `${found.count} frame${found.count === 1 ? "" : "s"}` : "";
    for (const row of document.querySelectorAll("tr[data-frame]")) {
      row.hidden = matches !== null && !matches(row.dataset.frame);
    }
  }

  #showChanges() {
    const { changes } = this.answer;
    const groups = [
      ["Changed beyond the noise", changes.filter((each) => each.beyond_noise && each.state === "changed")],
      ["Appeared in B", changes.filter((each) => each.state === "appeared")],
      ["Vanished in B", changes.filter((each) => each.state === "vanished")],
      ["Unchanged", changes.filter((each) => each.state === "unchanged")],
    ];
    byId("changes").replaceChildren(...groups.flatMap(([title, members]) => this.#group(title, members)));
    this.#search();
  }

  #group(title, members) {
    if (!members.length) {
      return [];
    }
    const headings = [
      [`Frame, self ${this.unit.name}`, 0],
      ["A", 1],
      ["B", 1],
      ["Change", 1],
      ["Relative", 1],
      ["Noise", 1],
    ];
    const table = plainTable(
      "changes",
      headings,
      members.map((each) => this.#change(each)),
    );
    if (title !== "Unchanged") {
      return [element("h2", {}, title, " ", element("small", {}, String(members.length))), table];
    }
    return [element("details", {}, element("summary", {}, `Unchanged: ${members.length}`), table)];
  }

  #change(each) {
    const delta = each.delta_us;
    const state = !each.beyond_noise ? null : delta > 0 ? "slower" : "faster";
    return element(
      "tr",
      { class: state, "data-frame": each.frame },
      element(
        "td",
        {},
        element("button", { type: "button", class: "frame-name", onclick: () => this.#find(each.frame) }, each.frame),
      ),
      element("td", { class: "num" }, this.unit.text(each.a_us)),
      element("td", { class: "num" }, this.unit.text(each.b_us)),
      element("td", { class: "num strong" }, signed(this.unit.text(delta), delta)),
      element("td", { class: "num" }, each.a_us ? signed(percent(delta / each.a_us), delta) : "new"),
      element("td", { class: "num" }, each.noise_us === null ? "–" : `± ${this.unit.text(each.noise_us)}`),
    );
  }

  #find(frame) {
    this.field.value = frame;
    this.#search();
    const widest = this.tree.frames().find((each) => each.name === frame)?.widest;
    if (widest !== undefined) {
      this.graph.focus(widest);
    }
  }
}

function swatch(name, text) {
  return element("span", {}, element("i", { class: `swatch change-${name}` }), text);
}

function main() {
  connectTheme();
  window.page = new ComparePage(byId("app"));
}

main();
