/** Puts the page together: asks for the models, then draws whatever changes. */

import { Asked } from "./asked.js";
import { Certainty } from "./certainty.js";
import { Snippets } from "./code.js";
import { byId } from "./dom.js";
import { Goals } from "./goals.js";
import { described } from "./knobs.js";
import { pause } from "./latest.js";
import { Notices } from "./notices.js";
import { drawPlot } from "./plot.js";
import { drawAgreement, drawAnswer, drawLabels, drawTime, exactTime, summary } from "./results.js";
import { Service } from "./service.js";
import { Session } from "./session.js";
import { Sliders } from "./sliders.js";
import { drawSpread } from "./spread.js";

const SPOKEN_AFTER_MS = 1200; // a screen reader is told once the knob rests, not at every step
const service = new Service();
const session = new Session(service);
const notices = new Notices(service, () => (session.model ? session.again() : start()));
const snippets = new Snippets();
const goals = new Goals(session);
const certainty = new Certainty(session);
const sliders = new Sliders(session, (knob) => (plotted = knob));
let plotted = null; // the knob over which the plot is drawn: the one that was touched last
let asked = null;
let frame = 0;
let speaking = 0;
let counting = 0;

function draw() {
  frame = 0;
  if (!session.model) return; // until then `models` shows what stands in the way
  notices.show(session.error, session.busyUntilMs, true);
  byId("playground").hidden = false;
  sliders.draw(session);
  asked.draw(session);
  goals.draw(session);
  drawAnswer(session);
  drawTime(session);
  drawAgreement(session);
  certainty.draw(session);
  drawSpread(session);
  drawLabels(session);
  drawPlot({ session, knob: plotted, exactMs: exactTime(session) });
  snippets.draw(session, session.whole);
  clearTimeout(speaking);
  speaking = setTimeout(() => (byId("spoken").textContent = summary(session)), SPOKEN_AFTER_MS);
  clearInterval(counting);
  if (session.exactIsRunning) counting = setInterval(() => drawTime(session), 100); // its time is counted up
}

function redraw() {
  frame ||= requestAnimationFrame(draw);
}

async function models() {
  for (;;) {
    try {
      return await service.models();
    } catch (error) {
      byId("loading").hidden = true;
      notices.show(error, performance.now() + error.retryAfterS * 1000);
      if (!error.passes) return null;
      await pause(error.retryAfterS * 1000);
    }
  }
}

async function start() {
  const served = await models();
  if (!served) return;
  notices.show(null);
  byId("loading").hidden = true;
  byId("empty").hidden = served.length > 0;
  if (!served.length) return;
  const choices = served.map(described);
  asked = new Asked(session, choices, (model) => {
    if (model === session.model) return;
    plotted = model.knobs[0] ?? null;
    sliders.build(model);
  });
  session.model = null;
  await asked.open();
}

session.addEventListener("change", redraw);
new ResizeObserver(redraw).observe(document.documentElement);
start();
