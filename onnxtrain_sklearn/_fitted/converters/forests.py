"""Converters of decision trees and forests, whose leaves hold numbers, or a probability for each class of each output.

The probabilities of two classes are one number per leaf, that of the second class. Labels of several outputs are
stand-ins: labels are made of the scores where predictions are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier, ExtraTreeRegressor

from ..._graph.cast_types import INT64
from ..._support.typing import Estimator
from .context import Converter, Source, several_labels
from .trees import branches, leaves, leaves_of, tree_sum


def _forest_regressor(s: Source) -> Sequence[ir.Value]:
    return (_mean_of_trees(s, [tree.value[:, :, 0] for tree in _trees(s.estimator)]),)


def _forest_classifier(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    sizes = np.atleast_1d(model.n_classes_)
    shares = [_probabilities(tree, sizes) for tree in _trees(model)]
    if several_labels(model):
        joined = _mean_of_trees(s, shares)
        return op.Cast(joined, to=INT64), joined
    if len(model.classes_) == 2:
        p = _mean_of_trees(s, [share[:, 1:] for share in shares])
        both = op.Concat(op.Sub(1.0, p), p, axis=1)
        return s.chosen(both), both
    mean = _mean_of_trees(s, shares)
    return s.chosen(mean), mean


def _mean_of_trees(s: Source, values: Sequence[np.ndarray]) -> ir.Value:
    """Return the mean over trees of what the leaves hold; ``values`` has a row for each node."""
    trees = _trees(s.estimator)
    ends = leaves(trees)
    weights = [value[own] / len(trees) for value, own in zip(values, ends, strict=True)]
    return tree_sum(s, branches(trees), leaves_of(ends, weights))


def _trees(model: Estimator) -> list[Estimator]:
    return [one.tree_ for one in getattr(model, "estimators_", [model])]


def _probabilities(tree: Estimator, n_classes: np.ndarray) -> np.ndarray:
    """Return what each node of a tree holds for the classes of each output in turn; they add up to one an output."""
    parts = [tree.value[:, i, :n] for i, n in enumerate(n_classes)]
    return np.concatenate([part / part.sum(axis=1, keepdims=True) for part in parts], axis=1)


CONVERTERS: dict[type, Converter] = {
    DecisionTreeClassifier: Converter(_forest_classifier),
    DecisionTreeRegressor: Converter(_forest_regressor),
    ExtraTreeClassifier: Converter(_forest_classifier),
    ExtraTreeRegressor: Converter(_forest_regressor),
    ExtraTreesClassifier: Converter(_forest_classifier),
    ExtraTreesRegressor: Converter(_forest_regressor),
    RandomForestClassifier: Converter(_forest_classifier),
    RandomForestRegressor: Converter(_forest_regressor),
}
