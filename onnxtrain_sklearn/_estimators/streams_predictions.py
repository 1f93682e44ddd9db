"""Predict and score the rows of sources: tables that need not fit into memory, read once and in order.

:func:`predicted_batches` returns the predictions as a reader of Arrow batches, and :func:`score_of_source` the score of
all rows. Both read the source piece by piece, and regroup the rows into batches that end where ``predict`` ends its
chunks of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from .._data.columns import require_in_memory
from .._data.inputs import Inputs
from .._data.row_blocks import RowBlocks, holds_blocks, is_source, names_of, pieces, readable, targets_in
from .._data.statistics import Moments
from .._data.targets import checked_weights, labels_that_count
from .._inference.graph import Decoding
from .._training.rows_meet import where_rows_meet_in_graph
from .._utils.typing import SourceLike, TableLike
from ..exceptions import ModelError
from .fitted_state import FittedState
from .outputs import OutputSpec
from .predict import chunk_rows
from .streams import (
    block_parts,
    joined_rows,
    joined_weights,
    named_columns,
    named_place,
    place_of,
    require_alone,
    require_hard_labels,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs


BATCH_ROWS, BATCH_NUMBERS = 2**16, 2**23
"""Rows of a predicted batch, and the most numbers that it may hold: batches of wide rows are smaller."""


class SourceRows(NamedTuple):
    """Rows of a source: features, targets and weights (None unless scored), and the origin of each part for errors."""

    n_rows: int
    X: Any
    y: Any
    weights: Any
    places: list[tuple[str, int]]

    def cut(self, start: int, end: int) -> SourceRows:
        """Return the rows from ``start`` to ``end``, if all rows come from one part."""
        X, y, weights = (_cut(one, start, end) for one in (self.X, self.y, self.weights))
        return SourceRows(end - start, X, y, weights, [(self.places[0][0], end - start)])


def reads_source(X: TableLike) -> TypeIs[SourceLike]:
    """Return True if X is a table to be predicted in batches."""
    if type(X) is np.ndarray or hasattr(type(X), "__dask_graph__"):
        return False
    return holds_blocks(X) or is_source(X) or callable(X) or type(X).__name__ == "RecordBatchReader"


@dataclass(frozen=True, eq=False)
class Batching:
    """How a fitted estimator predicts a source in batches.

    Attributes
    ----------
    output_spec : OutputSpec or None
        None with several trained outputs.
    decoding : Decoding
    published : object
        An object that each training replaces when it publishes its result. Another object shows that the estimator was
        trained in the meantime.
    rows_seen : int
        Rows trained on. During a training that continues an earlier one, this number rises before the result is
        published, so it also shows a training that still runs.
    chunk_rows : callable
        Returns the number of rows that a method predicts at a time, and the number of values in a row.
    rows_meet : callable
        Returns the node that makes the prediction of a row depend on other rows, or None if there is none.
    """

    output_spec: OutputSpec | None
    decoding: Decoding
    published: object
    rows_seen: int
    chunk_rows: Callable[[Any, str], tuple[int, int]]
    rows_meet: Callable[[], object]

    @classmethod
    def of(cls, estimator: Any) -> Batching:
        """Return how a fitted estimator predicts in batches."""
        state: FittedState = estimator._state
        spec = None if state.decoding.parts else estimator._output_spec()
        rows_meet = partial(where_rows_meet_in_graph, state.trained_form, state.session_options, in_training=False)
        return cls(spec, state.decoding, state, estimator.t_, partial(chunk_rows, estimator), rows_meet)


def predicted_batches(estimator: Any, method: str, X: Any) -> Any:
    """Return the results of a method of a fitted estimator for all rows of a source, as a RecordBatchReader."""
    check_is_fitted(estimator)
    batches = _predicted_batches(estimator, method, X)
    first = next(batches)  # raise errors of the source in this call, not when batches are read
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))


def _predicted_batches(estimator: Any, method: str, X: Any) -> Iterator[Any]:
    facts, types = estimator._batching(), None
    with opened_batches(estimator, method, X) as batches:
        for rows in batches:
            import pyarrow as pa

            now = estimator._batching()
            if now.published is not facts.published or now.rows_seen != facts.rows_seen:
                raise RuntimeError(
                    f"{type(estimator).__name__} was trained while its predictions were read: read all of them before."
                )
            found = result_of(getattr(estimator, method), rows, rows.X)
            columns = _columns(method, facts.decoding, getattr(estimator, "classes_", None), found)
            types = types or [None] * len(columns)  # all batches have the types of the first batch
            arrays = [pa.array(np.ascontiguousarray(one), of) for one, of in zip(columns.values(), types, strict=True)]
            types = [one.type for one in arrays]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _columns(method: str, decoding: Decoding, classes: Any, found: Any) -> dict[str, np.ndarray]:
    """Return the columns of predictions: "prediction", or a column named by the label for each class of probabilities.

    Several predictions per row are numbered, "prediction_0". With several labels per row, so are the columns of
    probabilities and scores, "0_red".
    """
    if isinstance(found, Mapping):  # by output; its name replaces "prediction", or precedes the label
        kept = {
            "predict": lambda part: True,
            "predict_proba": lambda part: part.has_probabilities,
            "decision_function": lambda part: part.task != "regression",
        }[method]
        whole = {}
        for (output, own), part in zip(found.items(), filter(kept, decoding.parts), strict=True):
            for name, numbers in _columns(method, part, part.classes, own).items():
                rest = name.removeprefix("prediction") if method == "predict" else f"_{name}"
                whole[f"{output}{rest}"] = numbers
        return whole
    if isinstance(found, list):
        parts = [_columns(method, decoding, own, one) for own, one in zip(classes, found, strict=True)]
        return {f"{i}_{name}": numbers for i, one in enumerate(parts) for name, numbers in one.items()}
    several = found.reshape(len(found), -1)
    if method == "predict":
        names = ["prediction"] if found.ndim == 1 else [f"prediction_{i}" for i in range(several.shape[1])]
        return dict(zip(names, several.T, strict=True))
    labels = [str(label) for label in np.asarray(classes).tolist()]
    if method == "decision_function" and len(labels) == 2 and decoding.task != "multilabel":
        labels = labels[1:]  # two classes have one score, of the second class
    positions = several.shape[1] // len(labels)
    names = labels if positions == 1 else [f"{i}_{label}" for i in range(positions) for label in labels]
    return dict(zip(names, several.T, strict=True))


def scored_targets(estimator: object, y: Any, sample_weight: Any) -> Any:
    """Return the argument ``y`` of ``score``; raise if it is None, or if it or the weights are not in memory."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__}.score requires y, but the target y is None.")
    require_in_memory(y, "y")
    require_in_memory(sample_weight, "sample_weight")
    return y


