// Written by scripts/gen.py from the service's own types. Run `make gen` after a change there.

export type ErrorCode =
  | "body_timeout"
  | "body_too_large"
  | "deadline_exceeded"
  | "engine_error"
  | "goal_out_of_reach"
  | "input_too_long"
  | "invalid_request"
  | "knob_out_of_range"
  | "malformed_body"
  | "no_answer_in_time"
  | "not_calibrated"
  | "not_ready"
  | "overloaded"
  | "rate_limited"
  | "service_unreachable"
  | "unauthorized"
  | "unexpected_answer"
  | "unknown_field"
  | "unknown_model"
  | "unsupported_media_type";

/** What a model's settings are worth, as goals are chosen by it. */
export interface CalibrationInfo {
  /** of every bound */
  confidence: number;
  /** name of the file of texts that were measured */
  data: string;
  /** texts in it */
  texts: number;
  /** whether it says how sure single answers are: explain, escalate */
  explains?: boolean;
  /**
   * share of answers that are estimated to be exact at what requests run at that set no knob, no goal
   * and no escalate; null where they run at the knobs' defaults
   */
  default_agreement?: number | null;
  /** a sentence where no small keep keeps the answers, saying what to do; null elsewhere */
  warning?: string | null;
  /** in order of length */
  buckets: readonly LengthBucket[];
  /** the exact one first */
  settings: readonly MeasuredSetting[];
}

/** Answer of POST /v1/classify. Fields that are None are left out of the JSON. */
export interface Classification {
  /** name of the model that answered */
  model: string;
  /** SHA-256 that names the bundle's exact content */
  revision: string;
  /** where it ran: cpu, or cuda:0 with the number of the device */
  device: string;
  /** one per input, in the order sent */
  predictions: readonly Prediction[];
  /** value of every knob that the model ran with; with escalate, those of the answer that cost most */
  knobs: { readonly [name: string]: number };
  /** the knobs that the caller set */
  requested?: { readonly [name: string]: number };
  /** who chose the knobs: caller, goal, default, escalation, or brownout where load lowered them */
  chosen_by: "caller" | "goal" | "brownout" | "escalation" | "default";
  /**
   * share of inputs as long as the longest one here on which these knobs gave the exact answer when the
   * model was calibrated; only where that was measured
   */
  expected_agreement?: number;
  /** seed of the random streams; the same request with this seed gives the same answer */
  seed: number;
  /** number of tokens of each input, special tokens included; of all its pairs or windows */
  tokens: readonly number[];
  /** share of the exact value projection's multiply-adds spent, per input; only of models that report it */
  value_flops?: readonly number[];
  /** with escalate only: how many settings ran, one after the other */
  steps?: number;
  /** with explain or escalate only: predicted work of all that ran, as a share of the exact knobs' */
  relative_cost?: number;
  /** milliseconds by stage: tokenize, queue, compute, total */
  timing_ms: { readonly [name: string]: number };
}

