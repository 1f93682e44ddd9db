"""Convert meta-estimators: ensembles, calibration, transformed targets, several outputs.

skl2onnx's own converters split the weights of votes into separate constants, ignore weights that are lists and the
option ``flatten_transform``, and read only one of the two columns of a decision function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

from ..._utils.typing import Estimator
from ...exceptions import ModelError
from ...graph import FLOAT, INT64, GraphBuilder
from ..fitted_model import Path, follow, walk
from ..model_record import last_step, record_of
from .context import EPSILON, Converter, Source, labels, several_labels
from .preprocessing import applied

# Converters of calibrated classifiers: by a sigmoid, an isotonic regression or a temperature.
#
# skl2onnx takes the nearest threshold of an isotonic regression instead of interpolating between two.


def _calibrated(s: Source) -> Sequence[ir.Value]:
    members = s.estimator.calibrated_classifiers_
    parts = [_temperature(s, one) if one.method == "temperature" else _by_class(s, one) for one in members]
    total = parts[0]
    for part in parts[1:]:
        total = s.op.Add(total, part)
    mean = total if len(parts) == 1 else s.op.Div(total, float(len(parts)))
    return s.chosen(mean), mean


def _by_class(s: Source, one: Estimator) -> ir.Value:
    """Return probabilities calibrated for each class against the rest; if all are zero, they become equal."""
    op, classes = s.op, len(one.classes)
    given = _scores_to_calibrate(s, one)
    if classes == 2:
        p = _calibrated_column(s, one.calibrators[0], given)
        return op.Concat(op.Sub(1.0, p), p, axis=1)
    places = np.searchsorted(one.classes, one.estimator.classes_)
    columns: list[ir.Value | None] = [None] * classes
    for i, (place, calibrator) in enumerate(zip(places, one.calibrators, strict=False)):  # paired as in scikit-learn
        columns[place] = _calibrated_column(s, calibrator, op.Gather(given, np.array([i]), axis=1))
    none = op.Mul(op.Gather(given, np.array([0]), axis=1), 0.0)
    joined = op.Concat(*(none if column is None else column for column in columns), axis=1)
    total = op.ReduceSum(joined, axes=[1], keepdims=True)
    lost = op.Equal(total, 0.0)
    return op.Where(
        op.Expand(lost, op.Shape(joined)),
        op.Expand(np.float32(1 / classes), op.Shape(joined)),
        op.Div(joined, op.Add(total, op.Cast(lost, to=FLOAT))),
    )


def _scores_to_calibrate(s: Source, one: Estimator) -> ir.Value:
    """Return the decision function, or probabilities if there is none; for two classes, only the second column."""
    if hasattr(one.estimator, "decision_function"):
        return s.decision(one.estimator)
    p = s.probabilities(one.estimator)
    return s.op.Gather(p, np.array([1]), axis=1) if len(one.estimator.classes_) == 2 else p


def _calibrated_column(s: Source, calibrator: Estimator, score: ir.Value) -> ir.Value:
    """Return calibrated probabilities of one class: by a sigmoid, or by an isotonic regression."""
    op = s.op
    if not hasattr(calibrator, "y_thresholds_"):
        a, b = (s.parameter(calibrator, name) for name in ("a_", "b_"))
        return op.Sigmoid(op.Neg(op.Add(op.Mul(score, a), b)))
    # Interpolate linearly: add to the first probability, for each interval of thresholds, the share below the score.
    x = np.asarray(calibrator.X_thresholds_, np.float64)
    p = np.clip(calibrator.y_thresholds_, EPSILON, 1 - EPSILON)
    w = s.parameter(calibrator, "y_thresholds_", p, shape=(-1, 1), form="probability")
    size = op.Abs(w)
    y = op.Div(size, op.Add(size, op.Abs(op.Sub(1.0, w))))  # in [0, 1] for any w that training may give
    first = op.Slice(y, [0], [1], [0])
    if len(x) == 1:
        return op.Add(op.Mul(score, 0.0), first)
    width = np.maximum(np.diff(x), np.finfo(np.float32).tiny)
    behind = op.Div(op.Sub(score, x[:-1].astype(np.float32)), width.astype(np.float32))
    steps = op.Sub(op.Slice(y, [1], [len(x)], [0]), op.Slice(y, [0], [len(x) - 1], [0]))
    return op.Add(op.MatMul(op.Clip(behind, np.float32(0), np.float32(1)), steps), first)


def _temperature(s: Source, one: Estimator) -> ir.Value:
    op, calibrator = s.op, one.calibrators[0]
    given = _scores_to_calibrate(s, one)
    if hasattr(one.estimator, "decision_function"):
        logits = op.Concat(op.Neg(given), given, axis=1) if len(one.classes) == 2 else given
    elif _has_empty_leaves(one.estimator):
        raise ModelError(
            f"This CalibratedClassifierCV takes logarithms of probabilities that are zero: leaves of its "
            f"{record_of(one.estimator).last_name} hold no row of some class. In training they keep a distance of "
            f"{EPSILON:g} from zero, which changes such a logarithm by far. Use method='sigmoid', or fit larger "
            f"leaves."
        )
    else:
        p = op.Concat(op.Sub(1.0, given), given, axis=1) if len(one.classes) == 2 else given
        logits = op.Log(op.Add(p, 1e-12))
    return op.Softmax(op.Mul(logits, s.parameter(calibrator, "beta_")), axis=1)


def _has_empty_leaves(estimator: Estimator) -> bool:
    """Return True if every tree has a leaf without rows of some class, the same class for all trees."""
    last = record_of(estimator).last
    if not isinstance(last, BaggingClassifier | DecisionTreeClassifier | ExtraTreesClassifier | RandomForestClassifier):
        return False
    fitted = [part for _, part in walk(last) if hasattr(part, "tree_")]
    empty = np.full(len(last.classes_), len(fitted) > 0)
    for tree in (one.tree_ for one in fitted):
        held = tree.value[tree.children_left < 0, 0]
        if held.shape[1] == len(empty):  # a member that was fitted to a bootstrap sample may lack a class
            empty &= (held < EPSILON).any(axis=0)
    return bool(empty.any())


# Converter of regressors that are fitted to transformed targets: the inverse transforms.


Inverse = Callable[[Source, ir.Value, Path], ir.Value]
"""``inverse(source, y, path)`` applies to ``y`` the inverse of the transformer at ``path`` from the regressor."""


def _scaled(shift: str | None = None) -> Inverse:
    """Return the inverse of a transformer that subtracts the attribute ``shift`` and divides by the scale, if any."""

    def inverse(s: Source, y: ir.Value, path: Path) -> ir.Value:
        transformer = follow(s.estimator, path)
        if transformer.scale_ is not None:
            y = s.op.Mul(y, s.parameter(s.estimator, (*path, "scale_")))
        if shift and getattr(transformer, shift) is not None and getattr(transformer, "with_mean", True):
            y = s.op.Add(y, s.parameter(s.estimator, (*path, shift)))
        return y

    return inverse


def _from_range(s: Source, y: ir.Value, path: Path) -> ir.Value:
    low, scale = (s.parameter(s.estimator, (*path, part)) for part in ("min_", "scale_"))
    return s.op.Div(s.op.Sub(y, low), scale)


def _from_powers(s: Source, y: ir.Value, path: Path) -> ir.Value:
    """Return (1 + lambda y) ** (1 / lambda); for negative numbers, Yeo and Johnson's method uses 2 - lambda."""
    op, transformer = s.op, follow(s.estimator, path)
    if divides_by_zero(transformer):
        raise ModelError(
            "A PowerTransformer of targets has no ONNX form if an exponent is next to 0, or to 2 by Yeo and Johnson."
        )
    if transformer.standardize:
        y = _target_inverse(s, y, (*path, "_scaler"))
    exponent = s.parameter(s.estimator, (*path, "lambdas_"))
    if transformer.method == "box-cox":
        return _root_of(op, y, exponent)
    above, below = op.Relu(y), op.Relu(op.Neg(y))
    return op.Sub(op.Sub(_root_of(op, above, exponent), 1.0), op.Sub(_root_of(op, below, op.Sub(2.0, exponent)), 1.0))


