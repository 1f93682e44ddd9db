"""Shapes that a graph computes itself: what is folded is what onnxruntime computes, and what varies is not folded."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._ir.control_flow import complete_shapes, fold
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NUMBER = "n = Constant<value_ints = [2]>() m = Constant<value_ints = [-7, 5]>() o = Constant<value_ints = [0]>()"
INTEGERS = {
    "Shape": "y = Shape(X)",
    "Shape of a part": "y = Shape<start = -2, end = 3>(X)",
    "Size": "y = Size(X)",
    "Gather": "s = Shape(X) y = Gather(s, m1)",
    "Slice": "s = Shape(X) y = Slice(s, o, n)",
    "Slice backwards": "e = Constant<value_ints = [-9]>() k = Constant<value_ints = [-1]>() s = Shape(X) "
    "y = Slice(s, n, e, o, k)",
    "Concat": "s = Shape(X) y = Concat<axis = 0>(s, n, s)",
    "Unsqueeze": "s = Shape(X) y = Unsqueeze(s, o)",
    "Squeeze": "s = Shape(X) t = Unsqueeze(s, o) y = Squeeze(t, o)",
    "Reshape": "s = Shape(X) k = Constant<value_ints = [0, 1, -1]>() y = Reshape(s, k)",
    "Add": "s = Shape(X) y = Add(s, n)",
    "Sub": "s = Shape(X) y = Sub(n, s)",
    "Mul": "s = Shape(X) y = Mul(s, n)",
    "Div": "s = Shape<start = 1>(X) a = Neg(s) y = Div(a, n)",
    "Div by a negative": "s = Shape<end = 2>(X) y = Div(s, m)",
    "Mod": "s = Shape<end = 2>(X) y = Mod(m, s)",
    "Mod towards zero": "s = Shape<end = 2>(X) y = Mod<fmod = 1>(m, s)",
    "Min and Max": "s = Shape(X) a = Min(s, n) b = Max(s, n, a) y = Concat<axis = 0>(a, b)",
    "Where": "s = Shape(X) c = Greater(s, n) y = Where(c, s, n)",
    "Logic": "s = Shape(X) c = GreaterOrEqual(s, n) d = LessOrEqual(s, n) e = And(c, d) f = Or(c, d) g = Not(f) "
    "h = Equal(s, n) i = Less(s, n) j = Concat<axis = 0>(e, f, g, h, i) y = Cast<to = 7>(j)",
    "ConstantOfShape": "s = Shape(X) y = ConstantOfShape<value = int64[1] {4}>(s)",
    "Expand": "s = Shape(X) y = Expand(n, s)",
    "Range": "s = Shape(X) k = Size(s) a = Squeeze(o) b = Squeeze(n) y = Range(a, k, b)",
    "ReduceProd": "s = Shape(X) y = ReduceProd<keepdims = 0>(s)",
    "Cast": "s = Shape(X) a = Cast<to = 6>(s) b = Cast<to = 9>(a) y = Cast<to = 7>(b)",
    "Abs": "s = Shape(X) a = Neg(s) y = Abs(a)",
    "Identity": "s = Shape(X) y = Identity(s)",
    "Transpose": "k = Constant<value = int64[2, 2] {1, 2, 3, 4}>() s = Shape(X) t = Transpose(k) "
    "r = Constant<value_ints = [-1]>() u = Reshape(t, r) y = Concat<axis = 0>(u, s)",
    "CastLike": "s = Shape(X) a = CastLike(s, X) y = CastLike(a, n)",
    "Floats": "s = Shape(X) f = Cast<to = 1>(s) h = Constant<value_float = 0.3>() q = Div(f, h) c = Ceil(q) "
    "d = Sqrt(c) a = Mul(d, h) e = Sub(a, q) b = Floor(e) i = Concat<axis = 0>(c, b) y = Cast<to = 7>(i)",
    "Doubles": "s = Shape(X) f = Cast<to = 11>(s) h = Constant<value = double {-0.7}>() q = Div(f, h) "
    "y = Cast<to = 7>(q)",
    "Comparison of floats": "s = Shape(X) f = CastLike(s, X) h = Constant<value_float = 3.0>() c = Less(f, h) "
    "y = Where(c, s, o)",
    "Constants alone": "y = Mod(m, n)",
}


def folded_model(body, inputs="float[2, 3, 4] X", outputs="int64[?] y", opset=18, weights=""):
    known = f"{NUMBER} m1 = Constant<value_ints = [-1, 0]>()"
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> net ({inputs}) => ({outputs}) <{weights}> {{ {known} {body} }}'
    )


def run_folded(proto, **feeds):
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def folded(proto):
    return fold(ir.from_proto(proto))


@pytest.mark.parametrize("name", INTEGERS)
def test_folded_constants_equal_results_of_onnxruntime(name):
    """The last node reads the constant; the type of the output is left to inference."""
    proto = folded_model(INTEGERS[name].replace("y = ", "v = ") + " y = Identity(v)")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    result = folded(proto)
    last = result.graph.outputs[0].producer()
    constant = ir.convenience.get_const_tensor(last.inputs[0])
    assert constant is not None
    X = np.zeros((2, 3, 4), np.float32)
    (expected,) = run_folded(proto, X=X)
    assert_array_equal(constant.numpy(), expected)
    assert not [node.op_type for node in result.graph if node.op_type not in ("Constant", "Identity")]


LONG = {
    "ConstantOfShape": "v = ConstantOfShape<value = int64[1] {4}>(big) y = Identity(v)",
    "Expand": "v = Expand(n, big) y = Identity(v)",
    "Range": "a = Squeeze(o) b = Squeeze(big) c = Squeeze(n) v = Range(a, b, c) y = Identity(v)",
    "products without end": "v0 = Mul(big, big) v1 = Mul(v0, v0) v2 = Mul(v1, v1) v3 = Mul(v2, v2) y = Identity(v3)",
    "broadcast": "k = Constant<value_ints = [3000]>() c = ConstantOfShape<value = int64[1] {4}>(k) "
    "one = Constant<value_ints = [1]>() t = Unsqueeze(c, one) v = Add(c, t) y = Identity(v)",
}


@pytest.mark.parametrize("name", LONG)
def test_long_and_overflowing_constants_are_not_folded(name):
    """It would cost memory without end here, or not be what a runtime computes."""
    proto = folded_model(f"big = Constant<value_ints = [1000000000000]>() s = Shape(X) {LONG[name]}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    last = folded(proto).graph.outputs[0].producer()
    assert ir.convenience.get_const_tensor(last.inputs[0]) is None


def test_sizes_that_vary_stay_computed():
    body = "s = Shape(X) a = Slice(s, o, n) k = Constant<value_ints = [12]>() t = Concat<axis = 0>(a, k) y = Mul(t, n)"
    result = folded(folded_model(body, "float[N, 3, 4] X"))
    assert "Shape" in [node.op_type for node in result.graph]
    proto = ir.to_proto(result)
    for rows in (1, 5):
        assert_array_equal(run_folded(proto, X=np.zeros((rows, 3, 4), np.float32))[0], [2 * rows, 6, 24])


def test_an_initializer_that_is_an_input_is_no_constant():
    """It can be fed."""
    text = folded_model("y = Add(k, n)", "float[2] X, int64[1] k", weights="int64[1] k = {3}")
    result = folded(text)
    assert_array_equal(run_folded(ir.to_proto(result), X=np.zeros(2, np.float32), k=np.array([9]))[0], [11])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a = Slice(s, o, one) t = Concat<axis = 0>(a, k)", ["N", 6, 2]),
        ("a = Slice(s, o, one) r = Constant<value_ints = [-1]>() t = Concat<axis = 0>(a, r)", ["N", 12]),
        ("t = Concat<axis = 0>(o, k)", ["N", 6, 2]),
        ("r = Constant<value_ints = [-1, 4]>() t = Identity(r)", [None, 4]),
    ],
)
def test_names_of_sizes_are_followed(target, expected):
    """At opset 13 ONNX's own inference does not look into these chains."""
    head = "one = Constant<value_ints = [1]>() k = Constant<value_ints = [6, 2]>() s = Shape(X)"
    proto = folded_model(f"{head} {target} y = Reshape(X, t)", "float[N, 3, 4] X", "float[] y", 13)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    result = complete_shapes(ir.from_proto(proto))
    shape = [d if isinstance(d, int) else d.value for d in result.graph.outputs[0].shape]
    known = [None if isinstance(d, str) and d.startswith("unk__") else d for d in shape]
    assert known == expected


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("opset", [11, 13, 14, 15, 16, 18])
def test_embeddings_train_at_every_opset(engine, opset):
    """Rows of the table are picked more than once; the gradients of one of them add up."""
    axes = "p = ReduceMean<axes = [1], keepdims = 0>(e)"
    if opset >= 18:
        axes = "k = Constant<value_ints = [1]>() p = ReduceMean<keepdims = 0>(e, k)"
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        net (int64[N, 3] X) => (float[N, 1] y) {{ e = Gather(table, X) {axes} y = MatMul(p, W) }}""")
    rng = np.random.default_rng(0)
    weights = {"table": rng.normal(size=(5, 4)).astype(np.float32), "W": rng.normal(size=(4, 1)).astype(np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    X, y = np.array([[0, 0, 1], [4, 1, 1], [2, 2, 2], [0, 4, 4]]), np.array([1.0, -1.0, 0.5, 2.0])
    regressor = OrtGradientRegressor(
        proto, optimizer=SGD(momentum=0.0), learning_rate_init=0.1, batch_size=4, max_iter=1, engine=engine
    ).fit(X, y)
    error = weights["table"][X].mean(axis=1) @ weights["W"][:, 0] - y
    slope = np.zeros_like(weights["table"])
    for row, e in zip(X, error, strict=True):
        np.add.at(slope, row, 2 * e / 4 * weights["W"][:, 0] / 3)
    assert_allclose(regressor.weights_["table"], weights["table"] - 0.1 * slope, rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(regressor.to_onnx(), full_check=True)
    assert next(o.version for o in regressor.to_onnx().opset_import if not o.domain) == opset


ADDING_UP = {
    "GatherElements": "g = GatherElements<axis = 0>(X, I)",
    "GatherND": "J = Unsqueeze(I, two) g = GatherND(X, J)",
    "MaxPool": "v = Unsqueeze(X, front) g = MaxPool<kernel_shape = [2], strides = [1]>(v)",
}


@pytest.mark.parametrize("operator", ADDING_UP)
def test_folded_sums_are_differentiated_at_old_opsets(operator):
    more = "two = Constant<value_ints = [2]>() front = Constant<value_ints = [0]>()"
    more += " I = Constant<value = int64[1, 2] {1, 1}>()"
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13]>
        net (float[3, 2] X) => (float y)
        {{ {more} {ADDING_UP[operator]} z = Mul(g, g) y = ReduceSum<keepdims = 0>(z) }}""")
    graph = gradient_graph(proto, wrt="X", engine="portable")
    X = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
    wanted = np.zeros_like(X)
    for place in np.ndindex(*X.shape):
        step = np.zeros_like(X)
        step[place] = 1e-2
        wanted[place] = (run_folded(proto, X=X + step)[0] - run_folded(proto, X=X - step)[0]) / 2e-2
    assert_allclose(run_folded(graph, X=X)[1], wanted, rtol=1e-3, atol=1e-3)


