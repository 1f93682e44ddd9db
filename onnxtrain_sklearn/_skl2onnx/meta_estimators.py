"""Converters of skl2onnx for the meta-estimators of scikit-learn that hold estimators of this package.

skl2onnx's own converters leave out or change numbers that decide between classes: thresholds, decision functions that
are calibrated or compared, the interpolation of an isotonic regression, the weights beside a dropped estimator. So the
converters of this module take their place in every conversion with an estimator of this package; in others, skl2onnx's
run as before. They repeat the arithmetic of ``predict`` in its order and precision, because a label may depend on the
last bit of two scores.

A converter is a function of :class:`Members`, which declares the inner estimators for skl2onnx to convert, and joins
their outputs. ``_fitted/converters/meta`` converts the same meta-estimators to float32 graphs that can be trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.utils.validation import check_is_fitted

from .._fitted import skl2onnx_bridge, sklearn_private
from .._fitted.fitted_model import walk
from .._utils.typing import Container, Estimator, Operator, Parsers, Scope, Variable
from ..exceptions import ModelError
from ..graph import DOUBLE, FLOAT, INT64, GraphBuilder
from .graphs import VARIABLE_TYPES, append_to_container, number_type, whole_classes

CLASSIFIER_OPTIONS = {
    "zipmap": [True, False, "columns"],
    "nocl": [True, False],
    "output_class_labels": [False, True],
    "raw_scores": [True, False],
}
"""The options of classifiers that skl2onnx does not know; the others have those of skl2onnx."""

Results = Sequence[ir.Value]
"""The outputs of a converter: predicted numbers; or labels and scores."""


class Members:
    """The estimators within a meta-estimator, and the nodes that join their outputs.

    Parameters
    ----------
    scope, operator, container
        Those of the meta-estimator's converter.

    Attributes
    ----------
    outer : estimator
        The meta-estimator.
    op : GraphBuilder
        Emits the nodes. Its floats are float64.
    """

    def __init__(self, scope: Scope, operator: Operator, container: Container) -> None:
        self._scope, self._operator, self._container = scope, operator, container
        self.outer = operator.raw_operator
        opsets = {"": container.target_opset_any_domain("")}
        graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name=type(self.outer).__name__)
        self.op = GraphBuilder(graph, dtype=ir.DataType.DOUBLE, prefix=graph.name or "", constant_nodes=True)
        self._variables: list[Variable] = []
        self._computed: list[tuple[ir.Value, Variable]] = []
        self._declared: dict[tuple[int, int, bool], list[Variable]] = {}
        # Hold the objects whose id is a key here or in skl2onnx's options: a freed object would pass its id on.
        self._alive: list[object] = []

    @property
    def rows(self) -> list[Variable]:
        """The input of the meta-estimator: a matrix, or several columns."""
        return list(self._operator.inputs)

    def read(self, variable: Variable) -> ir.Value:
        """Return a variable of skl2onnx as a value of the graph."""
        value = ir.val(self.op.name("given"), VARIABLE_TYPES.get(type(variable.type).__name__, ir.DataType.FLOAT))
        self.op.graph.inputs.append(value)
        self._variables.append(variable)
        return value

    def matrix(self) -> ir.Value:
        """Return the input of the meta-estimator as one matrix of float64."""
        if any(isinstance(one.type, skl2onnx_bridge.types().StringTensorType) for one in self.rows):
            raise ModelError(
                f"{type(self.outer).__name__} takes the columns of this table one by one, and some are text. Encode "
                f"them in a step before it."
            )
        parts = [self.double(self.read(one)) for one in self.rows]
        return parts[0] if len(parts) == 1 else self.op.Concat(*parts, axis=1)

    def new_rows(self, values: ir.Value, columns: int) -> list[Variable]:
        """Return computed rows as a variable that estimators can take."""
        kind = number_type(self._operator)
        variable = self._scope.declare_local_variable("rows", kind([None, columns]))
        variable.init_status(is_fed=True)  # otherwise skl2onnx misses a variable that depends on constants only
        self._computed.append((self.op.Cast(values, to=int(VARIABLE_TYPES[kind.__name__])), variable))
        return [variable]

    def double(self, value: ir.Value) -> ir.Value:
        """Return a value as float64."""
        return self.op.Cast(value, to=DOUBLE)

    def computes_float32(self, *estimators: Estimator) -> bool:
        """Return True if all these estimators predict float32: estimators of this package, for rows of float32."""
        from .._fitted.model_record import last_step  # needs much of scikit-learn

        float32 = skl2onnx_bridge.types().FloatTensorType
        own = all(_is_own(last_step(one, thresholds=False)) for one in estimators)
        return own and all(isinstance(x.type, float32) for x in self.rows)

    def _outputs(self, estimator: Estimator, rows: list[Variable] | None, raw_scores: bool) -> list[Variable]:
        """Declare an estimator, which skl2onnx converts later, and return its outputs."""
        rows = self.rows if rows is None else rows
        key = (id(estimator), id(rows[0]), raw_scores)
        if key not in self._declared:
            self._declared[key] = self._parsed(estimator, rows, raw_scores)
            self._alive += [estimator, rows]
        return self._declared[key]

    def _parsed(self, estimator: Estimator, rows: list[Variable], raw_scores: bool) -> list[Variable]:
        from .._fitted.model_record import last_step, unwrapped  # needs much of scikit-learn

        estimator = unwrapped(estimator, thresholds=False)
        last = last_step(estimator, thresholds=False)
        known = skl2onnx_bridge.allowed_options(type(last))
        if raw_scores and "raw_scores" not in known and hasattr(last, "predict_proba"):
            raise ModelError(
                f"{type(self.outer).__name__} reads the decision function of {type(last).__name__}, and the ONNX form "
                f"of the latter gives probabilities alone."
            )
        wanted = {name: value for name, value in {"zipmap": False, "raw_scores": raw_scores}.items() if name in known}
        asked = self._scope.get_options(last, {"raw_scores": None})["raw_scores"] if "raw_scores" in known else None
        if asked is not None and asked != raw_scores:
            # skl2onnx finds options by id, so an estimator whose scores and probabilities are both read needs a twin.
            estimator, last = _twin(estimator)
        for holder in (self._scope, self._container):
            holder.add_options(id(last), wanted)
        self._alive += [estimator, last]
        outputs = list(skl2onnx_bridge.parse(self._scope, estimator, rows, {}))
        if type(last) in _conversions():  # float64 between meta-estimators, as in scikit-learn
            outputs[-1].set_type(skl2onnx_bridge.types().DoubleTensorType())
        return outputs

    def numbers(self, estimator: Estimator, rows: list[Variable] | None = None) -> ir.Value:
        """Return the predictions of a regressor, (rows, outputs)."""
        return self.op.Flatten(self.double(self.read(self._outputs(estimator, rows, False)[0])), axis=1)

    def label(self, estimator: Estimator, rows: list[Variable] | None = None) -> ir.Value:
        """Return the predicted labels of a classifier whose classes are integers, (rows, 1)."""
        if np.asarray(estimator.classes_).dtype.kind not in "iubf":
            raise ModelError(
                f"{type(self.outer).__name__} takes labels of {type(estimator).__name__} for numbers, and they are "
                f"{np.asarray(estimator.classes_).tolist()}. Fit it without a FrozenEstimator and cv='prefit'."
            )
        outputs = self._outputs(estimator, rows, not hasattr(estimator, "predict_proba"))
        return self.op.Reshape(self.op.Cast(self.read(outputs[0]), to=INT64), np.array([-1, 1]))

    def probabilities(self, estimator: Estimator, rows: list[Variable] | None = None) -> ir.Value:
        """Return the probabilities of the classes, (rows, classes)."""
        return self.double(self.read(self._outputs(estimator, rows, False)[1]))

    def decision(self, estimator: Estimator, rows: list[Variable] | None = None) -> ir.Value:
        """Return the decision function, in one column for two classes."""
        scores = self.double(self.read(self._outputs(estimator, rows, True)[1]))
        return self.column(scores, -1) if len(estimator.classes_) == 2 else scores

    def column(self, values: ir.Value, place: int) -> ir.Value:
        """Return one column of a matrix, (rows, 1)."""
        return self.op.Gather(values, np.array([place]), axis=1)

    def both_columns(self, score: ir.Value) -> ir.Value:
        """Return the score of the second of two classes beside its negative, as skl2onnx writes decisions."""
        return self.op.Concat(self.op.Neg(score), score, axis=1)

    def chosen(self, scores: ir.Value) -> ir.Value:
        """Return the class of the largest score of each row, the first one of a tie."""
        return self.class_at(self.op.ArgMax(scores, axis=1, keepdims=False))

    def class_at(self, places: ir.Value) -> ir.Value:
        """Return the classes of the meta-estimator at places, or with the option ``nocl`` the places themselves."""
        return places if self._option("nocl") else self.op.Gather(whole_classes(self.outer.classes_), places, axis=0)

    @property
    def raw_scores(self) -> bool:
        """True if the second output is the decision function: by option, or where there are no probabilities."""
        wanted = self._option("raw_scores")
        if wanted is False and not hasattr(self.outer, "predict_proba"):
            raise ModelError(
                f"raw_scores=False asks for probabilities, which this {type(self.outer).__name__} does not have. Set "
                f"the option raw_scores=True."
            )
        return bool(wanted) or not hasattr(self.outer, "predict_proba")

    def _option(self, name: str) -> Any:
        return (self._container.get_options(self.outer, {name: None}, fail=False) or {}).get(name)

    def write(self, results: Results) -> None:
        """Add the nodes to the container; the results are the outputs of the meta-estimator."""
        ends = list(self._computed)
        for value, variable in zip(results, self._operator.outputs, strict=True):
            wanted = VARIABLE_TYPES[type(variable.type).__name__]
            text = wanted is ir.DataType.STRING
            ends.append((self.op.Identity(value) if text else self.op.Cast(value, to=int(wanted)), variable))
        self.op.graph.outputs.extend(value for value, _ in ends)
        model = ir.Model(self.op.graph, ir_version=8)
        append_to_container(model, self._variables, [end for _, end in ends], self._scope, self._container)


def _twin(estimator: Estimator) -> tuple[Any, Any]:
    """Return a copy of an estimator with an own last step, and this step."""
    twin: Any = copy.copy(estimator)
    if not hasattr(twin, "steps"):
        return twin, twin
    name, step = twin.steps[-1]
    inner, last = _twin(step)
    twin.steps = [*twin.steps[:-1], (name, inner)]
    return twin, last


# Votes


def _vote(m: Members) -> Results:
    outer, op = m.outer, m.op
    members, weights = outer.estimators_, outer._weights_not_none
    if outer.voting == "soft":
        mean = _average(m, [m.probabilities(one) for one in members], weights)
        return m.chosen(mean), mean
    places = np.arange(len(outer.classes_))[np.newaxis]
    votes = [m.double(op.Equal(m.label(one), places)) for one in members]
    counts = _sum(m, votes if weights is None else [op.Mul(v, float(w)) for v, w in zip(votes, weights, strict=True)])
    return m.chosen(counts), op.Div(counts, float(len(members) if weights is None else np.sum(weights)))


def _vote_of_regressors(m: Members) -> Results:
    members = [m.numbers(one) for one in m.outer.estimators_]
    return (_average(m, members, m.outer._weights_not_none),)


def _average(m: Members, parts: Sequence[ir.Value], weights: Sequence[float] | None) -> ir.Value:
    """Return the mean as ``numpy.average``: with weights in float64, without them in the type of the parts."""
    if weights is not None:
        products = [m.op.Mul(part, float(w)) for part, w in zip(parts, weights, strict=True)]
        return m.op.Div(_sum(m, products), float(np.sum(weights)))
    if m.computes_float32(*m.outer.estimators_):
        return m.op.Div(_sum(m, [m.op.Cast(part, to=FLOAT) for part in parts]), np.float32(len(parts)))
    return m.op.Div(_sum(m, parts), float(len(parts)))


def _sum(m: Members, parts: Sequence[ir.Value]) -> ir.Value:
    total = parts[0]
    for part in parts[1:]:
        total = m.op.Add(total, part)
    return total


# Stacks


def _stack(m: Members) -> Results:
    outer = m.outer
    final = outer.final_estimator_
    if isinstance(outer.classes_, list):
        raise ModelError("A StackingClassifier of several labels a row has no ONNX form here.")
    parts = list[ir.Value]()
    for one, method in zip(outer.estimators_, outer.stack_method_, strict=True):
        if method == "decision_function":
            parts.append(m.decision(one))
        elif method == "predict":
            parts.append(m.double(m.label(one)))
        else:
            p = m.probabilities(one)
            parts.append(m.column(p, 1) if len(outer.classes_) == 2 else p)
    rows = _joined_rows(m, parts)
    label = m.op.Reshape(m.label(final, rows), np.array([-1]))
    if not m.raw_scores:
        return m.class_at(label), m.probabilities(final, rows)
    scores = m.decision(final, rows)
    return m.class_at(label), m.both_columns(scores) if len(outer.classes_) == 2 else scores


def _stack_of_regressors(m: Members) -> Results:
    rows = _joined_rows(m, [m.numbers(one) for one in m.outer.estimators_])
    return (m.numbers(m.outer.final_estimator_, rows),)


def _joined_rows(m: Members, parts: list[ir.Value]) -> list[Variable]:
    parts = [*parts, m.matrix()] if m.outer.passthrough else parts
    joined = parts[0] if len(parts) == 1 else m.op.Concat(*parts, axis=1)
    return m.new_rows(joined, m.outer.final_estimator_.n_features_in_)


# Bags


def _bag(m: Members) -> Results:
    outer = m.outer
    op = m.op
    every = np.arange(len(m.outer.classes_))
    members = list(zip(outer.estimators_, _rows_of_bag(m), strict=True))
    p = list[ir.Value]()
    for one, rows in members:
        if not hasattr(one, "predict_proba"):
            p.append(m.double(op.Equal(m.label(one, rows), every[np.newaxis])))
        elif len(one.classes_) == len(every):
            p.append(m.probabilities(one, rows))
        else:  # its sample lacks some classes
            places = np.asarray(one.classes_)[:, np.newaxis] == every
            p.append(op.MatMul(m.probabilities(one, rows), places.astype(np.float64)))
    mean = op.Div(_sum(m, p), float(len(p)))
    if not m.raw_scores:
        return m.chosen(mean), mean
    scores = op.Div(_sum(m, [m.decision(one, rows) for one, rows in members]), float(len(p)))
    return m.chosen(mean), m.both_columns(scores) if len(every) == 2 else scores


def _bag_of_regressors(m: Members) -> Results:
    parts = [m.numbers(one, rows) for one, rows in zip(m.outer.estimators_, _rows_of_bag(m), strict=True)]
    return (m.op.Div(_sum(m, parts), float(len(parts))),)


def _rows_of_bag(m: Members) -> list[list[Variable] | None]:
    """Return, for each estimator of a bag, the columns that it takes; None for all of them in order."""
    every = np.arange(m.outer.n_features_in_)
    matrix = None
    rows = list[list[Variable] | None]()
    for taken in map(np.asarray, m.outer.estimators_features_):
        if np.array_equal(taken, every):
            rows.append(None)
            continue
        matrix = m.matrix() if matrix is None else matrix
        rows.append(m.new_rows(m.op.Gather(matrix, taken.astype(np.int64), axis=1), len(taken)))
    return rows


# Calibration


def _calibrated(m: Members) -> Results:
    members = m.outer.calibrated_classifiers_
    parts = [_temperature(m, one) if one.method == "temperature" else _by_class(m, one) for one in members]
    parts = [m.op.Where(_exceeds_one_by_rounding(m, p), 1.0, p) for p in parts]
    mean = m.op.Div(_sum(m, parts), float(len(parts)))
    return m.chosen(mean), mean


def _exceeds_one_by_rounding(m: Members, p: ir.Value) -> ir.Value:
    """Return where a probability exceeds one by rounding."""
    return m.op.And(m.op.Greater(p, 1.0), m.op.LessOrEqual(p, 1.0 + 1e-5))


def _scores_to_calibrate(m: Members, one: Estimator) -> ir.Value:
    """Return the decision function, else the probabilities; for two classes those of the second."""
    if hasattr(one.estimator, "decision_function"):
        return m.decision(one.estimator)
    p = m.probabilities(one.estimator)
    return m.column(p, 1) if len(one.estimator.classes_) == 2 else p


def _by_class(m: Members, one: Estimator) -> ir.Value:
    """Return probabilities calibrated for each class against the rest; if all are zero, they become equal."""
    op = m.op
    classes = len(one.classes)
    given = _scores_to_calibrate(m, one)
    if classes == 2:
        p = _calibrated_column(m, one.calibrators[0], given)
        return op.Concat(op.Sub(1.0, p), p, axis=1)
    places = np.searchsorted(one.classes, one.estimator.classes_)
    columns = [op.Mul(m.column(given, 0), 0.0)] * classes
    for i, (place, calibrator) in enumerate(zip(places, one.calibrators, strict=False)):  # paired as in scikit-learn
        columns[place] = _calibrated_column(m, calibrator, m.column(given, i))
    joined = op.Concat(*columns, axis=1)
    total = op.ReduceSum(joined, axes=[1], keepdims=True)
    lost = op.Equal(total, 0.0)
    return op.Where(lost, 1.0 / classes, op.Div(joined, op.Where(lost, 1.0, total)))


def _calibrated_column(m: Members, calibrator: Estimator, score: ir.Value) -> ir.Value:
    """Return calibrated probabilities of one class: by a sigmoid, or by an isotonic regression."""
    op = m.op
    if not hasattr(calibrator, "y_thresholds_"):
        z = op.Add(op.Mul(score, float(calibrator.a_)), float(calibrator.b_))
        return op.Div(1.0, op.Add(op.Exp(z), 1.0))
    # Interpolate between two thresholds in the type that they have, as scikit-learn by scipy.interpolate.interp1d.
    x, y = np.asarray(calibrator.X_thresholds_), np.asarray(calibrator.y_thresholds_)
    if len(x) == 1:
        return op.Add(op.Mul(score, 0.0), float(y[0]))
    own = int(ir.DataType.from_numpy(x.dtype))
    within = op.Clip(op.Cast(score, to=own), x.dtype.type(calibrator.X_min_), x.dtype.type(calibrator.X_max_))
    passed = op.ReduceSum(op.Cast(op.Less(x[np.newaxis], within), to=INT64), axes=[1], keepdims=True)
    below = op.Clip(op.Sub(passed, 1), np.array(0), np.array(len(x) - 2))

    def at(numbers: np.ndarray) -> ir.Value:
        return op.Gather(numbers, below, axis=0)

    if _interpolates_by_slopes(calibrator, x, y):
        return m.double(op.Add(op.Mul(at(np.diff(y) / np.diff(x)), op.Sub(within, at(x))), at(y)))
    width = at(np.diff(x))
    upper = op.Mul(op.Div(op.Sub(within, at(x)), width), at(y[1:]))
    return m.double(op.Add(upper, op.Mul(op.Div(op.Sub(at(x[1:]), within), width), at(y))))


def _interpolates_by_slopes(calibrator: Estimator, x: np.ndarray, y: np.ndarray) -> bool:
    """Return True if y + slope (x' - x) are the bits that scikit-learn predicts; releases of scipy differ.

    On a plateau, the other formula returns the same probability for two classes, or one that differs in the last bit.
    """
    middle = np.concatenate([x[:-1] + np.diff(x) * share for share in np.linspace(0.1, 0.9, 9, dtype=x.dtype)])
    below = np.clip(np.searchsorted(x, middle) - 1, 0, len(x) - 2)
    by_slopes = (np.diff(y) / np.diff(x))[below] * (middle - x[below]) + y[below]
    return np.array_equal(by_slopes, calibrator.predict(middle))


def _temperature(m: Members, one: Estimator) -> ir.Value:
    op, given = m.op, _scores_to_calibrate(m, one)
    if hasattr(one.estimator, "decision_function"):
        logits = op.Concat(op.Neg(given), given, axis=1) if len(one.classes) == 2 else given
    else:
        p = op.Concat(op.Sub(1.0, given), given, axis=1) if len(one.classes) == 2 else given
        logits = op.Log(op.Add(p, 1e-12))
        if m.computes_float32(one.estimator):
            logits = op.Log(op.Add(op.Cast(p, to=FLOAT), np.float32(1e-12)))
    beta = one.calibrators[0].beta_
    # numpy multiplies float32 by a Python float in float32, and by a float64 of its own in float64.
    dtype = np.result_type(np.zeros(1, np.float32 if m.computes_float32(one.estimator) else np.float64), beta)
    scaled = op.Mul(op.Cast(logits, to=int(ir.DataType.from_numpy(dtype))), dtype.type(beta))
    return m.double(op.Softmax(scaled, axis=1))


# Thresholds


def _threshold(m: Members) -> Results:
    from .._fitted.model_record import record_of  # needs much of scikit-learn

    outer, op = m.outer, m.op
    inner = getattr(outer, "estimator_", outer.estimator)
    rule = record_of(outer).threshold
    assert rule is not None
    if rule.of_probabilities:
        score = m.column(m.probabilities(inner), rule.positive)
    else:
        score = m.decision(inner)
        score = op.Neg(score) if rule.positive == 0 else score
    # numpy compares float32 with a Python float in float32, and with a float64 of its own in float64.
    given = getattr(outer, "best_threshold_", getattr(outer, "threshold", None))
    scores = np.zeros(1, np.float32 if m.computes_float32(inner) else np.float64)
    limit = np.result_type(scores, rule.limit if isinstance(given, str) else given).type(rule.limit)
    reached = op.GreaterOrEqual(op.Cast(score, to=int(ir.DataType.from_numpy(limit.dtype))), limit)
    places = op.Where(reached, np.array(rule.positive), np.array(1 - rule.positive))
    label = m.class_at(op.Reshape(places, np.array([-1])))
    return label, m.both_columns(m.decision(inner)) if m.raw_scores else m.probabilities(inner)


# Several binary classifiers


def _one_vs_rest(m: Members) -> Results:
    outer, op = m.outer, m.op
    scores = op.Concat(*(_score_of_one(m, one) for one in outer.estimators_), axis=1)
    several = outer.multilabel_
    two = len(outer.estimators_) == 1
    if several or two:
        limit = 0.0 if hasattr(outer.estimators_[0], "decision_function") else 0.5
        places = op.Cast(op.Greater(scores, limit), to=INT64)
        label = places if several else m.class_at(op.Reshape(places, np.array([-1])))
    else:
        label = m.chosen(scores)
    if m.raw_scores:
        return label, m.both_columns(scores) if two and not several else scores
    p = op.Concat(*(_score_of_one(m, one, probabilities=True) for one in outer.estimators_), axis=1)
    p = op.Concat(op.Sub(1.0, p), p, axis=1) if two else p
    if several:
        return label, p
    total = op.ReduceSum(p, axes=[1], keepdims=True)
    return label, op.Div(p, op.Where(op.Equal(total, 0.0), 1.0, total))


def _score_of_one(m: Members, one: Estimator, *, probabilities: bool = False) -> ir.Value:
    """Return the score of a class against the rest: of a decision function, else of probabilities."""
    if isinstance(one, sklearn_private._ConstantPredictor):  # a label that all rows have, or none
        return m.op.Add(m.op.Mul(m.column(m.matrix(), 0), 0.0), float(np.ravel(one.y_)[0]))
    if not hasattr(one, "classes_"):
        raise ModelError(f"OneVsRestClassifier of {type(one).__name__}: only one of classifiers has an ONNX form here.")
    if hasattr(one, "decision_function") and not probabilities:
        return m.decision(one)
    return m.column(m.probabilities(one), 1)


def _chain(m: Members) -> Results:
    """Convert a chain: each estimator takes the rows and the predictions of the estimators before it."""
    outer = m.outer
    method = getattr(m.outer, "chain_method_", "predict")
    matrix = m.matrix()
    if any(len(known) != 2 or np.asarray(known).dtype.kind not in "iubf" for known in outer.classes_):
        raise ModelError("A ClassifierChain has an ONNX form if each label has two classes, which are numbers.")
    if method == "predict_log_proba":
        raise ModelError("A ClassifierChain with chain_method='predict_log_proba' has no ONNX form here.")
    given = [matrix]
    found = list[ir.Value]()
    scores = list[ir.Value]()
    for one in outer.estimators_:
        rows = m.new_rows(m.op.Concat(*given, axis=1) if len(given) > 1 else matrix, one.n_features_in_)
        found.append(m.label(one, rows))
        scores.append(m.decision(one, rows) if m.raw_scores else m.column(m.probabilities(one, rows), 1))
        if method == "predict":
            given.append(m.double(found[-1]))
        elif method == "predict_proba":
            given.append(m.column(m.probabilities(one, rows), 1))
        else:
            given.append(m.decision(one, rows))
    order = np.argsort(outer.order_)
    return tuple(m.op.Concat(*(parts[i] for i in order), axis=1) for parts in (found, scores))


def _chain_of_regressors(m: Members) -> Results:
    given, found = [m.matrix()], list[ir.Value]()
    for one in m.outer.estimators_:
        rows = m.new_rows(m.op.Concat(*given, axis=1) if len(given) > 1 else given[0], one.n_features_in_)
        found.append(m.numbers(one, rows))
        given.append(found[-1])
    return (m.op.Concat(*(found[i] for i in np.argsort(m.outer.order_)), axis=1),)


def _target(m: Members) -> Results:
    """Convert the regressor, then the inverse of the transformer of its targets."""
    from .._fitted.converters.context import Source  # needs much of scikit-learn
    from .._fitted.converters.meta import inverse_of

    m.op.dtype = ir.DataType.FLOAT  # the inverses are float32 graphs
    y = m.op.Reshape(m.op.Cast(m.numbers(m.outer.regressor_), to=FLOAT), np.array([-1, _columns_of_target(m.outer)]))

    def convert_inner(*_: object) -> Any:
        raise AssertionError("the regressor is converted already")

    return (inverse_of(Source(m.op, m.outer, y, "targets", False, convert_inner), y),)


def _columns_of_target(outer: Estimator) -> int:
    return int(getattr(outer.transformer_, "n_features_in_", 1))


def _refuse(m: Members) -> Results:
    name = type(m.outer).__name__
    raise ModelError(
        f"{name} of the estimators of this package has no ONNX form: skl2onnx's would not predict as it does. Use "
        f"{'OneVsRestClassifier' if name == 'OneVsOneClassifier' else 'a BaggingRegressor'} instead."
    )


# Registration


@dataclass(frozen=True)
class Conversion:
    """The conversion of a class of meta-estimators.

    Attributes
    ----------
    convert : callable
        ``convert(members)`` returns the outputs.
    columns : callable or None
        The number of columns of a regressor; None for a classifier.
    """

    convert: Callable[[Members], Results]
    columns: Callable[[Estimator], int] | None = None


def _one_column(outer: Estimator) -> int:
    return 1


def _columns_of_stack(outer: Estimator) -> int:
    return int(getattr(outer.final_estimator_, "n_outputs_", 1))


@cache
def _conversions() -> dict[type, Conversion]:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import (
        BaggingClassifier,
        BaggingRegressor,
        StackingClassifier,
        StackingRegressor,
        VotingClassifier,
        VotingRegressor,
    )
    from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
    from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
    from sklearn.multioutput import ClassifierChain, RegressorChain

    return {
        BaggingClassifier: Conversion(_bag),
        BaggingRegressor: Conversion(_bag_of_regressors, _one_column),
        CalibratedClassifierCV: Conversion(_calibrated),
        ClassifierChain: Conversion(_chain),
        FixedThresholdClassifier: Conversion(_threshold),
        OneVsOneClassifier: Conversion(_refuse),
        OneVsRestClassifier: Conversion(_one_vs_rest),
        RegressorChain: Conversion(_chain_of_regressors, lambda outer: len(outer.estimators_)),
        StackingClassifier: Conversion(_stack),
        StackingRegressor: Conversion(_stack_of_regressors, _columns_of_stack),
        TransformedTargetRegressor: Conversion(_target, _columns_of_target),
        TunedThresholdClassifierCV: Conversion(_threshold),
        VotingClassifier: Conversion(_vote),
        VotingRegressor: Conversion(_vote_of_regressors, _one_column),
    }


def register_meta_estimators() -> None:
    """Register the converters of this module, unless the user has registered others."""
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.multioutput import ClassifierChain

    for kind, own in _conversions().items():
        theirs = skl2onnx_bridge.replaceable(kind)
        if theirs is not None:
            options = None if own.columns else CLASSIFIER_OPTIONS | skl2onnx_bridge.allowed_options(kind)
            parser = _parse_chain if kind is ClassifierChain else None
            declare = _declaring(own, theirs.declare)
            convert = _converting(own, theirs.convert)
            skl2onnx_bridge.replace(kind, _name(kind), declare, convert, options, parser)
    for kind in (FrozenEstimator, RandomizedSearchCV):
        if not skl2onnx_bridge.has_converter(kind):
            skl2onnx_bridge.replace(kind, _name(kind), _declare_inner, _convert_inner, "passthrough", _parse_inner)


def _name(kind: type) -> str:
    return f"OnnxtrainSklearn{kind.__name__}"


def _is_own(estimator: Estimator) -> bool:
    return hasattr(type(estimator), "to_onnx")


def _holds_network(scope: Scope) -> bool:
    """Return True if one of the estimators that are converted is of this package."""
    outer = [operator.raw_operator for operator in scope.operators.values() if operator.raw_operator is not None]
    return any(_is_own(part) for one in outer for _, part in walk(one))


def _declaring(own: Conversion, theirs: Callable[..., None] | None) -> Callable[[Operator], None]:
    def declare(operator: Operator) -> None:
        if theirs is not None and not _holds_network(operator.scope_inst):
            theirs(operator)
        elif own.columns is not None:
            check_is_fitted(operator.raw_operator)
            rows = operator.inputs[0].get_first_dimension()
            operator.outputs[0].set_type(_wide_type(operator)([rows, own.columns(operator.raw_operator)]))
        else:
            _declare_classifier(operator)

    return declare


def _declare_classifier(operator: Operator) -> None:
    outer = operator.raw_operator
    types = skl2onnx_bridge.types()
    rows = operator.inputs[0].get_first_dimension()
    if not hasattr(outer, "classes_"):
        check_is_fitted(outer)
    several = isinstance(outer.classes_, list) or bool(getattr(outer, "multilabel_", False))
    columns = len(outer.classes_)
    is_text = not several and whole_classes(np.asarray(outer.classes_)).dtype.kind == "U"
    text = is_text and not operator.scope_inst.get_options(outer, {"nocl": False})["nocl"]
    operator.outputs[0].set_type(
        (types.StringTensorType if text else types.Int64TensorType)([rows, columns] if several else [rows])
    )
    operator.outputs[1].set_type(_wide_type(operator)([rows, columns]))


def _wide_type(operator: Operator) -> Any:
    """Return the type of numeric outputs: float64 if :class:`Members` of another meta-estimator asked for it."""
    double = skl2onnx_bridge.types().DoubleTensorType
    return double if isinstance(operator.outputs[-1].type, double) else number_type(operator)


def _converting(own: Conversion, theirs: Callable[..., None] | None) -> Callable[[Scope, Operator, Container], None]:
    def convert(scope: Scope, operator: Operator, container: Container) -> None:
        if theirs is not None and not _holds_network(scope):
            theirs(scope, operator, container)
            return
        members = Members(scope, operator, container)
        members.write(own.convert(members))

    return convert


def _parse_chain(
    scope: Scope, model: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Variable]:
    """Declare two matrices: as for other classifiers of several labels, the option ``zipmap`` has no meaning."""
    return list(skl2onnx_bridge.parse(scope, model, inputs, custom_parsers, alias=_name(type(model))))


def _parse_inner(
    scope: Scope, model: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Variable]:
    """Declare the estimator that a FrozenEstimator or a search predicts with, with the same options."""
    from .._fitted.model_record import unwrapped  # needs much of scikit-learn

    inner = unwrapped(model, thresholds=False)
    scope.add_options(id(inner), scope.get_options(model))
    return list(skl2onnx_bridge.parse(scope, inner, inputs, custom_parsers))


def _declare_inner(operator: Operator) -> None:
    name = type(operator.raw_operator).__name__
    raise ModelError(f"skl2onnx cannot take a {name} within another estimator. Give it the estimator that it holds.")


def _convert_inner(scope: Scope, operator: Operator, container: Container) -> None:
    _declare_inner(operator)
