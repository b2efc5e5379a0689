// The page of one run: its controls, and what they move.

import { Keys } from "./keys.js";
import { loadJson } from "./load.js";
import { Panel } from "./panel.js";
import { openInPerfetto } from "./perfetto.js";
import { RankSpread } from "./ranks.js";
import { State } from "./state.js";
import { StepList } from "./step_list.js";
import { StepStrip } from "./steps.js";
import { connectTheme, toggleTheme } from "./theme.js";

const VIEW_KEYS = ["kind", "rank", "layers", "steps", "mixed"];
const byId = (id) => document.getElementById(id);

class RunPage {
  constructor(place) {
    this.state = new State();
    this.addresses = place.dataset;
    this.panel = new Panel(place, this.state);
    this.ranks = byId("ranks") ? new RankSpread(byId("ranks"), { onRank: (rank) => this.change({ rank }) }) : null;
    this.usualKind = place.dataset.kind;
    this.#connectControls();
    this.keys = new Keys([...this.#ownKeys(), ...this.panel.keys(), ["d", "light or dark", toggleTheme]]);
    byId("keys")?.addEventListener("click", () => this.keys.toggle());
    window.addEventListener("popstate", () => this.#back());
    this.#load().then(() => this.#loadSteps());
  }

  /** Show something else of the run; the address goes along. */
  change(changes) {
    this.state.set({ ...changes, zoom: "", x: "" }, true);
    this.#showControls();
    return this.#load();
  }

  #back() {
    const before = this.shownQuery;
    this.state.read();
    this.#showControls();
    if (this.state.part(VIEW_KEYS).toString() === before) {
      this.panel.restore();
    } else {
      this.#load().then(() => this.panel.restore());
    }
  }

  async #load() {
    this.loading?.abort();
    this.loading = new AbortController();
    const query = this.state.part(VIEW_KEYS).toString();
    const { signal } = this.loading;
    try {
      const address = `${this.addresses.source}${query ? `?${query}` : ""}`;
      const view = await loadJson(address, (text) => this.panel.say(text), signal);
      this.shownQuery = query;
      this.panel.show(view);
      this.#showFacts(view);
      this.#showDownloads(query, view.kind);
      this.strip?.setChosen(this.chosen);
      this.strip?.setKind(view.kind);
      this.list?.setChosen((i) => this.#isChosen(i));
      if (byId("ranks-panel")?.open) {
        this.#loadRanks();
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        this.panel.fail(`The flame graph can't be shown: ${error.message}`);
        this.#showFacts({ facts: [], skipped: [] });
        byId("download").hidden = true;
      }
    }
  }

  async #loadSteps() {
    if (!byId("strip")) {
      return;
    }
    try {
      this.steps = await loadJson(this.addresses.steps);
      this.strip = new StepStrip(byId("strip"), { onSelect: (selection) => this.#select(selection) });
      this.list = new StepList(byId("steps"), { onChoose: (i) => this.strip.choose(i) });
      this.strip.show(this.steps, this.chosen, this.state.get("kind", this.usualKind));
      this.list.show(this.steps, (i) => this.#isChosen(i));
      this.#showOutliers();
    } catch (error) {
      byId("strip").replaceChildren(`The steps can't be shown: ${error.message}`);
    }
  }

  async #loadRanks() {
    const query = this.state.part(VIEW_KEYS).toString();
    this.ranks.say("Reading the ranks…");
    try {
      this.ranks.show(await loadJson(`${this.addresses.ranks}${query ? `?${query}` : ""}`));
    } catch (error) {
      this.ranks.say(`The ranks can't be shown: ${error.message}`);
    }
  }

  /** The selected range of steps, or null. */
  get chosen() {
    const match = /^(\d+)(?:-(\d+))?$/.exec(this.state.get("steps"));
    const engine = (this.steps?.engines ?? []).find(({ id }) => id === this.state.get("rank"))?.id ?? "";
    return match ? { first: Number(match[1]), last: Number(match[2] ?? match[1]), engine } : null;
  }

  #isChosen(i) {
    const { chosen, steps } = this;
    const fits = chosen && steps.index[i] >= chosen.first && steps.index[i] <= chosen.last;
    return Boolean(fits) && (!chosen.engine || steps.engines[steps.engine[i]].id === chosen.engine);
  }

  /** A step that was chosen brings its kind along. */
  #select(selection) {
    if (selection === null) {
      const isEngine = (this.steps?.engines ?? []).some(({ id }) => id === this.state.get("rank"));
      this.change({ steps: "", ...(isEngine ? { rank: "" } : {}) });
      return;
    }
    const changes = { steps: selection.steps };
    const [first, last] = selection.steps.split("-").map(Number);
    const { index, kind, engine, engines, count } = this.steps;
    const kinds = new Set();
    for (let i = 0; i < count; i += 1) {
      const mine = !selection.engine || engines[engine[i]].id === selection.engine;
      if (mine && index[i] >= first && index[i] <= (last ?? first) && kind[i] !== "idle") {
        kinds.add(kind[i]);
      }
    }
    const current = this.state.get("kind", this.usualKind);
    if (kinds.size && !kinds.has(current)) {
      changes.kind = [...kinds][0];
    }
    if (selection.engine && engines.length > 1) {
      changes.rank = selection.engine;
    }
    this.change(changes);
  }

  #showFacts(view) {
    const facts = byId("facts");
    facts.replaceChildren(
      ...view.facts.map(([name, value]) => {
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const told = document.createElement("dd");
        term.textContent = name;
        told.textContent = value;
        pair.append(term, told);
        return pair;
      }),
    );
    byId("skipped").replaceChildren(...view.skipped.flatMap((text) => [text, document.createElement("br")]));
    byId("skipped").hidden = view.skipped.length === 0;
  }

