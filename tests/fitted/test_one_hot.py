"""One-hot encoders of every setting give what scikit-learn gives: rare, dropped and unknown categories."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "kind": RNG.choice(list("abcdefgh"), 200, p=[0.4, 0.3, 0.1, 0.1, 0.04, 0.03, 0.02, 0.01]),
        "flag": RNG.choice(["no", "yes"], 200),
        "step": RNG.choice([1.5, 2.5, 3.25, 9.0], 200, p=[0.5, 0.4, 0.07, 0.03]),
        "rank": RNG.integers(0, 4, 200),
        "size": RNG.normal(size=200),
    }
)
Y = RNG.normal(size=200) + (X["kind"] == "a") + X["rank"]


def encoded(encoder, columns, last=None):
    return make_pipeline(
        make_column_transformer((encoder, columns), (StandardScaler(), ["size"])), Ridge() if last is None else last
    )


def start(model, X, y=Y):
    return OrtGradientRegressor(model, learning_rate_init=1e-12, max_iter=1, batch_size=200).fit(X, y)


@pytest.mark.parametrize("unknown", ["ignore", "infrequent_if_exist", "warn", "error"])
@pytest.mark.parametrize("drop", [None, "first", "if_binary"])
@pytest.mark.parametrize("rare", [{}, {"max_categories": 3}, {"min_frequency": 15}, {"min_frequency": 0.2}])
def test_every_setting(unknown, drop, rare):
    odd = X.copy()
    if unknown != "error":
        odd.loc[::5, "kind"], odd.loc[::7, "step"], odd.loc[::9, "rank"] = "other", 77.5, 77
    encoder = OneHotEncoder(handle_unknown=unknown, drop=drop, **rare)
    model = encoded(encoder, ["kind", "rank", "flag", "step"]).fit(X, Y)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
        np.testing.assert_allclose(start(model, X).predict(odd), model.predict(odd), rtol=1e-5, atol=1e-5)


def test_rare_text_in_the_file_that_is_given_back():
    model = encoded(OneHotEncoder(max_categories=3, handle_unknown="infrequent_if_exist"), ["kind"]).fit(X, Y)
    net = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=3).fit(X, Y)
    odd = X.assign(kind=X["kind"].where(X["kind"] != "b", "never seen"))
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString())
    feeds = {"kind": odd[["kind"]].to_numpy(object), "size": odd[["size"]].to_numpy(np.float32)}
    np.testing.assert_allclose(session.run(None, feeds)[0].ravel(), net.to_sklearn().predict(odd), rtol=1e-5, atol=1e-5)


def test_categories_that_float32_cannot_tell_apart_are_refused():
    close = X.assign(step=np.where(X["rank"] > 1, 0.1, 0.1 + 1e-12))
    with pytest.raises(ModelError, match=r"Categories in column 0 of this OneHotEncoder are equal as float32"):
        start(encoded(OneHotEncoder(), ["step"]).fit(close, Y), close)


@pytest.mark.parametrize("settings", [{"transformer": StandardScaler()}, {"func": np.arcsinh, "inverse_func": np.sinh}])
@pytest.mark.parametrize("nested", [False, True])
def test_targets_are_transformed_around_encoders_of_text(settings, nested):
    last = make_pipeline(StandardScaler(), Ridge()) if nested else Ridge()
    inner = encoded(OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind", "flag"], last)
    model = TransformedTargetRegressor(inner, **settings).fit(X, Y)
    np.testing.assert_allclose(start(model, X).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)
    net = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=3).fit(X, Y)
    assert [one.name for one in net.to_onnx().graph.input] == ["kind", "flag", "size"]
    assert "transformer" in settings or not any("transformer.scale" in name for name in net.weights_)
    np.testing.assert_allclose(net.to_sklearn().predict(X), net.predict(X), rtol=1e-5, atol=1e-5)
    assert not np.allclose(net.predict(X), model.predict(X), rtol=1e-5)


def test_the_advice_for_coefficients_that_cancel_works():
    rows = X.assign(twin=X["flag"])
    columns = ["kind", "flag", "twin"]
    model = encoded(OneHotEncoder(sparse_output=False), columns).fit(rows, Y)
    model[-1].coef_ += np.array([1e9] * 8 + [-1e9] * 2 + [0] * 3)  # the encoded columns of each text add up to one
    with pytest.raises(ModelError, match=r"Fit it with OneHotEncoder\(drop='first'\)"):
        start(model, rows)
    model = encoded(OneHotEncoder(drop="first", sparse_output=False), columns).fit(rows, Y)
    np.testing.assert_allclose(start(model, rows).predict(rows), model.predict(rows), rtol=1e-5, atol=1e-5)
