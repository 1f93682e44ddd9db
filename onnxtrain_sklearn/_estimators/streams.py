"""Train on sources: tables that need not fit into memory, read in blocks of rows.

:func:`opened` makes a :class:`RowBlocks` from a path or from a table that is not read yet. :func:`with_arrays` then
replaces the source by arrays, which the further preparation needs. If the buffer holds all rows, the arrays are all
rows, and training gives the same bits as on arrays. Otherwise they are a sample, from which graph, decoding and step
are prepared. A :class:`Stream` then collects from all rows what the first step needs: the classes and their weights,
the scale and the range of numeric targets. :meth:`Stream.batches` makes the minibatches of all rows.

``streams_predictions`` predicts and scores the rows of a source; it shares the reading of blocks
(:func:`block_parts`) and errors that name the place of a row (:func:`named_place`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import assert_all_finite

from .._data.batches import Block, BlockBatches
from .._data.columns import InputData, require_in_memory
from .._data.held_out import require_group_reader, share_of_blocks
from .._data.inputs import Inputs
from .._data.row_blocks import RowBlocks, holds_blocks, is_source, names_of
from .._data.row_weights import balanced_labels, balanced_weights
from .._data.statistics import Extremes, LabelCounts, Moments
from .._data.target_scale import TargetScale, scale_of, target_moments
from .._data.targets import Classes, Targets, checked_weights, masked_labels, require_present
from .._fitted.fitted_model import encoded_inputs
from .._model.links import TargetScaling
from .._model.trainable import TrainableModel
from .._training.step import TrainingStep
from .._training.step_parts import StepSettings
from .._utils.cache import digest
from ..losses import Loss, resolve_loss
from .call import Call, EncodedData, generator_of
from .config import TrainingConfig
from .examples import graph_inputs, own_targets, scaled, trained_columns
from .fitted_state import FittedState
from .outputs import (
    OutputSpec,
    is_own_loss,
    require_one_label,
    takes_positions,
    targets_declared_by,
    weighted_targets,
)

T = TypeVar("T")

SAMPLE_ROWS, SAMPLE_BLOCKS = 2**15, 32
"""Size of the sample from which training is prepared: most rows and most blocks, both evenly spaced."""


Part = tuple[Any, Any, Any]
"""X, y and weights of some rows; with several trained outputs, y and weights are dicts by output."""


@dataclass
class Stream:
    """The blocks of a call, with statistics of the targets in all their rows.

    Attributes
    ----------
    source : RowBlocks, or object with ``__len__`` and ``block(i)``
    training_blocks : list of int
        The blocks to train on; all other blocks are held out.
    buffer_rows, prefetch : int
    rng : numpy.random.RandomState
    output_spec : OutputSpec
    n_rows : int
        Rows to train on, without those of weight zero.
    labels : list of LabelCounts
        The weight of each label, for each column of labels.
    labels_by_block : list of LabelCounts
        The weight of each label in the first column of labels, for each block to train on.
    block_means : list of float or None
        Mean target of each block to train on; of labels, their mean rank in sorted order.
    moments : dict
        Moments of numeric targets, by scaling method and by whether it centers.
    extremes : Extremes
        The smallest and largest numeric targets.
    sampled : mapping of str to ndarray or None
        Targets of the sample, if the loss declares them by name.
    """

    source: Any
    training_blocks: list[int]
    buffer_rows: int
    prefetch: int
    rng: np.random.RandomState
    output_spec: Any = None
    n_rows: int = 0
    labels: list[LabelCounts] = field(default_factory=list)
    labels_by_block: list[LabelCounts] = field(default_factory=list)
    block_means: list[float] | None = field(default_factory=list)
    extremes: Extremes = field(default_factory=Extremes)
    moments: dict[tuple[TargetScaling, bool], Moments] = field(default_factory=dict)
    sampled: Mapping[str, np.ndarray] | None = None

    def counted(self, y: Any, sample_weight: Any) -> np.ndarray:
        """Return a mask of the rows that affect training, because their weights are above zero."""
        return mask_of_rows(self.output_spec, y, sample_weight)

    def add(self, i: int, y: Any, sample_weight: Any, known: Any, *, trains: bool) -> None:
        """Add the targets of block ``i`` to the statistics; ``known`` are the classes, if they are known beforehand."""
        add_targets(self, self.output_spec, y, sample_weight, known, self.labels_by_block, trains=trains)

    def known_classes(self, resumed: FittedState) -> Any:
        """Return the classes of an earlier call."""
        return resumed.decoding.classes

    def complete(self, known: Any) -> None:
        """Complete the statistics after the targets of all blocks were added."""
        if self.output_spec.classifies:
            self.block_means = [mean_place(own, self.labels[0].labels) for own in self.labels_by_block]

    def sample(self, sizes: Sequence[int]) -> list[Part]:
        """Return a sample of the rows, for which graph, decoding and step are prepared."""
        return sample_of_blocks(self.source, self.counted, self.training_blocks, sizes, SAMPLE_ROWS)

    def scale(self, method: TargetScaling | None, *, centered: bool) -> TargetScale | None:
        """Return the scale computed from the targets of all blocks, as ``target_scale`` does for arrays."""
        if method is None or not self.moments or (method == "mean" and not centered):
            return None
        return scale_of(method, self.moments[method, centered])

    @property
    def classes(self) -> np.ndarray | list[np.ndarray] | None:
        """The classes in all rows; None if the targets are numbers, or indicators of several labels."""
        known = [one.labels for one in self.labels]
        if len(known) == 1:
            return known[0]
        are_numbers = all(own.dtype.kind in "iufb" for own in known)
        are_indicators = are_numbers and all(np.isin(own, (0, 1)).all() for own in known)
        return None if are_indicators else known

    @property
    def range(self) -> np.ndarray:
        """The smallest and the largest target of each column, as two rows."""
        assert self.extremes.low is not None
        assert self.extremes.high is not None
        return np.stack([self.extremes.low, self.extremes.high])

    def class_weight(self, given: Any) -> Any:
        """Return ``class_weight``, but for "balanced" the class weights computed from all rows."""
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
        rng = self.rng if shuffle else None
        prefetch = self.prefetch
        return BlockBatches(
            blocks,
            size,
            rng,
            buffer_rows=self.buffer_rows,
            drop_last=drop_last,
            prefetch=prefetch,
            block_means=self.block_means,
        )

    def encoder(
        self, estimator: Any, state: FittedState, loss: Any, *, ignores: bool
    ) -> Callable[[int, Any, Any], tuple[Targets, np.ndarray | None]]:
        """Return a function that encodes and checks ``(n_rows, y, sample_weight)`` of a block."""
        spec: OutputSpec = estimator._output_spec()
        spec = replace(spec, class_weight=self.class_weight(spec.class_weight))
        decoding = state.decoding

        def encoded(n_rows: int, y: Any, sample_weight: Any) -> tuple[Targets, np.ndarray | None]:
            targets, weights = weighted_targets(
                spec, n_rows, y, sample_weight, decoding.classes, decoding, at_positions=False
            )
            require_counted_labels(targets, ignores=ignores)
            if isinstance(loss, Loss):
                self._check(loss, targets)
                if decoding.declared is not None:
                    loss.check_scores(decoding.declared.score_row, targets.content)
            return targets, weights

        return encoded

    def _check(self, loss: Loss, targets: Targets) -> None:
        """Raise ValueError if the loss is not defined for the targets of a block."""
        try:
            loss.check_targets(targets.content)
        except ValueError:
            if self.sampled is None:
                raise
            # a few rows may lack what all rows have, such as an event
            own: Any = targets.content
            loss.check_targets({name: np.concatenate([own[name], more]) for name, more in self.sampled.items()})

    def training_step(
        self, step: TrainingStep, state: FittedState, settings: StepSettings, sparse: Collection[str]
    ) -> TrainingStep:
        """Return the step to train with.

        A plain stream returns ``step`` itself. The stream of ``dask`` wraps it, because workers read its blocks.
        """
        return step

    def converted(self, X: Any, convert: Callable[[Any], T]) -> T:
        """Return ``convert(X)`` for the sample. After an error, read all blocks again to name the block at fault."""
        try:
            return convert(X)
        except (ValueError, TypeError):
            for i in self.training_blocks:
                with named_block(self.source, i):
                    own = block_parts(self.source, i)[0]
                    with named_place(place_of(self.source, i), own):
                        convert(own)
            raise


class GraphBlocks:
    """The blocks of a stream as inputs of the graph, with their targets and weights."""

    def __init__(self, stream: Stream, estimator: Any, state: FittedState, loss: Any, *, ignores: bool) -> None:
        self._stream, self._estimator, self._state = stream, estimator, state
        self._encoded = stream.encoder(estimator, state, loss, ignores=ignores)

    @property
    def n_rows(self) -> int:
        return self._stream.n_rows

    def __len__(self) -> int:
        return len(self._stream.training_blocks)

    def block(self, i: int) -> Block:
        state = self._state
        number = self._stream.training_blocks[i]
        with named_block(self._stream.source, number):
            X, y, sample_weight = block_parts(self._stream.source, number)
            columns = self._matrix(X)
            if columns is None:
                with named_place(place_of(self._stream.source, number), X):
                    columns = graph_inputs(self._estimator, X, state.graph.inputs_of_X, state.fitted, reset=False)
                columns = (
                    columns if state.fitted is None else encoded_inputs(columns, state.fitted, state.graph.inputs_of_X)
                )
            n_rows = len(next(iter(columns.values())))
            if state.graph.own_loss is not None:
                columns = {**columns, **own_targets(state.graph, y, sample_weight, n_rows, state)}
                y = None
            targets, weights = self._encoded(n_rows, y, sample_weight)
            examples = scaled(EncodedData(columns, targets, weights), state.decoding.target_scale)
            return Block(trained_columns(state, examples), weights)

    def _matrix(self, X: Any) -> dict[str, InputData] | None:
        """Convert an Arrow table of finite numbers to the graph's input; None if the table needs all checks.

        The result is that of ``graph_inputs``, which takes four times as long as reading a small block.
        """
        inputs = self._state.graph.inputs_of_X
        names = getattr(self._estimator, "feature_names_in_", None)
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
            # Convert integers through float64, as ``graph_inputs`` does by way of a data frame, for the same bits.
            with np.errstate(over="ignore"):  # the full checks refuse a number that becomes infinite
                rows[:, i] = numbers if numbers.dtype.kind == "f" else numbers.astype(np.float64)
        return {inputs[0].name: InputData(rows, rows.dtype)} if np.isfinite(rows).all() else None


# Replace the source of a call by arrays.


def opened(estimator: Any, call: Call) -> Call:
    """Return the call with its source opened as blocks; ``resources`` of the call closes what is opened here."""
    several = isinstance(estimator.loss, Mapping)
    if targets_declared_by(estimator.loss) is not None:  # the columns by target, or those of the only one
        several = isinstance(call.X.target if isinstance(call.X, RowBlocks) else call.y, Mapping)
    source = opened_source(call.X, call.y, call.sample_weight, call.resources, several=several)
    if source is not None:
        return replace(call, source=source)
    given = {"X": call.X, "y": call.y, "sample_weight": call.sample_weight}
    for name, data in (("val", call.validation), ("old", call.old_rows)):
        given |= {} if data is None else {f"{one}_{name}": part for one, part in zip(given, data, strict=False)}
    for name, part in given.items():
        require_in_memory(part, name)
    return call


def opened_source(X: Any, y: Any, sample_weight: Any, resources: ExitStack, *, several: bool = False) -> Any:
    """Return the blocks of the table that ``X`` is or names; None if ``X`` is no source. ``resources`` closes it.

    With ``several`` (trained outputs, or targets that a loss declares), ``y`` is a dict from a name to its columns.
    """
    if holds_blocks(X):
        require_alone(X, y, sample_weight)
        if isinstance(X, RowBlocks):
            named_columns(X.target, X.sample_weight, several=several, name="target")
        return X
    if not is_source(X, y):
        return None
    target, sample_weight = named_columns(y, sample_weight, several=several)
    rows = RowBlocks(X, target, sample_weight=sample_weight)
    resources.callback(rows.close)
    return rows


def require_alone(X: Any, y: Any, sample_weight: Any) -> None:
    if y is not None or sample_weight is not None:
        raise ValueError(f"{type(X).__name__} holds y and sample_weight too: give it alone.")


def named_columns(y: Any, sample_weight: Any, *, several: bool = False, name: str = "y") -> tuple[Any, Any]:
    """Return the names of the target columns and of the weight column; dicts by output if there are several outputs."""
    if several != isinstance(y, Mapping):
        wanted = "a dict of the target columns by output" if several else "a column or a list of columns"
        raise TypeError(f"{name} must be {wanted} of the table, got {type(y).__name__}.")
    if several:
        for output, columns in y.items():
            if isinstance(columns, Mapping) or not isinstance(columns, str | list | tuple):
                raise TypeError(
                    f"{name} must name the target column of each output, got {type(columns).__name__} for {output!r}."
                )
        return dict(y), dict(sample_weight) if isinstance(sample_weight, Mapping) else sample_weight
    names = [y] if isinstance(y, str) else y
    if not isinstance(names, list | tuple) or not names or not all(isinstance(one, str) for one in names):
        raise TypeError(f"{name} must name the target column of the table, got {type(y).__name__}.")
    if sample_weight is not None and not isinstance(sample_weight, str):
        raise TypeError(f"sample_weight must name a column of the table, got {type(sample_weight).__name__}.")
    return y if isinstance(y, str) else list(names), sample_weight


def sizes_of_blocks(source: Any) -> list[int]:
    """Return the number of rows of each block."""
    sizes = getattr(source, "sizes", None)
    if sizes is None:
        sizes, alike = [], _Alike()
        for i in range(len(source)):
            part = block_parts(source, i)
            sizes.append(_count(part[1]))
            if sizes[-1]:
                alike.require(place_of(source, i), part)
    if not sum(sizes):
        raise ValueError("The source has no rows.")
    return list(sizes)


def rows_in_buffer(source: Any, sizes: Sequence[int]) -> Part | None:
    """Return X, y and weights of all rows if the buffer of a source holds them, else None."""
    if sum(sizes) > int(getattr(source, "buffer_rows", 500_000)):
        return None
    return joined_parts([block_parts(source, i) for i, size in enumerate(sizes) if size])


class _Alike:
    """Refuse blocks of a user's source that differ from earlier ones: joined, numbers would become text, or get gaps.

    A RowBlocks needs no such check: its files have one schema.
    """

    def __init__(self) -> None:
        self._rows: tuple[str, object] | None = None  # the first block, and the columns or the shape of its rows
        self._kinds = dict[str, tuple[str, str]]()  # of each column, and the block that told it

    def require(self, place: str, part: Part) -> None:
        """Raise ValueError if X and y of the block ``place`` differ in length, or from those of earlier blocks."""
        X, y, _ = part
        labels = [(f"y[{name!r}]", one) for name, one in y.items()] if isinstance(y, Mapping) else [("y", y)]
        columns = []
        if not isinstance(X, Mapping) and hasattr(X, "shape"):
            if X.shape[0] != _count(y):
                raise ValueError(f"{place}: X has {X.shape[0]} rows, and y has {_count(y)}.")
            rows: object = X.shape[1:]
            if hasattr(X, "iloc"):
                rows = sorted(map(str, X.columns))
                columns = [(f"Column {name!r} of X", X.iloc[:, k]) for k, name in enumerate(X.columns)]
            self._rows = self._rows or (place, rows)
            if rows != self._rows[1]:
                raise ValueError(
                    f"{place}: the columns of X are {rows}, and {self._rows[1]} in {self._rows[0]}. Give all "
                    f"blocks the same columns."
                )
        for name, values in (*columns, *labels):
            if (kind := _kind_of(values)) is not None:
                known, other = self._kinds.setdefault(name, (kind, place))
                if kind != known:
                    raise ValueError(
                        f"{place}: {name} holds {kind}, and {known} in {other}. Give all blocks the same type."
                    )


def _kind_of(values: Any) -> str | None:
    """Return "text" or "numbers" by the type or the first value of a column; None if that does not tell."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind != "O":
        if values.dtype.kind == "f" and np.isnan(values).all():  # missing values, of text too
            return None
        return {"U": "text", "S": "text", "M": None, "m": None}.get(values.dtype.kind, "numbers")
    for value in np.asarray(values, object).ravel():
        if isinstance(value, str | Number | np.generic) and value == value:
            return "text" if isinstance(value, str) else "numbers"
    return None


