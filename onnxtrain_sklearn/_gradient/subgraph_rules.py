"""Gradients of If, Loop and Scan: the same reverse pass, applied to their subgraphs.

The portable engine calls a rule of :data:`RULES` with a :class:`Flow`, which holds the function that differentiates the
nodes of a subgraph; the rule returns pairs of values and their cotangents.

The gradient of an If is an If: each branch recomputes its values and differentiates them. The gradient of a Loop or
Scan is a Scan over the iterations in reverse order. The forward node gets outputs that record the state at the start of
each iteration; the Scan reads it, recomputes the iteration and differentiates it. The states of this Scan are the
cotangents of the original states, and the accumulated gradients of values that the body captures. Sizes and the number
of iterations may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, remove_unread_initializers
from .._ir.queries import attribute, constant, dims, is_float, kind, operand, reads
from .._ir.supported import ANY, SCAN, Supported
from ..graph import GraphBuilder, copy_type
from .path import PathNode, dependent, path_between
from .reverse import Cotangents, unsupported, zeros_like

Backward: TypeAlias = Callable[[GraphBuilder, Sequence[PathNode], Cotangents], Cotangents]
"""Differentiate nodes in reverse order: from cotangents of some values to cotangents of the values upstream."""


@dataclass(frozen=True)
class Flow:
    """A control-flow node, the ``cotangents`` of its outputs, and the ``sources`` whose gradients are needed."""

    op: GraphBuilder
    node: ir.Node
    cotangents: tuple[ir.Value | None, ...]
    sources: frozenset[ir.Value]
    backward: Backward

    def graph(self, name: str) -> ir.Graph:
        """Return the subgraph of this attribute."""
        return self.node.attributes[name].as_graph()

    def captured(self, *names: str) -> list[ir.Value]:
        """Return the sources that these subgraphs capture, without repetitions."""
        read = (v for name in names for node in self.graph(name) for v in reads(node))
        return [v for v in dict.fromkeys(read) if v in self.sources]


FlowRule: TypeAlias = "Supported[Callable[[Flow], list[tuple[ir.Value, ir.Value]]]]"


class _Body:
    """A copy of a subgraph, extended by its own reverse pass; all its names are new."""

    def __init__(self, flow: Flow, name: str) -> None:
        for node in flow.graph(name).all_nodes():  # recomputed values must equal the original ones
            training = operand(node, 2) if kind(node) == "Dropout" else None
            drops = training is not None and (constant(training) is None or bool(constant(training)))
            if kind(node) in RANDOM or drops:
                raise unsupported(flow.node, f"{node.op_type} inside of it would draw other numbers the second time")
        self.graph = flow.graph(name).clone(allow_outer_scope_values=True)
        for graph in (self.graph, *self.graph.subgraphs()):  # the old names would shadow outer values
            for value in [*graph.inputs, *graph.initializers.values()]:
                value.name = flow.op.name(value.name or "value")
        for node in self.graph.all_nodes():
            node.name = flow.op.name(node.op_type)
            for value in node.outputs:
                value.name = flow.op.name(value.name) if value.name else value.name
        self.op = inner_builder(flow.op, self.graph)
        self._flow = flow

    def input(self, stem: str, like: ir.Value, shape: ir.Shape | None = None) -> ir.Value:
        """Add an input of the type of ``like``, and of its shape unless ``shape`` is given."""
        value = ir.Value(name=self.op.name(stem), type=like.type, shape=like.shape if shape is None else shape)
        self.graph.inputs.append(value)
        return value

    def gradients(self, seeds: Cotangents, sources: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the gradients of ``sources`` from the cotangents ``seeds``; zeros for sources without influence."""
        steps = path_between(self.graph, set(sources), set(seeds))
        cotangents = self._flow.backward(self.op, steps, {value: list(parts) for value, parts in seeds.items()})

        def total(x: ir.Value) -> ir.Value:
            parts = cotangents.get(x, [])
            if not parts:
                return zeros_like(self.op, x)
            return parts[0] if len(parts) == 1 else copy_type(self.op.Sum(*parts), x)

        return [total(x) for x in sources]

    def end_with(self, results: Sequence[ir.Value], like: Sequence[ir.Value]) -> None:
        """Make ``results``, of the types of ``like``, the only outputs, and remove unused nodes."""
        self.graph.outputs.clear()
        self.graph.outputs.extend(copy_type(self.op.Identity(v), x) for v, x in zip(results, like, strict=True))
        remove_unread(self.graph, self.graph)
        remove_unread_initializers(self.graph)


