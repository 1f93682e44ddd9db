"""Ctrl-C, by real signals in processes of their own: a direct fit keeps what it has, a search ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import multiprocessing, os, signal, sys, threading, warnings
from pathlib import Path
import joblib
import numpy as np
from sklearn.ensemble import BaggingRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from onnxtrain_sklearn import MLP, OrtGradientRegressor
from onnxtrain_sklearn.schedules import Schedule

signal.signal(signal.SIGINT, signal.default_int_handler)
fits = Path(sys.argv[1])
X = np.random.RandomState(0).normal(size=(40, 3)).astype(np.float32)
y = X.sum(axis=1)

class Pressed(Schedule):
    def __init__(self, folder=str(fits)):
        self.folder = folder
    def factor(self, progress):
        if progress.step == 0:
            (Path(self.folder) / f"{os.getpid()}-{len(os.listdir(self.folder))}").touch()
        if progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return 1.0

def fresh():
    return OrtGradientRegressor(MLP((3,)), learning_rate=Pressed(), batch_size=20, max_iter=50, random_state=0)

def ends(call):
    try:
        call()
    except KeyboardInterrupt:
        return "interrupted"
    return "returned"

def usable(estimator):
    assert estimator.n_iter_ == len(estimator.loss_curve_) == 2, estimator.n_iter_
    assert np.isfinite(estimator.predict(X)).all()
    return True

warnings.simplefilter("ignore")
grid = {"learning_rate_init": [0.1, 0.01, 0.001]}
"""

CALLS = {
    "fit": ("estimator.fit(X, y)", "returned", True),
    "a loop of fits": ("[estimator.fit(X, y) for _ in range(2)]", "returned", True),
    "pipeline": ("make_pipeline(StandardScaler(), estimator).fit(X, y)", "interrupted", True),
    "search": ("GridSearchCV(estimator, grid, cv=2).fit(X, y)", "interrupted", False),
    "cross-validation": ("cross_val_score(estimator, X, y, cv=2)", "interrupted", False),
    "ensemble": ("BaggingRegressor(estimator, n_estimators=3).fit(X, y)", "interrupted", False),
    "joblib": ("joblib.Parallel(1)([joblib.delayed(estimator.fit)(X, y)])", "interrupted", True),
    "another object with a fit": ("Experiment().fit()", "interrupted", True),
}


@pytest.mark.slow
def test_interrupt_keeps_direct_fit_and_ends_meta_estimator(tmp_path):
    lambdas = ", ".join(f"{name!r}: (lambda: {call}, {end!r}, {kept})" for name, (call, end, kept) in CALLS.items())
    program = f"""
class Experiment:
    def fit(self):
        estimator.fit(X, y)

calls = {{{lambdas}}}
for name, (call, end, trained) in calls.items():
    estimator, before = fresh(), len(os.listdir(fits))
    assert ends(call) == end, name
    assert trained == hasattr(estimator, "n_iter_"), name
    assert not trained or usable(estimator), name
    assert len(os.listdir(fits)) - before == (2 if name == "a loop of fits" else 1), name
"""
    run_program(program, tmp_path)


@pytest.mark.exhaustive
def test_an_interrupt_in_a_worker_ends_the_search(tmp_path):
    program = """
if __name__ == "__main__":
    assert ends(lambda: GridSearchCV(fresh(), grid, cv=2, n_jobs=2).fit(X, y)) == "interrupted"
"""
    run_program(program, tmp_path)


RECIPES = """
from onnxtrain_sklearn import RealMLPRegressor, TabMClassifier
from onnxtrain_sklearn._training.step import HostStep

steps, last = 0, 5
plain = HostStep.compute_gradients

def pressed(step, *args):
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGINT)
    return plain(step, *args)

HostStep.compute_gradients = pressed
labels = np.array(["no", "yes"])[(y > 0).astype(int)]

def fresh_recipes(**settings):
    yield RealMLPRegressor(max_iter=40, batch_size=8, random_state=0, **settings), y
    yield TabMClassifier(max_iter=40, batch_size=8, random_state=0, **settings), labels
"""


FINISHED_MEMBERS = """
from onnxtrain_sklearn._recipes import ensemble
prepare, calls = ensemble.fit_preprocessing, []

def pressed_at_the_third(*args, **settings):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return prepare(*args, **settings)

ensemble.fit_preprocessing = pressed_at_the_third
last = -1
estimator = RealMLPRegressor(max_iter=2, n_ensembles=3, random_state=0)
assert ends(lambda: estimator.fit(X, y)) == "returned"
assert len(estimator.loss_curves_) == 2
assert estimator.n_iter_ == 2
calls[:] = [1, 1]
other = RealMLPRegressor(max_iter=2, random_state=0)
assert ends(lambda: other.fit(X, y)) == "interrupted"
assert not hasattr(other, "n_iter_") and not hasattr(other, "n_features_in_")
"""


@pytest.mark.slow
def test_an_interrupt_keeps_the_training_of_recipes(tmp_path):
    """And the members that are finished, without the one that has not begun; in one process, as it takes a second."""
    program = f"""{RECIPES}
for n_ensembles, last, kept in ((1, 12, 1), (3, 12, 1)):
    for estimator, target in fresh_recipes(n_ensembles=n_ensembles):
        steps = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert ends(lambda: estimator.fit(X, target)) == "returned"
        assert "keeps the weights reached so far" in str(caught[-1].message)
        assert len(estimator.loss_curves_) == kept
        assert 0 < estimator.n_iter_ < 40
        assert len(estimator.predict(X)) == len(X)
        steps = 0
        assert ends(lambda: make_pipeline(StandardScaler(), estimator).fit(X, target)) == "interrupted"
        assert 0 < estimator.n_iter_ < 40
        steps = 0
        assert ends(lambda: GridSearchCV(estimator, {{"n_ensembles": [1, 2]}}, cv=2).fit(X, target)) == "interrupted"
{FINISHED_MEMBERS}"""
    run_program(program, tmp_path)


def run_program(program: str, folder: Path) -> None:
    (folder / "program.py").write_text(HEAD + program, encoding="utf-8")
    (folder / "fits").mkdir()
    command = [sys.executable, str(folder / "program.py"), str(folder / "fits")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