def with_arrays(
    estimator: Any,
    call: Call,
    config: TrainingConfig,
    resumed: FittedState | None,
    new_stream: Callable[..., Stream],
    known_graph: Callable[[Any], TrainableModel | None],
) -> Call:
    """Return a call whose source is replaced by arrays: all rows, or a sample and a :class:`Stream`.

    ``known_graph`` takes some rows of X and returns the graph, if it is known before the data.
    """
    source = call.source
    buffer_rows = int(getattr(source, "buffer_rows", 500_000))
    sizes = sizes_of_blocks(source)
    fraction = getattr(source, "validation_split", None)
    if (whole := rows_in_buffer(source, sizes)) is not None:
        X, y, sample_weight = whole
        return replace(call, X=X, y=y, sample_weight=sample_weight, validation_split=fraction)
    _require_streamable(estimator, call, config)
    read = targets_of(source)
    filled = [i for i, size in enumerate(sizes) if size]
    rng = generator_of(estimator, lambda: bytes_of_blocks(source, sizes)) if resumed is None else resumed.rng
    stream = new_stream(source, [], buffer_rows, int(getattr(source, "prefetch", 0)), rng)
    specs = stream.output_spec
    for spec in specs.values() if isinstance(specs, Mapping) else [specs]:
        if not spec.declared and not is_own_loss(spec.loss):
            require_hard_labels(spec, "A table of more than buffer_rows trains")
    if resumed is None:
        _require_one_label_a_row(specs, block_parts(source, filled[0]), known_graph)
    else:
        decodings = (resumed.decoding, *resumed.decoding.parts)
        require_one_label(at_positions=any(one.positions is not None for one in decodings))

    # Draw an order of the blocks and hold out the first ones, passing over blocks whose rows all have weight zero.
    held_out: list[int] = []
    if config.loop.early_stopping and call.validation is None and not call.one_epoch:
        choice = estimator.validation_split if fraction is None else fraction
        require_group_reader(call.groups, choice)
        count = max(1, round(share_of_blocks(choice) * len(filled)))
        if count >= len(filled):
            raise ValueError(
                f"early_stopping=True holds out blocks, and the source has {len(filled)}: write smaller row groups, or "
                f"give X_val and y_val."
            )
        for place in rng.permutation(len(filled)).tolist():
            with named_block(source, filled[place]):
                if len(held_out) < count and stream.counted(*read(filled[place])).any():
                    held_out.append(filled[place])
        held_out.sort()

    # Read all targets once. BlockBatches needs the mean target of each block to mix the blocks of a window.
    known = call.classes if resumed is None else stream.known_classes(resumed)
    withheld = set(held_out)
    for i in filled:
        with named_block(source, i):
            y, weights = read(i)
            rows = int(np.count_nonzero(stream.counted(y, weights)))
            trains = rows > 0 and i not in withheld
            stream.add(i, y, weights, known, trains=trains)
        if trains:
            stream.training_blocks.append(i)
            stream.n_rows += rows
    if not stream.n_rows:
        raise ValueError("All rows to train on have weight zero.")
    stream.complete(known)
    validation = call.validation
    if held_out:
        validation = joined_parts(sample_of_blocks(source, stream.counted, held_out, sizes, buffer_rows))
    X, y, sample_weight = joined_parts(stream.sample(sizes))
    if not isinstance(specs, Mapping) and specs.declared:
        found, _ = weighted_targets(specs, _count(y), y, None, None, None, at_positions=False)
        stream.sampled = dict(found.content)
    return replace(call, X=X, y=y, sample_weight=sample_weight, validation=validation, stream=stream)


