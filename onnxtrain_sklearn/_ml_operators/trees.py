"""Rewrite tree ensembles so that the values of their leaves are parameters; the splits are frozen.

The operator itself stays, as it is fast, but only to find the leaf of each row in each tree: its weights become the
numbers of the leaves (:func:`_leaf_indices`). It is not on the path of the gradient. The values of the leaves are a
parameter, from which these numbers gather.

``leaf_values`` has one of three shapes: (leaves,) if each tree has one target, (leaves, targets) if each leaf has a
number for every target, and (weights,) in the order of the attributes otherwise. The ``places`` of its :class:`Role`
tell the tree id, node id and target of each number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph import INT64
from . import linear
from .rewritten_node import LazyValue, RewriteRule, RewrittenNode

# Leaves in the attributes.
#
# Leaves are numbered over all trees, in the order of the attributes. Each weight belongs to one leaf and one target.


@dataclass(frozen=True)
class Forest:
    """The leaves of an ensemble.

    Attributes
    ----------
    leaves, trees, targets : int
        How many there are; a target of a classifier is a class.
    tree_of : array of int
        The tree of each leaf, counted from zero.
    places : array, (leaves, 2)
        Tree id and node id of each leaf.
    leaf, target, value : arrays of one entry per weight
        The weights, in the order of the attributes.
    only : int
        For a single column of scores, its target in the attributes; else 0.
    """

    leaves: int
    trees: int
    targets: int
    tree_of: np.ndarray
    places: np.ndarray
    leaf: np.ndarray
    target: np.ndarray
    value: np.ndarray
    only: int = 0


def read_forest(r: RewrittenNode, weights: str, targets: int) -> Forest:
    """Return the leaves of a TreeEnsembleRegressor or TreeEnsembleClassifier, whose weights are named ``weights``."""
    modes = list(r.attribute("nodes_modes", ()))
    trees = r.ints("nodes_treeids")
    ids = r.ints("nodes_nodeids")
    if not modes or not len(modes) == trees.size == ids.size:
        r.refuse("its lists of nodes are empty or of different lengths")
    ends = np.array([mode == "LEAF" for mode in modes])
    places = np.stack([trees, ids], axis=1)[ends]
    names, tree_of = np.unique(places[:, 0], return_inverse=True)
    number = {place: i for i, place in enumerate(map(tuple, places.tolist()))}
    weighted = zip(r.ints(f"{weights}_treeids").tolist(), r.ints(f"{weights}_nodeids").tolist(), strict=True)
    leaf = np.array([number.get(place, -1) for place in weighted], np.int64)
    known = leaf >= 0  # weights of other nodes are ignored
    return Forest(
        leaves=len(places),
        trees=len(names),
        targets=targets,
        tree_of=tree_of.ravel(),
        places=places,
        leaf=leaf[known],
        target=r.ints(f"{weights}_ids")[known],
        value=r.floats(f"{weights}_weights")[known],
    )


def read_forest_5(r: RewrittenNode) -> Forest:
    """Return the leaves of a TreeEnsemble (version 5), which have lists of their own and one weight each."""
    weights = r.attribute("leaf_weights")
    value = r.refuse("it has no leaf_weights") if weights is None else weights.numpy().ravel()
    roots = r.ints("tree_roots")
    own = np.arange(value.size)
    tree_of = _tree_of(r, roots, value.size)
    return Forest(
        leaves=value.size,
        trees=roots.size,
        targets=int(r.attribute("n_targets", 1)),
        tree_of=tree_of,
        places=np.stack([tree_of, own], axis=1),
        leaf=own,
        target=r.ints("leaf_targetids"),
        value=value,
    )


def _tree_of(r: RewrittenNode, roots: np.ndarray, leaves: int) -> np.ndarray:
    """Return the tree of each leaf, found from the roots."""
    result = np.zeros(leaves, np.int64)
    sides = [(r.ints(f"nodes_{side}nodeids"), r.ints(f"nodes_{side}leafs")) for side in ("true", "false")]
    for tree, root in enumerate(roots.tolist()):
        front, seen = [root], set[int]()
        while front:
            node = front.pop()
            if node in seen:
                r.refuse("one of its trees has two paths to a node")
            seen.add(node)
            for children, is_leaf in sides:
                if is_leaf[node]:
                    result[children[node]] = tree
                else:
                    front.append(int(children[node]))
    return result


# Rules.


_COUNTABLE = 2**24  # float32 holds every integer below it
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _tree_regressor(r: RewrittenNode) -> Sequence[LazyValue]:
    if r.node.op_type == "TreeEnsemble":
        forest = read_forest_5(r)
        aggregate = _AGGREGATES[int(r.attribute("aggregate_function", 1))]
    else:
        forest = read_forest(r, "target", int(r.attribute("n_targets", 1)))
        aggregate = str(r.attribute("aggregate_function", "SUM"))

    def predictions() -> ir.Value:
        total = _aggregated(r, forest, aggregate)
        base = r.floats("base_values")
        if base.size == forest.targets:  # otherwise onnxruntime does not use them
            total = r.op.Add(total, r.parameter("base_values", base))
        return linear.transformed(r, total) if forest.targets > 1 else linear.untransformed(r, total)

    return (predictions,)


def _tree_classifier(r: RewrittenNode) -> Sequence[LazyValue]:
    labels = r.labels("classlabels_int64s")
    forest = read_forest(r, "class", len(labels))
    base = r.floats("base_values")
    if len(labels) == 2 and len(np.unique(forest.target)) == 1:
        return _one_score(r, forest, base, labels)
    if len(labels) < 2 or base.size not in (0, len(labels)) or (len(labels) == 2 and base.size):
        r.refuse(f"onnxruntime is vague about its {base.size} base_values for {len(labels)} classes")
    raw = functools.cache(lambda: _with_base(r, _aggregated(r, forest, "SUM"), base))
    one_class_a_leaf = len(forest.leaf) == forest.leaves == len(np.unique(forest.leaf))
    if len(labels) > 2 and not base.size and forest.trees == 1 and one_class_a_leaf:

        def class_of_leaf() -> ir.Value:
            """Return the only class with a weight in the leaf of each row, however small the weight is."""
            known = np.empty(forest.leaves, np.int64)
            known[forest.leaf] = forest.target
            number = r.op.Gather(known, r.op.Reshape(_leaf_indices(r, forest), np.array([-1])))
            return linear.selected_labels(r, number, labels)

        return class_of_leaf, lambda: linear.transformed(r, raw())
    return lambda: _leaf_label(r, forest, raw(), labels), lambda: linear.transformed(r, raw())


def _one_score(r: RewrittenNode, forest: Forest, base: np.ndarray, labels: np.ndarray) -> Sequence[LazyValue]:
    """Two classes, and leaves with one target: the score is a probability if no leaf is negative.

    As in onnxruntime, leaves of the first class count for the second one, and those of the second have no base value.
    """
    if base.size > 1:
        r.refuse(f"onnxruntime is vague about its {base.size} base_values for two classes and a single score")
    second = int(forest.target[0])
    base = base[:0] if second else base
    forest = replace(forest, targets=1, target=0 * forest.target, only=second)
    raw = functools.cache(lambda: _with_base(r, _aggregated(r, forest, "SUM"), base))
    positive = bool((forest.value >= 0).all())

    def columns() -> ir.Value:
        if second:  # the score of the first class is zero
            return linear.transformed(r, r.op.Concat(r.op.Mul(raw(), 0.0), raw(), axis=1))
        return linear.complement(r, raw()) if positive else linear.both_signs(r, raw())

    return lambda: linear.label_above(r, raw(), 0.5 if positive else 0.0, labels), columns


def _with_base(r: RewrittenNode, total: ir.Value, base: np.ndarray) -> ir.Value:
    return r.op.Add(total, r.parameter("base_values", base)) if base.size else total


def _leaf_label(r: RewrittenNode, forest: Forest, raw: ir.Value, labels: np.ndarray) -> ir.Value:
    if len(labels) == 2:  # onnxruntime gives 0 and 1, whatever the labels are
        if labels.dtype == object:
            r.refuse("its labels are strings, and onnxruntime knows only 0 and 1 here")
        return linear.label_above(r, r.op.Gather(raw, np.array([1]), axis=1), 0.0, np.array([0, 1]))
    # A class always has a weight if one of the trees has a weight for it in each of its leaves.
    without = (~np.isin(np.arange(forest.leaves), forest.leaf[forest.target == k]) for k in range(forest.targets))
    always = all(len(np.unique(forest.tree_of[leaves])) < forest.trees for leaves in without)
    if not always and not r.floats("base_values").size:
        r.refuse("its label ignores classes without a weight in the leaves of a row")
    return linear.largest(r, raw, labels)


def _aggregated(r: RewrittenNode, forest: Forest, aggregate: str) -> ir.Value:
    """Return the values of the leaves of each row, aggregated over the trees: (rows, targets)."""
    op, leaf = r.op, _leaf_indices(r, forest)
    layout = _leaf_layout(r, forest, aggregate)
    if layout.table is not None:  # (rows, trees, targets)
        return _aggregate_trees(r, op.Gather(layout.table, leaf, axis=0), aggregate, forest.trees, keepdims=False)
    numbers = op.Gather(layout.values, leaf, axis=0)
    if forest.targets == 1:
        return _aggregate_trees(r, numbers, aggregate, forest.trees, keepdims=True)
    if aggregate in ("MIN", "MAX"):
        r.refuse(f"aggregate_function {aggregate} of trees with different targets is not supported")
    has_target = np.zeros((forest.trees, forest.targets), r.number_type)
    has_target[forest.tree_of[forest.leaf], forest.target] = 1
    total = op.MatMul(numbers, has_target)
    return op.Div(total, r.number_type(forest.trees)) if aggregate == "AVERAGE" else total


def _aggregate_trees(r: RewrittenNode, numbers: ir.Value, aggregate: str, trees: int, *, keepdims: bool) -> ir.Value:
    if aggregate in ("MIN", "MAX"):
        reduce = r.op.ReduceMin if aggregate == "MIN" else r.op.ReduceMax
        return reduce(numbers, axes=[1], keepdims=keepdims)
    if aggregate not in _AGGREGATES:
        r.refuse(f"aggregate_function {aggregate!r} is none of {', '.join(_AGGREGATES)}")
    total = r.op.ReduceSum(numbers, axes=[1], keepdims=keepdims)
    return r.op.Div(total, r.number_type(trees)) if aggregate == "AVERAGE" else total


@dataclass(frozen=True)
class _Layout:
    """The values of the leaves: a vector with one number per leaf, or a table with one row per leaf."""

    values: ir.Value
    table: ir.Value | None


def _leaf_layout(r: RewrittenNode, forest: Forest, aggregate: str) -> _Layout:
    place = np.concatenate([forest.places[forest.leaf], forest.only + forest.target[:, None]], axis=1)
    cell = forest.leaf * forest.targets + forest.target
    if cell.size and not 0 <= forest.target.min() <= forest.target.max() < forest.targets:
        r.refuse(f"it has leaves for target {forest.target.max()} of {forest.targets}")
    if not cell.size or len(np.unique(cell)) < cell.size:
        r.refuse("it has no numbers in its leaves, or two for the same leaf and target")
    order = np.argsort(cell)
    # A vector suffices if each leaf has one weight, and all leaves of a tree have the same target.
    tree_targets = np.unique(np.stack([forest.tree_of[forest.leaf], forest.target]), axis=1)
    one_a_leaf = cell.size == forest.leaves == len(np.unique(forest.leaf))
    if one_a_leaf and tree_targets.shape[1] == forest.trees:
        return _Layout(r.parameter("leaf_values", forest.value[order], place[order]), None)
    # A table does if each leaf has a weight for each target; otherwise zeros, which are not trained, fill one up.
    if cell.size == forest.leaves * forest.targets:
        shape = (forest.leaves, forest.targets)
        table = r.parameter("leaf_values", forest.value[order].reshape(shape), place[order].reshape(*shape, 3))
        return _Layout(table, table)
    if aggregate in ("MIN", "MAX"):
        r.refuse(f"aggregate_function {aggregate} of leaves without a weight for some targets is not supported")
    values = r.parameter("leaf_values", forest.value, place)
    return _Layout(values, _sparse(r, forest, values, cell))


def _sparse(r: RewrittenNode, forest: Forest, values: ir.Value, cell: np.ndarray) -> ir.Value:
    """Return the table with zeros, which are not trained, for missing weights."""
    places = np.full(forest.leaves * forest.targets, cell.size)
    places[cell] = np.arange(cell.size)
    padded = r.op.Concat(values, np.zeros(1, r.number_type), axis=0)
    return r.op.Gather(padded, places.reshape(forest.leaves, forest.targets), axis=0)


def _leaf_indices(r: RewrittenNode, forest: Forest) -> ir.Value:
    """Return the number of the leaf of each row in each tree, (rows, trees), found by the operator.

    It gets one target per tree, and the number of each leaf as its weight, which float32 holds exactly. It is twenty
    times as fast as rounds of Gather, and compares with the thresholds exactly as before.
    """
    if forest.leaves > _COUNTABLE:
        r.refuse(f"float32 cannot number its {forest.leaves} leaves")
    r.need_rank(r.input(), 2)
    operator = "TreeEnsembleRegressor" if r.node.op_type == "TreeEnsembleClassifier" else r.node.op_type
    x = r.input() if r.input().dtype is ir.DataType.DOUBLE else r.float_input()
    nodes = {n: a.value for n, a in r.node.attributes.items() if n.startswith("nodes_") or n == "tree_roots"}
    numbers = np.arange(forest.leaves)
    own = dict[str, Any](n_targets=forest.trees)
    if r.node.op_type == "TreeEnsemble":
        weights = ir.tensor(numbers.astype(nodes["nodes_splits"].dtype.numpy()))
        own |= {"leaf_targetids": forest.tree_of.tolist(), "leaf_weights": weights}
    else:
        own |= {"target_treeids": forest.places[:, 0].tolist(), "target_nodeids": forest.places[:, 1].tolist()}
        own |= {"target_ids": forest.tree_of.tolist()}
        if "nodes_values_as_tensor" in nodes:
            own["target_weights_as_tensor"] = ir.tensor(numbers.astype(nodes["nodes_values_as_tensor"].dtype.numpy()))
        else:
            own["target_weights"] = numbers.astype(float).tolist()
    found = r.op.emit(operator, x, domain=r.node.domain, **nodes, **own)[0]
    found.dtype = ir.DataType.from_numpy(np.dtype(r.number_type))
    return r.op.Reshape(r.op.Cast(found, to=INT64), np.array([-1, forest.trees]))


RULES: dict[tuple[str, str], RewriteRule] = {
    ("ai.onnx.ml", "TreeEnsemble"): _tree_regressor,
    ("ai.onnx.ml", "TreeEnsembleClassifier"): _tree_classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): _tree_regressor,
}
