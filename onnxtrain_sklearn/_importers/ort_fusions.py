"""Replace the fused operators that onnxruntime's optimizers write (com.microsoft) by ONNX's own operators.

:func:`lower` replaces each node that has a rule in :data:`LOWERINGS`, the table at the end. A rule is a function of a
:class:`Fused` node that emits ONNX's operators, and declares which settings of the fused operator it supports; a node
with any other setting stays, and :func:`refusal` says why. Both engines differentiate the result, and it runs on any
runtime.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from .._ir.control_flow import IntegerTracker
from .._ir.edits import remove_unread, replace_node
from .._ir.queries import attribute, every_node, graphs_in, is_float, is_read, number_of, operand
from .._ir.supported import WINDOW, Supported
from ..graph import GraphBuilder, length_along, positions_along

# Rules: the node that a lowering rewrites, and helpers that several lowerings use.
#
# A lowering returns the outputs of the node, in order, emitted in the opset of the graph. A :class:`FusionRule`
# declares the attributes, inputs and outputs that a lowering supports.


class Refused(Exception):
    """A node has a setting that its lowering does not support."""


@dataclass(frozen=True)
class Fused:
    """A fused node, and a builder of its graph that emits floats of the type of the node."""

    op: GraphBuilder
    node: ir.Node

    def x(self, index: int = 0) -> ir.Value:
        """Return a required input."""
        value = self.optional(index)
        return self.refuse(f"its input {index} is missing") if value is None else value

    def optional(self, index: int) -> ir.Value | None:
        """Return an optional input; None if it is left out."""
        return operand(self.node, index)

    def wants(self, index: int) -> bool:
        """Return True if a node reads output ``index``, or the graph returns it."""
        value = self.node.outputs[index] if index < len(self.node.outputs) else None
        return value is not None and is_read(value)

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute of the node."""
        return attribute(self.node, name, default)

    def needed(self, name: str) -> Any:
        """Return a required attribute."""
        value = self.attribute(name)
        return self.refuse(f"its attribute {name} is missing") if value is None else value

    def rank(self, value: ir.Value) -> int:
        """Return the number of axes of a value, or refuse."""
        return self.refuse(f"the rank of {value.name!r} is not known") if value.shape is None else len(value.shape)

    def size(self, value: ir.Value, axis: int) -> int:
        """Return a size of a value, or refuse if it is not fixed."""
        self.rank(value)
        size = value.shape[axis]  # type: ignore[index]
        return size if isinstance(size, int) else self.refuse(f"size {axis} of {value.name!r} is not fixed")

    def refuse(self, reason: str) -> NoReturn:
        """Leave the node unchanged, for this reason."""
        raise Refused(reason)


Outputs: TypeAlias = "Sequence[ir.Value | None]"
LoweringFunction: TypeAlias = Callable[[Fused], Outputs]


@dataclass(frozen=True)
class FusionRule(Supported[LoweringFunction]):
    """A lowering and its supported settings; ``defaults`` holds attributes that may only have the given value."""

    defaults: Mapping[str, Any] = field(default_factory=dict)

    def honors(self, attribute: ir.Attr) -> bool:
        """Return True if the lowering supports the attribute, or may ignore it at this value."""
        missing = object()
        return self.defaults.get(attribute.name, missing) == attribute.value or super().honors(attribute)


