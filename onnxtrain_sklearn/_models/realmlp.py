"""RealMLP: a multi-layer perceptron for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._support.rules import BELOW_ONE, CODE_COLUMNS, Instance, OneOf, Rules, Sizes
from .base import GraphModel
from .embeddings import EMBEDDINGS, Embedding, PeriodicEmbedding, resolve_embedding
from .layers import ACTIVATIONS, DEVIATIONS, empty_graph, finish, layer_sizes
from .table import (
    CodedTable,
    category_vectors,
    coded_table,
    difference,
    embedded,
    heads,
    insert_dropout,
    numbers_of,
    robust_scaling,
    signed_one_hot,
    task_of,
)
from .values import some_rows, values_of, width_of

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
        self.validate()
        rng = check_random_state(random_state)
        task, rows = task_of(y), None if X is None else some_rows(X, rng)
        graph, op, x = empty_graph(n_features)
        h = self._columns(op, x, coded_table(n_features, self.categories, self._max_one_hot()), rng, rows)
        width = width_of(op, h)
        h = op.Mul(h, op.parameter("scale", np.ones(width, np.float32)))
        outputs = heads(n_outputs, task)
        sizes = [width, *layer_sizes(self.hidden_layer_sizes), outputs]
        hidden = []
        for i in range(len(sizes) - 1):
            last = i == len(sizes) - 2
            values = None if rows is None or self.variant == "td-s" else values_of(graph, h, rows)
            h = self._dense(op, h, self._initial(rng, sizes[i], sizes[i + 1], values, last=last), f"layers.{i}")
            if not last:
                h = self._activated(op, h, sizes[i + 1], task, f"layers.{i}")
                hidden.append(h)
        insert_dropout(op, hidden, self._ratio())
        return finish(graph, difference(op, h) if outputs > n_outputs else h, n_outputs)

    def _ratio(self) -> float:
        return float(self.dropout) if self.dropout != "auto" else 0.15 * (self.variant == "td")

    def _embedding(self) -> Embedding | None:
        if self.embedding == "auto":
            return PeriodicEmbedding() if self.variant == "td" else None
        return None if self.embedding is None else resolve_embedding(self.embedding)

    def _columns(
        self, op: GraphBuilder, x: ir.Value, table: CodedTable, rng: np.random.RandomState, rows: np.ndarray | None
    ) -> ir.Value:
        """Return the embedded numbers, the scaled indicators and the vectors, side by side."""
        parts, numbers = [], numbers_of(op, x, table)
        if numbers is not None:
            parts.append(embedded(op, numbers, table, self._embedding(), rng, rows))
        if table.indicators:
            parts.append(_scaled_indicators(op, x, table, rows))
        if table.vectors:
            parts.append(category_vectors(op, x, table.vectors, VECTOR_SIZE, rng))
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)

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
        return weight / deviation, -_convex_combinations(outputs / deviation, rng)

    def _dense(self, op: GraphBuilder, x: ir.Value, initial: tuple[np.ndarray, np.ndarray], name: str) -> ir.Value:
        weight, bias = (a.astype(np.float32) for a in initial)
        w, b = op.parameter(f"{name}.weight", weight), op.parameter(f"{name}.bias", bias)
        return op.Gemm(x, w, b, alpha=len(weight) ** -0.5)

    def _activated(self, op: GraphBuilder, x: ir.Value, size: int, task: str, name: str) -> ir.Value:
        activation = self.activation
        if activation == "auto":
            activation = "mish" if task == "numbers" else "selu"
        deviation = DEVIATIONS[activation](op, x) if activation in DEVIATIONS else None
        if self.variant == "td-s":
            return ACTIVATIONS[activation](op, x) if deviation is None else op.Add(x, deviation)
        if deviation is None:
            deviation = op.Sub(ACTIVATIONS[activation](op, x), x)
        return op.Add(x, op.Mul(deviation, op.parameter(f"{name}.activation", np.ones(size, np.float32))))


def _scaled_indicators(op: GraphBuilder, x: ir.Value, table: CodedTable, rows: np.ndarray | None) -> ir.Value:
    """Return indicators, centered, scaled and clipped as numbers are: they have two or three values."""
    indicators = signed_one_hot(table.indicators)
    columns = indicators.emit(op, x)
    if rows is None:
        return columns
    median, factor = robust_scaling(indicators.values(rows))
    scaled = op.Mul(op.Sub(columns, median.astype(np.float32)), factor.astype(np.float32))
    return op.Div(scaled, op.Sqrt(op.Add(op.Mul(op.Mul(scaled, scaled), 1 / 9), 1.0)))


def _convex_combinations(values: np.ndarray, rng: np.random.RandomState, terms: int = 5) -> np.ndarray:
    """Return a random convex combination of some values of each column."""
    n_rows, n_columns = values.shape
    chosen = values[rng.randint(n_rows, size=(terms, n_columns)), np.arange(n_columns)]
    weights = rng.exponential(size=(terms, n_columns))
    return np.asarray((chosen * weights / weights.sum(axis=0)).sum(axis=0))
