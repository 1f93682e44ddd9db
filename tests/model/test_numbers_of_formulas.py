"""Single numbers of a given graph: constants of its formulas, or weights, or what only the user can say."""

from __future__ import annotations

import math
import pickle
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, LoRA, OrtGradientRegressor
from onnxtrain_sklearn._model.roles import is_of_formulas, says_its_number
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.environment import each_engine
from tests.helpers.graphs import model
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=12).astype(np.float32)
START = np.array([[0.5], [-0.25], [0.75]], np.float32)
W = "float[3, 1] W = {0.5, -0.25, 0.75}"


def net(proto, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 12, "max_iter": 3, "shuffle": False}
    return OrtGradientRegressor(proto, tol=NEVER, **defaults | settings)


def warning_of(fit):
    with pytest.warns(OnnxTrainWarning, match="may be constants of its formulas") as seen:
        fitted = fit()
    return fitted, next(str(one.message) for one in seen if "formulas" in str(one.message))


@each_engine
def test_numbers_named_by_their_word_are_constants(engine):
    """The graph is half * (1 - tanh(x w))."""
    body = "a = MatMul(X, W) t = Tanh(a) s = Sub(one, t) Y = Mul(half, s)"
    proto = model(body, weights=f"{W}, float one = {{1}}, float half = {{0.5}}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fitted = net(proto, engine=engine).fit(X, Y)
    w = START.astype(float)
    for _ in range(3):
        t = np.tanh(X @ w)
        w = w - 0.1 * X.T.astype(float) @ (-(0.5 * (1 - t) - Y[:, None]) * (1 - t**2)) / len(X)
    assert_allclose(fitted.weights_["W"], w, rtol=1e-5)
    frozen = {entry.name: entry.reason for entry in fitted.describe().of("constant")}
    assert "its name says its number" in frozen["one"]
    named = net(proto, trainable=["*", "one"]).fit(X, Y)  # who wants it trained says so
    assert named.weights_["one"] != 1
    assert_array_equal(named.to_onnx().graph.initializer[0].dims, [3, 1])


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("a = MatMul(X, W) d = Abs(a) s = Sub(margin, d) Y = Relu(s)", "margin"),
        ("a = MatMul(X, W) Y = Mul(a, factor)", "factor"),
        ("a = MatMul(X, W) d = Abs(a) s = Add(d, offset) Y = Log(s)", "offset"),
        ("a = MatMul(X, W) Y = Div(a, temperature)", "temperature"),
    ],
)
def test_ambiguous_number_warns_with_its_name(body, name):
    proto = model(body, weights=f"{W}, float {name} = {{1.5}}")
    fitted, said = warning_of(lambda: net(proto).fit(X, Y))
    assert repr(name) in said
    (leaves,) = re.findall(r"trainable=(\[.*\]) leaves", said)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        every = net(proto, trainable="*").fit(X, Y)
        some = net(proto, trainable=eval(leaves)).fit(X, Y)
        again = pickle.loads(pickle.dumps(every)).partial_fit(X, Y)
    assert_array_equal(every.weights_[name], fitted.weights_[name])
    assert every.weights_[name] != 1.5
    assert again.weights_[name] != every.weights_[name]
    assert some.weights_[name] == 1.5
    assert np.abs(some.weights_["W"] - START).max() > 0


def test_many_parameters_are_not_listed():
    body = " ".join(f"h{i} = MatMul(h{i - 1}, W{i})" for i in range(1, 10)).replace("h0", "X") + " Y = Mul(h9, factor)"
    weights = ", ".join(f"float[3, 3] W{i} = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}" for i in range(1, 10))
    proto = model(body, y="float[N, 3] Y", weights=f"{weights}, float factor = {{2}}")
    y = np.stack([Y] * 3, axis=1)
    _, said = warning_of(lambda: net(proto).fit(X, y))
    (leaves,) = re.findall(r"trainable=(lambda .*) leaves", said)
    assert net(proto, trainable=eval(leaves), learning_rate_init=0.01).fit(X, y).weights_["factor"] == 2


@pytest.mark.parametrize(("name", "number"), [("alpha", 0.7318264), ("logit_scale", 1.0), ("head.bias", 0.0)])
def test_obvious_weights_are_trained_without_a_warning(name, number):
    body = "a = MatMul(X, W) Y = Mul(a, factor)" if number else "a = Tanh(X) b = MatMul(a, W) Y = Add(b, factor)"
    proto = model(body, weights=f"{W}, float factor = {{{number}}}")
    proto.graph.initializer[1].name = name
    proto.graph.node[-1].input[1] = name
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fitted = net(proto).fit(X, Y)
    assert fitted.weights_[name] != np.float32(number)


def test_low_rank_factors_leave_formula_numbers_unchanged():
    weights = "float[3, 3] V = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float factor = {2}"
    proto = model("a = MatMul(X, V) Y = Mul(a, factor)", y="float[N, 3] Y", weights=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fitted = net(proto, adapters=LoRA(1)).fit(X, np.stack([Y] * 3, axis=1))
    assert fitted.weights_["factor"] == 2


def test_words_and_their_numbers():
    said = {
        "one": 1,
        "ONE_1": 1,
        "self.half": 0.5,
        "const_two": 2,
        "minus_one": -1,
        "eps": 1e-5,
        "model/epsilon:0": 1e-3,
    }
    assert all(says_its_number(name, float(np.float32(number))) for name, number in said.items())
    others = {"one": 1.5, "eps": 0.5, "tone": 1, "stone": 1, "oneness": 1, "epsilon_greedy": 0.01, "halfway": 0.5}
    assert not any(says_its_number(name, number) for name, number in others.items())
    written = [0, 1, -2, 0.1, 0.044715, 1 / 3, 1 / 64, math.pi, 2 * math.pi, math.sqrt(2), 1 / math.sqrt(24), 1e-7, 1e8]
    assert all(is_of_formulas(float(np.float32(number))) for number in written)
    learned = np.random.default_rng(0).normal(size=400).astype(np.float32)
    assert np.mean([is_of_formulas(float(number)) for number in learned]) < 0.02
