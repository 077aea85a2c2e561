/** What is asked and what was answered: one session of one visitor. Draws nothing; fires `change`. */

import { certainty } from "./certainty.js";
import { frontierOf } from "./calibration.js";
import { findsEntities } from "./entities.js";
import { areExact, exactKnobs } from "./knobs.js";
import { Latest, pause } from "./latest.js";
import { Memory, reading } from "./memory.js";
import { aboutTokens } from "./numbers.js";
import { asAnswer, documentsIn, isRanking } from "./ranking.js";

export const SEEDS = 16;
const REST_MS = 450; // a knob that was not moved for this long rests
const LIVE_PATIENCE_MS = 400;
const EXACT_HEAD_START_MS = 5000; // other work at the same time would lengthen the exact time that it is compared with
const BRIEF_MS = 150; // an exact run below this is timed again in turns with the others, so that both see the same load
const FIXED_RUNS = 6; // a setting that does not sample is timed this often

export class Session extends EventTarget {
  #live = new Latest((signal) => this.#askLive(signal), (error) => this.#liveFailed(error), LIVE_PATIENCE_MS);
  #exact = new Latest((signal) => this.#askExact(signal), (error) => this.#exactFailed(error));
  #spread = new Latest((signal) => this.#askSpread(signal), (error) => this.#spreadFailed(error));
  #memory = new Memory();

  constructor(service) {
    super();
    this.service = service;
    this.model = null;
    this.text = "";
    this.query = ""; // of a ranking, whose documents are the lines of the text
    this.rescore = 0; // documents of a ranking that are scored again, exactly
    this.knobs = {};
    this.goal = null; // {min_agreement, escalate}: the service chooses the knobs
    this.wantsCertainty = true;
    this.answer = null; // the latest one, whatever the setting
    this.error = null; // a Refused that stands until something changes
    this.busyUntilMs = 0; // as the service asked with Retry-After
    this.busy = null; // the Refused that asked so
    this.exactSinceMs = 0;
    this.isBehind = false; // whether the service may still be at another text's exact run
  }

  get subject() {
    return this.model && this.#memory.subject(this.model, this.text, isRanking(this.model) ? this.query : "");
  }

  /** The knobs and, of a ranking that is not exact already, how many documents are scored again. */
  get chosen() {
    return isRanking(this.model) && this.rescore && !this.isExact ? { ...this.knobs, rescore: this.rescore } : this.knobs;
  }

  /** The readings at the knobs as they stand. */
  get setting() {
    return this.subject?.setting(this.chosen);
  }

  /** How long the text is, as far as is known. */
  get tokens() {
    return this.answer?.tokens[0] ?? this.subject.latest?.tokens ?? aboutTokens(this.text);
  }

  /** What calibration says of the setting; null without one. */
  get expected() {
    return frontierOf(this.model, this.tokens)?.expected(this.knobs) ?? null;
  }

  get isEmpty() {
    return !this.text.trim() || (isRanking(this.model) && !this.query.trim());
  }

  get asking() {
    return this.#live.running;
  }

  /** Whether more seeds of this setting are still asked for. */
  get isSampling() {
    return this.#spread.pending;
  }

  get exactIsRunning() {
    return this.#exact.running && !this.subject?.exact;
  }

  /** Whether the service has asked to be left alone for a while. */
  get isBusy() {
    return this.busyUntilMs > performance.now();
  }

  get isExact() {
    return this.model !== null && areExact(this.model, this.knobs);
  }

  /** Whether the service is asked how sure the shown answer is. */
  get isExplaining() {
    return this.wantsCertainty && this.model?.calibration?.explains === true;
  }

  /** The request whose answer is shown, with all that is shown of it. */
  get whole() {
    return { ...this.request(), ...(this.isExplaining && { explain: true }) };
  }

  /** The request as it is sent first, but for its seed: without what would make it take longer. */
  request(knobs = this.goal ?? this.chosen) {
    const { name, labels } = this.model;
    const options = { ...knobs, seed: 0, truncate: true };
    if (isRanking(this.model)) return { model: name, query: this.query, documents: documentsIn(this.text), ...options };
    return { model: name, inputs: [this.text], ...options, ...(!findsEntities(this.model) && { top_k: labels.length }) };
  }

