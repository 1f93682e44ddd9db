"""Transpositions that change nothing, behind and before products: older releases of onnxruntime swap axes there."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import numpy_helper

from onnxtrain_sklearn import gradient_graph
from tests.helpers.environment import available_engines

ROWS = np.array([[0, 1, 2], [3, 1, 5], [9, 9, 0], [2, 4, 6]])


@pytest.mark.parametrize("engine", available_engines())
def test_the_gradient_of_a_product_is_not_transposed(engine):
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=10).astype(np.float32), rng.normal(size=(16, 4)).astype(np.float32)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[16, 4] x) => (float loss) {
        n = GatherND(w, i)  m = Transpose<perm = [0, 1]>(n)  y = MatMul(x, m)
        a = Mul(y, y)  loss = ReduceSum<keepdims = 0>(a) }"""
    )
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(ROWS[..., None], "i")])
    expected = np.zeros(10)
    np.add.at(expected, ROWS, 2 * x.T.astype(float) @ (x @ w[ROWS]))
    graph = gradient_graph(model, wrt=["w"], engine=engine).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert_allclose(session.run(["w_grad"], {"x": x})[0], expected, rtol=1e-4, atol=1e-4)
