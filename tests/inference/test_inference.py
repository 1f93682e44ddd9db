"""The graph that predicts: its outputs, what is gone from it, and that predictions are its results to the bit."""

from __future__ import annotations

import warnings

import numpy as np
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._inference.graph import Decoding, inference_model
from onnxtrain_sklearn._inference.predictor import Predictor
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._training.parameters import FlatParameters
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.observed import predict_in_chunks

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
NUMBERS = X @ [1.0, 2.0, 3.0]
TARGETS = {
    "numbers": NUMBERS,
    "two numbers": np.stack([NUMBERS, -NUMBERS], axis=1),
    "positive": np.exp(NUMBERS / 4),
    "two classes": np.where(X[:, 0] > 0, 7, -3),
    "three classes": np.array(["low", "high", "mid"])[X.argmax(axis=1)],
    "labels": (X > 0).astype(int),
}


def inferred_model(body, outputs="float[N, 1] Y", columns=1, opset=18):
    values = ", ".join(str(x) for x in np.random.default_rng(1).normal(size=3 * columns).round(3))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]> g (float[N, 3] X) => ({outputs})
        <float[3, {columns}] W = {{{values}}}, float[{columns}] b = {{{", ".join(["0.1"] * columns)}}},
         int64[1] axes = {{1}}, float ratio = {{0.5}}, bool yes = {{1}}>
        {{ {body} }}""")


def fitted_for_inference(proto, y, **parameters):
    kind = OrtGradientRegressor if np.asarray(y).dtype.kind == "f" else OrtGradientClassifier
    estimator = kind(proto, **{"max_iter": 3, "learning_rate_init": 0.05, "random_state": 0} | parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


def inference_results(proto, **feeds):
    """The outputs of a graph by name; the graph must be valid."""
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


# Graphs of every shape and ending, by what they are trained for

GRAPHS = {
    "(n, 1)": ("numbers", inferred_model("Y = Gemm(X, W, b)")),
    "(n,)": ("numbers", inferred_model("H = Gemm(X, W, b) Y = Squeeze(H, axes)", "float[N] Y")),
    "(n, k)": ("two numbers", inferred_model("Y = Gemm(X, W, b)", "float[N, 2] Y", 2)),
    "ends in exp": ("positive", inferred_model("H = Gemm(X, W, b) Y = Exp(H)")),
    "ends in relu": ("numbers", inferred_model("H = Gemm(X, W, b) Y = Relu(H)")),
    "numbers behind sigmoid": ("numbers", inferred_model("H = Gemm(X, W, b) Y = Sigmoid(H)")),
    "one score": ("two classes", inferred_model("Y = Gemm(X, W, b)")),
    "one score (n,)": ("two classes", inferred_model("H = Gemm(X, W, b) Y = Squeeze(H, axes)", "float[N] Y")),
    "one sigmoid": ("two classes", inferred_model("H = Gemm(X, W, b) Y = Sigmoid(H)")),
    "one sigmoid (n,)": (
        "two classes",
        inferred_model("G = Gemm(X, W, b) H = Squeeze(G, axes) Y = Sigmoid(H)", "float[N] Y"),
    ),
    "two scores": ("two classes", inferred_model("Y = Gemm(X, W, b)", "float[N, 2] Y", 2)),
    "softmax of two": ("two classes", inferred_model("H = Gemm(X, W, b) Y = Softmax(H)", "float[N, 2] Y", 2)),
    "three scores": ("three classes", inferred_model("Y = Gemm(X, W, b)", "float[N, 3] Y", 3)),
    "softmax of three": ("three classes", inferred_model("H = Gemm(X, W, b) Y = Softmax(H)", "float[N, 3] Y", 3)),
    "log-softmax": ("three classes", inferred_model("H = Gemm(X, W, b) Y = LogSoftmax(H)", "float[N, 3] Y", 3)),
    "softmax at opset 11": (
        "three classes",
        inferred_model("H = Gemm(X, W, b) Y = Softmax(H)", "float[N, 3] Y", 3, opset=11),
    ),
    "scores of labels": ("labels", inferred_model("Y = Gemm(X, W, b)", "float[N, 3] Y", 3)),
    "sigmoid of labels": ("labels", inferred_model("H = Gemm(X, W, b) Y = Sigmoid(H)", "float[N, 3] Y", 3)),
    "dropout": ("numbers", inferred_model("D = Dropout(X, ratio, yes) H = Gemm(D, W, b) Y = Dropout(H, ratio, yes)")),
}


@pytest.fixture(scope="module", params=GRAPHS)
def trained(request):
    """An estimator that was trained on a graph, and the name of its targets."""
    target, proto = GRAPHS[request.param]
    return (
        fitted_for_inference(proto, TARGETS[target], loss="poisson")
        if target == "positive"
        else fitted_for_inference(proto, TARGETS[target])
    )


def test_predictions_are_those_of_the_exported_graph(trained):
    outputs = inference_results(trained.to_onnx(), X=X)
    prediction = trained.predict(X)
    if isinstance(trained, OrtGradientRegressor):
        assert list(outputs) == ["Y"]
        assert_array_equal(prediction, outputs["Y"].reshape(prediction.shape))
        return
    assert list(outputs) == ["label", "probabilities"]
    assert_array_equal(prediction.astype(outputs["label"].dtype), outputs["label"])
    assert_array_equal(trained.predict_proba(X), outputs["probabilities"])


def test_export_holds_only_nodes_of_the_prediction(trained):
    proto = trained.to_onnx()
    assert [entry.domain for entry in proto.opset_import] == [""]
    assert [value.name for value in proto.graph.input] == ["X"]
    assert "Dropout" not in {node.op_type for node in proto.graph.node}
    initializers = {initializer.name for initializer in proto.graph.initializer}
    assert {"W", "b"} <= initializers
    assert not {"ratio", "yes"} & initializers
    names = [node.name for node in proto.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_weights_of_the_exported_graph_are_the_trained_ones(trained):
    exported = {i.name: onnx.numpy_helper.to_array(i) for i in trained.to_onnx().graph.initializer}
    for name, array in trained.weights_.items():
        assert_array_equal(exported[name], array)


def test_probabilities_and_labels_agree(trained):
    if isinstance(trained, OrtGradientRegressor):
        return
    probabilities, labels = trained.predict_proba(X), trained.predict(X)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    if labels.ndim == 2:
        assert_array_equal(labels, probabilities > 0.5)
        return
    assert_allclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-6)
    assert_array_equal(labels, trained.classes_[probabilities.argmax(axis=1)])
    assert labels.dtype == trained.classes_.dtype


def test_probabilities_are_the_link_of_the_scores(trained):
    if isinstance(trained, OrtGradientRegressor):
        return
    scores, probabilities = trained.decision_function(X).astype(np.float64), trained.predict_proba(X)
    if len(trained.classes_) == 2:
        assert_allclose(probabilities[:, 1], 1 / (1 + np.exp(-scores)), rtol=0, atol=1e-6)
    elif trained.predict(X).ndim == 2:
        assert_allclose(probabilities, 1 / (1 + np.exp(-scores)), rtol=0, atol=1e-6)
    else:
        exponentials = np.exp(scores)
        assert_allclose(probabilities, exponentials / exponentials.sum(axis=1, keepdims=True), rtol=0, atol=1e-6)


# Labels


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (np.array(["no", "yes"]), np.object_),
        (np.array(["no", "yes"], dtype=object), np.object_),
        (np.array(["grün", "żółty"]), np.object_),
        (np.array([-(2**40), 3]), np.int64),
        (np.array([3, 200], dtype=np.uint8), np.int64),
        (np.array([1.0, 2.0]), np.float64),
        (np.array([False, True]), np.int64),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [1, 2])
def test_labels_of_every_type(labels, dtype, columns):
    y = labels[(X[:, 0] > 0).astype(int)]
    proto = inferred_model("Y = Gemm(X, W, b)", f"float[N, {columns}] Y", columns)
    classifier = OrtGradientClassifier(proto, max_iter=20, learning_rate_init=0.1, tol=-np.inf, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier.fit(X, y)
    label = inference_results(classifier.to_onnx(), X=X)["label"]
    prediction = classifier.predict(X)
    assert label.dtype == dtype
    assert prediction.dtype == y.dtype
    assert prediction.tolist() == label.astype(y.dtype).tolist()
    assert set(prediction.tolist()) == set(labels.tolist())
    assert classifier.score(X, y) > 0.8


def test_labels_that_onnx_cannot_hold():
    source = trainable_model(load(inferred_model("Y = Gemm(X, W, b)")))
    decoding = Decoding("binary", "sigmoid", 1, np.array([(1,), "a"], dtype=object))
    with pytest.raises(ModelError, match="no tensors for labels of type tuple; use strings, integers or floats"):
        inference_model(source, source.weights(), decoding)


@pytest.mark.parametrize("target", ["two classes", "three classes"])
def test_scores_without_probabilities(target):
    classifier = fitted_for_inference(Linear(), TARGETS[target], loss="hinge")
    outputs = inference_results(classifier.to_onnx(), X=X)
    assert list(outputs) == ["label", "scores"]
    assert_array_equal(classifier.decision_function(X).reshape(50, -1), outputs["scores"])
    assert not hasattr(classifier, "predict_proba")


# Names that are taken


@pytest.mark.parametrize("name", ["label", "probabilities", "scores", "raw_scores", "variable", "predict/Cast"])
@pytest.mark.parametrize("old", ["H", "Y"])
def test_output_names_take_precedence_over_values(name, old):
    body = "H = Gemm(X, W, b) Y = Sigmoid(H)".replace(f"{old} =", f'"{name}" =').replace(f"({old})", f'("{name}")')
    proto = inferred_model(body, f"float[N, 1] {f'{chr(34)}{name}{chr(34)}' if old == 'Y' else 'Y'}")
    plain = fitted_for_inference(GRAPHS["one sigmoid"][1], TARGETS["two classes"], max_iter=1)
    classifier = fitted_for_inference(proto, TARGETS["two classes"], max_iter=1)
    assert [output.name for output in classifier.to_onnx().graph.output] == ["label", "probabilities"]
    outputs = inference_results(classifier.to_onnx(), X=X)
    assert_array_equal(classifier.predict_proba(X), outputs["probabilities"])
    assert classifier.decision_function(X).shape == plain.decision_function(X).shape == (50,)


@pytest.mark.parametrize("name", ["label", "probabilities"])
def test_inputs_and_weights_keep_their_names(name):
    for old in ("X", "W"):
        proto = inferred_model("Y = Gemm(X, W, b)")
        proto.graph.node[0].input[:] = [name if x == old else x for x in proto.graph.node[0].input]
        for value in (*proto.graph.input, *proto.graph.initializer):
            value.name = name if value.name == old else value.name
        classifier = fitted_for_inference(proto, TARGETS["two classes"], max_iter=1)
        outputs = inference_results(classifier.to_onnx(), **{name if old == "X" else "X": X})
        assert len(outputs) == 2
        assert_array_equal(list(outputs.values())[1], classifier.predict_proba(X))
        assert old == "X" or name in classifier.weights_


# The predictor


@pytest.mark.parametrize("size", [1, 7, 49, 50, 51])
def test_chunks_of_any_size_give_the_same(size, monkeypatch):
    classifier = fitted_for_inference(MLP((8,)), TARGETS["three classes"])
    whole, probabilities = classifier.predict(X), classifier.predict_proba(X)
    predict_in_chunks(monkeypatch, rows=size)
    assert_array_equal(classifier.predict(X), whole)
    assert_allclose(classifier.predict_proba(X), probabilities, rtol=0, atol=1e-6)


def test_wide_rows_come_in_smaller_chunks(monkeypatch):
    regressor = fitted_for_inference(Linear(), TARGETS["numbers"])
    expected, seen = regressor.predict(X), []
    take = InputData.rows
    monkeypatch.setattr(InputData, "rows", lambda self, rows: (seen.append(len(take(self, rows))), take(self, rows))[1])
    predict_in_chunks(monkeypatch, numbers=3 * 20 + 1)
    assert_allclose(regressor.predict(X), expected, rtol=0, atol=1e-6)
    assert seen == [20, 20, 10]
    predict_in_chunks(monkeypatch, numbers=1)
    assert_allclose(regressor.predict(X), expected, rtol=0, atol=1e-6)


def test_graphs_that_are_wide_inside_take_smaller_chunks(monkeypatch):
    regressor, seen = fitted_for_inference(MLP((40,)), TARGETS["numbers"]), []
    expected, take = regressor.predict(X), InputData.rows
    monkeypatch.setattr(InputData, "rows", lambda self, rows: (seen.append(len(take(self, rows))), take(self, rows))[1])
    predict_in_chunks(monkeypatch, inner=40 * 20 + 1)
    assert_allclose(regressor.predict(X), expected, rtol=0, atol=1e-6)
    assert seen == [20, 20, 10]
    predict_in_chunks(monkeypatch, inner=1)
    assert_allclose(regressor.predict(X), expected, rtol=0, atol=1e-6)


def predictor(proto, *, live=None):
    source = trainable_model(load(proto))
    weights = {} if live else source.weights()
    graph = inference_model(source, weights, Decoding("regression", "identity", 1))
    return Predictor(graph, devices.resolve_device(), None, live=live)


COLUMNS = {"X": InputData(X, np.dtype(np.float32))}


def test_some_rows():
    run = predictor(inferred_model("Y = Gemm(X, W, b)")).run
    assert_array_equal(run(COLUMNS, np.array([4, 2, 4])), run(COLUMNS)[[4, 2, 4]])


def test_live_predictor_reads_the_parameters_while_they_change():
    proto = inferred_model("Y = Gemm(X, W, b)")
    source = trainable_model(load(proto))
    parameters = FlatParameters(source.weights(), source.dtype)
    live = predictor(proto, live=parameters)
    assert_allclose(live.run(COLUMNS), predictor(proto).run(COLUMNS), rtol=0, atol=1e-6)
    parameters.vector[...] = [1, 2, 3, 0.5]
    assert_allclose(live.run(COLUMNS), X @ np.array([[1], [2], [3]]) + 0.5, rtol=0, atol=1e-5)


def test_rows_that_are_lost_are_an_error():
    proto = inferred_model("H = Gemm(X, W, b) Y = ReduceMean <keepdims = 1> (H, first)", "float[M, 1] Y")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "first"))
    with pytest.raises(ModelError, match="gives 1 output rows for 50 input rows; each input row must give one"):
        predictor(proto).run(COLUMNS)


def test_inference_graph_is_another_one():
    source = trainable_model(load(GRAPHS["dropout"][1]))
    before = to_proto(source.model).SerializeToString()
    weights = {name: np.zeros_like(array) for name, array in source.weights().items()}
    inference_model(source, weights, Decoding("regression", "identity", 1), with_scores=True)
    assert to_proto(source.model).SerializeToString() == before


def test_scores_can_be_a_further_output():
    source = trainable_model(load(GRAPHS["one sigmoid"][1]))
    decoding = Decoding("binary", "sigmoid", 1, np.array([0, 1]))
    outputs = inference_results(to_proto(inference_model(source, source.weights(), decoding, with_scores=True)), X=X)
    assert list(outputs) == ["label", "probabilities", "raw_scores"]
    assert_allclose(outputs["probabilities"][:, 1:], 1 / (1 + np.exp(-outputs["raw_scores"])), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("loss", "link"), [("poisson", np.exp), ("gamma", np.exp), ("squared_error", lambda s: s)])
def test_link_of_the_loss_is_part_of_the_prediction(loss, link):
    proto = inferred_model("Y = Gemm(X, W, b)")
    regressor = fitted_for_inference(proto, TARGETS["positive"], loss=loss)
    scores = X.astype(np.float64) @ regressor.weights_["W"] + regressor.weights_["b"]
    assert_allclose(regressor.predict(X), link(scores).ravel(), rtol=1e-5)
    name = "Y" if loss == "squared_error" else "variable"
    assert_array_equal(inference_results(regressor.to_onnx(), X=X)[name].ravel(), regressor.predict(X))


def test_log_link_is_not_taken_twice():
    regressor = fitted_for_inference(GRAPHS["ends in exp"][1], TARGETS["positive"], loss="poisson")
    scores = X.astype(np.float64) @ regressor.weights_["W"] + regressor.weights_["b"]
    assert_allclose(regressor.predict(X), np.exp(scores).ravel(), rtol=1e-5)
    direct = fitted_for_inference(GRAPHS["ends in exp"][1], TARGETS["positive"], loss="squared_error")
    scores = X.astype(np.float64) @ direct.weights_["W"] + direct.weights_["b"]
    assert_allclose(direct.predict(X), np.exp(scores).ravel(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", available_engines())
def test_product_of_a_transposed_matrix_and_a_vector(engine):
    """onnxruntime (1.19 and 1.31, at least) fuses the two into a wrong product."""
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 2] X) => (float[N] y)
        <float[4, 2] a = {1.0, -2.0, 0.5, 1.5, 0.0, 1.0, -1.0, 0.3}, float[4] w = {1.0, -2.0, 0.5, 3.0}> {
            columns = Transpose <perm = [1, 0]> (X)
            products = MatMul(a, columns)
            kernel = Tanh(products)
            rows = Transpose <perm = [1, 0]> (kernel)
            y = MatMul(rows, w)
        }""")
    data = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    a = np.array([[1.0, -2.0], [0.5, 1.5], [0.0, 1.0], [-1.0, 0.3]])
    expected = np.tanh(data @ a.T) @ [1.0, -2.0, 0.5, 3.0]
    model = OrtGradientRegressor(graph, learning_rate_init=0.0, max_iter=1, engine=engine).fit(data, expected)
    assert_allclose(model.predict(data), expected, rtol=1e-4, atol=1e-6)
    assert model.loss_ < 1e-8


