"""Recompute activations in the backward pass (gradient checkpointing), as an edit of a gradient graph.

:func:`recompute_activations` cuts the forward pass into segments of about equal memory, at places that few values
cross. The crossing values are kept; the others are computed a second time, by copies of the segment's nodes, where the
backward pass needs them. onnxruntime's graph optimizers must not merge these copies with the original nodes, which are
equal, and the copies must not run before the backward pass reaches the segment. So a segment's copies read their inputs
through ``Where(b, x, x)``, where ``b`` depends on a gradient that reaches the segment: whatever ``b`` is, the result is
``x``, to the bit.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from .._ir.limits import bytes_per_element
from .._ir.queries import dims, fixed, graphs_in, reads
from ..graph import GraphBuilder
from .subgraph_rules import RANDOM

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_KEPT_OPERATORS = RANDOM | {"Dropout", "If", "Loop", "Scan"}
"""Operators whose results are never recomputed, because they draw random numbers or contain subgraphs."""


@dataclass(frozen=True, eq=False)
class _Segment:
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
    """Recompute activations in the backward pass, in place; return the number of segments that are computed twice.

    Parameters
    ----------
    model : onnx_ir.Model
        A gradient graph with known shapes: its first output is the loss.
    data : collection of str
        The inputs that hold a minibatch; values that depend on weights alone are not computed again.
    """
    graph = model.graph
    graph.sort()

    # The forward pass: the nodes that outputs other than gradients depend on.
    front = [v.producer() for v in graph.outputs if not (v.name or "").endswith("_grad")]
    forward = set[ir.Node]()
    while front:
        node = front.pop()
        if node is not None and node not in forward:
            forward.add(node)
            front += [x.producer() for x in reads(node)]

    activations = {v for v in graph.inputs if v.name in data}
    for node in graph:
        if not activations.isdisjoint(reads(node)):
            activations.update(node.outputs)
    segments = _segments([node for node in graph if node in forward], forward, activations)

    # For each segment, find the backward nodes that depend on it. The backward pass reaches the last segment first.
    reached = list[set[ir.Node]]()
    for segment in segments:
        found, values = set[ir.Node](), set(segment.inner)
        for node in graph:
            if node not in forward and not values.isdisjoint(reads(node)):
                found.add(node)
                values.update(node.outputs)
        reached.append(found)

    op = GraphBuilder(graph, prefix="again", constant_nodes=True)
    count = 0
    for i in reversed(range(len(segments))):
        earlier = set().union(*reached[: i + 1])
        count += _compute_again(op, segments[i], forward, reached[i], earlier, activations)
    if count:
        graph.sort()
    return count


def _segments(nodes: Sequence[ir.Node], forward: set[ir.Node], activations: set[ir.Value]) -> list[_Segment]:
    """Return all segments but the last, which need not be recomputed: the backward pass reads its values first."""
    sizes = [sum(_activation_bytes(v) for v in node.outputs if v in activations) for node in nodes]
    place = {node: i for i, node in enumerate(nodes)}
    last = {v: max((place[u] for u, _ in v.uses() if u in forward), default=-1) for n in nodes for v in n.outputs}
    crossing = np.zeros(len(nodes) + 1)  # for each position between nodes: bytes computed before it and read after it
    for node in nodes:
        for value in node.outputs:
            if value in activations and last[value] > place[node]:
                crossing[place[node] + 1 : last[value] + 1] += _activation_bytes(value)
    cuts = _cuts(np.concatenate([[0], np.cumsum(sizes)]), crossing)
    result = []
    for start, stop in pairwise(cuts):
        inner = {v for n in nodes[start:stop] for v in n.outputs if v in activations and last[v] < stop}
        result.append(_Segment(list(nodes[start:stop]), {v for v in inner if not v.is_graph_output()}))
    return result


def _cuts(memory: np.ndarray, crossing: np.ndarray) -> list[int]:
    """Return the positions of the nodes at which segments begin.

    The segments take about equal parts of ``memory``; each begins nearby where the fewest bytes cross. Their number is
    about the square root of the number of activations: then the kept values take as much memory as those of a segment.
    """
    moments = int(np.count_nonzero(np.diff(memory)))  # nodes that compute activations
    count = max(1, round(math.sqrt(moments / 2)))
    total = memory[-1]
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


def _compute_again(
    op: GraphBuilder,
    segment: _Segment,
    forward: set[ir.Node],
    readers: set[ir.Node],
    earlier: set[ir.Node],
    activations: set[ir.Value],
) -> bool:
    """Recompute the values of a segment that the backward pass reads; return True if there are any."""
    wanted = {v for v in segment.inner if v.dtype in _FLOATS and any(user in readers for user, _ in v.uses())}

    # Collect the nodes that compute the missing values from the kept ones, except nodes that cannot run twice.
    missing, copied = set(wanted), list[ir.Node]()
    for node in reversed(segment.nodes):
        if missing.isdisjoint(node.outputs):
            continue
        if node.op_type in _KEPT_OPERATORS or graphs_in(node):
            missing -= set(node.outputs)
            continue
        copied.insert(0, node)
        missing |= {x for x in node.inputs if x is not None and x in segment.inner and x.dtype in _FLOATS}
    if not copied:
        return False

    # Choose the gate: the latest gradient that is computed before any value of this or of an earlier segment is read.
    order = {node: i for i, node in enumerate(op.graph)}
    first = min(order[u] for v in wanted for u, _ in v.uses() if u in readers and u.graph is op.graph)
    known: list[tuple[int, ir.Value]] = []
    for node in readers:
        for x in node.inputs:
            made = None if x is None else x.producer()
            if made is None or made in earlier or made in forward or x is None or order.get(made, first) >= first:
                continue
            if x.dtype in _FLOATS and x in activations and _activation_bytes(x):
                known.append((order[made], x))
    if not known:
        return False
    gate = max(known, key=lambda one: one[0])[1]
    assert gate.dtype is not None

    # Emit the copies, which wait for the gate.
    signal = op.Greater(op.Gather(op.Reshape(gate, [-1]), 0), np.zeros((), gate.dtype.numpy()))
    values = _copies(op, copied, signal, activations)
    for value in wanted:
        for node, index in [(u, i) for u, i in value.uses() if u in readers]:
            if value in values:
                node.replace_input_with(index, values[value])
    # The copies must stand before their first reader, not at the end of the graph.
    copies = [node for node in op.graph if node not in order]
    anchor = next(node for node, i in order.items() if i == first)
    op.graph.remove(copies)
    op.graph.insert_before(anchor, copies)
    return True


def _copies(
    op: GraphBuilder, nodes: Sequence[ir.Node], signal: ir.Value, activations: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Emit copies of nodes whose inputs from other nodes wait for the signal; return the copied values."""
    values: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        for x in node.inputs:
            if x is not None and x not in values and x in activations and x.dtype in (*_FLOATS, ir.DataType.INT64):
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
