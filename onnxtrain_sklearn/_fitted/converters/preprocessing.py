"""Convert transformers: functions, imputers, scalers, power and quantile transforms, splines, encoders."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from scipy import special
from sklearn.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)

from ..._utils.typing import Estimator
from ...exceptions import ModelError
from ...graph import DOUBLE, FLOAT, INT64, GraphBuilder
from ..fitted_model import Path, follow
from .context import Converter, Source, of_rows
from .neighbors import distances

Function = Callable[[GraphBuilder, ir.Value], ir.Value]

_NO_DISTANCE = 1e300

NUMPY_FUNCTIONS: dict[Any, Function] = {
    np.abs: lambda op, x: op.Abs(x),
    np.arcsinh: lambda op, x: op.Asinh(x),
    np.arctan: lambda op, x: op.Atan(x),
    np.cos: lambda op, x: op.Cos(x),
    np.cosh: lambda op, x: op.Cosh(x),
    np.exp: lambda op, x: op.Exp(x),
    np.exp2: lambda op, x: op.Exp(op.Mul(x, math.log(2))),
    np.expm1: lambda op, x: op.Sub(op.Exp(x), 1.0),
    np.fabs: lambda op, x: op.Abs(x),
    np.log: lambda op, x: op.Log(x),
    np.log10: lambda op, x: op.Mul(op.Log(x), 1 / math.log(10)),
    np.log1p: lambda op, x: op.Log(op.Add(x, 1.0)),
    np.log2: lambda op, x: op.Mul(op.Log(x), 1 / math.log(2)),
    np.negative: lambda op, x: op.Neg(x),
    np.reciprocal: lambda op, x: op.Reciprocal(x),
    np.sin: lambda op, x: op.Sin(x),
    np.sinh: lambda op, x: op.Sinh(x),
    np.sqrt: lambda op, x: op.Sqrt(x),
    np.square: lambda op, x: op.Mul(x, x),
    np.tan: lambda op, x: op.Tan(x),
    np.tanh: lambda op, x: op.Tanh(x),
    special.expit: lambda op, x: op.Sigmoid(x),
    special.logit: lambda op, x: op.Log(op.Div(x, op.Sub(1.0, x))),
}
"""For each function of NumPy or SciPy, the function that emits its operators."""


def applied(
    op: GraphBuilder, x: ir.Value, function: Callable[..., object] | None, settings: Mapping[str, object] | None
) -> ir.Value:
    """Apply to ``x`` the operators of ``function``, a key of :data:`NUMPY_FUNCTIONS`, or None for the identity."""
    if function is None:
        return op.Identity(x)
    if function not in NUMPY_FUNCTIONS or settings:
        known = ", ".join(sorted(known.__name__ for known in NUMPY_FUNCTIONS))
        raise ModelError(
            f"FunctionTransformer(func={getattr(function, '__name__', function)!r}) has no ONNX form: of functions, "
            f"those of numpy and scipy.special named {known} have one, without further arguments."
        )
    return NUMPY_FUNCTIONS[function](op, x)


def _function(s: Source) -> ir.Value:
    return applied(s.op, s.x, s.estimator.func, s.estimator.kw_args)


def _distances_to_centers(s: Source) -> ir.Value:
    return distances(s.op, s.x, s.parameter(s.estimator, "cluster_centers_"), 2)


def _divided_by_largest(s: Source) -> ir.Value:
    """Divide each row by its largest absolute value; skl2onnx divides by the largest value."""
    op = s.op
    size = op.ReduceMax(op.Abs(s.x), axes=[1], keepdims=True)
    return op.Div(s.x, op.Where(op.Equal(size, 0.0), 1.0, size))


# Missing values


def _missing(op: GraphBuilder, x: ir.Value, marker: float) -> ir.Value:
    return op.IsNaN(x) if np.isnan(marker) else op.Equal(x, float(marker))


def _gathered(op: GraphBuilder, x: ir.Value, chosen: object) -> ir.Value:
    return op.Gather(x, np.asarray(chosen, np.int64), axis=1)


def _indicators(op: GraphBuilder, x: ir.Value, indicator: MissingIndicator) -> ir.Value:
    marked = _missing(op, _gathered(op, x, indicator.features_), indicator.missing_values)
    return op.Cast(marked, to=FLOAT)


def _indicators_alone(s: Source) -> ir.Value:
    indicator = s.estimator
    some_had_none = len(indicator.features_) < indicator.n_features_in_
    if indicator.error_on_new and some_had_none:
        raise ModelError(
            "This MissingIndicator has no ONNX form: it raises an error for missing values in columns that had none in "
            "fit, which a graph cannot do. Fit it with error_on_new=False, or with features='all'."
        )
    return _indicators(s.op, s.x, indicator)


def _with_indicators(op: GraphBuilder, x: ir.Value, filled: ir.Value, imputer: Estimator) -> ir.Value:
    return op.Concat(filled, _indicators(op, x, imputer.indicator_), axis=1) if imputer.add_indicator else filled


def _has_numeric_marker(imputer: Estimator) -> bool:
    """Return True if a number, or NaN, marks missing values."""
    return isinstance(imputer.missing_values, float | int)


def _filled(s: Source) -> ir.Value:
    """Convert SimpleImputer: replace missing values by the statistics, and append the indicator's columns."""
    op, x, imputer = s.op, s.x, s.estimator
    statistics = np.asarray(imputer.statistics_, np.float32)
    kept = np.flatnonzero(~np.isnan(statistics))
    whole = len(kept) == len(statistics)
    chosen = x if whole else _gathered(op, x, kept)
    # If some statistics are NaN, which means that the column is dropped, the statistics are constants.
    trained = whole and imputer.strategy != "constant"
    numbers = s.parameter(imputer, "statistics_") if trained else statistics[kept]
    filled = op.Where(_missing(op, chosen, imputer.missing_values), numbers, chosen)
    return _with_indicators(op, x, filled, imputer)


