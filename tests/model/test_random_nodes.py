"""Networks that draw random numbers in training predict without them, as their frameworks do."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest, norm, uniform

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.shapes import infer_shapes
from onnxtrain_sklearn._training.randomness import UniformNumbers, expose_random
from onnxtrain_sklearn.exceptions import OnnxTrainWarning, UnsupportedOperatorError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

GRAPH = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, 1] y)
    <float[3, 3] w = {{0.5, -1, 0.2, 0.3, 1, 0.1, -0.7, 0.4, 1}}, float[3, 1] v = {{1, -2, 0.5}},
     float val_1 = {{0.8}}, float val_2 = {{0.5}}, float zero = {{0}}, int64[1] one = {{1}}, int64[1] last = {{-1}}>
    {{ a = MatMul(x, w) {noise} h = Add(x, k) y = MatMul(h, v) }}"""
SHAPE = "n = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(n, one) z = ConstantOfShape(s)"
SCALE = "c = Cast<to = 1>(b) d = Div(c, val_1) k = Mul(a, d)"
# What stands for ``k = a`` in evaluation mode.
DROPPED = {
    "stochastic depth": f"{SHAPE} r = RandomUniformLike(z) b = Less(r, val_1) {SCALE}",
    "greater": f"{SHAPE} r = RandomUniformLike(z) b = Greater(val_1, r) {SCALE}",
    "floor": f"{SHAPE} r = RandomUniformLike(z) s1 = Add(r, val_1) c = Floor(s1) t = Div(a, val_1) k = Mul(t, c)",
    "Bernoulli": f"{SHAPE} z8 = Add(z, val_1) c = Bernoulli(z8) d = Div(c, val_1) k = Mul(a, d)",
    "selected": "r = RandomUniformLike(a) b = Less(r, val_1) t = Div(a, val_1) k = Where(b, t, zero)",
    "Gaussian noise": "r = RandomNormalLike<scale = 0.5>(a) t = Mul(r, val_2) k = Add(a, t)",
    "scaled range": "r = RandomUniformLike<low = -1.0, high = 3.0>(a) q = Add(val_1, val_1) b = Less(r, q) "
    "c = Cast<to = 1>(b) e = Div(c, val_2) e2 = Mul(e, val_3) k = Mul(a, e2)",
}
REFUSED = {
    "uniform noise": "r = RandomUniformLike(a) k = Mul(a, r)",
    "noise in a function": "r = RandomNormalLike(a) t = Exp(r) k = Mul(a, t)",
    "negated": "r = RandomUniformLike(a) b = Less(r, val_1) n = Not(b) c = Cast<to = 1>(n) k = Mul(a, c)",
}
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X @ [1.0, 0.5, -1.0]


def network(noise):
    share = 1 / ((1.6 + 1) / 4 / 0.5)
    text = GRAPH.format(noise=noise).replace("float zero = {0}", f"float zero = {{0}}, float val_3 = {{{share:.9f}}}")
    return onnx.parser.parse_model(text)


def trained(noise, engine="portable", seed=0, **settings):
    settings |= {"optimizer": SGD(), "learning_rate_init": 0.01, "max_iter": 2, "batch_size": 20, "shuffle": False}
    return OrtGradientRegressor(network(noise), engine=engine, random_state=seed, **settings).fit(X, Y)


@pytest.mark.parametrize("engine", ["auto", "portable"])
@pytest.mark.parametrize("name", DROPPED)
def test_predictions_are_those_of_evaluation(name, engine):
    fitted = trained(DROPPED[name], engine)
    weights = fitted.weights_
    expected = (X + X @ weights["w"]) @ weights["v"]
    assert_allclose(fitted.predict(X), expected.ravel(), rtol=1e-5, atol=1e-5)
    assert_array_equal(fitted.predict(X), fitted.predict(X))
    kinds = {node.op_type for node in fitted.to_onnx().graph.node}
    assert not any(kind.startswith("Random") or kind == "Bernoulli" for kind in kinds)


def test_numbers_are_drawn_in_training():
    without = trained("k = Identity(a)").weights_["w"]
    assert np.abs(trained(DROPPED["stochastic depth"]).weights_["w"] - without).max() > 1e-4


@pytest.mark.parametrize("name", REFUSED)
def test_other_random_numbers_are_refused(name):
    with pytest.raises(UnsupportedOperatorError, match=r"draws random numbers.*model\.eval\(\)"):
        trained(REFUSED[name])


DRAWN = {
    **DROPPED,
    "uniform of a shape": "r = RandomUniform<shape = [1, 3]>() b = Less(r, val_1) k = Where(b, a, zero)",
    "normal of a shape": "r = RandomNormal<shape = [1, 3], seed = 1.0>() t = Mul(r, val_2) k = Add(a, t)",
}


@pytest.mark.parametrize("engine", ["auto", "portable"])
@pytest.mark.parametrize("name", DRAWN)
def test_numbers_follow_random_state(name, engine):
    first, again, other = (trained(DRAWN[name], engine, seed).weights_["w"] for seed in (0, 0, 1))
    assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-5


def test_an_unpickled_estimator_goes_on_with_the_same_numbers():
    straight = trained(DROPPED["stochastic depth"])
    twin = pickle.loads(pickle.dumps(straight))
    for fitted in (straight, twin):
        fitted.partial_fit(X, Y)
    assert_array_equal(straight.weights_["w"], twin.weights_["w"])


def drawn_numbers(node, draws=30):
    """Return the numbers of a random node in training, of many draws."""
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[200, 3] x) => (float[200, 3] y)
        <float p = {{0.3}}> {{ z = Mul(x, x) q = Expand(p, s) y = {node} }}""".replace(
        "<float p = {0.3}>", "<float p = {0.3}, int64[2] s = {200, 3}>"
    )
    model = infer_shapes(ir.from_proto(onnx.parser.parse_model(text)))
    numbers = UniformNumbers(expose_random(model), 0)
    session = onnxruntime.InferenceSession(to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = []
    for count in range(draws):
        numbers.draw(count)
        feeds = {**numbers.buffers, "x": np.ones((200, 3), np.float32)}
        found.append(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0].ravel())
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("node", "law"),
    [
        ("RandomUniformLike<low = -1.0, high = 3.0>(z)", uniform(-1, 4)),
        ("RandomNormalLike<mean = 2.0, scale = 0.5>(z)", norm(2, 0.5)),
        ("RandomNormal<shape = [200, 3]>()", norm()),
    ],
)
def test_random_numbers_follow_the_node_distribution(node, law):
    found = drawn_numbers(node)
    assert kstest(found, law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.03


def test_the_share_of_bernoulli_is_its_probability():
    found = drawn_numbers("Bernoulli(q)")
    assert set(np.unique(found)) == {0, 1}
    assert abs(found.mean() - 0.3) < 4 * np.sqrt(0.21 / found.size)


def test_numbers_of_no_known_shape_are_refused():
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[200, 3] x) => (float[N, M] y)
        { n = NonZero(x) f = Cast<to = 1>(n) y = RandomNormalLike(f) }"""
    model = infer_shapes(ir.from_proto(onnx.parser.parse_model(text)))
    with pytest.raises(UnsupportedOperatorError, match=r"Like\) cannot be trained: the shape.*by random_state"):
        expose_random(model)


def test_dropout_schedules_leave_random_nodes_unchanged():
    with pytest.warns(OnnxTrainWarning, match="dropout_schedule has no effect"):
        scheduled = trained(DROPPED["Bernoulli"], dropout_schedule="linear")
    assert_array_equal(scheduled.weights_["w"], trained(DROPPED["Bernoulli"]).weights_["w"])
