// A recording that is under way: its engines, how far each is, and the totals that have arrived.

import { element } from "./dom.js";
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
    new Keys([...this.panel.keys(), ["d", "light or dark", toggleTheme]]);
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
    if (view.steps && view.steps !== this.shown) {
      this.shown = view.steps;
      this.panel.show(view);
      byId("live-steps").textContent = Object.entries(view.kinds)
        .map(([name, steps]) => `${steps} ${name}`)
        .join(", ");
    }
  }

  #showEngines(live) {
    byId("live-state").textContent = `${live.state}: ${live.message}`;
    byId("live-progress").max = Math.max(live.steps_asked, 1);
    byId("live-progress").value = live.steps_done;
    byId("live-silent").hidden = live.alive;
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
