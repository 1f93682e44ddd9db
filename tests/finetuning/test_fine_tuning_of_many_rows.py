"""Fine-tuning on many rows: the choice sees some of them, the result all."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.observed import wrap_passes

RNG = np.random.RandomState(0)
X = RNG.randn(21_000, 6).astype(np.float32)
NUMBER = X @ [1.0, -2.0, 0.5, 0.0, 3.0, 1.0] + RNG.randn(len(X))
OLD, NEW = slice(0, 1000), slice(1000, None)
DRIFTED = NUMBER + 2 * X[:, 3] + 5


def rows_computed(monkeypatch, fit):
    """Return the number of rows whose gradients ``fit`` computes."""
    batches = []

    def counted(plain, step, *args):
        batches.append(step.batch_size)
        return plain(step, *args)

    wrap_passes(monkeypatch, counted)
    fit()
    return sum(batches)


@pytest.mark.long
def test_the_choice_takes_a_small_part_of_the_work(monkeypatch):
    y = (DRIFTED > 5).astype(int)
    old = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[OLD], NUMBER[OLD] > 0)
    tuned = OrtGradientClassifier(old, finetune=FineTuner(max_iter=10), random_state=0)
    few, many = (rows_computed(monkeypatch, lambda n=n: tuned.fit(X[NEW][:n], y[NEW][:n])) for n in (4000, 20_000))
    assert many < 3 * few


def test_the_result_is_that_of_all_rows():
    old = Ridge().fit(X[OLD], NUMBER[OLD])
    tuned = OrtGradientRegressor(old, random_state=0).fit(X[NEW], DRIFTED[NEW])
    best = np.linalg.lstsq(np.column_stack([X[NEW], np.ones(20_000)]), DRIFTED[NEW], rcond=None)[0]
    assert_allclose(tuned.coef_, best[:-1], atol=0.01)
    assert_allclose(tuned.intercept_, best[-1], atol=0.01)
    part = np.linalg.lstsq(np.column_stack([X[NEW][:4000], np.ones(4000)]), DRIFTED[NEW][:4000], rcond=None)[0]
    assert np.abs(tuned.coef_ - best[:-1]).max() < 0.5 * np.abs(part - best).max()


def test_a_strength_that_is_set_is_kept():
    old = Ridge().fit(X[OLD], NUMBER[OLD])

    def distance(rows):
        tuner = FineTuner(10.0, recalibrate=False)
        tuned = OrtGradientRegressor(old, finetune=tuner, random_state=0).fit(X[rows], DRIFTED[rows])
        return float(np.abs(tuned.coef_ - old.coef_).max())

    few, many = (distance(slice(1000, stop)) for stop in (3500, 21_000))
    assert_allclose(many, few, rtol=0.5)  # less pull would give a multiple


def test_model_is_kept_if_many_rows_agree():
    old = Ridge(alpha=1e-6).fit(X, NUMBER)
    tuned = OrtGradientRegressor(old, finetune=FineTuner(margin=3.0), random_state=0).fit(X, NUMBER)
    assert_array_equal(tuned.coef_, old.coef_.astype(np.float32))


def test_old_rows_beside_many_new_ones():
    old = Ridge().fit(X[OLD], NUMBER[OLD])
    tuner = FineTuner(old_weight=1.0, recalibrate=False, anchor=1.0)
    tuned = OrtGradientRegressor(old, finetune=tuner, random_state=0)
    tuned.fit(X[NEW], DRIFTED[NEW], X_old=X[OLD], y_old=NUMBER[OLD])
    record = tuned.fine_tuning_
    assert record["share"][record["candidate"] == "old rows"].sum() == 1
    rows = np.column_stack([X, np.ones(len(X))])
    weights = np.sqrt(np.r_[np.full(1000, 20.0), np.ones(20_000)])[:, None]
    y = np.r_[NUMBER[OLD], DRIFTED[NEW]]
    best = np.linalg.lstsq(weights * rows, weights[:, 0] * y, rcond=None)[0]
    assert_allclose(tuned.coef_, best[:-1], atol=0.05)
