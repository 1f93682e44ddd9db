/**
 * Trains the folders that `export_training` of the Python package onnxtrain-sklearn writes, in any JavaScript runtime.
 *
 * The module depends on nothing: give it onnxruntime-node or onnxruntime-web, and a function that reads a file.
 *
 *     const trainer = await Trainer.load(ort, (name) => readFile(`digits/${name}`));
 *     const losses = await trainer.epoch({ X, y: trainer.encode(labels) }, { learningRate: 0.001 });
 *
 * @module onnxtrain
 */

/** @typedef {Float32Array | Float64Array | BigInt64Array} Numbers */
/** @typedef {ArrayLike<number> | ArrayLike<bigint> | ArrayLike<string>} Values Texts where the type of the input is "string". */
/** @typedef {Record<string, Values>} Rows Rows of each input and of the target by name, one row after the other. */
/** @typedef {(step: number) => number} Schedule A number for each step; the first step is 0. */
/** @typedef {number | Schedule} Rate */
/** @typedef {{learningRate: Rate, weightDecayFactor?: Rate, dropoutFactor?: Rate}} Rates The factors belong to schedules of the estimator. */
/** @typedef {{type: string, data: Numbers, dims: readonly number[]}} Tensor A tensor of onnxruntime. */
/** @typedef {{type: string, data: Numbers | string[], dims: readonly number[]}} Prediction A tensor, of texts where the labels are texts. */

import { filled, labelWeights, product, readTensors, typed, withOwnWeights, writeTensors } from "./arrays.mjs";

const FORMAT = "onnxtrain-sklearn training";
const VERSION = 1;
const RATES = { learning_rate: "learningRate", weight_decay_factor: "weightDecayFactor", dropout_factor: "dropoutFactor" };

/** A model in training. */
export class Trainer {
  /**
   * Read a folder of training graphs; throw where a file has changed, or a graph keeps its weights in another file.
   *
   * @param {any} ort The module of onnxruntime.
   * @param {(name: string) => Promise<Uint8Array>} read Reads a file of the folder.
   * @param {object} [options] Options of onnxruntime's sessions, such as `{ executionProviders: ["webgpu"] }`.
   * @returns {Promise<Trainer>}
   */
  static async load(ort, read, options = {}) {
    const manifest = JSON.parse(new TextDecoder().decode(await read("manifest.json")));
    if (manifest.format !== FORMAT || manifest.version !== VERSION) {
      throw new Error(`manifest.json is of ${manifest.format}, version ${manifest.version}; this module reads ${FORMAT}, version ${VERSION}.`);
    }
    /** @type {Record<string, any>} */ const sessions = {};
    for (const [name, graph] of Object.entries(manifest.graphs)) {
      const content = await checked(manifest, graph.file, await read(plain(graph.file)));
      sessions[name] = await ort.InferenceSession.create(withOwnWeights(graph.file, content), options);
    }
    const trainer = new Trainer(ort, manifest, sessions);
    trainer.loadState(await checked(manifest, manifest.state.file, await read(plain(manifest.state.file))));
    return trainer;
  }

  /** @param {any} ort @param {any} manifest @param {Record<string, any>} sessions */
  constructor(ort, manifest, sessions) {
    this.ort = ort;
    this.manifest = manifest;
    this.sessions = sessions;
    /** @type {Record<string, Tensor>} Weights, optimizer state and number of steps. */
    this.state = {};
  }

  /**
   * Return labels as the target of the graphs.
   *
   * @param {ArrayLike<string | number | bigint | boolean>} labels One for each row, of the classes of the manifest; numbers of a regression.
   * @param {string} [output] The output that they belong to, where several are trained.
   * @returns {Numbers}
   */
  encode(labels, output) {
    const { classes, kind, input } = this.#target(output);
    const { type } = this.#fact(this.manifest.graphs.epoch ? "epoch" : "step", input);
    if (kind === "number") return typed(type, labels);
    if (!kind.startsWith("class index") || kind.includes("position")) {
      throw new Error(`The target holds "${kind}": give these numbers yourself.`);
    }
    const places = new Map(classes.map((/** @type {any} */ label, /** @type {number} */ i) => [label, i]));
    const unknown = Array.from(labels).find((label) => !places.has(label));
    if (unknown !== undefined) throw new Error(`The label ${unknown} is not among the classes: ${classes}.`);
    return typed(type, Array.from(labels, (label) => places.get(label)));
  }

