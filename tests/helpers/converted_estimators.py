"""Estimators of this package that skl2onnx converts, and their results."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx.checker
import onnx.parser
import onnxruntime
import skl2onnx
from numpy.testing import assert_array_equal
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


NUMBERS = X @ [1.0, 2.0, 3.0, 4.0]


TARGETS = {
    "binary": (X[:, 0] > 0).astype(int),
    "multiclass": X[:, :3].argmax(axis=1) * 5,
    "strings": np.array(["low", "high", "mid"])[X[:, :3].argmax(axis=1)],
    "labels": (X[:, :3] > 0).astype(int),
    "label strings": np.where(X[:, :3] > 0, "on", "off"),
    "number": NUMBERS,
    "numbers": np.stack([NUMBERS, -NUMBERS], axis=1),
    "positive": np.exp(NUMBERS / 5),
}


GRID = {"alpha": [0.0, 1.0]}


def net(**parameters):
    model = parameters.pop("model", MLP((3,)))
    defaults = {"max_iter": 2, "learning_rate_init": 0.05, "random_state": 0}
    return OrtGradientClassifier(model, **defaults | parameters)


def regressor(**parameters):
    model = parameters.pop("model", MLP((3,)))
    defaults = {"max_iter": 2, "learning_rate_init": 0.05, "random_state": 0}
    return OrtGradientRegressor(model, **defaults | parameters)


CLASSIFIERS = {
    "alone": net,
    "hinge": lambda: net(loss="hinge"),
    "pipeline": lambda: make_pipeline(StandardScaler(), net()),
    "union before": lambda: make_pipeline(make_union(StandardScaler(), PCA(2)), net()),
    "columns before": lambda: make_pipeline(
        make_column_transformer((StandardScaler(), [0, 1]), (MinMaxScaler(), [2, 3])), net()
    ),
    "search": lambda: GridSearchCV(net(), GRID, cv=2),
    "search in pipeline": lambda: make_pipeline(StandardScaler(), GridSearchCV(net(), GRID, cv=2)),
    "search over pipeline": lambda: GridSearchCV(
        make_pipeline(StandardScaler(), net()), {"ortgradientclassifier__alpha": [0.0, 1.0]}, cv=2
    ),
    "stack": lambda: StackingClassifier([("a", net()), ("b", LogisticRegression())], cv=2),
    "stack of two under a third": lambda: StackingClassifier([("a", net()), ("b", net(loss="focal"))], net(), cv=2),
    "soft vote": lambda: VotingClassifier(
        [("a", net()), ("b", net(alpha=0.1)), ("c", LogisticRegression())], voting="soft", flatten_transform=False
    ),
    "hard vote": lambda: VotingClassifier(
        [("a", net()), ("b", net(loss="hinge")), ("c", LogisticRegression())], flatten_transform=False
    ),
    "bag": lambda: BaggingClassifier(net(), n_estimators=2, random_state=0),
    "bag of columns": lambda: BaggingClassifier(net(), n_estimators=2, max_features=0.5, random_state=0),
    "one vs rest": lambda: OneVsRestClassifier(net()),
    "calibrated": lambda: CalibratedClassifierCV(net(), cv=2),
    "calibrated hinge": lambda: CalibratedClassifierCV(net(loss="hinge"), cv=2, ensemble=False),
}


REGRESSORS = {
    "alone": regressor,
    "pipeline": lambda: make_pipeline(StandardScaler(), regressor()),
    "search": lambda: GridSearchCV(regressor(), GRID, cv=2),
    "stack": lambda: StackingRegressor([("a", regressor()), ("b", Ridge())], cv=2),
    "stack of two under a third": lambda: StackingRegressor(
        [("a", regressor()), ("b", regressor(loss="huber"))], regressor(), cv=2, passthrough=True
    ),
    "vote": lambda: VotingRegressor([("a", regressor()), ("b", regressor(alpha=1.0)), ("c", Ridge())]),
    "bag": lambda: BaggingRegressor(regressor(), n_estimators=2, random_state=0),
    "bag of columns": lambda: BaggingRegressor(regressor(), n_estimators=2, max_features=0.5, random_state=0),
}


def fit(estimator, y, data=X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(data, y)


@cache
def fitted(kind, name, target):
    return fit({"classifier": CLASSIFIERS, "regressor": REGRESSORS}[kind][name](), TARGETS[target])


def convert(estimator, data=X, opset=18, **options):
    """Convert; a classifier at the end of a pipeline gets the options."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    given = {id(last): options} if options else None
    return skl2onnx.to_onnx(estimator, data[:1], options=given, target_opset={"": opset, "ai.onnx.ml": 3})


def results(proto, data=X):
    """The outputs of a graph; the graph must be valid."""
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # of initializers that skl2onnx adds and does not use
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: data})


def same_labels(found, labels):
    assert found.shape == labels.shape
    assert_array_equal(found.astype(labels.dtype), labels)


def columns_of(estimator, data, raw_scores=False):
    if hasattr(estimator, "predict_proba") and not raw_scores:
        return estimator.predict_proba(data)
    scores = estimator.decision_function(data)
    return np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores


def graph(body, opset=18, output="float[N, 3] Y", shape="N, 4", types="float"):
    weights = ", ".join(str(w) for w in np.random.default_rng(1).normal(size=12).round(3))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]> g ({types}[{shape}] X) => ({output})
        <{types}[4, 3] W = {{{weights}}}, {types}[3] b = {{0.1, 0.2, 0.3}}, {types} top = {{1.0}},
         int64[1] axes = {{1}}, int64[2] flat = {{0, 4}}> {{ {body} }}""")
