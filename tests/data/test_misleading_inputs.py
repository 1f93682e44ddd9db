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
from sklearn.preprocessing import OrdinalEncoder

from onnxtrain_sklearn import GraphModel, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from onnxtrain_sklearn.graph import GraphBuilder
from onnxtrain_sklearn.losses import Loss
from onnxtrain_sklearn.optimizers import Optimizer
from tests.helpers.training import quietly

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 4))
y = X[:, 0]


def parsed(text, **weights):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


@pytest.mark.parametrize("kind", [object, str])
def test_text_matrix_error_names_table_estimators(kind):
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
def test_learning_rate_for_fitted_model_warns_of_no_fine_tuning():
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


def test_edges_are_no_rows_and_a_graph_may_be_one():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X, int64[2, E] edges) => (float[N, 1] Y)
        { s = Gather(edges, first) h = Gather(X, s) a = MatMul(h, W) Y = Add(a, a) }""",
        W=np.ones((4, 1), np.float32),
        first=np.array(0),
    )
    wanted = (
        r"free axis 'E' is not that of the rows, 'N', as with the edges of a network.*batch_size=None.*adjacency matrix"
    )
    with pytest.raises(ModelError, match=wanted):
        OrtGradientRegressor(model).fit({"X": X, "edges": np.zeros((2, 90), np.int64)}, y)
    advised = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, M, 4] nodes, float[N, M, M] links) => (float[N, 1] Y)
        { m = MatMul(links, nodes) s = ReduceSum<keepdims = 0>(m, axis) Y = MatMul(s, W) }""",
        W=np.ones((4, 1), np.float32),
        axis=np.array([1]),
    )
    nodes, links = RANDOM.normal(size=(40, 6, 4)), RANDOM.integers(0, 2, (40, 6, 6)).astype(np.float32)
    rows = {"nodes": nodes.astype(np.float32), "links": links}
    plain = {"optimizer": "sgd", "learning_rate_init": 1e-3, "max_iter": 1, "batch_size": 40, "target_scaling": None}
    fitted = quietly(OrtGradientRegressor(advised, **plain).fit, rows, y)
    sums = (links.astype(float) @ nodes.astype(np.float32)).sum(axis=1)
    expected = 1 - 1e-3 * 2 * sums.T @ (sums.sum(axis=1) - y) / 40
    assert_allclose(fitted.weights_["W"].ravel(), expected, rtol=1e-4)


def test_state_with_rows_on_other_axis_error_names_remedy():
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X, float[2, N, 64] state) => (float[N, 1] Y)
        { a = MatMul(X, W) m = ReduceMean<keepdims = 0>(state, axis) b = MatMul(m, V) Y = Add(a, b) }"""
    weights = {"W": np.ones((4, 1), np.float32), "V": np.ones((64, 1), np.float32), "axis": np.array([0])}
    given = parsed(text, **weights)
    state = RANDOM.normal(size=(2, 40, 64)).astype(np.float32)
    with pytest.raises(ModelError, match=r"its rows are on axis 1 \('N'\)") as caught:
        OrtGradientRegressor(given).fit({"X": X, "state": state}, y)
    name, number, axis = re.findall(r"batch_axis={'(\w+)': (\d)}.*moveaxis\(array, (\d), 0\)", str(caught.value))[0]
    advised = GraphModel(given, batch_axis={name: int(number)})
    fitted = quietly(
        OrtGradientRegressor(advised, max_iter=1).fit, {"X": X, "state": np.moveaxis(state, int(axis), 0)}, y
    )
    expected = X.astype(np.float32) @ fitted.weights_["W"] + state.mean(axis=0) @ fitted.weights_["V"]
    assert_allclose(fitted.predict({"X": X, "state": np.moveaxis(state, 1, 0)}), expected.ravel(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"rows seem to be on axis 1: give np.moveaxis\(X, 1, 0\)"):
        fitted.predict({"X": X, "state": state})


def test_a_flag_that_is_an_input_is_stored_in_the_graph():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X, bool is_training) => (float[N, 1] Y)
        { d = Dropout(X, ratio, is_training) Y = MatMul(d, W) }""",
        W=np.ones((4, 1), np.float32),
        ratio=np.array(0.5, np.float32),
    )
    for data in (X, {"X": X, "is_training": True}):
        with pytest.raises(ModelError, match=r"'is_training' is a single bool, the same for all rows") as caught:
            OrtGradientRegressor(model).fit(data, y)
    assert "constant_inputs={'is_training': True}" in str(caught.value)
    model = GraphModel(model, constant_inputs={"is_training": True})
    fitted = quietly(OrtGradientRegressor(model, max_iter=2, random_state=0).fit, X, y)
    assert_allclose(fitted.predict(X), X.astype(np.float32) @ fitted.weights_["W"].ravel(), rtol=1e-4, atol=1e-6)
    plain = quietly(OrtGradientRegressor(parsed(onnx.printer.to_text(WITHOUT), W=np.ones((4, 1), np.float32)),
                                         max_iter=2, random_state=0).fit, X, y)  # fmt: skip
    assert np.abs(fitted.weights_["W"] - plain.weights_["W"]).max() > 1e-5  # which were trained with dropout


