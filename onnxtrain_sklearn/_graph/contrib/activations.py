"""Activations after a bias, and biases before other operators."""

from __future__ import annotations

from .context import Fused, FusionRule, Outputs, fast_gelu, gelu, plus


def _lower_gelu(f: Fused) -> Outputs:
    return [gelu(f.op, plus(f.op, f.x(0), f.given(1)))]


def _lower_fast_gelu(f: Fused) -> Outputs:
    return [fast_gelu(f.op, plus(f.op, f.x(0), f.given(1)))]


def _lower_quick_gelu(f: Fused) -> Outputs:
    alpha = float(f.attribute("alpha", 1.702))
    return [f.op.Mul(f.x(), f.op.Sigmoid(f.op.Mul(f.x(), alpha)))]


def _lower_bias_split_gelu(f: Fused) -> Outputs:
    """Multiply the first half of the last axis by the activated second half."""
    x = f.op.Add(f.x(0), f.x(1))
    half = f.size(f.x(1), -1) // 2
    hidden, gate = f.op.emit("Split", x, outputs=2, axis=-1, split=[half, half])
    return [f.op.Mul(hidden, gelu(f.op, gate))]


def _lower_bias_add(f: Fused) -> Outputs:
    return [f.op.Add(f.op.Add(f.x(0), f.x(1)), f.x(2))]


def _lower_bias_softmax(f: Fused) -> Outputs:
    """Normalize all axes from ``axis`` on as one; the bias is broadcast as by an Add."""
    data = f.op.Add(f.x(0), f.x(1))
    rank = f.rank(f.x(0))
    axis = f.attribute("axis", 1) % rank
    if axis != rank - 1:
        f.refuse("its axis is not the last one")
    return [f.op.Softmax(data, axis=-1 if f.op.opset >= 13 else axis)]


def _lower_bias_dropout(f: Fused) -> Outputs:
    """Add the residual after the Dropout."""
    op = f.op
    if op.opset < 12:
        f.refuse("before opset 12 Dropout has no input for its mode")
    inputs = [plus(op, f.x(0), f.x(1)), f.given(3), f.given(4)]
    y, mask = op.emit("Dropout", *inputs, outputs=2, seed=f.attribute("seed"))
    return [plus(op, y, f.given(2)), mask]


LOWERINGS = {
    "com.microsoft.BiasAdd": FusionRule(_lower_bias_add, inputs=3),
    "com.microsoft.BiasDropout": FusionRule(_lower_bias_dropout, "seed", inputs=5, outputs=2),
    "com.microsoft.BiasGelu": FusionRule(_lower_gelu, inputs=2),
    "com.microsoft.BiasSoftmax": FusionRule(_lower_bias_softmax, "axis is_inner_broadcast", inputs=2),
    "com.microsoft.BiasSplitGelu": FusionRule(_lower_bias_split_gelu, inputs=2),
    "com.microsoft.FastGelu": FusionRule(_lower_fast_gelu, inputs=2),
    "com.microsoft.Gelu": FusionRule(_lower_gelu),
    "com.microsoft.QuickGelu": FusionRule(_lower_quick_gelu, "alpha"),
}
