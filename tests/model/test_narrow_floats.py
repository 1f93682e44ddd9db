"""Graphs of float16 and bfloat16: trained in float32, exported with the types of the file."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, FineTuner, GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import DATA
from tests.helpers.sessions import session

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
PRECISION = {"float16": 2e-3, "bfloat16": 2e-2}

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)).astype(np.float32)
y = (np.tanh(X[:, 0]) - 0.5 * X[:, 1]).astype(np.float32)
W = rng.normal(size=(3, 8)).astype(np.float32)
V = rng.normal(size=(8, 1)).astype(np.float32)

ALL = "H = MatMul(X, W) T = Tanh(H) P = MatMul(T, V) Y = Add(P, b)"
INSIDE = "C = Cast<to = KIND>(X) H = MatMul(C, W) T = Tanh(H) P = MatMul(T, V) Q = Add(P, b) Y = Cast<to = 1>(Q)"
MIXED = """H = MatMul(X, W) S = Cast<to = 1>(H) T = Tanh(S) U = Cast<to = KIND>(T) P = MatMul(U, V)
    d = Constant<value_float = 0.5>() c = Cast<to = KIND>(d) Q = Mul(P, c) Y = Add(Q, b)"""


def network(kind, body=ALL, x=None, y=None, opset=18):
    """The same network with weights, input and output of a narrow type; the last weight is a number for the bias."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]> net ({x or kind}[N, 3] X) => ({y or kind}[N, 1] Y)
        {{ {body.replace("KIND", str(ir.DataType[kind.upper()].value))} }}"""
    )
    for name, array in {"W": W, "V": V, "b": np.array([0.25], np.float32)}.items():
        proto.graph.initializer.append(ir.to_proto(ir.tensor(array.astype(TYPES[kind]), name=name)))
    return proto


def regressor(model, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": 20, "shuffle": False, "max_iter": 3}
    return OrtGradientRegressor(model, **defaults | settings)


def single(kind, body):
    """The network in float32, with the weights as rounded."""
    proto = network("float16", body.replace("Cast<to = KIND>", "Identity").replace("Cast<to = 1>", "Identity"))
    for tensor in proto.graph.initializer:
        array = {"W": W, "V": V, "b": np.array([0.25])}[tensor.name].astype(TYPES[kind]).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = 1
    return proto


def borders(proto):
    graph = proto.graph
    return [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)]


CASES = [(ALL, None), (INSIDE, "float"), (MIXED, None)]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("body", "border"), CASES, ids=["all", "inside", "mixed"])
def test_narrow_weights_train_in_float32_and_round(body, border, kind):
    fitted = regressor(network(kind, body, border, border)).fit(X, y)
    rows = X.astype(TYPES[kind]).astype(np.float32)
    expected = regressor(single(kind, body)).fit(rows, y)
    assert set(fitted.weights_) == {"W", "V", "b"}
    for name, array in expected.weights_.items():
        slack = 1e-6 if border is None else PRECISION[kind]  # rows that are given in float32 are not rounded
        assert_allclose(
            fitted.weights_[name], array.astype(TYPES[kind]).astype(np.float32), rtol=PRECISION[kind], atol=slack
        )
    assert fitted.loss_ < regressor(network(kind, body, border, border), max_iter=1).fit(X, y).loss_


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("body", "border"), CASES, ids=["all", "inside", "mixed"])
def test_the_export_has_the_types_of_the_file_and_predicts_the_same(body, border, kind):
    given = network(kind, body, border, border)
    fitted = regressor(given).fit(X, y)
    exported = fitted.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    assert borders(exported) == borders(given)
    kept = {t.name: t.data_type for t in exported.graph.initializer}
    assert kept == {t.name: t.data_type for t in given.graph.initializer}
    rounded = X.astype(TYPES[kind]) if border is None else X
    if kind == "float16" or border is not None:  # numpy has no bfloat16 that onnxruntime takes
        found = session(exported).run(None, {"X": rounded})[0].ravel()
        assert_allclose(found.astype(np.float32), fitted.predict(X), rtol=PRECISION[kind], atol=1e-3)
    for tensor in exported.graph.initializer:
        array = ir.from_proto(tensor).numpy().astype(np.float32)
        assert_array_equal(array, fitted.weights_[tensor.name])


@pytest.mark.parametrize("kind", TYPES)
def test_before_training_predictions_are_those_of_the_given_graph(kind):
    given = network(kind)
    fitted = regressor(given, learning_rate_init=0.0).fit(X, y)
    for tensor in fitted.to_onnx().graph.initializer:
        (same,) = (t for t in given.graph.initializer if t.name == tensor.name)
        assert_array_equal(ir.from_proto(tensor).numpy(), ir.from_proto(same).numpy())
    if kind == "float16":
        found = session(given).run(None, {"X": X.astype(np.float16)})[0].ravel()
        assert_allclose(fitted.predict(X), found, rtol=5e-3, atol=5e-3)


def classes():
    body = "C = Cast<to = 10>(X) H = MatMul(C, W) Y = Softmax(H)"
    proto = network("float16", body, "float")
    del proto.graph.initializer[1:]
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8
    return proto


LABELS = np.r_[np.arange(8), (X[8:] @ W).argmax(1)]


def test_labels_and_probabilities_of_the_export_are_the_predictions():
    fitted = OrtGradientClassifier(classes(), learning_rate_init=0.01, max_iter=20, random_state=0).fit(X, LABELS)
    label, probabilities = session(fitted.to_onnx()).run(None, {"X": X})
    assert probabilities.dtype == np.float16
    assert_array_equal(label, fitted.predict(X))
    assert_allclose(probabilities, fitted.predict_proba(X), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{"zipmap": True}, {"zipmap": "columns"}, {"raw_scores": True}])
def test_each_form_of_the_export_runs(options):
    fitted = OrtGradientClassifier(classes(), max_iter=2).fit(X, LABELS)
    found = session(fitted.to_onnx(**options)).run(None, {"X": X})
    assert_array_equal(found[0], fitted.predict(X))


def test_an_export_is_trained_on_and_keeps_its_types():
    once = regressor(network("float16")).fit(X, y)
    again = regressor(once.to_onnx()).fit(X, y)
    assert borders(again.to_onnx()) == [10, 10]
    assert {t.name: t.data_type for t in again.to_onnx().graph.initializer} == {"W": 10, "V": 10, "b": 10}
    assert again.loss_ < once.loss_


def test_training_goes_on_from_the_weights_before_rounding():
    whole = regressor(network("bfloat16"), max_iter=6).fit(X, y)
    parts = regressor(network("bfloat16")).fit(X, y)
    parts = pickle.loads(pickle.dumps(parts)).set_params(warm_start=True).fit(X, y)
    for name, array in whole.weights_.items():
        assert_array_equal(parts.weights_[name], array)
    assert parts.to_onnx().SerializeToString() == whole.to_onnx().SerializeToString()


def test_a_weight_beyond_the_range_of_its_type_is_refused():
    fitted = regressor(network("float16"), learning_rate_init=0.0).fit(X, y)
    fitted._state.parameters.vector[:] = 1e5
    with pytest.raises(ModelError, match=r"'W' holds 100000, which is beyond the range of float16"):
        fitted.to_onnx()


@pytest.mark.long
def test_a_convolutional_network_of_float16():
    run = np.load(DATA / "lenet.npz")
    wide = onnx.load(DATA / "lenet.onnx")
    half = onnx.load(DATA / "lenet.onnx")
    for tensor in half.graph.initializer:
        if tensor.data_type == 1:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
            )
    for value in (*half.graph.input, *half.graph.output, *half.graph.value_info):
        if value.type.tensor_type.elem_type == 1:
            value.type.tensor_type.elem_type = 10
    images, labels = run["x0"].reshape(-1, *run["x0"].shape[2:]), run["y"].ravel()
    settings = {"learning_rate_init": 0.001, "batch_size": 32, "shuffle": False, "max_iter": 2}
    a, b = (OrtGradientClassifier(m, **settings).fit(images, labels) for m in (wide, half))
    assert_allclose(b.loss_curve_, a.loss_curve_, rtol=5e-3)
    found = session(b.to_onnx()).run(None, {b.to_onnx().graph.input[0].name: images.astype(np.float16)})
    assert np.mean(found[0] == b.predict(images)) == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("body", "border"), CASES[:2], ids=["all", "inside"])
def test_a_new_head_on_a_narrow_body(body, border, kind):
    given = network(kind, body, border, border)
    fitted = OrtGradientRegressor(GraphModel(given, output="T"), finetune=FineTuner(new_head=True)).fit(X, y)
    exported = fitted.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    number = ir.DataType[kind.upper()].value
    kept = {t.name: t.data_type for t in exported.graph.initializer}
    assert kept == {"W": number, "head.weight": number, "head.bias": number}
    assert borders(exported) == borders(given)
    assert fitted.score(X, y) > 0.9
    for tensor in exported.graph.initializer:
        assert_array_equal(ir.from_proto(tensor).numpy().astype(np.float32), fitted.weights_[tensor.name])


@pytest.mark.long
def test_a_new_head_on_an_export():
    once = regressor(network("float16", "H = MatMul(X, W) T = Tanh(H) Y = MatMul(T, V)")).fit(X, y).to_onnx()
    names = np.where(y > 0, "high", "low")
    fitted = OrtGradientClassifier(once, finetune=FineTuner(new_head=True)).fit(X, names)
    exported = fitted.to_onnx()
    assert {t.data_type for t in exported.graph.initializer} == {10}
    labels, probabilities = session(exported).run(None, {"X": X.astype(np.float16)})
    assert_array_equal(labels, fitted.predict(X))
    assert_allclose(probabilities, fitted.predict_proba(X), rtol=2e-3, atol=1e-3)


def test_the_description_tells_the_type_of_the_file():
    told = {entry.name: entry.reason for entry in regressor(network("bfloat16")).describe().entries}
    assert all("kept as bfloat16" in reason for reason in told.values())
