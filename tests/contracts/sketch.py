"""A graph that Hypothesis draws node by node; the operators are in ``random_graphs.py``.

Values may be read any number of times. Each carries a rough bound, so that magnitudes, and with them rounding errors,
stay small. The sum of what no node reads, under fixed weights, ends the graph. No session is created here and no
gradient is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

LARGEST = 96
"""Elements of a value at most."""


@dataclass(frozen=True)
class Value:
    """A float value of the graph; ``bound`` is about how large its elements are."""

    name: str
    shape: tuple[int, ...]
    bound: float


class Sketch:
    """A graph that is being drawn.

    ``full``: with settings too that onnxruntime-training does not differentiate; ``named``: which dimensions of inputs
    are symbolic, "none", "batch" or "any".
    """

    def __init__(self, draw: Callable, opset: int, full: bool, seed: int, named: str):
        self.draw, self.opset, self.full, self.named = draw, opset, full, named
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}  # that are differentiated
        self.inputs: dict[str, list[int | str]] = {}  # those of them that are no initializers, with their dimensions
        self.constants: dict[str, np.ndarray] = {}
        self.pool: list[Value] = []

    def __repr__(self) -> str:
        return f"opset {self.opset}\n{onnx.printer.to_text(self.model(np.float32))}"

    # --- draws ---

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence):
        return self.draw(st.sampled_from(list(options)))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def axis(self, x: Value) -> int:
        return self.number(-len(x.shape), len(x.shape) - 1)

    def subset(self, options: Sequence) -> list:
        return [one for one in options if self.flag()]

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        return tuple(self.number(1, 3) for _ in range(self.number(low, high)))

    # --- values ---

    def source(self, shape: Sequence[int], low: float | None = None) -> Value:
        """Make an array that is differentiated: normal numbers, or numbers from ``low`` on."""
        shape, name = tuple(shape), f"x{len(self.arrays)}"
        draw = self.rng.normal(size=shape) if low is None else self.rng.uniform(low, low + 1.5, size=shape)
        self.arrays[name] = np.asarray(draw, np.float32)
        if not self.arrays.keys() - {name} or self.flag():
            self.inputs[name] = [self.dimension(i, size) for i, size in enumerate(shape)]
        value = Value(name, shape, 2.5)
        if low is None:
            self.pool.append(value)
        return value

    def dimension(self, i: int, size: int) -> int | str:
        """Give a dimension a name; one name always stands for one size, as a size can have several names."""
        if self.named == "none" or (self.named == "batch" and i):
            return size
        return self.choice([size, f"N{size}", f"M{size}"]) if self.named == "any" else f"N{size}"

    def constant(self, array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def emit(self, operator: str, inputs: Sequence, shape: Sequence[int], bound: float, **attributes) -> Value:
        return self.emit_several(operator, inputs, [shape], bound, **attributes)[0]

    def emit_several(self, operator, inputs, shapes, bound, **attributes) -> list[Value]:
        outputs = [Value(f"v{len(self.nodes)}_{i}", tuple(map(int, s)), bound) for i, s in enumerate(shapes)]
        names = [x.name if isinstance(x, Value) else x for x in inputs]
        self.nodes.append(helper.make_node(operator, names, [v.name for v in outputs], **attributes))
        self.pool.extend(outputs)
        return outputs

    def value(self, low: int = 0, high: int = 4, where: Callable[[Value], bool] = lambda v: True) -> Value:
        """Return a value of that many axes, a later one by preference: a new array where there is none."""
        fitting = [v for v in self.pool if low <= len(v.shape) <= high and where(v)]
        if fitting:
            return self.choice(fitting[::-1])
        while True:
            shape = self.shape(max(low, 1), min(high, 3) if low <= 3 else high)
            if where(Value("", shape, 1)):
                return self.source(shape)

    def partner(self, shape: tuple[int, ...], *, into: bool = False) -> Value:
        """Return a value that broadcasts with ``shape``, or, with ``into``, to it."""

        def fits(v: Value) -> bool:
            try:
                result = np.broadcast_shapes(v.shape, shape)
            except ValueError:
                return False
            return result == shape if into else prod(result) <= LARGEST

        if self.flag():
            return self.choice([v for v in self.pool if fits(v)][::-1] or [self.source(shape)])
        kept = shape[self.number(0, len(shape)) :]
        sizes = [self.choice([n, 1]) if into or n > 1 else self.number(1, 3) for n in kept]
        if not into and len(kept) == len(shape) and self.flag():
            sizes = [self.number(1, 2), *sizes]
        return self.source(sizes) if fits(Value("", tuple(sizes), 1)) else self.source(shape)

    def tamed(self, x: Value, bound: float = 6.0) -> Value:
        return self.emit("Tanh", [x], x.shape, 1.0) if x.bound > bound else x

    def positive(self, x: Value, least: float = 0.4) -> Value:
        soft = self.emit("Softplus", [self.tamed(x)], x.shape, 6.0)
        return self.emit("Add", [soft, self.constant(np.array(least))], x.shape, 4.0)

    def unit(self, x: Value) -> Value:
        """Return a value in (-0.9, 0.9)."""
        return self.emit("Mul", [self.emit("Tanh", [x], x.shape, 1), self.constant(np.array(0.9))], x.shape, 0.9)

    # --- the model ---

    def model(self, dtype: type, *, as_inputs: bool = False) -> onnx.ModelProto:
        """Return the graph in float32 or float64, with the loss as its output."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        stored = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in self.constants.items()}
        shown = {n: a.shape for n, a in self.arrays.items()} if as_inputs else self.inputs
        stored |= {n: a.astype(dtype) for n, a in self.arrays.items() if n not in shown}
        graph = helper.make_graph(
            [typed(node, kind) for node in self.nodes],
            "random",
            [helper.make_tensor_value_info(n, kind, dims) for n, dims in shown.items()],
            [helper.make_tensor_value_info("loss", kind, [])],
            [numpy_helper.from_array(a, n) for n, a in stored.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def finish(self) -> None:
        """End with the weighted sum of values that no node reads; some of them are left aside."""
        read = {name for node in self.nodes for name in node.input}
        ends = [v for v in self.pool if v.name not in read]
        kept = [v for v in ends[:-1] if not v.name.startswith("x") or self.flag()] + ends[-1:]
        total = [self.weighted(v) for v in kept]
        while len(total) > 1:
            total = [self.emit("Add", total[:2], (), 1), *total[2:]]
        self.nodes.append(helper.make_node("Identity", [total[0].name], ["loss"]))

    def weighted(self, x: Value) -> Value:
        weights = self.constant(self.rng.normal(size=x.shape))
        return self.emit("ReduceSum", [self.emit("Mul", [x, weights], x.shape, 1)], (), 1, keepdims=0)


def typed(node: onnx.NodeProto, kind: int) -> onnx.NodeProto:
    """Return the node with casts to the float type of the graph; to float64 stays as it is."""
    if node.op_type != "Cast" or node.attribute[0].i == onnx.TensorProto.DOUBLE:
        return node
    return helper.make_node("Cast", node.input, node.output, to=kind)


def scalar(s: Sketch, number: float) -> Value | str:
    """Return a number that is differentiated, or a constant."""
    if not (s.full and s.flag()):
        return s.constant(np.array(number))
    value = s.source((), 0.0)
    s.arrays[value.name] = np.array(number + 0.1 * s.rng.normal(), np.float32)
    return value
