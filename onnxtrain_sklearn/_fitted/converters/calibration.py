"""Converters of calibrated classifiers: by a sigmoid, an isotonic regression or a temperature.

skl2onnx takes the nearest threshold of an isotonic regression instead of interpolating between two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from ..._graph.cast_types import FLOAT
from ..._support.typing import Estimator
from ...exceptions import ModelError
from ..record import record_of
from ..traversal import walk
from .context import EPSILON, Converter, Source


def _calibrated(s: Source) -> Sequence[ir.Value]:
    members = s.estimator.calibrated_classifiers_
    parts = [_temperature(s, one) if one.method == "temperature" else _by_class(s, one) for one in members]
    total = parts[0]
    for part in parts[1:]:
        total = s.op.Add(total, part)
    mean = total if len(parts) == 1 else s.op.Div(total, float(len(parts)))
    return s.chosen(mean), mean


def _by_class(s: Source, one: Estimator) -> ir.Value:
    """Calibrate each class against the rest; where all probabilities are zero, they become equal."""
    op, classes = s.op, len(one.classes)
    given = _scores_to_calibrate(s, one)
    if classes == 2:
        p = _calibrated_column(s, one.calibrators[0], given)
        return op.Concat(op.Sub(1.0, p), p, axis=1)
    places = np.searchsorted(one.classes, one.estimator.classes_)
    columns: list[ir.Value | None] = [None] * classes
    for i, (place, calibrator) in enumerate(zip(places, one.calibrators, strict=False)):  # as scikit-learn pairs them
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
    """Return what is calibrated: the decision function or else probabilities, in one column for two classes."""
    if hasattr(one.estimator, "decision_function"):
        return s.decision(one.estimator)
    p = s.probabilities(one.estimator)
    return s.op.Gather(p, np.array([1]), axis=1) if len(one.estimator.classes_) == 2 else p


def _calibrated_column(s: Source, calibrator: Estimator, score: ir.Value) -> ir.Value:
    if hasattr(calibrator, "y_thresholds_"):
        return _isotonic_probability(s, calibrator, score)
    a, b = (s.parameter(calibrator, name) for name in ("a_", "b_"))
    return s.op.Sigmoid(s.op.Neg(s.op.Add(s.op.Mul(score, a), b)))


def _isotonic_probability(s: Source, calibrator: Estimator, score: ir.Value) -> ir.Value:
    """Linear interpolation between thresholds: the first probability, plus the covered share of each step."""
    op = s.op
    x = np.asarray(calibrator.X_thresholds_, np.float64)
    p = np.clip(calibrator.y_thresholds_, EPSILON, 1 - EPSILON)
    w = s.parameter(calibrator, "y_thresholds_", p, shape=(-1, 1), form="probability")
    size = op.Abs(w)
    y = op.Div(size, op.Add(size, op.Abs(op.Sub(1.0, w))))  # a probability whatever values w gets in training
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
    """Whether every tree has a leaf without rows of some class, the same one for all trees."""
    last = record_of(estimator).last
    if not isinstance(last, BaggingClassifier | DecisionTreeClassifier | ExtraTreesClassifier | RandomForestClassifier):
        return False
    fitted = [part for _, part in walk(last) if hasattr(part, "tree_")]
    empty = np.full(len(last.classes_), len(fitted) > 0)
    for tree in (one.tree_ for one in fitted):
        held = tree.value[tree.children_left < 0, 0]
        if held.shape[1] == len(empty):  # bags may lack a class
            empty &= (held < EPSILON).any(axis=0)
    return bool(empty.any())


CONVERTERS: dict[type, Converter] = {CalibratedClassifierCV: Converter(_calibrated)}
