"""Fitted scikit-learn models as trainable graphs.

A model is converted in float32, pruned to the output that is trained, and its operators of ai.onnx.ml are rewritten.
Its numbers are named by where they come from, and its outputs brought into a form that a loss can be taken on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_classifier, is_clusterer, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, _ConstantPredictor
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor, RadiusNeighborsClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import OrdinalEncoder
from sklearn.svm import SVC, NuSVC
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from .._graph.shapes import infer_shapes
from .._graph.trainable import TrainableModel, trainable_model
from .._ml_operators.rewrite import Rewritten, rewrite
from .._typing import Estimator
from ..exceptions import ModelError, UnsupportedOperatorError
from ..losses import Loss, Quantile
from .boosters import library_of, loss_of_booster
from .conversion import ConversionRecord, converted
from .decision_rules import CHOICE, PAIRS, keep_threshold, keep_votes, threshold_rule
from .multioutput import are_indicators, classes_of_outputs, expose_labels, keep_votes_of_labels
from .provenance import Origin, named
from .scores import as_probabilities, drop_needless_norms, expose_scores, prune, tie_normal_density
from .table_graph import TablePipeline, in_parts
from .tables import Table, table_of
from .tracers import Tracer
from .traversal import classes_of, first_step, follow, gives_labels, last_step, walk

FEATURES = ("n_features_in_", "feature_names_in_")


@dataclass(frozen=True)
class FittedModel:
    """What is known of a fitted model beside its graph.

    Attributes
    ----------
    origins : tuple of Origin
        Of every parameter.
    classes : ndarray, list of ndarray or None
        The labels of a classifier, a list where it predicts several a row that are not all 0 or 1; -1 and 1 of a
        detector of outliers.
    features : dict
        What scikit-learn's checks of the data go by: ``n_features_in_`` and ``feature_names_in_``, where there are.
    loss : str or Loss
        What is minimised where the user has not said.
    n_labels : int or None
        Labels that a classifier predicts for a row, where it predicts several.
    table : Table or None
        The columns of a model that takes text.
    parts : TablePipeline or None
        Its graph with an input for each column, and what comes before the part of it that is trained.
    """

    origins: tuple[Origin, ...]
    classes: np.ndarray | list[np.ndarray] | None
    features: Mapping[str, Any]
    loss: str | Loss
    n_labels: int | None = None
    table: Table | None = None
    parts: TablePipeline | None = None

    def known_classes(self, classes: ArrayLike | list[np.ndarray] | None, y: ArrayLike) -> Any:
        """Return the labels that rows may have; those that the user names, and ``y``, must be of the model's kind."""
        if self.classes is None:
            return classes
        self._require_labels(_shape(y))
        given, known = listed(classes), listed(self.classes)
        if classes is not None and given != known:
            raise ValueError(f"classes={given} are not those of the fitted model, {known}.")
        return self.classes

    def _require_labels(self, shape: tuple[int, ...]) -> None:
        given = shape[1] if len(shape) > 1 else 1
        if self.n_labels is not None and given != self.n_labels:
            raise ValueError(
                f"The fitted model predicts {self.n_labels} labels a row, and y has {given}, being of shape {shape}. "
                f"Give a matrix with a column for each label."
            )
        if self.n_labels is None and given > 1:
            raise ValueError(f"The fitted model predicts one label a row, and y has {given}, being of shape {shape}.")


def _shape(y: ArrayLike) -> tuple[int, ...]:
    try:
        return np.shape(y)
    except ValueError:
        raise ValueError("y must hold the same number of labels in every row, but its rows differ in length.") from None


def listed(classes: ArrayLike | list[np.ndarray] | None) -> Any:
    """Return classes as a list, or those of several labels as a list of lists."""
    if isinstance(classes, list | tuple) and any(np.ndim(known) for known in classes):
        return [np.asarray(known).tolist() for known in classes]
    return np.asarray(classes).tolist()


def is_estimator(model: object) -> TypeGuard[Estimator]:
    """Whether ``model`` is a scikit-learn estimator, fitted or not."""
    return isinstance(model, BaseEstimator) and hasattr(model, "fit")


def takes_nan(model: Estimator) -> bool:
    """Whether a scikit-learn model takes missing values, in some columns at least."""
    first = first_step(model)
    if isinstance(first, FeatureUnion):
        return all(takes_nan(part) for _, part in first.transformer_list if is_estimator(part))
    if isinstance(first, ColumnTransformer):  # which gives each its own columns
        parts = getattr(first, "transformers_", first.transformers)
        return any(takes_nan(part) for _, part, _ in parts if is_estimator(part))
    return bool(get_tags(first).input_tags.allow_nan)


