"""Converter of regressors that are fitted to transformed targets: the inverse transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

from ..._graph.builder import GraphBuilder
from ...exceptions import ModelError
from ..steps import last_step
from ..traversal import Path, follow
from .context import Converter, Source
from .preprocessing import applied

Inverse = Callable[[Source, ir.Value, Path], ir.Value]
"""``inverse(source, y, path)`` inverts the transformer at a path from the regressor."""


def _scaled(shift: str | None = None) -> Inverse:
    """Return the inverse of a transformer that subtracts its shift and divides by its scale, where it has them."""

    def inverse(s: Source, y: ir.Value, path: Path) -> ir.Value:
        transformer = follow(s.estimator, path)
        if transformer.scale_ is not None:
            y = s.op.Mul(y, s.parameter(s.estimator, (*path, "scale_")))
        if shift and getattr(transformer, shift) is not None and getattr(transformer, "with_mean", True):
            y = s.op.Add(y, s.parameter(s.estimator, (*path, shift)))
        return y

    return inverse


def _from_range(s: Source, y: ir.Value, path: Path) -> ir.Value:
    low, scale = (s.parameter(s.estimator, (*path, part)) for part in ("min_", "scale_"))
    return s.op.Div(s.op.Sub(y, low), scale)


def _from_powers(s: Source, y: ir.Value, path: Path) -> ir.Value:
    """(1 + lambda y) ** (1 / lambda); Yeo and Johnson use 2 - lambda for negative numbers."""
    op, transformer = s.op, follow(s.estimator, path)
    if divides_by_zero(transformer):
        raise ModelError(
            "A PowerTransformer of targets has no ONNX form where an exponent is next to 0, or to 2 by Yeo and Johnson."
        )
    if transformer.standardize:
        y = _target_inverse(s, y, (*path, "_scaler"))
    exponent = s.parameter(s.estimator, (*path, "lambdas_"))
    if transformer.method == "box-cox":
        return _root_of(op, y, exponent)
    above, below = op.Relu(y), op.Relu(op.Neg(y))
    return op.Sub(op.Sub(_root_of(op, above, exponent), 1.0), op.Sub(_root_of(op, below, op.Sub(2.0, exponent)), 1.0))


def divides_by_zero(transformer: PowerTransformer) -> bool:
    """Whether a power that the inverse divides by is next to zero, where scikit-learn takes logarithms."""
    power = np.asarray(transformer.lambdas_, np.float64)
    divisors = power if transformer.method == "box-cox" else power * (2 - power)
    return bool(np.abs(divisors).min() < 1e-3)


def _root_of(op: GraphBuilder, y: ir.Value, exponent: ir.Value) -> ir.Value:
    return op.Exp(op.Div(op.Log(op.Add(op.Mul(y, exponent), 1.0)), exponent))


def _target_function(s: Source, y: ir.Value, path: Path) -> ir.Value:
    transformer = follow(s.estimator, path)
    return applied(s.op, y, transformer.inverse_func, transformer.inv_kw_args)


def _steps(s: Source, y: ir.Value, path: Path) -> ir.Value:
    for name, _ in reversed(follow(s.estimator, path).steps):
        y = _target_inverse(s, y, (*path, "named_steps", name))
    return y


INVERSES: dict[type, Inverse] = {
    FunctionTransformer: _target_function,
    MaxAbsScaler: _scaled(),
    MinMaxScaler: _from_range,
    Pipeline: _steps,
    PowerTransformer: _from_powers,
    RobustScaler: _scaled("center_"),
    StandardScaler: _scaled("mean_"),
}
"""The inverses by the class of the transformer."""


def _target_inverse(s: Source, y: ir.Value, path: Path) -> ir.Value:
    kind = type(follow(s.estimator, path))
    if kind not in INVERSES:
        known = ", ".join(sorted(kind.__name__ for kind in INVERSES))
        raise ModelError(f"The inverse of {kind.__name__} has no ONNX form here; those of {known} have one.")
    return INVERSES[kind](s, y, path)


def _untransformed_target(s: Source) -> Sequence[ir.Value]:
    """Convert the last step of the regressor; those before it are converted before this one."""
    (y,) = s.convert_inner(last_step(s.estimator.regressor_), s.x, False)
    return [inverse_of(s, y)]


def inverse_of(s: Source, y: ir.Value) -> ir.Value:
    """Return the targets that the transformer of a regressor made ``y`` of."""
    return _target_inverse(s, y, ("transformer_",))


def _outputs(regressor: TransformedTargetRegressor) -> int:
    return int(getattr(regressor.transformer_, "n_features_in_", 1))


CONVERTERS: dict[type, Converter] = {TransformedTargetRegressor: Converter(_untransformed_target, _outputs)}
