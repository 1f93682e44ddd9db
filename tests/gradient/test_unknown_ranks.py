"""Windows over a tensor whose rank nobody knows: a right gradient, or a refusal that says why; never another error."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.environment import available_engines

UNKNOWN = "c = Constant<value = bool[4] {1, 1, 1, 1}>() s = Compress(S, c) r = Reshape(X, s)"
"""No inference knows how long the result of Compress is."""


def of_unknown_rank(body):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        net (float[2, 1, 4, 4] X, int64[4] S, float[2, 1, 3, 3] K) => (float y)
        {{ {UNKNOWN} {body} y = ReduceSum<keepdims = 0>(v) }}"""
    )


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(
    "body",
    [
        'v = Conv<kernel_shape = [3, 3], auto_pad = "SAME_UPPER">(r, K)',
        "a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(X, K) b = Reshape(a, s) "
        'v = MaxPool<kernel_shape = [2, 2], auto_pad = "SAME_LOWER">(b)',
    ],
    ids=["Conv", "MaxPool"],
)
def test_padding_of_unknown_sizes_is_refused(body, engine):
    with pytest.raises(UnsupportedOperatorError, match=r"auto_pad needs fixed sizes|sizes of its input"):
        gradient_graph(of_unknown_rank(body), wrt="K", engine=engine)


@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
@pytest.mark.parametrize("engine", available_engines())
def test_gradient_of_a_kernel_behind_an_unknown_rank(strides, engine):
    proto = of_unknown_rank(f"v = Conv<kernel_shape = [3, 3], strides = {strides}, pads = [1, 1, 1, 1]>(r, K)")
    found = gradient_graph(proto, wrt="K", engine=engine)
    X = np.random.default_rng(0).normal(size=(2, 1, 4, 4)).astype(np.float32)
    feeds = {"X": X, "S": np.array([2, 1, 4, 4]), "K": np.ones((2, 1, 3, 3), np.float32)}
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    padded, step = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1))), strides[0]
    expected = [[padded[:, 0, i : i + 4 : step, j : j + 4 : step].sum() for j in range(3)] for i in range(3)]
    assert_allclose(session.run(None, feeds)[1], np.broadcast_to(expected, (2, 1, 3, 3)), rtol=1e-4, atol=1e-4)