WITHOUT = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X) => (float[N, 1] Y) { Y = MatMul(X, W) }"""
)


def test_text_in_a_dict_names_its_input():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X, int64[N] kind) => (float[N, 1] Y)
        { a = MatMul(X, W) b = Gather(table, kind) Y = Add(a, b) }""",
        W=np.ones((4, 1), np.float32),
        table=np.zeros((3, 1), np.float32),
    )
    kinds = np.array(["red", "green", "blue", "red"] * 10)
    for texts in (kinds, kinds.astype(object), kinds.tolist()):
        with pytest.raises(ValueError, match=r"X\['kind'\] holds text, and this input .*OrdinalEncoder"):
            OrtGradientRegressor(model).fit({"X": X, "kind": texts}, y)
    codes = OrdinalEncoder().fit_transform(kinds[:, None]).ravel()
    fitted = quietly(OrtGradientRegressor(model, max_iter=1).fit, {"X": X, "kind": codes}, y)
    expected = X.astype(np.float32) @ fitted.weights_["W"] + fitted.weights_["table"][codes.astype(int)]
    assert_allclose(fitted.predict({"X": X, "kind": codes}), expected.ravel(), rtol=1e-4, atol=1e-6)


class Written(Loss):
    """A loss written as a function of the builder, scores and targets."""

    tasks = frozenset({"regression"})

    def __init__(self, written):
        self.written = written

    def __call__(self, op, scores, y, link):
        return self.written(op, scores, y)


IN_PYTHON = {
    "difference": lambda op, s, y: s - y,
    "square": lambda op, s, y: (s - y) ** 2,
    "power": lambda op, s, y: op.Sub(s, y) ** 2,
    "factor": lambda op, s, y: 2 * s,
    "negative": lambda op, s, y: -s,
    "absolute": lambda op, s, y: abs(op.Sub(s, y)),
    "comparison": lambda op, s, y: op.Where(s > y, s, y),
    "branch": lambda op, s, y: s if s > y else y,
    "numpy": lambda op, s, y: np.abs(s),
    "mean of numpy": lambda op, s, y: np.mean((s - y) ** 2),
    "product": lambda op, s, y: s @ y,
    "method": lambda op, s, y: s.abs(),
    "part": lambda op, s, y: s[0],
    "array": lambda op, s, y: np.ones(3) - s,
}


@pytest.mark.parametrize("kind", IN_PYTHON)
def test_a_loss_of_python_operators_names_the_methods_of_the_builder(kind):
    with pytest.raises(
        ModelError, match=r"Written: values of a graph have no operators of Python.*op\.Sub\(a, b\) for a - b"
    ):
        OrtGradientRegressor(Linear(), loss=Written(IN_PYTHON[kind])).fit(X, y)


def test_equality_of_values_is_no_number():
    """Python compares the two objects: without a word, the loss would be that of targets that are all different."""
    with pytest.raises(ModelError, match=r"An operand of Where is False of Python.*op.Equal\(a, b\)"):
        OrtGradientRegressor(Linear(), loss=Written(lambda op, s, y: op.Where(y == 0.0, s, op.Abs(s)))).fit(X, y)
    loss = Written(lambda op, s, y: op.Where(op.Equal(y, 0.0), op.Abs(s), op.Abs(op.Sub(s, y))))
    assert quietly(OrtGradientRegressor(Linear(), loss=loss, max_iter=1).fit, X, y).n_iter_ == 1


class Plain(Optimizer):
    def update(self, op, p, g, state, k):
        return p - g, {}


class Doubled:
    def build(self, n_features, n_outputs, random_state=None):
        import onnx_ir as ir

        x = ir.val("X", ir.DataType.FLOAT, ("N", n_features))
        op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="net"))
        return 2.0 * op.Abs(x)


@pytest.mark.parametrize(
    ("settings", "author"), [({"optimizer": Plain()}, "Plain.update"), ({"model": Doubled()}, "Doubled.build")]
)
def test_optimizers_and_builders_of_python_operators_name_methods(settings, author):
    with pytest.raises(ModelError, match=f"{author}: values of a graph have no operators of Python"):
        OrtGradientRegressor(**{"model": Linear()} | settings).fit(X, y)
