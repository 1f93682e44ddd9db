"""Matrix products: MatMul of all ranks, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir

from ..nodes import Dims, dims
from ..reverse import Reverse, Rule, Thunk, sum_to, zeros_like


def _gemm(r: Reverse) -> Sequence[Thunk]:
    op, a, b, g = r.op, r.x(0), r.x(1), r.g
    ta, tb = int(r.attribute("transA", 0)), int(r.attribute("transB", 0))
    alpha, beta = r.attribute("alpha", 1.0), r.attribute("beta", 1.0)
    return (
        lambda: op.Gemm(b, g, transA=tb, transB=1, alpha=alpha) if ta else op.Gemm(g, b, transB=1 - tb, alpha=alpha),
        lambda: op.Gemm(g, a, transA=1, transB=ta, alpha=alpha) if tb else op.Gemm(a, g, transA=1 - ta, alpha=alpha),
        lambda: r.sum_to(g if beta == 1 else op.Mul(g, beta), 2),
    )


def _matmul(r: Reverse) -> Sequence[Thunk]:
    """A vector on the left is a row, on the right a column, and the product lacks their axis."""
    op = r.op
    left, right = dims(r.x(0)), dims(r.x(1))
    if left is None or right is None:
        r.refuse("the rank of an operand is not known")
    if len(left) == len(right) == 2:
        return lambda: op.Gemm(r.g, r.x(1), transB=1), lambda: op.Gemm(r.x(0), r.g, transA=1)
    a = op.Unsqueeze(r.x(0), axes=[0]) if len(left) == 1 else r.x(0)
    b = op.Unsqueeze(r.x(1), axes=[1]) if len(right) == 1 else r.x(1)
    rank = max(len(left), len(right), 2)
    lost = [rank - 2] * (len(left) == 1) + [rank - 1] * (len(right) == 1)
    g = op.Unsqueeze(r.g, axes=lost) if lost else r.g
    rows, columns = [1, *left] if len(left) == 1 else left, [*right, 1] if len(right) == 1 else right
    lead = _lead(r, rank)
    return (
        lambda: _reduce(r, _times_transposed(r, g, b, len(columns)), [*lead, *rows[-2:]], 0, len(left) == 1),
        lambda: _weight(r, a, g, rows, columns, lead),
    )


def _lead(r: Reverse, rank: int) -> list[int | str | None]:
    y = dims(r.y)
    return [None] * (rank - 2) if y is None else y[: rank - 2]


def _weight(r: Reverse, a: ir.Value, g: ir.Value, rows: Dims, columns: Dims, lead: Dims) -> ir.Value:
    """A matrix that all matrices on the left share takes one product of all their rows."""
    op, vector = r.op, len(dims(r.x(1)) or []) == 1
    if len(columns) == 2 and len(rows) > 2 and all(isinstance(d, int) for d in (rows[-1], columns[-1])):
        flat = op.Gemm(op.Reshape(a, [-1, rows[-1]]), op.Reshape(g, [-1, columns[-1]]), transA=1)
        return op.Squeeze(flat, axes=[1]) if vector else flat
    return _reduce(r, _transposed_times(r, a, g, len(rows)), [*lead, *columns[-2:]], 1, vector)


def _times_transposed(r: Reverse, g: ir.Value, b: ir.Value, rank: int) -> ir.Value:
    return _apart(r, lambda value: r.op.MatMul(g, value), _swapped(r, b, rank))


def _transposed_times(r: Reverse, a: ir.Value, g: ir.Value, rank: int) -> ir.Value:
    return _apart(r, lambda value: r.op.MatMul(value, g), _swapped(r, a, rank))


def _apart(r: Reverse, product: Callable[[ir.Value], ir.Value], transposed: ir.Value) -> ir.Value:
    """The training build of onnxruntime 1.19 fuses Transpose and MatMul to an operator that it has in float32 only."""
    if r.op.dtype is not ir.DataType.DOUBLE:
        return product(transposed)
    return r.op.Neg(product(r.op.Neg(transposed)))


def _swapped(r: Reverse, value: ir.Value, rank: int) -> ir.Value:
    return r.op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _reduce(r: Reverse, value: ir.Value, source: Dims, index: int, vector: bool) -> ir.Value:
    """Drop the axis that a vector was given, then sum over the axes along which the matrices were broadcast."""
    if vector:
        axis = len(source) - 2 + index
        value, source = r.op.Squeeze(value, axes=[axis]), source[:axis] + source[axis + 1 :]
    return sum_to(r, value, source, r.x(index))


def _einsum(r: Reverse) -> Sequence[Thunk]:
    """The slope takes the place of the operand; an index that only the operand has comes back with ones."""
    equation = r.attribute("equation", "").replace(" ", "")
    left, arrow, output = equation.partition("->")
    terms = left.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        r.refuse("an ellipsis, or an index twice in one operand, is not covered")
    if not arrow:
        output = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    _refuse_broadcast(r, terms)
    return [partial(_einsum_slope, r, terms, output, i) for i in range(len(terms))]


def _refuse_broadcast(r: Reverse, terms: Sequence[str]) -> None:
    sizes: dict[str, int | str | None] = {}
    for i, term in enumerate(terms):
        for index, size in zip(term, dims(r.x(i)) or [None] * len(term), strict=True):
            if size is None or sizes.setdefault(index, size) != size:
                r.refuse("the sizes of its indices are not known to agree")


def _einsum_slope(r: Reverse, terms: Sequence[str], output: str, i: int) -> ir.Value:
    op, term = r.op, terms[i]
    others = [*terms[:i], *terms[i + 1 :], output]
    operands = [*(r.x(j) for j in range(len(terms)) if j != i), r.g]
    if set(term) - set("".join(others)):
        others, operands = [*others, term], [*operands, op.Exp(zeros_like(op, r.x(i)))]
    return op.Einsum(*operands, equation=f"{','.join(others)}->{term}")


RULES: dict[str, Rule] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
