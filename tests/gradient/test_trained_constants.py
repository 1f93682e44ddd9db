"""Numbers that are trained are no constants for the gradient, whatever they begin as."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import helper, numpy_helper

from onnxtrain_sklearn import gradient_graph
from tests.helpers.environment import available_engines


def model_with(kind, number):
    """Return a graph that computes ``sum(tanh(kind(x, s)) ** 2)`` for a scalar ``s``."""
    nodes = [
        helper.make_node(kind, ["x", "s"], ["a"], name="a"),
        helper.make_node("Tanh", ["a"], ["b"], name="b"),
        helper.make_node("Mul", ["b", "b"], ["c"], name="c"),
        helper.make_node("ReduceSum", ["c"], ["loss"], name="loss", keepdims=0),
    ]
    w, s = (numpy_helper.from_array(np.asarray(a, np.float32), n) for a, n in (([0.3, 0.7, 1.2], "x"), (number, "s")))
    loss = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "g", [], [loss], [w, s])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def gradients_at(graph, values):
    """Return the gradients with the initializers replaced by ``values``, as training does it."""
    moved = onnx.ModelProto.FromString(graph.SerializeToString())
    for tensor in moved.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(values[tensor.name], np.float32), tensor.name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(moved.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["x_grad", "s_grad"], {})


@pytest.mark.each(by=lambda kind, number, engine: (kind, number))
@pytest.mark.parametrize(("kind", "number"), [("Mul", 1.0), ("Pow", 2.0), ("Pow", 1.0), ("Div", 1.0), ("Add", 0.0)])
@pytest.mark.parametrize("engine", available_engines())
def test_gradient_where_a_number_has_moved(kind, number, engine):
    if (kind, engine) == ("Pow", "ort-training"):
        pytest.skip("has no gradient of exponents")
    graph = gradient_graph(model_with(kind, number), wrt=["x", "s"], engine=engine)
    x, s = np.array([0.3, 0.7, 1.2]), number + 0.4
    function = {"Mul": np.multiply, "Pow": np.power, "Div": np.divide, "Add": np.add}[kind]

    def loss(x, s):
        return (np.tanh(function(x, s)) ** 2).sum()

    h = 1e-6
    by_x = [(loss(x + h * e, s) - loss(x - h * e, s)) / (2 * h) for e in np.eye(3)]
    found = gradients_at(graph, {"x": x, "s": s})
    assert_allclose(found[0], by_x, rtol=1e-4)
    assert_allclose(found[1], (loss(x, s + h) - loss(x, s - h)) / (2 * h), rtol=1e-4)
