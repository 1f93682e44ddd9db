"""Early stopping by the names of scikit-learn's scorers, on maps and series and on labels at positions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import get_scorer, log_loss, mean_absolute_error, mean_squared_error, roc_auc_score
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import EpochScoring
from tests.helpers.graphs import model
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 5, 4)).astype(np.float32)
SERIES = np.exp(0.2 * X @ rng.normal(size=(4, 3)) + rng.normal(0, 0.1, (40, 5, 3)))
TAGS = (X @ rng.normal(size=(4, 3))).argmax(axis=-1)
TAGS[np.arange(5) >= rng.integers(1, 6, 40)[:, None]] = -100
TRAIN, HELD, WEIGHTS = slice(0, 25), slice(25, None), np.linspace(0.1, 2, 15)
SETTINGS = {"optimizer": SGD(), "learning_rate_init": 0.1, "max_iter": 3, "tol": NEVER, "random_state": 0}
NET = model(x="float[N, T, 4] X", y="float[N, T, 3] Y", weights=f"float[4, 3] W = {{{', '.join(['0.1'] * 12)}}}")
ONE = model(x="float[N, T, 4] X", y="float[N, T, 1] Y", weights="float[4, 1] W = {1, -1, 0.5, 0}")


def fitted(estimator, y, **weights):
    return estimator.fit(X[TRAIN], y[TRAIN], X_val=X[HELD], y_val=y[HELD], **weights)


def regressor(scoring, **settings):
    return OrtGradientRegressor(NET, scoring=scoring, **SETTINGS | settings)


def tagger(scoring, net=NET, **settings):
    return OrtGradientClassifier(net, scoring=scoring, **SETTINGS | settings)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_r2_by_name_is_the_score_of_the_estimator(weights):
    by_name, own = (fitted(regressor(s), SERIES, sample_weight_val=weights) for s in ("r2", None))
    assert_allclose(by_name.validation_scores_, own.validation_scores_, rtol=1e-6)
    assert_allclose(by_name.validation_scores_[-1], by_name.score(X[HELD], SERIES[HELD], weights), rtol=1e-6)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_errors_by_name_are_those_of_all_elements(weights):
    for name, metric in {"absolute": mean_absolute_error, "squared": mean_squared_error}.items():
        net = fitted(regressor(f"neg_mean_{name}_error"), SERIES, sample_weight_val=weights)
        true, found = (a.reshape(15, -1) for a in (SERIES[HELD], net.predict(X[HELD])))
        assert_allclose(net.validation_scores_[-1], -metric(true, found, sample_weight=weights), rtol=1e-6)


def test_the_explained_variance_weights_elements_as_r2_does():
    net = fitted(regressor("explained_variance"), SERIES)
    error, y = SERIES[HELD] - net.predict(X[HELD]), SERIES[HELD]
    assert_allclose(net.validation_scores_[-1], 1 - error.var(axis=0).sum() / y.var(axis=0).sum(), rtol=1e-6)


def test_networks_that_are_built_and_data_that_are_held_out():
    flat = X.reshape(40, -1)
    scores = [
        OrtGradientRegressor(MLP((8,)), scoring=s, early_stopping=True, **SETTINGS).fit(flat, SERIES).validation_scores_
        for s in ("r2", None)
    ]
    assert_allclose(*scores, rtol=1e-6)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_accuracy_by_name_is_the_score_of_labels_that_count(weights, class_weight):
    nets = (tagger(s, class_weight=class_weight) for s in ("accuracy", None))
    by_name, own = (fitted(net, TAGS, sample_weight_val=weights) for net in nets)
    assert_allclose(by_name.validation_scores_, own.validation_scores_, rtol=1e-6)


def test_probabilities_are_those_of_the_labels_that_count():
    net = fitted(tagger("neg_log_loss"), TAGS, sample_weight_val=WEIGHTS)
    counted = TAGS[HELD] != -100
    weights = np.broadcast_to(WEIGHTS[:, None], counted.shape)[counted]
    found = net.predict_proba(X[HELD])[counted]
    assert_allclose(net.validation_scores_[-1], -log_loss(TAGS[HELD][counted], found, sample_weight=weights), rtol=1e-5)


@pytest.mark.parametrize("scoring", ["f1_macro", "balanced_accuracy", "roc_auc_ovr"])
def test_scores_of_several_classes(scoring):
    net = fitted(tagger(scoring), TAGS)
    counted = TAGS[HELD] != -100

    class Flat(OrtGradientClassifier):
        def predict(self, X):
            return net.predict(X)[counted]

        def predict_proba(self, X):
            return net.predict_proba(X)[counted]

        def decision_function(self, X):
            return net.decision_function(X)[counted]

    flat = Flat()
    vars(flat).update(vars(net))
    assert_allclose(net.validation_scores_[-1], get_scorer(scoring)(flat, X[HELD], TAGS[HELD][counted]), rtol=1e-5)


def test_two_classes_of_texts_with_one_score_each():
    names = np.where(TAGS == -100, "none", np.where(TAGS == 0, "ink", "paper"))
    net = fitted(tagger("roc_auc", ONE, ignore_label="none"), names)
    counted = names[HELD] != "none"
    expected = roc_auc_score(names[HELD][counted] == "paper", net.decision_function(X[HELD])[counted])
    assert_allclose(net.validation_scores_[-1], expected, rtol=1e-6)


def test_callbacks_record_flat_scores():
    net = regressor(None, callbacks=[EpochScoring("r2"), EpochScoring("r2", on="train")])
    history = fitted(net, SERIES).history_
    assert_allclose([row["validation_r2"] for row in history], net.validation_scores_, rtol=1e-6)
    assert_allclose(history[-1]["train_r2"], net.score(X[TRAIN], SERIES[TRAIN]), rtol=1e-5)


def test_misspelt_names_get_the_nearest_one():
    with pytest.raises(ValueError, match=r"scoring must be the name of a scorer.*'r2'"):
        fitted(regressor("r3"), SERIES)


@pytest.mark.long
def test_cross_validation_scores_by_the_estimator_or_by_a_function():
    own = cross_val_score(regressor(None), X, SERIES, cv=3)
    function = cross_val_score(regressor(None), X, SERIES, cv=3, scoring=lambda net, X, y: net.score(X, y))
    assert_allclose(own, function)
    assert np.isfinite(cross_val_score(tagger(None), X, TAGS, cv=3)).all()
