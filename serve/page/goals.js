/** The switch from knobs to a goal, where the model was calibrated: the service then chooses the knobs. */

import { TYPING_MS } from "./asked.js";
import { byId, say } from "./dom.js";
import { settingText } from "./knobs.js";
import { percent } from "./numbers.js";

export class Goals {
  constructor(session) {
    this.session = session;
    this.on = byId("goal-on");
    this.escalate = byId("goal-escalate");
    this.escalate.addEventListener("change", () => this.#state());
    this.fields = { min_agreement: byId("goal-agreement"), max_latency_ms: byId("goal-latency") };
    this.on.addEventListener("change", () => this.#state());
    for (const field of Object.values(this.fields)) field.addEventListener("input", () => this.#state(TYPING_MS));
  }

  #state(afterMs = 0) {
    byId("goal-fields").hidden = !this.on.checked;
    const { min_agreement: agreement, max_latency_ms: latency } = this.fields;
    latency.hidden = latency.labels[0].hidden = this.escalate.checked; // how often it runs depends on the answers
    const goal = {};
    if (agreement.value !== "") goal.min_agreement = Number(agreement.value) / 100;
    if (latency.value !== "" && !latency.hidden) goal.max_latency_ms = Number(latency.value);
    if (this.escalate.checked) goal.escalate = true;
    const stated = this.on.checked && Object.keys(goal).length > 0;
    if (stated || this.session.goal) this.session.aim(stated ? goal : null, afterMs);
  }

  draw({ model, goal, answer, error }) {
    byId("goal").hidden = !model.calibration;
    const explains = model.calibration?.explains === true;
    byId("goal-escalate-line").hidden = !explains;
    if ((!model.calibration && this.on.checked) || (!explains && this.escalate.checked)) {
      this.on.checked &&= Boolean(model.calibration);
      this.escalate.checked &&= explains;
      this.#state();
    }
    byId("goal-agreement-name").textContent = this.escalate.checked
      ? "Chance that this answer is the exact one, at least (%)"
      : "Answers that are as the exact ones, at least (%)";
    say(byId("goal-reached"), goal && !error ? reached(model, answer) : "");
  }
}

function reached(model, answer) {
  if (!answer) return "";
  const knobs = settingText(model, answer.knobs);
  if (!answer.steps) return answer.chosen_by === "goal" ? `The service chose ${knobs}.` : "";
  const { agreement_probability: probability } = answer.predictions[0];
  const runs = answer.steps === 1 ? "One run," : `${answer.steps} runs, the last`;
  const chance = probability === undefined ? "" : `, ${percent(probability)} likely to be the exact answer`;
  return `${runs} at ${knobs}${chance}. Work: ${percent(answer.relative_cost)} of the exact answer's.`;
}
