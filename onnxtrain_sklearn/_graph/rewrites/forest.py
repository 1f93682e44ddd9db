"""Trees as the attributes of ai.onnx.ml hold them, read into arrays that all trees share.

Nodes are numbered over all trees, leaves first: number l < ``leaves`` is leaf l, in the order of the attributes. A leaf
is its own child, so that a walk of ``depth`` steps ends on the right leaf however short its path is. The numbers of the
leaves come as a list of weights, each of one leaf and one target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .source import Source

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEAF = len(MODES)


@dataclass(frozen=True)
class Forest:
    """Trees of an operator.

    Attributes
    ----------
    feature, threshold, mode, missing : arrays of one entry per node
        The comparison, a position in :data:`MODES` or :data:`LEAF`, and whether NaN goes the way of true.
    true, false : arrays of int
        The children of each node; a leaf's are itself.
    roots : array of int
        The root of each tree.
    leaves : int
        Number of leaves.
    depth : int
        Length of the longest path from a root to a leaf.
    tree_of : array of int
        The position of its tree among ``roots``, for each leaf.
    places : array, (leaves, 2)
        Tree id and node id of each leaf.
    leaf, target, value : arrays of one entry per weight
        The weights of the leaves, in the order of the attributes.
    targets : int
        Number of targets or classes.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    missing: np.ndarray
    true: np.ndarray
    false: np.ndarray
    roots: np.ndarray
    leaves: int
    depth: int
    tree_of: np.ndarray
    places: np.ndarray
    leaf: np.ndarray
    target: np.ndarray
    value: np.ndarray
    targets: int


def read_forest(r: Source, weights: str, targets: int) -> Forest:
    """Return the trees of a TreeEnsembleRegressor or TreeEnsembleClassifier, whose weights are named ``weights``."""
    mode, trees, ids = _modes(r), r.ints("nodes_treeids"), r.ints("nodes_nodeids")
    if not mode.size or not mode.size == trees.size == ids.size:
        r.refuse("its lists of nodes are empty or of different lengths")
    order = np.argsort(mode != LEAF, kind="stable")
    leaves, number = int((mode == LEAF).sum()), np.argsort(order)
    find = _finder(r, trees[order], ids[order])
    true, false = np.arange(mode.size), np.arange(mode.size)
    inner = order[leaves:]
    true[leaves:] = find(trees[inner], r.ints("nodes_truenodeids")[inner])
    false[leaves:] = find(trees[inner], r.ints("nodes_falsenodeids")[inner])
    leaf = find(r.ints(f"{weights}_treeids"), r.ints(f"{weights}_nodeids"))
    reached = leaf < leaves  # weights of other nodes count for nothing
    names, first = np.unique(trees, return_index=True)
    missing = r.ints("nodes_missing_value_tracks_true")
    return Forest(
        feature=r.ints("nodes_featureids")[order],
        threshold=r.floats("nodes_values")[order],
        mode=mode[order],
        missing=missing[order] != 0 if missing.size else np.zeros(mode.size, bool),
        true=true,
        false=false,
        roots=number[first],
        leaves=leaves,
        depth=_depth(r, true, false, number[first], leaves),
        tree_of=np.searchsorted(names, trees[order][:leaves]),
        places=np.stack([trees, ids], axis=1)[order][:leaves],
        leaf=leaf[reached],
        target=r.ints(f"{weights}_ids")[reached],
        value=r.floats(f"{weights}_weights")[reached],
        targets=targets,
    )


def read_forest_5(r: Source) -> Forest:
    """Return the trees of a TreeEnsemble, which came with version 5: leaves stand apart, and have one weight each."""
    value, split = (_tensor(r, name) for name in ("leaf_weights", "nodes_splits"))
    mode, roots, leaves = _tensor(r, "nodes_modes").astype(np.int64), r.ints("tree_roots"), value.size
    if (mode > MODES.index("BRANCH_NEQ")).any():
        r.refuse("its mode BRANCH_MEMBER is not known here")
    own = np.arange(leaves)
    children = [
        np.where(r.ints(f"nodes_{side}leafs") != 0, ids := r.ints(f"nodes_{side}nodeids"), leaves + ids)
        for side in ("true", "false")
    ]
    true, false = (np.concatenate([own, child]) for child in children)
    missing = r.ints("nodes_missing_value_tracks_true")
    tree_of = _tree_of(r, true, false, leaves + roots, leaves)
    return Forest(
        feature=np.concatenate([0 * own, r.ints("nodes_featureids")]),
        threshold=np.concatenate([np.zeros(leaves, split.dtype), split]),
        mode=np.concatenate([np.full(leaves, LEAF), mode]),
        missing=np.concatenate([own < 0, missing != 0 if missing.size else mode < 0]),
        true=true,
        false=false,
        roots=leaves + roots,
        leaves=leaves,
        depth=_depth(r, true, false, leaves + roots, leaves),
        tree_of=tree_of,
        places=np.stack([tree_of, own], axis=1),
        leaf=own,
        target=r.ints("leaf_targetids"),
        value=value,
        targets=int(r.attribute("n_targets", 1)),
    )


def _modes(r: Source) -> np.ndarray:
    known = {name: i for i, name in enumerate((*MODES, "LEAF"))}
    names = [str(name) for name in r.attribute("nodes_modes", ())]
    odd = next((name for name in names if name not in known), None)
    return r.refuse(f"its mode {odd!r} is not known here") if odd else np.array([known[n] for n in names], np.int64)


def _tensor(r: Source, name: str) -> np.ndarray:
    tensor = r.attribute(name)
    return r.refuse(f"it has no {name}") if tensor is None else tensor.numpy().ravel()


def _finder(r: Source, trees: np.ndarray, ids: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function from tree ids and node ids to the positions of the nodes."""
    known = {place: i for i, place in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}

    def find(trees: np.ndarray, ids: np.ndarray) -> np.ndarray:
        wanted = list(zip(trees.tolist(), ids.tolist(), strict=True))
        lost = next((place for place in wanted if place not in known), None)
        if lost is not None:
            r.refuse(f"its tree {lost[0]} has no node {lost[1]}, which is asked for")
        return np.array([known[place] for place in wanted], np.int64)

    return find


def _depth(r: Source, true: np.ndarray, false: np.ndarray, roots: np.ndarray, leaves: int) -> int:
    level, depth = roots[roots >= leaves], 0
    while level.size:
        below = np.unique(np.concatenate([true[level], false[level]]))
        level, depth = below[below >= leaves], depth + 1
        if depth > len(true):
            r.refuse("one of its trees leads from a node back to itself")
    return depth


def _tree_of(r: Source, true: np.ndarray, false: np.ndarray, roots: np.ndarray, leaves: int) -> np.ndarray:
    """Return the tree of each leaf, walking down from the roots."""
    tree = np.full(len(true), -1)
    tree[roots] = np.arange(len(roots))
    for _ in range(_depth(r, true, false, roots, leaves)):
        for children in (true, false):
            inner = np.flatnonzero((tree >= 0) & (np.arange(len(true)) >= leaves))
            tree[children[inner]] = tree[inner]
    return tree[:leaves]
