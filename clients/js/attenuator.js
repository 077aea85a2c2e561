/** Reaches Attenuator's HTTP service from browsers and from Node, without a dependency or a build step. */

const CLASSIFY = "/v1/classify";
const RERANK = "/v1/rerank";
const FIRST_PAUSE_MS = 250;
const GRACE_MS = 2_000; // for an answer to arrive that the service gave up on at the request's own timeout_ms
const LOOK_AHEAD = 4; // answers that wait for an earlier one, for each request in flight
const EXCERPT_CHARACTERS = 200;
// For answers without this API's error body, such as those of proxies and gateways.
const CODE_BY_STATUS = {
  401: "unauthorized",
  403: "unauthorized",
  413: "invalid_request",
  429: "overloaded",
  503: "not_ready",
  504: "deadline_exceeded",
};
const RETRIED_STATUS = new Set([429, 503]); // the rule of the Python client, clients/retries.py
const UNREACHABLE = "service_unreachable";

/** What went wrong, in one sentence for the person who caused it. */
export class AttenuatorError extends Error {
  constructor(message, { cause, ...facts }) {
    super(message, { cause });
    this.name = "AttenuatorError";
    Object.assign(this, { status: 0, field: null, allowed: null, retryAfterMs: null, requestId: null, ...facts });
  }
}

/** Milliseconds that the header Retry-After asks for, in seconds or as a date; null where it says neither. */
function retryAfterMs(headers) {
  const value = headers.get("Retry-After");
  if (value === null) return null;
  const ms = /^[\d.]+$/.test(value) ? 1000 * Number(value) : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}

const excerpt = (text) => {
  const line = text.split(/\s+/).join(" ").trim();
  return line.length > EXCERPT_CHARACTERS ? `${line.slice(0, EXCERPT_CHARACTERS)}...` : line;
};

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Browsers show nothing of a redirect but that it was one. */
const isRedirect = ({ type, status }) => type === "opaqueredirect" || (status >= 300 && status < 400);

/** The error that an unsuccessful answer stands for: its body names it, or else its status. */
function errorOf(response, text) {
  const { status, headers, url } = response;
  const facts = { status, retryAfterMs: retryAfterMs(headers), requestId: headers.get("X-Request-Id") };
  if (isRedirect(response)) {
    const target = headers.get("Location") ?? "another address";
    const sentence = `${url} answered with a redirect to ${target}, which is not followed: name the service's own address`;
    return new AttenuatorError(sentence, { ...facts, code: "unexpected_answer" });
  }
  const body = parsed(text);
  if (typeof body?.error === "string" && typeof body.error_type === "string") {
    // Where error_type is another server's, code is ours.
    const { error, error_type, code = error_type, param: field = null, allowed = null } = body;
    return new AttenuatorError(error, { ...facts, code, field, allowed });
  }
  const code = CODE_BY_STATUS[status] ?? "unexpected_answer";
  return new AttenuatorError(`${url} answered ${status}: ${excerpt(text)}`, { ...facts, code });
}

/** Waits; rejects with the signal's reason where it is aborted. */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A service at an address. */
export class Client {
  #headers;
  #options;

  constructor(baseUrl = "http://127.0.0.1:8000", options = {}) {
    const { apiKey, ...others } = options;
    this.baseUrl = String(baseUrl).replace(/\/+$/, "");
    this.#headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
    this.#options = { maxRetries: 2, maxPauseMs: 30_000, readTimeoutMs: 120_000, fetch: globalThis.fetch, ...others };
  }

  async classify(inputs, { signal, ...fields } = {}) {
    const several = typeof inputs === "string" || Array.isArray(inputs) ? inputs : [inputs];
    return this.#post(CLASSIFY, "predictions", signal, { inputs: several, ...fields });
  }

  async rerank(query, documents, { signal, ...fields } = {}) {
    return this.#post(RERANK, "results", signal, { query, documents, ...fields });
  }

