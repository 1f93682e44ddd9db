"""Outputs of the classifiers and regressors of ai.onnx.ml: post_transform, the second column, the label.

The reference is the newest onnxruntime. It differs from the standard for a single score: that of a regressor is not
transformed, that of a classifier becomes two columns to which only LOGISTIC applies. (Versions before about 1.20 ignore
LOGISTIC too where no weight is negative.)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .._graph.cast_types import INT64
from .context import RewrittenNode

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
    return _softmax_zero(r, scores) if name == "SOFTMAX_ZERO" else scores


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
    """Apply the sigmoid by columns, so that it is recognized at the end of a graph."""
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


def _softmax_zero(r: RewrittenNode, scores: ir.Value) -> ir.Value:
    """The softmax of the nonzero scores; the others stay almost zero."""
    op = r.op
    counted = op.Greater(op.Abs(scores), np.float32(_ALMOST_ZERO))
    total = op.ReduceLogSumExp(op.Where(counted, scores, _EXCLUDED), axes=[1], keepdims=True)
    return op.Where(counted, op.Exp(op.Sub(scores, total)), op.Mul(scores, op.Exp(op.Neg(total))))
