"""Patterns of files that packages ship, each in a small graph: what is trained of them, and where it starts from."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper, parser

from onnxtrain_sklearn import SGD, Inputs, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.environment import RUNTIME_VERSION, each_engine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype(np.float32)


def step(model, X, y, **parameters) -> OrtGradientRegressor:
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": len(y), "random_state": 0}
    return OrtGradientRegressor(model, **settings | parameters).partial_fit(X, y)


def trees(kind: type) -> onnx.ModelProto:
    """Return two stumps on the first feature and their sum, in a file of version 5: its post_transform is a number."""
    numbers = {"nodes_splits": [0.0, 0.5], "leaf_weights": [1.0, -2.0, 0.25, 3.0]}
    tensors = {name: numpy_helper.from_array(np.array(values, kind)) for name, values in numbers.items()}
    modes = numpy_helper.from_array(np.zeros(2, np.uint8))
    node = helper.make_node("TreeEnsemble", ["X"], ["Y"], domain="ai.onnx.ml", n_targets=1, aggregate_function=1,
        post_transform=0, tree_roots=[0, 1], nodes_featureids=[0, 0], nodes_modes=modes, nodes_truenodeids=[0, 2],
        nodes_falsenodeids=[1, 3], nodes_trueleafs=[1, 1], nodes_falseleafs=[1, 1], leaf_targetids=[0] * 4,
        **tensors)  # fmt: skip
    of_type = TensorProto.DOUBLE if kind is np.float64 else TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, of_type, ["N", size]) for name, size in (("X", 3), ("Y", 1))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_trees_of_version_5_are_trained_in_their_type(kind):
    if RUNTIME_VERSION < "1.20":
        pytest.skip("this onnxruntime is too old for TreeEnsemble")
    data, y = X.astype(kind), RNG.normal(size=30).astype(kind)
    leaves = np.array([1.0, -2.0, 0.25, 3.0])
    hit = np.stack([data[:, 0] <= 0, data[:, 0] > 0, data[:, 0] <= 0.5, data[:, 0] > 0.5], axis=1).astype(float)
    net = step(trees(kind), data, y)
    expected = leaves - 0.1 * 2 * hit.T @ (hit @ leaves - y) / 30
    (found,) = net.weights_.values()
    assert found.dtype == kind
    assert_allclose(found, expected, rtol=1e-12 if kind is np.float64 else 1e-5)
    assert_allclose(net.predict(data), hit @ expected, rtol=1e-12 if kind is np.float64 else 1e-5)


@each_engine
@pytest.mark.parametrize("row", [(), (2,), (2, 3)], ids=str)
def test_large_tables_of_any_rank_are_looked_up(row, engine):
    """A vector of 5000 numbers is a bias of each item, as factorization has; its gradient is added up by rows."""
    width = int(np.prod(row))
    table = RNG.normal(size=(5000, *row)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "item"], ["read"], name="read"),
             helper.make_node("Reshape", ["read", "shape"], ["Y"], name="flat")]  # fmt: skip
    held = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([-1, width]), "shape")]
    ends = (helper.make_tensor_value_info("item", TensorProto.INT64, ["N"]),
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", width]))  # fmt: skip
    graph = helper.make_graph(nodes, "g", [ends[0]], [ends[1]], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    item, y = RNG.integers(0, 5000, 40), RNG.normal(size=(40, width))
    gradient = np.zeros((5000, width))
    np.add.at(gradient, item, 2 * (table[item].reshape(40, width) - y) / (40 * width))
    net = step(model, Inputs({"item": item}), y if row else y[:, 0], engine=engine)
    expected = table - 0.1 * gradient.reshape(table.shape)
    assert_allclose(net.weights_["table"], expected, rtol=0, atol=1e-6)


def test_sizes_of_a_reshaped_table_are_no_role():
    """A table of positions is cut from a constant, whose shape the graph reads, as interpolation of positions does."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] X) => (float[N, 3] Y)
        <float[1, 3] position = {1, 2, 3}, int64[2] size = {3, 1}, int64[1] first = {0}, int64[1] one = {1},
         float[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 10}>
        { c = Reshape(position, size)  s = Shape(c)  n = Slice(s, first, one)  k = Concat<axis = 0>(n, one)
          p = Reshape(c, k)  t = Transpose<perm = [1, 0]>(p)  Z = MatMul(X, W)  Y = Add(Z, t) }""")
    for tensor in model.graph.initializer:
        if tensor.name == "position":
            tensor.name = "onnx::Reshape_1962"
    for node in model.graph.node:
        node.input[:] = ["onnx::Reshape_1962" if name == "position" else name for name in node.input]
    assert step(model, X, X).weights_.keys() == {"onnx::Reshape_1962", "W"}


MIXED = {
    "attention over the rows": "q = MatMul(X, W) k = Transpose<perm = [1, 0]>(q) s = MatMul(q, k) "
    "a = Softmax<axis = 1>(s) Y = MatMul(a, q)",
    "a sum along the rows": "q = MatMul(X, W) Y = CumSum(q, zero)",
}


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED)
def test_rows_that_meet_under_a_free_axis_warn(body):
    """A file calls its first axis D and attends over it; the same rows twice in a batch do not show it."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> g (float[D, 3] X) => (float[D, 2] Y)
        <float[3, 2] W = {{1, 2, 3, 4, 5, 6}}, int64 zero = {{0}}> {{ {body} }}""")
    with pytest.warns(OnnxTrainWarning, match="'Y' of the graph for a row of X depends on the other rows"):
        net = step(model, X, X[:, :2])
    assert not np.allclose(net.predict(X)[-2:], net.predict(X[-2:]), rtol=1e-2)


def normalized(training_mode: int) -> onnx.ModelProto:
    outputs = "H, moved_mean, moved_var" if training_mode else "H"
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] X) => (float[N, 1] Y)
        <float[3] scale = {{1, 1, 1}}, float[3] bias = {{0, 0, 0}}, float[3] mean = {{1, 2, 3}},
         float[3] var = {{1, 2, 3}}, float[3, 1] W = {{1, 2, 3}}>
        {{ {outputs} = BatchNormalization<training_mode = {training_mode}>(X, scale, bias, mean, var)
           Y = MatMul(H, W) }}""")


@pytest.mark.parametrize("training_mode", [0, 1])
def test_running_statistics_are_not_trained_as_weights(training_mode):
    with pytest.raises(ValueError, match=r"trainable names 'var', a running statistic.*Name the scale and bias"):
        step(normalized(training_mode), X, X[:, 0], trainable=["W", "var"])
    net = step(normalized(training_mode), X, X[:, 0], trainable=["*"])
    assert_array_equal(net._state.parameters.names, ["W", "scale", "bias"])