  /**
   * Return what the rows weigh where several outputs are trained: for `rows`, the inputs of the weights by output.
   *
   * Call it once for all rows, before they are cut into minibatches: weights are divided by their mean over the rows
   * that count for any output. Weights that are the same for all outputs are those of the rows. A row of weight
   * zero has no label for the output. The weights of classes, and labels at positions that do not count, are part of it.
   *
   * @param {Rows} rows The targets, by the names of their inputs.
   * @param {Record<string, ArrayLike<number>>} [sampleWeight] Weights by output; 1 for those that it does not name.
   * @returns {Rows} To be added to the rows.
   */
  weights(rows, sampleWeight = {}) {
    const { targets = [], inputs } = this.manifest;
    const unknown = Object.keys(sampleWeight).find((name) => !targets.some((/** @type {any} */ one) => one.output === name));
    if (unknown !== undefined) throw new Error(`There is no output ${unknown} that is trained.`);
    if (targets.length === 0) return {};
    /** @type {number[][]} */ const weights = targets.map((/** @type {any} */ one) => {
      const count = rows[one.input].length / product(this.#fact("step", one.input).shape.slice(1));
      return labelWeights(one.label_weights, rows[one.input], count).map((weight, i) => weight * Number(sampleWeight[one.output]?.[i] ?? 1));
    });
    const [first] = weights, alike = weights.every((own) => own.every((weight, i) => weight === first[i]));
    const counted = first.filter((_, i) => weights.some((own) => own[i] > 0)).length;
    const factors = weights.map((own) => {
      const mean = own.reduce((total, weight) => total + weight, 0) / counted;
      return Float32Array.from(own, (weight) => (alike ? 1 : mean > 0 ? weight / mean : 0));
    });
    const found = Object.fromEntries(targets.map((/** @type {any} */ one, /** @type {number} */ i) => [one.weight_input, factors[i]]));
    return alike ? { ...found, [inputs.sample_weight]: Float32Array.from(first) } : found;
  }

  /**
   * Take one step on a minibatch of at most `batch_size` rows; return its loss.
   *
   * @param {Rows} rows
   * @param {Rates & {sampleWeight?: Values, random?: () => number}} options
   * @returns {Promise<number>}
   */
  async step(rows, { sampleWeight, random, ...rates }) {
    const { batch_size: batch, inputs, padding } = this.manifest;
    const count = this.#count("step", rows, sampleWeight);
    if (count > batch || (count < batch && !padding)) throw new Error(`A step takes ${batch} rows, got ${count}.`);
    const { [inputs.sample_weight]: own, ...data } = this.#weighted(rows, count, sampleWeight);
    const weights = Array.from({ length: batch }, (_, i) => (i < count ? Number(own[i]) : 0));
    /** @type {Record<string, Tensor>} */
    const feeds = { ...this.state, ...this.#rates("step", 1, rates), ...this.#draws("step", 1, random) };
    for (const [name, values] of Object.entries(data)) feeds[name] = this.#tensor("step", name, filled(values, count, batch));
    feeds[inputs.sample_weight] = this.#tensor("step", inputs.sample_weight, weights);
    return Number((await this.#run("step", feeds))[0]);
  }

  /**
   * Train on all rows once, in one run; return the loss of each minibatch. Rows of weight zero are in none.
   *
   * @param {Rows} rows
   * @param {Rates & {order?: ArrayLike<number>, sampleWeight?: Values, random?: () => number}} options
   *     Without `order`, the order is drawn by `random`, and without both it is that of the rows; where the estimator has
   *     `drop_last`, the last rows of it that do not fill a minibatch are then left out. A given `order` is taken whole.
   *     Where `padding` of the manifest is false, rows meet within a minibatch, and there are to be whole steps only.
   * @returns {Promise<Float32Array | Float64Array>}
   */
  async epoch(rows, { order, sampleWeight, random, ...rates }) {
    const { batch_size: batch, inputs, padding, hyperparameters: known } = this.manifest;
    const count = this.#count("epoch", rows, sampleWeight), group = known.accumulate ?? 1;
    const minibatch = batch % group ? batch : batch / group; // a step of no whole number of minibatches is one
    const data = this.#weighted(rows, count, sampleWeight), counted = this.#counted(data, count);
    const sequence = Array.from(order ?? (random ? permutation(counted.length, random).map((i) => counted[i]) : counted));
    if (known.drop_last && !order && counted.length > minibatch) sequence.length -= counted.length % minibatch;
    if (!padding && sequence.length % batch) {
      throw new Error(`Rows meet within a minibatch of this graph, so a short one cannot be filled up: give a multiple of ${batch} rows whose weight is not zero, got ${sequence.length}.`);
    }
    const steps = Math.ceil(sequence.length / batch);
    const places = Array.from({ length: steps * batch }, (_, i) => sequence[i] ?? -1);
    /** @type {Record<string, Tensor>} */
    const feeds = { ...this.state, ...this.#rates("epoch", steps, rates), ...this.#draws("epoch", steps, random) };
    for (const [name, values] of Object.entries(data)) feeds[name] = this.#tensor("epoch", name, values);
    feeds[inputs.order] = this.#tensor("epoch", inputs.order, places);
    return /** @type {Float32Array | Float64Array} */ (await this.#run("epoch", feeds));
  }

  /**
   * Return the outputs of the graph that predicts, by name, as tensors.
   *
   * @param {Rows} rows
   * @returns {Promise<Record<string, Prediction>>}
   */
  async predict(rows) {
    /** @type {Record<string, Tensor>} */ const feeds = {};
    for (const { name, role } of this.manifest.graphs.predict.inputs) {
      feeds[name] = role === "state" ? this.state[name] : this.#tensor("predict", name, rows[name]);
    }
    return this.sessions.predict.run(feeds);
  }

  /** Return the state as a file of safetensors, which `load_state` of the estimator reads. @returns {Uint8Array} */
  saveState() {
    const tensors = this.manifest.state.tensors.map((/** @type {any} */ { name, type, shape }) => ({ name, type, shape, data: this.state[name].data }));
    const { constants } = this.manifest;
    return writeTensors(tensors, { format: FORMAT, version: String(VERSION), ...(constants && { constants: JSON.stringify(constants) }) });
  }

  /** Set the state from a file of safetensors; throw where it belongs to another model. @param {Uint8Array} file */
  loadState(file) {
    const tensors = readTensors(file);
    /** @type {Record<string, Tensor>} */ const state = {};
    for (const { name, type, shape } of this.manifest.state.tensors) {
      const found = tensors[name];
      if (!Object.hasOwn(tensors, name) || !Array.isArray(shape) || String(found.shape) !== String(shape)) {
        throw new Error(`The state has ${name} of shape [${found ? found.shape : "none"}], the graphs have [${shape}]: it belongs to another model.`);
      }
      if (`${type[0].toUpperCase()}${type.slice(1)}Array` !== found.data.constructor.name.replace("BigInt", "Int")) throw new Error(`The state has ${name} as ${found.data.constructor.name}, the graphs as ${type}.`);
      state[name] = new this.ort.Tensor(type, found.data, shape);
    }
    this.state = state;
  }

  /** @param {string | undefined} output */
  #target(output) {
    const { target, targets, classes } = this.manifest;
    if (!targets) return { ...target, classes };
    const found = targets.find((/** @type {any} */ one) => one.output === output);
    if (!found) throw new Error(`Name the output: ${targets.map((/** @type {any} */ one) => one.output)}.`);
    return found;
  }

  /**
   * Return the rows with their weights and those of several outputs, which are 1 where nothing weighs.
   *
   * @param {Rows} rows @param {number} count @param {Values | undefined} sampleWeight @returns {Rows}
   */
  #weighted(rows, count, sampleWeight) {
    const found = { ...rows }, weight = this.manifest.inputs.sample_weight;
    for (const { weight_input: name, label_weights: known } of this.manifest.targets ?? []) {
      if (!found[name] && known) throw new Error(`The labels have weights: add trainer.weights(rows) to the rows.`);
      found[name] ??= new Float32Array(count).fill(1);
    }
    const own = found[weight]; // of `weights`, where those of all outputs are the same
    found[weight] = Array.from({ length: count }, (_, i) => Number(sampleWeight?.[i] ?? 1) * Number(own?.[i] ?? 1));
    return found;
  }

  /** Return the rows whose weight is not zero, as the estimator does. @param {Rows} data @param {number} count @returns {number[]} */
  #counted(data, count) {
    const { inputs, target, targets } = this.manifest;
    const several = (targets ?? []).map((/** @type {any} */ one) => data[one.weight_input]);
    const labels = target?.label_weights ? labelWeights(target.label_weights, data[target.input], count) : null;
    const counts = (/** @type {number} */ i) => (targets ? several.some((/** @type {Values} */ own) => Number(own[i]) > 0) : !labels || labels[i] > 0);
    const found = Array.from({ length: count }, (_, i) => i).filter((i) => Number(data[inputs.sample_weight][i]) > 0 && counts(i));
    if (found.length === 0) throw new Error("All rows have weight zero.");
    return found;
  }

  /** @param {string} graph @param {string} name */
  #fact(graph, name) {
    const fact = this.manifest.graphs[graph].inputs.find((/** @type {any} */ one) => one.name === name);
    if (!fact) throw new Error(`${graph}.onnx has no input ${name}.`);
    return fact;
  }

  /** @param {string} graph @param {string} name @param {ArrayLike<any>} values @returns {Tensor} */
  #tensor(graph, name, values) {
    const { type, shape } = this.#fact(graph, name);
    const inner = product(shape.slice(1));
    const dims = shape.map((/** @type {any} */ size, /** @type {number} */ i) => (i === 0 && typeof size !== "number" ? values.length / inner : size));
    if (product(dims) !== values.length || !dims.every(Number.isInteger)) {
      throw new Error(`${name} has ${values.length} numbers, which are no rows of shape [${shape.slice(1)}].`);
    }
    return new this.ort.Tensor(type, typed(type, values), dims);
  }

  /** @param {string} graph @param {Rows} rows @param {Values | undefined} weights @returns {number} */
  #count(graph, rows, weights) {
    const wanted = this.manifest.graphs[graph].inputs.filter((/** @type {any} */ one) => one.role === "data" || one.role === "target");
    const counts = wanted.map((/** @type {any} */ one) => {
      if (!rows[one.name]) throw new Error(`Give the rows of ${one.name}.`);
      return rows[one.name].length / product(one.shape.slice(1));
    });
    if (new Set(counts).size > 1) throw new Error(`Inputs and target have different numbers of rows: ${counts}.`);
    if (counts[0] === 0) throw new Error("There are no rows.");
    if (weights && weights.length !== counts[0]) throw new Error(`There are ${counts[0]} rows and ${weights.length} numbers of sampleWeight.`);
    return counts[0];
  }

