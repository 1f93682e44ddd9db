"""Converter of one-vs-one classifiers, and the decision function that is made of the scores of pairs of classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.multiclass import OneVsOneClassifier

from ..._graph.builder import GraphBuilder
from ..._graph.cast_types import FLOAT
from ..._support.typing import Estimator
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


CONVERTERS: dict[type, Converter] = {OneVsOneClassifier: Converter(_one_vs_one, takes=_is_known)}
