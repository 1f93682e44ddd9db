"""Graph builders: objects that make an ONNX graph of the size that the data need.

A builder has one method, ``build(n_features, n_outputs, random_state) -> onnx.ModelProto``; the estimators accept any
object that has it, and the names in :data:`MODELS`. The graph maps ``X`` (N, n_features) to ``scores`` (N, n_outputs),
without a final activation: the loss brings its own. Random numbers are drawn here, from ``random_state``, and nowhere
else. :class:`Builder` says what else a builder may ask for: the shape of a row, and the training data.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from numbers import Integral
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from ._graph.builder import GraphBuilder
from ._graph.protobuf import to_proto
from ._support.components import Component
from ._support.rules import COUNT, OneOf, Rules, Sizes

__all__ = [
    "ACTIVATIONS", "INITIALIZATIONS", "MLP", "MODELS", "Builder", "ConvNet", "GraphModel", "Linear", "is_builder",
    "resolve_builder",
]  # fmt: skip

ACTIVATIONS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": lambda op, x: x,
    "relu": lambda op, x: op.Relu(x),
    "tanh": lambda op, x: op.Tanh(x),
    "logistic": lambda op, x: op.Sigmoid(x),
    "leaky_relu": lambda op, x: op.LeakyRelu(x, alpha=0.01),
    "softplus": lambda op, x: op.Softplus(x),
    "silu": lambda op, x: op.Mul(x, op.Sigmoid(x)),
    "gelu": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, 0.5**0.5)), 1.0)),
}
"""Activation functions of :class:`MLP`; gelu is the exact form, x Φ(x)."""


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


class GraphModel(Component, ABC):
    """Base class of the graph builders; ``build`` calls :meth:`validate` first.

    Attributes
    ----------
    scales_targets : bool
        Whether the graphs may be trained on regression targets of another unit than that of ``y``
        (``target_scaling="auto"`` of the regressor): their output is a linear layer of its own. False, the default:
        the graph predicts in the units of ``y`` itself.
    """

    scales_targets: ClassVar[bool] = False

    @abstractmethod
    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        """Return a graph from ``X`` (N, n_features) to ``scores`` (N, n_outputs) with initial weights."""


class MLP(GraphModel):
    """Multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer; ``()`` is a linear model.
    activation : {"relu", "tanh", "logistic", "identity", "leaky_relu", "softplus", "silu", "gelu"}, default="relu"
        Activation of the hidden layers.
    initialization : str, default="glorot_uniform"
        Distribution of the initial weights, a name in :data:`INITIALIZATIONS`; the default is that of scikit-learn's
        MLP. He's suit deep networks of rectifiers. Biases start at zero.

    Notes
    -----
    The parameters are named ``layers.0.weight`` (n_in, n_out), ``layers.0.bias`` (n_out,), ``layers.1.weight``, ...

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    He et al., "Delving deep into rectifiers", ICCV 2015.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> model = MLP(hidden_layer_sizes=(8,)).build(n_features=4, n_outputs=3, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias']
    """

    scales_targets = True
    valid: ClassVar[Rules] = {
        "hidden_layer_sizes": (Sizes(),),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
    }

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        initialization: str = "glorot_uniform",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.initialization = initialization

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        self.validate()
        sizes = [n_features, *_layer_sizes(self.hidden_layer_sizes), n_outputs]
        rng = check_random_state(random_state)
        graph, op, x = _empty_graph(n_features)
        last = len(sizes) - 2
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            x = _dense(op, x, INITIALIZATIONS[self.initialization](rng, n_in, n_out), f"layers.{i}")
            x = ACTIVATIONS[self.activation](op, x) if i < last else x
        return _finish(graph, x, n_outputs)


class Linear(GraphModel):
    """Linear model, ``scores = X W + b``: with log_loss logistic regression, with squared_error linear regression.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether there is a bias ``b``.
    initialization : str, default="glorot_uniform"
        Distribution of the initial weights, a name in :data:`INITIALIZATIONS`. The bias starts at zero.

    Notes
    -----
    The parameters are named ``weight`` (n_features, n_outputs) and ``bias`` (n_outputs,).

    Examples
    --------
    >>> from onnxtrain_sklearn import Linear
    >>> model = Linear().build(n_features=4, n_outputs=1, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['weight', 'bias']
    """

    scales_targets = True
    valid: ClassVar[Rules] = {"fit_intercept": (bool,), "initialization": (OneOf(INITIALIZATIONS),)}

    def __init__(self, fit_intercept: bool = True, initialization: str = "glorot_uniform") -> None:
        self.fit_intercept = fit_intercept
        self.initialization = initialization

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        self.validate()
        graph, op, x = _empty_graph(n_features)
        weight = INITIALIZATIONS[self.initialization](check_random_state(random_state), n_features, n_outputs)
        return _finish(graph, _dense(op, x, weight, "", bias=self.fit_intercept), n_outputs)


class ConvNet(GraphModel):
    """Convolutional network for small images and for signals: rounds of convolution and pooling, then a linear layer.

    A round is a convolution with ``kernel_size`` that keeps the size, the activation, and max pooling that halves each
    axis. Rows are images of shape (channels, height, width) or (height, width), or signals of shape (length,): a table
    is read as a signal, in the order of its columns.

    Parameters
    ----------
    channels : int or sequence of int, default=(16, 32)
        Channels of each convolution.
    kernel_size : int, default=3
        Extent of the kernels along each axis.
    activation : str, default="relu"
        Activation behind each convolution, a name in :data:`ACTIVATIONS`.
    initialization : str, default="he_uniform"
        Distribution of the initial weights, a name in :data:`INITIALIZATIONS`. Biases start at zero.

    Notes
    -----
    The parameters are named ``convolutions.0.weight`` (channels, channels_in, kernel_size, ...),
    ``convolutions.0.bias`` (channels,), ..., ``head.weight`` and ``head.bias``.

    References
    ----------
    LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE 86, 1998.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import ConvNet, OrtGradientClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> images = X.reshape(-1, 8, 8) / 16
    >>> net = OrtGradientClassifier(ConvNet(8), learning_rate_init=0.02, tol=0.05, n_iter_no_change=3, random_state=0)
    >>> net.fit(images[:500], y[:500]).score(images[500:], y[500:]) > 0.85
    True
    """

    scales_targets = True
    valid: ClassVar[Rules] = {
        "channels": (Sizes(),),
        "kernel_size": (COUNT,),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
    }

    def __init__(
        self,
        channels: int | Sequence[int] = (16, 32),
        kernel_size: int = 3,
        activation: str = "relu",
        initialization: str = "he_uniform",
    ) -> None:
        self.channels = channels
        self.kernel_size = kernel_size
        self.activation = activation
        self.initialization = initialization

    def build(
        self,
        n_features: int,
        n_outputs: int,
        random_state: int | np.random.RandomState | None = None,
        *,
        row_shape: Sequence[int] | None = None,
    ) -> onnx.ModelProto:
        self.validate()
        row = (n_features,) if row_shape is None else tuple(row_shape)
        if len(row) > 3:
            raise ValueError(f"ConvNet takes rows of shape (channels, height, width) or less, got {row}.")
        rng = check_random_state(random_state)
        graph, op, x = _empty_graph(*row)
        shape = row if len(row) == 3 else (1, *row)
        x = x if len(row) == 3 else op.Unsqueeze(x, [1])
        for i, n_out in enumerate(_layer_sizes(self.channels)):
            x, shape = self._round(op, x, shape, n_out, rng, f"convolutions.{i}")
        draw = INITIALIZATIONS[self.initialization]
        return _finish(graph, _dense(op, op.Flatten(x), draw(rng, prod(shape), n_outputs), "head"), n_outputs)

    def _round(
        self, op: GraphBuilder, x: ir.Value, shape: tuple[int, ...], n_out: int, rng: np.random.RandomState, name: str
    ) -> tuple[ir.Value, tuple[int, ...]]:
        """Append convolution, activation and pooling; return the output and its shape without the batch axis."""
        (n_in, *extent), k = shape, int(self.kernel_size)
        window = [k] * len(extent)
        fan_in, fan_out = n_in * prod(window), n_out * prod(window)
        kernel = INITIALIZATIONS[self.initialization](rng, fan_in, fan_out, (n_out, n_in, *window))
        w = op.parameter(f"{name}.weight", kernel.astype(np.float32))
        b = op.parameter(f"{name}.bias", np.zeros(n_out, np.float32))
        pads = [(k - 1) // 2] * len(extent) + [k // 2] * len(extent)
        x = ACTIVATIONS[self.activation](op, op.Conv(x, w, b, kernel_shape=window, pads=pads))
        halves = [min(2, n) for n in extent]
        return op.MaxPool(x, kernel_shape=halves, strides=halves), (
            n_out,
            *(n // h for n, h in zip(extent, halves, strict=True)),
        )


MODELS: dict[str, type[GraphModel]] = {"mlp": MLP, "linear": Linear, "convnet": ConvNet}
"""The builders that the package brings; the estimators take their names as ``model``."""


class Builder(Protocol):
    r"""What the estimators ask of a graph builder: a method ``build``.

    ``build(n_features, n_outputs, random_state)`` returns the graph. The estimators pass the three by position. A
    builder that needs more declares it in the signature of ``build`` as a keyword parameter, as methods of
    scikit-learn's estimators declare ``sample_weight``; it is passed by name.

    ========================= ==========================================================================================
    keyword                   what is passed
    ========================= ==========================================================================================
    ``row_shape``             Tuple of int, the shape of a row: ``(n_features,)`` for a table. A builder that declares
                              it takes ``X`` of more than two axes too, such as images: ``n_features`` is then the
                              product of the shape, and the input of the graph has the shape ("N", \*row_shape).
    ``X``                     The rows to train on, an array of shape (n_samples, \*row_shape) in float32 that is
                              read-only, or a sparse matrix where the user gave one. Rows that are held out for early
                              stopping and rows of weight zero are left out.
    ``y``                     Their targets: int64 of shape (n_samples,) with indices into the sorted classes for
                              classes, else float64 of shape (n_samples, n_outputs), in the units that
                              are trained (``target_scaling`` of the regressor).
    ``sample_weight``         Their weights, float64 of shape (n_samples,), or None where all are one.
    ========================= ==========================================================================================

    The data are those of the call that builds the graph: of ``fit``, or of the first ``partial_fit``.

    Targets are scaled for a builder whose attribute ``scales_targets`` is True; see :class:`GraphModel`. One whose
    attribute ``fit_intercept`` is False makes graphs that are 0 for a row of zeros, as
    :class:`Linear` does: targets are scaled for it without being centered.
    """

    @property
    def build(self) -> Callable[..., onnx.ModelProto]:
        """Return the graph; see the class for what it is called with."""


KEYWORDS = ("row_shape", "X", "y", "sample_weight")
"""What a builder may declare beyond ``n_features``, ``n_outputs`` and ``random_state``; see :class:`Builder`."""


class HasParameters(Protocol):
    """An estimator of scikit-learn, in what it is told by."""

    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...


ModelSource: TypeAlias = "onnx.ModelProto | bytes | str | os.PathLike[str] | Builder | HasParameters | None"
"""What the estimators take as ``model``: a graph, where it is, a builder, or a fitted estimator of scikit-learn."""


def is_builder(model: object) -> TypeGuard[Builder]:
    """Whether ``model`` makes a graph sized to the data."""
    return not isinstance(model, type) and callable(getattr(model, "build", None))


def resolve_builder(model: ModelSource) -> Builder | None:
    """Return the builder that ``model`` is or names, ``MLP()`` for None; None where it is a graph or an estimator."""
    if model is None:
        return MLP()
    if isinstance(model, str):
        return MODELS[model]() if model in MODELS else None
    return model if is_builder(model) else None


def keywords_of(builder: Builder) -> frozenset[str]:
    """Return which of :data:`KEYWORDS` the builder declares; ``**kwargs`` declares none."""
    try:
        declared = inspect.signature(builder.build).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature
        return frozenset()
    return frozenset(name for name in KEYWORDS if name in declared)


def _layer_sizes(sizes: Any) -> list[int]:
    """Return sizes, one or several, as a list."""
    return [int(sizes)] if isinstance(sizes, Integral) else [int(n) for n in sizes]


def _empty_graph(*row: int) -> tuple[ir.Graph, GraphBuilder, ir.Value]:
    x = ir.val("X", ir.DataType.FLOAT, ("N", *row))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="model")
    return graph, GraphBuilder(graph, prefix="model", constant_nodes=True), x


def _dense(op: GraphBuilder, x: ir.Value, weight: np.ndarray, name: str, *, bias: bool = True) -> ir.Value:
    stem = f"{name}." if name else ""
    w = op.parameter(f"{stem}weight", weight.astype(np.float32))
    b = op.parameter(f"{stem}bias", np.zeros(weight.shape[1], np.float32)) if bias else None
    return op.Gemm(x, w, b)


def _finish(graph: ir.Graph, scores: ir.Value, n_outputs: int) -> onnx.ModelProto:
    scores.name, scores.type = "scores", ir.TensorType(ir.DataType.FLOAT)
    scores.shape = ir.Shape([ir.SymbolicDim("N"), n_outputs])
    graph.outputs.append(scores)
    return to_proto(ir.Model(graph, ir_version=8, producer_name="onnxtrain_sklearn"))
