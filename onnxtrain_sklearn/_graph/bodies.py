"""Shapes in the bodies of If, Loop and Scan, and of what these nodes return.

ONNX's inference knows no constant of the outer graph in a body, and leaves the states of a Loop unknown, as each
iteration may change their shapes. Here the nodes of a body are visited with what is known around it. A state of a Loop
starts with the shape of its initial value, and loses each size that an iteration changes: what is left holds in every
iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from .queries import Dims, attribute, dims, every_node, graphs_in

Visit = Callable[[ir.Graph], None]
"""Infers the shapes in a body, as far as they are missing."""


def infer_bodies(node: ir.Node, visit: Visit, forget: Visit) -> None:
    """Complete the shapes in the bodies of a node and of its outputs, in place; ``forget`` removes those in a body."""
    if node.domain or node.op_type not in _RULES:
        for graph in graphs_in(node):
            visit(graph)
    else:
        _RULES[node.op_type](node, visit, forget)


def states_of_known_start(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs of bodies whose shapes follow from the values that they start with, or are slices of."""
    found: list[ir.Value] = []
    for node in every_node(graph):
        if node.op_type in ("Loop", "Scan") and not node.domain:
            skipped = 2 if node.op_type == "Loop" else 0
            pairs = zip(list(node.inputs)[skipped:], list(_body(node).inputs)[skipped:], strict=False)
            found += [x for start, x in pairs if start is not None and start.shape is not None]
    return found


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


def _infer_if(node: ir.Node, visit: Visit, _: Visit) -> None:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    for branch in branches:
        visit(branch)
    for value, a, b in zip(node.outputs, *(branch.outputs for branch in branches), strict=False):
        _complete(value, _common(dims(a), dims(b)), a)


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
        _complete(value, _stacked(dims(row), 0, None), row)


def _infer_scan(node: ir.Node, visit: Visit, _: Visit) -> None:
    body, count = _body(node), node.attributes["num_scan_inputs"].as_int()
    first = len(node.inputs) - count
    axes = attribute(node, "scan_input_axes", [0] * count)
    for start, state in zip(list(node.inputs)[:first], body.inputs, strict=False):
        _complete(state, dims(start), start)  # each iteration keeps it, by the definition of Scan
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
    axes, length = attribute(node, "scan_output_axes", [0] * len(stacks)), next(iter(lengths), None)
    for value, row, axis in zip(stacks, list(body.outputs)[first:], axes, strict=False):
        _complete(value, _stacked(dims(row), axis, length), row)


_RULES: dict[str, Callable[[ir.Node, Visit, Visit], None]] = {"If": _infer_if, "Loop": _infer_loop, "Scan": _infer_scan}


def _common(a: Dims | None, b: Dims | None) -> Dims | None:
    """Return the sizes that two shapes share; None: they have different ranks, or one is not known."""
    if a is None or b is None or len(a) != len(b):
        return None
    return [x if x == y else None for x, y in zip(a, b, strict=True)]


def _stacked(row: Dims | None, axis: int, length: int | str | None) -> Dims | None:
    if row is None:
        return None
    position = axis if axis >= 0 else axis + len(row) + 1
    return [*row[:position], length, *row[position:]]


def _complete(value: ir.Value, sizes: Sequence[int | str | None] | None, like: ir.Value | None) -> None:
    """Give a tensor its shape and the type of the elements of ``like`` where they are missing."""
    if like is None or not isinstance(like.type, ir.TensorType):
        return
    value.type = like.type if value.type is None else value.type
    if value.shape is None and sizes is not None and isinstance(value.type, ir.TensorType):
        value.shape = ir.Shape(sizes)
