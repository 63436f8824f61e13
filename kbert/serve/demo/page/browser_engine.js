// Answers in this browser: kbert's tokenizer in JavaScript, and the model by ONNX Runtime. Nothing
// but the files beside this one is fetched.
import * as ort from "./ort.wasm.min.mjs";
import {WordPiece} from "./wordpiece.js";

const TOP_K = 8;
const here = name => new URL(name, import.meta.url).href;

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send
ort.env.wasm.wasmPaths = here("./");

async function fetched(name) {
  const response = await fetch(here(name));
  if (!response.ok) throw new Error(`The file ${name} of this page does not load.`);
  return response;
}

const loading = fetched("site.json").then(response => response.json());
const starting = fetched("model.onnx").then(response => response.arrayBuffer())
  .then(model => ort.InferenceSession.create(model, {executionProviders: ["wasm"]}));
starting.catch(() => {}); // whoever asks is told

let tokenizer;
let last = Promise.resolve(); // the runtime computes one after the other

// Token ids and segments of one text or two, [CLS] and [SEP] around them.
function rowOf(site, texts, most) {
  tokenizer ??= new WordPiece(site.tokenizer);
  const {cls, sep, mask} = site.ids;
  const ids = [cls], segments = [0];
  texts.forEach((text, segment) => {
    text.split(site.about.models[0].mask).forEach((part, place) => {
      if (place) ids.push(mask);
      ids.push(...tokenizer.encode(part));
    });
    ids.push(sep);
    while (segments.length < ids.length) segments.push(segment);
  });
  if (ids.length > most)
    throw new Error(`A text has ${most} tokens at most here. Received: ${ids.length}`);
  return {ids, segments};
}

function run({ids, segments}, positions, output, signal) {
  const tensor = values =>
    new ort.Tensor("int32", Int32Array.from(values), [1, values.length]);
  const computed = last.then(async () => {
    const session = await starting;
    signal.throwIfAborted();
    const found = await session.run({
      token_ids: tensor(ids), segment_ids: tensor(segments),
      padding_mask: tensor(ids.map(() => 1)), mask_positions: tensor(positions),
    }, [output]);
    return found[output];
  });
  last = computed.catch(() => {});
  return computed;
}

function best(probabilities, vocabulary) {
  const ids = Array.from(probabilities.keys());
  ids.sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  return ids.slice(0, TOP_K)
    .map(id => ({token: vocabulary[id], probability: probabilities[id]}));
}

// As base64, in steps of 1/255: what `drawAttention` takes.
function packed(weights) {
  let text = "";
  for (const weight of weights) text += String.fromCharCode(Math.round(255 * weight));
  return btoa(text);
}

const ABILITIES = {
  async fill_mask(site, {text}, signal) {
    const row = rowOf(site, [text], site.longest);
    const places = row.ids.flatMap((id, place) => id === site.ids.mask ? [place] : []);
    if (!places.length) return {masks: []};
    const {data, dims} = await run(row, places, "probabilities", signal);
    return {masks: places.map((_, mask) =>
      best(data.subarray(mask * dims[2], (mask + 1) * dims[2]), site.tokenizer.vocabulary))};
  },

  async next_sentence(site, {first, second}, signal) {
    const row = rowOf(site, [first, second], site.longest);
    const {data} = await run(row, [0], "next_sentence", signal);
    return {probability: data[0]};
  },

  async attention(site, {texts}, signal) {
    const row = rowOf(site, texts, Math.min(site.longest, site.most_shown));
    const {data, dims: [, layers, heads]} = await run(row, [0], "attention", signal);
    const names = row.ids.map(id => site.tokenizer.vocabulary[id]);
    return {title: "", start: {part: 0, layer: 0, head: heads > 1 ? -1 : 0}, parts: [{
      name: "encoder", titles: site.titles, rows: names, columns: names, layers, heads,
      weights: packed(data),
    }]};
  },
};

export const engine = {
  about: async () => (await loading).about,
  ask: async (ability, row, signal) => ABILITIES[ability](await loading, row, signal),
};
