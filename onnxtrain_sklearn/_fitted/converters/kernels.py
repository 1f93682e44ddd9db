"""Convert kernel approximations, splines, quantile transforms, and models that compare rows with points."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from scipy import special
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, RBFSampler, SkewedChi2Sampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import QuantileTransformer, SplineTransformer
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from ..._ml_operators.kernel_methods import squared_distances
from ..._utils.typing import Estimator
from ...graph import DOUBLE, FLOAT, INT64, GraphBuilder
from .context import Converter, Source, of_rows

# Kernels


def _waves_of_numbers(s: Source) -> ir.Value:
    return _random_waves(s, s.x)


def _waves_of_logarithms(s: Source) -> ir.Value:
    return _random_waves(s, s.op.Log(s.op.Add(s.x, float(s.estimator.skewedness))))


def _random_waves(s: Source, x: ir.Value) -> ir.Value:
    """sqrt(2 / n) cos(x W + b)."""
    op, sampler = s.op, s.estimator
    waves = op.MatMul(x, s.parameter(sampler, "random_weights_"))
    waves = op.Cos(op.Add(waves, s.parameter(sampler, "random_offset_")))
    return op.Mul(waves, math.sqrt(2 / sampler.n_components))


def _additive_waves(s: Source) -> ir.Value:
    """sqrt(x L), and sqrt(2 x L / cosh(pi j L)) times the cosine and the sine of j L log(x); zeros stay zero."""
    op, x, sampler = s.op, s.x, s.estimator
    length = float(sampler.sample_interval or {1: 0.8, 2: 0.5, 3: 0.4}[sampler.sample_steps])
    none = op.Equal(x, 0.0)
    some = op.Where(none, 1.0, x)
    root, angle = op.Sqrt(op.Mul(some, length)), op.Mul(op.Log(some), length)
    columns = [root]
    for j in range(1, sampler.sample_steps):
        size, turned = op.Mul(root, math.sqrt(2 / math.cosh(math.pi * j * length))), op.Mul(angle, float(j))
        columns += [op.Mul(size, op.Cos(turned)), op.Mul(size, op.Sin(turned))]
    return op.Concat(*(op.Where(none, 0.0, column) for column in columns), axis=1)


def _columns_of_additive_waves(sampler: AdditiveChi2Sampler) -> int:
    return int(sampler.n_features_in_ * (2 * sampler.sample_steps - 1))


def _nystroem(s: Source) -> ir.Value:
    """K(x, components) N'."""
    kernel = kernel_with(s, "components_")
    return s.op.MatMul(kernel, s.op.Transpose(s.parameter(s.estimator, "normalization_"), perm=[1, 0]))


def kernel_with(s: Source, points: str) -> ir.Value:
    """Return the kernel of each row with each of the points that an attribute holds, (rows, points).

    Settings that are None have scikit-learn's defaults: gamma = 1 / features, coef0 = 1, degree = 3.
    """
    op, x, approximation = s.op, s.x, s.estimator
    rows, kind = getattr(approximation, points), approximation.kernel
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


def _has_known_kernel(approximation: Nystroem) -> bool:
    return approximation.kernel in KERNELS and isinstance(approximation.components_, np.ndarray)


# Piecewise functions of each column


def _sorted_positions(op: GraphBuilder, x: ir.Value, table: np.ndarray, *, below: bool = False) -> ir.Value:
    """Return, for each number, the last position in its column's sorted row of ``table`` that is not above it.

    With ``below`` the last one that is less than it; the first where there is none. Positions count through the whole
    table. This is a binary search over tensors of the shape of ``x``.
    """
    columns, count = table.shape
    first = np.arange(columns) * count
    place, step = op.Add(op.Mul(op.Cast(x, to=INT64), 0), first), 1 << max(count - 1, 1).bit_length()
    while step := step // 2:
        further = op.Min(op.Add(place, np.array(step)), first + count - 1)
        found = op.Gather(table.ravel(), further, axis=0)
        place = op.Where(op.Less(found, x) if below else op.LessOrEqual(found, x), further, place)
    return place


