"""Graphs as machine code, beside the reference evaluator of ONNX in float64."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn._compiler.code import BoundCode, graph_code
from onnxtrain_sklearn._compiler.kernels import tile_of
from onnxtrain_sklearn._ort.llvm import features

GUARD = 32
OPSET = 18


def model_of(text, constants, dtype=np.float32):
    """Return a model with the shapes of all values: ``float[]`` in the text is a number, ``float`` has any shape."""
    text = re.sub(r"float(\[\])?(?= )", lambda found: "float" if found[1] else "float[]", text)
    name = "float" if dtype == np.float32 else "double"
    kind = onnx.TensorProto.FLOAT if dtype == np.float32 else onnx.TensorProto.DOUBLE
    graph = onnx.parser.parse_graph(text.replace("float", name).replace("to = 1>", f"to = {kind}>"))
    for key, array in constants.items():
        array = np.asarray(array)
        cast = array.astype(dtype) if array.dtype.kind == "f" else array
        graph.initializer.append(onnx.numpy_helper.from_array(cast, key))
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def code_of(text, constants):
    """Return the compiled graph."""
    return graph_code(ir.from_proto(model_of(text, constants)).graph, tile_of(features()))


def inputs_of(model, rng, draw=None):
    """Return an array for each input of a model."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    draw = draw or (lambda shape: rng.standard_normal(shape))
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.input}
    return {name: np.asarray(draw(shape)).astype(types[name]) for name, shape in shapes.items()}


def exact(text, constants, inputs, dtype=np.float64):
    """Return the results of the reference evaluator."""
    model = model_of(
        text,
        {
            name: np.float32(array) if np.asarray(array).dtype.kind == "f" else array
            for name, array in constants.items()
        },
        dtype,
    )
    given = {name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in inputs.items()}
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, given), strict=True))


def guarded(size, dtype):
    """Return an array between elements that nothing may write, and that show where they are read."""
    kind = np.dtype(dtype).kind
    return np.full(size + 2 * GUARD, np.nan if kind == "f" else kind == "b" or 2**30 + 7, dtype)


class Run:
    """A compiled graph with its arrays; NaN around the arrays must stay, and are not read."""

    def __init__(self, text, constants, inputs):
        self.code = code_of(text, constants)
        types = {**dict.fromkeys([*self.code.inputs, *self.code.outputs], np.float32), **self.code.types}
        self._given = {name: guarded(array.size, array.dtype) for name, array in inputs.items()}
        self.inputs = {name: self._given[name][GUARD:-GUARD].reshape(array.shape) for name, array in inputs.items()}
        self._around = {name: guarded(size, types[name]) for name, size in self.code.outputs.items()}
        self.outputs = {name: array[GUARD:-GUARD] for name, array in self._around.items()}
        self._bound = BoundCode(self.code, self.inputs, self.outputs)

    def __call__(self, inputs):
        """Return the results for other inputs."""
        for name, array in inputs.items():
            self.inputs[name][...] = array
        for array in self.outputs.values():
            array[...] = guarded(0, array.dtype)[0]
        try:
            self._bound.run()
        finally:
            for name, array in [*self._around.items(), *self._given.items()]:
                ends = guarded(0, array.dtype)
                np.testing.assert_array_equal(np.concatenate([array[:GUARD], array[-GUARD:]]), ends, err_msg=name)
        for name, array in inputs.items():
            np.testing.assert_array_equal(self.inputs[name], array, err_msg=f"{name} was overwritten")
        return {name: array.copy() for name, array in self.outputs.items()}


def assert_right(text, constants=None, seed=0, draw=None, tolerance=4.0):
    """Assert that a compiled graph has the results of float64 for two sets of inputs, one after the other.

    An element may be wrong by ``tolerance`` units in the last place of the greatest element of its result, and by as
    many times the greatest error of the evaluator in float32, which tells how far rounding is amplified.
    """
    constants, rng = constants or {}, np.random.default_rng(seed)
    model = model_of(text, constants)
    sets = [inputs_of(model, rng, draw) for _ in range(2)]
    run = Run(text, constants, sets[0])
    for inputs in sets:
        results = run(inputs)
        single, double = exact(text, constants, inputs, np.float32), exact(text, constants, inputs)
        assert set(results) == set(double)
        for name, wanted in double.items():
            assert results[name].size == wanted.size, name
            if wanted.dtype == bool:
                np.testing.assert_array_equal(results[name], wanted.ravel())
                continue
            bound = np.finfo(np.float32).eps * abs(wanted).max() + abs(single[name] - wanted).max()
            np.testing.assert_array_less(abs(results[name] - wanted.ravel()), tolerance * bound + 1e-38, err_msg=name)


SIZES = (1, 2, 3, 10, 15, 16, 17, 33)
SMOOTH = ("Tanh", "Sigmoid", "Softsign", "Erf", "Neg", "Abs", "Relu", "LeakyRelu", "Softplus", "Identity")


