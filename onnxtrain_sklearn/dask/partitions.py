"""From Dask collections and files to windows of rows for the shards of a cluster.

:func:`read` makes a :class:`Table` of a collection or of Parquet files: its partitions as futures, with the facts that
one pass over the targets finds. :class:`ClusterStream` gives these facts to the preparation of a fit, which sees a
sample of the rows, and plans the windows. Each window has rows from all over the table, as inputs of the graph; a shard
is one window or several. The client holds facts and the sample alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from .._data.batches import Block
from .._data.row_blocks import RowBlocks
from .._data.statistics import Extremes, LabelCounts, Moments
from .._data.targets import Classes
from .._estimators.outputs import OutputSpec
from .._estimators.streams import (
    SAMPLE_BLOCKS,
    SAMPLE_ROWS,
    GraphBlocks,
    Stream,
    add_targets,
    joined_parts,
    mask_of_rows,
    mean_place,
    named_place,
    taken_rows,
)
from .cluster import Cluster, Future

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

LEAST_PARTITION = 2**16
"""Rows of a partition that is read from files, at least: small row groups are read together."""

WINDOW_BYTES = 2**26
WINDOW_ROWS = 2**18
WINDOW_MINIBATCHES = 8
"""The size of a window: bytes and rows at most, but so many minibatches at least.

