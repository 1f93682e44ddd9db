"""Gradient rules of matrix products (Gemm, MatMul, Einsum), of the inverse, and of the cross-entropy operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from string import ascii_letters
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ..._ir.queries import Dims, dims, fixed
from ..._ir.supported import ANY, Supported
from ...graph import positions_along
from ..reverse import GradientRule, Reverse, Thunk, mask, shape_of, sum_to

Size: TypeAlias = "int | str | None"


def _gemm_rule(r: Reverse) -> Sequence[Thunk]:
    op, a, b, g = r.op, r.x(0), r.x(1), r.g
    ta, tb = int(r.attribute("transA", 0)), int(r.attribute("transB", 0))
    alpha, beta = r.attribute("alpha", 1.0), r.attribute("beta", 1.0)
    return (
        lambda: op.Gemm(b, g, transA=tb, transB=1, alpha=alpha) if ta else op.Gemm(g, b, transB=1 - tb, alpha=alpha),
        lambda: op.Gemm(g, a, transA=1, transB=ta, alpha=alpha) if tb else op.Gemm(a, g, transA=1 - ta, alpha=alpha),
        lambda: r.sum_to(g if beta == 1 else op.Mul(g, beta), 2),
    )


def _matmul_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate a product. A vector is a row on the left, a column on the right; the product lacks this axis."""
    op = r.op
    left, right = dims(r.x(0)), dims(r.x(1))
    if left is None or right is None:
        r.refuse("the rank of an operand is not known; declare its shape in the value_info of the graph")
    if len(left) == len(right) == 2:
        return lambda: op.Gemm(r.g, r.x(1), transB=1), lambda: op.Gemm(r.x(0), r.g, transA=1)
    a = op.Unsqueeze(r.x(0), axes=[0]) if len(left) == 1 else r.x(0)
    b = op.Unsqueeze(r.x(1), axes=[1]) if len(right) == 1 else r.x(1)
    rank = max(len(left), len(right), 2)
    lost = [rank - 2] * (len(left) == 1) + [rank - 1] * (len(right) == 1)
    g = op.Unsqueeze(r.g, axes=lost) if lost else r.g
    rows, columns = [1, *left] if len(left) == 1 else left, [*right, 1] if len(right) == 1 else right
    y = dims(r.y)
    lead: Dims = [None] * (rank - 2) if y is None else y[: rank - 2]

    def of_left() -> ir.Value:
        product = _product(r, g, _transposed_matrices(r, b, len(columns)))
        return _reduce(r, product, [*lead, *rows[-2:]], 0, len(left) == 1)

    def of_right() -> ir.Value:
        # If the right operand is a single matrix, all rows on the left go into one product.
        if len(columns) == 2 and len(rows) > 2 and all(isinstance(d, int) for d in (rows[-1], columns[-1])):
            flat = op.Gemm(op.Reshape(a, [-1, rows[-1]]), op.Reshape(g, [-1, columns[-1]]), transA=1)
            return op.Squeeze(flat, axes=[1]) if len(right) == 1 else flat
        product = _product(r, _transposed_matrices(r, a, len(rows)), g)
        return _reduce(r, product, [*lead, *columns[-2:]], 1, len(right) == 1)

    return of_left, of_right


