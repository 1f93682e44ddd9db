"""The inputs of a step for targets and for the weights of rows, and what the step makes of them.

A loop in any language gives targets in their own units and plain weights, as ``fit`` is given them: the step scales the
targets and multiplies the weights by those of the classes. A step on several outputs trains on one matrix, in which
class indices are numbers; in the graph each target has an input of its own, of the type and shape that the target of
that output alone would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._ir.edits import replace_inputs
from .._training.loss_graph import TARGET, WEIGHT, target_layout
from .._training.step_parts import OutputLoss, TrainedPositions
from ..graph import GraphBuilder
from .source import ExportSource, OutputSource


@dataclass(frozen=True)
class TargetInput:
    """The names of the inputs for a target and, where several are trained, for its factors of the rows' weights."""

    name: str
    factor: str | None = None


def emit_row_inputs(op: GraphBuilder, source: ExportSource) -> tuple[tuple[TargetInput, ...], str]:
    """Add the inputs for targets and for the weights of rows; return those of the targets, and the other's name."""
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
    exact = GraphBuilder(op.graph, dtype=kind, prefix="target")  # float64, as on the host, unless for the web
    scaled = op.Cast(exact.Div(exact.Sub(given, scale.center), scale.scale), to=op.dtype)
    replace_inputs(op.graph, {TARGET: scaled})
    return given.name or ""


def _weight_of_rows(op: GraphBuilder, source: ExportSource, target: str) -> str:
    """Return the name of the input for the weights of the rows, which the step multiplies by those of their labels."""
    trained = _graph_input(op, WEIGHT)
    if label_weights(source) is None:
        return _renamed_input(op, trained, "sample_weight")
    given = _row_input(op, "sample_weight", op.dtype, _fixed_shape(trained))
    replace_inputs(op.graph, {WEIGHT: emit_row_weights(op, source, given, _graph_input(op, target))})
    return given.name or ""


def _targets_of_outputs(op: GraphBuilder, outputs: Sequence[OutputSource], batch: int) -> tuple[TargetInput, ...]:
    """Add an input for the target and one for the factors of each output, and join them to the trained matrix."""
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


def label_weights(source: ExportSource) -> tuple[float, ...] | None:
    """Return the weight of each class; None where a label does not change the weight of its row."""
    positions = source.parts.settings.positions
    return source.class_weights if positions is None else positions.label_weights


def emit_row_weights(op: GraphBuilder, source: ExportSource, weight: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the weights of the rows of a minibatch from the given ones (N,) and the target."""
    known, kind = label_weights(source), op.dtype.numpy()
    assert known is not None
    if source.parts.settings.positions is not None:
        own = op.Gather(np.array([*known, 0.0], kind), y)  # an ignored label has the index -1: the last, of weight 0
        return op.Mul(weight, op.ReduceMean(own, axes=[1], keepdims=False))
    if source.head.task == "multiclass":
        return op.Mul(weight, op.Gather(np.array(known, kind), y))
    second = op.Reshape(op.Greater(y, 0.5), [-1])
    return op.Mul(weight, op.Where(second, np.array(known[1], kind), np.array(known[0], kind)))


def weights_of_rows(known: list[float] | None, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights of rows that the step would train with; as ``emit_row_weights``, in NumPy."""
    if known is None:
        return weights
    indices = target.reshape(len(target), math.prod(target.shape[1:])).astype(np.int64)
    return np.asarray(weights * np.array([*known, 0.0])[indices].mean(axis=1))
