/** What a token classifier found: the text with its entities marked, the label beside each. */

import { byId, html, say } from "./dom.js";
import { score, shortened, whole } from "./numbers.js";

const MOST_SHOWN = 60_000; // characters of a text
const MOST_SAID = 12; // entities in a sentence

/** Whether a model, or an example's button, is for entities in a text, not for one answer to all of it. */
export const findsEntities = ({ task }) => task === "token_classification";

/** What a model's entities can be: its labels but for O, without the marks of a beginning, in the model's order. */
export const kinds = ({ labels }) => [...new Set(labels.filter((label) => label !== "O").map((label) => label.replace(/^[BI]-/, "")))];

export const counted = (entities) => (entities.length === 1 ? "1 entity" : `${whole(entities.length)} entities`);

/** Of one answer's entities those that another has not. */
const missing = (one, other) => one.entities.filter(({ key }) => !other.scores.has(key));

/** How one answer's entities differ from the exact one's, in numbers. */
export function apart(one, exact) {
  const [more, less] = [missing(one, exact).length, missing(exact, one).length];
  return [more && `${whole(more)} not in the exact answer`, less && `${whole(less)} missing`].filter(Boolean).join(", ");
}

/** From the service's count of characters, which are code points, to a place in a string; asked in ascending order. */
function placesIn(text) {
  let [place, points] = [0, 0];
  return (count) => {
    for (; points < count && place < text.length; points += 1) place += text.codePointAt(place) > 0xffff ? 2 : 1;
    return place;
  };
}

/** Where entities stand in a string; one that begins inside another is left out. */
function spans(text, entities) {
  const place = placesIn(text);
  const all = [];
  let last = 0;
  for (const entity of entities) {
    if (entity.start < last) continue;
    last = entity.end;
    all.push({ entity, start: place(entity.start), end: place(last) });
  }
  return all;
}

/** Entities in words, as the text writes them. */
function listed(text, entities) {
  const words = spans(text, entities.slice(0, MOST_SAID)).map(({ entity, start, end }) => `${entity.label} ${shortened(text.slice(start, end), 40)}`);
  if (entities.length > MOST_SAID) words.push(`and ${whole(entities.length - MOST_SAID)} more`);
  return words.join(", ");
}

/** All that was found in words: "2 entities: PERSON Maria Santos, CITY Porto". */
export const found = (text, { entities }) => counted(entities) + (entities.length ? `: ${listed(text, entities)}` : "");

function note(text, one, exact, rest) {
  const lacking = one && exact ? missing(exact, one) : [];
  const cut = rest > 0 ? `The text goes on: ${whole(rest)} more characters, without an entity.` : "";
  return [lacking.length ? `Only in the exact answer: ${listed(text, lacking)}.` : "", cut].join(" ").trim();
}

export class Marks {
  #drawn = [];

  /** @param one the answer that is shown; null where there is none. */
  draw({ text, model, subject, isEmpty }, one, isWaiting) {
    byId("marks-figure").hidden = !findsEntities(model) || isEmpty;
    if (byId("marks-figure").hidden) return;
    byId("marks").classList.toggle("waiting", isWaiting);
    const now = [text, model, one, subject.exact];
    if (now.every((each, index) => each === this.#drawn[index])) return; // a selection in it would be lost
    this.#drawn = now;
    const names = kinds(model);
    const parts = [];
    let last = 0;
    for (const { entity, start, end } of spans(text, one?.entities ?? [])) {
      const differs = subject.exact && !subject.exact.scores.has(entity.key);
      parts.push(text.slice(last, start), mark(entity, text.slice(start, end), names.indexOf(entity.label), differs));
      last = end;
    }
    const shown = Math.max(last, Math.min(text.length, MOST_SHOWN));
    byId("marks").replaceChildren(...parts, text.slice(last, shown));
    say(byId("marks-note"), note(text, one, subject.exact, text.length - shown));
  }
}

/** A marked part of the text. Its colour and its line are its kind's; what it is stands beside it. */
function mark({ label, score: sure }, text, kind, differs) {
  const name = html("small", null, "\u00a0", label, ...(differs ? [" ", html("span", { class: "chip" }, "differs")] : []));
  const element = html("mark", { class: `line-${kind % 3}`, title: `${label}, score ${score(sure)}` }, text, name);
  element.style.setProperty("--hue", 255 + 137.5 * kind);
  return element;
}