def divides_by_zero(transformer: PowerTransformer) -> bool:
    """Return True if an exponent is almost zero: the inverse would divide by it, and scikit-learn takes a logarithm."""
    power = np.asarray(transformer.lambdas_, np.float64)
    divisors = power if transformer.method == "box-cox" else power * (2 - power)
    return bool(np.abs(divisors).min() < 1e-3)


def _root_of(op: GraphBuilder, y: ir.Value, exponent: ir.Value) -> ir.Value:
    return op.Exp(op.Div(op.Log(op.Add(op.Mul(y, exponent), 1.0)), exponent))


def _target_function(s: Source, y: ir.Value, path: Path) -> ir.Value:
    transformer = follow(s.estimator, path)
    return applied(s.op, y, transformer.inverse_func, transformer.inv_kw_args)


def _steps(s: Source, y: ir.Value, path: Path) -> ir.Value:
    for name, _ in reversed(follow(s.estimator, path).steps):
        y = _target_inverse(s, y, (*path, "named_steps", name))
    return y


INVERSES: dict[type, Inverse] = {
    FunctionTransformer: _target_function,
    MaxAbsScaler: _scaled(),
    MinMaxScaler: _from_range,
    Pipeline: _steps,
    PowerTransformer: _from_powers,
    RobustScaler: _scaled("center_"),
    StandardScaler: _scaled("mean_"),
}
"""For each class of transformers, the inverse."""


