// What users of js/onnxtrain.mjs write in TypeScript: tsc checks it, with the types that the module has in JSDoc.
import * as ort from "onnxruntime-node";
import { readFile } from "node:fs/promises";
import { Trainer, cosine, generator, permutation, readTensors } from "./js/onnxtrain.mjs";

const trainer = await Trainer.load(ort, (name) => readFile(`digits/${name}`), { executionProviders: ["cpu"] });
const X = new Float32Array(64);
const rows = { X, y: trainer.encode(["one", "two"]) };
const losses: Float32Array | Float64Array = await trainer.epoch(rows, { learningRate: cosine(0.1, 3), random: generator(0) });
const loss: number = await trainer.step({ X: [1, 2, 3], y: [1n] }, { learningRate: 0.1, sampleWeight: [1] });
const { label } = await trainer.predict({ X, city: ["rome"] });
const named: string | number | bigint = label.data[0];
const file: Uint8Array = trainer.saveState();
trainer.loadState(file);
const order: number[] = permutation(3, Math.random);
console.log(losses, loss, named, order, readTensors(file).parameters.shape);

// @ts-expect-error The learning rate is missing.
await trainer.epoch(rows, {});
// @ts-expect-error A rate is a number or a function.
await trainer.step(rows, { learningRate: "0.1" });
// @ts-expect-error A schedule returns a number.
await trainer.step(rows, { learningRate: (step) => String(step) });
// @ts-expect-error A state is bytes.
trainer.loadState("trained.safetensors");
// @ts-expect-error Rows are numbers or texts.
await trainer.predict({ X: [true] });
