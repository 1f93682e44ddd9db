"""Scores on validation data equal those of scikit-learn's metrics."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, r2_score

from onnxtrain_sklearn._data.held_out import accuracy, log_loss_of_labels, r_squared, squared_error_of_labels

RNG = np.random.default_rng(0)
TRUTH, FOUND = RNG.normal(size=(50, 3)), RNG.normal(size=(50, 3))
WEIGHTS = [None, RNG.integers(0, 4, 50).astype(np.float32)]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("labels", [np.array([0, 5]), np.array(["a", "bc"]), np.array([False, True])])
def test_accuracy(labels, weights):
    truth, found = labels[(TRUTH[:, 0] > 0).astype(int)], labels[(FOUND[:, 0] > 0).astype(int)]
    assert accuracy(truth, found, weights) == accuracy_score(truth, found, sample_weight=weights)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_accuracy_of_rows_with_several_labels(weights):
    truth, found = (TRUTH > 0).astype(int), (FOUND > -2).astype(int)
    assert 0 < accuracy(truth, found, weights) == accuracy_score(truth, found, sample_weight=weights) < 1


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_errors_of_the_probabilities_of_several_labels(kind, weights):
    truth, p = (TRUTH > 0).astype(int), (1 / (1 + np.exp(-9 * FOUND))).astype(kind)
    p[:4] = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1]])  # as float32 has them, right and wrong ones
    for own, metric, more in (
        (log_loss_of_labels, log_loss, {"labels": [0, 1]}),
        (squared_error_of_labels, brier_score_loss, {"pos_label": 1}),
    ):
        columns = [metric(truth[:, j], p[:, j], sample_weight=weights, **more) for j in range(3)]
        np.testing.assert_allclose(own(truth, p, weights), np.mean(columns), rtol=1e-5)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [0, slice(1), slice(3)])
def test_r_squared(columns, kind, weights):
    truth, found = TRUTH[:, columns].astype(kind), FOUND[:, columns]
    assert r_squared(truth, found, weights) == r2_score(truth, found, sample_weight=weights)


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_r_squared_of_a_constant_target(off):
    truth = np.full((50, 2), 3.0) + TRUTH[:, :2] * np.array([0, 1])
    found = truth + np.array([off, 1])
    assert r_squared(truth, found, None) == r2_score(truth, found)


def test_r_squared_of_one_row():
    with pytest.warns(UserWarning, match="less than two samples"):
        assert np.isnan(r_squared(np.ones(1), np.ones(1), None))
