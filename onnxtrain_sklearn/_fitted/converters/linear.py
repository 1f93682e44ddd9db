"""Convert linear models, naive Bayes, perceptrons and projections.

Most are one product with ``coef_`` plus ``intercept_``, which are parameters. Probabilities are written as sigmoids or
a softmax of the scores, so that losses can be computed on the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from sklearn import linear_model
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.random_projection import GaussianRandomProjection
from sklearn.svm import LinearSVC, LinearSVR

from ...graph import FLOAT, INT64, GraphBuilder
from .context import Converter, Source, of_rows

MINUS_LOG_OF_ZERO = 1e9
"""The negative logarithm that stands for a probability of zero."""

MARGINS = "margins"
"""Mark of the node that computes the scores by which the class is predicted, since the probabilities may saturate."""


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
    model, scores = s.estimator, linear_scores(s)
    is_tweedie = isinstance(model, linear_model.TweedieRegressor)
    identity = is_tweedie and (model.link == "identity" or (model.link == "auto" and model.power <= 0))
    return (scores if identity else s.op.Exp(scores),)


def _partial_least_squares(s: Source) -> Sequence[ir.Value]:
    return (linear_scores(s, s.op.Sub(s.x, s.parameter(s.estimator, "_x_mean"))),)


# Classifiers


def _linear_margins(s: Source) -> Sequence[ir.Value]:
    """Convert a classifier without probabilities: one decision function per class, or per label of several."""
    op, model, scores = s.op, s.estimator, linear_scores(s)
    binarizer = getattr(model, "_label_binarizer", None)
    if binarizer is not None and binarizer.y_type_.startswith("multilabel"):
        return op.Cast(op.Greater(scores, 0.0), to=INT64), scores
    if len(model.classes_) > 2:
        return s.chosen(scores), scores
    both = op.Concat(op.Neg(scores), scores, axis=1)
    return s.chosen(both), both if s.raw_scores else scores


def _logistic(s: Source) -> Sequence[ir.Value]:
    """Convert logistic regression: a softmax of several scores, or for two classes the sigmoid of one score."""
    op, model, scores = s.op, s.estimator, linear_scores(s)
    rule = getattr(model, "multi_class", None)  # scikit-learn 1.8 removed this parameter
    if len(model.classes_) > 2:
        # One versus rest: the probabilities are sigmoids divided by their sum, which is a softmax of log sigmoids.
        one_vs_rest = rule == "ovr" or (rule in ("auto", "deprecated") and model.solver == "liblinear")
        logits = _log_sigmoid(s, scores) if one_vs_rest and not s.raw_scores else scores
        return s.chosen(scores), scores if s.raw_scores else op.Softmax(logits, axis=1)
    both = op.Concat(op.Neg(scores), scores, axis=1)
    if rule == "multinomial" and not s.raw_scores:
        return s.chosen(both), op.Softmax(both, axis=1)
    return s.chosen(both), s.columns(scores)


def _by_gradient_descent(s: Source) -> Sequence[ir.Value]:
    """Convert an SGDClassifier: decision functions, or for two losses probabilities (sigmoids, or clipped scores)."""
    op, model, scores = s.op, s.estimator, linear_scores(s)
    loss = None if s.raw_scores else getattr(model, "loss", None)
    if len(model.classes_) == 2:
        both = op.Concat(op.Neg(scores), scores, axis=1)
        chosen = s.chosen(both)
        if loss == "log_loss":
            return chosen, s.columns(scores)
        if loss != "modified_huber":
            return chosen, both
        p = _clipped_prediction(s, scores)
        return chosen, op.Concat(op.Sub(1.0, p), p, axis=1)
    s.mark(MARGINS, scores)
    chosen = s.chosen(scores)
    if loss == "log_loss":
        return chosen, op.Softmax(_log_sigmoid(s, scores), axis=1)
    if loss != "modified_huber":
        return chosen, scores
    p = _clipped_prediction(s, scores)
    total = op.ReduceSum(p, axes=[1], keepdims=True)
    empty = op.Cast(op.Equal(total, 0.0), to=FLOAT)  # if all clipped scores are zero, the classes are equally likely
    return chosen, op.Div(op.Add(p, empty), op.Add(total, op.Mul(empty, float(len(model.classes_)))))


def _clipped_prediction(s: Source, scores: ir.Value) -> ir.Value:
    """Return ``(clip(score, -1, 1) + 1) / 2``."""
    clipped = s.op.Clip(scores, np.float32(-1), np.float32(1))
    return s.op.Div(s.op.Add(clipped, 1.0), 2.0)


def _log_sigmoid(s: Source, scores: ir.Value) -> ir.Value:
    """Return log(sigmoid), with a floor where scikit-learn's sigmoid is zero: such classes are equally likely."""
    op = s.op
    end = -np.log(np.finfo(s.estimator.coef_.dtype).max)
    counts = op.Cast(op.Greater(scores, np.float32(end)), to=FLOAT)
    counted = op.Add(op.Mul(scores, counts), op.Mul(op.Sub(counts, 1.0), MINUS_LOG_OF_ZERO))
    return op.Neg(op.Softplus(op.Neg(counted)))  # not by Relu and Abs, whose gradients at 0 are both 0


def _table(emit: Callable[[Source], Sequence[ir.Value]], kinds: Sequence[type]) -> dict[type, Converter]:
    """Return a table that maps each of ``kinds`` to the converter ``emit``, which does not take a sparse ``coef_``."""
    return {kind: Converter(emit, takes=lambda model: isinstance(model.coef_, np.ndarray)) for kind in kinds}


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


