"""Gradients are written into their vector in the shape in which the graph computes them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ort.binding import Binding, DeviceArray
from onnxtrain_sklearn._training.pass_rewrites import in_written_shapes, return_before_reshapes
from tests.helpers.sessions import session as session_of

HEAD = '<ir_version: 8, opset_import: ["": 18]> graph (float[2, 6] x, int64[2] sizes) => '
LAST = {
    "reshape": "(float[3, 4] w_grad) { y = Neg(x) w_grad = Reshape(y, sizes) }",
    "unsqueeze": "(float[1, 2, 6] w_grad) <int64[1] axes = {0}> { y = Neg(x) w_grad = Unsqueeze(y, axes) }",
    "flatten": "(float[1, 12] w_grad) { y = Neg(x) w_grad = Flatten<axis = 0>(y) }",
    "read by others": "(float[3, 4] w_grad, float[2, 6] z) { y = Neg(x) z = Abs(y) w_grad = Reshape(y, sizes) }",
}
KEPT = {
    "an input": "(float[3, 4] w_grad) { w_grad = Reshape(x, sizes) }",
    "another output": "(float[2, 6] y, float[3, 4] w_grad) { y = Neg(x) w_grad = Reshape(y, sizes) }",
    "read in its shape": "(float[3, 4] w_grad, float[3, 4] z) {y = Neg(x) w_grad = Reshape(y, sizes) z = Abs(w_grad) }",
    "of another name": "(float[3, 4] other_grad) { y = Neg(x) other_grad = Reshape(y, sizes) }",
    "another operator": "(float[6, 2] w_grad) { w_grad = Transpose(x) }",
    "of an unknown size": "(float[a, b] w_grad) { y = Compress<axis = 1>(x, mask) w_grad = Reshape(y, sizes) }",
}


def model_of(text):
    head = HEAD.replace("int64[2] sizes", "int64[2] sizes, bool[6] mask") if "mask" in text else HEAD
    return ir.passes.common.ShapeInferencePass()(ir.from_onnx_text(head + text)).model


@pytest.mark.parametrize("text", LAST.values(), ids=LAST)
def test_a_gradient_is_returned_before_its_last_reshape(text):
    model = model_of(text)
    expected = tuple(model.graph.outputs[0].shape)
    return_before_reshapes(model.graph, ["w"])
    output = model.graph.outputs[0]
    assert (output.name, output.producer().op_type, tuple(output.shape)) == ("w_grad", "Neg", (2, 6))
    session = session_of(to_proto(model))
    x, vector = np.arange(12, dtype=np.float32).reshape(2, 6), np.zeros(14, np.float32)
    written = in_written_shapes(session, {"w_grad": vector[1:13].reshape(expected)})
    inputs = {"x": x, "sizes": np.array([3, 4])}
    others = {v.name: np.zeros(v.shape, np.float32) for v in session.get_outputs()[1:]}
    Binding(session, {v.name: inputs[v.name] for v in session.get_inputs()}, {**written, **others}).run()
    assert vector.tolist() == [0, *(-x).ravel(), 0]


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_other_gradients_are_unchanged(text):
    model = model_of(text)
    before = to_proto(model)
    return_before_reshapes(model.graph, ["w"])
    assert to_proto(model) == before


def test_an_array_of_a_device_is_viewed_in_the_written_shape():
    model = model_of(LAST["reshape"])
    return_before_reshapes(model.graph, ["w"])
    session = session_of(to_proto(model))
    whole = DeviceArray(np.zeros(14, np.float32), ("cpu", 0))
    view = in_written_shapes(session, {"w_grad": whole.part(1, (3, 4))})["w_grad"]
    assert (view.shape, view.pointer - whole.pointer) == ((2, 6), 4)
