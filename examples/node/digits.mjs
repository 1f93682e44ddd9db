// Trains digits in Node: node digits.mjs FOLDER [RUNTIME], with onnxruntime-node or onnxruntime-web as the runtime.
//
// FOLDER holds digits/, which export_training wrote, and the rows: X.float32, y.int32. make_digits.py writes them.
import { readFile, writeFile } from "node:fs/promises";

import { Trainer, generator } from "../../js/onnxtrain.mjs";

const [folder, runtime = "onnxruntime-node", order = "shuffled", form = "epoch"] = process.argv.slice(2);
const ort = await import(process.env.ONNXRUNTIME ?? runtime);

const trainer = await Trainer.load(ort, (name) => readFile(`${folder}/digits/${name}`));
const X = new Float32Array(new Uint8Array(await readFile(`${folder}/X.float32`)).buffer); // copies begin at a multiple of 4
const y = new Int32Array(new Uint8Array(await readFile(`${folder}/y.int32`)).buffer);
const rows = { X, y: trainer.encode(y) };

const random = order === "shuffled" ? generator(0) : undefined;
for (let epoch = 1; epoch <= 5; epoch++) {
  const started = performance.now();
  let losses = [];
  if (form === "epoch") {
    losses = await trainer.epoch(rows, { learningRate: 0.001, random });
  } else {
    const batch = trainer.manifest.batch_size;
    for (let start = 0; start < y.length; start += batch) {
      const minibatch = { X: rows.X.subarray(start * 64, (start + batch) * 64), y: rows.y.subarray(start, start + batch) };
      losses.push(await trainer.step(minibatch, { learningRate: 0.001 }));
    }
  }
  const mean = losses.reduce((total, loss) => total + loss, 0) / losses.length;
  const microseconds = ((performance.now() - started) * 1000) / losses.length;
  console.log(`epoch ${epoch}: loss ${mean.toFixed(4)}, ${microseconds.toFixed(0)} microseconds a step`);
}

const { label } = await trainer.predict({ X: rows.X });
const right = Array.from(label.data).filter((found, i) => Number(found) === y[i]).length;
console.log(`accuracy ${(right / y.length).toFixed(3)}`);
await writeFile(`${folder}/trained.safetensors`, trainer.saveState());
