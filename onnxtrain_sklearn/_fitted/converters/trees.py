"""Trees as attributes of the operators of ai.onnx.ml, for converters.

The operators walk through trees twenty times faster than operators of the default domain would, so that they are kept.
The numbers of their leaves become parameters where the graph is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..._support.typing import Estimator
from .context import Source

Attributes = dict[str, Any]


def tree_sum(s: Source, nodes: Attributes, leaves: Attributes, rows: ir.Value | None = None) -> ir.Value:
    """Return the sum of the trees' leaves, (rows, targets); ``rows`` are those of the estimator, unless given."""
    return s.ml_operator("TreeEnsembleRegressor", rows=rows, **nodes, **leaves)[0]


def branches(trees: Sequence[Estimator], features: Sequence[np.ndarray] | None = None) -> Attributes:
    """Return the attributes of the nodes of some trees; ``features`` are the columns that each was given."""
    columns = []
    for i, tree in enumerate(trees):
        feature = np.maximum(tree.feature, 0)
        columns.append(
            {
                "feature": feature if features is None else np.asarray(features[i])[feature],
                "is_leaf": tree.children_left < 0,
                "left": tree.children_left,
                "missing_go_to_left": tree.missing_go_to_left,
                "right": tree.children_right,
                "threshold": tree.threshold,
            }
        )
    return nodes_in(columns)


def nodes_in(trees: Sequence[dict[str, np.ndarray]]) -> Attributes:
    """Return the attributes of the nodes of some trees, each given as columns of one number per node."""
    sizes = [len(tree["is_leaf"]) for tree in trees]
    joined = {name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]}
    leaf = joined["is_leaf"].astype(bool)
    values = {
        "featureids": np.where(leaf, 0, joined["feature"]),
        "falsenodeids": np.where(leaf, 0, joined["right"]),
        "missing_value_tracks_true": np.asarray(joined["missing_go_to_left"], int),
        "modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
        "nodeids": np.concatenate([np.arange(size) for size in sizes]),
        "treeids": np.repeat(np.arange(len(trees)), sizes),
        "truenodeids": np.where(leaf, 0, joined["left"]),
        "values": not_above(np.where(leaf, 0.0, joined["threshold"])),
    }
    return {f"nodes_{name}": array.tolist() for name, array in values.items()}


def leaves_of(ends: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> Attributes:
    """Return the attributes of the leaves: their nodes and their weights, (leaves, targets), tree by tree."""
    targets, sizes = weights[0].shape[1], list(map(len, ends))
    return {
        "n_targets": targets,
        "target_treeids": np.repeat(np.arange(len(ends)), np.multiply(sizes, targets)).tolist(),
        "target_nodeids": np.repeat(np.concatenate(ends), targets).tolist(),
        "target_ids": np.tile(np.arange(targets), sum(sizes)).tolist(),
        "target_weights": np.concatenate(weights).ravel().astype(np.float32).tolist(),
    }


def leaves_of_targets(
    ends: Sequence[np.ndarray], weights: Sequence[np.ndarray], target_of: Sequence[int], targets: int
) -> Attributes:
    """Return the attributes of the leaves of trees that have one target each: one weight per leaf."""
    sizes = list(map(len, ends))
    attributes = leaves_of(ends, [np.reshape(one, (-1, 1)) for one in weights])
    return attributes | {"n_targets": targets, "target_ids": np.repeat(target_of, sizes).tolist()}


def leaves(trees: Sequence[Estimator]) -> list[np.ndarray]:
    """Return the numbers of the nodes that are leaves, tree by tree."""
    return [np.flatnonzero(tree.children_left < 0) for tree in trees]


def not_above(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above each threshold: it tells the same float32 numbers apart."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def float32_cuts(thresholds: np.ndarray) -> np.ndarray:
    """Return the float32 that splits float32 numbers as a threshold of float64 splits the numbers before rounding.

    A threshold may be a number of the data, which stays on the left: the nearest float32 is taken. Else it is halfway
    between two of them, and the upper one stays above also where they are neighbors as float32. A decimal halfway
    between two others may come out just above the threshold, by rounding in float64: it goes to the right.
    """
    thresholds = np.minimum(thresholds, np.finfo(np.float32).max)  # 1e300 sends missing values alone to the right
    below = not_above(thresholds)
    with np.errstate(over="ignore"):
        above = np.nextafter(below, np.float32(np.inf))
    nearest = np.where(above.astype(np.float64) - thresholds < thresholds - below.astype(np.float64), above, below)
    decimal = np.array([float(f"{threshold:.9g}") for threshold in thresholds])
    distance = decimal - thresholds
    just_above = (distance > 0) & (distance <= 2 * np.spacing(np.abs(thresholds))) & (below != thresholds)
    return np.where(just_above, np.nextafter(decimal.astype(np.float32), np.float32(-np.inf)), nearest)
