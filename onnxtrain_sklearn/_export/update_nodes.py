"""What a training graph computes after the gradient: penalty, clipping, update, average of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.loss_terms import penalty_factors, weighted_penalty
from .._optimizers.scheduled_decay import ScheduledDecay
from .._optimizers.update_graph import emit_clipped, update_graph
from .._training.loss_graph import StepSettings
from .._training.parameters import FlatParameters
from .._training.segments import Segment, require_elementwise, require_rows_apart, segments, with_decay_factor
from ..exceptions import ModelError
from ..optimizers import Optimizer

Vectors = Mapping[str, ir.Value]


@dataclass(frozen=True)
class StepScalars:
    """The learning rate, the number of the step and the factor of a scheduled weight decay, of type ``kind``."""

    learning_rate: ir.Value
    t: ir.Value
    kind: ir.DataType
    decay: ir.Value | None = None


def decays(settings: StepSettings, layout: FlatParameters) -> bool:
    """Whether any parameter has weight decay."""
    decay = getattr(settings.optimizer, "weight_decay", 0.0)
    return bool(decay) and any(one.factors.decay for one in segments(layout, settings.factors))


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

    ``occurs`` says of matrices, by name, which of their rows or columns change.
    """
    optimizer = settings.optimizer
    assert isinstance(optimizer, Optimizer)
    found = segments(layout, settings.factors)
    if len(found) > 1:
        require_elementwise(optimizer, elementwise=update_graph(optimizer, op.dtype).elementwise)
    if occurs:
        require_rows_apart(optimizer, elementwise=update_graph(optimizer, op.dtype).elementwise)
    parts = [_emit_segment(op, optimizer, one, vectors, gradients, scalars, alone=len(found) == 1) for one in found]
    new = parts[0]
    if len(parts) > 1:
        new = {name: op.Concat(*(part[name] for part in parts), axis=0) for name in vectors}
    if not occurs:
        return new
    changes = _changed_elements(op, layout, occurs)
    return {name: op.Where(changes, value, vectors[name]) for name, value in new.items()}


def _changed_elements(op: GraphBuilder, layout: FlatParameters, occurs: Vectors) -> ir.Value:
    """Emit which elements of the vector of the parameters a step changes."""
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
    optimizer: Optimizer,
    one: Segment,
    vectors: Vectors,
    gradients: ir.Value,
    scalars: StepScalars,
    *,
    alone: bool,
) -> dict[str, ir.Value]:
    """Emit the update of a part of the vectors whose parameters have the same factors."""

    def cut(vector: ir.Value) -> ir.Value:
        return vector if alone else op.Slice(vector, starts=[one.part.start], ends=[one.part.stop], axes=[0])

    own = with_decay_factor(optimizer, one.factors.decay)
    rate = scalars.learning_rate
    if one.factors.rate != 1:
        rate = GraphBuilder(op.graph, dtype=scalars.kind, prefix="rate").Mul(rate, float(one.factors.rate))
    scheduled = scalars.decay is not None and bool(getattr(own, "weight_decay", 0.0))
    rule = _scheduled_rule(op, own) if scheduled else own
    coefficients = _coefficient_values(op, rule, replace(scalars, learning_rate=rate))
    state = {name: cut(vectors[name]) for name in own.state()}
    parameters, new = rule.update(op, cut(vectors["parameters"]), cut(gradients), state, coefficients)
    return {"parameters": parameters, **new}


def _scheduled_rule(op: GraphBuilder, optimizer: Optimizer) -> ScheduledDecay:
    """Return the optimizer with a weight decay that the step is given; raise where its update does not follow it."""
    update_graph(optimizer, op.dtype, scheduled=True)
    return ScheduledDecay(optimizer)


def _coefficient_values(
    op: GraphBuilder, rule: Optimizer | ScheduledDecay, scalars: StepScalars
) -> dict[str, ir.Value]:
    """Emit the scalars of the step, in the type of the parameters."""
    optimizer = rule.optimizer if isinstance(rule, ScheduledDecay) else rule
    owners = [
        next(c for c in type(optimizer).__mro__ if name in vars(c)) for name in ("emit_coefficients", "coefficients")
    ]
    if not issubclass(*owners):
        raise ModelError(
            f"{type(optimizer).__name__} overrides coefficients, which only Python can run. Override emit_coefficients "
            f"too, so that training graphs compute the same scalars."
        )
    exact = GraphBuilder(op.graph, dtype=scalars.kind, prefix="scalar")
    given = (exact, scalars.learning_rate, scalars.t)
    if isinstance(rule, ScheduledDecay):
        assert scalars.decay is not None
        found = rule.emit_coefficients(*given, scalars.decay)
    else:
        found = rule.emit_coefficients(*given)
    return {name: op.Cast(value, to=op.dtype) for name, value in found.items()}


def emit_average(
    op: GraphBuilder, average: ir.Value, parameters: ir.Value, decay: float, averaged: ir.Value, kind: ir.DataType
) -> ir.Value:
    """Emit the moving average after so many steps, ``averaged`` in type ``kind``."""
    exact = GraphBuilder(op.graph, dtype=kind, prefix="average")
    weight = exact.Div(1.0 - decay, exact.Sub(1.0, exact.Pow(decay, averaged)))
    return op.Add(average, op.Mul(op.Sub(parameters, average), op.Cast(weight, to=op.dtype)))
