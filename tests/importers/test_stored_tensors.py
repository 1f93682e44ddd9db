"""Sparse and quantized tensors in given graphs: what cannot be trained, or does not fit, is refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import ModelError

X, Y = np.ones((4, 3), np.float32), np.zeros(4)


def tensor_net(body, **arrays):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[N,3] X) => (float[N,1] Y) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


def sparse_tensor():
    values = onnx.numpy_helper.from_array(np.array([2.0], np.float32), "S")
    return onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array([1]), "i"), [3, 1])


def in_a_constant(model):
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["S"], name="few", sparse_value=sparse_tensor()))


def in_a_branch(model):
    body = "Y = Neg(H)"
    branches = [onnx.parser.parse_graph(f"g () => (float[N,1] Y) {{ {body} }}") for _ in range(2)]
    branches[0].sparse_initializer.append(sparse_tensor())
    model.graph.node.add(op_type="If", name="few", input=["yes"], output=["Y"])
    names = ("then_branch", "else_branch")
    model.graph.node[-1].attribute.extend(
        onnx.helper.make_attribute(n, b) for n, b in zip(names, branches, strict=True)
    )


@pytest.mark.parametrize("add", [in_a_constant, in_a_branch])
def test_sparse_tensors_are_refused_anywhere(add):
    body = "Y = MatMul(X, S)" if add is in_a_constant else "H = MatMul(X, W)"
    model = tensor_net(body, W=np.ones((3, 1), np.float32), yes=np.array(True))
    add(model)
    with pytest.raises(
        ModelError, match=r"Node 'few' \(.*\) holds sparse tensors, which cannot be trained; store them as dense"
    ):
        OrtGradientRegressor(model).fit(X, Y)
    with pytest.raises(ModelError, match="holds sparse tensors"):
        gradient_graph(model, wrt="W", of="Y")


@pytest.mark.parametrize(
    ("scale", "zero", "axis"),
    [((), (3, 1), 1), ((2,), (2,), 0), ((3,), (2,), 0), ((3,), (3,), 2), ((3,), (3,), 1), ((0,), (0,), 0)],
)
def test_scales_that_do_not_fit_their_integers(scale, zero, axis):
    arrays = {"q": np.ones((3, 1), np.int8), "s": np.ones(scale, np.float32), "z": np.zeros(zero, np.int8)}
    model = tensor_net(f"W = DequantizeLinear <axis = {axis}> (q, s, z) Y = MatMul(X, W)", **arrays)
    with pytest.raises(ModelError, match=r"DequantizeLinear.*(is not valid|[Ss]cale|axis|[Dd]im)"):
        OrtGradientRegressor(model).fit(X, Y)


@pytest.mark.parametrize(("size", "axis"), [((), 1), ((1,), 0), ((3,), 0), ((3,), -2)])
def test_scales_that_fit(size, axis):
    arrays = {"q": np.array([[1], [2], [3]], np.int8), "s": np.full(size, 2, np.float32), "z": np.ones(size, np.int8)}
    model = tensor_net(f"W = DequantizeLinear <axis = {axis}> (q, s, z) Y = MatMul(X, W)", **arrays)
    fitted = OrtGradientRegressor(model, learning_rate_init=0.0).partial_fit(X, Y)
    assert fitted.weights_["q"].ravel().tolist() == [0.0, 2.0, 4.0]
