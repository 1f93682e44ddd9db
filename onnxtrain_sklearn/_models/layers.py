"""Layers of built graphs, the functions between them, and the distributions of initial weights."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.protobuf import to_proto

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
"""The constants of Klambauer et al., with which activations keep mean 0 and variance 1 from layer to layer."""


def _signs_apart(op: GraphBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Emit x where it is positive, and ``exp(x) - 1`` where it is negative, in operators that have gradients."""
    positive = op.Relu(x)
    return positive, op.Sub(op.Exp(op.Sub(x, positive)), 1.0)


def _elu(op: GraphBuilder, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    """Emit x where it is positive, else ``alpha (exp(x) - 1)``."""
    positive, negative = _signs_apart(op, x)
    return op.Add(positive, op.Mul(negative, alpha))


def _selu_minus_x(op: GraphBuilder, x: ir.Value) -> ir.Value:
    positive, negative = _signs_apart(op, x)
    scaled = op.Add(op.Mul(positive, _SELU_SCALE), op.Mul(negative, _SELU_SCALE * _SELU_ALPHA))
    return op.Sub(scaled, x)


def _mish_square(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Emit s² with s = sigmoid(-x): ``tanh(softplus(x)) = (1 - s²) / (1 + s²)``."""
    s = op.Sigmoid(op.Neg(x))
    return op.Mul(s, s)


def _mish(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Emit ``x tanh(softplus(x))``."""
    square = _mish_square(op, x)
    return op.Mul(x, op.Div(op.Sub(1.0, square), op.Add(square, 1.0)))


def _mish_minus_x(op: GraphBuilder, x: ir.Value) -> ir.Value:
    square = _mish_square(op, x)
    return op.Mul(op.Mul(x, -2.0), op.Div(square, op.Add(square, 1.0)))


ACTIVATIONS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": lambda op, x: x,
    "relu": lambda op, x: op.Relu(x),
    "tanh": lambda op, x: op.Tanh(x),
    "logistic": lambda op, x: op.Sigmoid(x),
    "leaky_relu": lambda op, x: op.LeakyRelu(x, alpha=0.01),
    "softplus": lambda op, x: op.Softplus(x),
    "silu": lambda op, x: op.Mul(x, op.Sigmoid(x)),
    "gelu": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, 0.5**0.5)), 1.0)),
    "elu": _elu,
    "selu": lambda op, x: op.Mul(_elu(op, x, _SELU_ALPHA), _SELU_SCALE),
    "mish": _mish,
}
"""Activation functions of :class:`MLP`; gelu is the exact form, x Φ(x)."""

DEVIATIONS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {"selu": _selu_minus_x, "mish": _mish_minus_x}
"""Activation functions minus x, for parametric activations, in forms that are fast forwards and backwards."""


class Draw(Protocol):
    """Initial weights of a layer that sums ``n_in`` inputs for each of its outputs, and ``n_out`` ones backwards."""

    def __call__(
        self, rng: np.random.RandomState, n_in: int, n_out: int, shape: tuple[int, ...] | None = None
    ) -> np.ndarray:
        """Return an array of ``shape``, by default (n_in, n_out)."""


def _uniform(bound: Callable[[int, int], float]) -> Draw:
    def draw(rng: np.random.RandomState, n_in: int, n_out: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
        limit = bound(n_in, n_out)
        return rng.uniform(-limit, limit, shape or (n_in, n_out))

    return draw


def _normal(scale: Callable[[int, int], float]) -> Draw:
    def draw(rng: np.random.RandomState, n_in: int, n_out: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
        return rng.normal(0.0, scale(n_in, n_out), shape or (n_in, n_out))

    return draw


INITIALIZATIONS: dict[str, Draw] = {
    "glorot_uniform": _uniform(lambda n_in, n_out: float((6.0 / (n_in + n_out)) ** 0.5)),
    "glorot_normal": _normal(lambda n_in, n_out: float((2.0 / (n_in + n_out)) ** 0.5)),
    "he_uniform": _uniform(lambda n_in, n_out: float((6.0 / n_in) ** 0.5)),
    "he_normal": _normal(lambda n_in, n_out: float((2.0 / n_in) ** 0.5)),
    "zeros": lambda rng, n_in, n_out, shape=None: np.zeros(shape or (n_in, n_out)),
}
"""Distributions of the initial weights: Glorot and Bengio (2010), He et al. (2015)."""


NORMALIZATIONS = ("batch", "layer")


def layer_sizes(sizes: Any) -> list[int]:
    """Return sizes, one or several, as a list."""
    return [int(sizes)] if isinstance(sizes, Integral) else [int(n) for n in sizes]


def empty_graph(*row: int) -> tuple[ir.Graph, GraphBuilder, ir.Value]:
    x = ir.val("X", ir.DataType.FLOAT, ("N", *row))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="model")
    return graph, GraphBuilder(graph, prefix="model", constant_nodes=True), x


def dense(op: GraphBuilder, x: ir.Value, weight: np.ndarray, name: str, *, bias: bool = True) -> ir.Value:
    stem = f"{name}." if name else ""
    w = op.parameter(f"{stem}weight", weight.astype(np.float32))
    b = op.parameter(f"{stem}bias", np.zeros(weight.shape[1], np.float32)) if bias else None
    return op.Gemm(x, w, b)


def normalized(op: GraphBuilder, x: ir.Value, size: int, kind: str, name: str) -> ir.Value:
    """Emit batch or layer normalization of (N, size), with a trained scale and shift."""
    scale = op.parameter(f"{name}.weight", np.ones(size, np.float32))
    shift = op.parameter(f"{name}.bias", np.zeros(size, np.float32))
    if kind == "layer":
        return op.LayerNormalization(x, scale, shift, axis=-1, epsilon=1e-5)
    mean = op.parameter(f"{name}.running_mean", np.zeros(size, np.float32))
    variance = op.parameter(f"{name}.running_var", np.ones(size, np.float32))
    inputs = (x, scale, shift, mean, variance)
    return op.emit("BatchNormalization", *inputs, outputs=3, training_mode=1, momentum=0.9, epsilon=1e-5)[0]


def parametric(op: GraphBuilder, x: ir.Value, activated: ir.Value, size: int, name: str) -> ir.Value:
    """Emit ``x + a (activated - x)`` with a trained vector ``a`` (size,) that starts at one."""
    share = op.parameter(f"{name}.activation", np.ones(size, np.float32))
    return op.Add(x, op.Mul(op.Sub(activated, x), share))


def dropped_out(op: GraphBuilder, x: ir.Value, ratio: float) -> ir.Value:
    """Emit dropout in training mode; training draws its masks, and predictions leave it out."""
    return op.Dropout(x, np.array(ratio, np.float32), np.array(True)) if ratio else x


def finish(graph: ir.Graph, scores: ir.Value, *row: int | None) -> onnx.ModelProto:
    """Return the model whose output is ``scores``, of shape (N, *row)."""
    scores.name, scores.type = "scores", ir.TensorType(ir.DataType.FLOAT)
    scores.shape = ir.Shape([ir.SymbolicDim("N"), *row])
    graph.outputs.append(scores)
    return to_proto(ir.Model(graph, ir_version=8, producer_name="onnxtrain_sklearn"))
