"""Move work that needs no state out of the body of a Scan, where it runs once for all steps.

A runtime takes longer to start a small node than to compute it, and the gradient of a recurrent layer is a Scan over
many small nodes. Of these, only the ones between the states must run step by step:

- Nodes that read only slices and values from outside run before the Scan, on all slices.
- Nodes whose results no state needs run after it, on the stacked values of all steps.
- A sum over the steps of the products ``A' B`` of matrices, the gradient of a weight, is one product of the stacks.

A value of shape ``s`` in the body has the shape ``(steps, *s)`` outside; :data:`_OPERATORS` holds the operators that
can be applied to such stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, replace_value
from .._ir.queries import attribute, before_identities, constant, dims, graphs_in, kind, operand
from ..graph import GraphBuilder
from .subgraph_rules import RANDOM, inner_builder


def batch_steps(model: ir.Model, kept: Collection[str] = ()) -> None:
    """Move nodes out of the Scans of the main graph, in place; shapes, also in bodies, must have been inferred.

    The values of the main graph that ``kept`` names stay.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="steps", shared=True)
    nodes = [node for node in graph if kind(node) == "Scan"]
    for node in nodes:
        scan = _Scan.of(node)
        if scan is not None and _run_before(op, scan) | _run_after(op, scan):
            scan.replace_node(op)
    if nodes:
        graph.sort()
        _share_equal(graph, kept)
        own = [node for node in graph if (node.name or "").startswith(_OWN)]
        remove_unread(graph, [node for node in own if all(value.name not in kept for value in node.outputs)])


@dataclass
class _Scan:
    """A Scan whose slices and stacks all run in one direction along first axes.

    Attributes
    ----------
    node : onnx_ir.Node
    body : onnx_ir.Graph
    states : list of _State
    slices : dict
        For each value of the body that is a slice, the value outside that it is a slice of.
    stacks : list of tuple
        For each result that is stacked, the value of the body and the stack outside.
    backwards : bool
        True if the steps run from the last slice to the first.
    """

    node: ir.Node
    body: ir.Graph
    states: list[_State]
    slices: dict[ir.Value, ir.Value]
    stacks: list[tuple[ir.Value, ir.Value]]
    backwards: bool

    @classmethod
    def of(cls, node: ir.Node) -> _Scan | None:
        count = node.attributes["num_scan_inputs"].as_int()
        body = node.attributes["body"].as_graph()
        n = len(node.inputs) - count
        node.resize_outputs(len(body.outputs))
        inputs = [x for x in node.inputs if x is not None]
        stacks = len(body.outputs) - n
        axes = [*attribute(node, "scan_input_axes", []), *attribute(node, "scan_output_axes", [])]
        ways = {*attribute(node, "scan_input_directions", [0] * count)}
        ways |= {*attribute(node, "scan_output_directions", [0] * stacks)}
        if any(axes) or len(ways) > 1 or len(inputs) < len(node.inputs) or body.initializers:
            return None
        return cls(
            node,
            body,
            [_State(*each) for each in zip(inputs[:n], body.inputs, body.outputs, node.outputs, strict=False)],
            dict(zip(body.inputs[n:], inputs[n:], strict=True)),
            list(zip(body.outputs[n:], node.outputs[n:], strict=True)),
            ways == {1},
        )

    def computes(self, value: ir.Value) -> bool:
        """Return True if a step computes ``value``, or it is a state, so that each step has another one."""
        node = value.producer()
        inside = node is not None and node.graph is self.body and kind(node) != "Constant"
        return inside or any(value is state.before for state in self.states)

    def drop_unread(self) -> None:
        """Remove the nodes of the body that neither a state nor a stack needs."""
        self.body.outputs[:] = [*(state.after for state in self.states), *(value for value, _ in self.stacks)]
        remove_unread(self.body, list(self.body))

    def replace_node(self, op: GraphBuilder) -> None:
        """Replace the node by one with the present states, slices and stacks."""
        self.drop_unread()
        body = self.body
        node = self.node
        inner = inner_builder(op, self.body)
        slices = [value for value in self.slices if value.uses() or value in body.outputs]
        slices = slices or list(self.slices)[:1]  # a Scan takes its number of steps from its slices
        body.inputs[:] = [*(state.before for state in self.states), *slices]

        # An Identity before a result takes time; only inputs of the body and values that are two results need one.
        ends = list[ir.Value]()
        for value in body.outputs:
            end = before_identities(value)
            made = end.producer()
            if made is None or made.graph is not body or any(end is other for other in ends):
                end = value if value is not end else _like(inner.Identity(end), value)
            ends.append(end)
        body.outputs[:] = ends
        _share_equal(body)
        remove_unread(body, list(body))

        if not body.outputs:
            op.graph.remove(node)
            return
        finals = [*(state.final for state in self.states), *(stack for _, stack in self.stacks)]
        settings: dict[str, Any] = {"num_scan_inputs": len(slices)}
        if self.backwards:
            settings["scan_input_directions"] = [1] * len(slices)
            settings |= {"scan_output_directions": [1] * len(self.stacks)} if self.stacks else {}
        del node.attributes["body"]
        inputs = [*(state.start for state in self.states), *(self.slices[value] for value in slices)]
        results = op.emit("Scan", *inputs, outputs=len(finals), body=body, **settings)
        for old, new in zip(finals, results, strict=True):
            replace_value(op, old, _like(new, old))
        op.graph.remove(node)
        made = results[0].producer()
        assert made is not None
        made.name = node.name  # its results have names that start so, which other builders would give again