/** Body of POST /v1/classify. */
export interface ClassifyRequest {
  /** the name of a served model; may be left out if only one is served */
  model?: string;
  /** a whole number from 0 to 9007199254740991, or null to have one drawn */
  seed?: number | null;
  /** a number of milliseconds above 0, at most 3.6e+06 */
  timeout_ms?: number;
  /**
   * a number above 0, at most 1: the cheapest knobs are chosen whose answers agree with the exact ones
   * on at least this share of inputs
   */
  min_agreement?: number;
  /**
   * a number of milliseconds above 0, at most 3.6e+06: the most accurate knobs are chosen that are
   * predicted to answer in this time
   */
  max_latency_ms?: number;
  /** "interactive", or "batch" for work that can wait */
  priority?: "interactive" | "batch";
  /**
   * true or false: true adds the standard error of each score, which takes about four more runs, and the
   * probability that each answer agrees with the exact one
   */
  explain?: boolean;
  /**
   * true or false: true runs again, at surer knobs, what agrees with the exact answer with less
   * probability than min_agreement, until timeout_ms
   */
  escalate?: boolean;
  /** a whole number from 1 to the number of labels */
  top_k?: number;
  /** an object of knobs and the least accurate values that a busy service may lower them to */
  degradable_to?: Floors;
  /** true or false */
  truncate?: boolean;
  /** true or false */
  return_logits?: boolean;
  /**
   * a list of 1 to 1000 different texts of at most 1000 characters: labels to choose from. A label of
   * the model must begin with entail, inputs be texts, and texts times labels 1000 at most
   */
  candidate_labels?: readonly string[];
  /** a text of at most 1000 characters with one {} and no other brace: a label goes there */
  hypothesis_template?: string;
  /** true or false: true scores each of candidate_labels by itself */
  multi_label?: boolean;
  /**
   * "mean", "max" or "first": texts are read in windows, and an answer has the mean or the largest of
   * each label's scores and logits over them, or is that of the first window
   */
  join?: "mean" | "max" | "first";
  /**
   * A wider window costs proportionally more time and sees more of the keys that the model was trained
   * to see; 0 is the window that it was trained with, which no value exceeds. The model's own bounds and
   * default are in GET /v1/models. Beside join: a whole number of at least 1: tokens of a window,
   * special tokens included; the model's most by default.
   */
  window?: number;
  /**
   * a whole number of at least 1: tokens from the beginning of a window to that of the next; by default
   * windows lie side by side
   */
  stride?: number;
  /**
   * "none", "simple", "first", "max" or "average": how tokens become the entities that a token
   * classifier answers, as in transformers' pipeline: each by itself; neighbours of one label together;
   * or with the label of a word's first token, of its surest one, or of their mean
   */
  aggregation?: "none" | "simple" | "first" | "max" | "average";
  /**
   * a text, or 1 to 256 of: a text, {"text": ..}, {"text": .., "text_pair": ..}, {"token_ids": [..]} or
   * {"token_ids": [..], "token_type_ids": [..]}
   */
  inputs: string | readonly (string | TextInput | TokenInput)[];
  /**
   * Bounds the expected error of each output row by alpha * mean token norm * ||W_v||_F; a larger alpha
   * spends fewer multiply-adds on the value projection, 0 computes it exactly. The model's own bounds
   * and default are in GET /v1/models.
   */
  alpha?: number;
  /**
   * More hashes cost proportionally more time and shrink the sampling error as 1/sqrt(num_hashes); 0
   * computes the expectation, quadratic in length. The model's own bounds and default are in GET
   * /v1/models.
   */
  num_hashes?: number;
  /**
   * Blocks of keys that each block of queries sees by chance, beside the first, the last and its
   * neighbours; more cost proportionally more time; 0 sees every key, exact softmax attention, quadratic
   * in length, as do texts of at most 5 + 2 * num_random_blocks blocks. The model's own bounds and
   * default are in GET /v1/models.
   */
  num_random_blocks?: number;
  /**
   * More landmarks follow softmax attention more closely and cost proportionally more time, with an
   * inverse of num_landmarks^3; sequences of no more tokens than landmarks, and all at 0, get exact
   * softmax attention. The model's own bounds and default are in GET /v1/models.
   */
  num_landmarks?: number;
  /**
   * More features cost proportionally more time and shrink the sampling error as 1/sqrt(num_features); 0
   * computes what they estimate, quadratic in length. The model's own bounds and default are in GET
   * /v1/models.
   */
  num_features?: number;
  /**
   * More rounds cost proportionally more time and find more of the keys that matter; 0 computes exact
   * softmax attention with shared queries and keys, quadratic in length. The model's own bounds and
   * default are in GET /v1/models.
   */
  num_rounds?: number;
  /**
   * The share of a text's tokens that a layer computes, in the mean over the layers behind the first
   * attention: those that attention weighs most, the first one always; a smaller share spends less time.
   * The model's own bounds and default are in GET /v1/models.
   */
  keep?: number;
}

