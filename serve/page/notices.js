/** What stands in the way: loading, an error, a busy service, a key. */

import { byId, say } from "./dom.js";

const TITLES = {
  0: "No connection",
  401: "A key is needed",
  404: "Not served",
  413: "The text is too long",
  422: "The service does not take this",
  429: "The service is busy",
  503: "The service is not ready",
  504: "Too late",
};

export class Notices {
  #timer = 0;
  #shown = null;
  #floats = false;
  #dismissed = null; // an error that the visitor has read
  #cameFrom = null; // where the focus was before it went into the notice

  constructor(service, again) {
    Object.assign(this, { service, again });
    byId("retry").addEventListener("click", () => again());
    byId("dismiss").addEventListener("click", () => this.#dismiss());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#floats && this.#dismiss());
    byId("notice").addEventListener("focusin", ({ currentTarget, relatedTarget }) => {
      if (!currentTarget.contains(relatedTarget)) this.#cameFrom = relatedTarget;
    });
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      service.useKey(byId("key").value.trim());
      byId("key").value = "";
      again();
    });
    byId("forget").addEventListener("click", () => {
      service.useKey("");
      location.reload(); // with everything that was answered to that key
    });
  }

  /** Shows an error, or hides the notice where there is none; once there is a playground it floats and moves nothing. */
  show(error, busyUntilMs = 0, floats = false) {
    clearInterval(this.#timer);
    this.#shown = error;
    const box = byId("notice");
    if (!error || error === this.#dismissed) {
      this.#hide(box);
      byId("forget").hidden = !this.service.key;
      return;
    }
    const needsKey = error.status === 401;
    say(byId("notice-title"), TITLES[error.status] ?? "Something failed");
    say(byId("notice-text"), this.#sentence(error));
    byId("key-form").hidden = !needsKey;
    byId("retry").hidden = needsKey || error.passes || error.status === 422;
    byId("dismiss").hidden = !floats || needsKey;
    byId("forget").hidden = !this.service.key || needsKey;
    const wasHidden = box.hidden;
    box.hidden = false;
    box.className = `card notice${error.passes ? " busy" : ""}${floats ? " floating" : ""}`;
    if (needsKey && wasHidden) byId("key").focus();
    this.#count(error, busyUntilMs);
    this.#floats = floats && !needsKey;
    this.#cover(floats ? box.offsetHeight : 0);
    const focused = document.activeElement;
    if (wasHidden && this.#floats && focused !== document.body) focused.scrollIntoView({ block: "nearest" });
  }

  #dismiss() {
    this.#dismissed = this.#shown;
    clearInterval(this.#timer);
    this.#hide(byId("notice"));
  }

  /** Takes the notice away; a focus that was in it goes back to where it came from. */
  #hide(box) {
    if (box.hidden) return;
    const heldFocus = box.contains(document.activeElement);
    box.hidden = true;
    this.#floats = false;
    this.#cover(0);
    if (!heldFocus) return;
    this.#cameFrom?.focus();
    if (document.activeElement !== this.#cameFrom) byId("playground").focus();
  }

  /** Tells the page how much of its lower end lies below the notice. */
  #cover(pixels) {
    document.documentElement.style.setProperty("--covered", `${pixels}px`);
  }

  #sentence({ status, message, field }) {
    const isName = /^\w*_/.test(message) || (field && message.startsWith(field)); // which is written as it must be sent
    if (status !== 401) return `${isName ? message[0] : message[0].toUpperCase()}${message.slice(1)}.`;
    return this.service.key
      ? "This key is not one of the service's keys."
      : "The service answers requests with an API key only. It stays in this tab until you close it.";
  }

  #count(error, busyUntilMs) {
    const line = byId("notice-wait");
    if (!error.passes) {
      say(line, "");
      return;
    }
    const tell = () => {
      const seconds = Math.ceil((busyUntilMs - performance.now()) / 1000);
      say(line, seconds > 0 ? `Asks again in ${seconds} s.` : "Asks again…");
    };
    tell();
    this.#timer = setInterval(tell, 250);
  }
}
