"""Recomputation of activations in the backward pass (gradient checkpointing), as an edit of a gradient graph.

The forward pass is cut into segments of about equal memory, at places that few values cross. The values that cross are
kept, the others are computed a second time where the backward pass needs them. Two things must not happen to the
copies: that an optimizer of onnxruntime finds them equal to the originals and merges both, and that they run before the
backward pass gets there. So a segment's copies read what they begin from through ``Where(b, x, x)``, where ``b``
depends on a gradient that reaches the segment: whatever ``b`` is, the numbers are those of ``x``, to the bit.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from .._ir.limits import bytes_per_element
from .._ir.queries import dims, fixed, graphs_in, reads
from ..graph import GraphBuilder

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
KEPT_OPERATORS = frozenset(
    "Bernoulli Dropout If Loop Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike Scan".split()
)
"""Operators whose results are kept: they draw random numbers or hold graphs."""


@dataclass(frozen=True, eq=False)
class ForwardSegment:
    """A part of the forward pass.

    Attributes
    ----------
    nodes : list of onnx_ir.Node
        In the order in which they run.
    inner : set of onnx_ir.Value
        Values that only this segment and the backward pass read.
    """

    nodes: list[ir.Node]
    inner: set[ir.Value]


def recompute_activations(model: ir.Model, data: Collection[str]) -> int:
    """Let the backward pass compute activations again, in place; return how many segments are computed twice.

    Parameters
    ----------
    model : onnx_ir.Model
        A gradient graph with known shapes: its first output is the loss.
    data : collection of str
        The inputs that hold a minibatch; what depends on weights alone is not computed again.
    """
    graph = model.graph
    graph.sort()
    forward = _nodes_before([v for v in graph.outputs if not (v.name or "").endswith("_grad")])
    activations = _behind([v for v in graph.inputs if v.name in data], graph)
    segments = _segments([node for node in graph if node in forward], forward, activations)
    op = GraphBuilder(graph, prefix="again", constant_nodes=True)
    reached = [_nodes_behind(segment.inner, graph, forward) for segment in segments]
    count = 0
    for i in reversed(range(len(segments))):
        earlier = set().union(*reached[: i + 1])
        count += _compute_again(op, segments[i], forward, reached[i], earlier, activations)
    if count:
        graph.sort()
    return count


def _nodes_before(outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that outputs depend on."""
    front, found = [v.producer() for v in outputs], set[ir.Node]()
    while front:
        node = front.pop()
        if node is not None and node not in found:
            found.add(node)
            front += [x.producer() for x in reads(node)]
    return found


def _behind(values: Iterable[ir.Value], graph: ir.Graph) -> set[ir.Value]:
    """Return values and everything computed from them."""
    found = set(values)
    for node in graph:
        if not found.isdisjoint(reads(node)):
            found.update(node.outputs)
    return found


def _segments(nodes: Sequence[ir.Node], forward: set[ir.Node], activations: set[ir.Value]) -> list[ForwardSegment]:
    """Return the segments but for the last, which the backward pass begins with."""
    sizes = [sum(_activation_bytes(v) for v in node.outputs if v in activations) for node in nodes]
    place = {node: i for i, node in enumerate(nodes)}
    last = {v: max((place[u] for u, _ in v.uses() if u in forward), default=-1) for n in nodes for v in n.outputs}
    crossing = np.zeros(len(nodes) + 1)  # bytes of what is computed before a place and read behind it
    for node in nodes:
        for value in node.outputs:
            if value in activations and last[value] > place[node]:
                crossing[place[node] + 1 : last[value] + 1] += _activation_bytes(value)
    cuts = _cuts(np.concatenate([[0], np.cumsum(sizes)]), crossing)
    result = []
    for start, stop in pairwise(cuts):
        inner = {v for n in nodes[start:stop] for v in n.outputs if v in activations and last[v] < stop}
        result.append(ForwardSegment(list(nodes[start:stop]), {v for v in inner if not v.is_graph_output()}))
    return result


def _cuts(memory: np.ndarray, crossing: np.ndarray) -> list[int]:
    """Return where segments begin: the root of their number cuts, each where least crosses near its share of memory."""
    moments = int(np.count_nonzero(np.diff(memory)))
    count, total = max(1, round(math.sqrt(moments / 2))), memory[-1]
    found = [0]
    for i in range(1, count):
        low, high = ((i + side) * total / count for side in (-0.4, 0.4))
        near = [p for p in range(found[-1] + 1, len(memory) - 1) if low <= memory[p] <= high]
        if near:
            found.append(min(near, key=lambda p: (crossing[p], abs(memory[p] - i * total / count))))
    return found


