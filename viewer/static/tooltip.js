// A tooltip beside the pointer, always within the window.

import { element } from "./dom.js";

const GAP = 14;

export class Tooltip {
  constructor() {
    this.box = element("div", { class: "tooltip", role: "tooltip", hidden: true });
    document.body.append(this.box);
  }

  /** Show a heading and rows of [term, value] at a mouse event. */
  show(event, heading, rows) {
    const pairs = rows.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]);
    this.box.replaceChildren(element("strong", {}, heading), element("dl", {}, ...pairs));
    this.box.hidden = false;
    const left = Math.min(event.clientX + GAP, window.innerWidth - this.box.offsetWidth - GAP);
    const below = event.clientY + GAP;
    const fits = below + this.box.offsetHeight < window.innerHeight;
    this.box.style.left = `${Math.max(left, GAP)}px`;
    this.box.style.top = `${fits ? below : Math.max(event.clientY - this.box.offsetHeight - GAP, 0)}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}
