/** Every label that matters beside its exact score: first those in which the two answers differ. */

import { byId, html } from "./dom.js";
import { findsEntities } from "./entities.js";
import { score } from "./numbers.js";
import { isRanking } from "./ranking.js";

const LEAST_ROWS = 6; // labels that are compared, if there are as many

/** Whether a model answers one text with scores of labels, not with entities or an order of documents. */
export const scoresLabels = (model) => !findsEntities(model) && !isRanking(model);

/** The labels of which one answer says what the exact one does not. */
export function changedLabels(one, exact, { labels }) {
  if (!exact || one.decision === exact.decision) return [];
  const [own, other] = [one, exact].map((each) => each.labels ?? [each.label]);
  return labels.filter((label) => own.includes(label) !== other.includes(label));
}

/** Changed labels, then those that apply to either answer, then the highest others. */
function rows(one, exact, model) {
  const changed = changedLabels(one, exact, model);
  const applied = (label) => [one, exact].some((each) => each?.labels?.includes(label));
  const best = (label) => Math.max(one.scores.get(label) ?? 0, exact?.scores.get(label) ?? 0);
  const rank = (label) => (changed.includes(label) ? 2 : applied(label) ? 1 : 0);
  const sorted = [...model.labels].sort((a, b) => rank(b) - rank(a) || best(b) - best(a));
  return { changed, shown: sorted.filter((label, place) => place < LEAST_ROWS || rank(label)) };
}

/** @param one the answer that is shown; null where there is none. */
export function drawLabels({ subject, model }, one, isWaiting) {
  byId("compare-card").hidden = !one || !scoresLabels(model);
  if (byId("compare-card").hidden) return;
  const { exact } = subject;
  const { changed, shown } = rows(one, exact, model);
  const row = (label) => {
    const [own, other] = [one.scores.get(label), exact?.scores.get(label)];
    const meter = html("div", { class: "meter", "aria-hidden": "true" });
    if (model.task !== "regression") meter.append(scale("fill", own, "width"), ...(other == null ? [] : [scale("needle", other, "left")]));
    return html(
      "tr",
      { class: one.labels?.includes(label) ? "applies" : null },
      html("th", { scope: "row" }, label, changed.includes(label) ? html("span", { class: "chip" }, "differs") : null),
      html("td", { class: "number" }, own == null ? "–" : score(own)),
      html("td", { class: "wide" }, meter),
      html("td", { class: "number exact" }, other == null ? "…" : score(other)),
    );
  };
  byId("compare-rows").replaceChildren(...shown.map(row));
  byId("compare-rows").classList.toggle("waiting", isWaiting);
  byId("compare-note").textContent = note(one, exact, model, changed, shown);
}

function scale(kind, value, property) {
  const part = html("span", { class: kind });
  part.style[property] = `${100 * Math.min(1, Math.max(0, value))}%`;
  return part;
}

function note(one, exact, { labels }, changed, shown) {
  const more = labels.length > shown.length ? `${shown.length} of ${labels.length} labels. ` : "";
  if (!exact || !one.labels) return more;
  if (!changed.length) return `${more}All ${labels.length} decisions are as the exact ones.`;
  return `${more}${changed.length} of ${labels.length} decisions differ.`;
}
