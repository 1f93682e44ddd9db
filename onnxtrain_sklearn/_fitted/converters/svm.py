"""Convert LIBSVM's support vector machines, one-vs-one classifiers and outlier detectors.

The converters emit operators of ai.onnx.ml, which are rewritten afterwards. Then their numbers become parameters; the
converters note the attribute of each. A positive score of a pair of classes is in favor of its first class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import onnx_ir as ir
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import SGDOneClassSVM
from sklearn.multiclass import OneVsOneClassifier, OutputCodeClassifier
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

from ..._utils.typing import Estimator, SparseLike
from ...graph import FLOAT, GraphBuilder
from .. import sklearn_private
from .context import Converter, Source, labels, of_rows
from .neighbors import nearest_points, power_of
from .trees import Attributes, branches, leaves, leaves_of, tree_sum

# Converters of outlier detectors: the score is ``decision_function``, which is positive for inliers.


def _linear_machine(s: Source) -> ir.Value:
    coef = s.parameter(s.estimator, "coef_", shape=(-1, 1))
    return s.op.Sub(s.op.MatMul(s.x, coef), s.parameter(s.estimator, "offset_"))


def _elliptic_envelope(s: Source) -> ir.Value:
    """Return the negative squared Mahalanobis distance, minus an offset."""
    op, envelope = s.op, s.estimator
    centered = op.Sub(s.x, s.parameter(envelope, "location_"))
    kept = envelope.precision_ is not None
    precision = s.parameter(envelope, "precision_") if kept else envelope.get_precision().astype(np.float32)
    distance = op.ReduceSum(op.Mul(op.MatMul(centered, precision), centered), axes=[1], keepdims=True)
    return op.Sub(op.Neg(distance), s.parameter(envelope, "offset_"))


def _isolation_forest(s: Source) -> ir.Value:
    """Return -2 ** (-length / usual length), minus an offset: outliers have short paths to their leaves.

    The weight of a leaf is the length of the path to it, plus the expected length of the path if it were split further.
    """
    op, forest = s.op, s.estimator
    trees = [estimator.tree_ for estimator in forest.estimators_]
    ends = leaves(trees)
    known = zip(forest._decision_path_lengths, forest._average_path_length_per_tree, ends, strict=True)
    lengths = leaves_of(ends, [(depths + beyond - 1.0)[own][:, np.newaxis] for depths, beyond, own in known])
    paths = tree_sum(s, branches(trees, forest.estimators_features_), lengths)
    usual = len(forest.estimators_) * float(sklearn_private._average_path_length([forest._max_samples])[0])
    scores = op.Neg(op.Exp(op.Mul(paths, -math.log(2) / usual)))
    return op.Sub(scores, s.parameter(forest, "offset_"))


def _local_outlier_factor(s: Source) -> ir.Value:
    """Return the negative ratio of the neighbors' density to the row's density, minus an offset.

    The density is the inverse of the mean reachability distance. The reachability distance to a neighbor is the
    distance to it, but at least the neighbor's distance to its own k-th neighbor.
    """
    op, factor = s.op, s.estimator
    power = power_of(factor)
    points = s.parameter(factor, "_fit_X")
    assert power is not None
    nearest, distance = nearest_points(op, s.x, points, factor.n_neighbors_, power)
    usual = np.ascontiguousarray(factor._distances_fit_X_[:, factor.n_neighbors_ - 1], np.float32)
    reached = op.Max(distance, op.Gather(usual, nearest, axis=0))
    mean = op.Add(op.ReduceMean(reached, axes=[1], keepdims=True), 1e-10)
    ratios = op.Mul(op.Gather(s.parameter(factor, "_lrd"), nearest, axis=0), mean)
    score = op.Neg(op.ReduceMean(ratios, axes=[1], keepdims=True))
    return op.Sub(score, s.parameter(factor, "offset_"))


# Converters of classifiers that consist of binary classifiers: one-vs-one, and output codes.
#
# The decision function of one-vs-one is computed from the scores of the pairs of classes. Output codes have no decision
# function in scikit-learn: the class with the nearest code is predicted. Here their score of a class is how much nearer
# its code is than the nearest other code.


CONFIDENCES = "confidences"
"""Mark of the node that computes the pairs' confidences: decision functions, or probabilities of the second class."""


