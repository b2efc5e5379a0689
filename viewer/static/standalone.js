// A stand-alone file: the profile is in it, nothing is asked of anyone.

import { Keys } from "./keys.js";
import { Panel } from "./panel.js";
import { State } from "./state.js";
import { connectTheme, toggleTheme } from "./theme.js";

function main() {
  connectTheme();
  const state = new State();
  const panel = new Panel(document.getElementById("app"), state);
  window.page = { panel, state };
  panel.show(JSON.parse(document.getElementById("profile").textContent));
  new Keys([...panel.keys(), ["d", "light or dark", toggleTheme]]);
}

main();
