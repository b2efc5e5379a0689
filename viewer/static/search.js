// Finding frames by a part of their name or by a regular expression.

/** A test of names, or null for an empty text; throws SyntaxError for a wrong expression. */
export function makeMatcher(text, isRegex) {
  if (text === "") {
    return null;
  }
  if (isRegex) {
    const expression = new RegExp(text, "i");
    return (name) => expression.test(name);
  }
  const wanted = text.toLowerCase();
  return (name) => name.toLowerCase().includes(wanted);
}

/** The hits of a matcher in a tree: `isHit` by frame, `before` how many there are before each, and their share. */
export class Search {
  constructor(tree, matches) {
    const names = Uint8Array.from(tree.names, (name) => (matches(name) ? 1 : 0));
    this.isHit = new Uint8Array(tree.size);
    this.before = new Int32Array(tree.size + 1);
    for (let i = 0; i < tree.size; i += 1) {
      this.isHit[i] = i === 0 && tree.madeUpRoot ? 0 : names[tree.name[i]];
      this.before[i + 1] = this.before[i] + this.isHit[i];
    }
    this.count = this.before[tree.size];
    this.share = this.#covered(tree) / tree.whole;
  }

  /** Whether a frame or one below it is a hit. */
  within(tree, i) {
    return this.before[tree.end[i]] > this.before[i];
  }

  /** The hit after frame `i` (before it with `step` -1), going round; -1 where there is none. */
  next(i, step) {
    const size = this.isHit.length;
    for (let distance = 1; distance <= size && this.count; distance += 1) {
      const at = (((i + step * distance) % size) + size) % size;
      if (this.isHit[at]) {
        return at;
      }
    }
    return -1;
  }

  /** The time that hits cover together: a hit below another hit counts once. */
  #covered(tree) {
    let sum = 0;
    let i = 0;
    while (i < tree.size) {
      if (this.isHit[i]) {
        sum += tree.total[i];
        i = tree.end[i];
      } else {
        i += 1;
      }
    }
    return sum;
  }
}