def _one_vs_one(s: Source) -> Sequence[ir.Value]:
    # For each pair, collect 1 or 0 (the classifier predicts the second class) and its confidence, (rows, 1) each.
    op, pairs = s.op, list[tuple[ir.Value, ir.Value]]()
    for one in s.estimator.estimators_:
        label, scores = s.convert_inner(one, s.x, hasattr(one, "decision_function"))
        predicted = op.Cast(op.Reshape(label, np.array([-1, 1])), to=FLOAT)
        pairs.append((predicted, op.Gather(scores, np.array([1]), axis=1)))
    second, confidences = (op.Concat(*side, axis=1) if len(side) > 1 else side[0] for side in zip(*pairs, strict=True))
    s.mark(CONFIDENCES, confidences)
    scores = decision_of_pairs(op, second, confidences, len(s.estimator.classes_))
    return s.chosen(scores), scores


def decision_of_pairs(op: GraphBuilder, second: ir.Value, confidences: ir.Value, classes: int) -> ir.Value:
    """Return one score per class: its votes, plus a tie-break below a third of a vote from the sum of its confidences.

    ``second`` is 1 if the second class of a pair is predicted, else 0. A positive confidence favors the second class.
    """
    one = np.eye(classes, dtype=np.float32)
    first, last = (one[list(side)] for side in zip(*combinations(range(classes), 2), strict=True))
    votes = op.Add(op.MatMul(second, last), op.MatMul(op.Sub(1.0, second), first))
    total = op.MatMul(confidences, last - first)
    return op.Add(votes, op.Div(total, op.Mul(op.Add(op.Abs(total), 1.0), 3.0)))


def _is_known(model: Estimator) -> bool:
    """Return True if every pair has a binary classifier, and all classifiers take the same columns."""
    pairs = all(is_classifier(one) and len(getattr(one, "classes_", ())) == 2 for one in model.estimators_)
    return pairs and model.pairwise_indices_ is None


