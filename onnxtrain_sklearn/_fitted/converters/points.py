"""Converters of models that compare rows with points: kernel ridge regression, label propagation, nearest centroids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import NearestCentroid
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from ..._ml_operators.distances import squared_distances
from ..._support.typing import Estimator
from .context import Converter, Source, of_rows
from .kernel_approximation import KERNELS, kernel_with

APART = "apart"
"""Mark of the node that computes the differences of each row from the centroids."""


def _kernel_ridge(s: Source) -> ir.Value:
    """K(x, points) c; with a linear kernel x (points' c), whose numbers are smaller."""
    op, ridge = s.op, s.estimator
    weights = s.parameter(ridge, "dual_coef_", shape=(len(ridge.X_fit_), -1))
    if ridge.kernel == "linear":
        return op.MatMul(s.x, op.Gemm(s.parameter(ridge, "X_fit_"), weights, transA=1))
    return op.MatMul(kernel_with(s, "X_fit_"), weights)


def _outputs(ridge: Estimator) -> int:
    return 1 if np.ndim(ridge.dual_coef_) == 1 else int(np.shape(ridge.dual_coef_)[1])


def _takes_ridge(ridge: Estimator) -> bool:
    return ridge.kernel in KERNELS and isinstance(ridge.X_fit_, np.ndarray)


def _propagated(s: Source) -> Sequence[ir.Value]:
    """The mean of the points' label distributions, weighted by exp(-gamma |x - point|**2).

    The weights are taken relative to the nearest point, as float32 has no numbers for those of far ones.
    """
    op, model = s.op, s.estimator
    points = s.parameter(model, "X_")
    away = squared_distances(op, s.x, points, np.mean(model.X_, axis=0))
    beyond = op.Sub(away, op.ReduceMin(away, axes=[1], keepdims=True))
    weights = op.Exp(op.Mul(beyond, -float(model.gamma)))
    shares = op.Abs(s.parameter(model, "label_distributions_", form="absolute"))
    sums = op.MatMul(weights, shares)
    p = op.Div(sums, op.ReduceSum(sums, axes=[1], keepdims=True))
    return s.chosen(p), p


def _takes_propagation(model: Estimator) -> bool:
    return model.kernel == "rbf" and isinstance(model.X_, np.ndarray)


def _nearest_centroid(s: Source) -> Sequence[ir.Value]:
    """2 log p - d**2, with the distance d from the centroid of the class in units of the deviations within classes."""
    op, model = s.op, s.estimator
    apart = op.Sub(op.Unsqueeze(s.x, axes=[1]), s.parameter(model, "centroids_"))  # (rows, classes, features)
    s.mark(APART, apart)
    spread = np.asarray(model.within_class_std_dev_, np.float32)
    scaled = op.Div(apart, np.where(spread == 0, np.float32(1), spread))
    distance = op.ReduceSum(op.Mul(scaled, scaled), axes=[2], keepdims=False)
    scores = op.Sub(2 * np.log(model.class_prior_).astype(np.float32), distance)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(scores, axis=1)


CONVERTERS: dict[type, Converter] = {
    KernelRidge: of_rows(_kernel_ridge, _outputs, _takes_ridge),
    LabelPropagation: Converter(_propagated, takes=_takes_propagation),
    LabelSpreading: Converter(_propagated, takes=_takes_propagation),
    NearestCentroid: Converter(_nearest_centroid),
}
