"""Training that is interrupted, fails or diverges leaves a usable estimator."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.trainer import CHECKED_AT_ONCE, SINGLE_THREAD_LENGTH, is_finite
from onnxtrain_sklearn.exceptions import DivergenceError
from onnxtrain_sklearn.schedules import Progress, Schedule
from tests.helpers.data import blobs, line
from tests.helpers.training import NEVER, small, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Interrupting(Schedule):
    """Raise at a step."""

    def __init__(self, at: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at = at
        self.error = error

    def factor(self, progress: Progress) -> float:
        if progress.step == self.at:
            raise self.error("at this step")
        return 1.0


@pytest.mark.parametrize("at", [0, 1, 6])
def test_interruption_keeps_the_weights_reached(at):
    X, y = blobs()  # four steps an epoch
    with pytest.warns(UserWarning, match="interrupted") as caught:
        estimator = small(learning_rate=Interrupting(at)).fit(X, y)
    assert caught[0].filename == __file__
    assert estimator.n_iter_ == at // 4 == len(estimator.loss_curve_)
    assert estimator.predict(X).shape == (120,)
    initial = small(learning_rate_init=0, max_iter=1).fit(X, y)
    assert weights_equal(estimator, initial) == (at == 0)
    estimator.set_params(learning_rate="constant", warm_start=True).fit(X, y)
    assert estimator.n_iter_ == at // 4 + 5


def test_interruption_of_partial_fit_leaves_a_usable_estimator():
    X, y = blobs()
    estimator = small(learning_rate=Interrupting(2))
    with pytest.warns(UserWarning, match="interrupted"):
        estimator.partial_fit(X, y, classes=[0, 1])
    estimator.predict(X)
    estimator.set_params(learning_rate="constant").partial_fit(X, y)
    assert estimator.n_iter_ == 1


def test_interruption_with_early_stopping_restores_the_best_weights():
    X, y = blobs(300)
    estimator = small(early_stopping=True, max_iter=50, learning_rate=Interrupting(24), learning_rate_init=0.5)
    with pytest.warns(UserWarning, match="interrupted"):
        estimator.fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert estimator.score(X[200:], y[200:]) == max(estimator.validation_scores_)


def test_interruption_of_lbfgs_keeps_the_iterations_done(monkeypatch):
    X, y = blobs()
    calls, gradients = [], HostStep.compute_gradients

    def counted(step, weight):
        calls.append(weight)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return gradients(step, weight)

    monkeypatch.setattr(HostStep, "compute_gradients", counted)
    with pytest.warns(UserWarning, match="interrupted"):
        estimator = small(optimizer="lbfgs", alpha=0, max_iter=50).fit(X, y)
    assert 0 < estimator.n_iter_ < 8
    monkeypatch.undo()
    p = np.clip(estimator.predict_proba(X)[np.arange(120), y], 1e-7, 1)
    assert_allclose(-np.log(p).mean(), estimator.loss_, rtol=1e-4)


def test_an_error_in_the_first_fit_leaves_the_estimator_unfitted():
    X, y = blobs()
    estimator = small(learning_rate=Interrupting(2, RuntimeError))
    before = dict(vars(estimator))
    with pytest.raises(RuntimeError, match="at this step"):
        estimator.fit(X, y)
    assert vars(estimator) == before


def test_an_error_on_the_way_goes_back_to_the_call_before():
    X, y = blobs()
    estimator = small().fit(X, y)
    expected = estimator.predict_proba(X)
    estimator.set_params(learning_rate=Interrupting(22, RuntimeError))
    with pytest.raises(RuntimeError, match="at this step"):
        estimator.partial_fit(X, y)
    assert_array_equal(estimator.predict_proba(X), expected)
    with pytest.raises(RuntimeError, match="at this step"):
        estimator.set_params(learning_rate=Interrupting(3, RuntimeError)).fit(X, y)
    assert_array_equal(estimator.predict_proba(X), expected)


def test_epochs_done_before_an_error_do_not_count():
    X, y = blobs()
    estimator, twin = (small(warm_start=True).fit(X, y) for _ in range(2))
    with pytest.raises(RuntimeError, match="at this step"):
        estimator.set_params(learning_rate=Interrupting(20 + 9, RuntimeError)).fit(X, y)
    assert weights_equal(estimator, twin)
    assert estimator.loss_curve_ == twin.loss_curve_
    assert weights_equal(estimator.set_params(learning_rate="constant").fit(X, y), twin.fit(X, y))


def test_divergence_in_the_first_epoch():
    X, y = line()
    estimator = OrtGradientRegressor(
        MLP((8,)), optimizer="sgd", learning_rate_init=1e4, batch_size=16, max_iter=20, random_state=0
    )
    with pytest.raises(DivergenceError, match=r"epoch 1 .*StandardScaler.*learning_rate_init.*max_grad_norm") as caught:
        estimator.fit(X, y)
    assert caught.value.loss_curve == []
    initial = clone(estimator).set_params(learning_rate_init=0.0, max_iter=1).fit(X, y)
    assert weights_equal(estimator, initial)
    assert estimator.n_iter_ == 0
    estimator.set_params(learning_rate_init=0.01)
    for _ in range(20):
        estimator.partial_fit(X, y)
    assert estimator.score(X, y) > 0.8


def test_later_divergence_keeps_curve_and_restores_last_epoch():
    X, y = line()
    steps = SGD(momentum=0.9)
    estimator = OrtGradientRegressor(MLP((8,)), optimizer=steps, learning_rate_init=0.01, tol=NEVER, random_state=0)
    good = clone(estimator).set_params(max_iter=3).fit(X, y)
    estimator.set_params(learning_rate=Jump(3))
    with pytest.raises(DivergenceError) as caught:
        estimator.fit(X, y)
    assert caught.value.loss_curve[:3] == good.loss_curve_
    assert caught.value.loss_curve == estimator.loss_curve_
    assert np.isfinite(estimator.predict(X)).all()
    assert all(np.isfinite(array).all() for array in estimator.weights_.values())


class Jump(Schedule):
    """A rate that is far too high from one epoch on."""

    def __init__(self, epoch: int = 3, height: float = 1e30) -> None:
        self.epoch = epoch
        self.height = height

    def factor(self, progress: Progress) -> float:
        return self.height if progress.epoch >= self.epoch else 1.0


def test_divergence_after_changed_trainable_restores_weights():
    X, y = line(32, 6)
    estimator = OrtGradientRegressor(MLP((6, 6)), optimizer="sgd", learning_rate_init=0.01, trainable="layers.0.bias")
    for _ in range(2):
        estimator.set_params(random_state=0).partial_fit(X, y)
    before = estimator.weights_
    estimator.set_params(trainable="layers.1.bias", learning_rate=Jump(0, 1e300))
    with pytest.raises(DivergenceError):
        estimator.partial_fit(X, y)
    for name, array in before.items():
        assert_array_equal(estimator.weights_[name], array)


def test_weights_spoilt_by_the_last_step_of_an_epoch_are_noticed():
    X, y = line(32)
    estimator = OrtGradientRegressor(
        Linear(), optimizer="sgd", learning_rate_init=1.0, learning_rate=Jump(0, 1e300), batch_size=32, random_state=0
    )
    with pytest.raises(DivergenceError):
        estimator.partial_fit(X, y)
    assert np.isfinite(estimator.predict(X)).all()
    assert estimator.loss_curve_ == []


@pytest.mark.parametrize("initialization", ["zeros", "glorot_uniform"])  # the first loss is finite from zeros
def test_divergence_of_lbfgs(initialization):
    X, y = line()
    X[3] = 1e30
    model = Linear(initialization=initialization)
    estimator = OrtGradientRegressor(model, optimizer="lbfgs", target_scaling=None, random_state=0)
    with pytest.raises(DivergenceError), np.errstate(all="ignore"):
        estimator.fit(X, y)
    assert all(np.isfinite(array).all() for array in estimator.weights_.values())


def test_a_second_moment_that_overflows_is_noticed():
    X, y = blobs()
    graph = Linear().build(X.shape[1], 1)  # a builder's graph would divide the rows
    estimator = OrtGradientClassifier(graph, optimizer="adam", max_iter=3)
    with pytest.raises(DivergenceError, match="optimizer's state"):
        estimator.fit(X * np.float32(1e30), y)


def test_clipping_prevents_divergence():
    X, y = line()
    settings = {"optimizer": "sgd", "learning_rate_init": 0.5, "max_iter": 10, "tol": NEVER, "random_state": 0}
    settings["target_scaling"] = None  # else the graph scales the rows
    with pytest.raises(DivergenceError):
        OrtGradientRegressor(Linear(), **settings).fit(X * 100, y)
    OrtGradientRegressor(Linear(), **settings).set_params(optimizer__max_grad_norm=1.0).fit(X * 100, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, SINGLE_THREAD_LENGTH, SINGLE_THREAD_LENGTH + 1, CHECKED_AT_ONCE + 3])
def test_nonfinite_number_is_found_at_any_position(dtype, size):
    vector = np.full(size, np.finfo(dtype).max, dtype)  # whose squares are too large
    with np.errstate(all="raise"):
        assert is_finite(vector)
        for place in {0, size // 2, size - 1}:
            for value in (np.nan, np.inf, -np.inf):
                changed = vector.copy()
                changed[place] = value
                assert not is_finite(changed)
                assert not is_finite(np.where(np.arange(size) == place, dtype(value), dtype(0)))