# Converters of generative classifiers: naive Bayes and quadratic discriminant analysis.
#
# The scores are logarithms of joint densities. Their softmax is the probability of each class.


def _generative_classifier(log_densities: Callable[[Source], ir.Value]) -> Converter:
    """Return the converter of a classifier whose scores are the logarithms of joint densities."""

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
    """Log p + sum(x log q), with one probability q per class and feature; complement naive Bayes leaves out p."""
    if isinstance(s.estimator, ComplementNB) and len(s.estimator.classes_) > 1:
        return s.op.Gemm(s.x, s.parameter(s.estimator, "feature_log_prob_"), transB=1)
    prior = s.parameter(s.estimator, "class_log_prior_")
    return s.op.Gemm(s.x, s.parameter(s.estimator, "feature_log_prob_"), prior, transB=1)


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
    op = s.op
    model = s.estimator
    columns = list[ir.Value]()
    for i, mean in enumerate(model.means_):
        rotation, variances = (s.parameter(model, (name, i)) for name in ("rotations_", "scalings_"))
        turned = op.Div(op.MatMul(op.Sub(s.x, mean.astype(np.float32)), rotation), op.Sqrt(variances))
        distance = op.ReduceSum(op.Mul(turned, turned), axes=[1], keepdims=True)
        columns.append(op.Add(distance, op.ReduceSum(op.Log(variances), axes=[0], keepdims=True)))
    return op.Add(op.Mul(op.Concat(*columns, axis=1), -0.5), op.Log(s.parameter(model, "priors_")))


# Converters of scikit-learn's multilayer perceptrons: one Gemm and one activation per layer.


NETWORK_ACTIVATIONS = {"identity": "Identity", "logistic": "Sigmoid", "relu": "Relu", "tanh": "Tanh"}
"""For each activation of scikit-learn, the ONNX operator."""


def _mlp_regressor(s: Source) -> Sequence[ir.Value]:
    return (_network_activation(s.op, _network_outputs(s), s.estimator.out_activation_),)


def _mlp_classifier(s: Source) -> Sequence[ir.Value]:
    """Convert a classifier: a softmax of several scores, a sigmoid of one, or a sigmoid for each of several labels."""
    op = s.op
    model = s.estimator
    scores = _network_outputs(s)
    if model._label_binarizer.y_type_.startswith("multilabel"):
        return op.Cast(op.Greater(scores, 0.0), to=INT64), op.Sigmoid(scores)
    if len(model.classes_) > 2:
        return s.chosen(scores), op.Softmax(scores, axis=1)
    return s.chosen(op.Concat(op.Neg(scores), scores, axis=1)), s.columns(scores)


def _network_outputs(s: Source) -> ir.Value:
    """Return the result of the last layer before its activation."""
    model, x = s.estimator, s.x
    for i in range(model.n_layers_ - 1):
        x = x if i == 0 else _network_activation(s.op, x, model.activation)
        x = s.op.Gemm(x, s.parameter(model, ("coefs_", i)), s.parameter(model, ("intercepts_", i)))
    return x


def _network_activation(op: GraphBuilder, x: ir.Value, activation: str) -> ir.Value:
    if activation == "exp":  # the inverse link of the loss "poisson"
        return op.Exp(x)
    result: ir.Value = getattr(op, NETWORK_ACTIVATIONS[activation])(x)
    return result


# Converters of linear projections: ``(X - mean_) @ components_.T``, whitened if that is set.


def _projected(s: Source) -> ir.Value:
    op, model = s.op, s.estimator
    is_pca = isinstance(model, PCA | IncrementalPCA)
    x = op.Sub(s.x, s.parameter(model, "mean_")) if is_pca else s.x
    projected = op.Gemm(x, s.parameter(model, "components_"), transB=1)
    if not (is_pca and model.whiten):
        return projected
    variance = s.parameter(model, "explained_variance_")
    return op.Div(projected, op.Max(op.Sqrt(variance), np.float32(np.finfo(np.float64).eps)))


CONVERTERS: dict[type, Converter] = {
    **_table(_fitted_regressor, REGRESSORS),
    **_table(_generalized, GENERALIZED),
    **_table(_partial_least_squares, [PLSRegression]),
    **_table(_logistic, LOGISTIC),
    **_table(_linear_margins, [LinearSVC, linear_model.RidgeClassifier, linear_model.RidgeClassifierCV]),
    **_table(_by_gradient_descent, BY_GRADIENT_DESCENT),
    BernoulliNB: _generative_classifier(_bernoulli),
    CategoricalNB: _generative_classifier(_categorical),
    ComplementNB: _generative_classifier(_multinomial),
    GaussianNB: _generative_classifier(_gaussian),
    MultinomialNB: _generative_classifier(_multinomial),
    QuadraticDiscriminantAnalysis: _generative_classifier(_quadratic_scores),
    MLPClassifier: Converter(_mlp_classifier),
    MLPRegressor: Converter(_mlp_regressor),
    GaussianRandomProjection: of_rows(_projected, lambda model: len(model.components_)),
    IncrementalPCA: of_rows(_projected, lambda model: len(model.components_)),
    NeighborhoodComponentsAnalysis: of_rows(_projected, lambda model: len(model.components_)),
    PCA: of_rows(_projected, lambda model: len(model.components_)),
    TruncatedSVD: of_rows(_projected, lambda model: len(model.components_)),
}
