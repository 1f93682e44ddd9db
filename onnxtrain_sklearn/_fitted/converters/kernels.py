"""Convert kernel models: kernel approximations, kernel ridge, label propagation, Gaussian processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from scipy.linalg import solve_triangular
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor, kernels
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, RBFSampler, SkewedChi2Sampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from ..._ml_operators.kernel_methods import root, squared_distances
from ..._utils.typing import Estimator
from ...exceptions import ModelError
from ...graph import DOUBLE, FLOAT, GraphBuilder
from .. import sklearn_private
from ..fitted_model import Path
from .context import Converter, Source, of_rows

# Kernels


def _random_waves(s: Source) -> ir.Value:
    """Return random Fourier features sqrt(2 / n) cos(x W + b); for a skewed chi-squared kernel, of log(x + skew)."""
    op, sampler, x = s.op, s.estimator, s.x
    if isinstance(sampler, SkewedChi2Sampler):
        x = op.Log(op.Add(x, float(sampler.skewedness)))
    waves = op.MatMul(x, s.parameter(sampler, "random_weights_"))
    waves = op.Cos(op.Add(waves, s.parameter(sampler, "random_offset_")))
    return op.Mul(waves, math.sqrt(2 / sampler.n_components))


def _additive_waves(s: Source) -> ir.Value:
    """Return sqrt(x L), and sqrt(2 x L / cosh(pi j L)) times cosine and sine of j L log(x); zeros stay zero."""
    op, x, sampler = s.op, s.x, s.estimator
    length = float(sampler.sample_interval or {1: 0.8, 2: 0.5, 3: 0.4}[sampler.sample_steps])
    none = op.Equal(x, 0.0)
    some = op.Where(none, 1.0, x)
    root = op.Sqrt(op.Mul(some, length))
    angle = op.Mul(op.Log(some), length)
    columns = [root]
    for j in range(1, sampler.sample_steps):
        size, turned = op.Mul(root, math.sqrt(2 / math.cosh(math.pi * j * length))), op.Mul(angle, float(j))
        columns += [op.Mul(size, op.Cos(turned)), op.Mul(size, op.Sin(turned))]
    return op.Concat(*(op.Where(none, 0.0, column) for column in columns), axis=1)


def _nystroem(s: Source) -> ir.Value:
    """Return the Nystroem features K(x, components) N', with the kernel K and the normalization N."""
    kernel = kernel_with(s, "components_")
    return s.op.MatMul(kernel, s.op.Transpose(s.parameter(s.estimator, "normalization_"), perm=[1, 0]))


def kernel_with(s: Source, points: str) -> ir.Value:
    """Return the kernel matrix (rows, points) between the rows and the points in the attribute ``points``.

    Settings of None mean scikit-learn's defaults: gamma = 1 / features, coef0 = 1, degree = 3.
    """
    op, x, approximation = s.op, s.x, s.estimator
    rows = getattr(approximation, points)
    kind = approximation.kernel
    components = s.parameter(approximation, points)
    gamma = 1 / rows.shape[1] if approximation.gamma is None else float(approximation.gamma)
    if kind == "rbf":
        return op.Exp(op.Mul(squared_distances(op, x, components, rows.mean(axis=0)), -gamma))
    product = op.MatMul(x, op.Transpose(components, perm=[1, 0]))
    if kind == "linear":
        return product
    shifted = op.Add(op.Mul(product, gamma), 1.0 if approximation.coef0 is None else float(approximation.coef0))
    if kind == "sigmoid":
        return op.Tanh(shifted)
    return op.Pow(shifted, 3.0 if approximation.degree is None else float(approximation.degree))


KERNELS = ("rbf", "linear", "sigmoid", "poly", "polynomial")
"""The kernels of :func:`kernel_with`."""


# Converters of models that compare rows with points: kernel ridge regression, label propagation, nearest centroids.


def _kernel_ridge(s: Source) -> ir.Value:
    """Return K(x, points) c; for a linear kernel x (points' c), which computes with smaller numbers."""
    op, ridge = s.op, s.estimator
    weights = s.parameter(ridge, "dual_coef_", shape=(len(ridge.X_fit_), -1))
    if ridge.kernel == "linear":
        return op.MatMul(s.x, op.Gemm(s.parameter(ridge, "X_fit_"), weights, transA=1))
    return op.MatMul(kernel_with(s, "X_fit_"), weights)