def fitted_model(estimator: Estimator, *, has_text: bool = False) -> tuple[TrainableModel, FittedModel]:
    """Return a fitted model as a trainable graph, and what else is known of it.

    ``has_text`` says whether the data have columns that are no numbers.

    Raises
    ------
    NotFittedError
    ModelError
        The model cannot be converted, or holds nothing that can be trained; the message says why.
    """
    check_is_fitted(estimator)
    _refuse_other_kinds(estimator)
    outputs = classes_of_outputs(estimator) if is_classifier(estimator) else None
    table = table_of(estimator, has_text=has_text)
    model, origins = _graph_of(estimator, outputs, table)
    special: dict[str, Any] = {name: name for name in (PAIRS, CHOICE) if name in {v.name for v in model.graph.outputs}}
    try:
        source = trainable_model(model, **special)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_without_gradient(estimator)) from error
    kept = tuple(o for o in origins if o.name in source.parameters and not _is_setting(o, source, estimator))
    whole = replace(source, parameters=tuple(origin.name for origin in kept))
    source, parts = (whole, None) if table is None else in_parts(whole)
    if not source.parameters:
        raise ModelError(_without_gradient(estimator))
    return source, FittedModel(
        origins=tuple(origin for origin in kept if origin.name in source.parameters),
        classes=_classes(estimator, outputs),
        n_labels=None if outputs is None else len(outputs),
        features={name: getattr(estimator, name) for name in FEATURES if hasattr(estimator, name)},
        loss=_loss_of(estimator, source),
        table=table,
        parts=parts,
    )


def _graph_of(
    estimator: Estimator, outputs: list[np.ndarray] | None, table: Table | None
) -> tuple[ir.Model, Sequence[Origin]]:
    """Return the graph in plain operators, and where its parameters come from.

    The order counts: votes are found by the converters' nodes, which rewriting replaces; numbers by those of the
    attributes, before any is made of others; thresholds on the scores, once these are exposed.
    """
    texts = None if table is None else table.texts
    rewritten, watched, structure = _rewritten(estimator, texts)

    def again(twin: Estimator) -> tuple[ir.Model, object]:
        other, _, its_structure = _rewritten(twin, texts)
        return other.model, its_structure

    model, tracer = rewritten.model, Tracer(estimator, structure, again)
    origins = named(model, rewritten.roles, watched, estimator, tracer)
    origins = [as_probabilities(model, one, estimator) for one in origins]
    for origin in origins:
        tie_normal_density(model, origin, estimator, watched)
    if outputs is None:
        expose_scores(model, estimator)
    else:
        expose_labels(model, estimator, outputs)
    keep_threshold(model.graph, estimator)
    return infer_shapes(model), origins


def _rewritten(
    estimator: Estimator, texts: Mapping[str, bool] | None
) -> tuple[Rewritten, Sequence[ConversionRecord], object]:
    """Return the graph in plain operators, what each converter added to it, and what was converted."""
    model, watched = converted(estimator, texts)
    prune(model, 1 if gives_labels(estimator) else 0)
    structure = [(node.op_type, [x and x.name for x in node.inputs]) for node in model.graph]
    keep_votes(model.graph, estimator, watched)
    keep_votes_of_labels(model.graph, estimator, watched)
    infer_shapes(model)
    drop_needless_norms(model.graph)
    return rewrite(model), watched, structure


def _refuse_other_kinds(estimator: Estimator) -> None:
    name = type(estimator).__name__
    if not (gives_labels(estimator) or is_regressor(estimator)):
        raise ModelError(
            f"A fitted {name} predicts neither numbers nor classes{_what_else(estimator)}. Give a regressor, a "
            f"classifier, a detector of outliers, or a pipeline that ends in one."
        )
    last = last_step(estimator)
    alone = is_classifier(estimator) and classes_of_outputs(estimator) is None
    if alone and not (hasattr(last, "predict_proba") or hasattr(last, "decision_function")):
        way = " Fit it with voting='soft'." if isinstance(last, VotingClassifier) else ""
        raise ModelError(
            f"This {type(last).__name__} has neither predict_proba() nor decision_function(): it gives labels alone, "
            f"which have no gradient.{way}"
        )
    if isinstance(last, OneVsRestClassifier) and last.multilabel_:
        _refuse_constant_labels(last)
    if isinstance(last, LocalOutlierFactor) and not last.novelty:
        raise ModelError(
            f"This {type(last).__name__} has scores for the rows that it was fitted to alone. Fit it with novelty=True."
        )
    if isinstance(last, OneVsRestClassifier) and len(last.estimators_) > 1 and not last.multilabel_:
        _refuse_other_order(last)
    for inner in _whose_labels_count(last):
        _refuse_own_labels(last, inner)
    for part in (part for _, part in walk(estimator)):
        if isinstance(part, TfidfTransformer | TfidfVectorizer) and part.sublinear_tf:
            raise ModelError(f"{type(part).__name__}(sublinear_tf=True) has no right ONNX form. Fit it without.")


def _refuse_other_order(last: OneVsRestClassifier) -> None:
    """Labels follow decision functions where there are any, and what is trained are probabilities where there are."""
    inner = type(last_step(last.estimators_[0])).__name__
    both = hasattr(last, "predict_proba") and hasattr(last, "decision_function")
    if both and inner in ("BaggingClassifier", "NuSVC", "SVC", "StackingClassifier"):
        raise ModelError(
            f"This OneVsRestClassifier chooses labels by the decision functions of its {inner}, which the "
            f"probabilities that are trained need not agree with. Give a classifier with one of both."
        )


