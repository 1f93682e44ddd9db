"""Early stopping by any scorer of scikit-learn, on validation data that are split off or given."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, d2_log_loss_score, get_scorer, log_loss, make_scorer, mean_pinball_loss
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import Quantile

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_breast_cancer(return_X_y=True)
X = scale(X)
DIGITS, DIGIT = load_digits(return_X_y=True)
DIGITS = DIGITS / 16.0
DIABETES, PROGRESS = load_diabetes(return_X_y=True)
SETTINGS = {"max_iter": 12, "random_state": 0, "learning_rate_init": 0.01}


def held(X, y):
    """Return data to train on, and to validate on."""
    return {"X": X[::2], "y": y[::2], "X_val": X[1::2], "y_val": y[1::2]}


CLASSIFIERS = ["accuracy", "neg_log_loss", "roc_auc", "neg_brier_score", "f1", "average_precision", "balanced_accuracy"]


@pytest.mark.parametrize("scoring", CLASSIFIERS)
def test_scores_are_those_of_the_estimator_of_that_epoch(scoring):
    data = held(X, Y)
    stepwise, expected = OrtGradientClassifier(MLP((8,)), warm_start=True, **{**SETTINGS, "max_iter": 1}), []
    for _ in range(4):
        expected.append(get_scorer(scoring)(stepwise.fit(data["X"], data["y"]), data["X_val"], data["y_val"]))
    fitted = OrtGradientClassifier(MLP((8,)), scoring=scoring, **{**SETTINGS, "max_iter": 4}).fit(**data)
    assert_allclose(fitted.validation_scores_, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "scoring", ["neg_mean_absolute_error", "r2", "neg_mean_squared_error", "d2_absolute_error_score"]
)
def test_regressors(scoring):
    data = held(DIABETES, PROGRESS)
    fitted = OrtGradientRegressor(scoring=scoring, **SETTINGS).fit(**data)
    expected = get_scorer(scoring)(fitted, data["X_val"], data["y_val"])
    assert_allclose(fitted.validation_scores_[-1], expected, rtol=1e-5)


def test_several_classes_by_probabilities():
    fitted = OrtGradientClassifier(scoring="neg_log_loss", early_stopping=True, **SETTINGS).fit(DIGITS, DIGIT)
    assert -0.5 < fitted.best_validation_score_ < 0
    assert fitted.best_validation_score_ == max(fitted.validation_scores_)


METRICS = {"neg_log_loss": log_loss, "d2_log_loss_score": d2_log_loss_score}


@pytest.mark.parametrize("names", [[0, 1, 2], ["benign", "malignant", "unclear"]])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scoring", METRICS)
def test_a_class_may_be_missing_in_the_validation_data(scoring, n_classes, names):
    try:
        METRICS[scoring]([0, 1], np.full((2, 3), 1 / 3), labels=[0, 1, 2])
    except ValueError:
        pytest.skip("the metric of this scikit-learn is not told the classes by labels (1.6)")
    codes = np.concatenate([np.arange(6) % n_classes, Y[6:]])
    labels, held = np.array(names)[codes], np.flatnonzero(codes[6:] < n_classes - 1) + 6
    settings = {**SETTINGS, "scoring": scoring, "early_stopping": True}
    net = OrtGradientClassifier(MLP((8,)), **settings).fit(X, labels, X_val=X[held], y_val=labels[held])
    value = METRICS[scoring](labels[held], net.predict_proba(X[held]), labels=net.classes_)
    assert len(net.classes_) == n_classes > len(set(labels[held]))
    assert_allclose(max(net.validation_scores_), -value if scoring.startswith("neg") else value, rtol=1e-4)


def test_the_weights_of_the_best_score_are_kept():
    data = held(X, np.where(np.arange(len(Y)) % 5 == 0, 1 - Y, Y))  # noise, which is learned by heart
    settings = {**SETTINGS, "learning_rate_init": 0.03, "max_iter": 40, "early_stopping": True, "n_iter_no_change": 50}
    fitted = OrtGradientClassifier(MLP((200,)), scoring="neg_log_loss", **settings).fit(**data)
    assert np.argmax(fitted.validation_scores_) < 39
    own = -log_loss(data["y_val"], fitted.predict_proba(data["X_val"]))
    assert_allclose(own, max(fitted.validation_scores_), rtol=1e-5)


def test_a_scorer_may_choose_another_epoch():
    data = held(X, np.where(np.arange(len(Y)) % 5 == 0, 1 - Y, Y))
    settings = {**SETTINGS, "learning_rate_init": 0.03, "max_iter": 30, "early_stopping": True, "n_iter_no_change": 50}
    epochs = {
        int(np.argmax(classifier.fit(**data).validation_scores_))
        for classifier in (OrtGradientClassifier(MLP((200,)), scoring=s, **settings) for s in (None, "neg_log_loss"))
    }
    assert len(epochs) == 2


def test_user_defined_functions_and_metrics_score():
    seen = []

    def by_hand(estimator, X, y):
        seen.append((len(X), type(y).__name__, estimator.classes_.tolist()))
        return float(np.mean(estimator.predict(X) == y))

    names = np.array(["malignant", "benign"])[Y]
    data = held(X, names)
    plain = OrtGradientClassifier(**SETTINGS).fit(**data)
    own = OrtGradientClassifier(scoring=by_hand, **SETTINGS).fit(**data)
    assert own.validation_scores_ == plain.validation_scores_
    assert set(map(str, seen)) == {str((284, "ndarray", ["benign", "malignant"]))}
    pinball = make_scorer(mean_pinball_loss, alpha=0.9, greater_is_better=False)
    data = held(DIABETES, PROGRESS)
    fitted = OrtGradientRegressor(loss=Quantile(0.9), scoring=pinball, **SETTINGS).fit(**data)
    expected = -mean_pinball_loss(data["y_val"], fitted.predict(data["X_val"]), alpha=0.9)
    assert_allclose(fitted.validation_scores_[-1], expected, rtol=1e-5)


def test_rows_are_weighted():
    data, weights = held(X, Y), np.linspace(0.1, 3, 284)
    fitted = OrtGradientClassifier(scoring="neg_log_loss", **SETTINGS).fit(**data, sample_weight_val=weights)
    expected = -log_loss(data["y_val"], fitted.predict_proba(data["X_val"]), sample_weight=weights)
    assert_allclose(fitted.validation_scores_[-1], expected, rtol=1e-5)


def test_functions_take_the_weights_of_rows_or_are_refused():
    def weighted(estimator, X, y, sample_weight=None):
        return float(np.average(estimator.predict(X) == y, weights=sample_weight))

    settings = {**SETTINGS, "class_weight": "balanced", "early_stopping": True}
    own, plain = (OrtGradientClassifier(scoring=s, **settings).fit(X, Y) for s in (weighted, None))
    assert_allclose(own.validation_scores_, plain.validation_scores_, rtol=1e-12)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        OrtGradientClassifier(scoring=lambda estimator, X, y: 1.0, **settings).fit(X, Y)


def test_a_table_and_a_fitted_model():
    table = pd.DataFrame(X, columns=[f"c{i}" for i in range(30)])
    model = LogisticRegression().fit(table, Y)
    settings = {**SETTINGS, "scoring": "roc_auc", "early_stopping": True}
    fitted = OrtGradientClassifier(model, **settings).fit(table, pd.Series(Y, index=np.arange(len(Y)) + 100))
    assert fitted.best_validation_score_ > 0.95


def test_predictions_are_those_of_the_validation_data_alone():
    def partial(estimator, X, y):
        return float(np.mean(estimator.predict(X[:5]) == y[:5]))

    with pytest.raises(ValueError, match="A scorer can predict the validation data only"):
        OrtGradientClassifier(scoring=partial, **SETTINGS).fit(**held(X, Y))


def test_nothing_of_the_scorer_stays_in_the_estimator():
    fitted = OrtGradientClassifier(scoring="roc_auc", early_stopping=True, **SETTINGS).fit(X, Y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict_proba(X[:3]), fitted.predict_proba(X)[:3])
    assert vars(fitted).keys() == vars(OrtGradientClassifier(**SETTINGS).fit(X, Y)).keys()


def test_a_scorer_without_validation_data_is_refused():
    with pytest.raises(ValueError, match=r"scoring='roc_auc' needs validation data: set early_stopping=True"):
        OrtGradientClassifier(scoring="roc_auc").fit(X, Y)
    OrtGradientClassifier(Linear(), scoring="roc_auc").partial_fit(X, Y, classes=[0, 1])


@pytest.mark.parametrize(
    ("scoring", "error", "match"),
    [
        ("rocauc", ValueError, "Did you mean 'roc_auc'"),
        (3, ValueError, "scoring must be"),
        (lambda e, X, y: "high", ValueError, "a number"),
        (lambda e, X, y: float("nan"), ValueError, "a number"),
        ("neg_mean_poisson_deviance", ValueError, "."),
    ],
)
def test_wrong_scorers(scoring, error, match):
    estimator = OrtGradientClassifier(scoring=scoring, early_stopping=True, **SETTINGS)
    before = dict(vars(estimator))
    with pytest.raises(error, match=match):
        estimator.fit(X, Y)
    assert vars(estimator) == before


LABELS = np.stack([DIGIT % 2 == 0, DIGIT >= 5, np.isin(DIGIT, [0, 6, 8, 9])], axis=1).astype(int)
OF_LABELS = {"accuracy": None, "f1_macro": None, "neg_log_loss": log_loss, "neg_brier_score": brier_score_loss}


@pytest.mark.parametrize("weights", [None, np.random.default_rng(0).integers(0, 4, 898)])
@pytest.mark.parametrize("scoring", OF_LABELS)
def test_several_labels_a_row(scoring, weights):
    data = held(DIGITS, LABELS)
    fitted = OrtGradientClassifier(MLP((16,)), scoring=scoring, **SETTINGS).fit(**data, sample_weight_val=weights)
    metric, rows = OF_LABELS[scoring], (data["X_val"], data["y_val"])
    if metric is None:
        expected = get_scorer(scoring)(fitted, *rows, sample_weight=weights)
    else:
        p = fitted.predict_proba(rows[0])
        expected = -np.mean([metric(rows[1][:, j], p[:, j], sample_weight=weights) for j in range(3)])
    assert_allclose(fitted.validation_scores_[-1], expected, rtol=1e-5)


@pytest.mark.parametrize("scoring", ["d2_log_loss_score", "d2_brier_score"])
def test_scores_that_take_several_labels_for_one_are_refused(scoring):
    with pytest.raises(ValueError, match="is for one label a row: take 'neg_log_loss' or"):
        OrtGradientClassifier(scoring=scoring, **SETTINGS).fit(**held(DIGITS, LABELS))
