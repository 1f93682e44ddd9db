// Times training steps: node web_steps.mjs RUNTIME MODULES FOLDER CASES SECONDS. RUNTIME is onnxruntime-node,
// onnxruntime-web, tfjs-cpu or tfjs-wasm; CASES is JSON. Prints the least microseconds of CPU time a step by case and form as JSON.
import { createRequire } from "node:module";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

import { Trainer } from "../js/onnxtrain.mjs";

const [runtime, modules, folder, cases, seconds] = process.argv.slice(2);
const RATE = 0.001;

/** CPU time of this process in microseconds: other programs on the machine do not count. */
const spent = () => Object.values(process.cpuUsage()).reduce((total, part) => total + part);

/** Return the least microseconds a step of several runs, each of so many steps; the first run is not counted. */
async function least(steps, run) {
  const begin = performance.now();
  let best = Infinity;
  for (let i = 0; i < 2 || performance.now() - begin < 1000 * Number(seconds); i++) {
    const started = spent();
    await run();
    if (i) best = Math.min(best, (spent() - started) / steps);
  }
  return best;
}

function data({ sizes, batch, steps }) {
  const n = batch * steps;
  const X = Float32Array.from({ length: n * sizes[0] }, (_, i) => Math.sin(i * 12.9898) * 2);
  const labels = Int32Array.from({ length: n }, (_, i) => (i * 7919) % sizes.at(-1));
  return { X, labels, n };
}

async function ours(ort, name, one) {
  const trainer = await Trainer.load(ort, (file) => readFile(`${folder}/${name}/${file}`), { intraOpNumThreads: 1 });
  const { X, labels } = data(one);
  const rows = { X, y: trainer.encode(labels) };
  const width = one.sizes[0];
  const step = await least(one.steps, async () => {
    for (let start = 0; start < one.steps * one.batch; start += one.batch) {
      const end = start + one.batch;
      await trainer.step({ X: X.subarray(start * width, end * width), y: rows.y.subarray(start, end) }, { learningRate: RATE });
    }
  });
  const epoch = await least(one.steps, () => trainer.epoch(rows, { learningRate: RATE }));
  return { steps: step, epoch };
}

async function theirs(tf, one) {
  const { X, labels, n } = data(one);
  const [width, classes] = [one.sizes[0], one.sizes.at(-1)];
  const model = tf.sequential();
  one.sizes.slice(1, -1).forEach((units, i) => model.add(tf.layers.dense({ units, activation: "relu", ...(i ? {} : { inputShape: [width] }) })));
  const binary = classes === 2; // one score, as ours
  model.add(tf.layers.dense({ units: binary ? 1 : classes, activation: binary ? "sigmoid" : "softmax" }));
  model.compile({ optimizer: tf.train.adam(RATE), loss: binary ? "binaryCrossentropy" : "categoricalCrossentropy" });
  const targets = () => (binary ? tf.tensor2d(labels, [n, 1]) : tf.oneHot(tf.tensor1d(labels, "int32"), classes)).toFloat();
  const [xs, ys] = [tf.tensor2d(X, [n, width]), tf.tidy(targets)];
  const pieces = Array.from({ length: one.steps }, (_, i) => [xs, ys].map((all) => all.slice([i * one.batch, 0], [one.batch, -1])));
  const step = await least(one.steps, async () => {
    for (const [x, y] of pieces) await model.trainOnBatch(x, y);
  });
  const epoch = await least(one.steps, () => model.fit(xs, ys, { epochs: 1, batchSize: one.batch, shuffle: false, verbose: 0, yieldEvery: "never" }));
  return { steps: step, epoch };
}

const path = (name) => pathToFileURL(`${modules}/${name}`).href;
async function backend() {
  const require = createRequire(`${modules}/`);
  const tf = require(`${modules}/@tensorflow/tfjs/dist/tf.node.js`);
  if (runtime === "tfjs-wasm") {
    const wasm = require(`${modules}/@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.node.js`);
    wasm.setWasmPaths(`${modules}/@tensorflow/tfjs-backend-wasm/dist/`);
    wasm.setThreadsCount(1);
  }
  await tf.setBackend(runtime.slice("tfjs-".length));
  await tf.ready();
  return tf;
}

const found = {};
if (runtime.startsWith("tfjs")) console.warn = () => {}; // it advertises another package
const tf = runtime.startsWith("tfjs") ? await backend() : null;
const file = { "onnxruntime-node": "onnxruntime-node/dist/index.js", "onnxruntime-web": "onnxruntime-web/dist/ort.node.min.js" }[runtime];
const ort = tf ? null : await import(path(file));
if (runtime === "onnxruntime-web") ort.env.wasm.numThreads = 1;
for (const [name, one] of Object.entries(JSON.parse(cases))) found[name] = tf ? await theirs(tf, one) : await ours(ort, name, one);
console.log(JSON.stringify(found));