  /** @param {string} graph @param {number} steps @param {Record<string, any>} given @returns {Record<string, Tensor>} */
  #rates(graph, steps, given) {
    const before = Number(this.state[this.manifest.state.tensors.find((/** @type {any} */ one) => one.role === "step").name].data[0]);
    const used = Object.entries(RATES).filter(([role]) => this.manifest.inputs[role]);
    return Object.fromEntries(used.map(([role, option]) => {
      const [name, rate] = [this.manifest.inputs[role], given[option]];
      const rates = Array.from({ length: steps }, (_, i) => (typeof rate === "function" ? rate(before + i) : rate));
      if (!rates.every(Number.isFinite)) throw new Error(`Give ${option}: a number, or a function of the number of the step.`);
      return [name, this.#tensor(graph, name, rates)];
    }));
  }

  /** @param {string} graph @param {number} steps @param {(() => number) | undefined} random @returns {Record<string, Tensor>} */
  #draws(graph, steps, random) {
    /** @type {Record<string, Tensor>} */ const found = {};
    for (const name of this.manifest.random.inputs) {
      if (!random) throw new Error("This model draws random numbers (dropout): give random, such as generator(0).");
      const { shape } = this.#fact(graph, name);
      const dims = shape.map((/** @type {any} */ size) => (typeof size === "string" ? steps : size));
      found[name] = new this.ort.Tensor("float32", Float32Array.from({ length: product(dims) }, () => Math.min(random(), 0.99999994)), dims);
    }
    return found;
  }

  /** Run a training graph, take its new state, and return the losses. @param {string} graph @param {Record<string, Tensor>} feeds @returns {Promise<Numbers>} */
  async #run(graph, feeds) {
    if (!this.sessions[graph]) throw new Error(`There is no ${graph}.onnx: export with form="both".`);
    const results = await this.sessions[graph].run(feeds);
    const { name } = this.manifest.graphs[graph].outputs.find((/** @type {any} */ one) => one.role.startsWith("loss"));
    const losses = results[name].data;
    if (!losses.every(Number.isFinite)) throw new Error("The loss became NaN or infinite; the state is as before. Take a smaller learning rate, and rows without NaN.");
    for (const { name: one, output } of this.manifest.state.tensors) this.state[one] = results[output];
    return losses;
  }
}

