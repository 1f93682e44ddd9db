"""A new head on a trained model, for other classes or targets."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, ConvNet, FineTuner, GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.helpers.ml_files import run

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
LOW = Y < 6
NEW, TEST = np.flatnonzero(~LOW)[:60], np.flatnonzero(~LOW)[60:]
NAMES = np.array(["six", "seven", "eight", "nine"])
LABELS = NAMES[np.maximum(Y - 6, 0)]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def network():
    """A network that tells the digits 0 to 5."""
    pipeline = make_pipeline(StandardScaler(), MLPClassifier((32, 16), tol=0.02, random_state=0))
    return pipeline.fit(X[LOW], Y[LOW])


def classifier(model, **settings):
    tuner = FineTuner(new_head=True, cv=3, max_iter=20)
    return OrtGradientClassifier(model, finetune=tuner, random_state=0, **settings)


def weights_before(model):
    still = {"learning_rate_init": 0.0, "max_iter": 1, "tol": 1.0, "random_state": 0}
    return OrtGradientClassifier(model, **still).fit(X[LOW][:60], Y[LOW][:60]).weights_


@pytest.mark.slow
@each_engine
def test_a_model_learns_classes_that_it_has_never_seen(network, engine):
    tuned = classifier(network, engine=engine).fit(X[NEW], LABELS[NEW])
    assert_array_equal(tuned.classes_, np.sort(NAMES))
    assert tuned.score(X[TEST], LABELS[TEST]) > 0.75
    assert tuned.predict_proba(X[TEST]).shape == (len(TEST), 4)
    assert tuned.weights_["head.weight"].shape == (16, 4)
    labels, probabilities = run(tuned.to_onnx(), X[TEST])
    assert_array_equal(labels, tuned.predict(X[TEST]))
    assert_allclose(probabilities, tuned.predict_proba(X[TEST]), atol=1e-5)


@pytest.mark.slow
def test_a_file_gets_the_same_head_as_the_model(network):
    file = to_onnx(network, X[:1], options={"zipmap": False})
    by_file, by_model = (classifier(model).fit(X[NEW], LABELS[NEW]) for model in (file, network))
    assert_allclose(by_file.score(X[TEST], LABELS[TEST]), by_model.score(X[TEST], LABELS[TEST]), atol=0.02)


@pytest.mark.long
def test_training_head_alone_keeps_other_weights(network):
    before = weights_before(network)
    tuned = classifier(network, trainable=["head.*"]).fit(X[NEW], LABELS[NEW])
    kept = [name for name in before if name in tuned.weights_]
    assert len(kept) == len(before) - 2
    for name in kept:
        assert_array_equal(tuned.weights_[name], before[name])
    assert set(tuned.fine_tuning_["candidate"]) == {"head only"}


@pytest.mark.slow
def test_scalers_keep_their_numbers(network):
    before, after = weights_before(network), classifier(network).fit(X[NEW], LABELS[NEW]).weights_
    assert_array_equal(after["standardscaler.mean"], before["standardscaler.mean"])
    assert np.abs(after["mlpclassifier.coefs.0"] - before["mlpclassifier.coefs.0"]).max() > 0


def scaling(columns):
    """A graph without a layer: the columns times numbers, and their tanh."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", columns]) for n in ("X", "Y"))
    scale = onnx.numpy_helper.from_array(np.full(columns, 0.5, np.float32), "scale")
    nodes = [onnx.helper.make_node("Mul", ["X", "scale"], ["scaled"]), onnx.helper.make_node("Tanh", ["scaled"], ["Y"])]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [scale])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


@each_engine
def test_head_alone_without_penalty_is_least_squares(engine):
    rows = np.random.RandomState(0).randn(80, 5).astype(np.float32)
    y = rows @ [1.0, -2.0, 0.5, 3.0, 0.0] + 7 + 0.1 * np.random.RandomState(1).randn(80)
    tuner = FineTuner(0.0, new_head=True, max_iter=500)
    tuned = OrtGradientRegressor(
        GraphModel(scaling(5), output="scaled"), finetune=tuner, trainable=["head.*"], engine=engine
    )
    tuned.fit(rows, y)
    solved = np.linalg.lstsq(np.column_stack([0.5 * rows, np.ones(80)]), y, rcond=None)[0]
    assert_allclose(tuned.weights_["head.weight"].ravel(), solved[:5], atol=0.05)
    assert_allclose(tuned.weights_["head.bias"], solved[5:], atol=0.05)


def inner_tensors(graph):
    return [name for node in graph.graph.node for name in node.output]


@pytest.mark.slow
def test_the_head_stands_on_the_tensor_that_output_names():
    graph = MLP((12, 6)).build(n_features=64, n_outputs=6, random_state=0)
    first = next(name for node in graph.graph.node if node.op_type == "Relu" for name in node.output)
    tuned = classifier(GraphModel(graph, output=first)).fit(X[NEW] / 16, LABELS[NEW])
    assert tuned.weights_["head.weight"].shape == (12, 4)
    default = classifier(graph).fit(X[NEW] / 16, LABELS[NEW])
    assert default.weights_["head.weight"].shape == (6, 4)


