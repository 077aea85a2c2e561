/** The sliders of a model, one for each knob. */

import { byId, html } from "./dom.js";
import { valueText } from "./knobs.js";
import { plain, unitOf } from "./numbers.js";

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
    // The slider says its value itself: as a live region this would say it a second time.
    const value = html("output", { for: id, class: "knob-value", "aria-live": "off" });
    const unit = html("span", { class: "knob-unit" });
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
      unit.textContent = unitOf(at, knob.unit);
      unit.hidden = exact;
      input.setAttribute("aria-valuetext", exact ? "exact" : `${plain(at)} ${unitOf(at, knob.unit)}`);
    }
  }
}