def _target_inverse(s: Source, y: ir.Value, path: Path) -> ir.Value:
    kind = type(follow(s.estimator, path))
    if kind not in INVERSES:
        known = ", ".join(sorted(kind.__name__ for kind in INVERSES))
        raise ModelError(f"The inverse of {kind.__name__} has no ONNX form here; those of {known} have one.")
    return INVERSES[kind](s, y, path)


def _untransformed_target(s: Source) -> Sequence[ir.Value]:
    """Convert the last step of the regressor; those before it are converted before this one."""
    (y,) = s.convert_inner(last_step(s.estimator.regressor_), s.x, False)
    return [inverse_of(s, y)]


def inverse_of(s: Source, y: ir.Value) -> ir.Value:
    """Return the original targets, given ``y``, the targets as the regressor's transformer transformed them."""
    return _target_inverse(s, y, ("transformer_",))


def _outputs(regressor: TransformedTargetRegressor) -> int:
    return int(getattr(regressor.transformer_, "n_features_in_", 1))


# Converters of classifiers that hold one estimator for each of several outputs.
#
# The labels that these converters return are placeholders, because the inference graph makes labels from the scores.


T = TypeVar("T")


def in_order_of_labels(estimator: Estimator, parts: Sequence[T]) -> list[T]:
    """Return ``parts``, one per label, in the order of the labels; in a chain the order differs."""
    return [parts[i] for i in np.argsort(estimator.order_)] if hasattr(estimator, "order_") else list(parts)