class _State(NamedTuple):
    """A state: its start, the values of the body before and after a step, and the final value."""

    start: ir.Value
    before: ir.Value
    after: ir.Value
    final: ir.Value


def _like(value: ir.Value, like: ir.Value) -> ir.Value:
    value.type, value.shape = like.type, like.shape
    return value


def _run_before(op: GraphBuilder, scan: _Scan) -> bool:
    """Run the nodes that need no state before the Scan; return True if there are any."""
    known, moved = dict(scan.slices), list[ir.Node]()
    for node in scan.body:
        read = [x for x in node.inputs if x is not None]
        if all(x in known or not scan.computes(x) for x in read) and _applies(node, known):
            known.update(zip(node.outputs, _apply(op, node, known), strict=True))
            moved.append(node)
    _replace_stacks(op, scan, known)
    scan.drop_unread()
    for value in [v for node in moved if node.graph is scan.body for v in node.outputs]:
        inside = [(node, index) for node, index in value.uses() if node not in moved]
        if inside or value in scan.body.outputs:
            given = ir.Value(name=op.name("slice"), type=value.type, shape=value.shape)
            scan.slices[given] = known[value]
            for node, index in inside:
                node.replace_input_with(index, given)
            scan.states = [state._replace(after=given) if state.after is value else state for state in scan.states]
            scan.stacks = [(given if v is value else v, stack) for v, stack in scan.stacks]
    return bool(moved)


