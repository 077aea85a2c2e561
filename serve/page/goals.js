/** A goal beside the knob, where the model was calibrated: the service then chooses the knobs. */

import { byId, say } from "./dom.js";
import { settingText } from "./knobs.js";
import { percent } from "./numbers.js";

export class Goals {
  constructor(session) {
    this.session = session;
    this.slider = byId("goal-agreement");
    this.escalate = byId("goal-escalate");
    this.slider.addEventListener("input", () => this.#state());
    this.escalate.addEventListener("change", () => this.#state());
  }

  #state() {
    const goal = { min_agreement: Number(this.slider.value) / 100 };
    this.session.aim(this.escalate.checked ? { ...goal, escalate: true } : goal);
  }

  draw({ model, goal, answer, error, knobs }) {
    const { calibration } = model;
    byId("goal").hidden = !calibration || !model.knobs.length;
    byId("goal-escalate-line").hidden = calibration?.explains !== true;
    byId("goal").classList.toggle("off", !goal);
    this.escalate.checked = goal?.escalate === true;
    if (goal) this.slider.value = goal.min_agreement * 100;
    const share = percent(Number(this.slider.value) / 100);
    byId("goal-value").textContent = goal ? `≥ ${share}` : "not set";
    this.slider.setAttribute("aria-valuetext", goal ? `at least ${share} the same` : "not set");
    const isCurrent = goal && !error && answer && settingText(model, answer.knobs) === settingText(model, knobs);
    say(byId("goal-reached"), isCurrent ? reached(model, answer) : "");
  }
}

function reached(model, answer) {
  const knobs = settingText(model, answer.knobs);
  if (!answer.steps) return answer.chosen_by === "goal" ? `The service chose ${knobs}.` : "";
  const { agreement_probability: probability } = answer.predictions[0];
  const runs = answer.steps === 1 ? "One run," : `${answer.steps} runs, the last`;
  const chance = probability === undefined ? "" : `, ${percent(probability)} likely to be the exact answer`;
  return `${runs} at ${knobs}${chance}. Work: ${percent(answer.relative_cost)} of the exact answer's.`;
}
