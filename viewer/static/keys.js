// Keys for everything, and a list of them.

import { element } from "./dom.js";

/** `bindings`: [key, what it does, action, shown name]. Keys typed into fields are theirs; Escape is told to all. */
export class Keys {
  constructor(bindings) {
    this.bindings = [...bindings, ["?", "this list", () => this.toggle()]];
    this.list = element(
      "dialog",
      { class: "keys", "aria-label": "Keys" },
      element("h2", {}, "Keys"),
      element("dl", {}, ...this.#entries()),
      element("button", { type: "button", onclick: () => this.list.close() }, "Close"),
    );
    document.body.append(this.list);
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  toggle() {
    if (this.list.open) {
      this.list.close();
    } else {
      this.list.showModal();
    }
  }

  #entries() {
    return this.bindings.flatMap(([key, meaning, , shown]) => [
      element("dt", {}, element("kbd", {}, shown ?? key)),
      element("dd", {}, meaning),
    ]);
  }

  #press(event) {
    const typing = event.target.closest?.("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) {
      return;
    }
    if (this.list.open && event.key !== "?") {
      return;
    }
    const found = this.bindings.find(([key, , action]) => key === event.key && action);
    if (found) {
      event.preventDefault();
      found[2](event);
    }
  }
}
