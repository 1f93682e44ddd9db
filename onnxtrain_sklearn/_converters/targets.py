"""Converters: what a regressor predicts, back from the transformed targets that it was fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

from .._graph.builder import GraphBuilder
from ..exceptions import ModelError
from .features import applied
from .source import Converter, Source, parameter

Inverse = Callable[[GraphBuilder, ir.Value, Any, str], ir.Value]


def _scaled(scale: str, shift: str) -> Inverse:
    """Return the inverse of a transformer that takes its shift away and divides by its scale, where it has them."""

    def inverse(op: GraphBuilder, y: ir.Value, transformer: Any, name: str) -> ir.Value:
        if getattr(transformer, scale, None) is not None:
            y = op.Mul(y, parameter(op, f"{name}.{scale}", getattr(transformer, scale)))
        if getattr(transformer, shift, None) is not None and getattr(transformer, "with_mean", True):
            y = op.Add(y, parameter(op, f"{name}.{shift}", getattr(transformer, shift)))
        return y

    return inverse


def _from_range(op: GraphBuilder, y: ir.Value, scaler: MinMaxScaler, name: str) -> ir.Value:
    low, scale = (parameter(op, f"{name}.{part}", getattr(scaler, part)) for part in ("min_", "scale_"))
    return op.Div(op.Sub(y, low), scale)


def _from_powers(op: GraphBuilder, y: ir.Value, transformer: PowerTransformer, name: str) -> ir.Value:
    """(1 + lambda y) ** (1 / lambda), and as Yeo and Johnson have it with 2 - lambda for what is below zero."""
    power = np.asarray(transformer.lambdas_, np.float32)
    if np.abs(power * (2 - power)).min() < 1e-3:
        raise ModelError("A PowerTransformer of targets has no ONNX form where an exponent is next to 0 or 2.")
    if transformer.standardize:
        y = _scaled("scale_", "mean_")(op, y, transformer._scaler, f"{name}._scaler")
    exponent = parameter(op, f"{name}.lambdas", power)
    if transformer.method == "box-cox":
        return _root_of(op, y, exponent)
    above, below = op.Relu(y), op.Relu(op.Neg(y))
    return op.Sub(op.Sub(_root_of(op, above, exponent), 1.0), op.Sub(_root_of(op, below, op.Sub(2.0, exponent)), 1.0))


def _root_of(op: GraphBuilder, y: ir.Value, exponent: ir.Value) -> ir.Value:
    return op.Exp(op.Div(op.Log(op.Add(op.Mul(y, exponent), 1.0)), exponent))


def _function(op: GraphBuilder, y: ir.Value, transformer: FunctionTransformer, name: str) -> ir.Value:
    return applied(op, y, transformer.inverse_func, transformer.inv_kw_args)


def _steps(op: GraphBuilder, y: ir.Value, pipeline: Pipeline, name: str) -> ir.Value:
    for step, transformer in reversed(pipeline.steps):
        y = _inverse(op, y, transformer, f"{name}.{step}")
    return y


INVERSES: dict[type, Inverse] = {
    FunctionTransformer: _function,
    MaxAbsScaler: _scaled("scale_", ""),
    MinMaxScaler: _from_range,
    Pipeline: _steps,
    PowerTransformer: _from_powers,
    RobustScaler: _scaled("scale_", "center_"),
    StandardScaler: _scaled("scale_", "mean_"),
}
"""What undoes transformers."""


def _inverse(op: GraphBuilder, y: ir.Value, transformer: Any, name: str) -> ir.Value:
    if type(transformer) not in INVERSES:
        known = ", ".join(sorted(kind.__name__ for kind in INVERSES))
        raise ModelError(
            f"The inverse of {type(transformer).__name__} has no ONNX form here; those of {known} have one."
        )
    return INVERSES[type(transformer)](op, y, transformer, name)


def _back(s: Source) -> Sequence[ir.Value]:
    (y,) = s.within(s.estimator.regressor_, s.x, False)
    return [_inverse(s.op, y, s.estimator.transformer_, "transformer")]


def _outputs(regressor: TransformedTargetRegressor) -> int:
    return int(getattr(regressor.transformer_, "n_features_in_", 1))


CONVERTERS: dict[type, Converter] = {TransformedTargetRegressor: Converter(_back, _outputs)}
