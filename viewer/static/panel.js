// A flame graph with its table, search, sandwich and legend: the same on every page and in stand-alone files.

import { Colors } from "./colors.js";
import { copyText, element, segments } from "./dom.js";
import { FlameGraph } from "./flamegraph.js";
import { count, percent, unitsOf } from "./format.js";
import { sandwich } from "./sandwich.js";
import { Search, makeMatcher } from "./search.js";
import { FrameTable } from "./table.js";
import { Tooltip } from "./tooltip.js";
import { Tree } from "./tree.js";

export class Panel {
  /** Builds itself into `place`; `state` is the page's. */
  constructor(place, state) {
    this.state = state;
    this.tooltip = new Tooltip();
    this.#buildToolbar();
    this.#buildGraphs();
    this.table = new FrameTable({
      onSort: (sort) => this.setSort(sort),
      onChoose: (frame) => this.choose(frame),
      onSandwich: (frame) => this.setSandwich(frame.name),
    });
    this.table.setSort(state.get("sort", "-self"));
    this.note = element("p", { class: "loading faint", role: "status" }, "Loading the flame graph…");
    this.split = element("div", { class: "split" }, this.graphSide, this.table.root);
    place.replaceChildren(this.toolbar, this.note, this.split);
    this.split.hidden = true;
    this.#followTheme();
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = text === "";
  }

  /** Say why there is nothing to show, and show nothing. */
  fail(text) {
    this.say(text);
    this.split.hidden = true;
    this.toolbar.hidden = true;
  }

  /** Show a view, as the API gives it. */
  show(view) {
    this.view = view;
    this.tree = new Tree(view.tree);
    this.byLayer = view.by_layer ?? false;
    this.units = unitsOf(view);
    this.#showUnits();
    if (this.tree.total[0] <= 0) {
      this.fail("These steps took no measurable time.");
      return;
    }
    this.split.hidden = false;
    this.toolbar.hidden = false;
    this.say("");
    this.graph.setFlipped(this.state.get("flip") === "1");
    this.graph.show(this.tree, this.#look(this.tree));
    this.#restoreZoom();
    this.graph.drawNow();
    performance.mark("flamegraph-painted");
    this.#showLegend();
    this.#search(false);
    // The picture first; the table can wait for it.
    requestAnimationFrame(() => setTimeout(() => this.#showTable(), 0));
    this.#showSandwich();
  }

  #showTable() {
    this.table.show(this.tree.frames(this.byLayer), this.unit, this.tree.whole, Math.max(this.view.steps, 1));
    this.table.setSearch(this.matches);
    this.tableShown = true;
  }

  get unit() {
    return this.units[this.state.get("unit")] ?? Object.values(this.units)[0];
  }

  // What is to be seen

  #buildToolbar() {
    const { state } = this;
    this.field = element("input", {
      type: "search",
      id: "search",
      placeholder: "Search frames",
      "aria-label": "Search frames",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.field.value = state.get("q");
    this.field.addEventListener("input", () => this.setSearchText(this.field.value));
    this.field.addEventListener("keydown", (event) => this.#fieldKey(event));
    this.regex = element(
      "button",
      {
        type: "button",
        class: "toggle",
        title: "Regular expression",
        "aria-label": "Regular expression",
        "aria-pressed": String(state.get("re") === "1"),
        onclick: () => this.toggleRegex(),
      },
      ".*",
    );
    this.hits = element("output", { id: "hits", for: "search" });
    this.back = element(
      "button",
      {
        type: "button",
        title: "Previous hit (N)",
        "aria-label": "Previous hit",
        disabled: true,
        onclick: () => this.nextHit(-1),
      },
      "‹",
    );
    this.on = element(
      "button",
      {
        type: "button",
        title: "Next hit (n)",
        "aria-label": "Next hit",
        disabled: true,
        onclick: () => this.nextHit(1),
      },
      "›",
    );
    this.resetButton = element("button", { type: "button", disabled: true, onclick: () => this.reset() }, "Reset zoom");
    this.unitPlace = element("div");
    this.orientation = segments(
      "Direction",
      [
        ["", "Icicle", "Root at the top"],
        ["1", "Flame", "Root at the bottom"],
      ],
      state.get("flip"),
      (value) => this.setFlip(value === "1"),
    );
    this.toolbar = element(
      "div",
      { class: "controls graph-controls" },
      element("div", { class: "search" }, this.field, this.regex, this.back, this.on, this.hits),
      element("span", { class: "gap" }),
      this.unitPlace,
      this.orientation.group,
      this.resetButton,
    );
  }

  #buildGraphs() {
    const listen = (graph) => ({
      onFocus: (i) => this.#focused(graph(), i),
      onZoom: (isZoomed) => this.#zoomed(graph(), isZoomed),
      onHover: (i, event) => this.#hovered(graph(), i, event),
    });
    this.graph = new FlameGraph(
      "Flame graph",
      listen(() => this.graph),
    );
    this.callers = new FlameGraph(
      "Callers",
      listen(() => this.callers),
    );
    this.callees = new FlameGraph(
      "Callees",
      listen(() => this.callees),
    );
    this.callers.flipped = true;
    this.sandwichTitle = element("strong");
    this.sandwichNumbers = element("span", { class: "faint" });
    this.sandwichSide = element(
      "div",
      { class: "sandwich", hidden: true },
      element(
        "p",
        { class: "sandwich-head" },
        this.sandwichTitle,
        " ",
        this.sandwichNumbers,
        element("button", { type: "button", onclick: () => this.setSandwich("") }, "Back to all (Esc)"),
      ),
      element("h3", {}, "Callers"),
      this.callers.root,
      element("h3", {}, "Callees"),
      this.callees.root,
    );
    this.graph.root.id = "flamegraph";
    this.path = element("p", { class: "path", "aria-live": "polite" });
    this.legend = element("ul", { class: "legend", "aria-label": "Colours" });
    this.graphSide = element(
      "div",
      { class: "graph-side" },
      this.graph.root,
      this.sandwichSide,
      this.path,
      this.legend,
    );
  }

  #look(tree) {
    const colors = new Colors(tree.categories);
    const fills = tree.categories.map((key) => ({ fill: colors.frames.get(key), label: colors.label }));
    return { colors, amountOf: (i) => this.unit.withUnit(tree.total[i]), fillOf: (i) => fills[tree.category[i]] };
  }

  #showLegend() {
    this.legend.replaceChildren(
      ...this.view.tree.legend.map(([key, text]) =>
        element("li", { "data-category": key }, element("i", { class: "swatch", "data-category": key }), text),
      ),
    );
  }

  #showUnits() {
    const choices = Object.entries(this.units).map(([key, unit]) => [key, unit.name, `Times as ${unit.name}`]);
    const chosen = Object.keys(this.units).find((key) => this.units[key] === this.unit);
    this.unitSegments = segments("Unit", choices, chosen, (value) => this.setUnit(value));
    this.unitPlace.replaceChildren(this.unitSegments.group);
    this.unitPlace.hidden = choices.length < 2;
  }