def test_maps_of_images_are_flattened():
    graph = ConvNet((4,)).build(64, 6, random_state=0, row_shape=(1, 8, 8))
    inferred = onnx.shape_inference.infer_shapes(graph)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in inferred.graph.value_info}
    maps = next(name for name in inner_tensors(graph) if ranks.get(name) == 4)
    tuned = classifier(GraphModel(graph, output=maps), trainable=["head.*"]).fit(
        X[NEW].reshape(-1, 1, 8, 8) / 16, LABELS[NEW]
    )
    assert tuned.weights_["head.weight"].shape[0] % 64 == 0
    assert tuned.score(X[TEST].reshape(-1, 1, 8, 8) / 16, LABELS[TEST]) > 0.6


@pytest.mark.slow
def test_a_classifier_becomes_a_regressor(network):
    y = X @ np.linspace(-1, 1, 64)
    tuner = FineTuner(new_head=True, cv=3)
    tuned = OrtGradientRegressor(network, finetune=tuner, random_state=0).fit(X[NEW], y[NEW])
    assert tuned.score(X[TEST], y[TEST]) > 0.3


@pytest.mark.slow
def test_training_goes_on_from_the_head(network):
    tuned = classifier(network).fit(X[NEW], LABELS[NEW])
    copy = pickle.loads(pickle.dumps(tuned))
    assert_array_equal(copy.predict_proba(X[TEST]), tuned.predict_proba(X[TEST]))
    copy.partial_fit(X[NEW], LABELS[NEW])
    assert copy.weights_["head.weight"].shape == (16, 4)
    assert 0 < np.abs(copy.weights_["head.weight"] - tuned.weights_["head.weight"]).max() < 0.1


@pytest.mark.slow
def test_the_head_alone_stays_unless_tuning_all_weights_is_better(network):
    record = classifier(network).fit(X[NEW], LABELS[NEW]).fine_tuning_
    assert list(dict.fromkeys(record["candidate"])) == ["head only", "new head"]
    assert_allclose(record["share"].sum(), 1.0)
    taken = record["loss"][record["share"] > 0].min()
    head = record["loss"][(record["candidate"] == "new head") & np.isinf(record["strength"])].item()
    assert taken <= head


def test_a_tensor_that_is_not_there_is_named(network):
    with pytest.raises(ModelError, match="output='nothing' is no float tensor inside the graph"):
        classifier(GraphModel(network, output="nothing")).fit(X[NEW], LABELS[NEW])


def test_a_graph_without_a_certain_last_layer_is_refused():
    model = scaling(64)
    with pytest.raises(ModelError, match=r"Name the tensor with the features, .*output=.*: 'Y', 'scaled'"):
        classifier(model).fit(X[NEW], LABELS[NEW])
    tuned = classifier(GraphModel(model, output="scaled")).fit(X[NEW], LABELS[NEW])
    assert tuned.score(X[TEST], LABELS[TEST]) > 0.75


def test_old_rows_are_refused(network):
    with pytest.raises(ValueError, match="X_old and y_old have no use with new_head=True"):
        classifier(network).fit(X[NEW], LABELS[NEW], X_old=X[LOW], y_old=Y[LOW])


def test_models_of_text_are_refused():
    texts = ["one two", "two three", "three one"] * 3
    model = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, [0, 1, 1] * 3)
    with pytest.raises(ModelError, match="needs a model that takes numbers"):
        classifier(model).fit(texts, ["a", "b", "c"] * 3)


def test_a_builder_has_no_head_to_replace():
    with pytest.raises(ValueError, match="finetune is for a trained model"):
        classifier(MLP()).fit(X[NEW], LABELS[NEW])


@pytest.mark.long
def test_the_softmax_that_jax_writes_ends_a_network():
    """Its maximum begins with minus infinity, and shapes tell that it is one over each row."""
    body = """h = MatMul(X, v) t = Tanh(h) m = MatMul(t, w) s = Add(m, b)
        r = ReduceMax <axes = [1], keepdims = 0> (s) a = Max(low, r) c = Reshape(a, column) u = Sub(s, c) e = Exp(u)
        z = ReduceSum <keepdims = 0> (e, one) d = Reshape(z, column) p = Div(e, d)"""
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 15]> g (float[N, 64] X) => (float[N, 7] p) '
        f"<int64[1] one = {{1}}, int64[2] column = {{-1, 1}}> {{ {body} }}"
    )
    rng = np.random.default_rng(0)
    weights = {"v": rng.normal(size=(64, 16)) / 8, "w": rng.normal(size=(16, 7)), "b": np.zeros((1, 7)), "low": -np.inf}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()
    )
    tuned = classifier(proto).fit(X[NEW] / 16, LABELS[NEW])
    assert tuned.weights_["head.weight"].shape == (16, 4)
    assert "w" not in tuned.weights_