def joined_outputs(s: Source) -> Sequence[ir.Value]:
    """Return the concatenated outputs of the estimators of the labels."""
    parts = [s.convert_inner(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _as_labels(s, parts[0]), s.op.Concat(*parts, axis=1)


def _results_of_each(s: Source) -> Sequence[ir.Value]:
    parts = [s.convert_inner(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _as_labels(s, parts[0]), s.op.SequenceConstruct(*parts)


def _chain(s: Source) -> Sequence[ir.Value]:
    """Convert a chain: each estimator takes the rows and the predictions of the estimators before it."""
    owner = s.estimator
    method = getattr(s.estimator, "chain_method_", "predict")
    if method not in ("predict", "predict_proba"):
        raise ModelError(
            f"This ClassifierChain has chain_method {method!r}; those that can be trained are 'predict' and "
            f"'predict_proba'."
        )
    if any(list(known) != [0, 1] for known in owner.classes_):
        raise ModelError("This ClassifierChain has labels other than 0 and 1, which its ONNX form does not support.")
    given, parts = [s.x], list[ir.Value]()
    for one in owner.estimators_:
        rows = s.op.Concat(*given, axis=1) if len(given) > 1 else s.x
        label, numbers = s.convert_inner(one, rows, False)
        parts.append(numbers)
        if method == "predict":
            given.append(s.op.Reshape(s.op.Cast(label, to=FLOAT), np.array([-1, 1])))
        else:
            given.append(s.op.Gather(numbers, np.array([1]), axis=1))
    parts = in_order_of_labels(owner, parts)
    return _as_labels(s, parts[0]), s.op.Concat(*parts, axis=1)


def _as_labels(s: Source, numbers: ir.Value) -> ir.Value:
    return s.op.Cast(numbers, to=INT64)


# Converters of ensembles: AdaBoost, voting, stacking, one-vs-rest.


def _ada_boost(s: Source) -> Sequence[ir.Value]:
    """Convert AdaBoost's weighted votes: the predicted class gets w, each other class gets -w / (classes - 1)."""
    op, model = s.op, s.estimator
    others, votes = model.n_classes_ - 1, list[ir.Value]()
    for estimator in model.estimators_:  # a vote is (rows, classes, 1): 1 for the predicted class, else 0
        found, classes = s.label(estimator), labels(model)
        if classes.dtype.kind == "U":
            keys = {"keys_strings": classes.tolist(), "values_int64s": list(range(len(classes))), "default_int64": -1}
            found = op.emit("LabelEncoder", found, domain="ai.onnx.ml", **keys)[0]
            classes = np.arange(len(classes))
        is_class = op.Cast(op.Equal(op.Cast(found, to=INT64), classes[np.newaxis]), to=FLOAT)
        votes.append(op.Unsqueeze(is_class, axes=[2]))
    numbers = np.asarray(model.estimator_weights_, np.float32)
    # The weight of a single estimator cancels, so it has no gradient.
    weights = s.parameter(model, "estimator_weights_") if len(votes) > 1 else op.constant(numbers)
    used = op.Slice(weights, [0], [len(votes)], [0])
    signed = op.Sub(op.Mul(op.Concat(*votes, axis=2), 1.0 + 1.0 / others), 1.0 / others)
    total = op.ReduceSum(op.Mul(signed, used), axes=[2], keepdims=False)
    scores = op.Div(total, op.ReduceSum(weights, axes=[0], keepdims=True))
    if others == 1:
        score = op.MatMul(scores, np.array([[-1], [1]], np.float32))
        return s.chosen(op.Concat(op.Neg(score), score, axis=1)), s.columns(score)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(op.Div(scores, float(others)), axis=1)


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
    """Convert stacking: the final estimator takes the outputs of the others, and with ``passthrough`` the rows too."""
    op, model = s.op, s.estimator
    if several_labels(model):
        return None
    parts = list[ir.Value]()
    for one, method in zip(model.estimators_, model.stack_method_, strict=True):
        if method == "decision_function":
            parts.append(s.decision(one))
        elif method == "predict":
            parts.append(op.Cast(s.label(one), to=FLOAT))
        else:
            p = s.probabilities(one)
            parts.append(op.Gather(p, np.array([1]), axis=1) if len(model.classes_) == 2 else p)
    rows = op.Concat(*parts, *([s.x] if model.passthrough else []), axis=1)
    label, scores = s.convert_inner(model.final_estimator_, rows, s.raw_scores)
    return s.class_at(op.Cast(op.Reshape(label, np.array([-1])), to=INT64)), scores


def _one_vs_rest(s: Source) -> Sequence[ir.Value] | None:
    """Concatenate the decision functions of the classes, which skl2onnx would normalize like probabilities."""
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
    CalibratedClassifierCV: Converter(_calibrated),
    TransformedTargetRegressor: Converter(_untransformed_target, _outputs),
    ClassifierChain: Converter(_chain, lambda chain: len(chain.estimators_)),
    MultiOutputClassifier: Converter(_results_of_each),
    AdaBoostClassifier: Converter(_ada_boost),
    OneVsRestClassifier: Converter(_one_vs_rest),
    StackingClassifier: Converter(_stack),
    VotingClassifier: Converter(_soft_vote),
    VotingRegressor: Converter(_mean_of_regressors),
}
