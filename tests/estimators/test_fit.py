"""What fit and partial_fit do: how they go on, when they end, what they restore, print and warn of."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score
from sklearn.neural_network import MLPRegressor

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.schedules import Cosine
from tests.helpers.data import blobs, line
from tests.helpers.observed import forbid_sessions, record_epochs
from tests.helpers.training import NEVER, record_steps, small, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), "adam", "adamw", "rmsprop", "adagrad"])
def test_two_warm_fits_are_one_long_fit(optimizer):
    X, y = blobs()
    long = small(optimizer=optimizer, max_iter=6).fit(X, y)
    warm = small(optimizer=optimizer, max_iter=2, warm_start=True).fit(X, y).fit(X, y).fit(X, y)
    assert weights_equal(long, warm)
    assert long.loss_curve_ == warm.loss_curve_
    assert warm.n_iter_ == 6
    assert warm.t_ == 6 * len(X)


def test_a_warm_fit_learns_harder_data_than_before():
    X, y = line(200)
    estimator = OrtGradientRegressor(Linear(), learning_rate_init=0.02, max_iter=500, warm_start=True, random_state=0)
    estimator.fit(X, y)
    estimator.fit(X, 5 * y)
    assert estimator.score(X, 5 * y) > 0.95
    assert estimator.best_loss_ == min(estimator.loss_curve_)


def test_fit_without_warm_start_restarts():
    X, y = blobs()
    once, twice = small().fit(X, y), small().fit(X, y).fit(X, y)
    assert weights_equal(once, twice)
    assert twice.n_iter_ == 5


def test_passes_of_partial_fit_are_epochs_of_fit():
    X, y = blobs()
    whole, passes = small(max_iter=4, alpha=0.5).fit(X, y), small(max_iter=4, alpha=0.5)
    for _ in range(4):
        passes.partial_fit(X, y, classes=[0, 1])
    assert weights_equal(whole, passes)
    assert whole.loss_curve_ == passes.loss_curve_


def test_fit_after_partial_fit_restarts():
    X, y = blobs()
    assert weights_equal(small().fit(X, y), small().partial_fit(X, y, classes=[0, 1]).fit(X, y))


def test_fit_takes_other_classes_and_other_features_than_before():
    estimator = small().fit(*blobs(classes=2))
    estimator.fit(*blobs(features=7, classes=4))
    assert estimator.n_features_in_ == 7
    assert estimator.classes_.tolist() == [0, 1, 2, 3]
    assert estimator.predict_proba(blobs(features=7)[0]).shape == (120, 4)


def test_partial_fit_learns_from_a_stream_of_parts():
    X, y = blobs(600)
    estimator = small(learning_rate_init=0.02)
    for _ in range(5):
        for start in range(0, 600, 100):
            estimator.partial_fit(X[start : start + 100], y[start : start + 100], classes=[0, 1])
    assert estimator.score(X, y) > 0.9
    assert estimator.n_iter_ == 30


def test_no_session_is_made_after_the_first_partial_fit(monkeypatch):
    X, y = blobs()
    estimator = small().partial_fit(X, y, classes=[0, 1])
    forbid_sessions(monkeypatch)
    for size in (120, 32, 7, 1, 120):
        estimator.partial_fit(X[:size], y[:size])


def test_smaller_minibatches_are_not_padded_to_earlier_sizes():
    X, y = blobs()
    estimator = small(batch_size=100, warm_start=True).fit(X, y)
    estimator.set_params(batch_size=10).fit(X, y)
    assert estimator._state.live.step.batch_size == 10
    estimator.set_params(batch_size=5).partial_fit(X, y)
    assert estimator._state.live.step.batch_size == 5


def test_a_full_batch_of_growing_variety_needs_no_new_session(monkeypatch):
    X, y = blobs(64)
    estimator = small(batch_size=64).partial_fit(np.repeat(X[:16], 4, axis=0), np.repeat(y[:16], 4), classes=[0, 1])
    forbid_sessions(monkeypatch)
    estimator.partial_fit(X, y)


def test_changed_learning_rate_takes_effect(monkeypatch):
    X, y = blobs(32)
    steps = record_steps(monkeypatch)
    estimator = small().partial_fit(X, y, classes=[0, 1])
    estimator.set_params(learning_rate_init=0.5).partial_fit(X, y)
    assert steps.rates == [0.01, 0.5]


def test_changed_alpha_takes_effect():
    X, y = blobs()
    plain, penalized = (small(optimizer="sgd").partial_fit(X, y, classes=[0, 1]) for _ in range(2))
    plain.partial_fit(X, y)
    penalized.set_params(alpha=100.0).partial_fit(X, y)
    assert np.linalg.norm(penalized.weights_["layers.0.weight"]) < np.linalg.norm(plain.weights_["layers.0.weight"])


def test_changed_loss_takes_effect():
    X, y = blobs()
    estimator = small().partial_fit(X, y, classes=[0, 1])
    before = estimator.loss_
    estimator.set_params(loss="hinge", learning_rate_init=0.0).partial_fit(X, y)
    margin = (2 * y - 1) * estimator.decision_function(X)
    assert_allclose(estimator.loss_, np.maximum(0, 1 - margin).mean(), rtol=1e-5)
    assert estimator.loss_ != before
    assert not hasattr(estimator, "predict_proba")


def test_changed_optimizer_takes_effect():
    X, y = blobs(32)
    estimator = small().partial_fit(X, y, classes=[0, 1])
    before, bias = estimator.weights_, estimator.weights_["layers.1.bias"]
    p = estimator.predict_proba(X)[:, 1]
    estimator.set_params(optimizer="sgd", learning_rate_init=1.0).partial_fit(X, y)
    assert_allclose(estimator.weights_["layers.1.bias"], bias - (p - y).mean(), rtol=1e-4)
    assert before.keys() == estimator.weights_.keys()


def test_changed_trainable_resets_the_optimizer():
    X, y = blobs(32)
    estimator = small(optimizer=SGD(momentum=0.9), trainable=["layers.0.bias"], learning_rate_init=0.1)
    for _ in range(3):
        estimator.partial_fit(X, y, classes=[0, 1])
    frozen = estimator.weights_
    estimator.set_params(trainable="layers.1.*").partial_fit(X, y)
    for name, before in frozen.items():
        changed = not np.array_equal(estimator.weights_[name], before)
        assert changed == name.startswith("layers.1")


def test_momentum_is_not_moved_to_another_parameter():
    X, y = blobs(32, features=6)
    settings = {"learning_rate_init": 0.1, "batch_size": 32, "random_state": 0, "trainable": "layers.0.bias"}
    estimator = OrtGradientClassifier(MLP((6, 6)), optimizer=SGD(momentum=0.9), **settings)
    for _ in range(5):
        estimator.partial_fit(X, y, classes=[0, 1])
    plain = copy.deepcopy(estimator).set_params(optimizer="sgd")
    for each in (estimator, plain):
        each.set_params(trainable="layers.1.bias").partial_fit(X, y)
    assert weights_equal(estimator, plain)  # the first step of a momentum is a plain one


def sklearn_start(X: np.ndarray, y: np.ndarray) -> tuple[onnx.ModelProto, MLPRegressor]:
    """Return a scikit-learn MLP's initial weights as a graph, and the MLP."""
    settings = {"hidden_layer_sizes": (5,), "solver": "sgd", "momentum": 0.0, "alpha": 0.0, "shuffle": False}
    settings |= {"batch_size": len(X), "learning_rate_init": 1e-30, "max_iter": 1, "random_state": 3}
    peer = MLPRegressor(**settings).fit(X, y)
    graph = MLP((5,)).build(X.shape[1], 1)
    arrays = {"layers.0.weight": peer.coefs_[0], "layers.0.bias": peer.intercepts_[0]}
    arrays |= {"layers.1.weight": peer.coefs_[1], "layers.1.bias": peer.intercepts_[1]}
    for initializer in graph.graph.initializer:
        array = arrays[initializer.name].astype(np.float32)
        initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return graph, peer


