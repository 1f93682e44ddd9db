"""Operands that end the process in kernels of onnxruntime 1.19 are refused on every runtime, by name."""

from __future__ import annotations

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import ModelError

FLOATS, WHOLE = np.ones, np.array
POOLED = {"i": WHOLE([[[[0, 3], [9, 11]]]])}
ROIS = {"r": np.array([[0, 0, 2, 2]], np.float32)}
CASES = {
    "kernel": ("Conv(x, w)", "1,1,4,4", {"w": FLOATS((1, 1, 0, 3), np.float32)}, "its kernel has no elements"),
    "transposed": ("ConvTranspose(x, w)", "1,1,4,4", {"w": FLOATS((1, 1, 3, 0), np.float32)}, "its kernel has no elem"),
    "channels": ("LRN <size = 3> (x)", "2,0,2,3", {}, "its input has no channels"),
    "window": ("STFT(x, s, w)", "1,8,1", {"s": WHOLE(2), "w": FLOATS(0, np.float32)}, "its window has no elements"),
    "blocks": ("Col2Im(x, i, k)", "1,4,6", {"i": WHOLE([4, 3]), "k": WHOLE([2])}, "2 sizes and its block_shape 1"),
    "places": ("MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)", "1,1,2,2", {"i": POOLED["i"] + 9},
               "an index is beyond the 16 elements"),
    "negative": ("MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)", "1,1,2,2", {"i": POOLED["i"] - 1},
                 "an index is beyond the 16 elements"),
    "steps": ("GRU <hidden_size = 2> (x, w, r)", "0,3,1", {"w": FLOATS((1, 6, 1), np.float32),
              "r": FLOATS((1, 6, 2), np.float32)}, "its sequences have no steps"),
    "batch": ("RoiAlign(x, r, n)", "1,1,4,4", {**ROIS, "n": WHOLE([1])}, "an index is beyond its batch"),
}  # fmt: skip
RIGHT = {
    "kernel": {"w": FLOATS((1, 1, 3, 3), np.float32)},
    "places": POOLED,
    "batch": {**ROIS, "n": WHOLE([0])},
    "blocks": {"i": WHOLE([4, 3]), "k": WHOLE([2, 2])},
}


def misfit_graph(node, x, arrays):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[{x}] x) => (float loss) '
        f"{{ y = {node} loss = ReduceSum <keepdims = 0> (y) }}"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return model


@pytest.mark.parametrize(("node", "x", "arrays", "message"), CASES.values(), ids=CASES)
def test_mismatched_operands_are_refused(node, x, arrays, message):
    with pytest.raises(ModelError, match=rf"is not valid: .*{message}"):
        gradient_graph(misfit_graph(node, x, arrays), wrt="x", engine="portable")


@pytest.mark.parametrize("name", RIGHT)
def test_fitting_operands_are_differentiated(name):
    node, x, _, _ = CASES[name]
    assert (
        gradient_graph(misfit_graph(node, x, RIGHT[name]), wrt="x", engine="portable").graph.output[-1].name == "x_grad"
    )


@pytest.mark.parametrize("operator", ["GRU", "RNN"])
def test_sequences_that_the_graph_cuts_to_no_steps(operator):
    """The process would end in the first prediction."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 5, 1] X) => (float[N, 2] Y)
        <int64[1] first = {{0}}, int64[1] end = {{0}}, int64[1] axis = {{1}}> {{
            C = Slice(X, first, end, axis) T = Transpose <perm = [1, 0, 2]> (C)
            A, H = {operator} <hidden_size = 2> (T, W, R) Y = Squeeze(H, first) }}"""
    )
    gates = {"GRU": 6, "RNN": 2}[operator]
    for name, width in (("W", 1), ("R", 2)):
        array = np.ones((1, gates, width), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    with pytest.raises(ModelError, match=rf"\({operator}\) is not valid: its sequences have no steps"):
        OrtGradientRegressor(model).fit(np.ones((6, 5, 1), np.float32), np.ones((6, 2)))


@pytest.mark.parametrize("labels", [[], [0], [0, 1]])
def test_classifiers_have_a_label_for_each_score(labels):
    """Releases differ: 1.19 ends the process without labels, later ones raise an error or read what is not there."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]> net (float[N,2] X) => (int64[N] L, float[N,3] P) '
        "{ L, P = ai.onnx.ml.LinearClassifier(X) }"
    )
    settings = {"coefficients": [1.0] * 6, "intercepts": [0.0] * 3, "classlabels_ints": labels}
    model.graph.node[0].attribute.extend(onnx.helper.make_attribute(k, v) for k, v in settings.items() if v)
    with pytest.raises(
        ModelError,
        match=rf"LinearClassifier\) is not valid: its {len(labels)} labels are too few, which does not fit 3",
    ):
        OrtGradientClassifier(model).fit(np.ones((6, 2), np.float32), np.arange(6) % 3)
