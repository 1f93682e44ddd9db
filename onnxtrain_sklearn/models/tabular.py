"""RealMLP (with monotonic constraints) and TabM, the networks for tables.

Both first split the columns (:func:`coded_table`) and make inputs of the first layer from each kind: numbers through
an embedding (:func:`numeric_columns`), categories as :class:`Indicators` or trained vectors (:func:`category_vectors`).
Then they draw all weights, as a ``Draft``, and emit the graph when it is needed. Categories come as codes in columns of
their own: 0 for a missing or unseen category, 1 and more for the others. Codes beyond the number that is declared count
as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._data.columns import require_in_memory
from .._ir.edits import insert_after
from .._utils.cache import content
from .._utils.params import BELOW_ONE, CODE_COLUMNS, COUNT, ColumnSigns, Instance, OneOf, Rules, Sizes
from ..graph import GraphBuilder
from .base import BaseBuilder, Draft
from .embeddings import (
    EMBEDDINGS,
    DrawnColumns,
    Embedding,
    GraphPart,
    PeriodicEmbedding,
    dense_rows,
    drawn_embedding,
    resolve_embedding,
    side_by_side,
    some_rows,
)
from .layers import (
    ACTIVATIONS,
    DEVIATIONS,
    activated_both_ways,
    empty_graph,
    finish,
    layer_sizes,
    require_monotone,
    signed_weight,
    signs_of_columns,
)

MAX_ONE_HOT, VECTOR_SIZE = 9, 8
"""A categorical column of at most so many codes becomes indicators, one of more a vector of so many numbers."""

BINARY = 3
"""Number of codes of a column with two categories."""

NONE = -1.0
"""A code that no row has."""


class RealMLP(BaseBuilder):
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
    monotonic_cst : array-like of int of shape (n_features,), dict of str or int to int, or None, default=None
        Numeric columns in which the predictions never fall (1) or never rise (-1), as in :class:`MLP`.

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

    With ``monotonic_cst``, constrained columns have no embedding, weights get signs by absolute values as in
    :class:`MLP`, activations are plain ("auto": "selu"), two classes have one output, and all layers start as in "td".

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
        "monotonic_cst": (ColumnSigns(), None),
    }

    def __init__(
        self,
        variant: str = "td",
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        activation: str = "auto",
        embedding: str | Embedding | None = "auto",
        dropout: float | str = "auto",
        categories: Mapping[int, int] | None = None,
        monotonic_cst: Any = None,
    ) -> None:
        self.variant = variant
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.embedding = embedding
        self.dropout = dropout
        self.categories = categories
        self.monotonic_cst = monotonic_cst

    def validate(self) -> None:
        """Raise InvalidParameterError if a setting breaks its rules, or does not go with ``monotonic_cst``."""
        super().validate()
        if self.monotonic_cst is not None and self.activation != "auto":
            require_monotone(self.activation)

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """Factors of the learning rate, by patterns of names: the last that matches counts."""
        return {"*": 0.1, "layers.*.weight": 1.0, "scale": 6.0} | self._for_vectors()

    @property
    def weight_decay_factors(self) -> dict[str, float]:
        """Factors of the weight decay; a parameter with a factor of the rate decays by its square."""
        return {"*": 0.1, "layers.*.weight": 1.0, "layers.*.bias": 0.0, "scale": 6.0} | self._for_vectors()

    def _for_vectors(self) -> dict[str, float]:
        # Only if there are vectors: a pattern that matches no parameter is refused.
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
        task = task_of(y)
        rows = None if X is None else some_rows(X, rng)
        table = coded_table(n_features, self.categories, self._max_one_hot())
        given = None if self.monotonic_cst is None else signs_of_columns(self.monotonic_cst, n_features)
        columns, signs = self._columns(table, rng, rows, given)
        first = {**columns.weights, "scale": np.ones(columns.width, np.float32)}
        form = task, content(columns.constants)
        # The inputs of the first layer for these rows: its initial weights depend on them, and those of each further
        # layer on the results of the layer before.
        values = None
        if rows is not None and (self.variant == "td" or signs is not None):
            own = (content(self), form) if columns.is_own else None
            values = GraphPart(lambda op, x: _scaled_columns(op, x, columns, first, signs), first, own).values(rows)
        inside = n_outputs if signs is not None else outputs_inside(n_outputs, task)
        sizes = [columns.width, *layer_sizes(self.hidden_layer_sizes), inside]
        weights = first | self._drawn_layers(rng, sizes, values, self._activation(task), signs)
        return Draft(weights, form, lambda: self._graph(n_features, n_outputs, columns, weights, task, signs))

    def _drawn_layers(
        self,
        rng: np.random.RandomState,
        sizes: Sequence[int],
        values: np.ndarray | None,
        activation: str,
        signs: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Return the initial weights of all layers, given values of the first one's inputs."""
        weights, last = dict[str, np.ndarray](), len(sizes) - 2
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            name = f"layers.{i}"
            own_signs = _signs_of_inputs(signs, i, n_in)
            both = self._initial(rng, n_in, n_out, values, own_signs, last=i == last)
            drawn = {f"{name}.{kind}": a.astype(np.float32) for kind, a in zip(("weight", "bias"), both, strict=True)}
            if i < last and self.variant == "td" and signs is None:
                drawn[f"{name}.activation"] = np.ones(n_out, np.float32)
            # The initial weights of the next layer depend on its inputs: run this layer on the rows.
            if i < last and values is not None:
                emit = partial(_hidden, name=name, weights=drawn, activation=activation, signs=own_signs)
                form = name, n_out, activation, None if own_signs is None else own_signs.tobytes()
                part = GraphPart(emit, drawn, form)
                values = part.values(values)
            weights |= drawn
        return weights

    def _graph(
        self,
        n_features: int,
        n_outputs: int,
        columns: DrawnColumns,
        weights: Mapping[str, np.ndarray],
        task: str,
        signs: np.ndarray | None,
    ) -> onnx.ModelProto:
        graph, op, x = empty_graph(n_features)
        h = _scaled_columns(op, x, columns, weights, signs)
        hidden = []
        count = len(layer_sizes(self.hidden_layer_sizes))
        for i in range(count):
            name = f"layers.{i}"
            own_signs = _signs_of_inputs(signs, i, len(weights[f"{name}.weight"]))
            h = _hidden(op, h, name, weights, self._activation(task), own_signs)
            hidden.append(h)
        name = f"layers.{count}"
        h = _scaled_gemm(op, h, name, weights, _signs_of_inputs(signs, count, len(weights[f"{name}.weight"])))
        ratio = 0.15 * (self.variant == "td") if self.dropout == "auto" else float(self.dropout)
        insert_dropout(op, hidden, ratio)
        inside = len(weights[f"{name}.bias"])
        return finish(graph, difference(op, h) if inside > n_outputs else h, n_outputs)

    def _embedding(self) -> Embedding | None:
        if self.embedding == "auto":
            return PeriodicEmbedding() if self.variant == "td" else None
        return None if self.embedding is None else resolve_embedding(self.embedding)

    def _columns(
        self, table: CodedTable, rng: np.random.RandomState, rows: np.ndarray | None, given: np.ndarray | None
    ) -> tuple[DrawnColumns, np.ndarray | None]:
        """Return the embedded numbers, the scaled indicators and the vectors, side by side, and their signs.

        ``given`` are the signs of the columns of the table. Those with one come first, without an embedding.
        """
        signed = np.flatnonzero(given) if given is not None else np.zeros(0, int)
        parts = list[DrawnColumns]()
        if len(signed):
            if len(others := np.setdiff1d(signed, table.numbers)):
                raise ValueError(f"monotonic_cst is for columns of numbers; column {others[0]} holds categories.")
            parts.append(DrawnColumns(len(signed), lambda op, x: op.Gather(x, signed, axis=1)))
            table = replace(table, numbers=np.setdiff1d(table.numbers, signed))
        parts += numeric_columns(table, self._embedding(), rng, rows)
        if table.indicators:
            parts.append(_scaled_indicators(table, rows))
        if table.vectors:
            parts.append(category_vectors(table.vectors, VECTOR_SIZE, rng))
        columns = side_by_side(parts)
        if given is None or not len(signed):
            return columns, None
        return columns, np.pad(given[signed], (0, columns.width - len(signed)))

    def _initial(
        self,
        rng: np.random.RandomState,
        n_in: int,
        n_out: int,
        values: np.ndarray | None,
        signs: np.ndarray | None,
        *,
        last: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and biases; with the values of the inputs on some rows they depend on these."""
        # Weights of zero would stay there with signs: the derivative of the absolute value is 0.
        if self.variant == "td-s" and last and signs is None:
            return np.zeros((n_in, n_out)), np.zeros(n_out)
        weight = rng.normal(size=(n_in, n_out))
        if values is None:
            return weight, rng.normal(size=n_out)
        # Divide each unit's weights by the deviation of its outputs on these rows, so that it begins with one of 1.
        used = weight
        if signs is not None:
            own = signs[:, np.newaxis]
            used = np.where(own == 0, weight, np.abs(weight) * own)
        outputs = values @ (used / np.sqrt(n_in))
        deviation = outputs.std(axis=0)
        deviation[deviation < 1e-12] = 1.0  # a unit that is constant on all rows
        return weight / deviation, -_convex_combinations(outputs, deviation, rng)

    def _activation(self, task: str) -> str:
        if self.activation == "auto":
            return "mish" if task == "numbers" and self.monotonic_cst is None else "selu"
        return self.activation


class TabM(BaseBuilder):
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
        Units of each hidden layer. "auto": three layers of 512, or two after an embedding.
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
        rng = check_random_state(random_state)
        rows = None if X is None else dense_rows(X)
        table = coded_table(n_features, self.categories)
        outputs = outputs_inside(n_outputs, task_of(y))
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
        n_numbers = len(table.numbers)
        sizes = [size for _, size in table.indicators]
        embedding = self._embedding() if n_numbers else None
        embedded_width = width - sum(sizes)
        source = np.arange(n_numbers) if embedding is None else embedding.sources(n_numbers, embedded_width)
        # A column of the table has one number for each member, however many columns of the layer it becomes.
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


@dataclass(frozen=True)
class CodedTable:
    """The columns of a table: numbers, categories that become indicators, and categories that become vectors.

    Attributes
    ----------
    n_features : int
        Number of all columns.
    numbers : ndarray of int
        Indices of the numeric columns.
    indicators, vectors : tuple of (index, number of codes)
        The categorical columns.
    """

    n_features: int
    numbers: np.ndarray
    indicators: tuple[tuple[int, int], ...]
    vectors: tuple[tuple[int, int], ...]


def coded_table(n_features: int, categories: Mapping[int, int] | None, max_one_hot: float = np.inf) -> CodedTable:
    """Return the columns; categorical ones of more than ``max_one_hot`` codes become vectors."""
    known = sorted((int(i), int(size)) for i, size in (categories or {}).items())
    if known and known[-1][0] >= n_features:
        raise ValueError(f"categories names column {known[-1][0]}, but X has {n_features} columns.")
    numbers = np.setdiff1d(np.arange(n_features), [i for i, _ in known])
    few = tuple((i, size) for i, size in known if size <= max_one_hot)
    return CodedTable(n_features, numbers, few, tuple((i, size) for i, size in known if size > max_one_hot))


def numeric_columns(
    table: CodedTable, embedding: Embedding | None, rng: np.random.RandomState, rows: np.ndarray | None
) -> list[DrawnColumns]:
    """Return the embedded numeric columns, if there are any; ``rows`` are those of the whole table."""
    numbers = table.numbers
    if not len(numbers):
        return []
    if embedding is None:
        drawn = DrawnColumns(len(numbers), lambda op, x: x)
    else:
        drawn = drawn_embedding(embedding, len(numbers), rng, None if rows is None else rows[:, numbers])
    if len(numbers) == table.n_features:  # the numbers are the whole table
        return [drawn]
    return [replace(drawn, emit=lambda op, x: drawn.emit(op, op.Gather(x, numbers, axis=1)))]


def category_vectors(columns: Sequence[tuple[int, int]], size: int, rng: np.random.RandomState) -> DrawnColumns:
    """Return a trained vector of ``size`` numbers for each code, side by side."""
    places, counts = (np.array(part, np.int64) for part in zip(*columns, strict=True))
    vectors = rng.normal(size=(counts.sum(), size)).astype(np.float32)
    width = len(columns) * size

    def emit(op: GraphBuilder, x: ir.Value) -> ir.Value:
        codes = op.Gather(x, places, axis=1)
        # A code out of range would read the vector of another column, as all are rows of one matrix.
        known = op.And(op.GreaterOrEqual(codes, 0.0), op.Less(codes, counts.astype(np.float32)))
        codes = op.Cast(op.Where(known, codes, 0.0), to=int(ir.DataType.INT64))
        starts = np.cumsum(counts) - counts
        weight = op.parameter("categories.weight", vectors)
        return op.Reshape(op.Gather(weight, op.Add(codes, starts), axis=0), [-1, width])

    return DrawnColumns(width, emit, {"categories.weight": vectors})


@dataclass(frozen=True)
class Indicators:
    """Columns that tell codes apart: 1 where a column has the code ``plus``, -1 where it has ``minus``, else 0."""

    source: np.ndarray
    plus: np.ndarray
    minus: np.ndarray

    def emit(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """Append the columns for a table ``x``."""
        codes = op.Gather(x, self.source, axis=1)
        hot = _marked(op, codes, self.plus)
        return op.Sub(hot, _marked(op, codes, self.minus)) if (self.minus != NONE).any() else hot

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return the columns for rows."""
        codes = X[:, self.source]
        return np.asarray((codes == self.plus).astype(np.float32) - (codes == self.minus))


def full_one_hot(columns: Sequence[tuple[int, int]]) -> Indicators:
    """Return one column for each code, that of missing categories included."""
    found = [(i, float(code), NONE) for i, size in columns for code in range(size)]
    return _from_entries(found)


def signed_one_hot(columns: Sequence[tuple[int, int]]) -> Indicators:
    """Return one column for each category, none for missing ones; a single one of 1 and -1 for two categories."""
    found = []
    for i, size in columns:
        found += [(i, 1.0, 2.0)] if size == BINARY else [(i, float(code), NONE) for code in range(1, size)]
    return _from_entries(found)


def _from_entries(found: Sequence[tuple[int, float, float]]) -> Indicators:
    source, plus, minus = zip(*found, strict=True) if found else ((), (), ())
    return Indicators(np.array(source, np.int64), np.array(plus, np.float32), np.array(minus, np.float32))


def _marked(op: GraphBuilder, codes: ir.Value, wanted: np.ndarray) -> ir.Value:
    return op.Cast(op.Equal(codes, wanted), to=int(ir.DataType.FLOAT))


def _scaled_indicators(table: CodedTable, rows: np.ndarray | None) -> DrawnColumns:
    """Return indicators, centered, scaled and clipped as numbers are: they have two or three values."""
    indicators = signed_one_hot(table.indicators)
    if rows is None:
        return DrawnColumns(len(indicators.source), indicators.emit)
    median, factor = (part.astype(np.float32) for part in robust_scaling(indicators.values(rows)))

    def emit(op: GraphBuilder, x: ir.Value) -> ir.Value:
        # Smooth clipping to (-3, 3), x / sqrt(1 + (x / 3)²), as the recipe does with numbers.
        scaled = op.Mul(op.Sub(indicators.emit(op, x), median), factor)
        return op.Div(scaled, op.Sqrt(op.Add(op.Mul(op.Mul(scaled, scaled), 1 / 9), 1.0)))

    return DrawnColumns(len(indicators.source), emit, constants=(median, factor))


def robust_scaling(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians, and factors to an interquartile range of 1; where that is 0, to a range of 2."""
    # Binary columns often have an interquartile range of 0; their range then takes its place.
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, high - low, np.ptp(values, axis=0) / 2)
    return median, np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)


def task_of(y: np.ndarray | None) -> str:
    """Return the kind of the targets: "classes", "numbers" or "unknown"."""
    if y is None:
        return "unknown"
    require_in_memory(y, "y")
    return "classes" if np.asarray(y).dtype.kind in "iub" else "numbers"


def outputs_inside(n_outputs: int, task: str) -> int:
    """Return the number of outputs to build: two for two classes, which then train as several classes do."""
    return 2 if task == "classes" and n_outputs == 1 else n_outputs


def difference(op: GraphBuilder, outputs: ir.Value) -> ir.Value:
    """Return the score of the second of two classes: the sigmoid of it is the softmax of ``outputs``."""
    return op.MatMul(outputs, np.array([[-1], [1]], np.float32))


def insert_dropout(op: GraphBuilder, hidden: Sequence[ir.Value], ratio: float) -> None:
    """Rewire consumers of hidden values to these values after dropout."""
    if not ratio:
        return
    for value in hidden:
        insert_after(op, value, lambda v: op.Dropout(v, np.float32(ratio), np.array(True)))
    op.graph.sort()


def _scaled_columns(
    op: GraphBuilder,
    x: ir.Value,
    columns: DrawnColumns,
    weights: Mapping[str, np.ndarray],
    signs: np.ndarray | None = None,
) -> ir.Value:
    """Emit the columns and the scale of each, which is not negative where the column has a sign."""
    scale = op.parameter("scale", weights["scale"])
    if signs is not None:
        scale = op.Where(signs != 0, op.Abs(scale), scale)
    return op.Mul(columns.emit(op, x), scale)


def _signs_of_inputs(signs: np.ndarray | None, layer: int, n_in: int) -> np.ndarray | None:
    """Return the signs of a layer's inputs, given those of the first layer; None if nothing is constrained."""
    return signs if signs is None or layer == 0 else np.ones(n_in, np.float32)


def _hidden(
    op: GraphBuilder,
    h: ir.Value,
    name: str,
    weights: Mapping[str, np.ndarray],
    activation: str,
    signs: np.ndarray | None = None,
) -> ir.Value:
    """Emit a hidden layer, with a parametric activation where it has a weight of this name."""
    h = _scaled_gemm(op, h, name, weights, signs)
    if signs is not None:
        return activated_both_ways(op, h, len(weights[f"{name}.bias"]), activation)
    own = f"{name}.activation"
    deviation = DEVIATIONS[activation](op, h) if activation in DEVIATIONS else None
    if own not in weights:
        return ACTIVATIONS[activation](op, h) if deviation is None else op.Add(h, deviation)
    if deviation is None:
        deviation = op.Sub(ACTIVATIONS[activation](op, h), h)
    # The trained share starts at one, which gives the activation itself.
    return op.Add(h, op.Mul(deviation, op.parameter(own, weights[own])))


def _scaled_gemm(
    op: GraphBuilder, x: ir.Value, name: str, weights: Mapping[str, np.ndarray], signs: np.ndarray | None
) -> ir.Value:
    weight, bias = (op.parameter(key, weights[key]) for key in (f"{name}.weight", f"{name}.bias"))
    weight = weight if signs is None else signed_weight(op, weight, signs)
    return op.Gemm(x, weight, bias, alpha=len(weights[f"{name}.weight"]) ** -0.5)


def _convex_combinations(
    values: np.ndarray, unit: np.ndarray, rng: np.random.RandomState, terms: int = 5
) -> np.ndarray:
    """Return a random convex combination of some values of each column, in a unit of its own."""
    n_rows, n_columns = values.shape
    chosen = values[rng.randint(n_rows, size=(terms, n_columns)), np.arange(n_columns)] / unit
    # Exponential numbers divided by their sum are uniform among the convex combinations.
    weights = rng.exponential(size=(terms, n_columns))
    return np.asarray((chosen * weights / weights.sum(axis=0)).sum(axis=0))


def _uniform_weight(rng: np.random.RandomState, n_in: int, shape: tuple[int, ...]) -> np.ndarray:
    bound = n_in**-0.5  # as PyTorch draws linear layers, in which TabM was published
    return rng.uniform(-bound, bound, shape).astype(np.float32)