@pytest.mark.parametrize("learning_rate", ["constant", "adaptive"])
@pytest.mark.parametrize(("tol", "patience"), [(1e-2, 1), (1e-3, 3), (3e-4, 10)])
def test_training_ends_where_scikit_learns_does(learning_rate, tol, patience):
    X, y = line()
    graph, peer = sklearn_start(X, y)
    shared = {"max_iter": 500, "n_iter_no_change": patience, "learning_rate": learning_rate}
    peer.set_params(learning_rate_init=0.2, tol=tol, **shared).fit(X, y)
    # Its loss has a factor of one half.
    ours = OrtGradientRegressor(
        graph, optimizer="sgd", learning_rate_init=0.1, tol=2 * tol, batch_size=len(X), **shared
    )
    ours.fit(X, y)
    assert 5 < ours.n_iter_ < 500
    assert ours.n_iter_ == peer.n_iter_
    assert_allclose(ours.loss_curve_, 2 * np.array(peer.loss_curve_), rtol=1e-4)


def test_a_loss_that_does_not_fall_ends_after_the_patience():
    X, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        estimator = small(learning_rate_init=0.0, tol=1e-4, n_iter_no_change=3, max_iter=50, shuffle=False).fit(X, y)
    assert estimator.n_iter_ == 5