/** A document that was ranked. */
export interface Document {
  text: string;
}

/** A part of a text that a token classifier has labelled. */
export interface Entity {
  label: string;
  /** mean over its tokens or words */
  score: number;
  /** its first character in the text, counted from 0 */
  start: number;
  /** the character behind its last one */
  end: number;
  /** its tokens as the tokenizer joins them; text[start:end] is what the caller wrote */
  word: string;
}

/** Body of every answer that is not a success. */
export interface ErrorBody {
  /** what is wrong, in one sentence */
  error: string;
  /** kind of error, such as knob_out_of_range */
  error_type: string;
  /** the field that is wrong, such as inputs[2].text; null where none is */
  param: string | null;
  /** what is allowed there; null where that does not apply */
  allowed: string | null;
}

/** The least accurate value by knob; others stay. */
export interface Floors {
  alpha?: number;
  num_hashes?: number;
  num_random_blocks?: number;
  window?: number;
  num_landmarks?: number;
  num_features?: number;
  num_rounds?: number;
  keep?: number;
}

/** A knob of a served model: default, bounds, exact value, and which way accuracy moves. */
export interface KnobInfo {
  name: string;
  dtype: "int32" | "float";
  default: number;
  low: number;
  high: number;
  exact: number;
  accuracy: "rises" | "falls";
  unit: string;
  doc: string;
}

/** One label and its probability (softmax or, multi-label, sigmoid); in a regression, the one score. */
export interface LabelScore {
  label: string;
  score: number;
}

/** Texts of similar lengths. */
export interface LengthBucket {
  /** tokens of the shortest */
  low: number;
  /** tokens of the longest */
  high: number;
  /** texts that were measured */
  texts: number;
  /**
   * the settings that goals choose from at these lengths, as places in the list of settings, from the
   * exact one to the cheapest
   */
  settings: readonly number[];
  /**
   * the setting of a request of such length that sets nothing, likewise; null without a
   * default_agreement
   */
  default?: number | null;
}

/** How often a setting gave the exact answer, on texts of one bucket of lengths. */
export interface MeasuredAgreement {
  /** share of the texts */
  value: number;
  /** lower bound at the calibration's confidence, which min_agreement is compared with */
  bound: number;
}

/** One value for every knob, and how often it gave the exact answer. */
export interface MeasuredSetting {
  /** value by knob name */
  knobs: { readonly [name: string]: number };
  /** one for each bucket of lengths */
  agreement: readonly MeasuredAgreement[];
  /**
   * predicted time as a share of the exact setting's, one for each bucket; empty where times were not
   * predicted
   */
  time?: readonly number[];
}

/** What else Cohere's clients look for. */
export interface Meta {
  tokens: Tokens;
}

/** A served model. */
export interface ModelInfo {
  /** the name that requests give in model */
  name: string;
  /** SHA-256 that names the bundle's exact content */
  revision: string;
  /** where it runs; empty where the server does not say */
  device?: string;
  /**
   * single_label: softmax; multi_label: sigmoid and thresholds; regression: one plain score;
   * token_classification: softmax, for each token
   */
  task: "single_label" | "multi_label" | "regression" | "token_classification";
  /** the labels, in the order of the logits; of a regression, the name of its score */
  labels: readonly string[];
  /** whether POST /v1/rerank takes it: it has one output for a text */
  ranks?: boolean;
  /** tokens of the longest input, special tokens included */
  max_tokens: number;
  /** the knobs that a request may set */
  knobs: readonly KnobInfo[];
  /** what was measured per setting; null where the model was not calibrated and takes no goals */
  calibration?: CalibrationInfo | null;
}

/** Answer of GET /v1/models. */
export interface ModelList {
  models: readonly ModelInfo[];
}

