// One flame graph: a canvas that scrolls, zooms, and is worked with the mouse and the keyboard alike.

import { ROW, Measure, fittingLabel, paint } from "./paint.js";
import { element } from "./dom.js";

const ZOOM_STEP = 1.25;
const MOTION_MS = 140;
const DRAG_PIXELS = 4;
const HINT_MS = 1500;

/**
 * `listen` = {onFocus(i), onZoom(), onHover(i, event)}. A view is a range of values: a click on a frame makes it fill
 * the width, the wheel and dragging make any range.
 */
export class FlameGraph {
  constructor(label, listen) {
    this.listen = listen;
    this.canvas = element("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "flame graph",
      "aria-label": label,
    });
    this.hint = element("div", { class: "wheel-hint", hidden: true }, "Ctrl + wheel zooms");
    this.spacer = element("div", { class: "flame-rows" }, this.canvas);
    this.scroller = element("div", { class: "flame-scroll" }, this.spacer);
    this.root = element("div", { class: "flame" }, this.scroller, this.hint);
    this.tree = null;
    this.search = null;
    this.flipped = false;
    this.focused = 0;
    this.hovered = -1;
    this.view = { left: 0, right: 1 };
    this.#connect();
  }

  /** Show a tree; `look` = {colors, amountOf(i), fillOf(i)}. */
  show(tree, look) {
    this.tree = tree;
    this.look = look;
    this.search = null;
    this.focused = 0;
    this.hovered = -1;
    this.view = { left: 0, right: tree.whole };
    this.fontFamily = getComputedStyle(this.root).fontFamily;
    this.measure = new Measure(this.fontFamily);
    this.#resize();
    if (this.flipped) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
    }
    this.draw();
  }

  setLook(look) {
    this.look = look;
    this.draw();
  }

  setSearch(search) {
    this.search = search;
    this.draw();
  }

  setFlipped(flipped) {
    this.flipped = flipped;
    this.#resize();
    this.scroller.scrollTop = flipped ? this.scroller.scrollHeight : 0;
    this.draw();
  }

  get isZoomed() {
    return this.tree !== null && this.view.right - this.view.left < this.tree.whole * 0.999999;
  }

  reset() {
    this.#move({ left: 0, right: this.tree.whole });
  }

  zoomTo(i) {
    if (this.tree.total[i] > 0) {
      this.#move({ left: this.tree.x[i], right: this.tree.x[i] + this.tree.total[i] });
    }
  }

  /** Show the range between two shares of the whole. */
  zoomToShares(left, right) {
    this.#move({ left: left * this.tree.whole, right: right * this.tree.whole });
  }

  get shares() {
    return [this.view.left / this.tree.whole, this.view.right / this.tree.whole];
  }

  zoomBy(factor, place = 0.5) {
    const width = (this.view.right - this.view.left) / factor;
    const at = this.view.left + place * (this.view.right - this.view.left);
    this.#move({ left: at - place * width, right: at + (1 - place) * width }, false);
  }

  panBy(share) {
    const width = this.view.right - this.view.left;
    this.#move({ left: this.view.left + share * width, right: this.view.right + share * width }, false);
  }

  /** Make a frame the focused one, and bring it into sight. */
  focus(i, reveal = true) {
    this.focused = i;
    if (reveal) {
      this.#reveal(i);
    }
    this.draw();
    this.listen.onFocus(i);
  }

  /** The frame in a direction from the focused one: "up" and "down" on the screen, "left", "right". */
  step(direction) {
    const { tree, focused } = this;
    const deeper = (direction === "down") !== this.flipped;
    let to = -1;
    if (direction === "up" || direction === "down") {
      to = deeper ? (tree.children(focused)[0] ?? -1) : tree.parent[focused];
    } else {
      const siblings = tree.parent[focused] < 0 ? [0] : tree.children(tree.parent[focused]);
      to = siblings[siblings.indexOf(focused) + (direction === "left" ? -1 : 1)] ?? -1;
    }
    if (to >= 0) {
      this.focus(to);
    }
  }

  /** Paint with the next frame of the screen. */
  draw() {
    if (!this.pending) {
      this.pending = requestAnimationFrame(() => this.drawNow());
    }
  }

  drawNow() {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    if (!this.tree || !this.width) {
      return;
    }
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, this.#scene());
  }

  #scene() {
    const { tree, look } = this;
    return {
      tree,
      search: this.search,
      colors: look.colors,
      view: this.view,
      width: this.width,
      height: this.height,
      top: this.scroller.scrollTop,
      flipped: this.flipped,
      rows: tree.rows,
      focused: document.activeElement === this.canvas || this.focused > 0 ? this.focused : -1,
      hovered: this.hovered,
      fontFamily: this.fontFamily,
      fillOf: look.fillOf,
      labelOf: (i, room) => fittingLabel(this.measure, tree.nameOf(i), look.amountOf(i), room),
    };
  }

  #resize() {
    if (!this.tree) {
      return;
    }
    const rows = this.tree.rows * ROW;
    this.spacer.style.height = `${rows}px`;
    this.width = this.scroller.clientWidth;
    this.height = Math.min(this.scroller.clientHeight || rows, rows);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
  }

  /** Go to a view, gently unless motion is not wanted. */
  #move({ left, right }, gently = true) {
    const { whole } = this.tree;
    const width = Math.min(Math.max(right - left, whole / 1e7), whole);
    const start = Math.min(Math.max(left, 0), whole - width);
    const target = { left: start, right: start + width };
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    cancelAnimationFrame(this.moving);
    if (!gently || still) {
      this.view = target;
      this.drawNow();
    } else {
      this.#glide(this.view, target, performance.now());
    }
    this.goal = target;
    this.listen.onZoom(target.right - target.left < whole * 0.999999, target);
  }

  #glide(from, to, started) {
    const share = Math.min((performance.now() - started) / MOTION_MS, 1);
    const eased = 1 - (1 - share) ** 3;
    this.view = {
      left: from.left + (to.left - from.left) * eased,
      right: from.right + (to.right - from.right) * eased,
    };
    this.drawNow();
    if (share < 1) {
      this.moving = requestAnimationFrame(() => this.#glide(from, to, started));
    }
  }

  #reveal(i) {
    const { tree } = this;
    const depth = this.flipped ? tree.rows - 1 - tree.depth[i] : tree.depth[i];
    const { scroller } = this;
    if (depth * ROW < scroller.scrollTop) {
      scroller.scrollTop = depth * ROW;
    } else if ((depth + 1) * ROW > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = (depth + 1) * ROW - scroller.clientHeight;
    }
    const { left, right } = this.view;
    if (tree.x[i] + tree.total[i] <= left || tree.x[i] >= right) {
      let seen = tree.parent[i];
      while (seen > 0 && tree.total[seen] < (right - left) / 4) {
        seen = tree.parent[seen];
      }
      this.zoomTo(Math.max(seen, 0));
    }
  }

  /** The frame under a mouse event, or -1. */
  frameAt(event) {
    if (!this.tree) {
      return -1;
    }
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top + this.scroller.scrollTop) / ROW);
    const depth = this.flipped ? this.tree.rows - 1 - row : row;
    return this.tree.at(this.#valueAt(event.clientX - box.left), depth);
  }

  #valueAt(pixel) {
    return this.view.left + (pixel / this.width) * (this.view.right - this.view.left);
  }

  /** Where a frame's box is in the window, in pixels: for tests and for tooltips of focused frames. */
  boxOf(i) {
    const scale = this.width / (this.view.right - this.view.left);
    const box = this.canvas.getBoundingClientRect();
    const depth = this.flipped ? this.tree.rows - 1 - this.tree.depth[i] : this.tree.depth[i];
    return {
      x: box.left + (this.tree.x[i] - this.view.left) * scale,
      y: box.top + depth * ROW - this.scroller.scrollTop,
      width: this.tree.total[i] * scale,
      height: ROW,
    };
  }

  #connect() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.#startDrag(event));
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.draw());
    this.scroller.addEventListener("scroll", () => this.drawNow());
    new ResizeObserver(() => {
      this.#resize();
      this.drawNow();
    }).observe(this.scroller);
  }

  #hover(event) {
    const i = this.frameAt(event);
    if (i !== this.hovered) {
      this.hovered = i;
      this.draw();
    }
    canvasCursor(this.canvas, i);
    this.listen.onHover(this.drag?.moved ? -1 : i, event);
  }

  #leave() {
    this.hovered = -1;
    this.draw();
    this.listen.onHover(-1, null);
  }

  /** A drag chooses a range to zoom to, with Shift it moves the view; without moving it is a click. */
  #startDrag(event) {
    if (event.button !== 0) {
      return;
    }
    const box = this.canvas.getBoundingClientRect();
    const from = event.clientX - box.left;
    const before = { ...this.view };
    const band = element("div", { class: "drag-band" });
    this.drag = { moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    const move = (moved) => {
      const to = Math.min(Math.max(moved.clientX - box.left, 0), this.width);
      this.drag.moved ||= Math.abs(to - from) > DRAG_PIXELS;
      if (!this.drag.moved) {
        return;
      }
      if (event.shiftKey) {
        const shift = ((from - to) / this.width) * (before.right - before.left);
        this.#move({ left: before.left + shift, right: before.right + shift }, false);
        return;
      }
      this.root.append(band);
      band.style.left = `${Math.min(from, to)}px`;
      band.style.width = `${Math.abs(to - from)}px`;
    };
    const up = (ended) => {
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", up);
      this.canvas.removeEventListener("pointercancel", up);
      band.remove();
      const { moved } = this.drag;
      this.drag = null;
      if (ended.type === "pointercancel") {
        return;
      }
      if (!moved) {
        this.#click(ended);
      } else if (!event.shiftKey) {
        const edges = [from, Math.min(Math.max(ended.clientX - box.left, 0), this.width)].sort((a, b) => a - b);
        this.#move({ left: this.#valueAt(edges[0]), right: this.#valueAt(edges[1]) });
      }
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
  }

  #click(event) {
    const i = this.frameAt(event);
    if (i >= 0) {
      this.focus(i, false);
      this.zoomTo(i);
    }
  }

  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      const factor = ZOOM_STEP ** (-event.deltaY / 60);
      this.zoomBy(Math.min(Math.max(factor, 0.25), 4), (event.clientX - box.left) / this.width);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.panBy((event.deltaX || event.deltaY) / this.width);
    } else if (this.scroller.scrollHeight <= this.scroller.clientHeight) {
      this.#showHint();
    }
  }

  #showHint() {
    this.hint.hidden = false;
    clearTimeout(this.hiding);
    this.hiding = setTimeout(() => {
      this.hint.hidden = true;
    }, HINT_MS);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const actions = {
      ArrowUp: () => this.step("up"),
      ArrowDown: () => this.step("down"),
      ArrowLeft: () => (event.shiftKey ? this.panBy(-0.2) : this.step("left")),
      ArrowRight: () => (event.shiftKey ? this.panBy(0.2) : this.step("right")),
      Home: () => this.focus(0),
      Enter: () => this.zoomTo(this.focused),
      " ": () => this.zoomTo(this.focused),
      "+": () => this.zoomBy(ZOOM_STEP ** 2, this.#focusedPlace()),
      "=": () => this.zoomBy(ZOOM_STEP ** 2, this.#focusedPlace()),
      "-": () => this.zoomBy(1 / ZOOM_STEP ** 2, this.#focusedPlace()),
    };
    if (this.tree && actions[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      actions[event.key]();
    }
  }

  /** Where the focused frame is, as a share of the width: zooming with keys goes there. */
  #focusedPlace() {
    const middle = this.tree.x[this.focused] + this.tree.total[this.focused] / 2;
    const place = (middle - this.view.left) / (this.view.right - this.view.left);
    return Math.min(Math.max(place, 0), 1);
  }
}

function canvasCursor(canvas, i) {
  canvas.style.cursor = i >= 0 ? "pointer" : "default";
}
