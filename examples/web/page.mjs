// Trains digits, and the visitor's own drawings, by onnxruntime-web from the npm package. ?folder=... holds the data, and
// ?provider=webgpu trains on the graphics processor.
import { Trainer, generator } from "../../js/onnxtrain.mjs";

const element = (id) => document.getElementById(id);
const say = (text) => { element("status").textContent = text; };
const parameters = new URLSearchParams(location.search);
const provider = parameters.get("provider") ?? "wasm";
const ort = await import(`../../build/web/node_modules/onnxruntime-web/dist/ort.${provider}.bundle.min.mjs`);
const folder = parameters.get("folder") ?? "../../build/web/page";
const read = async (name) => {
  const answer = await fetch(`${folder}/${name}`);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
};

ort.env.wasm.numThreads = 1; // several need a page that is isolated from other origins
const trainer = await Trainer.load(ort, (name) => read(`digits/${name}`), { executionProviders: [provider] }).catch((error) => { say(error.message); throw error; });
let pixels = Array.from(new Float32Array((await read("X.float32")).buffer));
let labels = Array.from(new Int32Array((await read("y.int32")).buffer));
const random = parameters.has("inorder") ? undefined : generator(0);
const losses = [];

async function train() {
  enable(false);
  for (let epoch = 1; epoch <= 5; epoch++) {
    const rows = { X: Float32Array.from(pixels), y: trainer.encode(labels) };
    const started = performance.now();
    losses.push(...(await trainer.epoch(rows, { learningRate: 0.001, random })));
    const steps = Math.ceil(labels.length / trainer.manifest.batch_size);
    const time = ((performance.now() - started) * 1000) / steps;
    say(`Epoch ${epoch}: loss ${losses.at(-1).toFixed(3)}, ${time.toFixed(0)} µs a step.`);
    drawCurve();
    await new Promise(requestAnimationFrame);
  }
  const { label } = await trainer.predict({ X: Float32Array.from(pixels) });
  const right = Array.from(label.data).filter((found, i) => Number(found) === labels[i]).length;
  say(`Trained: ${((100 * right) / labels.length).toFixed(1)} % of ${labels.length} digits are recognized.`);
  enable(true);
}

function drawCurve() {
  const canvas = element("curve"), pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.beginPath();
  losses.forEach((loss, i) => pen.lineTo((i / losses.length) * canvas.width, canvas.height * (1 - loss / 2.6)));
  pen.strokeStyle = "#06c";
  pen.stroke();
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([trainer.saveState()]));
  link.download = "trained.safetensors";
  link.click();
}

async function load(event) {
  try {
    trainer.loadState(new Uint8Array(await event.target.files[0].arrayBuffer()));
    say("The state is loaded: training goes on from it.");
  } catch (error) {
    say(error.message);
  }
}

const drawing = element("drawn").getContext("2d", { willReadFrequently: true });
drawing.fillStyle = drawing.strokeStyle = "white";
const clear = () => { drawing.fillStyle = "black"; drawing.fillRect(0, 0, 8, 8); };
element("drawn").addEventListener("pointermove", ({ buttons, offsetX, offsetY, target }) => {
  if (!buttons) return;
  drawing.fillStyle = "rgba(255, 255, 255, 0.6)";
  drawing.fillRect(Math.floor((8 * offsetX) / target.clientWidth), Math.floor((8 * offsetY) / target.clientHeight), 1, 1);
});
const drawn = () => Float32Array.from({ length: 64 }, (_, i) => drawing.getImageData(0, 0, 8, 8).data[4 * i] / 255);

async function guess() {
  const { label, probabilities } = await trainer.predict({ X: drawn() });
  say(`This is a ${label.data[0]} (${(100 * Math.max(...probabilities.data)).toFixed(0)} %).`);
}

function add() {
  for (let copy = 0; copy < 20; copy++) { // one drawing among many digits would count little
    pixels.push(...drawn());
    labels.push(Number(element("label").value));
  }
  say(`${labels.length} digits: train again to learn yours.`);
}

function enable(on) {
  for (const id of ["train", "save", "load", "guess", "add"]) element(id).disabled = !on;
}

for (const digit of trainer.manifest.classes) element("label").append(new Option(digit));
for (const [id, action] of Object.entries({ train, save, guess, add, clear })) element(id).addEventListener("click", action);
element("load").addEventListener("change", load);
clear();
say(`Ready: ${labels.length} digits, ${trainer.manifest.state.tensors[0].shape[0]} weights.`);
enable(true);
window.trainer = trainer; // for the console, and for tests
