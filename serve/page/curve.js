/** The curve of agreement over time, with the handle on it, which is dragged or moved by keys. */

import { calibrated, frontierOf, isRounded } from "./calibration.js";
import { byId, coded, drawing, html, svg } from "./dom.js";
import { areExact, settingText } from "./knobs.js";
import { scoresLabels } from "./labels.js";
import { axis, percent, plain, times, whole } from "./numbers.js";
import { isRanking } from "./ranking.js";

const FEW = 3; // seeds below which their share says nothing
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [206, 52, 24, 28, 24];
const TICKS = [100, 50, 20, 10, 5, 3, 2, 1.5, 1, 0.5, 0.2, 0.1]; // times as fast

const warningOf = ({ calibration, warning }) => warning ?? calibration?.warning;

/** What this page saw on its text, where it knows the exact answer. */
function ownPoints(subject, exactMs) {
  if (!subject.exact || !exactMs) return [];
  const agreement = (setting) => {
    const isEnough = setting.readings.length >= FEW || setting.readings.includes(subject.exact);
    return isEnough ? setting.agreeing(subject.exact) / setting.readings.length : null;
  };
  return [...subject.settings.values()]
    .filter((setting) => setting.readings.length)
    .map((setting) => ({ knobs: setting.knobs, agreement: agreement(setting), time: setting.computeMs / exactMs }));
}

/** Where a point lies: time to the right, in equal ratios; agreement upwards. */
function scales(points, width) {
  const logs = points.map(({ time }, index) => (time ? Math.log(time) : index / points.length));
  const [low, high] = [Math.min(...logs) - 0.04, Math.max(...logs, 0) + 0.02];
  const vertical = axis(points.flatMap(({ agreement, bound }) => [agreement, bound ?? agreement]), 0.02, 0, 1);
  const across = (log) => LEFT + ((log - low) / (high - low)) * (width - LEFT - RIGHT);
  return {
    vertical,
    x: (point) => across(logs[points.indexOf(point)] ?? Math.log(point.time)),
    y: (agreement) => HEIGHT - BOTTOM - vertical.place(agreement) * (HEIGHT - BOTTOM - TOP),
    ticks: TICKS.map((faster) => [faster, across(-Math.log(faster))]).filter(([faster]) => -Math.log(faster) >= low && -Math.log(faster) <= high),
  };
}

