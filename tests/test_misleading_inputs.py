"""Data and graphs that are not trained as they are: sentences that say what does, and rows of other lengths."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 4))
y = X[:, 0]


def parsed(text, **weights):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


@pytest.mark.parametrize("kind", [object, str])
def test_text_in_a_matrix_names_the_estimators_that_take_it(kind):
    texts = X.astype(object)
    texts[:, 1] = "red"
    with pytest.raises(ValueError, match=r"X holds text, and the input of the graph takes numbers. RealMLPClassifier"):
        OrtGradientRegressor().fit(texts.astype(kind), y)


def test_missing_numbers_name_estimators_of_this_package():
    gaps = np.where(np.arange(160).reshape(40, 4) == 5, np.nan, X)
    with pytest.raises(ValueError, match=r"Input X contains NaN.\n.*RealMLPRegressor.* take missing numbers") as caught:
        OrtGradientRegressor().fit(gaps, y)
    assert "HistGradientBoosting" not in str(caught.value)


def test_images_beside_text_say_how_to_train_behind_the_text():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (string[N, 3] X, float[N, 2, 2] Z) => (float[N, 1] Y) {
        h = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF",
            ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["a", "b"]> (X)
        s = Flatten(Z) j = Concat<axis = 1>(h, s) Y = MatMul(j, V) }""",
        V=np.ones((6, 1), np.float32),
    )
    data = {"X": np.array([["a", "b", "a"]] * 40, object), "Z": np.ones((40, 2, 2), np.float32)}
    with pytest.raises(ModelError, match=r"has inputs of text, and its input 'X' is STRING\[N,3\].*extract_model"):
        OrtGradientRegressor(model).fit(data, y)


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_a_rate_alone_for_a_fitted_model_warns_that_it_is_not_fine_tuned():
    fitted = LinearRegression().fit(X, y)
    wanted = re.escape("learning_rate_init=0.01 turns off the fine-tuning of the fitted model")
    with pytest.warns(OnnxTrainWarning, match=wanted):
        OrtGradientRegressor(fitted, learning_rate_init=0.01).fit(X, y)


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_rows_of_another_length_are_predicted_where_the_axis_is_free():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, T, 4] X) => (float[N, 1] Y)
        { one = Constant<value_ints = [1]>() h = ReduceMean<keepdims = 0>(X, one) Y = MatMul(h, V) }""",
        V=np.ones((4, 1), np.float32),
    )
    series = RANDOM.normal(size=(40, 5, 4)).astype(np.float32)
    fitted = OrtGradientRegressor(model, max_iter=1).fit(series, y)
    shorter = series[:, :3]
    assert_allclose(fitted.predict(shorter), shorter.mean(1) @ fitted.weights_["V"].ravel(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="takes rows of shape"):
        fitted.predict(series[:, :, :3])


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_a_head_is_trained_behind_a_body_of_four_bits():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> net (float[N, 32] X) => (float[N, 1] Y)
        { h = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (X, B, s) t = Tanh(h)
          Y = MatMul(t, V) }""",
        B=RANDOM.integers(0, 255, (4, 1, 16), dtype=np.uint8),
        s=RANDOM.uniform(0.01, 0.1, 4).astype(np.float32),
        V=np.ones((4, 1), np.float32),
    )
    rows = RANDOM.normal(size=(40, 32)).astype(np.float32)
    target = rows[:, 0].astype(np.float64)
    fitted = OrtGradientRegressor(
        model, optimizer="sgd", learning_rate_init=0.1, max_iter=1, batch_size=40, target_scaling=None, trainable="V"
    ).fit(rows, target)
    model.graph.output.append(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ["N", 4]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    hidden, start = session.run(["t"], {"X": rows})[0].astype(np.float64), np.ones(4)
    gradient = 2 * hidden.T @ (hidden @ start - target) / 40
    assert_allclose(fitted.weights_["V"].ravel(), start - 0.1 * gradient, rtol=1e-3, atol=1e-5)
