"""Leaves of the trees in attributes of ai.onnx.ml, and their weights.

Leaves are numbered over all trees, in the order of the attributes. Each weight belongs to one leaf and one target. The
splits are not read: the operator itself finds the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .context import RewrittenNode


@dataclass(frozen=True)
class Forest:
    """The leaves of an ensemble.

    Attributes
    ----------
    leaves, trees, targets : int
        Their numbers; a target of a classifier is a class.
    tree_of : array of int
        The tree of each leaf, counted from zero.
    places : array, (leaves, 2)
        Tree id and node id of each leaf.
    leaf, target, value : arrays of one entry per weight
        The weights, in the order of the attributes.
    only : int
        The target in the attributes, where there is one column for it; else 0.
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
    modes, trees, ids = list(r.attribute("nodes_modes", ())), r.ints("nodes_treeids"), r.ints("nodes_nodeids")
    if not modes or not len(modes) == trees.size == ids.size:
        r.refuse("its lists of nodes are empty or of different lengths")
    ends = np.array([mode == "LEAF" for mode in modes])
    places = np.stack([trees, ids], axis=1)[ends]
    names, tree_of = np.unique(places[:, 0], return_inverse=True)
    number = {place: i for i, place in enumerate(map(tuple, places.tolist()))}
    spoken = zip(r.ints(f"{weights}_treeids").tolist(), r.ints(f"{weights}_nodeids").tolist(), strict=True)
    leaf = np.array([number.get(place, -1) for place in spoken], np.int64)
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
    roots, own = r.ints("tree_roots"), np.arange(value.size)
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
