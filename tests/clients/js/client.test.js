/** The client against services that test_javascript.py starts; the narrow one takes a request at a time. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import test from "node:test";

import { AttenuatorError, Client } from "../../../clients/js/attenuator.js";

const { ATTENUATOR_URL, ATTENUATOR_NARROW_URL, ATTENUATOR_KEY } = process.env;
const client = new Client(`${ATTENUATOR_URL}/`);
const TEXTS = ["A film of rare warmth.", "Two hours I want back.", "It has a cast.", "好 😀 \"ça\""];
const LONG = "a dull film that does not end, ".repeat(400);

/** What of an answer does not differ between two runs. */
const same = ({ timing_ms, ...answer }) => answer;

async function collect(answers) {
  const all = [];
  for await (const answer of answers) all.push(answer);
  return all;
}

/** The members that the declaration of a class has. */
function declared(name) {
  const text = readFileSync(new URL("../../../clients/js/attenuator.d.ts", import.meta.url), "utf8");
  const [, members] = text.match(new RegExp(`^export class ${name} .*?\\{\\n(.*?)^\\}`, "ms"));
  return new Set([...members.matchAll(/^  (?:readonly )?(\w+)[(:]/gm)].map(([, member]) => member));
}

/** A server of canned answers, as what lies between a client and a service gives them; the last one is repeated. */
async function wire(t, ...answers) {
  const requests = [];
  const server = createServer((request, response) => {
    requests.push({ at: performance.now(), headers: request.headers });
    const { status = 200, headers = {}, body = "", silent } = answers.length > 1 ? answers.shift() : answers[0];
    request.resume();
    if (silent) return;
    response.writeHead(status, headers).end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

test("an answer has what was asked for, by the service's own names", async () => {
  const answer = await client.classify(TEXTS, { num_hashes: 16, seed: 7, top_k: 2 });
  assert.deepEqual(answer.knobs, { num_hashes: 16 });
  assert.equal(answer.seed, 7);
  assert.equal(answer.predictions.length, TEXTS.length);
  for (const { label, score, scores } of answer.predictions) assert.deepEqual(scores[0], { label, score });
  const [pair] = (await client.classify({ text: TEXTS[0] }, { num_hashes: 16, seed: 7, top_k: 2 })).predictions;
  assert.deepEqual(pair, answer.predictions[0]);
});

test("models tell their knobs, and a service whether it is ready", async (t) => {
  const [model] = await client.models();
  assert.equal(model.name, "reviews");
  assert.deepEqual(model.knobs.map((knob) => knob.name), ["num_hashes"]);
  assert.equal(await client.ready(), true);
  assert.equal(await new Client((await wire(t, { status: 503 })).url).ready(), false);
  assert.equal(await new Client("http://127.0.0.1:1").ready(), false);
  await assert.rejects(new Client((await wire(t, { body: "hello" })).url).ready(), { code: "unexpected_answer" });
});

test("a refusal names code, field, what is allowed and the status", async () => {
  const refused = await client.classify(TEXTS[0], { num_hashes: 100_000 }).catch((error) => error);
  assert.ok(refused instanceof AttenuatorError && refused instanceof Error);
  assert.match(refused.message, /num_hashes is 100000/);
  assert.equal(refused.code, "knob_out_of_range");
  assert.equal(refused.field, "num_hashes");
  assert.match(refused.allowed, /\d/);
  assert.equal(refused.status, 422);
  assert.match(refused.requestId, /\S/);
  await assert.rejects(client.classify(TEXTS[0], { model: "other" }), { code: "unknown_model", status: 404 });
  await assert.rejects(client.classify(TEXTS[0], { num_hash: 1 }), { code: "unknown_field", field: "num_hash" });
  await assert.rejects(new Client(ATTENUATOR_NARROW_URL).classify(TEXTS[0]), { code: "unauthorized", status: 401 });
});

test("documents are ranked, each with the score that it has alone", async () => {
  const ranker = new Client(process.env.ATTENUATOR_RANKER_URL);
  const options = { model: "rank", keep: 0.3, alpha: 0.2, seed: 5 };
  const { results, model, usage } = await ranker.rerank("a good film", [...TEXTS, { text: TEXTS[0] }], options);
  const scores = results.map(({ relevance_score }) => relevance_score);
  assert.deepEqual(scores, [...scores].sort((one, other) => other - one));
  assert.deepEqual([model, usage.total_tokens > 0], ["rank", true]);
  const equal = results.filter(({ index }) => index === 0 || index === TEXTS.length);
  assert.deepEqual(equal.map(({ index }) => index), [0, TEXTS.length]);
  for (const { index, relevance_score } of results.slice(0, 2)) {
    const alone = await ranker.rerank("a good film", [[...TEXTS, TEXTS[0]][index]], options);
    assert.equal(alone.results[0].relevance_score, relevance_score);
  }
  const [best, ...others] = (await ranker.rerank("a", TEXTS, { ...options, top_n: 1, return_documents: true })).results;
  assert.deepEqual([best.document.text, others], [TEXTS[best.index], []]);
  const { steps } = await ranker.rerank("a good film", TEXTS, { ...options, rescore: 2 });
  assert.deepEqual(steps.map(({ documents }) => documents), [TEXTS.length, 2]);
  const refusals = [
    [TEXTS, { max_cost: 1e-9 }, { code: "invalid_request", field: "max_cost" }],
    [[], {}, { code: "invalid_request", field: "documents" }],
    [["a", " "], {}, { code: "invalid_request", field: "documents[1]" }],
    [TEXTS, { keep: 3 }, { code: "knob_out_of_range", field: "keep", status: 422 }],
    [TEXTS, { top_m: 1 }, { code: "unknown_field", field: "top_m" }],
    [TEXTS, { model: "reviews" }, { code: "invalid_request", field: "model" }],
    [TEXTS, { model: "other" }, { code: "unknown_model", status: 404 }],
  ];
  for (const [documents, fields, error] of refusals)
    await assert.rejects(ranker.rerank("a", documents, { ...options, ...fields }), error);
  await assert.rejects(ranker.rerank("a", TEXTS, { signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("many inputs are answered in their order, as each would be alone", async () => {
  const inputs = [LONG, ...TEXTS, LONG.slice(0, 900), ...TEXTS];
  let most = 0;
  let now = 0;
  const counting = new Client(ATTENUATOR_URL, {
    fetch: async (...request) => {
      most = Math.max(most, (now += 1));
      return fetch(...request).finally(() => (now -= 1));
    },
  });
  const options = { num_hashes: 8, seed: 3 };
  const answers = await collect(counting.classifyMany(inputs, { ...options, concurrency: 3 }));
  assert.equal(most, 3);
  for (const [index, answer] of answers.entries())
    assert.deepEqual(same(answer), same(await client.classify([inputs[index]], options)));
  assert.equal(answers.length, inputs.length);
  assert.deepEqual(await collect(client.classifyMany([])), []);
  await assert.rejects(collect(client.classifyMany(TEXTS, { concurrency: 0 })), { name: "RangeError" });
});

test("inputs are read as they are needed, and leaving the loop closes what gives them", async () => {
  const read = [];
  let closed = false;
  async function* source() {
    try {
      for (let index = 0; ; index += 1) {
        read.push(index);
        yield TEXTS[index % TEXTS.length];
      }
    } finally {
      closed = true;
    }
  }
  for await (const answer of client.classifyMany(source(), { concurrency: 2 })) {
    assert.equal(answer.predictions.length, 1);
    break;
  }
  assert.ok(read.length <= 2 * 4 + 1, `${read.length} inputs were read`);
  await new Promise(setImmediate);
  assert.ok(closed);
});

test("an answer does not wait for an input that has not come yet", async () => {
  let more;
  async function* source() {
    yield TEXTS[0];
    yield await new Promise((resolve) => (more = resolve));
  }
  const answers = client.classifyMany(source());
  assert.equal((await answers.next()).value.predictions.length, 1);
  more(TEXTS[1]);
  assert.equal((await answers.next()).value.predictions.length, 1);
  assert.equal((await answers.next()).done, true);
});

test("the error of one input ends the loop at its place, or stands there", async () => {
  const inputs = [TEXTS[0], "   ", TEXTS[1]];
  const seen = [];
  await assert.rejects(
    async () => {
      for await (const answer of client.classifyMany(inputs)) seen.push(answer);
    },
    { code: "invalid_request", field: "inputs[0]" },
  );
  assert.equal(seen.length, 1);
  const [first, second, third] = await collect(client.classifyMany(inputs, { returnErrors: true }));
  assert.equal(second.status, 422);
  assert.equal(first.predictions.length + third.predictions.length, 2);
});

test("a signal aborts a call, a pause between attempts and a loop", async (t) => {
  const reason = new Error("no longer wanted");
  await assert.rejects(client.classify(TEXTS[0], { signal: AbortSignal.abort(reason) }), reason);
  const { url } = await wire(t, { status: 503, headers: { "Retry-After": "20" } });
  const soon = { signal: AbortSignal.timeout(50) };
  await assert.rejects(new Client(url, { maxRetries: 1 }).classify(TEXTS[0], soon), { name: "TimeoutError" });
  const stop = new AbortController();
  const answers = client.classifyMany([TEXTS[0], TEXTS[1]], { signal: stop.signal, returnErrors: true, concurrency: 1 });
  await answers.next();
  stop.abort(reason);
  await assert.rejects(answers.next(), reason);
});

test("what was shed is sent again after the pause that Retry-After asks for, where asked to", async () => {
  const storm = (maxRetries) => {
    const narrow = new Client(ATTENUATOR_NARROW_URL, { apiKey: ATTENUATOR_KEY, maxRetries, maxPauseMs: 5_000 });
    const texts = Array(4).fill(LONG);
    return Promise.allSettled([0, 1].map((seed) => narrow.classify(texts, { num_hashes: 64, seed, truncate: true })));
  };
  const shed = (await storm(0)).filter(({ status }) => status === "rejected").map(({ reason }) => reason);
  assert.ok(shed.length > 0);
  for (const { code, status, retryAfterMs } of shed)
    assert.deepEqual([code, status, retryAfterMs >= 1000], ["overloaded", 429, true]);
  assert.deepEqual((await storm(20)).filter(({ status }) => status === "rejected"), []);
});

test("pauses begin no earlier than Retry-After says and end in the last error", async (t) => {
  const asks = { status: 429, headers: { "Retry-After": "0.1" }, body: "busy" };
  const { url, requests } = await wire(t, asks);
  await assert.rejects(new Client(url, { maxRetries: 2 }).classify("a"), { code: "overloaded", retryAfterMs: 100 });
  assert.equal(requests.length, 3);
  for (const [index, { at }] of requests.slice(1).entries()) assert.ok(at - requests[index].at >= 99);
  const later = await wire(t, { status: 503, headers: { "Retry-After": new Date(Date.now() + 60_000).toUTCString() } });
  await assert.rejects(new Client(later.url, { maxRetries: 2 }).classify("a"), { code: "not_ready" });
  assert.equal(later.requests.length, 1, "a minute is more than maxPauseMs");
  const once = await wire(t, { status: 500, body: "broken" });
  await assert.rejects(new Client(once.url, { maxRetries: 2 }).classify("a"), { code: "unexpected_answer" });
  assert.equal(once.requests.length, 1, "what fails is not busy");
});

test("what is sent again is decided by the status alone, as in Python", async (t) => {
  const { statuses, sent_again } = JSON.parse(process.env.RETRIES);
  const own = { headers: { "Content-Type": "application/json" }, body: '{"error": "no", "error_type": "overloaded"}' };
  for (const status of statuses)
    for (const answer of [own, { body: "a proxy's words" }]) {
      const { url, requests } = await wire(t, { status, ...answer });
      await assert.rejects(new Client(url, { maxRetries: 1, maxPauseMs: 1 }).models(), { status });
      assert.equal(requests.length, sent_again.includes(status) ? 2 : 1, `${status} ${answer.body}`);
    }
});

test("a redirect is not followed: neither key nor texts go elsewhere", async (t) => {
  const other = await wire(t, { body: '{"models": []}' });
  for (const status of [301, 302, 303, 307, 308]) {
    const { url, requests } = await wire(t, { status, headers: { Location: other.url } });
    const redirected = new Client(url, { apiKey: "secret" }).classify("a");
    const message = new RegExp(`redirect to ${other.url}, which is not followed`);
    await assert.rejects(redirected, { code: "unexpected_answer", status, message });
    assert.equal(requests.length, 1);
  }
  assert.equal(other.requests.length, 0);
});

test("no answer is an error that says why, and may be tried again", async (t) => {
  const gone = new Client("http://127.0.0.1:1", { maxRetries: 1, maxPauseMs: 10 });
  await assert.rejects(gone.classify("a"), { code: "service_unreachable", status: 0, message: /cannot be reached: / });
  const { url, requests } = await wire(t, { silent: true });
  const impatient = new Client(url, { readTimeoutMs: 20 });
  await assert.rejects(impatient.models(), { code: "no_answer_in_time", message: /did not answer within 20 ms/ });
  assert.ok(requests.length <= 1, "the service may still be at work");
});

test("answers of others are judged by their status", async (t) => {
  for (const [status, code] of JSON.parse(process.env.CODES_BY_STATUS)) {
    const { url } = await wire(t, { status, body: `<h1>${"proxy ".repeat(100)}</h1>` });
    const error = await new Client(url, { maxRetries: 0 }).models().catch((one) => one);
    assert.deepEqual([error.code, error.status, error.message.length < 300], [code, status, true]);
  }
  const { url } = await wire(t, { body: '{"other": 1}' });
  await assert.rejects(new Client(url).classify("a"), { code: "unexpected_answer", status: 200 });
});

test("classes have the members that their declarations have", () => {
  const error = new AttenuatorError("too much", { code: "overloaded" });
  const own = Object.keys(error).filter((name) => name !== "name");
  assert.deepEqual(declared("AttenuatorError"), new Set(own));
  const members = [...Object.getOwnPropertyNames(Client.prototype), ...Object.keys(client)];
  assert.deepEqual([...declared("Client")].sort(), members.sort());
});