def _count_filled(imputer: Estimator, kept: np.ndarray) -> int:
    return int(np.count_nonzero(kept)) + (len(imputer.indicator_.features_) if imputer.add_indicator else 0)


def _filled_by_neighbors(s: Source) -> ir.Value:
    """Convert KNNImputer: replace a missing value by its column's mean over the nearest rows that have a value there.

    The rows of the fitted imputer are data and are not trained.
    """
    op, x, imputer = s.op, s.x, s.estimator
    missing = _missing(op, x, imputer.missing_values)

    # Distance: the mean squared difference of the features present in both rows; without any, a very large number.
    known = np.where(imputer._mask_fit_X, 0.0, imputer._fit_X).astype(np.float64)
    there = (~imputer._mask_fit_X).astype(np.float64)
    given = op.Cast(op.Where(missing, 0.0, x), to=DOUBLE)
    here = op.Cast(op.Not(missing), to=DOUBLE)
    squares = op.Add(op.MatMul(op.Mul(given, given), there.T.copy()), op.MatMul(here, (known**2).T.copy()))
    total = op.Max(op.Sub(squares, op.MatMul(given, 2 * known.T)), np.zeros(()))
    count = op.MatMul(here, there.T.copy())
    is_known = op.Greater(count, np.zeros(()))
    away = op.Where(is_known, op.Div(total, op.Max(count, np.ones(()))), np.array(_NO_DISTANCE))

    columns = list[ir.Value]()
    for i in np.flatnonzero(imputer._valid_mask | imputer.keep_empty_features):
        absent, column = _gathered(op, missing, [i]), _gathered(op, x, [i])
        if not imputer._valid_mask[i]:  # no fitted row has a value in this column: fill in zero
            columns.append(op.Mul(op.Cast(absent, to=FLOAT), 0.0))
            continue
        # Take the mean over the nearest rows that have a value here, or over all such rows if none shares a feature.
        donors = np.flatnonzero(~imputer._mask_fit_X[:, i])
        numbers = np.asarray(imputer._fit_X[donors, i], np.float32)
        most = np.array([min(imputer.n_neighbors, len(donors))])
        distance, nearest = op.emit("TopK", _gathered(op, away, donors), most, axis=1, largest=0, outputs=2)
        distance.dtype, nearest.dtype = ir.DataType.DOUBLE, ir.DataType.INT64
        near = op.Cast(op.Less(distance, np.array(_NO_DISTANCE)), to=FLOAT)
        total = op.ReduceSum(op.Mul(near, op.Gather(numbers, nearest, axis=0)), axes=[1], keepdims=True)
        share = op.ReduceSum(near, axes=[1], keepdims=True)
        any_near = op.Greater(share, 0.0)
        mean = op.Where(any_near, op.Div(total, op.Max(share, 1.0)), float(numbers.mean(dtype=float)))
        columns.append(op.Where(absent, mean, column))
    return _with_indicators(op, x, op.Concat(*columns, axis=1), imputer)