function grid(canvas, width, { vertical, y, ticks }, hasTimes) {
  const words = (place, text, anchor = "middle", kind = "tick") => canvas.append(svg("text", { class: kind, ...place, "text-anchor": anchor }, text));
  for (const tick of vertical.ticks) {
    canvas.append(svg("line", { class: "grid-line", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    words({ x: LEFT - 7, y: y(tick) + 4 }, `${plain(tick * 100)} %`, "end");
  }
  words({ x: 0, y: 11 }, "answers that are as the exact ones", "start", "panel-title");
  const below = HEIGHT - BOTTOM + 17;
  let last = -Infinity;
  for (const [faster, x] of hasTimes ? ticks : []) {
    if (faster !== 1 && (x - last < 84 || width - RIGHT - x < 66)) continue;
    words({ x, y: below }, faster === 1 ? "exact" : `${faster} × as fast`, "middle", faster === 1 ? "tick exact-tick" : "tick");
    last = x;
  }
}

export class Curve {
  #points = [];
  #x = null;

  constructor(session) {
    this.session = session;
    this.handle = byId("handle");
    this.handle.addEventListener("keydown", (event) => this.#press(event));
    const box = byId("curve-box");
    const move = ({ clientX }) => this.#drag(clientX - box.getBoundingClientRect().left);
    box.addEventListener("pointerdown", (event) => {
      if (!this.#x || event.button) return;
      box.setPointerCapture(event.pointerId);
      event.preventDefault();
      this.handle.focus({ preventScroll: true });
      move(event);
    });
    box.addEventListener("pointermove", (event) => box.hasPointerCapture(event.pointerId) && move(event));
  }

  #drag(x) {
    const distances = this.#points.map((point) => Math.abs(this.#x(point) - x));
    this.#go(distances.indexOf(Math.min(...distances)));
  }

  #press(event) {
    const last = this.#points.length - 1;
    const at = frontierOf(this.session.model, this.session.tokens).nearest(this.session.knobs);
    const far = Math.max(1, Math.round(last / 10));
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -last, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#go(Math.min(last, Math.max(0, at + steps[event.key])));
  }

  #go(index) {
    const { knobs } = this.#points[index];
    if (JSON.stringify(knobs) !== JSON.stringify(this.session.knobs) || this.session.goal) this.session.set(knobs);
  }

  draw(session, exactMs) {
    const { subject, model, tokens, knobs } = session;
    byId("curve-figure").hidden = model.task === "regression" || !scoresLabels(model) || !model.knobs.length;
    const frontier = frontierOf(model, tokens);
    byId("curve-note").hidden = !frontier && !warningOf(model) && byId("curve-figure").hidden;
    const own = ownPoints(subject, exactMs);
    const points = frontier?.points ?? own.filter((point) => point.agreement !== null).sort((a, b) => a.time - b.time);
    caption(model, frontier);
    table(model, [...calibrated(model, tokens).map((each) => [each, "calibration"]), ...own.map((each) => [each, "this text"])]);
    const label = "Agreement with the exact answers over time; the table below has the numbers.";
    const { canvas, width } = drawing(byId("curve"), HEIGHT, label);
    [this.#points, this.#x] = [points, null];
    this.handle.hidden = !frontier;
    if (!points.length) return;
    const place = scales(points, width);
    grid(canvas, width, place, points.every((point) => point.time));
    const path = (values) => values.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const line = points.map((point) => [place.x(point), place.y(point.agreement)]);
    if (frontier) {
      const bounds = points.map((point) => [place.x(point), place.y(point.bound)]).reverse();
      canvas.append(svg("path", { class: "band", d: `${path([...line, ...bounds])}Z` }));
      this.#x = place.x;
    }
    canvas.append(svg("path", { class: "curve", d: path(line) }));
    for (const point of frontier?.measured ?? points)
      canvas.append(svg("circle", { class: "measured", cx: place.x(point), cy: place.y(point.agreement), r: 4 }));
    if (frontier) this.#place(frontier, place, knobs, model, canvas, width);
  }

  #place(frontier, place, knobs, model, canvas, width) {
    const index = frontier.nearest(knobs);
    const [point, nearest] = [frontier.expected(knobs), frontier.points[index]]; // it may lie beside the curve
    const x = Math.min(width - 15, Math.max(LEFT, place.x(point.time ? point : nearest)));
    const y = place.y(point.agreement ?? frontier.points[0].agreement);
    const share = point.agreement === null ? "not known how sure" : `${percent(point.agreement)} the same`;
    Object.assign(this.handle.style, { left: `${x}px`, top: `${y}px` });
    const said = areExact(model, knobs) ? ["exact", isRounded(point) && share] : [point.time && times(point.time), share];
    const now = { min: 0, max: frontier.points.length - 1, now: index, text: `${said.filter(Boolean).join(", ")}: ${settingText(model, knobs)}` };
    for (const [name, value] of Object.entries(now)) this.handle.setAttribute(`aria-value${name}`, value);
    const side = x > width / 2 ? -1 : 1;
    said.filter(Boolean).forEach((text, row) => {
      const beside = { x: x + side * 24, y: y + 22 + 17 * (row - (y > HEIGHT / 2 ? 3 : 0)), "text-anchor": side < 0 ? "end" : "start" };
      canvas.append(svg("text", { class: "readout", ...beside }, text));
    });
  }
}

function measured({ data, confidence, default_agreement: usual }, { texts, low, high }) {
  return (
    `Measured beforehand on ${whole(texts)} texts of ${whole(low)} to ${whole(high)} tokens (${data}); ` +
    `shaded: how low it may be, at ${plain(confidence * 100)} % confidence.` +
    (usual ? ` Requests that set nothing run where ${percent(usual)} stayed the same.` : "")
  );
}

function caption(model, frontier) {
  const none = "This model was not calibrated: points appear once its knob is turned and its exact answer is there.";
  const about = frontier ? measured(model.calibration, frontier.bucket) : isRanking(model) ? "" : none;
  byId("curve-note").replaceChildren(about, " ", html("strong", null, ...coded(warningOf(model) ?? "")));
}

function table(model, rows) {
  const cell = (text) => html("td", null, text);
  const row = ([point, source]) =>
    html(
      "tr",
      null,
      html("th", { scope: "row" }, settingText(model, point.knobs)),
      cell(point.agreement == null ? "too few seeds" : percent(point.agreement)),
      cell(point.time ? percent(point.time) : "not measured"),
      cell(source),
    );
  byId("settings-rows").replaceChildren(...rows.map(row));
}
