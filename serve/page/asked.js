/** What is asked: a text, typed, dropped or an example, and the model that reads it. */

import { byId, html } from "./dom.js";
import { defaultKnobs } from "./knobs.js";
import { aboutTokens, whole } from "./numbers.js";

export const TYPING_MS = 350; // after the last key, until what was typed counts
const MOST_CHARACTERS = 3_000_000; // the service takes bodies of 4 MiB unless it is set otherwise

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
    this.session.use({ model, knobs: defaultKnobs(model) });
  }

  #read(text, afterMs = 0) {
    this.session.use({ text: text.slice(0, MOST_CHARACTERS) }, afterMs);
  }

  /** From its first word on, also when the field is focused. */
  #show(text) {
    this.text.value = text;
    this.text.setSelectionRange(0, 0);
  }

  /** Opens with the first example whose model is served, or with the first of all. */
  async open() {
    const buttons = [...document.querySelectorAll("[data-example]")];
    const fits = buttons.find((button) => this.#model(button.dataset.model));
    await this.example(fits ?? buttons.at(-1));
    if (!this.session.model) this.#choose(this.models[0]); // the example could not be loaded
  }

  /** An example is a request: its text, and its model where that is served, with the knobs at their defaults. */
  async example(button) {
    let request;
    try {
      request = await this.session.service.example(button.dataset.example);
    } catch (error) {
      this.session.fail(error);
      return;
    }
    const [text] = request.inputs;
    const longest = Math.max(...this.models.map((model) => model.max_tokens));
    const roomiest = this.models.find((model) => model.max_tokens === longest);
    const isTooLong = aboutTokens(text) > (this.session.model?.max_tokens ?? 0);
    const model = this.#model(request.model) ?? (isTooLong ? roomiest : this.session.model);
    this.#show(text);
    this.picker.value = model.name;
    this.chosen(model);
    this.session.use({ model, text, knobs: defaultKnobs(model) });
  }

  #takeFiles() {
    const take = async (file) => {
      if (!file) return;
      this.#show(await file.text());
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