def _activation_bytes(value: ir.Value) -> float:
    sizes = dims(value)
    return math.prod(sizes) * bytes_per_element(value.dtype) if fixed(sizes) and value.dtype is not None else 0.0


def _nodes_behind(inner: set[ir.Value], graph: ir.Graph, forward: set[ir.Node]) -> set[ir.Node]:
    """Return the nodes of the backward pass that depend on values within a segment."""
    found, values = set[ir.Node](), set(inner)
    for node in graph:
        if node not in forward and not values.isdisjoint(reads(node)):
            found.add(node)
            values.update(node.outputs)
    return found


def _compute_again(
    op: GraphBuilder,
    segment: ForwardSegment,
    forward: set[ir.Node],
    readers: set[ir.Node],
    earlier: set[ir.Node],
    activations: set[ir.Value],
) -> bool:
    """Compute again what the backward pass reads of a segment; return whether anything is."""
    wanted = {v for v in segment.inner if v.dtype in FLOATS and _is_read_behind(v, readers)}
    copied = _needed(segment, wanted)
    if not copied:
        return False
    order = {node: i for i, node in enumerate(op.graph)}
    first = min(order[u] for v in wanted for u, _ in v.uses() if u in readers and u.graph is op.graph)
    gate = _gate(readers, earlier, forward, order, first, activations)
    if gate is None:
        return False
    assert gate.dtype is not None
    signal = op.Greater(op.Gather(op.Reshape(gate, [-1]), 0), np.zeros((), gate.dtype.numpy()))
    values = _copies(op, copied, signal, activations)
    for value in wanted:
        for node, index in [(u, i) for u, i in value.uses() if u in readers]:
            if value in values:
                node.replace_input_with(index, values[value])
    made = [node for node in op.graph if node not in order]
    anchor = next(node for node, i in order.items() if i == first)
    op.graph.remove(made)
    op.graph.insert_before(anchor, made)
    return True


def _is_read_behind(value: ir.Value, readers: set[ir.Node]) -> bool:
    return any(user in readers for user, _ in value.uses())


def _needed(segment: ForwardSegment, wanted: set[ir.Value]) -> list[ir.Node]:
    """Return the nodes that compute the wanted values from what is kept, in order; none if they cannot run twice."""
    missing, found = set(wanted), []
    for node in reversed(segment.nodes):
        if missing.isdisjoint(node.outputs):
            continue
        if node.op_type in KEPT_OPERATORS or graphs_in(node):
            missing -= set(node.outputs)
            continue
        found.append(node)
        missing |= {x for x in node.inputs if x is not None and x in segment.inner and x.dtype in FLOATS}
    return found[::-1]


def _gate(
    readers: set[ir.Node],
    earlier: set[ir.Node],
    forward: set[ir.Node],
    order: Mapping[ir.Node, int],
    first: int,
    activations: set[ir.Value],
) -> ir.Value | None:
    """Return a gradient that is known before any value of this segment, or an earlier one, is read: the latest one."""
    found: list[tuple[int, ir.Value]] = []
    for node in readers:
        for x in node.inputs:
            made = None if x is None else x.producer()
            if made is None or made in earlier or made in forward or made not in order or x is None:
                continue
            if x.dtype in FLOATS and x in activations and _activation_bytes(x):
                found.append((order[made], x))
    before = [one for one in found if one[0] < first]
    return max(before, key=lambda one: one[0])[1] if before else None


def _copies(
    op: GraphBuilder, nodes: Sequence[ir.Node], signal: ir.Value, activations: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Emit copies of nodes; what they read of other nodes waits for the signal. Return the copied values."""
    values: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        for x in node.inputs:
            if x is not None and x not in values and x in activations and x.dtype in (*FLOATS, ir.DataType.INT64):
                late = op.Where(signal, x, x)
                late.type, late.shape = x.type, x.shape
                values[x] = late
        inputs = [None if x is None else values.get(x, x) for x in node.inputs]
        attributes = {name: a.value for name, a in node.attributes.items()}
        count = len(node.outputs)
        results = op.emit(node.op_type, *inputs, domain=node.domain, outputs=count, **attributes)
        for old, new in zip(node.outputs, results, strict=True):
            new.type, new.shape = old.type, old.shape
            new.name = new.name if old.name else ""  # an omitted output
            values[old] = new
    return values
