"""Attention in a graph with gradients: queries whose keys are all masked."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onnxtrain_sklearn import gradient_graph
from tests.helpers.environment import LIMITS
from tests.helpers.sessions import session

pytestmark = pytest.mark.skipif(LIMITS.opset < 23, reason="needs opset 23")


def test_query_without_allowed_keys_gives_zeros_and_has_no_gradient():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 23]>
        masked (float[1, 1, 2, 3] q, float[1, 1, 2, 3] k, float[1, 1, 2, 3] v, bool[2, 2] mask)
        => (float loss, float[1, 1, 2, 3] y) {
            y = Attention(q, k, v, mask)
            squares = Mul(y, y)
            loss = ReduceSum <keepdims = 0> (squares)
        }""")
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 1, 2, 3)).astype(np.float32) for _ in range(3))
    mask = np.array([[False, False], [True, False]])  # the second query sees the first key alone
    graph = gradient_graph(model, wrt=["q", "k", "v"], of="loss", engine="portable")
    feeds = {"q": q, "k": k, "v": v, "mask": mask}
    y, by_q, by_k, by_v = session(graph).run(["y", "q_grad", "k_grad", "v_grad"], feeds)
    np.testing.assert_allclose(y[0, 0], [[0, 0, 0], v[0, 0, 0]], rtol=1e-6)
    # A softmax over one key does not depend on the scores.
    np.testing.assert_allclose([by_q, by_k], 0, atol=1e-6)
    np.testing.assert_allclose(by_v[0, 0], [2 * v[0, 0, 0], [0, 0, 0]], rtol=1e-6)
