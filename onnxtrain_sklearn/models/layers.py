"""Perceptrons (with monotonic constraints), linear and convolutional networks, and their layers.

:class:`Linear`, :class:`MLP` and :class:`ConvNet` are the builders. :func:`empty_graph` begins a graph, :func:`dense`
and its neighbors emit layers, and :func:`finish` returns the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from numbers import Integral
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._ir.protobuf import to_proto
from .._utils.params import BELOW_ONE, COUNT, ColumnSigns, OneOf, Rules, Sizes
from ..exceptions import InvalidParameterError
from ..graph import GraphBuilder
from .base import BY_CHANNEL, BY_COLUMN, BaseBuilder, Draft

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
"""The constants of Klambauer et al., with which activations keep mean 0 and variance 1 from layer to layer."""


def _signs_apart(op: GraphBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Emit x where it is positive, and ``exp(x) - 1`` where it is negative, in operators that have gradients."""
    # x - relu(x) is never positive, so that exp does not overflow.
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
    # 1 / s is 1 + e^x, which would overflow for large x; s goes to 0.
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
"""Activation functions minus x, for parametric activations, in forms that are fast in the forward and backward pass."""


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
    """Return a graph with the input ``X`` of rows of this shape, its builder, and the input."""
    x = ir.val("X", ir.DataType.FLOAT, ("N", *row))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="model")
    return graph, GraphBuilder(graph, prefix="model", constant_nodes=True), x


def dense(op: GraphBuilder, x: ir.Value, weight: np.ndarray, name: str, *, bias: bool = True) -> ir.Value:
    """Emit ``x @ weight`` with a bias, as parameters whose names begin with ``name``."""
    stem = f"{name}." if name else ""
    w = op.parameter(f"{stem}weight", weight.astype(np.float32))
    b = op.parameter(f"{stem}bias", np.zeros(weight.shape[1], np.float32)) if bias else None
    return op.Gemm(x, w, b)


def _monotone(op: GraphBuilder, x: ir.Value, weight: np.ndarray, name: str, signs: np.ndarray) -> ir.Value:
    """Emit a dense layer that rises or falls in the columns with a sign, by the absolute values of their weights."""
    w = op.parameter(f"{name}.weight", weight.astype(np.float32))
    b = op.parameter(f"{name}.bias", np.zeros(weight.shape[1], np.float32))
    return op.Gemm(x, signed_weight(op, w, signs), b)


def signed_weight(op: GraphBuilder, w: ir.Value, signs: np.ndarray) -> ir.Value:
    """Emit weights whose rows have these signs, by their absolute values; rows of sign 0 stay as they are."""
    if (signs == 1).all():
        return op.Abs(w)
    signs = signs.astype(np.float32)[:, np.newaxis]
    signed = op.Mul(op.Abs(w), signs)
    return signed if signs.all() else op.Add(signed, op.Mul(w, (signs == 0).astype(np.float32)))


