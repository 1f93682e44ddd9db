"""The search near an anchor: folds, anchors, the pull towards them and the choice, against references in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from onnxtrain_sklearn import FineTuner, OrtGradientRegressor
from onnxtrain_sklearn._anchored_search.objective import OutputWeights, anchors, no_output_weights
from onnxtrain_sklearn._anchored_search.search import UNUSED, Candidate, Paths, chosen, folds_of, metric, shares
from tests.helpers.fine_tuning import prepared_trainer


@pytest.mark.parametrize(
    ("n_rows", "counts"), [(70, [14] * 5), (2999, [1999, *[200] * 5]), (3000, [2000, 1000]), (9000, [4000, 4000, 1000])]
)
def test_many_rows_are_held_out_once_and_not_all_are_trained_on(n_rows, counts):
    targets = np.random.default_rng(0).normal(size=n_rows)
    folds = folds_of(targets, 7, 5, np.random.RandomState(0))
    assert_array_equal(np.unique(folds, return_counts=True)[1], counts)
    assert (folds == UNUSED).any() == (n_rows > 5000)
    means = [targets[folds == fold].mean() for fold in range(folds.max() + 1)]
    assert_allclose(means, targets[folds >= 0].mean(), atol=0.15 if n_rows == 70 else 0.02)  # targets are spread evenly


def test_fewer_rows_choose_among_many_weights():
    folds = folds_of(np.arange(1200.0), 100_000, 5, np.random.RandomState(0))
    assert_array_equal(np.unique(folds, return_counts=True)[1], [200, 800, 200])


@dataclass
class Quadratic:
    """The mean squared error of a linear model in numpy, in place of a graph's."""

    X: np.ndarray
    y: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.y))

    def __call__(self, vector, weights):
        residuals, total = self.X @ vector - self.y, weights.sum()
        return weights @ residuals**2 / total, 2 * self.X.T @ (weights * residuals) / total


def test_the_end_of_a_path_is_the_minimum_with_the_pull():
    rng = np.random.RandomState(0)
    objective = Quadratic(rng.randn(40, 5), rng.randn(40))
    anchor, scale = rng.randn(5), np.array([1.0, 10.0, 0.1, 1.0, 3.0])
    output = no_output_weights(5)
    paths = Paths(FineTuner(0.01, max_iter=1000), objective, anchor, output, scale)
    (_, start), (_, end) = paths.along("old", anchor, objective.weights, (0.01,))
    loss, gradient = objective(anchor, objective.weights)
    pull = 0.01 * 0.5 * (gradient**2 / scale).sum() / (0.003 * loss)
    hessian = 2 * objective.X.T @ objective.X / 40
    expected = anchor - np.linalg.solve(hessian + pull * np.diag(scale), gradient)
    assert_array_equal(start, anchor)
    assert_allclose(end, expected, atol=2e-3)
    assert np.abs(expected - anchor).max() > 0.1


def test_anchors_are_the_old_weights_with_the_best_shift_and_scale():
    rng = np.random.RandomState(0)
    objective = Quadratic(np.column_stack([rng.randn(50, 2), np.ones(50)]), rng.randn(50) + 2)
    weights, old = rng.rand(50), np.array([1.0, -2.0, 0.5])
    scores = objective.X @ old
    output = OutputWeights(np.ones(3, bool), np.array([[2]]), float(np.sqrt(np.mean(scores**2))))
    found = anchors(objective, old, output, weights)
    mean = np.average(objective.y, weights=weights)
    slope = np.cov(scores, objective.y, aweights=weights)[0, 1] / np.cov(scores, aweights=weights)
    shift = mean - slope * np.average(scores, weights=weights)
    assert_array_equal(found["old"], old)
    assert_allclose(found["shifted"], [1.0, -2.0, 0.5 + mean - np.average(scores, weights=weights)], atol=1e-4)
    assert_allclose(found["rescaled"], [slope, -2 * slope, 0.5 * slope + shift], atol=1e-3)
    assert_allclose(found["zero"], [0.0, 0.0, mean], atol=1e-4)


