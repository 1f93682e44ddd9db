"""The hook after each step: its losses, weights that it changes, the end of training, and who refuses it."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.utils.fixes import parse_version

from onnxtrain_sklearn import (
    SGD,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPRegressor,
    callbacks,
)
from onnxtrain_sklearn.callbacks import Callback
from onnxtrain_sklearn.exceptions import DivergenceError
from tests.helpers.callbacks import Recorder
from tests.helpers.environment import OWN_MEMORY, available_engines
from tests.helpers.observed import wrap_epochs
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.normal(size=50)).astype(np.float32)
RATE = 0.05

PLACES = [(engine, where) for engine in available_engines() for where in ("host", "device", "uploaded")]
PLACES.append(("compiled", "host"))
each_place = pytest.mark.parametrize(("engine", "where"), PLACES, indirect=["where"])


@pytest.fixture
def where(request, monkeypatch):
    if request.param != "host":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    if request.param == "uploaded":
        monkeypatch.setattr("onnxtrain_sklearn._training.device_step.RESIDENT_LIMIT", 0)
    return request.param


class Steps(Callback):
    """Records number and loss of each step; ends training after ``last`` of them."""

    def __init__(self, last=None):
        self.last = last

    def after_step(self, training, loss):
        memory = training.memory(self)
        memory["steps"] = [*memory.get("steps", []), training.step]
        memory["losses"] = [*memory.get("losses", []), loss]
        memory["weights"] = [*memory.get("weights", []), training.parameters.vector.copy()]
        return len(memory["losses"]) == self.last


class Projection(Callback):
    """Keeps the weights within a ball."""

    def __init__(self, radius=0.3):
        self.radius = radius

    def after_step(self, training, loss):
        vector = training.parameters.vector
        vector *= min(1.0, self.radius / float(np.linalg.norm(vector)))


def at_zero():
    """A linear graph whose weights are zero."""
    proto = Linear().build(4, 1, 0)
    for one in proto.graph.initializer:
        one.CopyFrom(onnx.numpy_helper.from_array(np.zeros(one.dims, np.float32), one.name))
    return proto


def regressor(*callbacks, model=None, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": RATE, "batch_size": 16, "max_iter": 3, "random_state": 0}
    defaults |= {"shuffle": False, "callbacks": list(callbacks), "n_iter_no_change": 99}
    return configured(OrtGradientRegressor(model or at_zero()), **defaults | settings)


def descent(n_steps, group=1, radius=np.inf):
    """Loss and weights of each step of projected gradient descent of the squared error, in float64."""
    vector, losses, path = np.zeros(5), [], []
    design, target = np.c_[X.astype(float), np.ones(50)], Y.astype(float)
    pieces = [slice(i, min(i + group * 16, 50)) for i in range(0, 50, group * 16)]
    for i in range(n_steps):
        rows = pieces[i % len(pieces)]
        error = design[rows] @ vector - target[rows]
        losses.append(np.mean(error**2))
        vector = vector - RATE * 2 * design[rows].T @ error / len(error)
        vector = vector * min(1.0, radius / np.linalg.norm(vector))
        path.append(vector)
    return losses, path


@each_place
@pytest.mark.parametrize("radius", [np.inf, 0.8], ids=["", "projected"])
@pytest.mark.parametrize("group", [1, 3])
def test_hook_sees_each_step_and_changes_the_weights_of_the_next(group, radius, engine, where):
    """Projected gradient descent, beside the same in NumPy."""
    if engine == "compiled":
        pytest.importorskip("llvmlite")
    found = regressor(Projection(radius), Steps(), optimizer__accumulate=group, engine=engine).fit(X, Y)
    steps = 3 * -(-4 // group)
    losses, path = descent(steps, group, radius)
    seen = found.callbacks_["Steps"]
    assert seen["steps"] == list(range(1, steps + 1))
    assert_allclose(seen["losses"], losses, rtol=1e-4)
    assert_allclose(seen["weights"], path, rtol=1e-4, atol=1e-6)
    assert_allclose(np.concatenate([a.ravel() for a in found.weights_.values()]), path[-1], rtol=1e-4, atol=1e-6)


@each_place
def test_training_ends_after_the_step_whose_hook_returns_true(engine, where):
    """Of three epochs of four steps the second ends in its second step; the history knows the rows that were seen."""
    if engine == "compiled":
        pytest.importorskip("llvmlite")
    epochs = []
    found = regressor(Steps(last=6), lambda epoch: epochs.append(epoch.number), engine=engine).fit(X, Y)
    losses, path = descent(6)
    assert epochs == [1, 2]
    assert (found.n_iter_, found.t_, found.history_[-1]["step"]) == (2, 50 + 32, 6)
    assert_allclose(
        found.loss_curve_, [np.average(losses[:4], weights=[16, 16, 16, 2]), np.mean(losses[4:])], rtol=1e-4
    )
    assert_allclose(np.concatenate([a.ravel() for a in found.weights_.values()]), path[-1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("last", "rows"), [(3, 48), (4, 50)])
def test_short_last_minibatch_counts_its_rows(last, rows):
    assert regressor(Steps(last=last)).fit(X, Y).t_ == rows


def test_group_of_minibatches_that_ends_training_counts_its_rows():
    found = regressor(Steps(last=1), optimizer__accumulate=2).fit(X, Y)
    assert (found.t_, found.callbacks_["Steps"]["steps"]) == (32, [1])


def test_partial_fit_ends_early_and_goes_on():
    """Each call is a pass; the first one ends after three of its four steps."""
    found = regressor(Steps(last=3)).partial_fit(X, Y)
    assert (found.t_, found.n_iter_) == (48, 1)
    found.partial_fit(X, Y)
    assert (found.t_, found.callbacks_["Steps"]["steps"]) == (98, [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("where", ["host", "device", "uploaded"], indirect=True)
def test_callback_changes_of_weights_reach_next_epoch(where):
    class Halved(Callback):
        def after_epoch(self, training):
            training.parameters.vector[...] *= 0.5

    found = regressor(Halved(), Steps(), engine="portable").fit(X, Y)
    vector = np.zeros(5)
    design, target = np.c_[X.astype(float), np.ones(50)], Y.astype(float)
    for _ in range(3):
        for rows in (slice(i, min(i + 16, 50)) for i in range(0, 50, 16)):
            error = design[rows] @ vector - target[rows]
            vector = vector - RATE * 2 * design[rows].T @ error / len(error)
        vector *= 0.5
    assert_allclose(np.concatenate([a.ravel() for a in found.weights_.values()]), vector, rtol=1e-4, atol=1e-6)


def test_all_hooks_are_called_where_one_ends_training():
    found = regressor(Steps(last=2), Steps()).fit(X, Y)
    assert found.callbacks_["Steps"]["steps"] == found.callbacks_["Steps 2"]["steps"] == [1, 2]


@pytest.mark.parametrize("last", [None, 3])
def test_lbfgs_calls_the_hook_after_each_iteration(last):
    found = regressor(Steps(last), optimizer="lbfgs", max_iter=50).fit(X, Y)
    seen = found.callbacks_["Steps"]
    assert len(seen["losses"]) == found.n_iter_
    assert found.n_iter_ == last or last is None
    assert (seen["losses"], found.t_) == (found.loss_curve_, 50 * found.n_iter_)
    design = np.c_[X.astype(float), np.ones(50)]
    for vector, loss in zip(seen["weights"], seen["losses"], strict=True):
        assert_allclose(np.mean((design @ vector - Y) ** 2), loss, rtol=1e-4)


def test_lbfgs_refuses_weights_that_the_hook_changes():
    with pytest.raises(ValueError, match="changed weights in after_step, but LBFGS goes on from its own"):
        regressor(Projection(0.01), optimizer="lbfgs", max_iter=50).fit(X, Y)


def test_fine_tuning_refuses_the_hook():
    old = LogisticRegression().fit(X, Y > 0)
    estimator = OrtGradientClassifier(old, callbacks=[Steps()])
    with pytest.raises(ValueError, match=r"follows the steps of the optimizer .*fine-tuning takes none"):
        estimator.fit(X, Y > 0)
    assert not hasattr(estimator, "classes_")


def test_hook_error_leaves_estimator_unchanged():
    class Failing(Callback):
        def after_step(self, training, loss):
            if training.step == 6:
                raise RuntimeError("no more")

    found = regressor(Failing()).partial_fit(X, Y)
    weights, rows = {n: a.copy() for n, a in found.weights_.items()}, found.t_
    with pytest.raises(RuntimeError, match="no more"):
        found.partial_fit(X, Y)
    assert found.t_ == rows
    for name, array in weights.items():
        assert_array_equal(found.weights_[name], array)


def test_hook_is_not_called_with_a_loss_that_is_not_finite():
    found = regressor(Steps(), learning_rate_init=1e20)
    with pytest.raises(DivergenceError):
        found.fit(X, Y)
    assert np.isfinite(found.callbacks_["Steps"]["losses"]).all()


def test_estimators_for_tables_call_the_hook_in_each_network():
    found = RealMLPRegressor(n_ensembles=2, max_iter=2, callbacks=[Steps(last=1)], random_state=0).fit(X, Y)
    assert [row["step"] for row in found.history_] == [1, 1]  # of two epochs of one step


def test_multi_output_calls_the_hook():
    several = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] X) => (float[N, 1] a, float[N, 1] b)
        <float[4, 1] V = {0.1, 0.2, 0.3, 0.4}, float[4, 1] W = {0.1, 0.2, 0.3, 0.4}>
        { a = MatMul(X, V) b = MatMul(X, W) }""")
    settings = {"batch_size": 16, "max_iter": 3, "callbacks": [Steps(last=5)], "random_state": 0}
    found = OrtGradientMultiOutput(several, loss={"a": "squared_error", "b": "squared_error"}, **settings)
    found.fit(X, {"a": Y, "b": -Y})
    assert found.callbacks_["Steps"]["steps"] == [1, 2, 3, 4, 5]


