"""Converters of linear models: regressors, generalized linear models, classifiers, discriminants.

Each is one product with ``coef_`` and ``intercept_``, which are parameters. The probabilities are sigmoids or a softmax
of the scores, so that losses are computed on the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from sklearn import linear_model
from sklearn.cross_decomposition import PLSRegression
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.svm import LinearSVC, LinearSVR

from ..._graph.cast_types import FLOAT, INT64
from ..._support.typing import Estimator
from .context import Converter, Source

MINUS_LOG_OF_ZERO = 1e9
"""How far below zero the logarithm of a probability of zero is taken to be."""

MARGINS = "margins"
"""Marks the scores of classes where probabilities saturate: the class is that of the largest one."""


def linear_scores(s: Source, x: ir.Value | None = None) -> ir.Value:
    """Return ``X @ coef_.T + intercept_``, one column per target or class."""
    model = s.estimator
    coef = s.parameter(model, "coef_", held=(-1, np.shape(model.coef_)[-1]))
    intercept = s.parameter(model, "intercept_", held=(-1,))
    return s.op.Gemm(s.x if x is None else x, coef, intercept, transB=1)


# Regressors


def _fitted_regressor(s: Source) -> Sequence[ir.Value]:
    return (linear_scores(s),)


def _generalized(s: Source) -> Sequence[ir.Value]:
    scores = linear_scores(s)
    return (scores if _has_identity_link(s.estimator) else s.op.Exp(scores),)


def _has_identity_link(model: Estimator) -> bool:
    if not isinstance(model, linear_model.TweedieRegressor):
        return False
    return bool(model.link == "identity" or (model.link == "auto" and model.power <= 0))


def _partial_least_squares(s: Source) -> Sequence[ir.Value]:
    return (linear_scores(s, s.op.Sub(s.x, s.parameter(s.estimator, "_x_mean"))),)


# Classifiers


def _linear_margins(s: Source) -> Sequence[ir.Value]:
    """Decision functions without probabilities; each of several labels a row has one."""
    op, model, scores = s.op, s.estimator, linear_scores(s)
    if _has_several_labels(model):
        return op.Cast(op.Greater(scores, 0.0), to=INT64), scores
    if len(model.classes_) > 2:
        return s.chosen(scores), scores
    both = op.Concat(op.Neg(scores), scores, axis=1)
    return s.chosen(both), both if s.raw_scores else scores


def _has_several_labels(model: Estimator) -> bool:
    binarizer = getattr(model, "_label_binarizer", None)
    return binarizer is not None and binarizer.y_type_.startswith("multilabel")


def _logistic(s: Source) -> Sequence[ir.Value]:
    """The softmax of several classes, or the sigmoid of one score for two classes."""
    op, model, scores = s.op, s.estimator, linear_scores(s)
    if len(model.classes_) > 2:
        one_vs_rest = _is_one_vs_rest(model)
        logits = _log_sigmoid(s, scores) if one_vs_rest and not s.raw_scores else scores
        return s.chosen(scores), scores if s.raw_scores else op.Softmax(logits, axis=1)
    both = op.Concat(op.Neg(scores), scores, axis=1)
    if getattr(model, "multi_class", None) == "multinomial" and not s.raw_scores:
        return s.chosen(both), op.Softmax(both, axis=1)
    return s.chosen(both), s.columns(scores)


def _is_one_vs_rest(model: Estimator) -> bool:
    """Whether the probability of each class is a sigmoid, divided by the sum of all: before scikit-learn 1.8."""
    rule = getattr(model, "multi_class", None)
    return rule == "ovr" or (rule in ("auto", "deprecated") and model.solver == "liblinear")


def _by_gradient_descent(s: Source) -> Sequence[ir.Value]:
    op, model, scores = s.op, s.estimator, linear_scores(s)
    loss = None if s.raw_scores else getattr(model, "loss", None)
    if len(model.classes_) == 2:
        both = op.Concat(op.Neg(scores), scores, axis=1)
        return s.chosen(both), _of_two(s, scores, both, loss)
    s.mark(MARGINS, scores)
    return s.chosen(scores), _of_several(s, scores, loss)


def _of_two(s: Source, scores: ir.Value, both: ir.Value, loss: str | None) -> ir.Value:
    if loss == "log_loss":
        return s.columns(scores)
    if loss != "modified_huber":
        return both
    p = _clipped_prediction(s, scores)
    return s.op.Concat(s.op.Sub(1.0, p), p, axis=1)


def _of_several(s: Source, scores: ir.Value, loss: str | None) -> ir.Value:
    """Return sigmoids or clipped scores over their sum; where all clipped scores are zero, classes are even."""
    op = s.op
    if loss == "log_loss":
        return op.Softmax(_log_sigmoid(s, scores), axis=1)
    if loss != "modified_huber":
        return scores
    p = _clipped_prediction(s, scores)
    total = op.ReduceSum(p, axes=[1], keepdims=True)
    empty = op.Cast(op.Equal(total, 0.0), to=FLOAT)
    return op.Div(op.Add(p, empty), op.Add(total, op.Mul(empty, float(len(s.estimator.classes_)))))


def _clipped_prediction(s: Source, scores: ir.Value) -> ir.Value:
    """Return ``(clip(score, -1, 1) + 1) / 2``."""
    clipped = s.op.Clip(scores, np.float32(-1), np.float32(1))
    return s.op.Div(s.op.Add(clipped, 1.0), 2.0)


def _log_sigmoid(s: Source, scores: ir.Value) -> ir.Value:
    """Where scikit-learn's sigmoid is zero, this is the same far away: rows with zeros alone are even."""
    op, end = s.op, -np.log(np.finfo(s.estimator.coef_.dtype).max)
    counts = op.Cast(op.Greater(scores, np.float32(end)), to=FLOAT)
    counted = op.Add(op.Mul(scores, counts), op.Mul(op.Sub(counts, 1.0), MINUS_LOG_OF_ZERO))
    return op.Neg(op.Softplus(op.Neg(counted)))  # of Relu and Abs, both slopes at 0 would be 0


