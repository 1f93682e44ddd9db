"""Plain gradient descent on minibatches in order, to be repeated in NumPy: its settings, slopes of losses, weights."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD

STEPS = {
    "optimizer": SGD(momentum=0.0),
    "learning_rate_init": 0.1,
    "alpha": 0.0,
    "shuffle": False,
    "tol": 0.0,
    "n_iter_no_change": 100,
}


def squared(score, target):
    return 2 * (score - target)


def logistic(score, label):
    return 1 / (1 + np.exp(-score)) - label


def assert_weights(estimator, expected):
    assert sorted(estimator.weights_) == sorted(expected)
    for name, array in expected.items():
        assert_allclose(estimator.weights_[name], array, rtol=2e-5, atol=2e-6)