def _require_one_label_a_row(specs: Any, part: Part, known_graph: Callable[[Any], TrainableModel | None]) -> None:
    """Raise if the targets of the first rows are labels at positions, for one output or by output."""
    X, y, _ = part
    single = not isinstance(specs, Mapping)
    each = {None: y} if single else {name: y[name] for name in specs if isinstance(y, Mapping) and name in y}
    if all(np.ndim(own) < 2 for own in each.values()):
        return
    graph = known_graph(X)
    for view, (name, spec) in zip(
        [graph] if graph is None or single else graph.views, [(None, specs)] if single else specs.items(), strict=True
    ):
        if name in each:
            require_one_label(at_positions=takes_positions(spec, view, each[name]))


def targets_of(source: Any) -> Callable[[int], tuple[Any, Any]]:
    """Return the function that reads the targets and the weights of a block."""
    read = getattr(source, "targets", None)  # not a method if a user's source has another attribute of this name
    return read if callable(read) else lambda i: block_parts(source, i)[1:]


def _require_streamable(estimator: Any, call: Call, config: TrainingConfig) -> None:
    """Raise for settings that need all rows in memory."""
    name = None
    if not config.optimizer.takes_minibatches:
        name = type(config.optimizer).__name__
    elif estimator.batch_size is None:
        name = "batch_size=None"
    elif call.old_rows is not None:
        name = "Fine-tuning with X_old"
    elif getattr(estimator, "finetune", None) not in ("auto", None):
        name = "Fine-tuning"
    if name is not None:
        raise ValueError(
            f"{name} takes all rows at once, and the table has more than buffer_rows. Give arrays, or a RowBlocks "
            f"whose buffer holds all rows."
        )


