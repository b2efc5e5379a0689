// Numbers as people read them; the same digits as the tables that the server writes.

export function ms(value) {
  return value.toFixed(Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 1 ? 2 : 3);
}

export function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

export function count(value) {
  const digits = Number.isInteger(value) ? 0 : 1;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function signed(text, value) {
  return value < 0 ? `−${text.replace("-", "")}` : value > 0 ? `+${text}` : text;
}

/** The ways to tell a view's values, each with its name in an address. */
export function unitsOf(view) {
  if (view.unit !== "microseconds") {
    return { total: countsOf(view.unit) };
  }
  const units = { step: times("ms per step", "step", Math.max(view.steps, 1)) };
  if (view.seconds) {
    units.second = times("ms per second", "step", view.seconds);
  }
  units.total = times("ms in all", "step", 1);
  return units;
}

function times(name, whole, divisor) {
  const of = (us) => us / 1000 / divisor;
  return { name, whole, short: "ms", of, divisor, text: (us) => ms(of(us)), withUnit: (us) => `${ms(of(us))} ms` };
}

function countsOf(unit) {
  const text = (value) => Math.round(value).toLocaleString("en");
  return {
    name: unit,
    whole: "whole",
    short: unit,
    of: (value) => value,
    divisor: 1,
    text,
    withUnit: (value) => `${text(value)} ${unit}`,
  };
}