def score_of_source(estimator: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Return the score of all rows of a source: the accuracy of a classifier, else R²."""
    several = isinstance(X.target if isinstance(X, RowBlocks) else y, Mapping)
    with scored_batches(estimator, X, y, sample_weight, several=several) as batches:
        facts: Batching = estimator._batching()
        assert facts.output_spec is not None
        require_hard_labels(facts.output_spec, "Scores of a table are computed")
        spec = facts.output_spec
        total = sum_of_scores(facts.output_spec, facts.decoding)
        for rows in batches:
            if isinstance(total, SumOfAccuracies):
                score = partial(result_of, estimator.score, rows, rows.X, rows.y, rows.weights)
                total.update(rows.y, rows.weights, score)
            else:
                found = result_of(estimator.predict, rows, rows.X)
                total.update(result_of(lambda y: spec.encode(y, None).values, rows, rows.y), found, rows.weights)
        return total.score()


@contextmanager
def scored_batches(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, several: bool = False
) -> Iterator[Iterator[SourceRows]]:
    """Open the source that ``score`` takes, and return an iterator over batches of its rows."""
    check_is_fitted(estimator)
    if holds_blocks(X):
        require_alone(X, y, sample_weight)
    else:
        y, sample_weight = named_columns(y, sample_weight, several=several)
    if isinstance(X, RowBlocks):
        y, sample_weight = named_columns(X.target, X.sample_weight, several=several, name="target")
    with opened_batches(estimator, "predict", X, y, sample_weight, scored=True) as batches:
        yield batches


class SumOfAccuracies:
    """The accuracy over several batches: the mean of their accuracies, weighted by the labels that are not ignored."""

    def __init__(self, output_spec: OutputSpec, decoding: Decoding) -> None:
        self._ignored = output_spec.ignore_label
        self._at_positions = decoding.positions is not None
        self._right = self._total = 0.0

    def update(self, y: Any, weights: np.ndarray | None, score: Callable[[], float]) -> None:
        """Add a batch; ``score`` returns its accuracy."""
        labels = labels_that_count(np.asarray(y), self._ignored).reshape(len(y), -1)
        counted = labels.sum(axis=1) if self._at_positions else labels.any(axis=1)
        weight = float((checked_weights(weights, len(y)) * counted).sum())
        if weight:  # scikit-learn refuses to score zero rows
            share = weight * score()
            # without weights it is a number of labels, which the product may miss by rounding
            self._right += share if weights is not None else round(share)
            self._total += weight

    def score(self) -> float:
        """Return the accuracy."""
        if not self._total:
            raise ValueError("No label of y counts: all are to be ignored, or in rows of weight zero.")
        return self._right / self._total


class SumOfSquares:
    """R² over several batches, from the sums of their squared errors and the merged moments of their targets."""

    def __init__(self, decoding: Decoding) -> None:
        self._of_maps = bool(decoding.row_shape)
        self._moments = Moments()
        self._squares = np.zeros(1)
        self._n_rows = 0

    def update(self, truth: np.ndarray, found: np.ndarray, weights: np.ndarray | None) -> None:
        """Add a batch of encoded targets and their predictions."""
        given = checked_weights(weights, len(found))
        truth = np.asarray(truth, np.float64)
        found = found.reshape(len(found), -1)
        if truth.shape != found.shape:
            raise ValueError(f"y has {truth.shape[1]} numbers a row, but the predictions have {found.shape[1]}.")
        self._squares = self._squares + (given[:, np.newaxis] * (truth - found) ** 2).sum(axis=0)
        self._moments.update(truth, given)
        self._n_rows += len(found)

    def score(self) -> float:
        """Return R²."""
        if self._n_rows < 2:
            raise ValueError(f"R² needs at least two rows, and the source has {self._n_rows or 'none'} to score.")
        if not len(self._moments.weight):
            raise ValueError("All rows have weight zero.")
        total = self._moments.deviation**2 * self._moments.weight
        varies = total != 0
        scores = np.where(varies, 1 - self._squares / np.where(varies, total, 1), self._squares == 0)
        return float(np.average(scores, weights=total if self._of_maps and varies.any() else None))


def sum_of_scores(output_spec: OutputSpec, decoding: Decoding) -> SumOfAccuracies | SumOfSquares:
    """Return an empty sum that collects batches and returns the score of an output: accuracy or R²."""
    return SumOfAccuracies(output_spec, decoding) if output_spec.classifies else SumOfSquares(decoding)


def result_of(method: Callable[..., Any], rows: SourceRows, *given: Any) -> Any:
    """Return ``method(*given)`` for a batch; an error names the part of the source that causes it."""
    try:
        return method(*given)
    except (ValueError, TypeError):
        start = 0
        for place, n_rows in rows.places:
            parts = [_cut(one, start, start + n_rows) for one in given]
            with named_place(place, parts[0]):
                method(*parts)
            start += n_rows
        raise


@contextmanager
def opened_batches(
    estimator: Any, method: str, X: Any, y: Any = None, sample_weight: Any = None, *, scored: bool = False
) -> Iterator[Iterator[SourceRows]]:
    """Open a source, and return an iterator over batches of its rows, with targets and weights if ``scored``.

    Batches end where ``predict`` cuts an array into chunks, because the last bits of a prediction may depend on the
    rows of its chunk. All iterators are closed at the end of the ``with`` block, because the traceback of an error
    would keep them, and their files, open.
    """
    with (
        closing(_read(estimator, X, y, sample_weight, scored=scored)) as parts,
        closing(_batches(estimator, method, parts)) as batches,
    ):
        yield batches


def _batches(estimator: Any, method: str, parts: Iterator[SourceRows]) -> Generator[SourceRows]:
    """Join and cut parts into batches of whole chunks; only the last chunk may be short."""
    waiting: list[SourceRows] = []
    count = size = chunk = 0
    checked = False
    facts: Batching = estimator._batching()
    for part in parts:
        if not size:
            with named_place(part.places[0][0]):
                chunk, width = facts.chunk_rows(part.X, method)
            size = chunk * max(1, min(BATCH_ROWS, BATCH_NUMBERS // width) // chunk)
        waiting.append(part)
        count += part.n_rows
        if count > chunk and not checked:  # rows of a single chunk may affect each other, as in memory
            checked, node = True, facts.rows_meet()
            if node is not None:
                raise ModelError(
                    f"The prediction of a row depends on the rows that are predicted with it (at {node}), so all rows "
                    f"of a table are predicted at once: give them in memory."
                )
        while count > size:
            batch: list[SourceRows] = []
            missing = size
            while missing:
                first = waiting.pop(0)
                end = min(first.n_rows, missing)
                batch.append(first.cut(0, end))
                if end < first.n_rows:
                    waiting.insert(0, first.cut(end, first.n_rows))
                missing -= end
            count -= size
            yield _joined(batch)
    if not waiting:
        raise ValueError("The source has no rows.")
    yield _joined(waiting)


def _read(estimator: Any, X: Any, y: Any, sample_weight: Any, *, scored: bool) -> Generator[SourceRows]:
    """Yield the parts of a source, such as its blocks, as they are read."""
    if holds_blocks(X) and not isinstance(X, RowBlocks):
        for i in range(len(X)):
            if scored:
                features, targets, weights = block_parts(X, i)
            else:
                block, targets, weights = X.block(i), None, None
                features = block[0] if isinstance(block, tuple) else block
                features = features.arrays if isinstance(features, Inputs) else features
            first = next(iter(features.values())) if isinstance(features, Mapping) else features
            n_rows = int(first.shape[0]) if hasattr(first, "shape") else len(first)
            if n_rows:
                yield SourceRows(n_rows, features, targets, weights, [(place_of(X, i), n_rows)])
        return
    known = getattr(estimator, "feature_names_in_", None)
    names = None if known is None else known.tolist()
    target_columns = [*names_of(y), *names_of(sample_weight)]
    if both := [name for name in target_columns if name in (names or ())]:
        raise ValueError(f"Column {both[0]!r} is a feature of the estimator, and so neither target nor weight.")
    size = min(BATCH_ROWS, BATCH_NUMBERS // max(1, len(names or ())))
    with closing(pieces(X, names, target_columns, size)) as tables:
        for place, found in tables:
            table = readable(found, place)
            features = table.select(table.column_names[: table.num_columns - len(target_columns)])
            targets, weights = targets_in(table, y, sample_weight, place) if scored else (None, None)
            yield SourceRows(table.num_rows, features, targets, weights, [(place, table.num_rows)])


def _joined(parts: Sequence[SourceRows]) -> SourceRows:
    """Return the rows of several parts as one."""
    places = [place for part in parts for place in part.places]
    counts = [part.n_rows for part in parts]
    y = None if parts[0].y is None else joined_rows([part.y for part in parts])
    weights = joined_weights([part.weights for part in parts], counts)
    return SourceRows(sum(counts), joined_rows([part.X for part in parts]), y, weights, places)


def _cut(X: Any, start: int, end: int) -> Any:
    if X is None:
        return None
    if isinstance(X, Mapping):
        return {name: _cut(one, start, end) for name, one in X.items()}
    if hasattr(X, "column_names"):  # a table of Arrow
        return X.slice(start, end - start)
    if sp.issparse(X):
        return X.tocsr()[start:end]
    return X.iloc[start:end] if hasattr(X, "iloc") else np.asarray(X)[start:end]