def test_ending_exactly_at_max_iter_by_patience_is_no_reason_to_warn():
    X, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        small(learning_rate_init=0.0, tol=1e-4, n_iter_no_change=3, max_iter=5, shuffle=False).fit(X, y)


def test_running_out_of_epochs_warns_at_the_callers_line():
    with pytest.warns(ConvergenceWarning, match="max_iter=5 epochs") as caught:
        small().fit(*blobs())
    assert caught[0].filename == __file__


def test_partial_fit_never_warns_of_convergence():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        small(max_iter=1).partial_fit(*blobs(), classes=[0, 1])


def test_best_weights_on_given_validation_data_are_restored():
    X, y = blobs(300)
    settings = {"learning_rate_init": 0.3, "max_iter": 30, "n_iter_no_change": 5, "tol": 1e-4}
    estimator = small(early_stopping=True, scoring="accuracy", **settings)
    estimator.fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    scores = estimator.validation_scores_
    assert len(scores) == estimator.n_iter_
    assert estimator.best_validation_score_ == max(scores) > scores[-1]
    assert estimator.score(X[200:], y[200:]) == max(scores)
    assert estimator.best_loss_ is None


def test_scores_are_those_of_predict_after_each_epoch():
    X, y = blobs(300)
    estimator = small(max_iter=4).fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    replay = small(max_iter=1, warm_start=True)
    scores = [replay.fit(X[:200], y[:200]).score(X[200:], y[200:]) for _ in range(4)]
    assert estimator.validation_scores_ == scores
    assert weights_equal(estimator, replay)  # without early_stopping the last weights stay


def test_scores_of_a_regressor_are_r2():
    X, y = line(200, outputs=2)
    estimator = OrtGradientRegressor(MLP((4,)), max_iter=3, tol=NEVER, random_state=0)
    estimator.fit(X[:150], y[:150], X_val=X[150:], y_val=y[150:])
    assert_allclose(estimator.validation_scores_[-1], estimator.score(X[150:], y[150:]), rtol=1e-6)


def test_validation_weights_count():
    X, y = blobs(200)
    weights = np.where(y[100:] == 1, 3.0, 0.5)
    estimator = small(max_iter=2)
    estimator.fit(X[:100], y[:100], X_val=X[100:], y_val=y[100:], sample_weight_val=weights)
    expected = accuracy_score(y[100:], estimator.predict(X[100:]), sample_weight=weights)
    assert_allclose(estimator.validation_scores_[-1], expected, rtol=1e-12)


def test_a_split_for_early_stopping_is_held_out_and_stratified():
    X, y = blobs(200)
    y[:] = (np.arange(200) % 10 == 0).astype(int)
    held_out = []

    def accuracy(estimator, X, y):
        held_out[:] = X, y
        return accuracy_score(y, estimator.predict(X))

    settings = {"early_stopping": True, "validation_split": 0.2, "max_iter": 20, "n_iter_no_change": 3, "tol": 1e-4}
    estimator = small(scoring=accuracy, **settings).fit(X, y)
    assert len(held_out[1]) == 40
    assert held_out[1].sum() == 4
    assert estimator.score(*held_out) == estimator.best_validation_score_
    assert estimator.t_ == 160 * estimator.n_iter_