def _output_codes(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    codes = np.asarray(model.code_book_, np.float32)
    parts = list[ir.Value]()
    for one in model.estimators_:  # each estimator predicts one digit of the code, (rows, 1)
        if isinstance(one, sklearn_private._ConstantPredictor):
            column = op.Gather(s.x, np.array([0]), axis=1)  # to expand the constant digit to the number of rows
            parts.append(op.Add(op.Mul(column, 0.0), float(one.y_[0])))
        elif hasattr(one, "decision_function"):
            parts.append(op.Reshape(s.decision(one), np.array([-1, 1])))
        else:
            parts.append(op.Gather(s.probabilities(one), np.array([1]), axis=1))
    given = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    # Compute squared distances without the square of the row's digits, which is the same for all codes.
    away = op.Sub((codes**2).sum(axis=1)[np.newaxis], op.Mul(op.MatMul(given, codes.T.copy()), 2.0))
    nearest = op.emit("TopK", away, np.array([2]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    chosen = op.OneHot(nearest, np.array(len(codes)), np.array([0, 1], np.float32))
    least = op.ReduceSum(op.Mul(op.Unsqueeze(away, axes=[1]), chosen), axes=[2], keepdims=False)
    first, second = (op.Gather(least, np.array([i]), axis=1) for i in range(2))
    is_first = op.Gather(chosen, np.array(0), axis=1)
    other = op.Add(op.Mul(is_first, second), op.Mul(op.Sub(1.0, is_first), first))
    margins = op.Mul(op.Sub(other, away), unit_of_codes(model))
    if len(codes) > 2:
        return s.chosen(margins), margins
    score = op.Gather(margins, np.array([1]), axis=1)
    return s.chosen(margins), op.Concat(op.Neg(score), score, axis=1)


def unit_of_codes(model: OutputCodeClassifier) -> float:
    """Return the factor that makes the squared distance 1 between codes that differ in half of their digits."""
    codes = np.asarray(model.code_book_)
    return float(2.0 / (codes.shape[1] * (np.ptp(codes) or 1.0) ** 2))


# Converters of LIBSVM's support vector machines to operators of ai.onnx.ml, which have LIBSVM's layout of the numbers.


CONVERTED_KERNELS = ("linear", "poly", "rbf", "sigmoid")


def _machine_regression(s: Source) -> ir.Value:
    """Return the sum of kernels, also for outlier detectors, whose ``offset_`` is the negative of ``intercept_``."""
    model = s.estimator
    attributes = _machine_kernel(model) | _coefficients(model, 1.0) | {"n_supports": len(model.support_vectors_)}
    (score,) = s.ml_operator("SVMRegressor", **attributes)
    _note_attributes(s, score, "same")
    return score


def _machine_classifier(s: Source) -> Sequence[ir.Value]:
    """Return the label with the most votes of pairs, and probabilities or a decision function by the pairs' scores."""
    op, model = s.op, s.estimator
    names, classes = labels(model), len(model.classes_)
    kind = "classlabels_strings" if names.dtype.kind == "U" else "classlabels_ints"
    sign = -1.0 if classes == 2 else 1.0  # for two classes, scikit-learn flips the sign of both attributes
    attributes = _machine_kernel(model) | _coefficients(model, sign) | {"vectors_per_class": model.n_support_.tolist()}
    if len(model.probA_):
        attributes |= {"prob_a": _floats(model.probA_), "prob_b": _floats(model.probB_)}
    label, scores = s.ml_operator("SVMClassifier", outputs=2, **attributes, **{kind: names.tolist()})
    label.dtype = ir.DataType.STRING if names.dtype.kind == "U" else ir.DataType.INT64
    _note_attributes(s, scores, "negated" if classes == 2 else "same")
    if len(model.probA_) or (classes > 2 and model.decision_function_shape == "ovo"):
        return label, scores
    if classes == 2:  # a positive first column of LIBSVM favors the second class
        score = op.Gather(scores, np.array([0]), axis=1)
        return label, op.Concat(op.Neg(score), score, axis=1)
    first = op.Cast(op.Less(scores, 0.0), to=FLOAT)
    return label, decision_of_pairs(op, first, op.Neg(scores), classes)


def _note_attributes(s: Source, value: ir.Value, form: str) -> None:
    """Note the model's attribute for each array of the operator; an SVM fitted to sparse rows has sparse attributes."""
    for role, attribute in (("coef0", "coef0"), ("gamma", "_gamma"), ("prob_a", "_probA"), ("prob_b", "_probB")):
        s.hold(value, role, attribute)
    s.hold(value, "rho", "intercept_", form)
    if not sp.issparse(s.estimator.dual_coef_):
        s.hold(value, "dual_coef", "dual_coef_", form)
        s.hold(value, "support_vectors", "support_vectors_")


def _machine_kernel(model: Estimator) -> Attributes:
    return {
        "kernel_params": [float(model._gamma), float(model.coef0), float(model.degree)],
        "kernel_type": model.kernel.upper(),
        "support_vectors": _floats(model.support_vectors_),
    }


def _coefficients(model: Estimator, sign: float) -> Attributes:
    return {"coefficients": _floats(sign * model.dual_coef_), "rho": _floats(sign * model.intercept_)}


def _floats(numbers: np.ndarray | SparseLike) -> list[float]:
    dense = numbers if isinstance(numbers, np.ndarray) else numbers.toarray()
    floats: list[float] = np.asarray(dense, np.float32).ravel().tolist()
    return floats


def _supports_kernel(model: Estimator) -> bool:
    return model.kernel in CONVERTED_KERNELS


CONVERTERS: dict[type, Converter] = {
    EllipticEnvelope: of_rows(_elliptic_envelope, lambda envelope: 1),
    IsolationForest: of_rows(_isolation_forest, lambda forest: 1, lambda forest: forest._max_samples > 1),
    LocalOutlierFactor: of_rows(_local_outlier_factor, lambda factor: 1, lambda factor: power_of(factor) is not None),
    SGDOneClassSVM: of_rows(_linear_machine, lambda machine: 1),
    OneVsOneClassifier: Converter(_one_vs_one, takes=_is_known),
    OutputCodeClassifier: Converter(_output_codes),
    NuSVC: Converter(_machine_classifier, takes=_supports_kernel),
    NuSVR: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
    OneClassSVM: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
    SVC: Converter(_machine_classifier, takes=_supports_kernel),
    SVR: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
}
