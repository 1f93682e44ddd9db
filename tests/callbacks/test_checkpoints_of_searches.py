"""Checkpoints without ``random_state``, of L-BFGS and of fine-tuning: what is begun again, and what is not repeated."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, FineTuner, OrtGradientClassifier, OrtGradientRegressor, RealMLPClassifier
from onnxtrain_sklearn.callbacks import Checkpoint, EarlyStopping, WeightAveraging
from tests.helpers.callbacks import net, without_seconds
from tests.helpers.checkpoints import drawn_seed, same
from tests.helpers.data import blobs, line
from tests.helpers.selection import one_case

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
SHIFTED = X + 0.3


def lbfgs(*callbacks: object, **settings: Any) -> OrtGradientClassifier:
    own = {"optimizer": "lbfgs", "max_iter": 15, "random_state": 0} | settings
    return OrtGradientClassifier(MLP((6,), activation="tanh"), callbacks=list(callbacks), **own)


def fine_tuned(*callbacks: object, **settings: Any) -> OrtGradientClassifier:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[::2], Y[::2])
    return OrtGradientClassifier(pipeline, callbacks=list(callbacks), **{"random_state": 0} | settings)


def plain(*callbacks: object) -> OrtGradientClassifier:
    return fine_tuned(*callbacks, finetune=None, max_iter=4)


SEARCHES = {"lbfgs": lbfgs, "fine-tuning": fine_tuned}


def equal(a: Any, b: Any) -> bool:
    return same(a, b) and np.array_equal(a.predict_proba(X), b.predict_proba(X))


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_that_had_ended_is_not_repeated(kind, tmp_path):
    make, steps = SEARCHES[kind], []
    whole = make().fit(SHIFTED, Y)
    first = make(Checkpoint(tmp_path, every=7)).fit(SHIFTED, Y)
    assert equal(first, whole)
    assert len(list(tmp_path.iterdir())) == 1
    again = make(Checkpoint(tmp_path), steps.append).fit(SHIFTED, Y)
    assert equal(again, whole)
    assert steps == []
    if kind == "fine-tuning":
        assert again.fine_tuning_.keys() == whole.fine_tuning_.keys()
        assert all(np.array_equal(column, whole.fine_tuning_[name]) for name, column in again.fine_tuning_.items())


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_that_was_broken_off_begins_again(kind, tmp_path):
    def broken(seen):
        raise OSError("broken off")

    make = SEARCHES[kind]
    with pytest.raises(OSError, match="broken off"):
        make(Checkpoint(tmp_path), broken).fit(SHIFTED, Y)
    assert list(tmp_path.iterdir()) == []
    assert equal(make(Checkpoint(tmp_path)).fit(SHIFTED, Y), make().fit(SHIFTED, Y))


@pytest.mark.parametrize("others", [[EarlyStopping("loss", 3)], [WeightAveraging(0.2)]], ids=["stopping", "averaging"])
def test_a_search_ends_as_its_callbacks_end_it_each_time(others, tmp_path):
    whole = lbfgs(*others).fit(X, Y)
    assert equal(lbfgs(*others, Checkpoint(tmp_path)).fit(X, Y), whole)
    assert equal(lbfgs(*others, Checkpoint(tmp_path)).fit(X, Y), whole)


def test_validation_and_warm_starts_of_a_search(tmp_path):
    settings = {"early_stopping": True, "n_iter_no_change": 2, "warm_start": True, "max_iter": 4}
    whole = lbfgs(**settings).fit(X, Y).fit(X, Y)
    for _ in range(2):
        assert equal(lbfgs(Checkpoint(tmp_path), **settings).fit(X, Y).fit(X, Y), whole)


@pytest.mark.long
def test_fine_tuning_with_other_rows_does_not_take_the_file(tmp_path):
    old = [{}, {"X_old": X[::2], "y_old": Y[::2]}, {"X_old": X[1::2], "y_old": Y[1::2]}]
    for number, more in enumerate(old):
        found = fine_tuned(Checkpoint(tmp_path), finetune=FineTuner()).fit(SHIFTED[::5], Y[::5], **more)
        assert equal(found, fine_tuned(finetune=FineTuner()).fit(SHIFTED[::5], Y[::5], **more))
        assert len(list(tmp_path.iterdir())) == number + 1


def test_equal_calls_without_random_state_are_one_training(tmp_path):
    first = net(Checkpoint(tmp_path), random_state=None, early_stopping=True).fit(X, Y)
    steps: list[object] = []
    again = net(Checkpoint(tmp_path), steps.append, random_state=None, early_stopping=True).fit(X, Y)
    assert equal(again, first)
    assert steps == []
    assert equal(net(random_state=drawn_seed(tmp_path), early_stopping=True).fit(X, Y), first)
    other = net(Checkpoint(tmp_path, resume=False), random_state=None, early_stopping=True).fit(X, Y)
    assert not equal(other, first)
    assert not equal(net(Checkpoint(tmp_path), random_state=None).fit(X, Y), first)
    assert not equal(net(Checkpoint(tmp_path), random_state=None, early_stopping=True).fit(SHIFTED, Y), first)


@pytest.mark.long
def test_without_random_state_passes_and_searches_go_on(tmp_path):
    def passes(*callbacks):
        estimator = net(*callbacks, random_state=None)
        return estimator.partial_fit(X, Y, classes=[0, 1]).partial_fit(X, Y)

    assert equal(passes(Checkpoint(tmp_path / "passes")), passes(Checkpoint(tmp_path / "passes")))
    candidate = net(Checkpoint(tmp_path / "search"), random_state=None, max_iter=2)
    search = GridSearchCV(candidate, {"alpha": [0.0, 0.1]}, cv=2)
    scores = [search.fit(X, Y).cv_results_["mean_test_score"].tolist() for _ in range(2)]
    assert scores[0] == scores[1]


def test_without_random_state_a_recipe_goes_on(tmp_path):
    def table(*callbacks, **more):
        return RealMLPClassifier(hidden_layer_sizes=(4,), variant="td-s", max_iter=2, callbacks=list(callbacks), **more)

    first, steps = table(Checkpoint(tmp_path)).fit(X, Y), []
    again = table(Checkpoint(tmp_path), steps.append).fit(X, Y)
    assert steps == []
    assert np.array_equal(again.predict_proba(X), first.predict_proba(X))
    fixed = table(random_state=drawn_seed(tmp_path)).fit(X, Y)
    assert np.array_equal(fixed.predict_proba(X), first.predict_proba(X))


@pytest.mark.long
def test_plain_training_of_fitted_models_goes_on(tmp_path):
    steps: list[object] = []
    first = plain(Checkpoint(tmp_path)).fit(X, Y)
    assert equal(plain(Checkpoint(tmp_path), steps.append).fit(X, Y), first)
    assert steps == []


def test_regressor_search_resumes(tmp_path):
    data = line()
    estimator = OrtGradientRegressor(optimizer="lbfgs", callbacks=[Checkpoint(tmp_path)], max_iter=5)
    curve = estimator.fit(*data).loss_curve_
    assert estimator.fit(*data).loss_curve_ == curve
    assert len(without_seconds(estimator.history_)) == len(curve)


@one_case
@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_that_is_killed_finds_the_same_weights(kind, tmp_path):
    whole = SEARCHES[kind]().fit(SHIFTED, Y)
    for number, seconds in enumerate(np.random.default_rng(0).uniform(0, 0.3, 4)):
        folder = tmp_path / str(number)
        _kill(kind, folder, seconds)
        assert equal(SEARCHES[kind](Checkpoint(folder)).fit(SHIFTED, Y), whole)


def _kill(kind: str, folder: Path, seconds: float) -> None:
    """Fit in a child process that is killed after some seconds."""
    child = os.fork()
    if child == 0:
        try:
            SEARCHES[kind](Checkpoint(folder)).fit(SHIFTED, Y)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
