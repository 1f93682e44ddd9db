"""The pass over a group of minibatches, each with statistics of its own, as one graph over the rows of all.

Batch normalization takes means over the rows of one minibatch. A step that adds up the gradients of several
minibatches is therefore no pass over their rows together: the graph of the pass stands in it once for each
minibatch. All of them read the same parameters, and each reads the running statistics that the one before it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import append_nodes, append_output, initializers_to_inputs


@dataclass(frozen=True)
class PassRoles:
    """Names of the inputs and the outputs of a pass.

    Attributes
    ----------
    by_row : tuple of str
        The inputs that have a value for each row.
    weight : str
        The one of them that holds the weights of the rows.
    random : tuple of str
        The inputs for random numbers, which are others for each minibatch: they get one more axis, the first.
    statistics : mapping of str to str
        The outputs for the next running statistics, by the inputs for the present ones.
    flags : frozenset of str
        The outputs that hold where they hold for any minibatch.
    """

    by_row: tuple[str, ...]
    weight: str
    random: tuple[str, ...]
    statistics: Mapping[str, str]
    flags: frozenset[str] = frozenset()


def pass_of_group(model: ir.Model, roles: PassRoles, count: int) -> ir.Model:
    """Return the pass over ``count`` minibatches: the loss and the gradients are means by the weights of the rows."""
    single = model.graph
    graph = ir.Graph([], [], nodes=[], name="group", opset_imports=dict(single.opset_imports))
    op = GraphBuilder(graph, dtype=_type_of(single, roles.weight), prefix="group")
    given = {value.name or "": _group_input(value, roles, count) for value in single.inputs}
    graph.inputs.extend(given.values())
    op.taken.update([*given, *(value.name or "" for value in single.outputs), *single.initializers])
    parts = _inputs_of_minibatches(op, single, roles, given, count)
    shares = _shares(op, [part[roles.weight] for part in parts])
    held = _held_initializers(graph, single)
    sums: dict[str, ir.Value] = {}
    statistics = {name: given[name] for name in roles.statistics}
    for part, share in zip(parts, shares, strict=True):
        found = _pass_results(op, single, held, part | statistics)
        statistics = {name: found.pop(moved) for name, moved in roles.statistics.items()}
        for name, value in found.items():
            own = value if name in roles.flags else op.Mul(value, share)
            both = op.Or if name in roles.flags else op.Add
            sums[name] = both(sums[name], own) if name in sums else own
    results = sums | {moved: statistics[name] for name, moved in roles.statistics.items()}
    for like in single.outputs:
        append_output(graph, results[like.name or ""], like.name or "", like)
    return ir.Model(graph, ir_version=model.ir_version)


def _type_of(graph: ir.Graph, name: str) -> ir.DataType:
    kind = next(value.dtype for value in graph.inputs if value.name == name)
    assert kind is not None
    return kind


def _group_input(value: ir.Value, roles: PassRoles, count: int) -> ir.Value:
    """Return the input of the group that stands for an input of the pass."""
    sizes = [int(str(size)) for size in value.shape or ()]
    if value.name in roles.by_row:
        sizes[0] *= count
    elif value.name in roles.random:
        sizes = [count, *sizes]
    return ir.Value(name=value.name, type=value.type, shape=ir.Shape(sizes))


def _inputs_of_minibatches(
    op: GraphBuilder, single: ir.Graph, roles: PassRoles, given: Mapping[str, ir.Value], count: int
) -> list[dict[str, ir.Value]]:
    """Return the inputs of the pass over each minibatch, but for the running statistics."""
    parts: list[dict[str, ir.Value]] = [dict(given) for _ in range(count)]
    for value in single.inputs:
        name = value.name or ""
        if name in roles.by_row:
            rows = [int(str((value.shape or [0])[0]))] * count
            pieces = op.emit("Split", given[name], split=rows, outputs=count, axis=0)
        elif name in roles.random:
            pieces = [op.Gather(given[name], i, axis=0) for i in range(count)]
        else:
            continue
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece
    return parts


def _shares(op: GraphBuilder, weights: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the share of each minibatch in the weight of all rows; zero where no row weighs anything."""
    sums = [op.ReduceSum(weight, keepdims=False) for weight in weights]
    total = sums[0]
    for one in sums[1:]:
        total = op.Add(total, one)
    safe = op.Max(total, float(np.finfo(np.float32).tiny))
    return [op.Div(one, safe) for one in sums]


def _held_initializers(graph: ir.Graph, single: ir.Graph) -> dict[str, ir.Value]:
    """Give ``graph`` the initializers of the pass, which all minibatches read; return them by name."""
    held = {}
    for name, value in single.initializers.items():
        held[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(held[name])
    return held


def _pass_results(
    op: GraphBuilder, single: ir.Graph, held: dict[str, ir.Value], inputs: dict[str, ir.Value]
) -> dict[str, ir.Value]:
    """Append a copy of the pass that reads ``inputs``; return its outputs by name."""
    names, copy, given = [value.name or "" for value in single.outputs], single.clone(), held | inputs
    initializers_to_inputs(copy, list(held))
    return dict(zip(names, append_nodes(op, copy, [given[value.name or ""] for value in copy.inputs]), strict=True))
