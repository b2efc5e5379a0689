// Elements by hand: a name, its attributes, what is in it. Texts are always texts, never markup.

/** `element("a", {href: "/", class: "x"}, "text", other)`; attributes that are false, null or undefined are left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) {
      made.addEventListener(key.slice(2), value);
    } else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(key, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A group of buttons of which one is pressed; `choose(value)` hears of a click. Returns the group and its setter. */
export function segments(label, choices, chosen, choose) {
  const buttons = choices.map(([value, text, title]) =>
    element("button", { type: "button", title, "data-value": value, onclick: () => choose(value) }, text),
  );
  const group = element("div", { class: "segments", role: "group", "aria-label": label }, ...buttons);
  const set = (value) => {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", button.dataset.value === String(value));
    }
  };
  set(chosen);
  return { group, set };
}

/** A table under headings of [text, whether its column holds numbers]; `label` makes it a region that scrolls. */
export function plainTable(name, headings, rows, label = "") {
  const cells = headings.map(([text, isNumber]) =>
    text ? element("th", { class: isNumber ? "num" : null, scope: "col" }, text) : element("td"),
  );
  const table = element(
    "table",
    { class: name },
    element("thead", {}, element("tr", {}, ...cells)),
    element("tbody", {}, ...rows),
  );
  return element(
    "div",
    label ? { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label } : { class: "scroll" },
    table,
  );
}

/** Puts a text on the clipboard, also where the page is not served securely. */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = element("textarea", { class: "offscreen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
