"""The estimators for tables, and transformed targets, inside scikit-learn's estimators, as one graph by skl2onnx."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingRegressor, VotingClassifier, VotingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted_estimators import NUMBERS, TARGETS, X, convert, fit, regressor, results, same_labels

FAST = {"max_iter": 2, "random_state": 0, "hidden_layer_sizes": 8, "n_ensembles": 1}
KINDS = np.array(["low", "mid"])[(X[:, 2] > 0).astype(int)]
FRAME = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(kind=KINDS)
TYPES = [("a", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1])), ("kind", StringTensorType([None, 1]))]

WITHIN = {
    "alone": lambda own: own,
    "pipeline": lambda own: make_pipeline(StandardScaler(), own),
    "vote": lambda own: VotingClassifier(
        [("a", own), ("b", LogisticRegression())], voting="soft", flatten_transform=False
    ),
    "calibrated": lambda own: CalibratedClassifierCV(own, cv=2),
}


@pytest.mark.parametrize("target", ["strings", "binary"])
@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
def test_classifiers_for_tables(kind, within, target):
    estimator = fit(WITHIN[within](kind(**FAST)), TARGETS[target])
    label, values = results(convert(estimator, zipmap=False))
    same_labels(label, estimator.predict(X))
    # A scaler in float32 may move a number across a knot of TabM's quantiles. Of networks that have hardly been trained
    # all probabilities are alike, so that a calibration magnifies their rounding.
    tolerance = {"pipeline": 1e-4, "calibrated": 1e-5}.get(within, 1e-6)
    assert_allclose(values, estimator.predict_proba(X), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "within",
    [lambda own: make_pipeline(StandardScaler(), own), lambda own: VotingRegressor([("a", own), ("b", Ridge())])],
)
@pytest.mark.parametrize("kind", [RealMLPRegressor, TabMRegressor])
def test_regressors_for_tables(kind, within):
    estimator = fit(within(kind(**FAST)), NUMBERS)
    assert_allclose(results(convert(estimator))[0].ravel(), estimator.predict(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
def test_tables_with_text(kind):
    estimator = fit(make_pipeline(kind(**FAST)), TARGETS["strings"], FRAME)
    options = {id(estimator[-1]): {"zipmap": False}}
    proto = skl2onnx.convert_sklearn(
        estimator, initial_types=TYPES, options=options, target_opset={"": 18, "ai.onnx.ml": 3}
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    label, values = session.run(None, {name: FRAME[[name]].to_numpy() for name in FRAME})
    same_labels(label, estimator.predict(FRAME))
    assert_allclose(values, estimator.predict_proba(FRAME), rtol=0, atol=1e-6)
    with pytest.raises(
        ModelError, match=r"declare an initial type of shape \[None, 1\] for each column \('a' a number"
    ):
        skl2onnx.convert_sklearn(
            estimator, initial_types=[("X", FloatTensorType([None, 3]))], options=options, target_opset=18
        )


def test_labels_by_number_and_several_labels():
    one = fit(RealMLPClassifier(**FAST), TARGETS["strings"])
    label, _ = results(convert(one, zipmap=False, nocl=True))
    assert_array_equal(one.classes_[label], one.predict(X))
    several = fit(RealMLPClassifier(**FAST), TARGETS["labels"])
    label, values = results(convert(several, zipmap=False))
    same_labels(label, several.predict(X))
    assert_allclose(values, several.predict_proba(X), rtol=0, atol=1e-6)


POSITIVE = TARGETS["positive"]
TARGET_TRANSFORMERS = {
    "none": {},
    "standard": {"transformer": StandardScaler()},
    "range": {"transformer": MinMaxScaler()},
    "log1p": {"func": np.log1p, "inverse_func": np.expm1},
    "log": {"func": np.log, "inverse_func": np.exp},
    "steps": {"transformer": make_pipeline(FunctionTransformer(np.log, np.exp), StandardScaler())},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transformer", TARGET_TRANSFORMERS)
def test_transformed_targets(transformer, dtype):
    estimator = fit(TransformedTargetRegressor(regressor(), **TARGET_TRANSFORMERS[transformer]), POSITIVE)
    data = X.astype(dtype)
    (found,) = results(convert(estimator, data), data)
    assert (found.dtype, found.shape) == (dtype, (len(X), 1))
    assert_allclose(found.ravel(), estimator.predict(data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "inner",
    [
        make_pipeline(StandardScaler(), regressor()),
        RealMLPRegressor(**FAST),
        make_pipeline(PolynomialFeatures(2), Ridge()),
    ],
    ids=["pipeline", "table", "other"],
)
@pytest.mark.parametrize(
    "outer",
    [
        lambda t: t,
        lambda t: make_pipeline(StandardScaler(), t),
        lambda t: VotingRegressor([("t", t), ("r", Ridge())]),
        lambda t: StackingRegressor([("t", t), ("r", Ridge())], cv=2),
    ],
    ids=["alone", "last", "vote", "stack"],
)
def test_nested_transformed_targets_convert(inner, outer):
    target = TransformedTargetRegressor(inner, func=np.log1p, inverse_func=np.expm1)
    estimator = fit(outer(target), POSITIVE)
    assert_allclose(results(convert(estimator))[0].ravel(), estimator.predict(X), rtol=1e-4, atol=1e-4)


def test_transformed_targets_of_several_numbers():
    estimator = fit(TransformedTargetRegressor(regressor(), transformer=StandardScaler()), TARGETS["numbers"])
    assert_allclose(results(convert(estimator))[0], estimator.predict(X), rtol=1e-5, atol=1e-5)


def test_target_transformers_without_an_inverse_in_onnx():
    estimator = fit(TransformedTargetRegressor(regressor(), transformer=QuantileTransformer(n_quantiles=9)), NUMBERS)
    with pytest.raises(ModelError, match="The inverse of QuantileTransformer has no ONNX form"):
        convert(estimator)
