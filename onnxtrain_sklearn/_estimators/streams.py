"""Fit to tables that need not fit into memory, predict and score them.

:func:`opened` makes a :class:`RowBlocks` of a path or of a table that is not read yet. :func:`with_arrays` then puts
arrays in its place, as the further steps of a preparation take them. If the buffer holds all rows, the arrays are all
rows, and training gives the same bits as on arrays. If not, they are a sample of the rows, on which graph, decoding and
step are prepared. A :class:`Stream` then holds the facts on all rows that the first step needs: the classes and their
weights, the scale and the range of numeric targets. :meth:`Stream.batches` makes the minibatches of all rows.

:func:`predicted_batches` and :func:`score_of_source` read a source once and in order, and hold one batch in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from .._data.batches import Block, BlockBatches
from .._data.class_weight import balanced_labels, balanced_weights
from .._data.columns import InputData, require_in_memory
from .._data.inputs import Inputs
from .._data.row_blocks import RowBlocks, holds_blocks, is_source, pieces, readable, targets_in
from .._data.statistics import Extremes, LabelCounts, Moments
from .._data.target_scale import TargetScale, scale_of, target_moments
from .._data.targets import Classes, checked_weights, mask_of_labels, masked_labels
from .._fitted.fitted_model import encoded_inputs
from .._inference.graph import Decoding
from .._model.links import TargetScaling
from .._training.rows_meet import where_rows_meet_in_graph
from .._training.step import TrainingStep
from .._training.step_parts import StepSettings
from .._utils.cache import digest
from .._utils.typing import SourceLike, TableLike
from ..exceptions import ModelError
from ..losses import Loss
from .call import Call, Examples, generator_of
from .config import TrainingConfig
from .examples import graph_inputs, scaled, trained_columns
from .fitted_state import FittedState
from .outputs import OutputTask, weighted_targets
from .predict import chunk_rows

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")

SAMPLE_ROWS, SAMPLE_BLOCKS = 2**15, 32
"""The sample on which training is prepared: its rows, evenly spaced in evenly spaced blocks."""


@dataclass
class Stream:
    """The blocks of a call, and what is known of all their rows.

    Attributes
    ----------
    source : RowBlocks, or object with ``__len__`` and ``block(i)``
    training_blocks : list of int
        The blocks to train on; the others are held out.
    buffer_rows, prefetch : int
    rng : numpy.random.RandomState
    n_rows : int
        Rows to train on, without those of weight zero.
    block_means : list of float
        Mean target of each block to train on; of labels, the mean of their places in sorted order.
    labels : list of LabelCounts
        Of each column of labels.
    moments : dict
        Moments of numeric targets by method of scaling, and whether they are centered.
    extremes : Extremes
        Of numeric targets.
    """

    source: Any
    training_blocks: list[int]
    buffer_rows: int
    prefetch: int
    rng: np.random.RandomState
    n_rows: int = 0
    labels: list[LabelCounts] = field(default_factory=list)
    block_means: list[float] = field(default_factory=list)
    extremes: Extremes = field(default_factory=Extremes)
    moments: dict[tuple[TargetScaling, bool], Moments] = field(default_factory=dict)

    def scale(self, method: TargetScaling | None, *, centered: bool) -> TargetScale | None:
        """Return the scale of all targets, as `target_scale` does for arrays."""
        if method is None or not self.moments or (method == "mean" and not centered):
            return None
        return scale_of(method, self.moments[method, centered])

    @property
    def classes(self) -> np.ndarray | list[np.ndarray] | None:
        """The classes of all rows; None of numbers, and of indicators of several labels."""
        known = [one.labels for one in self.labels]
        if len(known) == 1:
            return known[0]
        indicators = all(np.isin(own, (0, 1)).all() for own in known if own.dtype.kind in "iufb")
        return known if known and not (indicators and all(own.dtype.kind in "iufb" for own in known)) else None

    @property
    def range(self) -> np.ndarray:
        """The smallest and the largest target of each column, as two rows."""
        assert self.extremes.low is not None
        assert self.extremes.high is not None
        return np.stack([self.extremes.low, self.extremes.high])

    def class_weight(self, given: Any) -> Any:
        """Return ``class_weight`` with "balanced" replaced by the weights of all rows."""
        if not isinstance(given, str) or given != "balanced" or not self.labels:
            return given
        if len(self.labels) > 1:
            return balanced_labels(self.labels)
        (counts,) = self.labels
        weights = balanced_weights(counts.totals, float(counts.totals.sum()))
        return dict(zip(counts.labels.tolist(), weights.tolist(), strict=True))

    def batches(
        self, estimator: Any, state: FittedState, loss: Any, *, ignores: bool, size: int, shuffle: bool, drop_last: bool
    ) -> BlockBatches:
        """Return the minibatches of all rows to train on."""
        blocks = GraphBlocks(self, estimator, state, loss, ignores=ignores)
        rng, prefetch = self.rng if shuffle else None, self.prefetch
        return BlockBatches(
            blocks,
            size,
            rng,
            buffer_rows=self.buffer_rows,
            drop_last=drop_last,
            prefetch=prefetch,
            block_means=self.block_means,
        )

    def training_step(
        self, step: TrainingStep, state: FittedState, settings: StepSettings, sparse: Collection[str]
    ) -> TrainingStep:
        """Return the step to train with.

        Here it is ``step``; the stream of ``dask`` wraps it, because workers read its blocks.
        """
        return step

    def converted(self, X: Any, convert: Callable[[Any], T]) -> T:
        """Return ``convert(X)`` of the sample. To name the block of an error, all blocks are read again."""
        try:
            return convert(X)
        except (ValueError, TypeError):
            for i in self.training_blocks:
                with named_block(self.source, i):
                    convert(block_parts(self.source, i)[0])
            raise


class GraphBlocks:
    """The blocks of a stream as inputs of the graph, with their targets and weights."""

    def __init__(self, stream: Stream, estimator: Any, state: FittedState, loss: Any, *, ignores: bool) -> None:
        self._stream, self._estimator, self._state = stream, estimator, state
        self._loss, self._ignores = loss, ignores
        output_task: OutputTask = estimator._output_task()
        self._output_task = replace(output_task, class_weight=stream.class_weight(output_task.class_weight))

    @property
    def n_rows(self) -> int:
        return self._stream.n_rows

    def __len__(self) -> int:
        return len(self._stream.training_blocks)

    def block(self, i: int) -> Block:
        state, number = self._state, self._stream.training_blocks[i]
        with named_block(self._stream.source, number):
            X, y, sample_weight = block_parts(self._stream.source, number)
            columns = self._matrix(X)
            if columns is None:
                columns = graph_inputs(self._estimator, X, state.graph.inputs, state.fitted, reset=False)
                columns = columns if state.fitted is None else encoded_inputs(columns, state.fitted, state.graph.inputs)
            n_rows, decoding = len(next(iter(columns.values()))), state.decoding
            targets, weights = weighted_targets(
                self._output_task, n_rows, y, sample_weight, decoding.classes, decoding, at_positions=False
            )
            if targets.lacks_labels and not self._ignores:
                raise ValueError("y holds ignore_label beside other labels of a row; leave such rows out.")
            if isinstance(self._loss, Loss):
                self._loss.check_targets(targets.values)
            examples = scaled(Examples(columns, targets, weights), decoding.target_scale)
            return Block(trained_columns(state, examples), weights)

    def _matrix(self, X: Any) -> dict[str, InputData] | None:
        """Return finite numbers in a table of Arrow as the graph's input; None if the table needs all checks.

        The numbers are those of ``graph_inputs``, which takes four times as long as reading a small block.
        """
        inputs, names = self._state.graph.inputs, getattr(self._estimator, "feature_names_in_", None)
        if self._state.fitted is not None or names is None or getattr(X, "column_names", None) != names.tolist():
            return None
        if len(inputs) != 1 or inputs[0].dtype.kind != "f" or inputs[0].shape[1:] != (len(names),):
            return None
        rows = np.empty((len(X), len(names)), inputs[0].dtype)
        for i, column in enumerate(X.columns):
            if column.null_count:
                return None
            numbers = column.to_numpy()
            if numbers.dtype.kind not in "iuf":
                return None
            # Whole numbers pass through float64, as in a data frame with columns of float64: the bits are the same.
            with np.errstate(over="ignore"):  # infinite numbers are refused by all checks
                rows[:, i] = numbers if numbers.dtype.kind == "f" else numbers.astype(np.float64)
        return {inputs[0].name: InputData(rows, rows.dtype)} if np.isfinite(rows).all() else None


# From a call with a source to one with arrays.


def opened(estimator: Any, call: Call) -> Call:
    """Return the call with its source as an object of blocks; a source that is opened here is closed with the call."""
    if not isinstance(estimator.loss, Mapping):  # a mapping of losses: several outputs, trained on rows in memory
        source = opened_source(call.X, call.y, call.sample_weight, call.resources)
        if source is not None:
            return replace(call, source=source)
    elif holds_blocks(call.X) or is_source(call.X):
        raise TypeError(
            f"X is a {type(call.X).__name__}, a table to be read in blocks, and {type(estimator).__name__} trains on "
            f"rows in memory. Give them, such as pandas.read_parquet(...); or, if they do not fit, one part at a time "
            f"to partial_fit."
        )
    given = {"X": call.X, "y": call.y, "sample_weight": call.sample_weight}
    for name, data in (("val", call.validation), ("old", call.old_rows)):
        given |= {} if data is None else {f"{one}_{name}": part for one, part in zip(given, data, strict=False)}
    for name, part in given.items():
        require_in_memory(part, name)
    return call


def opened_source(X: Any, y: Any, sample_weight: Any, resources: ExitStack) -> Any:
    """Return a table to be read in blocks, which ``resources`` closes if it is opened here; None for other data."""
    if holds_blocks(X):
        _require_alone(X, y, sample_weight)
        return X
    if not is_source(X, y):
        return None
    target, sample_weight = _named_columns(y, sample_weight)
    rows = RowBlocks(X, target, sample_weight=sample_weight)
    resources.callback(rows.close)
    return rows


def _require_alone(X: Any, y: Any, sample_weight: Any) -> None:
    if y is not None or sample_weight is not None:
        raise ValueError(f"{type(X).__name__} holds y and sample_weight too: give it alone.")


def _named_columns(y: Any, sample_weight: Any) -> tuple[str | list[str], str | None]:
    """Return the names of the target column, or columns, and of the weights."""
    names = [y] if isinstance(y, str) else y
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"y must name the target column of the table, got {type(y).__name__}.")
    if sample_weight is not None and not isinstance(sample_weight, str):
        raise TypeError(f"sample_weight must name a column of the table, got {type(sample_weight).__name__}.")
    return y if isinstance(y, str) else list(names), sample_weight


def sizes_of_blocks(source: Any) -> list[int]:
    """Return the rows of each block."""
    sizes = getattr(source, "sizes", None)
    sizes = [len(block_parts(source, i)[1]) for i in range(len(source))] if sizes is None else list(sizes)
    if not sum(sizes):
        raise ValueError("The source has no rows.")
    return sizes


def rows_in_buffer(source: Any, sizes: Sequence[int]) -> tuple[Any, np.ndarray, np.ndarray | None] | None:
    """Return X, y and weights of all rows if the buffer of a source holds them, else None."""
    if sum(sizes) > int(getattr(source, "buffer_rows", 500_000)):
        return None
    return joined_parts([block_parts(source, i) for i, size in enumerate(sizes) if size])


def with_arrays(estimator: Any, call: Call, config: TrainingConfig, resumed: FittedState | None) -> Call:
    """Return a call whose source is replaced by arrays: all rows, or a sample and a :class:`Stream`."""
    source, output_task = call.source, estimator._output_task()
    buffer_rows = int(getattr(source, "buffer_rows", 500_000))
    sizes = sizes_of_blocks(source)
    fraction = getattr(source, "validation_fraction", None)
    if (whole := rows_in_buffer(source, sizes)) is not None:
        X, y, sample_weight = whole
        return replace(call, X=X, y=y, sample_weight=sample_weight, validation_fraction=fraction)
    _require_streamable(estimator, call, config)

    read = getattr(source, "targets", None) or (lambda i: block_parts(source, i)[1:])
    filled = [i for i, size in enumerate(sizes) if size]

    # Draw an order of the blocks and hold out the first ones, passing over blocks whose rows all have weight zero.
    rng = generator_of(estimator, lambda: bytes_of_blocks(source, sizes)) if resumed is None else resumed.rng
    held_out: list[int] = []
    if config.loop.early_stopping and call.validation is None and not call.one_epoch:
        share = float(estimator.validation_fraction if fraction is None else fraction)
        count = max(1, round(share * len(filled)))
        if count >= len(filled):
            raise ValueError(
                f"early_stopping=True holds out blocks, and the source has {len(filled)}: write smaller row groups, or "
                f"give X_val and y_val."
            )
        for place in rng.permutation(len(filled)).tolist():
            with named_block(source, filled[place]):
                if len(held_out) < count and counted_rows(output_task, *read(filled[place])).any():
                    held_out.append(filled[place])
        held_out.sort()
    stream = Stream(source, [], buffer_rows, int(getattr(source, "prefetch", 0)), rng)

    # One pass over the targets. BlockBatches mixes the blocks of a window by their mean targets.
    labels_by_block: list[LabelCounts] = []
    known, withheld = call.classes if resumed is None else resumed.decoding.classes, set(held_out)
    for i in filled:
        with named_block(source, i):
            y, weights = read(i)
            rows = int(np.count_nonzero(counted_rows(output_task, y, weights)))
            trains = rows > 0 and i not in withheld
            add_targets(stream, output_task, y, weights, known, labels_by_block, trains=trains)
        if trains:
            stream.training_blocks.append(i)
            stream.n_rows += rows
    if not stream.n_rows:
        raise ValueError("All rows to train on have weight zero.")
    if output_task.classifies:
        stream.block_means = [mean_place(own, stream.labels[0].labels) for own in labels_by_block]
    validation = call.validation
    if held_out:
        validation = sample_of_blocks(source, output_task, held_out, sizes, buffer_rows)
    X, y, sample_weight = sample_of_blocks(source, output_task, stream.training_blocks, sizes, SAMPLE_ROWS)
    return replace(call, X=X, y=y, sample_weight=sample_weight, validation=validation, stream=stream)


def _require_streamable(estimator: Any, call: Call, config: TrainingConfig) -> None:
    """Raise for settings that need all rows in memory."""
    require_hard_labels(estimator._output_task(), "A table of more than buffer_rows trains")
    name = None
    if not config.optimizer.takes_minibatches:
        name = type(config.optimizer).__name__
    elif call.old_rows is not None:
        name = "Fine-tuning with X_old"
    elif estimator.finetune not in ("auto", None):
        name = "Fine-tuning"
    if name is not None:
        raise ValueError(
            f"{name} takes all rows at once, and the table has more than buffer_rows. Give arrays, or a RowBlocks "
            f"whose buffer holds all rows."
        )


def require_hard_labels(output_task: OutputTask, subject: str) -> None:
    """Raise if ``y`` holds soft labels; ``subject`` begins the sentence about what works with labels alone."""
    if output_task.label_kind != "labels":
        raise ValueError(
            f"{subject} on one label a row, not on soft labels (targets={output_task.label_kind!r}): give arrays that "
            f"fit into memory to OrtGradientClassifier, or one part at a time to its partial_fit."
        )


def add_targets(
    stream: Stream,
    output_task: OutputTask,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    classes: Classes,
    labels_by_block: list[LabelCounts],
    *,
    trains: bool,
) -> None:
    """Add the targets of a block to the facts on all rows.

    Labels come from all blocks; weights, means, moments and extremes from the blocks to train on (``trains``).
    ``classes`` are the labels that are given or known from an earlier call; None: those of the table.
    """
    weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    if not output_task.classifies:
        if trains:
            values = output_task.encode(y, None).values
            stream.block_means.append(float(values.mean()))
            stream.extremes.update(values if weights is None else values[weights > 0])
            for method in ("standard", "mean"):
                for centered in (True, False):
                    empty = target_moments(method, centered=centered)
                    stream.moments.setdefault((method, centered), empty).update(values, weights)
        return
    found = masked_labels(y, output_task.ignore_label)
    labels, counted = (y, None) if found is None else found
    columns = labels.reshape(len(labels), -1)
    if classes is not None:
        output_task.encode(y, classes)  # raises for other labels
    if counted is not None and columns.shape[1] > 1:
        raise ValueError("y holds ignore_label in one of several labels of a row: leave such rows out.")
    rows = slice(None) if counted is None else counted.reshape(-1)
    # Balanced weights of several labels a row follow from numbers of rows: see balanced_labels.
    label_weights = np.ones(len(y)) if weights is None or columns.shape[1] > 1 else weights
    label_weights = label_weights * trains  # a label that only held-out rows have is a class of weight zero
    stream.labels = stream.labels or [LabelCounts() for _ in columns.T]
    for known, column in zip(stream.labels, columns.T, strict=True):
        known.update(column[rows], label_weights[rows])
    if trains:
        labels_by_block.append(LabelCounts().update(columns[rows, 0]))


def counted_rows(output_task: OutputTask, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray:
    """Return a mask of the rows that count: their weight, times that of their class, is above zero."""
    counted: np.ndarray = checked_weights(sample_weight, len(y)) > 0
    if not output_task.classifies:
        return counted
    found = masked_labels(y, output_task.ignore_label)
    labels, known = (y, counted) if found is None else found
    columns, given = labels.reshape(len(labels), -1), output_task.class_weight
    counted &= known.reshape(len(labels), -1).any(axis=1)
    of_columns = given if isinstance(given, list) else [given] * columns.shape[1]
    for column, weights in zip(columns.T, of_columns, strict=False):  # a list of another length is refused later
        left_out = [label for label, weight in weights.items() if not weight] if isinstance(weights, Mapping) else []
        if left_out:
            counted &= ~np.isin(column, left_out)
    return counted


def mean_place(counts: LabelCounts, labels: np.ndarray) -> float:
    """Return the mean place of the labels of a block among all labels."""
    places = np.searchsorted(labels, counts.labels)
    return float(np.average(places, weights=counts.totals)) if counts.totals.any() else 0.0


def sample_of_blocks(
    source: Any, output_task: OutputTask, blocks: Sequence[int], sizes: Sequence[int], most: int
) -> tuple[Any, Any, Any]:
    """Return up to about ``most`` rows that count, evenly spaced in evenly spaced blocks; all rows if no more."""
    total = sum(sizes[i] for i in blocks)
    if total > most:
        places = np.unique(np.linspace(0, len(blocks) - 1, min(len(blocks), SAMPLE_BLOCKS)).round().astype(int))
        blocks = [blocks[i] for i in places]
        total = sum(sizes[i] for i in blocks)
    stride = max(1, -(-total // most))
    parts = []
    for i in blocks:
        X, y, weights = block_parts(source, i)
        if stride > 1:
            rows = np.flatnonzero(counted_rows(output_task, y, weights))[::stride]
            X, y = taken_rows(X, rows), np.asarray(y)[rows]
            weights = None if weights is None else np.asarray(weights)[rows]
        parts.append((X, y, weights))
    return joined_parts(parts)


def block_parts(source: Any, i: int) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return X, y and weights of a block."""
    block = source.block(i)
    if not isinstance(block, tuple) or len(block) not in (2, 3):
        raise TypeError(f"block({i}) must return (X, y) or (X, y, sample_weight), got {type(block).__name__}.")
    X, y, *rest = block
    X = X.arrays if isinstance(X, Inputs) else X
    return X, np.asarray(y), np.asarray(rest[0]) if rest and rest[0] is not None else None