/** Return a generator of uniform numbers of [0, 1) (mulberry32). @param {number} seed @returns {() => number} */
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Return the numbers below `count` in a random order. @param {number} count @param {() => number} random */
export function permutation(count, random) {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/** A learning rate that falls from `rate` to 0 by half a cosine. @param {number} rate @param {number} steps @returns {Schedule} */
export const cosine = (rate, steps) => (step) => (rate * (1 + Math.cos((Math.PI * Math.min(step, steps)) / steps))) / 2;

/** Return the name of a file in the folder itself. @param {any} name @returns {string} */
function plain(name) {
  if (typeof name !== "string" || !name || name === "." || name === ".." || /[/\\:\0%]/.test(name)) throw new Error(`manifest.json names the file ${JSON.stringify(name)}, which is not in the folder itself.`);
  return name;
}

/** @param {any} manifest @param {string} name @param {Uint8Array} content @returns {Promise<Uint8Array>} */
async function checked(manifest, name, content) {
  if (!manifest.files[name]) throw new Error(`manifest.json has no SHA-256 of ${name}.`);
  const digest = await globalThis.crypto?.subtle?.digest("SHA-256", /** @type {BufferSource} */ (content)); // browsers have it on secure pages
  const text = digest && Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (text && text !== manifest.files[name].sha256) throw new Error(`${name} has changed: its SHA-256 is not that of manifest.json.`);
  return content;
}

export { readTensors };
