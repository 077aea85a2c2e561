import type { Classification, ClassifyRequest, ErrorCode, ModelInfo, Ranking, RerankRequest } from "./api.js";

export type * from "./api.js";

/** One input: a text, a pair of texts, or token ids. */
export type Input = Extract<ClassifyRequest["inputs"], readonly unknown[]>[number];

/** Every field of a request but its inputs, by the service's own names; and how to call it off. */
export interface ClassifyOptions extends Omit<ClassifyRequest, "inputs"> {
  /** Aborts the call, pauses between attempts included; it then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Every field of a request that ranks but its texts; and how to call it off. */
export interface RerankOptions extends Omit<RerankRequest, "query" | "documents"> {
  signal?: AbortSignal | undefined;
}

export interface ClassifyManyOptions extends ClassifyOptions {
  /** Most requests in flight at a time; 4 by default. */
  concurrency?: number;
  /** Yields the error of an input in its place, where otherwise the first error ends everything; false by default. */
  returnErrors?: boolean;
}

export interface ClientOptions {
  /** Sent as a bearer token where the service asks for one. */
  apiKey?: string | undefined;
  /**
   * How often a call is sent again that was shed (429), met a service that is not ready (503) or whose connection
   * failed; 2 by default. The pause is what Retry-After asks for and a random time below 0.25 s, 0.5 s, 1 s ... on top.
   */
  maxRetries?: number;
  /** Longest pause; where Retry-After asks for more, the call fails at once. 30,000 by default. */
  maxPauseMs?: number;
  /** Longest wait for an answer, which a call's own timeout_ms extends; 120,000 by default. */
  readTimeoutMs?: number;
  /** Takes the place of the global fetch: for proxies or own certificates. */
  fetch?: typeof fetch;
}

/** A service at an address. */
export class Client {
  /** @param baseUrl where it listens; `http://127.0.0.1:8000` by default */
  constructor(baseUrl?: string | URL, options?: ClientOptions);
  readonly baseUrl: string;

  /**
   * Classifies a text, or up to as many inputs as the service takes in one request; one prediction per input.
   * @throws AttenuatorError
   */
  classify(inputs: ClassifyRequest["inputs"] | Input, options?: ClassifyOptions): Promise<Classification>;

  /**
   * Classifies any number of inputs, a request for each, and yields the answers in the order of the inputs. Inputs are
   * read as they are needed. Leaving the loop aborts what is in flight.
   * @throws AttenuatorError at the place of the first input that failed, unless returnErrors is set
   */
  classifyMany(
    inputs: Iterable<Input> | AsyncIterable<Input>,
    options: ClassifyManyOptions & { returnErrors: true },
  ): AsyncGenerator<Classification | AttenuatorError, void, undefined>;
  classifyMany(
    inputs: Iterable<Input> | AsyncIterable<Input>,
    options?: ClassifyManyOptions,
  ): AsyncGenerator<Classification, void, undefined>;

  /**
   * Ranks up to as many documents as the service takes in one request, best first; for models with one output.
   * @throws AttenuatorError
   */
  rerank(query: string, documents: RerankRequest["documents"], options?: RerankOptions): Promise<Ranking>;

  /**
   * The served models with their labels, knobs and calibrations.
   * @throws AttenuatorError
   */
  models(options?: { signal?: AbortSignal | undefined }): Promise<readonly ModelInfo[]>;

  /** Whether the service takes requests now; false where it is starting, stopping, or does not answer. */
  ready(options?: { signal?: AbortSignal | undefined }): Promise<boolean>;
}

/** What went wrong, in one sentence for the person who caused it. */
export class AttenuatorError extends Error {
  /** Kind of error. */
  readonly code: ErrorCode | (string & {});
  /** HTTP status; 0 where no answer came. */
  readonly status: number;
  /** The field that is wrong, such as `inputs[2].text`; null where none is. */
  readonly field: string | null;
  /** What is allowed there, in words; null where that does not apply. */
  readonly allowed: string | null;
  /** Milliseconds after which a new attempt should succeed; null where the service did not say. */
  readonly retryAfterMs: number | null;
  /** The id under which the service's log has the request; null where no answer came. */
  readonly requestId: string | null;
}