def inner_builder(op: GraphBuilder, graph: ir.Graph) -> GraphBuilder:
    """Return a builder for a subgraph; names are unique in the whole model, constants belong to the subgraph."""
    graph.opset_imports.update(op.graph.opset_imports)
    inner = GraphBuilder(graph, dtype=op.dtype, prefix="gradient", constant_nodes=True)
    inner.taken = op.taken
    return inner


# If.


def _if_rule(flow: Flow) -> list[tuple[ir.Value, ir.Value]]:
    names = ("then_branch", "else_branch")
    sources = flow.captured(*names)
    branches = dict[str, Any]()
    for name in names:
        body = _Body(flow, name)
        seeds = dict[ir.Value, list[ir.Value]]()
        for y, cotangent in zip(body.graph.outputs, flow.cotangents, strict=True):
            if cotangent is not None:
                seeds.setdefault(y, []).append(cotangent)
        body.end_with(body.gradients(seeds, sources), sources)
        branches[name] = body.graph
    cotangents = flow.op.emit("If", flow.node.inputs[0], outputs=len(sources), **branches)
    return [(x, copy_type(cotangent, x)) for x, cotangent in zip(sources, cotangents, strict=True)]


# Loop and Scan.


@dataclass(frozen=True)
class _Scanned:
    """A tensor of which each iteration reads one slice; with ``backwards``, from the last slice to the first."""

    value: ir.Value
    axis: int
    backwards: bool


@dataclass(frozen=True)
class _Frame:
    """Correspondence between the values of a Loop or Scan and the values of its body.

    Attributes
    ----------
    states : list of tuple
        Positions of each state: node input, node output, body input, body output.
    scanned : dict
        For the positions of body inputs that are slices, the tensors that they are slices of.
    stacked : list of tuple
        For each scan output its positions in the body and in the node, the axis along which its slices are stacked, and
        True if they are stacked backwards.
    """

    states: list[tuple[int, int, int, int]]
    scanned: dict[int, _Scanned]
    stacked: list[tuple[int, int, int, bool]]


def _scan_rule(flow: Flow) -> list[tuple[ir.Value, ir.Value]]:
    node = flow.node
    count = node.attributes["num_scan_inputs"].as_int()
    inputs = list(node.inputs)
    body = node.attributes["body"].as_graph()
    n = len(inputs) - count
    stacks = len(body.outputs) - n
    axes, ways = (attribute(node, f"scan_input_{name}", [0] * count) for name in ("axes", "directions"))
    out_axes, out_ways = (attribute(node, f"scan_output_{name}", [0] * stacks) for name in ("axes", "directions"))
    frame = _Frame(
        [(i, i, i, i) for i in range(n)],
        {n + i: _Scanned(_present(inputs[n + i]), axes[i], bool(ways[i])) for i in range(count)},
        [(n + i, n + i, out_axes[i], bool(out_ways[i])) for i in range(stacks)],
    )
    return _iterations_back(flow, frame)


