"""Loops and Scans of known length, written out: the same numbers without a subgraph, or left as they are."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._ir import control_flow
from onnxtrain_sklearn._ir.control_flow import unroll
from tests.helpers.environment import available_engines
from tests.helpers.sessions import session as session_of

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
FEEDS = {"x": X, "h": np.float32([0.3, -0.2, 0.1, 0.5]), "go": np.array(True), "n": np.array(2)}
HEAD = "g (float[3, 4] x, float[4] h, bool go, int64 n) => (float[s, t] y, float[u] e) <int64 m = {4}, bool yes = {1}>"

SCAN = """e, y = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] v) => (float[4] t, float[4] o) {
    a = Add(s, v)  t = Tanh(a)  o = Mul(t, x0) } %s > (h, x)"""
LOOP = """e, y = Loop (m, %s) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] o) {
    k = Cast <to = 1> (i)  a = Add(s, k)  t = Tanh(a)  o = Mul(t, x0)  %s }>"""
EARLY = """e = Loop (m, %s, h) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
    t = Add(s, x0)  q = ReduceMax <keepdims = %d> (t)  lim = Constant <value_float = 1.5> ()  d = Less(q, lim) }>
    y = Identity(x)"""
NESTED = """e, y = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] v) => (float[4] t, float[4] o) {
    two = Constant <value_int = 2> ()
    t = Loop (two, , s) <body = inner (int64 i, bool c, float[4] p) => (bool d, float[4] q) {
        r = Mul(p, v)  q = Sin(r)  d = Identity(c) }>
    o = Identity(t) } > (h, x)"""
SKIP = "zero = Constant <value_int = 0> ()  x0 = Gather(x, zero)  "

WRITTEN_OUT = {
    "scan": SCAN % "",
    "scan from the end": SCAN % ", scan_input_directions = [1]",
    "scan stacked from the end": SCAN % ", scan_output_directions = [1]",
    "scan stacked in columns": SCAN % ", scan_output_axes = [1]",
    "loop": LOOP % (", h", "d = Identity(c)"),
    "loop under a true condition": LOOP % ("yes, h", "d = Identity(c)"),
    "loop that says true": LOOP % (", h", "d = Constant <value = bool {1}> ()"),
    "early end": EARLY % ("go", 0),
    "early end by one of an axis": (EARLY % ("yes", 1)).replace("bool d", "bool[1] d"),
    "nested": NESTED,
}
LEFT = {
    "unknown number": (LOOP % (", h", "d = Identity(c)")).replace("(m,", "(n,"),
    "stacked with an early end": LOOP % ("go, h", "d = Identity(c)"),
    "no number": "e = Loop ( , go, h) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {"
    " t = Tanh(s)  lim = Constant <value_int = 3> ()  d = Less(i, lim) }>  y = Identity(x)",
    "growing state": "e = Loop (m, go, h) <body = b (int64 i, bool c, float[k] s) => (bool d, float[l] t) {"
    " t = Concat <axis = 0> (s, s)  d = Identity(c) }>  y = Identity(x)",
}  # fmt: skip


def unrolled_model(nodes):
    text = f'<ir_version: 8, opset_import: ["": 18]> {HEAD} {{ {SKIP} {nodes} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def run_unrolled(model):
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = session_of(proto)
    return session.run(None, {v.name: FEEDS[v.name] for v in model.graph.inputs})


def subgraphs_of(model):
    return len(list(model.graph.subgraphs()))


@pytest.mark.parametrize("nodes", WRITTEN_OUT.values(), ids=WRITTEN_OUT.keys())
def test_unrolled_loop_computes_the_same_without_a_subgraph(nodes):
    model = unrolled_model(nodes)
    flat = unroll(model.clone())
    assert subgraphs_of(model)
    assert not subgraphs_of(flat)
    assert [v.name for v in flat.graph.outputs] == ["y", "e"]
    for expected, found in zip(run_unrolled(model), run_unrolled(flat), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_early_end_ends_early():
    model = unrolled_model(EARLY % ("go", 0))
    ended = run_unrolled(unroll(model))[1]
    rounds = (ended - FEEDS["h"]) / X[0]
    np.testing.assert_allclose(rounds, rounds[0], rtol=1e-4)
    assert 0 < rounds[0] < 4


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT.keys())
def test_unsupported_loops_are_not_unrolled(nodes):
    model = unrolled_model(nodes)
    before = len(model.graph)
    assert subgraphs_of(unroll(model)) == 1
    assert len(model.graph) == before


def test_more_nodes_than_the_limit_stay(monkeypatch):
    monkeypatch.setattr(control_flow, "MAX_NODES", 8)
    assert subgraphs_of(unroll(unrolled_model(SCAN % ""))) == 1


def test_constants_of_a_body_are_written_once():
    model = unroll(unrolled_model(EARLY % ("yes", 0)))
    outputs = [node.outputs[0] for node in model.graph if node.op_type == "Constant"]
    numbers = [ir.convenience.get_const_tensor(value).numpy() for value in outputs]
    assert sum(array.size == 1 and array.item() == 1.5 for array in numbers) == 1


@pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")
@pytest.mark.parametrize("name", ["scan", "scan from the end", "loop", "early end", "nested"])
def test_onnxruntime_training_differentiates_unrolled_loops(name):
    model = unrolled_model(WRITTEN_OUT[name])
    loss = model.graph.outputs[1]
    tail = ir.from_proto(onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> {HEAD.replace("float[s, t] y, float[u] e", "float total")}'
        f" {{ {SKIP} {WRITTEN_OUT[name]}  p = ReduceSum <keepdims = 0> (y)  q = Mul(e, e)"
        f"  r = ReduceSum <keepdims = 0> (q)  total = Add(p, r) }}"
    ))  # fmt: skip
    assert loss.name == "e"
    found = []
    for engine in ("portable", "ort-training"):
        proto = gradient_graph(ir.to_proto(tail), wrt=["h", "x"], engine=engine)
        session = session_of(proto)
        found.append(session.run(["h_grad", "x_grad"], FEEDS))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_states_that_start_equal_stay_equal():
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[4] h) => (float[4] e, float[4] f) <int64 m = {3}> {
        e, f = Loop (m, , h, h) <body = b (int64 i, bool c, float[4] p, float[4] q) =>
            (bool d, float[4] p, float[4] q) {
            d = Identity(c) }> }"""
    model = unroll(ir.from_proto(onnx.parser.parse_model(text)))
    assert not subgraphs_of(model)
    assert [v.name for v in model.graph.outputs] == ["e", "f"]
    for found in run_unrolled(model):
        np.testing.assert_array_equal(found, FEEDS["h"])
