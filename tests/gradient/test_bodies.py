"""Bodies of If, Loop and Scan that read axes, shapes and pads from the graph around them: gradients by differences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.environment import available_engines

CONSTANTS = """
    go = Constant<value = bool {1}>() three = Constant<value = int64 {3}>() two = Constant<value = int64 {2}>()
    axis = Constant<value_ints = [2]>() last = Constant<value_ints = [1]>() rows = Constant<value_ints = [-1, 4]>()
    pairs = Constant<value_ints = [-1, 2, 2]>() pads = Constant<value_ints = [0, 1, 0, 0]>()
    zero = Constant<value_ints = [0]>() five = Constant<value_ints = [5]>()
    width = Shape<start = 1, end = 2>(H) batch = Shape<start = 0, end = 1>(H) same = Concat<axis = 0>(batch, width)
    computed = Squeeze(width)
"""
LOOP = """r = Loop (%s, go, H) <body = b (int64 i, bool c, s) => (bool d, t) {
    %s t = Tanh(u) d = %s}>"""
STEPS = {
    "axes": "v = Unsqueeze(s, axis) u = Squeeze(v, axis)",
    "shape": "v = Reshape(s, pairs) w = Transpose<perm = [0, 2, 1]>(v) u = Reshape(w, rows)",
    "computed shape": "u = Reshape(s, same)",
    "pads": "v = Pad(s, pads) w = Slice(v, zero, five, last) x = Slice(w, last, five, last) u = Add(x, s)",
    "axes of a mean": "v = ReduceMean(s, last) u = Sub(s, v)",
    "shape of a state": "v = Shape(s) w = Reshape(s, pairs) u = Reshape(w, v)",
}
OTHERS = {
    "If": """k = ReduceSum<keepdims = 0>(H) h = CastLike(go, k) q = Greater(k, h)
        r = If (q) <then_branch = a () => (t) { v = ReduceMean(H, last) t = Sub(H, v) },
        else_branch = e () => (f) { w = Reshape(H, pairs) x = Transpose<perm = [0, 2, 1]>(w) f = Reshape(x, rows) }>""",
    "Scan": """p = Transpose<perm = [1, 0]>(X)
        r = Scan (H, p) <num_scan_inputs = 1, body = b (s, x) => (t)
        { v = Unsqueeze(x, last) w = Mul(s, v) m = ReduceMean(w, last) z = Sub(w, m) t = Tanh(z) }>""",
    "Loop in a Loop": """r = Loop (two, go, H) <body = b (int64 i, bool c, s) => (bool d, t) {
        t = Loop (two, c, s) <body = n (int64 j, bool e, p) => (bool f, q) {
        v = Unsqueeze(p, axis) u = Squeeze(v, axis) w = Mul(u, s) q = Tanh(w) f = Identity(e)}> d = Identity(c)}>""",
    "stacked": """e, o = Loop (computed, go, H) <body = b (int64 i, bool c, s) => (bool d, t, k) {
        v = ReduceMean(s, last) t = Sub(s, v) k = Tanh(s) d = Identity(c)}> r = ReduceSum<keepdims = 0>(o, zero)""",
}
BEHIND = """one = Constant<value = int64 {1}>()
    e, o = Loop (%s, go, H) <body = b (int64 i, bool c, s) => (bool d, t, k) {
    v = ReduceMean(s, last) t = Sub(s, v) k = Tanh(s) d = %s}>
    p = Transpose<perm = [1, 0, 2]>(o)
    q = Loop (two, go, p) <body = n (int64 j, bool f, real%s x) => (bool g, real%s h) {
    l = ReduceMean(x, last) m = Sub(x, l) h = Tanh(m) g = Identity(f)}> r = ReduceSum<keepdims = 0>(q, last)"""
STACKS = {
    "three, known length": ("three", "Identity(c)", ""),
    "three, declared length": ("three", "Identity(c)", "[N, 3, 4]"),
    "three, named length": ("three", "Identity(c)", "[N, K, 4]"),
    "computed length": ("computed", "Identity(c)", ""),
    "computed length, named": ("computed", "Identity(c)", "[N, K, 4]"),
    "early end": ("three", "Less(i, one)", ""),
    "early end, declared length": ("three", "Less(i, one)", "[N, 2, 4]"),
}
NETS = (
    OTHERS
    | {f"behind a stack, {name}": BEHIND % (*parts, parts[-1]) for name, parts in STACKS.items()}
    | {
        f"{name}, {rounds}": LOOP % (rounds, step, end)
        for name, step in STEPS.items()
        for rounds, end in [("three", "Identity(c)"), ("computed", "Less(i, two)")]
    }
)
RANDOM = np.random.default_rng(0)
W, V, X = (RANDOM.normal(size=size) * 0.5 for size in [(6, 4), (4, 1), (5, 6)])


def network(nodes, kind="float", batch="N", end="Z = Mul(Y, Y) y = ReduceSum<keepdims = 0>(Z)"):
    output = "float[N, 1] Y" if not end else f"{kind} y"
    nodes = nodes.replace("real", kind if "real[" in nodes else "")
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        net ({kind}[{batch}, 6] X, {kind}[6, 4] W, {kind}[4, 1] V) => ({output})
        {{ H = MatMul(X, W) {CONSTANTS} {nodes} Y = MatMul(r, V) {end} }}"""
    )


