"""Products and convolutions with the transpositions, factors, sums and activations that were fused into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ..builder import GraphBuilder
from ..supported import PADDING
from .context import Fused, FusionRule, Outputs, fast_gelu, plus

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
    """Move the first axis after the batch axes, or swap the last two, or both; a vector stays as it is."""
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
    y = f.op.Gemm(f.x(0), f.x(1), f.given(2), **settings)
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
    y = plus(f.op, f.op.Conv(f.x(0), f.x(1), f.given(2), **settings), f.given(3))
    name, numbers = f.attribute("activation", ""), [float(n) for n in f.attribute("activation_params", ())]
    if name == "Clip":
        if f.op.opset < 11 or len(numbers) != 2:
            f.refuse("its bounds are missing")
        return [f.op.Clip(y, *numbers)]
    if name and (name not in _OF_CONVOLUTIONS or len(numbers) != len(ACTIVATION_ATTRIBUTES[name])):
        f.refuse(f"its activation {name!r} with {len(numbers)} parameters is not known")
    return [_activated(f.op, y, name, numbers) if name else y]


_OF_CONVOLUTIONS = frozenset({"HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})


def _lower_gemm_fast_gelu(f: Fused) -> Outputs:
    return [fast_gelu(f.op, plus(f.op, f.op.MatMul(f.x(0), f.x(1)), f.given(2)))]


LOWERINGS = {
    "com.microsoft.FusedConv": FusionRule(
        _lower_conv,
        f"activation activation_params {PADDING} dilations group kernel_shape pads strides",
        inputs=4,
    ),
    "com.microsoft.FusedGemm": FusionRule(
        _lower_gemm,
        "activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
        inputs=3,
    ),
    "com.microsoft.FusedMatMul": FusionRule(_lower_matmul, "alpha transA transB transBatchA transBatchB", inputs=2),
    "com.microsoft.GemmFastGelu": FusionRule(_lower_gemm_fast_gelu, inputs=3),
    "com.microsoft.TransposeMatMul": FusionRule(_lower_matmul, "alpha transA transB", inputs=2),
}
