/** Puts the page together: asks for the models, then draws whatever changes. */

import { Asked } from "./asked.js";
import { Certainty } from "./certainty.js";
import { Snippets } from "./code.js";
import { Curve } from "./curve.js";
import { byId, holdingFocus, say } from "./dom.js";
import { Marks } from "./entities.js";
import { Goals } from "./goals.js";
import { described } from "./knobs.js";
import { drawLabels, scoresLabels } from "./labels.js";
import { pause } from "./latest.js";
import { Notices } from "./notices.js";
import { drawRanking, Rescore } from "./ranking.js";
import { drawAgreement, drawAnswer, drawTime, exactTime, isWaitedFor, shown, summary } from "./results.js";
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
const sliders = new Sliders(session);
const curve = new Curve(session);
const marks = new Marks();
const rescore = new Rescore(session);
let asked = null;
let frame = 0;
let speaking = 0;
let spoken = null; // the setting that a screen reader was told of last
let counting = 0;

function draw() {
  frame = 0;
  if (!session.model) return; // until then `models` shows what stands in the way
  byId("playground").hidden = false;
  notices.show(session.error, session.busyUntilMs, true);
  holdingFocus(drawSession);
  clearInterval(counting);
  if (session.exactIsRunning) counting = setInterval(() => drawTime(session), 100); // its time is counted up
  clearTimeout(speaking);
  if (!session.isSampling || spoken !== session.setting) speaking = setTimeout(speak, SPOKEN_AFTER_MS);
}

/** Tells a screen reader what the page shows: the first answer at a setting, then what all of its seeds say. */
function speak() {
  spoken = session.setting;
  say(byId("spoken"), summary(session));
}

function drawSession() {
  curve.draw(session, exactTime(session));
  sliders.draw(session);
  asked.draw(session);
  goals.draw(session);
  rescore.draw(session);
  drawAnswer(session);
  drawTime(session);
  drawAgreement(session);
  marks.draw(session, shown(session), isWaitedFor(session));
  drawRanking(session, shown(session), isWaitedFor(session));
  drawLabels(session, shown(session), isWaitedFor(session));
  drawAgain(session);
  snippets.draw(session, session.whole);
}

/** The text asked again and again: it has no picture where an answer has no one score, or is exact every time. */
function drawAgain({ model }) {
  byId("once-card").hidden = !scoresLabels(model) || !model.knobs.length;
  if (byId("once-card").hidden) return;
  certainty.draw(session);
  drawSpread(session);
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
  byId("loading").hidden = true;
  byId("empty").hidden = served.length > 0;
  if (!served.length) {
    notices.show(null);
    return;
  }
  const choices = served.map(described);
  asked = new Asked(session, choices, (model) => {
    if (model !== session.model) sliders.build(model);
  });
  session.model = null;
  await asked.open();
}

session.addEventListener("change", redraw);
new ResizeObserver(redraw).observe(document.documentElement);
start();