  async *classifyMany(inputs, { concurrency = 4, returnErrors = false, signal, ...fields } = {}) {
    if (!Number.isInteger(concurrency) || concurrency < 1)
      throw new RangeError(`concurrency is ${concurrency}, must be a whole number from 1`);
    const stop = new AbortController();
    const options = { ...fields, signal: signal ? AbortSignal.any([signal, stop.signal]) : stop.signal };
    const source = (inputs[Symbol.asyncIterator] ?? inputs[Symbol.iterator]).call(inputs);
    const outcomes = []; // in the order of the inputs
    const inFlight = new Set();
    let arriving = null; // the next input
    let ended = false;
    const take = async () => {
      const { done, value } = await source.next();
      arriving = null;
      ended = done;
      if (done) return;
      const outcome = this.classify([value], options).then((answer) => ({ answer }), (error) => ({ error }));
      outcomes.push(outcome);
      inFlight.add(outcome);
      outcome.then(() => inFlight.delete(outcome));
    };
    try {
      for (;;) {
        const hasRoom = inFlight.size < concurrency && outcomes.length < LOOK_AHEAD * concurrency;
        if (!ended && hasRoom) arriving ??= take();
        if (outcomes.length && !inFlight.has(outcomes[0])) {
          const { answer, error } = await outcomes.shift();
          if (!answer && !(returnErrors && error instanceof AttenuatorError)) throw error;
          yield answer ?? error;
        } else if (inFlight.size || arriving) await Promise.race([...inFlight, ...(arriving ? [arriving] : [])]);
        else return;
      }
    } finally {
      stop.abort();
      arriving?.catch(() => {}); // nobody waits for it any more
      source.return?.()?.catch?.(() => {}); // not awaited: it may stand behind an input that never comes
    }
  }

  async models({ signal } = {}) {
    return (await this.#ask("/v1/models", "models", { signal })).models;
  }

  async ready({ signal } = {}) {
    try {
      await this.#once("/health/ready", "status", { signal });
      return true;
    } catch (error) {
      if (["not_ready", UNREACHABLE, "no_answer_in_time"].includes(error.code)) return false;
      throw error;
    }
  }

  #post(path, expected, signal, body) {
    return this.#ask(path, expected, { signal, patienceMs: (body.timeout_ms ?? 0) + GRACE_MS, body });
  }

  async #ask(path, expected, request) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await this.#once(path, expected, request);
      } catch (error) {
        const ms = this.#pauseMs(error, attempt);
        if (ms === null) throw error;
        await pause(ms, request.signal);
      }
    }
  }

  /** How long to wait before the next attempt, or null: at random, so that clients refused together come back apart. */
  #pauseMs(error, attempt) {
    const { maxRetries, maxPauseMs } = this.#options;
    if (!(error instanceof AttenuatorError) || attempt >= maxRetries) return null;
    if (!RETRIED_STATUS.has(error.status) && error.code !== UNREACHABLE) return null;
    const leastMs = error.retryAfterMs ?? 0;
    if (leastMs > maxPauseMs) return null;
    return Math.min(maxPauseMs, leastMs + Math.random() * FIRST_PAUSE_MS * 2 ** Math.min(attempt, 10));
  }

  async #once(path, expected, { body, signal, patienceMs = 0 }) {
    const timeoutMs = Math.max(this.#options.readTimeoutMs, patienceMs);
    const late = AbortSignal.timeout(timeoutMs);
    // A redirect would take the texts, and in older browsers the key, where nobody meant to send them.
    const options = {
      headers: this.#headers,
      redirect: "manual",
      signal: signal ? AbortSignal.any([signal, late]) : late,
    };
    if (body) {
      const headers = { ...this.#headers, "Content-Type": "application/json" };
      Object.assign(options, { method: "POST", headers, body: JSON.stringify(body) });
    }
    let response, text;
    try {
      response = await this.#options.fetch.call(globalThis, this.baseUrl + path, options);
      text = await response.text();
    } catch (cause) {
      signal?.throwIfAborted();
      const why = late.aborted
        ? { code: "no_answer_in_time", what: `did not answer within ${timeoutMs} ms` }
        : { code: UNREACHABLE, what: `cannot be reached: ${cause.cause?.message ?? cause.message}` };
      throw new AttenuatorError(`${this.baseUrl} ${why.what}`, { code: why.code, cause });
    }
    if (!response.ok) throw errorOf(response, text);
    const answer = parsed(text);
    if (answer?.[expected] !== undefined) return answer;
    const sentence = `the answer of ${response.url} is not one that Attenuator gives: ${excerpt(text)}`;
    throw new AttenuatorError(sentence, { code: "unexpected_answer", status: response.status });
  }
}