# Converters of scalers and power transforms: one shift and one factor, or one exponent, per feature.


NEAR_ZERO = 1e-3
"""Exponents with a smaller magnitude are too close to zero to divide by in float32."""


def standardized(s: Source, x: ir.Value, path: Path = ()) -> ir.Value:
    """Return ``(x - mean_) / scale_`` of the StandardScaler at ``path`` from the converted estimator."""
    scaler = follow(s.estimator, path)
    if scaler.with_mean:
        x = s.op.Sub(x, s.parameter(s.estimator, (*path, "mean_")))
    return s.op.Div(x, s.parameter(s.estimator, (*path, "scale_"))) if scaler.with_std else x


def _robust(s: Source) -> ir.Value:
    op, scaler, x = s.op, s.estimator, s.x
    if scaler.with_centering:
        x = op.Sub(x, s.parameter(scaler, "center_"))
    return op.Div(x, s.parameter(scaler, "scale_")) if scaler.with_scaling else x


def _scaled_by_largest(s: Source) -> ir.Value:
    scaled = s.op.Div(s.x, s.parameter(s.estimator, "scale_"))
    return _clipped_to_range(s.op, scaled, s.estimator, (-1, 1))


def _into_range(s: Source) -> ir.Value:
    op, scaler = s.op, s.estimator
    scaled = op.Add(op.Mul(s.x, s.parameter(scaler, "scale_")), s.parameter(scaler, "min_"))
    return _clipped_to_range(op, scaled, scaler, scaler.feature_range)


def _clipped_to_range(op: GraphBuilder, x: ir.Value, scaler: Estimator, limits: tuple[float, float]) -> ir.Value:
    low, high = map(np.float32, limits)
    return op.Clip(x, low, high) if getattr(scaler, "clip", False) else x


# Powers


def _power_transform(s: Source) -> ir.Value:
    """Convert PowerTransformer by powers of positive numbers only, because others would have a gradient of NaN.

    Yeo and Johnson: ((x + 1)**lambda - 1) / lambda, or -((1 - x)**(2 - lambda) - 1) / (2 - lambda) for negative x.
    Box and Cox: (x**lambda - 1) / lambda.
    """
    op, transformer = s.op, s.estimator
    exponent = s.parameter(transformer, "lambdas_")
    lambdas = np.asarray(transformer.lambdas_, np.float64)
    if transformer.method == "box-cox":
        result = _power_of(op, op.Log(s.x), exponent, lambdas)
    else:
        above, below = (op.Log(op.Add(op.Relu(side), 1.0)) for side in (s.x, op.Neg(s.x)))
        parts = (
            _power_of(op, above, exponent, lambdas),
            _power_of(op, below, op.Sub(2.0, exponent), 2 - lambdas),
        )
        result = op.Sub(*parts)
    return standardized(s, result, ("_scaler",)) if transformer.standardize else result


def _power_of(op: GraphBuilder, logarithm: ir.Value, exponent: ir.Value, values: np.ndarray) -> ir.Value:
    """Return (exp(exponent * logarithm) - 1) / exponent; if an exponent in ``values`` is near zero, by its series."""
    product = op.Mul(logarithm, exponent)
    if np.abs(values).min() >= NEAR_ZERO:
        return op.Div(op.Sub(op.Exp(product), 1.0), exponent)
    small = op.Less(op.Abs(exponent), NEAR_ZERO)
    series = op.Mul(logarithm, op.Add(op.Mul(op.Add(op.Mul(product, 1 / 3), 1.0), op.Mul(product, 0.5)), 1.0))
    divisor = op.Where(small, 1.0, exponent)
    return op.Where(small, series, op.Div(op.Sub(op.Exp(op.Mul(logarithm, divisor)), 1.0), divisor))


def _per_feature(emit: Callable[[Source], ir.Value]) -> Converter:
    return of_rows(emit, lambda scaler: scaler.n_features_in_)


# Piecewise functions of each column


