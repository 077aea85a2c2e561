/** The request of this moment as a command and as a program, to copy. */

import { byId, html, say } from "./dom.js";
import { findsEntities } from "./entities.js";
import { CLASSIFY, RERANK } from "./service.js";

const LONG = 600; // characters of a text that are shown; all of them are copied
const ONE_LINE = 4000; // a longer body goes through standard input: a shell's argument has a limit

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(service, request) {
  const body = JSON.stringify(request);
  const key = service.key ? ' \\\n  -H "Authorization: Bearer $ATTENUATOR_API_KEY"' : "";
  const head = `curl -s ${service.url(request.documents ? RERANK : CLASSIFY)} -H 'Content-Type: application/json'${key} \\\n  -d `;
  return body.length > ONE_LINE ? `${head}@- <<'REQUEST'\n${body}\nREQUEST` : head + shell(body);
}

function literal(value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value); // strings and numbers of JSON are strings and numbers of Python
}

/** What a program does with the answer. */
function printing({ documents }, hasEntities) {
  if (documents) return "    for document in answer.results:\n        print(document.index, document.relevance_score, document.step)\n";
  const each = "    for prediction in answer.predictions:\n";
  if (!hasEntities) return `${each}        print(prediction.label, prediction.score)\n`;
  return `${each}        for entity in prediction.entities:\n            print(entity.label, entity.start, entity.end, entity.word)\n`;
}

export function python(service, request, hasEntities) {
  const { inputs, query, documents, ...options } = request;
  const url = service.base.replace(/\/$/, "");
  const key = service.key ? ', api_key=os.environ["ATTENUATOR_API_KEY"]' : "";
  const texts = documents ? [query, documents] : [inputs];
  const fields = [...texts.map(literal), ...Object.entries(options).map(([name, value]) => `${name}=${literal(value)}`)];
  return (
    `${service.key ? "import os\n\n" : ""}from attenuator.clients import Client\n\n` +
    `with Client(${literal(url)}${key}) as client:\n` +
    `    answer = client.${documents ? "rerank" : "classify"}(\n${fields.map((field) => `        ${field},\n`).join("")}    )\n` +
    printing(request, hasEntities)
  );
}

/** A request with less of its texts, to be shown. */
function shortened(request) {
  const { inputs, documents } = request;
  if (inputs) return { ...request, inputs: inputs.map(cut) };
  let left = LONG;
  const shown = documents.filter((text, place) => (left -= text.length) > 0 || !place).map(cut);
  const more = documents.length - shown.length;
  return { ...request, documents: more ? [...shown, `… ${more} more documents`] : shown };
}

const cut = (text) => (text.length > LONG ? `${text.slice(0, LONG)} … ${text.length - LONG} more characters` : text);

const WRITERS = { curl, python };

export class Snippets {
  #service = null;
  #request = null;
  #hasEntities = false;

  constructor() {
    for (const kind of Object.keys(WRITERS))
      byId(`copy-${kind}`).addEventListener("click", (event) => this.#copy(kind, event.currentTarget));
  }

  draw({ service, model, isEmpty }, request) {
    byId("code-card").hidden = !model || isEmpty;
    if (!model) return;
    const short = shortened(request);
    [this.#service, this.#request, this.#hasEntities] = [service, request, findsEntities(model)];
    for (const [kind, write] of Object.entries(WRITERS)) {
      say(byId(`code-${kind}`), write(service, short, this.#hasEntities)); // a selection in it would be lost else
    }
    byId("code-cut").hidden = JSON.stringify(short) === JSON.stringify(request);
  }

  async #copy(kind, button) {
    const label = button.textContent;
    button.textContent = (await copied(WRITERS[kind](this.#service, this.#request, this.#hasEntities))) ? "Copied" : "The browser did not allow it";
    say(byId("spoken"), button.textContent);
    setTimeout(() => (button.textContent = label), 1600);
  }
}

/** Copies a text; without the clipboard's interface, which pages over plain HTTP do not have, by a selected field. */
async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const field = html("textarea", { class: "hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