  async #send(request, signal) {
    if (!request.documents) return this.service.classify(request, signal);
    return asAnswer(await this.service.rerank(request, signal), request);
  }

  use({ model = this.model, text = this.text, query = this.query, knobs = this.knobs, goal = this.goal }, afterMs = 0) {
    this.isBehind ||= this.model !== null && this.exactIsRunning;
    Object.assign(this, { model, text, query, knobs, goal, answer: null });
    this.#live.stop();
    this.#exact.stop();
    this.#ask(afterMs);
  }

  /** Turns knobs by hand, which ends a goal. */
  set(knobs) {
    Object.assign(this, { knobs: { ...this.knobs, ...knobs }, goal: null });
    this.#ask();
  }

  /** States a goal; until the service has chosen, the knobs stand where it is expected to put them. */
  aim(goal) {
    const point = goal.escalate ? null : frontierOf(this.model, this.tokens)?.cheapest(goal.min_agreement);
    Object.assign(this, { goal, knobs: point?.knobs ?? this.knobs });
    this.#ask();
  }

  /** Has so many of the best documents of a ranking scored again, exactly. */
  rescoreBest(documents) {
    this.rescore = documents;
    this.#ask();
  }

  explain(wanted) {
    this.wantsCertainty = wanted;
    this.#ask();
  }

  again() {
    this.#ask();
  }

  /** Takes an error of something else that was asked of the service. */
  fail(error) {
    this.error = error;
    this.#changed();
  }

  #ask(afterMs = 0) {
    this.error = null;
    this.#spread.stop();
    this.#live.poke(afterMs);
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  async #whenFree(signal) {
    while (this.busyUntilMs > performance.now()) await pause(this.busyUntilMs - performance.now(), signal);
    this.busyUntilMs = 0;
  }

  async #askLive(signal) {
    if (!this.model || this.isEmpty) return;
    if (this.isExact && this.exactIsRunning) return; // its end asks again
    if (this.isBusy) this.error = this.busy;
    this.#changed();
    await this.#whenFree(signal);
    const { subject, setting, goal } = this;
    if (goal || !setting.answer) {
      const answer = await this.#send(this.request(), signal);
      const [reached, one] = [subject.setting(answer.knobs), reading(answer)];
      reached.answer = answer;
      reached.add(one);
      if (areExact(this.model, answer.knobs)) subject.exact ??= one;
      subject.latest = one;
      if (goal && goal === this.goal) this.knobs = answer.knobs;
      this.answer = answer;
    } else {
      [this.answer, subject.latest] = [setting.answer, setting.readings[0]];
    }
    this.error = null;
    this.#exact.poke();
    this.#spread.poke(REST_MS);
    queueMicrotask(() => this.#changed());
  }

  async #askExact(signal) {
    const { subject, model } = this;
    const knobs = exactKnobs(model);
    const setting = subject.setting(knobs);
    this.exactSinceMs = performance.now();
    if (!subject.exact && !subject.refusal) {
      this.#changed();
      await this.#whenFree(signal);
      setting.answer = await this.#send(this.request(knobs), signal);
      subject.exact = reading(setting.answer);
      setting.add(subject.exact);
      this.isBehind = false;
      if (this.isExact) this.#live.poke();
    }
    queueMicrotask(() => this.#changed());
  }

  async #askSpread(signal) {
    const { subject, setting } = this;
    const alreadyMs = performance.now() - this.exactSinceMs;
    if (this.exactIsRunning && alreadyMs < EXACT_HEAD_START_MS) {
      this.#spread.poke(200);
      return;
    }
    await this.#explain(setting, signal);
    const exact = exactKnobs(this.model);
    const isBrief = subject.exact && subject.setting(exact).computeMs < BRIEF_MS;
    for (let seed = 0; seed < (setting.isFixed ? FIXED_RUNS : SEEDS); seed += 1) {
      if (!this.isExact) await this.#sample(subject, setting.knobs, seed, signal);
      if (isBrief && seed % 3 === 2) await this.#sample(subject, exact, seed, signal);
    }
    queueMicrotask(() => this.#changed());
  }

  /** Asks how sure the answer is: in a request of its own, as its further runs would count in the answer's time. */
  async #explain(setting, signal) {
    if (!this.isExplaining || this.isExact || setting.certainty) return;
    await this.#whenFree(signal);
    try {
      const answer = await this.service.classify({ ...this.request(setting.knobs), explain: true }, signal);
      setting.certainty = certainty(answer.predictions[0]);
    } catch (error) {
      if (error.status !== 422) throw error; // a limit of the service's may keep it from saying
      setting.certainty = { refusal: error.message };
    }
    this.#changed();
  }

  async #sample(subject, knobs, seed, signal) {
    if (subject.setting(knobs).has(seed)) return;
    await this.#whenFree(signal);
    subject.setting(knobs).add(reading(await this.#send({ ...this.request(knobs), seed }, signal)));
    this.#changed();
  }

  #liveFailed(error) {
    this.error = error;
    return this.#waits(error);
  }

  #exactFailed(error) {
    if (error.status === 422) this.subject.refusal = error.message;
    if (this.isExact || !(error.status === 422 || error.passes)) this.error = error;
    return this.#waits(error);
  }

  #spreadFailed(error) {
    if (!error.passes) this.error = error;
    return this.#waits(error);
  }

  /** Notes how long the service wants to be left alone; whether the same request may come again after that. */
  #waits(error) {
    if (error.passes) [this.busy, this.busyUntilMs] = [error, performance.now() + error.retryAfterS * 1000];
    this.#changed();
    return error.passes === true;
  }
}
