/** What is asked: a text, typed, dropped or an example, and the model that reads it or, by a query, ranks its lines. */

import { byId, html } from "./dom.js";
import { gain, opening } from "./calibration.js";
import { findsEntities, kinds } from "./entities.js";
import { aboutTokens, count, whole } from "./numbers.js";
import { asRanker, documentsIn, isRanking } from "./ranking.js";

const TYPING_MS = 350; // after the last key, until what was typed counts
const MOST_CHARACTERS = 3_000_000; // the service takes bodies of 4 MiB unless it is set otherwise

function answers(model) {
  if (isRanking(model)) return "ranks documents";
  if (model.task === "regression") return "a score";
  return findsEntities(model) ? `${whole(kinds(model).length)} kinds of entities` : `${whole(model.labels.length)} labels`;
}

/** Whether an example is for such a model: those for entities carry their task, and none is a list to rank. */
const suits = (button, model) => !model.ranks && findsEntities(button.dataset) === findsEntities(model);

export class Asked {
  constructor(session, models, chosen) {
    Object.assign(this, { session, models, chosen });
    this.text = byId("text");
    this.query = byId("query");
    this.rankOn = byId("rank-on");
    this.picker = byId("model");
    this.picker.replaceChildren(...models.map((model) => html("option", null, model.name)));
    this.picker.addEventListener("change", () => this.#choose(this.#model(this.picker.value)));
    this.rankOn.addEventListener("change", () => this.#choose(this.#model(this.picker.value)));
    this.query.addEventListener("input", () => session.use({ query: this.query.value }, TYPING_MS));
    this.text.addEventListener("input", () => this.#read(this.text.value, TYPING_MS));
    this.#takeFiles();
    for (const button of document.querySelectorAll("[data-example]"))
      button.addEventListener("click", () => this.example(button));
  }

  #model(name) {
    return this.models.find((model) => model.name === name);
  }

  /** Takes a model, which ranks if it can and is not asked for one text. */
  #choose(model, text = this.session.text) {
    const asked = model.ranks && this.rankOn.checked ? asRanker(model) : model;
    this.picker.value = model.name;
    this.chosen(asked);
    this.session.use(opening(asked, text));
  }

  #read(text, afterMs = 0) {
    this.session.use({ text: text.slice(0, MOST_CHARACTERS) }, afterMs);
  }

  /** From its first word on, also when the field is focused. */
  #show(text) {
    this.text.value = text;
    this.text.setSelectionRange(0, 0);
  }

  /** Opens with the model that gains most at the same answers, and with an example for it if there is one. */
  async open() {
    const [first] = [...this.models].sort((one, other) => gain(other) - gain(one) || one.ranks - other.ranks);
    if (first.ranks) {
      this.#choose(first); // no example has a query
      return;
    }
    const buttons = [...document.querySelectorAll("[data-example]")];
    const its = buttons.find((button) => button.dataset.model === first.name);
    await this.example(its ?? buttons.findLast((button) => suits(button, first)) ?? buttons.at(-1), first);
    if (!this.session.model) this.#choose(first); // the example could not be loaded
  }

  /** An example is a request: its text, and its model where that is served, as that model opens. */
  async example(button, wanted) {
    let request;
    try {
      request = await this.session.service.example(button.dataset.example);
    } catch (error) {
      this.session.fail(error);
      return;
    }
    const [text] = request.inputs;
    const model = wanted ?? this.#model(request.model) ?? this.#stand(button, text);
    this.#show(text);
    this.#choose(model, text);
  }

  /** A model to stand in for the one of an example, which is not served: the present one, or that with most room. */
  #stand(button, text) {
    const suited = this.models.filter((model) => suits(button, model));
    const [roomiest] = [...(suited.length ? suited : this.models)].sort((one, other) => other.max_tokens - one.max_tokens);
    const model = this.#model(this.session.model?.name);
    const fits = model && (suits(button, model) || !suited.length) && aboutTokens(text) <= model.max_tokens;
    return fits ? model : roomiest;
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
    const isList = isRanking(model);
    byId("rank-line").hidden = !model.ranks;
    byId("query-line").hidden = !isList;
    byId("text-label").textContent = isList ? "Documents, one a line" : "Text";
    byId("length").textContent = text.trim() ? this.#size(text, answer?.tokens[0], model) : "Paste a text, or drop a file here.";
    byId("model-about").textContent = `${answers(model)}, at most ${whole(model.max_tokens)} tokens, on ${model.device}`;
  }

  /** How long what is asked is, in words. */
  #size(text, tokens, model) {
    const all = this.text.value.length;
    const counts = isRanking(model) ? count(documentsIn(text).length, "document") : `${whole(text.length)} characters`;
    const cut = !isRanking(model) && tokens >= model.max_tokens ? ": all that this model reads; the rest is cut off" : "";
    const sent = all > MOST_CHARACTERS ? `Only the first ${whole(MOST_CHARACTERS)} of ${whole(all)} characters are sent` : counts;
    return `${sent}${tokens ? `, ${whole(tokens)} tokens${cut}` : ""}`;
  }
}