def activated_both_ways(op: GraphBuilder, z: ir.Value, n_units: int, activation: str) -> ir.Value:
    """Emit the activation in the first half of the units, and its reflection ``-activation(-z)`` in the others."""
    ways = np.where(np.arange(n_units) < (n_units + 1) // 2, 1.0, -1.0).astype(np.float32)
    return op.Mul(ACTIVATIONS[activation](op, op.Mul(z, ways)), ways)


def normalized(op: GraphBuilder, x: ir.Value, size: int, kind: str, name: str) -> ir.Value:
    """Emit batch or layer normalization of (N, size), with a trained scale and shift."""
    scale = op.parameter(f"{name}.weight", np.ones(size, np.float32))
    shift = op.parameter(f"{name}.bias", np.zeros(size, np.float32))
    if kind == "layer":
        return op.LayerNormalization(x, scale, shift, axis=-1, epsilon=1e-5)
    mean = op.parameter(f"{name}.running_mean", np.zeros(size, np.float32))
    variance = op.parameter(f"{name}.running_var", np.ones(size, np.float32))
    inputs = (x, scale, shift, mean, variance)
    # ONNX's momentum is the share of the old average: 0.1 in PyTorch's terms.
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


# The linear model.


class Linear(BaseBuilder):
    """Linear model, ``scores = X W + b``: with log_loss logistic regression, with squared_error linear regression.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether there is a bias ``b``.
    initialization : str, default="zeros"
        Distribution of the initial weights, a name in :data:`~onnxtrain_sklearn.models.INITIALIZATIONS`. The bias
        starts at zero.

    Notes
    -----
    The parameters are named ``weight`` (n_features, n_outputs) and ``bias`` (n_outputs,).

    The default rate, 0.001, is one for networks. It is too low for a linear model on a table of some thousand rows,
    whose weights are far from the best ones after 200 epochs. Give ``learning_rate_init=0.05, learning_rate="cosine"``,
    or ``optimizer="lbfgs"``; classifiers with ``alpha=1.0`` have the loss of scikit-learn's ``LogisticRegression()``.
    A linear model needs no random weights to begin with. Where training is short or rows are few they remain a part of
    its predictions: at the default rate accuracy is 3.7 points higher than with ``initialization="glorot_uniform"`` on
    52 tables of standardized columns (standard error 0.9), and the RMSE 16 % lower on 12 (4 %).

    Examples
    --------
    >>> from onnxtrain_sklearn import Linear
    >>> model = Linear().build(n_features=4, n_outputs=1, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['weight', 'bias']
    """

    name = "linear"
    scales_targets = True
    scales_rows = BY_COLUMN
    valid: ClassVar[Rules] = {"fit_intercept": (bool,), "initialization": (OneOf(INITIALIZATIONS),)}

    def __init__(self, fit_intercept: bool = True, initialization: str = "zeros") -> None:
        self.fit_intercept = fit_intercept
        self.initialization = initialization

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        return self.draft(n_features, n_outputs, random_state).graph()

    def draft(self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None) -> Draft:
        self.validate()
        draw = INITIALIZATIONS[self.initialization]
        weight = draw(check_random_state(random_state), n_features, n_outputs)
        return Draft({"weight": weight}, (), lambda: self._graph(weight))

    def _graph(self, weight: np.ndarray) -> onnx.ModelProto:
        n_features, n_outputs = weight.shape
        graph, op, x = empty_graph(n_features)
        return finish(graph, dense(op, x, weight, "", bias=self.fit_intercept), n_outputs)


# The multi-layer perceptron.


def signs_of_columns(given: Any, n_features: int, names: Sequence[str] | None = None) -> np.ndarray:
    """Return ``monotonic_cst`` as a float32 vector with a sign for each column.

    Raises
    ------
    ValueError
        A column is unknown, or the signs are not as many as the columns.
    """
    signs = np.zeros(n_features, np.float32)
    if not isinstance(given, Mapping):
        if len(given) != n_features:
            raise ValueError(f"monotonic_cst has {len(given)} signs, but X has {n_features} columns.")
        return np.asarray(given, np.float32)
    for column, sign in given.items():
        if isinstance(column, str):
            if names is None or column not in names:
                known = "X has no names of columns" if names is None else f"the columns of X are {list(names)}"
                raise ValueError(f"monotonic_cst names column {column!r}, but {known}.")
            column = list(names).index(column)
        if not 0 <= column < n_features:
            raise ValueError(f"monotonic_cst names column {column}, but X has {n_features} columns, from 0 on.")
        signs[column] = sign
    return signs


NOT_MONOTONE = ("silu", "gelu", "mish")
"""Activations that fall somewhere."""


def require_monotone(activation: str) -> None:
    """Raise InvalidParameterError for an activation that falls somewhere."""
    if activation in NOT_MONOTONE:
        raise InvalidParameterError(
            f"monotonic_cst needs an activation that never falls, such as 'relu' or 'tanh', got {activation!r}."
        )


class MLP(BaseBuilder):
    """Multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer; ``()`` is a linear model.
    activation : str, default="relu"
        Activation of the hidden layers: "relu", "tanh", "logistic", "identity", "leaky_relu", "softplus", "silu",
        "gelu", "elu", "selu" or "mish".
    initialization : str, default="glorot_uniform"
        Distribution of the initial weights, a name in :data:`~onnxtrain_sklearn.models.INITIALIZATIONS`; the
        default is that of scikit-learn's MLP. He's suit deep networks of rectifiers. Biases start at zero.
    dropout : float, default=0.0
        Share of the hidden units that a training step leaves out, in [0, 1). Predictions use all of them.
    normalization : {"batch", "layer"} or None, default=None
        Normalization before each activation, by the mean and the variance of each unit over the minibatch ("batch")
        or of the units of each row ("layer"), with a trained scale and shift. Predictions with "batch" use running
        statistics, which move by a tenth with each minibatch; such layers have no bias of their own, their statistics
        count rows, not weights, and the portable engine trains them.
    residual : bool, default=False
        Whether the input of each hidden layer is added to its output. Where the sizes differ, it goes through a matrix
        of its own first.
    parametric_activation : bool, default=False
        Whether each hidden unit has a trained number ``a`` of its own that makes the activation
        ``x + a (activation(x) - x)``. It starts at one, and is left out where the activation is the identity.
    monotonic_cst : array-like of int of shape (n_features,), dict of str or int to int, or None, default=None
        Columns in which the predictions never fall (1) or never rise (-1), if the other columns stay equal; 0: free. A
        dict names some columns, by name or index. For numbers, two classes and several labels that are 0 or 1, with an
        activation that never falls, without ``normalization``, ``residual`` and ``parametric_activation``.

    Notes
    -----
    With ``monotonic_cst``, the graph takes the absolute values of the weights behind the constrained columns, with
    their sign in the first layer, and of all weights of later layers. Half of the hidden units have the activation
    ``-activation(-z)``: with rectifiers alone, the network would be convex in these columns. The parameters are the
    weights before this, of any sign.

    A hidden layer computes ``h -> dropout(activation(normalization(h W + b)))``, and with ``residual`` the sum of that
    and ``h``, or ``h V``.

    The parameters are named ``layers.0.weight`` (n_in, n_out), ``layers.0.bias`` (n_out,),
    ``layers.0.normalization.weight``, ``layers.0.normalization.bias``, ``layers.0.normalization.running_mean``,
    ``layers.0.normalization.running_var``, ``layers.0.activation`` (n_out,), ``layers.0.shortcut.weight``
    (n_in, n_out), ``layers.1.weight``, ...

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    He et al., "Delving deep into rectifiers", ICCV 2015.
    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
    Ioffe and Szegedy, "Batch normalization", ICML 2015; Ba et al., "Layer normalization", arXiv 1607.06450.
    He et al., "Deep residual learning for image recognition", CVPR 2016.
    Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017 ("selu"); Misra, "Mish", BMVC 2020.
    Runje and Shankaranarayana, "Constrained monotonic neural networks", ICML 2023.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> model = MLP(hidden_layer_sizes=(8,)).build(n_features=4, n_outputs=3, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias']
    """

    name = "mlp"
    scales_targets = True
    scales_rows = BY_COLUMN
    valid: ClassVar[Rules] = {
        "hidden_layer_sizes": (Sizes(),),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
        "dropout": (BELOW_ONE,),
        "normalization": (OneOf(NORMALIZATIONS), None),
        "residual": (bool,),
        "parametric_activation": (bool,),
        "monotonic_cst": (ColumnSigns(), None),
    }

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        initialization: str = "glorot_uniform",
        dropout: float = 0.0,
        normalization: str | None = None,
        residual: bool = False,
        parametric_activation: bool = False,
        monotonic_cst: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.initialization = initialization
        self.dropout = dropout
        self.normalization = normalization
        self.residual = residual
        self.parametric_activation = parametric_activation
        self.monotonic_cst = monotonic_cst

    def validate(self) -> None:
        """Raise InvalidParameterError if a setting breaks its rules, or does not go with ``monotonic_cst``."""
        super().validate()
        if self.monotonic_cst is None:
            return
        others = {"normalization": None, "residual": False, "parametric_activation": False}
        for name, value in others.items():
            if getattr(self, name) != value:
                raise InvalidParameterError(f"monotonic_cst needs {name}={value}, got {getattr(self, name)!r}.")
        require_monotone(self.activation)

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        return self.draft(n_features, n_outputs, random_state).graph()

    def draft(self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None) -> Draft:
        drawn = self._drawn(n_features, n_outputs, random_state)
        return Draft(drawn, (), lambda: self._graph(n_features, n_outputs, drawn))

    def _graph(self, n_features: int, n_outputs: int, drawn: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        graph, op, x = empty_graph(n_features)
        hidden = len(layer_sizes(self.hidden_layer_sizes))
        if self.monotonic_cst is not None:
            signs = signs_of_columns(self.monotonic_cst, n_features)
            for i in range(hidden + 1):
                x = _monotone(op, x, drawn[f"layers.{i}.weight"], f"layers.{i}", signs)
                n_units = drawn[f"layers.{i}.weight"].shape[1]
                if i < hidden:
                    h = activated_both_ways(op, x, n_units, self.activation)
                    x = dropped_out(op, h, float(self.dropout))
                signs = np.ones(n_units, np.float32)
            return finish(graph, x, n_outputs)
        for i in range(hidden):
            x = self._hidden(op, x, f"layers.{i}", drawn)
        return finish(graph, dense(op, x, drawn[f"layers.{hidden}.weight"], f"layers.{hidden}"), n_outputs)

    def _drawn(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None
    ) -> dict[str, np.ndarray]:
        self.validate()
        rng = check_random_state(random_state)
        draw = INITIALIZATIONS[self.initialization]
        sizes = [n_features, *layer_sizes(self.hidden_layer_sizes)]
        drawn = {}
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            drawn[f"layers.{i}.weight"] = draw(rng, n_in, n_out)
            if self.residual and n_in != n_out:
                drawn[f"layers.{i}.shortcut.weight"] = draw(rng, n_in, n_out)
        drawn[f"layers.{len(sizes) - 1}.weight"] = draw(rng, sizes[-1], n_outputs)
        return drawn

    def _hidden(self, op: GraphBuilder, x: ir.Value, name: str, drawn: Mapping[str, np.ndarray]) -> ir.Value:
        """Emit a hidden layer."""
        weight = drawn[f"{name}.weight"]
        n_in, n_out = weight.shape
        # Batch normalization subtracts the mean, and a bias with it.
        z = dense(op, x, weight, name, bias=self.normalization != "batch")
        if self.normalization is not None:
            z = normalized(op, z, n_out, self.normalization, f"{name}.normalization")
        h = ACTIVATIONS[self.activation](op, z)
        if self.parametric_activation and self.activation != "identity":
            h = parametric(op, z, h, n_out, name)
        h = dropped_out(op, h, float(self.dropout))
        if not self.residual:
            return h
        own = f"{name}.shortcut"
        shortcut = x if n_in == n_out else dense(op, x, drawn[f"{own}.weight"], own, bias=False)
        return op.Add(h, shortcut)


# The convolutional network.


class ConvNet(BaseBuilder):
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
        Activation after each convolution, a name in :data:`~onnxtrain_sklearn.models.ACTIVATIONS`.
    initialization : str, default="he_uniform"
        Distribution of the initial weights, a name in :data:`~onnxtrain_sklearn.models.INITIALIZATIONS`. Biases start
        at zero.

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

    name = "convnet"
    scales_targets = True
    scales_rows = BY_CHANNEL
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
        graph, op, x = empty_graph(*row)
        shape = row if len(row) == 3 else (1, *row)
        x = x if len(row) == 3 else op.Unsqueeze(x, [1])
        for i, n_out in enumerate(layer_sizes(self.channels)):
            x, shape = self._round(op, x, shape, n_out, rng, f"convolutions.{i}")
        draw = INITIALIZATIONS[self.initialization]
        return finish(graph, dense(op, op.Flatten(x), draw(rng, prod(shape), n_outputs), "head"), n_outputs)

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
        # Padded so that the size stays; an even kernel needs one more at the end than at the beginning.
        pads = [(k - 1) // 2] * len(extent) + [k // 2] * len(extent)
        x = ACTIVATIONS[self.activation](op, op.Conv(x, w, b, kernel_shape=window, pads=pads))
        halves = [min(2, n) for n in extent]  # an axis of one element stays: many rounds shrink small images to that
        return op.MaxPool(x, kernel_shape=halves, strides=halves), (
            n_out,
            *(n // h for n, h in zip(extent, halves, strict=True)),
        )
