r"""Updates of onnxruntime's training sessions as standard operators: SGD, Adam, AdamW, Lamb; attributes per weight.

With the averages :math:`m ← α m + (1 - α) g` and :math:`v ← β v + (1 - β) g^2`, divided by :math:`1 - α^t` and
:math:`1 - β^t` if the bias is corrected, the direction is :math:`d = m / (\sqrt v + ε)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from ..exceptions import nearest
from .training_parameters import TrainingParameters

MOMENTS = ("Moment_1", "Moment_2")
UPDATE_COUNT = "Update_Count"

_ADAM: dict[str, float] = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-6, "max_norm_clip": 1.0}
DEFAULT_ATTRIBUTES: dict[str, dict[str, float]] = {
    "SGDOptimizer": {},
    "AdamOptimizer": {**_ADAM, "do_bias_correction": 1, "weight_decay_mode": 0},
    "AdamWOptimizer": {
        "alpha": 0.9,
        "beta": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.01,
        "max_norm_clip": 1.0,
        "correct_bias": 1,
        "adam_mode": 0,
    },
    "LambOptimizer": {**_ADAM, "ratio_min": -np.inf, "ratio_max": np.inf, "do_bias_correction": 1},
}
INTEGERS = {"do_bias_correction", "weight_decay_mode", "correct_bias", "adam_mode"}


def attributes_of(parameters: TrainingParameters, name: str) -> dict[str, float]:
    """Return the attributes of the optimizer for the weight ``name``; raise ValueError for an unknown one."""
    default = DEFAULT_ATTRIBUTES[parameters.training_optimizer_name]
    floats = parameters.optimizer_attributes_map.get(name, {})
    integers = parameters.optimizer_int_attributes_map.get(name, {})
    for given, valid in ((floats, default.keys() - INTEGERS), (integers, default.keys() & INTEGERS)):
        for key in given:
            if key not in valid:
                raise ValueError(f"{parameters.training_optimizer_name} has no attribute {key!r}.{nearest(key, valid)}")
    return {**default, **floats, **integers}


@dataclass(frozen=True)
class Update:
    """The inputs of the update of one weight; all but the first three are scalars of a run."""

    weight: ir.Value
    gradient: ir.Value
    moments: Sequence[ir.Value]
    rate: ir.Value
    count: ir.Value


def emit_updates(
    op: GraphBuilder, parameters: TrainingParameters, updates: Mapping[str, Update]
) -> dict[str, list[ir.Value]]:
    """Emit the new value of each weight, followed by its new moments."""
    kind = parameters.training_optimizer_name
    settings = {name: attributes_of(parameters, name) for name in updates}
    scale = None
    if parameters.enable_grad_norm_clip and kind != "SGDOptimizer":
        limit = max(one["max_norm_clip"] for one in settings.values())
        scale = _scale(op, [one.gradient for one in updates.values()], limit)
    results = {}
    for name, one in updates.items():
        op.dtype = one.weight.dtype or ir.DataType.FLOAT
        gradient = one.gradient if scale is None else op.Mul(one.gradient, op.Cast(scale, to=op.dtype))
        rate, count = op.Cast(one.rate, to=op.dtype), op.Cast(one.count, to=op.dtype)
        if kind == "SGDOptimizer":
            results[name] = [op.Sub(one.weight, op.Mul(gradient, rate))]
        else:
            results[name] = _adam(op, kind, settings[name], one, gradient, rate, count)
    return results


def _scale(op: GraphBuilder, gradients: Sequence[ir.Value], limit: float) -> ir.Value:
    """Emit the factor that clips the global gradient norm, computed in float64."""
    op.dtype = ir.DataType.DOUBLE
    squares = [op.ReduceSumSquare(op.Cast(g, to=ir.DataType.DOUBLE), keepdims=False) for g in gradients]
    norm = op.Sqrt(reduce(op.Add, squares))
    return op.Min(op.Div(float(limit), op.Add(norm, 1e-12)), 1.0)


def _adam(
    op: GraphBuilder,
    kind: str,
    settings: Mapping[str, float],
    one: Update,
    gradient: ir.Value,
    rate: ir.Value,
    count: ir.Value,
) -> list[ir.Value]:
    w, decay = one.weight, settings.get("weight_decay", settings.get("lambda", 0.0))
    alpha, beta = settings["alpha"], settings["beta"]
    first = _moving_average(op, one.moments[0], gradient, alpha)
    second = _moving_average(op, one.moments[1], op.Mul(gradient, gradient), beta)
    corrected = bool(settings.get("do_bias_correction", settings.get("correct_bias")))
    m, v = (_corrected(op, x, b, count) if corrected else x for x, b in ((first, alpha), (second, beta)))
    late = settings.get("weight_decay_mode", settings.get("adam_mode", 0))
    if late:  # epsilon is added before the bias correction; the decay is applied after the step
        root = _corrected_root(op, beta, count) if corrected else None
        direction = op.Div(m, op.Add(op.Sqrt(second), settings["epsilon"]))
        direction = direction if root is None else op.Mul(direction, root)
        new = op.Sub(w, op.Mul(direction, rate))
        return [op.Sub(new, op.Mul(op.Mul(new, decay), rate)) if decay else new, first, second]
    direction = op.Div(m, op.Add(op.Sqrt(v), settings["epsilon"]))
    direction = op.Add(direction, op.Mul(w, decay)) if decay else direction
    if kind == "LambOptimizer":
        direction = op.Mul(direction, _trust_ratio(op, w, direction, settings))
    return [op.Sub(w, op.Mul(direction, rate)), first, second]


def _moving_average(op: GraphBuilder, old: ir.Value, new: ir.Value, share: float) -> ir.Value:
    return op.Add(op.Mul(old, share), op.Mul(new, 1.0 - share))


def _corrected(op: GraphBuilder, average: ir.Value, share: float, count: ir.Value) -> ir.Value:
    return op.Div(average, op.Sub(1.0, op.Pow(op.value(share), count)))


def _corrected_root(op: GraphBuilder, share: float, count: ir.Value) -> ir.Value:
    return op.Sqrt(op.Sub(1.0, op.Pow(op.value(share), count)))


def _trust_ratio(op: GraphBuilder, w: ir.Value, direction: ir.Value, settings: Mapping[str, float]) -> ir.Value:
    """Emit the norm of the weight divided by that of the step, 1 if one of them is zero."""
    norms = [op.Sqrt(op.ReduceSumSquare(x, keepdims=False)) for x in (w, direction)]
    nonzero = [op.Cast(op.Cast(x, to=ir.DataType.BOOL), to=op.dtype) for x in norms]
    both = op.Mul(*nonzero)
    ratio = op.Div(norms[0], op.Add(norms[1], op.Sub(1.0, nonzero[1])))
    bounds = [np.asarray(settings[name], op.dtype.numpy()) for name in ("ratio_min", "ratio_max")]
    held = op.Min(op.Max(ratio, bounds[0]), bounds[1])
    return op.Add(op.Mul(held, both), op.Sub(1.0, both))