def _sorted_positions(op: GraphBuilder, x: ir.Value, table: np.ndarray, *, below: bool = False) -> ir.Value:
    """Return, for each number in ``x``, the position in ``table`` of the largest entry that is not above it.

    Row i of ``table`` holds the sorted entries of column i of ``x``. With ``below``, the entry must be less than the
    number. If no entry is, the first position is returned. Positions count through the flattened table. This is a
    binary search over tensors of the shape of ``x``.
    """
    columns, count = table.shape
    first = np.arange(columns) * count
    place = op.Add(op.Mul(op.Cast(x, to=INT64), 0), first)
    step = 1 << max(count - 1, 1).bit_length()
    while step := step // 2:
        further = op.Min(op.Add(place, np.array(step)), first + count - 1)
        found = op.Gather(table.ravel(), further, axis=0)
        place = op.Where(op.Less(found, x) if below else op.LessOrEqual(found, x), further, place)
    return place


def _piece(op: GraphBuilder, place: ir.Value, x: ir.Value, starts: np.ndarray, *powers: np.ndarray) -> ir.Value:
    """Evaluate a piecewise polynomial at ``x``.

    ``place`` is the piece of each number; ``starts`` holds the starts of the pieces, ``powers`` the coefficients of
    the distance from the start, from the highest power to the lowest.
    """
    ahead = op.Sub(x, op.Gather(starts.ravel(), place, axis=0))
    if powers[0].ndim > starts.ndim:  # there are several splines per feature
        ahead = op.Unsqueeze(ahead, axes=[2])
    tables = [power.reshape(starts.size, *power.shape[starts.ndim :]) for power in powers]
    result = op.Gather(tables[0], place, axis=0)
    for table in tables[1:]:
        result = op.Add(op.Mul(result, ahead), op.Gather(table, place, axis=0))
    return result


def _splines(s: Source) -> ir.Value:
    """Convert SplineTransformer: B-splines as polynomials between knots, with its ``extrapolation`` beyond them."""
    op, x, transformer = s.op, s.x, s.estimator
    degree, splines = transformer.degree, transformer.bsplines_
    knots = np.stack([spline.t[degree : -degree - 1] for spline in splines])
    # Coefficients for each column, piece and spline, from the highest power to the lowest.
    powers = np.stack(
        [[spline(row, nu=p) / math.factorial(p) for spline, row in zip(splines, knots, strict=True)]
         for p in range(degree, -1, -1)]
    )  # fmt: skip
    low = knots[:, 0].astype(np.float32)
    high = np.array([spline.t[-degree - 1] for spline in splines], np.float32)
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


_BOUND = 1e-7  # the bound of shares in scikit-learn's QuantileTransformer


def _normal_quantiles(s: Source) -> ir.Value:
    """Convert QuantileTransformer to the normal distribution: the normal quantile of the interpolated share.

    The share is the mean of two interpolations between quantiles, from below and from above, which differ where
    quantiles are equal. Shares are computed in float64, because float32 is too coarse near 1.
    """
    op, x, transformer = s.op, s.x, s.estimator
    quantiles = np.ascontiguousarray(transformer.quantiles_.T, np.float64)
    exact = op.Cast(x, to=DOUBLE)
    outside = [op.Less(op.Sub(exact, np.array(_BOUND)), quantiles[:, 0])]
    outside += [op.Greater(op.Add(exact, np.array(_BOUND)), quantiles[:, -1])]
    levels = transformer.references_
    rise, run = np.diff(levels), np.diff(quantiles, axis=1)
    slope = np.divide(rise, run, out=np.zeros_like(run), where=run > 0)
    starts = np.ascontiguousarray(quantiles[:, :-1])
    base = np.broadcast_to(levels[:-1], starts.shape).copy()
    shares = [
        _piece(op, _sorted_positions(op, exact, starts, below=below), exact, starts, slope, base)
        for below in (False, True)
    ]
    share = op.Mul(op.Add(*shares), np.array(0.5))
    share = op.Min(op.Max(share, np.array(_BOUND)), np.array(1 - _BOUND))
    ends = special.ndtri([_BOUND - np.spacing(1), 1 - (_BOUND - np.spacing(1))]).astype(np.float32)
    return op.Where(outside[0], ends[0], op.Where(outside[1], ends[1], _inverse_normal(op, share)))


def _inverse_normal(op: GraphBuilder, share: ir.Value) -> ir.Value:
    """Return the normal quantile sqrt(2) z f(w) of the share p: z = 2 p - 1, w = -log(1 - z²), f is a polynomial."""
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
    """Return sqrt(2) f as two polynomials: in w for w up to 5, and in sqrt(w) above."""
    near = (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 400)[1:])) * _SPLIT
    far = np.linspace(_SPLIT, _END, 400)
    fit = np.polynomial.Polynomial.fit
    return fit(near, _scaled_quantile(near), 11), fit(np.sqrt(far), _scaled_quantile(far), 9)


