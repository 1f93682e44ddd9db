"""Rewrite linear models, and the outputs that all classifiers and regressors share.

The weights have scikit-learn's shapes and names: ``coef`` has one row per target or class, ``intercept`` one number per
row. Two classes with opposite rows are one score s in two columns (-s, s): the parameter is a single row, so that the
classes stay opposite in training.

The rules of the other families use the functions here to turn scores into outputs: ``post_transform``, the second
column of two classes, the label.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..graph import INT64
from .rewritten_node import LazyValue, RewriteRule, RewrittenNode

# Outputs of classifiers and regressors.
#
# The reference is the newest onnxruntime. It differs from the standard for a single score: that of a regressor is not
# transformed, and that of a classifier becomes two columns to which only LOGISTIC applies. (Versions before about 1.20
# ignore LOGISTIC, too, if no weight is negative.)


_BY_NUMBER = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")  # as TreeEnsemble of version 5 counts them
_ALMOST_ZERO = 1e-7
_EXCLUDED = -1e30


def transformed(r: RewrittenNode, scores: ir.Value) -> ir.Value:
    """Return two or more columns of scores after the node's ``post_transform``."""
    name = _post_transform(r)
    if name == "LOGISTIC":
        return r.op.Sigmoid(scores)
    if name == "SOFTMAX":
        return r.op.Softmax(scores, axis=1)
    if name != "SOFTMAX_ZERO":
        return scores
    # The softmax of the nonzero scores; the others stay almost zero.
    op = r.op
    counted = op.Greater(op.Abs(scores), np.float32(_ALMOST_ZERO))
    total = op.ReduceLogSumExp(op.Where(counted, scores, _EXCLUDED), axes=[1], keepdims=True)
    return op.Where(counted, op.Exp(op.Sub(scores, total)), op.Mul(scores, op.Exp(op.Neg(total))))


def untransformed(r: RewrittenNode, score: ir.Value) -> ir.Value:
    """Return a single column of scores, to which onnxruntime applies PROBIT alone."""
    _post_transform(r)
    return score


def both_signs(r: RewrittenNode, score: ir.Value) -> ir.Value:
    """Return the columns (-s, s) of a single column of scores, or their sigmoids with LOGISTIC."""
    return _sigmoids(r, score) if _post_transform(r) == "LOGISTIC" else r.op.Concat(r.op.Neg(score), score, axis=1)


def complement(r: RewrittenNode, score: ir.Value) -> ir.Value:
    """Return the columns (1 - p, p) of a single column of probabilities, or the sigmoids of (-p, p)."""
    return _sigmoids(r, score) if _post_transform(r) == "LOGISTIC" else r.op.Concat(r.op.Sub(1.0, score), score, axis=1)


def _sigmoids(r: RewrittenNode, score: ir.Value) -> ir.Value:
    """Apply the sigmoid to each column, the form that is recognized as a final activation."""
    return r.op.Concat(r.op.Sigmoid(r.op.Neg(score)), r.op.Sigmoid(score), axis=1)


def largest(r: RewrittenNode, scores: ir.Value, labels: np.ndarray) -> ir.Value:
    """Return the label of the largest score of each row, the first one of a tie."""
    return selected_labels(r, r.op.ArgMax(scores, axis=1, keepdims=False), labels)


def label_above(r: RewrittenNode, score: ir.Value, threshold: float, labels: np.ndarray) -> ir.Value:
    """Return the second label where a single column of scores exceeds ``threshold``, else the first."""
    second = r.op.Cast(r.op.Greater(score, threshold), to=INT64)
    return selected_labels(r, r.op.Reshape(second, np.array([-1])), labels)


def selected_labels(r: RewrittenNode, positions: ir.Value, labels: np.ndarray) -> ir.Value:
    return r.op.Gather(labels, positions, axis=0)


def post_transform_of(node: ir.Node) -> str:
    """Return the attribute post_transform of a node, NONE by default."""
    if "post_transform" not in node.attributes:
        return "NONE"
    given = node.attributes["post_transform"]
    return _BY_NUMBER[given.as_int()] if given.type == ir.AttributeType.INT else given.as_string()


def _post_transform(r: RewrittenNode) -> str:
    name = post_transform_of(r.node)
    if name == "PROBIT":
        r.refuse("post_transform PROBIT is finite for scores between 0 and 1 only, which training does not guarantee")
    return name


# Rules.


def _linear_regressor(r: RewrittenNode) -> Sequence[LazyValue]:
    coef, intercept = _coefficient_matrix(r, int(r.attribute("targets", 1)))
    finish = transformed if len(coef) > 1 else untransformed
    return (lambda: finish(r, _linear_product(r, coef, intercept)),)


def _linear_classifier(r: RewrittenNode) -> Sequence[LazyValue]:
    labels = r.labels("classlabels_ints")
    coef, intercept = _coefficient_matrix(r, len(r.floats("intercepts")))
    tied = len(coef) == 2 and np.array_equal(coef[0], -coef[1]) and np.array_equal(intercept[0], -intercept[1])
    raw = functools.cache(
        lambda: _linear_product(r, coef[1:], intercept[1:]) if tied else _linear_product(r, coef, intercept)
    )
    if len(labels) != max(len(coef), 2):
        r.refuse(f"it has {len(coef)} rows of weights for {len(labels)} labels")
    if len(coef) == 1:
        return lambda: label_above(r, raw(), 0.0, labels), lambda: complement(r, raw())
    if not tied:
        return lambda: largest(r, raw(), labels), lambda: transformed(r, raw())

    def two_columns() -> ir.Value:
        if r.attribute("post_transform", "NONE") in ("NONE", "LOGISTIC"):
            return both_signs(r, raw())
        return transformed(r, r.op.Concat(r.op.Neg(raw()), raw(), axis=1))

    return lambda: label_above(r, raw(), 0.0, labels), two_columns


def _coefficient_matrix(r: RewrittenNode, rows: int) -> tuple[np.ndarray, np.ndarray]:
    coef, intercept = r.floats("coefficients"), r.floats("intercepts")
    if not rows or not coef.size or coef.size % rows:
        r.refuse(f"its {coef.size} coefficients do not make {rows} rows")
    coef = coef.reshape(rows, -1)
    if r.columns() not in (None, coef.shape[1]):
        r.refuse(f"it has weights for {coef.shape[1]} features, and its input has {r.columns()}")
    if intercept.size not in (0, rows):
        r.refuse(f"it has {intercept.size} intercepts for {rows} rows of weights")
    return coef, intercept


def _linear_product(r: RewrittenNode, coef: np.ndarray, intercept: np.ndarray) -> ir.Value:
    weights = r.parameter("coef", coef)
    return r.op.Gemm(r.matrix(), weights, *([r.parameter("intercept", intercept)] if intercept.size else []), transB=1)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("ai.onnx.ml", "LinearRegressor"): _linear_regressor,
    ("ai.onnx.ml", "LinearClassifier"): _linear_classifier,
}
