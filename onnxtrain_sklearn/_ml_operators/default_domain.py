"""Rewriting rules for operators of the default domain that an engine does not differentiate."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx_ir as ir

from .context import LazyValue, RewriteRule, RewrittenNode


def _pairwise_sum(r: RewrittenNode) -> Sequence[LazyValue]:
    """Replace Sum by a chain of Add."""
    return (lambda: functools.reduce(r.op.Add, [r.input(i) for i in range(len(r.node.inputs))]),)


def _rewrite_lp_normalization(r: RewrittenNode) -> Sequence[LazyValue]:
    """Divide X by its norm along an axis, or by 1 where that is zero."""
    op, axes = r.op, [int(r.attribute("axis", -1))]

    def normalized() -> ir.Value:
        x = r.input()
        if int(r.attribute("p", 2)) == 1:
            size = op.ReduceSum(op.Abs(x), axes=axes, keepdims=True)
            return op.Div(x, op.Where(op.Equal(size, 0.0), 1.0, size))
        size = op.ReduceSum(op.Mul(x, x), axes=axes, keepdims=True)
        return op.Div(x, op.Sqrt(op.Where(op.Equal(size, 0.0), 1.0, size)))

    return (normalized,)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("", "LpNormalization"): _rewrite_lp_normalization,
    ("", "Sum"): _pairwise_sum,
}
