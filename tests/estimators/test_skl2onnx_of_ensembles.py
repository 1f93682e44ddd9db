"""Meta-estimators of scikit-learn that hold the estimators of this package: ONNX predicts as they do, or says why not.

Each cell of the matrix is a meta-estimator around a kind of estimator, on a target. The labels of thousands of rows
must be equal.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx.parser
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from numpy.testing import assert_allclose
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

from onnxtrain_sklearn import (
    MLP,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
    register_converters,
)
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted_estimators import convert, results, same_labels

rng = np.random.default_rng(0)
X, ROWS = rng.normal(size=(90, 4)).astype(np.float32), rng.normal(size=(3000, 4)).astype(np.float32)
NOISE = X + rng.normal(scale=0.5, size=X.shape)
TARGETS = {
    "binary": (NOISE[:, 0] > 0).astype(int),
    "two strings": np.array(["no", "yes"])[(NOISE[:, 0] > 0).astype(int)],
    "three strings": np.array(["low", "high", "mid"])[NOISE[:, :3].argmax(axis=1)],
    "labels": (NOISE[:, :3] > 0).astype(int),
    "number": NOISE @ [1.0, 2.0, 3.0, 4.0],
    "positive": np.exp(NOISE @ [0.3, 0.2, 0.1, 0.1]),
    "numbers": np.stack([NOISE.sum(axis=1), NOISE[:, 0], -NOISE[:, 1]], axis=1),
}
SMALL = {"max_iter": 5, "random_state": 0, "hidden_layer_sizes": 8, "n_ensembles": 1}
NETWORK = {"max_iter": 12, "learning_rate_init": 0.05, "random_state": 0}
KINDS = {
    "network": lambda: OrtGradientClassifier(MLP((8,)), **NETWORK),
    "hinge": lambda: OrtGradientClassifier(MLP((8,)), loss="hinge", **NETWORK),
    "RealMLP": lambda: RealMLPClassifier(**SMALL),
    "TabM": lambda: TabMClassifier(**SMALL, learning_rate_init=0.05),
}
REGRESSORS = {
    "network": lambda: OrtGradientRegressor(MLP((8,)), **NETWORK),
    "RealMLP": lambda: RealMLPRegressor(**SMALL),
    "TabM": lambda: TabMRegressor(**SMALL),
}


def three(own):
    return [("a", own), ("b", clone(own).set_params(random_state=1)), ("c", LogisticRegression())]


def two(own):
    return three(own)[:2]


LABELS_ALONE = {"hard vote", "hard vote of weights", "hard vote of two", "hard vote of weights without one"}
"""Meta-estimators that have no probabilities."""

PROBABILITIES = {
    "soft vote": lambda own: VotingClassifier(three(own), voting="soft"),
    "soft vote of weights": lambda own: VotingClassifier(three(own), voting="soft", weights=[3, 1, 2]),
    "soft vote without one": lambda own: VotingClassifier(
        [("x", "drop"), *two(own)], voting="soft", weights=np.array([9, 1, 2])
    ),
    "soft vote of two": lambda own: VotingClassifier(two(own), voting="soft"),
    "temperature of probabilities": lambda own: CalibratedClassifierCV(own, method="temperature", cv=2),
}
ANY = {
    "hard vote": lambda own: VotingClassifier(three(own)),
    "hard vote of weights": lambda own: VotingClassifier(three(own), weights=[2, 1, 1.5]),
    "hard vote of two": lambda own: VotingClassifier(two(own)),
    "hard vote of weights without one": lambda own: VotingClassifier([("x", "drop"), *two(own)], weights=[9, 1, 2]),
    "stack": lambda own: StackingClassifier(three(own), cv=2),
    "stack with rows": lambda own: StackingClassifier(three(own), cv=2, passthrough=True),
    "stack under a network": lambda own: StackingClassifier(two(own), own, cv=2),
    "stack of labels": lambda own: StackingClassifier(three(own), cv=2, stack_method="predict"),
    "bag": lambda own: BaggingClassifier(own, 3, random_state=0),
    "bag of columns": lambda own: BaggingClassifier(
        own, 3, max_features=0.5, bootstrap_features=True, random_state=0
    ),
    "bag of few rows": lambda own: BaggingClassifier(own, 4, max_samples=4, random_state=0),
    "sigmoids": lambda own: CalibratedClassifierCV(own, cv=2),
    "one sigmoid": lambda own: CalibratedClassifierCV(own, cv=2, ensemble=False),
    "isotonic": lambda own: CalibratedClassifierCV(own, method="isotonic", cv=2),
    "one isotonic": lambda own: CalibratedClassifierCV(own, method="isotonic", cv=2, ensemble=False),
    "temperature": lambda own: CalibratedClassifierCV(own, method="temperature", cv=2, ensemble=False),
    "calibrated, frozen": lambda own: CalibratedClassifierCV(FrozenEstimator(own), method="isotonic"),
    "one vs rest": lambda own: OneVsRestClassifier(own),
    "boosted": lambda own: AdaBoostClassifier(own, n_estimators=2, random_state=0),
    "frozen": lambda own: FrozenEstimator(own),
    "random search": lambda own: RandomizedSearchCV(own, {"random_state": [1, 2]}, n_iter=2, cv=2),
    "in a pipeline": lambda own: make_pipeline(StandardScaler(), VotingClassifier(three(own))),
    "frozen in a pipeline": lambda own: make_pipeline(StandardScaler(), FrozenEstimator(own)),
    "behind columns": lambda own: make_pipeline(
        make_column_transformer((StandardScaler(), [0, 1]), (MinMaxScaler(), [3])),
        CalibratedClassifierCV(own, cv=2),
    ),
    "of pipelines": lambda own: CalibratedClassifierCV(make_pipeline(StandardScaler(), own), cv=2),
    "of searches": lambda own: StackingClassifier(
        [("s", GridSearchCV(own, {"random_state": [1, 2]}, cv=2)), ("c", LogisticRegression())], cv=2
    ),
    "search over votes": lambda own: GridSearchCV(VotingClassifier(two(own)), {"weights": [[1, 2], [2, 1]]}, cv=2),
    "bag of calibrated": lambda own: BaggingClassifier(CalibratedClassifierCV(own, cv=2), 2, random_state=0),
    "vote of a bag and a calibrated other": lambda own: VotingClassifier(
        [("a", BaggingClassifier(own, 2, random_state=0)),
         ("b", CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2))],
        voting="soft",
    ),
}  # fmt: skip
BINARY = {
    "fixed threshold": lambda own: FixedThresholdClassifier(own, threshold=0.3),
    "no threshold": lambda own: FixedThresholdClassifier(own),
    "fixed threshold of scores": lambda own: FixedThresholdClassifier(
        own, threshold=-0.2, response_method="decision_function"
    ),
    "tuned threshold": lambda own: TunedThresholdClassifierCV(own, scoring="balanced_accuracy", cv=2),
    "threshold of a calibrated": lambda own: FixedThresholdClassifier(
        CalibratedClassifierCV(own, method="isotonic", cv=2), threshold=0.7
    ),
    "vote of thresholds": lambda own: VotingClassifier(
        [("a", FixedThresholdClassifier(own, threshold=0.2)), ("b", own), ("c", LogisticRegression())]
    ),
    "calibrated threshold": lambda own: CalibratedClassifierCV(FixedThresholdClassifier(own, threshold=0.2), cv=2),
}
SEVERAL_LABELS = {
    "classifiers": MultiOutputClassifier,
    "one vs rest": OneVsRestClassifier,
    "chain": lambda own: ClassifierChain(own),
    "chain in another order": lambda own: ClassifierChain(own, order=[2, 0, 1]),
    "chain of probabilities": lambda own: ClassifierChain(own, order=[1, 2, 0], chain_method="predict_proba"),
    "chain of scores": lambda own: ClassifierChain(own, chain_method="decision_function"),
    "pipeline": lambda own: make_pipeline(StandardScaler(), ClassifierChain(own)),
}
NUMBER = {
    "vote": lambda own: VotingRegressor([("a", own), ("b", LinearRegression())]),
    "vote of weights": lambda own: VotingRegressor(
        [("x", "drop"), ("a", own), ("b", LinearRegression())], weights=[9, 2, 1]
    ),
    "stack": lambda own: StackingRegressor([("a", own), ("b", LinearRegression())], cv=2),
    "stack with rows": lambda own: StackingRegressor([("a", own)], own, cv=2, passthrough=True),
    "bag": lambda own: BaggingRegressor(own, 2, random_state=0),
    "bag of columns": lambda own: BaggingRegressor(
        own, 3, max_features=0.5, bootstrap_features=True, random_state=0
    ),
    "frozen": FrozenEstimator,
    "in a pipeline": lambda own: make_pipeline(StandardScaler(), VotingRegressor([("a", own)])),
    "scaled target": lambda own: TransformedTargetRegressor(own, transformer=StandardScaler()),
    "search over a scaled target": lambda own: GridSearchCV(
        TransformedTargetRegressor(own, transformer=StandardScaler()), {"regressor__random_state": [1]}, cv=2
    ),
}  # fmt: skip
POSITIVE = {
    "log target": lambda own: TransformedTargetRegressor(own, func=np.log, inverse_func=np.exp),
    "target by steps": lambda own: TransformedTargetRegressor(
        own, transformer=make_pipeline(FunctionTransformer(np.log, np.exp), MinMaxScaler())
    ),
}
NUMBERS = {
    "regressors": MultiOutputRegressor,
    "chain": RegressorChain,
    "chain in another order": lambda own: RegressorChain(own, order=[2, 0, 1]),
    "scaled targets": lambda own: TransformedTargetRegressor(own, transformer=StandardScaler()),
}
REFUSED = {
    "one vs one": lambda own: OneVsOneClassifier(own),
}


LACKING = {
    "fixed threshold of scores": "decision_function",
    "chain of scores": "decision_function",
    "chain of probabilities": "predict_proba",
}
"""Meta-estimators that ask their estimators for a method, which not all have."""


def possible(name, kind):
    own = KINDS[kind]() if kind in KINDS else REGRESSORS[kind]()
    return name not in LACKING or hasattr(own, LACKING[name])


TABLES = {
    "any": (ANY, KINDS, ("three strings", "two strings", "binary")),
    "probabilities": (PROBABILITIES, KINDS, ("three strings", "binary")),
    "binary": (BINARY, KINDS, ("two strings", "binary")),
    "labels": (SEVERAL_LABELS, KINDS, ("labels",)),
    "number": (NUMBER, REGRESSORS, ("number",)),
    "positive": (POSITIVE, REGRESSORS, ("positive",)),
    "numbers": (NUMBERS, REGRESSORS, ("numbers",)),
}
CELLS = [
    (table, name, kind, target)
    for table, (ensembles, kinds, targets) in TABLES.items()
    for name in ensembles
    for kind in kinds
    if possible(name, kind) and (table, kind) != ("probabilities", "hinge")
    for target in (targets if kind == "network" else targets[:1])
]
"""Each meta-estimator around each kind that it takes; the network on all targets."""


def fitted(build, kind, target):
    """Return the fitted meta-estimator; a FrozenEstimator within it holds a fitted estimator."""
    estimator = build((REGRESSORS if target in ("number", "positive", "numbers") else KINDS)[kind]())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in [estimator, *estimator.get_params().values()]:
            if isinstance(part, FrozenEstimator):
                part.estimator.fit(X, TARGETS[target])
        return estimator.fit(X, TARGETS[target])


def converted(estimator, rows=ROWS):
    options = {"zipmap": False} if is_classifier(estimator) else {}
    return results(convert(estimator, X[:1].astype(rows.dtype), **options), rows)


@pytest.mark.thinned(by=lambda table, name, kind, target: {(table, name), (table, kind), target})
@pytest.mark.parametrize(("table", "name", "kind", "target"), CELLS)
def test_meta_estimators_predict_the_same(table, name, kind, target):
    estimator = fitted(TABLES[table][0][name], kind, target)
    if not is_classifier(estimator):
        assert_allclose(converted(estimator)[0], estimator.predict(ROWS).reshape(len(ROWS), -1), rtol=1e-5, atol=1e-5)
        return
    label, values = converted(estimator)
    expected = estimator.predict(ROWS)
    if hasattr(estimator, "predict_proba"):
        p = np.array(estimator.predict_proba(ROWS))
        assert_allclose(np.array(values), p, rtol=0, atol=2e-6)
    if "pipeline" in name or name == "behind columns":
        # The scaler of skl2onnx rounds otherwise than scikit-learn's, which decides rows between two classes.
        assert label.shape == expected.shape
        assert np.mean(label.astype(expected.dtype) != expected) < 1e-3
    else:
        same_labels(label, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_meta_estimators_without_an_onnx_form_are_refused(name):
    estimator = fitted(REFUSED[name], "network", "three strings")
    with pytest.raises(ModelError, match="OneVsOneClassifier of the estimators of this package has no ONNX form"):
        converted(estimator)


RAW = {
    "stack": lambda own: StackingClassifier(two(own), own, cv=2),
    "bag": lambda own: BaggingClassifier(own, 2, random_state=0),
    "one vs rest": OneVsRestClassifier,
    "threshold": lambda own: FixedThresholdClassifier(own, threshold=0.3),
}


@pytest.mark.parametrize("target", ["three strings", "two strings"])
@pytest.mark.parametrize("name", RAW)
def test_raw_scores_are_the_decision_function(name, target):
    if (name, target) == ("threshold", "three strings"):
        target = "binary"
    estimator = fitted(RAW[name], "network", target)
    label, scores = results(convert(estimator, X, zipmap=False, raw_scores=True), ROWS)
    same_labels(label, estimator.predict(ROWS))
    expected = estimator.decision_function(ROWS)
    expected = np.stack([-expected, expected], axis=1) if expected.ndim == 1 else expected
    assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_scores_of_a_chain():
    estimator = fitted(ClassifierChain, "network", "labels")
    label, scores = results(convert(estimator, X, zipmap=False, raw_scores=True), ROWS)
    same_labels(label, estimator.predict(ROWS))
    assert_allclose(scores, estimator.decision_function(ROWS), rtol=1e-5, atol=1e-5)


def test_dicts_and_labels_by_number():
    estimator = fitted(ANY["sigmoids"], "network", "three strings")
    label, dicts = results(convert(estimator, X), ROWS[:50])
    same_labels(label, estimator.predict(ROWS[:50]))
    p = np.array([[row[name] for name in estimator.classes_] for row in dicts])
    assert_allclose(p, estimator.predict_proba(ROWS[:50]), rtol=0, atol=2e-6)
    label, _ = results(convert(estimator, X, zipmap=False, nocl=True), ROWS)
    same_labels(estimator.classes_[label], estimator.predict(ROWS))


@pytest.mark.parametrize("name", ["isotonic", "hard vote of two", "stack with rows", "bag of columns", "one vs rest"])
def test_rows_in_double_precision(name):
    estimator = fitted(ANY[name], "network", "three strings")
    rows = ROWS.astype(np.float64)
    label, values = converted(estimator, rows)
    assert label.shape == (len(rows),)
    assert np.mean(label != estimator.predict(rows)) < 1e-3  # the network itself computes in single precision
    if hasattr(estimator, "predict_proba"):
        assert_allclose(values, estimator.predict_proba(rows), rtol=0, atol=1e-5)


FRAME = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(kind=np.where(X[:, 2] > 0, "low", "mid"))
TYPES = [("a", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1])), ("kind", StringTensorType([None, 1]))]


def of_table(estimator):
    proto = skl2onnx.convert_sklearn(
        estimator,
        initial_types=TYPES,
        options={id(estimator): {"zipmap": False}},
        target_opset={"": 18, "ai.onnx.ml": 3},
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: FRAME[[name]].to_numpy() for name in FRAME})


@pytest.mark.parametrize(
    "build",
    [
        lambda own: VotingClassifier([("a", own), ("b", clone(own).set_params(random_state=1))], voting="soft"),
        lambda own: StackingClassifier([("a", own)], LogisticRegression(), cv=2),
        lambda own: CalibratedClassifierCV(own, method="isotonic", cv=2),
        lambda own: FixedThresholdClassifier(own, threshold=0.4),
    ],
    ids=["vote", "stack", "calibrated", "threshold"],
)
def test_tables_with_text(build):
    estimator = build(RealMLPClassifier(**SMALL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(FRAME, TARGETS["two strings"])
    label, values = of_table(estimator)
    same_labels(label, estimator.predict(FRAME))
    assert_allclose(values, estimator.predict_proba(FRAME), rtol=0, atol=2e-6)


def test_rows_of_text_are_not_passed_through():
    estimator = StackingClassifier([("a", RealMLPClassifier(**SMALL))], RealMLPClassifier(**SMALL), cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(FRAME, TARGETS["two strings"])
    estimator.passthrough = True
    with pytest.raises(ModelError, match="StackingClassifier takes the columns of this table one by one, and some are"):
        of_table(estimator)


def test_several_outputs_end_a_pipeline():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (float[N, 4] X) => (float[N, 3] kind, float[N, 1] size)
        <float[4, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4, 1] v = {1, 2, 3, 4}> {
          kind = MatMul (X, W)
          size = MatMul (X, v)
        }""")
    net = OrtGradientMultiOutput(model, loss={"kind": "log_loss", "size": "squared_error"}, max_iter=20, random_state=0)
    pipeline = make_pipeline(StandardScaler(), net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline.fit(X, {"kind": TARGETS["three strings"], "size": TARGETS["number"]})
    proto = convert(pipeline, X)
    assert [output.name for output in proto.graph.output] == [output.name for output in net.to_onnx().graph.output]
    found = dict(zip([output.name for output in proto.graph.output], results(proto, ROWS), strict=True))
    expected = pipeline.predict(ROWS)
    assert np.mean(found["kind_label"].ravel() != expected["kind"]) < 1e-3  # skl2onnx's scaler rounds otherwise
    assert_allclose(found["kind_probabilities"], pipeline.predict_proba(ROWS)["kind"], rtol=0, atol=1e-5)
    assert_allclose(found["size"].ravel(), expected["size"], rtol=1e-4, atol=1e-4)


def test_other_models_are_converted_by_skl2onnx_as_before():
    estimator = VotingClassifier(
        [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))], voting="soft", flatten_transform=False
    ).fit(X, TARGETS["three strings"])
    label, values = converted(estimator)
    same_labels(label, estimator.predict(ROWS))
    assert_allclose(values, estimator.predict_proba(ROWS), rtol=0, atol=1e-6)
    flattened = estimator.set_params(flatten_transform=True)
    with pytest.raises(NotImplementedError, match="flatten_transform==True is not implemented"):  # their error
        converted(flattened)


def test_the_converter_of_a_user_stays(monkeypatch):
    names = skl2onnx._supported_operators.sklearn_operator_name_map
    monkeypatch.setitem(names, VotingClassifier, "Users")
    register_converters()
    assert names[VotingClassifier] == "Users"
