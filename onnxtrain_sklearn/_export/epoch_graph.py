"""An epoch as one graph: a Loop over the step, which gathers each minibatch from all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_nodes, append_output
from ..graph import GraphBuilder, copy_type
from .step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class EpochGraph:
    """The graph of an epoch; its inputs and outputs have the names of the step's.

    The input ``order`` of shape (steps, batch) holds the row numbers of each minibatch; -1 is a place without a row.
    Learning rates and random numbers have one more axis than those of a step, the first one.
    """

    model: ir.Model
    step: StepGraph
    order: str
    loss: str


def epoch_graph(step: StepGraph) -> EpochGraph:
    """Return the graph that runs the step for each row of ``order``."""
    given = {value.name or "": value for value in step.model.graph.inputs}
    op = GraphBuilder(
        ir.Graph([], [], nodes=[], name="epoch", opset_imports=dict(step.model.opset_imports)), prefix="epoch"
    )
    op.taken.update(given)
    state = [one.name for one in step.state]
    outer = {name: _outer_input(op, value, name, step) for name, value in given.items()}
    order = ir.val(op.taken.free("order"), ir.DataType.INT64, ("S", step.batch))
    op.graph.inputs.append(order)
    body = _loop_body(op, step, outer, order)
    count = op.Squeeze(op.Shape(order, start=0, end=1) if op.opset >= 15 else _count_of_steps(op, order), axes=[0])
    results = op.emit(
        "Loop", count, np.array(True), *(outer[name] for name in state), body=body.graph, outputs=len(state) + 1
    )
    losses = op.taken.free("losses")
    loss = next(v for v in step.model.graph.outputs if v.name == step.loss)
    append_output(op.graph, results[-1], losses, ir.val("like", loss.dtype, ("S",)))
    for one, value in zip(step.state, results, strict=False):
        append_output(op.graph, value, one.output, given[one.name])
    model = ir.Model(op.graph, ir_version=step.model.ir_version)
    return EpochGraph(model, step, order.name or "", losses)


def _by_step(step: StepGraph) -> set[str]:
    """Return the names of the inputs that have a value for each step."""
    return {step.rate, *step.random, *step.factors.values()}


def _count_of_steps(op: GraphBuilder, order: ir.Value) -> ir.Value:
    return op.Slice(op.Shape(order), starts=[0], ends=[1], axes=[0])


def _outer_input(op: GraphBuilder, value: ir.Value, name: str, step: StepGraph) -> ir.Value:
    """Add the input of the epoch that stands for an input of the step."""
    sizes = list(value.shape or ())
    shape = ["N", *sizes[1:]] if name in (*step.by_row, step.weight) else sizes
    shape = ["S", *sizes] if name in _by_step(step) else shape
    own = ir.Value(name=name, type=value.type, shape=ir.Shape(shape))
    op.graph.inputs.append(own)
    return own


def _loop_body(op: GraphBuilder, step: StepGraph, outer: Mapping[str, ir.Value], order: ir.Value) -> GraphBuilder:
    """Return the builder of the loop's body: gather the minibatch, take the step."""
    body, graph = op.body("body"), step.model.graph.clone()
    taken = list(graph.initializers.values())
    graph.initializers.clear()
    for value in taken:
        value.name = op.taken.free(f"step/{value.name}")
        op.graph.initializers.add(value)
    i = body.input("i", ir.DataType.INT64, ())
    going = body.input("going", ir.DataType.BOOL, ())
    rows = body.Gather(order, i)
    # A place without a row takes one of the minibatch, with weight 0: no further row of an embedding occurs.
    kept = body.Where(body.Less(rows, 0), body.ReduceMax(rows, keepdims=False), rows)
    inputs: dict[str, ir.Value] = {}
    for value in graph.inputs:
        name = value.name or ""
        inputs[name] = _of_step(body, step, value, outer[name], i, rows, kept)
    stays = copy_type(body.Identity(going), going)
    results = append_nodes(body, graph, [inputs[value.name or ""] for value in graph.inputs])
    for result, old in zip(results, step.model.graph.outputs, strict=True):
        copy_type(result, old)
    body.graph.outputs.extend([stays, *results[1:], results[0]])
    body.graph.sort()
    return body


def _of_step(
    body: GraphBuilder,
    step: StepGraph,
    value: ir.Value,
    outer: ir.Value,
    i: ir.Value,
    rows: ir.Value,
    kept: ir.Value,
) -> ir.Value:
    """Return the value of an input of the step in the body: gathered for this step, or carried through the loop."""
    name = value.name or ""
    if name in _by_step(step):
        return body.Gather(outer, i)
    if name == step.weight:
        own = body.Gather(outer, kept)
        present = body.Cast(body.GreaterOrEqual(rows, 0), to=value.dtype or ir.DataType.FLOAT)
        return body.Mul(own, present)
    if name in step.by_row:
        return body.Gather(outer, kept)
    assert value.dtype is not None
    return body.input(name, value.dtype, [int(str(d)) for d in value.shape or ()])