def _product(r: Reverse, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return a product, of float64 with both operands negated.

    onnxruntime-training 1.19 fuses a Transpose before a MatMul to an operator without float64; a Neg keeps them apart.
    """
    if r.op.dtype is ir.DataType.DOUBLE:
        a, b = r.op.Neg(a), r.op.Neg(b)
    return r.op.MatMul(a, b)


def _transposed_matrices(r: Reverse, value: ir.Value, rank: int) -> ir.Value:
    return r.op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _inverse_rule(r: Reverse) -> Sequence[Thunk]:
    """Return ``-Y' g Y'``, because ``dY = -Y dX Y``: https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf."""
    transposed = _transposed_matrices(r, r.y, r.rank())
    return [lambda: r.op.Neg(_product(r, transposed, _product(r, r.g, transposed)))]


def _reduce(r: Reverse, value: ir.Value, source: Dims, index: int, vector: bool) -> ir.Value:
    """Drop the axis that was added to a vector, then sum over the broadcast batch axes."""
    if vector:
        axis = len(source) - 2 + index
        value = r.op.Squeeze(value, axes=[axis])
        source = source[:axis] + source[axis + 1 :]
    return sum_to(r, value, source, r.x(index))


def _einsum_rule(r: Reverse) -> Sequence[Thunk]:
    """Emit, for each operand, an Einsum with the cotangent in its place and its indices as the output's."""
    terms, output = _expanded_indices(r)
    for letter, sizes in _seen(terms, [r.x(i) for i in range(len(terms))]).items():
        if letter in r.attribute("equation", "") and 1 in sizes and any(isinstance(n, int) and n > 1 for n in sizes):
            r.refuse(f"the sizes of the index {letter!r} differ, which only an ellipsis may")
    return [partial(_einsum_cotangent, r, terms, output, i) for i in range(len(terms))]


def _expanded_indices(r: Reverse) -> tuple[list[str], str]:
    """Return the indices of the operands and of the output, with ellipses expanded to letters."""
    equation = r.attribute("equation", "").replace(" ", "")
    left, arrow, output = equation.partition("->")
    terms = left.split(",")
    spare = [c for c in ascii_letters if c not in equation]
    # An ellipsis stands for as many axes as the operand has beyond its letters, counted from the right.
    hidden = [r.rank(r.x(i)) - len(term) + 3 if "." in term else 0 for i, term in enumerate(terms)]
    names = "".join(spare[: max(hidden)])
    if not arrow:  # the output has the letters that occur once, in alphabetical order
        single = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        if any(c.isupper() for c in single) and any(c.islower() for c in single):
            r.refuse("the order of capital and small letters in the output that it does not name is not defined")
        output = "".join(["..." * ("." in left), *single])
    terms = [term.replace("...", names[len(names) - n :]) for term, n in zip(terms, hidden, strict=True)]
    return terms, output.replace("...", names)


def _einsum_cotangent(r: Reverse, terms: Sequence[str], output: str, i: int) -> ir.Value:
    """Return the cotangent of operand ``i``.

    The second letter of a repeated index is renamed, and equated with the first by an identity matrix.
    """
    x = r.x(i)
    term = terms[i]
    others = [output, *terms[:i], *terms[i + 1 :]]
    operands: list[ir.Value] = [r.g, *(r.x(j) for j in range(len(terms)) if j != i)]
    spare = (c for c in ascii_letters if c not in "".join([*terms, output]))
    # The broadcast size of each index; None if it is known only at run time.
    wide = {letter: seen - {1} or {1} for letter, seen in _seen(others, operands).items()}
    sizes = {letter: seen.pop() if len(seen) == 1 else None for letter, seen in wide.items()}
    for axis, letter in enumerate(terms[i]):
        if letter in term[:axis]:
            other = next(spare)
            term = term[:axis] + other + term[axis + 1 :]
            others, operands = [*others, letter + other], [*operands, _identity(r, x, axis)]
            sizes[letter] = sizes[other] = (dims(x) or [])[axis]

    # Sum over indices that have size 1 in ``x``, and repeat along indices that only ``x`` has.
    op, shape = r.op, dims(x) or [None] * len(term)
    kept = [axis for axis, letter in enumerate(term) if letter in sizes and shape[axis] != 1]
    lost = [axis for axis in range(len(term)) if axis not in kept]
    cotangent = op.Einsum(*operands, equation=f"{','.join(others)}->{''.join(term[axis] for axis in kept)}")
    cotangent = op.Unsqueeze(cotangent, axes=lost) if lost else cotangent
    have = [1 if axis in lost else sizes[letter] for axis, letter in enumerate(term)]
    if have == shape and None not in shape:
        return cotangent
    repeated = [n if m in (1, n) or isinstance(n, int) else None for n, m in zip(shape, have, strict=True)]
    return sum_to(r, op.Expand(cotangent, shape_of(op, x)), repeated, x)


def _seen(terms: Sequence[str], operands: Sequence[ir.Value]) -> dict[str, set[Size]]:
    """Return the sizes that each index has in the operands."""
    sizes: dict[str, set[Size]] = {}
    for term, value in zip(terms, operands, strict=True):
        for letter, size in zip(term, dims(value) or [None] * len(term), strict=True):
            sizes.setdefault(letter, set()).add(size)
    return sizes


def _identity(r: Reverse, x: ir.Value, axis: int) -> ir.Value:
    size = (dims(x) or [])[axis]
    if isinstance(size, int):
        return r.op.constant(np.eye(size, dtype=r.op.dtype.numpy()))
    places = positions_along(r.op, x, axis)
    return mask(r.op, r.op.Equal(places, r.op.Unsqueeze(places, axes=[1])))


# SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: classes are on axis 1, and rows may be ignored.


def _loss_rule(cross_entropy: bool, r: Reverse) -> Sequence[Thunk | None]:
    op, x = r.op, r.x()
    _require_labels(r)
    # For an unweighted mean over a known number of rows, the gradient is (probabilities - one-hot labels) / rows.
    mean = r.attribute("reduction", "mean") == "mean" and r.attribute("ignore_index", None) is None and not r.has(2)
    rows = dims(r.x(1))
    if cross_entropy and mean and r.cotangents[1:] in ((), (None,)) and fixed(rows) and len(dims(x) or ()) == 2:
        excess = op.Sub(op.Softmax(x, axis=1), _class_weight_of_rows(r))
        return [lambda: op.Mul(op.Mul(excess, 1.0 / rows[0]), r.g)]
    log_p = op.Sub(x, op.ReduceLogSumExp(x, axes=[1], keepdims=True)) if cross_entropy else x
    chosen = _class_weight_of_rows(r)

    # Otherwise, find the cotangent of the weighted loss of each row, in a broadcastable shape, and the mean's divisor.
    g = r.cotangents[0]
    reduction = r.attribute("reduction", "mean")
    total = op.ReduceSum(chosen, keepdims=False) if reduction == "mean" else None
    if g is not None and reduction != "sum":
        g = op.Unsqueeze(g, axes=[1]) if total is None else op.Div(g, total)

    def of_scores() -> ir.Value:
        cotangents = [] if g is None else [op.Mul(chosen, op.Neg(g))]
        cotangents += [s for s in r.cotangents[1:] if s is not None]
        both = cotangents[0] if len(cotangents) == 1 else op.Add(*cotangents)
        if not cross_entropy:
            return both
        return op.Sub(both, op.Mul(op.Exp(log_p), op.ReduceSum(both, axes=[1], keepdims=True)))

    def of_class_weights() -> ir.Value | None:
        """Return the gradient of the class weights, which scale the losses and enter the divisor of the mean."""
        if g is None:
            return None
        column = [-1, *[1] * (r.rank() - 2)]
        hits = op.Where(op.Equal(chosen, 0.0), 0.0, op.Div(chosen, op.Reshape(r.x(2), column)))
        losses = op.Neg(log_p) if total is None else op.Sub(op.Neg(log_p), r.y)
        return op.ReduceSum(op.Mul(op.Mul(hits, losses), g), axes=[0, *range(2, r.rank())], keepdims=False)

    return of_scores, None, of_class_weights


def _require_labels(r: Reverse) -> None:
    """Refuse labels whose shape cannot match the scores: not every kernel checks it."""
    scores, labels = dims(r.x()), dims(r.x(1))
    if scores is None or labels is None:
        return
    rows = [*scores[:1], *scores[2:]]
    known = [(m, n) for m, n in zip(rows, labels, strict=False) if isinstance(m, int) and isinstance(n, int)]
    if len(rows) == len(labels) and all(m == n for m, n in known):
        return
    r.refuse(
        f"its labels are of shape {_shape_text(labels)}, its scores of {_shape_text(scores)}: each row needs a label"
    )


def _shape_text(sizes: Dims) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in sizes)})"


