"""Meta-estimators of scikit-learn that hold the estimators of this package: ONNX predicts as they do, or says why not.

Each cell of the matrix is a meta-estimator around a kind of estimator, on a target. The labels of thousands of rows
must be equal.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
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
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
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