def test_a_step_that_returns_a_loss_does_not_end_training():
    class Losses(Callback):
        def after_step(self, training, loss):
            assert training.row == {} or "loss" in training.row  # no epoch has ended before the first
            return loss

    assert regressor(Losses(), max_iter=2).fit(X, Y).n_iter_ == 2


def test_callbacks_of_the_protocol_are_not_asked_for_steps():
    class Named(Recorder):
        def after_step(self, training, loss):
            raise AssertionError("not a hook of scikit-learn's protocol")

    recorder = Named()
    regressor(recorder, max_iter=1).fit(X, Y)
    assert recorder.told == ["setup", "fit begins", "epoch begins", "epoch 0 ends", "fit 0 ends", "teardown"]


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.9"), reason="set_callbacks is new in 1.9")
def test_callbacks_that_are_set_are_called():
    found = regressor().set_callbacks(Steps(last=2)).fit(X, Y)
    assert found.callbacks_["Steps"]["steps"] == [1, 2]


def test_callbacks_without_the_hook_leave_the_steps_alone(monkeypatch, tmp_path):
    class Idle(Callback):
        def after_epoch(self, training):
            training.row["seen"] = 1.0

    hooks = []

    def recorded(train, step, batches, next_rates, after=None, skip=0):
        hooks.append(after)
        return train(step, batches, next_rates, after, skip)

    wrap_epochs(monkeypatch, recorded)
    regressor(Idle(), callbacks.Checkpoint(tmp_path), max_iter=2).fit(X, Y)
    assert hooks == [None, None]
    regressor(Steps(), max_iter=1).fit(X, Y)
    assert callable(hooks[2])


def test_trial_steps_within_an_epoch_are_refused():
    class Sweeping(Callback):
        def after_step(self, training, loss):
            training.sweep(np.array([0.1]))

    with pytest.raises(RuntimeError, match=r"sweep\(\) begins an epoch of its own: call it in begin"):
        regressor(Sweeping()).fit(X, Y)


def test_replacing_the_vector_of_parameters_is_an_error():
    class Replacing(Callback):
        def after_step(self, training, loss):
            training.parameters.vector = training.parameters.vector * 0

    estimator = OrtGradientRegressor(Linear(), callbacks=[Replacing()], max_iter=1)
    with pytest.raises(AttributeError, match=r"Write new values into it: parameters\.vector\[\.\.\.\] = values"):
        estimator.fit(X, Y)


def test_vector_multiplied_in_place_is_trained():
    class Shrinking(Callback):
        def after_step(self, training, loss):
            training.parameters.vector *= 0.0

    estimator = OrtGradientRegressor(Linear(), callbacks=[Shrinking()], max_iter=1).fit(X, Y)
    assert all((array == 0).all() for array in estimator.weights_.values())
