"""Graphs that users give: their inputs, outputs, final activations and types."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import LOSSES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(80, 4)).astype(np.float32)
NUMBERS = X @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.3
TWO = (NUMBERS > 0).astype(int)
THREE = np.digitize(NUMBERS, [-0.5, 0.8])
LABELS = np.c_[TWO, 1 - TWO, X[:, 0] > 0].astype(int)
SETTINGS = {"learning_rate_init": 0.05, "max_iter": 20, "batch_size": 16, "random_state": 0, "optimizer": "adam"}


def given_graph(
    tail: str, output: str, columns: int = 1, head: str = "z = Gemm(X, W, b)", dtype: str = "float"
) -> onnx.ModelProto:
    """Return a linear model that goes on with the nodes of ``tail``."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net ({dtype}[N,4] X) => ({dtype}{output}) {{ {head} {tail} }}'
    )
    draw = np.random.RandomState(1)
    for name, array in (("W", draw.normal(size=(4, columns)) * 0.3), ("b", np.zeros(columns))):
        array = array.astype(np.float32 if dtype == "float" else np.float64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def run_given(model: onnx.ModelProto, weights: dict[str, np.ndarray], **feeds: np.ndarray) -> np.ndarray:
    """Return the first output of the user's own graph with other weights."""
    filled = onnx.ModelProto()
    filled.CopyFrom(model)
    for initializer in filled.graph.initializer:
        initializer.CopyFrom(onnx.numpy_helper.from_array(weights[initializer.name], initializer.name))
    session = onnxruntime.InferenceSession(filled.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


# -- final activations ------------------------------------------------------------------------------------------------

PROBABILITIES = {
    "softmax": ("p = Softmax <axis = 1> (z)", 3, THREE),
    "softmax of the last axis": ("p = Softmax <axis = -1> (z)", 3, THREE),
    "softmax of two": ("p = Softmax <axis = 1> (z)", 2, TWO),
    "softmax behind Identity": ("q = Softmax <axis = 1> (z) p = Identity(q)", 3, THREE),
    "sigmoid": ("p = Sigmoid(z)", 1, TWO),
    "sigmoids": ("p = Sigmoid(z)", 3, LABELS),
}


@pytest.mark.parametrize("kind", PROBABILITIES)
def test_final_activation_does_not_change_trained_weights(kind):
    tail, k, y = PROBABILITIES[kind]
    given = given_graph(tail, f"[N,{k}] p", k)
    behind = OrtGradientClassifier(given, **SETTINGS).fit(X, y)
    plain = OrtGradientClassifier(given_graph("", f"[N,{k}] z", k), **SETTINGS).fit(X, y)
    for name, array in plain.weights_.items():
        assert_allclose(behind.weights_[name], array, rtol=0, atol=1e-6)
    assert_array_equal(behind.predict(X), plain.predict(X))
    own = run_given(given, behind.weights_, X=X)
    assert_array_equal(behind.predict_proba(X)[:, -own.shape[1] :], own)


def test_log_softmax_is_recognized():
    given = given_graph("p = LogSoftmax <axis = 1> (z)", "[N,3] p", 3)
    behind = OrtGradientClassifier(given, **SETTINGS).fit(X, THREE)
    plain = OrtGradientClassifier(given_graph("", "[N,3] z", 3), **SETTINGS).fit(X, THREE)
    assert_allclose(behind.weights_["W"], plain.weights_["W"], rtol=0, atol=1e-6)
    assert_allclose(behind.predict_proba(X), np.exp(run_given(given, behind.weights_, X=X)), rtol=1e-5)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_an_exponential_is_the_link_of_a_loss_of_log_means(loss):
    y = np.exp(NUMBERS)
    given = given_graph("p = Exp(z)", "[N,1] p")
    behind = OrtGradientRegressor(given, loss=loss, **SETTINGS).fit(X, y)
    plain = OrtGradientRegressor(given_graph("", "[N,1] z"), loss=loss, **SETTINGS).fit(X, y)
    assert_allclose(behind.weights_["W"], plain.weights_["W"], rtol=0, atol=1e-6)
    assert_array_equal(behind.predict(X), run_given(given, behind.weights_, X=X).ravel())
    assert_allclose(plain.predict(X), behind.predict(X), rtol=1e-5)


@pytest.mark.parametrize("activation", ["Exp", "Sigmoid", "Tanh"])
def test_other_losses_of_regression_are_taken_behind_the_activation(activation):
    y = {"Exp": np.exp(NUMBERS), "Sigmoid": 1 / (1 + np.exp(-NUMBERS)), "Tanh": np.tanh(NUMBERS)}[activation]
    given = given_graph(f"p = {activation}(z)", "[N,1] p")
    fitted = OrtGradientRegressor(given, **SETTINGS | {"max_iter": 200}).fit(X, y)
    assert fitted.score(X, y) > 0.99
    assert_array_equal(fitted.predict(X), run_given(given, fitted.weights_, X=X).ravel())
    assert_allclose(fitted.loss_, np.mean((fitted.predict(X) - y) ** 2), rtol=0.2, atol=1e-4)


def test_a_change_of_the_loss_finds_the_activation_again():
    y = np.exp(NUMBERS)
    given = given_graph("p = Exp(z)", "[N,1] p")
    fitted = OrtGradientRegressor(given, **SETTINGS | {"max_iter": 100}).fit(X, y)
    for loss in ("poisson", "squared_error", "gamma"):
        fitted.set_params(loss=loss, learning_rate_init=1e-3).partial_fit(X, y)
        assert_array_equal(fitted.predict(X), run_given(given, fitted.weights_, X=X).ravel())
        assert fitted.score(X, y) > 0.9


def test_logits_of_any_size_train_stably_behind_a_softmax():
    given = given_graph(
        "big = Constant <value_float = 1e4> () y = Mul(z, big) p = Softmax <axis = 1> (y)", "[N,3] p", 3
    )
    fitted = OrtGradientClassifier(given, **SETTINGS | {"learning_rate_init": 1e-3}).fit(X, THREE)
    assert np.isfinite(fitted.loss_curve_).all()
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_margins_precede_activation_without_probabilities(loss):
    fitted = OrtGradientClassifier(given_graph("p = Sigmoid(z)", "[N,1] p"), loss=loss, **SETTINGS).fit(X, TWO)
    assert not hasattr(fitted, "predict_proba")
    assert fitted.score(X, TWO) > 0.9
    W, b = fitted.weights_["W"], fitted.weights_["b"]
    assert_allclose(fitted.decision_function(X), (X @ W + b).ravel(), rtol=1e-5, atol=1e-6)


def test_sigmoids_of_classes_train_one_vs_rest():
    given = given_graph("p = Sigmoid(z)", "[N,3] p", 3)
    fitted = OrtGradientClassifier(given, **SETTINGS).fit(X, THREE)
    assert fitted.score(X, THREE) > 0.7
    assert_array_equal(fitted.predict_proba(X), run_given(given, fitted.weights_, X=X))


@pytest.mark.parametrize(("k", "y"), [(1, TWO), (3, LABELS)])
def test_a_softmax_that_cannot_model_the_targets_is_refused(k, y):
    with pytest.raises(ValueError, match=rf"softmax over {k} column\(s\).*use sigmoid"):
        OrtGradientClassifier(given_graph("p = Softmax <axis = 1> (z)", f"[N,{k}] p", k)).fit(X, y)


# -- shapes of the output ---------------------------------------------------------------------------------------------

SQUEEZE = "one = Constant <value_ints = [1]> () s = Squeeze(z, one)"


def test_one_number_a_row_may_be_flat_or_a_column():
    flat = OrtGradientRegressor(given_graph(SQUEEZE, "[N] s"), **SETTINGS).fit(X, NUMBERS)
    column = OrtGradientRegressor(given_graph("", "[N,1] z"), **SETTINGS).fit(X, NUMBERS)
    assert_allclose(flat.weights_["W"], column.weights_["W"], rtol=0, atol=1e-6)
    assert flat.predict(X).shape == column.predict(X).shape == (80,)
    assert flat.score(X, NUMBERS) > 0.9
    [output] = flat.to_onnx().graph.output
    assert (output.name, len(output.type.tensor_type.shape.dim)) == ("s", 1)


@pytest.mark.parametrize("tail", ["", " p = Sigmoid(s)"])
def test_two_classes_on_a_flat_output(tail):
    flat = OrtGradientClassifier(given_graph(SQUEEZE + tail, "[N] p" if tail else "[N] s"), **SETTINGS).fit(X, TWO)
    column = OrtGradientClassifier(given_graph("", "[N,1] z"), **SETTINGS).fit(X, TWO)
    assert_allclose(flat.predict_proba(X), column.predict_proba(X), atol=1e-5)
    assert flat.predict_proba(X).shape == (80, 2)


@pytest.mark.parametrize("loss", [n for n, kind in LOSSES.items() if "binary" in kind.tasks and n != "ordinal"])
def test_two_classes_on_two_columns(loss):
    fitted = OrtGradientClassifier(given_graph("", "[N,2] z", 2), loss=loss, **SETTINGS).fit(
        X, np.array(["a", "b"])[TWO]
    )
    assert fitted.score(X, np.array(["a", "b"])[TWO]) > 0.9
    assert fitted.decision_function(X).shape == (80,)
    assert_array_equal(fitted.predict(X) == "b", fitted.decision_function(X) > 0)
    assert fitted.classes_.tolist() == ["a", "b"]


def test_the_wanted_output_is_trained_and_the_others_go():
    body = "h = Relu(z) m = ReduceMax <keepdims = 1> (z)"
    model = given_graph(body, "[N,3] h, float[1,1] m, float[N,3] z", 3)
    fitted = OrtGradientClassifier(GraphModel(model, output="z"), **SETTINGS).fit(X, THREE)
    plain = OrtGradientClassifier(given_graph("", "[N,3] z", 3), **SETTINGS).fit(X, THREE)
    assert_array_equal(fitted.weights_["W"], plain.weights_["W"])
    assert {node.op_type for node in fitted.to_onnx().graph.node}.isdisjoint({"Relu", "ReduceMax"})


# -- inputs -----------------------------------------------------------------------------------------------------------


def image_graph() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,1,8,8] image) => (float[N,3] scores) {'
        "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, K, k) r = Relu(c)"
        "m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) f = Flatten(m) scores = Gemm(f, W, b) }"
    )
    draw = np.random.RandomState(0)
    for name, shape in (("K", (4, 1, 3, 3)), ("k", (4,)), ("W", (64, 3)), ("b", (3,))):
        array = draw.normal(size=shape).astype(np.float32) * 0.3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def images(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Return images whose brightest third tells their class."""
    draw, y = np.random.RandomState(0), np.arange(n) % 3
    pixels = draw.uniform(size=(n, 1, 8, 8))
    for row, k in zip(pixels, y, strict=True):
        row[0, :, 3 * k : 3 * k + 2] += 0.7
    return pixels, y


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_images_may_come_flat(dtype):
    pixels, y = images()
    pixels = pixels.astype(dtype)
    flat = pixels.reshape(len(pixels), -1)
    square = OrtGradientClassifier(image_graph(), **SETTINGS).fit(pixels, y)
    rows = OrtGradientClassifier(image_graph(), **SETTINGS).fit(flat, y)
    assert square.score(pixels, y) > 0.9
    assert square.n_features_in_ == rows.n_features_in_ == 64
    for name, array in square.weights_.items():
        assert_array_equal(array, rows.weights_[name])
    for fitted in (square, rows):
        assert_array_equal(fitted.predict_proba(pixels), fitted.predict_proba(flat))
        assert_array_equal(fitted.decision_function(pixels.tolist()), fitted.decision_function(flat))
    with pytest.raises(ValueError, match="63 features"):
        square.predict(flat[:, :-1])


def test_images_from_a_memory_map(tmp_path):
    pixels, y = images()
    mapped = np.memmap(tmp_path / "images", np.float32, "w+", shape=pixels.shape)
    mapped[...] = pixels
    a = OrtGradientClassifier(image_graph(), **SETTINGS).fit(mapped, y)
    b = OrtGradientClassifier(image_graph(), **SETTINGS).fit(pixels.astype(np.float32), y)
    assert_array_equal(a.predict_proba(mapped), b.predict_proba(pixels.astype(np.float32)))


def several_inputs() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,4] left, float[N,3] right, int64[N] kind) => '
        "(float[N,1] z) { a = MatMul(left, A) b = MatMul(right, B) e = Gather(T, kind) s = Add(a, b) z = Add(s, e) }"
    )
    for name, shape in (("A", (4, 1)), ("B", (3, 1)), ("T", (5, 1))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    return model


INPUTS = {"left": X, "right": rng.normal(size=(80, 3)), "kind": rng.randint(0, 5, 80)}
OFFSETS = np.array([-2.0, 0.0, 1.0, 3.0, 5.0])
SUM = X[:, 0] - INPUTS["right"][:, 2] + OFFSETS[INPUTS["kind"]]


def test_several_inputs_come_as_a_dict():
    fitted = OrtGradientRegressor(several_inputs(), **SETTINGS | {"max_iter": 300}).fit(INPUTS, SUM)
    assert fitted.score(INPUTS, SUM) > 0.999
    centred = fitted.weights_["T"].ravel() - fitted.weights_["T"].mean()
    assert_allclose(centred, OFFSETS - OFFSETS.mean(), atol=0.05)
    assert not hasattr(fitted, "n_features_in_")
    feeds = {name: np.asarray(a, np.int64 if name == "kind" else np.float32) for name, a in INPUTS.items()}
    assert_array_equal(fitted.predict(INPUTS), run_given(several_inputs(), fitted.weights_, **feeds).ravel())
    whole_floats = INPUTS | {"kind": INPUTS["kind"].astype(float)}
    assert_array_equal(fitted.predict(whole_floats), fitted.predict(INPUTS))


def test_dicts_of_inputs_everywhere():
    weights = rng.uniform(size=80)
    estimator = OrtGradientRegressor(several_inputs(), early_stopping=True, **SETTINGS)
    estimator.fit(INPUTS, SUM, weights)
    estimator.fit(INPUTS, SUM, X_val=INPUTS, y_val=SUM)
    assert_allclose(estimator.best_validation_score_, estimator.score(INPUTS, SUM), rtol=1e-6)
    estimator.set_params(early_stopping=False).partial_fit(INPUTS, SUM)
    estimator.set_params(model=None).fit(X, SUM)
    assert estimator.n_features_in_ == 4
    estimator.set_params(model=several_inputs()).fit(INPUTS, SUM)
    assert not hasattr(estimator, "n_features_in_")


def test_one_input_may_come_as_a_dict_or_not():
    a = OrtGradientRegressor(given_graph("", "[N,1] z"), **SETTINGS).fit({"X": X}, NUMBERS)
    b = OrtGradientRegressor(given_graph("", "[N,1] z"), **SETTINGS).fit(X, NUMBERS)
    assert_array_equal(a.predict({"X": X}), b.predict(X))


def test_a_flat_input_of_integers():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (int64[N] kind) => (float[N,2] z) { z = Gather(T, kind) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((5, 2), np.float32), "T"))
    fitted = OrtGradientClassifier(model, **SETTINGS).fit(INPUTS["kind"], INPUTS["kind"] > 2)
    assert fitted.score(INPUTS["kind"], INPUTS["kind"] > 2) == 1.0


# -- types ------------------------------------------------------------------------------------------------------------


def test_a_float64_graph_is_given_back_in_float64():
    model = given_graph("", "[N,1] z", dtype="double")
    fitted = OrtGradientRegressor(model, **SETTINGS | {"max_iter": 200}).fit(X.astype(np.float64), NUMBERS)
    assert fitted.score(X, NUMBERS) > 0.99
    assert all(array.dtype == np.float64 for array in fitted.weights_.values())
    [output] = fitted.to_onnx().graph.output
    assert output.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    expected = run_given(model, fitted.weights_, X=X.astype(np.float64)).ravel()
    assert_array_equal(fitted.predict(X.astype(np.float64)), expected)


@pytest.mark.parametrize("form", ["bytes", "path", "pathlib"])
def test_graphs_come_as_bytes_and_paths(form, tmp_path):
    model = given_graph("", "[N,1] z")
    onnx.save(model, tmp_path / "net.onnx")
    given = {"bytes": model.SerializeToString(), "path": str(tmp_path / "net.onnx"), "pathlib": tmp_path / "net.onnx"}
    a = OrtGradientRegressor(given[form], **SETTINGS).fit(X, NUMBERS)
    assert_array_equal(a.predict(X), OrtGradientRegressor(model, **SETTINGS).fit(X, NUMBERS).predict(X))


def test_frozen_parameters_keep_every_bit():
    model = given_graph("", "[N,3] z", 3)
    for trainable, moved in (
        ("b", {"b"}),
        (["W"], {"W"}),
        (lambda name, array: array.ndim == 1, {"b"}),
        ("?", {"W", "b"}),
    ):
        fitted = OrtGradientClassifier(model, trainable=trainable, **SETTINGS).fit(X, THREE)
        for initializer in model.graph.initializer:
            before = onnx.numpy_helper.to_array(initializer)
            changed = not np.array_equal(fitted.weights_[initializer.name], before)
            assert changed == (initializer.name in moved)