def test_a_column_in_other_units_counts_by_its_square():
    X, y = load_diabetes(return_X_y=True)
    rows = (X / X.std(axis=0)).astype(np.float32)
    old, new = Ridge().fit(rows[:250], y[:250]), slice(250, 320)
    plain = prepared_trainer(OrtGradientRegressor(old, random_state=0), rows[new], y[new])
    rows = rows * np.where(np.arange(10) == 2, np.float32(1000), np.float32(1))
    old.coef_[2] /= 1000.0
    other = prepared_trainer(OrtGradientRegressor(old, random_state=0), rows[new], y[new])
    first, second = (
        metric(one._objective, one._vector.astype(float), np.random.RandomState(0))[:10] for one in (plain, other)
    )
    assert first.max() / first.min() < 10
    assert second[2] / np.delete(second, 2).mean() > 1000


def test_shares_fall_with_standard_errors_from_the_best():
    sizes, noise, signs = np.ones(20), np.random.RandomState(0).randn(20), np.tile([1.0, -1.0], 10)
    losses = [1 + noise, 1.2 + noise + 0.9 * signs, 9 + noise]
    candidates = [Candidate(name, 1.0, loss) for name, loss in zip("aab", losses, strict=True)]
    found = shares(candidates, sizes, linear=True)
    expected = np.exp(-2 * 0.2 / (0.9 / np.sqrt(20)))
    assert_allclose(found, np.array([1.0, expected, 0.0]) / (1 + expected), rtol=1e-6)
    far = [Candidate("a", 1.0, losses[0]), Candidate("b", 1.0, losses[0] + 0.01 * signs)]
    assert (shares(far, sizes, linear=False) > 0).sum() == 1
    assert (shares(far, sizes, linear=True) > 0).sum() == 2


class Known:
    """Held-out losses that are known, in place of those of a graph."""

    averages = True
    sizes = np.ones(10)

    def losses(self, vectors):
        return vectors[0]

    def mean(self, losses):
        return float(losses.mean())


NOISE = np.tile([1.0, -1.0], 5)


def candidates(old, tuned):
    return [Candidate("old", np.inf, old, [old]), Candidate("old", 1.0, tuned, [tuned])]


@pytest.mark.parametrize(("margin", "taken"), [(0.0, [0, 1]), (0.9, [0, 1]), (1.1, [1, 0])])
def test_the_old_model_stays_unless_it_is_beaten_by_the_margin(margin, taken):
    tuned = 2.0 - 0.1 + 0.1 * np.sqrt(10) * NOISE  # better by one standard error
    found = chosen(candidates(np.full(10, 2.0), tuned), Known(), linear=False, margin=margin)
    assert_array_equal((found.shares > 0.5).astype(int), taken)
    assert_allclose(found.report()["gain"], [0.0, 0.1], atol=1e-9)
    assert_allclose(found.report()["standard_error"], [0.0, 0.1], atol=1e-9)


def test_nothing_is_worse_than_the_old_model_on_the_held_out_rows():
    worse = chosen(candidates(np.full(10, 2.0), 2.01 + NOISE), Known(), linear=True, margin=0.0)
    assert_array_equal(worse.shares, [1.0, 0.0])
    broken = chosen(candidates(np.full(10, 2.0), np.full(10, np.nan)), Known(), linear=True, margin=0.0)
    assert_array_equal(broken.shares, [1.0, 0.0])


def test_recalibration_is_chosen_if_mean_does_not_beat_old_model():
    old, tuned = np.full(10, 2.0), 1.5 + 2 * np.sqrt(10) * NOISE
    shifted = Candidate("shifted", np.inf, old - 0.1, [old - 0.1])
    found = chosen([*candidates(old, tuned), shifted], Known(), linear=False, margin=1.0)
    assert_array_equal(found.shares, [0.0, 0.0, 1.0])
