"""Products of matrices, and of stacks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .kernels import RegisterTile
from .products import DEPTH, Matrix, Used, add_product, has_dots, scratch_elements
from .row_bound import RowBound
from .text import Index, Text
from .views import Buffer, Shape, View, merged_axes


@dataclass(eq=False)
class ProductStage:
    """The product of matrices over the last two axes; those before count matrices, which are multiplied in pairs.

    Attributes
    ----------
    left, right, result : View
        The result is contiguous.
    bias : View or None
        A row that is added to each row of the result.
    tile : RegisterTile
    scratch : Buffer
        Memory that the product is computed with.
    bound : RowBound or None
        The rows that are computed of the result, or that are summed up if it is ``over_rows``.
    """

    left: View
    right: View
    result: View
    tile: RegisterTile
    bias: View | None = None
    bound: RowBound | None = None
    over_rows: bool = False

    def __post_init__(self) -> None:
        (m, k), n = self.left.shape[-2:], self.result.shape[-1]
        self._sizes = m, k, n
        left, right = (Matrix("", *view.strides[-2:]) for view in (self.left, self.right))
        self.scratch = Buffer(scratch_elements(self.tile, self._sizes, left, right, self.bias is not None))

    @property
    def sums_in_order(self) -> bool:
        """Whether an element of the result is one sum, whose summands are added up in their order from zero on."""
        left, right = (Matrix("", *view.strides[-2:]) for view in (self.left, self.right))
        return self._sizes[1] <= DEPTH and self.bias is None and not has_dots(self.tile, self._sizes, left, right)

    def _used(self, text: Text) -> Used:
        """Add how many rows and summands are computed."""
        (m, k, _), bound = self._sizes, self.bound
        if bound is None:
            return Used(m, k)
        return Used(m, bound.of(text, k)) if self.over_rows else Used(bound.of(text, m), k)

    def read(self) -> Sequence[View]:
        return [self.left, self.right, *([] if self.bias is None else [self.bias])]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        views = self.left, self.right, self.result
        stack, strides = merged_axes(self.result.shape[:-2], [view.strides[:-2] for view in views])
        self._nest(text, stack, strides, [view.offset for view in views])

    def _nest(self, text: Text, stack: Shape, strides: Sequence[Shape], starts: Sequence[Index]) -> None:
        if stack:
            with text.loop(stack[0]) as loop:
                inner = [
                    text.add(start, text.multiply(loop.index, s[0])) for start, s in zip(starts, strides, strict=True)
                ]
                self._nest(text, stack[1:], [steps[1:] for steps in strides], inner)
            return
        left, right, result = (
            text.address(view.buffer.pointer, start)
            for view, start in zip((self.left, self.right, self.result), starts, strict=True)
        )
        bias = None if self.bias is None else text.address(self.bias.buffer.pointer, self.bias.offset)
        matrices = Matrix(left, *self.left.strides[-2:]), Matrix(right, *self.right.strides[-2:])
        add_product(text, self.tile, self._sizes, *matrices, result, self.scratch.pointer, bias, self._used(text))