def _loop_rule(flow: Flow) -> list[tuple[ir.Value, ir.Value]]:
    node = flow.node
    n = len(node.inputs) - 2
    body = node.attributes["body"].as_graph()
    stacks = len(body.outputs) - 1 - n
    frame = _Frame(
        [(2 + i, i, 2 + i, 1 + i) for i in range(n)],
        {},
        [(1 + n + i, n + i, 0, False) for i in range(stacks)],
    )
    return _iterations_back(flow, frame)


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def _iterations_back(flow: Flow, frame: _Frame) -> list[tuple[ir.Value, ir.Value]]:
    """Emit the Scan over the iterations in reverse order; return the sources with their gradients.

    The inputs of its body are the cotangents of the carried states, the sums of the gradients of captured values, the
    slices of the cotangents of scan outputs, and what an iteration needs to be computed again. Its outputs are the
    cotangents of the carried states before the iteration, the new sums, and the cotangents of the slices.
    """
    body = _Body(flow, "body")
    inputs, outputs = list(body.graph.inputs), list(body.graph.outputs)
    captured = flow.captured("body")
    carried, sliced = _carried_and_sliced(flow, frame, captured)
    for state in carried:
        # The cotangent of a state is carried by a Scan, whose states cannot change their size.
        value = flow.graph("body").inputs[state[2]]
        before, held = dims(flow.node.inputs[state[0]]), dims(value)
        if flow.node.op_type == "Loop" and before is not None and held is not None and before != held:
            raise unsupported(flow.node, _size_may_change(value))

    # Give the body its inputs, and differentiate one iteration.
    body.graph.inputs.clear()
    seeds: Cotangents = {}
    states = [body.input("cotangent", inputs[s[2]]) for s in carried]
    for state, value in zip(carried, states, strict=True):
        seeds.setdefault(outputs[state[3]], []).append(value)
    sums = [body.input("sum", x) for x in captured]
    scans: list[_Scanned] = []
    for position, result, axis, backwards in frame.stacked:
        cotangent = flow.cotangents[result]
        if cotangent is not None:
            seeds.setdefault(outputs[position], []).append(body.input("slice", outputs[position]))
            scans.append(_Scanned(cotangent, axis, backwards))
    wanted = [*(inputs[s[2]] for s in carried), *captured, *(inputs[i] for i in sliced)]
    cotangents = body.gradients(seeds, wanted)
    first = len(carried)
    last = len(carried) + len(captured)
    totals = [copy_type(body.op.Add(a, b), a) for a, b in zip(sums, cotangents[first:last], strict=True)]
    body.end_with([*cotangents[:first], *totals, *cotangents[last:]], wanted)

    # The iteration's original inputs that are still read become slices, too: the forward node records its states.
    needed = [i for i, value in enumerate(inputs) if value.uses()]
    if not scans and not needed:
        needed = [next(iter(frame.scanned), 0)]  # a Scan takes its number of iterations from its slices
    body.graph.inputs.extend(inputs[i] for i in needed)
    scans += [frame.scanned[i] if i in frame.scanned else _stacked_input(flow, frame, i) for i in needed]

    # Scan from the last iteration to the first.
    starts = list[ir.Value]()
    for state in carried:
        cotangent = flow.cotangents[state[1]]
        starts.append(zeros_like(flow.op, flow.node.outputs[state[1]]) if cotangent is None else cotangent)
    starts += [zeros_like(flow.op, x) for x in captured]
    settings: dict[str, Any] = {
        "body": body.graph,
        "num_scan_inputs": len(scans),
        "scan_input_axes": [scan.axis for scan in scans],
        "scan_input_directions": [int(not scan.backwards) for scan in scans],
    }
    if sliced:
        settings["scan_output_axes"] = [frame.scanned[i].axis for i in sliced]
        settings["scan_output_directions"] = [int(not frame.scanned[i].backwards) for i in sliced]
    results = _scan_back(flow, starts, [scan.value for scan in scans], settings)
    sources = [_present(flow.node.inputs[s[0]]) for s in carried] + captured
    sources += [frame.scanned[i].value for i in sliced]
    pairs = [(x, copy_type(cotangent, x)) for x, cotangent in zip(sources, results, strict=True)]
    return [(x, cotangent) for x, cotangent in pairs if x in flow.sources]


