"""Embeddings of numeric columns, and the builder that puts one before any network.

:class:`Embedded` puts an :class:`Embedding` before another builder: it emits the embedding into the builder's graph and
rewires the consumers of its input. Networks for tables (``tabular``) draw all weights before a graph exists:
:func:`drawn_embedding` returns the embedding as :class:`DrawnColumns`, weights now and nodes later, and
:class:`GraphPart` runs such parts on rows, for initial weights that depend on the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import scipy.sparse as sp
from sklearn.utils import check_random_state

from .._data.columns import require_in_memory
from .._data.statistics import exact_quantiles
from .._importers.load import load
from .._ir.edits import replace_input
from .._ir.protobuf import erase_initializers, fill_initializers, to_proto
from .._ort.devices import resolve_device
from .._ort.sessions import create_session, run_session
from .._utils.cache import Cache
from .._utils.params import COUNT, POSITIVE, Component, OneOf, Range, Rules, resolve
from ..exceptions import ModelError, instead_of
from ..graph import GraphBuilder
from .base import BaseBuilder, Builder, is_builder, keywords_of
from .layers import MLP, empty_graph, finish


class Embedded(BaseBuilder):
    """A builder whose networks read an embedding of the columns.

    Parameters
    ----------
    embedding : str or Embedding, default="periodic"
        Name or object: :class:`PeriodicEmbedding`, :class:`PiecewiseLinearEmbedding`, or one of your own.
    model : builder, default=None
        Any object with a method ``build``, also of your own. None: ``MLP()``.
    columns : sequence of int, default=None
        The columns that are embedded, by number. The others follow the embedded ones as they are. None: all columns.

    Notes
    -----
    The builder gets ``row_shape`` and ``X`` of the embedded columns. Its attributes, such as ``scales_targets``, hold
    for the whole. The parameters of the embedding are named ``embedding.something``.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from onnxtrain_sklearn import Linear, OrtGradientClassifier
    >>> from onnxtrain_sklearn.models import Embedded, PiecewiseLinearEmbedding
    >>> X, y = make_moons(300, noise=0.1, random_state=0)
    >>> additive = Embedded(PiecewiseLinearEmbedding(size=4, n_bins=16), Linear())
    >>> net = OrtGradientClassifier(additive, learning_rate_init=0.05, tol=1e-3, random_state=0)
    >>> net.fit(X, y).score(X, y) > 0.9
    True
    >>> sorted(net.weights_)
    ['bias', 'embedding.bias', 'embedding.slope', 'embedding.weight', 'weight']
    """

    __module__ = "onnxtrain_sklearn.models"

    def __init__(
        self, embedding: str | Embedding = "periodic", model: Any = None, columns: Sequence[int] | None = None
    ) -> None:
        self.embedding = embedding
        self.model = model
        self.columns = columns

    @property
    def scales_targets(self) -> bool:  # type: ignore[override]  # as the builder behind the embedding says
        """True if the builder's graphs may be trained on targets of another unit."""
        return bool(getattr(self._builder(), "scales_targets", False))

    @property
    def n_members(self) -> int | None:
        """Number of members of the builder's ensembles, None where it makes none."""
        return getattr(self._builder(), "n_members", None)

    @property
    def learning_rate_factors(self) -> Mapping[str, float] | None:
        """The builder's factors of the learning rate."""
        return getattr(self._builder(), "learning_rate_factors", None)

    @property
    def weight_decay_factors(self) -> Mapping[str, float] | None:
        """The builder's factors of the weight decay."""
        return getattr(self._builder(), "weight_decay_factors", None)

    def _builder(self) -> Builder:
        return MLP() if self.model is None else self.model

    def validate(self) -> None:
        super().validate()
        resolve_embedding(self.embedding)
        if not is_builder(self._builder()):
            raise TypeError(
                f"model must be a builder, an object with a method build, or None, {instead_of(self.model)}."
            )
        if getattr(self._builder(), "monotonic_cst", None) is not None:
            raise ValueError("monotonic_cst needs the columns themselves, and embeddings rise and fall in them.")

    def build(
        self,
        n_features: int,
        n_outputs: int,
        random_state: int | np.random.RandomState | None = None,
        *,
        X: Any = None,
        y: np.ndarray | None = None,
        sample_weight: np.ndarray | None = None,
    ) -> onnx.ModelProto:
        self.validate()
        for keyword, data in (("X", X), ("y", y), ("sample_weight", sample_weight)):
            require_in_memory(data, keyword)
        rng = check_random_state(random_state)
        rows = None if X is None else dense_rows(X)
        seed = rng.randint(2**31 - 1)

        def emit(op: GraphBuilder, x: ir.Value) -> ir.Value:  # again where the builder's graph is of another opset
            return self._emit(op, x, n_features, np.random.RandomState(seed), rows)

        graph, op, x = empty_graph(n_features)
        embedded = emit(op, x)
        width = width_of(op, embedded)
        offered: dict[str, Callable[[], object]] = {
            "row_shape": lambda: (width,),
            "X": lambda: None if rows is None else values_of(graph, embedded, rows),
            "y": lambda: y,
            "sample_weight": lambda: sample_weight,
        }
        keywords = {name: offered[name]() for name in keywords_of(self._builder())}
        model = load(self._builder().build(width, n_outputs, rng, **keywords))
        # Replace the only input of the builder's graph by the embedding of a new input of the same name.
        if len(model.graph.inputs) != 1:
            raise ModelError(f"build made a graph with {len(model.graph.inputs)} inputs, not 1.")
        (old,) = model.graph.inputs
        name, dtype = old.name, old.dtype or ir.DataType.FLOAT
        old.name = f"{name}/embedded"
        op = GraphBuilder(model.graph, prefix="embedding", constant_nodes=True, dtype=dtype)
        new = ir.val(op.taken.free(str(name)), dtype, ("N", n_features))
        replace_input(model.graph, old, new, emit(op, new))
        model.graph.sort()
        return to_proto(model)

    def _emit(
        self, op: GraphBuilder, x: ir.Value, n_features: int, rng: np.random.RandomState, X: np.ndarray | None
    ) -> ir.Value:
        embedding = resolve_embedding(self.embedding)
        if self.columns is None:
            return embedding.emit(op, x, n_features, rng, X)
        chosen = np.asarray(self.columns, np.int64)
        if chosen.ndim != 1 or not len(chosen) or len(np.unique(chosen)) != len(chosen):
            raise ValueError(f"columns must be a list of different column numbers, got {self.columns!r}.")
        if np.any((chosen < 0) | (chosen >= n_features)):
            raise ValueError(
                f"columns must be between 0 and {n_features - 1}, as X has {n_features} columns, got {self.columns!r}."
            )
        others = np.setdiff1d(np.arange(n_features), chosen)
        rows = None if X is None else X[:, chosen]
        embedded = embedding.emit(op, op.Gather(x, chosen, axis=1), len(chosen), rng, rows)
        return op.Concat(embedded, op.Gather(x, others, axis=1), axis=1) if len(others) else embedded