def _propagated(s: Source) -> Sequence[ir.Value]:
    """Return the mean of the points' label distributions, weighted by exp(-gamma |x - point|**2).

    The weights are divided by that of the nearest point, as those of rows far from all points underflow in float32.
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


# Converters of Gaussian processes: regression, and classification by Laplace's approximation.
#
# skl2onnx solves a linear system for each row of a classifier, with an operator that onnxruntime lacks, and supports
# two classes only. The matrix of the system is constant: here its inverse is a factor.


STATIONARY = (kernels.RBF, kernels.Matern, kernels.RationalQuadratic, kernels.ExpSineSquared)

_NODES, _SHARES = np.polynomial.legendre.leggauss(4)


def _process(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    if len(model.classes_) == 2:
        p = _probability(s, model, ("base_estimator_",), model.base_estimator_)
        columns = op.Concat(op.Sub(1.0, p), p, axis=1)
        return s.chosen(columns), columns
    if model.multi_class != "one_vs_rest":
        raise ModelError(
            "This GaussianProcessClassifier counts votes of pairs of classes, which have no "
            "gradient. Fit it with multi_class='one_vs_rest'."
        )
    columns = op.Concat(*(_probability(s, one, (), one) for one in model.base_estimator_.estimators_), axis=1)
    p = op.Div(columns, op.ReduceSum(columns, axes=[1], keepdims=True))
    return s.chosen(p), p


def _process_regression(s: Source) -> Sequence[ir.Value] | None:
    """Return K(X, X_train) alpha, in float64 because the terms almost cancel; the targets' mean and scale are fixed."""
    op, model = s.op, s.estimator
    if not isinstance(getattr(model, "X_train_", None), np.ndarray):
        return None  # an unfitted process, which predicts the prior, or rows that are not numeric
    points = s.parameter(model, "X_train_")
    k = op.Cast(_kernel(op, model.kernel_, s.x, points, model.X_train_), to=DOUBLE)
    alpha = op.Cast(s.parameter(model, "alpha_"), to=DOUBLE)
    if model.alpha_.ndim > 1:
        k = op.Unsqueeze(k, axes=[2])
    total = op.ReduceSum(op.Mul(k, alpha), axes=[1], keepdims=model.alpha_.ndim == 1)  # MatMul is fused into float32
    mean = op.Cast(total, to=FLOAT)
    if model.normalize_y:
        scale, shift = (np.atleast_1d(a).astype(np.float32) for a in (model._y_train_std, model._y_train_mean))
        mean = op.Add(op.Mul(mean, scale), shift)
    return (mean,)


def _probability(s: Source, owner: Estimator, path: Path, process: Estimator) -> ir.Value:
    """Return the probability of the second of two classes, (rows, 1)."""
    op = s.op
    points = s.parameter(owner, (*path, "X_train_"))
    k = _kernel(op, process.kernel_, s.x, points, process.X_train_)
    expected = s.parameter(owner, (*path, "pi_"), shape=(-1, 1))
    right = op.Sub(process.y_train_.astype(np.float32)[:, np.newaxis], expected)
    mean = op.MatMul(k, right)
    solved = solve_triangular(process.L_, np.diag(process.W_sr_), lower=True)
    v = op.MatMul(k, solved.T.astype(np.float32))
    explained = op.ReduceSum(op.Mul(v, v), axes=[1], keepdims=True)
    return mean_sigmoid(op, mean, op.Relu(op.Sub(_diagonal(op, process.kernel_, s.x), explained)))


def mean_sigmoid(op: GraphBuilder, mean: ir.Value, variance: ir.Value) -> ir.Value:
    """Return a sigmoid's mean under a normal distribution: (1 + sum of c erf(mean l / sqrt(1 + 2 variance l²))) / 2.

    The five factors c are in the thousands and add up to one, so that the sum would have only four digits in float32.
    Therefore the sum is rewritten with the differences of the four other error functions from that of the largest
    factor. With r = l / sqrt(1 + 2 variance l²), the difference of two r is computed from the difference of their
    squares, and the difference of two error functions from the integral between their arguments.
    """
    factors = sklearn_private.COEFS.ravel()
    widths = sklearn_private.LAMBDAS.ravel()
    largest = int(np.abs(factors).argmax())
    inside = [op.Add(op.Mul(variance, 2 * float(width) ** 2), 1.0) for width in widths]
    roots = [op.Div(float(width), op.Sqrt(value)) for width, value in zip(widths, inside, strict=True)]
    at = op.Mul(mean, roots[largest])
    total = op.Mul(op.Erf(at), float(factors.sum()))
    for i in (i for i in range(len(widths)) if i != largest):
        squares = op.Div(float(widths[i] ** 2 - widths[largest] ** 2), op.Mul(inside[i], inside[largest]))
        way = op.Mul(mean, op.Div(squares, op.Add(roots[i], roots[largest])))
        points = op.Add(at, op.Mul(way, ((_NODES + 1) / 2).astype(np.float32)[np.newaxis]))
        heights = op.Exp(op.Neg(op.Mul(points, points)))
        shares = (_SHARES * factors[i] / np.sqrt(np.pi)).astype(np.float32)[:, np.newaxis]
        total = op.Add(total, op.Mul(way, op.MatMul(heights, shares)))
    return op.Mul(op.Add(total, float(factors.sum())), 0.5)


