"""RealMLP's default settings by the number of rows: those for small tables, and those of the authors."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor
from tests.helpers.recipes import held_out
from tests.helpers.selection import one_case

RNG = np.random.RandomState(0)
X = RNG.normal(size=(2000, 3)).astype(np.float32)
LABELS, NUMBERS = (X[:, 0] > 0.5).astype(int), X[:, 1] + X[:, 2]


@pytest.mark.long
def test_a_small_table_trains_five_networks_of_128_units_in_64_epochs():
    settings = {"variant": "td-s", "n_ensembles": 5, "hidden_layer_sizes": (128, 128, 128), "max_iter": 64}
    settings["linear_part"] = True
    rows = X[:60]
    ours = RealMLPRegressor(random_state=0).fit(rows, NUMBERS[:60])
    explicit = RealMLPRegressor(**settings, random_state=0).fit(rows, NUMBERS[:60])
    assert [len(curve) for curve in ours.loss_curves_] == [64] * 5
    assert_array_equal(ours.predict(rows), explicit.predict(rows))


@one_case
@pytest.mark.long
@pytest.mark.parametrize("kind", [RealMLPClassifier, RealMLPRegressor])
def test_rows_from_two_thousand_on_train_as_the_authors_do_but_for_probabilities(kind):
    y = LABELS if kind is RealMLPClassifier else NUMBERS
    auto = kind(hidden_layer_sizes=4, max_iter=2, random_state=0)
    of_authors = clone(auto).set_params(variant="td", n_ensembles=1)
    if kind is RealMLPClassifier:
        of_authors.set_params(label_smoothing=0.0, scoring="neg_log_loss")
    assert_array_equal(auto.fit(X, y).predict(X), of_authors.fit(X, y).predict(X))
    assert auto.loss_curves_ == of_authors.loss_curves_
    assert len(auto.fit(X[1:], y[1:]).loss_curves_) == 5
    weights = np.arange(2000) > 0  # a row of weight zero does not count
    assert len(auto.fit(X, y, sample_weight=weights).loss_curves_) == 5


@pytest.mark.long
def test_an_explicit_variant_has_smoothing_and_the_accuracy_of_its_authors():
    given, named = (
        RealMLPClassifier("td", hidden_layer_sizes=8, max_iter=9, random_state=0, **settings)
        for settings in ({}, {"label_smoothing": 0.1, "scoring": "accuracy"})
    )
    assert_array_equal(given.fit(X, LABELS).predict_proba(X), named.fit(X, LABELS).predict_proba(X))
    other = clone(named).set_params(label_smoothing=0.0).fit(X, LABELS)
    assert np.abs(other.predict_proba(X) - given.predict_proba(X)).max() > 0.01


@pytest.mark.long
def test_an_explicit_variant_is_that_of_the_authors_on_few_rows():
    found = RealMLPClassifier("td", hidden_layer_sizes=4, random_state=0).fit(X[:50], LABELS[:50])
    assert [len(curve) for curve in found.loss_curves_] == [256]


def test_parameters_stay_as_given_and_others_may_be_set():
    classifier = RealMLPClassifier(n_ensembles=2, max_iter=3, random_state=0)
    before = classifier.get_params()
    classifier.fit(X[:80], LABELS[:80])
    assert classifier.get_params() == before
    assert [len(curve) for curve in classifier.loss_curves_] == [3, 3]


def test_the_least_loss_on_held_out_rows_chooses_the_epoch():
    classifier = RealMLPClassifier(n_ensembles=1, linear_part=False, random_state=0)
    noisy = np.where(RNG.uniform(size=100) < 0.3, 1 - LABELS[:100], LABELS[:100])
    classifier.fit(X[:100], noisy)
    losses = [row["validation_loss"] for row in classifier.history_]
    assert np.argmin(losses) < len(losses) - 1
    held = held_out(np.arange(100), noisy)
    found = log_loss(noisy[held], classifier.predict_proba(X[:100].astype(float))[held])
    assert found == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.slow
def test_small_tables_have_better_probabilities_than_by_the_authors_settings():
    rows, y = load_iris(return_X_y=True)
    train, test, y_train, y_test = train_test_split(rows, y, train_size=100, stratify=y, random_state=0)
    auto, of_authors = (RealMLPClassifier(variant, random_state=0).fit(train, y_train) for variant in ("auto", "td"))
    assert log_loss(y_test, auto.predict_proba(test)) < log_loss(y_test, of_authors.predict_proba(test))


@pytest.mark.slow
def test_small_tables_of_numbers_score_at_least_as_well_as_the_authors_settings():
    rows, y = load_diabetes(return_X_y=True)
    train, test, y_train, y_test = train_test_split(rows, y, train_size=300, random_state=0)
    auto, of_authors = (RealMLPRegressor(variant, random_state=0).fit(train, y_train) for variant in ("auto", "td"))
    assert auto.score(test, y_test) > of_authors.score(test, y_test)
