/** Agreement and time over the knob: as the model was calibrated, and as this page saw it on its text. */

import { byId, drawing, html, svg } from "./dom.js";
import { aboutTokens, percent, plain } from "./numbers.js";

const FEW = 3; // seeds below which their share says nothing
const [PANEL, LEFT, RIGHT, TOP] = [150, 58, 14, 22];

/** The calibration's row for texts of this length, or of the nearest one. */
function bucketOf(calibration, tokens) {
  const index = calibration.buckets.findIndex((bucket) => tokens <= bucket.high);
  return index < 0 ? calibration.buckets.length - 1 : index;
}

/** What calibration measured for texts of this length, a row for each setting; empty without one. */
export function calibrated(model, tokens) {
  if (!model.calibration) return [];
  const bucket = bucketOf(model.calibration, tokens);
  return model.calibration.settings.map((setting) => ({
    knobs: setting.knobs,
    agreement: setting.agreement[bucket].value,
    time: setting.time?.[bucket],
  }));
}

function ownPoints(subject, exactMs) {
  if (!subject.exact) return [];
  const agreement = (setting) => {
    const isEnough = setting.readings.length >= FEW || setting.readings.includes(subject.exact);
    return isEnough ? setting.agreeing(subject.exact) / setting.readings.length : null;
  };
  return [...subject.settings.values()]
    .filter((setting) => setting.readings.length)
    .map((setting) => ({ knobs: setting.knobs, agreement: agreement(setting), time: setting.computeMs / exactMs }));
}

/** Ticks of a logarithmic axis of shares, in powers of ten. */
function decades(times) {
  const low = Math.floor(Math.log10(Math.min(0.5, ...times)) + 0.05);
  const high = Math.max(0, Math.ceil(Math.log10(Math.max(...times)) - 0.05));
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  return { ticks, place: (value) => (Math.log10(value) - low) / (high - low) };
}

function shares(values) {
  const low = Math.min(...values) < 0.5 ? 0 : Math.min(...values) < 0.9 ? 0.5 : 0.9;
  return { ticks: [low, (low + 1) / 2, 1], place: (value) => (value - low) / (1 - low) };
}

class Panel {
  constructor(canvas, top, width, title, { ticks, place }) {
    Object.assign(this, { canvas, bottom: top + PANEL - 26, width });
    this.height = PANEL - 26 - TOP;
    this.y = (value) => this.bottom - Math.min(1.03, Math.max(0, place(value))) * this.height;
    canvas.append(svg("text", { class: "panel-title", x: 0, y: top + 11 }, title));
    for (const tick of ticks) {
      const y = this.y(tick);
      canvas.append(
        svg("line", { class: "grid-line", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
        svg("text", { class: "tick", x: LEFT - 7, y: y + 4, "text-anchor": "end" }, percent(tick)),
      );
    }
  }

  x(share) {
    return LEFT + 6 + share * (this.width - LEFT - RIGHT - 12);
  }

  line(points) {
    const path = points.map(([share, value], index) => `${index ? "L" : "M"}${this.x(share)} ${this.y(value)}`);
    this.canvas.append(svg("path", { class: "calibrated-line", d: path.join("") }));
  }

  mark(share, value, kind, faint) {
    const place = { class: faint ? `${kind} faint` : kind, cx: this.x(share), cy: this.y(value), r: kind === "own" ? 5 : 3.5 };
    this.canvas.append(svg("circle", place));
  }
}

/** Whether the other knobs of a point stand where they stand now. */
const comparable = (point, knob, knobs) =>
  Object.entries(point.knobs).every(([name, value]) => name === knob.name || Math.abs(value - knobs[name]) < 1e-9);

export function drawPlot({ session, knob, exactMs }) {
  const { subject, model, answer, knobs, text } = session;
  byId("plot-card").hidden = !knob;
  if (!knob) return;
  const tokens = answer?.tokens[0] ?? aboutTokens(text);
  const measured = calibrated(model, tokens);
  const own = ownPoints(subject, exactMs);
  const all = [...measured, ...own];
  byId("plot-empty").hidden = all.length > 0;
  byId("plot").hidden = all.length === 0;
  caption(model, tokens, knob);
  if (!all.length) return;
  const label = `Agreement and time over ${knob.name}; the table below has the numbers.`;
  const { canvas, width } = drawing(byId("plot"), 2 * PANEL + 14, label);
  const times = all.map((point) => point.time).filter(Boolean);
  const panels = [
    [new Panel(canvas, 0, width, "agreement with the exact answer", shares(all.map((each) => each.agreement ?? 1))), "agreement"],
    [new Panel(canvas, PANEL, width, "time, as a share of the exact time", decades(times.length ? times : [1])), "time"],
  ];
  for (const [panel, quantity] of panels) {
    const now = panel.x(knob.place(knobs[knob.name]));
    canvas.append(svg("line", { class: "now", x1: now, x2: now, y1: panel.bottom - panel.height, y2: panel.bottom }));
    const points = (source) =>
      source
        .filter((point) => point[quantity] != null)
        .map((point) => [knob.place(point.knobs[knob.name]), point[quantity], !comparable(point, knob, knobs)])
        .sort((a, b) => a[0] - b[0]);
    const near = points(measured).filter(([, , other]) => !other);
    if (near.length > 1) panel.line(near);
    for (const [share, value, other] of points(measured)) panel.mark(share, value, "calibrated", other);
    for (const [share, value, other] of points(own)) panel.mark(share, value, "own", other);
  }
  const bottom = panels[1][0].bottom + 17;
  const x = (share) => panels[0][0].x(share);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const text = share === 1 ? "exact" : plain(knob.stops[Math.round(share * knob.last)]);
    const anchor = { 0: "start", 1: "end" }[share] ?? "middle";
    canvas.append(svg("text", { class: "tick", x: x(share), y: bottom, "text-anchor": anchor }, text));
  }
  canvas.append(svg("text", { class: "tick", x: x(0.5), y: bottom + 17, "text-anchor": "middle" }, `${knob.name}, ${knob.unit}`));
  table(knob, [...measured.map((each) => [each, "calibration"]), ...own.map((each) => [each, "this page"])]);
}

function caption(model, tokens, knob) {
  const calibration = model.calibration;
  byId("plot-calibrated").hidden = !calibration;
  if (!calibration) return;
  const bucket = calibration.buckets[bucketOf(calibration, tokens)];
  byId("plot-calibrated-text").textContent =
    `calibration: the share of ${bucket.texts} texts of ${bucket.low} to ${bucket.high} tokens (${calibration.data})` +
    (model.knobs.length > 1 ? `; pale where the knobs beside ${knob.name} are set otherwise` : "");
}

function table(knob, rows) {
  const cell = (text) => html("td", null, text);
  byId("plot-rows").replaceChildren(
    ...rows.map(([point, source]) =>
      html(
        "tr",
        null,
        html("th", { scope: "row" }, Object.values(point.knobs).map(plain).join(", ")),
        cell(point.agreement == null ? "too few seeds" : percent(point.agreement)),
        cell(point.time ? percent(point.time) : "not measured"),
        cell(source),
      ),
    ),
  );
  byId("plot-knobs").textContent = rows.length ? Object.keys(rows[0][0].knobs).join(", ") : knob.name;
}