def taken_rows(X: Any, rows: np.ndarray) -> Any:
    if isinstance(X, Mapping):
        return {name: taken_rows(one, rows) for name, one in X.items()}
    if hasattr(X, "column_names"):  # a table of Arrow
        return X.take(rows)
    if sp.issparse(X):
        return X.tocsr()[rows]
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]


def joined_parts(parts: Sequence[tuple[Any, np.ndarray, np.ndarray | None]]) -> tuple[Any, Any, Any]:
    """Return the rows of several blocks as one."""
    weights = None
    if any(own is not None for _, _, own in parts):
        weights = np.concatenate([np.ones(len(y)) if own is None else own for _, y, own in parts])
    return _joined_rows([X for X, _, _ in parts]), np.concatenate([y for _, y, _ in parts]), weights


def _joined_rows(parts: Sequence[Any]) -> Any:
    """Return the features of several blocks as one."""
    first = parts[0]
    if isinstance(first, Mapping):  # of several inputs
        return {name: _joined_rows([one[name] for one in parts]) for name in first}
    if hasattr(first, "column_names"):
        import pyarrow as pa

        # A data frame, as scikit-learn's functions that select rows do not take tables of every release of pyarrow.
        return pa.concat_tables(parts).to_pandas()
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    if sp.issparse(first):
        return sp.vstack(parts, format="csr")
    return np.concatenate([np.asarray(one) for one in parts])


