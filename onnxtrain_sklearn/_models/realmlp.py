"""RealMLP: a multi-layer perceptron for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._support.content import content
from .._support.rules import BELOW_ONE, CODE_COLUMNS, Instance, OneOf, Rules, Sizes
from .base import Draft, GraphModel
from .drawn_columns import DrawnColumns, side_by_side
from .embeddings import EMBEDDINGS, Embedding, PeriodicEmbedding, resolve_embedding
from .layers import ACTIVATIONS, DEVIATIONS, empty_graph, finish, layer_sizes
from .table import (
    CodedTable,
    category_vectors,
    coded_table,
    difference,
    heads,
    insert_dropout,
    numeric_columns,
    robust_scaling,
    signed_one_hot,
    task_of,
)
from .values import GraphPart, some_rows

MAX_ONE_HOT = 9
"""Codes of a categorical column that become indicators, at most; the rest become vectors of VECTOR_SIZE numbers."""

VECTOR_SIZE = 8


class RealMLP(GraphModel):
    r"""RealMLP, a multi-layer perceptron for tables with strong settings for data of any kind.

    The columns go through an embedding and a trained scale each; hidden layers are
    :math:`h \mapsto f(h W / \sqrt{n} + b)` for n inputs (the neural tangent parametrization), with a parametric
    activation :math:`f(z) = z + a\,(\mathrm{act}(z) - z)` and dropout. The initial weights depend on the data: each
    unit starts with a standard deviation of 1, and with a bias that is minus a random convex combination of five of its
    values.

    Parameters
    ----------
    variant : {"td", "td-s"}, default="td"
        "td": as described. "td-s", the simple one: no embedding and no dropout, plain activations, indicators for all
        categories, initial weights and biases of standard deviation 1 and an output layer of zeros.
    hidden_layer_sizes : int or sequence of int, default=(256, 256, 256)
        Units of each hidden layer.
    activation : str, default="auto"
        A name in :data:`~onnxtrain_sklearn.models.ACTIVATIONS`. "auto": "mish" for regression, else "selu".
    embedding : str, Embedding or None, default="auto"
        Embedding of the numeric columns. "auto": that of the variant,
        :class:`~onnxtrain_sklearn.models.PeriodicEmbedding` or none.
    dropout : float, default="auto"
        Share of the hidden units that a training step leaves out, in [0, 1). "auto": that of the variant, 0.15 or 0.
    categories : dict of int to int, default=None
        Categorical columns: their numbers, and how many codes each has. Code 0 stands for a missing category. Columns
        of up to 9 codes become indicators, scaled as numbers are; larger ones become trained vectors of 8 numbers.

    Attributes
    ----------
    learning_rate_factors, weight_decay_factors : dict of str to float
        The rates of the recipe by parameter, which the estimators follow.

    Notes
    -----
    Numeric columns should be centered and scaled. The recipe trains with Adam (``beta_2=0.95``), a decoupled weight
    decay of 0.02 ("td"), the schedule "coslog4" from a rate of 0.04 (regression: 0.2, "td-s" 0.07), and label
    smoothing of 0.1.

    The parameters are named ``embedding.something``, ``categories.weight``, ``scale`` (n_columns,),
    ``layers.0.weight`` (n_in, n_out), ``layers.0.bias`` (n_out,), ``layers.0.activation`` (n_out,), ... Two classes
    have two outputs inside, whose difference is the score.

    References
    ----------
    Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from onnxtrain_sklearn import Adam, OrtGradientClassifier, RealMLP
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = RealMLP(hidden_layer_sizes=(32, 32))
    >>> settings = {"optimizer": Adam(beta_2=0.95), "learning_rate_init": 0.04, "tol": 0.05, "n_iter_no_change": 2}
    >>> net = OrtGradientClassifier(model, random_state=0, **settings).fit(scale(X), y)
    >>> net.score(scale(X), y) > 0.95
    True
    """

    name = "realmlp"
    scales_targets = True
    valid: ClassVar[Rules] = {
        "variant": (OneOf(("td", "td-s")),),
        "hidden_layer_sizes": (Sizes(),),
        "activation": (OneOf(("auto", *ACTIVATIONS)),),
        "embedding": (OneOf(("auto", *EMBEDDINGS)), Instance(Embedding, "an Embedding object"), None),
        "dropout": (BELOW_ONE, OneOf(("auto",))),
        "categories": (CODE_COLUMNS, None),
    }

    def __init__(
        self,
        variant: str = "td",
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        activation: str = "auto",
        embedding: str | Embedding | None = "auto",
        dropout: float | str = "auto",
        categories: Mapping[int, int] | None = None,
    ) -> None:
        self.variant = variant
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.embedding = embedding
        self.dropout = dropout
        self.categories = categories

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """Factors of the learning rate, by patterns of names: the last that matches counts."""
        return {"*": 0.1, "layers.*.weight": 1.0, "scale": 6.0} | self._for_vectors()

    @property
    def weight_decay_factors(self) -> dict[str, float]:
        """Factors of the weight decay; a parameter with a factor of the rate decays by its square."""
        return {"*": 0.1, "layers.*.weight": 1.0, "layers.*.bias": 0.0, "scale": 6.0} | self._for_vectors()

    def _for_vectors(self) -> dict[str, float]:
        large = any(size > self._max_one_hot() for size in (self.categories or {}).values())
        return {"categories.weight": 1.0} if large else {}

    def _max_one_hot(self) -> float:
        return MAX_ONE_HOT if self.variant == "td" else np.inf

    def build(
        self,
        n_features: int,
        n_outputs: int,
        random_state: int | np.random.RandomState | None = None,
        *,
        X: Any = None,
        y: np.ndarray | None = None,
    ) -> onnx.ModelProto:
        return self.draft(n_features, n_outputs, random_state, X=X, y=y).graph()

    def draft(
        self,
        n_features: int,
        n_outputs: int,
        random_state: int | np.random.RandomState | None,
        *,
        X: Any = None,
        y: np.ndarray | None = None,
    ) -> Draft:
        self.validate()
        rng = check_random_state(random_state)
        task, rows = task_of(y), None if X is None else some_rows(X, rng)
        table = coded_table(n_features, self.categories, self._max_one_hot())
        columns = self._columns(table, rng, rows)
        first = {**columns.weights, "scale": np.ones(columns.width, np.float32)}
        form = task, content(columns.constants)
        values = None
        if rows is not None and self.variant == "td":
            own = (content(self), form) if columns.is_own else None
            values = GraphPart(lambda op, x: _scaled_columns(op, x, columns, first), first, own).values(rows)
        sizes = [columns.width, *layer_sizes(self.hidden_layer_sizes), heads(n_outputs, task)]
        weights = first | self._drawn_layers(rng, sizes, values, self._activation(task))
        return Draft(weights, form, lambda: self._graph(n_features, n_outputs, columns, weights, task))

    def _drawn_layers(
        self, rng: np.random.RandomState, sizes: Sequence[int], values: np.ndarray | None, activation: str
    ) -> dict[str, np.ndarray]:
        """Return the initial weights of all layers, given values of the first one's inputs."""
        weights, last = dict[str, np.ndarray](), len(sizes) - 2
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            name = f"layers.{i}"
            both = self._initial(rng, n_in, n_out, values, last=i == last)
            drawn = {f"{name}.{kind}": a.astype(np.float32) for kind, a in zip(("weight", "bias"), both, strict=True)}
            if i < last and self.variant == "td":
                drawn[f"{name}.activation"] = np.ones(n_out, np.float32)
            if i < last and values is not None:
                emit = partial(_hidden, name=name, weights=drawn, activation=activation)
                part = GraphPart(emit, drawn, (name, n_out, activation))
                values = part.values(values)
            weights |= drawn
        return weights

    def _graph(
        self, n_features: int, n_outputs: int, columns: DrawnColumns, weights: Mapping[str, np.ndarray], task: str
    ) -> onnx.ModelProto:
        graph, op, x = empty_graph(n_features)
        h, hidden = _scaled_columns(op, x, columns, weights), []
        count = len(layer_sizes(self.hidden_layer_sizes))
        for i in range(count):
            h = _hidden(op, h, f"layers.{i}", weights, self._activation(task))
            hidden.append(h)
        h = _scaled_gemm(op, h, f"layers.{count}", weights)
        insert_dropout(op, hidden, self._ratio())
        return finish(graph, difference(op, h) if heads(n_outputs, task) > n_outputs else h, n_outputs)

    def _ratio(self) -> float:
        return float(self.dropout) if self.dropout != "auto" else 0.15 * (self.variant == "td")

    def _embedding(self) -> Embedding | None:
        if self.embedding == "auto":
            return PeriodicEmbedding() if self.variant == "td" else None
        return None if self.embedding is None else resolve_embedding(self.embedding)

    def _columns(self, table: CodedTable, rng: np.random.RandomState, rows: np.ndarray | None) -> DrawnColumns:
        """Return the embedded numbers, the scaled indicators and the vectors, side by side."""
        parts = numeric_columns(table, self._embedding(), rng, rows)
        if table.indicators:
            parts.append(_scaled_indicators(table, rows))
        if table.vectors:
            parts.append(category_vectors(table.vectors, VECTOR_SIZE, rng))
        return side_by_side(parts)

    def _initial(
        self, rng: np.random.RandomState, n_in: int, n_out: int, values: np.ndarray | None, *, last: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and biases; with the values of the inputs on some rows they depend on these."""
        if self.variant == "td-s" and last:
            return np.zeros((n_in, n_out)), np.zeros(n_out)
        weight = rng.normal(size=(n_in, n_out))
        if values is None:
            return weight, rng.normal(size=n_out)
        outputs = values @ (weight / np.sqrt(n_in))
        deviation = outputs.std(axis=0)
        deviation[deviation < 1e-12] = 1.0
        return weight / deviation, -_convex_combinations(outputs, deviation, rng)

    def _activation(self, task: str) -> str:
        if self.activation == "auto":
            return "mish" if task == "numbers" else "selu"
        return self.activation


def _scaled_columns(
    op: GraphBuilder, x: ir.Value, columns: DrawnColumns, weights: Mapping[str, np.ndarray]
) -> ir.Value:
    """Emit the columns and the scale of each."""
    return op.Mul(columns.emit(op, x), op.parameter("scale", weights["scale"]))


def _hidden(op: GraphBuilder, h: ir.Value, name: str, weights: Mapping[str, np.ndarray], activation: str) -> ir.Value:
    """Emit a hidden layer, with a parametric activation where it has a weight of this name."""
    h, own = _scaled_gemm(op, h, name, weights), f"{name}.activation"
    deviation = DEVIATIONS[activation](op, h) if activation in DEVIATIONS else None
    if own not in weights:
        return ACTIVATIONS[activation](op, h) if deviation is None else op.Add(h, deviation)
    if deviation is None:
        deviation = op.Sub(ACTIVATIONS[activation](op, h), h)
    return op.Add(h, op.Mul(deviation, op.parameter(own, weights[own])))


def _scaled_gemm(op: GraphBuilder, x: ir.Value, name: str, weights: Mapping[str, np.ndarray]) -> ir.Value:
    weight, bias = (op.parameter(key, weights[key]) for key in (f"{name}.weight", f"{name}.bias"))
    return op.Gemm(x, weight, bias, alpha=len(weights[f"{name}.weight"]) ** -0.5)


def _scaled_indicators(table: CodedTable, rows: np.ndarray | None) -> DrawnColumns:
    """Return indicators, centered, scaled and clipped as numbers are: they have two or three values."""
    indicators = signed_one_hot(table.indicators)
    if rows is None:
        return DrawnColumns(len(indicators.source), indicators.emit)
    median, factor = (part.astype(np.float32) for part in robust_scaling(indicators.values(rows)))

    def emit(op: GraphBuilder, x: ir.Value) -> ir.Value:
        scaled = op.Mul(op.Sub(indicators.emit(op, x), median), factor)
        return op.Div(scaled, op.Sqrt(op.Add(op.Mul(op.Mul(scaled, scaled), 1 / 9), 1.0)))

    return DrawnColumns(len(indicators.source), emit, constants=(median, factor))


def _convex_combinations(
    values: np.ndarray, unit: np.ndarray, rng: np.random.RandomState, terms: int = 5
) -> np.ndarray:
    """Return a random convex combination of some values of each column, in a unit of its own."""
    n_rows, n_columns = values.shape
    chosen = values[rng.randint(n_rows, size=(terms, n_columns)), np.arange(n_columns)] / unit
    weights = rng.exponential(size=(terms, n_columns))
    return np.asarray((chosen * weights / weights.sum(axis=0)).sum(axis=0))
