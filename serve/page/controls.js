/** What the visitor sets: text, example, model, knobs, or a goal in place of knobs. */

import { byId, html } from "./dom.js";
import { Knob } from "./knobs.js";
import { plain, whole } from "./numbers.js";

const TYPING_MS = 350;
const MOST_CHARACTERS = 3_000_000; // the service takes bodies of 4 MiB unless it is set otherwise

const valueText = (knob, value) => (knob.isExact(value) ? "exact" : plain(value));

/** The sliders of a model, one for each knob. */
export class Sliders {
  #rows = [];

  constructor(session, touched) {
    Object.assign(this, { session, touched });
  }

  build(model) {
    this.#rows = model.knobs.map((knob) => this.#row(knob));
    byId("sliders").replaceChildren(...this.#rows.map((row) => row.element));
    const doc = (knob) => html("p", { class: "doc", id: `knob-${knob.name}-doc` }, html("code", null, knob.name), `: ${knob.doc}`);
    byId("knob-docs").replaceChildren(...model.knobs.map(doc));
    byId("no-knobs").hidden = model.knobs.length > 0;
  }

  #row(knob) {
    const id = `knob-${knob.name}`;
    const attributes = { type: "range", id, min: 0, max: knob.last, step: 1, "aria-describedby": `${id}-doc` };
    const input = html("input", attributes);
    const value = html("output", { for: id, class: "knob-value" });
    const unit = html("span", { class: "knob-unit" }, knob.unit);
    input.addEventListener("input", () => {
      this.touched(knob);
      this.session.turn(knob.name, knob.stops[Number(input.value)]);
    });
    const element = html(
      "div",
      { class: "knob" },
      html("div", { class: "knob-head" }, html("label", { for: id }, knob.name), html("span", null, value, " ", unit)),
      input,
      html("div", { class: "knob-ends", "aria-hidden": "true" }, html("span", null, "← faster"), html("span", null, "exact →")),
    );
    return { knob, input, value, unit, element };
  }

  draw({ knobs, goal }) {
    for (const { knob, input, value, unit } of this.#rows) {
      const at = knobs[knob.name];
      input.value = knob.stopOf(at);
      input.disabled = goal !== null;
      const exact = knob.isExact(at);
      value.textContent = valueText(knob, at);
      unit.hidden = exact;
      input.setAttribute("aria-valuetext", exact ? "exact" : `${plain(at)} ${knob.unit}`);
    }
  }
}

/** A served model as `GET /v1/models` describes it, with sliders' stops in place of bare knobs. */
export const described = (info) => ({ ...info, knobs: info.knobs.map((knob) => new Knob(knob)) });

export const defaults = (model) => Object.fromEntries(model.knobs.map((knob) => [knob.name, knob.default]));

/** Text, examples, model. */
export class Asked {
  constructor(session, models, chosen) {
    Object.assign(this, { session, models, chosen });
    this.text = byId("text");
    this.picker = byId("model");
    this.picker.replaceChildren(...models.map((model) => html("option", null, model.name)));
    this.picker.addEventListener("change", () => this.#choose(this.#model(this.picker.value)));
    this.text.addEventListener("input", () => this.#read(this.text.value, TYPING_MS));
    this.#takeFiles();
    for (const button of document.querySelectorAll("[data-example]"))
      button.addEventListener("click", () => this.example(button));
  }

  #model(name) {
    return this.models.find((model) => model.name === name);
  }

  #choose(model) {
    this.chosen(model);
    this.session.use({ model, knobs: defaults(model) });
  }

  #read(text, afterMs = 0) {
    this.session.use({ text: text.slice(0, MOST_CHARACTERS) }, afterMs);
  }

  /** Opens with the first example whose model is served, or with the first of all. */
  async open() {
    const buttons = [...document.querySelectorAll("[data-example]")];
    const fits = buttons.find((button) => this.#model(button.dataset.model));
    await this.example(fits ?? buttons.at(-1));
  }

  /** An example is a request: its text, and its model where that is served, with the knobs at their defaults. */
  async example(button) {
    const request = await (await fetch(button.dataset.example)).json();
    const [text] = request.inputs;
    const longest = Math.max(...this.models.map((model) => model.max_tokens));
    const roomiest = this.models.find((model) => model.max_tokens === longest);
    const isTooLong = text.length > 5 * (this.session.model?.max_tokens ?? 0);
    const model = this.#model(request.model) ?? (isTooLong ? roomiest : this.session.model);
    this.text.value = text;
    this.picker.value = model.name;
    this.chosen(model);
    this.session.use({ model, text, knobs: defaults(model) });
  }

  #takeFiles() {
    const take = async (file) => {
      if (!file) return;
      this.text.value = await file.text();
      this.#read(this.text.value);
    };
    const target = byId("ask-card");
    target.addEventListener("dragover", (event) => {
      event.preventDefault();
      target.classList.add("dropping");
    });
    target.addEventListener("dragleave", () => target.classList.remove("dropping"));
    target.addEventListener("drop", (event) => {
      target.classList.remove("dropping");
      if (!event.dataTransfer.files.length) return; // a dragged text goes where it is dropped
      event.preventDefault();
      take(event.dataTransfer.files[0]);
    });
    byId("file").addEventListener("change", (event) => take(event.target.files[0]));
  }

  draw({ text, answer, model }) {
    const tokens = answer?.tokens[0];
    const cut = tokens >= model.max_tokens ? `: all that this model reads; the rest is cut off` : "";
    byId("length").textContent = text.trim()
      ? `${whole(text.length)} characters${tokens ? `, ${whole(tokens)} tokens${cut}` : ""}`
      : "Paste a text, or drop a file here.";
    const labels = model.task === "regression" ? "a score" : `${whole(model.labels.length)} labels`;
    byId("model-about").textContent = `${labels}, at most ${whole(model.max_tokens)} tokens, on ${model.device}`;
  }
}

/** The switch from knobs to a goal, where the model was calibrated. */
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
