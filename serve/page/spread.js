/** The picture: one dot for each seed's score, the exact value as a line. */

import { byId, drawing, svg } from "./dom.js";
import { axis, score, shortened } from "./numbers.js";

const [HEIGHT, BASE, RADIUS, MARGIN] = [150, 112, 6, 20];

/** Every score of the followed label that was seen on this text: so the axis stays while the knob is dragged. */
function scoresSeen(subject, label) {
  const all = [...subject.settings.values()].flatMap((setting) => setting.readings);
  return [...all, subject.exact].filter(Boolean).map((each) => each.scores.get(label) ?? each.score);
}

function sentence(setting, exact, label) {
  if (!setting.readings.length) return "No answer yet.";
  const scores = setting.readings.map((each) => each.scores.get(label) ?? each.score);
  const range = `from ${score(Math.min(...scores))} to ${score(Math.max(...scores))}`;
  const line = exact ? ` The exact score is ${score(exact.scores.get(label))}.` : "";
  return `Score of ${label} for ${scores.length} seeds: ${range}.${line}`;
}

export function drawSpread({ subject, setting, answer, model }) {
  const readings = setting.readings;
  const label = subject.followed(readings[0] ?? answer?.predictions[0]);
  const { canvas, width } = drawing(byId("spread"), HEIGHT, sentence(setting, subject.exact, label));
  const scores = scoresSeen(subject, label);
  if (!scores.length) return;
  const bounds = model.task === "regression" ? [] : [0, 1];
  const { ticks, place } = axis(scores, model.task === "regression" ? Math.abs(scores[0]) / 10 || 1 : 0.1, ...bounds);
  const x = (value) => MARGIN + place(value) * (width - 2 * MARGIN);

  canvas.append(svg("line", { class: "axis", x1: MARGIN, x2: width - MARGIN, y1: BASE, y2: BASE }));
  for (const tick of ticks) {
    canvas.append(
      svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: BASE, y2: BASE + 5 }),
      svg("text", { class: "tick", x: x(tick), y: BASE + 19, "text-anchor": "middle" }, String(Number(tick.toFixed(6)))),
    );
  }
  canvas.append(svg("text", { class: "tick", x: width / 2, y: HEIGHT - 3, "text-anchor": "middle" }, `score of “${shortened(label, 36)}”`));
  if (subject.exact) drawExact(canvas, x(subject.exact.scores.get(label)), width);

  const heights = new Map();
  for (const each of readings) {
    const middle = x(each.scores.get(label) ?? each.score);
    const column = Math.round(middle / (2 * RADIUS + 1));
    const row = heights.get(column) ?? 0;
    heights.set(column, row + 1);
    const differs = subject.exact && each.decision !== subject.exact.decision;
    const y = BASE - RADIUS - 2 - Math.min(row * (2 * RADIUS + 1), BASE - 30);
    canvas.append(svg("circle", { class: differs ? "dot differs" : "dot", cx: middle, cy: y, r: RADIUS }));
  }
}

function drawExact(canvas, x, width) {
  const onTheLeft = x > width / 2;
  const anchor = onTheLeft ? "end" : "start";
  canvas.append(
    svg("line", { class: "exact-line", x1: x, x2: x, y1: 4, y2: BASE + 5 }),
    svg("text", { class: "exact-text", x: x + (onTheLeft ? -7 : 7), y: 14, "text-anchor": anchor }, "exact"),
  );
}
