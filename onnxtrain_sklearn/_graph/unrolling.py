"""Unrolling of Loops and Scans with a known number of iterations, for consumers without subgraphs.

Each iteration becomes nodes of the outer graph. A Loop that may end early computes all its iterations; those after its
end keep the states unchanged. Nodes that cannot be unrolled stay: those with an unknown number of iterations, with
stacked outputs of a Loop that may end early, with states that change shape, or with more than :data:`MAX_NODES` nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .builder import GraphBuilder
from .edits import append_copy, read_from_outside, remove_unread, replace_node
from .folding import complete_shapes
from .queries import attribute, constant, dims, operand
from .shapes import infer_shapes
from .supported import ANY, Supported

MAX_NODES = 20_000


def unroll(model: ir.Model) -> ir.Model:
    """Unroll the Loops and Scans of ``model``, in place, including nested ones; weights keep their names."""
    if any(_is_iterated(node) for node in model.graph):
        complete_shapes(model)
        op = GraphBuilder(model.graph, prefix="unrolled", constant_nodes=True, shared=True)
        _unroll_all(op, list(model.graph))
        remove_unread(model.graph, [node for node in model.graph if node.op_type == "Constant"])
        model.graph.sort()
        infer_shapes(model)
    return model


def _unroll_all(op: GraphBuilder, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        iteration = _unrollable(node)
        if iteration is not None and iteration.size() <= MAX_NODES:
            before = len(op.graph)
            results = iteration.run(op)
            inside = list(op.graph)[before:]
            replace_node(op, node, results)
            _unroll_all(op, inside)


def _is_iterated(node: ir.Node) -> bool:
    return node.op_type in _ITERATED and not node.domain


@dataclass(frozen=True)
class _Slices:
    """The axis along which iterations read or stack slices, and whether from its end."""

    axis: int
    backwards: bool

    def order(self, rounds: int) -> Iterator[int]:
        return iter(range(rounds - 1, -1, -1) if self.backwards else range(rounds))


@dataclass(frozen=True)
class _FixedLoop:
    """A Loop or Scan of ``rounds`` iterations.

    ``early`` tells whether a Loop may end earlier; ``go_on`` is then its initial condition, None for true.
    """

    body: ir.Graph
    rounds: int
    states: list[ir.Value]
    scanned: list[tuple[ir.Value, _Slices]]
    stacked: list[_Slices]
    is_loop: bool = False
    early: bool = False
    go_on: ir.Value | None = None

    def size(self) -> int:
        """Return about how many nodes it becomes."""
        inner = (_unrollable(node) for node in self.body)
        return self.rounds * sum(1 if iteration is None else iteration.size() for iteration in inner)

    def run(self, op: GraphBuilder) -> list[ir.Value]:
        """Emit the iterations; return the outputs of the node."""
        _share_constants(op, self.body)
        states, go_on, rows = self.states, None if self.go_on is None else _as_scalar(op, self.go_on), []
        taken = [list(_scanned_slices(op, value, way, self.rounds)) for value, way in self.scanned]
        for number in range(self.rounds):
            leading = [op.constant(np.array(number)), op.constant(np.array(True))] if self.is_loop else []
            results = append_copy(op, self.body, [*leading, *states, *(column[number] for column in taken)])
            more = results.pop(0) if self.is_loop else None
            after, stacked = results[: len(states)], results[len(states) :]
            if go_on is not None:
                after = [_select(op, go_on, new, old) for new, old in zip(after, states, strict=True)]
                more = None if more is None else op.And(go_on, _as_scalar(op, more))
            states, go_on = after, _as_scalar(op, more) if self.early and more is not None else None
            rows.append(stacked)
        columns = list(zip(*rows, strict=True))
        return [*states, *(_stack_slices(op, c, way) for c, way in zip(columns, self.stacked, strict=True))]


def _unrollable(node: ir.Node) -> _FixedLoop | None:
    """Return a Loop or Scan that can be unrolled, None for any other node."""
    if not _is_iterated(node):
        return None
    known = _ITERATED[node.op_type]
    found = known.rule(node) if known.unknown(node) is None else None
    return found if found is not None and found.rounds > 0 else None


def _scan_iteration(node: ir.Node) -> _FixedLoop | None:
    body, count = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
    values = [x for x in node.inputs if x is not None]
    states, scanned = values[:-count], values[-count:]
    inputs = _slice_directions(node, "input", count)
    lengths = [(dims(x) or [None] * (way.axis + 1))[way.axis] for x, way in zip(scanned, inputs, strict=True)]
    rounds = next((n for n in lengths if isinstance(n, int)), None)
    if rounds is None:
        return None
    stacked = _slice_directions(node, "output", len(body.outputs) - len(states))
    return _FixedLoop(body, rounds, states, list(zip(scanned, inputs, strict=True)), stacked)


def _slice_directions(node: ir.Node, side: str, count: int) -> list[_Slices]:
    axes = attribute(node, f"scan_{side}_axes", [0] * count)
    directions = attribute(node, f"scan_{side}_directions", [0] * count)
    return [_Slices(int(axis), bool(way)) for axis, way in zip(axes, directions, strict=True)]


def _loop_iteration(node: ir.Node) -> _FixedLoop | None:
    body, trips, start = node.attributes["body"].as_graph(), operand(node, 0), operand(node, 1)
    rounds = None if trips is None else constant(trips)
    states = [x for x in list(node.inputs)[2:] if x is not None]
    stacked = [_Slices(0, False)] * (len(body.outputs) - 1 - len(states))
    given = True if start is None else constant(start)
    early = given is None or not _never_ends(body)
    unlike = any(dims(x) is None or dims(x) != dims(y) for x, y in zip(states, list(body.outputs)[1:], strict=False))
    if rounds is None or (given is not None and not np.all(given)) or (early and (stacked or unlike)):
        return None
    return _FixedLoop(body, int(rounds.item()), states, [], stacked, True, early, start if given is None else None)


def _never_ends(body: ir.Graph) -> bool:
    """Whether the body of a Loop always returns a true condition."""
    condition = body.outputs[0]
    while (producer := condition.producer()) is not None and producer.op_type == "Identity" and producer.inputs[0]:
        condition = producer.inputs[0]
    known = constant(condition)
    return condition is body.inputs[1] or (known is not None and bool(np.all(known)))


def _as_scalar(op: GraphBuilder, condition: ir.Value) -> ir.Value:
    """Return a condition of one element as a scalar, which broadcasts to any shape."""
    return condition if dims(condition) == [] else op.Reshape(condition, np.array([], np.int64))


def _select(op: GraphBuilder, condition: ir.Value, new: ir.Value, old: ir.Value) -> ir.Value:
    if old.dtype is not ir.DataType.BOOL:
        return op.Where(condition, new, old)
    return op.Or(op.And(condition, new), op.And(op.Not(condition), old))  # onnxruntime has no Where of booleans


def _share_constants(op: GraphBuilder, body: ir.Graph) -> None:
    """Move the constants of the body to the outer graph, so that all iterations share them."""
    held = [*body.initializers.values()]
    held += [node.outputs[0] for node in body if node.op_type == "Constant" and not node.domain]
    for value in held:
        known = constant(value)
        if known is not None:
            read_from_outside(body, value, op.constant(known))


def _scanned_slices(op: GraphBuilder, value: ir.Value, way: _Slices, rounds: int) -> Iterator[ir.Value]:
    known = constant(value)
    for i in way.order(rounds):
        if known is None:
            yield op.Gather(value, np.array(i), axis=way.axis)
        else:
            yield op.constant(np.take(known, i, axis=way.axis))


def _stack_slices(op: GraphBuilder, slices: Sequence[ir.Value], way: _Slices) -> ir.Value:
    ordered = [slices[i] for i in way.order(len(slices))]
    return op.Concat(*(op.Unsqueeze(value, axes=[way.axis]) for value in ordered), axis=way.axis)


_SCAN_ATTRIBUTES = "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions"

_ITERATED: dict[str, Supported[Callable[[ir.Node], _FixedLoop | None]]] = {
    "Loop": Supported(_loop_iteration, "body", inputs=ANY, outputs=ANY),
    "Scan": Supported(_scan_iteration, _SCAN_ATTRIBUTES, inputs=ANY, outputs=ANY),
}
