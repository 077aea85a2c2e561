/** The answer in words and bars: label, time, agreement, and every label beside its exact score. */

import { certaintyText } from "./certainty.js";
import { byId, html } from "./dom.js";
import { exactKnobs, settingText } from "./knobs.js";
import { duration, percent, plain, score, shortened } from "./numbers.js";
import { calibrated } from "./plot.js";

const ROWS = 6; // labels that are compared
const LEAST_BAR = 0.4; // percent of the width: a bar is seen however short the time

/** Milliseconds of the exact run on this text; null while it is not known. */
export function exactTime({ subject, model }) {
  return subject?.exact ? subject.setting(exactKnobs(model)).computeMs || subject.exact.computeMs : null;
}

/**
 * Milliseconds that the exact run should take here: the time of the shown setting, by the share of the exact time that
 * the nearest calibrated setting took. Null where nothing says.
 */
function expectedExactMs({ answer, setting, model }) {
  if (!answer || !setting.readings.length) return null;
  const apart = (knobs) => (knob) => Math.abs(knob.place(setting.knobs[knob.name]) - knob.place(knobs[knob.name]));
  const distance = ({ knobs }) => model.knobs.map(apart(knobs)).reduce((sum, each) => sum + each, 0);
  const timed = calibrated(model, answer.tokens[0]).filter((each) => each.time);
  const [nearest] = timed.sort((one, other) => distance(one) - distance(other));
  return nearest ? setting.computeMs / nearest.time : null;
}

/** The answer that is shown: the exact one where the knob stands there and it has come. */
function shown({ setting, subject, isExact }) {
  return (isExact ? subject.exact : null) ?? setting.readings[0];
}

export function drawAnswer(session) {
  const one = shown(session);
  byId("answer").textContent = one ? shortened(one.label, 60) : "…";
  byId("answer-score").textContent = one ? score(one.score) : "";
  byId("answer-more").textContent = one?.labels ? `${one.labels.length} of ${one.scores.size} labels apply` : "";
  byId("knob-card").classList.toggle("asking", session.asking);
}

export function drawTime(session) {
  const { setting, subject, isExact } = session;
  const exactMs = exactTime(session);
  const own = isExact ? exactMs : setting.readings.length ? setting.computeMs : null;
  const running = session.exactIsRunning ? performance.now() - session.exactSinceMs : 0;
  const expectedMs = exactMs ?? expectedExactMs(session);
  const longest = Math.max(own ?? 0, expectedMs ?? 0, exactMs ?? running, 1e-9);
  bar("time-own", own, longest);
  bar("time-exact", exactMs ?? running, longest);
  byId("time-own-text").textContent = own === null ? "…" : duration(own);
  byId("time-exact-text").textContent = exactText(exactMs, running, expectedMs, session);
  byId("time-exact").parentElement.classList.toggle("running", session.exactIsRunning);
  byId("time").textContent = own === null ? "…" : duration(own);
  byId("time-share").textContent = own === null || isExact ? (isExact ? "exact" : "") : shareText(own, exactMs, subject);
  byId("time-more").textContent = timeMore(session);
}

function exactText(exactMs, running, expectedMs, { subject, isBusy }) {
  if (exactMs !== null) return duration(exactMs);
  if (subject.refusal) return "not allowed here";
  if (isBusy) return "waiting";
  if (!running) return "…";
  const seconds = `${(running / 1000).toFixed(1)} s`;
  return expectedMs ? `${seconds}, expected about ${plain(Number((expectedMs / 1000).toPrecision(1)))} s` : `running, ${seconds}`;
}

