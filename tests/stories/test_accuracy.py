"""Equal settings lead to the accuracy of scikit-learn's MLP, over several seeds, on real data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.selection import one_case

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SEEDS = range(3)


def mean_scores(load: Callable[..., tuple[np.ndarray, np.ndarray]], *make: Callable[[int], object]) -> list[float]:
    """Return the mean test score of each kind of estimator over the seeds, each a split and an initialisation."""
    X, y = load(return_X_y=True)
    scores = np.zeros((len(SEEDS), len(make)))
    for seed in SEEDS:
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=seed)
        for k, kind in enumerate(make):
            scores[seed, k] = make_pipeline(StandardScaler(), kind(seed)).fit(X_train, y_train).score(X_test, y_test)
    return scores.mean(axis=0).tolist()


@pytest.mark.slow
@one_case
@pytest.mark.parametrize(
    ("load", "least", "settings"),
    [
        (load_breast_cancer, 0.9, {"max_iter": 30, "batch_size": 32}),
        (load_digits, 0.9, {"max_iter": 40, "batch_size": 64}),
    ],
)
def test_classification(load, least, settings):
    shared = {"learning_rate_init": 1e-3, "alpha": 1e-4, "tol": 1e-4, **settings}
    ours, peer = mean_scores(
        load,
        lambda seed: OrtGradientClassifier(MLP((64,)), optimizer="adam", random_state=seed, **shared),
        lambda seed: MLPClassifier((64,), solver="adam", random_state=seed, **shared),
    )
    assert ours > least
    assert abs(ours - peer) < 0.02  # 0.001 and 0.002 on one processor


# The loss of scikit-learn's MLP has a factor of one half; Adam does not see the scale of a loss.
@pytest.mark.slow
@one_case
@pytest.mark.parametrize(
    ("optimizer", "width", "alpha", "settings"),
    [
        ("adam", 32, 1e-4, {"learning_rate_init": 0.02, "max_iter": 60, "batch_size": 32}),
        ("lbfgs", 16, 300.0, {"max_iter": 1000}),
    ],
)
def test_regression(optimizer, width, alpha, settings):
    peer_settings = {"hidden_layer_sizes": (width,), "solver": optimizer, "alpha": alpha, **settings}
    ours, peer = mean_scores(
        load_diabetes,
        lambda seed: OrtGradientRegressor(
            MLP((width,)), optimizer=optimizer, alpha=2 * alpha, random_state=seed, target_scaling=None, **settings
        ),
        lambda seed: MLPRegressor(random_state=seed, **peer_settings),
    )
    assert ours > 0.3
    assert abs(ours - peer) < 0.04  # 0.011 and 0.017 on one processor: the two minima of L-BFGS differ by rounding
