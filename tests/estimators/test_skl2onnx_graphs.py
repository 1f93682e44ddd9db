"""Given graphs within skl2onnx: opsets, omitted outputs, several inputs, subgraphs."""

from __future__ import annotations

import numpy as np
import onnx.checker
import onnx.parser
import pytest
import skl2onnx
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx.common.data_types import FloatTensorType
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted_estimators import (
    NUMBERS,
    TARGETS,
    X,
    convert,
    fit,
    graph,
    net,
    regressor,
    results,
    same_labels,
)


@pytest.mark.parametrize("opset", [15, 18, 21])
@pytest.mark.parametrize("own", [11, 13, 17, 21])
def test_given_graphs_in_other_opsets(own, opset):
    """Softmax had another default axis before opset 13."""
    classifier = fit(net(model=graph("H = Gemm(X, W, b) S = Softmax(H) Y = Softmax(S)", own)), TARGETS["strings"])
    label, values = results(convert(classifier, opset=opset, zipmap=False))
    same_labels(label, classifier.predict(X))
    assert_allclose(values, classifier.predict_proba(X), rtol=0, atol=1e-6)


def test_operators_that_came_later():
    body = "H = Gemm(X, W, b) Y = LayerNormalization(H, b, b)"
    classifier = fit(net(model=graph(body)), TARGETS["strings"])
    results(convert(classifier, opset=17, zipmap=False))
    with pytest.raises(ModelError, match=r"ONNX's converter cannot bring it to opset 15: .*Take opset 18"):
        convert(classifier, opset=15)


def test_outputs_that_are_omitted():
    proto = graph("""H = Gemm(X, W, b) L, M, S = LayerNormalization(H, b, b) Z, N, T = LayerNormalization(L, b, b)
        U = Sub(S, T) A = Add(Z, U) Y = MatMul(A, V)""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "V"))
    for node in (node for node in proto.graph.node if node.op_type == "LayerNormalization"):
        node.output[1] = ""
    classifier = fit(net(model=proto, trainable=["V"]), TARGETS["strings"])
    label, values = results(convert(classifier, zipmap=False))
    same_labels(label, classifier.predict(X))
    assert_array_equal(values, classifier.predict_proba(X))


def test_vector_of_predictions():
    body = "H = Gemm(X, W, b) Y = ReduceSum <keepdims = 0> (H, axes)"
    number = fit(regressor(model=graph(body, output="float[N] Y")), NUMBERS)
    (found,) = results(convert(number))
    assert found.shape == (len(X), 1)
    assert_array_equal(found.ravel(), number.predict(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_double_graph(dtype):
    proto = graph("Y = Gemm(X, W, b)", output="double[N, 3] Y", types="double")
    classifier, data = fit(net(model=proto), TARGETS["strings"]), X.astype(dtype)
    label, values = results(convert(classifier, data, zipmap=False), data)
    same_labels(label, classifier.predict(data))
    assert values.dtype == dtype
    assert_array_equal(values, classifier.predict_proba(data).astype(dtype))


def test_rows_of_several_dimensions_come_flat():
    body = "F = Reshape(X, flat) Y = Gemm(F, W, b)"
    classifier = net(model=graph(body, shape="N, 1, 2, 2"))
    pipeline = fit(make_pipeline(StandardScaler(), classifier), TARGETS["strings"])
    label, values = results(convert(pipeline, zipmap=False))
    same_labels(label, pipeline.predict(X))
    assert_allclose(values, pipeline.predict_proba(X), rtol=0, atol=1e-6)
    types, options = [("X", FloatTensorType([None, None]))], {id(classifier): {"zipmap": False}}
    proto = skl2onnx.convert_sklearn(classifier, initial_types=types, options=options, target_opset=18)
    with pytest.raises(Exception, match="Reshape"):  # not twice as many rows
        results(proto, np.concatenate([X, X], axis=1))


def test_graph_with_several_inputs():
    proto = graph("H = Gemm(X, W, b) Y = Add(H, Z)")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("Z", 1, ["N", 3]))
    classifier = net(model=proto)
    fit(classifier, TARGETS["strings"], {"X": X, "Z": X[:, :3]})
    with pytest.raises(ModelError, match=r"The graph has 2 inputs: 'X', 'Z'. .* take its own to_onnx\(\)"):
        convert(classifier)


def test_graph_with_a_vector_as_input():
    proto = graph("H = Unsqueeze(X, axes) G = MatMul(H, V) Y = Add(G, b)", shape="N")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "V"))
    classifier = fit(net(model=proto), TARGETS["strings"], X[:, 0])
    with pytest.raises(ModelError, match="Input 'X' of the graph is 1-D; skl2onnx passes a 2-D array"):
        convert(classifier)


OMITTED = "H = Gemm(X, W, b) G = Clip(H, , top) Y = Add(G, b)"


BRANCHES = """M = ReduceMax <keepdims = 0> (X) C = Greater(M, top)
    H = If (C) <then_branch = t () => (float[N, 4] T) { T = Identity(X) },
                else_branch = e () => (float[N, 4] E) { E = Neg(X) }>
    Y = Gemm(H, W, b)"""


@pytest.mark.parametrize(
    ("body", "reason"), [(OMITTED, "an omitted optional input"), (BRANCHES, "a subgraph")], ids=["omitted", "branches"]
)
def test_nodes_that_skl2onnx_cannot_order(body, reason):
    classifier = fit(net(model=graph(body), engine="portable"), TARGETS["strings"])
    assert len(results(classifier.to_onnx())) == 2
    with pytest.raises(ModelError, match=rf"has {reason}, and skl2onnx cannot order such nodes"):
        convert(classifier)
