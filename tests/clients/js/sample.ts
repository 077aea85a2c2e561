// Checked by the compiler alone: what a program may write, and what the types must refuse.
import { AttenuatorError, Client, type Classification, type Input, type ModelInfo, type Ranking } from "attenuator-client";

const client = new Client("http://127.0.0.1:8000", { apiKey: "key", maxRetries: 2 });

export async function used(signal: AbortSignal): Promise<void> {
  const pairs: readonly Input[] = ["a", { text: "a", text_pair: "b" }, { token_ids: [1, 2] }];
  const answer: Classification = await client.classify(pairs, { num_hashes: 8, seed: null, priority: "batch", signal });
  const score: number | undefined = answer.predictions[0]?.scores?.[0]?.score;
  const agreement: number = answer.expected_agreement ?? Number.NaN;
  const models: readonly ModelInfo[] = await client.models({ signal });
  const best: number | undefined = models[0]?.calibration?.buckets[0]?.settings[0];
  for await (const one of client.classifyMany(new Set(["a"]), { concurrency: 2, keep: 0.5 })) one.tokens.length;
  for await (const one of client.classifyMany(pairs, { returnErrors: true })) {
    if (one instanceof AttenuatorError) console.log(one.code === "knob_out_of_range", one.field?.length);
    else console.log(one.predictions.length);
  }
  const ranking: Ranking = await client.rerank("a", ["b", { text: "c" }], { top_n: 1, keep: 0.5, rescore: 3, signal });
  const relevance: number | undefined = ranking.results[0]?.relevance_score;
  const second: number | undefined = ranking.steps[1]?.documents;
  console.log(score, agreement, best, relevance, second);

  // @ts-expect-error: there is no such field
  await client.classify("a", { num_hash: 8 });
  // @ts-expect-error: a knob is a number
  await client.classify("a", { num_hashes: "8" });
  // @ts-expect-error: not one of the classes
  await client.classify("a", { priority: "urgent" });
  // @ts-expect-error: documents are no pairs
  await client.rerank("a", [{ text: "b", text_pair: "c" }]);
  // @ts-expect-error: documents are not an option
  await client.rerank("a", ["b"], { documents: ["c"] });
  // @ts-expect-error: a text is missing
  await client.classify([{ text_pair: "b" }]);
  // @ts-expect-error: may be missing
  answer.expected_agreement.toFixed();
  // @ts-expect-error: answers do not change
  answer.predictions.push();
  // @ts-expect-error: inputs are not an option
  await client.classify("a", { inputs: "b" });
}