def _scaled_quantile(w: np.ndarray) -> np.ndarray:
    z = np.sqrt(-np.expm1(-w))
    return np.asarray(-special.ndtri(np.exp(-w) / (2 * (1 + z))) / z)


def _polynomial_value(op: GraphBuilder, x: ir.Value, polynomial: np.polynomial.Polynomial) -> ir.Value:
    """Evaluate a polynomial at ``x`` after mapping its domain to [-1, 1], where float32 is most exact."""
    shift, factor = polynomial.mapparms()
    scaled = op.Add(op.Mul(x, float(factor)), float(shift))
    *lower, highest = polynomial.coef
    result = op.Add(op.Mul(scaled, float(highest)), float(lower.pop()))
    for coefficient in reversed(lower):
        result = op.Add(op.Mul(result, scaled), float(coefficient))
    return result


# Converters of categorical encoders: a table for each column, with a row for unknown values and one for each category.
#
# scikit-learn itself fills the tables, by encoding each category. So dropped and infrequent categories and missing
# values are encoded as scikit-learn does.


Encoder: TypeAlias = OneHotEncoder | OrdinalEncoder


def _encoded(s: Source) -> list[ir.Value] | None:
    columns = _single_columns(s)
    if columns is None:
        return None
    op = s.op
    encoder = s.estimator
    parts = list[ir.Value]()
    for i, (column, known, table) in enumerate(zip(columns, encoder.categories_, _tables(encoder), strict=True)):
        if column.dtype is ir.DataType.STRING and encoder.handle_unknown == "error":
            # OneHotEncoder is the only operator that raises an error for unknown categories.
            texts = [str(one) for one in known]
            found = op.emit("OneHotEncoder", column, domain="ai.onnx.ml", cats_strings=texts, zeros=0)[0]
            found.dtype = ir.DataType.FLOAT
            place = op.ArgMax(op.Reshape(found, np.array([-1, len(texts)])), axis=1, keepdims=False)
            parts.append(op.Gather(table[1:], place, axis=0))
        else:
            parts.append(op.Gather(table, op.Squeeze(_place(op, column, known, encoder, i), np.array([1])), axis=0))
    return [parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)]


def _single_columns(s: Source) -> list[ir.Value] | None:
    """Return the columns of the data as separate values; None if their number is not known."""
    columns = list[ir.Value]()
    left = int(s.estimator.n_features_in_)
    for value in s.inputs:
        size = value.shape[1] if value.shape is not None else None
        count = size if isinstance(size, int) else left if len(s.inputs) == 1 else None
        if count is None:
            return None
        columns += [value] if count == 1 else [s.op.Gather(value, np.array([i]), axis=1) for i in range(count)]
        left -= count
    for column in columns:
        column.type = column.type or s.inputs[0].type
    return columns if left == 0 else None


def _place(op: GraphBuilder, column: ir.Value, known: np.ndarray, encoder: Encoder, index: int) -> ir.Value:
    """Return the position of each value among the known categories, counted from 1; 0 for unknown values."""
    if column.dtype is ir.DataType.STRING:
        texts = [str(one) for one in known]
        places = list(range(1, len(known) + 1))
        place = op.emit(
            "LabelEncoder", column, domain="ai.onnx.ml", keys_strings=texts, values_int64s=places, default_int64=0
        )[0]
        place.dtype = ir.DataType.INT64
        return place
    numbers = np.asarray([np.nan if one is None else one for one in known.tolist()], np.float32)
    if len(np.unique(numbers)) < len(known):
        raise ModelError(
            f"Categories in column {index} of this {type(encoder).__name__} are equal as float32: its ONNX form "
            f"cannot tell them apart. Number the categories from 0, and fit the model on that."
        )
    x = column if column.dtype is ir.DataType.FLOAT else op.Cast(column, to=FLOAT)
    found = op.Equal(x, numbers[np.newaxis])
    if (gap := np.isnan(numbers)).any():
        found = op.Or(found, op.And(op.IsNaN(x), gap[np.newaxis]))
    position = op.MatMul(op.Cast(found, to=FLOAT), np.arange(1, len(known) + 1, dtype=np.float32)[:, np.newaxis])
    return op.Cast(position, to=INT64)