def _run_after(op: GraphBuilder, scan: _Scan) -> bool:
    """Run the nodes that no state needs after the Scan, and sums over the steps; return True if there are any."""
    inside = {x for node in scan.body for x in node.inputs if x is not None and (x in scan.slices or scan.computes(x))}
    sums = [found for state in scan.states if (found := _sum(scan, state, inside)) is not None]
    adders = {node for each in sums for node in each.adders}
    needed = {state.after for state in scan.states} - {each.state.after for each in sums}
    moved = {each.product for each in sums}
    for node in reversed(list(scan.body)):
        last = all(v not in needed and all(reader in moved for reader, _ in v.uses()) for v in node.outputs)
        if last and node not in adders and _applies(node, inside):
            moved.add(node)
    ordered = [node for node in scan.body if node in moved]

    # What these nodes read becomes a stack, unless it is one already.
    made = {value for node in ordered for value in node.outputs}
    read = dict.fromkeys(x for node in ordered for x in node.inputs if x is not None)
    given = [x for x in read if x not in made and scan.computes(x)]
    held = {before_identities(value): stack for value, stack in reversed(scan.stacks)}
    new = dict.fromkeys(source for x in given if (source := before_identities(x)) not in held)
    if not moved or len(new) > sum(kind(node) != "Identity" for node in moved):
        return False
    steps = (dims(next(iter(scan.slices.values()))) or [None])[0]
    for value in new:
        shape = dims(value)
        held[value] = ir.Value(
            name=op.name("stack"),
            type=value.type,
            shape=None if shape is None else ir.Shape([steps, *shape]),
        )
        scan.stacks.append((value, held[value]))
    known = {**scan.slices, **{x: held[before_identities(x)] for x in given}}
    products = {each.product for each in sums}
    for node in ordered:
        if node not in products:
            known.update(zip(node.outputs, _apply(op, node, known), strict=True))
    for state, product, _ in sums:
        total = op.Add(state.start, _summed(op, product, known))
        scan.states.remove(state)
        replace_value(op, state.final, _like(total, state.final))
    _replace_stacks(op, scan, {value: known[value] for value in made if value in known})
    return True


class _Sum(NamedTuple):
    """A state that adds up the results of a node; ``adders`` are the nodes that pass its results on to the state."""

    state: _State
    product: ir.Node
    adders: Sequence[ir.Node]


def _sum(scan: _Scan, state: _State, inside: Collection[ir.Value]) -> _Sum | None:
    """Return the state as a sum over the steps of products or of sums of rows; None if it is another state."""
    total = before_identities(state.after)
    add = total.producer()
    if add is None or add.graph is not scan.body or kind(add) not in ("Add", "Sum") or len(add.inputs) != 2:
        return None
    others = [x for x in add.inputs if x is not None and x is not state.before]
    stacked = any(value in (total, state.before, state.after) for value, _ in scan.stacks)
    if len(others) != 1 or len(state.before.uses()) != 1 or stacked:
        return None
    product = others[0].producer()
    adders = [add]
    value = state.after
    while value is not total and (node := value.producer()) is not None and node.inputs[0] is not None:
        adders.append(node)
        value = node.inputs[0]
    once = all(len(node.outputs[0].uses()) <= 1 for node in adders) and len(others[0].uses()) == 1
    if not once or product is None or product.graph is not scan.body or others[0] in scan.body.outputs:
        return None
    if kind(product) == "ReduceSum" and _applies(product, inside):
        return _Sum(state, product, adders)
    factors = [x for x in product.inputs if x is not None]
    plain = kind(product) == "Gemm" and _numbers(product) == (1, 1.0, 0) and len(factors) == 2
    known = all(x in inside and isinstance((dims(x) or [None])[-1], int) for x in factors)
    return _Sum(state, product, adders) if plain and known else None


def _numbers(gemm: ir.Node) -> tuple[int, float, int]:
    return attribute(gemm, "transA", 0), attribute(gemm, "alpha", 1.0), attribute(gemm, "transB", 0)