def _scan_back(
    flow: Flow, starts: Sequence[ir.Value], slices: Sequence[ir.Value], settings: dict[str, Any]
) -> Sequence[ir.Value]:
    """Emit the Scan. For a Loop that may run no iteration, put it in an If: onnxruntime cannot scan a length of 0."""
    inputs = [*starts, *slices]
    # A Loop has two limits, the largest number of iterations and the condition.
    limits = [x for i in (0, 1) if (x := operand(flow.node, i)) is not None]
    if flow.node.op_type == "Scan" or all((n := constant(x)) is not None and n.item() > 0 for x in limits):
        return flow.op.emit("Scan", *inputs, outputs=len(settings["body"].outputs), **settings)
    rounds = flow.op.Gather(flow.op.Shape(slices[0]), np.int64(0))
    none, some = flow.op.body("no_round"), flow.op.body("rounds")
    none.graph.outputs.extend(copy_type(none.Identity(start), start) for start in starts)
    some.graph.outputs.extend(
        copy_type(y, x)
        for y, x in zip(some.emit("Scan", *inputs, outputs=len(starts), **settings), starts, strict=True)
    )
    empty = flow.op.Equal(rounds, np.int64(0))
    return flow.op.emit("If", empty, outputs=len(starts), then_branch=none.graph, else_branch=some.graph)


def _carried_and_sliced(
    flow: Flow, frame: _Frame, captured: Sequence[ir.Value]
) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Return the states whose cotangents the Scan carries, and the positions of the slices that have a gradient.

    A state that depends on a source in one iteration is itself a source in the next one.
    """
    graph = flow.graph("body")
    states = [s for s in frame.states if is_float(graph.inputs[s[2]])]
    carried = [s for s in states if flow.node.inputs[s[0]] in flow.sources]
    sliced = [i for i, scan in frame.scanned.items() if scan.value in flow.sources]
    while True:
        downstream = dependent(graph, {*captured, *(graph.inputs[i] for i in [*sliced, *(s[2] for s in carried)])})
        more = [s for s in states if s in carried or graph.outputs[s[3]] in downstream]
        if more == carried:
            return carried, sliced
        carried = more


def _stacked_input(flow: Flow, frame: _Frame, position: int) -> _Scanned:
    """Add an output to the forward node that stacks the body input at ``position`` of all iterations."""
    node, graph = flow.node, flow.graph("body")
    value = graph.inputs[position]
    number = len(node.outputs)
    if not isinstance(value.type, ir.TensorType):
        raise unsupported(node, f"its state {value.name!r} is no tensor")
    for start, _, before, after in frame.states:  # only equal shapes stack; states of a Scan keep theirs
        if before == position and node.op_type == "Loop":
            shapes = dims(node.inputs[start]), dims(graph.outputs[after])
            if shapes[0] is None or shapes[0] != shapes[1] or None in shapes[0]:
                raise unsupported(node, _size_may_change(value))
    graph.outputs.append(copy_type(inner_builder(flow.op, graph).Identity(value), value))
    stacked = len(graph.outputs) - len(frame.states) - (node.op_type == "Loop")
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in node.attributes:
            given = list(node.attributes[name].as_ints())
            node.attributes[name] = ir.AttrInt64s(name, given + [0] * (stacked - len(given)))
    node.resize_outputs(number + 1)
    tape = node.outputs[number]
    sizes = dims(value)
    tape.name = flow.op.name("iterations")
    tape.type = value.type
    tape.shape = None if sizes is None else ir.Shape([None, *sizes])
    return _Scanned(tape, 0, False)


def _size_may_change(value: ir.Value) -> str:
    return f"its state {value.name!r} is not known to keep its size"


RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split(),
)

RULES: dict[str, FlowRule] = {
    "If": Supported(_if_rule, "else_branch then_branch", outputs=ANY, cotangents=ANY),
    "Loop": Supported(_loop_rule, "body", inputs=ANY, outputs=ANY, cotangents=ANY),
    "Scan": Supported(_scan_rule, SCAN, inputs=ANY, outputs=ANY, cotangents=ANY),
}