def require_hard_labels(output_spec: OutputSpec, subject: str) -> None:
    """Raise if ``y`` holds anything but labels or numbers; ``subject`` begins the sentence about what works."""
    if output_spec.declared is not None:
        kind = "targets that a loss declares by name" if output_spec.declared else "a loss without y in the table"
        kind = "a loss that the graph computes" if is_own_loss(output_spec.loss) else kind
        raise ValueError(
            f"{subject} on labels or numbers, not on {kind}: give arrays that fit into memory to OrtGradientRegressor, "
            f"or one part at a time to its partial_fit."
        )
    if output_spec.label_kind != "labels":
        raise ValueError(
            f"{subject} on one label a row, not on soft labels (targets={output_spec.label_kind!r}): give arrays that "
            f"fit into memory to OrtGradientClassifier, or one part at a time to its partial_fit."
        )


def add_targets(
    stream: Stream,
    output_spec: OutputSpec,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    classes: Classes,
    labels_by_block: list[LabelCounts],
    *,
    trains: bool,
) -> None:
    """Add the targets of a block to the statistics of the stream.

    Labels come from all blocks; weights, means, moments and extremes come from the blocks to train on (``trains``).
    ``classes`` are given by the user or known from an earlier call; None takes the labels in the table.
    """
    weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    if not output_spec.classifies:
        if trains and is_own_loss(output_spec.loss):
            first = np.asarray(next(iter(y.values())) if isinstance(y, Mapping) else y)
            assert stream.block_means is not None
            stream.block_means.append(float(first.mean()) if first.dtype.kind in "biuf" else 0.0)
        elif trains and output_spec.declared is not None:
            matrix = weighted_targets(output_spec, _count(y), y, None, None, None, at_positions=False)[0].values
            assert stream.block_means is not None
            stream.block_means.append(float(matrix[:, 0].mean()))
        elif trains:
            values = output_spec.encode(y, None).values
            if isinstance(output_spec.loss, str | Loss):
                resolve_loss(output_spec.loss).check_targets(values)
            assert stream.block_means is not None
            stream.block_means.append(float(values.mean()))
            stream.extremes.update(values if weights is None else values[weights > 0])
            for method in ("standard", "mean"):
                for centered in (True, False):
                    empty = target_moments(method, centered=centered)
                    stream.moments.setdefault((method, centered), empty).update(values, weights)
        return
    found = masked_labels(y, output_spec.ignore_label)
    labels, counted = (y, None) if found is None else found
    columns = labels.reshape(len(labels), -1)
    if classes is not None:
        output_spec.encode(y, classes)  # raises for other labels
    if counted is not None and columns.shape[1] > 1:
        raise ValueError("y lacks one of several labels of a row, or holds ignore_label there: leave such rows out.")
    rows = slice(None) if counted is None else counted.reshape(-1)
    if output_spec.ignore_label is None:  # else masked_labels has checked them
        require_present(columns[rows])
    if columns.dtype.kind == "f":
        assert_all_finite(columns[rows], input_name="y")
    # If rows have several labels, balanced weights depend on numbers of rows, not on weights: see balanced_labels.
    label_weights = np.ones(len(y)) if weights is None or columns.shape[1] > 1 else weights
    label_weights = label_weights * trains  # a label that only held-out rows have is a class of weight zero
    stream.labels = stream.labels or [LabelCounts() for _ in columns.T]
    for known, column in zip(stream.labels, columns.T, strict=True):
        known.update(column[rows], label_weights[rows])
    if trains:
        labels_by_block.append(LabelCounts().update(columns[rows, 0]))


