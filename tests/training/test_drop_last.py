"""Epochs that leave out the rows that do not fill a minibatch: against a reference in numpy, and in all loops."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor, load_training, schedules
from onnxtrain_sklearn.callbacks import Checkpoint
from tests.helpers.environment import each_engine
from tests.helpers.network import largest_error, trained
from tests.helpers.observed import record_epochs, trained_on_device
from tests.helpers.step_options import configured
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER, weights_equal
from tests.helpers.training_graphs import Folder

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(50, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=50)).astype(np.float32)
WEIGHTS = rng.uniform(0.05, 3.0, 50)
TOLERANCE = 1e-4
EPOCHS = 4


def regressor(model=None, **settings):
    defaults = {"learning_rate_init": 0.01, "max_iter": EPOCHS, "batch_size": 12, "tol": NEVER, "drop_last": True}
    return configured(OrtGradientRegressor(model or mlp()), **defaults | {"random_state": 0} | settings)


@pytest.fixture
def passes(monkeypatch):
    """The rows of the minibatches of each epoch, as they are trained on."""
    return record_epochs(monkeypatch)


@each_engine
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("size", [12, 40])
def test_shuffled_epochs_are_those_of_numpy(size, accumulate, engine, where, passes):
    """Fifty rows: four minibatches of twelve, and one of forty whose rows differ from epoch to epoch."""
    settings = {"batch_size": size, "optimizer__accumulate": accumulate, "alpha": 0.5, "engine": engine}
    fitted = regressor(learning_rate="cosine", **settings).fit(X, y, WEIGHTS)
    assert trained_on_device(fitted) == (where == "device")
    count = 50 // size
    assert [[len(rows) for rows in one] for one in passes] == [[size] * count] * EPOCHS
    orders = [np.concatenate(one) for one in passes]
    assert len({tuple(np.sort(order)) for order in orders}) == EPOCHS
    steps = -(-count // accumulate)
    expected, losses = trained(
        mlp_weights(), X, y, rate=0.01, batch=size * accumulate, epochs=EPOCHS, sample_weight=WEIGHTS, alpha=0.5,
        decay=0.01, orders=orders, rate_at=lambda t: (1 + np.cos(np.pi * t / (EPOCHS * steps))) / 2,
    )  # fmt: skip
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    assert_allclose(fitted.loss_curve_, losses, rtol=1e-5)
    assert fitted._state.optimizer_state.t == EPOCHS * steps
    assert fitted.t_ == EPOCHS * count * size


def test_without_shuffling_the_last_rows_are_never_seen(where):
    whole = regressor(shuffle=False).fit(X, y, WEIGHTS)
    first = regressor(shuffle=False, drop_last=False).fit(X[:48], y[:48], WEIGHTS[:48])
    assert weights_equal(whole, first)
    assert_allclose(whole.loss_curve_, first.loss_curve_, rtol=1e-12)
    assert not weights_equal(whole, regressor(shuffle=False, drop_last=False).fit(X, y, WEIGHTS))


@pytest.mark.parametrize("rows", [1, 11, 12, 48], ids="{} rows".format)
def test_full_minibatches_and_too_few_rows_are_trained(rows):
    one, other = (regressor(drop_last=drop).fit(X[:rows], y[:rows]) for drop in (True, False))
    assert weights_equal(one, other)
    assert one.loss_curve_ == other.loss_curve_


def test_rows_of_weight_zero_fill_no_minibatch(passes):
    weights = np.where(np.arange(50) < 26, WEIGHTS, 0.0)
    fitted = regressor().fit(X, y, weights)
    assert {len(one) for one in passes} == {2}
    assert max(max(rows) for one in passes for rows in one) < 26
    assert fitted.t_ == EPOCHS * 24


def test_rows_that_are_held_out_fill_no_minibatch(passes):
    fitted = regressor(early_stopping="best_epoch", validation_split=0.2).fit(X, y)
    assert [sum(map(len, one)) for one in passes] == [36] * EPOCHS
    assert len(fitted.validation_scores_) == EPOCHS


def test_batch_statistics_are_those_of_whole_minibatches(where, passes):
    """A remainder of one row has no deviation."""
    net = regressor(MLP((8,), normalization="batch"), batch_size=7, engine="portable").fit(X, y)
    assert {len(rows) for one in passes for rows in one} == {7}
    assert np.isfinite(net.predict(X)).all()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_call_of_partial_fit_is_an_epoch(how, where):
    fitted = regressor().partial_fit(X, y)
    twin = how(fitted)
    for one in (fitted, twin):
        one.partial_fit(X, y)
    straight = regressor(max_iter=2).fit(X, y)
    assert weights_equal(twin, fitted)
    assert weights_equal(straight, fitted)
    assert fitted.t_ == 96


def test_drop_last_may_change_between_calls():
    fitted = regressor(max_iter=1, warm_start=True, shuffle=False, optimizer="sgd").fit(X, y)
    fitted.set_params(drop_last=False).fit(X, y)
    first, _ = trained(mlp_weights(), X[:48], y[:48], rate=0.01, batch=12, optimizer="sgd")
    expected, _ = trained(first, X, y, rate=0.01, batch=12, optimizer="sgd")
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


def test_drop_last_without_minibatches_is_refused():
    with pytest.raises(ValueError, match=r"drop_last has no effect with LBFGS.* Set it to False"):
        regressor(optimizer="lbfgs").fit(X, y)
    with pytest.raises(TypeError, match=r"'drop_last' .* Got 1"):
        regressor(drop_last=1).fit(X, y)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_graphs_go_on(accumulate, tmp_path):
    """Of 45 rows five are left out; with three minibatches a step, the last one has a minibatch less."""
    settings = {"optimizer": SGD(momentum=0.9), "learning_rate": schedules.InverseScaling(), "shuffle": False}
    model = regressor(MLP((8,)), batch_size=8, optimizer__accumulate=accumulate, alpha=0.1, **settings)
    model.partial_fit(X[:45], y[:45], WEIGHTS[:45]).export_training(tmp_path / "folder")
    Folder(tmp_path / "folder")  # checks the manifest by its schema
    training = load_training(tmp_path / "folder", shuffle=False)
    for _ in range(3):
        model.partial_fit(X[:45], y[:45], WEIGHTS[:45])
        training.partial_fit(X[:45], y[:45], WEIGHTS[:45])
    assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-5)
    assert training.state["step"] == model._state.optimizer_state.t
    assert_allclose(training.loss_curve_, model.loss_curve_[1:], rtol=1e-5)
    few = training.partial_fit(X[:3], y[:3])
    assert few.state["step"] == model._state.optimizer_state.t + 1


@pytest.mark.parametrize(
    "settings", [{"drop_last": True}, {"drop_last": False}, {"drop_last": True, "optimizer__accumulate": 2}]
)
def test_training_graphs_take_no_rows_of_weight_zero(settings, tmp_path):
    """Of 50 rows 20 weigh nothing, and so does a class; the others are the rows of the minibatches."""
    labels, weights = np.arange(50) % 3, np.where(np.arange(50) % 5 < 2, 0.0, WEIGHTS)
    given = {"batch_size": 8, "random_state": 0, "tol": NEVER, "max_iter": 1, "shuffle": False} | settings
    model = configured(OrtGradientClassifier(MLP((8,), dropout=0.2), class_weight={0: 0.0, 1: 1.0, 2: 2.0}), **given)
    model.fit(X, labels, weights).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False)
    for _ in range(3):
        model.partial_fit(X, labels, sample_weight=weights)
        training.partial_fit(X, labels, weights)
    assert training.state["step"] == model._state.optimizer_state.t
    assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-5)
    assert_allclose(training.loss_curve_, model.loss_curve_[1:], rtol=1e-5)
    with pytest.raises(ValueError, match="All 50 rows to train on have weight zero"):
        training.partial_fit(X, labels, np.zeros(50))


def test_a_step_of_no_whole_number_of_minibatches_is_one(tmp_path):
    model = regressor(MLP((8,)), batch_size=8, optimizer__accumulate=3).partial_fit(X, y)
    for size, rows in ((24, 48), (12, 48), (10, 50), (11, 44), (2, 50), (1, 50)):
        model.export_training(tmp_path / str(size), batch_size=size)
        training = load_training(tmp_path / str(size), random_state=0)
        assert sum(map(len, training._minibatches(np.arange(50)))) == rows


def test_shuffled_training_graphs_leave_out_other_rows_each_time(tmp_path, monkeypatch):
    regressor(MLP((8,)), batch_size=8).partial_fit(X, y).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", random_state=0)
    found, minibatches = [], type(training)._minibatches

    def recorded(one, rows):
        found.append(minibatches(one, rows))
        return found[-1]

    monkeypatch.setattr(type(training), "_minibatches", recorded)
    for _ in range(3):
        training.partial_fit(X, y)
    assert [[len(rows) for rows in one] for one in found] == [[8] * 6] * 3
    assert len({tuple(np.sort(np.concatenate(one))) for one in found}) == 3


def test_a_fit_goes_on_from_a_checkpoint(tmp_path, passes):
    def fails(epoch):
        if epoch.number == 3:
            raise OSError("the disk is full")

    labels, checkpoint = (y > 0).astype(int), Checkpoint(tmp_path / "checkpoint")
    common = {"batch_size": 12, "drop_last": True, "random_state": 0, "tol": NEVER, "max_iter": 6}
    whole = OrtGradientClassifier(MLP((8,)), **common).fit(X, labels)
    with pytest.raises(OSError, match="the disk is full"):
        OrtGradientClassifier(MLP((8,)), **common, callbacks=[checkpoint, fails]).fit(X, labels)
    before = len(passes)
    resumed = OrtGradientClassifier(MLP((8,)), **common, callbacks=[checkpoint]).fit(X, labels)
    assert len(passes) - before < 6
    assert weights_equal(resumed, whole)
