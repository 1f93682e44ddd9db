"""Converters of ensembles: AdaBoost, voting, stacking, one-vs-rest.

skl2onnx holds the weights of votes as separate numbers, ignores weights that are lists and ``flatten_transform``, and
reads one of the two columns of a decision function.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import AdaBoostClassifier, StackingClassifier, VotingClassifier, VotingRegressor
from sklearn.multiclass import OneVsRestClassifier

from ..._graph.cast_types import FLOAT, INT64
from ..._support.typing import Estimator
from .context import Converter, Source, labels, several_labels
from .multioutput import joined_outputs


def _ada_boost(s: Source) -> Sequence[ir.Value]:
    """Weighted votes: the class that an estimator predicts gets w, each other one -w / (classes - 1)."""
    op, model = s.op, s.estimator
    others = model.n_classes_ - 1
    votes = [op.Unsqueeze(_is_class(s, estimator), axes=[2]) for estimator in model.estimators_]
    numbers = np.asarray(model.estimator_weights_, np.float32)
    # The weight of a single estimator has no gradient.
    weights = s.parameter(model, "estimator_weights_") if len(votes) > 1 else op.constant(numbers)
    used = op.Slice(weights, [0], [len(votes)], [0])
    signed = op.Sub(op.Mul(op.Concat(*votes, axis=2), 1.0 + 1.0 / others), 1.0 / others)
    total = op.ReduceSum(op.Mul(signed, used), axes=[2], keepdims=False)
    scores = op.Div(total, op.ReduceSum(weights, axes=[0], keepdims=True))
    if others == 1:
        score = op.MatMul(scores, np.array([[-1], [1]], np.float32))
        return s.chosen(op.Concat(op.Neg(score), score, axis=1)), s.columns(score)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(op.Div(scores, float(others)), axis=1)


def _is_class(s: Source, estimator: Estimator) -> ir.Value:
    """Return 1 in the column of the class that an estimator predicts, else 0."""
    op, found, classes = s.op, s.label(estimator), labels(s.estimator)
    if classes.dtype.kind == "U":
        keys = {"keys_strings": classes.tolist(), "values_int64s": list(range(len(classes))), "default_int64": -1}
        found, classes = op.emit("LabelEncoder", found, domain="ai.onnx.ml", **keys)[0], np.arange(len(classes))
    return op.Cast(op.Equal(op.Cast(found, to=INT64), classes[np.newaxis]), to=FLOAT)


def _soft_vote(s: Source) -> Sequence[ir.Value] | None:
    if s.estimator.voting != "soft" or several_labels(s.estimator):
        return None
    mean = _weighted_mean(s, [s.probabilities(estimator) for estimator in s.estimator.estimators_])
    return s.chosen(mean), mean


def _mean_of_regressors(s: Source) -> Sequence[ir.Value]:
    return (_weighted_mean(s, [s.number(estimator) for estimator in s.estimator.estimators_]),)


def _weighted_mean(s: Source, values: Sequence[ir.Value]) -> ir.Value:
    given = s.estimator._weights_not_none
    shares = np.ones(len(values)) if given is None else np.asarray(given, np.float64)
    shares = (shares / shares.sum()).astype(np.float32)
    total = s.op.Mul(values[0], shares[0])
    for value, share in zip(values[1:], shares[1:], strict=True):
        total = s.op.Add(total, s.op.Mul(value, share))
    return total


def _stack(s: Source) -> Sequence[ir.Value] | None:
    """The final estimator takes the outputs of the others, and the rows themselves with ``passthrough``."""
    op, model = s.op, s.estimator
    if several_labels(model):
        return None
    parts = [_given(s, one, by) for one, by in zip(model.estimators_, model.stack_method_, strict=True)]
    rows = op.Concat(*parts, *([s.x] if model.passthrough else []), axis=1)
    label, scores = s.convert_inner(model.final_estimator_, rows, s.raw_scores)
    return s.class_at(op.Cast(op.Reshape(label, np.array([-1])), to=INT64)), scores


def _given(s: Source, estimator: Estimator, method: str) -> ir.Value:
    if method == "decision_function":
        return s.decision(estimator)
    if method == "predict":
        return s.op.Cast(s.label(estimator), to=FLOAT)
    p = s.probabilities(estimator)
    return s.op.Gather(p, np.array([1]), axis=1) if len(s.estimator.classes_) == 2 else p


def _one_vs_rest(s: Source) -> Sequence[ir.Value] | None:
    """Concatenated decision functions: skl2onnx normalizes them as if they were probabilities."""
    model = s.estimator
    if model.multilabel_:
        return joined_outputs(s)
    if not (s.raw_scores or not hasattr(model, "predict_proba")):
        return None
    if not hasattr(model, "decision_function"):
        return None
    scores = [s.decision(estimator) for estimator in model.estimators_]
    joined = s.op.Concat(s.op.Neg(scores[0]), scores[0], axis=1) if len(scores) == 1 else s.op.Concat(*scores, axis=1)
    return s.chosen(joined), joined


CONVERTERS: dict[type, Converter] = {
    AdaBoostClassifier: Converter(_ada_boost),
    OneVsRestClassifier: Converter(_one_vs_rest),
    StackingClassifier: Converter(_stack),
    VotingClassifier: Converter(_soft_vote),
    VotingRegressor: Converter(_mean_of_regressors),
}
