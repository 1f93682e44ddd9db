"""Lowering of LSTM, GRU and RNN to one Scan over the time steps for each direction, as the standard defines them.

The input projections of all steps are one product before the Scan; a step computes only the recurrent product. Sizes
and the number of steps may be symbolic, and the graph does not grow with the latter. After its end, a shorter sequence
keeps its state and gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder, Operand
from ...._graph.queries import attribute, dims, operand
from ...._graph.supported import Supported
from ..context import Lowering, unsupported
from ..control_flow import inner_builder

ActivationFunction = Callable[[GraphBuilder, ir.Value], ir.Value]

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
"""Defaults of alpha and beta (None: not a parameter; NaN: required), and the function."""


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
    functions: Sequence[ActivationFunction]
    recurrence: ir.Value  # (size, gates * size)
    bias: ir.Value | None  # the recurrent bias, if it cannot be added to the input projection
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

    def parts(self, value: ir.Value, count: int) -> Sequence[ir.Value]:
        """Split the last axis into the gates."""
        sizes = [self.d.size] * count
        return self.op.emit("Split", value, outputs=count, axis=-1, split=sizes)


def _rnn_step(s: _Step) -> list[ir.Value]:
    (h,) = s.states
    return [s.activate(0, s.op.Add(s.x, s.op.MatMul(h, s.d.recurrence)))]


def _gru_step(s: _Step) -> list[ir.Value]:
    """A GRU step; ``linear_before_reset`` says whether the reset gate applies before or after the recurrent product."""
    op, (h,), size = s.op, s.states, s.d.size
    xz, xr, xh = s.parts(s.x, 3)
    if attribute(s.d.node, "linear_before_reset", 0):
        hz, hr, product = s.parts(op.MatMul(h, s.d.recurrence), 3)
        if s.d.bias is not None:
            product = op.Add(product, s.d.bias)
        z, r = s.activate(0, op.Add(xz, hz)), s.activate(0, op.Add(xr, hr))
        candidate = s.activate(1, op.Add(xh, op.Mul(r, product)))
    else:
        both, last = op.emit("Split", s.d.recurrence, outputs=2, axis=-1, split=[2 * size, size])
        hz, hr = s.parts(op.MatMul(h, both), 2)
        z, r = s.activate(0, op.Add(xz, hz)), s.activate(0, op.Add(xr, hr))
        candidate = s.activate(1, op.Add(xh, op.MatMul(op.Mul(r, h), last)))
    return [op.Add(op.Mul(op.Sub(1.0, z), candidate), op.Mul(z, h))]


def _lstm_step(s: _Step) -> list[ir.Value]:
    """An LSTM step: gates i, o, f, c. Peepholes read the old cell state; the one of the output gate reads the new."""
    op, (h, c) = s.op, s.states
    i, o, f, g = s.parts(op.Add(s.x, op.MatMul(h, s.d.recurrence)), 4)
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


def _lower_recurrent(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Return the hidden states of all steps, and the final value of each state."""
    cell = CELLS[node.op_type]
    if attribute(node, "layout", 0):
        raise unsupported(node, "with layout=1 no onnxruntime computes it")
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    ways = directions[attribute(node, "direction", "forward")]
    ends = [_one_direction(op, node, cell, i, backwards) for i, backwards in enumerate(ways)]
    return [_concat_parts(op, parts, axis=1 if k == 0 else 0) for k, parts in enumerate(zip(*ends, strict=True))]


def _concat_parts(op: GraphBuilder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    wide = [op.Unsqueeze(part, axes=[axis]) for part in parts]
    return wide[0] if len(wide) == 1 else op.Concat(*wide, axis=axis)


def _one_direction(op: GraphBuilder, node: ir.Node, cell: _Cell, index: int, backwards: bool) -> list[ir.Value]:
    """Emit the Scan of one direction; return the hidden states of all steps, and the final value of each state."""
    x, w, r, b, lengths = (operand(node, i) for i in range(5))
    assert x is not None
    size = _hidden_size(node, r)
    projected = op.MatMul(x, op.Transpose(_part(op, w, index), perm=[1, 0]))
    bias, apart = _biases(op, node, cell, size, None if b is None else _part(op, b, index))
    d = _Direction(
        node,
        size,
        _activations(node, cell)[index * len(cell.activations) :],
        op.Transpose(_part(op, r, index), perm=[1, 0]),
        apart,
        _peepholes(op, operand(node, 7), index, size),
    )
    starts = [_start(op, x, size, operand(node, 5 + i), index) for i in range(cell.states)]
    scanned = [projected if bias is None else op.Add(projected, bias)]
    if lengths is not None:
        scanned.append(_mask_of_steps(op, x, lengths))
        begun = op.Greater(op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), axes=[1]), 0)
        starts = [op.Where(begun, start, 0.0) for start in starts]  # runtimes return zero states for empty sequences
    ways: dict[str, Any] = {}
    if backwards:
        ways = {"scan_input_directions": [1] * len(scanned), "scan_output_directions": [1]}
    body = _body(op, d, cell, _batch(x), [x.dtype or op.dtype] * cell.states, masked=lengths is not None)
    *last, y = op.emit(
        "Scan", *starts, *scanned, outputs=cell.states + 1, body=body, num_scan_inputs=len(scanned), **ways
    )
    return [y, *last]


def _hidden_size(node: ir.Node, r: ir.Value | None) -> int:
    shape = dims(r)
    size = attribute(node, "hidden_size", None if shape is None else shape[-1])
    if not isinstance(size, int):
        raise unsupported(node, "the size of its state is not known")
    return size


