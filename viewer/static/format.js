// Numbers as people read them; the same digits as the tables that the server writes.

export function ms(value) {
  return value.toFixed(value >= 100 ? 1 : value >= 1 ? 2 : 3);
}

export function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

export function count(value) {
  const digits = Number.isInteger(value) ? 0 : 1;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
