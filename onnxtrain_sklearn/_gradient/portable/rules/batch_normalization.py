"""Gradient rule of BatchNormalization, and the form of its forward pass that shares the statistics of the batch.

In training mode the gradient needs mean and variance of the batch, which the operator does not return. So the forward
pass computes them by reductions too, and normalizes by them in inference mode, which takes half the time of training
mode.

Each channel has a number of its own in most of the products and sums here. Where a channel has few pixels, runtimes
broadcast these numbers slowly, and BatchNormalization in inference mode stands for product and sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder, Operand
from ...._graph.edits import replace_node
from ...._graph.queries import dims, fixed
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk, shape_of
from .normalization import SMALL, cotangent_of_statistic, elements_along, reciprocal_deviation

FEW_PIXELS = 64
"""With more pixels to a channel, broadcasting takes no longer, and on several threads less time."""

ADDED_TO_VARIANCE = 2.0**-10
"""What BatchNormalization adds to a variance: it then divides by one, without rounding, where that is one less this."""

NORMALIZED_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types in which a CPU has BatchNormalization."""


@dataclass(frozen=True)
class Channels:
    """Arithmetic on values of one shape, (N, C, ...), and vectors with a number for each channel."""

    op: GraphBuilder
    rank: int
    plain: int
    """The number of channels where BatchNormalization is the faster form of products and sums, else 0."""

    @property
    def axes(self) -> list[int]:
        """The axes along which there are the numbers of one channel."""
        return [0, *range(2, self.rank)]

    def sums(self, value: ir.Value) -> ir.Value:
        return self.op.ReduceSum(value, axes=self.axes, keepdims=False)

    def means(self, value: ir.Value) -> ir.Value:
        return self.op.ReduceMean(value, axes=self.axes, keepdims=False)

    def spread(self, vector: ir.Value) -> ir.Value:
        """Return the vector in a shape that broadcasts to the values."""
        return self.op.Reshape(vector, [-1, *[1] * (self.rank - 2)]) if self.rank > 2 else vector

    def less(self, value: ir.Value, vector: ir.Value) -> ir.Value:
        """Return ``value - vector``."""
        if self.plain:
            return self._normalized(value, self._all(1), self._all(0), vector)
        return self.op.Sub(value, self.spread(vector))

    def times(self, value: ir.Value, factor: ir.Value, shift: ir.Value | None = None) -> ir.Value:
        """Return ``value * factor``, or ``value * factor + shift``."""
        if self.plain:
            return self._normalized(value, factor, self._all(0) if shift is None else shift, self._all(0))
        product = self.op.Mul(value, self.spread(factor))
        return product if shift is None else self.op.Add(product, self.spread(shift))

    def _normalized(self, value: ir.Value, scale: Operand, shift: Operand, mean: Operand) -> ir.Value:
        return self.op.BatchNormalization(
            value, scale, shift, mean, self._all(1 - ADDED_TO_VARIANCE), epsilon=ADDED_TO_VARIANCE
        )

    def _all(self, number: float) -> np.ndarray:
        return np.full(self.plain, number, self.op.dtype.numpy())


def _channels_of(r: Reverse) -> Channels:
    channels, *pixels = (dims(r.x()) or [None])[1:] or [None]
    few = fixed(pixels) and bool(pixels) and math.prod(int(str(size)) for size in pixels) <= FEW_PIXELS
    plain = channels if isinstance(channels, int) and few and r.op.dtype in NORMALIZED_TYPES else 0
    return Channels(r.op, r.rank(), plain)


def _batch_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    return _with_batch_statistics(r) if _in_training_mode(r) else _with_running_statistics(r)


def _in_training_mode(r: Reverse) -> bool:
    """Before opset 14, a node with more than one output is in training mode."""
    further = r.opset < 14 and any(output.name for output in r.node.outputs[1:])
    return further or bool(r.attribute("training_mode", 0))


