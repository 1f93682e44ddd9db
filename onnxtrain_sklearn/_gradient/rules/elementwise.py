"""Gradient rules of elementwise operators, quantization and random numbers.

A unary operator is one line of :data:`COTANGENTS`: ``g`` times the derivative, computed from the input ``x`` and the
output ``y``. At a kink the derivative is that of one side, or 0; for ``Relu`` and ``Abs`` it is 0. Operators of several
operands have rules of their own, which sum the cotangent of a broadcast operand over the axes of the broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import pi, sqrt

import numpy as np
import onnx_ir as ir

from ..._importers.quantization import is_fake
from ..._importers.torch_program import is_open_clip
from ..._ir.queries import constant, dims, fixed, number_of
from ..._ir.supported import ANY, Supported
from ...graph import GraphBuilder, Operand
from ..path import MISSING, STEEP, is_norm
from ..reverse import GradientRule, Reverse, Thunk, filled_like, mask, reshape_to, sum_to

Cotangent = Callable[[Reverse, GraphBuilder, ir.Value, ir.Value, ir.Value], "ir.Value | None"]
"""Called with the node, the builder, the cotangent of the output, the input, and the output."""


# Unary operators.


def _mish_cotangent(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    t = op.Tanh(op.Softplus(x))
    rise = op.Mul(op.Mul(x, op.Sub(1.0, op.Mul(t, t))), op.Sigmoid(x))
    return op.Mul(g, op.Add(t, rise))


def _gelu(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Differentiate GELU, x Φ(x), or its approximation by tanh, 0.5 x (1 + tanh(sqrt(2 / π) (x + 0.044715 x³)))."""
    if r.attribute("approximate", "none") == "tanh":
        scale, squares = sqrt(2 / pi), op.Mul(x, x)
        t = op.Tanh(op.Mul(op.Mul(x, op.Add(op.Mul(squares, 0.044715), 1.0)), scale))
        inner = op.Mul(op.Add(op.Mul(squares, 3 * 0.044715), 1.0), scale)
        rise = op.Mul(op.Mul(x, inner), op.Sub(1.0, op.Mul(t, t)))
        return op.Mul(g, op.Mul(op.Add(op.Add(t, 1.0), rise), 0.5))
    share = op.Mul(op.Add(op.Erf(op.Mul(x, sqrt(0.5))), 1.0), 0.5)
    density = op.Mul(op.Exp(op.Mul(op.Mul(x, x), -0.5)), 1 / sqrt(2 * pi))
    return op.Mul(g, op.Add(share, op.Mul(x, density)))


