"""Simplify If, Loop and Scan, and infer shapes through them and downstream of computed shapes.

:func:`complete_shapes` follows the integers that a graph computes from shapes (``shape_values``), node by node, and
completes the shapes that ONNX's inference leaves unknown (``shapes``), also in bodies; :func:`complete_bodies` does so
only for graphs with bodies. :func:`fold` also replaces known integers by constants, and an If whose condition is known
by its branch. :func:`unroll` replaces loops by the nodes of all iterations, for code that cannot handle subgraphs.
:func:`read_constant_states` removes states that no iteration changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph import GraphBuilder
from .edits import (
    append_copy,
    append_nodes,
    read_from_outside,
    remove_states,
    remove_unread,
    replace_by_constant,
    replace_node,
)
from .queries import Dims, attribute, before_identities, constant, dims, every_node, graphs_in, never_ends, operand
from .shape_values import WHOLE_TYPES, Integers, evaluate, is_complete, note_constant
from .shapes import infer_node, infer_shapes
from .supported import ANY, SCAN, Supported

_LEADING = {"Loop": (2, 1), "Scan": (0, 0)}
"""For each operator: the number of inputs (of the node and of its body), and of outputs of the body, that precede the
states."""


def read_constant_states(model: ir.Model) -> bool:
    """Remove loop states that no iteration changes: bodies read their initial values from the outer graph, in place.

    JAX's loops carry their weights as such states. Return True if there were any.
    """
    found = False
    for node in every_node(model.graph):
        if node.op_type in _LEADING and not node.domain:
            body = _body(node)
            first, done = _LEADING[node.op_type]
            # The scanned inputs of a Scan are no states, even if the body returns a slice of one unchanged.
            last = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            pairs = list(zip(list(body.inputs)[first:last], list(body.outputs)[done:], node.outputs, strict=False))
            constant_states = [
                i for i, (x, y, end) in enumerate(pairs) if before_identities(y) is x and not end.is_graph_output()
            ]
            remove_states(node, constant_states, first, done)
            found = found or bool(constant_states)
    return found


# Unrolling of Loops and Scans with a known number of iterations, for code that cannot handle subgraphs.
#
# Each iteration becomes nodes of the outer graph. A Loop that may end early computes all its iterations, and iterations
# after its end keep the states unchanged. A Loop or Scan cannot be unrolled, and stays, if its number of iterations is
# unknown, if it stacks outputs and may end early, if a state changes its shape, or if it would give more than
# :data:`MAX_NODES` nodes.


MAX_NODES = 20_000


def unroll(model: ir.Model) -> ir.Model:
    """Unroll the Loops and Scans of ``model``, including nested ones, in place; weights keep their names."""

    def unroll_all(op: GraphBuilder, nodes: Sequence[ir.Node]) -> None:
        for node in nodes:
            iteration = _unrollable(node)
            if iteration is not None and iteration.size() <= MAX_NODES:
                before = len(op.graph)
                results = iteration.run(op)
                inside = list(op.graph)[before:]
                replace_node(op, node, results)
                unroll_all(op, inside)

    if any(_is_iterated(node) for node in model.graph):
        complete_shapes(model)
        op = GraphBuilder(model.graph, prefix="unrolled", constant_nodes=True, shared=True)
        unroll_all(op, list(model.graph))
        remove_unread(model.graph, [node for node in model.graph if node.op_type == "Constant"])
        model.graph.sort()
        infer_shapes(model)
    return model


def _is_iterated(node: ir.Node) -> bool:
    return node.op_type in _ITERATED and not node.domain


@dataclass(frozen=True)
class _Slices:
    """The axis along which iterations read or stack slices, and whether they start at its end."""

    axis: int
    backwards: bool

    def order(self, rounds: int) -> range:
        return range(rounds - 1, -1, -1) if self.backwards else range(rounds)


@dataclass(frozen=True)
class _FixedLoop:
    """A Loop or Scan of ``rounds`` iterations.

    ``early`` is True if a Loop may end before that; ``go_on`` is then its initial condition, or None if that is true.
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
        """Return the approximate number of nodes after unrolling."""
        inner = (_unrollable(node) for node in self.body)
        return self.rounds * sum(1 if iteration is None else iteration.size() for iteration in inner)

    def run(self, op: GraphBuilder) -> list[ir.Value]:
        """Emit the iterations; return the outputs of the node."""
        # Move the constants of the body to the outer graph: all iterations share them.
        held = [*self.body.initializers.values()]
        held += [node.outputs[0] for node in self.body if node.op_type == "Constant" and not node.domain]
        for value in held:
            known = constant(value)
            if known is not None:
                read_from_outside(self.body, value, op.constant(known))
        states = self.states
        go_on = None if self.go_on is None else _as_scalar(op, self.go_on)
        rows = []
        taken = list[list[ir.Value]]()
        for value, way in self.scanned:
            known, order = constant(value), way.order(self.rounds)
            if known is None:
                taken.append([op.Gather(value, np.array(i), axis=way.axis) for i in order])
            else:
                taken.append([op.constant(np.take(known, i, axis=way.axis)) for i in order])
        for number in range(self.rounds):
            leading = [op.constant(np.array(number)), op.constant(np.array(True))] if self.is_loop else []
            results = append_copy(op, self.body, [*leading, *states, *(column[number] for column in taken)])
            more = results.pop(0) if self.is_loop else None
            after, stacked = results[: len(states)], results[len(states) :]
            if go_on is not None:  # an iteration after the end keeps the states
                after = [_select(op, go_on, new, old) for new, old in zip(after, states, strict=True)]
                more = None if more is None else op.And(go_on, _as_scalar(op, more))
            states = after
            go_on = _as_scalar(op, more) if self.early and more is not None else None
            rows.append(stacked)
        stacks = []
        for column, way in zip(zip(*rows, strict=True), self.stacked, strict=True):
            ordered = [column[i] for i in way.order(len(column))]
            stacks.append(op.Concat(*(op.Unsqueeze(value, axes=[way.axis]) for value in ordered), axis=way.axis))
        return [*states, *stacks]