function shareText(own, exactMs, subject) {
  if (exactMs === null) return subject.refusal ? "" : "exact time still running";
  const share = own / exactMs;
  return share > 1 ? `${share.toFixed(1)} times the exact time: nothing to gain on this text` : `${percent(share)} of the exact time`;
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

const agreementName = ({ task }) => (task === "regression" ? "Distance from exact" : "Same as exact");

/** How the answers at this setting compare with the exact one: the figure, and what it counts. */
function agreement({ setting, subject, isExact, model }) {
  const count = setting.readings.length;
  if (isExact) return ["exact", "nothing is left out"];
  if (!subject.exact || !count) return ["…", subject.refusal ? "no exact answer" : "waits for the exact answer"];
  if (model.task === "regression") {
    const distance = (one) => Math.abs(one.score - subject.exact.score);
    return [`± ${score(Math.max(...setting.readings.map(distance)))}`, "the largest distance from the exact score"];
  }
  const agreeing = setting.agreeing(subject.exact);
  if (setting.isFixed) return [agreeing > 0 ? "yes" : "no", "the same with every seed"];
  const same = model.task === "multi_label" ? `all ${model.labels.length} decisions as the exact ones` : "the exact answer";
  return [`${agreeing} of ${count}`, count === 1 ? `seed gives ${same}` : `seeds give ${same}`];
}

export function drawAgreement(session) {
  const { isExact, answer, model } = session;
  byId("agreement-name").textContent = agreementName(model);
  [byId("agreement").textContent, byId("agreement-more").textContent] = agreement(session);
  const expected = answer?.expected_agreement;
  byId("expected").textContent =
    expected == null || isExact ? "" : `On texts of this length, ${percent(expected)} of answers were as the exact ones.`;
}

function rank(labels, one, exact) {
  const best = (label) => Math.max(one.scores.get(label) ?? 0, exact?.scores.get(label) ?? 0);
  return [...labels].sort((a, b) => best(b) - best(a)).slice(0, ROWS);
}

const applies = (model, label, one) => model.task === "multi_label" && one.labels?.includes(label);

export function drawLabels(session) {
  const { subject, model } = session;
  const one = shown(session);
  byId("compare-card").hidden = !one;
  if (!one) return;
  const { exact } = subject;
  const rows = rank(model.labels, one, exact).map((label) => {
    const [own, other] = [one.scores.get(label), exact?.scores.get(label)];
    const meter = html("div", { class: "meter", "aria-hidden": "true" });
    if (model.task !== "regression") meter.append(scale("fill", own, "width"), ...(other == null ? [] : [scale("needle", other, "left")]));
    return html(
      "tr",
      { class: applies(model, label, one) ? "applies" : null },
      html("th", { scope: "row" }, label),
      html("td", { class: "number" }, own == null ? "–" : score(own)),
      html("td", { class: "wide" }, meter),
      html("td", { class: "number exact" }, other == null ? "…" : score(other)),
    );
  });
  byId("compare-rows").replaceChildren(...rows);
  byId("compare-note").textContent = differences(one, exact, model);
}

function scale(kind, value, property) {
  const part = html("span", { class: kind });
  part.style[property] = `${100 * Math.min(1, Math.max(0, value))}%`;
  return part;
}

function differences(one, exact, model) {
  const more = model.labels.length > ROWS ? `The ${ROWS} highest of ${model.labels.length} labels. ` : "";
  if (!exact) return more;
  if (!one.labels) return more;
  const changed = model.labels.filter((label) => one.labels.includes(label) !== exact.labels.includes(label));
  if (!changed.length) return `${more}All ${model.labels.length} decisions are as the exact ones.`;
  return `${more}${changed.length} of ${model.labels.length} decisions differ: ${changed.join(", ")}.`;
}

/** What a screen reader says once the knob rests. */
export function summary(session) {
  const { setting, subject, isExact, isSampling, knobs, model } = session;
  const one = setting?.readings[0];
  if (!one) return "";
  const exactMs = exactTime(session);
  const share = exactMs && !isExact ? `, ${percent(setting.computeMs / exactMs)} of the exact time` : "";
  const all = [`${settingText(model, knobs)}: ${one.label}, ${score(one.score)}, ${duration(setting.computeMs)}${share}.`];
  if (subject.exact && !isExact && !isSampling) all.push(`${agreementName(model)}: ${agreement(session)[0]}.`);
  if (setting.certainty && !isExact) all.push(certaintyText(session));
  return all.join(" ").trim();
}
