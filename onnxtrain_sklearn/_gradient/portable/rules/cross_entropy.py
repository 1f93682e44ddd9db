"""SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss; classes are on axis 1, and rows may be ignored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ...._graph.queries import Dims, dims, fixed
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk, mask


def _loss_rule(cross_entropy: bool, r: Reverse) -> Sequence[Thunk | None]:
    op, x = r.op, r.x()
    _require_labels(r)
    if cross_entropy and _plain_mean(r):
        return [lambda: _mean_cotangent(r)]
    log_p = op.Sub(x, op.ReduceLogSumExp(x, axes=[1], keepdims=True)) if cross_entropy else x
    chosen = _class_weight_of_rows(r)
    g, total = _cotangent(r, chosen)
    return (
        lambda: _score_cotangents(r, log_p, op.Mul(chosen, op.Neg(g)) if g is not None else None, cross_entropy),
        None,
        lambda: _class_weight_cotangents(r, log_p, chosen, g, total),
    )


def _require_labels(r: Reverse) -> None:
    """Refuse labels whose shape cannot match the scores: not every kernel checks it."""
    scores, labels = dims(r.x()), dims(r.x(1))
    if scores is None or labels is None:
        return
    rows = [*scores[:1], *scores[2:]]
    if len(rows) == len(labels) and all(_may_be_equal(m, n) for m, n in zip(rows, labels, strict=True)):
        return
    r.refuse(
        f"its labels are of shape {_shape_text(labels)}, its scores of {_shape_text(scores)}: each row needs a label"
    )


def _may_be_equal(rows: int | str | None, labels: int | str | None) -> bool:
    return rows == labels or not (isinstance(rows, int) and isinstance(labels, int))


def _shape_text(sizes: Dims) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in sizes)})"


def _plain_mean(r: Reverse) -> bool:
    """Whether the loss is an unweighted mean over a known number of rows."""
    simple = r.attribute("reduction", "mean") == "mean" and r.attribute("ignore_index", None) is None
    return (
        simple
        and not r.has(2)
        and r.cotangents[1:] in ((), (None,))
        and fixed(dims(r.x(1)))
        and len(dims(r.x()) or ()) == 2
    )


def _mean_cotangent(r: Reverse) -> ir.Value:
    """Return the probabilities minus the one-hot labels, divided by the number of rows."""
    op, rows = r.op, (dims(r.x(1)) or [1])[0]
    excess = op.Sub(op.Softmax(r.x(), axis=1), _class_weight_of_rows(r))
    return op.Mul(op.Mul(excess, 1.0 / int(str(rows))), r.g)


def _class_weight_of_rows(r: Reverse) -> ir.Value:
    """Return the class weight at each row's class, else 0; for ignored rows it is 0."""
    op, target = r.op, _target(r)
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


def _target(r: Reverse) -> ir.Value:
    """Return the class indices with an added axis for the classes."""
    return r.op.Unsqueeze(r.x(1), axes=[1])


def _cotangent(r: Reverse, chosen: ir.Value) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the cotangent of each row's weighted loss, broadcastable, and the divisor of the mean."""
    op, g, reduction = r.op, r.cotangents[0], r.attribute("reduction", "mean")
    total = op.ReduceSum(chosen, keepdims=False) if reduction == "mean" else None
    if g is None or reduction == "sum":
        return g, total
    return (op.Div(g, total), total) if total is not None else (op.Unsqueeze(g, axes=[1]), total)


def _score_cotangents(r: Reverse, log_p: ir.Value, cotangent: ir.Value | None, cross_entropy: bool) -> ir.Value | None:
    op, cotangents = r.op, [s for s in (cotangent, *r.cotangents[1:]) if s is not None]
    total = cotangents[0] if len(cotangents) == 1 else op.Add(*cotangents)
    if not cross_entropy:
        return total
    return op.Sub(total, op.Mul(op.Exp(log_p), op.ReduceSum(total, axes=[1], keepdims=True)))


def _class_weight_cotangents(
    r: Reverse, log_p: ir.Value, chosen: ir.Value, g: ir.Value | None, total: ir.Value | None
) -> ir.Value | None:
    """Return the cotangents of the class weights, which scale the losses and enter the divisor of the mean."""
    if g is None:
        return None
    op, rank = r.op, r.rank()
    column = [-1, *[1] * (rank - 2)]
    hits = op.Where(op.Equal(chosen, 0.0), 0.0, op.Div(chosen, op.Reshape(r.x(2), column)))
    losses = op.Neg(log_p) if total is None else op.Sub(op.Neg(log_p), r.y)
    return op.ReduceSum(op.Mul(op.Mul(hits, losses), g), axes=[0, *range(2, rank)], keepdims=False)


_LOSS_SETTINGS = "ignore_index reduction=mean|none|sum"

RULES: dict[str, GradientRule] = {
    "NegativeLogLikelihoodLoss": Supported(partial(_loss_rule, False), _LOSS_SETTINGS, inputs=3),
    "SoftmaxCrossEntropyLoss": Supported(partial(_loss_rule, True), _LOSS_SETTINGS, inputs=3, outputs=2, cotangents=2),
}