def value_of(session, *arrays):
    return float(session.run(["y"], dict(zip("XWVT", arrays, strict=False)))[0])


def by_differences(proto, *targets):
    """Return the gradient for W, by central differences of the file as onnxruntime runs it in double precision."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found, step = np.zeros_like(W), 1e-5
    for index in np.ndindex(W.shape):
        moved = np.zeros_like(W)
        moved[index] = step
        found[index] = (value_of(session, X, W + moved, V, *targets) - value_of(session, X, W - moved, V, *targets)) / (
            2 * step
        )
    return found


@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for engine in available_engines() for name in NETS if engine == "portable" or "three" in name],
)
def test_the_gradient_through_a_body_is_that_of_the_file(engine, name):
    found = gradient_graph(network(NETS[name]), wrt="W", engine=engine)
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {key: array.astype(np.float32) for key, array in zip("XWV", (X, W, V), strict=True)}
    gradient = session.run(["W_grad"], feeds)[0]
    assert_allclose(gradient, by_differences(network(NETS[name], "double")), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inner", ["?", "N"])
def test_the_gradient_of_a_loop_over_rows_of_unnamed_number(inner):
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        net (float[?, 3] X, float[3, 3] W) => (float y)
        {{ n = Constant<value_int = 3>() c = Constant<value = bool {{1}}>()
        h = Loop (n, c, X) <body = b (int64 i, bool k, float[{inner}, 3] s) => (bool l, float[{inner}, 3] t) {{
        l = Identity(k) z = MatMul(s, W) t = Tanh(z) }}> y = ReduceMean<keepdims = 0>(h) }}""")
    rows, matrix, step = RANDOM.normal(size=(4, 3)), RANDOM.normal(size=(3, 3)), 1e-6

    def mean(weights):
        return np.tanh(np.tanh(np.tanh(rows @ weights) @ weights) @ weights).mean()

    moves = step * np.eye(9).reshape(9, 3, 3)
    expected = [(mean(matrix + move) - mean(matrix - move)) / (2 * step) for move in moves]
    found = gradient_graph(net, wrt="W")
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"X": rows.astype(np.float32), "W": matrix.astype(np.float32)}
    assert_allclose(session.run(["W_grad"], feeds)[0].ravel(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Training has not converged")
@pytest.mark.parametrize("batch", ["N", "?", "1"])
def test_loop_trains_with_any_declared_rows(batch):
    proto = network(NETS["shape, computed"], batch=batch, end="")
    for name, array in [("W", W), ("V", V)]:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    del proto.graph.input[1:]
    y = X[:, 0]
    model = OrtGradientRegressor(
        proto, optimizer="sgd", learning_rate_init=0.1, max_iter=1, batch_size=5, target_scaling=None
    ).fit(X, y)
    squares = "y0 = Squeeze(Y) e = Sub(y0, T) y = ReduceSumSquare<keepdims = 0>(e)"
    given = network(NETS["shape, computed"], "double", end=squares)
    given.graph.input.append(onnx.helper.make_tensor_value_info("T", onnx.TensorProto.DOUBLE, ["N"]))
    assert_allclose(model.weights_["W"], W - 0.1 * by_differences(given, y) / len(y), rtol=1e-3, atol=1e-5)


def test_a_state_that_grows_is_refused():
    body = """e = Loop (three, go, H) <body = b (int64 i, bool c, s) => (bool d, t) {
        t = Pad(s, pads) d = Identity(c)}> w = ReduceSum(e, last) r = Mul(w, H)"""
    with pytest.raises(UnsupportedOperatorError, match="state 's' is not known to keep its size"):
        gradient_graph(network(body), wrt="W", engine="portable")


LEFT_OUT = {
    "Loop": """n = Constant<value_int = 2>() t = Constant<value = bool {1}>()
        u, s = Loop(n, t, X) <body = b (int64 i, bool c, float[N,2] a) => (bool d, float[N,2] e, float[N,2] f) {
        g = MatMul(a, W) e = Tanh(g) d = Identity(c) f = Identity(e) }>
        last = Constant<value_int = 1>() r = Gather<axis = 0>(s, last)""",
    "Scan": """z = Constant<value_ints = [0, 0]>() p = Unsqueeze(X, first) q = Concat<axis = 0>(p, p)
        u, s = Scan(X, q) <num_scan_inputs = 1, body = b (float[N,2] a, float[N,2] x) => (float[N,2] e, float[N,2] f) {
        g = MatMul(a, W) e = Tanh(g) f = Identity(e) }>
        last = Constant<value_int = 1>() r = Gather<axis = 0>(s, last)""",
    "If": """c = Constant<value = bool {1}>()
        u, r = If(c) <then_branch = b () => (e, f) { g = MatMul(X, W) e = Tanh(g) h = MatMul(e, W) f = Tanh(h) },
        else_branch = o () => (k, l) { k = Neg(X) l = Neg(X) }>""",
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_omitted_result_is_not_written(kind):
    """A result without a name crashed onnxruntime's Loop, and was refused of Scan and If."""
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> net (float[N,2] X) => (float[N,1] Y)
        <float[2,2] W = {{1, -2, 3, 1}}, float[2,1] V = {{1, 2}}, int64[1] first = {{0}}>
        {{ {LEFT_OUT[kind]} Y = MatMul(r, V) }}""")
    node = next(node for node in net.graph.node if node.op_type == kind)
    node.output[0] = ""
    given = net.SerializeToString()
    rows = np.array([[0.1, 0.2], [-0.3, 0.1], [0.2, 0.4]])
    matrix = np.array([[1, -2], [3, 1]])
    expected = np.tanh(np.tanh(rows @ matrix) @ matrix) @ [1, 2]
    estimator = OrtGradientRegressor(net, max_iter=1, learning_rate_init=0.0).fit(rows, np.zeros(3))
    assert_allclose(estimator.predict(rows), expected, rtol=1e-5)
    assert_allclose(estimator.loss_curve_[0], np.mean(expected**2), rtol=1e-5)
    assert net.SerializeToString() == given


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_state_that_is_a_sequence_is_no_tensor():
    """As PyTorch writes EmbeddingBag: rows are collected in a sequence, one in each iteration."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => (float[N, 1] Y)
        <int64 two = {2}, bool yes = {1}, float[4, 1] W = {0.1, -0.2, 0.3, 0.4}, float[N, 4] H> {
            none = SequenceEmpty()
            rows = Loop (two, yes, none) <body = step (int64 i, bool c, s) => (bool d, t) {
                d = Identity(c)
                f = Cast<to = 1>(i)
                x = Add(X, f)
                t = SequenceInsert(s, x) }>
            H = ConcatFromSequence<axis = 1>(rows)
            Y = MatMul(H, W) }"""
    )
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)).astype(np.float32), rng.normal(size=20)
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 20, "max_iter": 1, "shuffle": False}
    fitted = OrtGradientRegressor(model, **settings).fit(X, y)
    H, w = np.hstack([X, X + 1]).astype(np.float64), np.array([0.1, -0.2, 0.3, 0.4])
    assert_allclose(fitted.weights_["W"][:, 0], w - 0.1 * 2 / 20 * H.T @ (H @ w - y), rtol=1e-5)
