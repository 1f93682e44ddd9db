"""The graph builders: what they build, the numbers they draw, and the conventions of scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.checker
import onnx.numpy_helper
import onnxruntime
import pytest
import scipy.special
from sklearn.base import clone
from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, ConvNet, Linear, OrtGradientClassifier, models
from onnxtrain_sklearn.models import ACTIVATIONS, INITIALIZATIONS, MODELS

REFERENCES = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "logistic": scipy.special.expit,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "softplus": lambda x: np.logaddexp(0, x),
    "silu": lambda x: x * scipy.special.expit(x),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}
SPREAD = {  # the half width of a uniform distribution, or the standard deviation of a normal one
    "glorot_uniform": lambda n_in, n_out: np.sqrt(6 / (n_in + n_out)),
    "glorot_normal": lambda n_in, n_out: np.sqrt(2 / (n_in + n_out)),
    "he_uniform": lambda n_in, n_out: np.sqrt(6 / n_in),
    "he_normal": lambda n_in, n_out: np.sqrt(2 / n_in),
}


def weights_by_name(model):
    return {i.name: onnx.numpy_helper.to_array(i).astype(np.float64) for i in model.graph.initializer}


def score_rows(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"X": X})[0]


def random_biases(model, seed=0):
    """Biases start at zero, where they cannot be seen."""
    rng = np.random.default_rng(seed)
    for initializer in model.graph.initializer:
        if initializer.name.endswith("bias"):
            array = rng.normal(size=tuple(initializer.dims)).astype(np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return model


def test_every_activation_and_initialization_is_tested():
    assert set(REFERENCES) == set(ACTIVATIONS)
    assert set(SPREAD) == set(INITIALIZATIONS) - {"zeros"}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_is_its_formula(activation):
    model = random_biases(MLP((7, 5), activation).build(4, 3, random_state=0))
    X = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    values = X.astype(np.float64)
    parameters = weights_by_name(model)
    for i in range(3):
        values = values @ parameters[f"layers.{i}.weight"] + parameters[f"layers.{i}.bias"]
        values = REFERENCES[activation](values) if i < 2 else values
    np.testing.assert_allclose(score_rows(model, X), values, rtol=0, atol=2e-6)


def test_linear_is_its_formula():
    model = random_biases(Linear().build(4, 3, random_state=0))
    X = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    expected = X.astype(np.float64) @ weights_by_name(model)["weight"] + weights_by_name(model)["bias"]
    np.testing.assert_allclose(score_rows(model, X), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [
        ((7, 5), [(4, 7), (7,), (7, 5), (5,), (5, 3), (3,)]),
        ([6], [(4, 6), (6,), (6, 3), (3,)]),
        (6, [(4, 6), (6,), (6, 3), (3,)]),
        (np.int64(6), [(4, 6), (6,), (6, 3), (3,)]),
        (np.array([6]), [(4, 6), (6,), (6, 3), (3,)]),
        ((), [(4, 3), (3,)]),
    ],
)
def test_names_and_shapes_of_the_layers(sizes, shapes):
    arrays = weights_by_name(MLP(sizes).build(4, 3, random_state=0))
    names = [f"layers.{i}.{kind}" for i in range(len(shapes) // 2) for kind in ("weight", "bias")]
    assert {name: array.shape for name, array in arrays.items()} == dict(zip(names, shapes, strict=True))


def test_linear_without_intercept():
    arrays = weights_by_name(Linear(fit_intercept=False).build(4, 3, random_state=0))
    assert {name: array.shape for name, array in arrays.items()} == {"weight": (4, 3)}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_graphs_pass_the_full_check(activation):
    model = MLP((5,), activation).build(4, 3, random_state=0)
    onnx.checker.check_model(model, full_check=True)
    assert [(v.name, v.type.tensor_type.elem_type) for v in model.graph.output] == [("scores", onnx.TensorProto.FLOAT)]
    dims = [d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == ["N", 3]
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_constants_are_not_initializers():
    model = MLP((5,), "gelu").build(4, 3, random_state=0)
    assert len(model.graph.initializer) == 4


@pytest.mark.parametrize("name", SPREAD)
def test_distribution_of_the_weights(name):
    W = weights_by_name(Linear(initialization=name).build(300, 200, random_state=0))["weight"]
    spread = SPREAD[name](300, 200)
    normal = name.endswith("normal")
    assert abs(W.mean()) < 0.01 * spread
    np.testing.assert_allclose(W.std(), spread if normal else spread / np.sqrt(3), rtol=0.01)
    if normal:
        np.testing.assert_allclose(np.mean(np.abs(W) < spread), 0.6827, atol=0.01)
    else:
        assert 0.999 * spread < np.abs(W).max() <= spread * (1 + 1e-6)


def test_zeros():
    assert not weights_by_name(Linear(initialization="zeros").build(4, 3))["weight"].any()


def test_default_initialization_is_that_of_scikit_learn():
    arrays = weights_by_name(MLP((300,)).build(200, 100, random_state=0))
    for i, (n_in, n_out) in enumerate([(200, 300), (300, 100)]):
        largest = np.abs(arrays[f"layers.{i}.weight"]).max()
        np.testing.assert_allclose(largest, SPREAD["glorot_uniform"](n_in, n_out), rtol=1e-3)
        assert not arrays[f"layers.{i}.bias"].any()


def test_named_initialization_holds_for_every_layer():
    arrays = weights_by_name(MLP((300,), initialization="he_normal").build(200, 100, random_state=0))
    np.testing.assert_allclose(arrays["layers.0.weight"].std(), np.sqrt(2 / 200), rtol=0.02)
    np.testing.assert_allclose(arrays["layers.1.weight"].std(), np.sqrt(2 / 300), rtol=0.02)


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (
            MLP(activation="rleu"),
            r"'activation' .* Got 'rleu'.*Did you mean 'relu'.*Valid names: .*'tanh'",
        ),
        (MLP(initialization="he_unform"), r"'initialization' .*Got 'he_unform'.*Did you mean 'he_uniform'"),
        (Linear(initialization="auto"), r"'initialization' parameter of Linear .*'glorot_uniform'"),
        (MLP((5, 0)), r"'hidden_layer_sizes' .* an int >= 1 or a sequence of them. Got \(5, 0\)"),
        (MLP(-1), "'hidden_layer_sizes' .* Got -1"),
        (MLP((2.5,)), "'hidden_layer_sizes' parameter of MLP"),
        (MLP(8.0), "'hidden_layer_sizes' parameter of MLP"),
        (MLP("12"), "'hidden_layer_sizes' parameter of MLP"),
    ],
)
def test_errors(builder, message):
    with pytest.raises(ValueError, match=message):
        builder.build(4, 3)


FOR_TABLES = {"realmlp", "tabm"}
"""Builders whose distributions of weights belong to their recipe."""


def drawing(name: str) -> object:
    """Return a builder of this name that draws its weights at random."""
    return MODELS[name](initialization="glorot_uniform") if name == "linear" else MODELS[name]()


@pytest.mark.parametrize("name", MODELS)
class TestContract:
    """What every builder must satisfy."""

    def test_same_seed_same_graph(self, name):
        builder = drawing(name)
        assert builder.build(4, 3, random_state=7) == builder.build(4, 3, random_state=7)
        assert builder.build(4, 3, random_state=7) != builder.build(4, 3, random_state=8)

    def test_random_state_goes_on(self, name):
        rng = np.random.RandomState(7)
        first, second = (drawing(name).build(4, 3, random_state=rng) for _ in range(2))
        assert first == drawing(name).build(4, 3, random_state=7)
        assert first != second

    @pytest.mark.parametrize("n_outputs", [1, 3])
    def test_scores_have_a_row_per_row(self, name, n_outputs):
        model = MODELS[name]().build(4, n_outputs, random_state=0)
        onnx.checker.check_model(model, full_check=True)
        for n in (1, 5):
            members = [32] if name == "tabm" else []
            assert score_rows(model, np.ones((n, 4), np.float32)).shape == (n, *members, n_outputs)

    def test_conventions(self, name):
        builder = MODELS[name]()
        parameters = builder.get_params()
        assert set(vars(builder)) == set(parameters)
        copies = [clone(builder), pickle.loads(pickle.dumps(builder)), type(builder)(**parameters)]
        for copy in copies:
            assert copy.get_params() == parameters
            assert copy.build(4, 3, random_state=0) == builder.build(4, 3, random_state=0)

    def test_parameters_are_set_and_shown(self, name):
        parameter, value = ("hidden_layer_sizes", (7,)) if name in FOR_TABLES else ("initialization", "he_normal")
        builder = MODELS[name]().set_params(**{parameter: value})
        assert repr(builder) == f"{type(builder).__name__}({parameter}={value!r})"
        assert getattr(clone(builder), parameter) == value
        arrays = weights_by_name(builder.build(4, 3))
        if name in FOR_TABLES:
            assert arrays["layers.0.weight"].shape[-1] == 7
        else:
            assert any(array.any() for array in arrays.values())

    def test_is_public(self, name):
        assert getattr(models, MODELS[name].__name__) is MODELS[name]
        assert "Examples" in MODELS[name].__doc__


def convolution(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the cross-correlation of rows (n, channels, ...) in float64, of the size of the rows."""
    spatial = kernel.shape[2:]
    pads = [(0, 0), (0, 0), *(((k - 1) // 2, k // 2) for k in spatial)]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), spatial, tuple(range(2, x.ndim)))
    axes = [1, *range(x.ndim, windows.ndim)]
    product = np.tensordot(windows, kernel, (axes, [1, *range(2, kernel.ndim)]))
    return np.moveaxis(product, -1, 1) + bias.reshape(-1, *[1] * len(spatial))


def pooled(x: np.ndarray) -> np.ndarray:
    for axis in range(2, x.ndim):
        n = x.shape[axis] // 2 * 2
        if n:
            even, odd = (np.take(x, range(first, n, 2), axis) for first in (0, 1))
            x = np.maximum(even, odd)
    return x


@pytest.mark.parametrize("row", [(9,), (8, 8), (3, 5, 4), (1, 1, 2)])
@pytest.mark.parametrize("kernel_size", [2, 3])
def test_convnet_is_its_formula(row, kernel_size):
    rng = np.random.default_rng(0)
    builder = ConvNet((3, 2), kernel_size, "tanh", "glorot_normal")
    model = random_biases(builder.build(int(np.prod(row)), 4, random_state=0, row_shape=row))
    onnx.checker.check_model(model, full_check=True)
    X, parameters = rng.normal(size=(6, *row)).astype(np.float32), weights_by_name(model)
    values = X.astype(np.float64) if len(row) == 3 else X[:, None].astype(np.float64)
    for i in range(2):
        kernel, bias = parameters[f"convolutions.{i}.weight"], parameters[f"convolutions.{i}.bias"]
        values = pooled(np.tanh(convolution(values, kernel, bias)))
    values = values.reshape(6, -1) @ parameters["head.weight"] + parameters["head.bias"]
    np.testing.assert_allclose(score_rows(model, X), values, rtol=0, atol=5e-6)


def test_convnet_draws_kernels_by_their_fans():
    model = ConvNet((64, 64), initialization="he_normal").build(64, 2, random_state=0, row_shape=(8, 8))
    np.testing.assert_allclose(weights_by_name(model)["convolutions.1.weight"].std(), np.sqrt(2 / (64 * 9)), rtol=0.02)


def test_convnet_takes_images_and_signals():
    with pytest.raises(ValueError, match=r"rows of shape \(channels, height, width\).* got \(2, 3, 4, 5\)"):
        ConvNet().build(120, 2, row_shape=(2, 3, 4, 5))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("row", [(64,), (8, 8), (1, 8, 8), (4, 4, 4)])
def test_convnet_learns(row):
    X, y = load_digits(return_X_y=True)
    rows = (X / 16).astype(np.float32).reshape(-1, *row)
    net = OrtGradientClassifier(ConvNet(8), learning_rate_init=0.02, max_iter=12, batch_size=50, random_state=0)
    assert net.fit(rows[:600], y[:600]).score(rows[600:900], y[600:900]) > 0.8
