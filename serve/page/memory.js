/** What the service answered so far: by text and model, then by setting. */

import { median } from "./numbers.js";

const MOST_SUBJECTS = 24;

/** An answer of `POST /v1/classify` for one input, or one of its shape, as the pictures need it. */
export function reading(answer) {
  const [prediction] = answer.predictions;
  const entities = prediction.entities?.map((each) => ({ ...each, key: `${each.label} ${each.start} ${each.end}` }));
  const scores = new Map((entities ?? prediction.scores ?? [prediction]).map((each) => [each.key ?? each.label, each.score]));
  const all = entities ? [...scores.keys()] : prediction.labels;
  const decision = prediction.order?.join() ?? (all ? [...all].sort().join("\n") : prediction.label);
  return {
    label: prediction.label,
    labels: prediction.labels,
    entities, // of a token classifier; scores are then theirs, by `key`
    order: prediction.order, // of a ranking: the documents by their places in the list, which scores are then by
    results: prediction.results,
    steps: prediction.steps, // of a ranking
    score: prediction.score,
    scores,
    decision,
    seed: answer.seed,
    tokens: answer.tokens[0],
    computeMs: answer.timing_ms.compute,
    totalMs: answer.timing_ms.total,
    isTimed: !(answer.steps > 1), // or it took several settings' time
  };
}

/** The answers at one setting, one for each seed. */
export class Setting {
  constructor(knobs) {
    this.knobs = knobs;
    this.readings = [];
    this.certainty = null; // once the service was asked
  }

  add(one) {
    if (!this.readings.some((each) => each.seed === one.seed)) this.readings.push(one);
  }

  has(seed) {
    return this.readings.some((each) => each.seed === seed);
  }

  get computeMs() {
    const timed = this.readings.filter((each) => each.isTimed);
    return median((timed.length ? timed : this.readings).map((each) => each.computeMs));
  }

  /** How many seeds gave the exact answer. */
  agreeing(exact) {
    return this.readings.filter((each) => each.decision === exact.decision).length;
  }

  /** Whether three seeds gave the very same scores: then nothing is sampled, and more would say nothing new. */
  get isFixed() {
    const [first, ...rest] = this.readings.map((each) => [each.score, ...each.scores.values()].join());
    return rest.length >= 2 && rest.every((each) => each === first);
  }
}

/** A text with the model that reads it. */
class Subject {
  constructor() {
    this.exact = null; // the exact answer, once it is known
    this.refusal = ""; // or why there is none
    this.latest = null; // the answer before the one that is waited for
    this.settings = new Map();
  }

  setting(knobs) {
    const name = JSON.stringify(Object.entries(knobs).sort());
    if (!this.settings.has(name)) this.settings.set(name, new Setting({ ...knobs }));
    return this.settings.get(name);
  }

  /** The label whose score the pictures follow: the exact answer's, until then that of the latest one. */
  followed(latest) {
    return (this.exact ?? latest)?.label;
  }
}

export class Memory {
  #subjects = new Map();

  subject(model, text, query) {
    const name = JSON.stringify([model.name, model.revision, model.task, query, text]);
    const subject = this.#subjects.get(name) ?? new Subject();
    this.#subjects.delete(name); // and in again as the newest
    this.#subjects.set(name, subject);
    if (this.#subjects.size > MOST_SUBJECTS) this.#subjects.delete(this.#subjects.keys().next().value);
    return subject;
  }
}
