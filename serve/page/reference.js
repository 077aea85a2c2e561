/** The reference's "Try it": sends the request that stands in the field, and shows the answer as it came. */

import { html } from "./dom.js";
import { CLASSIFY, Service } from "./service.js";

const service = new Service();
let example = null; // the texts that nobody has changed yet, as JSON
const part = (name) => document.querySelector(`#try-${name}`);

async function send(event) {
  event.preventDefault();
  part("status").textContent = "…";
  if (part("key")?.value) service.useKey(part("key").value.trim());
  try {
    const response = await service.post(CLASSIFY, part("body").value);
    part("status").textContent = `Status ${response.status}`;
    part("answer").textContent = JSON.stringify(await response.json(), null, 2);
    part("answer").hidden = false;
  } catch {
    part("status").textContent = "The service cannot be reached.";
  }
}

/** Puts a model into the request, with its knobs where they stand when nothing is said. */
function choose(models) {
  const model = models.find((each) => each.name === part("model").value);
  const names = new Set(models.flatMap((each) => each.knobs.map((knob) => knob.name)));
  let asked = {};
  try {
    asked = JSON.parse(part("body").value);
  } catch {
    return; // what is being written stays
  }
  const kept = Object.entries(asked).filter(([name]) => !names.has(name));
  const knobs = model.knobs.map((knob) => [knob.name, knob.default]);
  const body = { ...Object.fromEntries(kept), ...Object.fromEntries(knobs), model: model.name };
  if (JSON.stringify(asked.inputs) === example) {
    const { labels } = model;
    example = JSON.stringify((body.inputs = [labels[0], labels.at(-1)].map((label) => `A text about ${label}.`)));
  }
  if (model.task === "token_classification") delete body.top_k; // it is refused there
  else if (body.top_k) body.top_k = Math.min(body.top_k, model.labels.length);
  part("body").value = JSON.stringify(body, null, 2);
}

/** A type may lie folded: a link to it opens it. */
function unfold() {
  const folded = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
  if (!folded) return;
  folded.open = true;
  folded.scrollIntoView();
}

example = JSON.stringify(JSON.parse(part("body").defaultValue).inputs);
part("form").addEventListener("submit", send);
addEventListener("hashchange", unfold);
unfold();
const models = await service.models().catch(() => []); // without a key there is no list, and the field names the model
part("model").append(...models.map((model) => html("option", null, model.name)));
part("model").hidden = part("model").labels[0].hidden = models.length === 0;
part("model").addEventListener("change", () => choose(models));
