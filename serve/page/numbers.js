/** Numbers as people read them, and the little statistics that the pictures need. */

export const whole = (number) => Math.round(number).toLocaleString("en");

/** So many of something whose plural is regular. */
export const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Tokens of a text that no answer has counted yet, by the English rule of thumb. */
export const aboutTokens = (text) => Math.ceil(text.length / 5);

export const score = (number) => (Math.abs(number) >= 100 ? whole(number) : number.toFixed(3));

/** A knob's value: no more digits than it has. */
export const plain = (number) => (Number.isInteger(number) ? whole(number) : String(Number(number.toPrecision(4))));

export const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function duration(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10_000 ? 1 : 2)} s`;
  if (ms >= 100) return `${whole(ms)} ms`;
  return `${ms.toFixed(ms >= 10 ? 0 : 1)} ms`;
}

/** A share; one that is short of 1 is never rounded up to 100 %. */
export function percent(share) {
  const value = share * 100;
  if (value > 95 && value < 100) return `${Math.floor(value * 10 + 1e-6) / 10} %`;
  if (value >= 10) return `${whole(value)} %`;
  return `${Number(value.toPrecision(2))} %`;
}

/** A share of the exact time as people compare it; `than` is what it is compared with. */
export function times(share, than = "") {
  if (share > 0.95 && share < 1.05) return `as fast${than && ` as ${than}`}`;
  const factor = Number((share < 1 ? 1 / share : share).toPrecision(2));
  return share < 1 ? `${factor} × as fast${than && ` as ${than}`}` : `${factor} × slower${than && ` than ${than}`}`;
}

export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The smallest of 1, 2 and 5 times a power of ten that is at least this. */
export function roundStep(atLeast) {
  const power = 10 ** Math.floor(Math.log10(atLeast));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= atLeast * 0.999999);
}

/** A scale around some values: its ends are ticks, and it is never narrower than `least`. */
export function axis(values, least, low = -Infinity, high = Infinity) {
  const [first, last] = [Math.min(...values), Math.max(...values)];
  const step = roundStep(Math.max(last - first, least) / 4);
  let [from, to] = [Math.floor(first / step - 0.2) * step, Math.ceil(last / step + 0.2) * step];
  [from, to] = [Math.max(low, from), Math.min(high, to)];
  if (to - from < least) from = Math.max(low, to - Math.ceil(least / step) * step);
  const ticks = [];
  for (let index = Math.round(from / step); index * step <= to + step / 1e6; index += 1) ticks.push(index * step);
  return { from, to, ticks, place: (value) => (value - from) / (to - from) };
}
