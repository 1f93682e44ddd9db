"""Converters of transformers: functions, distances to centers, imputers, indicators of missing values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import special
from sklearn.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.preprocessing import FunctionTransformer, Normalizer

from ..._graph.builder import GraphBuilder
from ..._graph.cast_types import DOUBLE, FLOAT
from ..._support.typing import Estimator
from ...exceptions import ModelError
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
"""The operators of functions of numpy and scipy."""


def applied(
    op: GraphBuilder, x: ir.Value, function: Callable[..., object] | None, settings: Mapping[str, object] | None
) -> ir.Value:
    """Return a function of :data:`NUMPY_FUNCTIONS` of each number; None is the identity."""
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
    """Whether a number, or NaN, marks missing values."""
    return isinstance(imputer.missing_values, float | int)


def _imputes_numbers(imputer: Estimator) -> bool:
    return _has_numeric_marker(imputer) and not any(isinstance(number, str) for number in imputer.statistics_)


def _filled(s: Source) -> ir.Value:
    """Replace missing values by the statistics, and add the columns of the indicator."""
    op, x, imputer = s.op, s.x, s.estimator
    statistics = np.asarray(imputer.statistics_, np.float32)
    kept = np.flatnonzero(~np.isnan(statistics))
    whole = len(kept) == len(statistics)
    chosen = x if whole else _gathered(op, x, kept)
    # NaN marks columns that are dropped: such statistics are not trained.
    trained = whole and imputer.strategy != "constant"
    numbers = s.parameter(imputer, "statistics_") if trained else statistics[kept]
    filled = op.Where(_missing(op, chosen, imputer.missing_values), numbers, chosen)
    return _with_indicators(op, x, filled, imputer)


def _count_filled(imputer: Estimator, kept: np.ndarray) -> int:
    return int(np.count_nonzero(kept)) + (len(imputer.indicator_.features_) if imputer.add_indicator else 0)


def _filled_by_neighbors(s: Source) -> ir.Value:
    """Replace a missing value by the mean of its column over the nearest rows that have a value there.

    These rows are data and are not trained.
    """
    op, x, imputer = s.op, s.x, s.estimator
    missing = _missing(op, x, imputer.missing_values)
    order, columns = _distances_of_known(op, x, missing, imputer), []
    for i in np.flatnonzero(imputer._valid_mask | imputer.keep_empty_features):
        absent, column = _gathered(op, missing, [i]), _gathered(op, x, [i])
        if imputer._valid_mask[i]:
            columns.append(op.Where(absent, _mean_of_donors(op, order, imputer, i), column))
        else:
            columns.append(op.Mul(op.Cast(absent, to=FLOAT), 0.0))
    return _with_indicators(op, x, op.Concat(*columns, axis=1), imputer)


def _distances_of_known(op: GraphBuilder, x: ir.Value, missing: ir.Value, imputer: KNNImputer) -> ir.Value:
    """Return the mean squared difference over features known in both rows, or a very large number without any."""
    known = np.where(imputer._mask_fit_X, 0.0, imputer._fit_X).astype(np.float64)
    there = (~imputer._mask_fit_X).astype(np.float64)
    given = op.Cast(op.Where(missing, 0.0, x), to=DOUBLE)
    here = op.Cast(op.Not(missing), to=DOUBLE)
    squares = op.Add(op.MatMul(op.Mul(given, given), there.T.copy()), op.MatMul(here, (known**2).T.copy()))
    total = op.Max(op.Sub(squares, op.MatMul(given, 2 * known.T)), np.zeros(()))
    count = op.MatMul(here, there.T.copy())
    return op.Where(op.Greater(count, np.zeros(())), op.Div(total, op.Max(count, np.ones(()))), np.array(_NO_DISTANCE))


def _mean_of_donors(op: GraphBuilder, order: ir.Value, imputer: KNNImputer, i: object) -> ir.Value:
    """Return the mean of a column over the nearest rows that have a value, or over all rows where none is near."""
    donors = np.flatnonzero(~imputer._mask_fit_X[:, i])
    numbers = np.asarray(imputer._fit_X[donors, i], np.float32)
    count = np.array([min(imputer.n_neighbors, len(donors))])
    distance, nearest = op.emit("TopK", _gathered(op, order, donors), count, axis=1, largest=0, outputs=2)
    distance.dtype, nearest.dtype = ir.DataType.DOUBLE, ir.DataType.INT64
    near = op.Cast(op.Less(distance, np.array(_NO_DISTANCE)), to=FLOAT)
    total = op.ReduceSum(op.Mul(near, op.Gather(numbers, nearest, axis=0)), axes=[1], keepdims=True)
    share = op.ReduceSum(near, axes=[1], keepdims=True)
    return op.Where(op.Greater(share, 0.0), op.Div(total, op.Max(share, 1.0)), float(numbers.mean(dtype=float)))


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
        _imputes_numbers,
    ),
}
