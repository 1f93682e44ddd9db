"""The log loss of many classes is computed from class indices, without one-hot rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax, softmax

from onnxtrain_sklearn import MLP, SGD, GraphModel, OrtGradientClassifier, OrtGradientMultiOutput, losses
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


def new(
    loss: object = "log_loss", *, places: bool = False, matrix: np.ndarray = W, **settings: object
) -> OrtGradientClassifier:
    k = matrix.shape[1]
    inputs, outputs = ("N, 3, 5", f"N, 3, {k}") if places else ("N, 5", f"N, {k}")
    head = '<ir_version: 8, opset_import: ["": 17]>'
    model = onnx.parser.parse_model(f"{head} net (float[{inputs}] X) => (float[{outputs}] Y) {{ Y = MatMul(X, W) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "W"))
    common = {"optimizer": SGD(), "learning_rate_init": 0.5, "batch_size": N, "max_iter": 1}
    given = GraphModel(model, output_kind="scores")
    return OrtGradientClassifier(given, loss=loss, random_state=0, **{**common, **settings})


def operators(fitted: OrtGradientClassifier) -> set[str]:
    program = onnx.load_from_string(fitted._state.live.step.program.graph)
    return {node.op_type for node in program.graph.node}


def reference(x: np.ndarray, labels: np.ndarray, weights: np.ndarray, smoothing: float = 0.0, matrix: np.ndarray = W):
    """Return the loss and the matrix after one step, in float64."""
    scores, shares, k = x.astype(np.float64) @ matrix, weights / weights.sum(), matrix.shape[1]
    target = np.eye(k)[labels] * (1 - smoothing) + smoothing / k
    loss = -(shares * (target * log_softmax(scores, axis=1)).sum(axis=1)).sum()
    return loss, matrix - 0.5 * x.T @ ((softmax(scores, axis=1) - target) * shares[:, None])


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
@pytest.mark.parametrize("classes", [7, 64, 65, 255, 256])
def test_fewer_classes(engine, classes):
    """Up to 64 classes have their rows in a table, up to 255 compare each label with all of them."""
    labels, matrix = LABELS % classes, W[:, :classes]
    fitted = new(engine=engine, matrix=matrix)
    fitted.partial_fit(X, labels, classes=np.arange(classes), sample_weight=WEIGHTS)
    loss, expected = reference(X, labels, WEIGHTS, matrix=matrix)
    assert_allclose(fitted.loss_, loss, rtol=1e-6)
    assert_allclose(fitted.weights_["W"], expected, rtol=0, atol=1e-6)
    assert ("Equal" in operators(fitted)) == (classes in (65, 255))


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
    with pytest.raises(ValueError, match=r"classes: \[300\].*are \[0, 1, .*, 19, \.\.\.\], 300 in all\. A model"):
        model.partial_fit([[0.0]], [300])