A round needs one window of each shard in memory, and rows are shuffled within windows.
"""

STRIPES, LAYERS = 4096, 32
"""With at most STRIPES stripes, each window has one of each partition. Else it has stripes of LAYERS layers."""

Part = tuple[Any, np.ndarray, "np.ndarray | None"]
"""X, y and weights of a partition."""

Window = tuple[dict[str, Any], "np.ndarray | None"]
"""Inputs of the graph by name, the target among them, and the weights; None: all are one."""


@dataclass(eq=False)
class Facts:
    """What one pass over the targets of a partition finds; statistics are None if no row counts."""

    n_rows: int
    n_counted: int = 0
    content: str = ""
    labels: list[LabelCounts] = field(default_factory=list)
    own_labels: LabelCounts | None = None
    key: float = 0.0
    extremes: Extremes | None = None
    moments: dict[Any, Moments] = field(default_factory=dict)


@dataclass(eq=False)
class Table:
    """The partitions of a call on the workers, and what the client knows of them."""

    cluster: Cluster
    parts: list[Future]
    places: list[str]

    def learn(self, output_spec: OutputSpec, classes: Classes, *, with_content: bool) -> list[Facts]:
        """Return the facts of all partitions, whose content has a digest ``with_content``."""
        asked = [
            self.cluster.submit(_facts, part, output_spec, classes, with_content, place)
            for part, place in zip(self.parts, self.places, strict=True)
        ]
        facts: list[Facts] = self.cluster.gather(asked, self.places)
        if not any(one.n_rows for one in facts):
            raise ValueError("X has no rows.")
        if not any(one.n_counted for one in facts):
            raise ValueError("All rows to train on have weight zero.")
        return facts

    def sample(self, output_spec: OutputSpec, facts: Sequence[Facts]) -> list[tuple[str, Part]]:
        """Return all rows, or about ``SAMPLE_ROWS`` that count, evenly spaced in evenly spaced partitions."""
        chosen = [i for i, one in enumerate(facts) if one.n_rows]
        total = sum(one.n_rows for one in facts)
        stride = 0
        if total > SAMPLE_ROWS:
            chosen = [i for i in chosen if facts[i].n_counted]
            spaced = np.linspace(0, len(chosen) - 1, min(len(chosen), SAMPLE_BLOCKS)).round().astype(int)
            chosen = [chosen[i] for i in np.unique(spaced)]
            stride = max(1, -(-sum(facts[i].n_counted for i in chosen) // SAMPLE_ROWS))
        places = [self.places[i] for i in chosen]
        taken = [self.cluster.submit(_sampled, self.parts[i], output_spec, stride) for i in chosen]
        return list(zip(places, self.cluster.gather(taken, places), strict=True))


# Partitions of collections and of files.


def read(cluster: Cluster, X: Any, y: Any, sample_weight: Any) -> Table:
    """Return the partitions of Dask collections, or of Parquet files whose columns ``y`` and ``sample_weight`` name."""
    if isinstance(X, (RowBlocks, str, os.PathLike)) or _are_paths(X):
        return _read_files(cluster, X, y, sample_weight)
    import dask

    given = {"X": X, "y": y, "sample_weight": sample_weight}
    target = y if isinstance(y, str) or _are_paths(y) else None
    weight = sample_weight if isinstance(sample_weight, str) else None
    if target is not None or weight is not None:
        _require_columns(X, [*([target] if isinstance(target, str) else target or []), *([weight] if weight else [])])
    if y is None:
        raise ValueError("y is missing: give a Dask collection, or the name of a column of X.")
    collections = {
        name: _in_rows(name, one)
        for name, one in given.items()
        if one is not None and not (name == "y" and target is not None) and not (name == "sample_weight" and weight)
    }
    # Together: of graphs that are optimized one by one, tasks of one name may differ, and some of them get lost.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Computing mixed collections")
        persisted = dict(zip(collections, cluster.persist(list(collections.values())), strict=True))
    blocks = {name: list(np.ravel(np.asarray(one.to_delayed(), dtype=object))) for name, one in persisted.items()}
    counts = {name: len(one) for name, one in blocks.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"X, y and sample_weight must have the same partitions, and have different numbers of them: {counts}. "
            f"Repartition or rechunk them alike."
        )
    places = [f"Partition {i}" for i in range(counts["X"])]
    join = dask.delayed(_joined, pure=False)
    names = list(X.columns) if hasattr(X, "columns") else None
    rows = [
        join(*(blocks[name][i] if name in blocks else None for name in given), target, weight, names, place)
        for i, place in enumerate(places)
    ]
    return Table(cluster, cluster.compute(rows), places)


def _are_paths(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(p, (str, os.PathLike)) for p in value)


def _require_columns(X: Any, names: list[Any]) -> None:
    columns = getattr(X, "columns", None)
    if columns is None:
        raise TypeError(f"y and sample_weight name columns of a Dask data frame, and X is a {type(X).__name__}.")
    if missing := [name for name in names if name not in list(columns)]:
        raise ValueError(f"X has no column {missing[0]!r}, got {list(columns)}.")


def _in_rows(name: str, collection: Any) -> Any:
    """Return a collection whose partitions are whole rows."""
    kind = type(collection)
    if kind.__module__.partition(".")[0] != "dask" or not hasattr(collection, "to_delayed"):
        raise TypeError(
            f"{name} must be a Dask data frame, series or array, or the path of Parquet files, got {kind.__name__}. "
            f"Rows in memory need no cluster: OrtGradientClassifier and OrtGradientRegressor take them."
        )
    if name == "X" and len(names := list(getattr(collection, "columns", ()))) > len(set(names)):
        twice = [one for one in dict.fromkeys(names) if names.count(one) > 1]
        raise ValueError(f"X has several columns of each of the names {twice}. Give them different names.")
    if hasattr(collection, "chunks") and any(len(axis) > 1 for axis in collection.chunks[1:]):
        return collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    return collection


def _joined(X: Any, y: Any, weights: Any, target: Any, weight: str | None, names: Any, place: str) -> Part:
    """Return a partition with its target and weights as arrays; ``names`` are the columns of the collection."""
    if names is not None and (own := list(X.columns)) != names:
        raise ValueError(f"{place}: X has the columns {own}, and the collection says that it has {names}.")
    if target is not None:
        names = [target] if isinstance(target, str) else list(target)
        y = X[target] if isinstance(target, str) else X[names]
        weights = X[weight] if weight is not None else weights
        X = X.drop(columns=[*names, *([] if weight is None else [weight])])
    elif weight is not None:
        weights, X = X[weight], X.drop(columns=[weight])
    y = np.asarray(y)
    weights = None if weights is None else np.asarray(weights)
    counts = {"X": _length(X), "y": len(y)} | ({} if weights is None else {"sample_weight": len(weights)})
    if len(set(counts.values())) > 1:
        raise ValueError(f"{place}: X, y and sample_weight have different numbers of rows: {counts}.")
    return X, y, weights


def _read_files(cluster: Cluster, X: Any, y: Any, sample_weight: Any) -> Table:
    if isinstance(X, RowBlocks):
        if y is not None or sample_weight is not None:
            raise ValueError("RowBlocks holds y and sample_weight too: give it alone.")
        source, y, sample_weight, columns = X.source, X.target, X.sample_weight, X.columns
        if isinstance(y, Mapping):
            raise TypeError("target must be a column or a list of columns: estimators of a cluster train one output.")
    else:
        source, columns = X, None
        if not isinstance(y, str) and not _are_paths(y):
            raise TypeError(f"y must name the target column of the files, got {type(y).__name__}.")
    rows = RowBlocks(source, y, sample_weight=sample_weight, columns=columns, buffer_rows=2**62)
    groups: list[list[int]] = []
    count = LEAST_PARTITION
    for i, size in enumerate(rows.sizes):
        if count >= LEAST_PARTITION:
            groups.append([])
            count = 0
        groups[-1].append(i)
        count += size
    places = [rows.place(own[0]) + (f" to {rows.place(own[-1])}" if len(own) > 1 else "") for own in groups]
    parts = [cluster.submit(_read_groups, *map(rows.reader, own)) for own in groups]
    return Table(cluster, cluster.hold(parts), places)


def _read_groups(*readers: Callable[[], Part]) -> Part:
    """Return the rows of some row groups."""
    import pyarrow as pa

    parts = [read() for read in readers]
    weights = None if parts[0][2] is None else np.concatenate([one[2] for one in parts])
    return pa.concat_tables([one[0] for one in parts]), np.concatenate([one[1] for one in parts]), weights


def _length(X: Any) -> int:
    return int(X.num_rows if hasattr(X, "num_rows") else X.shape[0])


def _facts(part: Part, output_spec: OutputSpec, classes: Classes, with_content: bool, place: str) -> Facts:
    """Return the facts of a partition."""
    X, y, weights = part
    content = ""
    if with_content:
        from dask.base import tokenize

        content = tokenize(X, y, weights)
    if not len(y):
        return Facts(0, content=content)
    known = Stream(None, [], 0, 0, np.random.RandomState(0))
    own = list[LabelCounts]()
    try:
        counted = int(np.count_nonzero(mask_of_rows(output_spec, y, weights)))
        add_targets(known, output_spec, y, weights, classes, own, trains=counted > 0)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{place}: {error}") from error
    key = known.block_means[0] if known.block_means else 0.0
    return Facts(
        len(y), counted, content, known.labels, own[0] if own else None, key, known.extremes, dict(known.moments)
    )


def _sampled(part: Part, output_spec: OutputSpec, stride: int) -> Part:
    """Return every row of a partition that counts, ``stride`` rows apart; all rows for 0."""
    if not stride:
        return part
    X, y, weights = part
    rows = np.flatnonzero(mask_of_rows(output_spec, y, weights))[::stride]
    return taken_rows(X, rows), y[rows], None if weights is None else weights[rows]


# The stream of a fit: the facts of all partitions, and the plan of the windows.


class Stripe(NamedTuple):
    """Every ``step``-th row of a partition, from ``first`` on."""

    part: int
    first: int
    step: int
    n_rows: int


@dataclass
class ClusterStream(Stream):
    """What is known of all rows before the first step; the windows follow once the graph is known."""

    facts: list[Facts] = field(default_factory=list)
    samples: list[tuple[str, Part]] = field(default_factory=list)

    @classmethod
    def of(
        cls, table: Table, output_spec: OutputSpec, facts: list[Facts], samples: list[tuple[str, Part]], rng: Any
    ) -> Self:
        """Return the stream of a table with these facts."""
        stream = cls(table, [], 0, 0, rng, facts=facts, samples=samples)
        stream.n_rows = sum(one.n_counted for one in facts)
        _require_labels_of_a_kind(table, facts)
        if sum(len(one[1]) for _, one in samples) == sum(one.n_rows for one in facts):
            # Every row is here, so learn from them as from an array, to the bit.
            _, y, weights = joined_parts([one for _, one in samples])
            facts = [_facts((y, y, weights), output_spec, None, False, "y")]
        for one in facts:
            for i, counts in enumerate(one.labels):
                if i == len(stream.labels):
                    stream.labels.append(LabelCounts())
                stream.labels[i].merge(counts)
            if one.extremes is not None:
                stream.extremes.merge(one.extremes)
            for key, moments in one.moments.items():
                stream.moments[key] = stream.moments[key].merge(moments) if key in stream.moments else moments
        if output_spec.classifies:
            labels = stream.labels[0].labels
            for one in stream.facts:
                one.key = 0.0 if one.own_labels is None else mean_place(one.own_labels, labels)
        return stream

    def converted(self, X: Any, convert: Callable[[Any], T]) -> T:
        """Return ``convert(X)`` of the sample; an error names the partition."""
        try:
            return convert(X)
        except (ValueError, TypeError):
            for place, (own, _, _) in self.samples:
                with named_place(place, own):
                    convert(own.to_pandas() if hasattr(own, "column_names") else own)
            raise

    def planned(self, n_shards: int, size: int, row_bytes: int) -> list[list[list[Stripe]]]:
        """Return the windows of each shard, each a list of stripes; minibatches have ``size`` rows."""
        counts = [one.n_counted for one in self.facts]
        total = sum(counts)
        most = max(min(WINDOW_ROWS, WINDOW_BYTES // max(1, row_bytes)), WINDOW_MINIBATCHES * size)
        each = -(-total // (n_shards * most))  # windows of a shard
        n_windows = n_shards * each
        filled = [i for i, count in enumerate(counts) if count]
        windows: list[list[Stripe]] = [[] for _ in range(n_windows)]
        if len(filled) * n_windows <= max(STRIPES, n_windows):
            # Each window has a stripe of each partition; the odd rows of partitions go round.
            odd = 0
            for i in filled:
                for first in range(min(n_windows, counts[i])):
                    windows[(first + odd) % n_windows].append(_stripe(i, first, n_windows, counts[i]))
                odd += counts[i]
        else:
            stripes = []
            for i in filled:
                step = min(n_windows, max(1, -(-counts[i] * LAYERS * n_windows // total)), counts[i])
                stripes += [_stripe(i, first, step, counts[i]) for first in range(step)]
            stripes.sort(key=lambda one: (self.facts[one.part].key, one.part, one.first))
            sizes = [0] * n_windows
            for start in range(0, len(stripes), n_windows):
                # Of neighboring keys each window gets one, the largest where there are fewest rows so far.
                layer = sorted(stripes[start : start + n_windows], key=lambda one: -one.n_rows)
                places = sorted(range(n_windows), key=lambda i: sizes[i])
                for one, place in zip(layer, places, strict=False):
                    windows[place].append(one)
                    sizes[place] += one.n_rows
        ordered = [sorted(one) for one in windows]
        return [ordered[shard::n_shards] for shard in range(n_shards)]

    def submit(self, job: Future, plan: list[list[list[Stripe]]]) -> list[list[Future]]:
        """Build the windows on the workers; return their futures for each shard, and let go of the partitions."""
        table: Table = self.source
        cluster = table.cluster
        converted = {
            i: cluster.submit(_converted, job, table.parts[i], table.places[i])
            for i, one in enumerate(self.facts)
            if one.n_counted
        }
        windows: list[list[Future]] = []
        for shard in plan:
            windows.append([])
            for stripes in shard:
                parts = [
                    converted[one.part]
                    if one.step == 1
                    else cluster.submit(_striped, converted[one.part], one.first, one.step)
                    for one in stripes
                ]
                windows[-1].append(cluster.submit(_window, *parts))
        cluster.hold([one for shard in windows for one in shard])
        cluster.release(table.parts)
        table.parts = []
        return windows


def _require_labels_of_a_kind(table: Table, facts: Sequence[Facts]) -> None:
    """Raise if some partitions have texts as labels and others numbers, which cannot be sorted."""
    first: dict[tuple[int, bool], str] = {}
    for one, place in zip(facts, table.places, strict=True):
        for column, counts in enumerate(one.labels):
            if len(counts.labels):
                is_text = isinstance(counts.labels[0], str)
                first.setdefault((column, is_text), place)
                if (column, not is_text) in first:
                    texts, numbers = first[column, True], first[column, False]
                    raise TypeError(f"{texts}: y holds texts, and {numbers} holds numbers. Give labels of one type.")


def _stripe(part: int, first: int, step: int, count: int) -> Stripe:
    return Stripe(part, first, step, len(range(first, count, step)))


class OnePartition:
    """A source with one block, as :class:`GraphBlocks` takes it."""

    def __init__(self, part: Part, place: str) -> None:
        self._part, self._place = part, place

    def block(self, i: int) -> Part:
        """Return the partition."""
        return self._part

    def place(self, i: int) -> str:
        """Return its name for messages."""
        return self._place


def _converted(job: Any, part: Part, place: str) -> Window:
    """Return the rows of a partition that count, as inputs of the graph."""
    with job.prepared() as prepared:
        stream = Stream(OnePartition(part, place), [0], 0, 0, np.random.RandomState(0))
        blocks = GraphBlocks(
            stream, prepared.estimator, prepared.state, prepared.settings.loss, ignores=prepared.settings.ignores
        )
        return _arrays(blocks.block(0))


def _arrays(block: Block) -> Window:
    """Return a block as plain arrays, whose bytes a worker can count."""
    weights = block.weights
    rows: Any = slice(None) if weights is None or (weights > 0).all() else np.flatnonzero(weights > 0)
    columns = {
        name: column.sparse_rows(rows) if column.is_sparse else column.rows(rows)
        for name, column in block.columns.items()
    }
    return columns, None if weights is None else weights[rows]


def _striped(whole: Window, first: int, step: int) -> Window:
    """Return every ``step``-th row from ``first`` on."""
    columns, weights = whole
    rows = slice(first, None, step)
    taken = {name: one[rows] for name, one in columns.items()}
    taken = {name: one if sp.issparse(one) else np.ascontiguousarray(one) for name, one in taken.items()}
    return taken, None if weights is None else np.ascontiguousarray(weights[rows])


def _window(*parts: Window) -> Window:
    """Return the rows of all parts as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for name, first in parts[0][0].items():
        own = [one[0][name] for one in parts]
        columns[name] = sp.vstack(own, format="csr") if sp.issparse(first) else np.concatenate(own)
    if all(weights is None for _, weights in parts):
        return columns, None
    lengths = [next(iter(own.values())).shape[0] for own, _ in parts]
    every = [np.ones(n) if one[1] is None else one[1] for n, one in zip(lengths, parts, strict=True)]
    return columns, np.concatenate(every)


def size_of_window(window: Window) -> tuple[int, float]:
    """Return the rows of a window and the sum of their weights."""
    columns, weights = window
    n_rows = next(iter(columns.values())).shape[0]
    return n_rows, float(n_rows if weights is None else weights.sum(dtype=np.float64))
