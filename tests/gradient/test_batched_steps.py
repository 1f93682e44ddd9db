"""Work that needs no state is moved out of Scans, and the results stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import gradient_graph, hvp_graph
from onnxtrain_sklearn._gradient import batched_steps
from onnxtrain_sklearn._ir.shapes import infer_shapes
from tests.helpers.sessions import evaluate

RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.uniform(0.2, 0.9, size=(5, 2, 3)).astype(np.float32),
    "z": RNG.uniform(0.2, 0.9, size=(5, 2, 3)).astype(np.float32),
    "v": RNG.uniform(0.2, 0.9, size=(5, 3)).astype(np.float32),
    "w": RNG.normal(size=(3, 3)).astype(np.float32),
    "start": RNG.normal(size=(2, 3)).astype(np.float32),
}
MODEL = """<ir_version: 8, opset_import: ["": 18]>
    g (float[5, 2, 3] x, float[5, 2, 3] z, float[5, 3] v, float[3, 3] w, float[2, 3] start) => ({outputs}) {{
        {nodes}
    }}"""

NUMBERS = (
    "Abs Ceil Cos Elu Erf Exp Floor HardSigmoid Identity LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Sign Sin "
    "Softplus Softsign Sqrt Tanh ThresholdedRelu"
)
PAIRS = "Add Div Max Min Mul Pow Sub Sum"
COMPARED = "Equal Greater GreaterOrEqual Less LessOrEqual"
EXPRESSIONS = {
    **{name: f"r = {name}(a)" for name in NUMBERS.split()},
    **{name: f"r = {name}(a, b)" for name in PAIRS.split()},
    **{name: f"t = {name}(a, b) r = Cast<to = 1>(t)" for name in COMPARED.split()},
    **{name: f"s = Less(a, b) t = {name}(s, s) r = Cast<to = 1>(t)" for name in ("And", "Or")},
    "Cast": "t = Cast<to = 11>(a) r = Cast<to = 1>(t)",
    "Clip": "low = Constant<value_float = 0.3>() r = Clip(a, low)",
    "Concat": "r = Concat<axis = -1>(a, b)",
    "Gemm": "r = Gemm<transB = 1>(a, w)",
    "MatMul": "r = MatMul(a, w)",
    "Not": "s = Less(a, b) t = Not(s) r = Cast<to = 1>(t)",
    "Pad": "p = Constant<value_ints = [0, 1, 2, 0]>() f = Constant<value_float = 0.3>() r = Pad(a, p, f)",
    "ReduceMean": "i = Constant<value_ints = [-1]>() r = ReduceMean(a, i)",
    "ReduceSum": "i = Constant<value_ints = [0]>() r = ReduceSum(a, i)",
    "Slice": "i = Constant<value_ints = [1]>() e = Constant<value_ints = [3]>() n = Constant<value_ints = [-1]>() "
    "r = Slice(a, i, e, n)",
    "Split": "t, r = Split<axis = 1, num_outputs = 2>(a)",
    "Transpose": "r = Transpose<perm = [1, 0]>(a)",
    "Where": "s = Less(a, b) r = Where(s, a, b)",
}


def scan(body, results, *, slices="float[2, 3] a, float[2, 3] b", read="x, z", settings=""):
    """Return a Scan whose state is the sum of the slices."""
    kinds = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in results.items())
    stacks = ", ".join(f"all_{name}" for name in results)
    return (
        f"last, {stacks} = Scan<num_scan_inputs = {read.count(',') + 1}{settings}, "
        f"body = step (float[2, 3] h, {slices}) => (float[2, 3] k, {kinds}) {{ k = Add(h, a) {body} }}>(start, {read})"
    )


def both(nodes, outputs):
    """Return the results of a model before and after its steps are batched, and the operators that its body keeps."""
    proto = onnx.parser.parse_model(MODEL.format(nodes=nodes, outputs=", ".join(f"float {o}" for o in outputs)))
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = infer_shapes(ir.from_proto(proto))
    batched_steps.batch_steps(model)
    batched = ir.to_proto(model)
    kept = [n.op_type for node in batched.graph.node for a in node.attribute for n in a.g.node]
    return evaluate(proto, **FEEDS), evaluate(batched, **FEEDS), kept


def require_equal(before, after):
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", batched_steps._OPERATORS)
def test_operators_on_slices_run_before_the_scan(name, backwards):
    settings = ", scan_input_directions = [1, 1], scan_output_directions = [1]" * backwards
    before, after, kept = both(scan(EXPRESSIONS[name], {"r": ["A", "B"]}, settings=settings), ["last", "all_r"])
    require_equal(before, after)
    assert kept == ["Add"]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", batched_steps._OPERATORS)
def test_operators_that_no_state_needs_run_after_the_scan(name, backwards):
    body = "c = Sigmoid(k) d = Sigmoid(h) " + EXPRESSIONS[name].replace("(a", "(c").replace(" b)", " d)")
    settings = ", scan_input_directions = [1, 1], scan_output_directions = [1]" * backwards
    before, after, kept = both(scan(body, {"r": ["A", "B"]}, settings=settings), ["last", "all_r"])
    require_equal(before, after)
    assert set(kept) <= {"Add", "Identity"}


@pytest.mark.parametrize(
    ("body", "shape", "kept"),
    [
        ("t = Tanh(k) r = Reshape(t, i)", [6], ["Add", "Tanh", "Reshape"]),
        ("t = Tanh(a) r = Add(t, c)", [2, 3], ["Add", "Add"]),
        ("t = Tanh(c) r = Mul(t, k)", [2, 3], ["Add", "Mul"]),
        ("t = Transpose<perm = [1, 0]>(a) u = Mul(w, c) r = MatMul(u, t)", [3, 2], ["Add", "Mul"]),
    ],
    ids=["reshape", "narrower slice", "narrower slice, state", "wider value from outside"],
)
def test_operators_without_a_form_for_stacks_stay(body, shape, kept):
    node = scan(body, {"r": shape}, slices="float[2, 3] a, float[3] c", read="x, v")
    before, after, found = both(f"i = Constant<value_ints = [-1]>() {node}", ["last", "all_r"])
    require_equal(before, after)
    assert found == kept


def test_scan_in_two_directions_stays():
    node = scan("t = Tanh(b) r = Mul(t, a)", {"r": [2, 3]}, settings=", scan_input_directions = [0, 1]")
    before, after, kept = both(node, ["last", "all_r"])
    require_equal(before, after)
    assert kept == ["Add", "Tanh", "Mul"]


def test_sums_over_the_steps_are_products_of_stacks():
    body = (
        "c = Tanh(k) p = Gemm<transA = 1>(c, h) q = Add(m, p) i = Constant<value_ints = [0]>() "
        "o = ReduceSum<keepdims = 0>(c, i) e = Add(o, n)"
    )
    node = (
        "row = Constant<value_floats = [1.0, 2.0, 3.0]>() "
        "last, product, sum, all_k = Scan<num_scan_inputs = 1, body = step (float[2, 3] h, float[3, 3] m, float[3] n, "
        "float[2, 3] a) => (float[2, 3] k, float[3, 3] q, float[3] e, float[2, 3] j) "
        f"{{ g = MatMul(h, w) f = Add(g, a) k = Tanh(f) j = Identity(k) {body} }}>(start, w, row, x)"
    )
    before, after, kept = both(node, ["last", "product", "sum", "all_k"])
    require_equal(before, after)
    assert kept == ["MatMul", "Add", "Tanh", "Identity", "Identity"]


def test_sum_that_steps_read_stays():
    node = (
        "last, sum = Scan<num_scan_inputs = 1, body = step (float[2, 3] h, float[3, 3] m, float[2, 3] a) => "
        "(float[2, 3] k, float[3, 3] q) { k = MatMul(h, m) p = Gemm<transA = 1>(a, h) q = Add(m, p) }>(start, w, x)"
    )
    before, after, kept = both(node, ["last", "sum"])
    require_equal(before, after)
    assert kept == ["MatMul", "Gemm", "Add"]


def test_gradients_of_a_recurrent_layer_hold_few_nodes_for_each_step():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[T, N, 3] x) => (float loss) <float[1, 8, 3] w, float[1, 8, 2] r, float[1, 16] b> {
            h, last = LSTM<hidden_size = 2>(x, w, r, b) s = Mul(h, h) loss = ReduceSum<keepdims = 0>(s) }""")
    for name, shape in {"w": (1, 8, 3), "r": (1, 8, 2), "b": (1, 16)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(RNG.normal(size=shape).astype("float32"), name))
    first = gradient_graph(model, ["x", "w", "r", "b"], engine="portable")
    second = hvp_graph(model, "x")
    for graph, most in ((first, 25), (second, 60)):
        bodies = [[n.op_type for n in a.g.node] for node in graph.graph.node for a in node.attribute if a.g.node]
        assert 0 < max(map(len, bodies)) <= most
        assert all(body.count("MatMul") + body.count("Gemm") <= 2 for body in bodies)
