"""The perceptron's dropout, normalization, residual connections and trained activations, beside formulas in float64."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from onnxtrain_sklearn.models import ACTIVATIONS
from tests.helpers.data import blobs, line
from tests.helpers.environment import available_engines, each_engine
from tests.helpers.random_numbers import Draws
from tests.helpers.training import NEVER, quietly, weights_equal
from tests.models.test_models import REFERENCES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = line(24, outputs=2)
EPSILON = 1e-5
NETS = [
    {"normalization": n, "residual": r, "parametric_activation": p, "activation": a}
    for n, r, p, a in [
        ("layer", False, False, "relu"),
        ("layer", True, True, "mish"),
        ("batch", False, False, "tanh"),
        ("batch", True, True, "selu"),
        (None, True, False, "relu"),
        (None, False, True, "silu"),
        (None, True, True, "elu"),
    ]
]


def forward(net: MLP, w: dict[str, np.ndarray], rows: np.ndarray, masks=(), statistics: dict | None = None):
    """Return the scores in float64. Without ``statistics`` batches are normalized by their own, which are returned."""
    x, moments = rows.astype(np.float64), {}
    n_hidden = len(net.hidden_layer_sizes)
    for i in range(n_hidden):
        name = f"layers.{i}"
        z = x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)
        norm = f"{name}.normalization"
        if net.normalization == "layer":
            mean, var = z.mean(axis=1, keepdims=True), z.var(axis=1, keepdims=True)
        elif net.normalization == "batch":
            mean, var = (z.mean(axis=0), z.var(axis=0)) if statistics is None else statistics[i]
            moments[i] = mean, var
        if net.normalization:
            z = (z - mean) / np.sqrt(var + EPSILON) * w[f"{norm}.weight"] + w[f"{norm}.bias"]
        h = REFERENCES[net.activation](z)
        if net.parametric_activation:
            h = z + w[f"{name}.activation"] * (h - z)
        h = h * masks[i] if masks else h
        if net.residual:
            h = h + (x @ w[f"{name}.shortcut.weight"] if f"{name}.shortcut.weight" in w else x)
        x = h
    return x @ w[f"layers.{n_hidden}.weight"] + w[f"layers.{n_hidden}.bias"], moments


def in_double(estimator):
    return {name: array.astype(np.float64) for name, array in estimator.weights_.items()}


def unlike_the_start(net, **settings):
    """Return a regressor of the net whose parameters are not at the values where they start."""
    estimator = OrtGradientRegressor(net, learning_rate_init=0, target_scaling=None, max_iter=1, **settings)
    quietly(estimator.fit, X, Y)
    rng = np.random.default_rng(3)
    for name in estimator._state.parameters.names:
        view = estimator._state.parameters.view(name)
        view += rng.normal(0, 0.3, view.shape)
    estimator._state.live.predictors.clear()
    return estimator


def slopes(net, w, masks=(), batch=slice(None)):
    """Return the slopes of the squared error by central differences in float64."""
    found = {}
    for name in [name for name in w if "running" not in name]:
        found[name] = np.zeros_like(w[name])
        for place in np.ndindex(w[name].shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = {**w, name: w[name].copy()}
                moved[name][place] += step
                ends.append(((forward(net, moved, X[batch], masks)[0] - Y[batch]) ** 2).mean())
            found[name][place] = (ends[0] - ends[1]) / 2e-6
    return found


@each_engine
@pytest.mark.parametrize("options", NETS, ids=str)
def test_a_step_is_that_of_the_formula(options, engine):
    net = MLP((5, 5), **options)
    if options["normalization"] == "batch" and engine == "ort-training":
        with pytest.raises(UnsupportedOperatorError, match="BatchNormalization"):
            OrtGradientRegressor(net, engine=engine).fit(X, Y)
        return
    estimator = unlike_the_start(net, optimizer=SGD(), engine=engine, batch_size=24)
    before = in_double(estimator)
    estimator.set_params(learning_rate_init=1.0).partial_fit(X, Y)
    assert estimator.engine_ == engine
    expected = slopes(net, before)
    assert set(expected) == {name for name in before if "running" not in name}
    scale = max(np.abs(slope).max() for slope in expected.values())
    for name, slope in expected.items():
        assert_allclose(before[name] - estimator.weights_[name], slope, rtol=0, atol=3e-5 * scale, err_msg=name)
    statistics = None
    if options["normalization"] == "batch":
        for i, (mean, var) in forward(net, before, X)[1].items():
            for kind, new in (("mean", mean), ("var", var)):
                name = f"layers.{i}.normalization.running_{kind}"
                assert_allclose(estimator.weights_[name], 0.9 * before[name] + 0.1 * new, rtol=1e-4, atol=1e-5)
    after = in_double(estimator)
    if options["normalization"] == "batch":
        norms = [f"layers.{i}.normalization.running" for i in range(2)]
        statistics = {i: (after[f"{norm}_mean"], after[f"{norm}_var"]) for i, norm in enumerate(norms)}
    scores = forward(net, after, X, statistics=statistics)[0]
    assert_allclose(estimator.predict(X), scores, rtol=0, atol=2e-5 * np.abs(scores).max())


@each_engine
@pytest.mark.parametrize("residual", [False, True])
def test_dropout_drops_the_hidden_units(residual, engine):
    """The masks are those that the seed of the run draws: a number in [0, 1) for each unit, kept from the ratio on."""
    net = MLP((5, 5), "tanh", dropout=0.4, residual=residual)
    estimator = unlike_the_start(net, optimizer=SGD(), engine=engine, batch_size=12, shuffle=False, random_state=0)
    weights, seed, draws = in_double(estimator), estimator._state.seed, estimator._state.optimizer_state.draws
    for i, batch in enumerate((slice(12), slice(12, 24))):
        masks = [(u >= 0.4) / 0.6 for u in Draws(seed, (12, 5), (12, 5)).at(draws + i)]
        weights = {name: weights[name] - 0.1 * slope for name, slope in slopes(net, weights, masks, batch).items()}
    estimator.set_params(learning_rate_init=0.1).partial_fit(X, Y)
    for name, expected in weights.items():
        assert_allclose(estimator.weights_[name], expected, rtol=0, atol=5e-6, err_msg=name)
    assert_allclose(estimator.predict(X), forward(net, in_double(estimator), X)[0], rtol=0, atol=2e-5)


def all_options(normalization="layer"):
    return MLP((6, 6), "selu", dropout=0.2, normalization=normalization, residual=True, parametric_activation=True)


@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_files_are_in_evaluation_mode(normalization):
    X, y = blobs(61, classes=3)
    net = OrtGradientClassifier(all_options(normalization), max_iter=4, batch_size=20, random_state=0).fit(X, y)
    model = net.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    operators = {node.op_type for node in model.graph.node}
    assert "Dropout" not in operators
    for node in model.graph.node:
        assert node.op_type != "BatchNormalization" or (len(node.output) == 1 and "training_mode" not in str(node))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_array_equal(session.run(["probabilities"], {"X": X})[0], net.predict_proba(X))
    assert_allclose(session.run(["probabilities"], {"X": X[:1]})[0], net.predict_proba(X)[:1], rtol=1e-5)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_training_goes_on_after_a_pickle(normalization, engine):
    engine = "portable" if normalization == "batch" else engine
    X, y = blobs(60)
    first = OrtGradientClassifier(all_options(normalization), batch_size=16, random_state=0, engine=engine)
    first.partial_fit(X, y, classes=[0, 1])
    copy = pickle.loads(pickle.dumps(first))
    for _ in range(2):
        first.partial_fit(X[:50], y[:50])
        copy.partial_fit(X[:50], y[:50])
    assert weights_equal(first, copy)
    assert_array_equal(first.predict_proba(X), copy.predict_proba(X))
    again = clone(first).set_params(max_iter=2, early_stopping=True)
    assert weights_equal(quietly(again.fit, X, y), quietly(clone(again).fit, X, y))


@pytest.mark.parametrize("options", [{"dropout": 0.2}, {"normalization": "batch"}, {"residual": True}], ids=str)
def test_parametric_activations_learn(options):
    X, y = blobs(200, classes=3)
    net = MLP((16, 16), parametric_activation=True, **options)
    fitted = OrtGradientClassifier(net, learning_rate_init=0.02, max_iter=40, batch_size=32, tol=NEVER, random_state=0)
    assert fitted.fit(X, y).score(X, y) > 0.9


def test_the_parameters_that_there_are():
    weights = {i.name: tuple(i.dims) for i in all_options("batch").build(4, 1, random_state=0).graph.initializer}
    norm = [f"normalization.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
    names = ["weight", *norm, "activation", "shortcut.weight"]
    expected = [f"layers.0.{name}" for name in names] + [f"layers.1.{name}" for name in names[:-1]]
    assert list(weights) == [*expected, "layers.2.weight", "layers.2.bias"]
    assert weights["layers.0.shortcut.weight"] == (4, 6)
    assert weights["layers.0.activation"] == (6,)
    plain = MLP((6,), "identity", parametric_activation=True, normalization="layer").build(4, 1)
    assert "layers.0.activation" not in {i.name for i in plain.graph.initializer}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_trained_activations_start_as_the_given_one(activation):
    plain, trained = (
        MLP((6, 5), activation, parametric_activation=p).build(4, 2, random_state=0) for p in (0 > 1, True)
    )
    arrays = {i.name: i.raw_data for i in trained.graph.initializer}
    assert all(arrays[i.name] == i.raw_data for i in plain.graph.initializer)
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    found = []
    for model in (plain, trained):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"X": rows})[0])
    assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["elu", "selu", "mish"])
def test_activations_of_large_numbers(activation):
    model = MLP((1,), activation).build(1, 1)
    for initializer in model.graph.initializer:
        ones = np.full(tuple(initializer.dims), "weight" in initializer.name, np.float32)
        initializer.CopyFrom(onnx.numpy_helper.from_array(ones, initializer.name))
    rows = np.array([[-1e4], [-90], [-20], [0], [20], [90], [1e4]], np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with np.errstate(over="ignore"):
        expected = REFERENCES[activation](rows.astype(np.float64))
    assert_allclose(session.run(None, {"X": rows})[0], expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dropout": 1.0}, "'dropout' parameter of MLP"),
        ({"dropout": -0.1}, "'dropout' parameter of MLP"),
        ({"normalization": "bacth"}, "Did you mean 'batch'"),
        ({"residual": 1}, "'residual' parameter of MLP"),
        ({"parametric_activation": "yes"}, "'parametric_activation' parameter of MLP"),
    ],
)
def test_wrong_parameter_values_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        MLP(**options).build(4, 1)


def test_set_params_changes_each_option():
    net = OrtGradientRegressor(MLP((4,)), max_iter=1, random_state=0)
    base = quietly(net.fit, X, Y).predict(X)
    for name, value in (("dropout", 0.5), ("normalization", "layer"), ("residual", True), ("activation", "mish")):
        other = clone(net).set_params(**{f"model__{name}": value})
        assert np.abs(quietly(other.fit, X, Y).predict(X) - base).max() > 1e-4