def _summed(op: GraphBuilder, node: ir.Node, known: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """Return the sum over the steps of the results of a node."""
    if kind(node) == "ReduceSum":
        return op.ReduceSum(_apply(op, node, known)[0], axes=[0], keepdims=False)
    a, b = (op.Reshape(known[x], [-1, (dims(x) or [])[-1]]) for x in node.inputs[:2] if x is not None)
    return op.Gemm(a, b, transA=1)


def _replace_stacks(op: GraphBuilder, scan: _Scan, known: dict[ir.Value, ir.Value]) -> None:
    """Replace the stacks of values that are computed outside."""
    for value, stack in list(scan.stacks):
        outside = known.get(value, known.get(before_identities(value)))
        if outside is not None and outside is not stack:
            scan.stacks.remove((value, stack))
            replace_value(op, stack, outside)


# Operators on stacks.


class _Stackable(NamedTuple):
    """How an operator is applied to the stacks of its operands.

    Attributes
    ----------
    applies : callable
        From the node and, for each operand, True if it is stacked: True if the operator can be applied to stacks.
    apply : callable
        From a builder, the node and the operands outside: the stacks of the results.
    """

    applies: Callable[[ir.Node, Sequence[bool]], bool]
    apply: Callable[[GraphBuilder, ir.Node, Sequence[ir.Value | None]], Sequence[ir.Value]]


def _applies(node: ir.Node, inside: Collection[ir.Value]) -> bool:
    """Return True if the node can be applied to the stacks of those operands that are ``inside``."""
    stacked = [x in inside for x in node.inputs]
    if kind(node) not in _OPERATORS or not any(stacked) or any(dims(x) is None for x in node.inputs if x is not None):
        return False
    return _OPERATORS[kind(node)].applies(node, stacked)


def _apply(op: GraphBuilder, node: ir.Node, known: Mapping[ir.Value, ir.Value]) -> Sequence[ir.Value]:
    """Return the stacks of the results of a node; ``known`` holds the stacks of operands."""
    operands: list[ir.Value | None] = []
    for x in node.inputs:
        array = None if x is None or x in known or x.producer() is None else constant(x)
        operands.append(known.get(x, x) if array is None else op.constant(array))  # type: ignore[arg-type]
    results = _OPERATORS[kind(node)].apply(op, node, operands)
    steps = next((dims(known[x]) or [None])[0] for x in node.inputs if x is not None and x in known)
    for value, stack in zip(node.outputs, results, strict=True):
        shape = dims(value)
        if stack.type is None or stack.shape is None:
            stack.type, stack.shape = value.type, None if shape is None else ir.Shape([steps, *shape])
    return results


def _again(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None], **changes: Any) -> Sequence[ir.Value]:
    settings = {name: a.value for name, a in node.attributes.items()} | changes
    return op.emit(node.op_type, *operands, outputs=len(node.outputs), **settings)


def _rank(value: ir.Value | None) -> int:
    return len(dims(value) or ())


def _broadcast(node: ir.Node, stacked: Sequence[bool]) -> bool:
    """Return True if no stack would be broadcast along its first axis."""
    rank = max(map(_rank, node.inputs))
    return all(_rank(x) == rank for x, has_steps in zip(node.inputs, stacked, strict=True) if has_steps)


def _multiplies(node: ir.Node, stacked: Sequence[bool]) -> bool:
    return min(map(_rank, node.inputs)) >= 2 and _broadcast(node, stacked)


def _is_plain_gemm(node: ir.Node, stacked: Sequence[bool]) -> bool:
    third = operand(node, 2) is not None
    beta = attribute(node, "beta", 1.0) if third else 1.0
    return (
        list(stacked[:2]) == [True, False] and not any(stacked[2:]) and _numbers(node)[:2] == (0, 1.0) and beta == 1.0
    )


