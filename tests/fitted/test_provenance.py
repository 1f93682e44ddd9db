"""The converter that makes a parameter names its attribute; names of skl2onnx's variables mean nothing."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.multiclass import OneVsOneClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsRegressor, RadiusNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._fitted import provenance
from onnxtrain_sklearn._fitted.prepare import fitted_model

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = np.abs(rng.normal(size=(60, 4))).astype(np.float32) + np.float32(0.1)
NUMBER = (X @ np.array([1.0, 2.0, 0.5, 0.1]) + rng.normal(size=60) * 0.1).astype(np.float32)
LABEL = np.digitize(NUMBER, np.quantile(NUMBER, [1 / 3, 2 / 3]))

REGRESSORS = {
    "boosting": GradientBoostingRegressor(n_estimators=3, random_state=0),
    "neighbors": KNeighborsRegressor(),
    "perceptron": MLPRegressor(hidden_layer_sizes=(3,), max_iter=5, random_state=0),
    "Poisson": PoissonRegressor(),
    "power": make_pipeline(PowerTransformer(), Ridge()),
    "process": GaussianProcessRegressor(alpha=0.5),
    "ranges": make_pipeline(MinMaxScaler(), MaxAbsScaler(), LinearRegression()),
    "support vectors": SVR(),
    "Tweedie": TweedieRegressor(power=0),
}
CLASSIFIERS = {
    "Bernoulli": BernoulliNB(binarize=1.0),
    "descent": SGDClassifier(loss="modified_huber", random_state=0),
    "forest": RandomForestClassifier(3, max_depth=3, random_state=0),
    "Gauss": GaussianNB(),
    "histograms": HistGradientBoostingClassifier(max_iter=2),
    "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
    "multinomial": MultinomialNB(),
    "one vs one": OneVsOneClassifier(LinearSVC()),
    "one vs one by probabilities": OneVsOneClassifier(GaussianNB()),
    "perceptron": MLPClassifier((3,), max_iter=5, random_state=0),
    "ridge": RidgeClassifier(),
    "support vectors": SVC(),
}


def fitted_by_name(name, kind):
    model, target = (REGRESSORS[name], NUMBER) if kind == "number" else (CLASSIFIERS[name], LABEL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, target)


def fitted_cases():
    return [(name, "number") for name in REGRESSORS] + [(name, "label") for name in CLASSIFIERS]


@pytest.mark.parametrize(("name", "kind"), fitted_cases())
def test_names_of_skl2onnx_mean_nothing(name, kind, monkeypatch):
    from skl2onnx.common._topology import Scope

    model = fitted_by_name(name, kind)
    source, known = fitted_model(model)
    counter = itertools.count()
    monkeypatch.setattr(Scope, "get_unique_variable_name", lambda scope, seed, rename=True: f"v{next(counter)}")
    other, again = fitted_model(model)
    assert again.origins == known.origins
    assert [node.op_type for node in other.model.graph] == [node.op_type for node in source.model.graph]
    for parameter, numbers in source.weights().items():
        np.testing.assert_array_equal(other.weights()[parameter], numbers)


@pytest.mark.parametrize(("name", "kind"), fitted_cases())
def test_no_parameter_is_looked_for_by_its_numbers(name, kind, monkeypatch):
    def found(tracer, name, path, owner, value, role):
        assert role is not None
        assert role.places is not None, f"the attribute of {name} is not named"
        return (), "same"

    monkeypatch.setattr(provenance, "_found", found)
    _, known = fitted_model(fitted_by_name(name, kind))
    assert known.origins


def test_parameters_of_other_converters_are_found_by_their_numbers():
    texts = ["red fish", "blue fish", "one fish red", "two fish blue"]
    _, known = fitted_model(make_pipeline(TfidfVectorizer(), Ridge()).fit(texts, np.arange(4.0)), has_text=True)
    assert ("_tfidf", "idf_") in {origin.attribute for origin in known.origins}


class TestNewForms:
    """What skl2onnx refuses, or converts inexactly."""

    @pytest.mark.parametrize("exponent", [0.0, 1e-5, -2e-4, 5e-4, 2.0])
    @pytest.mark.parametrize("method", ["box-cox", "yeo-johnson"])
    def test_exponents_next_to_zero(self, method, exponent):
        rows = X.astype(np.float64)  # scikit-learn 1.6 loses digits of float32 rows next to zero
        model = make_pipeline(PowerTransformer(method=method, standardize=False), Ridge()).fit(rows, NUMBER)
        model[0].lambdas_[1] = exponent
        model[-1].fit(model[0].transform(rows), NUMBER)
        tuned = OrtGradientRegressor(model, learning_rate_init=0.0, max_iter=1).fit(rows, NUMBER)
        assert_allclose(tuned.predict(rows), model.predict(rows), rtol=1e-5)
        tuned.set_params(learning_rate_init=1e-3, max_iter=3).fit(rows, NUMBER)
        assert np.isfinite(tuned.loss_)
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-4)

    def test_boosting_that_starts_from_another_model(self):
        model = GradientBoostingRegressor(n_estimators=3, init=Ridge(), random_state=0).fit(X, NUMBER)
        tuned = OrtGradientRegressor(model, learning_rate_init=1e-3, max_iter=2).fit(X, NUMBER)
        assert {name.rpartition(".")[2] for name in tuned.weights_} >= {"coef", "intercept", "leaf_values"}
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-5)

    def test_perceptron_of_amounts(self):
        if "loss" not in MLPRegressor().get_params():
            pytest.skip("this scikit-learn has no MLPRegressor(loss='poisson')")
        model = MLPRegressor(hidden_layer_sizes=(3,), loss="poisson", max_iter=20, random_state=0).fit(X, NUMBER)
        tuned = OrtGradientRegressor(model, learning_rate_init=0.0, max_iter=1).fit(X, NUMBER)
        assert_allclose(tuned.predict(X), model.predict(X), rtol=1e-5)

    @pytest.mark.parametrize("kind", [KNeighborsRegressor(metric="manhattan"), RadiusNeighborsRegressor(2.0, p=1)])
    def test_plain_means_of_neighbors(self, kind):
        model = kind.fit(X, NUMBER)
        tuned = OrtGradientRegressor(model, learning_rate_init=0.0, max_iter=1).fit(X, NUMBER)
        assert_allclose(tuned.predict(X), model.predict(X), rtol=1e-5)
        assert [name.rpartition(".")[2] for name in tuned.weights_] == ["y"]

    def test_scores_of_densities_are_not_cut_off(self):
        far = np.array([[30.0, 30, 30, 30]], np.float32)
        model = GaussianNB().fit(X, LABEL)
        tuned = OrtGradientClassifier(model, learning_rate_init=0.0, max_iter=1).fit(X, LABEL)
        expected = model.predict_joint_log_proba(far)
        assert_allclose(np.ptp(tuned.decision_function(far)), np.ptp(expected), rtol=1e-4)

    def test_penalty_leaves_intercepts_of_a_perceptron_alone(self):
        model = MLPRegressor(hidden_layer_sizes=(3,), max_iter=5, random_state=0).fit(X, NUMBER)
        parts = {}
        for alpha in (0.0, 100.0):
            tuned = OrtGradientRegressor(model, optimizer="sgd", learning_rate_init=1e-4, max_iter=1, alpha=alpha)
            tuned.set_params(batch_size=60).fit(X, NUMBER)
            parts[alpha] = tuned.weights_
        for name in parts[0.0]:
            same = np.array_equal(parts[0.0][name], parts[100.0][name])
            assert same == ("intercepts" in name)