def _tables(encoder: Encoder) -> list[np.ndarray]:
    """Return the table of each column: the encoding of unknown values, then the encoding of each known category."""
    twin = copy.copy(encoder)
    if isinstance(encoder, OneHotEncoder):
        vars(twin).update(sparse_output=False)
    for name in ("feature_names_in_", "_sklearn_output_config"):
        vars(twin).pop(name, None)
    known, tables = encoder.categories_, []
    ends = np.cumsum([0, *(_width(encoder, i) for i in range(len(known)))])
    for i, own in enumerate(known):
        rows = np.empty((len(own), len(known)), object if any(one.dtype.kind in "OUS" for one in known) else float)
        for j, one in enumerate(known):
            rows[:, j] = own if j == i else one[0]
        table = np.asarray(twin.transform(rows), np.float32)[:, ends[i] : ends[i + 1]]

        # The row of unknown values: zeros, the row of infrequent categories, or, for ordinal codes, ``unknown_value``.
        rare = _rare(encoder, i)
        if isinstance(encoder, OrdinalEncoder):  # an unknown number gives NaN, because no operator can raise an error
            code = encoder.unknown_value if encoder.handle_unknown == "use_encoded_value" else np.nan
            unknown = np.array([[code]], np.float32)
        elif rare is None or encoder.handle_unknown not in ("infrequent_if_exist", "warn"):
            unknown = np.zeros((1, table.shape[1]), np.float32)
        else:
            place = encoder.categories_[i].tolist().index(rare[0])
            unknown = table[place : place + 1]
        tables.append(np.concatenate([unknown, table]))
    return tables


def _rare(encoder: Encoder, column: int) -> np.ndarray | None:
    """Return the infrequent categories of a column, or None if there are none."""
    found = getattr(encoder, "infrequent_categories_", None)
    return None if found is None else found[column]


def _width(encoder: Encoder, column: int) -> int:
    if isinstance(encoder, OrdinalEncoder):
        return 1
    rare = _rare(encoder, column)
    groups = len(encoder.categories_[column]) - (0 if rare is None else len(rare) - 1)
    return groups - int(encoder.drop_idx_ is not None and encoder.drop_idx_[column] is not None)


def _columns(encoder: Estimator) -> int:
    return sum(_width(encoder, i) for i in range(len(encoder.categories_)))


CONVERTERS: dict[type, Converter] = {
    BisectingKMeans: of_rows(_distances_to_centers, lambda clusters: len(clusters.cluster_centers_)),
    FunctionTransformer: of_rows(
        _function, lambda transformer: transformer.n_features_in_, lambda transformer: transformer.func is not None
    ),
    KMeans: of_rows(_distances_to_centers, lambda clusters: len(clusters.cluster_centers_)),
    KNNImputer: of_rows(
        _filled_by_neighbors,
        lambda imputer: _count_filled(imputer, imputer._valid_mask | imputer.keep_empty_features),
        lambda imputer: (
            _has_numeric_marker(imputer) and imputer.weights == "uniform" and imputer.metric == "nan_euclidean"
        ),
    ),
    MiniBatchKMeans: of_rows(_distances_to_centers, lambda clusters: len(clusters.cluster_centers_)),
    MissingIndicator: of_rows(_indicators_alone, lambda indicator: len(indicator.features_), _has_numeric_marker),
    Normalizer: of_rows(_divided_by_largest, lambda scaler: scaler.n_features_in_, lambda scaler: scaler.norm == "max"),
    SimpleImputer: of_rows(
        _filled,
        lambda imputer: _count_filled(imputer, ~np.isnan(np.asarray(imputer.statistics_, float))),
        lambda imputer: (
            _has_numeric_marker(imputer) and not any(isinstance(number, str) for number in imputer.statistics_)
        ),
    ),
    QuantileTransformer: of_rows(
        _normal_quantiles,
        lambda transformer: transformer.n_features_in_,
        lambda transformer: transformer.output_distribution == "normal" and len(transformer.references_) > 1,
    ),
    SplineTransformer: of_rows(_splines, lambda transformer: transformer.n_features_out_, _has_known_ends),
    MaxAbsScaler: _per_feature(_scaled_by_largest),
    MinMaxScaler: _per_feature(_into_range),
    PowerTransformer: _per_feature(_power_transform),
    RobustScaler: _per_feature(_robust),
    StandardScaler: _per_feature(lambda s: standardized(s, s.x)),
    OneHotEncoder: Converter(_encoded, _columns, takes_text=True),
    OrdinalEncoder: Converter(_encoded, _columns, takes_text=True),
}
