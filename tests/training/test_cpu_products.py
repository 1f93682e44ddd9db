"""Products with a transposed left operand are right in each form, and take the one that is the fastest on a CPU.

The loss is the sum of a product under random slopes. It is linear in each operand, so that its gradients are products
too, which NumPy computes in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, gradient_graph
from onnxtrain_sklearn._training import programs
from onnxtrain_sklearn._training.pass_rewrites import (
    LEAST_COLUMNS,
    LEAST_INPUTS,
    LEAST_NARROW,
    LEAST_ROWS,
    MOST_COLUMNS,
    transpose_operands,
)
from onnxtrain_sklearn._utils.cache import Cache
from tests.helpers.sessions import session

MATMUL, GEMM = "s = MatMul(x, w)", "s = Gemm<alpha = {alpha}, transA = {a}, transB = {b}>(x, w)"
NARROW, WIDE, NONE = "Transpose MatMul Transpose", "Reshape Transpose Reshape MatMul", ""
ROWS = 64
INPUTS = LEAST_NARROW // ROWS


@dataclass(frozen=True)
class Product:
    """A product, and the nodes in place of it or, mostly, of the gradient of its second operand."""

    body: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    form: str
    dtype: str = "float"
    of_columns: bool = False
    of_rows: bool = False
    alpha: float = 1.0


PRODUCTS = {
    "MatMul": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 10), NARROW),
    "Gemm": Product(GEMM, (ROWS, INPUTS), (INPUTS, 10), NARROW),
    "fewest columns": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 2), NARROW),
    "most columns": Product(GEMM, (ROWS, INPUTS), (INPUTS, MOST_COLUMNS), NARROW),
    "one column": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 1), NONE),
    "more columns": Product(MATMUL, (ROWS, INPUTS), (INPUTS, MOST_COLUMNS + 1), NONE),
    "fewer rows": Product(GEMM, (ROWS - 1, INPUTS), (INPUTS, 10), NONE),
    "a factor": Product(GEMM, (ROWS, INPUTS), (INPUTS, 10), NONE, alpha=0.5),
    "transposed rows": Product(GEMM, (INPUTS, ROWS), (INPUTS, 10), NARROW, of_columns=True),  # the product itself
    "transposed weights": Product(GEMM, (ROWS, INPUTS), (10, INPUTS), NONE, of_rows=True),
    "float64": Product(MATMUL, (ROWS, INPUTS), (INPUTS, 10), NONE, dtype="double"),
    "wide": Product(MATMUL, (LEAST_ROWS, LEAST_INPUTS), (LEAST_INPUTS, LEAST_COLUMNS), WIDE),
    "not wide": Product(MATMUL, (LEAST_ROWS, LEAST_INPUTS), (LEAST_INPUTS, LEAST_COLUMNS - 1), NONE),
    "few rows of many columns": Product(MATMUL, (LEAST_ROWS - 1, LEAST_INPUTS), (LEAST_INPUTS, LEAST_COLUMNS), NONE),
    "few inputs of many columns": Product(
        MATMUL, (LEAST_ROWS, LEAST_INPUTS - 1), (LEAST_INPUTS - 1, LEAST_COLUMNS), NONE
    ),
}


def gradients(one):
    """Return the graph of the gradients of both operands, and their names and arrays."""
    x, w = (", ".join(map(str, shape)) for shape in (one.x, one.w))
    body = one.body.format(alpha=one.alpha, a=int(one.of_columns), b=int(one.of_rows))
    slope = product(one, np.zeros(one.x), np.zeros(one.w)).shape
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({one.dtype}[{x}] x, {one.dtype}[{w}] w,
        {one.dtype}[{", ".join(map(str, slope))}] g) => ({one.dtype} loss)
        {{ {body} p = Mul(s, g) loss = ReduceSum<keepdims = 0>(p) }}"""
    rng, dtype = np.random.default_rng(0), {"float": np.float32, "double": np.float64}[one.dtype]
    shapes = {"x": one.x, "w": one.w, "g": slope}
    arrays = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    return gradient_graph(onnx.parser.parse_model(text), wrt=["x", "w"], engine="portable"), arrays


def product(one, x, w):
    return one.alpha * ((x.T if one.of_columns else x) @ (w.T if one.of_rows else w))


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_are_right_in_the_form_that_is_faster(name):
    one = PRODUCTS[name]
    graph, arrays = gradients(one)
    model = ir.from_proto(graph)
    transpose_operands(model.graph)
    made = [node.op_type for node in model.graph if (node.name or "").startswith("onnxtrain/products")]
    assert " ".join(made) == one.form
    assert [value.name for value in model.graph.outputs] == [value.name for value in graph.graph.output]
    loss, by_x, by_w = session(ir.to_proto(model)).run(["loss", "x_grad", "w_grad"], arrays)
    x, w, g = (arrays[key].astype(np.float64) for key in "xwg")
    assert_allclose(loss, (product(one, x, w) * g).sum(), rtol=1e-4)
    for found, name, value in ((by_x, "x", x), (by_w, "w", w)):
        steps, parts = np.random.default_rng(1).normal(size=(5, *value.shape)), {"x": x, "w": w}
        wanted = [(product(one, **{**parts, name: step}) * g).sum() for step in steps]
        assert found.shape == value.shape
        assert_allclose([(found * step).sum() for step in steps], wanted, rtol=1e-4, atol=1e-3)


def test_transposed_product_keeps_its_place():
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[{ROWS}, {INPUTS}] x, float[{ROWS}, 10] g, float[{INPUTS}, 10] u) => (float[{INPUTS}, 10] s, float t)
        {{ v = Exp(u) s = Gemm<transA = 1>(x, g) w = Add(s, v) t = ReduceSum<keepdims = 0>(w) }}""")
    )
    transpose_operands(model.graph)
    assert [node.op_type for node in model.graph] == ["Exp", *NARROW.split(), "Add", "ReduceSum"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_products_of_unknown_sizes_and_with_a_summand_stay():
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, {INPUTS}] x, float[N, 10] g, float[{ROWS}, {INPUTS}] y, float[{ROWS}, 10] h, float[10] b)
          => (float[{INPUTS}, 10] s, float[{INPUTS}, 10] t)
        {{ s = Gemm<transA = 1>(x, g) t = Gemm<transA = 1>(y, h, b) }}""")
    )
    transpose_operands(model.graph)
    assert [node.op_type for node in model.graph] == ["Gemm", "Gemm"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_on_the_host_has_them_and_learns_the_same(monkeypatch):
    rng, weights = np.random.default_rng(0), []
    X, y = rng.normal(size=(256, LEAST_INPUTS)).astype(np.float32), rng.integers(10, size=256)
    for transposes in (True, False):
        if not transposes:
            monkeypatch.setattr(programs, "transpose_operands", lambda graph: None)
            monkeypatch.setattr(programs, "_programs", Cache(1, 2**20, lambda program: 0))
        settings = {"optimizer": SGD(), "batch_size": LEAST_ROWS, "max_iter": 3, "random_state": 0}
        fitted = OrtGradientClassifier(MLP((LEAST_COLUMNS,)), engine="portable", **settings).fit(X, y)
        program = onnx.load_from_string(fitted._state.live.step.program.graph)
        others = [node for node in program.graph.node if node.name.startswith("onnxtrain/products/MatMul")]
        assert len(others) == (2 if transposes else 0)
        weights.append(fitted.weights_)
    for name, array in weights[0].items():
        assert_allclose(array, weights[1][name], rtol=0, atol=1e-5)
