"""Converters of classifiers by densities: naive Bayes and quadratic discriminants.

The scores are logarithms of joint densities. Their softmax is the probability of each class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB

from ..._graph.cast_types import FLOAT, INT64
from .context import Converter, Source


def _generative_classifier(log_densities: Callable[[Source], ir.Value]) -> Converter:
    """Return the converter of a classifier by its scores."""

    def emit(s: Source) -> Sequence[ir.Value]:
        scores = log_densities(s)
        return s.chosen(scores), scores if s.raw_scores else s.op.Softmax(scores, axis=1)

    return Converter(emit)


def _gaussian(s: Source) -> ir.Value:
    """Log p - sum(log(2 pi var) + (x - mean)**2 / var) / 2, with one mean and variance per class and feature."""
    op, model = s.op, s.estimator
    mean, variance = s.parameter(model, "theta_"), s.parameter(model, "var_")
    apart = op.Sub(op.Unsqueeze(s.x, axes=[1]), mean)  # (rows, classes, features)
    distance = op.ReduceSum(op.Div(op.Mul(apart, apart), variance), axes=[2], keepdims=False)
    normalizer = op.ReduceSum(op.Log(op.Mul(variance, 2 * math.pi)), axes=[1], keepdims=False)
    prior = s.parameter(model, "class_prior_", np.log(model.class_prior_), form="logarithm")
    return op.Add(op.Mul(op.Add(distance, normalizer), -0.5), prior)


def _multinomial(s: Source) -> ir.Value:
    prior = s.parameter(s.estimator, "class_log_prior_")
    return s.op.Gemm(s.x, s.parameter(s.estimator, "feature_log_prob_"), prior, transB=1)


def _complement_bayes(s: Source) -> ir.Value:
    """The prior counts for a single class alone, as in scikit-learn."""
    if len(s.estimator.classes_) == 1:
        return _multinomial(s)
    return s.op.Gemm(s.x, s.parameter(s.estimator, "feature_log_prob_"), transB=1)


def _bernoulli(s: Source) -> ir.Value:
    """Log p + sum(x log q + (1 - x) log(1 - q)), with one probability q per class and feature."""
    op, model = s.op, s.estimator
    x = s.x if model.binarize is None else op.Cast(op.Greater(s.x, np.float32(model.binarize)), to=FLOAT)
    present = s.parameter(model, "feature_log_prob_")
    absent = op.Log(op.Sub(1.0, op.Exp(present)))
    constant = op.ReduceSum(absent, axes=[1], keepdims=False)
    scores = op.Gemm(x, op.Sub(present, absent), constant, transB=1)
    return op.Add(scores, s.parameter(model, "class_log_prior_"))


def _categorical(s: Source) -> ir.Value:
    op, model = s.op, s.estimator
    total: ir.Value | None = None
    for i in range(model.n_features_in_):
        category = op.Cast(op.Squeeze(op.Gather(s.x, np.array([i]), axis=1), axes=[1]), to=INT64)
        part = op.Gather(s.parameter(model, ("feature_log_prob_", i)), category, axis=1)  # (classes, rows)
        total = part if total is None else op.Add(total, part)
    assert total is not None
    return op.Add(op.Transpose(total, perm=[1, 0]), s.parameter(model, "class_log_prior_"))


def _quadratic_scores(s: Source) -> ir.Value:
    """Log p - (sum(log S) + |(x - mean) R / sqrt(S)|**2) / 2 with the rotation R and the variances S of each class.

    The means are not trained.
    """
    op, model, columns = s.op, s.estimator, list[ir.Value]()
    for i, mean in enumerate(model.means_):
        rotation, variances = (s.parameter(model, (name, i)) for name in ("rotations_", "scalings_"))
        turned = op.Div(op.MatMul(op.Sub(s.x, mean.astype(np.float32)), rotation), op.Sqrt(variances))
        distance = op.ReduceSum(op.Mul(turned, turned), axes=[1], keepdims=True)
        columns.append(op.Add(distance, op.ReduceSum(op.Log(variances), axes=[0], keepdims=True)))
    return op.Add(op.Mul(op.Concat(*columns, axis=1), -0.5), op.Log(s.parameter(model, "priors_")))


CONVERTERS: dict[type, Converter] = {
    BernoulliNB: _generative_classifier(_bernoulli),
    CategoricalNB: _generative_classifier(_categorical),
    ComplementNB: _generative_classifier(_complement_bayes),
    GaussianNB: _generative_classifier(_gaussian),
    MultinomialNB: _generative_classifier(_multinomial),
    QuadraticDiscriminantAnalysis: _generative_classifier(_quadratic_scores),
}
