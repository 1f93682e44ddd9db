"""Lower operators without a gradient rule to operators that have one, before the graph is differentiated.

:func:`expand` replaces nodes on the path by the nodes that a function of :data:`LOWERINGS` emits. The graph computes
the same values as before. Attention becomes matrix products, a recurrent operator becomes a Scan over the time steps,
and nodes that read an element of a sequence read its tensor instead. Each family has a section below.

Batch size and sequence lengths may be symbolic; the number and the size of heads are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._importers.ort_fusions import rotated
from .._ir.edits import replace_node
from .._ir.queries import attribute, constant, dims, graphs_in, is_float, kind, operand
from .._ir.shapes import infer_shapes
from .._ir.supported import ANY, Supported
from ..graph import GraphBuilder, Operand, length_along, positions_along
from .path import PathNode, path_between
from .reverse import require, require_types, unsupported
from .subgraph_rules import inner_builder

Lowering: TypeAlias = "Supported[Callable[[GraphBuilder, ir.Node], Sequence[ir.Value | None]]]"


def expand(model: ir.Model, sources: Collection[ir.Value], end: ir.Value, known: Collection[str]) -> None:
    """Lower the nodes between ``sources`` and ``end`` that are not ``known`` and have a lowering, in place."""
    op = GraphBuilder(model.graph, prefix="expanded", constant_nodes=True)
    steps = path_between(model.graph, set(sources), {end})
    lowered = [step for step in _unknown_nodes(steps, known) if kind(step.node) in LOWERINGS]
    for step in lowered:
        require_types(step)
        node = step.node
        graph, lowering = node.graph, LOWERINGS[kind(node)]
        require(lowering, node)
        assert isinstance(graph, ir.Graph)
        builder = op if graph is op.graph else inner_builder(op, graph)
        builder.dtype = next((v.dtype for v in node.outputs if v.dtype is not None and is_float(v)), op.dtype)
        replace_node(builder, node, lowering.rule(builder, node))
        graph.sort()
    if lowered:
        infer_shapes(model)


def _unknown_nodes(steps: Sequence[PathNode], known: Collection[str]) -> Iterator[PathNode]:
    """Yield the nodes on the path that are not ``known``, including nodes of subgraphs."""
    for step in steps:
        for body in graphs_in(step.node):
            sources = step.sources | set(filter(is_float, body.inputs))
            yield from _unknown_nodes(path_between(body, sources, set(filter(is_float, body.outputs))), known)
        if kind(step.node) not in known:
            yield step


# Attention and rotary embeddings.
#
# If all keys of a query are masked, its result is zero and its gradients are zero.


def _expand_attention(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value | None]:
    # Queries, keys and values of each head; keys and values of the past come first.
    q, k, v, mask, past_key, past_value = (operand(node, i) for i in range(6))
    assert q is not None
    flat = len(dims(q) or []) == 3
    queries = _as_heads(op, node, q, "q_num_heads")
    keys, values = _as_heads(op, node, k, "kv_num_heads"), _as_heads(op, node, v, "kv_num_heads")
    if past_key is not None and past_value is not None:
        keys, values = (_append_to_past(op, *pair) for pair in ((past_key, keys), (past_value, values)))
    heads, width = _fixed_size(node, queries, 1), _fixed_size(node, queries, 3)

    # Scores: scaled products.
    scale = attribute(node, "scale", None)
    transposed = op.Transpose(_repeat_heads(op, node, keys, heads), perm=[0, 1, 3, 2])
    scores = op.MatMul(op.Mul(queries, 1 / np.sqrt(width).item() if scale is None else float(scale)), transposed)
    softcap = attribute(node, "softcap", 0.0)
    if softcap:
        scores = op.Mul(op.Tanh(op.Mul(scores, 1.0 / softcap)), float(softcap))

    # The allowed keys. A causal mask allows the keys up to the position of the query; past keys precede all queries.
    allowed = list[ir.Value]()
    if attribute(node, "is_causal", 0):
        rows, columns = (positions_along(op, scores, axis) for axis in (2, 3))
        if past_key is not None:
            rows = op.Add(rows, length_along(op, past_key, 2))
        allowed.append(op.LessOrEqual(op.Unsqueeze(columns, axes=[0]), op.Unsqueeze(rows, axes=[1])))
    if mask is not None:
        # Refuse a mask narrower than the keys: its meaning has changed between versions.
        covered, count = (dims(mask) or [None])[-1], (dims(k) or [None, None])[-2]
        past = 0 if past_key is None else (dims(past_key) or [None] * 4)[2]
        if past != 0:
            count = count + past if isinstance(count, int) and isinstance(past, int) else None
        if covered is None or covered != count:
            raise unsupported(node, "its mask is not known to be as wide as its keys")
        if mask.dtype is ir.DataType.BOOL:
            allowed.append(mask)
        else:
            scores = op.Add(scores, mask)
            allowed.append(op.Greater(mask, -np.inf))

    # Weights: the softmax over the allowed keys, zero elsewhere. Masked scores get a large negative number instead of
    # -inf, whose gradient would be NaN.
    if allowed:
        both = allowed[0] if len(allowed) == 1 else op.And(*allowed)
        lowest = float(np.finfo(op.dtype.numpy()).min) / 2
        weights = op.Where(both, op.Softmax(op.Where(both, scores, lowest), axis=-1), 0.0)
    else:
        weights = op.Softmax(scores, axis=-1)
    y = op.MatMul(weights, _repeat_heads(op, node, values, heads))
    if flat:
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, heads * _fixed_size(node, values, 3)])
    return [y, keys, values]


def _fixed_size(node: ir.Node, value: ir.Value, axis: int) -> int:
    sizes = dims(value)
    size = None if sizes is None else sizes[axis]
    if not isinstance(size, int):
        raise unsupported(node, "the numbers and sizes of its heads must be fixed")
    return size


def _as_heads(op: GraphBuilder, node: ir.Node, value: ir.Value | None, name: str) -> ir.Value:
    """Return queries, keys or values as (batch, heads, sequence, size)."""
    assert value is not None
    sizes = dims(value)
    if sizes is None or len(sizes) not in (3, 4):
        raise unsupported(node, "the ranks of its inputs are not known")
    if len(sizes) == 4:
        return value
    heads = attribute(node, name, 0)
    width = _fixed_size(node, value, 2) // heads
    parted = op.Reshape(value, [0, 0, heads, width])
    parted.shape = ir.Shape([*sizes[:2], heads, width])
    result = op.Transpose(parted, perm=[0, 2, 1, 3])
    result.shape = ir.Shape([sizes[0], heads, sizes[1], width])
    return result


def _append_to_past(op: GraphBuilder, past: ir.Value, new: ir.Value) -> ir.Value:
    sizes = dims(new) or [None] * 4
    result = op.Concat(past, new, axis=2)
    result.shape = ir.Shape([*sizes[:2], None, sizes[3]])
    return result


def _repeat_heads(op: GraphBuilder, node: ir.Node, value: ir.Value, heads: int) -> ir.Value:
    """Repeat the heads of keys or values for consecutive groups of query heads (grouped-query attention)."""
    own = _fixed_size(node, value, 1)
    if own == heads:
        return value
    if heads % own:
        raise unsupported(node, f"{heads} heads of queries cannot share {own} heads of keys")
    wide = op.Expand(op.Unsqueeze(value, axes=[2]), np.array([1, 1, heads // own, 1, 1]))
    return op.Reshape(wide, [0, heads, -1, _fixed_size(node, value, 3)])


def _expand_rotary(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Rotate pairs of features; the axes are (batch, sequence, heads, features) here."""
    x, cosine, sine, positions = (operand(node, i) for i in range(4))
    assert x is not None
    sizes = dims(x)
    flat = sizes is not None and len(sizes) == 3
    heads = attribute(node, "num_heads", 0)
    if flat and not heads:
        raise unsupported(node, "num_heads is missing")
    width = _fixed_size(node, x, 2) // heads if flat else _fixed_size(node, x, 3)
    value = op.Reshape(x, [0, 0, heads, width]) if flat else op.Transpose(x, perm=[0, 2, 1, 3])
    turned = attribute(node, "rotary_embedding_dim", 0) or width
    tables = (table if positions is None else op.Gather(table, positions, axis=0) for table in (cosine, sine))
    c, s = (op.Unsqueeze(op.Slice(table, [0], [turned // 2], [2]), axes=[2]) for table in tables)
    y = rotated(op, value, c, s, turned, paired=bool(attribute(node, "interleaved", 0)), rest=turned < width)
    return [op.Reshape(y, [0, 0, heads * width]) if flat else op.Transpose(y, perm=[0, 2, 1, 3])]


# LSTM, GRU and RNN.
#
# Each direction is one Scan over the time steps. The input projections of all steps are one product before the Scan; a
# step computes only the recurrent product. Sizes and the number of steps may be symbolic, and the graph does not grow
# with the number of steps. After the end of a shorter sequence, its state stays and its outputs are zero.


_Activation = Callable[[GraphBuilder, ir.Value], ir.Value]

RECURRENT_ACTIVATIONS: dict[str, tuple[tuple[float | None, float | None], Callable[..., ir.Value]]] = {
    "affine": ((nan, nan), lambda op, x, a, b: op.Add(op.Mul(x, a), b)),
    "elu": ((1.0, None), lambda op, x, a, b: op.Elu(x, alpha=a)),
    "hardsigmoid": ((0.2, 0.5), lambda op, x, a, b: op.HardSigmoid(x, alpha=a, beta=b)),
    "leakyrelu": ((0.01, None), lambda op, x, a, b: op.LeakyRelu(x, alpha=a)),
    "relu": ((None, None), lambda op, x, a, b: op.Relu(x)),
    "scaledtanh": ((nan, nan), lambda op, x, a, b: op.Mul(op.Tanh(op.Mul(x, b)), a)),
    "sigmoid": ((None, None), lambda op, x, a, b: op.Sigmoid(x)),
    "softplus": ((None, None), lambda op, x, a, b: op.Softplus(x)),
    "softsign": ((None, None), lambda op, x, a, b: op.Softsign(x)),
    "tanh": ((None, None), lambda op, x, a, b: op.Tanh(x)),
    "thresholdedrelu": ((1.0, None), lambda op, x, a, b: op.ThresholdedRelu(x, alpha=a)),
}
"""For each activation: the defaults of alpha and beta, and the function. None: there is no such parameter; NaN: the
parameter is required."""


@dataclass(frozen=True)
class _Cell:
    """A kind of recurrent cell: number of gates, default activations, number of states, and the step function."""

    gates: int
    activations: tuple[str, ...]
    states: int
    step: Callable[[_Step], list[ir.Value]]


@dataclass(frozen=True)
class _Direction:
    """The settings and weights of one direction that its steps use."""

    node: ir.Node
    size: int
    functions: Sequence[_Activation]
    recurrence: ir.Value  # (size, gates * size)
    bias: ir.Value | None  # the recurrent bias of a GRU's candidate, if each step adds it
    peepholes: Sequence[ir.Value]


@dataclass(frozen=True)
class _Step:
    """One time step inside the Scan: ``x`` is the input projection of all gates."""

    op: GraphBuilder
    d: _Direction
    x: ir.Value
    states: Sequence[ir.Value]

    def activate(self, index: int, x: ir.Value) -> ir.Value:
        """Apply an activation; its argument is clipped if the node has ``clip``."""
        bound = attribute(self.d.node, "clip", None)
        return self.d.functions[index](self.op, x if bound is None else self.op.Clip(x, -float(bound), float(bound)))

    def cut(self, value: ir.Value, *gates: int) -> Sequence[ir.Value]:
        """Cut the last axis into parts of so many gates. Gates with one activation stay together: nodes take time."""
        sizes = [count * self.d.size for count in gates]
        return self.op.emit("Split", value, outputs=len(gates), axis=-1, split=sizes)


def _rnn_step(s: _Step) -> list[ir.Value]:
    (h,) = s.states
    return [s.activate(0, s.op.Add(s.x, s.op.MatMul(h, s.d.recurrence)))]


def _gru_step(s: _Step) -> list[ir.Value]:
    """Emit a GRU step (gates z, r, h); with ``linear_before_reset``, r applies after the recurrent product."""
    op, (h,) = s.op, s.states
    x_both, xh = s.cut(s.x, 2, 1)
    if attribute(s.d.node, "linear_before_reset", 0):
        h_both, product = s.cut(op.MatMul(h, s.d.recurrence), 2, 1)
        if s.d.bias is not None:
            product = op.Add(product, s.d.bias)
        z, r = s.cut(s.activate(0, op.Add(x_both, h_both)), 1, 1)
        candidate = s.activate(1, op.Add(xh, op.Mul(r, product)))
    else:
        both, last = s.cut(s.d.recurrence, 2, 1)
        z, r = s.cut(s.activate(0, op.Add(x_both, op.MatMul(h, both))), 1, 1)
        candidate = s.activate(1, op.Add(xh, op.MatMul(op.Mul(r, h), last)))
    return [op.Add(op.Mul(op.Sub(1.0, z), candidate), op.Mul(z, h))]


def _lstm_step(s: _Step) -> list[ir.Value]:
    """Emit an LSTM step (gates i, o, f, c). The output gate's peephole reads the new cell state, the others the old."""
    op, (h, c) = s.op, s.states
    given = op.Add(s.x, op.MatMul(h, s.d.recurrence))
    if not s.d.peepholes and not attribute(s.d.node, "input_forget", 0):
        gates, g = s.cut(given, 3, 1)
        i, o, f = s.cut(s.activate(0, gates), 1, 1, 1)
        cell = op.Add(op.Mul(f, c), op.Mul(i, s.activate(1, g)))
        return [op.Mul(o, s.d.functions[2](op, cell)), cell]
    i, o, f, g = s.cut(given, 1, 1, 1, 1)
    if s.d.peepholes:
        p_i, p_o, p_f = s.d.peepholes
        i, f = op.Add(i, op.Mul(p_i, c)), op.Add(f, op.Mul(p_f, c))
    i = s.activate(0, i)
    f = op.Sub(1.0, i) if attribute(s.d.node, "input_forget", 0) else s.activate(0, f)
    cell = op.Add(op.Mul(f, c), op.Mul(i, s.activate(1, g)))
    if s.d.peepholes:
        o = op.Add(o, op.Mul(p_o, cell))
    return [op.Mul(s.activate(0, o), s.d.functions[2](op, cell)), cell]


CELLS = {
    "GRU": _Cell(3, ("Sigmoid", "Tanh"), 1, _gru_step),
    "LSTM": _Cell(4, ("Sigmoid", "Tanh", "Tanh"), 2, _lstm_step),
    "RNN": _Cell(1, ("Tanh",), 1, _rnn_step),
}


def _expand_recurrent(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Return the hidden states of all steps, and the final value of each state."""
    cell = CELLS[node.op_type]
    if attribute(node, "layout", 0):
        raise unsupported(node, "with layout=1 no onnxruntime computes it")
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    ways = directions[attribute(node, "direction", "forward")]
    ends = [_one_direction(op, node, cell, i, backwards) for i, backwards in enumerate(ways)]
    results = []
    for k, parts in enumerate(zip(*ends, strict=True)):
        # Hidden states are (steps, directions, batch, size), final states (directions, batch, size).
        axis = 1 if k == 0 else 0
        wide = [op.Unsqueeze(part, axes=[axis]) for part in parts]
        results.append(wide[0] if len(wide) == 1 else op.Concat(*wide, axis=axis))
    return results


def _one_direction(op: GraphBuilder, node: ir.Node, cell: _Cell, index: int, backwards: bool) -> list[ir.Value]:
    """Emit the Scan of one direction; return the hidden states of all steps, and the final value of each state."""
    x, w, r, b, lengths = (operand(node, i) for i in range(5))
    assert x is not None
    shape = dims(r)
    size = attribute(node, "hidden_size", None if shape is None else shape[-1])
    if not isinstance(size, int):
        raise unsupported(node, "the size of its state is not known")

    # The input projections of all steps, with both biases. But with linear_before_reset, the reset gate of a GRU also
    # multiplies the recurrent bias of the candidate, which is added in each step then.
    projected = op.MatMul(x, op.Transpose(_part(op, w, index), perm=[1, 0]))
    bias = apart = None
    if b is not None:
        n = cell.gates * size
        of_input, of_state = op.emit("Split", _part(op, b, index), outputs=2, axis=-1, split=[n, n])
        if node.op_type == "GRU" and attribute(node, "linear_before_reset", 0):
            early, apart = op.emit("Split", of_state, outputs=2, axis=-1, split=[2 * size, size])
            of_state = op.Pad(early, [0, size])
        bias = op.Add(of_input, of_state)
    peepholes = operand(node, 7)
    d = _Direction(
        node,
        size,
        functions=_activations(node, cell)[index * len(cell.activations) :],
        recurrence=op.Transpose(_part(op, r, index), perm=[1, 0]),
        bias=apart,
        peepholes=()
        if peepholes is None
        else op.emit("Split", _part(op, peepholes, index), outputs=3, axis=-1, split=[size] * 3),
    )
    starts = [_start(op, x, size, operand(node, 5 + i), index) for i in range(cell.states)]
    scanned = [projected if bias is None else op.Add(projected, bias)]

    # Sequences of different lengths: give each step a mask of the sequences that have not ended yet.
    if lengths is not None:
        steps = positions_along(op, x, 0)
        column = op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), axes=[1])
        scanned.append(op.Less(op.Unsqueeze(steps, axes=[1, 2]), column))  # True before the end of a sequence
        begun = op.Greater(op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), axes=[1]), 0)
        starts = [op.Where(begun, start, 0.0) for start in starts]  # runtimes return zero states for empty sequences

    ways: dict[str, Any] = {}
    if backwards:
        ways = {"scan_input_directions": [1] * len(scanned), "scan_output_directions": [1]}
    body = _body(op, d, cell, _batch(x), x.dtype or op.dtype, masked=lengths is not None)
    *last, y = op.emit(
        "Scan", *starts, *scanned, outputs=cell.states + 1, body=body, num_scan_inputs=len(scanned), **ways
    )
    return [y, *last]


def _batch(x: ir.Value) -> int | str | None:
    shape = dims(x)
    return None if shape is None else shape[1]


def _part(op: GraphBuilder, value: ir.Value | None, index: int) -> ir.Value:
    """Return the slice of ``value``, whose first axis is that of the directions, for one direction."""
    assert value is not None
    sizes = dims(value)
    one = value if sizes is not None and sizes[0] == 1 else op.Slice(value, [index], [index + 1], [0])
    return op.Squeeze(one, axes=[0])


def _start(op: GraphBuilder, x: ir.Value, size: int, given: ir.Value | None, index: int) -> ir.Value:
    if given is not None:
        return _part(op, given, index)
    batch = _batch(x)
    shape: Operand = [batch, size] if isinstance(batch, int) else None
    if shape is None:
        shape = op.Concat(length_along(op, x, 1), np.array([size]), axis=0)
    return op.ConstantOfShape(shape, value=ir.tensor([0], dtype=x.dtype or op.dtype))


def _body(
    op: GraphBuilder,
    d: _Direction,
    cell: _Cell,
    batch: int | str | None,
    dtype: ir.DataType,
    *,
    masked: bool,
) -> ir.Graph:
    """Return the body of the Scan: the graph of one step."""
    graph = ir.Graph([], [], nodes=[], name=op.name("steps"))
    inner = inner_builder(op, graph)

    def given(stem: str, width: int, dtype: ir.DataType) -> ir.Value:
        shape = ir.Shape([batch, width])
        value = ir.Value(name=inner.name(stem), type=ir.TensorType(dtype), shape=shape)
        graph.inputs.append(value)
        return value

    states = [given("state", d.size, dtype) for _ in range(cell.states)]
    x = given("step", cell.gates * d.size, dtype)
    going = given("going", 1, ir.DataType.BOOL) if masked else None
    new = cell.step(_Step(inner, d, x, states))
    y = new[0]
    if going is not None:
        y = inner.Where(going, y, 0.0)
        new = [inner.Where(going, after, before) for after, before in zip(new, states, strict=True)]
    graph.outputs.extend([*(inner.Identity(v) for v in new), inner.Identity(y)])
    return graph


def _activations(node: ir.Node, cell: _Cell) -> list[_Activation]:
    """Return the activations of all directions; activations with parameters consume alphas and betas in order."""
    count = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    names = attribute(node, "activations", None) or list(cell.activations) * count
    alphas, betas = (iter(attribute(node, f"activation_{k}", None) or []) for k in ("alpha", "beta"))
    functions: list[_Activation] = []
    unknown = [name for name in names if name.lower() not in RECURRENT_ACTIVATIONS]
    if unknown:
        raise unsupported(node, f"no gradient is known of its activation {unknown[0]}")
    known = [RECURRENT_ACTIVATIONS[name.lower()][0] for name in names]
    if node.op_type == "RNN" and any(None in given and any(given) for given in zip(*known, strict=True)):
        raise unsupported(node, "runtimes count activation_alpha and activation_beta for all its directions")
    for name in names:
        (alpha, beta), function = RECURRENT_ACTIVATIONS[name.lower()]
        a, b = _next_parameter(node, name, alphas, alpha), _next_parameter(node, name, betas, beta)
        functions.append(lambda op, x, function=function, a=a, b=b: function(op, x, a, b))  # type: ignore[misc]
    return functions


def _next_parameter(node: ir.Node, name: str, values: Iterator[float], default: float | None) -> float | None:
    """Return the next alpha or beta, or the default. An RNN must give it: its default depends on the runtime."""
    if default is None:
        return None
    value = next(values, nan if node.op_type == "RNN" else default)
    if isnan(value):
        raise unsupported(node, f"its activation {name} has no activation_alpha or activation_beta of its own")
    return float(value)


_RECURRENT_ATTRIBUTES = """
    activation_alpha activation_beta activations clip direction=bidirectional|forward|reverse hidden_size layout
"""


# Sequences and optionals.
#
# There is no gradient with respect to a sequence. If its length and all positions are constant, the graph tells which
# tensor each element is, and a node that reads an element reads that tensor; other sequences are refused.


Members: TypeAlias = list[ir.Value]
Maker: TypeAlias = Supported[Callable[[GraphBuilder, ir.Node], Members]]


def _sequence_at(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    members = _unchanged_members(op, node)
    return [op.Identity(members[_member_position(node, 1, len(members))])]


def _concatenated(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    members = _unchanged_members(op, node)
    axis = attribute(node, "axis", 0)
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
        raise unsupported(node, "the optional that it reads holds a value that is not known before the graph runs")
    return [x]


def _members(op: GraphBuilder, node: ir.Node, value: ir.Value | None) -> Members:
    """Return the elements of the sequence ``value``, an input of ``node``; refuse if they are unknown."""
    producer = None if value is None else value.producer()
    if producer is None or kind(producer) not in MAKERS:
        raise unsupported(node, "the tensors of the sequence that it reads are not known before the graph runs")
    maker = MAKERS[kind(producer)]
    require(maker, producer)
    return maker.rule(op, producer)


def _unchanged_members(op: GraphBuilder, node: ir.Node) -> Members:
    return _members(op, node, operand(node, 0))


def _inserted(op: GraphBuilder, node: ir.Node) -> Members:
    members = _unchanged_members(op, node)
    x = operand(node, 1)
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
    x = node.inputs[0]
    lengths = operand(node, 1)
    axis = attribute(node, "axis", 0)
    known = None if lengths is None else constant(lengths)
    if known is not None and known.ndim:
        sizes = [int(n) for n in known]
    else:  # all parts have one size; only the last may be smaller
        shape = dims(x)
        total = None if shape is None else shape[axis]
        if not isinstance(total, int) or (lengths is not None and known is None):
            raise unsupported(node, "the number and the lengths of the parts must be fixed")
        size = 1 if known is None else int(known)
        sizes = [min(size, total - start) for start in range(0, total, size)]
    split = op.emit("Split", x, outputs=len(sizes), axis=axis, split=sizes) if len(sizes) > 1 else [x]
    parts = [v for v in split if v is not None]
    if lengths is None and not attribute(node, "keepdims", 1):
        parts = [op.Squeeze(v, axes=[axis]) for v in parts]
    return parts


MAKERS: dict[str, Maker] = {
    "Identity": Supported(_unchanged_members),
    "Optional": Supported(_unchanged_members, "type"),
    "OptionalGetElement": Supported(_unchanged_members),
    "SequenceConstruct": Supported(lambda op, node: [x for x in node.inputs if x is not None], inputs=ANY),
    "SequenceEmpty": Supported(lambda op, node: [], "dtype", inputs=0),
    "SequenceErase": Supported(_erased, inputs=2),
    "SequenceInsert": Supported(_inserted, inputs=3),
    "SplitToSequence": Supported(_split_members, "axis keepdims", inputs=2),
}


LOWERINGS: dict[str, Lowering] = {
    "Attention": Supported(_expand_attention, "is_causal kv_num_heads q_num_heads scale softcap", inputs=6, outputs=3),
    "RotaryEmbedding": Supported(_expand_rotary, "interleaved num_heads rotary_embedding_dim", inputs=4),
    "GRU": Supported(_expand_recurrent, f"linear_before_reset {_RECURRENT_ATTRIBUTES}", inputs=6, outputs=2),
    "LSTM": Supported(_expand_recurrent, f"input_forget {_RECURRENT_ATTRIBUTES}", inputs=8, outputs=3),
    "RNN": Supported(_expand_recurrent, _RECURRENT_ATTRIBUTES, inputs=6, outputs=2),
    "ConcatFromSequence": Supported(_concatenated, "axis new_axis"),
    "OptionalGetElement": Supported(_element),
    "SequenceAt": Supported(_sequence_at, inputs=2),
}
