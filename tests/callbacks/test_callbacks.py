"""Callbacks: called after each epoch, they see what is recorded of it, and may end training."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError
from tests.helpers.data import blobs, line
from tests.helpers.training import NEVER, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
SETTINGS = {"learning_rate_init": 0.01, "max_iter": 6, "batch_size": 32, "tol": NEVER, "random_state": 0}


def net(*callbacks: object, **parameters: object) -> OrtGradientClassifier:
    return OrtGradientClassifier(MLP((6,)), callbacks=list(callbacks), **SETTINGS | parameters)


def at_three(epoch) -> np.bool_:
    return np.int64(epoch.number) == 3


def test_callback_receives_the_recorded_values():
    seen = []
    fitted = net(seen.append, learning_rate="exponential").fit(X, Y, X_val=X, y_val=Y)
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4, 5, 6]
    assert [epoch.loss for epoch in seen] == fitted.loss_curve_
    assert [epoch.validation_score for epoch in seen] == fitted.validation_scores_
    rates = [epoch.learning_rate for epoch in seen]
    assert rates == sorted(set(rates), reverse=True)


def test_without_validation_data_there_is_no_score():
    seen = []
    OrtGradientRegressor(optimizer="lbfgs", callbacks=(seen.append,), max_iter=3).fit(*line())
    assert [epoch.validation_score for epoch in seen] == [None] * 3
    assert [epoch.learning_rate for epoch in seen] == [None] * 3


def test_true_ends_training_and_nothing_is_warned_of(recwarn):
    seen = []
    fitted = net(at_three, seen.append).fit(X, Y)
    assert fitted.n_iter_ == len(seen) == 3
    assert not recwarn
    assert weights_equal(fitted, net(max_iter=3).fit(X, Y))


def test_other_values_end_nothing():
    assert net(lambda epoch: np.ones(3), lambda epoch: "stop").fit(X, Y).n_iter_ == 6


def test_each_partial_fit_calls_hooks():
    seen = []
    passes = net(seen.append)
    for _ in range(2):
        passes.partial_fit(X, Y, classes=[0, 1])
    assert [epoch.number for epoch in seen] == [1, 2]


def test_callback_error_leaves_estimator_unfitted():
    def broken(epoch):
        raise RuntimeError("no disk")

    estimator = net(broken)
    with pytest.raises(RuntimeError, match="no disk"):
        estimator.fit(X, Y)
    assert not hasattr(estimator, "classes_")


def test_callbacks_travel_with_copies():
    fitted = net(at_three).fit(X, Y)
    assert clone(fitted).fit(X, Y).n_iter_ == 3
    assert pickle.loads(pickle.dumps(fitted)).fit(X, Y).n_iter_ == 3
    search = GridSearchCV(net(), {"callbacks": [None, [at_three]]}, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 2


@pytest.mark.parametrize("wrong", [at_three, [3], [print, None], "print", [dict]])
def test_callbacks_other_than_a_list_of_callables_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match=r"'callbacks' parameter .* a list of callables or None"):
        OrtGradientClassifier(callbacks=wrong).fit(X, Y)