# Embeddings: each column becomes several, by a trained function of it alone.
#
# An embedding emits nodes that read a table (N, n_features), from its parameters and, if it asks for them, the training
# data. It knows neither the network downstream nor the loss.


class Embedding(Component, ABC):
    """Base class of the embeddings: a table (N, n_features) becomes a wider one, column by column.

    An embedding of your own derives from it and writes :meth:`emit`. :class:`Embedded` puts it before any builder.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.models import MLP, Embedded, Embedding
    >>> class Squares(Embedding):
    ...     def emit(self, op, x, n_features, random_state, X=None):
    ...         power = op.parameter("embedding.scale", np.ones((1, n_features), np.float32))
    ...         return op.Concat(x, op.Mul(op.Mul(x, x), power), axis=1)
    >>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
    >>> net = OrtGradientRegressor(Embedded(Squares(), MLP(())), optimizer="lbfgs").fit(X, X[:, 0] ** 2)
    >>> net.score(X, X[:, 0] ** 2) > 0.99
    True
    """

    __module__ = "onnxtrain_sklearn.models"

    @abstractmethod
    def emit(
        self,
        op: GraphBuilder,
        x: ir.Value,
        n_features: int,
        random_state: np.random.RandomState,
        X: np.ndarray | None = None,
    ) -> ir.Value:
        """Emit the nodes of the embedding and return its value of shape (N, width).

        Parameters
        ----------
        op : GraphBuilder
            ``op.parameter`` makes an initializer that is trained, by convention named ``embedding.something``.
        x : onnx_ir.Value of shape (N, n_features)
        n_features : int
        random_state : RandomState
            For the initial weights. It may be called again with an equal state, for a graph of another opset.
        X : ndarray of shape (n_samples, n_features) of float32, or None
            The rows to train on; None where a graph is built without data.
        """

    def sources(self, n_features: int, width: int) -> np.ndarray:
        """Return which column of the table each of the ``width`` columns is made of.

        By default the first ``width / n_features`` columns come from the first, and so on; where that is not whole,
        each column counts as one of its own.
        """
        if width % n_features:
            return np.arange(width)
        return np.repeat(np.arange(n_features), width // n_features)


class _OwnEmbedding(Embedding):
    """An embedding whose weights are drawn before the graph exists."""

    @abstractmethod
    def drawn(self, n_features: int, random_state: np.random.RandomState, X: np.ndarray | None) -> DrawnColumns:
        """Return what :meth:`emit` emits, for equal arguments."""

    def emit(
        self,
        op: GraphBuilder,
        x: ir.Value,
        n_features: int,
        random_state: np.random.RandomState,
        X: np.ndarray | None = None,
    ) -> ir.Value:
        return self.drawn(n_features, random_state, X).emit(op, x)


class PeriodicEmbedding(_OwnEmbedding):
    r"""Cosines of each number at trained frequencies, and a linear layer for each column.

    .. math:: x \mapsto [\cos(2\pi w x + b)\, V + c,\; x]

    with own frequencies w, phases b, weights V and biases c for each column: this is the form "pbld" (periodic, bias,
    linear, dense). Columns should be scaled to deviations of about one.

    Parameters
    ----------
    size : int, default=4
        Columns that each column becomes, itself included where the form keeps it.
    n_frequencies : int, default=16
        Cosines of each column. The forms without phases take sines and cosines of half as many frequencies, and an
        even number here.
    scale : float, default=0.1
        Standard deviation of the initial frequencies: 0.1 is a period of ten deviations. Larger ones fit functions
        that change faster.
    form : {"pbld", "pblrd", "pl", "plr"}, default="pbld"
        p: periodic; b: with phases; l: linear layer; r: a rectifier after it; d: the column itself is kept beside it.

    Notes
    -----
    The parameters are named ``embedding.frequencies`` (n_features, 1, n_frequencies), ``embedding.phases``,
    ``embedding.weight`` (n_features, n_frequencies, size or size - 1) and ``embedding.bias``.

    References
    ----------
    Gorishniy et al., "On embeddings for numerical features in tabular deep learning", NeurIPS 2022.
    Holzmüller et al., "Better by default: strong pre-tuned MLPs and boosted trees on tabular data", NeurIPS 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import StandardScaler
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.models import MLP, Embedded, PeriodicEmbedding
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = Embedded(PeriodicEmbedding(size=8), MLP((32,)))
    >>> net = OrtGradientRegressor(model, learning_rate_init=0.02, tol=0.02, n_iter_no_change=5, random_state=0)
    >>> net.fit(X, y).score(X, y) > 0.4
    True
    """

    __module__ = "onnxtrain_sklearn.models"
    valid: ClassVar[Rules] = {
        "size": (Range(Integral, 2),),
        "n_frequencies": (Range(Integral, 2),),
        "scale": (POSITIVE,),
        "form": (OneOf(("pbld", "pblrd", "pl", "plr")),),
    }

    def __init__(self, size: int = 4, n_frequencies: int = 16, scale: float = 0.1, form: str = "pbld") -> None:
        self.size = size
        self.n_frequencies = n_frequencies
        self.scale = scale
        self.form = form

    def validate(self) -> None:
        super().validate()
        if "b" not in self.form and self.n_frequencies % 2:
            raise ValueError(
                f"form={self.form!r} takes a sine and a cosine of each frequency: n_frequencies must be even, got "
                f"{self.n_frequencies}."
            )

    def drawn(self, n_features: int, random_state: np.random.RandomState, X: np.ndarray | None) -> DrawnColumns:
        inner = self.size - ("d" in self.form)
        bound = self.n_frequencies**-0.5
        shape = (n_features, 1, self.n_frequencies if "b" in self.form else self.n_frequencies // 2)
        # "pbld" has a cosine with a phase for each frequency, the other forms a cosine and a sine: half as many draws.
        weights = {"frequencies": random_state.normal(0.0, self.scale, shape)}
        if "b" in self.form:
            weights["phases"] = random_state.uniform(-np.pi, np.pi, shape)
        weights["weight"] = random_state.uniform(-bound, bound, (n_features, self.n_frequencies, inner))
        weights["bias"] = random_state.uniform(-bound, bound, (n_features, 1, inner))
        width = n_features * self.size
        return DrawnColumns(width, lambda op, x: self._emitted(op, x, weights), _embedding_weights(weights))

    def _emitted(self, op: GraphBuilder, x: ir.Value, weights: Mapping[str, np.ndarray]) -> ir.Value:
        n_features, _, inner = weights["weight"].shape
        y = op.MatMul(self._waves(op, x, weights), _parameter(op, "weight", weights["weight"]))
        y = by_row(op, op.Add(y, _parameter(op, "bias", weights["bias"])), n_features * inner)
        y = op.Relu(y) if "r" in self.form else y
        return op.Concat(y, x, axis=1) if "d" in self.form else y

    def sources(self, n_features: int, width: int) -> np.ndarray:
        columns, kept = np.arange(n_features), "d" in self.form
        return np.concatenate([np.repeat(columns, self.size - kept), columns[: n_features * kept]])

    def _waves(self, op: GraphBuilder, x: ir.Value, weights: Mapping[str, np.ndarray]) -> ir.Value:
        """Return the periodic functions of the columns, (n_features, N, n_frequencies)."""
        frequencies = _parameter(op, "frequencies", weights["frequencies"])
        angles = op.MatMul(by_column(op, x), op.Mul(frequencies, 2 * np.pi))  # its gradient is a product too
        if "phases" in weights:
            return _cosine_as_sine(op, angles, _parameter(op, "phases", weights["phases"]))
        return op.Concat(_cosine_as_sine(op, angles, 0.0), op.Sin(angles), axis=-1)


class PiecewiseLinearEmbedding(_OwnEmbedding):
    """Piecewise-linear functions of each column, between quantiles of the training data.

    The bins of a column lie between ``n_bins + 1`` edges, quantiles of it. Values that repeat so often that several
    quantiles would fall on them are one edge each, and the other edges are quantiles of the other values: a column of
    zeros and few other numbers has as many bins as any. A number becomes a vector that is 1 for the bins below it, 0
    for those above it, and the position within its own bin, which in the outer bins goes on without a bound; a linear
    layer for each column maps it to ``size`` columns. A linear function of the number itself is added. The weights of
    the piecewise part start at zero: training starts from a linear embedding.

    Parameters
    ----------
    size : int, default=16
        Columns that each column becomes.
    n_bins : int, default=48
        Bins of each column, fewer where it has fewer values.

    Notes
    -----
    The published rule takes quantiles of all values alone, and leaves fewer bins where values repeat: six edges of 49
    for a column that is 0 in nine rows of ten. Columns in which no value is frequent have the same bins by both.

    The graph needs the training data: ``build`` without ``X`` raises ValueError.

    The parameters are named ``embedding.slope`` and ``embedding.bias`` (n_features, size), of the linear function, and
    ``embedding.weight`` (n_features, n_bins, size). The bins are constants.

    References
    ----------
    Gorishniy et al., "On embeddings for numerical features in tabular deep learning", NeurIPS 2022.
    Gorishniy et al., "TabM: advancing tabular deep learning with parameter-efficient ensembling", ICLR 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.preprocessing import StandardScaler
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.models import MLP, Embedded, PiecewiseLinearEmbedding
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = Embedded(PiecewiseLinearEmbedding(size=4), MLP((16,)))
    >>> net = OrtGradientRegressor(model, learning_rate_init=0.01, tol=0.02, n_iter_no_change=3, random_state=0)
    >>> search = GridSearchCV(net, {"model__embedding__n_bins": [4, 8]}, cv=2).fit(X, y)
    >>> bool(search.best_score_ > 0.3)
    True
    """

    __module__ = "onnxtrain_sklearn.models"
    valid: ClassVar[Rules] = {"size": (COUNT,), "n_bins": (Range(Integral, 2),)}

    def __init__(self, size: int = 16, n_bins: int = 48) -> None:
        self.size = size
        self.n_bins = n_bins

    def drawn(self, n_features: int, random_state: np.random.RandomState, X: np.ndarray | None) -> DrawnColumns:
        if X is None:
            raise ValueError(
                "PiecewiseLinearEmbedding takes its bins from quantiles of the training data: build needs X, the rows "
                "to train on, which the estimators pass."
            )
        bound = self.size**-0.5
        edges = quantile_edges(X, self.n_bins)
        bins = max(len(cut) - 1 for cut in edges) or 1
        weights = {"weight": np.zeros((n_features, bins, self.size))}
        weights |= {name: random_state.uniform(-bound, bound, (n_features, self.size)) for name in ("slope", "bias")}
        width = n_features * self.size
        return DrawnColumns(
            width, lambda op, x: _piecewise(op, x, edges, weights), _embedding_weights(weights), tuple(edges)
        )


EMBEDDINGS: dict[str, type[Embedding]] = {"periodic": PeriodicEmbedding, "piecewise_linear": PiecewiseLinearEmbedding}
"""The embeddings that the package brings; builders take their names as ``embedding``."""


def resolve_embedding(embedding: str | Embedding) -> Embedding:
    """Return the embedding that a name or an object stands for, its parameters validated."""
    return resolve("embedding", embedding, EMBEDDINGS, Embedding)


def drawn_embedding(
    embedding: Embedding, n_features: int, random_state: np.random.RandomState, X: np.ndarray | None
) -> DrawnColumns:
    """Return the columns of an embedding, which is drawn here, once; one of a user is emitted to be drawn."""
    if isinstance(embedding, _OwnEmbedding) and type(embedding) in EMBEDDINGS.values():
        return embedding.drawn(n_features, random_state, X)
    # An embedding of a user draws while it emits: emit it once into a graph that is thrown away, to know its width and
    # to leave the generator where the next layer begins, and again from the same state for each graph.
    state = random_state.get_state()
    _, op, x = empty_graph(n_features)
    width = width_of(op, embedding.emit(op, x, n_features, random_state, X))

    def emit_again(op: GraphBuilder, x: ir.Value) -> ir.Value:
        equal = np.random.RandomState()
        equal.set_state(state)
        return embedding.emit(op, x, n_features, equal, X)

    return DrawnColumns(width, emit_again, is_own=False)


@dataclass(frozen=True, eq=False)
class DrawnColumns:
    """Some columns of a network's first layer.

    Attributes
    ----------
    width : int
        The number of columns.
    emit : callable
        Emits the nodes that compute them from a table, and the weights; returns the value of shape (N, width).
    weights : mapping of str to ndarray
        The initial weights by name.
    constants : tuple of ndarray
        What the nodes contain of the data.
    is_own : bool
        Whether builder, weights and constants determine all that is emitted; an embedding of a user may do anything.
    """

    width: int
    emit: Callable[[GraphBuilder, ir.Value], ir.Value]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    constants: tuple[np.ndarray, ...] = ()
    is_own: bool = True


def side_by_side(parts: Sequence[DrawnColumns]) -> DrawnColumns:
    """Return the columns of all parts."""
    if len(parts) == 1:
        return parts[0]
    return DrawnColumns(
        sum(part.width for part in parts),
        lambda op, x: op.Concat(*[part.emit(op, x) for part in parts], axis=1),
        {name: array for part in parts for name, array in part.weights.items()},
        tuple(array for part in parts for array in part.constants),
        all(part.is_own for part in parts),
    )


@dataclass(frozen=True, eq=False)
class GraphPart:
    """A part of a graph, from a table to a value.

    Attributes
    ----------
    emit : callable
        Emits the part, its weights too, and returns the value.
    weights : mapping of str to ndarray
        The weights, by which parts of equal form differ.
    form : hashable or None
        All else that the part is made from; None: it is unknown.
    """

    emit: Callable[[GraphBuilder, ir.Value], ir.Value]
    weights: Mapping[str, np.ndarray]
    form: Hashable | None

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return the value for rows."""
        # Parts of equal form differ by their weights alone: write those into a graph that is made once.
        if self.form is None:
            proto = self._graph(X.shape[1])
        else:
            erased = _part_graphs.get((self.form, X.shape[1]), lambda: self._erased_graph(X.shape[1]))
            proto = deepcopy(erased)
            fill_initializers(proto, self.weights)
        session = create_session(proto.SerializeToString(), resolve_device())
        return np.asarray(run_session(session, ["scores"], {"X": X})[0])

    def _graph(self, width: int) -> onnx.ModelProto:
        graph, op, x = empty_graph(width)
        return finish(graph, self.emit(op, x), None)

    def _erased_graph(self, width: int) -> onnx.ModelProto:
        """Return the graph without the weights of this fit."""
        proto = self._graph(width)
        erase_initializers(proto, self.weights)
        return proto


_part_graphs: Cache[onnx.ModelProto] = Cache(64, 2**24, lambda proto: proto.ByteSize())


MAX_ROWS = 10_000
"""Rows from which statistics are computed, at most."""


def dense_rows(X: Any) -> np.ndarray:
    """Return rows as an array of float32; sparse ones become dense."""
    require_in_memory(X)
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float32)


def some_rows(X: Any, rng: np.random.RandomState) -> np.ndarray:
    """Return the rows, or :data:`MAX_ROWS` of them that are drawn at random."""
    require_in_memory(X)
    n = X.shape[0]
    return dense_rows(X if n <= MAX_ROWS else X[np.sort(rng.choice(n, MAX_ROWS, replace=False))])


def values_of(graph: ir.Graph, value: ir.Value, X: np.ndarray) -> np.ndarray:
    """Return a value of a graph with one input, on rows ``X``; the graph stays as it is."""
    if value is graph.inputs[0]:
        return X
    value.dtype = value.dtype or ir.DataType.FLOAT
    graph.outputs.append(value)
    model = to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    graph.outputs.pop()
    session = create_session(model, resolve_device())
    (array,) = run_session(session, [str(value.name)], {str(graph.inputs[0].name): X})
    return np.asarray(array)


def width_of(op: GraphBuilder, embedded: ir.Value) -> int:
    """Return the number of columns that an embedding emitted; raise ModelError where it is not fixed."""
    shape = op.shape(embedded)
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
        raise ModelError(f"emit must return a value of shape (N, width) of a fixed width, got {shape}.")
    return shape[1]


def _piecewise(
    op: GraphBuilder, x: ir.Value, edges: Sequence[np.ndarray], weights: Mapping[str, np.ndarray]
) -> ir.Value:
    n_features, bins, size = weights["weight"].shape
    codes = _codes(op, by_column(op, x), edges, bins)
    piecewise = op.MatMul(codes, _parameter(op, "weight", weights["weight"]))
    straight = op.Mul(op.Unsqueeze(x, axes=[2]), _parameter(op, "slope", weights["slope"]))
    straight = op.Add(straight, _parameter(op, "bias", weights["bias"]))
    return op.Reshape(op.Add(straight, op.Transpose(piecewise, perm=[1, 0, 2])), [-1, n_features * size])


def _codes(op: GraphBuilder, columns: ir.Value, edges: Sequence[np.ndarray], bins: int) -> ir.Value:
    """Return the vectors of positions in the bins, (n_features, N, bins); the outer bins have no outer bound."""
    left, slope, low, high = np.zeros((4, len(edges), 1, bins), op.dtype.numpy())
    high += 1
    for j, cut in enumerate(edges):
        n = len(cut) - 1
        left[j, 0, :n], slope[j, 0, :n] = cut[:-1], 1.0 / np.maximum(np.diff(cut), _LEAST_WIDTH)
        low[j, 0, :1], high[j, 0, max(n - 1, 0)] = -_UNBOUNDED, _UNBOUNDED
    positions = op.Mul(op.Sub(columns, left), slope)
    return op.Max(op.Min(positions, high), low)


_UNBOUNDED = np.finfo(np.float32).max


_LEAST_WIDTH = np.float32(1e-35)  # its inverse is finite


def quantile_edges(X: np.ndarray, n_bins: int) -> list[np.ndarray]:
    """Return the edges of the bins of each column, increasing; a constant column has one edge and no bin."""
    return [_column_edges(*column, n_bins + 1) for column in exact_quantiles(np.asarray(X, np.float64)).distinct()]


def _column_edges(values: np.ndarray, counts: np.ndarray, n_edges: int) -> np.ndarray:
    """Return the frequent values of a column, and quantiles of its other values."""
    frequent = _frequent(counts, n_edges)
    others = np.repeat(values[~frequent], counts[~frequent])
    levels = np.linspace(0.0, 1.0, n_edges - int(frequent.sum()))
    quantiles = np.quantile(others, levels) if len(others) else others
    return np.unique(np.concatenate([values[frequent], quantiles]).astype(np.float32))


def _frequent(counts: np.ndarray, n_edges: int) -> np.ndarray:
    """Return which values have more rows than each remaining edge gets, once each value found has taken one edge.

    Quantiles of all rows would fall on such a value several times, and leave fewer bins than there are edges.
    Two edges at least are left over for others, their least and their largest: the outer bins go on without a bound,
    and a rare large number would lie many widths of the last bin beyond it.
    """
    # Each value that is taken out leaves fewer rows for the other edges, so that further values may be frequent.
    frequent = np.zeros(len(counts), bool)
    while True:
        share = counts[~frequent].sum() / max(n_edges - frequent.sum(), 1)
        further = ~frequent & (counts > share)
        if not further.any():
            break
        frequent |= further
    if frequent.sum() == n_edges - 1 and not frequent.all():
        frequent[int(np.argmin(np.where(frequent, counts, counts.sum())))] = False
    return frequent


def by_column(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return a table as (n_features, N, 1)."""
    return op.Unsqueeze(op.Transpose(x, perm=[1, 0]), axes=[2])


def by_row(op: GraphBuilder, y: ir.Value, width: int) -> ir.Value:
    """Return values (n_features, N, size) as a table (N, width)."""
    return op.Reshape(op.Transpose(y, perm=[1, 0, 2]), [-1, width])


def _cosine_as_sine(op: GraphBuilder, angles: ir.Value, phases: ir.Value | float) -> ir.Value:
    """Emit a cosine as a sine: onnxruntime-training 1.19 has no Cos for float64."""
    return op.Sin(op.Add(angles, op.Add(phases, np.pi / 2) if isinstance(phases, ir.Value) else phases + np.pi / 2))


def _embedding_weights(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"embedding.{name}": array.astype(np.float32) for name, array in weights.items()}


def _parameter(op: GraphBuilder, name: str, array: np.ndarray) -> ir.Value:
    """Return a new parameter ``embedding.name``, with a number where one embedding reads another."""
    return op.parameter(op.taken.free(f"embedding.{name}"), array.astype(op.dtype.numpy()))
