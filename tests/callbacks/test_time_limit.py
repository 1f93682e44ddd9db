"""Limits of time, of one fit and of all networks of a recipe; and the word about fits that take long."""

from __future__ import annotations

import warnings
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor, RealMLPRegressor, TabMClassifier
from onnxtrain_sklearn._estimators.callbacks import ActiveTraining
from onnxtrain_sklearn.callbacks import Callback, TimeLimit
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.finetuning import FineTuner
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.normal(size=50)).astype(np.float32)
SECOND = 0.1
"""Seconds that a step takes by the clock of :func:`ticking`."""


def net(**parameters):
    settings = {"batch_size": 10, "max_iter": 8, "random_state": 0, "tol": -1.0, "learning_rate_init": 0.01}
    return OrtGradientRegressor(MLP((4,)), **settings | parameters)


@pytest.fixture
def ticking(monkeypatch):
    monkeypatch.setattr(ActiveTraining, "seconds", property(lambda training: SECOND * training.step))


class Until(Callback):
    def __init__(self, last):
        self.last = last

    def after_step(self, training, loss):
        return training.step == self.last


@pytest.mark.parametrize("engine", [*available_engines(), "compiled"])
@pytest.mark.usefixtures("ticking")
def test_training_ends_with_the_step_that_exceeds_the_limit(engine):
    limited = net(engine=engine, callbacks=[TimeLimit(1.15)]).fit(X, Y)
    expected = net(engine=engine, callbacks=[Until(12)]).fit(X, Y)
    assert (limited.n_iter_, limited.t_) == (3, 120)
    assert limited.callbacks_["TimeLimit"] == {"reached": True}
    for name, array in expected.weights_.items():
        assert_array_equal(limited.weights_[name], array)


@pytest.mark.usefixtures("ticking")
def test_the_first_step_is_always_taken_and_the_limit_holds_for_passes_too():
    assert net(callbacks=[TimeLimit(1e-9)]).fit(X, Y).t_ == 10
    assert net(callbacks=[TimeLimit(0.25)]).partial_fit(X, Y).t_ == 30


@pytest.mark.usefixtures("ticking")
def test_a_limit_between_epochs_lets_an_epoch_end():
    limited = net(callbacks=[TimeLimit(1.15, within_epochs=False)]).fit(X, Y)
    whole = net(max_iter=3, callbacks=[TimeLimit(1e9)]).fit(X, Y)
    assert (limited.n_iter_, whole.callbacks_["TimeLimit"]) == (3, {"reached": False})
    assert_array_equal(limited.predict(X), whole.predict(X))


@pytest.mark.usefixtures("ticking")
def test_the_best_epoch_before_the_limit_is_kept():
    rising = net(early_stopping=True, learning_rate_init=3.0, callbacks=[TimeLimit(1.15)])
    rising.fit(X[:40], Y[:40], X_val=X[40:], y_val=Y[40:])
    assert rising.n_iter_ == 3
    assert rising.score(X[40:], Y[40:]) == pytest.approx(max(rising.validation_scores_), abs=1e-5)
    assert max(rising.validation_scores_) > rising.validation_scores_[-1]


def test_real_time_ends_training():
    assert net(max_iter=10**6, callbacks=[TimeLimit(0.2)]).fit(X, Y).n_iter_ < 10**6
    assert net(callbacks=[TimeLimit(1e-9)], optimizer="lbfgs").fit(X, Y).n_iter_ == 1


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "a minute"])
def test_a_limit_that_is_no_positive_number_is_refused(limit):
    with pytest.raises(InvalidParameterError, match="'seconds' parameter of TimeLimit"):
        net(callbacks=[TimeLimit(limit)]).fit(X, Y)
    with pytest.raises(InvalidParameterError, match="'time_limit' parameter of RealMLPRegressor"):
        RealMLPRegressor(time_limit=limit).fit(X, Y)


def test_fine_tuning_takes_no_steps_that_a_limit_could_follow():
    given = net(max_iter=1).fit(X, Y).to_onnx()
    with pytest.raises(ValueError, match="takes none"):
        OrtGradientRegressor(given, finetune=FineTuner(), callbacks=[TimeLimit(1.0)]).fit(X, Y)


