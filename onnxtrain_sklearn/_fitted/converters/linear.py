"""Converters: linear classifiers whose probabilities are sigmoids, each divided by the sum of all.

Where all of them are almost zero, skl2onnx divides zero by zero; their logarithms are far from that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.linear_model import SGDClassifier

from .context import FLOAT, Converter, Source

FAR = 1e9
"""How far below zero the logarithm of nothing is."""


def _by_gradient_descent(s: Source) -> Sequence[ir.Value] | None:
    op, model = s.op, s.estimator
    if model.loss != "log_loss":
        return None
    scores = op.Gemm(s.x, s.parameter(model, "coef_"), s.parameter(model, "intercept_"), transB=1)
    if len(model.classes_) == 2:
        return s.chosen(op.Concat(op.Neg(scores), scores, axis=1)), s.columns(scores)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(_log_sigmoid(s, scores), axis=1)


def _log_sigmoid(s: Source, scores: ir.Value) -> ir.Value:
    """Where scikit-learn's sigmoid is zero, this is the same far away: rows with zeros alone are even."""
    op, end = s.op, -np.log(np.finfo(s.estimator.coef_.dtype).max)
    counts = op.Cast(op.Greater(scores, np.float32(end)), to=FLOAT)
    counted = op.Add(op.Mul(scores, counts), op.Mul(op.Sub(counts, 1.0), FAR))
    return op.Neg(op.Softplus(op.Neg(counted)))  # of Relu and Abs, both slopes at 0 would be 0


CONVERTERS: dict[type, Converter] = {SGDClassifier: Converter(_by_gradient_descent)}
