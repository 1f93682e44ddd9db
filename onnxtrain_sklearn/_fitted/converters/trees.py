"""Trees as attributes of the operators of ai.onnx.ml, for converters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._support.typing import Estimator


def branches(trees: Sequence[Estimator], features: Sequence[np.ndarray] | None = None) -> dict[str, Any]:
    """Return the attributes of the nodes of some trees; ``features`` are the columns that each was given."""
    columns: dict[str, list[Any]] = {}
    for i, tree in enumerate(trees):
        leaf, numbers = tree.children_left < 0, np.arange(tree.node_count)
        feature = np.maximum(tree.feature, 0)
        values = {
            "featureids": np.where(leaf, 0, feature if features is None else np.asarray(features[i])[feature]),
            "falsenodeids": np.where(leaf, 0, tree.children_right),
            "missing_value_tracks_true": np.asarray(tree.missing_go_to_left, int),
            "modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
            "nodeids": numbers,
            "treeids": np.full(len(numbers), i),
            "truenodeids": np.where(leaf, 0, tree.children_left),
            "values": not_above(np.where(leaf, 0.0, tree.threshold)),
        }
        for name, array in values.items():
            columns.setdefault(f"nodes_{name}", []).extend(array.tolist())
    return columns


def leaves(trees: Sequence[Estimator]) -> list[np.ndarray]:
    """Return the numbers of the nodes that are leaves, tree by tree."""
    return [np.flatnonzero(tree.children_left < 0) for tree in trees]


def not_above(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above each threshold: it tells the same float32 numbers apart."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