  #followTheme() {
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    document.addEventListener("themechange", () => this.repaint());
  }

  /** Paint anew, in the colours and the unit that hold now. */
  repaint() {
    for (const graph of [this.graph, this.callers, this.callees]) {
      if (graph.tree) {
        graph.setLook(this.#look(graph.tree));
      }
    }
  }

  #hovered(graph, i, event) {
    if (i < 0) {
      this.tooltip.hide();
    } else {
      this.tooltip.show(event, graph.tree.nameOf(i), this.#numbers(graph.tree, i));
    }
  }

  #numbers(tree, i) {
    const { unit } = this;
    const above = tree.parent[i];
    const rows = [
      [unit.name, unit.text(tree.total[i])],
      [`share of ${unit.whole}`, percent(tree.total[i] / this.tree.whole)],
    ];
    if (above >= 0) {
      rows.push(["share of parent", percent(tree.total[i] / (tree.total[above] || 1))]);
    }
    rows.push([`self ${unit.short}`, unit.text(tree.self[i])]);
    if (tree.calls[i]) {
      rows.push(["calls per step", count(Math.round((10 * tree.calls[i]) / Math.max(this.view.steps, 1)) / 10)]);
      rows.push(["ms per call", (tree.total[i] / 1000 / tree.calls[i]).toFixed(3)]);
    }
    return rows;
  }

  /** Below the graph: the focused frame's stack, its numbers, and what can be done with it. */
  #focused(graph, i) {
    this.active = graph;
    const { tree } = graph;
    const names = tree.path(i);
    const crumbs = names.map((name, depth) => {
      const at = ancestorAt(tree, i, depth);
      return element(
        "button",
        {
          type: "button",
          class: "crumb-button",
          onclick: () => {
            graph.focus(at);
            graph.zoomTo(at);
          },
        },
        name,
      );
    });
    const numbers = this.#numbers(tree, i)
      .map(([term, value]) => `${term} ${value}`)
      .join(" · ");
    this.path.replaceChildren(
      element("span", { class: "crumbs" }, ...crumbs),
      element("span", { class: "faint" }, numbers),
      element(
        "span",
        { class: "path-actions" },
        element("button", { type: "button", onclick: () => this.setSandwich(tree.nameOf(i)) }, "Callers and callees"),
        element("button", { type: "button", onclick: () => this.copyFrame() }, "Copy frame"),
        element("button", { type: "button", onclick: () => this.copyStack() }, "Copy stack"),
      ),
    );
  }

  #zoomed(graph, isZoomed) {
    this.resetButton.disabled = ![this.graph, this.callers, this.callees].some(
      (each) => each.tree && each.goal && each.goal.right - each.goal.left < each.tree.whole * 0.999999,
    );
    if (graph !== this.graph || this.restoring) {
      return;
    }
    const { tree, goal, focused } = graph;
    const onFrame =
      isZoomed &&
      Math.abs(tree.x[focused] - goal.left) < 1e-6 * tree.whole &&
      Math.abs(tree.total[focused] - (goal.right - goal.left)) < 1e-6 * tree.whole;
    const range = `${(goal.left / tree.whole).toFixed(6)}-${(goal.right / tree.whole).toFixed(6)}`;
    this.state.set({ zoom: onFrame ? tree.stack(focused) : "", x: isZoomed && !onFrame ? range : "" });
  }

  #restoreZoom() {
    this.restoring = true;
    const zoom = this.state.get("zoom");
    const range = /^([0-9.]+)-([0-9.]+)$/.exec(this.state.get("x"));
    const at = zoom ? this.tree.find(zoom) : -1;
    this.resetButton.disabled = true;
    if (at >= 0) {
      this.graph.focus(at, false);
      this.graph.zoomTo(at);
    } else if (range && Number(range[1]) < Number(range[2])) {
      this.graph.zoomToShares(Number(range[1]), Number(range[2]));
      this.#focused(this.graph, 0);
    } else {
      this.#focused(this.graph, 0);
    }
    this.restoring = false;
  }

  // What can be done

  reset() {
    for (const graph of [this.graph, this.callers, this.callees]) {
      if (graph.tree) {
        graph.reset();
      }
    }
    this.state.set({ zoom: "", x: "" });
  }

  setUnit(unit) {
    this.state.set({ unit: unit === "step" ? "" : unit });
    this.unitSegments.set(unit);
    this.table.setUnits(this.unit);
    this.#focused(this.active ?? this.graph, (this.active ?? this.graph).focused);
    this.repaint();
  }

  nextUnit() {
    const keys = Object.keys(this.units);
    this.setUnit(keys[(keys.indexOf(this.state.get("unit", "step")) + 1) % keys.length]);
  }

  setFlip(flipped) {
    this.state.set({ flip: flipped ? "1" : "" });
    this.orientation.set(flipped ? "1" : "");
    this.graph.setFlipped(flipped);
  }

  setSort(sort) {
    this.state.set({ sort: sort === "-self" ? "" : sort });
    this.table.setSort(sort);
  }

  setSearchText(text) {
    this.field.value = text;
    this.state.set({ q: text.trim() });
    this.#search(true);
  }

  toggleRegex() {
    const on = this.state.get("re") !== "1";
    this.state.set({ re: on ? "1" : "" });
    this.regex.setAttribute("aria-pressed", String(on));
    this.#search(true);
  }

  #search(tableToo) {
    let problem = "";
    try {
      this.matches = makeMatcher(this.state.get("q"), this.state.get("re") === "1");
    } catch (error) {
      this.matches = null;
      problem = `not a regular expression: ${error.message.split(": ").pop()}`;
    }
    this.field.setAttribute("aria-invalid", String(problem !== ""));
    this.found = this.matches && this.tree ? new Search(this.tree, this.matches) : null;
    this.graph.setSearch(this.found);
    for (const graph of [this.callers, this.callees]) {
      graph.setSearch(this.matches && graph.tree ? new Search(graph.tree, this.matches) : null);
    }
    this.at = -1;
    this.back.disabled = this.on.disabled = !this.found?.count;
    this.#tellHits(problem);
    if (tableToo && this.tableShown) {
      this.table.setSearch(this.matches);
    }
  }

  #tellHits(problem = "") {
    if (!this.found) {
      this.hits.textContent = problem;
      return;
    }
    const { count: number, share } = this.found;
    const place = this.at >= 0 ? `${this.found.before[this.at] + 1} of ` : "";
    this.hits.textContent = `${place}${number} frame${number === 1 ? "" : "s"} · ${percent(share)}`;
  }

  nextHit(step) {
    if (!this.found?.count) {
      return;
    }
    this.at = this.found.next(this.at < 0 ? (step > 0 ? -1 : 0) : this.at, step);
    this.graph.focus(this.at);
    this.#tellHits();
  }

  /** A frame of the table: searched for, and its widest box shown. */
  choose(frame) {
    this.state.set({ re: "" });
    this.regex.setAttribute("aria-pressed", "false");
    this.setSearchText(frame.name);
    this.graph.focus(frame.widest);
    this.graph.root.scrollIntoView({ block: "nearest" });
  }

  setSandwich(name) {
    this.state.set({ sandwich: name }, true);
    this.#showSandwich();
  }

  #showSandwich() {
    const name = this.state.get("sandwich");
    const sides = name ? sandwich(this.tree, name) : null;
    this.sandwichSide.hidden = sides === null;
    this.graph.root.hidden = sides !== null;
    if (!sides) {
      this.active = this.graph;
      this.graph.draw();
      return;
    }
    const { callers, callees } = sides;
    this.sandwichTitle.textContent = name;
    this.sandwichNumbers.textContent = `${this.unit.withUnit(callees.total[0])} · ${percent(callees.total[0] / this.tree.whole)} of the ${this.unit.whole}`;
    this.callers.show(callers, this.#look(callers));
    this.callees.show(callees, this.#look(callees));
    this.callers.setFlipped(true);
    this.callees.focus(0, false);
    for (const graph of [this.callers, this.callees]) {
      graph.setSearch(this.matches ? new Search(graph.tree, this.matches) : null);
    }
  }

  get activeGraph() {
    return this.active ?? this.graph;
  }

  copyFrame() {
    const { tree, focused } = this.activeGraph;
    return this.#copy(tree.nameOf(focused), "frame");
  }

  copyStack() {
    const { tree, focused } = this.activeGraph;
    return this.#copy(tree.stack(focused), "stack");
  }

  async #copy(text, what) {
    await copyText(text);
    this.hits.textContent = `${what} copied`;
  }

  /** Escape: one thing at a time, the latest first. */
  stepBack() {
    if (this.state.get("sandwich")) {
      this.setSandwich("");
    } else if (this.graph.isZoomed) {
      this.reset();
    } else if (this.field.value) {
      this.setSearchText("");
    }
  }

  #fieldKey(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      this.nextHit(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      if (this.field.value) {
        this.setSearchText("");
      } else {
        this.graph.canvas.focus();
      }
    }
  }

  /** The address has changed (back, forward): show what it says now. */
  restore() {
    this.field.value = this.state.get("q");
    this.regex.setAttribute("aria-pressed", String(this.state.get("re") === "1"));
    this.orientation.set(this.state.get("flip"));
    this.table.setSort(this.state.get("sort", "-self"));
    this.show(this.view);
  }

  /** The keys of a panel, for the page's list of keys. */
  keys() {
    return [
      ["/", "search", () => this.field.focus()],
      ["n", "next hit", () => this.nextHit(1)],
      ["N", "previous hit", () => this.nextHit(-1)],
      ["g", "go to the flame graph", () => this.activeGraph.canvas.focus()],
      ["Arrows", "in the graph: parent, child, neighbours; with Shift: move the view", null, "← → ↑ ↓"],
      ["Enter", "in the graph: zoom to the frame", null, "Enter"],
      ["+", "in the graph: zoom in and out", null, "+ −"],
      ["0", "reset the zoom", () => this.reset()],
      ["f", "icicle or flame", () => this.setFlip(this.state.get("flip") !== "1")],
      [
        "s",
        "callers and callees of the frame",
        () => this.setSandwich(this.activeGraph.tree.nameOf(this.activeGraph.focused)),
      ],
      ["u", "next unit", () => this.nextUnit()],
      ["c", "copy the frame's name", () => this.copyFrame()],
      ["C", "copy the stack", () => this.copyStack()],
      ["t", "go to the table", () => this.table.scroller.focus()],
      ["Escape", "back: from callers, from the zoom, from the search", () => this.stepBack(), "Esc"],
    ].map(([key, meaning, action, shown]) => [key, meaning, action && (() => this.split.hidden || action()), shown]);
  }
}

function ancestorAt(tree, i, depth) {
  let at = i;
  while (tree.depth[at] > depth) {
    at = tree.parent[at];
  }
  return at;
}
