// The callers and the callees of a frame, over all stacks that it stands in, as trees of their own.

import { Tree } from "./tree.js";

/** {callers, callees}: trees whose root is the frame; null where no frame has the name. */
export function sandwich(tree, name) {
  const wanted = tree.names.indexOf(name);
  if (wanted < 0) {
    return null;
  }
  const callers = new Growing(tree, wanted);
  const callees = new Growing(tree, wanted);
  let openUntil = 0;
  for (let i = 0; i < tree.size; i += 1) {
    // A frame below itself is a part of the outer one's time, and shows among its callees.
    if (tree.name[i] !== wanted || i < openUntil) {
      continue;
    }
    openUntil = tree.end[i];
    callees.addSubtree(i);
    callers.addPath(i);
  }
  return { callers: callers.finish(), callees: callees.finish() };
}

/** A tree that is still being merged from parts of another one. */
class Growing {
  constructor(source, rootName) {
    this.source = source;
    this.nodes = [{ name: rootName, category: 0, self: 0, calls: 0, total: 0, children: new Map() }];
  }

  #child(parent, i) {
    const { children } = this.nodes[parent];
    const name = this.source.name[i];
    let number = children.get(name);
    if (number === undefined) {
      number = this.nodes.length;
      this.nodes.push({ name, category: this.source.category[i], self: 0, calls: 0, total: 0, children: new Map() });
      children.set(name, number);
    }
    return number;
  }

  #add(number, self, calls) {
    this.nodes[number].self += self;
    this.nodes[number].calls += calls;
  }

  addSubtree(top) {
    const { source } = this;
    const place = new Map([[top, 0]]);
    this.nodes[0].category = source.category[top];
    for (let i = top; i < source.end[top]; i += 1) {
      const number = i === top ? 0 : this.#child(place.get(source.parent[i]), i);
      place.set(i, number);
      this.#add(number, source.self[i], source.calls[i]);
    }
  }

  addPath(top) {
    const { source } = this;
    this.nodes[0].category = source.category[top];
    this.nodes[0].calls += source.calls[top];
    let number = 0;
    for (let i = source.parent[top]; i >= 0 && !(i === 0 && source.madeUpRoot); i = source.parent[i]) {
      number = this.#child(number, i);
      this.nodes[number].calls += source.calls[top];
    }
    this.nodes[number].self += source.total[top];
  }

  finish() {
    const { nodes, source } = this;
    for (let i = nodes.length - 1; i >= 0; i -= 1) {
      nodes[i].total = nodes[i].self;
      for (const child of nodes[i].children.values()) {
        nodes[i].total += nodes[child].total;
      }
    }
    const columns = {
      names: source.names,
      categories: source.categories,
      made_up_root: false,
      name: [],
      depth: [],
      category: [],
      self: [],
      calls: [],
    };
    const waiting = [[0, 0]];
    while (waiting.length) {
      const [number, depth] = waiting.pop();
      const node = nodes[number];
      columns.name.push(node.name);
      columns.depth.push(depth);
      columns.category.push(node.category);
      columns.self.push(node.self);
      columns.calls.push(node.calls);
      const children = [...node.children.values()].sort((a, b) => nodes[a].total - nodes[b].total);
      waiting.push(...children.map((child) => [child, depth + 1]));
    }
    return new Tree(columns);
  }
}
