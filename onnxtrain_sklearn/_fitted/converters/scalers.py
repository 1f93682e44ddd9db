"""Converters of scalers and power transforms: one shift and one factor, or one exponent, per feature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from ..._graph.builder import GraphBuilder
from ..._support.typing import Estimator
from ..traversal import Path, follow
from .context import Converter, Source, of_rows

NEAR_ZERO = 1e-3
"""Exponents below it are too close to zero to divide by in float32."""


def _standardized(s: Source) -> ir.Value:
    return standardized(s, s.x)


def standardized(s: Source, x: ir.Value, path: Path = ()) -> ir.Value:
    """Return ``(x - mean_) / scale_`` of a StandardScaler, which ``path`` leads to from the estimator."""
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
    """Powers of positive numbers only: others have the gradient NaN.

    A number x becomes ((x + 1)**lambda - 1) / lambda, and -((1 - x)**(2 - lambda) - 1) / (2 - lambda) if it is
    negative (Yeo and Johnson), or (x**lambda - 1) / lambda (Box and Cox).
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
    """Return (exp(exponent logarithm) - 1) / exponent; its series where one of the ``values`` is next to zero."""
    product = op.Mul(logarithm, exponent)
    if np.abs(values).min() >= NEAR_ZERO:
        return op.Div(op.Sub(op.Exp(product), 1.0), exponent)
    small = op.Less(op.Abs(exponent), NEAR_ZERO)
    series = op.Mul(logarithm, op.Add(op.Mul(op.Add(op.Mul(product, 1 / 3), 1.0), op.Mul(product, 0.5)), 1.0))
    divisor = op.Where(small, 1.0, exponent)
    return op.Where(small, series, op.Div(op.Sub(op.Exp(op.Mul(logarithm, divisor)), 1.0), divisor))


def _per_feature(emit: Callable[[Source], ir.Value]) -> Converter:
    return of_rows(emit, lambda scaler: scaler.n_features_in_)


CONVERTERS: dict[type, Converter] = {
    MaxAbsScaler: _per_feature(_scaled_by_largest),
    MinMaxScaler: _per_feature(_into_range),
    PowerTransformer: _per_feature(_power_transform),
    RobustScaler: _per_feature(_robust),
    StandardScaler: _per_feature(_standardized),
}