class Drawn:
    """A random graph while it grows: nodes draw from all values so far, mostly from the last ones."""

    def __init__(self, rng):
        self.rng, self.nodes, self.constants = rng, [], {}
        self.shapes = {f"i{k}": tuple(rng.choice(SIZES, rng.integers(1, 4)).tolist()) for k in range(3)}
        self.inputs = dict(self.shapes)

    def value(self, wanted=lambda shape: True):
        """Return the name of a value whose shape is wanted; None: there is none."""
        found = [name for name, shape in self.shapes.items() if wanted(shape)]
        return found[-1 - min(int(self.rng.exponential(3)), len(found) - 1)] if found else None

    def add(self, shape, expression):
        name = f"x{len(self.nodes)}"
        self.nodes.append(f"{name} = {expression}")
        self.shapes[name] = tuple(shape)

    def list(self, numbers):
        name = f"n{len(self.constants)}"
        self.constants[name] = np.array(numbers, np.int64)
        return name

    def unary(self):
        name = self.value()
        self.add(self.shapes[name], f"{self.rng.choice(SMOOTH)}({name})")

    def binary(self):
        name, op = self.value(), self.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])
        other = self.value(lambda shape: fits(shape, self.shapes[name])) or name
        self.add(np.broadcast_shapes(self.shapes[name], self.shapes[other]), f"{op}({name}, {other})")

    def constant(self):
        name = self.value()
        shape = [int(self.rng.choice([1, n])) for n in self.shapes[name]][self.rng.integers(2) :]
        key = f"c{len(self.constants)}"
        self.constants[key] = self.rng.standard_normal(shape).astype(np.float32)
        self.add(self.shapes[name], f"{self.rng.choice(['Add', 'Mul'])}({key}, {name})")

    def reduction(self):
        name, op = self.value(), self.rng.choice(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"])
        shape, keep = self.shapes[name], int(self.rng.integers(2))
        axes = sorted(self.rng.choice(len(shape), self.rng.integers(1, len(shape) + 1), replace=False).tolist())
        if not keep and len(axes) == len(shape):
            keep = 1
        result = [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]
        self.add(result, f"{op}<keepdims = {keep}>({name}, {self.list(axes)})")

    def transpose(self):
        name = self.value()
        order = self.rng.permutation(len(self.shapes[name])).tolist()
        self.add([self.shapes[name][i] for i in order], f"Transpose<perm = {order}>({name})")

    def reshape(self):
        name = self.value()
        size = math.prod(self.shapes[name])
        parts = []
        for n in self.rng.permutation([2, 3, 5, 11, 17]):
            if size % n == 0 and self.rng.random() < 0.5:
                parts.append(int(n))
                size //= int(n)
        shape = self.rng.permutation([*parts, size]).tolist()
        self.add(shape, f"Reshape({name}, {self.list(shape)})")

    def expand(self):
        name = self.value(lambda shape: math.prod(shape) < 3000 and len(shape) < 4)
        shape = [
            int(self.rng.choice([2, 5])) if n == 1 else n for n in (*[1] * self.rng.integers(2), *self.shapes[name])
        ]
        self.add(shape, f"Expand({name}, {self.list(shape)})")

    def product(self):
        left = self.value()
        shape = self.shapes[left]
        right = self.value(lambda other: other[-2:-1] == shape[-1:] and _join(shape[:-2], other[:-2]) is not None)
        if right is None or len(shape) < 2:
            self.add(shape, f"Tanh({left})")
            return
        other = self.shapes[right]
        self.add((*_join(shape[:-2], other[:-2]), shape[-2], other[-1]), f"MatMul({left}, {right})")
        self.add(self.shapes[f"x{len(self.nodes) - 1}"], f"Tanh(x{len(self.nodes) - 1})")

    def gram(self):
        name = self.value(lambda shape: len(shape) > 1)
        shape = self.shapes[name]
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = f"x{len(self.nodes)}"
        self.add([shape[i] for i in order], f"Transpose<perm = {order}>({name})")
        self.add((*shape[:-1], shape[-2]), f"MatMul({name}, {turned})")
        self.add(self.shapes[f"x{len(self.nodes) - 1}"], f"Softmax<axis = -1>(x{len(self.nodes) - 1})")

    def choice(self):
        name = self.value()
        other = self.value(lambda shape: fits(shape, self.shapes[name])) or name
        shape = np.broadcast_shapes(self.shapes[name], self.shapes[other])
        self.nodes.append(f"t{len(self.nodes)} = Less({name}, {other})")
        self.add(shape, f"Where(t{len(self.nodes) - 1}, {other}, {name})")


def _join(a, b):
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def fits(shape, other):
    joined = _join(shape, other)
    return joined is not None and math.prod(joined) < 20_000


KINDS = (
    "unary",
    "binary",
    "binary",
    "constant",
    "reduction",
    "transpose",
    "reshape",
    "expand",
    "product",
    "gram",
    "choice",
)


def random_graph(rng, count):
    """Return the text and the constants of a graph of about so many nodes, a third of whose values are returned."""
    drawn = Drawn(rng)
    while len(drawn.nodes) < count:
        kind = str(rng.choice(KINDS))
        if kind != "gram" or any(len(shape) > 1 for shape in drawn.shapes.values()):
            getattr(drawn, kind)()
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in drawn.inputs.items())
    made = [name for name in drawn.shapes if name not in drawn.inputs]
    kept = [name for name in made if rng.random() < 0.3 or name == made[-1]]
    outputs = ", ".join(f"float {name}" for name in kept)
    return f"g ({inputs}) => ({outputs}) {{ {' '.join(drawn.nodes)} }}", drawn.constants
