"""Files that hold marks which this package sets in memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from tests.helpers.environment import available_engines

X = np.array([[1.0, 2.0], [-0.5, 0.3], [0.2, -1.0]], np.float32)
W = np.array([[0.5], [-1.5]])
MARKS = ["kept_type", "stop_gradient", "fake_quantization", "dynamic_quantization", "one_hot", "row_losses"]


def marked(end: str = "", output: str = "float[N,1] Y", kind: str = "float") -> onnx.ModelProto:
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> net ({kind}[N,2] X) => ({output})
        <{kind}[2,1] W = {{0.5, -1.5}}> {{ H = MatMul(X, W) Y = Tanh(H) {end} }}""")
    graph = net.graph
    for one in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        for mark in MARKS:
            one.metadata_props.add(key=f"onnxtrain/{mark}", value="NOTHING")
    return net


@pytest.mark.parametrize("engine", available_engines())
def test_marks_in_a_file_stop_no_gradient(engine):
    net = marked("y = ReduceSum<keepdims = 0>(Y)", "float y")
    graph = gradient_graph(net, wrt="W", engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    value, gradient = session.run(["y", "W_grad"], {"X": X})
    hidden = np.tanh(X @ W)
    assert_allclose(value, hidden.sum(), rtol=1e-5)
    assert_allclose(gradient, X.T @ (1 - hidden**2), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["float", "double"])
def test_marks_in_a_file_train_and_export_as_nothing(kind):
    rate, y = 0.125, np.array([1.0, 0.0, -1.0])
    net = marked(output=f"{kind}[N,1] Y", kind=kind)
    settings = {"optimizer": "sgd", "learning_rate_init": rate, "max_iter": 1, "batch_size": 3, "alpha": 0.0}
    estimator = OrtGradientRegressor(net, loss="squared_error", **settings).fit(X, y)
    hidden = np.tanh(X @ W)
    moved = W - rate * X.T @ (2 / 3 * (hidden - y[:, None]) * (1 - hidden**2))
    assert_allclose(estimator.weights_["W"], moved, rtol=1e-5)
    content = estimator.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0]
    found = session.run(None, {name.name: X.astype(np.float64 if "double" in name.type else np.float32)})[0]
    assert_allclose(found, np.tanh(X @ moved), rtol=1e-5)