def _unrollable(node: ir.Node) -> _FixedLoop | None:
    """Return ``node`` as a :class:`_FixedLoop`, or None if it is no Loop or Scan that can be unrolled."""
    if not _is_iterated(node):
        return None
    known = _ITERATED[node.op_type]
    found = known.rule(node) if known.unknown(node) is None else None
    return found if found is not None and found.rounds > 0 else None


def _scan_iteration(node: ir.Node) -> _FixedLoop | None:
    body = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
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
    body = node.attributes["body"].as_graph()
    trips = operand(node, 0)
    start = operand(node, 1)
    rounds = None if trips is None else constant(trips)
    states = [x for x in list(node.inputs)[2:] if x is not None]
    stacked = [_Slices(0, False)] * (len(body.outputs) - 1 - len(states))
    given = True if start is None else constant(start)
    early = given is None or not never_ends(body)
    unlike = any(dims(x) is None or dims(x) != dims(y) for x, y in zip(states, list(body.outputs)[1:], strict=False))
    if rounds is None or (given is not None and not np.all(given)) or (early and (stacked or unlike)):
        return None
    return _FixedLoop(body, int(rounds.item()), states, [], stacked, True, early, start if given is None else None)


def _as_scalar(op: GraphBuilder, condition: ir.Value) -> ir.Value:
    """Reshape a condition of one element to a scalar, which broadcasts to any shape."""
    return condition if dims(condition) == [] else op.Reshape(condition, np.array([], np.int64))


def _select(op: GraphBuilder, condition: ir.Value, new: ir.Value, old: ir.Value) -> ir.Value:
    if old.dtype is not ir.DataType.BOOL:
        return op.Where(condition, new, old)
    return op.Or(op.And(condition, new), op.And(op.Not(condition), old))  # onnxruntime has no Where of booleans


_ITERATED: dict[str, Supported[Callable[[ir.Node], _FixedLoop | None]]] = {
    "Loop": Supported(_loop_iteration, "body", inputs=ANY, outputs=ANY),
    "Scan": Supported(_scan_iteration, SCAN, inputs=ANY, outputs=ANY),
}


# Computed shapes: followed through chains of Shape, Gather, Concat and the like.
#
# ONNX's inference stops where a shape comes from such a chain, and knows no rank downstream of it. Here the integers of
# a chain are evaluated as far as they are known, the values that they shape get their shapes, and :func:`fold` replaces
# integers that are known in full by constants.


def complete_shapes(model: ir.Model) -> ir.Model:
    """Infer types and shapes, in place, including those downstream of computed shapes."""
    infer_shapes(model)
    _name_lengths_of_stacks(model.graph)
    if _computes_shapes(model.graph):
        _follow_integers(model)
    return model


