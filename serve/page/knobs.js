/** The stops of a knob's slider, from the cheapest value on the left to the exact one on the right. */

import { plain } from "./numbers.js";

const MOST_STOPS = 120;
const LOGARITHMIC_FROM = 32; // a range whose ends differ by this factor is walked in equal ratios

function inequal(low, high, integers) {
  const values = new Set([low]);
  for (let index = 1; index <= 80; index += 1) {
    const value = low * (high / low) ** (index / 80);
    values.add(integers ? Math.round(value) : Number(value.toPrecision(2)));
  }
  return [...values.add(high)];
}

function equal(low, high, integers) {
  let step = integers ? 1 : 10 ** Math.floor(Math.log10((high - low) / MOST_STOPS));
  const factors = [1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000];
  step *= factors.find((factor) => (high - low) / (step * factor) <= MOST_STOPS) ?? (high - low) / MOST_STOPS / step;
  const values = [low];
  for (let index = Math.floor(low / step) + 1; index * step < high - step / 1e6; index += 1)
    values.push(Number((index * step).toPrecision(6)));
  return [...values, high];
}

/** A knob of `GET /v1/models` and the stops of its slider. */
export class Knob {
  constructor(info) {
    Object.assign(this, info);
    const integers = info.dtype.startsWith("int");
    // Zero may stand for the exact value below the range where accuracy rises: the range then begins at one.
    this.isApart = integers && info.exact === info.low && info.accuracy === "rises";
    const low = this.isApart ? info.low + 1 : info.low;
    const ratios = low > 0 && info.high / low >= LOGARITHMIC_FROM;
    const values = (ratios ? inequal : equal)(low, info.high, integers);
    if (info.accuracy === "falls") values.reverse();
    this.stops = [...values.filter((value) => value !== info.exact), info.exact];
  }

  get last() {
    return this.stops.length - 1;
  }

  isExact(value) {
    return value === this.exact;
  }

  /** The stop that is nearest to a value, which a goal or an example may have put between two. */
  stopOf(value) {
    if (this.isExact(value)) return this.last;
    let best = 0;
    for (let index = 1; index < this.last; index += 1)
      if (Math.abs(this.stops[index] - value) < Math.abs(this.stops[best] - value)) best = index;
    return best;
  }

  /** What it counts: the name that people read first. */
  get title() {
    return this.unit[0].toUpperCase() + this.unit.slice(1);
  }

  /** A value in words; a share as a percentage. */
  text(value) {
    if (this.isExact(value)) return "exact";
    return this.unit.startsWith("share") ? `${plain(value * 100)} %` : plain(value);
  }
}

export const exactKnobs = (model) => Object.fromEntries(model.knobs.map((knob) => [knob.name, knob.exact]));

export const areExact = (model, knobs) => model.knobs.every((knob) => knob.isExact(knobs[knob.name]));

export const defaultKnobs = (model) => Object.fromEntries(model.knobs.map((knob) => [knob.name, knob.default]));

/** Every knob of a model by what it counts, with its value in words; then what a ranking scores again. */
export const settingText = (model, values) =>
  [...model.knobs.map((knob) => `${knob.unit} ${knob.text(values[knob.name])}`), ...(values.rescore ? [`best ${values.rescore} again, exactly`] : [])].join(", ");

/** A served model as `GET /v1/models` describes it, with sliders' stops in place of bare knobs. */
export const described = (info) => ({ ...info, knobs: info.knobs.map((knob) => new Knob(knob)) });