def _kernel(op: GraphBuilder, kernel: Estimator, x: ir.Value, points: ir.Value, numbers: np.ndarray) -> ir.Value:
    """Return the kernel matrix between rows and points, (rows, points)."""
    if isinstance(kernel, kernels.KernelOperator):
        # A sum or product of two kernels. If one is a constant, it comes last.
        both = [kernel.k1, kernel.k2]
        both.sort(key=lambda one: _constant_of(one) is not None)
        first = _kernel(op, both[0], x, points, numbers)
        value = _constant_of(both[1])
        second = _kernel(op, both[1], x, points, numbers) if value is None else value
        is_sum = isinstance(kernel, kernels.Sum)
        if second == (0.0 if is_sum else 1.0):
            return first
        return op.Add(first, second) if is_sum else op.Mul(first, second)
    if isinstance(kernel, kernels.Exponentiation):
        return op.Pow(_kernel(op, kernel.kernel, x, points, numbers), float(kernel.exponent))
    value = _constant_of(kernel)
    if value is not None:
        ones = np.ones((numbers.shape[1], len(numbers)), np.float32)
        return op.Add(op.Mul(op.MatMul(x, ones), 0.0), value)
    if isinstance(kernel, kernels.DotProduct):
        return op.Add(op.MatMul(x, op.Transpose(points, perm=[1, 0])), float(kernel.sigma_0) ** 2)
    if type(kernel) not in STATIONARY or getattr(kernel, "nu", np.inf) not in (0.5, 1.5, 2.5, np.inf):
        raise ModelError(f"The kernel {kernel} is not supported for training.")
    scale = np.broadcast_to(kernel.length_scale, numbers.shape[1]).astype(np.float32)
    if type(kernel) in (kernels.RationalQuadratic, kernels.ExpSineSquared):
        scale = np.ones_like(scale)
    center = (numbers / scale).mean(axis=0)
    squared = squared_distances(op, op.Div(x, scale), op.Div(points, scale), center)
    if isinstance(kernel, kernels.RationalQuadratic):
        inside = op.Add(op.Mul(squared, 1 / (2 * float(kernel.alpha) * float(kernel.length_scale) ** 2)), 1.0)
        return op.Exp(op.Mul(op.Log(inside), -float(kernel.alpha)))
    if isinstance(kernel, kernels.ExpSineSquared):
        wave = op.Sin(op.Mul(root(op, squared), np.pi / float(kernel.periodicity)))
        return op.Exp(op.Mul(op.Mul(wave, wave), -2.0 / float(kernel.length_scale) ** 2))
    nu = getattr(kernel, "nu", np.inf)
    if nu == np.inf:
        return op.Exp(op.Mul(squared, -0.5))
    d = op.Mul(root(op, squared), float(np.sqrt(2 * nu)))
    decay = op.Exp(op.Neg(d))
    if nu == 0.5:
        return decay
    linear = op.Add(d, 1.0)
    return op.Mul(linear if nu == 1.5 else op.Add(linear, op.Mul(op.Mul(d, d), 1.0 / 3.0)), decay)


def _constant_of(kernel: Estimator) -> float | None:
    """Return the value of a kernel that is equal for all pairs of different rows; None for other kernels."""
    if isinstance(kernel, kernels.ConstantKernel):
        return float(kernel.constant_value)
    return 0.0 if isinstance(kernel, kernels.WhiteKernel) else None


def _diagonal(op: GraphBuilder, kernel: Estimator, x: ir.Value) -> ir.Value:
    """Return the kernel of every row with itself, (rows, 1) or (1, 1)."""
    if isinstance(kernel, kernels.KernelOperator):
        first, second = (_diagonal(op, one, x) for one in (kernel.k1, kernel.k2))
        return op.Add(first, second) if isinstance(kernel, kernels.Sum) else op.Mul(first, second)
    if isinstance(kernel, kernels.Exponentiation):
        return op.Pow(_diagonal(op, kernel.kernel, x), float(kernel.exponent))
    if isinstance(kernel, kernels.DotProduct):
        return op.Add(op.ReduceSum(op.Mul(x, x), axes=[1], keepdims=True), float(kernel.sigma_0) ** 2)
    value = {kernels.ConstantKernel: "constant_value", kernels.WhiteKernel: "noise_level"}.get(type(kernel))
    return op.constant(np.full((1, 1), 1.0 if value is None else getattr(kernel, value), np.float32))


CONVERTERS: dict[type, Converter] = {
    GaussianProcessClassifier: Converter(_process),
    GaussianProcessRegressor: Converter(_process_regression),
    AdditiveChi2Sampler: of_rows(
        _additive_waves, lambda sampler: sampler.n_features_in_ * (2 * sampler.sample_steps - 1)
    ),
    Nystroem: of_rows(
        _nystroem,
        lambda approximation: len(approximation.normalization_),
        lambda approximation: approximation.kernel in KERNELS and isinstance(approximation.components_, np.ndarray),
    ),
    RBFSampler: of_rows(_random_waves, lambda sampler: sampler.n_components),
    SkewedChi2Sampler: of_rows(_random_waves, lambda sampler: sampler.n_components),
    KernelRidge: of_rows(
        _kernel_ridge,
        lambda ridge: 1 if np.ndim(ridge.dual_coef_) == 1 else np.shape(ridge.dual_coef_)[1],
        lambda ridge: ridge.kernel in KERNELS and isinstance(ridge.X_fit_, np.ndarray),
    ),
    LabelPropagation: Converter(_propagated, takes=_takes_propagation),
    LabelSpreading: Converter(_propagated, takes=_takes_propagation),
}
