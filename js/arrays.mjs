/**
 * What onnxtrain.mjs does with arrays: their types, rows of a minibatch, files of safetensors, and weights of models.
 *
 * @module arrays
 */

/** @typedef {import("./onnxtrain.mjs").Numbers} Numbers */
/** @typedef {import("./onnxtrain.mjs").Values} Values */

/** @type {Record<string, any>} */ const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array };
/** @type {Record<string, string>} */ const CODES = { float32: "F32", float64: "F64", int64: "I64" };

/** Return the arrays of a file of safetensors by name; each byte belongs to one of them. @param {Uint8Array} file @returns {Record<string, {data: Numbers, shape: number[]}>} */
export function readTensors(file) {
  try {
    const size = file.length < 8 ? NaN : Number(new DataView(file.buffer, file.byteOffset, file.byteLength).getBigUint64(0, true));
    if (!(size <= file.length - 8)) throw new Error("the header is not whole");
    const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + size)));
    if (typeof header !== "object" || header === null || Array.isArray(header)) throw new Error("the header is no object");
    const { __metadata__, ...entries } = header;
    /** @type {[string, {data: Numbers, shape: number[]}][]} */ const found = [];
    let place = 0;
    const start = (/** @type {any} */ one) => (Array.isArray(one?.data_offsets) ? one.data_offsets : []);
    const sorted = Object.entries(entries).sort(([, a], [, b]) => start(a)[0] - start(b)[0] || start(a)[1] - start(b)[1]);
    for (const [name, entry] of sorted) {
      const { dtype, shape, data_offsets: offsets } = entry ?? {};
      const type = Object.keys(CODES).find((kind) => CODES[kind] === dtype);
      if (!type) throw new Error(`${name} is of another type`);
      if (!areSizes(shape) || !areSizes(offsets) || offsets.length !== 2) throw new Error(`shape or offsets of ${name} are no sizes`);
      const bytes = product(shape) * ARRAYS[type].BYTES_PER_ELEMENT;
      if (offsets[0] !== place || offsets[1] - offsets[0] !== bytes) throw new Error(`${name} takes other bytes than its shape, or those of another one`);
      place = offsets[1];
      const content = new Uint8Array(file.subarray(8 + size + offsets[0], 8 + size + place)); // an aligned copy: slice of Node's Buffer is none
      if (content.length !== bytes) throw new Error(`${name} is not whole`);
      found.push([name, { data: new ARRAYS[type](content.buffer), shape }]);
    }
    if (place !== file.length - 8 - size) throw new Error("there are bytes of no array");
    return Object.fromEntries(found);
  } catch (error) {
    throw new Error(`These ${file.length} bytes are no whole file of safetensors with floats and int64: ${error}.`);
  }
}

/** @param {any} values @returns {boolean} */
const areSizes = (values) => Array.isArray(values) && values.every((one) => Number.isSafeInteger(one) && one >= 0);

/** Return tensors as a file of safetensors, with notes. @param {{name: string, type: string, shape: number[], data: Numbers}[]} tensors @param {Record<string, string>} notes @returns {Uint8Array} */
export function writeTensors(tensors, notes) {
  /** @type {Record<string, any>} */ const header = { __metadata__: notes };
  let end = 0;
  for (const { name, type, shape, data } of tensors) {
    header[name] = { dtype: CODES[type], shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const size = Math.ceil(text.length / 8) * 8;
  const file = new Uint8Array(8 + size + end).fill(32, 8, 8 + size);
  new DataView(file.buffer).setBigUint64(0, BigInt(size), true);
  file.set(text, 8);
  for (const { name, data } of tensors) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + size + header[name].data_offsets[0]);
  }
  return file;
}

/** Fields of ONNX's messages that lead to tensors: what is in the field of this number. @type {Record<string, Record<number, string>>} */
const MESSAGES = {
  model: { 7: "graph", 20: "training", 25: "function" },
  training: { 1: "graph", 2: "graph" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  function: { 7: "node", 11: "attribute" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  sparse: { 1: "tensor", 2: "tensor" },
  tensor: { 13: "place in a file" },
};
const DEEPEST = 100; // as protobuf reads messages
const IN_MODEL = "training graphs hold their weights themselves. Export the folder again.";

/**
 * Throw where a model keeps weights in a file: onnxruntime, which is given bytes, would look for it in the working directory.
 *
 * @param {string} name @param {Uint8Array} file @returns {Uint8Array} The file.
 */
export function withOwnWeights(name, file) {
  let graphs = 0;
  const whole = (/** @type {boolean} */ right) => {
    if (!right) throw new Error(`${name} is no whole model of ONNX: ${IN_MODEL}`);
  };
  /** @param {string} kind @param {number} at @param {number} end @param {number} depth */
  const visit = (kind, at, end, depth) => {
    whole(depth <= DEEPEST);
    const number = () => {
      for (let found = 0, scale = 1; ; scale *= 128) {
        whole(at < end && scale < 2 ** 70);
        const byte = file[at++];
        found += (byte & 127) * scale;
        if (byte < 128) return found;
      }
    };
    while (at < end) {
      const tag = number(), field = Math.floor(tag / 8), wire = tag % 8;
      whole(field > 0 && (wire === 0 || wire === 1 || wire === 2 || wire === 5));
      const size = wire === 1 ? 8 : wire === 5 ? 4 : number(); // of a field of wire type 0: its value
      const inner = wire === 2 ? MESSAGES[kind]?.[field] : undefined;
      if (kind === "tensor" && (inner || (field === 14 && wire === 0 && size !== 0))) throw new Error(`${name} keeps weights in another file: ${IN_MODEL}`);
      if (wire === 0) continue;
      whole(size <= end - at);
      if (inner) visit(inner, at, at + size, depth + 1);
      if (kind === "model" && inner === "graph") graphs += 1;
      at += size;
    }
  };
  visit("model", 0, file.length, 1);
  whole(graphs > 0);
  return file;
}

/** @param {readonly number[]} sizes */
export const product = (sizes) => sizes.reduce((total, size) => total * size, 1);

/**
 * Return what each row weighs by its labels, the mean over its positions; -1 is a label that does not count.
 *
 * @param {number[] | null} known The weight of each class. @param {Values} labels @param {number} count @returns {number[]}
 */
export function labelWeights(known, labels, count) {
  const width = labels.length / count;
  const one = (/** @type {number} */ i) => (known ? (known[Number(labels[i])] ?? 0) : 1);
  return Array.from({ length: count }, (_, row) => Array.from({ length: width }, (_, i) => one(row * width + i)).reduce((a, b) => a + b, 0) / width);
}

/** @param {string} type @param {ArrayLike<any>} values @returns {any} */
export function typed(type, values) {
  if (type === "string") return Array.from(values);
  if (values instanceof ARRAYS[type]) return /** @type {Numbers} */ (values);
  return ARRAYS[type].from(values, type === "int64" ? BigInt : Number);
}

/** Return the rows filled up to a whole minibatch with copies of the first. @param {Values} data @param {number} count @param {number} batch @returns {Values} */
export function filled(data, count, batch) {
  if (count === batch) return data;
  return /** @type {any} */ (data.constructor).from({ length: (data.length / count) * batch }, (/** @type {any} */ _, /** @type {number} */ i) => data[i < data.length ? i : i % (data.length / count)]);
}
