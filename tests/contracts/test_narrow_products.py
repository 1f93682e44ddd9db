"""Gradients of matrices with few columns are right, and are transposed where that is faster.

The loss is the sum of a product under random slopes. It is linear in each operand, so the gradients are products too,
which NumPy computes in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn._gradient.engine import gradient_graph
from onnxtrain_sklearn._gradient.portable.rules.matmul import LEAST_TRANSPOSED, MOST_COLUMNS
from tests.helpers.sessions import session

ROWS = 64
INPUTS = LEAST_TRANSPOSED // ROWS


@dataclass(frozen=True)
class Product:
    """A product, and whether the gradient of its second operand is computed transposed."""

    body: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    is_transposed: bool
    dtype: str = "float"
    transA: bool = False
    transB: bool = False
    alpha: float = 1.0


MATMUL, GEMM = "s = MatMul(x, w)", "s = Gemm<alpha = {alpha}, transA = {a}, transB = {b}>(x, w)"
PRODUCTS = {
    "MatMul": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 10), True),
    "Gemm": Product(GEMM, (ROWS, INPUTS), (INPUTS, 10), True),
    "fewest columns": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 2), True),
    "most columns": Product(GEMM, (ROWS, INPUTS), (INPUTS, MOST_COLUMNS), True),
    "one column": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 1), False),
    "a vector": Product(MATMUL, (ROWS, INPUTS), (INPUTS,), False),
    "more columns": Product(MATMUL, (ROWS, INPUTS), (INPUTS, MOST_COLUMNS + 1), False),
    "fewer rows": Product(GEMM, (ROWS - 1, INPUTS), (INPUTS, 10), False),
    "a factor": Product(GEMM, (ROWS, INPUTS), (INPUTS, 10), False, alpha=0.5),
    "transposed rows": Product(GEMM, (INPUTS, ROWS), (INPUTS, 10), False, transA=True),
    "transposed weights": Product(GEMM, (ROWS, INPUTS), (10, INPUTS), False, transB=True),
    "float64": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 10), False, dtype="double"),
}


def gradients(one):
    """Return the graph of the gradients of both operands, and their names and arrays."""
    x, w = (", ".join(map(str, shape)) for shape in (one.x, one.w))
    body = one.body.format(alpha=one.alpha, a=int(one.transA), b=int(one.transB))
    slope = product(one, np.zeros(one.x), np.zeros(one.w)).shape
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({one.dtype}[{x}] x, {one.dtype}[{w}] w,
        {one.dtype}[{", ".join(map(str, slope))}] g) => ({one.dtype} loss)
        {{ {body} p = Mul(s, g) loss = ReduceSum<keepdims = 0>(p) }}"""
    rng, dtype = np.random.default_rng(0), {"float": np.float32, "double": np.float64}[one.dtype]
    shapes = {"x": one.x, "w": one.w, "g": slope}
    arrays = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return gradient_graph(onnx.parser.parse_model(text), wrt=["x", "w"], engine="portable"), arrays


def product(one, x, w):
    return one.alpha * ((x.T if one.transA else x) @ (w.T if one.transB else w))


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_are_right_in_the_form_that_is_faster(name):
    one = PRODUCTS[name]
    graph, arrays = gradients(one)
    transposed = [node.op_type for node in graph.graph.node].count("Transpose")
    assert transposed == (2 if one.is_transposed else 0)
    loss, by_x, by_w = session(graph).run(["loss", "x_grad", "w_grad"], arrays)
    x, w, g = (arrays[key].astype(np.float64) for key in "xwg")
    np.testing.assert_allclose(loss, (product(one, x, w) * g).sum(), rtol=1e-4)
    for found, direction, value in ((by_x, "x", x), (by_w, "w", w)):
        step = np.random.default_rng(1).normal(size=(5, *value.shape))
        parts = {"x": x, "w": w}
        wanted = [(product(one, **{**parts, direction: d}) * g).sum() for d in step]  # the loss is linear
        got = [(found.astype(np.float64) * d).sum() for d in step]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
        assert found.shape == value.shape
        assert np.abs(found).max() > 1
