// Painting a tree on a canvas: only what can be seen, hairlines merged, hits visible however thin they are.

export const ROW = 22;
const HAIRLINE = 0.8; // boxes of fewer pixels are lines
const PADDING = 5;
const FADED = 0.32;
const FONT_SIZE = 12;

/**
 * Paint `scene` = {tree, search, colors, view: {left, right}, width, height, top, flipped, rows, focused, hovered,
 * labelOf(i), fillOf(i)} on a 2D context. `view` is the range of values that fills the width, `top` the first pixel
 * that is scrolled to.
 */
export function paint(context, scene) {
  const { tree, search, colors, view, width, height } = scene;
  const scale = width / (view.right - view.left);
  const lines = new Hairlines(scene.rows, width);
  const hits = [];
  context.clearRect(0, 0, width, height);
  context.font = `${FONT_SIZE}px ${scene.fontFamily}`;
  context.textBaseline = "middle";
  let i = 0;
  while (i < tree.size) {
    const x = (tree.x[i] - view.left) * scale;
    const size = tree.total[i] * scale;
    if (x + size <= 0 || x >= width) {
      i = tree.end[i];
      continue;
    }
    const y = rowTop(scene, tree.depth[i]);
    const seen = y + ROW > 0 && y < height;
    if (size < HAIRLINE) {
      if (seen && lines.isNew(tree.depth[i], x)) {
        paintLine(context, scene, i, x, y);
      }
      if (seen && search && search.within(tree, i) && lines.isNewHit(tree.depth[i], x)) {
        hits.push([Math.max(Math.floor(x) - 1, 0), y, 2]);
      }
      i = tree.end[i];
      continue;
    }
    if (seen) {
      paintBox(context, scene, i, x, y, size);
      if (search && search.isHit[i]) {
        hits.push([Math.max(x, 0), y, Math.min(x + size, width) - Math.max(x, 0)]);
      }
    }
    i += 1;
  }
  paintHits(context, colors.hit, hits);
  outline(context, scene, scene.hovered, scale, 1.5);
  outline(context, scene, scene.focused, scale, 2.5);
}

/** The top of a depth's row within the canvas. */
export function rowTop(scene, depth) {
  return (scene.flipped ? scene.rows - 1 - depth : depth) * ROW - scene.top;
}

/** Which pixels of which row have a line already. */
class Hairlines {
  constructor(rows, width) {
    this.width = Math.ceil(width) + 1;
    this.last = new Int32Array(rows).fill(-1);
    this.lastHit = new Int32Array(rows).fill(-1);
  }

  isNew(row, x) {
    return this.#moves(this.last, row, x);
  }

  isNewHit(row, x) {
    return this.#moves(this.lastHit, row, x);
  }

  #moves(last, row, x) {
    const pixel = Math.max(Math.floor(x), 0);
    const moved = pixel !== last[row];
    last[row] = pixel;
    return moved;
  }
}

function paintLine(context, scene, i, x, y) {
  context.globalAlpha = scene.search ? FADED : 0.75;
  context.fillStyle = scene.fillOf(i).fill;
  context.fillRect(Math.max(Math.floor(x), 0), y, 1, ROW - 1);
  context.globalAlpha = 1;
}

function paintBox(context, scene, i, x, y, size) {
  const { width, search, colors } = scene;
  const left = Math.max(x, 0);
  const right = Math.min(x + size, width);
  const faded = (search && !search.isHit[i]) || (!search && (x < -1 || x + size > width + 1));
  const { fill, label } = scene.fillOf(i);
  context.globalAlpha = faded ? FADED : 1;
  context.fillStyle = fill;
  const gap = right - left > 3 ? 1 : 0;
  context.fillRect(left, y, right - left - gap, ROW - 1);
  context.globalAlpha = 1;
  const room = right - left - 2 * PADDING;
  if (room < 8) {
    return;
  }
  const text = scene.labelOf(i, room);
  if (text) {
    context.fillStyle = faded ? colors.text : label;
    context.fillText(text, left + PADDING, y + ROW / 2);
  }
}

function paintHits(context, color, hits) {
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = 2;
  for (const [x, y, size] of hits) {
    if (size <= 3) {
      context.fillRect(x, y, Math.max(size, 2), ROW - 1);
    } else {
      context.strokeRect(x + 1, y + 1, size - 3, ROW - 3);
    }
  }
}

function outline(context, scene, i, scale, lineWidth) {
  if (i < 0 || i >= scene.tree.size) {
    return;
  }
  const { tree, view, width } = scene;
  const left = Math.max((tree.x[i] - view.left) * scale, 0);
  const right = Math.min((tree.x[i] + tree.total[i] - view.left) * scale, width);
  if (right < 0 || left > width) {
    return;
  }
  context.strokeStyle = scene.colors.text;
  context.lineWidth = lineWidth;
  const size = Math.max(right - left - lineWidth, 1);
  context.strokeRect(left + lineWidth / 2, rowTop(scene, tree.depth[i]) + lineWidth / 2, size, ROW - 1 - lineWidth);
}

/** Measures texts once each; numbers by the width of a digit. */
export class Measure {
  constructor(fontFamily) {
    this.context = document.createElement("canvas").getContext("2d");
    this.context.font = `${FONT_SIZE}px ${fontFamily}`;
    this.digit = this.context.measureText("0").width;
    this.known = new Map();
  }

  of(text) {
    let width = this.known.get(text);
    if (width === undefined) {
      width = this.context.measureText(text).width;
      this.known.set(text, width);
    }
    return width;
  }

  ofNumber(text) {
    return this.digit * text.length;
  }

  /** The text cut to fit with an ellipsis; empty where not even three characters fit. */
  cut(text, room) {
    const fit = Math.floor((room - this.digit) / (this.of(text) / text.length));
    return fit >= 2 ? `${text.slice(0, fit)}…` : "";
  }
}

/** As much of a name and a number as there is room for: a number cut short would read as another number. */
export function fittingLabel(measure, name, amount, room) {
  const width = measure.of(name);
  if (width + measure.ofNumber(amount) + 8 <= room) {
    return `${name}  ${amount}`;
  }
  if (width <= room) {
    return name;
  }
  const shortest = name.split(":")[0].split(".").pop() || name; // moe.route → route, attn:Attention → attn
  return measure.of(shortest) <= room ? shortest : measure.cut(shortest, room);
}