def _swish(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    alpha = r.attribute("alpha", 1.0)
    s = op.Sigmoid(op.Mul(x, alpha))
    return op.Mul(g, op.Add(s, op.Mul(op.Mul(y, alpha), op.Sub(1.0, s))))


def _selu_cotangent(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    alpha, gamma = r.attribute("alpha", 1.67326319217681884765625), r.attribute("gamma", 1.05070102214813232421875)
    return op.Mul(g, op.Where(op.Greater(x, 0.0), gamma, op.Add(y, alpha * gamma)))


def _flat_at_zero(r: Reverse, found: ir.Value) -> ir.Value:
    """Return ``found``, the gradient of a root; if it is a norm (:func:`~..path.is_norm`), 0 where the norm is 0."""
    return r.op.Where(r.op.Equal(r.y, 0.0), 0.0, found) if is_norm(r.node, r.wanted) else found


def _cast(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    if x.dtype is None or y.dtype is None:
        r.refuse("the types that it casts between are not known")
    return g if x.dtype is y.dtype else op.Cast(g, to=x.dtype)


COTANGENTS: dict[str, Cotangent] = {
    "Abs": lambda r, op, g, x, y: op.Mul(g, op.Sign(x)),
    "Acos": lambda r, op, g, x, y: op.Neg(op.Div(g, op.Sqrt(op.Sub(1.0, op.Mul(x, x))))),
    "Acosh": lambda r, op, g, x, y: op.Div(g, op.Sqrt(op.Sub(op.Mul(x, x), 1.0))),
    "Asin": lambda r, op, g, x, y: op.Div(g, op.Sqrt(op.Sub(1.0, op.Mul(x, x)))),
    "Asinh": lambda r, op, g, x, y: op.Div(g, op.Sqrt(op.Add(op.Mul(x, x), 1.0))),
    "Atan": lambda r, op, g, x, y: op.Div(g, op.Add(op.Mul(x, x), 1.0)),
    "Atanh": lambda r, op, g, x, y: op.Div(g, op.Sub(1.0, op.Mul(x, x))),
    "Cast": _cast,
    "Ceil": lambda r, op, g, x, y: None,
    "Celu": lambda r, op, g, x, y: op.Mul(
        g, op.Where(op.Greater(x, 0.0), 1.0, op.Add(op.Mul(y, 1 / r.attribute("alpha", 1.0)), 1.0))
    ),
    "Cos": lambda r, op, g, x, y: op.Neg(op.Mul(g, op.Sin(x))),
    "Cosh": lambda r, op, g, x, y: op.Mul(g, op.Sinh(x)),
    "Elu": lambda r, op, g, x, y: op.Mul(g, op.Where(op.Greater(x, 0.0), 1.0, op.Add(y, r.attribute("alpha", 1.0)))),
    "Erf": lambda r, op, g, x, y: op.Mul(g, op.Mul(op.Exp(op.Neg(op.Mul(x, x))), 2 / sqrt(pi))),
    "Exp": lambda r, op, g, x, y: op.Mul(g, y),
    "Floor": lambda r, op, g, x, y: None,
    "Gelu": _gelu,
    "HardSigmoid": lambda r, op, g, x, y: op.Mul(
        g, op.Mul(mask(op, op.And(op.Greater(y, 0.0), op.Less(y, 1.0))), r.attribute("alpha", 0.2))
    ),
    "HardSwish": lambda r, op, g, x, y: op.Mul(
        g, op.Where(op.Less(op.Abs(x), 3.0), op.Add(op.Mul(x, 1 / 3), 0.5), mask(op, op.Greater(x, 0.0)))
    ),
    "Identity": lambda r, op, g, x, y: g,
    "LeakyRelu": lambda r, op, g, x, y: op.Mul(g, op.Where(op.Greater(x, 0.0), 1.0, r.attribute("alpha", 0.01))),
    "Log": lambda r, op, g, x, y: op.Div(g, x),
    "Mish": _mish_cotangent,
    "Neg": lambda r, op, g, x, y: op.Neg(g),
    "Reciprocal": lambda r, op, g, x, y: op.Neg(op.Mul(g, op.Mul(y, y))),
    # A cast to bool takes less time than Greater, and a product with the mask less than Where.
    "Relu": lambda r, op, g, x, y: op.Mul(g, mask(op, op.Cast(y, to=ir.DataType.BOOL))),
    # The straight-through estimator in fake quantization, else zero.
    "Round": lambda r, op, g, x, y: g if is_fake(r.node) else None,
    "Selu": _selu_cotangent,
    "Shrink": lambda r, op, g, x, y: op.Mul(
        g, mask(op, op.Or(op.Less(x, -r.attribute("lambd", 0.5)), op.Greater(x, r.attribute("lambd", 0.5))))
    ),
    "Sigmoid": lambda r, op, g, x, y: op.Mul(g, op.Mul(y, op.Sub(1.0, y))),
    "Sign": lambda r, op, g, x, y: None,
    # Older runtimes have Sin for float64, but not Cos.
    "Sin": lambda r, op, g, x, y: op.Mul(g, op.Sin(op.Add(x, pi / 2)) if op.dtype is ir.DataType.DOUBLE else op.Cos(x)),
    "Sinh": lambda r, op, g, x, y: op.Mul(g, op.Cosh(x)),
    "Softplus": lambda r, op, g, x, y: op.Mul(g, op.Sigmoid(x)),
    "Softsign": lambda r, op, g, x, y: op.Div(g, op.Mul(*[op.Add(op.Abs(x), 1.0)] * 2)),
    "Sqrt": lambda r, op, g, x, y: _flat_at_zero(r, op.Div(op.Mul(g, 0.5), y)),
    "Swish": _swish,
    "Tan": lambda r, op, g, x, y: op.Mul(g, op.Add(op.Mul(y, y), 1.0)),
    "Tanh": lambda r, op, g, x, y: op.Mul(g, op.Sub(1.0, op.Mul(y, y))),
    "ThresholdedRelu": lambda r, op, g, x, y: op.Mul(g, mask(op, op.Greater(x, r.attribute("alpha", 1.0)))),
}


def _unary_rule(cotangent: Cotangent, r: Reverse) -> Sequence[Thunk]:
    def of_input() -> ir.Value | None:
        found = cotangent(r, r.op, r.g, r.x(), r.y)
        if found is None or found is r.g:
            return found
        # If the condition tests for NaN, any derivative may be NaN; otherwise only an unbounded one matters.
        steep = MISSING in r.node.meta or (r.is_selected and r.node.op_type in STEEP)
        return r.keep_zeros(found) if steep else found

    return [of_input]


# Operators of several operands.


def _mul_rule(r: Reverse) -> Sequence[Thunk]:
    a, b = r.x(0), r.x(1)
    return (
        lambda: r.sum_to(r.keep_zeros(r.op.Mul(r.g, b), by=b), 0),
        lambda: r.sum_to(r.keep_zeros(r.op.Mul(r.g, a), by=a), 1),
    )


def _div_rule(r: Reverse) -> Sequence[Thunk]:
    op, b = r.op, r.x(1)
    return (
        lambda: r.sum_to(r.keep_zeros(op.Div(r.g, b), by=b), 0),
        lambda: r.sum_to(r.keep_zeros(op.Neg(op.Div(op.Mul(r.g, r.y), b))), 1),
    )


def _pow_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate x**n, where n may have another type, even an integer type. The derivative of x**0 is always 0."""
    op, x, n = r.op, r.x(0), r.x(1)
    exponent = n if n.dtype is x.dtype else op.Cast(n, to=x.dtype)

    def slope() -> ir.Value:
        known = None if 1 in r.wanted else constant(n)  # a trained exponent changes
        if known is not None and number_of(n) == 2:
            return op.Mul(x, 2.0)
        lower = op.Pow(x, op.Sub(exponent, 1.0))
        if known is not None and np.all(known >= 1):
            return op.Mul(lower, exponent)
        constant_power = op.Equal(exponent, 0.0)
        return op.Where(constant_power, 0.0, op.Mul(lower, exponent))

    def of_exponent() -> ir.Value:
        """Return ``g y log x``, and its limit 0 for x = 0 and a positive exponent."""
        log = op.Log(op.Where(op.Equal(x, 0.0), 1.0, x))
        cotangent = r.sum_to(r.keep_zeros(op.Mul(r.g, op.Mul(r.y, log))), 1)
        return cotangent if n.dtype is x.dtype or n.dtype is None else op.Cast(cotangent, to=n.dtype)

    return lambda: r.sum_to(_flat_at_zero(r, r.keep_zeros(op.Mul(r.g, slope()))), 0), of_exponent


def _mod_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate ``a - b q``, where the rounded quotient q is piecewise constant: ``trunc(a / b)`` with fmod=1."""
    op, a, b = r.op, r.x(0), r.x(1)
    if not r.attribute("fmod", 0):
        r.refuse("only fmod=1 is defined for floats")
    return lambda: r.sum_to(r.g, 0), lambda: r.sum_to(op.Mul(r.g, op.Div(op.Sub(r.y, a), b)), 1)


def _prelu_rule(r: Reverse) -> Sequence[Thunk]:
    op, x, slope = r.op, r.x(0), r.x(1)
    return (
        lambda: op.Mul(r.g, op.Where(op.Greater(x, 0.0), 1.0, slope)),
        lambda: r.sum_to(op.Mul(r.g, op.Min(x, 0.0)), 1),
    )


def _mean_rule(r: Reverse) -> Sequence[Thunk]:
    n = len(r.node.inputs)
    return [lambda i=i: r.sum_to(r.op.Mul(r.g, 1.0 / n), i) for i in range(n)]  # type: ignore[misc]


def _extreme_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide the cotangent equally among equal operands, so that the derivative of ``Max(x, x)`` is 1."""
    op, n = r.op, len(r.node.inputs)
    if n == 1:
        return [lambda: r.g]
    hits = [mask(op, op.Equal(r.x(i), r.y)) for i in range(n)]
    share = op.Div(r.g, op.Sum(*hits))
    return [lambda i=i: r.sum_to(op.Mul(share, hits[i]), i) for i in range(n)]  # type: ignore[misc]


def _clip_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate Clip; if the lower bound exceeds the upper one, the result is the upper one, as in the standard."""
    op, x = r.op, r.x(0)
    low = r.x(1) if r.has(1) else None
    high = r.x(2) if r.has(2) else None
    if is_open_clip(r.node):  # PyTorch's hardtanh: the derivative is zero at the bounds, too
        below = None if low is None else op.Not(op.Greater(x, low))
        above = None if high is None else op.Not(op.Less(x, high))
    else:
        below = None if low is None else op.Less(x, low)
        above = None if high is None else op.Greater(x, high)
    if below is not None and above is not None and high is not None and low is not None:
        crossed = op.Greater(low, high)
        above = op.Or(above, crossed)
        below = op.And(below, op.Not(crossed))
    outside = [c for c in (below, above) if c is not None]
    inside = op.Not(outside[0] if len(outside) == 1 else op.Or(*outside)) if outside else None
    return (
        lambda: r.g if inside is None else op.Mul(r.g, mask(op, inside)),
        lambda: _masked_total(r, below, 1),
        lambda: _masked_total(r, above, 2),
    )


def _masked_total(r: Reverse, where: ir.Value | None, index: int) -> ir.Value:
    assert where is not None
    total = r.op.ReduceSum(r.op.Mul(r.g, mask(r.op, where)), keepdims=False)
    return total if dims(r.x(index)) == [] else r.op.Reshape(total, r.op.Shape(r.x(index)))


def _where_rule(r: Reverse) -> Sequence[Thunk | None]:
    op, condition = r.op, r.x(0)
    return (
        None,
        lambda: r.sum_to(op.Where(condition, r.g, 0.0), 1),
        lambda: r.sum_to(op.Where(condition, 0.0, r.g), 2),
    )


def _dropout_rule(r: Reverse) -> Sequence[Thunk]:
    """Reuse the mask of the forward pass, as the kernel draws a new one each time it runs."""
    op, mode = r.op, r.node.inputs[2] if r.has(2) else None
    training = False if mode is None else constant(mode)
    if training is not None and not training:
        return [lambda: r.g]
    ratio: Operand = 0.5
    if r.has(1):
        ratio = r.x(1) if r.x(1).dtype is op.dtype else op.Cast(r.x(1), to=op.dtype)
    kept = mask(op, r.further_output(1, ir.DataType.BOOL, r.y.shape))
    scaled = op.Div(kept, 1.0 - ratio if isinstance(ratio, float) else op.Sub(1.0, ratio))
    return [lambda: op.Mul(r.g, scaled if training else op.Where(mode, scaled, 1.0))]


UNARY_SETTINGS = {
    "Cast": "to",
    **dict.fromkeys(("Celu", "Elu", "LeakyRelu", "Swish", "ThresholdedRelu"), "alpha"),
    "Gelu": "approximate=none|tanh",
    "HardSigmoid": "alpha beta",
    "Selu": "alpha gamma",
    "Shrink": "bias lambd",
}
"""Names of the attributes of unary operators that have any."""


# Ranges, random numbers and quantization.


def _nothing_rule(r: Reverse) -> Sequence[Thunk]:
    """Return zero gradients: the output is random, piecewise constant, or independent of the inputs."""
    return [lambda: None] * len(r.node.inputs)


def _range_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate the elements ``start + i delta``; the limit has a zero gradient, as it only sets their number."""
    op, g = r.op, r.g
    steps = op.Cast(op.Range(np.array(0), op.Size(g), np.array(1)), to=op.dtype)
    return (
        lambda: op.ReduceSum(g, keepdims=False),
        lambda: None,
        lambda: op.ReduceSum(op.Mul(g, steps), keepdims=False),
    )


def _dequantize_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Differentiate ``(x - zero) scale``, with one scale per tensor, per index of an axis, or per block along it."""
    op, scale, zero = r.op, r.x(1), r.node.inputs[2:]
    axis, block = r.attribute("axis", 1), r.attribute("block_size", 0)

    def of_scale() -> ir.Value:
        cotangent = op.Mul(r.g, r.again(r.x(), filled_like(op, scale, 1), *zero))
        if block:  # sum over the blocks of the axis; the last block may be shorter
            at = axis % r.rank()
            shape = dims(r.x()) or []
            blocks = (dims(scale) or [None] * r.rank())[at]
            size = shape[at] if shape else None
            after = shape[at + 1 :]
            if not (isinstance(size, int) and isinstance(blocks, int) and fixed(after)):
                r.refuse("the sizes from its axis on must be fixed")
            ends = np.zeros((2, len(shape)), np.int64)
            ends[1, at] = blocks * block - size
            parts = op.Reshape(op.Pad(cotangent, ends.ravel()), [*[0] * at, blocks, block, *after])
            return op.ReduceSum(parts, axes=[at + 1], keepdims=False)
        if r.rank(scale) == 0 or r.rank() == 0:
            return reshape_to(op, op.ReduceSum(cotangent, keepdims=False), scale)
        others = [i for i in range(r.rank()) if i != axis % r.rank()]
        sums = op.ReduceSum(cotangent, axes=others, keepdims=False) if others else cotangent
        return sum_to(r, sums, [(dims(r.x()) or [])[axis % r.rank()]], scale)

    return None, of_scale, None


def _dynamic_quantize_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate the second output, the scale ``(max(x, 0) - min(x, 0)) / 255``."""
    op, x = r.op, r.x()
    g = op.Div(r.cotangents[1], 255.0)

    def at(extreme: ir.Value, beyond: ir.Value) -> ir.Value:
        hits = mask(op, op.And(op.Equal(x, extreme), beyond))
        return op.Div(hits, op.Max(op.ReduceSum(hits, keepdims=False), 1.0))

    low = op.ReduceMin(x, keepdims=False)
    high = op.ReduceMax(x, keepdims=False)
    return [lambda: op.Mul(g, op.Sub(at(high, op.Greater(high, 0.0)), at(low, op.Less(low, 0.0))))]


RULES: dict[str, GradientRule] = {
    **{
        name: Supported(partial(_unary_rule, cotangent), UNARY_SETTINGS.get(name, ""))
        for name, cotangent in COTANGENTS.items()
    },
    "Add": Supported(lambda r: [lambda: r.sum_to(r.g, 0), lambda: r.sum_to(r.g, 1)], inputs=2),
    "CastLike": Supported(lambda r: [lambda: _cast(r, r.op, r.g, r.x(), r.y), lambda: None], inputs=2),
    "Clip": Supported(_clip_rule, inputs=3),
    "Div": Supported(_div_rule, inputs=2),
    "Dropout": Supported(_dropout_rule, "ratio seed", inputs=3, outputs=2),
    "Max": Supported(_extreme_rule, inputs=ANY),
    "Mean": Supported(_mean_rule, inputs=ANY),
    "Min": Supported(_extreme_rule, inputs=ANY),
    "Mod": Supported(_mod_rule, "fmod", inputs=2),
    "Mul": Supported(_mul_rule, inputs=2),
    "PRelu": Supported(_prelu_rule, inputs=2),
    "Pow": Supported(_pow_rule, inputs=2),
    "Sub": Supported(lambda r: [lambda: r.sum_to(r.g, 0), lambda: r.op.Neg(r.sum_to(r.g, 1))], inputs=2),
    "Sum": Supported(lambda r: [partial(r.sum_to, r.g, i) for i in range(len(r.node.inputs))], inputs=ANY),
    "Where": Supported(_where_rule, inputs=3),
    "Bernoulli": Supported(_nothing_rule, "dtype seed"),
    "DequantizeLinear": Supported(_dequantize_rule, "axis block_size", inputs=3),
    "DynamicQuantizeLinear": Supported(_dynamic_quantize_rule, outputs=3, cotangents=2),
    "EyeLike": Supported(_nothing_rule, "dtype k"),
    "MelWeightMatrix": Supported(_nothing_rule, "output_datatype", inputs=5),
    "RandomNormalLike": Supported(_nothing_rule, "dtype mean scale seed"),
    "RandomUniformLike": Supported(_nothing_rule, "dtype high low seed"),
    "Range": Supported(_range_rule, inputs=3),
}
