"""Activations, with a bias added before, and biases added before something else."""

from __future__ import annotations

from .context import Form, Fused, Outputs, fast_gelu, gelu, plus


def _gelu(f: Fused) -> Outputs:
    return [gelu(f.op, plus(f.op, f.x(0), f.given(1)))]


def _fast_gelu(f: Fused) -> Outputs:
    return [fast_gelu(f.op, plus(f.op, f.x(0), f.given(1)))]


def _quick_gelu(f: Fused) -> Outputs:
    alpha = float(f.attribute("alpha", 1.702))
    return [f.op.Mul(f.x(), f.op.Sigmoid(f.op.Mul(f.x(), alpha)))]


def _bias_split_gelu(f: Fused) -> Outputs:
    """The second half of the last axis is the gate of the first."""
    x = f.op.Add(f.x(0), f.x(1))
    half = f.size(f.x(1), -1) // 2
    hidden, gate = f.op.emit("Split", x, outputs=2, axis=-1, split=[half, half])
    return [f.op.Mul(hidden, gelu(f.op, gate))]


def _bias_add(f: Fused) -> Outputs:
    return [f.op.Add(f.op.Add(f.x(0), f.x(1)), f.x(2))]


def _bias_softmax(f: Fused) -> Outputs:
    """All axes from ``axis`` on are normalized as one; the fusion takes the bias as an Add broadcast it."""
    data = f.op.Add(f.x(0), f.x(1))
    rank = f.rank(f.x(0))
    axis = f.attribute("axis", 1) % rank
    if axis != rank - 1:
        f.refuse("its axis is not the last one")
    return [f.op.Softmax(data, axis=-1 if f.op.opset >= 13 else axis)]


def _bias_dropout(f: Fused) -> Outputs:
    """The residual is added to what is left."""
    op = f.op
    if op.opset < 12:
        f.refuse("before opset 12 Dropout has no input for its mode")
    inputs = [plus(op, f.x(0), f.x(1)), f.given(3), f.given(4)]
    y, mask = op.emit("Dropout", *inputs, outputs=2, seed=f.attribute("seed"))
    return [plus(op, y, f.given(2)), mask]


FORMS = {
    "com.microsoft.BiasAdd": Form(_bias_add, inputs=3),
    "com.microsoft.BiasDropout": Form(_bias_dropout, "seed", inputs=5, outputs=2),
    "com.microsoft.BiasGelu": Form(_gelu, inputs=2),
    "com.microsoft.BiasSoftmax": Form(_bias_softmax, "axis is_inner_broadcast", inputs=2),
    "com.microsoft.BiasSplitGelu": Form(_bias_split_gelu, inputs=2),
    "com.microsoft.FastGelu": Form(_fast_gelu, inputs=2),
    "com.microsoft.Gelu": Form(_gelu),
    "com.microsoft.QuickGelu": Form(_quick_gelu, "alpha"),
}
