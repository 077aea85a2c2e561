/** What stands in the way: loading, an error, a busy service, a key. */

import { byId } from "./dom.js";

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

  constructor(service, again) {
    Object.assign(this, { service, again });
    byId("retry").addEventListener("click", () => again());
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
    const box = byId("notice");
    if (!error) {
      box.hidden = true;
      byId("forget").hidden = !this.service.key;
      return;
    }
    const needsKey = error.status === 401;
    byId("notice-title").textContent = TITLES[error.status] ?? "Something failed";
    byId("notice-text").textContent = this.#sentence(error);
    byId("key-form").hidden = !needsKey;
    byId("retry").hidden = needsKey || error.passes || error.status === 422;
    byId("forget").hidden = !this.service.key || needsKey;
    const wasHidden = box.hidden;
    box.hidden = false;
    box.className = `card notice${error.passes ? " busy" : ""}${floats ? " floating" : ""}`;
    if (needsKey && wasHidden) byId("key").focus();
    this.#count(error, busyUntilMs);
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
    line.textContent = "";
    if (!error.passes) return;
    const tell = () => {
      const seconds = Math.ceil((busyUntilMs - performance.now()) / 1000);
      line.textContent = seconds > 0 ? `Asks again in ${seconds} s.` : "Asks again…";
    };
    tell();
    this.#timer = setInterval(tell, 250);
  }
}
