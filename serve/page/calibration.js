/** What is known before anything is asked: how often each setting gave the exact answer, and how long it took. */

import { defaultKnobs } from "./knobs.js";
import { aboutTokens } from "./numbers.js";

const SURE = 0.99; // the agreement at which models are compared

/** The place of the bucket for texts of this length, or of the nearest one. */
function bucketAt({ buckets }, tokens) {
  const index = buckets.findIndex((bucket) => tokens <= bucket.high);
  return index < 0 ? buckets.length - 1 : index;
}

/** Whether a setting whose agreement is expected computes every token with rounded numbers, as int8 does. */
export const isRounded = (expected) => expected?.bound < 1;

const measured = (index) => ({ knobs, agreement, time }) => {
  const { value, bound } = agreement[index];
  return { knobs, agreement: value, bound, time: time?.[index] ?? null };
};

/** Every setting that was measured on texts of this length; empty without a calibration. */
export function calibrated(model, tokens) {
  if (!model.calibration) return [];
  return model.calibration.settings.map(measured(bucketAt(model.calibration, tokens)));
}

/** How many times as fast as exact a model is at its best where it stays as sure; 0 where nothing says. */
export function gain(model) {
  if (model.task !== "single_label" || !model.calibration) return 0;
  const { buckets, settings } = model.calibration;
  const points = buckets.flatMap((_, index) => settings.map(measured(index)));
  return Math.max(...points.filter(({ agreement, time }) => time && agreement >= SURE).map(({ time }) => 1 / time), 0);
}

const mix = (from, to, share) => (from === null || to === null ? null : from + (to - from) * share);

/** The sliders' stops between two measured settings; what holds there lies between what was measured. */
function between(model, from, to) {
  const moves = model.knobs.map((knob) => [knob, from.knobs[knob.name], to.knobs[knob.name]]).map(([knob, a, b]) => ({ knob, a, b, first: knob.stopOf(a), last: knob.stopOf(b) }));
  // Between the largest number that was measured and an exact value apart from it nothing is known.
  if (moves.some(({ knob, a, b }) => knob.isApart && knob.isExact(b) && !knob.isExact(a))) return [];
  const steps = Math.max(...moves.map(({ first, last }) => Math.abs(last - first)));
  const [moving, ...others] = moves.filter(({ first, last }) => first !== last);
  return Array.from({ length: Math.max(0, steps - 1) }, (_, index) => {
    const share = (index + 1) / steps;
    const values = moves.map(({ knob, first, last }) => [knob.name, knob.stops[Math.round(mix(first, last, share))]]);
    const knobs = Object.fromEntries(values);
    const timeShare = others.length ? share : (knobs[moving.knob.name] - moving.a) / (moving.b - moving.a);
    const [agreement, bound] = [mix(from.agreement, to.agreement, share), mix(from.bound, to.bound, share)];
    return { knobs, agreement, bound, time: mix(from.time, to.time, timeShare) };
  });
}

/** The settings worth choosing for texts of one length, from the cheapest to the exact one, and what lies between. */
class Frontier {
  constructor(model, index) {
    this.model = model;
    this.bucket = model.calibration.buckets[index];
    this.all = model.calibration.settings.map(measured(index));
    this.measured = this.bucket.settings.map((place) => this.all[place]).reverse();
    this.points = this.measured.flatMap((point, at) => (at ? [...between(model, this.measured[at - 1], point), point] : [point]));
    for (const point of [...this.all, ...this.points]) point.stops = this.#stops(point.knobs);
  }

  #stops(knobs) {
    return this.model.knobs.map((knob) => knob.stopOf(knobs[knob.name]));
  }

  /** The place of the point that is nearest to a setting. */
  nearest(knobs) {
    const stops = this.#stops(knobs);
    const apart = (point) => point.stops.reduce((sum, stop, index) => sum + Math.abs(stop - stops[index]), 0);
    const distances = this.points.map(apart);
    return distances.indexOf(Math.min(...distances));
  }

  /**
   * What a setting is expected to do. Where it was not measured its agreement is at least that of what is no more
   * accurate (null where all that was measured is), and its time at most that of what is no less accurate.
   */
  expected(knobs) {
    const stops = this.#stops(knobs);
    const compare = (holds) => [...this.points, ...this.all].filter((point) => point.stops.every((stop, index) => holds(stop, stops[index])));
    const [same] = compare((one, other) => one === other);
    if (same) return same;
    const below = compare((one, other) => one <= other).map((point) => point.agreement);
    const above = compare((one, other) => one >= other).map((point) => point.time);
    const time = this.#beyond(knobs) ?? (above.includes(null) ? null : Math.min(...above));
    return { knobs, agreement: below.length ? Math.max(...below) : null, time };
  }

  /** Above the largest number that was measured, short of an exact value apart from it, time grows as it did before. */
  #beyond(knobs) {
    const [knob, ...others] = this.model.knobs;
    const [before, top, exact] = this.measured.slice(-3);
    if (others.length || !knob.isApart || !exact?.time || knobs[knob.name] <= top.knobs[knob.name]) return null;
    const run = (knobs[knob.name] - before.knobs[knob.name]) / (top.knobs[knob.name] - before.knobs[knob.name]);
    return mix(before.time, top.time, run);
  }

  /** The cheapest measured setting for a goal, as the service chooses it. */
  cheapest(agreement) {
    return this.measured.find((point) => point.bound >= agreement) ?? this.measured.at(-1);
  }
}

const frontiers = new Map();

/** The frontier of a model for texts of a length; null without a calibration. */
export function frontierOf(model, tokens) {
  if (!model?.calibration || !model.knobs.length) return null;
  const index = bucketAt(model.calibration, tokens);
  const name = `${model.name} ${model.revision} ${index}`;
  if (!frontiers.has(name)) frontiers.set(name, new Frontier(model, index));
  return frontiers.get(name);
}

/** How a model opens with a text: at what a request runs at that sets nothing. */
export function opening(model, text) {
  const place = frontierOf(model, aboutTokens(text))?.bucket.default;
  return { model, text, knobs: place == null ? defaultKnobs(model) : model.calibration.settings[place].knobs, goal: null };
}