def gelu(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return the exact GELU, by the error function."""
    if op.opset >= 20:
        return op.Gelu(x)
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))


def fast_gelu(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return the approximation of GELU by tanh, with onnxruntime's constants."""
    inner = op.Mul(x, op.Add(op.Mul(op.Mul(x, x), 0.035677408136300125), 0.7978845608028654))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def plus(op: GraphBuilder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Return the sum with an optional bias."""
    return x if bias is None else op.Add(x, bias)


# Operators with a fused bias: activations, softmax, Dropout.


def _lower_gelu(f: Fused) -> Outputs:
    return [gelu(f.op, plus(f.op, f.x(0), f.optional(1)))]


def _lower_expand_dims(f: Fused) -> Outputs:
    axis = number_of(f.x(1))
    return f.refuse("its axis is computed") if axis is None else [f.op.Unsqueeze(f.x(0), axes=[int(axis)])]


def _lower_bias_split_gelu(f: Fused) -> Outputs:
    """Add the bias, then multiply the first half of the last axis by the GELU of the second half."""
    x = f.op.Add(f.x(0), f.x(1))
    half = f.size(f.x(1), -1) // 2
    hidden, gate = f.op.emit("Split", x, outputs=2, axis=-1, split=[half, half])
    return [f.op.Mul(hidden, gelu(f.op, gate))]


def _lower_bias_softmax(f: Fused) -> Outputs:
    """Lower the softmax, over the last axis, of ``x + bias``; Add broadcasts the bias."""
    data = f.op.Add(f.x(0), f.x(1))
    rank = f.rank(f.x(0))
    axis = f.attribute("axis", 1) % rank
    if axis != rank - 1:
        f.refuse("its axis is not the last one")
    return [f.op.Softmax(data, axis=-1 if f.op.opset >= 13 else axis)]


def _lower_bias_dropout(f: Fused) -> Outputs:
    """Add the bias, then apply Dropout, then add the residual."""
    op = f.op
    if op.opset < 12:
        f.refuse("before opset 12 Dropout has no input for its mode")
    inputs = [plus(op, f.x(0), f.x(1)), f.optional(3), f.optional(4)]
    y, mask = op.emit("Dropout", *inputs, outputs=2, seed=f.attribute("seed"))
    return [plus(op, y, f.optional(2)), mask]


# Attention of the domain com.microsoft, as products, added masks and a softmax.


def _lower_attention(f: Fused) -> Outputs:
    """Lower Attention, where one product with joined weights gives queries, keys and values."""
    op, heads = f.op, f.needed("num_heads")
    width = f.size(f.x(1), 1)
    sizes = [int(n) for n in f.attribute("qkv_hidden_sizes", None) or [width // 3] * 3]
    if f.optional(4) is not None:
        f.refuse("it has a past")
    every = plus(op, op.MatMul(f.x(0), f.x(1)), f.optional(2))
    q, k, v = (_split_heads(f, part, heads) for part in op.emit("Split", every, outputs=3, axis=-1, split=sizes))
    return [_attend(f, q, k, v, f.optional(3), f.optional(5), sizes[0] // heads)]


def _lower_multi_head(f: Fused) -> Outputs:
    """Lower MultiHeadAttention; keys and values are matrices, heads (from an encoder), or packed into one input."""
    op = f.op
    q, k, v, size = _unpack_heads(f) if f.optional(2) is None else _separate_heads(f)
    if (f.optional(6) is None) != (f.optional(7) is None):
        f.refuse("it has a past of keys without one of values, or the other way round")
    past = f.optional(6)
    if past is not None:
        k, v = op.Concat(past, k, axis=2), op.Concat(f.x(7), v, axis=2)
    return [_attend(f, q, k, v, f.optional(4), f.optional(5), size), k, v]


def _separate_heads(f: Fused) -> tuple[ir.Value, ir.Value, ir.Value, int]:
    """Return queries, keys and values as heads, and the size of a head."""
    heads, width = f.needed("num_heads"), f.size(f.x(0), 2)
    ranks = [f.rank(f.x(i)) for i in range(3)]
    if ranks[0] != 3 or ranks[1] != ranks[2] or ranks[1] not in (3, 4):
        f.refuse("its queries, keys and values must have three axes, or the last two four")
    inputs = [f.x(i) for i in range(3)]
    if f.optional(3) is not None:
        if ranks[1] == 4:
            f.refuse("it has a bias beside keys that come as heads")
        sizes = [width, width, f.size(f.x(3), 0) - 2 * width]
        biases = f.op.emit("Split", f.x(3), outputs=3, axis=0, split=sizes)
        inputs = [f.op.Add(x, part) for x, part in zip(inputs, biases, strict=True)]
    q, k, v = (x if rank == 4 else _split_heads(f, x, heads) for rank, x in zip(ranks, inputs, strict=True))
    return q, k, v, width // heads


def _unpack_heads(f: Fused) -> tuple[ir.Value, ir.Value, ir.Value, int]:
    """Return queries, keys and values as heads, and the size of a head, from packed inputs.

    A packed input is (rows, sequence, heads, parts, size). Its 3 parts are queries, keys and values; if the queries are
    an input of their own, its 2 parts are keys and values.
    """
    if f.optional(3) is not None:
        f.refuse("it has a bias beside packed keys and values")
    packed = f.x(0) if f.optional(1) is None else f.x(1)
    if f.rank(packed) != 5:
        f.refuse("its keys and values are packed into one axis with others")
    parts = [
        f.op.Transpose(f.op.Gather(packed, np.array(i), axis=3), perm=[0, 2, 1, 3]) for i in range(f.size(packed, 3))
    ]
    q, k, v = parts if f.optional(1) is None else [_split_heads(f, f.x(0), f.needed("num_heads")), *parts]
    return q, k, v, f.size(packed, 4)


def _split_heads(f: Fused, value: ir.Value, heads: int) -> ir.Value:
    """Reshape ``value``, (rows, sequence, heads * size), to (rows, heads, sequence, size)."""
    return f.op.Transpose(f.op.Reshape(value, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _attend(
    f: Fused,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None,
    bias: ir.Value | None,
    size: int,
) -> ir.Value:
    """Return scaled dot-product attention of heads, in the shape (rows, sequence, heads * size)."""
    op = f.op
    scale = float(f.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), scale)
    scores = plus(op, scores, bias)
    if mask is not None:
        # Turn the mask into a summand of the scores: zero for allowed keys, a large negative number for others.
        rank = f.rank(mask)
        if rank == 1:
            allowed = _within_bounds(f, mask, q, k)
        elif rank in (2, 3):
            allowed = op.Unsqueeze(op.Greater(mask, 0), axes=[1, 2] if rank == 2 else [1])
        else:
            f.refuse(f"its mask has {rank} axes")
        penalty = float(f.attribute("mask_filter_value", -10000.0))
        scores = op.Add(scores, op.Mul(op.Cast(op.Not(allowed), to=op.dtype), penalty))
    if f.attribute("unidirectional", 0):
        # Causal attention: a query attends to the keys up to its own position. Past keys come first.
        total, new = length_along(op, k, 2), length_along(op, q, 2)
        columns = op.Range(np.array(0), op.Squeeze(total, axes=[0]), np.array(1))
        rows = op.Add(op.Range(np.array(0), op.Squeeze(new, axes=[0]), np.array(1)), op.Sub(total, new))
        seen = op.Not(op.Greater(op.Unsqueeze(columns, axes=[0]), op.Unsqueeze(rows, axes=[1])))
        scores = op.Where(seen, scores, float(np.finfo(op.dtype.numpy()).min) / 2)
    y = op.MatMul(op.Softmax(scores, axis=-1 if op.opset >= 13 else 3), v)
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _within_bounds(f: Fused, ends: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """Return which keys are allowed, given a mask ``ends`` of one axis: the end of the allowed keys in each row.

    In Attention, the starts of the allowed keys may follow the ends.
    """
    op = f.op
    rows = length_along(op, q, 0)
    starts = f.node.op_type == "Attention"
    parts = op.Reshape(ends, op.Concat(np.array([-1]) if starts else np.array([1]), rows, axis=0))
    columns = positions_along(op, k, 2)
    bounds = op.Unsqueeze(op.Cast(parts, to=ir.DataType.INT64), axes=[2, 3, 4])
    below = op.Less(columns, op.Gather(bounds, np.array(0), axis=0))
    if not starts:
        return below
    zeros = op.ConstantOfShape(op.Concat(np.array([1]), rows, np.array([1, 1, 1]), axis=0), value=ir.tensor([0]))
    begun = op.Less(columns, op.Gather(op.Concat(bounds, zeros, axis=0), np.array(1), axis=0))
    return op.And(below, op.Not(begun))


def _lower_rotary(f: Fused) -> Outputs:
    """Lower RotaryEmbedding: rotate pairs of features by angles that depend on the position."""
    op, x = f.op, f.x(0)
    flat = f.rank(x) == 3
    half = f.size(f.x(2), 1)
    heads, turned = f.attribute("num_heads", 0), f.attribute("rotary_embedding_dim", 0)
    if turned and flat and not heads:
        f.refuse("num_heads is missing")
    if flat:
        value = op.Reshape(x, [0, 0, heads, -1] if heads else [0, 0, -1, 2 * half])
    else:
        value = op.Transpose(x, perm=[0, 2, 1, 3])
    positions = f.x(1)
    if f.rank(positions) == 1:  # given is the position of the first element; the next ones are consecutive
        steps = positions_along(op, value, 1)
        positions = op.Unsqueeze(op.Add(op.Cast(positions, to=ir.DataType.INT64), steps), axes=[0])
    c, s = (op.Unsqueeze(op.Gather(table, positions, axis=0), axes=[2]) for table in (f.x(2), f.x(3)))
    y = rotated(op, value, c, s, 2 * half, paired=bool(f.attribute("interleaved", 0)), rest=bool(turned))
    return [op.Reshape(y, [0, 0, -1]) if flat else op.Transpose(y, perm=[0, 2, 1, 3])]


def rotated(
    op: GraphBuilder, value: ir.Value, cosine: ir.Value, sine: ir.Value, turned: int, *, paired: bool, rest: bool
) -> ir.Value:
    """Rotate the first ``turned`` features of (rows, sequence, heads, features) in pairs.

    With ``paired``, the two features of a pair are neighbors; else one is in the first half and one in the second. With
    ``rest``, the remaining features are appended unchanged.
    """
    if paired:
        a, b = op.Slice(value, [0], [turned], [3], [2]), op.Slice(value, [1], [turned], [3], [2])
    else:
        a, b = op.Slice(value, [0], [turned // 2], [3]), op.Slice(value, [turned // 2], [turned], [3])
    parts = [op.Sub(op.Mul(a, cosine), op.Mul(b, sine)), op.Add(op.Mul(a, sine), op.Mul(b, cosine))]
    if paired:
        stacked = op.Concat(*(op.Unsqueeze(part, axes=[4]) for part in parts), axis=4)
        parts = [op.Reshape(stacked, [0, 0, 0, turned])]
    if rest:
        parts.append(op.Slice(value, [turned], [np.iinfo(np.int32).max], [3]))
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=3)


# Layer normalizations, with the sums, biases and embeddings that were fused into them.
#
# onnxruntime's optimizer stores two of these operators in the default domain, in opsets where ONNX does not have them.


def _layer_normalized(f: Fused, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    """Return the values normalized over the last axis."""
    if f.op.opset >= 17:
        return f.op.LayerNormalization(x, scale, bias, axis=-1, epsilon=epsilon)
    return _normalized(f, x, scale, bias, epsilon, -1)[0]


def _normalized(
    f: Fused, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float, axis: int
) -> Sequence[ir.Value]:
    """Return the normalized values, the mean and the inverse standard deviation."""
    op, axes = f.op, _normalized_axes(f, x, axis)
    mean = op.ReduceMean(x, axes=axes)
    centered = op.Sub(x, mean)
    inverse = op.Reciprocal(op.Sqrt(op.Add(op.ReduceMean(op.Mul(centered, centered), axes=axes), epsilon)))
    return [plus(op, op.Mul(op.Mul(centered, inverse), scale), bias), mean, inverse]


def _normalized_axes(f: Fused, x: ir.Value, axis: int) -> list[int]:
    return [-1] if axis == -1 else list(range(axis - f.rank(x) if axis >= 0 else axis, 0))


def _root_mean_square(f: Fused, x: ir.Value, scale: ir.Value, epsilon: float, axis: int = -1) -> Sequence[ir.Value]:
    """Return the normalized values and the inverse root mean square."""
    op = f.op
    inverse = op.Reciprocal(op.Sqrt(op.Add(op.ReduceMean(op.Mul(x, x), axes=_normalized_axes(f, x, axis)), epsilon)))
    return [op.Mul(op.Mul(x, inverse), scale), inverse]


def _lower_skip_layer(f: Fused) -> Outputs:
    total = plus(f.op, f.op.Add(f.x(0), f.x(1)), f.optional(4))
    y = _layer_normalized(f, total, f.x(2), f.optional(3), f.attribute("epsilon", 1e-12))
    return [y, *_refuse_statistics(f), total]


def _lower_skip_simplified(f: Fused) -> Outputs:
    total = plus(f.op, f.op.Add(f.x(0), f.x(1)), f.optional(3))
    return [_root_mean_square(f, total, f.x(2), f.attribute("epsilon", 1e-12))[0], *_refuse_statistics(f), total]


def _refuse_statistics(f: Fused) -> list[None]:
    """Refuse a node whose outputs mean or inverse standard deviation are read: onnxruntime does not compute them."""
    if f.wants(1) or f.wants(2):
        f.refuse("its outputs mean and inv_std_var are not known")
    return [None, None]


def _lower_embedding(f: Fused) -> Outputs:
    """Lower EmbedLayerNormalization: normalize the sum of word, position and segment embeddings; count masked words."""
    op, ids, mask = f.op, f.x(0), f.optional(7)
    words = op.Gather(f.x(2), ids)
    if f.optional(8) is not None:
        positions = op.Gather(f.x(3), f.x(8))
    else:  # without an input, the positions are 0, 1, 2, ...
        positions = op.Slice(f.x(3), [0], length_along(op, ids, 1), [0])
    total = op.Add(words, positions)
    segments, table = f.optional(1), f.optional(4)
    if (segments is None) != (table is None):
        f.refuse("it has segments without their embedding, or the other way round")
    if segments is not None and table is not None:
        total = op.Add(total, op.Gather(table, segments))
    y = _layer_normalized(f, total, f.x(5), f.x(6), f.attribute("epsilon", 1e-12))
    count = None
    if f.wants(1) and mask is not None:
        count = op.ReduceSum(op.Cast(mask, to=ir.DataType.INT32), axes=[1], keepdims=False)
    elif f.wants(1):  # without a mask onnxruntime returns zeros
        count = op.ConstantOfShape(length_along(op, ids, 0), value=ir.tensor([0], dtype=ir.DataType.INT32))
    return [y, count, total]


# Products and convolutions, with the transpositions, factors, sums and activations that were fused into them.


ACTIVATION_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activations that are fused into products, with their attributes."""


def _lower_matmul(f: Fused) -> Outputs:
    a = _arranged(f, f.x(0), "A")
    b = _arranged(f, f.x(1), "B")
    alpha = float(f.attribute("alpha", 1.0))
    y = f.op.MatMul(a, b)
    return [y if alpha == 1.0 else f.op.Mul(y, alpha)]


def _arranged(f: Fused, value: ir.Value, side: str) -> ir.Value:
    """Transpose operand ``side`` ("A" or "B") as ``transBatch`` and ``trans`` say; a vector stays unchanged."""
    batch, swapped = (bool(f.attribute(f"trans{what}{side}", 0)) for what in ("Batch", ""))
    if not (batch or swapped):
        return value
    rank = f.rank(value)
    order = list(range(rank))
    if rank < 2:
        return value
    if batch:
        order = [*order[1:-1], 0, rank - 1]
    if swapped:
        order[-2:] = order[:-3:-1]
    return f.op.Transpose(value, perm=order)


def _lower_gemm(f: Fused) -> Outputs:
    settings = {name: a for name in ("alpha", "beta", "transA", "transB") if (a := f.attribute(name)) is not None}
    y = f.op.Gemm(f.x(0), f.x(1), f.optional(2), **settings)
    name = f.needed("activation")
    if name not in ACTIVATION_ATTRIBUTES:
        f.refuse(f"its activation {name!r} is not known")
    return [_activated(f.op, y, name, [float(f.needed(f"activation_{key}")) for key in ACTIVATION_ATTRIBUTES[name]])]


def _activated(op: GraphBuilder, y: ir.Value, name: str, numbers: Sequence[float]) -> ir.Value:
    attributes: dict[str, Any] = dict(zip(ACTIVATION_ATTRIBUTES[name], numbers, strict=True))
    return op.emit(name, y, **attributes)[0]


def _lower_conv(f: Fused) -> Outputs:
    """Lower a convolution with an optional sum and then an optional activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    settings = {name: a for name in names if (a := f.attribute(name)) is not None}
    y = plus(f.op, f.op.Conv(f.x(0), f.x(1), f.optional(2), **settings), f.optional(3))
    name = f.attribute("activation", "")
    numbers = [float(n) for n in f.attribute("activation_params", ())]
    if name == "Clip":
        if f.op.opset < 11 or len(numbers) != 2:
            f.refuse("its bounds are missing")
        return [f.op.Clip(y, *numbers)]
    if name and (name not in _OF_CONVOLUTIONS or len(numbers) != len(ACTIVATION_ATTRIBUTES[name])):
        f.refuse(f"its activation {name!r} with {len(numbers)} parameters is not known")
    return [_activated(f.op, y, name, numbers) if name else y]


_OF_CONVOLUTIONS = frozenset({"HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})


# Lowering of a graph when it is read.
#
# Initializers keep their names and values. A node without a rule, or with a setting that its rule does not support,
# stays unchanged, because it may be in a part of the graph that is not trained. If it is trained, :func:`refusal` gives
# the reason for the error.


FIRST_OPSETS = {"LayerNormalization": 17}
"""Operators that onnxruntime's optimizer writes in the default domain, with the opset in which ONNX introduces them."""

REASONS = {
    "com.microsoft.nchwc": "onnxruntime's optimizer laid it out for the processor that it ran on; save the optimized "
    "model with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL, or train the file that it was made from",
    "com.microsoft.nhwc": "onnxruntime's optimizer laid it out for one device; train the file that it was made from",
}
"""Domains whose operators have no rule, with the reason."""

_QUANTIZED_OPERATORS = re.compile(
    r"Q[A-Z]|Dequantize|DynamicQuantize|Quantize|MatMul(Integer|NBits|Bnb4|FpQ4)|GatherBlockQuantized"
)
"""Prefixes of onnxruntime's operators with integer weights."""

_PREFIX, _WHY = "lowered", "onnxtrain/why"


def is_fused(domain: str, op_type: str, opset: int) -> bool:
    """Return True if an operator has a rule in this opset."""
    kind = f"{domain}.{op_type}" if domain else op_type
    return kind in LOWERINGS and opset < FIRST_OPSETS.get(kind, opset + 1)


def lower(model: ir.Model) -> ir.Model:
    """Replace the nodes that have a rule, in place, also in subgraphs; shapes are inferred along the way."""
    opset = model.graph.opset_imports.get("", 0)
    if any(is_fused(node.domain, node.op_type, opset) for node in every_node(model.graph)):
        builder = GraphBuilder(model.graph, prefix=_PREFIX, constant_nodes=True)
        _lower_graph(builder, IntegerTracker(model), opset)
        if not any(node.domain == "com.microsoft" for node in every_node(model.graph)):
            model.graph.opset_imports.pop("com.microsoft", None)
    return model


def refusal(node: ir.Node) -> str | None:
    """Return why a node was not lowered; None if there is no particular reason."""
    if node.domain == "com.microsoft" and _QUANTIZED_OPERATORS.match(node.op_type):
        return "its numbers are quantized; train the file that was quantized"
    return node.meta.get(_WHY) or REASONS.get(node.domain)


def _lower_graph(op: GraphBuilder, tracker: IntegerTracker, opset: int) -> None:
    replaced = False
    for node in list(op.graph):
        for body in graphs_in(node):
            body.opset_imports.update(op.graph.opset_imports)
            inner = GraphBuilder(body, prefix=_PREFIX, constant_nodes=True)
            inner.taken = op.taken  # names are unique in the whole model
            _lower_graph(inner, tracker, opset)
        if is_fused(node.domain, node.op_type, opset):
            replaced = _lower_node(op, node, tracker) or replaced
        else:
            tracker.visit(node)
    if replaced:
        op.graph.sort()
    own = [n for n in op.graph if n.op_type == "Constant" and (n.name or "").startswith(_PREFIX)]
    remove_unread(op.graph, own)


def _lower_node(op: GraphBuilder, node: ir.Node, tracker: IntegerTracker) -> bool:
    """Replace a node; return False if its rule refuses it."""
    rule = LOWERINGS[f"{node.domain}.{node.op_type}" if node.domain else node.op_type]
    before = len(op.graph)
    floats = [v.dtype for v in [*node.inputs, *node.outputs] if v is not None and v.dtype is not None and is_float(v)]
    op.dtype = floats[0] if floats else ir.DataType.FLOAT
    try:
        reason = rule.unknown(node)
        if reason is not None:
            raise Refused(reason)
        results = rule.rule(Fused(op, node))
    except Refused as error:
        node.meta[_WHY] = str(error)
        for emitted in reversed(list(op.graph)[before:]):  # remove the nodes that the rule emitted before it refused
            if emitted.op_type != "Constant":  # constants stay, because later nodes may share them
                op.graph.remove(emitted, safe=True)
        return False
    for emitted in list(op.graph)[before:]:
        tracker.visit(emitted)
    replace_node(op, node, results)
    return True


LOWERINGS: dict[str, FusionRule] = {
    "com.microsoft.BiasAdd": FusionRule(lambda f: [f.op.Add(f.op.Add(f.x(0), f.x(1)), f.x(2))], inputs=3),
    "com.microsoft.BiasDropout": FusionRule(_lower_bias_dropout, "seed", inputs=5, outputs=2),
    "com.microsoft.BiasGelu": FusionRule(_lower_gelu, inputs=2),
    "com.microsoft.BiasSoftmax": FusionRule(_lower_bias_softmax, "axis is_inner_broadcast", inputs=2),
    "com.microsoft.BiasSplitGelu": FusionRule(_lower_bias_split_gelu, inputs=2),
    "com.microsoft.ExpandDims": FusionRule(_lower_expand_dims, inputs=2),
    "com.microsoft.FastGelu": FusionRule(lambda f: [fast_gelu(f.op, plus(f.op, f.x(0), f.optional(1)))], inputs=2),
    "com.microsoft.Gelu": FusionRule(_lower_gelu),
    "com.microsoft.QuickGelu": FusionRule(
        lambda f: [f.op.Mul(f.x(), f.op.Sigmoid(f.op.Mul(f.x(), float(f.attribute("alpha", 1.702)))))], "alpha"
    ),
    "com.microsoft.Attention": FusionRule(
        _lower_attention,
        "mask_filter_value num_heads qkv_hidden_sizes scale unidirectional",
        inputs=6,
        defaults={"do_rotary": 0, "past_present_share_buffer": 0, "rotary_embedding_dim": 0},
    ),
    "com.microsoft.MultiHeadAttention": FusionRule(
        _lower_multi_head, "mask_filter_value num_heads scale unidirectional", inputs=8, outputs=3
    ),
    "com.microsoft.RotaryEmbedding": FusionRule(
        _lower_rotary,
        "interleaved num_heads rotary_embedding_dim",
        inputs=4,
        defaults={"is_packed_batching": 0, "scale": 1.0},
    ),
    "LayerNormalization": FusionRule(  # onnxruntime's own form; from opset 17 on, ONNX defines this operator
        lambda f: _normalized(f, f.x(0), f.x(1), f.optional(2), f.attribute("epsilon", 1e-5), f.attribute("axis", -1)),
        "axis epsilon",
        inputs=3,
        outputs=3,
        defaults={"stash_type": 1},
    ),
    "SimplifiedLayerNormalization": FusionRule(
        lambda f: _root_mean_square(f, f.x(0), f.x(1), f.attribute("epsilon", 1e-5), f.attribute("axis", -1)),
        "axis epsilon",
        inputs=2,
        outputs=2,
        defaults={"stash_type": 1},
    ),
    "com.microsoft.EmbedLayerNormalization": FusionRule(
        _lower_embedding, "epsilon mask_index_type", inputs=9, outputs=3
    ),
    "com.microsoft.SkipLayerNormalization": FusionRule(_lower_skip_layer, "epsilon", inputs=5, outputs=4),
    "com.microsoft.SkipSimplifiedLayerNormalization": FusionRule(
        _lower_skip_simplified, "epsilon", inputs=4, outputs=4
    ),
    "com.microsoft.FusedConv": FusionRule(
        _lower_conv,
        f"activation activation_params group {WINDOW}",
        inputs=4,
    ),
    "com.microsoft.FusedGemm": FusionRule(
        _lower_gemm,
        "activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
        inputs=3,
    ),
    "com.microsoft.FusedMatMul": FusionRule(_lower_matmul, "alpha transA transB transBatchA transBatchB", inputs=2),
    "com.microsoft.GemmFastGelu": FusionRule(
        lambda f: [fast_gelu(f.op, plus(f.op, f.op.MatMul(f.x(0), f.x(1)), f.optional(2)))], inputs=3
    ),
    "com.microsoft.TransposeMatMul": FusionRule(_lower_matmul, "alpha transA transB", inputs=2),
}
