/** How sure the shown answer is, as the service says with `explain`: nobody knows the exact answer for that. */

import { isRounded } from "./calibration.js";
import { byId } from "./dom.js";
import { percent, score } from "./numbers.js";

const LEAST_SHOWN = 0.001; // of an error: a score is written to three places

/** What of a prediction says how sure it is; `refusal` where the service does not say. */
export const certainty = ({ agreement_probability: probability, standard_error: error }) => ({ probability, error });

const whatAgrees = ({ task, labels }) =>
  task === "multi_label" ? `that all ${labels.length} decisions are the exact ones` : "to be the exact answer";

function seedText(error) {
  if (error === undefined) return "";
  if (error === 0) return " Nothing in it is drawn at random: every seed gives this score.";
  const typical = error < LEAST_SHOWN ? `less than ${LEAST_SHOWN}` : `± ${score(error)}`;
  return ` Another seed would typically move its score by ${typical}.`;
}

/** The sentences about an answer. */
function sentences(model, { probability, error, refusal }) {
  if (refusal) return `The service does not say: ${refusal}.`;
  const chance =
    probability === undefined
      ? "Not known: this setting is less accurate than all that were measured for this model."
      : `${percent(probability)} likely ${whatAgrees(model)}.`;
  return chance + seedText(error);
}

export class Certainty {
  constructor(session) {
    this.on = byId("explain-on");
    this.on.addEventListener("change", () => session.explain(this.on.checked));
  }

  draw({ model, setting, isExact, isExplaining, expected }) {
    byId("certainty").hidden = !model.calibration?.explains || model.task === "regression";
    byId("certainty-text").textContent = certaintyText({ model, setting, isExact, isExplaining, expected });
  }
}

/** How sure the shown answer is, in words; empty where that is not asked. */
export function certaintyText({ model, setting, isExact, isExplaining, expected }) {
  if (!isExplaining) return "";
  if (isExact) return isRounded(expected) ? "Every token is computed, in rounded numbers." : "It is the exact answer.";
  return setting.certainty ? sentences(model, setting.certainty) : "…";
}