def complete_bodies(model: ir.Model) -> None:
    """Infer shapes like :func:`complete_shapes`, in place, if the graph has bodies; set the bodies' opsets."""
    if any(graphs_in(node) for node in model.graph):
        complete_shapes(model)


def fold(model: ir.Model) -> ir.Model:
    """Infer shapes like :func:`complete_shapes`; also replace computed integers that never change by constants.

    An If whose condition is known becomes the nodes of its branch: the older exporter of PyTorch writes one where an
    axis is removed if its size is one. CastLike becomes Cast, for which both engines have a gradient.
    """
    infer_shapes(model)
    _name_lengths_of_stacks(model.graph)
    for node in every_node(model.graph):
        like = node.inputs[1] if node.op_type == "CastLike" and not node.domain else None
        if like is not None and like.dtype is not None:
            node.op_type = "Cast"
            node.replace_input_with(1, None)
            node.resize_inputs(1)
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
    changed = _computes_shapes(model.graph)
    while changed:
        known = _follow_integers(model)
        taken = take_known_branches(model.graph, known)
        changed = _put_constants(model.graph, known) or taken
        if changed:
            infer_shapes(model)
        # The nodes of a known branch may give shapes on which the conditions of other Ifs depend: try again.
        changed = changed and any(node.op_type == "If" for node in model.graph)
    return model


def _computes_shapes(graph: ir.Graph) -> bool:
    """Return True if a node reads sizes, computes integers from constants alone, has a body, or is unknown to ONNX."""

    def is_constant(value: ir.Value) -> bool:
        node = value.producer()
        return value.is_initializer() if node is None else node.op_type == "Constant" and not node.domain

    def tells_sizes(node: ir.Node) -> bool:
        if node.op_type in ("Shape", "Size"):
            return True
        whole = len(node.outputs) == 1 and node.outputs[0].dtype in WHOLE_TYPES
        return whole and bool(node.inputs) and all(x is None or is_constant(x) for x in node.inputs)

    return any(
        node.domain == "com.microsoft" if node.domain else tells_sizes(node) or graphs_in(node) for node in graph
    )


def _follow_integers(model: ir.Model) -> Integers:
    """Visit the nodes in order, complete their shapes, also in bodies, and return the known integers."""
    tracker = IntegerTracker(model)
    for node in model.graph:
        tracker.visit(node)
        if graphs_in(node):
            infer_bodies(node, tracker.visit_body, tracker.forget)
    return tracker.known


