"""TabM: an ensemble of perceptrons for tables that share most of their weights, in one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._support.content import content
from .._support.rules import BELOW_ONE, CODE_COLUMNS, COUNT, Instance, OneOf, Rules, Sizes
from .base import Draft, GraphModel
from .drawn_columns import DrawnColumns, side_by_side
from .embeddings import EMBEDDINGS, Embedding, resolve_embedding
from .layers import ACTIVATIONS, empty_graph, finish, layer_sizes
from .table import (
    CodedTable,
    coded_table,
    difference,
    full_one_hot,
    heads,
    insert_dropout,
    numeric_columns,
    task_of,
)
from .values import dense_rows


class TabM(GraphModel):
    r"""TabM, an ensemble of perceptrons for tables that share most of their weights, in one graph.

    Member j computes :math:`h \mapsto f(((h \circ r_j)\, W) \circ s_j + b_j)` in each hidden layer, with a matrix W of
    all members and vectors :math:`r_j, s_j, b_j` of its own, and its scores by a matrix of its own. The members are
    told apart by the first vectors r, which start at random; all other r and s start at one. The loss is the mean of
    the members' losses; a prediction is the mean of their probabilities, or of their outputs.

    Parameters
    ----------
    n_members : int, default=32
        Members of the ensemble.
    hidden_layer_sizes : int or sequence of int, default="auto"
        Units of each hidden layer. "auto": three layers of 512, or two behind an embedding.
    mini : bool, default=False
        Whether members have a vector of their own before the first layer alone, and share all else up to the last
        layer.
    activation : str, default="relu"
        Activation of the hidden layers, a name in :data:`~onnxtrain_sklearn.models.ACTIVATIONS`.
    embedding : str, Embedding or None, default=None
        Embedding of the numeric columns, which all members share: usually a
        :class:`~onnxtrain_sklearn.models.PiecewiseLinearEmbedding`.
    dropout : float, default=0.1
        Share of the hidden units that a training step leaves out, in [0, 1).
    categories : dict of int to int, default=None
        Categorical columns: their numbers, and how many codes each has. They become one column for each code. Code 0
        stands for a missing category.

    Attributes
    ----------
    weight_decay_factors : dict of str to float
        Biases, and the linear part and the frequencies of embeddings, do not decay.

    Notes
    -----
    Numeric columns should be scaled, best to normal quantiles. The recipe trains with AdamW from a constant rate of
    0.002 in minibatches of 256 rows, with early stopping of a patience of 16.

    The parameters are named ``embedding.something``; ``layers.0.input_weight`` (n_members, 1, n_in) for r,
    ``layers.0.weight`` (n_in, n_out), ``layers.0.output_weight`` (n_members, 1, n_out) for s and ``layers.0.bias``
    (n_members, 1, n_out), ...; ``heads.weight`` (n_members, n_in, n_outputs) and ``heads.bias``. With ``mini``:
    ``input_weight`` for r, and biases (n_out,) of all members.

    References
    ----------
    Gorishniy, Kotelnikov and Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling",
    ICLR 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from onnxtrain_sklearn import OrtGradientClassifier, TabM
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = TabM(n_members=8, hidden_layer_sizes=(32, 32))
    >>> settings = {"learning_rate_init": 0.005, "tol": 0.02, "n_iter_no_change": 2}
    >>> net = OrtGradientClassifier(model, random_state=0, **settings).fit(scale(X), y)
    >>> net.score(scale(X), y) > 0.95
    True
    """

    name = "tabm"
    scales_targets = True
    valid: ClassVar[Rules] = {
        "n_members": (COUNT,),
        "hidden_layer_sizes": (Sizes(), OneOf(("auto",))),
        "mini": (bool,),
        "activation": (OneOf(ACTIVATIONS),),
        "embedding": (OneOf(EMBEDDINGS), Instance(Embedding, "an Embedding object"), None),
        "dropout": (BELOW_ONE,),
        "categories": (CODE_COLUMNS, None),
    }

    def __init__(
        self,
        n_members: int = 32,
        hidden_layer_sizes: int | Sequence[int] | str = "auto",
        mini: bool = False,
        activation: str = "relu",
        embedding: str | Embedding | None = None,
        dropout: float = 0.1,
        categories: Mapping[int, int] | None = None,
    ) -> None:
        self.n_members = n_members
        self.hidden_layer_sizes = hidden_layer_sizes
        self.mini = mini
        self.activation = activation
        self.embedding = embedding
        self.dropout = dropout
        self.categories = categories

    @property
    def weight_decay_factors(self) -> dict[str, float]:
        """Factors of the weight decay, by patterns of names: the last that matches counts."""
        return {"*": 0.0, "*weight": 1.0}

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
        rng, rows = check_random_state(random_state), None if X is None else dense_rows(X)
        table, outputs = coded_table(n_features, self.categories), heads(n_outputs, task_of(y))
        columns = self._columns(table, rng, rows)
        r = self._first_vectors(table, columns.width, rng)
        weights = {**columns.weights, **({"input_weight": r} if self.mini else {})}
        sizes = [columns.width, *self._sizes()]
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            own = np.ones((self.n_members, 1, n_in), np.float32) if i else r
            weights |= self._drawn_layer(own, n_out, rng, f"layers.{i}")
        weights["heads.weight"] = _uniform_weight(rng, sizes[-1], (self.n_members, sizes[-1], outputs))
        weights["heads.bias"] = _uniform_weight(rng, sizes[-1], (self.n_members, 1, outputs))
        form = outputs, content(columns.constants)
        return Draft(weights, form, lambda: self._graph(n_features, n_outputs, columns, weights))

    def _graph(
        self, n_features: int, n_outputs: int, columns: DrawnColumns, weights: Mapping[str, np.ndarray]
    ) -> onnx.ModelProto:
        graph, op, x = empty_graph(n_features)
        h = columns.emit(op, x)
        h = op.Unsqueeze(h, axes=[0])  # members come first: the products with r and the heads are batched
        if self.mini:
            h = op.Mul(h, op.parameter("input_weight", weights["input_weight"]))
        hidden = []
        for i in range(len(self._sizes())):
            h = ACTIVATIONS[self.activation](op, self._layer(op, h, f"layers.{i}", weights))
            hidden.append(h)
        h = op.MatMul(h, op.parameter("heads.weight", weights["heads.weight"]))
        h = op.Add(h, op.parameter("heads.bias", weights["heads.bias"]))
        insert_dropout(op, hidden, float(self.dropout))
        outputs = weights["heads.bias"].shape[-1]
        h = op.Transpose(difference(op, h) if outputs > n_outputs else h, perm=[1, 0, 2])
        return finish(graph, h, self.n_members, n_outputs)

    def _sizes(self) -> list[int]:
        if isinstance(self.hidden_layer_sizes, str):
            return [512] * (3 if self.embedding is None else 2)
        return layer_sizes(self.hidden_layer_sizes)

    def _columns(self, table: CodedTable, rng: np.random.RandomState, rows: np.ndarray | None) -> DrawnColumns:
        """Return the embedded numbers and the indicators, side by side."""
        parts = numeric_columns(table, self._embedding(), rng, rows)
        if table.indicators:
            indicators = full_one_hot(table.indicators)
            parts.append(DrawnColumns(len(indicators.source), indicators.emit))
        return side_by_side(parts)

    def _embedding(self) -> Embedding | None:
        return None if self.embedding is None else resolve_embedding(self.embedding)

    def _first_vectors(self, table: CodedTable, width: int, rng: np.random.RandomState) -> np.ndarray:
        """Return the vectors r of the first layer, equal for all that a column of the table becomes."""
        n_numbers, sizes = len(table.numbers), [size for _, size in table.indicators]
        embedding, embedded_width = self._embedding() if n_numbers else None, width - sum(sizes)
        source = np.arange(n_numbers) if embedding is None else embedding.sources(n_numbers, embedded_width)
        source = np.concatenate([source, n_numbers + np.repeat(np.arange(len(sizes)), sizes)]).astype(int)
        shape = (self.n_members, 1, n_numbers + len(sizes))
        values = rng.choice([-1.0, 1.0], shape) if embedding is None else rng.normal(size=shape)
        return values[:, :, source].astype(np.float32)

    def _drawn_layer(self, r: np.ndarray, n_out: int, rng: np.random.RandomState, name: str) -> dict[str, np.ndarray]:
        """Return the initial weights of a layer; ``r`` are the vectors by which its inputs are multiplied."""
        members, n_in = self.n_members, r.shape[-1]
        weight, bias = _uniform_weight(rng, n_in, (n_in, n_out)), _uniform_weight(rng, n_in, (n_out,))
        if self.mini:
            return {f"{name}.weight": weight, f"{name}.bias": bias}
        return {
            f"{name}.input_weight": r,
            f"{name}.weight": weight,
            f"{name}.output_weight": np.ones((members, 1, n_out), np.float32),
            f"{name}.bias": np.tile(bias, (members, 1, 1)),
        }

    def _layer(self, op: GraphBuilder, h: ir.Value, name: str, weights: Mapping[str, np.ndarray]) -> ir.Value:
        def parameter(kind: str) -> ir.Value:
            return op.parameter(f"{name}.{kind}", weights[f"{name}.{kind}"])

        if self.mini:
            return op.Add(op.MatMul(h, parameter("weight")), parameter("bias"))
        h = op.MatMul(op.Mul(h, parameter("input_weight")), parameter("weight"))
        return op.Add(op.Mul(h, parameter("output_weight")), parameter("bias"))


def _uniform_weight(rng: np.random.RandomState, n_in: int, shape: tuple[int, ...]) -> np.ndarray:
    bound = n_in**-0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)
