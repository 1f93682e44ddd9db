"""Converters of classifiers made of two-class ones: one against one, and by output codes.

The decision function of the first is made of the scores of pairs of classes. Output codes have none in scikit-learn:
the class is that of the nearest code. Here it is by how much each code is nearer than the nearest other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.multiclass import OneVsOneClassifier, OutputCodeClassifier

from ..._graph.builder import GraphBuilder
from ..._graph.cast_types import FLOAT
from ..._support.typing import Estimator
from .. import sklearn_private
from .context import Converter, Source

CONFIDENCES = "confidences"
"""Marks the confidences of the estimators of pairs: decision functions, or probabilities of the second class."""


def _one_vs_one(s: Source) -> Sequence[ir.Value]:
    op, pairs = s.op, [_prediction(s, one) for one in s.estimator.estimators_]
    second, confidences = (op.Concat(*side, axis=1) if len(side) > 1 else side[0] for side in zip(*pairs, strict=True))
    s.mark(CONFIDENCES, confidences)
    scores = decision_of_pairs(op, second, confidences, len(s.estimator.classes_))
    return s.chosen(scores), scores


def _prediction(s: Source, estimator: Estimator) -> tuple[ir.Value, ir.Value]:
    """Return whether a classifier of a pair predicts the second class, and its confidence, (rows, 1) each."""
    op = s.op
    label, scores = s.convert_inner(estimator, s.x, hasattr(estimator, "decision_function"))
    return op.Cast(op.Reshape(label, np.array([-1, 1])), to=FLOAT), op.Gather(scores, np.array([1]), axis=1)


def decision_of_pairs(op: GraphBuilder, second: ir.Value, confidences: ir.Value, classes: int) -> ir.Value:
    """Return one score per class: its votes, and less than a third of a vote from the sum of its confidences.

    ``second`` is 1 where the second class of a pair is predicted, else 0. A positive confidence speaks for it.
    """
    one = np.eye(classes, dtype=np.float32)
    first, last = (one[list(side)] for side in zip(*combinations(range(classes), 2), strict=True))
    votes = op.Add(op.MatMul(second, last), op.MatMul(op.Sub(1.0, second), first))
    total = op.MatMul(confidences, last - first)
    return op.Add(votes, op.Div(total, op.Mul(op.Add(op.Abs(total), 1.0), 3.0)))


def _is_known(model: Estimator) -> bool:
    """Whether all pairs have classifiers of two classes for the same columns."""
    pairs = all(is_classifier(one) and len(getattr(one, "classes_", ())) == 2 for one in model.estimators_)
    return pairs and model.pairwise_indices_ is None


def _output_codes(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    codes = np.asarray(model.code_book_, np.float32)
    parts = [_digit(s, estimator) for estimator in model.estimators_]
    given = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    # The square of the row's own numbers is the same for all codes.
    away = op.Sub((codes**2).sum(axis=1)[np.newaxis], op.Mul(op.MatMul(given, codes.T.copy()), 2.0))
    nearest = op.emit("TopK", away, np.array([2]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    chosen = op.OneHot(nearest, np.array(len(codes)), np.array([0, 1], np.float32))
    least = op.ReduceSum(op.Mul(op.Unsqueeze(away, axes=[1]), chosen), axes=[2], keepdims=False)
    first, second = (op.Gather(least, np.array([i]), axis=1) for i in range(2))
    is_first = op.Gather(chosen, np.array(0), axis=1)
    other = op.Add(op.Mul(is_first, second), op.Mul(op.Sub(1.0, is_first), first))
    margins = op.Mul(op.Sub(other, away), unit_of_codes(model))
    if len(codes) > 2:
        return s.chosen(margins), margins
    score = op.Gather(margins, np.array([1]), axis=1)
    return s.chosen(margins), op.Concat(op.Neg(score), score, axis=1)


def _digit(s: Source, estimator: Estimator) -> ir.Value:
    """Return the prediction of one digit of the code, (rows, 1)."""
    op = s.op
    if isinstance(estimator, sklearn_private._ConstantPredictor):
        return op.Add(op.Mul(op.Gather(s.x, np.array([0]), axis=1), 0.0), float(estimator.y_[0]))
    if hasattr(estimator, "decision_function"):
        return op.Reshape(s.decision(estimator), np.array([-1, 1]))
    return op.Gather(s.probabilities(estimator), np.array([1]), axis=1)


def unit_of_codes(model: OutputCodeClassifier) -> float:
    """Return the factor of squared distances by which codes that differ in half their digits are 1 apart."""
    codes = np.asarray(model.code_book_)
    return float(2.0 / (codes.shape[1] * (np.ptp(codes) or 1.0) ** 2))


CONVERTERS: dict[type, Converter] = {
    OneVsOneClassifier: Converter(_one_vs_one, takes=_is_known),
    OutputCodeClassifier: Converter(_output_codes),
}