def _piece(op: GraphBuilder, place: ir.Value, x: ir.Value, starts: np.ndarray, *powers: np.ndarray) -> ir.Value:
    """Return the polynomial of a piece in the distance of ``x`` from its start; ``powers`` begin with the highest."""
    ahead = op.Sub(x, op.Gather(starts.ravel(), place, axis=0))
    if powers[0].ndim > starts.ndim:  # several splines of one feature
        ahead = op.Unsqueeze(ahead, axes=[2])
    tables = [power.reshape(starts.size, *power.shape[starts.ndim :]) for power in powers]
    result = op.Gather(tables[0], place, axis=0)
    for table in tables[1:]:
        result = op.Add(op.Mul(result, ahead), op.Gather(table, place, axis=0))
    return result


def _splines(s: Source) -> ir.Value:
    """B-splines as polynomials between knots, extrapolated as ``extrapolation`` says."""
    op, x, transformer = s.op, s.x, s.estimator
    degree, splines = transformer.degree, transformer.bsplines_
    knots = np.stack([spline.t[degree : -degree - 1] for spline in splines])
    # By power, from the highest on, a coefficient for each column, piece and spline.
    powers = np.stack(
        [[spline(row, nu=p) / math.factorial(p) for spline, row in zip(splines, knots, strict=True)]
         for p in range(degree, -1, -1)]
    )  # fmt: skip
    low, high = knots[:, 0].astype(np.float32), np.array([spline.t[-degree - 1] for spline in splines], np.float32)
    starts, inside = knots.astype(np.float32), x
    if transformer.extrapolation == "periodic":
        turns = op.Floor(op.Div(op.Sub(x, low), high - low))
        inside = op.Sub(x, op.Mul(turns, high - low))
    elif transformer.extrapolation in ("constant", "linear"):
        inside = op.Min(op.Max(x, low), high)
    place = _sorted_positions(op, inside, starts)
    result = _piece(op, place, inside, starts, *powers.astype(np.float32))
    if transformer.extrapolation == "linear":
        slopes = powers[:-1] * np.arange(degree, 0, -1).reshape(-1, 1, 1, 1)
        slope = _piece(op, place, inside, starts, *slopes.astype(np.float32))
        result = op.Add(result, op.Mul(slope, op.Unsqueeze(op.Sub(x, inside), axes=[2])))
    if not transformer.include_bias:
        result = op.Gather(result, np.arange(powers.shape[-1] - 1), axis=2)
    return op.Reshape(result, np.array([-1, transformer.n_features_out_]))


def _has_known_ends(transformer: SplineTransformer) -> bool:
    known = transformer.extrapolation in ("constant", "linear", "continue", "periodic")
    handles = getattr(transformer, "handle_missing", "error") == "error"
    enough = transformer.degree > (transformer.extrapolation == "linear")
    return known and handles and enough and not transformer.sparse_output


_BOUND = 1e-7  # scikit-learn's


def _normal_quantiles(s: Source) -> ir.Value:
    """The inverse of the normal distribution function at the mean of two interpolations between quantiles.

    The two differ where quantiles are equal. Shares are computed in float64, as float32 is too coarse near 1.
    """
    op, x, transformer = s.op, s.x, s.estimator
    quantiles = np.ascontiguousarray(transformer.quantiles_.T, np.float64)
    exact = op.Cast(x, to=DOUBLE)
    outside = [op.Less(op.Sub(exact, np.array(_BOUND)), quantiles[:, 0])]
    outside += [op.Greater(op.Add(exact, np.array(_BOUND)), quantiles[:, -1])]
    shares = [_interpolated(op, exact, quantiles, transformer.references_, below=below) for below in (False, True)]
    share = op.Mul(op.Add(*shares), np.array(0.5))
    share = op.Min(op.Max(share, np.array(_BOUND)), np.array(1 - _BOUND))
    ends = special.ndtri([_BOUND - np.spacing(1), 1 - (_BOUND - np.spacing(1))]).astype(np.float32)
    return op.Where(outside[0], ends[0], op.Where(outside[1], ends[1], _inverse_normal(op, share)))


