/** The answer in words and bars: label, time, agreement. */

import { frontierOf, isRounded } from "./calibration.js";
import { certaintyText } from "./certainty.js";
import { byId } from "./dom.js";
import { apart, counted, findsEntities, found } from "./entities.js";
import { exactKnobs, settingText } from "./knobs.js";
import { changedLabels } from "./labels.js";
import { count, duration, percent, plain, score, shortened, times, whole } from "./numbers.js";
import { isRanking, moved } from "./ranking.js";

const LEAST_BAR = 0.4; // percent of the width: a bar is seen however short the time

/** Milliseconds of the exact run on this text; null while it is not known. */
export function exactTime({ subject, model }) {
  return subject?.exact ? subject.setting(exactKnobs(model)).computeMs || subject.exact.computeMs : null;
}

/** Milliseconds that the exact run should take here, by the time of the shown setting; null where nothing says. */
function expectedExactMs({ setting, expected }) {
  return setting.readings.length && expected?.time ? setting.computeMs / expected.time : null;
}

/** The answer that is shown: the exact one where the knob stands there; until one comes the latest of another setting. */
export function shown({ setting, subject, isExact }) {
  return (isExact ? subject.exact : null) ?? setting.readings[0] ?? subject.latest;
}

export const isWaitedFor = ({ setting, subject, isExact, isEmpty }) => !isEmpty && !setting.readings.length && !(isExact && subject.exact);

/** How the shown answer stands to the exact one, in words. */
function against(one, { subject, model, isExact, isEmpty, expected }) {
  if (isEmpty) return isRanking(model) ? "Type a query, and documents, one a line." : "Type a text, or choose an example.";
  if (!one) return "";
  if (isExact) return isRounded(expected) ? "every token is computed, in rounded numbers" : "the exact answer";
  if (!subject.exact) return subject.refusal ? "no exact answer" : "the exact answer is on its way";
  if (model.task === "regression") return `exactly ${score(subject.exact.score)}`;
  if (one.decision === subject.exact.decision) return "as the exact answer";
  if (one.entities) return apart(one, subject.exact);
  if (one.order) return `${count(moved(one, subject.exact), "document")} in another place`;
  if (!one.labels) return `the exact answer is ${shortened(subject.exact.label, 40)}`;
  return `${count(changedLabels(one, subject.exact, model).length, "decision")} unlike the exact one`;
}

const brief = ({ entities, labels, label, scores }) => (entities ? counted(entities) : labels ? `${labels.length} of ${scores.size} labels` : label);

export function drawAnswer(session) {
  const one = shown(session);
  byId("answer").textContent = one ? brief(one) : session.isEmpty ? "–" : "…";
  byId("answer").title = !one ? "" : one.entities ? found(session.text, one) : (one.labels ?? [one.label]).join(", ");
  byId("answer-score").textContent = one && !one.labels && !one.entities ? score(one.score) : "";
  byId("answer-more").textContent = against(one, session);
  const { subject, isExact } = session;
  byId("answer-more").classList.toggle("differs", Boolean(one && subject.exact && !isExact && one.decision !== subject.exact.decision));
  byId("answer-stat").classList.toggle("waiting", isWaitedFor(session));
  byId("knob-card").classList.toggle("asking", session.asking);
}

/** Milliseconds of the shown setting, as measured or, until then, as expected; null where neither is known. */
function ownTime(session, exactMs) {
  const { setting, isExact, expected } = session;
  if (isExact) return [exactMs, true];
  if (setting.readings.length) return [setting.computeMs, true];
  return [exactMs && expected?.time ? exactMs * expected.time : null, false];
}

export function drawTime(session) {
  const exactMs = exactTime(session);
  const [ownMs, isMeasured] = ownTime(session, exactMs);
  const running = session.exactIsRunning ? performance.now() - session.exactSinceMs : 0;
  const expectedMs = exactMs ?? expectedExactMs(session);
  const longest = Math.max(ownMs ?? 0, expectedMs ?? 0, exactMs ?? running, 1e-9);
  const share = exactMs && ownMs !== null ? ownMs / exactMs : session.expected?.time;
  bar("time-own", ownMs, longest);
  bar("time-exact", exactMs ?? running, longest);
  byId("time-own").classList.toggle("expected", !isMeasured);
  byId("time-own-text").textContent = ownMs === null ? "" : duration(ownMs);
  byId("time-exact-text").textContent = exactText(exactMs, running, expectedMs, session);
  byId("time-exact").parentElement.classList.toggle("running", session.exactIsRunning);
  byId("time").textContent = timeText(ownMs, isMeasured, share, session);
  byId("time-share").textContent = shareText(share, isMeasured && exactMs !== null, session);
  byId("time-more").textContent = timeMore(session);
}

