"""coef_ and intercept_: of graphs that are one linear layer, in scikit-learn's shapes; no other graph has them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(80, 5))
NUMBER = 3 * X[:, 0] - 2 * X[:, 3]
TARGETS = {
    "two": (NUMBER > 0).astype(int),
    "three": np.digitize(NUMBER, [-1, 1]),
    "labels": np.c_[X[:, 0] > 0, X[:, 1] > 0].astype(int),
    "number": NUMBER,
    "numbers": np.c_[NUMBER, -NUMBER, X[:, 1]],
    "counts": np.exp(NUMBER / 5),
}


def linear_estimator(model, target, **parameters):
    make = OrtGradientRegressor if target in ("number", "numbers", "counts") else OrtGradientClassifier
    return make(model, **{"max_iter": 3, "learning_rate_init": 0.05, "random_state": 0} | parameters)


def hold(fitted, shape):
    """The attributes are those of the decision function, or of the prediction."""
    assert fitted.coef_.shape == shape
    expected = X @ fitted.coef_.T + fitted.intercept_
    known = fitted.decision_function(X) if hasattr(fitted, "classes_") else fitted.predict(X)
    assert_allclose(known, expected.reshape(known.shape), rtol=1e-4, atol=1e-5)
    assert np.shape(fitted.intercept_) == shape[:-1]


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(
    ("target", "shape"), [("two", (1, 5)), ("three", (3, 5)), ("labels", (2, 5)), ("number", (5,)), ("numbers", (3, 5))]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_built_linear_model(target, shape, bias, engine):
    fitted = linear_estimator(Linear(fit_intercept=bias), target, engine=engine).fit(X, TARGETS[target])
    hold(fitted, shape)
    assert np.any(fitted.intercept_) == bias


MODELS = [
    (LogisticRegression(), "two"), (LogisticRegression(), "three"), (LogisticRegression(fit_intercept=False), "two"),
    (LinearSVC(), "two"), (LinearSVC(), "three"), (SGDClassifier(), "two"), (RidgeClassifier(), "two"),
    (RidgeClassifier(), "three"), (LinearDiscriminantAnalysis(), "three"), (Ridge(), "number"),
    (LinearRegression(), "numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "target"), MODELS, ids=[f"{type(m).__name__}-{t}" for m, t in MODELS])
def test_a_fitted_linear_model(model, target):
    model.fit(X, TARGETS[target])
    start = linear_estimator(model, target, learning_rate_init=0.0).fit(X, TARGETS[target])
    shape = np.shape(model.coef_) if target.startswith("number") else np.atleast_2d(model.coef_).shape
    assert_allclose(start.coef_, model.coef_.reshape(shape), rtol=1e-5)
    assert_allclose(start.intercept_, np.reshape(model.intercept_, shape[:-1]), rtol=1e-5, atol=1e-7)
    trained = linear_estimator(model, target).fit(X, TARGETS[target])
    hold(trained, shape)
    assert_allclose(trained.coef_, trained.to_sklearn().coef_.reshape(shape), rtol=1e-5)


def test_behind_an_exponential_they_are_of_its_argument():
    model = PoissonRegressor(alpha=0.1).fit(X, TARGETS["counts"])
    trained = linear_estimator(model, "counts").fit(X, TARGETS["counts"])
    assert_allclose(trained.predict(X), np.exp(X @ trained.coef_ + trained.intercept_), rtol=1e-4)


GRAPHS = {
    "gemm": "z = Gemm (X, W, b)",
    "gemm of other forms": "z = Gemm <transB = 1, alpha = 2.0, beta = 0.5> (X, V, b)",
    "product and sum": "h = MatMul (X, W) z = Add (b, h)",
    "product": "z = MatMul (X, W)",
    "identities": "x = Identity (X) f = Flatten (x) h = Gemm (f, W, b) z = Identity (h)",
    "transposed": "w = Transpose <perm = [1, 0]> (V) h = MatMul (X, w) z = Sub (h, b)",
    "softmax": "h = Gemm (X, W, b) z = Softmax (h)",
}


def linear_graph(body: str, columns: int = 3) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 18]> net (float[N,5] X) => (float[N,{columns}] z) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("W", (5, columns)), ("V", (columns, 5)), ("b", (columns,)), ("s", (5,)), ("U", (5, 5))):
        if any(name in node.input for node in model.graph.node):
            array = rng.normal(size=shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_given_graph_of_one_layer(kind):
    hold(linear_estimator(linear_graph(GRAPHS[kind]), "three").fit(X, TARGETS["three"]), (3, 5))


def test_two_scores_for_two_classes_are_one_decision():
    hold(linear_estimator(linear_graph(GRAPHS["gemm"], 2), "two").fit(X, TARGETS["two"]), (1, 5))


OTHERS = {
    "layers": (MLP((3,)), "two"),
    "two products": (linear_graph("h = MatMul (X, U) z = Gemm (h, W, b)"), "three"),
    "scaled": (linear_graph("h = Mul (X, s) z = Gemm (h, W, b)"), "three"),
    "scaler": (make_pipeline(StandardScaler(), LogisticRegression()), "two"),
    "forest": (RandomForestClassifier(3, random_state=0), "two"),
    "kernel": (SVC(), "three"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_graphs_have_none(kind):
    model, target = OTHERS[kind]
    if hasattr(model, "predict"):
        model.fit(X, TARGETS[target])
    fitted = linear_estimator(model, target).fit(X, TARGETS[target])
    for name in ("coef_", "intercept_", "feature_importances_"):
        assert not hasattr(fitted, name)
        assert not hasattr(linear_estimator(Linear(), target), name)
    with pytest.raises(AttributeError, match="has no coef_: it was trained on a graph that is not one linear layer"):
        _ = fitted.coef_


@pytest.mark.slow
@pytest.mark.parametrize("target", ["two", "three", "number"])
def test_features_are_selected(target):
    y, made = TARGETS[target], linear_estimator(Linear(), target, optimizer="lbfgs", max_iter=100)
    for selector in (RFE(made, n_features_to_select=2), RFECV(made, cv=2, min_features_to_select=2)):
        assert {0, 3} <= set(selector.fit(X, y).get_support(indices=True))
    chosen = SelectFromModel(made, max_features=2).fit(X, y)
    assert_array_equal(chosen.get_support(indices=True), [0, 3])
    pipeline = make_pipeline(StandardScaler(), SelectFromModel(made, max_features=2), made).fit(X, y)
    assert pipeline.score(X, y) > 0.8


def test_features_are_selected_by_a_fitted_model():
    model = LogisticRegression().fit(X, TARGETS["two"])
    tuned = linear_estimator(model, "two")
    assert_array_equal(SelectFromModel(tuned, max_features=2).fit(X, TARGETS["two"]).get_support(indices=True), [0, 3])
    prefit = SelectFromModel(tuned.fit(X, TARGETS["two"]), prefit=True, max_features=2).fit(X)
    assert prefit.transform(X).shape == (80, 2)