def _class_weight_of_rows(r: Reverse) -> ir.Value:
    """Return the weight of each row's class in the column of that class, and 0 elsewhere and in ignored rows."""
    op, target = r.op, r.op.Unsqueeze(r.x(1), axes=[1])  # with an axis for the classes
    shape, rank = dims(r.x()), r.rank()
    n = shape[1] if shape is not None else None
    if not isinstance(n, int):
        r.refuse("the number of classes is not known")
    column = (-1, *[1] * (rank - 2))
    classes = np.arange(n).reshape(column).astype((target.dtype or ir.DataType.INT64).numpy())
    hit = op.Equal(target, classes)
    ignored = r.attribute("ignore_index", None)
    if ignored is not None:
        hit = op.And(hit, op.Not(op.Equal(target, np.array(ignored, classes.dtype))))
    return op.Mul(mask(op, hit), op.Reshape(r.x(2), list(column))) if r.has(2) else mask(op, hit)


_LOSS_SETTINGS = "ignore_index reduction=mean|none|sum"


RULES: dict[str, GradientRule] = {
    "Einsum": Supported(_einsum_rule, "equation", inputs=ANY),
    "Gemm": Supported(_gemm_rule, "alpha beta transA transB", inputs=3),
    "MatMul": Supported(_matmul_rule, inputs=2),
    "com.microsoft.Inverse": Supported(_inverse_rule),
    "NegativeLogLikelihoodLoss": Supported(partial(_loss_rule, False), _LOSS_SETTINGS, inputs=3),
    "SoftmaxCrossEntropyLoss": Supported(partial(_loss_rule, True), _LOSS_SETTINGS, inputs=3, outputs=2, cotangents=2),
}
