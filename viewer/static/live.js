// A recording that is under way: its engines, how far each is, and the totals that have arrived.

import { element, segments } from "./dom.js";
import { Keys } from "./keys.js";
import { loadJson } from "./load.js";
import { Panel } from "./panel.js";
import { State } from "./state.js";
import { connectTheme, toggleTheme } from "./theme.js";

const POLL_MS = 1000;
const TOTALS_EVERY = 4; // polls
const byId = (id) => document.getElementById(id);

class LivePage {
  constructor(place) {
    this.addresses = place.dataset;
    this.state = new State();
    this.panel = new Panel(place, this.state);
    this.panel.say("No totals have arrived yet: engines send them when their steps are made.");
    const keys = new Keys([...this.panel.keys(), ["d", "light or dark", toggleTheme]]);
    byId("keys").addEventListener("click", () => keys.toggle());
    this.polls = 0;
    this.#look();
  }

  async #look() {
    try {
      const live = await loadJson(this.addresses.source);
      this.#showEngines(live);
      if (this.polls % TOTALS_EVERY === 0) {
        await this.#loadTotals();
      }
      this.polls += 1;
    } catch (error) {
      if (/is under way|status 404/.test(error.message)) {
        window.location.reload(); // it has become a run
        return;
      }
      byId("live-state").textContent = error.message;
    }
    setTimeout(() => this.#look(), POLL_MS);
  }

  async #loadTotals() {
    const kind = this.state.get("kind");
    const view = await loadJson(`${this.addresses.totals}${kind ? `?kind=${encodeURIComponent(kind)}` : ""}`);
    const shown = `${view.kind} ${JSON.stringify(view.kinds)}`;
    if (view.steps && shown !== this.shown) {
      this.shown = shown;
      this.panel.show(view);
      this.#showKinds(view);
    }
  }

  #showKinds({ kind, kinds }) {
    const choices = Object.entries(kinds).map(([name, steps]) => [name, `${name} ${steps}`, `${name} steps so far`]);
    const { group } = segments("Kind of step", choices, kind, (chosen) => {
      this.state.set({ kind: chosen });
      this.#loadTotals().catch(() => {}); // the next poll tells
    });
    byId("live-steps").replaceChildren(group);
  }

  #showUnmatched(workers) {
    const list = byId("live-unmatched");
    list.parentElement.hidden = workers.length === 0;
    list.replaceChildren(...workers.map(({ url, reason }) => element("li", {}, `${url}: ${reason}`)));
  }

  #showEngines(live) {
    byId("live-state").textContent = `${live.state}: ${live.message}`;
    byId("live-progress").max = Math.max(live.steps_asked, 1);
    byId("live-progress").value = live.steps_done;
    byId("live-silent").hidden = live.alive;
    byId("live-silence").textContent = Math.round(live.silent_seconds);
    byId("live-badge").textContent = live.alive ? "under way" : "silent";
    this.#showUnmatched(live.unmatched_workers ?? []);
    byId("live-engines").replaceChildren(
      ...live.engines.map((engine) =>
        element(
          "tr",
          {},
          element("td", {}, engine.label),
          element("td", {}, engine.phase),
          element(
            "td",
            {},
            element("progress", {
              max: Math.max(engine.steps_asked, 1),
              value: engine.steps_done,
              "aria-label": `Steps of ${engine.label}`,
            }),
          ),
          element("td", { class: "num" }, `${engine.steps_done} of ${engine.steps_asked}`),
          element("td", { class: "wrap" }, engine.reason ?? ""),
        ),
      ),
    );
  }
}

function main() {
  connectTheme();
  window.page = new LivePage(byId("app"));
}

main();