/** What the model says about one input. */
export interface Prediction {
  /**
   * the label with the highest score; in a regression, the name of the score; of a token classifier, the
   * label of its surest entity, or O
   */
  label: string;
  /**
   * score of that label: softmax, sigmoid for multi-label models, the plain number of a regression;
   * without an entity, the lowest score among a token classifier's tokens, or words where these have one
   * label
   */
  score: number;
  /** of a token classifier only: what it found, in the order of the text */
  entities?: readonly Entity[];
  /** multi-label only: every label at or above its threshold, 0.5 for candidate_labels */
  labels?: readonly string[];
  /** with top_k or candidate_labels only: the best labels, highest score first */
  scores?: readonly LabelScore[];
  /** with return_logits only: the logits, in the order of the model's labels, or of candidate_labels */
  logits?: readonly number[];
  /**
   * with explain only: standard error of the score from the knobs' sampling; 0 where nothing is drawn at
   * random, left out where escalate left no time for it
   */
  standard_error?: number;
  /**
   * with explain or escalate only: the estimated probability that the label, or the set of labels, is
   * the exact one; left out at knobs less accurate than all that were measured
   */
  agreement_probability?: number;
  /** with escalate only: the knobs of this answer */
  knobs?: { readonly [name: string]: number };
}

/** A document's place and score. */
export interface RankedDocument {
  /** its place among the documents of the request */
  index: number;
  /** sigmoid of the model's output; with use_activation false, the output */
  relevance_score: number;
  /** with return_documents only */
  document?: Document;
  /** 1 or 2: which step scored it; scores of the two are not on one scale */
  step: number;
}

/** Answer to a request with `documents`. */
export interface Ranking {
  /** name of the model that answered */
  model: string;
  /** highest score first, of equal ones the earlier document; those of a second step before all others */
  results: readonly RankedDocument[];
  /** the steps that ran, the first one over all documents */
  steps: readonly RankingStep[];
  usage: Usage;
  /** milliseconds by stage: tokenize, queue, compute, total */
  timing_ms: { readonly [name: string]: number };
  id: string;
  meta: Meta;
}

/** One step of a ranking. */
export interface RankingStep {
  /** name of the model that scored */
  model: string;
  /** value of every knob that it ran with */
  knobs: { readonly [name: string]: number };
  /** how many it scored */
  documents: number;
}

