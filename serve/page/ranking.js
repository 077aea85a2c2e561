/** A list of documents in the order of a reranker, with the step that scored each, beside the exact order. */

import { byId, html, say } from "./dom.js";
import { settingText } from "./knobs.js";
import { count, score, shortened, whole } from "./numbers.js";

const MOST_SHOWN = 100; // documents of a list
const LONG = 200; // characters of a document
const TASK = "ranking"; // beside those that the service names

/** A model that ranks, as one for lists: of what was measured on single texts the warning alone holds there. */
export const asRanker = (model) => ({ ...model, task: TASK, calibration: null, warning: model.calibration?.warning });

/** Whether documents are asked for; a model that `ranks` can be asked for one text, too. */
export const isRanking = ({ task }) => task === TASK;

/** The documents of a text: its lines, but for empty ones. */
export const documentsIn = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** An answer of `POST /v1/rerank` in the shape of one of `POST /v1/classify`: its label is the best document. */
export function asAnswer({ results, steps, usage, timing_ms }, { documents, seed, rescore }) {
  const scores = results.map(({ index, relevance_score }) => ({ key: index, score: relevance_score }));
  const [best] = scores;
  const order = scores.map(({ key }) => key);
  const prediction = { label: shortened(documents[best.key], LONG), score: best.score, scores, order, results, steps };
  const knobs = { ...steps[0].knobs, ...(rescore && { rescore }) };
  return { predictions: [prediction], knobs, seed, tokens: [usage.total_tokens], timing_ms };
}

/** In how many places the document is another one than in the exact order. */
export const moved = ({ order }, exact) => order.filter((index, place) => index !== exact.order[place]).length;

/** The control beside the knobs: how many of the best documents are scored again, exactly. */
export class Rescore {
  constructor(session) {
    this.slider = byId("rescore");
    this.slider.addEventListener("input", () => session.rescoreBest(Number(this.slider.value)));
  }

  draw({ model, text, rescore, isExact }) {
    byId("rescore-knob").hidden = !isRanking(model) || !model.knobs.length;
    if (byId("rescore-knob").hidden) return;
    this.slider.max = Math.max(1, rescore, documentsIn(text).length);
    this.slider.value = rescore;
    byId("rescore-value").textContent = isExact ? "all exact" : rescore ? `best ${whole(rescore)}` : "none";
    this.slider.setAttribute("aria-valuetext", byId("rescore-value").textContent);
  }
}

/** What scored the documents, in words. */
function note({ steps, results }, model) {
  const isTwo = steps.length > 1;
  const said = steps.map(({ knobs, documents }, index) => {
    const where = model.knobs.length ? ` at ${settingText(model, knobs)}` : "";
    return `${isTwo ? `Step ${index + 1}: ` : ""}${count(documents, "document")}${where}.`;
  });
  if (isTwo) said.push("Scores of the two are not on one scale.");
  if (results.length > MOST_SHOWN) said.push(`The best ${MOST_SHOWN} are shown.`);
  return said.join(" ");
}

/** A row of the list; `exactly` is the document's place in the exact order, or stands for it. */
function row({ relevance_score, step }, document, place, exactly, hasOneStep) {
  const differs = Number.isInteger(exactly) && exactly !== place;
  return html(
    "tr",
    null,
    html("td", { class: "number" }, place),
    html("th", { scope: "row" }, shortened(document, LONG)),
    html("td", { class: "number" }, score(relevance_score)),
    html("td", { class: "number", hidden: hasOneStep }, step),
    html("td", { class: differs ? "number exact differs" : "number exact" }, exactly),
  );
}

/** @param one the answer that is shown; without one the list before stays while it is waited for. */
export function drawRanking({ text, model, subject, isEmpty, error }, one, isWaiting) {
  byId("ranks-figure").hidden = !isRanking(model) || isEmpty || Boolean(error && !one);
  byId("ranks").classList.toggle("waiting", isWaiting);
  if (byId("ranks-figure").hidden || !one) return;
  const documents = documentsIn(text);
  const hasOneStep = one.steps.length === 1;
  const unknown = subject.refusal ? "–" : "…";
  const exactly = (index) => (subject.exact ? subject.exact.order.indexOf(index) + 1 : unknown);
  const best = one.results.slice(0, MOST_SHOWN);
  byId("ranks-step").hidden = hasOneStep;
  byId("ranks-rows").replaceChildren(...best.map((each, at) => row(each, documents[each.index], at + 1, exactly(each.index), hasOneStep)));
  say(byId("ranks-note"), note(one, model));
}