def bytes_of_blocks(source: Any, sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield what tells one source from another: the sizes, features, targets and weights of its blocks."""
    yield repr(list(sizes)).encode()
    for i in range(len(sizes)):
        X, y, weights = block_parts(source, i)
        yield digest([_bytes_of_table(X) if hasattr(X, "column_names") else X, y, weights])


def _bytes_of_table(table: Any) -> list[Any]:
    """Return the name, the missing places and the other values of each column of a table of Arrow."""
    import pyarrow as pa

    found: list[Any] = []
    for name in table.column_names:
        column = table.column(name)
        with pa.BufferOutputStream() as sink:
            # Without missing values, under which there may be any bytes, and in one part, however the rows were cut.
            values = pa.table({name: column.drop_null()}).combine_chunks()
            with pa.ipc.new_stream(sink, values.schema) as stream:
                stream.write_table(values)
            gaps = np.packbits(np.asarray(column.is_null())) if column.null_count else None
            found += [gaps, np.frombuffer(sink.getvalue(), np.uint8)]
    return found


@contextmanager
def named_block(source: Any, i: int) -> Iterator[None]:
    """Name the block in errors."""
    with _named_place(_place(source, i)):
        yield


@contextmanager
def _named_place(place: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        if type(error) not in (ValueError, TypeError) or str(error).startswith(place):
            raise
        raise type(error)(f"{place}: {error}") from error


def _place(source: Any, i: int) -> str:
    return str(source.place(i)) if hasattr(source, "place") else f"Block {i}"


# Predictions and scores of all rows of a source, in their order.


BATCH_ROWS, BATCH_NUMBERS = 2**16, 2**23
"""Rows that are predicted at a time, and most numbers in their columns: wide rows come in smaller batches."""


class SourceRows(NamedTuple):
    """Rows of a source: features, targets and weights if they are scored, and the place of each part for messages."""

    n_rows: int
    X: Any
    y: np.ndarray | None
    weights: np.ndarray | None
    places: list[tuple[str, int]]

    def cut(self, start: int, end: int) -> SourceRows:
        """Return some rows of a single part."""
        y, weights = (None if one is None else one[start:end] for one in (self.y, self.weights))
        return SourceRows(end - start, _cut(self.X, start, end), y, weights, [(self.places[0][0], end - start)])


def reads_source(X: TableLike) -> TypeIs[SourceLike]:
    """Return True if X is a table to be predicted in batches."""
    if type(X) is np.ndarray or hasattr(type(X), "__dask_graph__"):
        return False
    return holds_blocks(X) or is_source(X) or callable(X) or type(X).__name__ == "RecordBatchReader"


@dataclass(frozen=True, eq=False)
class Batching:
    """The facts on a fitted estimator on which its predictions in batches depend.

    Attributes
    ----------
    output_task : OutputTask
    decoding : Decoding
    published : object
        An object that each training replaces when it publishes its result.
    rows_seen : int
        Rows seen in training. Their number rises before a training that continues publishes its result.
    chunk_rows : callable
        Returns the rows of data that a method computes at a time, and the numbers of a row.
    rows_meet : callable
        Returns the node at which the prediction of a row depends on other rows, or None.
    """

    output_task: OutputTask
    decoding: Decoding
    published: object
    rows_seen: int
    chunk_rows: Callable[[Any, str], tuple[int, int]]
    rows_meet: Callable[[], object]

    @classmethod
    def of(cls, estimator: Any) -> Batching:
        """Return the facts on an estimator of one output."""
        state: FittedState = estimator._state
        rows_meet = partial(where_rows_meet_in_graph, state.trained_form, state.session_options, in_training=False)
        return cls(
            estimator._output_task(), state.decoding, state, estimator.t_, partial(chunk_rows, estimator), rows_meet
        )


def predicted_batches(estimator: Any, method: str, X: Any) -> Any:
    """Return the results of a method of a fitted estimator for all rows of a source, as a RecordBatchReader."""
    check_is_fitted(estimator)
    batches = _predicted_batches(estimator, method, X)
    first = next(batches)  # an unusable source is an error of the call
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))


def _predicted_batches(estimator: Any, method: str, X: Any) -> Iterator[Any]:
    facts, types = estimator._batching(), None
    with _opened_batches(estimator, method, X) as batches:
        for rows in batches:
            import pyarrow as pa

            now = estimator._batching()
            if now.published is not facts.published or now.rows_seen != facts.rows_seen:
                raise RuntimeError(
                    f"{type(estimator).__name__} was trained while its predictions were read: read all of them before."
                )
            found = _result(getattr(estimator, method), rows, rows.X)
            columns = _columns(method, facts.decoding, getattr(estimator, "classes_", None), found)
            types = types or [None] * len(columns)  # those of the first batch
            arrays = [pa.array(np.ascontiguousarray(one), of) for one, of in zip(columns.values(), types, strict=True)]
            types = [one.type for one in arrays]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _columns(method: str, decoding: Decoding, classes: Any, found: Any) -> dict[str, np.ndarray]:
    """Return predictions as the column "prediction"; probabilities and scores by class, in columns named by the label.

    Several predictions a row are numbered: "prediction_0". So are the numbers of several labels a row: "0_red".
    """
    if isinstance(found, list):
        parts = [_columns(method, decoding, own, one) for own, one in zip(classes, found, strict=True)]
        return {f"{i}_{name}": numbers for i, one in enumerate(parts) for name, numbers in one.items()}
    several = found.reshape(len(found), -1)
    if method == "predict":
        names = ["prediction"] if found.ndim == 1 else [f"prediction_{i}" for i in range(several.shape[1])]
        return dict(zip(names, several.T, strict=True))
    labels = [str(label) for label in np.asarray(classes).tolist()]
    if method == "decision_function" and len(labels) == 2 and decoding.task != "multilabel":
        labels = labels[1:]  # the score of two classes is that of the second
    positions = several.shape[1] // len(labels)
    names = labels if positions == 1 else [f"{i}_{label}" for i in range(positions) for label in labels]
    return dict(zip(names, several.T, strict=True))


def scored_targets(estimator: object, y: Any, sample_weight: Any) -> Any:
    """Return ``y`` of a call of ``score``; raise if it is None, or if it or the weights are not in memory."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__}.score requires y, but the target y is None.")
    require_in_memory(y, "y")
    require_in_memory(sample_weight, "sample_weight")
    return y