def test_without_improvement_of_the_score_training_ends():
    X, y = blobs(200)
    estimator = small(early_stopping=True, learning_rate_init=0.0, max_iter=50, n_iter_no_change=4, tol=1e-4).fit(X, y)
    assert estimator.n_iter_ == 6


def test_warm_start_does_not_lose_the_best_weights():
    X, y = blobs(300)
    estimator = small(early_stopping=True, warm_start=True, max_iter=5, learning_rate_init=0.05)
    estimator.fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    best = estimator.best_validation_score_
    estimator.set_params(learning_rate_init=5.0).fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert estimator.best_validation_score_ >= best
    assert estimator.score(X[200:], y[200:]) == estimator.best_validation_score_


def test_the_best_score_of_other_validation_data_does_not_count():
    X, y = blobs(300)
    estimator = small(early_stopping=True, warm_start=True, max_iter=5, learning_rate_init=0.05)
    estimator.fit(X, y, X_val=X[:1], y_val=estimator.fit(X, y).predict(X[:1]))
    assert estimator.best_validation_score_ == 1.0
    estimator.fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert estimator.score(X[200:], y[200:]) == estimator.best_validation_score_


def test_verbose_prints_a_line_per_epoch(capsys):
    X, y = blobs()
    small(verbose=2, max_iter=3, learning_rate=Cosine()).fit(X, y, X_val=X, y_val=y)
    described, _, text = capsys.readouterr().out.partition("\n epoch")
    assert described.splitlines()[0].startswith("MLP(")
    header, *lines = f" epoch{text}".splitlines()
    assert header.split() == ["epoch", "loss", "validation", "rate", "seconds"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert all(float(line.split()[3]) > 0 for line in lines)  # rates that were used


def test_quiet_by_default(capfd):
    small().fit(*blobs()).predict(blobs()[0])
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_equal_seeds_give_equal_bits():
    X, y = blobs()
    a, b = small(early_stopping=True).fit(X, y), small(early_stopping=True).fit(X, y)
    assert weights_equal(a, b)
    assert a.loss_curve_ == b.loss_curve_
    assert a.validation_scores_ == b.validation_scores_


def test_other_seeds_give_other_weights():
    X, y = blobs()
    assert not weights_equal(small(random_state=0).fit(X, y), small(random_state=1).fit(X, y))


def test_no_seed_differs_from_run_to_run():
    X, y = blobs()
    assert not weights_equal(small(random_state=None).fit(X, y), small(random_state=None).fit(X, y))


def test_generators_in_equal_states_give_equal_bits():
    X, y = blobs()
    rng = np.random.RandomState(5)
    a, b = small(random_state=np.random.RandomState(5)).fit(X, y), small(random_state=rng).fit(X, y)
    assert weights_equal(a, b)
    assert not weights_equal(a, small(random_state=rng).fit(X, y))


def test_shuffling_draws_a_new_order_for_every_epoch(monkeypatch):
    X = np.arange(40, dtype=np.float32).reshape(-1, 1)
    orders = record_epochs(monkeypatch)
    for shuffle in (True, False):
        orders.clear()
        estimator = OrtGradientRegressor(Linear(), batch_size=16, shuffle=shuffle, max_iter=2, tol=NEVER)
        estimator.fit(X, X.ravel())
        epochs = [np.concatenate(epoch) for epoch in orders]
        assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
        assert np.array_equal(*epochs) is not shuffle


def test_a_rate_of_zero_leaves_every_bit():
    X, y = blobs()
    graph = MLP((6,)).build(5, 1, 0)
    for optimizer in ("sgd", "adam", "adamw", "rmsprop", "adagrad"):
        fitted = OrtGradientClassifier(graph, optimizer=optimizer, learning_rate_init=0, max_iter=2).fit(X, y)
        for initializer in graph.graph.initializer:
            assert_array_equal(onnx.numpy_helper.to_array(initializer), fitted.weights_[initializer.name])
