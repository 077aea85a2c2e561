/** The service that this page came from: its models and its answers, its refusals as errors. */

export const [CLASSIFY, RERANK] = ["v1/classify", "v1/rerank"]; // below the address that the page came from
const KEY = "attenuator-api-key"; // in sessionStorage, so that it is gone with the tab

/** An answer that is not a success, or none at all: then the status is 0. */
export class Refused extends Error {
  constructor(status, sentence, field, retryAfterS) {
    super(sentence);
    Object.assign(this, { status, field, retryAfterS });
  }

  /** Whether the same request may be taken later: too busy, or still loading its models. */
  get passes() {
    return this.status === 429 || this.status === 503;
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const seconds = Number(response.headers.get("Retry-After"));
  const sentence = body.error ?? `the service answered with status ${response.status} and no reason`;
  return new Refused(response.status, sentence, body.param ?? "", seconds > 0 ? seconds : 1);
}

export class Service {
  constructor() {
    this.base = new URL(".", document.baseURI).href;
    this.key = sessionStorage.getItem(KEY) ?? "";
  }

  useKey(key) {
    this.key = key;
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  }

  url(path) {
    return this.base + path;
  }

  async models(signal) {
    return (await this.#answer(this.#send("v1/models", { signal }))).models;
  }

  /** An example of the page: a request, as JSON. */
  example(path) {
    return this.#answer(this.#send(path, {}));
  }

  async classify(body, signal) {
    return this.#answer(this.post(CLASSIFY, JSON.stringify(body), signal));
  }

  async rerank(body, signal) {
    return this.#answer(this.post(RERANK, JSON.stringify(body), signal));
  }

  /** Sends JSON as it is written; the answer, whatever its status. */
  post(path, body, signal) {
    return this.#send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
  }

  #send(path, options) {
    const headers = { ...options.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    return fetch(this.url(path), { ...options, headers });
  }

  async #answer(sent) {
    let response;
    try {
      response = await sent;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "the service cannot be reached: it may have been stopped", "", 2);
    }
    if (!response.ok) throw await refusal(response);
    return response.json();
  }
}