WINDOWS = (
    "s = Shape<start = 2>(X) f = Cast<to = 1>(s) two = Constant<value_float = 2.0>() h = Div(f, two) c = Ceil(h) "
    "i = Cast<to = 7>(c) q = Mul(i, n) b = Constant<value_ints = [-1, 1]>() t = Concat<axis = 0>(b, q) "
    'r = Reshape(X, t) v = Conv<kernel_shape = [3, 3], auto_pad = "SAME_UPPER">(r, K) y = ReduceSum<keepdims = 0>(v)'
)


@pytest.mark.parametrize("engine", available_engines())
def test_gradient_behind_sizes_that_floats_give(engine):
    """Exporters halve sizes in floats, round them up and double them again."""
    kernel = np.random.default_rng(0).normal(size=(2, 1, 3, 3)).astype(np.float32)
    proto = folded_model(WINDOWS, inputs="float[2, 1, 4, 6] X", outputs="float y", weights="float[2, 1, 3, 3] K")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "K"))
    del proto.graph.value_info[:]
    found = gradient_graph(proto, wrt="K", engine=engine)
    X = np.random.default_rng(1).normal(size=(2, 1, 4, 6)).astype(np.float32)
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = [[padded[:, 0, i : i + 4, j : j + 6].sum() for j in range(3)] for i in range(3)]
    assert_allclose(run_folded(found, X=X)[1], np.broadcast_to(expected, (2, 1, 3, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", available_engines())
def test_gradient_of_cast_like(engine):
    """The type is known, so it is a Cast."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[3] X, float16[1] H) => (float y)
        { a = Mul(X, X) b = CastLike(a, H) c = CastLike(b, X) d = CastLike(a, X) e = Mul(c, d)
          y = ReduceSum<keepdims = 0>(e) }"""
    )
    if engine == "ort-training":
        proto.graph.node[1].input[1] = "X"
    X = np.array([1, -2, 3], np.float32)
    found = gradient_graph(proto, wrt="X", engine=engine)
    assert_allclose(run_folded(found, X=X, H=np.ones(1, np.float16))[1], 4 * X**3, rtol=1e-5)


def test_floats_that_may_be_trained_are_not_folded():
    proto = folded_model("a = Cast<to = 7>(W) s = Shape(X) v = Add(a, s) y = Identity(v)", weights="float[1] W = {2.0}")
    assert [n.op_type for n in folded(proto).graph if n.op_type == "Cast"] == ["Cast"]
