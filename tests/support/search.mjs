// The first hit of the built site's search for each question, one a line: its own worker runs, as in a browser.
// node search.mjs SITE QUESTION...
import { readFileSync, readdirSync } from "node:fs";
import { runInNewContext } from "node:vm";

const [site, ...questions] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const program = readdirSync(workers).find((name) => name.endsWith(".js"));
let ask, answered;
const browser = {
  addEventListener: (_, listener) => (ask = listener),
  postMessage: (message) => answered(message),
  location: { href: "http://localhost/" },
  console,
  performance,
};
browser.self = browser;
runInNewContext(readFileSync(`${workers}/${program}`, "utf8"), browser);

const [SETUP, QUERY] = [0, 2]; // kinds of messages of Material for MkDocs
const send = (type, data) =>
  new Promise((done) => {
    answered = done;
    ask({ data: { type, data } });
  });
const { config, docs } = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
await send(SETUP, { config, docs, options: {} });
for (const question of questions) {
  const { data } = await send(QUERY, question);
  console.log(data.items.length ? data.items[0][0].location : "nothing");
}