def _interpolated(op: GraphBuilder, x: ir.Value, table: np.ndarray, levels: np.ndarray, *, below: bool) -> ir.Value:
    rise, run = np.diff(levels), np.diff(table, axis=1)
    slope = np.divide(rise, run, out=np.zeros_like(run), where=run > 0)
    starts = np.ascontiguousarray(table[:, :-1])
    base = np.broadcast_to(levels[:-1], starts.shape).copy()
    return _piece(op, _sorted_positions(op, x, starts, below=below), x, starts, slope, base)


def _inverse_normal(op: GraphBuilder, share: ir.Value) -> ir.Value:
    """sqrt(2) z f(w), with z = 2 p - 1 and w = -log(1 - z²); f is smooth, and a polynomial in w or its root."""
    side = op.Sub(op.Mul(share, np.array(2.0)), np.array(1.0))
    rest = op.Mul(op.Mul(share, np.array(4.0)), op.Sub(np.array(1.0), share))  # 1 - z² without cancellation
    w = op.Neg(op.Log(op.Cast(rest, to=FLOAT)))
    near, far = _polynomials()
    middle = _polynomial_value(op, op.Min(w, _SPLIT), near)
    tail = _polynomial_value(op, op.Sqrt(op.Max(w, _SPLIT)), far)
    return op.Mul(op.Cast(side, to=FLOAT), op.Where(op.Less(w, _SPLIT), middle, tail))


_SPLIT, _END = 5.0, 17.0


@functools.cache
def _polynomials() -> tuple[np.polynomial.Polynomial, np.polynomial.Polynomial]:
    """Return sqrt(2) f as polynomials in w up to 5, and in sqrt(w) beyond it."""
    near = (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 400)[1:])) * _SPLIT
    far = np.linspace(_SPLIT, _END, 400)
    fit = np.polynomial.Polynomial.fit
    return fit(near, _scaled_quantile(near), 11), fit(np.sqrt(far), _scaled_quantile(far), 9)


def _scaled_quantile(w: np.ndarray) -> np.ndarray:
    z = np.sqrt(-np.expm1(-w))
    return np.asarray(-special.ndtri(np.exp(-w) / (2 * (1 + z))) / z)


def _polynomial_value(op: GraphBuilder, x: ir.Value, polynomial: np.polynomial.Polynomial) -> ir.Value:
    """Return a polynomial, computed on its mapped domain between -1 and 1, where float32 is most exact."""
    shift, factor = polynomial.mapparms()
    scaled, (*lower, highest) = op.Add(op.Mul(x, float(factor)), float(shift)), polynomial.coef
    result = op.Add(op.Mul(scaled, float(highest)), float(lower.pop()))
    for coefficient in reversed(lower):
        result = op.Add(op.Mul(result, scaled), float(coefficient))
    return result


# Converters of models that compare rows with points: kernel ridge regression, label propagation, nearest centroids.


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
    AdditiveChi2Sampler: of_rows(_additive_waves, _columns_of_additive_waves),
    Nystroem: of_rows(_nystroem, lambda approximation: len(approximation.normalization_), _has_known_kernel),
    QuantileTransformer: of_rows(
        _normal_quantiles,
        lambda transformer: transformer.n_features_in_,
        lambda transformer: transformer.output_distribution == "normal" and len(transformer.references_) > 1,
    ),
    RBFSampler: of_rows(_waves_of_numbers, lambda sampler: sampler.n_components),
    SkewedChi2Sampler: of_rows(_waves_of_logarithms, lambda sampler: sampler.n_components),
    SplineTransformer: of_rows(_splines, lambda transformer: transformer.n_features_out_, _has_known_ends),
    KernelRidge: of_rows(_kernel_ridge, _outputs, _takes_ridge),
    LabelPropagation: Converter(_propagated, takes=_takes_propagation),
    LabelSpreading: Converter(_propagated, takes=_takes_propagation),
    NearestCentroid: Converter(_nearest_centroid),
}
