// Colours as the style sheet has them now: light or dark, palette, hits. Canvases can't read its variables themselves.

const SLOWER = [213, 94, 0]; // Okabe and Ito: vermillion and blue stay apart for the colour-blind
const FASTER = [0, 114, 178];

export class Colors {
  constructor(categories) {
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    this.frames = new Map(categories.map((key) => [key, read(`frame-${key}`)]));
    this.label = read("frame-text");
    for (const name of ["text", "faint", "panel", "page", "line", "accent", "hit", "decode", "prefill"]) {
      this[name] = read(name);
    }
    this.dark = brightness(read("panel")) < 128;
    probe.remove();
  }

  /** The fill of a changed box: the stronger, the nearer `strength` (−1 faster … 1 slower) is to its ends. */
  change(strength) {
    const share = Math.min(Math.abs(strength), 1);
    const end = strength > 0 ? SLOWER : FASTER;
    const start = this.dark ? [92, 95, 104] : [222, 223, 228];
    const mixed = start.map((value, i) => Math.round(value + (end[i] - value) * (share ? 0.25 + 0.75 * share : 0)));
    return { fill: `rgb(${mixed.join(" ")})`, label: brightnessOf(mixed) > 110 ? "#111114" : "#ffffff" };
  }
}

function brightness(color) {
  return brightnessOf((color.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number));
}

function brightnessOf([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue;
}