function timeText(ownMs, isMeasured, share, { isExact }) {
  if (ownMs !== null) return `${isMeasured ? "" : "≈ "}${duration(ownMs)}`;
  return share && !isExact ? `≈ ${percent(share)}` : "–";
}

function exactText(exactMs, running, expectedMs, { subject, isBusy, isBehind }) {
  if (exactMs !== null) return duration(exactMs);
  if (subject.refusal) return "not allowed here";
  if (isBusy) return "waiting";
  if (!running) return "–";
  const seconds = `${(running / 1000).toFixed(1)} s`;
  if (isBehind) return `${seconds}, behind another exact run`;
  if (!expectedMs) return `running, ${seconds}`;
  const expected = `${plain(Number((expectedMs / 1000).toPrecision(1)))} s`;
  return running < 1.5 * expectedMs ? `${seconds}, expected about ${expected}` : `${seconds}, longer than the expected ${expected}`;
}

function shareText(share, isMeasured, { isExact }) {
  if (isExact) return "exact";
  if (!share) return "";
  return `${times(share, "exact")}${isMeasured ? "" : ", expected"}`;
}

function timeMore({ answer, setting, subject }) {
  if (subject.refusal) return `The exact answer is not to be had here: ${subject.refusal}.`;
  if (!answer) return "";
  const { total, compute, queue, tokenize } = answer.timing_ms;
  const parts = `${duration(tokenize)} to split the text into tokens, ${duration(queue)} in the queue`;
  const seeds = setting.readings.length > 1 ? ` Median of ${setting.readings.length} runs.` : "";
  return total > compute * 1.05 ? `Time of the model alone; ${parts} come on top.${seeds}` : `Time of the model.${seeds}`;
}

function bar(id, ms, longest) {
  byId(id).style.width = ms ? `${Math.max(LEAST_BAR, (100 * ms) / longest)}%` : "0";
}

function agreementName(model) {
  if (model.task === "regression") return "Distance from exact";
  if (isRanking(model)) return "Same order as exact";
  return findsEntities(model) ? "Same entities as exact" : "Same as exact";
}

/** How often answers at this setting are the exact ones, and what that was counted on: one figure, always of one kind. */
function agreement({ setting, subject, isExact, model, expected, tokens }) {
  if (isExact && !isRounded(expected)) return ["exact", "nothing is left out"];
  if (expected) {
    const { texts, low, high } = frontierOf(model, tokens).bucket;
    const of = `of ${whole(texts)} other texts of ${whole(low)} to ${whole(high)} tokens`;
    return expected.agreement === null ? ["not known", "less accurate than all that was measured"] : [percent(expected.agreement), of];
  }
  const runs = setting.readings.length;
  if (!subject.exact || !runs) return ["–", subject.refusal ? "no exact answer" : "known with the exact answer"];
  if (model.task === "regression") {
    const distance = (one) => Math.abs(one.score - subject.exact.score);
    return [`± ${score(Math.max(...setting.readings.map(distance)))}`, "the largest distance from the exact score"];
  }
  const agreeing = setting.agreeing(subject.exact);
  if (setting.isFixed) return [agreeing > 0 ? "yes" : "no", "the same with every seed"];
  return [`${agreeing} of ${runs}`, `runs of this ${isRanking(model) ? "list" : "text"}, each of its own seed`];
}

export function drawAgreement(session) {
  byId("agreement-name").textContent = agreementName(session.model);
  [byId("agreement").textContent, byId("agreement-more").textContent] = agreement(session);
}

/** What a screen reader says once the knob rests. */
export function summary(session) {
  const { setting, subject, isExact, isSampling, model, text } = session;
  const one = setting?.readings[0];
  if (!one) return "";
  const exactMs = exactTime(session);
  const share = exactMs && !isExact ? `, ${percent(setting.computeMs / exactMs)} of the exact time` : "";
  const where = model.knobs.length ? `${settingText(model, setting.knobs)}: ` : "";
  const what = one.entities ? found(text, one) : `${one.label}, ${score(one.score)}`;
  const all = [`${where}${what}, ${duration(setting.computeMs)}${share}.`];
  if (subject.exact && !isExact && !isSampling) all.push(`${agreementName(model)}: ${agreement(session)[0]}.`);
  if (setting.certainty && !isExact) all.push(certaintyText(session));
  return all.join(" ").trim();
}
