"""An embedding of the columns before any builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._graph.edits import replace_input
from .._graph.protobuf import load, to_proto
from ..exceptions import ModelError, instead_of
from .base import Builder, GraphModel, is_builder, keywords_of
from .embeddings import Embedding, resolve_embedding
from .layers import empty_graph
from .mlp import MLP
from .values import dense_rows, values_of, width_of


class Embedded(GraphModel):
    """A builder behind an embedding of its columns.

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
    def scales_targets(self) -> bool:  # type: ignore[override]  # what the builder behind the embedding says
        """Whether the builder's graphs may be trained on targets of another unit."""
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
        rng = check_random_state(random_state)
        rows, seed = None if X is None else dense_rows(X), rng.randint(2**31 - 1)

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
        _put_before(model, n_features, emit)
        return to_proto(model)

    def _emit(
        self, op: GraphBuilder, x: ir.Value, n_features: int, rng: np.random.RandomState, X: np.ndarray | None
    ) -> ir.Value:
        embedding = resolve_embedding(self.embedding)
        if self.columns is None:
            return embedding.emit(op, x, n_features, rng, X)
        chosen = _column_numbers(self.columns, n_features)
        others = np.setdiff1d(np.arange(n_features), chosen)
        rows = None if X is None else X[:, chosen]
        embedded = embedding.emit(op, op.Gather(x, chosen, axis=1), len(chosen), rng, rows)
        return op.Concat(embedded, op.Gather(x, others, axis=1), axis=1) if len(others) else embedded


def _column_numbers(columns: Sequence[int], n_features: int) -> np.ndarray:
    chosen = np.asarray(columns, np.int64)
    if chosen.ndim != 1 or not len(chosen) or len(np.unique(chosen)) != len(chosen):
        raise ValueError(f"columns must be a list of different column numbers, got {columns!r}.")
    if np.any((chosen < 0) | (chosen >= n_features)):
        raise ValueError(
            f"columns must be between 0 and {n_features - 1}, as X has {n_features} columns, got {columns!r}."
        )
    return chosen


def _put_before(model: ir.Model, n_features: int, emit: Callable[[GraphBuilder, ir.Value], ir.Value]) -> None:
    """Let the only input of a graph be the embedding of a new input, in place."""
    if len(model.graph.inputs) != 1:
        raise ModelError(f"build made a graph with {len(model.graph.inputs)} inputs, not 1.")
    (old,) = model.graph.inputs
    name, dtype = old.name, old.dtype or ir.DataType.FLOAT
    old.name = f"{name}/embedded"
    op = GraphBuilder(model.graph, prefix="embedding", constant_nodes=True, dtype=dtype)
    new = ir.val(op.taken.free(str(name)), dtype, ("N", n_features))
    replace_input(model.graph, old, new, emit(op, new))
    model.graph.sort()