def _batch_moments(r: Reverse, c: Channels) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the mean of each channel, the values less it, and the variance."""
    mean = c.means(r.x())
    centered = c.less(r.x(), mean)
    return mean, centered, c.means(r.op.Mul(centered, centered))


def normalize_by_moments(op: GraphBuilder, node: ir.Node) -> None:
    """Put the statistics of the batch that the gradient needs into the place of those of a node in training mode."""
    r = Reverse(op, node, (), frozenset())
    types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None and value.name}
    if r.opset < 14 or not _in_training_mode(r) or len(types) > 1 or r.x().dtype not in NORMALIZED_TYPES:
        return
    mean, _, variance = _batch_moments(r, _channels_of(r))
    result = op.BatchNormalization(*(r.x(i) for i in range(3)), mean, variance, epsilon=r.attribute("epsilon", SMALL))
    replace_node(op, node, [result, _running(r, 1, mean), _running(r, 2, variance)])


def _running(r: Reverse, output: int, new: ir.Value) -> ir.Value | None:
    """Return the average of a running statistic and that of the batch; None if it is not an output."""
    if len(r.node.outputs) <= output or not r.node.outputs[output].name:
        return None
    old = r.attribute("momentum", 0.9)
    return r.op.Add(r.op.Mul(r.x(output + 2), old), r.op.Mul(new, 1 - old))


def _with_batch_statistics(r: Reverse) -> Sequence[Thunk]:
    """Training mode; the other outputs are the running statistics: averages of their inputs and the batch's."""
    op, g, c, old = r.op, r.cotangents[0], _channels_of(r), r.attribute("momentum", 0.9)
    if any(cotangent is not None for cotangent in r.cotangents[3:]):
        r.refuse("runtimes disagree on what its saved statistics are")
    of_mean, of_variance = (cotangent_of_statistic(r, i) for i in (1, 2))
    _, centered, variance = _batch_moments(r, c)
    inverse, count = reciprocal_deviation(r, variance), elements_along(r, c.axes)
    rows, divided = _before_division(r, c, centered, inverse)

    def of_scale(g: ir.Value) -> ir.Value:
        return divided(c.sums(op.Mul(g, rows)))

    def of_output(g: ir.Value) -> ir.Value:
        means = c.times(rows, op.Div(divided(of_scale(g)), count), op.Div(c.sums(g), count))
        return c.times(op.Sub(g, means), op.Mul(inverse, r.x(1)))

    def of_value() -> ir.Value:
        cotangents = [] if g is None else [of_output(g)]
        if of_mean is not None:
            share = op.Div(op.Mul(of_mean, 1 - old), count)
            cotangents.append(op.Expand(c.spread(share), shape_of(op, r.x())))
        if of_variance is not None:
            cotangents.append(c.times(centered, op.Div(op.Mul(of_variance, 2 * (1 - old)), count)))
        return cotangents[0] if len(cotangents) == 1 else op.Sum(*cotangents)

    return (
        of_value,
        lambda: None if g is None else of_scale(g),
        lambda: None if g is None else c.sums(g),
        lambda: _of_old_statistic(r, of_mean, 3),
        lambda: _of_old_statistic(r, of_variance, 4),
    )


def _of_old_statistic(r: Reverse, cotangent: ir.Value | None, index: int) -> ir.Value | None:
    if cotangent is not None and r.x(index).producer() is not None:
        r.refuse("kernels overwrite its running statistics, which the gradient of what computes them may need")
    return None if cotangent is None else r.op.Mul(cotangent, r.attribute("momentum", 0.9))


def _before_division(
    r: Reverse, c: Channels, centered: ir.Value, inverse: ir.Value
) -> tuple[ir.Value, Callable[[ir.Value], ir.Value]]:
    """Return the value to multiply cotangents with, and the function that divides sums over it by the deviation.

    A sum has one number per channel, so dividing it takes less time. Undivided sums may be infinite in float16.
    """
    if r.op.dtype is ir.DataType.FLOAT16:
        return c.times(centered, inverse), lambda value: value
    return centered, lambda value: r.op.Mul(value, inverse)


def _with_running_statistics(r: Reverse) -> Sequence[Thunk]:
    op, c, inverse = r.op, _channels_of(r), reciprocal_deviation(r, r.x(4))
    factor = op.Mul(r.x(1), inverse)

    def of_scale() -> ir.Value:
        rows, divided = _before_division(r, c, c.less(r.x(), r.x(3)), inverse)
        return divided(c.sums(op.Mul(r.g, rows)))

    return (
        lambda: c.times(r.g, factor),
        of_scale,
        lambda: c.sums(r.g),
        lambda: op.Neg(op.Mul(c.sums(r.g), factor)),
        lambda: op.Mul(op.Mul(of_scale(), -0.5), op.Mul(factor, inverse)),
    )


RULES: dict[str, GradientRule] = {
    "BatchNormalization": Supported(
        _batch_normalization_rule, "epsilon momentum training_mode", inputs=5, outputs=5, cotangents=5
    )
}
