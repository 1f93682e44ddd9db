"""Compiled graphs and sessions that fits share: what differs in a fit never comes from an earlier one.

Each case names two variants. Cold, after ``clear_cache()``, they give different weights; warm, one after the other in
either order, each gives its own.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Adam,
    AdamW,
    Linear,
    OrtGradientClassifier,
    OrtGradientRegressor,
    Runtime,
    clear_cache,
    losses,
)  # fmt: skip
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._data.targets import Targets
from onnxtrain_sklearn._estimators.call import EncodedData
from onnxtrain_sklearn._estimators.graph_plan import built_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.queries import structure
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn.losses import Loss
from onnxtrain_sklearn.optimizers import Optimizer, RMSprop
from tests.helpers.environment import each_engine
from tests.helpers.observed import forbid_sessions, record_sessions
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = X @ RNG.normal(size=4) + 0.1 * RNG.normal(size=40)
CONSTANTS = np.linspace(0.5, 1.5, 4 * 3000).astype(np.float32).reshape(4, 3000)  # numpy's repr leaves most of them out


def graph(body: str, *, opset: int = 18, **arrays: np.ndarray) -> onnx.ModelProto:
    """A graph from ``X`` (N, 4) to ``y`` (N, 1), with initializers."""
    weights = {"w": np.full((4, 3), 0.5, np.float32), "v": np.full((3, 1), 0.5, np.float32), **arrays}
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> model (float[N, 4] X) => (float[N, 1] y) {{ {body} }}'
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in weights.items() if re.search(rf"\b{n}\b", body)
    )
    return model


def hidden(function: str, **arrays: np.ndarray) -> onnx.ModelProto:
    return graph(f"a = MatMul(X, w) h = {function} y = MatMul(h, v)", **arrays)


def with_constants(scale: float) -> onnx.ModelProto:
    other = CONSTANTS.copy()
    other[:, 1500] *= scale
    body = "a = MatMul(X, k) b = Sin(a) c = ReduceMean <axes = [1]> (b) y = MatMul(c, w)"
    return graph(body, opset=17, k=other, w=np.ones((1, 1), np.float32))


class Scaled(Loss):
    """A loss of a user, whose class says how large it is."""

    factor = 1.0

    def __init__(self, power: float = 2.0) -> None:
        self.power = power

    def __call__(self, op, scores, y, link):
        return op.Mul(op.Pow(op.Abs(op.Sub(scores, y)), self.power), self.factor)


class Closed(Loss):
    """A loss of a user, which calls a function."""

    def __init__(self, function=None) -> None:
        self.function = function

    def __call__(self, op, scores, y, link):
        return self.function(op, op.Sub(scores, y))


def closed(factor: float) -> Closed:
    return Closed(lambda op, gap: op.Mul(op.Mul(gap, gap), factor))


class Global(Loss):
    """A loss of a user, which reads a variable of the module."""

    def __call__(self, op, scores, y, link):
        return op.Mul(op.Abs(op.Sub(scores, y)), VARIABLES["factor"])


VARIABLES = {"factor": 1.0}


class Stepped(Optimizer):
    """An optimizer of a user, whose class says how far it goes."""

    share = 1.0

    def update(self, op, p, g, state, k):
        step = op.Mul(op.Mul(g, k["learning_rate"]), self.share)
        return op.Sub(p, step), {}


def set_class(owner, name, value):
    """A change of a class before the fit."""
    return lambda: setattr(owner, name, value)


def regressor(**settings):
    defaults = {"model": MLP((5,)), "max_iter": 3, "batch_size": 16, "random_state": 0, "learning_rate_init": 0.01}
    return lambda: configured(OrtGradientRegressor(), **{**defaults, **copy.deepcopy(settings)})


def pair(name, values, **settings):
    return [regressor(**settings, **{name: value}) for value in values]


def after(change, make):
    def made():
        change()
        return make()

    return made


CASES = {
    "constants": pair("model", [with_constants(1.0), with_constants(3.0)]),
    "attribute": pair("model", [hidden(f"LeakyRelu <alpha = {a}> (a)") for a in (0.01, 0.2)]),
    "operator": pair("model", [hidden(f"{kind}(a)") for kind in ("Tanh", "Sigmoid")]),
    "wiring": pair(
        "model", [graph(f"a = MatMul(X, w) t = Tanh(a) h = Sub({gap}) y = MatMul(h, v)") for gap in ("a, t", "t, a")]
    ),
    "opset": pair(
        "model",
        [
            graph(
                "a = MatMul(X, w) r = Reshape(a, s) h = Softmax(r) q = Reshape(h, u) y = MatMul(q, v)",
                opset=opset,
                s=np.array([-1, 3, 1]),
                u=np.array([-1, 3]),
            )
            for opset in (12, 13)
        ],
        trainable=["w"],
    ),
    "frozen weights": pair(
        "model", [hidden("Tanh(a)", w=np.full((4, 3), w, np.float32)) for w in (0.5, 0.6)], trainable=["v"]
    ),
    "trainable": pair("trainable", [["v"], ["w"]], model=hidden("Tanh(a)")),
    "dropout": pair("model", [MLP((5,), dropout=d) for d in (0.2, 0.5)]),
    "momentum of statistics": pair(
        "model",
        [
            graph(
                f"a = MatMul(X, w) h, m1, v1 = BatchNormalization <training_mode = 1, momentum = {m}> (a, s, o, m, n) "
                "y = MatMul(h, v)",
                s=np.ones(3, np.float32),
                o=np.zeros(3, np.float32),
                m=np.zeros(3, np.float32),
                n=np.ones(3, np.float32),
            )
            for m in (0.5, 0.9)
        ],
        engine="portable",
    ),
    "loss": pair("loss", ["squared_error", "absolute_error"]),
    "parameter of a loss": pair("loss", [losses.Huber(0.1), losses.Huber(0.5)]),
    "parameter of a user's loss": pair("loss", [Scaled(2.0), Scaled(3.0)]),
    "class of a user's loss": [after(set_class(Scaled, "factor", f), regressor(loss=Scaled())) for f in (1.0, 5.0)],
    "closure": [lambda: regressor()().set_params(loss=closed(1.0)), lambda: regressor()().set_params(loss=closed(5.0))],
    "variable": [after(lambda f=f: VARIABLES.update(factor=f), regressor(loss=Global())) for f in (1.0, 5.0)],
    "optimizer": pair("optimizer", ["sgd", "adam"]),
    "parameter of an optimizer": pair("optimizer", [Adam(beta_1=0.9), Adam(beta_1=0.5)]),
    "epsilon": pair("optimizer", [RMSprop(epsilon=1e-8), RMSprop(epsilon=0.1)]),
    "weight decay": pair("optimizer", [SGD(weight_decay=0.1), SGD(weight_decay=0.5)]),
    "decoupled decay": pair("optimizer", [AdamW(weight_decay=0.1), AdamW(weight_decay=0.5)]),
    "class of a user's optimizer": [
        after(set_class(Stepped, "share", s), regressor(optimizer=Stepped())) for s in (1.0, 5.0)
    ],
    "rate": pair("learning_rate_init", [0.01, 0.02]),
    "seed": pair("random_state", [0, 1]),
    "batch": pair("batch_size", [16, 15]),
    "penalty": pair("alpha", [0.1, 1.0]),
    "kind of penalty": pair("l1_ratio", [0.0, 0.5], alpha=1.0),
    "clipping": pair("optimizer__max_grad_norm", [0.01, 0.1]),
    "accumulation": pair("optimizer__accumulate", [1, 2], batch_size=8),
    "average": pair("optimizer__ema_decay", [0.5, 0.9]),
    "width": pair("model", [MLP((5,)), MLP((6,))]),
    "activation": pair("model", [MLP((5,), "tanh"), MLP((5,), "relu")]),
}


def weights(make):
    return make().fit(X, Y).weights_


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def cold(make):
    clear_cache()
    return weights(make)


@each_engine
@pytest.mark.parametrize("case", CASES)
def test_variants_do_not_get_each_other_s_programs(case, engine):
    makers = [lambda make=make: _on(make(), engine) for make in CASES[case]]
    expected = []
    for own, other in (makers, makers[::-1]):
        expected.append(cold(own))
        expected.append(weights(other))  # while the programs of the first are kept
        assert equal(weights(own), expected[-2])
    first, second, again, first_again = expected
    assert not equal(first, second)
    assert equal(first, first_again)
    assert equal(second, again)


def _on(estimator, engine):
    return estimator if estimator.engine != "auto" else estimator.set_params(engine=engine)


@each_engine
def test_a_second_fit_of_an_equal_structure_makes_no_session(engine, monkeypatch):
    make = regressor(engine=engine, alpha=0.1, optimizer__max_grad_norm=1.0)
    clear_cache()
    first = make().fit(X, Y)
    forbid_sessions(monkeypatch)
    other = make().set_params(learning_rate_init=0.02, alpha=0.3, random_state=7).fit(X[:, ::-1] + 0.5, Y)
    assert other.engine_ == first.engine_
    assert not equal(other.weights_, first.weights_)


@each_engine
def test_clear_cache_makes_the_next_fit_compile(engine, monkeypatch):
    make = regressor(engine=engine)
    expected, count = weights(make), record_sessions(monkeypatch)
    weights(make)
    assert not count
    clear_cache()
    assert equal(weights(make), expected)
    assert count


def test_changing_a_component_leaves_later_fits_unchanged():
    optimizer, loss = Adam(beta_1=0.5), losses.Huber(0.3)
    make = regressor(optimizer=Adam(beta_1=0.5), loss=losses.Huber(0.3))
    expected = cold(make)
    clear_cache()
    regressor()().set_params(optimizer=optimizer, loss=loss).fit(X, Y)
    vars(optimizer).update(beta_1=0.99, epsilon=1.0)
    vars(loss).update(delta=9.0)
    assert equal(weights(make), expected)


def test_a_setting_changed_between_two_fits_takes_effect():
    estimator = regressor(optimizer=RMSprop(), loss=Scaled(2.0), warm_start=True)()
    changes = {"optimizer__epsilon": 0.1, "loss__power": 3.0, "alpha": 1.0, "batch_size": 7}
    cold_one, warm_one = copy.deepcopy(estimator), copy.deepcopy(estimator)
    for name, value in changes.items():
        warm_one.set_params(**{name: value}).fit(X, Y)
    for name, value in changes.items():
        clear_cache()
        cold_one.set_params(**{name: value}).fit(X, Y)
    assert equal(warm_one.weights_, cold_one.weights_)


@pytest.mark.slow
@each_engine
def test_fits_in_several_threads_share_sessions_but_no_buffer(engine):
    makers = [regressor(engine=engine, random_state=seed, max_iter=20) for seed in range(8)]
    expected = [cold(make) for make in makers]
    clear_cache()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(weights, makers))
    assert all(map(equal, found, expected))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_compiles_own_sessions():
    make = regressor()
    expected = weights(make)
    pid = os.fork()
    if not pid:
        signal.alarm(100)  # ends a child that hangs
        try:
            assert equal(weights(make), expected)
            clear_cache()
            gc.collect(1)
            assert equal(weights(make), expected)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert equal(weights(make), expected)


def test_an_unpickled_estimator_goes_on_as_the_original_does():
    estimator = regressor(optimizer=Adam(), model=MLP((5,), dropout=0.2))().fit(X, Y)
    twin = pickle.loads(pickle.dumps(estimator))
    for one in (estimator, twin):
        one.partial_fit(X, Y)
    assert equal(estimator.weights_, twin.weights_)
    clear_cache()
    for one in (estimator, pickle.loads(pickle.dumps(twin))):
        one.partial_fit(X, Y)
    assert_array_equal(estimator.predict(X), pickle.loads(pickle.dumps(estimator)).predict(X))


def test_random_numbers_of_a_graph_begin_anew_with_each_fit():
    """Their generator belongs to the session. They are small, as a graph is refused whose predictions vary."""
    noise = "RandomNormalLike <seed = 1.0, scale = 0.00001> (a)"
    noisy = graph(f"a = MatMul(X, w) r = {noise} h = Add(a, r) t = Tanh(h) y = MatMul(t, v)")
    make = regressor(model=noisy, engine="portable")
    assert equal(weights(make), weights(make))


def test_classifier_and_regressor_of_equal_graphs_keep_losses():
    labels = (Y > 0).astype(int)
    makers = [
        lambda: OrtGradientRegressor(MLP((5,)), random_state=0, max_iter=2),
        lambda: OrtGradientClassifier(MLP((5,)), random_state=0, max_iter=2),
        lambda: OrtGradientClassifier(MLP((5,)), loss="hinge", random_state=0, max_iter=2),
    ]
    expected = []
    for make in makers:
        clear_cache()
        expected.append(make().fit(X, labels).weights_)
    clear_cache()
    assert all(equal(make().fit(X, labels).weights_, one) for make, one in zip(makers, expected, strict=True))


def test_tasks_of_equal_shapes_have_their_own_losses():
    def fitted(y):
        return OrtGradientClassifier(MLP((5,)), random_state=0, max_iter=2).fit(X, y).weights_

    targets, expected = (np.eye(3, dtype=int)[np.arange(40) % 3], np.arange(40) % 3), []
    for y in targets:
        clear_cache()
        expected.append(fitted(y))
    clear_cache()
    assert all(equal(fitted(y), one) for y, one in zip(targets, expected, strict=True))


@pytest.mark.parametrize(
    "builder",
    [
        MLP((5, 5), residual=True, normalization="batch", initialization="he_normal"),
        MLP((5,), "gelu", residual=True, normalization="layer", parametric_activation=True, dropout=0.1),
        MLP(()),
        Linear(),
        Linear(fit_intercept=False, initialization="zeros"),
    ],
    ids=repr,
)
def test_weights_that_a_builder_draws_are_those_that_it_builds(builder):
    targets = Targets(np.zeros((40, 2)), "regression", 2)
    examples = EncodedData({"X": InputData(X, np.dtype(np.float32))}, targets, None)
    expected = trainable_model(load(builder.build(4, 2, np.random.RandomState(7))))
    for _ in range(2):
        found = built_graph(builder, examples, examples.targets.n_scores, None, np.random.RandomState(7))
        assert found.parameters == expected.parameters
        assert equal(found.weights(), expected.weights())
        assert structure(found.model, ()) != structure(found.model, found.parameters)
        assert structure(found.model, found.weights()) == structure(expected.model, expected.weights())


def test_session_files_are_written_by_each_fit(tmp_path):
    for name in ("first", "second"):
        path = tmp_path / f"{name}.onnx"
        regressor(runtime=Runtime(session_options={"optimized_model_filepath": str(path)}))().fit(X, Y)
        assert path.exists()
        path.unlink()
        regressor(runtime=Runtime(session_options={"optimized_model_filepath": str(path)}))().fit(X, Y)
        assert path.exists()
