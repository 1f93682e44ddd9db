"""Factors of learning rate and weight decay by parameter, against a reference in float64."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar

import numpy as np
import onnx.numpy_helper
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from onnxtrain_sklearn import LBFGS, MLP, SGD, Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer
from tests.helpers.environment import OWN_MEMORY, each_engine
from tests.helpers.network import NAMES, largest_error, trained
from tests.helpers.observed import record_sessions, trained_on_device
from tests.helpers.step_options import configured, with_options
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER
from tests.helpers.tuning import tune

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=40)).astype(np.float32)
WEIGHTS = rng.uniform(0.2, 2.0, 40)

RATES = {"*": 0.5, "layers.0.*": 3.0, "layers.1.bias": 0.0, "layers.0.bias": 0.1}
RATE_OF = {"layers.0.weight": 3.0, "layers.0.bias": 0.1, "layers.1.weight": 0.5, "layers.1.bias": 0.0}
DECAYS = {"*": 2.0, "*.bias": 0.0}
DECAY_OF = {"layers.0.weight": 2.0, "layers.0.bias": 0.0, "layers.1.weight": 2.0, "layers.1.bias": 0.0}
TOLERANCE = 1e-4


def regressor(**settings):
    defaults = {"learning_rate_init": 0.01, "max_iter": 3, "batch_size": 8, "shuffle": False, "tol": NEVER}
    return configured(OrtGradientRegressor(settings.pop("model", mlp())), **defaults | {"random_state": 0} | settings)


def reference(**settings):
    return trained(mlp_weights(), X, y, **({"rate": 0.01, "batch": 8, "epochs": 3} | settings))


def weight_decay(name):
    return 0.0 if name == "lion" else 0.3


@pytest.fixture
def own_memory(monkeypatch):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")


@each_engine
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", sorted(n for n, kind in OPTIMIZERS.items() if issubclass(kind, Optimizer)))
def test_each_optimizer_takes_both(name, engine, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    optimizer, rate = OPTIMIZERS[name](weight_decay=0.3), 0.002 if name == "lion" else 0.01
    fitted = regressor(
        optimizer=with_options(optimizer, learning_rate_factors=RATES, weight_decay_factors=DECAYS),
        engine=engine, learning_rate_init=rate,
    ).fit(X, y, WEIGHTS)  # fmt: skip
    assert trained_on_device(fitted) == (where == "device")
    settings = {"optimizer": name, "decay": 0.3, "sample_weight": WEIGHTS, "rate": rate}
    expected, losses = reference(rates=RATE_OF, decays=DECAY_OF, **settings)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    np.testing.assert_allclose(fitted.loss_curve_, losses, rtol=1e-5)
    for other in ({"rates": RATE_OF}, {"decays": DECAY_OF}):  # each of the two matters
        assert largest_error(reference(**other, **settings)[0], expected, mlp_weights()) > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_fused_kernels_in_pieces(name, monkeypatch):
    tune(monkeypatch, piece=5)
    optimizer = OPTIMIZERS[name](weight_decay=0.3 if name == "adamw" else 0.0)
    fitted = regressor(optimizer=with_options(optimizer, learning_rate_factors=RATES)).fit(X, y)
    expected, _ = reference(rates=RATE_OF, optimizer=name, decay=optimizer.weight_decay)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


def test_penalty_and_clipping_are_those_of_the_whole_gradient():
    fitted = regressor(alpha=0.5, optimizer=SGD(learning_rate_factors=RATES, max_grad_norm=0.3)).fit(X, y)
    expected, _ = reference(rates=RATE_OF, alpha=0.5, limit=0.3, optimizer="sgd")
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


class Halved(Optimizer):
    """The optimizer of a user: SGD with a weight decay that only its scalars know."""

    def __init__(self, weight_decay=0.1, **options):
        super().__init__(**options)
        self.weight_decay = weight_decay

    def scalars(self, learning_rate, t):
        return {"rate": learning_rate / 2, "decay": self.weight_decay}

    def update(self, op, p, g, state, k):
        g = op.Add(g, op.Mul(p, k["decay"]))
        return op.Sub(p, op.Mul(g, k["rate"])), {}


class SignDescent(Optimizer):
    def update(self, op, p, g, state, k):
        return op.Sub(p, op.Mul(op.Sign(g), k["learning_rate"])), {}


class Normalized(Optimizer):
    elementwise = False

    def update(self, op, p, g, state, k):
        direction = op.Div(g, op.Sqrt(op.ReduceSumSquare(g, keepdims=False)))
        return op.Sub(p, op.Mul(direction, k["learning_rate"])), {}


def test_an_optimizer_of_the_user():
    settings = {"optimizer__learning_rate_factors": RATES, "optimizer__weight_decay_factors": DECAYS}
    fitted = regressor(optimizer=Halved(0.3), learning_rate_init=0.02, **settings).fit(X, y)
    expected, _ = reference(rates=RATE_OF, decays=DECAY_OF, optimizer="sgd", decay=0.3)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    fitted = regressor(
        optimizer=with_options(SignDescent(), learning_rate_factors=RATES), max_iter=1, batch_size=40
    ).fit(X, y)
    for name, moved in fitted.weights_.items():
        np.testing.assert_allclose(np.abs(moved - mlp_weights()[name]), 0.01 * RATE_OF[name], rtol=1e-4, atol=1e-8)


def test_factors_scale_the_steps_of_an_optimizer_of_whole_parameters():
    fitted = regressor(
        optimizer=with_options(Normalized(), learning_rate_factors=RATES), max_iter=1, batch_size=40
    ).fit(X, y)
    for name, moved in fitted.weights_.items():
        assert np.linalg.norm(moved - mlp_weights()[name]) == pytest.approx(0.01 * RATE_OF[name], rel=1e-4)


def test_an_elementwise_optimizer_that_joins_elements_is_refused():
    class Joined(Normalized):
        elementwise = True

    with pytest.raises(ModelError, match=r"Joined.update emits ReduceSumSquare, .* Set elementwise = False"):
        regressor(optimizer=Joined()).fit(X, y)


class Layered(MLP):
    learning_rate_factors: ClassVar[dict[str, float]] = {"*.bias": 0.1, "layers.0.weight": 7.0}

    @property
    def weight_decay_factors(self):
        return {"*.bias": 0.0}


def test_patterns_of_the_user_come_after_those_of_the_builder():
    builder, settings = Layered((6,), "tanh"), {"target_scaling": None, "optimizer": AdamW(weight_decay=0.3)}
    fitted = regressor(model=builder, optimizer__learning_rate_factors={"layers.0.weight": 2.0}, **settings).fit(X, y)
    begin = {t.name: onnx.numpy_helper.to_array(t) for t in MLP((6,), "tanh").build(4, 1, 0).graph.initializer}
    rates = {"layers.0.weight": 2.0, "layers.0.bias": 0.1, "layers.1.bias": 0.1}
    decays = {"layers.0.bias": 0.0, "layers.1.bias": 0.0}
    expected, _ = trained(begin, X, y, rate=0.01, batch=8, epochs=3, rates=rates, decays=decays, decay=0.3)
    assert largest_error(fitted.weights_, expected, begin) < TOLERANCE
    plain = regressor(model=MLP((6,), "tanh"), **settings).fit(X, y)
    assert np.abs(plain.weights_["layers.0.weight"] - fitted.weights_["layers.0.weight"]).max() > 1e-3
    regressor(model=builder, optimizer=LBFGS(), max_iter=2).fit(X, y)  # a default of the builder, not of the user


def test_a_factor_of_zero_freezes():
    fitted = regressor(optimizer__learning_rate_factors={"layers.0.*": 0.0}).fit(X, y)
    for name, array in mlp_weights().items():
        assert np.array_equal(fitted.weights_[name], array) == name.startswith("layers.0.")


def test_factors_of_one_change_nothing():
    plain = regressor().fit(X, y)
    for ones in ({"*": 1.0}, {}, {"*": 7.0, "layers.*": 1}):
        same = regressor(optimizer__learning_rate_factors=ones, optimizer__weight_decay_factors=ones).fit(X, y)
        assert len(same._state.live.step._updates.groups) == 1
        for name in NAMES:
            assert_array_equal(same.weights_[name], plain.weights_[name])


def test_without_factors_a_step_has_one_update(monkeypatch):
    created = record_sessions(monkeypatch)
    tune(monkeypatch, least_elements=10**6)  # NumPy needs no session

    def sessions_of(**factors):
        clear_cache()
        created.clear()
        regressor(**factors).fit(X, y)
        return len(created)

    plain = sessions_of()
    assert sessions_of(optimizer__learning_rate_factors=RATES) == plain  # factors of the rate share the graph
    assert (
        sessions_of(optimizer__learning_rate_factors=RATES, optimizer__weight_decay_factors=DECAYS) == plain + 1
    )  # one for each decay


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly(how):
    settings = {"optimizer__learning_rate_factors": RATES, "optimizer__weight_decay_factors": DECAYS}
    fitted = regressor(**settings).partial_fit(X, y)
    twin = how(fitted)
    for one in (fitted, twin):
        one.partial_fit(X, y)
    straight = regressor(**settings, max_iter=2).fit(X, y)
    for name in NAMES:
        assert_array_equal(twin.weights_[name], fitted.weights_[name])
        assert_array_equal(twin.weights_[name], straight.weights_[name])


@pytest.mark.filterwarnings("ignore:weight_decay_factors has no effect")
def test_factors_may_change_between_calls():
    fitted = regressor(max_iter=2, warm_start=True, optimizer=SGD(momentum=0.9)).fit(X, y)
    fitted.set_params(optimizer__learning_rate_factors=RATES, optimizer__weight_decay_factors=DECAYS).fit(X, y)
    fitted.set_params(optimizer__learning_rate_factors=None, optimizer__weight_decay_factors=None).fit(X, y)
    rates = {}

    def change(_):
        steps = changes.pop(0)
        rates.clear()
        rates.update(steps)

    changes = [{}] * 9 + [RATE_OF] * 10 + [{}] * 11
    expected, _ = reference(epochs=6, optimizer="sgd", momentum=0.9, rates=rates, after=change)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


def test_numbers_of_a_pipeline():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = (y > 0).astype(int)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels)
    factors = {"*": 0.0, "logisticregression.*": 1.0}
    tuned = OrtGradientClassifier(model, max_iter=2, optimizer=AdamW(learning_rate_factors=factors)).fit(X, labels)
    before = OrtGradientClassifier(model, max_iter=1, learning_rate_init=0.0).fit(X, labels).weights_
    moved = {name for name, array in before.items() if not np.array_equal(array, tuned.weights_[name])}
    assert moved == {"logisticregression.coef", "logisticregression.intercept"}


@pytest.mark.parametrize("attribute", ["learning_rate_factors", "weight_decay_factors"])
def test_a_pattern_without_a_parameter(attribute):
    message = rf"{attribute}: 'layer.0.bias' matches no parameter .* Did you mean 'layers.0.bias'.* names: 'layers.0"
    with pytest.raises(ValueError, match=message):
        regressor(**{f"optimizer__{attribute}": {"*": 1.0, "layer.0.bias": 2.0}}).fit(X, y)


@pytest.mark.parametrize("value", [{"*": -1.0}, {"*": np.nan}, {"*": "a"}, {3: 1.0}, [("*", 1.0)], 0.5])
@pytest.mark.parametrize("attribute", ["learning_rate_factors", "weight_decay_factors"])
def test_wrong_values(attribute, value):
    with pytest.raises(InvalidParameterError, match=f"'{attribute}' parameter .* must be a dict from glob patterns"):
        regressor(**{f"optimizer__{attribute}": value}).fit(X, y)
    builder = type("Built", (MLP,), {attribute: value})()
    with pytest.raises(InvalidParameterError, match=f"'{attribute}' parameter of Built must be a dict"):
        regressor(model=builder).fit(X, y)


def test_factors_without_effect_are_refused():
    with pytest.raises(ValueError, match="the parameter weight_decay of the optimizer, which SignDescent lacks"):
        regressor(optimizer=with_options(SignDescent(), weight_decay_factors=DECAYS)).fit(X, y)


def test_clones_keep_factors():
    twin = clone(regressor(optimizer=Adam(learning_rate_factors=RATES)))
    assert twin.optimizer.learning_rate_factors == RATES
