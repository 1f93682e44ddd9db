"""Convert outlier detectors whose score is a formula: ``decision_function``, which is positive for inliers.

One-class machines of LIBSVM are beside its other machines, in ``svm``.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import SGDOneClassSVM
from sklearn.neighbors import LocalOutlierFactor

from .. import sklearn_private
from .context import Converter, Source, of_rows
from .neighbors import nearest_points, power_of
from .trees import branches, leaves, leaves_of, tree_sum


def _elliptic_envelope(s: Source) -> ir.Value:
    """The negative squared Mahalanobis distance, minus an offset."""
    op, envelope = s.op, s.estimator
    centered = op.Sub(s.x, s.parameter(envelope, "location_"))
    kept = envelope.precision_ is not None
    precision = s.parameter(envelope, "precision_") if kept else envelope.get_precision().astype(np.float32)
    distance = op.ReduceSum(op.Mul(op.MatMul(centered, precision), centered), axes=[1], keepdims=True)
    return op.Sub(op.Neg(distance), s.parameter(envelope, "offset_"))


def _isolation_forest(s: Source) -> ir.Value:
    """-2 ** (-length / usual length), minus an offset: outliers have short paths to their leaves.

    The weight of a leaf is the length of the path to it, plus the expected length of a path within it.
    """
    op, forest = s.op, s.estimator
    trees = [estimator.tree_ for estimator in forest.estimators_]
    ends = leaves(trees)
    parts = zip(forest._decision_path_lengths, forest._average_path_length_per_tree, ends, strict=True)
    lengths = [(depths + beyond - 1.0)[own][:, np.newaxis] for depths, beyond, own in parts]
    paths = tree_sum(s, branches(trees, forest.estimators_features_), leaves_of(ends, lengths))
    usual = len(forest.estimators_) * float(sklearn_private._average_path_length([forest._max_samples])[0])
    scores = op.Neg(op.Exp(op.Mul(paths, -math.log(2) / usual)))
    return op.Sub(scores, s.parameter(forest, "offset_"))


def _local_outlier_factor(s: Source) -> ir.Value:
    """The negative ratio of the density at the neighbors to that at the row, minus an offset.

    The density is the inverse of the mean reachability distance: the distance to a neighbor, but at least that of the
    neighbor to its own farthest neighbor.
    """
    op, factor = s.op, s.estimator
    power, points = power_of(factor), s.parameter(factor, "_fit_X")
    assert power is not None
    nearest, distance = nearest_points(op, s.x, points, factor.n_neighbors_, power)
    usual = np.ascontiguousarray(factor._distances_fit_X_[:, factor.n_neighbors_ - 1], np.float32)
    reached = op.Max(distance, op.Gather(usual, nearest, axis=0))
    mean = op.Add(op.ReduceMean(reached, axes=[1], keepdims=True), 1e-10)
    ratios = op.Mul(op.Gather(s.parameter(factor, "_lrd"), nearest, axis=0), mean)
    score = op.Neg(op.ReduceMean(ratios, axes=[1], keepdims=True))
    return op.Sub(score, s.parameter(factor, "offset_"))


def _linear_machine(s: Source) -> ir.Value:
    coef = s.parameter(s.estimator, "coef_", shape=(-1, 1))
    return s.op.Sub(s.op.MatMul(s.x, coef), s.parameter(s.estimator, "offset_"))


CONVERTERS: dict[type, Converter] = {
    EllipticEnvelope: of_rows(_elliptic_envelope, lambda envelope: 1),
    IsolationForest: of_rows(_isolation_forest, lambda forest: 1, lambda forest: forest._max_samples > 1),
    LocalOutlierFactor: of_rows(_local_outlier_factor, lambda factor: 1, lambda factor: power_of(factor) is not None),
    SGDOneClassSVM: of_rows(_linear_machine, lambda machine: 1),
}
