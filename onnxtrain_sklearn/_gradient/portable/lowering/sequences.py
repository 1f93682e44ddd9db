"""Lowering of sequences and optionals: nodes that read an element read the tensor directly.

There is no gradient with respect to a sequence. If its length and all positions are constant, the graph says which
tensor each element is; other sequences are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ...._graph.builder import GraphBuilder
from ...._graph.queries import attribute, constant, dims, kind, operand
from ...._graph.supported import ANY, Supported
from ..context import Lowering, require, unsupported

Members: TypeAlias = list[ir.Value]
Maker: TypeAlias = Supported[Callable[[GraphBuilder, ir.Node], Members]]


def _members(op: GraphBuilder, node: ir.Node, value: ir.Value | None) -> Members:
    """Return the elements of the sequence ``value``, an input of ``node``; refuse if they are unknown."""
    producer = None if value is None else value.producer()
    if producer is None or kind(producer) not in MAKERS:
        raise unsupported(node, "the sequence that it reads is not made of known tensors")
    maker = MAKERS[kind(producer)]
    require(maker, producer)
    return maker.rule(op, producer)


def _constructed(op: GraphBuilder, node: ir.Node) -> Members:
    return [x for x in node.inputs if x is not None]


def _unchanged_members(op: GraphBuilder, node: ir.Node) -> Members:
    return _members(op, node, operand(node, 0))


def _inserted(op: GraphBuilder, node: ir.Node) -> Members:
    members, x = _unchanged_members(op, node), operand(node, 1)
    assert x is not None
    at = len(members) if operand(node, 2) is None else _member_position(node, 2, len(members) + 1)
    return [*members[:at], x, *members[at:]]


def _erased(op: GraphBuilder, node: ir.Node) -> Members:
    members = _unchanged_members(op, node)
    at = len(members) - 1 if operand(node, 1) is None else _member_position(node, 1, len(members))
    return members[:at] + members[at + 1 :]


def _member_position(node: ir.Node, index: int, length: int) -> int:
    """Return the constant position at input ``index``, non-negative, in a sequence of ``length``."""
    given = operand(node, index)
    at = None if given is None else constant(given)
    if at is None:
        raise unsupported(node, "the position must be constant")
    position = int(at.item())
    if not -length <= position < length:
        raise unsupported(node, f"position {position} is outside of the sequence")
    return position % length


def _split_members(op: GraphBuilder, node: ir.Node) -> Members:
    """Lower SplitToSequence to Split; without keepdims the axis is squeezed."""
    x, axis = node.inputs[0], attribute(node, "axis", 0)
    sizes = _member_sizes(node, axis)
    split = op.emit("Split", x, outputs=len(sizes), axis=axis, split=sizes) if len(sizes) > 1 else [x]
    parts = [v for v in split if v is not None]
    if operand(node, 1) is None and not attribute(node, "keepdims", 1):
        parts = [op.Squeeze(v, axes=[axis]) for v in parts]
    return parts


def _member_sizes(node: ir.Node, axis: int) -> list[int]:
    """Return the sizes of the parts along the axis; they must be fixed."""
    shape, split = dims(node.inputs[0]), operand(node, 1)
    total = None if shape is None else shape[axis]
    lengths = None if split is None else constant(split)
    if lengths is not None and lengths.ndim:
        return [int(n) for n in lengths]
    if not isinstance(total, int) or (split is not None and lengths is None):
        raise unsupported(node, "the number and the lengths of the parts must be fixed")
    size = 1 if lengths is None else int(lengths)
    return [min(size, total - start) for start in range(0, total, size)]


MAKERS: dict[str, Maker] = {
    "Identity": Supported(_unchanged_members),
    "Optional": Supported(_unchanged_members, "type"),
    "OptionalGetElement": Supported(_unchanged_members),
    "SequenceConstruct": Supported(_constructed, inputs=ANY),
    "SequenceEmpty": Supported(lambda op, node: [], "dtype", inputs=0),
    "SequenceErase": Supported(_erased, inputs=2),
    "SequenceInsert": Supported(_inserted, inputs=3),
    "SplitToSequence": Supported(_split_members, "axis keepdims", inputs=2),
}


def _sequence_at(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    members = _unchanged_members(op, node)
    return [op.Identity(members[_member_position(node, 1, len(members))])]


def _concatenated(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    members, axis = _unchanged_members(op, node), attribute(node, "axis", 0)
    if attribute(node, "new_axis", 0):
        members = [op.Unsqueeze(v, axes=[axis]) for v in members]
    return [op.Concat(*members, axis=axis)]


def _element(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the element of an optional tensor; an optional sequence is resolved by the nodes that read it."""
    x = node.inputs[0]
    producer = None if x is None else x.producer()
    if producer is not None and kind(producer) == "Optional":
        x = operand(producer, 0)
    elif x is None or isinstance(x.type, ir.OptionalType):
        raise unsupported(node, "the optional that it reads is not made of a known value")
    return [x]


LOWERINGS: dict[str, Lowering] = {
    "ConcatFromSequence": Supported(_concatenated, "axis new_axis"),
    "OptionalGetElement": Supported(_element),
    "SequenceAt": Supported(_sequence_at, inputs=2),
}
