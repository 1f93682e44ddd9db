"""The log loss of many classes is computed from class indices, without one-hot rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax

from onnxtrain_sklearn import MLP, SGD, GraphModel, OrtGradientClassifier, OrtGradientMultiOutput, clear_cache, losses
from onnxtrain_sklearn._training import loss_graph, programs
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
K, N, WIDTH, PLACES = 300, 40, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, WIDTH)).astype(np.float32)
W = RNG.normal(size=(WIDTH, K)).astype(np.float32)
LABELS = RNG.integers(0, K, N)
WEIGHTS = RNG.uniform(0, 2, N)
MAPS = RNG.normal(size=(N, PLACES, WIDTH)).astype(np.float32)
AT_PLACES = RNG.integers(0, K, (N, PLACES))
AT_PLACES[:, 1][RNG.random(N) < 0.5] = -100
engines = pytest.mark.parametrize("engine", available_engines())


def new(loss: object = "log_loss", *, places: bool = False, **settings: object) -> OrtGradientClassifier:
    inputs, outputs = ("N, 3, 5", f"N, 3, {K}") if places else ("N, 5", f"N, {K}")
    head = '<ir_version: 8, opset_import: ["": 17]>'
    model = onnx.parser.parse_model(f"{head} net (float[{inputs}] X) => (float[{outputs}] Y) {{ Y = MatMul(X, W) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "W"))
    common = {"optimizer": SGD(), "learning_rate_init": 0.5, "batch_size": N, "max_iter": 1}
    given = GraphModel(model, output_kind="scores")
    return OrtGradientClassifier(given, loss=loss, random_state=0, **{**common, **settings})


def operators(fitted: OrtGradientClassifier) -> set[str]:
    program = onnx.load_from_string(fitted._state.live.step.program.graph)
    return {node.op_type for node in program.graph.node}


def reference(x: np.ndarray, labels: np.ndarray, weights: np.ndarray, smoothing: float = 0.0):
    """Return the loss and the matrix after one step, in float64."""
    scores, shares = x.astype(np.float64) @ W, weights / weights.sum()
    target = np.eye(K)[labels] * (1 - smoothing) + smoothing / K
    loss = -(shares * (target * log_softmax(scores, axis=1)).sum(axis=1)).sum()
    return loss, W - 0.5 * x.T @ ((softmax(scores, axis=1) - target) * shares[:, None])


@engines
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows(engine, smoothing):
    fitted = new(losses.LogLoss(smoothing), engine=engine)
    fitted.partial_fit(X, LABELS, classes=np.arange(K), sample_weight=WEIGHTS)
    loss, matrix = reference(X, LABELS, WEIGHTS, smoothing)
    assert_allclose(fitted.loss_, loss, rtol=1e-6)
    assert_allclose(fitted.weights_["W"], matrix, rtol=0, atol=1e-6)
    assert "Equal" not in operators(fitted)


@engines
def test_labels_at_positions_some_of_which_are_ignored(engine):
    fitted = new(places=True, engine=engine, ignore_label=-100)
    fitted.partial_fit(MAPS, AT_PLACES, classes=np.arange(K), sample_weight=WEIGHTS)
    counted = AT_PLACES != -100
    loss, matrix = reference(MAPS[counted], AT_PLACES[counted], np.repeat(WEIGHTS, PLACES).reshape(N, PLACES)[counted])
    assert_allclose(fitted.loss_, loss, rtol=1e-6)
    assert_allclose(fitted.weights_["W"], matrix, rtol=0, atol=1e-6)
    assert "Equal" not in operators(fitted)


@engines
@pytest.mark.parametrize("places", [False, True])
def test_one_of_several_outputs(engine, places):
    inputs, outputs = ("N, 3, 5", f"N, 3, {K}") if places else ("N, 5", f"N, {K}")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> net (float[{inputs}] X) => (float[{outputs}] Y, float[N, 1] Z)
        <float[5, 1] V = {{0, 0, 0, 0, 0}}>
        {{ Y = MatMul(X, W) F = Flatten(X) S = Slice(F, start, end, axis) Z = MatMul(S, V) }}"""
    )
    constants = {"W": W, "start": np.array([0]), "end": np.array([5]), "axis": np.array([1])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in constants.items())
    settings = {"optimizer": SGD(), "learning_rate_init": 0.5, "batch_size": N, "random_state": 0, "engine": engine}
    fitted = OrtGradientMultiOutput(model, loss={"Y": "log_loss", "Z": "squared_error"}, **settings)
    x, labels = (MAPS, AT_PLACES) if places else (X, LABELS)
    fitted.partial_fit(x, {"Y": labels, "Z": np.zeros(N)}, {"Y": np.arange(K)}, sample_weight=WEIGHTS)
    counted = labels != -100
    w = np.broadcast_to(WEIGHTS[:, None] if places else WEIGHTS, labels.shape)[counted]
    loss, matrix = reference(x[counted] if places else x, labels[counted], w)
    assert_allclose(fitted.loss_, loss, rtol=1e-5)
    assert_allclose(fitted.weights_["W"], matrix, rtol=0, atol=1e-6)
    assert "Equal" not in operators(fitted)


@engines
def test_few_classes_have_one_hot_rows_with_the_same_result(monkeypatch, engine):
    found = []
    for bound in (K, K + 1):
        monkeypatch.setattr(loss_graph, "MANY_CLASSES", bound)
        clear_cache()
        fitted = new(engine=engine)
        found.append(fitted.partial_fit(X, LABELS, classes=np.arange(K)))
        assert ("Equal" in operators(fitted)) == (bound > K)
    clear_cache()
    assert_allclose(found[0].weights_["W"], found[1].weights_["W"], rtol=0, atol=1e-6)


@engines
def test_one_hot_rows_of_a_table_are_those_of_a_comparison(monkeypatch, engine):
    few, found = LABELS % 7, []
    monkeypatch.setattr(programs, "read_weights_at_labels", lambda graph: False)  # which rounds otherwise
    for bound in (6, 7):
        monkeypatch.setattr(loss_graph, "TABLE_CLASSES", bound)
        clear_cache()
        fitted = OrtGradientClassifier(MLP(8), batch_size=N, max_iter=3, random_state=0, engine=engine).fit(X, few)
        assert ("Equal" in operators(fitted)) == (bound < 7)
        found.append(fitted.weights_)
    clear_cache()
    for name, array in found[0].items():
        assert_array_equal(array, found[1][name])


class Halved(losses.LogLoss):
    """Overrides the form for one-hot rows alone."""

    def __call__(self, op, scores, y, link):
        return op.Mul(super().__call__(op, scores, y, link), 0.5)


def test_a_loss_of_a_user_keeps_its_one_hot_rows():
    fitted = new(Halved()).partial_fit(X, LABELS, classes=np.arange(K))
    assert "Equal" in operators(fitted)
    assert_allclose(fitted.loss_, reference(X, LABELS, np.ones(N))[0] / 2, rtol=1e-6)


def test_no_tensor_of_zeros_takes_the_gradient():
    fitted = new(engine="portable").partial_fit(X, LABELS, classes=np.arange(K))
    assert "ConstantOfShape" not in operators(fitted)


def test_an_unknown_label_does_not_list_all_classes():
    model = OrtGradientClassifier(MLP((2,)), random_state=0).partial_fit([[0.0], [1.0]], [0, 1], classes=range(300))
    with pytest.raises(ValueError, match=r"classes: \[300\].*are \[0, 1, .*, 19, \.\.\.\], 300 in all\.$"):
        model.partial_fit([[0.0]], [300])
