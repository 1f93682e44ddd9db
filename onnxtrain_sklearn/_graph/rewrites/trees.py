"""Rewriting rules: ensembles of trees. The splits are frozen, the numbers of the leaves may be trained.

All trees walk down together, one level at a time: a table per property of a node, and a matrix of one node per row of X
and tree. What the walk ends on is an index of leaves, and their numbers are gathered: they are parameters, the walk is
off the gradient's path. NaN compares as false, unless its node sends it the way of true.

``leaf_values`` has one of three shapes: (leaves,) where each tree speaks for one target, (leaves, targets) where each
leaf has a number for every target, and (weights,) in the order of the attributes otherwise. The ``places`` of its
:class:`Role` tell tree id, node id and target of each number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ..builder import GraphBuilder
from . import scores
from .forest import LEAF, MODES, Forest, read_forest, read_forest_5
from .source import INT64, Rule, Source, Thunk

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _regressor(r: Source) -> Sequence[Thunk]:
    forest = read_forest(r, "target", int(r.attribute("n_targets", 1)))
    aggregate = str(r.attribute("aggregate_function", "SUM"))
    return (lambda: _finished(r, _aggregated(r, forest, aggregate), forest.targets),)


def _ensemble(r: Source) -> Sequence[Thunk]:
    forest = read_forest_5(r)
    aggregate = _AGGREGATES[int(r.attribute("aggregate_function", 1))]
    return (lambda: _finished(r, _aggregated(r, forest, aggregate), forest.targets),)


def _finished(r: Source, total: ir.Value, targets: int) -> ir.Value:
    """Add the base values, of which onnxruntime wants one for each target."""
    base = r.floats("base_values")
    if base.size == targets:
        total = r.op.Add(total, r.parameter("base_values", base))
    return scores.transformed(r, total) if targets > 1 else scores.untransformed(r, total)


def _classifier(r: Source) -> Sequence[Thunk]:
    labels = r.labels("classlabels_int64s")
    forest, base = read_forest(r, "class", len(labels)), r.floats("base_values")
    spoken = np.unique(forest.target)
    if len(labels) == 2 and len(spoken) == 1:
        return _one_score(r, forest, base, labels)
    if len(labels) < 2 or base.size not in (0, len(labels)) or (len(labels) == 2 and base.size):
        r.refuse(f"onnxruntime is vague about its {base.size} base_values for {len(labels)} classes")
    raw = functools.cache(lambda: _with_base(r, _aggregated(r, forest, "SUM"), base))
    return lambda: _label(r, forest, raw(), labels), lambda: scores.transformed(r, raw())


def _one_score(r: Source, forest: Forest, base: np.ndarray, labels: np.ndarray) -> Sequence[Thunk]:
    """Two classes, and leaves that speak for one of them only: s is a probability where no leaf is negative.

    Leaves that speak for the first class mean the second one; those that do speak for the second have no base value.
    """
    if base.size > 1:
        r.refuse(f"onnxruntime is vague about its {base.size} base_values for two classes and a single score")
    second = forest.target[0] == 1
    base = base[:0] if second else base
    forest = replace(forest, targets=1, target=0 * forest.target)
    raw = functools.cache(lambda: _with_base(r, _aggregated(r, forest, "SUM"), base))
    positive = bool((forest.value >= 0).all())
    finish = _beside_zero if second else scores.complement if positive else scores.both_signs
    return lambda: scores.beyond(r, raw(), 0.5 if positive else 0.0, labels), lambda: finish(r, raw())


def _beside_zero(r: Source, score: ir.Value) -> ir.Value:
    """Return the score of the second class beside that of the first, which nothing speaks for."""
    return scores.transformed(r, r.op.Concat(r.op.Mul(score, 0.0), score, axis=1))


def _with_base(r: Source, total: ir.Value, base: np.ndarray) -> ir.Value:
    return r.op.Add(total, r.parameter("base_values", base)) if base.size else total


def _label(r: Source, forest: Forest, raw: ir.Value, labels: np.ndarray) -> ir.Value:
    if len(labels) == 2:  # onnxruntime gives 0 and 1, whatever the labels are
        if labels.dtype == object:
            r.refuse("its labels are strings, and onnxruntime knows only 0 and 1 here")
        return scores.beyond(r, r.op.Gather(raw, np.array([1]), axis=1), 0.0, np.array([0, 1]))
    always = [_speaks_always(forest, target) for target in range(forest.targets)]
    if not all(always) and not r.floats("base_values").size:
        r.refuse("its label passes over classes that no leaf on the way speaks for")
    return scores.largest(r, raw, labels)


def _speaks_always(forest: Forest, target: int) -> bool:
    """Whether one of the trees has a weight for ``target`` in each of its leaves."""
    heard = np.isin(np.arange(forest.leaves), forest.leaf[forest.target == target])
    return len(np.unique(forest.tree_of[~heard])) < len(forest.roots)


def _aggregated(r: Source, forest: Forest, aggregate: str) -> ir.Value:
    """Return the numbers of the leaves that the rows end on, put together over the trees: (rows, targets)."""
    op, leaf = r.op, _leaves(r, forest)
    layout = _layout(r, forest, aggregate)
    if layout.table is not None:  # (rows, trees, targets)
        return _reduced(r, op.Gather(layout.table, leaf, axis=0), aggregate, len(forest.roots), keepdims=False)
    numbers = op.Gather(layout.values, leaf, axis=0)
    if forest.targets == 1:
        return _reduced(r, numbers, aggregate, len(forest.roots), keepdims=True)
    if aggregate in ("MIN", "MAX"):
        r.refuse(f"aggregate_function {aggregate} of trees that speak for different targets is not known here")
    speaks = np.zeros((len(forest.roots), forest.targets), np.float32)
    speaks[forest.tree_of[forest.leaf], forest.target] = 1
    total = op.MatMul(numbers, speaks)
    return op.Div(total, np.float32(len(forest.roots))) if aggregate == "AVERAGE" else total


def _reduced(r: Source, numbers: ir.Value, aggregate: str, trees: int, *, keepdims: bool) -> ir.Value:
    if aggregate in ("MIN", "MAX"):
        reduce = r.op.ReduceMin if aggregate == "MIN" else r.op.ReduceMax
        return reduce(numbers, axes=[1], keepdims=keepdims)
    if aggregate not in _AGGREGATES:
        r.refuse(f"aggregate_function {aggregate!r} is none of {', '.join(_AGGREGATES)}")
    total = r.op.ReduceSum(numbers, axes=[1], keepdims=keepdims)
    return r.op.Div(total, np.float32(trees)) if aggregate == "AVERAGE" else total


@dataclass(frozen=True)
class _Layout:
    """The numbers of the leaves: a vector of one each, or a table of one row each."""

    values: ir.Value
    table: ir.Value | None


def _layout(r: Source, forest: Forest, aggregate: str) -> _Layout:
    place = np.concatenate([forest.places[forest.leaf], forest.target[:, None]], axis=1)
    cell = forest.leaf * forest.targets + forest.target
    if not cell.size or len(np.unique(cell)) < cell.size:
        r.refuse("it has no numbers in its leaves, or two for the same leaf and target")
    order = np.argsort(cell)
    if cell.size == forest.leaves and _one_target_a_tree(forest):
        return _Layout(r.parameter("leaf_values", forest.value[order], place[order]), None)
    if cell.size == forest.leaves * forest.targets:
        shape = (forest.leaves, forest.targets)
        table = r.parameter("leaf_values", forest.value[order].reshape(shape), place[order].reshape(*shape, 3))
        return _Layout(table, table)
    if aggregate in ("MIN", "MAX"):
        r.refuse(f"aggregate_function {aggregate} of leaves that have no number for some targets is not known here")
    values = r.parameter("leaf_values", forest.value, place)
    return _Layout(values, _sparse(r, forest, values, cell))


def _one_target_a_tree(forest: Forest) -> bool:
    """Whether each leaf has one number, and the leaves of a tree have it for the same target."""
    pairs = np.unique(np.stack([forest.tree_of[forest.leaf], forest.target]), axis=1)
    return pairs.shape[1] == len(forest.roots) and len(np.unique(forest.leaf)) == forest.leaves


def _sparse(r: Source, forest: Forest, values: ir.Value, cell: np.ndarray) -> ir.Value:
    """Return the table in which what has no number is a zero that is not trained."""
    places = np.full(forest.leaves * forest.targets, cell.size)
    places[cell] = np.arange(cell.size)
    padded = r.op.Concat(values, np.zeros(1, np.float32), axis=0)
    return r.op.Gather(padded, places.reshape(forest.leaves, forest.targets), axis=0)


def _leaves(r: Source, forest: Forest) -> ir.Value:
    """Return the leaf of each row in each tree, (rows, trees)."""
    op, x = r.op, r.input()
    r.need_rank(x, 2)
    if x.dtype is not ir.DataType.DOUBLE:
        x = r.float_input()
    threshold = forest.threshold.astype((x.dtype or ir.DataType.FLOAT).numpy())
    if not forest.depth:
        rows = op.Gather(op.Shape(x), np.array([0]), axis=0)
        return op.Expand(forest.roots[None, :], op.Concat(rows, np.array([len(forest.roots)]), axis=0))
    node: ir.Value | np.ndarray = forest.roots[None, :]
    value = op.Gather(x, forest.feature[forest.roots], axis=1)
    for level in range(forest.depth):
        if level:
            value = op.GatherElements(x, op.Gather(forest.feature, node, axis=0), axis=1)
        went_true = _compared(op, forest, value, node, threshold)
        node = op.Where(went_true, _look_up(op, forest.true, node), _look_up(op, forest.false, node))
    assert isinstance(node, ir.Value)
    return node


def _look_up(op: GraphBuilder, table: np.ndarray, node: ir.Value | np.ndarray) -> ir.Value | np.ndarray:
    """Return the entries of a table of nodes; those of the roots are known before any row is."""
    return table[node] if isinstance(node, np.ndarray) else op.Gather(table, node, axis=0)


def _compared(
    op: GraphBuilder, forest: Forest, value: ir.Value, node: ir.Value | np.ndarray, threshold: np.ndarray
) -> ir.Value:
    """Return whether the rows go the way of true at their nodes."""
    modes, limit = set(forest.mode.tolist()) - {LEAF}, _look_up(op, threshold, node)
    if len(modes) == 1:
        result = _comparison(op, MODES[modes.pop()], value, limit)
    else:  # the outcome of the comparison, 0 for NaN, picks from a table of modes
        order = [op.Cast(compare(value, limit), to=INT64) for compare in (op.Less, op.Equal, op.Greater)]
        outcome = op.Add(op.Add(order[0], op.Mul(order[1], 2)), op.Mul(order[2], 3))
        place = op.Add(op.Mul(_as_value(op, _look_up(op, forest.mode, node)), 4), outcome)
        result = op.Gather(_TRUE_WHERE.ravel(), place, axis=0)
    if not forest.missing.any():
        return result
    lost = op.And(op.IsNaN(value), _as_value(op, _look_up(op, forest.missing, node)))
    return op.Or(result, lost)


def _as_value(op: GraphBuilder, table: ir.Value | np.ndarray) -> ir.Value:
    return op.constant(table) if isinstance(table, np.ndarray) else table


def _comparison(op: GraphBuilder, mode: str, value: ir.Value, limit: ir.Value | np.ndarray) -> ir.Value:
    if mode == "BRANCH_NEQ":
        return op.Not(op.Equal(value, limit))
    return op.emit(_OPERATORS[mode], value, limit)[0]


_OPERATORS = {
    "BRANCH_LEQ": "LessOrEqual",
    "BRANCH_LT": "Less",
    "BRANCH_GTE": "GreaterOrEqual",
    "BRANCH_GT": "Greater",
    "BRANCH_EQ": "Equal",
}
# Rows: the modes, and a leaf, whose children are itself. Columns: not comparable, less, equal, greater.
_TRUE_WHERE = np.array(
    [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]], bool
)

RULES: dict[tuple[str, str], Rule] = {
    ("ai.onnx.ml", "TreeEnsemble"): _ensemble,
    ("ai.onnx.ml", "TreeEnsembleClassifier"): _classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): _regressor,
}
