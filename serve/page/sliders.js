/** The sliders of a model, one for each knob. */

import { byId, html } from "./dom.js";

export class Sliders {
  #rows = [];

  constructor(session) {
    this.session = session;
  }

  build(model) {
    this.#rows = model.knobs.map((knob) => this.#row(knob));
    byId("sliders").replaceChildren(...this.#rows.map((row) => row.element));
    const doc = (knob) => html("p", { class: "doc", id: `knob-${knob.name}-doc` }, html("code", null, knob.name), `: ${knob.doc}`);
    byId("knob-docs").replaceChildren(...model.knobs.map(doc));
    byId("no-knobs").hidden = model.knobs.length > 0;
    for (const name of ["how", "bars", "settings"]) byId(name).hidden = !model.knobs.length; // nothing to turn, nothing to compare
  }

  #row(knob) {
    const id = `knob-${knob.name}`;
    const attributes = { type: "range", id, min: 0, max: knob.last, step: 1, "aria-describedby": `${id}-doc` };
    const input = html("input", attributes);
    // The slider says its value itself: as a live region this would say it a second time.
    const value = html("output", { for: id, class: "knob-value", "aria-live": "off" });
    input.addEventListener("input", () => this.session.set({ [knob.name]: knob.stops[Number(input.value)] }));
    const element = html(
      "div",
      { class: "knob" },
      html("div", { class: "knob-head" }, html("label", { for: id }, knob.title, " ", html("code", null, knob.name)), value),
      input,
      html("div", { class: "knob-ends", "aria-hidden": "true" }, html("span", null, "← faster"), html("span", null, "exact →")),
    );
    return { knob, input, value, element };
  }

  draw({ knobs }) {
    for (const { knob, input, value } of this.#rows) {
      input.value = knob.stopOf(knobs[knob.name]);
      value.textContent = knob.text(knobs[knob.name]);
      input.setAttribute("aria-valuetext", value.textContent);
    }
  }
}