def _batch(x: ir.Value) -> int | str | None:
    shape = dims(x)
    return None if shape is None else shape[1]


def _part(op: GraphBuilder, value: ir.Value | None, index: int) -> ir.Value:
    """Return the slice of one direction."""
    assert value is not None
    sizes = dims(value)
    one = value if sizes is not None and sizes[0] == 1 else op.Slice(value, [index], [index + 1], [0])
    return op.Squeeze(one, axes=[0])


def _biases(
    op: GraphBuilder, node: ir.Node, cell: _Cell, size: int, b: ir.Value | None
) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the bias to add to the input projection, and the recurrent bias that must be added separately."""
    if b is None:
        return None, None
    n = cell.gates * size
    of_input, of_state = op.emit("Split", b, outputs=2, axis=-1, split=[n, n])
    if not (node.op_type == "GRU" and attribute(node, "linear_before_reset", 0)):
        return op.Add(of_input, of_state), None
    early, late = op.emit("Split", of_state, outputs=2, axis=-1, split=[2 * size, size])
    return op.Add(of_input, op.Pad(early, [0, size])), late


def _peepholes(op: GraphBuilder, p: ir.Value | None, index: int, size: int) -> Sequence[ir.Value]:
    return () if p is None else op.emit("Split", _part(op, p, index), outputs=3, axis=-1, split=[size] * 3)


def _start(op: GraphBuilder, x: ir.Value, size: int, given: ir.Value | None, index: int) -> ir.Value:
    if given is not None:
        return _part(op, given, index)
    batch = _batch(x)
    shape: Operand = [batch, size] if isinstance(batch, int) else None
    if shape is None:
        shape = op.Concat(op.Slice(op.Shape(x), [1], [2], [0]), np.array([size]), axis=0)
    return op.ConstantOfShape(shape, value=ir.tensor([0], dtype=x.dtype or op.dtype))


def _mask_of_steps(op: GraphBuilder, x: ir.Value, lengths: ir.Value) -> ir.Value:
    """Return a mask of the steps that are within the length of each sequence."""
    steps = op.Range(np.array(0), op.Squeeze(op.Slice(op.Shape(x), [0], [1], [0]), axes=[0]), np.array(1))
    column = op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), axes=[1])
    return op.Less(op.Unsqueeze(steps, axes=[1, 2]), column)


def _body(
    op: GraphBuilder,
    d: _Direction,
    cell: _Cell,
    batch: int | str | None,
    dtypes: Sequence[ir.DataType],
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

    states = [given("state", d.size, dtype) for dtype in dtypes]
    x = given("step", cell.gates * d.size, dtypes[0])
    going = given("going", 1, ir.DataType.BOOL) if masked else None
    new = cell.step(_Step(inner, d, x, states))
    y = new[0]
    if going is not None:
        y = inner.Where(going, y, 0.0)
        new = [inner.Where(going, after, before) for after, before in zip(new, states, strict=True)]
    graph.outputs.extend([*(inner.Identity(v) for v in new), inner.Identity(y)])
    return graph


def _activations(node: ir.Node, cell: _Cell) -> list[ActivationFunction]:
    """Return the activations of all directions; those with parameters consume alphas and betas in order."""
    count = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    names = attribute(node, "activations", None) or list(cell.activations) * count
    alphas, betas = (iter(attribute(node, f"activation_{k}", None) or []) for k in ("alpha", "beta"))
    functions: list[ActivationFunction] = []
    unheard = [name for name in names if name.lower() not in RECURRENT_ACTIVATIONS]
    if unheard:
        raise unsupported(node, f"no gradient is known of its activation {unheard[0]}")
    known = [RECURRENT_ACTIVATIONS[name.lower()][0] for name in names]
    if node.op_type == "RNN" and any(None in given and any(given) for given in zip(*known, strict=True)):
        raise unsupported(node, "runtimes count activation_alpha and activation_beta for all its directions")
    for name in names:
        (alpha, beta), function = RECURRENT_ACTIVATIONS[name.lower()]
        a, b = _next_parameter(node, name, alphas, alpha), _next_parameter(node, name, betas, beta)
        functions.append(partial(_apply, function, a, b))
    return functions


def _next_parameter(node: ir.Node, name: str, values: Iterator[float], default: float | None) -> float | None:
    """Return the next alpha or beta, or the default. An RNN must give it: its default depends on the runtime."""
    if default is None:
        return None
    value = next(values, nan if node.op_type == "RNN" else default)
    if isnan(value):
        raise unsupported(node, f"its activation {name} has no activation_alpha or activation_beta of its own")
    return float(value)


def _apply(
    function: Callable[..., ir.Value], a: float | None, b: float | None, op: GraphBuilder, x: ir.Value
) -> ir.Value:
    return function(op, x, a, b)


_RECURRENT_ATTRIBUTES = """
    activation_alpha activation_beta activations clip direction=bidirectional|forward|reverse hidden_size layout
"""

LOWERINGS: dict[str, Lowering] = {
    "GRU": Supported(_lower_recurrent, f"linear_before_reset {_RECURRENT_ATTRIBUTES}", inputs=6, outputs=2),
    "LSTM": Supported(_lower_recurrent, f"input_forget {_RECURRENT_ATTRIBUTES}", inputs=8, outputs=3),
    "RNN": Supported(_lower_recurrent, _RECURRENT_ATTRIBUTES, inputs=6, outputs=2),
}
