"""Gradient rules of Fourier transforms. They are linear; the adjoint is the transform in the opposite direction.

With ``F`` the matrix of the transform over ``N`` values, the inverse is ``conj(F) / N``: the cotangent of the input of
``F`` is ``conj(F)`` times that of its output, and vice versa. Truncated values have a zero cotangent, padding is
cropped, and the cotangent of a real input is the real part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...._graph.queries import dims
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk, scatter_add, zeros_like


def _dft_rule(r: Reverse) -> Sequence[Thunk]:
    axis, inverse, onesided = _axis(r), r.attribute("inverse", 0), r.attribute("onesided", 0)
    size = (dims(r.x()) or [None] * r.rank())[axis]
    if not isinstance(size, int):
        r.refuse("the size of the axis that it transforms is not known")
    length = 2 * (size - 1) if onesided and inverse else size
    if r.has(1):
        length = int(r.constant(1, "the length of the transform").item())
    if onesided and inverse and length != 2 * (size - 1):
        r.refuse("runtimes disagree on a dft_length that is not the one of its input")
    if onesided and inverse:
        return [lambda: _to_half(r, axis, length)]
    return [lambda: _resized(r, _like_input(r, _complex_cotangent(r, r.g, axis, length)), axis, length, size)]


def _axis(r: Reverse) -> int:
    """Return the axis: before opset 20 an attribute, by default 1; since then an input, by default -2."""
    if r.opset < 20:
        return int(r.attribute("axis", 1)) % r.rank()
    return int(r.constant(2, "the axis of the transform").item() if r.has(2) else -2) % r.rank()


def _transform_along(r: Reverse, value: ir.Value, axis: int, **settings: int) -> ir.Value:
    if r.opset < 20:
        return r.op.DFT(value, None, axis=axis, **settings)
    return r.op.DFT(value, None, np.array(axis), **settings)


def _complex_cotangent(r: Reverse, cotangent: ir.Value, axis: int, length: int) -> ir.Value:
    """Return the complex cotangent of the transformed values; it is zero for bins that were left out."""
    inverse = r.attribute("inverse", 0)
    if r.attribute("onesided", 0):
        cotangent = _resized(r, cotangent, axis, length // 2 + 1, length)
    return r.op.Mul(_transform_along(r, cotangent, axis, inverse=1 - inverse), 1 / length if inverse else float(length))


def _like_input(r: Reverse, value: ir.Value) -> ir.Value:
    """Return the real part if the input is real."""
    parts = (dims(r.x()) or [None])[-1]
    if parts not in (1, 2):
        r.refuse("it is not known whether its input is real or complex")
    return value if parts == 2 else r.op.Slice(value, [0], [1], [-1])


def _to_half(r: Reverse, axis: int, length: int) -> ir.Value:
    """Account for the omitted conjugate bins: each bin but the first and the last stands for its conjugate too."""
    weight = np.full(length // 2 + 1, 2 / length)
    weight[[0, -1]] = 1 / length
    column = weight.reshape(-1, *[1] * (r.rank() - 1 - axis)).astype(r.op.dtype.numpy())
    return r.op.Mul(_transform_along(r, r.g, axis, onesided=1), column)


def _resized(r: Reverse, value: ir.Value, axis: int, size: int, wanted: int) -> ir.Value:
    """Truncate an axis at its end, or pad it with zeros."""
    ends = np.zeros((2, r.rank(r.y)), np.int64)
    ends[1, axis] = wanted - size
    return r.op.Pad(value, ends.ravel()) if wanted != size else value


def _stft_rule(r: Reverse) -> Sequence[Thunk | None]:
    """The cotangents of overlapping frames are summed."""
    if "onesided" not in r.node.attributes:
        r.refuse("shape inference takes its attribute onesided for 0 where it is left out, and runtimes for 1; give it")
    op, shape, bins = r.op, dims(r.x()) or [None] * 3, dims(r.y) or [None] * 4
    step = int(r.constant(1, "the step of its frames").item())
    length = _frame_length(r, shape[1])
    if not isinstance(bins[1], int):
        r.refuse("the number of its frames is not known")
    places = np.add.outer(np.arange(bins[1]) * step, np.arange(length))
    frames = _like_input(r, _complex_cotangent(r, r.g, 2, length))

    def of_signal() -> ir.Value:
        cotangents = op.Mul(frames, op.Reshape(r.x(2), [-1, 1])) if r.has(2) else frames
        flat = op.Reshape(cotangents, [0, places.size, -1])
        index = op.Expand(places.reshape(1, -1, 1), op.Shape(flat))
        return scatter_add(r, zeros_like(op, r.x()), index, flat, 1, repeats=True)

    def of_window() -> ir.Value:
        return op.ReduceSum(op.Mul(frames, op.Gather(r.x(), places, axis=1)), axes=[0, 1, 3], keepdims=False)

    return of_signal, None, of_window


def _frame_length(r: Reverse, signal: int | str | None) -> int:
    """Return the frame length: the given one, else that of the window, else that of the signal."""
    if r.has(3):
        return int(r.constant(3, "the length of its frames").item())
    length = (dims(r.x(2)) or [None])[0] if r.has(2) else signal
    return length if isinstance(length, int) else r.refuse("the length of its frames is not known")


RULES: dict[str, GradientRule] = {
    "DFT": Supported(_dft_rule, "axis inverse onesided", inputs=3),
    "STFT": Supported(_stft_rule, "onesided", inputs=4),
}
