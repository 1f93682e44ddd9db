"""Opsets from 11 to the newest: what is emitted is valid in each, trains the same weights, and is given back in it."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, OrtGradientClassifier, OrtGradientRegressor, clear_cache, gradient_graph
from onnxtrain_sklearn._gradient.engine import differentiate
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.opsets import MAX_OPSET
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import sessions
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.environment import available_engines
from tests.helpers.runtimes import INSTALLED, NEWER, OLDER
from tests.helpers.sessions import evaluate
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


draw = np.random.RandomState(0)
X = draw.normal(size=(48, 4)).astype(np.float32)
NUMBERS = X @ np.array([1.0, -1.0, 0.5, 0.0]) + np.sin(2 * X[:, 0])
THREE = np.digitize(NUMBERS, [-0.6, 0.9])
TWO = np.where(NUMBERS > 0, "yes", "no")

SETTINGS = {"learning_rate_init": 0.02, "max_iter": 3, "batch_size": 20, "optimizer": "adam", "random_state": 0}
SETTINGS |= {"alpha": 0.01, "l1_ratio": 0.5, "optimizer__max_grad_norm": 1.0}
LOSSES = {
    "log_loss": (OrtGradientClassifier, THREE, 3),
    "hinge": (OrtGradientClassifier, TWO, 1),
    "squared_error": (OrtGradientRegressor, NUMBERS, 1),
}


def model_at_opset(body, opset, *, columns=3, ir_version=8, **weights):
    proto = onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["": {opset}]> '
        f"net (float[N, 4] X) => (float[N, {columns}] z) {{ {body} }}"
    )
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return proto


def mlp_at_opset(opset, columns, ir_version=8):
    rng = np.random.RandomState(1)
    weights = {"A": rng.normal(size=(4, 6)) * 0.5, "a": rng.normal(size=6) * 0.1}
    weights |= {"B": rng.normal(size=(6, columns)) * 0.5, "b": np.zeros(columns)}
    body = "G = Gemm(X, A, a) H = Relu(G) M = MatMul(H, B) z = Add(M, b)"
    return model_at_opset(body, opset, columns=columns, ir_version=ir_version, **weights)


def fitted_to_opset(loss, opset, engine="auto"):
    estimator, y, columns = LOSSES[loss]
    return configured(estimator(mlp_at_opset(opset, columns), loss=loss, engine=engine), **SETTINGS).fit(X, y)


def given_back(estimator):
    return next(entry.version for entry in estimator.to_onnx().opset_import if not entry.domain)


@functools.cache
def fitted_at_opset_18(loss, engine):
    return fitted_to_opset(loss, 18, engine)


@pytest.mark.thinned(by=lambda loss, opset, engine: {opset, (loss, engine)})
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("opset", range(11, 27))
def test_the_same_weights_at_every_opset(loss, opset, engine):
    start = mlp_at_opset(18, LOSSES[loss][2])
    expected, found = fitted_at_opset_18(loss, engine), fitted_to_opset(loss, opset, engine)
    assert found.engine_ == engine
    assert given_back(found) == min(opset, INSTALLED.opset)
    for name, array in found.weights_.items():
        assert_allclose(array, expected.weights_[name], rtol=0, atol=1e-6, err_msg=name)
    moved = [np.abs(found.weights_[t.name] - onnx.numpy_helper.to_array(t)).max() for t in start.graph.initializer]
    assert min(moved) > 1e-3


@pytest.mark.thinned(by=lambda loss, opset: {loss, opset})
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("opset", [11, 13, 18, *range(21, 27)])
def test_all_graphs_are_valid_at_every_opset(loss, opset, monkeypatch):
    graphs = []

    def spy(*arguments):
        result = differentiate(*arguments)
        graphs.append(ir.to_proto(result.model))
        return result

    clear_cache()
    for function in ("programs.differentiate_own", "updates.differentiate"):
        monkeypatch.setattr(f"onnxtrain_sklearn._training.{function}", spy)
    found = fitted_to_opset(loss, opset, "portable")
    exported = found.to_onnx()
    assert len(graphs) == 2  # the step's and the penalty's
    assert min(opset, INSTALLED.opset) in {entry.version for graph in graphs for entry in graph.opset_import}
    for graph in [*graphs, exported]:
        onnx.checker.check_model(graph, full_check=True)
    assert_array_equal(evaluate(exported, X=X)[0].ravel(), found.predict(X))


# Operators that older opsets lack


def log_loss(weights, forward):
    scores = forward(X.astype(np.float64), **weights)
    scores = scores - scores.max(axis=1, keepdims=True)
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(X)), THREE])


def slopes_of_log_loss(weights, forward, step=1e-6):
    """Return the gradient of the mean log-loss by central differences in float64."""
    found = {}
    for name, array in weights.items():
        found[name] = np.zeros_like(array)
        for i in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[i] += sign * step
                ends.append(log_loss(weights | {name: moved}, forward))
            found[name][i] = (ends[0] - ends[1]) / (2 * step)
    return found


def rms_net(x, s, A):
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * s @ A


def swish_net(x, s, A):
    h = x * s
    return h / (1 + np.exp(-1.5 * h)) @ A


NEW_OPERATORS = [
    (23, "H = RMSNormalization(X, s) z = MatMul(H, A)", rms_net),
    (26, "H = RMSNormalization(X, s) z = MatMul(H, A)", rms_net),
    (24, "P = Mul(X, s) H = Swish <alpha = 1.5> (P) z = MatMul(H, A)", swish_net),
]
WEIGHTS = {"s": np.array([0.5, 1.5, -1.0, 2.0]), "A": np.random.RandomState(2).normal(size=(4, 3))}


@pytest.mark.parametrize(("opset", "body", "forward"), NEW_OPERATORS)
def test_late_operator_trains_if_runtime_supports_it(opset, body, forward):
    proto = model_at_opset(body, opset, ir_version=10, **WEIGHTS)
    settings = {"optimizer": SGD(), "learning_rate_init": 1.0, "batch_size": len(X), "max_iter": 1}
    net = OrtGradientClassifier(proto, random_state=0, **settings)
    if INSTALLED.opset < opset:
        with pytest.raises(ModelError, match=rf"opset {opset}; {INSTALLED.runtime} can train .* a newer onnxruntime"):
            net.fit(X, THREE)
        return
    net.fit(X, THREE)
    weights = {name: array.astype(np.float32).astype(np.float64) for name, array in WEIGHTS.items()}
    for name, slope in slopes_of_log_loss(weights, forward).items():
        assert_allclose(net.weights_[name], weights[name] - slope, rtol=0, atol=2e-6, err_msg=name)
    assert (net.engine_, given_back(net)) == ("portable", opset)
    assert_array_equal(evaluate(net.to_onnx(), X=X)[0], net.predict(X))


@pytest.mark.skipif(INSTALLED.opset < 26, reason="this runtime refuses the opset")
def test_an_operator_that_the_runtime_has_no_kernel_for():
    proto = model_at_opset(NEW_OPERATORS[2][1], 26, ir_version=10, **WEIGHTS)
    with pytest.raises(ModelError, match=rf"{INSTALLED.runtime} lacks a kernel .*Swish.* opset"):
        OrtGradientClassifier(proto).fit(X, THREE)


# Gradient graphs


@pytest.mark.parametrize("opset", [18, *range(21, 27)])
def test_gradient_graph_keeps_the_opset(opset):
    proto = model_at_opset(
        "M = MatMul(X, A) z = ReduceSum <keepdims = 0> (M)", opset, ir_version=onnx.IR_VERSION, A=WEIGHTS["A"]
    )
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = len(X)
    graph = gradient_graph(proto, wrt="A", engine="portable")
    onnx.checker.check_model(graph, full_check=True)
    assert [entry.version for entry in graph.opset_import] == [opset]
    assert graph.ir_version == INSTALLED.ir_version
    if opset <= INSTALLED.opset:
        expected = X.sum(axis=0, dtype=np.float64)[:, None].repeat(3, axis=1)
        assert_allclose(evaluate(graph, X=X)[-1], expected, rtol=1e-5)
    proto.opset_import[0].version = MAX_OPSET + 1
    with pytest.raises(UnsupportedOperatorError, match="opset 11 to 26; this graph is of opset 27"):
        gradient_graph(proto, wrt="A")


# Pickles that come to an older runtime


@pytest.mark.parametrize("loss", LOSSES)
def test_a_pickle_goes_on_exactly_on_a_runtime_of_older_opsets(loss, monkeypatch):
    estimator, y, columns = LOSSES[loss]
    newest = min(INSTALLED.opset, MAX_OPSET)
    proto = mlp_at_opset(newest, columns, ir_version=INSTALLED.ir_version)
    net = configured(estimator(proto, loss=loss), **SETTINGS).fit(X, y)
    content, expected = pickle.dumps(net), net.predict(X)
    monkeypatch.setattr(sessions, "versions_for", lambda **_: replace(INSTALLED, opset=17, ir_version=8))
    other = pickle.loads(content)
    assert_array_equal(other.predict(X), expected)
    assert (given_back(net), net.to_onnx().ir_version) == (newest, INSTALLED.ir_version)
    assert (given_back(other), other.to_onnx().ir_version) == (17, 8)
    for one in (net, other):
        one.partial_fit(X, y)
    for name, array in net.weights_.items():
        assert_allclose(other.weights_[name], array, rtol=0, atol=1e-7)


def test_pickle_converted_to_older_opset_keeps_metadata(monkeypatch):
    mean = "axis = Constant <value = int64[1] {1}> () M = ReduceMean (X, axis) D = Sub(X, M) z = MatMul(D, A)"
    source = trainable_model(load(model_at_opset(mean, 18, A=WEIGHTS["A"])))
    content = pickle.dumps(source)
    monkeypatch.setattr(sessions, "versions_for", lambda **_: replace(INSTALLED, opset=17))
    other = pickle.loads(content)
    assert other.model.opset_imports == {"": 17}
    names = [node.name for node in other.model.graph]
    assert "" not in names
    assert len(set(names)) == len(names)
    assert [v.shape for v in other.model.graph.inputs] == [v.shape for v in source.model.graph.inputs]
    assert (other.inputs, other.scores, other.parameters) == (source.inputs, source.scores, source.parameters)
    assert_array_equal(other.weights()["A"], source.weights()["A"])


def test_a_pickle_of_an_operator_that_the_runtime_is_too_old_for(monkeypatch):
    content = pickle.dumps(trainable_model(load(model_at_opset(NEW_OPERATORS[0][1], 23, **WEIGHTS), NEWER)))
    monkeypatch.setattr(sessions, "supported_versions", lambda: NEWER)
    same = pickle.loads(content)
    assert same.model.opset_imports == {"": 23}
    assert_array_equal(same.weights()["s"], WEIGHTS["s"])
    monkeypatch.setattr(sessions, "supported_versions", lambda: OLDER)
    with pytest.raises(ModelError, match=r"opset 23; onnxruntime 1\.19\.2 .* RMSNormalization .* a newer onnxruntime"):
        pickle.loads(content)
