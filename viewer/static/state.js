// The page's state stands in its address: a link shows a colleague the same view.

export class State {
  constructor() {
    this.read();
  }

  read() {
    const { search, hash } = window.location;
    this.query = new URLSearchParams(onDisk() ? hash.slice(1) : search);
  }

  get(key, usual = "") {
    return this.query.get(key) ?? usual;
  }

  /** Change some keys; empty values are taken out. `keep` makes a place to go back to. */
  set(changes, keep = false) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === undefined) {
        this.query.delete(key);
      } else {
        this.query.set(key, value);
      }
    }
    const text = this.query.toString();
    const address = onDisk() ? `#${text}` : `${window.location.pathname}${text ? `?${text}` : ""}`;
    window.history[keep ? "pushState" : "replaceState"](null, "", address);
  }

  /** The part of the query with these keys, for another address. */
  part(keys) {
    const found = new URLSearchParams();
    for (const key of keys) {
      if (this.query.get(key)) {
        found.set(key, this.query.get(key));
      }
    }
    return found;
  }
}

/** Of a file's address only what follows # may be changed. */
function onDisk() {
  return window.location.protocol === "file:";
}
