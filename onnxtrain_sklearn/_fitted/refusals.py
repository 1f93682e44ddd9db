"""Fitted models that are refused: checks before the conversion, and why a model has no gradient."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor, RadiusNeighborsClassifier
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from .._support.typing import Estimator
from ..exceptions import ModelError
from . import sklearn_private
from .record import ModelRecord, record_of
from .traversal import walk


def refuse_untrainable(record: ModelRecord) -> None:
    """Raise ModelError for a model without a trainable output, or whose decision rule training would not follow."""
    _refuse_other_tasks(record)
    _refuse_labels_alone(record)
    last = record.last
    if isinstance(last, LocalOutlierFactor) and not last.novelty:
        raise ModelError(
            f"This {record.last_name} has scores only for the rows that it was fitted to. Fit it with novelty=True."
        )
    if isinstance(last, OneVsRestClassifier):
        _refuse_one_vs_rest(last)
    for inner in _estimators_whose_labels_count(last):
        _refuse_own_decision_rule(record, record_of(inner))
    for _, part in walk(record.estimator):
        if isinstance(part, TfidfTransformer | TfidfVectorizer) and part.sublinear_tf:
            raise ModelError(f"{type(part).__name__}(sublinear_tf=True) has no right ONNX form. Fit it without.")


def _refuse_other_tasks(record: ModelRecord) -> None:
    if not (record.gives_labels or record.task == "regression"):
        raise ModelError(
            f"A fitted {record.name} predicts neither numbers nor classes{_other_outputs(record)}. Give a regressor, a "
            f"classifier, a detector of outliers, or a pipeline that ends in one."
        )


def _other_outputs(record: ModelRecord) -> str:
    if record.task == "clustering" or record.has_probabilities:  # mixture models
        return ", but clusters"
    return ", but transforms rows" if hasattr(record.estimator, "transform") else ""


def _refuse_labels_alone(record: ModelRecord) -> None:
    alone = record.task == "classification" and record.outputs is None
    if alone and not (record.has_probabilities or record.has_decision_function or record.has_output_codes):
        way = " Fit it with voting='soft'." if isinstance(record.last, VotingClassifier) else ""
        raise ModelError(
            f"This {record.last_name} has neither predict_proba() nor decision_function(): it predicts labels only, "
            f"which have no gradient.{way}"
        )


def _refuse_one_vs_rest(last: OneVsRestClassifier) -> None:
    if last.multilabel_:
        _refuse_constant_labels(last)
    elif len(last.estimators_) > 1:
        _refuse_other_order(last)


def _refuse_constant_labels(last: OneVsRestClassifier) -> None:
    """Refuse a label that was constant in fit: it has no decision function."""
    constant = [isinstance(one, sklearn_private._ConstantPredictor) for one in last.estimators_]
    if any(constant) and not all(hasattr(one, "predict_proba") for one in last.estimators_):
        raise ModelError(
            f"Label {constant.index(True)} of this OneVsRestClassifier was the same in all rows that it was fitted to, "
            f"and has no decision function. Fit it to rows that differ in every label."
        )


def _refuse_other_order(last: OneVsRestClassifier) -> None:
    """Refuse estimators whose labels follow decision functions while probabilities are trained."""
    inner = record_of(last.estimators_[0]).last_name
    both = hasattr(last, "predict_proba") and hasattr(last, "decision_function")
    if both and inner in ("BaggingClassifier", "NuSVC", "SVC", "StackingClassifier"):
        raise ModelError(
            f"This OneVsRestClassifier chooses labels by the decision functions of its {inner}. Training changes the "
            f"probabilities, which need not agree with them. Give a classifier that has only one of the two."
        )


def _estimators_whose_labels_count(last: Estimator) -> Sequence[Any]:
    """Return the nested estimators whose labels a model uses."""
    if isinstance(last, StackingClassifier):
        return [last.final_estimator_]
    return list(last.estimators_) if isinstance(last, MultiOutputClassifier | ClassifierChain) else []


def _refuse_own_decision_rule(outer: ModelRecord, inner: ModelRecord) -> None:
    """Refuse nested estimators that do not predict the class of the largest probability or score."""
    by_votes = inner.is_libsvm and inner.has_probabilities and isinstance(outer.last, StackingClassifier)
    clipped = inner.is_linear_by_descent and inner.last.loss == "modified_huber" and len(inner.last.classes_) > 2
    if inner.threshold is not None or by_votes or inner.is_one_vs_one or clipped:
        name = inner.last_name if inner.threshold is None else type(inner.threshold.rule).__name__
        raise ModelError(
            f"{name} within {outer.last_name} chooses labels by a rule of its own, which training would not follow "
            f"there. It is followed where {name} is the model itself, or the last step of a pipeline."
        )


_SCALERS = (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)


def where_float32_is_coarse(estimator: Estimator) -> str:
    """Return what helps where the graph of a model differs from it: float32 is too coarse for some of its numbers."""
    parts = [part for _, part in walk(estimator)]
    why = "float32, in which graphs compute, may be too coarse for it"
    if any(isinstance(part, GaussianProcessRegressor) and not _has_noise(part) for part in parts):
        return (
            f"{why}: a Gaussian process without noise passes through every row, by a tiny length scale or by large "
            f"numbers that cancel. Fit it with noise, kernel=RBF() + WhiteKernel(), and with normalize_y=True."
        )
    if not any(isinstance(part, _SCALERS) for part in parts):
        return f"{why}: fit it to scaled columns, by a StandardScaler."
    if any(isinstance(part, OneHotEncoder) and part.drop is None and hasattr(part, "categories_") for part in parts):
        return (
            f"{why}: the columns of a OneHotEncoder add up to one, so that large coefficients may cancel. Fit it with "
            f"OneHotEncoder(drop='first'), or with a stronger penalty."
        )
    return f"{why}: large numbers cancel. Fit it with a stronger penalty, or without columns that say the same."


def _has_noise(process: GaussianProcessRegressor) -> bool:
    parts = [part for _, part in walk(process.kernel_)]
    return any(isinstance(part, WhiteKernel) and part.noise_level > 1e-3 for part in parts)


_NEIGHBORS = (
    "neighbors by weights or a metric without a form that can be trained. Fit it to dense rows with weights='uniform' "
    "or 'distance', and with the metric 'euclidean', 'manhattan' or 'minkowski'"
)

_VOTE_COUNTERS = {
    BaggingClassifier: (
        "the votes of its estimators, which have no predict_proba(). Give it estimators that have: "
        "SVC(probability=True), or CalibratedClassifierCV around others"
    ),
    KNeighborsClassifier: _NEIGHBORS,
    RadiusNeighborsClassifier: _NEIGHBORS,
}
"""What the probabilities count, and what to do."""


def without_gradient(record: ModelRecord) -> str:
    """Return the message for a model none of whose parameters has a gradient."""
    last, counted = record.last, _VOTE_COUNTERS.get(type(record.last))
    if counted and not (isinstance(last, BaggingClassifier) and hasattr(last.estimators_[0], "predict_proba")):
        return f"The probabilities of this {record.last_name} have no gradient: they count {counted}."
    return (
        f"This {record.name} has no parameter with a gradient: its predictions change in steps, as counts of neighbors "
        f"and of votes do, or not at all."
    )


_WITHOUT_CONVERTER = re.compile(r"shape calculator for type '<class '(?:\w+\.)*(\w+)'>'")
"""How skl2onnx says that it does not know a class."""

_UNCLEAR = {
    "LinearDiscriminantAnalysis": (
        "at most 1 input(s)",
        "transforms rows, and has an ONNX form as a classifier alone, which is the last step",
    ),
    "RandomTreesEmbedding": ("", "has no ONNX form"),
    "TargetEncoder": (
        "only support TargetEncoder",
        "encodes by several classes; one that encodes by two, or by numbers, has an ONNX form",
    ),
}
"""Steps of which skl2onnx does not say clearly why it refuses them: part of what it says, and what is meant."""


def why_unconverted(estimator: Estimator, error: Exception) -> str:
    """Return the message for a model whose conversion failed: the class, or the reason, and what to do."""
    whole, words = type(estimator).__name__, " ".join(str(error).split())
    for name in sorted({type(part).__name__ for _, part in walk(estimator)} & _UNCLEAR.keys()):
        told, reason = _UNCLEAR[name]
        if told in words:
            return f"{name} in this {whole} {reason}. {_instead_of(name)}"
    found = _WITHOUT_CONVERTER.search(words)
    if found is None:
        return f"skl2onnx cannot convert this {whole}: {words[:500].removesuffix('.')}. {_instead_of('what it names')}"
    unknown = found[1]
    if unknown == whole:
        return (
            f"{whole} has no converter to ONNX, neither here nor in skl2onnx. Give another model, or register a "
            f"converter by skl2onnx.update_registered_converter."
        )
    return (
        f"{unknown} in this {whole} has no converter to ONNX, neither here nor in skl2onnx. {_instead_of(unknown)} Or "
        f"register a converter by skl2onnx.update_registered_converter."
    )


def _instead_of(step: str) -> str:
    return (
        f"Fit a model with other settings or another step in place of {step}; or apply that step to the data "
        f"beforehand, and give what follows it as the model."
    )