/** The fields of a request with `documents` besides these, the query, knobs and goals. */
export interface RerankRequest {
  /** the name of a served model: may be left out if only one is served */
  model?: string;
  /** -1 or the model's length: longer texts are cut to it */
  truncate_prompt_tokens?: number | null;
  /** left or right: must be the side on which the model's inputs are cut */
  truncation_side?: "left" | "right" | null;
  /** true or false: false gives logits in place of scores */
  use_activation?: boolean | null;
  /** interactive or batch, or a whole number: 0 leaves it open, below is interactive, above batch */
  priority?: "interactive" | "batch" | number;
  /** a text of at most 128 visible ASCII characters: ends the id of the answer */
  request_id?: string;
  /** a text: taken and not used, as there */
  user?: string;
  /** a whole number of at least 1: so many of the best documents are scored again, at exact knobs */
  rescore?: number;
  /** a number above 0: billions of predicted multiply-adds that the list may take, both steps together */
  max_cost?: number;
  /**
   * a list of two different names of served models: the first scores all documents, the last the best
   * ones again, at exact knobs; knobs are the first one's
   */
  cascade?: readonly string[];
  /** a whole number of at least 0: so many of the best are returned; all at 0, null or more */
  top_n?: number | null;
  /** true or false: true returns the texts too */
  return_documents?: boolean;
  /** true or false: true cuts pairs that are too long */
  truncate?: boolean;
  /** a whole number, at least the model's length: pairs that are too long are cut to that length */
  max_tokens_per_doc?: number | null;
  /** a whole number from 0 to 9007199254740991, or null to have one drawn */
  seed?: number | null;
  /** a number of milliseconds above 0, at most 3.6e+06 */
  timeout_ms?: number;
  /**
   * a number above 0, at most 1: the cheapest steps are chosen whose first documents are those of the
   * exact order, in that order, in at least this share of lists; as for texts where the model was not
   * calibrated on lists
   */
  min_agreement?: number;
  /**
   * a number of milliseconds above 0, at most 3.6e+06: as many of the best documents are scored again as
   * are predicted to be in this time
   */
  max_latency_ms?: number;
  /**
   * true or false: true runs again, at surer knobs, what agrees with the exact answer with less
   * probability than min_agreement, until timeout_ms
   */
  escalate?: boolean;
  /** an object of knobs and the least accurate values that a busy service may lower them to */
  degradable_to?: Floors;
  /**
   * Bounds the expected error of each output row by alpha * mean token norm * ||W_v||_F; a larger alpha
   * spends fewer multiply-adds on the value projection, 0 computes it exactly. The model's own bounds
   * and default are in GET /v1/models.
   */
  alpha?: number;
  /**
   * More hashes cost proportionally more time and shrink the sampling error as 1/sqrt(num_hashes); 0
   * computes the expectation, quadratic in length. The model's own bounds and default are in GET
   * /v1/models.
   */
  num_hashes?: number;
  /**
   * Blocks of keys that each block of queries sees by chance, beside the first, the last and its
   * neighbours; more cost proportionally more time; 0 sees every key, exact softmax attention, quadratic
   * in length, as do texts of at most 5 + 2 * num_random_blocks blocks. The model's own bounds and
   * default are in GET /v1/models.
   */
  num_random_blocks?: number;
  /**
   * A wider window costs proportionally more time and sees more of the keys that the model was trained
   * to see; 0 is the window that it was trained with, which no value exceeds. The model's own bounds and
   * default are in GET /v1/models. Beside join: a whole number of at least 1: tokens of a window,
   * special tokens included; the model's most by default.
   */
  window?: number;
  /**
   * More landmarks follow softmax attention more closely and cost proportionally more time, with an
   * inverse of num_landmarks^3; sequences of no more tokens than landmarks, and all at 0, get exact
   * softmax attention. The model's own bounds and default are in GET /v1/models.
   */
  num_landmarks?: number;
  /**
   * More features cost proportionally more time and shrink the sampling error as 1/sqrt(num_features); 0
   * computes what they estimate, quadratic in length. The model's own bounds and default are in GET
   * /v1/models.
   */
  num_features?: number;
  /**
   * More rounds cost proportionally more time and find more of the keys that matter; 0 computes exact
   * softmax attention with shared queries and keys, quadratic in length. The model's own bounds and
   * default are in GET /v1/models.
   */
  num_rounds?: number;
  /**
   * The share of a text's tokens that a layer computes, in the mean over the layers behind the first
   * attention: those that attention weighs most, the first one always; a smaller share spends less time.
   * The model's own bounds and default are in GET /v1/models.
   */
  keep?: number;
  /** a text */
  query: string;
  /** a list of 1 to 1000 texts, or of {"text": ..} */
  documents: readonly (string | TextDocument)[];
}

/** A document as an object. */
export interface TextDocument {
  text: string;
}

/** A text, or a pair of texts. */
export interface TextInput {
  text: string;
  text_pair?: string;
}

/** Token ids, used as given, special tokens included, and their types. */
export interface TokenInput {
  token_ids: readonly number[];
  /**
   * one for each token id, such as 0 in the first text of a pair and 1 in the second; without them all
   * are 0, as they must be for a model without token types
   */
  token_type_ids?: readonly number[];
}

/** Tokens of the request, where Cohere's clients look for them. */
export interface Tokens {
  input_tokens: number;
}

/** Tokens of the request. */
export interface Usage {
  total_tokens: number;
  prompt_tokens: number;
  completion_tokens?: number;
  prompt_tokens_details?: null;
}
