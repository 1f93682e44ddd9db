"""Prepare tables that need not fit into memory for RealMLP and TabM: statistics of all rows, then block by block.

Two passes precede the first step. One over the targets finds classes and weights, and decides which blocks are held
out. One over all columns gathers the statistics of which each preprocessing is made; TabM reads its blocks once more,
because the noise of its quantiles is scaled by deviations that the second pass finds. In training, blocks are read and
prepared whenever they are needed: a prepared copy of the table would need as much space as the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight

from .._data.batches import read_ahead
from .._data.columns import as_frame
from .._data.inputs import warn_of_texts
from .._data.row_weights import balanced_labels, balanced_weights, require_usable_weights, weights_of_classes
from .._data.statistics import LabelCounts
from .._data.targets import Targets, checked_weights, require_all_numbers
from .._estimators.streams import (
    block_parts,
    bytes_of_blocks,
    joined_parts,
    mask_of_rows,
    mean_place,
    named_block,
    sample_of_blocks,
    targets_of,
)
from .._model.links import Task
from .ensemble import MemberRecipe, Place, PreparedMember, evenly_spaced
from .preprocessing import ColumnStatistics, Preprocessing, fit_to_statistics, numbers_of
from .raw_table import CategoricalFeatures, RawTable, categorical_columns, read_table, warn_of_columns

SAMPLE_ROWS = 2**15
"""Evenly spaced rows, at most, that tell whether to warn of the numbers of a column."""


SAMPLE_BLOCKS = 8
"""Blocks, at least, from which rows are taken whose effects of the columns are computed."""


class BlockExamples:
    """The rows to fit, in blocks; indices of rows are those of blocks.

    Parameters
    ----------
    recipe : BaseRecipe
        Its feature attributes are set when the columns are read.
    source : RowBlocks, or object with ``__len__`` and ``block(i)``
    sizes : sequence of int
        Rows of each block.
    """

    def __init__(self, recipe: Any, source: Any, sizes: Sequence[int]) -> None:
        self._recipe, self.source, self.sizes = recipe, source, sizes
        self.buffer_rows = int(getattr(source, "buffer_rows", 500_000))
        self.prefetch = int(getattr(source, "prefetch", 0))
        given = recipe.class_weight
        self._class_weight: Any = None if isinstance(given, str) else given
        # Of each block: the mean target, by which folds are dealt, and the number of rows that count.
        self._block_means: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._alone = set[int]()  # blocks that alone hold a class
        self.targets_of_all = self._read_targets()
        # The fold of each block, -1 for those that no member holds out; the statistics of the columns in each fold.
        self._fold: dict[int, int] = {}
        self._statistics: dict[int, list[ColumnStatistics]] = {}
        self._names: tuple[str, ...] = ()
        self._warned = set[str]()

    @property
    def total_rows(self) -> int:
        """The number of rows of all blocks."""
        return sum(self.sizes)

    @property
    def task(self) -> Task:
        """The task of the targets."""
        return self.targets_of_all.task

    @property
    def classes(self) -> np.ndarray | None:
        """The labels of a classifier."""
        classes = self.targets_of_all.classes
        return classes if isinstance(classes, np.ndarray) else None

    def sample(self, count: int) -> tuple[RawTable, Sequence[bool]]:
        """Return up to ``count`` rows of a few blocks, and flags of the columns that are categories."""
        blocks = np.array(list(self._fold))
        needed = -(-count * len(blocks) // sum(self._counts.values()))  # more where blocks are small
        blocks = blocks[evenly_spaced(len(blocks), max(SAMPLE_BLOCKS, needed))]
        with closing(self._tables(blocks.tolist())) as tables:
            parts = [table.rows(evenly_spaced(len(table), -(-count // len(blocks)))) for table in tables]
        columns = tuple(map(np.concatenate, zip(*(one.columns for one in parts), strict=True)))
        whole = self._merged(sorted(self._statistics))
        return RawTable(self._names, columns, parts[0].declared), [one.is_categorical for one in whole]

    def parts(self) -> Iterator[bytes]:
        """Yield digests of all blocks, by which a Checkpoint knows the data again."""
        return bytes_of_blocks(self.source, self.sizes)

    # Targets, and the blocks to hold out.

    def targets(self, i: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the targets of a block as a network takes them, and the weights of its rows, those of classes too."""
        return self._targets(*targets_of(self.source)(i))

    def _targets(self, y: np.ndarray, sample_weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
        if sample_weight is None and self._class_weight is None:
            return y, None
        weights = checked_weights(sample_weight, len(y))
        if self._class_weight is not None:
            columns = y.reshape(len(y), -1).T
            given = self._class_weight
            for column, own in zip(columns, given if isinstance(given, list) else [given] * len(columns), strict=False):
                labels, places = np.unique(column, return_inverse=True)
                factors = np.array([own.get(label, 1.0) for label in labels.tolist()])
                weights = weights * factors[places.ravel()]
        return y, weights

    def _read_targets(self) -> Targets:
        """Read the targets of all blocks; return some of their rows that have all labels."""
        recipe = self._recipe
        classifies = isinstance(self._recipe, ClassifierMixin)
        labels = list[LabelCounts]()
        labels_by_block = dict[int, LabelCounts]()
        largest = 0.0
        total = 0.0
        targets: Targets
        for i, size in enumerate(self.sizes):
            if not size:
                continue
            with named_block(self.source, i):
                y, weights = self.targets(i)
                if len(y) != size:
                    raise ValueError(f"The block has {len(y)} targets, and {size} rows.")
                row_weights = np.ones(size) if weights is None else weights
                self._counts[i] = int(np.count_nonzero(row_weights > 0))
                largest = max(largest, float(np.max(row_weights)))
                total = total + float(row_weights.sum())
                if classifies:
                    columns = y.reshape(size, -1).T
                    labels = labels or [LabelCounts() for _ in columns]
                    for counts, column in zip(labels, columns, strict=True):
                        counts.update(column, row_weights if len(columns) == 1 else None)  # see balanced_labels
                    labels_by_block[i] = LabelCounts().update(columns[0])
                else:
                    targets = recipe._encode(y)
                    require_all_numbers(targets, "A table of more than buffer_rows rows")
                    self._block_means[i] = float(np.mean(targets.values))
        # The check reads the largest weight and the sum, which these two numbers have in common with all rows.
        require_usable_weights(np.array([largest, max(0.0, total - largest)]))
        if not classifies:
            return targets

        # Encode a few rows that hold all labels. Each label occurs several times, because scikit-learn warns if most
        # rows have a label of their own.
        n_rows = 4 * max(len(counts.labels) for counts in labels)
        rows = np.stack([np.resize(counts.labels, n_rows) for counts in labels], axis=1)
        targets = recipe._encode(rows.ravel() if len(labels) == 1 else rows)
        self._class_weight = _class_weights(recipe.class_weight, targets, rows, labels)
        self._block_means = {i: mean_place(counts, labels[0].labels) for i, counts in labels_by_block.items()}
        if len(labels) == 1:
            blocks = Counter(label for counts in labels_by_block.values() for label in counts.labels.tolist())
            self._alone = {
                i
                for i, counts in labels_by_block.items()
                if any(blocks[label] == 1 for label in counts.labels.tolist())
            }
        return targets

    def n_rows(self, rows: np.ndarray) -> int:
        """Return the number of rows that count in some blocks."""
        return sum(self._counts[i] for i in rows.tolist())

    def folds(
        self, count: int, fraction: float | None, rng: np.random.RandomState
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks to train on and blocks to validate on, ``count`` times.

        Blocks with neighboring means of the target go to different folds, so that each fold of a sorted table has
        blocks from all over it. A block that alone holds a class is in no fold.
        """
        used = np.array([i for i, n in self._counts.items() if n])
        self._fold = dict.fromkeys(used.tolist(), -1)
        if fraction is not None:
            order = np.array([i for i in used.tolist() if i not in self._alone], int)
            order = order[np.argsort([self._block_means[i] for i in order.tolist()], kind="stable")]
            n_folds = min(len(order), max(count, round(1 / fraction)))
            if n_folds < max(count, 2):
                raise ValueError(
                    f"Whole blocks are held out for validation, and the source has {len(used)}, of which {len(order)} "
                    f"can be left out: write smaller row groups, or set validation_split=None."
                )
            for start in range(0, len(order), n_folds):
                layer = order[start : start + n_folds].tolist()
                folds = rng.permutation(n_folds).tolist()
                # Folds that no member holds out are one, whose statistics are gathered together.
                self._fold |= {i: fold if fold < count else -1 for i, fold in zip(layer, folds, strict=False)}
        for member in range(count):
            held = np.array([self._fold[i] == member for i in used.tolist()])
            yield used[~held], used[held]

    # Columns.

    def preprocessing(self, recipe: MemberRecipe, rows: np.ndarray, rng: np.random.RandomState) -> Preprocessing:
        """Return the preprocessing, fitted to some blocks."""
        folds = {self._fold[i] for i in rows.tolist()}
        if not self._statistics:
            self._read_columns()
        columns, whole = (self._merged(chosen) for chosen in (sorted(folds), sorted(self._statistics)))

        def read(places: Sequence[int]) -> Iterator[np.ndarray]:
            with closing(self._tables(rows.tolist())) as tables:
                for table in tables:
                    yield numbers_of(table, places)

        return fit_to_statistics(
            self._names, columns, whole, recipe.scaling, rng, read, drops_constants=recipe.drops_constants
        )

    def _merged(self, folds: Sequence[int]) -> list[ColumnStatistics]:
        merged = [ColumnStatistics() for _ in self._names]
        for fold in folds:
            for name, one, part in zip(self._names, merged, self._statistics[fold], strict=True):
                one.merge(name, part)
        return merged

    def _read_columns(self) -> None:
        """Gather the statistics of the columns in each fold, and warn of columns that may be misread."""
        recipe = self._recipe
        used = list(self._fold)
        declared = list[tuple[bool, ...]]()
        stride = max(1, -(-sum(self._counts.values()) // SAMPLE_ROWS))
        sample = list[tuple[np.ndarray, ...]]()
        # An error holds the generator by its traceback: closing it ends the thread that reads ahead.
        with closing(self._tables(used, reset=True)) as tables:
            for i, table in zip(used, tables, strict=True):
                with named_block(self.source, i):
                    flags = _categorical_flags(table, recipe.categorical_features)
                    self._names = table.names
                    statistics = self._statistics.setdefault(self._fold[i], [ColumnStatistics() for _ in table.names])
                    for own, name, column, flag in zip(statistics, table.names, table.columns, flags, strict=True):
                        own.update(name, column, categorical=flag)
                    declared.append(table.declared)
                    sample.append(table.rows(np.arange(0, len(table), stride)).columns)
        self._warned |= {"X", *(f"Column {name!r} of X" for name in self._names)}
        all_declared = tuple(map(any, zip(*declared, strict=True)))
        # A column is of objects in the joined sample if it is one in any block.
        joined = RawTable(self._names, tuple(map(np.concatenate, zip(*sample, strict=True))), all_declared)
        warn_of_columns(joined, None)
        if isinstance(recipe.categorical_features, str):
            total = sum(self._counts.values())
            whole = self._merged(sorted(self._statistics))
            for name, statistics_of_all, has_codes in zip(self._names, whole, all_declared, strict=True):
                if statistics_of_all.kind == "text":
                    warn_of_texts(name, statistics_of_all.known, total, has_codes=has_codes)

    def _tables(self, blocks: Sequence[int], *, reset: bool = False) -> Generator[RawTable]:
        """Yield the rows of some blocks that count; ``reset`` takes names and number of the columns from the first."""
        with closing(read_ahead(self._read, blocks, self.prefetch)) as parts:
            for i, (X, y, weights) in zip(blocks, parts, strict=True):
                with named_block(self.source, i):
                    X = with_categories(self.source, X)
                    table = read_table(self._recipe, X, reset=reset and i == blocks[0], warned=self._warned)
                    weights = self._targets(y, weights)[1]
                    table = table if weights is None else table.rows(np.flatnonzero(weights))
                yield table

    def _read(self, i: int) -> tuple[Any, np.ndarray, np.ndarray | None]:
        return block_parts(self.source, i)

    # Training.

    def arguments(self, member: PreparedMember, place: Place) -> tuple[Any, Any, dict[str, Any]]:
        """Return the blocks to train on, None for their targets, and the validation data as arrays."""
        blocks = PreparedBlocks(self, member.preprocessing, member.rows, place)
        if not len(member.held):
            return blocks, None, {}
        held = PreparedBlocks(self, member.preprocessing, member.held, place)
        counted = partial(mask_of_rows, member.network._output_spec())
        parts = joined_parts(sample_of_blocks(held, counted, range(len(held)), held.sizes, self.buffer_rows))
        return blocks, None, dict(zip(("X_val", "y_val", "sample_weight_val"), parts, strict=True))

    def prepared(
        self, i: int, preprocessing: Preprocessing, place: Place
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return a block as a network takes it: matrix, targets, weights."""
        X, y, weights = self._read(i)
        with named_block(self.source, i):
            table = read_table(self._recipe, X, reset=False, warned=self._warned)
            return preprocessing.transform(table, place.device, place.session_options), *self._targets(y, weights)


class PreparedBlocks:
    """Some blocks of a table, with the matrix that a preprocessing makes of their columns: a source of a network."""

    def __init__(self, examples: BlockExamples, preprocessing: Preprocessing, blocks: np.ndarray, place: Place) -> None:
        self._examples = examples
        self._preprocessing = preprocessing
        self._blocks = blocks.tolist()
        self._place = place
        self.buffer_rows, self.prefetch = examples.buffer_rows, examples.prefetch
        self.sizes = [examples.sizes[i] for i in self._blocks]

    def __len__(self) -> int:
        return len(self._blocks)

    def block(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return matrix, targets and weights of a block."""
        return self._examples.prepared(self._blocks[i], self._preprocessing, self._place)

    def targets(self, i: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return targets and weights of a block, without its columns."""
        return self._examples.targets(self._blocks[i])

    def place(self, i: int) -> str:
        """Return the name of a block for messages."""
        number, source = self._blocks[i], self._examples.source
        return str(source.place(number)) if hasattr(source, "place") else f"Block {number}"


def with_categories(source: Any, X: Any) -> Any:
    """Return a table with the columns as categories that a source declares as such."""
    names = getattr(source, "categorical_names", ())
    return as_frame(X).astype(dict.fromkeys(names, "category")) if names else X


def check_columns(recipe: Any, source: Any, i: int) -> None:
    """Raise the error of a block, with its name, for cells that the reader or the preprocessing refuses."""
    with named_block(source, i):
        table = read_table(recipe, with_categories(source, block_parts(source, i)[0]), reset=True)
        flags = _categorical_flags(table, recipe.categorical_features)
        for name, column, flag in zip(table.names, table.columns, flags, strict=True):
            ColumnStatistics().update(name, column, categorical=flag)


def _categorical_flags(table: RawTable, chosen: CategoricalFeatures) -> tuple[bool, ...]:
    """Return a flag for each column of a block, True if it is categorical.

    A block without a value in a column does not tell whether the column is text: it is taken as one of numbers where
    the user names the categories.
    """
    if not isinstance(chosen, str):
        empty = [c.dtype == object and all(value is None for value in c) for c in table.columns]
        columns = [np.full(len(c), np.nan) if e else c for c, e in zip(table.columns, empty, strict=True)]
        table = replace(table, columns=tuple(columns))
    return categorical_columns(table, chosen)


def _class_weights(
    given: Any, targets: Targets, rows: np.ndarray, labels: Sequence[LabelCounts]
) -> Mapping[Any, float] | Sequence[Mapping[Any, float]] | None:
    """Return the weight of each class by its label; ``rows`` are some that hold all labels."""
    if given is None or len(labels) > 1:
        if isinstance(given, str):
            return balanced_labels(labels)
        if given is not None:
            compute_sample_weight(given, rows)  # raises for weights that do not fit the labels
        return given  # type: ignore[no-any-return]
    (counts,) = labels
    if isinstance(given, str):
        factors = balanced_weights(counts.totals, float(counts.totals.sum()))
    else:
        factors = weights_of_classes(given, targets.classes, np.empty(0, np.int64), np.empty(0))
    return dict(zip(counts.labels.tolist(), factors.tolist(), strict=True))