# All networks of a recipe.


def recipe(**parameters):
    return RealMLPRegressor("td-s", max_iter=3, batch_size=16, n_ensembles=3, random_state=0, **parameters)


@pytest.mark.long
def test_a_recipe_out_of_time_has_one_network():
    with pytest.warns(UserWarning, match=r"time_limit=1e-09 ended the fit after 1 of 3 networks"):
        fitted = recipe(time_limit=1e-9).fit(X, Y)
    assert len(fitted.loss_curves_) == 1
    assert np.isfinite(fitted.predict(X)).all()
    assert fitted.callbacks_ == [{}]
    classifier = TabMClassifier(max_iter=3, random_state=0, time_limit=1e-9).fit(X, Y > 0)
    assert classifier.n_iter_ == 1


@pytest.mark.long
def test_a_recipe_with_time_to_spare_is_that_without_a_limit():
    free, limited = recipe().fit(X, Y), recipe(time_limit=1e6).fit(X, Y)
    assert_array_equal(free.predict(X), limited.predict(X))
    assert clone(limited).time_limit == 1e6


def test_networks_share_the_time_that_is_left(monkeypatch):
    clock = count(0, 2)  # a call each at the beginning, before each network, and after it
    monkeypatch.setattr(
        "onnxtrain_sklearn._recipes.ensemble.time", SimpleNamespace(perf_counter=lambda: float(next(clock)))
    )
    shares = []
    monkeypatch.setattr(
        "onnxtrain_sklearn._recipes.ensemble.MemberLimit.begin", lambda self, training: shares.append(self.share)
    )
    recipe(time_limit=62).fit(X, Y)
    assert shares == [60 / 3, 56 / 2, 52 / 1]


# Long fits.


@pytest.fixture
def clock(monkeypatch):
    """The seconds of an epoch, which a test may set."""
    pace, now = [2.0], [0.0]

    def perf_counter():
        now[0] += pace[0]
        return now[0]

    monkeypatch.setattr("onnxtrain_sklearn._training.trainer.time", SimpleNamespace(perf_counter=perf_counter))
    return pace


def announcements(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(one.message) for one in caught if str(one.message).startswith("This fit")]


def test_a_long_fit_says_so_after_its_first_epoch(clock, capsys):
    (text,) = announcements(lambda: net(max_iter=40).fit(X, Y))
    assert text.startswith(
        "This fit may take another 1 min: 40 epochs at most, and an epoch of 50 rows took 2 s (25 rows a second)."
    )
    assert not announcements(lambda: net(max_iter=40, verbose=1).fit(X, Y))
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("This fit may take another 1 min"))
    assert lines[place - 1].split()[0] == "1"
    assert lines[place + 1].split()[0] == "2"


def test_the_second_epoch_decides_if_the_first_is_short(clock):
    clock[0] = 0.5  # 199 epochs are 99 seconds, most of which could be preparations
    (text,) = announcements(lambda: net(max_iter=200, callbacks=[lambda epoch: epoch.number == 2]).fit(X, Y))
    assert "another 2 min" in text
    assert not announcements(lambda: net(max_iter=200, callbacks=[lambda epoch: True]).fit(X, Y))


def test_short_and_limited_fits_and_passes_say_nothing(clock):
    assert not announcements(lambda: net(max_iter=30).fit(X, Y))
    assert not announcements(lambda: net(max_iter=40, callbacks=[TimeLimit(1e6)]).fit(X, Y))
    assert not announcements(lambda: net(max_iter=10**6).partial_fit(X, Y))
    assert not announcements(lambda: recipe(time_limit=1e6).fit(X, Y))


def test_a_recipe_announces_all_its_networks_once(clock):
    clock[0] = 10.0
    (text,) = announcements(lambda: recipe().fit(X, Y))
    assert text.startswith("This fit of 3 networks may take another 1 min: 3 epochs at most")
    classifier = OrtGradientClassifier(MLP((4,)), max_iter=20, random_state=0, tol=-1.0)
    assert len(announcements(lambda: classifier.fit(X, Y > 0))) == 1