def _gemm(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    rows, matrix, bias = [*operands, None][:3]
    product = op.MatMul(rows, op.Transpose(matrix, perm=[1, 0]) if attribute(node, "transB", 0) else matrix)
    return [product if bias is None else op.Add(product, bias)]


def _along(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """Apply an operator with an ``axis``."""
    return _again(op, node, operands, axis=attribute(node, "axis", 0) % _rank(node.inputs[0]) + 1)


def _axes(node: ir.Node, index: int) -> list[int] | None:
    """Return the axes that are an attribute or the constant input ``index``; None if they are missing or computed."""
    value = operand(node, index)
    found = attribute(node, "axes", None) if value is None else constant(value)
    return None if found is None else [int(axis) for axis in found]


def _shifted(node: ir.Node, index: int) -> list[int]:
    rank = _rank(node.inputs[0])
    return [axis % rank + 1 for axis in _axes(node, index) or ()]


def _slice(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, start, stop, _, *steps = operands
    return [op.Slice(x, start, stop, _shifted(node, 3), *steps)]


def _reduce(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    keeps = attribute(node, "keepdims", 1)
    return [op.emit(node.op_type, operands[0], axes=_shifted(node, 1), keepdims=keeps)[0]]


def _pad(op: GraphBuilder, node: ir.Node, operands: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    pads, rank = constant(node.inputs[1]), _rank(node.inputs[0])  # type: ignore[arg-type]
    assert pads is not None
    return _again(op, node, [operands[0], op.constant(np.insert(pads, [0, rank], 0)), *operands[2:]])


def _first(node: ir.Node, stacked: Sequence[bool]) -> bool:
    return stacked[0] and not any(stacked[1:]) and _rank(node.inputs[0]) > 0


_ELEMENTWISE = """
    Abs Add And Cast Ceil Clip Cos Div Elu Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid LeakyRelu Less
    LessOrEqual Log Max Min Mul Neg Not Or Pow Reciprocal Relu Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tanh
    ThresholdedRelu Where
"""

_OPERATORS: dict[str, _Stackable] = {
    **{name: _Stackable(_broadcast, _again) for name in _ELEMENTWISE.split()},
    "Identity": _Stackable(lambda node, stacked: True, lambda op, node, operands: [operands[0]]),  # type: ignore[list-item]
    "Concat": _Stackable(lambda node, stacked: all(stacked), _along),
    "Gemm": _Stackable(_is_plain_gemm, _gemm),
    "MatMul": _Stackable(_multiplies, _again),
    "Pad": _Stackable(
        lambda node, stacked: (
            _first(node, stacked)
            and operand(node, 1) is not None
            and operand(node, 3) is None
            and constant(node.inputs[1]) is not None  # type: ignore[arg-type]
        ),
        _pad,
    ),
    "ReduceMean": _Stackable(lambda node, stacked: _first(node, stacked) and bool(_axes(node, 1)), _reduce),
    "ReduceSum": _Stackable(lambda node, stacked: _first(node, stacked) and bool(_axes(node, 1)), _reduce),
    "Slice": _Stackable(lambda node, stacked: _first(node, stacked) and bool(_axes(node, 3)), _slice),
    "Split": _Stackable(_first, _along),
    "Transpose": _Stackable(
        lambda node, stacked: "perm" in node.attributes,
        lambda op, node, operands: _again(
            op, node, operands, perm=[0, *(i + 1 for i in node.attributes["perm"].as_ints())]
        ),
    ),
}


# Equal nodes.

_OWN = ("steps/", "gradient/", "derivative/", "expanded/")
"""Starts of the names of nodes and constants that no user gave."""


def _share_equal(graph: ir.Graph, kept: Collection[str] = ()) -> None:
    """Let the readers of equal nodes that derivatives added read one of them, in place."""
    seen = dict[tuple[object, ...], ir.Node]()
    for node in list(graph):
        if not (node.name or "").startswith(_OWN) or graphs_in(node) or node.op_type in {*RANDOM, "Dropout"}:
            continue
        settings = tuple(sorted((name, _setting(a.value)) for name, a in node.attributes.items()))
        key = (kind(node), len(node.outputs), settings, *map(_identity, node.inputs))
        first = seen.setdefault(key, node)
        held = any(value.is_graph_output() or value.name in kept for value in node.outputs)
        if first is not node and not held:
            for value, other in zip(node.outputs, first.outputs, strict=True):
                for reader, index in list(value.uses()):
                    reader.replace_input_with(index, other)


def _setting(value: object) -> str:
    if isinstance(value, ir.TensorProtocol):
        return f"{value.dtype} {value.shape} {value.numpy().tobytes()!r}"
    return repr(value)


def _identity(value: ir.Value | None) -> object:
    """Return a key that is equal for equal constants that derivatives added, and for nothing else but the value."""
    array = None if value is None or not (value.name or "").startswith(_OWN) else constant(value)
    if array is None or array.size > 16:
        return id(value)
    return array.dtype.str, array.shape, array.tobytes()