def require_counted_labels(targets: Targets, *, ignores: bool) -> None:
    """Raise if labels of a row do not count, unless the step ``ignores`` such labels."""
    if targets.counts_in_part and not ignores:
        raise ValueError("y lacks some labels of a row, or holds ignore_label there: leave such rows out.")


def mask_of_rows(output_spec: OutputSpec, y: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray:
    """Return a mask of the rows whose weight, multiplied by the weight of their class, is above zero."""
    counted: np.ndarray = checked_weights(sample_weight, _count(y)) > 0
    if not output_spec.classifies:
        return counted
    found = masked_labels(y, output_spec.ignore_label)
    labels, known = (y, counted) if found is None else found
    columns = labels.reshape(len(labels), -1)
    given = output_spec.class_weight
    counted &= known.reshape(len(labels), -1).any(axis=1)
    of_columns = given if isinstance(given, list) else [given] * columns.shape[1]
    for column, weights in zip(columns.T, of_columns, strict=False):  # a list of another length is refused later
        left_out = [label for label, weight in weights.items() if not weight] if isinstance(weights, Mapping) else []
        if left_out:
            counted &= ~np.isin(column, left_out)
    return counted


def mean_place(counts: LabelCounts, labels: np.ndarray) -> float:
    """Return the mean rank of a block's labels among the sorted ``labels``; ``counts`` counts the block's labels."""
    places = np.searchsorted(labels, counts.labels)
    return float(np.average(places, weights=counts.totals)) if counts.totals.any() else 0.0


def sample_of_blocks(
    source: Any, counted: Callable[[Any, Any], np.ndarray], blocks: Sequence[int], sizes: Sequence[int], most: int
) -> list[Part]:
    """Return about ``most`` rows that count, evenly spaced in evenly spaced blocks.

    If there are no more, all rows are returned, those of weight zero too.
    """
    total = sum(sizes[i] for i in blocks)
    if total > most:
        places = np.unique(np.linspace(0, len(blocks) - 1, min(len(blocks), SAMPLE_BLOCKS)).round().astype(int))
        blocks = [blocks[i] for i in places]
        total = sum(sizes[i] for i in blocks)
    stride = max(1, -(-total // most))
    parts = []
    for i in blocks:
        part = block_parts(source, i)
        parts.append(part if stride == 1 else taken_part(part, np.flatnonzero(counted(*part[1:]))[::stride]))
    return parts


def block_parts(source: Any, i: int) -> Part:
    """Return X, y and weights of a block."""
    block = source.block(i)
    if not isinstance(block, tuple) or len(block) not in (2, 3):
        raise TypeError(f"block({i}) must return (X, y) or (X, y, sample_weight), got {type(block).__name__}.")
    X, y, *rest = block
    X = X.arrays if isinstance(X, Inputs) else X
    return X, _arrays(y), _arrays(rest[0] if rest else None)


def _arrays(given: Any) -> Any:
    """Return targets or weights of a block as an array, or as a dict of arrays by output; None stays None."""
    given = given.arrays if isinstance(given, Inputs) else given
    if isinstance(given, Mapping):
        return {name: None if one is None else np.asarray(one) for name, one in given.items()}
    return None if given is None else np.asarray(given)


def _count(y: Any) -> int:
    return len(next(iter(y.values()))) if isinstance(y, Mapping) else len(y)


def taken_part(part: Part, rows: np.ndarray) -> Part:
    """Return the rows of a part with the indices ``rows``."""
    X, y, weights = part
    return taken_rows(X, rows), taken_rows(y, rows), taken_rows(weights, rows)


def taken_rows(X: Any, rows: np.ndarray) -> Any:
    if X is None:
        return None
    if isinstance(X, Mapping):
        return {name: taken_rows(one, rows) for name, one in X.items()}
    if hasattr(X, "column_names"):  # a table of Arrow
        return X.take(rows)
    if sp.issparse(X):
        return X.tocsr()[rows]
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]


def joined_parts(parts: Sequence[Part]) -> Part:
    """Return the rows of several blocks as one."""
    counts = [_count(y) for _, y, _ in parts]
    return (
        joined_rows([X for X, _, _ in parts]),
        joined_rows([y for _, y, _ in parts]),
        joined_weights([weights for _, _, weights in parts], counts),
    )


def joined_weights(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    """Return the weights of several blocks as one array; None if all are one. ``counts`` are the rows of each block."""
    named = [one for one in parts if isinstance(one, Mapping)]
    if named:
        outputs = dict.fromkeys(name for one in named for name in one)
        return {
            name: joined_weights([one.get(name) if isinstance(one, Mapping) else one for one in parts], counts)
            for name in outputs
        }
    if all(one is None for one in parts):
        return None
    return np.concatenate([np.ones(n) if one is None else one for one, n in zip(parts, counts, strict=True)])


def joined_rows(parts: Sequence[Any]) -> Any:
    """Return the features, or the targets, of several blocks as one."""
    first = parts[0]
    if isinstance(first, Mapping):  # by input or output
        return {name: joined_rows([one[name] for one in parts]) for name in first}
    if hasattr(first, "column_names"):
        import pyarrow as pa

        # Return a data frame, because scikit-learn cannot select rows of tables of every release of pyarrow.
        return pa.concat_tables(parts).to_pandas()
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    if sp.issparse(first):
        return sp.vstack(parts, format="csr")
    return np.concatenate([np.asarray(one) for one in parts])


def bytes_of_blocks(source: Any, sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield bytes that identify a source: the sizes, features, targets and weights of its blocks."""
    yield repr(list(sizes)).encode()
    for i in range(len(sizes)):
        X, y, weights = block_parts(source, i)
        yield digest([_bytes_of_table(X) if hasattr(X, "column_names") else X, y, weights])


def _bytes_of_table(table: Any) -> list[Any]:
    """Return the bytes of each column of an Arrow table: a bit for each missing value, and the name with the values."""
    import pyarrow as pa

    found: list[Any] = []
    for name in table.column_names:
        column = table.column(name)
        with pa.BufferOutputStream() as sink:
            # Drop missing values, which may have any bytes, and combine the chunks, because rows may be cut anywhere.
            values = pa.table({name: column.drop_null()}).combine_chunks()
            with pa.ipc.new_stream(sink, values.schema) as stream:
                stream.write_table(values)
            gaps = np.packbits(np.asarray(column.is_null())) if column.null_count else None
            found += [gaps, np.frombuffer(sink.getvalue(), np.uint8)]
    return found


@contextmanager
def named_block(source: Any, i: int) -> Iterator[None]:
    """Prepend the name of block ``i`` to a ValueError or TypeError, and that of the column if it is about targets."""
    place = place_of(source, i)
    with named_place(place):
        try:
            yield
        except (ValueError, TypeError) as error:
            text = str(error).removeprefix(f"{place}: ")
            column = _column_at_fault(source, text)
            if type(error) not in (ValueError, TypeError) or column is None:
                raise
            raise type(error)(f"{place}: {column}: {text}") from error


def _column_at_fault(source: Any, text: str) -> str | None:
    """Return the name of the column of targets or weights that an error is about; None if it is not known."""
    if not isinstance(source, RowBlocks) or text.startswith(("Input X", "Column", "column")):
        return None
    words = set(re.findall(r"\w+", text))
    output = re.match(r"Output '(.*?)': ", text)
    named: Any = source.sample_weight if "sample_weight" in words else source.target if "y" in words else None
    if isinstance(named, Mapping):
        named = named.get(output[1]) if output else None
    names = names_of(named)
    return f"Column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}" if names else None


def raise_for_block(error: Exception, checks: Iterable[Callable[[], object]]) -> None:
    """Raise the first error of the ``checks`` of single blocks that names the fault which ``error`` names for all rows.

    Other errors are ignored, because a block alone may have other faults, such as labels of one class only.
    """
    fault = re.split(r"[\d\[]", str(error), maxsplit=1)[0]  # what follows are counts and values
    for check in checks:
        try:
            check()
        except (ValueError, TypeError) as own:
            if fault in str(own):
                raise own from error


@contextmanager
def named_place(place: str, X: Any = None) -> Iterator[None]:
    """Prepend ``place``, the origin of the rows, to errors; also name a column of ``X`` with invalid numbers."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        if type(error) not in (ValueError, TypeError) or text.startswith(place):
            raise
        if text.startswith(("Input X contains", "Input contains")) and (wrong := _columns_not_finite(X)):
            text = f"Column {wrong[0]!r}: {text}"
        raise type(error)(f"{place}: {text}") from error


def _columns_not_finite(X: Any) -> list[str]:
    """Return the names of the columns of a table with missing, infinite or too large numbers."""
    X = X.to_pandas() if hasattr(X, "column_names") else X
    if not hasattr(X, "iloc"):
        return []
    found = []
    for name, own in X.items():
        numbers = np.asarray(own)
        with np.errstate(over="ignore"):
            if own.isna().any() or (numbers.dtype.kind == "f" and not np.isfinite(numbers.astype(np.float32)).all()):
                found.append(name)
    return found


def place_of(source: Any, i: int) -> str:
    """Return the name of a block for messages."""
    return str(source.place(i)) if callable(getattr(source, "place", None)) else f"Block {i}"