def _whose_labels_count(last: Estimator) -> list[Any]:
    """Return the estimators within one whose labels are handed on as they are."""
    if isinstance(last, StackingClassifier):
        return [last.final_estimator_]
    return list(last.estimators_) if isinstance(last, MultiOutputClassifier | ClassifierChain) else []


def _refuse_own_labels(last: Estimator, inner: Estimator) -> None:
    """Within another model, labels are those of the largest probability or score."""
    end, rule = last_step(inner), threshold_rule(inner)
    name = type(end if rule is None else rule).__name__
    by_votes = isinstance(end, SVC | NuSVC) and hasattr(end, "predict_proba") and isinstance(last, StackingClassifier)
    of_pairs = isinstance(end, OneVsOneClassifier)
    clipped = isinstance(end, SGDClassifier) and end.loss == "modified_huber" and len(end.classes_) > 2
    if rule is not None or by_votes or of_pairs or clipped:
        raise ModelError(
            f"{name} within {type(last).__name__} chooses labels by a rule of its own, which training would not "
            f"follow there. It is followed where {name} is the model itself, or the last step of a pipeline."
        )


def _refuse_constant_labels(last: Estimator) -> None:
    """A label that was the same in all rows has no margin, beside those of others."""
    constant = [isinstance(one, _ConstantPredictor) for one in last.estimators_]
    if any(constant) and not all(hasattr(one, "predict_proba") for one in last.estimators_):
        raise ModelError(
            f"Label {constant.index(True)} of this OneVsRestClassifier was the same in all rows that it was fitted to, "
            f"and has no decision function. Fit it to rows that differ in every label."
        )


def _what_else(estimator: Estimator) -> str:
    if is_clusterer(estimator) or hasattr(estimator, "predict_proba"):  # mixtures of densities
        return ", but clusters that it found itself"
    return ", but transforms rows" if hasattr(estimator, "transform") else ""


def _classes(estimator: Estimator, outputs: list[np.ndarray] | None) -> np.ndarray | list[np.ndarray] | None:
    if outputs is not None:
        return np.arange(len(outputs)) if are_indicators(outputs) else outputs
    return classes_of(estimator) if gives_labels(estimator) else None


_COUNTS = {
    BaggingClassifier: (
        "the votes of its estimators, which have no predict_proba(). Give it estimators that have: "
        "SVC(probability=True), or CalibratedClassifierCV around others"
    ),
    KNeighborsClassifier: "neighbours. Fit it with weights='distance', by which nearer ones count for more",
    RadiusNeighborsClassifier: "neighbours. Fit it with weights='distance', by which nearer ones count for more",
}
"""What probabilities count, and what to do about it."""


def _without_gradient(estimator: Estimator) -> str:
    last, name = last_step(estimator), type(estimator).__name__
    counted = _COUNTS.get(type(last))
    if counted and not (isinstance(last, BaggingClassifier) and hasattr(last.estimators_[0], "predict_proba")):
        return f"The probabilities of this {type(last).__name__} have no gradient: they count {counted}."
    return (
        f"This {name} holds no number that its output has a gradient for: what it predicts changes in steps, as counts "
        f"of neighbours and of votes do, or not at all."
    )


def _is_setting(origin: Origin, source: TrainableModel, estimator: Estimator) -> bool:
    """Whether a parameter is no fitted number: what a scaler leaves out, an intercept that was not to be fitted."""
    owner = follow(estimator, origin.owner)
    if isinstance(owner, OrdinalEncoder) or (origin.role == "default" and len(getattr(owner, "categories_", ())) > 1):
        return True  # one mean for what several columns do not know
    if origin.attribute:
        if origin.attribute[0] == "_y_train_mean":
            return not owner.normalize_y
        return "intercept" in str(origin.attribute[0]) and getattr(owner, "fit_intercept", True) is False
    if origin.role in ("base_values", "imputed"):  # leaves can say the same; a constant that the user chose
        return True
    numbers = source.model.graph.initializers[origin.name].const_value
    neutral = {"offset": 0.0, "scale": 1.0}.get(origin.role)
    return neutral is not None and numbers is not None and bool((numbers.numpy() == neutral).all())


def _loss_of(estimator: Estimator, source: TrainableModel) -> str | Loss:
    """Return what the last estimator minimises, as far as there is a loss for it here."""
    last = last_step(estimator)
    if gives_labels(estimator):
        machine = last.estimators_[0] if isinstance(last, OneVsOneClassifier) else last
        return "log_loss" if hasattr(machine, "predict_proba") else "hinge"
    name = type(last).__name__
    if library_of(last) is not None:
        return loss_of_booster(last)
    if source.link == "exp":
        if isinstance(getattr(last, "loss", None), str):  # of trees
            return str(last.loss)
        power = float(getattr(last, "power", {"PoissonRegressor": 1, "GammaRegressor": 2}.get(name, 0)))
        return {1.0: "poisson", 2.0: "gamma"}.get(power, "squared_error")
    if name == "QuantileRegressor":
        return Quantile(last.quantile)
    return {"HuberRegressor": "huber"}.get(name, "squared_error")
