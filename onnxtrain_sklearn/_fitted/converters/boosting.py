"""Converters of gradient boosting: a start, and the sum of the trees' leaves.

The start is a parameter where an attribute holds it. The scores of classes go through a sigmoid or a softmax.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from ...exceptions import ModelError
from .category_splits import with_category_splits
from .context import Converter, Source
from .trees import Attributes, branches, leaves, leaves_of_targets, nodes_in, tree_sum


def _boosting_regressor(s: Source) -> Sequence[ir.Value]:
    model, total = s.estimator, _sum_of_trees(s)
    if isinstance(model.init_, str):  # "zero"
        return (total,)
    if hasattr(model.init_, "constant_"):
        return (s.op.Add(total, s.parameter(model, ("init_", "constant_"), held=(-1,))),)
    return (s.op.Add(total, s.number(model.init_)),)


def _boosting_classifier(s: Source) -> Sequence[ir.Value]:
    """The start is a function of the shares of the classes, and is not trained."""
    model, scores = s.estimator, _sum_of_trees(s)
    if not isinstance(model.init_, str):
        if model.init is not None:
            raise ModelError(
                f"{type(model).__name__}(init=...) with an estimator has no ONNX form. Fit it without init."
            )
        start = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))
        scores = s.op.Add(scores, start.ravel().astype(np.float32))
    doubled = model.loss == "exponential" and not s.raw_scores
    return _booster_classes(s, s.op.Mul(scores, 2.0) if doubled else scores)


def _booster_classes(s: Source, scores: ir.Value) -> Sequence[ir.Value]:
    op = s.op
    if len(s.estimator.classes_) == 2:
        return s.chosen(op.Concat(op.Neg(scores), scores, axis=1)), s.columns(scores)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(scores, axis=1)


def _sum_of_trees(s: Source) -> ir.Value:
    model = s.estimator
    trees = [one.tree_ for one in model.estimators_.ravel()]
    ends = leaves(trees)
    weights = [tree.value[own, 0, 0] * model.learning_rate for tree, own in zip(trees, ends, strict=True)]
    return tree_sum(s, branches(trees), _by_stage(ends, weights, model.estimators_.shape[1]))


def _by_stage(ends: Sequence[np.ndarray], weights: Sequence[np.ndarray], targets: int) -> Attributes:
    """Return the attributes of the leaves where each stage has one tree per target."""
    return leaves_of_targets(ends, weights, [i % targets for i in range(len(ends))], targets)


# Trees over histograms


def _histogram_regressor(s: Source) -> Sequence[ir.Value]:
    """With a log link the trees are fitted to the logarithm of the mean."""
    scores = _sum_over_histograms(s)
    return (s.op.Exp(scores) if s.estimator.loss in ("gamma", "poisson") else scores,)


def _histogram_classifier(s: Source) -> Sequence[ir.Value]:
    return _booster_classes(s, _sum_over_histograms(s))


def _sum_over_histograms(s: Source) -> ir.Value:
    model = s.estimator
    trees = [tree for stage in model._predictors for tree in stage]
    rows, columns = with_category_splits(s, trees)
    ends = [np.flatnonzero(nodes["is_leaf"]) for nodes in columns]
    weights = [tree.nodes["value"][own] for tree, own in zip(trees, ends, strict=True)]
    attributes = _by_stage(ends, weights, len(model._predictors[0]))
    total = tree_sum(s, nodes_in(columns), attributes, rows)
    return s.op.Add(total, s.parameter(model, "_baseline_prediction", held=(-1,)))


CONVERTERS: dict[type, Converter] = {
    GradientBoostingClassifier: Converter(_boosting_classifier),
    GradientBoostingRegressor: Converter(_boosting_regressor),
    HistGradientBoostingClassifier: Converter(_histogram_classifier),
    HistGradientBoostingRegressor: Converter(_histogram_regressor),
}