def _is_dense(model: Estimator) -> bool:
    return isinstance(model.coef_, np.ndarray)


def _table(emit: Callable[[Source], Sequence[ir.Value]], kinds: Sequence[type]) -> dict[type, Converter]:
    return {kind: Converter(emit, takes=_is_dense) for kind in kinds}


REGRESSORS = (
    linear_model.ARDRegression,
    linear_model.BayesianRidge,
    linear_model.ElasticNet,
    linear_model.ElasticNetCV,
    linear_model.HuberRegressor,
    linear_model.Lars,
    linear_model.LarsCV,
    linear_model.Lasso,
    linear_model.LassoCV,
    linear_model.LassoLars,
    linear_model.LassoLarsCV,
    linear_model.LassoLarsIC,
    linear_model.LinearRegression,
    linear_model.MultiTaskElasticNet,
    linear_model.MultiTaskElasticNetCV,
    linear_model.MultiTaskLasso,
    linear_model.MultiTaskLassoCV,
    linear_model.OrthogonalMatchingPursuit,
    linear_model.OrthogonalMatchingPursuitCV,
    linear_model.PassiveAggressiveRegressor,
    linear_model.QuantileRegressor,
    linear_model.Ridge,
    linear_model.RidgeCV,
    linear_model.SGDRegressor,
    linear_model.TheilSenRegressor,
    LinearSVR,
)
GENERALIZED = (linear_model.GammaRegressor, linear_model.PoissonRegressor, linear_model.TweedieRegressor)
LOGISTIC = (linear_model.LogisticRegression, linear_model.LogisticRegressionCV, LinearDiscriminantAnalysis)
BY_GRADIENT_DESCENT = (
    linear_model.PassiveAggressiveClassifier,
    linear_model.Perceptron,
    linear_model.SGDClassifier,
)

CONVERTERS: dict[type, Converter] = {
    **_table(_fitted_regressor, REGRESSORS),
    **_table(_generalized, GENERALIZED),
    **_table(_partial_least_squares, [PLSRegression]),
    **_table(
        _logistic, [linear_model.LogisticRegression, linear_model.LogisticRegressionCV, LinearDiscriminantAnalysis]
    ),
    **_table(_linear_margins, [LinearSVC, linear_model.RidgeClassifier, linear_model.RidgeClassifierCV]),
    **_table(_by_gradient_descent, BY_GRADIENT_DESCENT),
}