def test_label_of_a_score_of_zero_is_the_negative_class():
    zero = np.zeros((2, 3), np.float32)
    for y, expected in ((np.array([7, -3] * 25), [-3, -3]), (np.array([[1, 0], [0, 1]] * 25), np.zeros((2, 2)))):
        estimator = OrtGradientClassifier(Linear(fit_intercept=False), random_state=0).partial_fit(X, y, np.unique(y))
        assert not estimator.decision_function(zero).any()
        assert_array_equal(estimator.predict(zero), expected)


def test_softmax_in_float64_of_two_classes_follows_the_decision_function():
    proto = inferred_model("Z = MatMul(X, W) T = Add(Z, b) Y = Softmax<axis=-1>(T)", "float[N, 2] Y", 2)
    estimator = fitted_for_inference(proto, TARGETS["two classes"])
    rows, state = np.random.default_rng(2).normal(size=(500, 3)).astype(np.float32), estimator._state
    graph = inference_model(state.deployed, state.weights(), state.decoding, with_scores=True)
    session = onnxruntime.InferenceSession(to_proto(graph).SerializeToString())
    (found,) = (one for one in session.run(None, {"X": rows}) if one.dtype == np.float64)
    expected = 1 / (1 + np.exp(-estimator.decision_function(rows).astype(np.float64)))
    assert_allclose(found[:, 1], expected, rtol=1e-13)
