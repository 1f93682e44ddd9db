"""The inputs of a step for targets and weights of the rows: one target, or one for each output, with its weights.

A step on several outputs trains on one matrix, in which class indices are numbers. In the graph each target has an
input of its own, of the type and shape that the target of that output alone would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import replace_inputs
from .._training.loss_graph import TARGET, WEIGHT, TrainedPositions, target_layout
from .._training.total_loss import OutputLoss
from .row_weights import emit_row_weights, label_weights
from .source import ExportSource, OutputSource


@dataclass(frozen=True)
class TargetInput:
    """The input for a target; ``factor`` names that for its factors of the weights of the rows, of several targets."""

    name: str
    factor: str | None = None


def emit_row_inputs(op: GraphBuilder, source: ExportSource) -> tuple[tuple[TargetInput, ...], str]:
    """Give the step its inputs for targets and for the weights of the rows; return those and the name of the latter."""
    if source.outputs:
        targets = _targets_of_outputs(op, source.outputs, source.parts.batch)
    else:
        targets = (TargetInput(_single_target(op, source)),)
    return targets, _weight_of_rows(op, source, targets[0].name)


def _single_target(op: GraphBuilder, source: ExportSource) -> str:
    """Return the name of the input for targets in their own units."""
    scale, kind = source.head.target_scale, source.scalar_type
    trained = _graph_input(op, TARGET)
    if scale is None:
        return _renamed_input(op, trained, "y")
    given = _row_input(op, "y", kind, _fixed_shape(trained))
    exact = GraphBuilder(op.graph, dtype=kind, prefix="target")  # in float64 as on the host where ``kind`` is that
    scaled = op.Cast(exact.Div(exact.Sub(given, scale.center), scale.scale), to=op.dtype)
    replace_inputs(op.graph, {TARGET: scaled})
    return given.name or ""


def _weight_of_rows(op: GraphBuilder, source: ExportSource, target: str) -> str:
    """Return the name of the input for the weights of the rows, which those of their labels multiply."""
    trained = _graph_input(op, WEIGHT)
    if label_weights(source) is None:
        return _renamed_input(op, trained, "sample_weight")
    given = _row_input(op, "sample_weight", op.dtype, _fixed_shape(trained))
    replace_inputs(op.graph, {WEIGHT: emit_row_weights(op, source, given, _graph_input(op, target))})
    return given.name or ""


def _targets_of_outputs(op: GraphBuilder, outputs: Sequence[OutputSource], batch: int) -> tuple[TargetInput, ...]:
    """Let the step read a target and factors for each output; return their inputs."""
    values = [_input_of_target(op, one.loss, batch) for one in outputs]
    factors = [_row_input(op, f"target_weight/{one.loss.name}", op.dtype, (batch,)) for one in outputs]
    columns = [_target_columns(op, value, one.loss.width, batch) for value, one in zip(values, outputs, strict=True)]
    matrix = op.Concat(*columns, *(op.Reshape(factor, [batch, 1]) for factor in factors), axis=1)
    replace_inputs(op.graph, {TARGET: matrix})
    return tuple(TargetInput(y.name or "", f.name) for y, f in zip(values, factors, strict=True))


def _input_of_target(op: GraphBuilder, one: OutputLoss, batch: int) -> ir.Value:
    places = None if one.positions is None else TrainedPositions(one.positions, one.places, one.label_weights)
    shape, kind = target_layout(one.task, one.n_outputs, batch, op.dtype.numpy(), places)
    return _row_input(op, f"y/{one.name}", ir.DataType.from_numpy(kind), shape)


def _target_columns(op: GraphBuilder, value: ir.Value, width: int, batch: int) -> ir.Value:
    return op.Reshape(op.Cast(value, to=op.dtype), [batch, width])


def _row_input(op: GraphBuilder, stem: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
    value = ir.val(op.taken.free(stem), kind, tuple(shape))
    op.graph.inputs.append(value)
    return value


def _graph_input(op: GraphBuilder, name: str) -> ir.Value:
    return next(value for value in op.graph.inputs if value.name == name)


def _renamed_input(op: GraphBuilder, value: ir.Value, stem: str) -> str:
    value.name = op.taken.free(stem)
    return value.name


def _fixed_shape(value: ir.Value) -> list[int]:
    return [int(str(size)) for size in value.shape or ()]
