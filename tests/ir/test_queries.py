"""Queries of graphs: which values a node reads or reaches, and what tells the structures of two graphs apart."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._ir.queries import is_float, reaching, reads, structure
from onnxtrain_sklearn._ir.shapes import infer_shapes


def graph_of(body, weights=""):
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 3] X, bool c) => (float[N, 3] Y) <float A = {{1}}, float B = {{1}}{weights}> {{ {body} }}""")
    return infer_shapes(ir.from_proto(proto)).graph


@pytest.mark.parametrize(
    ("body", "reached"),
    [
        ("H = Mul(X, A) Y = Neg(H)", {"X", "A", "H", "Y"}),
        ("i = Cast <to = 7> (A) H = Cast <to = 1> (i) Y = Mul(X, H)", {"X", "H", "Y"}),
        ("m = Greater(X, A) Y = Where(m, X, B)", {"X", "B", "Y"}),
        ("U = Neg(A) Y = Relu(X)", {"X", "Y"}),
        (
            "H = Mul(X, A) Y = If (c) <then_branch = t () => (float[N, 3] a) { a = Neg(H) }, "
            "else_branch = e () => (float[N, 3] b) { k = Neg(B) b = Mul(X, k) }>",
            {"X", "H", "A", "B", "Y", "a", "b", "k"},
        ),
    ],
)
def test_reaching_finds_all_dependencies_of_an_output(body, reached):
    assert reaching(graph_of(body).outputs[0]) == reached


def test_reads_of_a_node_and_its_subgraphs():
    graph = graph_of("""Y = If (c) <then_branch = t () => (float[N, 3] a) { a = Identity(X) },
        else_branch = e () => (float[N, 3] b) {
            b = If (c) <then_branch = u () => (float[N, 3] p) { p = Mul(X, B) },
                        else_branch = v () => (float[N, 3] q) { q = Neg(X) }> }>""")
    assert {v.name for v in reads(graph[0])} >= {"c", "X", "B"}
    assert "A" not in {v.name for v in reads(graph[0])}


def test_float_or_unknown():
    assert is_float(ir.val("x"))
    assert is_float(ir.val("x", ir.DataType.FLOAT16))
    assert not is_float(ir.val("x", ir.DataType.INT64))
    assert not is_float(ir.val("x", ir.DataType.BOOL))


def digest(weight: float = 1.0, alpha: float = 0.1, *, without: tuple[str, ...] = ()) -> bytes:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] y)
        <float[4, 1] w = {{1, 2, {weight}, 4}}, float[1] b = {{3}}>
        {{ a = MatMul(X, w) h = LeakyRelu <alpha = {alpha}> (a) y = Add(h, b) }}"""
    return structure(ir.from_proto(onnx.parser.parse_model(text)), without)


def test_structure_tells_all_but_the_weights_apart():
    assert digest() == digest()
    assert digest(weight=2.0) != digest()
    assert digest(weight=2.0, without=("w",)) == digest(without=("w",))
    assert digest(weight=2.0, without=("b",)) != digest(without=("b",))
    assert digest(alpha=0.2, without=("w",)) != digest(without=("w",))
    assert digest(without=("w",)) != digest()
