// Trains digits, and the visitor's own rows, by onnxruntime-web from the npm package. ?folder=... holds the data, and
// ?provider=webgpu trains on the graphics processor.
import { Trainer, generator } from "../../js/onnxtrain.mjs";
import { drawnRow, clearDrawing, showChances, showCurve, startDrawing } from "./drawing.mjs";

const element = (id) => document.getElementById(id);
const say = (text, error = false) => {
  element("status").textContent = text;
  element("status").className = error ? "error" : "";
};
const parameters = new URLSearchParams(location.search);
const provider = parameters.get("provider") ?? "wasm";
const folder = parameters.get("folder") ?? "../../build/web/page";
const random = parameters.has("inorder") ? undefined : generator(0);
const losses = [];
let trainer, pixels, labels, width;

async function read(name) {
  const answer = await fetch(`${folder}/${name}`);
  if (!answer.ok) throw new Error(`${folder}/${name} cannot be read (${answer.status}): write it by python examples/node/make_digits.py.`);
  return new Uint8Array(await answer.arrayBuffer());
}

async function start() {
  const path = `../../build/web/node_modules/onnxruntime-web/dist/ort.${provider}.bundle.min.mjs`;
  const ort = await import(path).catch(() => { throw new Error(`${path} cannot be read: install it by make build/web/.installed.`); });
  ort.env.wasm.numThreads = 1; // several need a page that is isolated from other origins
  trainer = await Trainer.load(ort, (name) => read(`digits/${name}`), { executionProviders: [provider] });
  pixels = Array.from(new Float32Array((await read("X.float32")).buffer));
  labels = Array.from(new Int32Array((await read("y.int32")).buffer));
  width = pixels.length / labels.length;
  for (const digit of trainer.manifest.classes) element("label").append(new Option(digit));
  element("width").textContent = `${width} numbers of 0 to 1`;
  say(`Ready: ${labels.length} digits of ${width} pixels, ${trainer.manifest.state.tensors[0].shape[0]} weights, which know nothing yet.`);
  window.trainer = trainer; // for the console, and for tests
}

async function train() {
  const rows = { X: Float32Array.from(pixels), y: trainer.encode(labels) };
  const learningRate = element("rate").valueAsNumber;
  if (!(learningRate > 0)) throw new Error("Give a learning rate, such as 0.001.");
  for (let epoch = 1; epoch <= 5; epoch++) {
    const started = performance.now();
    const found = await trainer.epoch(rows, { learningRate, random });
    losses.push(...found);
    const time = ((performance.now() - started) * 1000) / found.length;
    say(`Epoch ${epoch} of 5: loss ${losses.at(-1).toFixed(3)}, ${time.toFixed(0)} µs a step.`);
    showCurve(element("curve"), losses);
    await new Promise(requestAnimationFrame);
  }
  const { label } = await trainer.predict({ X: rows.X });
  const right = Array.from(label.data).filter((found, i) => Number(found) === labels[i]).length;
  say(`Trained: ${((100 * right) / labels.length).toFixed(1)} % of ${labels.length} digits are recognized. Draw one, or train on.`);
  await recognize();
}

async function recognize() {
  const row = drawnRow(element("drawn"));
  if (!row) return;
  const { label, probabilities } = await trainer.predict({ X: row });
  const chances = Array.from(probabilities.data);
  showChances(element("chances"), trainer.manifest.classes, chances);
  element("answer").textContent = `This is a ${label.data[0]} (${(100 * Math.max(...chances)).toFixed(0)} %).`;
}

async function add() {
  const row = drawnRow(element("drawn"));
  if (!row) throw new Error("Draw a digit first.");
  const label = Number(element("label").value);
  for (let copy = 0; copy < 20; copy++) { // one drawing among many digits would count little
    pixels.push(...row);
    labels.push(label);
  }
  say(`Your ${label} is among ${labels.length} digits, 20 times: train again to learn it.`);
}

async function addRows({ target }) {
  const lines = (await target.files[0].text()).split(/\r?\n/).filter((line) => line.trim());
  if (!lines.length) throw new Error(`${target.files[0].name} is empty.`);
  const rows = lines.map((line) => line.split(/[,;\t]/).map((cell) => (cell.trim() ? Number(cell) : NaN)));
  if (rows.length > 1 && rows[0].some(Number.isNaN) && !rows[1].some(Number.isNaN)) rows[0] = null; // a line of names
  rows.forEach((row, i) => {
    if (!row) return;
    const place = `Line ${i + 1} of ${target.files[0].name}`;
    const bad = row.findIndex(Number.isNaN);
    if (row.length !== width + 1) throw new Error(`${place} has ${row.length} cells: give ${width} numbers and the label.`);
    if (bad >= 0) throw new Error(`${place} holds "${lines[i].split(/[,;\t]/)[bad].trim()}", which is no number.`);
    if (row.slice(0, width).some((value) => value < 0 || value > 1)) throw new Error(`${place} holds numbers outside 0 to 1.`);
    if (!trainer.manifest.classes.includes(row[width])) throw new Error(`${place} has the label ${row[width]}, which is no digit.`);
  });
  for (const row of rows.filter(Boolean)) {
    pixels.push(...row.slice(0, width));
    labels.push(row[width]);
  }
  say(`${rows.filter(Boolean).length} rows were added to ${labels.length - rows.filter(Boolean).length}: train again to learn them.`);
}

async function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([trainer.saveState()]));
  link.download = "trained.safetensors";
  link.click();
  URL.revokeObjectURL(link.href);
}

async function load({ target }) {
  trainer.loadState(new Uint8Array(await target.files[0].arrayBuffer()));
  say("The state is loaded: training goes on from it.");
  await recognize();
}

/** Run an action with the controls off, and tell what goes wrong. */
async function run(action, event) {
  enable(false);
  try {
    await action(event);
  } catch (error) {
    say(error.message, true);
  }
  if (event?.target.type === "file") event.target.value = ""; // the same file can be chosen again
  enable(Boolean(trainer && labels));
}

function enable(on) {
  for (const id of ["train", "save", "load", "rows", "add"]) element(id).disabled = !on;
}

for (const [id, action] of Object.entries({ train, save, add })) element(id).addEventListener("click", (event) => run(action, event));
for (const [id, action] of Object.entries({ load, rows: addRows })) element(id).addEventListener("change", (event) => event.target.files.length && run(action, event));
element("clear").addEventListener("click", () => clearDrawing(element("drawn"), element("chances"), element("answer")));
startDrawing(element("drawn"), () => trainer && labels && recognize());
addEventListener("resize", () => showCurve(element("curve"), losses));
showCurve(element("curve"), losses);
run(start);
