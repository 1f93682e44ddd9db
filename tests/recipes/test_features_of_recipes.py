"""``transform`` of RealMLP: the last hidden layers, which with the last layer of each network give the prediction."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, TabMRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine

X, Y = load_diabetes(return_X_y=True, as_frame=True)
X["group"] = np.where(Y > 140, "high", "low")
SMALL = {"hidden_layer_sizes": (16, 8), "max_iter": 4, "random_state": 0}


def last_layer(model, number=""):
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.to_onnx().graph.initializer}
    return arrays[f"{number}layers.2.weight"].astype(float), arrays[f"{number}layers.2.bias"].astype(float)


@each_engine
@pytest.mark.parametrize("variant", ["td", "td-s"])
@pytest.mark.parametrize("signs", [None, {"bmi": 1}])
def test_features_and_the_last_layer_give_the_probabilities(variant, signs, engine):
    labels = Y > 140
    model = RealMLPClassifier(variant, monotonic_cst=signs, engine=engine, **SMALL).fit(X, labels)
    features = model.transform(X)
    weight, bias = last_layer(model)
    scores = features @ (weight if signs is None else np.abs(weight)) / np.sqrt(8) + bias
    score = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-score)), rtol=1e-4, atol=1e-5)


def test_features_of_several_networks_stand_side_by_side():
    model = RealMLPRegressor("td-s", n_ensembles=3, **SMALL).fit(X, Y)
    features = model.transform(X)
    assert features.shape == (442, 24)
    found = []
    for i in range(3):
        weight, bias = last_layer(model, f"{i}.")
        found.append(features[:, 8 * i : 8 * i + 8] @ weight / np.sqrt(8) + bias)
    mean = np.mean(found, axis=0).ravel()
    # the rest of each graph scales the outputs to the unit of y
    slope, offset = np.polyfit(mean, model.predict(X), 1)
    inner = np.abs(mean) < 1.0
    np.testing.assert_allclose(model.predict(X)[inner], (slope * mean + offset)[inner], rtol=1e-3)


def test_names_frames_copies_and_single_rows():
    model = RealMLPRegressor("td", **SMALL).fit(X, Y)
    names = [f"realmlpregressor{i}" for i in range(8)]
    assert list(model.get_feature_names_out()) == names
    features = model.transform(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).transform(X), features)
    np.testing.assert_array_equal(model.transform(X[:1]), features[:1])
    frame = model.set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == names


def test_a_pipeline_fits_another_model_to_the_features():
    model = make_pipeline(RealMLPRegressor("td-s", **SMALL), LinearRegression()).fit(X, Y)
    assert model.score(X, Y) > 0.5
    assert model[:-1].get_feature_names_out().shape == (8,)


def test_estimators_without_one_hidden_layer_lack_transform():
    assert not hasattr(RealMLPRegressor(hidden_layer_sizes=()), "transform")
    assert not hasattr(TabMRegressor(), "transform")


def test_skl2onnx_refuses_features_before_another_model():
    skl2onnx = pytest.importorskip("skl2onnx")
    rows = X.drop(columns="group").to_numpy(np.float32)
    model = make_pipeline(RealMLPRegressor("td-s", **SMALL), LinearRegression()).fit(rows, Y)
    with pytest.raises(ModelError, match="no converter for transform"):
        skl2onnx.to_onnx(model, rows[:2])
