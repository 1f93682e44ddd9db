"""Operators of a step after the gradient: penalty, clipping, update, average of the parameters.

``emit_update`` runs the optimizer on segments of the vectors, as training does; the scalars of the step are computed in
float64 where the target has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._model.loss_terms import penalty_factors, weighted_penalty
from .._training.parameters import Factors, FlatParameters, Segment, require_rows_apart, segments, state_name
from .._training.step_parts import StepSettings
from ..graph import GraphBuilder
from ..optimizers import Optimizer, update_graph
from ..optimizers.in_place import emit_clipped, update_rule
from ..optimizers.scalars import emit_scalars
from .source import PARAMETERS

Vectors = Mapping[str, ir.Value]


@dataclass(frozen=True)
class StepScalars:
    """The learning rate, the number of the step and the factor of a scheduled weight decay, of type ``kind``."""

    learning_rate: ir.Value
    t: ir.Value
    kind: ir.DataType
    decay: ir.Value | None = None


def decays(settings: StepSettings, layout: FlatParameters) -> bool:
    """Return True if any parameter has weight decay."""
    decay = getattr(settings.optimizer, "weight_decay", 0.0)
    return bool(decay) and any(settings.factors.get(name, Factors()).decay for name in layout.names)


def emit_penalty(
    op: GraphBuilder, settings: StepSettings, parameters: ir.Value, size: int, weight: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Emit the penalty on the first ``size`` parameters, divided by the weight of the rows, and its gradient."""
    squares, absolutes = penalty_factors(settings.alpha, settings.l1_ratio)
    penalized = op.Slice(parameters, starts=[0], ends=[size], axes=[0])
    strength = op.Where(op.Greater(weight, 0.0), op.Div(1.0, op.Max(weight, float(np.finfo(np.float32).tiny))), 0.0)
    value = weighted_penalty(op, penalized, squares, absolutes if settings.l1_ratio else None)
    slope = op.Mul(penalized, 2.0 * squares)
    if settings.l1_ratio:
        slope = op.Add(slope, op.Mul(op.Sign(penalized), absolutes))
    rest = op.Mul(op.Slice(parameters, starts=[size], ends=[2**31 - 1], axes=[0]), 0.0)
    return op.Mul(value, strength), op.Concat(op.Mul(slope, strength), rest, axis=0)


def emit_clipping(
    op: GraphBuilder, gradients: ir.Value, limit: float, dtype: ir.DataType, kind: ir.DataType
) -> ir.Value:
    """Emit the gradients with their norm limited, which is computed in type ``kind``."""
    return emit_clipped(GraphBuilder(op.graph, dtype=kind, prefix="clip"), gradients, limit, dtype)[0]


def emit_update(
    op: GraphBuilder,
    settings: StepSettings,
    layout: FlatParameters,
    vectors: Vectors,
    gradients: ir.Value,
    scalars: StepScalars,
    occurs: Vectors,
) -> dict[str, ir.Value]:
    """Emit the new vectors, of the parameters and the optimizer's state, by the names of ``vectors``.

    ``occurs`` holds flags of the rows or columns of matrices, by name: the others keep their values and their state.
    """
    optimizer = settings.optimizer
    assert isinstance(optimizer, Optimizer)
    parts: dict[str, list[ir.Value]] = {name: [] for name in vectors}
    for one in (found := segments(layout, settings.factors, optimizer)):
        if occurs:
            require_rows_apart(one.optimizer)
        emitted = _emit_segment(op, one, vectors, gradients, scalars, alone=len(found) == 1)
        for name, value in emitted.items():
            parts[PARAMETERS if name == PARAMETERS else state_name(name, one.parameter)].append(value)
    new = {name: op.Concat(*values, axis=0) if len(values) > 1 else values[0] for name, values in parts.items()}
    if not occurs:
        return new
    changes = _changed_elements(op, layout, occurs)
    return {name: op.Where(changes, value, vectors[name]) for name, value in new.items()}


def _changed_elements(op: GraphBuilder, layout: FlatParameters, occurs: Vectors) -> ir.Value:
    """Emit a flag for each element of the vector of parameters, True where the step changes it."""
    found = []
    for name in layout.names:
        view = layout.view(name)
        if name in occurs:
            found.append(op.Reshape(op.Expand(occurs[name], [len(view), view.size // len(view)]), [-1]))
        else:
            found.append(op.ConstantOfShape([view.size], value=ir.tensor(np.ones(1, bool))))
    return op.Concat(*found, axis=0) if len(found) > 1 else found[0]


def _emit_segment(
    op: GraphBuilder,
    one: Segment,
    vectors: Vectors,
    gradients: ir.Value,
    scalars: StepScalars,
    *,
    alone: bool,
) -> dict[str, ir.Value]:
    """Emit the update of a segment: a part of the vectors, or a parameter in its shape and its own arrays of state."""

    def cut(vector: ir.Value) -> ir.Value:
        part = vector if alone else op.Slice(vector, starts=[one.part.start], ends=[one.part.stop], axes=[0])
        return part if one.parameter is None else op.Reshape(part, list(one.parameter.shape))

    rate, own, parameter = scalars.learning_rate, one.optimizer, one.parameter
    if one.factors.rate != 1:
        rate = GraphBuilder(op.graph, dtype=scalars.kind, prefix="rate").Mul(rate, float(one.factors.rate))
    scheduled = scalars.decay is not None and bool(getattr(own, "weight_decay", 0.0))
    # built for its checks, which an invalid update fails: shapes fit, and the update follows the scheduled decay
    slots = update_graph(own, op.dtype, parameter=parameter, scheduled=scheduled).slots
    rule = update_rule(own, op.dtype, scheduled=scheduled)
    exact = GraphBuilder(op.graph, dtype=scalars.kind, prefix="scalar")
    given = [rate, scalars.t, *([scalars.decay] if scheduled and scalars.decay is not None else [])]
    k = emit_scalars(exact, f"{type(own).__name__}.scalars", rule.scalars, *given, dtype=op.dtype)
    state = {n: vectors[state_name(n, parameter)] for n in slots}
    state = {n: cut(vector) for n, vector in state.items()} if parameter is None else state
    new, new_state = rule.update(op, cut(vectors[PARAMETERS]), cut(gradients), state, k)
    return {PARAMETERS: new if parameter is None else op.Reshape(new, [-1]), **new_state}


def emit_average(
    op: GraphBuilder, average: ir.Value, parameters: ir.Value, decay: float, averaged: ir.Value, kind: ir.DataType
) -> ir.Value:
    """Emit the moving average, corrected for its start, after ``averaged`` steps, a value of type ``kind``."""
    exact = GraphBuilder(op.graph, dtype=kind, prefix="average")
    weight = exact.Div(1.0 - decay, exact.Sub(1.0, exact.Pow(decay, averaged)))
    return op.Add(average, op.Mul(op.Sub(parameters, average), op.Cast(weight, to=op.dtype)))
