/** The switch from knobs to a goal, where the model was calibrated: the service then chooses the knobs. */

import { TYPING_MS } from "./asked.js";
import { byId } from "./dom.js";
import { valueText } from "./knobs.js";

export class Goals {
  constructor(session) {
    this.session = session;
    this.on = byId("goal-on");
    this.fields = { min_agreement: byId("goal-agreement"), max_latency_ms: byId("goal-latency") };
    this.on.addEventListener("change", () => this.#state());
    for (const field of Object.values(this.fields)) field.addEventListener("input", () => this.#state(TYPING_MS));
  }

  #state(afterMs = 0) {
    byId("goal-fields").hidden = !this.on.checked;
    const goal = {};
    for (const [name, field] of Object.entries(this.fields))
      if (field.value !== "") goal[name] = name === "min_agreement" ? Number(field.value) / 100 : Number(field.value);
    const stated = this.on.checked && Object.keys(goal).length > 0;
    if (stated || this.session.goal) this.session.aim(stated ? goal : null, afterMs);
  }

  draw({ model, goal, answer }) {
    byId("goal").hidden = !model.calibration;
    if (!model.calibration && this.on.checked) {
      this.on.checked = false;
      this.#state();
    }
    byId("goal-reached").textContent =
      goal && answer?.chosen_by === "goal"
        ? `The service chose ${model.knobs.map((knob) => `${knob.name} ${valueText(knob, answer.knobs[knob.name])}`).join(", ")}.`
        : "";
  }
}