def score_of_source(estimator: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Return the score of all rows of a source: the accuracy of a classifier, else R²."""
    check_is_fitted(estimator)
    if holds_blocks(X):
        _require_alone(X, y, sample_weight)
    else:
        y, sample_weight = _named_columns(y, sample_weight)
    if isinstance(X, RowBlocks):
        y, sample_weight = X.target, X.sample_weight
    output_task = estimator._batching().output_task
    require_hard_labels(output_task, "Scores of a table are computed")
    score = _accuracy if output_task.classifies else _r2
    with _opened_batches(estimator, "predict", X, y, sample_weight, scored=True) as batches:
        return score(estimator, batches)


def _accuracy(estimator: Any, batches: Iterator[SourceRows]) -> float:
    """Return the mean of the accuracies of batches, weighted by the labels that count in each."""
    right = total = 0.0
    facts: Batching = estimator._batching()
    for rows in batches:
        labels = mask_of_labels(np.asarray(rows.y), facts.output_task.ignore_label).reshape(rows.n_rows, -1)
        counted = labels.any(axis=1) if facts.decoding.positions is None else labels.sum(axis=1)
        weight = float((checked_weights(rows.weights, rows.n_rows) * counted).sum())
        if weight:  # scikit-learn's accuracy of no row is an error
            share = weight * _result(estimator.score, rows, rows.X, rows.y, rows.weights)
            right += share if rows.weights is not None else round(share)
            total += weight
    if not total:
        raise ValueError("No label of y counts: all are to be ignored, or in rows of weight zero.")
    return right / total


def _r2(estimator: Any, batches: Iterator[SourceRows]) -> float:
    """Return R², from the squared errors of batches and the merged moments of their targets."""
    facts: Batching = estimator._batching()
    moments, squares, n_rows = Moments(), np.zeros(1), 0
    for rows in batches:
        weights = checked_weights(rows.weights, rows.n_rows)
        found = _result(estimator.predict, rows, rows.X).reshape(rows.n_rows, -1)
        truth = _result(lambda y: facts.output_task.encode(y, None).values, rows, rows.y).astype(np.float64)
        if truth.shape != found.shape:
            raise ValueError(f"y has {truth.shape[1]} numbers a row, but the predictions have {found.shape[1]}.")
        squares = squares + (weights[:, np.newaxis] * (truth - found) ** 2).sum(axis=0)
        moments.update(truth, weights)
        n_rows += rows.n_rows
    if n_rows < 2:
        raise ValueError("R² needs at least two rows, and the source has one.")
    if not len(moments.weight):
        raise ValueError("All rows have weight zero.")
    total = moments.deviation**2 * moments.weight
    varies = total != 0
    scores = np.where(varies, 1 - squares / np.where(varies, total, 1), squares == 0)
    of_maps = facts.decoding.row_shape and varies.any()
    return float(np.average(scores, weights=total if of_maps else None))


def _result(method: Callable[..., Any], rows: SourceRows, *given: Any) -> Any:
    """Return the result for data of a batch; an error names the part that it comes from."""
    try:
        return method(*given)
    except (ValueError, TypeError):
        start = 0
        for place, n_rows in rows.places:
            with _named_place(place):
                method(*(None if one is None else _cut(one, start, start + n_rows) for one in given))
            start += n_rows
        raise


@contextmanager
def _opened_batches(
    estimator: Any, method: str, X: Any, y: Any = None, sample_weight: str | None = None, *, scored: bool = False
) -> Iterator[Iterator[SourceRows]]:
    """Open a source, and give its rows in batches; the targets are read if they are scored.

    Batches are cut where ``predict`` cuts an array into chunks: a row that is computed together with other rows may
    differ in its last bits. All iterators are closed at the end of the ``with`` block:
    the traceback of an error would keep them, and their files, open.
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
            with _named_place(part.places[0][0]):
                chunk, width = facts.chunk_rows(part.X, method)
            size = chunk * max(1, min(BATCH_ROWS, BATCH_NUMBERS // width) // chunk)
        waiting.append(part)
        count += part.n_rows
        if count > chunk and not checked:  # rows of a single chunk may meet: they are predicted at once, as in memory
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


def _read(estimator: Any, X: Any, y: Any, sample_weight: str | None, *, scored: bool) -> Generator[SourceRows]:
    """Yield the rows of a source as they are read."""
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
                yield SourceRows(n_rows, features, targets, weights, [(_place(X, i), n_rows)])
        return
    known = getattr(estimator, "feature_names_in_", None)
    names = None if known is None else known.tolist()
    others = [] if y is None else [y] if isinstance(y, str) else [*y]
    others = others if sample_weight is None else [*others, sample_weight]
    if both := [name for name in others if name in (names or ())]:
        raise ValueError(f"Column {both[0]!r} is a feature of the estimator, and so neither target nor weight.")
    size = min(BATCH_ROWS, BATCH_NUMBERS // max(1, len(names or ())))
    with closing(pieces(X, names, others, size)) as tables:
        for place, found in tables:
            table = readable(found, place)
            features = table.select(table.column_names[: table.num_columns - len(others)])
            targets, weights = targets_in(table, y, sample_weight, place) if scored else (None, None)
            yield SourceRows(table.num_rows, features, targets, weights, [(place, table.num_rows)])


def _joined(parts: Sequence[SourceRows]) -> SourceRows:
    """Return several parts as one."""
    places = [place for part in parts for place in part.places]
    X, y, weights = _joined_rows([part.X for part in parts]), None, None
    if parts[0].y is not None:
        y = np.concatenate([np.asarray(part.y) for part in parts])
    if any(part.weights is not None for part in parts):
        weights = np.concatenate([np.ones(part.n_rows) if part.weights is None else part.weights for part in parts])
    return SourceRows(sum(part.n_rows for part in parts), X, y, weights, places)


def _cut(X: Any, start: int, end: int) -> Any:
    if isinstance(X, Mapping):
        return {name: _cut(one, start, end) for name, one in X.items()}
    if hasattr(X, "column_names"):  # a table of Arrow
        return X.slice(start, end - start)
    if sp.issparse(X):
        return X.tocsr()[start:end]
    return X.iloc[start:end] if hasattr(X, "iloc") else np.asarray(X)[start:end]