class IntegerTracker:
    """The known integers of a model, collected node by node in their order."""

    def __init__(self, model: ir.Model) -> None:
        self.known: Integers = {}
        self._model = model
        self._note_initializers(model.graph)

    def _note_initializers(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            # Leave out float initializers, because training may change them.
            whole = value.const_value is not None and value.const_value.dtype in WHOLE_TYPES
            if whole and value.const_value is not None and not value.is_graph_input():
                note_constant(self.known, value, value.const_value)

    def visit(self, node: ir.Node) -> None:
        """Infer missing shapes and types of a node's outputs, and evaluate its integers."""
        if any(v.shape is None or v.dtype is None for v in node.outputs if v.name):
            infer_node(self._model, node, self.known)
        if not node.domain and len(node.outputs) == 1:
            evaluate(node, self.known)

    def visit_body(self, graph: ir.Graph) -> None:
        """Visit the nodes of a body, and of those inside it."""
        graph.opset_imports.update(self._model.graph.opset_imports)
        self._note_initializers(graph)
        for node in graph:
            self.visit(node)
            if graphs_in(node):
                infer_bodies(node, self.visit_body, self.forget)

    def forget(self, graph: ir.Graph) -> None:
        """Forget the shapes and integers that a body computes."""
        for value in (value for node in every_node(graph) for value in node.outputs):
            value.shape = None
            self.known.pop(value, None)


def _put_constants(graph: ir.Graph, known: Integers, outer: GraphBuilder | None = None) -> bool:
    """Replace computed values that are known completely by constants, also in bodies; return True if there were any.

    Nodes whose results nothing reads any more are removed.
    """
    op = GraphBuilder(graph, prefix="folded", constant_nodes=True)
    if outer is not None:
        op.taken = outer.taken
    inside = [_put_constants(inner, known, op) for node in list(graph) for inner in graphs_in(node)]
    made = {v: known[v] for node in graph if node.op_type != "Constant" and (v := node.outputs[0]) in known}
    whole = {v: array for v, array in made.items() if is_complete(array) and not v.is_graph_output()}
    ends = [v for v in whole if any(not whole.keys() >= set(user.outputs) for user, _ in v.uses())]
    for value in ends:
        assert value.dtype is not None
        replace_by_constant(op, value, whole[value].astype(value.dtype.numpy()))
    if ends:
        graph.sort()
        remove_unread(graph, [node for node in graph if node.outputs[0] in known])
    return bool(ends) or any(inside)


# Shapes in the bodies of If, Loop and Scan, and of the results of these nodes.
#
# Inside a body, ONNX's inference does not know the constants of the outer graph. It also leaves the shapes of a Loop's
# states unknown, because each iteration may change them. Here the nodes of a body are visited with the integers that
# are known in the outer graph. A state of a Loop starts with the shape of its initial value and loses each size that an
# iteration changes; the remaining sizes hold in every iteration.


Visit = Callable[[ir.Graph], None]
"""Function that infers missing shapes in a body."""


def infer_bodies(node: ir.Node, visit: Visit, forget: Visit) -> None:
    """Complete the shapes in the bodies of a node, and of the node's outputs, in place.

    ``visit`` infers the shapes in a body; ``forget`` removes them again, before another iteration's are inferred.
    """
    if node.op_type == "If" and not node.domain:
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        for branch in branches:
            visit(branch)
        for value, a, b in zip(node.outputs, *(branch.outputs for branch in branches), strict=False):
            _complete(value, _common(dims(a), dims(b)), a)
    elif node.op_type == "Loop" and not node.domain:
        _infer_loop(node, visit, forget)
    elif node.op_type == "Scan" and not node.domain:
        _infer_scan(node, visit)
    else:
        for graph in graphs_in(node):
            visit(graph)


def states_of_known_start(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs of bodies whose shape follows from a known initial value, or from a scanned tensor."""
    found: list[ir.Value] = []
    for node in every_node(graph):
        if node.op_type in ("Loop", "Scan") and not node.domain:
            skipped = 2 if node.op_type == "Loop" else 0
            pairs = zip(list(node.inputs)[skipped:], list(_body(node).inputs)[skipped:], strict=False)
            found += [x for start, x in pairs if start is not None and start.shape is not None]
    return found


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


def _infer_loop(node: ir.Node, visit: Visit, forget: Visit) -> None:
    body = _body(node)
    starts, before, after = list(node.inputs)[2:], list(body.inputs)[2:], list(body.outputs)[1:]
    known = [
        i for i, x in enumerate(starts) if x is not None and isinstance(x.type, ir.TensorType) and dims(x) is not None
    ]
    held = {i: dims(starts[i]) for i in known}
    changed = False
    for i in known:
        changed = dims(before[i]) != held[i] or changed
        before[i].type = starts[i].type  # type: ignore[union-attr]
    # Each round drops the sizes that an iteration changed, so the search ends after at most as many rounds as sizes.
    while True:
        for i, sizes in held.items():
            before[i].shape = None if sizes is None else ir.Shape(sizes)
        if changed:
            forget(body)
        visit(body)
        kept = {i: _common(sizes, dims(after[i])) for i, sizes in held.items()}
        changed = kept != held
        if not changed:
            break
        held = kept
    for i, sizes in held.items():
        _complete(node.outputs[i], sizes, before[i])
    for value, row in zip(list(node.outputs)[len(before) :], after[len(before) :], strict=False):
        _complete(value, _stacked(dims(row), 0, _rounds_of_loop(node)), row)


def _rounds_of_loop(node: ir.Node) -> int | None:
    """Return the number of iterations of a Loop, if it is constant and the Loop cannot end early."""
    trips, start = operand(node, 0), operand(node, 1)
    count = None if trips is None else constant(trips)
    goes_on = start is None or ((given := constant(start)) is not None and bool(np.all(given)))
    known = count is not None and count.size == 1 and goes_on and never_ends(_body(node))
    return max(0, int(count.item())) if known and count is not None else None


def _name_lengths_of_stacks(graph: ir.Graph) -> None:
    """Set the length of the results that a Loop stacks: its number of iterations, or else one name for all, in place.

    ONNX's inference generates a new name for each of these lengths, even if the number of iterations is constant. Such
    a name counts as unknown; then a Loop downstream would not be known to keep the sizes of its states.
    """
    found: dict[str, int | str] = {}
    for node in every_node(graph):
        if node.op_type == "Loop" and not node.domain:
            stacks = list(node.outputs)[len(node.inputs) - 2 :]
            names = [v.shape[0].value for v in stacks if v.shape and isinstance(v.shape[0], ir.SymbolicDim)]
            rounds = _rounds_of_loop(node)
            length = f"rounds_{stacks[0].name}" if stacks and rounds is None else rounds
            found |= {name: length for name in names if name and name.startswith(_MADE_UP) and length is not None}
    for v in graph.inputs:
        for size in v.shape or ():
            found.pop(str(size), None)  # drop a name that the model itself declares
    if not found:
        return
    for value in (v for n in every_node(graph) for v in (*n.outputs, *(x for b in graphs_in(n) for x in b.inputs))):
        sizes = [d if isinstance(d, int) else d.value for d in value.shape or ()]
        if any(d in found for d in sizes if isinstance(d, str)):
            value.shape = ir.Shape([found.get(d, d) if isinstance(d, str) else d for d in sizes])


_MADE_UP = "unk__"
"""Prefix of the dimension names that ONNX's inference generates."""


def _infer_scan(node: ir.Node, visit: Visit) -> None:
    body = _body(node)
    count = node.attributes["num_scan_inputs"].as_int()
    first = len(node.inputs) - count
    axes = attribute(node, "scan_input_axes", [0] * count)
    for start, state in zip(list(node.inputs)[:first], body.inputs, strict=False):
        _complete(state, dims(start), start)  # by the definition of Scan, every iteration keeps the shape of a state
    lengths: Dims = []
    for value, part, axis in zip(list(node.inputs)[first:], list(body.inputs)[first:], axes, strict=False):
        sizes = dims(value)
        if sizes is not None:
            lengths.append(sizes.pop(axis))
            _complete(part, sizes, value)
    visit(body)
    for value, start in zip(list(node.outputs)[:first], node.inputs, strict=False):
        _complete(value, dims(start), start)
    stacks = list(node.outputs)[first:]
    axes = attribute(node, "scan_output_axes", [0] * len(stacks))
    length = next(iter(lengths), None)
    for value, row, axis in zip(stacks, list(body.outputs)[first:], axes, strict=False):
        _complete(value, _stacked(dims(row), axis, length), row)


def _common(a: Dims | None, b: Dims | None) -> Dims | None:
    """Return a shape with the sizes that ``a`` and ``b`` share; None if their ranks differ or one is unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return [x if x == y else None for x, y in zip(a, b, strict=True)]


def _stacked(row: Dims | None, axis: int, length: int | str | None) -> Dims | None:
    if row is None:
        return None
    position = axis if axis >= 0 else axis + len(row) + 1
    return [*row[:position], length, *row[position:]]


def _complete(value: ir.Value, sizes: Sequence[int | str | None] | None, like: ir.Value | None) -> None:
    """Set the shape of a tensor to ``sizes``, and its element type to that of ``like``, where they are unknown."""
    if like is None or not isinstance(like.type, ir.TensorType):
        return
    value.type = like.type if value.type is None else value.type
    if value.shape is None and sizes is not None and isinstance(value.type, ir.TensorType):
        value.shape = ir.Shape(sizes)


# Known branches: an If whose condition is known is replaced by the nodes of the branch that is taken.


def take_branches(model: ir.Model) -> None:
    """Replace each If whose condition never changes by the nodes of its branch, in place."""
    while any(node.op_type == "If" for node in model.graph) and take_known_branches(
        model.graph, _follow_integers(model)
    ):
        infer_shapes(model)


def take_known_branches(graph: ir.Graph, known: Integers) -> bool:
    """Replace each If of the main graph with a condition in ``known``, in place; return True if there was one."""
    op, found = GraphBuilder(graph, prefix="branch"), False
    for node in [n for n in graph if n.op_type == "If" and not n.domain and n.inputs[0] is not None]:
        condition = known.get(node.inputs[0])  # type: ignore[arg-type]
        if condition is None or condition.size != 1 or not is_complete(condition):
            continue
        body = node.attributes["then_branch" if condition.item() else "else_branch"].as_graph()
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            value.name = op.name(value.name or "constant")
            op.graph.initializers.add(value)
        replace_node(op, node, append_nodes(op, body, []))
        found = True
    if found:
        graph.sort()
    return found
