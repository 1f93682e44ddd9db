"""A network of Keras with BatchNormalization, trained in training mode as Keras trains it.

``data/make_keras_training.py`` wrote the file, and what Keras computes.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, FineTuner, GraphModel, OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import DATA
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
FILE = DATA / "keras_training.onnx"
MOVING = "moving_mean", "moving_variance"


def known():
    with np.load(DATA / "keras_training.npz") as archive:
        return dict(archive)


def trained(model=FILE, training_mode=False, **settings):
    common = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 16, "max_iter": 1, "shuffle": False}
    keras = known()
    return OrtGradientClassifier(
        GraphModel(model, training_mode=training_mode), **{**common, "tol": NEVER, **settings}
    ).fit(keras["X"], keras["y"])


def by_path(weights):
    return {name.partition("sequential/")[2]: array for name, array in weights.items()}


def test_ten_steps_in_training_mode_are_those_of_keras():
    fitted, keras = trained(training_mode=True), known()
    weights = by_path(fitted.weights_)
    assert set(weights) == {name.partition("/")[2] for name in keras if name.startswith("final/")}
    for name, array in weights.items():
        assert_allclose(array, keras[f"final/{name}"], rtol=0, atol=2e-6, err_msg=name)
    assert_allclose(fitted.loss_, keras["losses"].mean(), rtol=1e-6)
    assert_allclose(fitted.decision_function(keras["X"]), keras["scores"], rtol=0, atol=5e-6)
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_array_equal(session.run(["label"], {"X": keras["X"]})[0], fitted.predict(keras["X"]))


def test_evaluation_mode_leaves_the_moving_statistics():
    start = trained(learning_rate_init=0.0)
    assert_allclose(start.decision_function(known()["X"]), known()["start"], rtol=0, atol=2e-6)
    fitted = trained()
    before, after = by_path(start.weights_), by_path(fitted.weights_)
    for name, array in after.items():
        assert np.array_equal(array, before[name]) == name.endswith(MOVING), name


def test_a_new_head_finds_the_last_layer_behind_casts():
    keras = known()
    fitted = OrtGradientClassifier(FILE, finetune=FineTuner(new_head=True), random_state=0)
    fitted.fit(keras["X"], keras["y"] > 0)
    weights = by_path(fitted.weights_) | fitted.weights_
    assert len(weights["head.weight"]) == 5
    assert "dense/kernel" in weights
    assert "dense_1/kernel" not in weights
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_array_equal(session.run(["label"], {"X": keras["X"]})[0], fitted.predict(keras["X"]))


def test_folded_statistics_error_names_remedy():
    with np.load(DATA / "keras_cnn.npz") as archive, pytest.raises(ModelError, match="Export from Keras on PyTorch"):
        OrtGradientClassifier(GraphModel(DATA / "keras_cnn.onnx", training_mode=True)).fit(archive["X"], archive["y"])


LAYER = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 2] Y)
    <float[3] mean = {0.1, 0.2, 0.3}, float[3] variance = {1, 2, 3}, float[3] gamma = {1, 0.5, 2},
     float[3] beta = {0, 1, -1}, float epsilon = {0.001}, int64[2] row = {1, 3}, float[3, 2] W = {1, -1, 2, 0, 1, 1}> {
    m = Reshape(mean, row) v = Reshape(variance, row) g = Reshape(gamma, row) b = Reshape(beta, row)
    d = Sub(X, m) e = Add(v, epsilon) q = Sqrt(e) i = Reciprocal(q) f = Mul(i, g) p = Mul(d, f) z = Add(p, b)
    Y = MatMul(z, W) }"""


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("Mul(i, g)", "Mul(g, i)"), ("Mul(d, f)", "Mul(f, d)"), ("Add(p, b)", "Add(b, p)")]
)
def test_any_order_of_the_operands(old, new):
    keras, X = known(), np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    model = onnx.parser.parse_model(LAYER.replace(old, new))
    fitted = OrtGradientClassifier(
        GraphModel(model, training_mode=True, output_kind="scores"), max_iter=1, batch_size=40
    )
    fitted.fit(X, keras["y"][:40] % 2)
    assert "statistic" in str(fitted.describe())
    assert_allclose(fitted.weights_["mean"], 0.99 * np.array([0.1, 0.2, 0.3]) + 0.01 * X.mean(axis=0), rtol=1e-5)
    assert_allclose(fitted.weights_["variance"], 0.99 * np.array([1, 2, 3]) + 0.01 * X.var(axis=0), rtol=1e-5)
    assert fitted.weights_["gamma"].tolist() != [1, 0.5, 2]
