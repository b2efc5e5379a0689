// The flame graph's tree in columns: each frame before its children, so that a subtree is a range of numbers.

const LAYER = /^([^;:]*\.[0-9]{1,9}):/;

/** Times are microseconds. `end` is the number after a frame's last descendant, `x` where its box begins. */
export class Tree {
  constructor(columns) {
    const size = columns.name.length;
    this.size = size;
    this.names = columns.names;
    this.categories = columns.categories;
    this.madeUpRoot = columns.made_up_root;
    this.name = Int32Array.from(columns.name);
    this.depth = Int32Array.from(columns.depth);
    this.category = Uint8Array.from(columns.category);
    this.self = Float64Array.from(columns.self);
    this.calls = Float64Array.from(columns.calls);
    this.extra = columns.a ? { a: columns.a, b: columns.b, noise: columns.noise } : null;
    this.parent = new Int32Array(size).fill(-1);
    this.end = new Int32Array(size);
    this.total = Float64Array.from(this.self);
    this.x = new Float64Array(size);
    this.rows = 0;
    this.#link();
  }

  #link() {
    const { size, depth, parent, end, total, x } = this;
    const open = [];
    for (let i = 0; i < size; i += 1) {
      parent[i] = depth[i] ? open[depth[i] - 1] : -1;
      open[depth[i]] = i;
      this.rows = Math.max(this.rows, depth[i] + 1);
    }
    for (let i = size - 1; i >= 0; i -= 1) {
      end[i] = Math.max(end[i], i + 1);
      if (parent[i] >= 0) {
        total[parent[i]] += total[i];
        end[parent[i]] = Math.max(end[parent[i]], end[i]);
      }
    }
    const next = new Float64Array(size);
    for (let i = 1; i < size; i += 1) {
      const above = parent[i];
      x[i] = x[above] + next[above];
      next[above] += total[i];
    }
  }

  nameOf(i) {
    return this.names[this.name[i]];
  }

  categoryOf(i) {
    return this.categories[this.category[i]];
  }

  get whole() {
    return this.total[0] || 1;
  }

  /** The names from the root down. */
  path(i) {
    const names = [];
    for (let at = i; at >= 0; at = this.parent[at]) {
      names.unshift(this.nameOf(at));
    }
    return names;
  }

  /** The stack as it stands in folded files. */
  stack(i) {
    const names = this.madeUpRoot ? this.path(i).slice(1) : this.path(i);
    return names.map(escapeFrame).join(";");
  }

  /** The frame of such a stack, or -1. */
  find(stack) {
    if (stack === "") {
      return this.madeUpRoot ? 0 : -1;
    }
    const wanted = stack.split(";").map(unescapeFrame);
    if (this.madeUpRoot) {
      wanted.unshift(this.names[this.name[0]]);
    }
    let at = this.nameOf(0) === wanted[0] ? 0 : -1;
    for (const name of wanted.slice(1)) {
      at = at < 0 ? -1 : (this.children(at).find((child) => this.nameOf(child) === name) ?? -1);
    }
    return at;
  }

  children(i) {
    const found = [];
    for (let child = i + 1; child < this.end[i]; child = this.end[child]) {
      found.push(child);
    }
    return found;
  }

  /** The frame at a depth whose box holds the place `value`, or -1. */
  at(value, depth) {
    let i = 0;
    while (i < this.size && value >= this.x[i] && value < this.x[i] + this.total[i]) {
      if (this.depth[i] === depth) {
        return i;
      }
      let child = i + 1;
      while (child < this.end[i] && this.x[child] + this.total[child] <= value) {
        child = this.end[child];
      }
      if (child >= this.end[i]) {
        return -1;
      }
      i = child;
    }
    return -1;
  }

  /** Frames that stand in several stacks, each once: a recursive frame's time counts once, too. */
  frames(byLayer = false) {
    const layers = byLayer ? this.#layers() : null;
    const found = new Map();
    const openUntil = new Map();
    for (let i = 0; i < this.size; i += 1) {
      if (i === 0 && this.madeUpRoot) {
        continue;
      }
      const key = layers ? `${layers[i]};${this.name[i]}` : this.name[i];
      let frame = found.get(key);
      if (!frame) {
        frame = {
          name: this.nameOf(i),
          layer: layers ? layers[i] : "",
          category: this.categoryOf(i),
          self: 0,
          total: 0,
          calls: 0,
          widest: i,
        };
        found.set(key, frame);
      }
      frame.self += this.self[i];
      frame.calls += this.calls[i];
      if (i >= (openUntil.get(key) ?? 0)) {
        frame.total += this.total[i];
        openUntil.set(key, this.end[i]);
      }
      if (this.total[i] > this.total[frame.widest]) {
        frame.widest = i;
        frame.category = this.categoryOf(i);
      }
    }
    return [...found.values()];
  }

  /** For each frame the numbered layers that it stands in. */
  #layers() {
    const found = new Array(this.size).fill("");
    for (let i = 0; i < this.size; i += 1) {
      const above = this.parent[i] >= 0 ? found[this.parent[i]] : "";
      const own = LAYER.exec(this.nameOf(i))?.[1] ?? "";
      found[i] = [above, own].filter(Boolean).join(" ");
    }
    return found;
  }
}

const ESCAPES = [
  ["%", "%25"],
  [";", "%3B"],
  ["\n", "%0A"],
  ["\r", "%0D"],
];

export function escapeFrame(name) {
  return ESCAPES.reduce((text, [raw, escaped]) => text.replaceAll(raw, escaped), name);
}

export function unescapeFrame(frame) {
  return ESCAPES.reduceRight((text, [raw, escaped]) => text.replaceAll(escaped, raw), frame);
}