  #showDownloads(query, kind) {
    byId("download").hidden = false;
    const rest = new URLSearchParams(query);
    rest.delete("kind");
    const text = rest.toString();
    for (const link of document.querySelectorAll("[data-export]")) {
      link.href = `${this.addresses.export}/${kind}.${link.dataset.export}${text ? `?${text}` : ""}`;
    }
    const form = byId("compare-form");
    if (form) {
      form.elements.kind.value = kind;
      for (const key of ["rank", "steps"]) {
        form.elements[`a_${key}`].value = this.state.get(key);
        form.elements[`a_${key}`].disabled = !this.state.get(key);
      }
    }
  }

  #showOutliers() {
    const found = this.strip.outliers;
    const button = byId("outliers");
    button.hidden = found.length === 0;
    button.textContent = `${found.length} outlier${found.length === 1 ? "" : "s"} ›`;
  }

  // Controls

  #connectControls() {
    for (const button of document.querySelectorAll("[data-set]")) {
      button.addEventListener("click", () => this.change({ [button.dataset.set]: button.dataset.value }));
    }
    for (const select of document.querySelectorAll("select[data-key]")) {
      select.addEventListener("change", () => this.change({ [select.dataset.key]: select.value }));
    }
    byId("all-steps")?.addEventListener("click", () => this.#select(null));
    byId("outliers")?.addEventListener("click", () => this.strip?.nextOutlier());
    byId("ranks-panel")?.addEventListener("toggle", (event) => event.target.open && this.#loadRanks());
    this.#showControls();
  }

  #showControls() {
    for (const button of document.querySelectorAll("[data-set]")) {
      const usual = button.dataset.set === "kind" ? this.usualKind : "";
      const value = this.state.get(button.dataset.set, usual) || usual;
      button.setAttribute("aria-pressed", String(button.dataset.value === value));
    }
    for (const select of document.querySelectorAll("select[data-key]")) {
      select.value = this.state.get(select.dataset.key);
    }
    const clear = byId("all-steps");
    if (clear) {
      clear.hidden = !this.state.get("steps");
      clear.textContent = `steps ${this.state.get("steps")} ×`;
    }
  }

  #cycle(key) {
    const buttons = [...document.querySelectorAll(`[data-set="${key}"]`)];
    const at = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
    buttons[(at + 1) % buttons.length]?.click();
  }

  #cycleSelect(key, step) {
    const select = document.querySelector(`select[data-key="${key}"]`);
    if (select) {
      const { length } = select.options;
      this.change({ [key]: select.options[(select.selectedIndex + step + length) % length].value });
    }
  }

  #ownKeys() {
    return [
      ["k", "next kind of step", () => this.#cycle("kind")],
      ["r", "next rank", () => this.#cycleSelect("rank", 1)],
      ["R", "rank before", () => this.#cycleSelect("rank", -1)],
      ["l", "merged or by layer", () => this.#cycle("layers")],
      ["m", "mixed steps in, out, alone", () => this.#cycleSelect("mixed", 1)],
      ["o", "next outlier", () => this.strip?.nextOutlier()],
      ["p", "go to the strip of steps", () => this.strip?.canvas.focus()],
      ["a", "all steps", () => this.state.get("steps") && this.#select(null)],
      ["w", "compare with another recording", () => byId("compare-form")?.elements.b.focus()],
    ];
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

function main() {
  connectTheme();
  const place = byId("app");
  if (place) {
    window.page = new RunPage(place);
  }
  const traces = document.querySelector("table.torch");
  if (traces) {
    connectPerfetto(traces);
  }
}

main();
