"""The portable engine on whole networks: PyTorch's gradients, the other engine's weights, and lean graphs."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn import MLP, OrtGradientClassifier, gradient_graph, hvp_graph
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines
from tests.helpers.sessions import evaluate
from tests.helpers.sessions import session as session_of

HEAD = '<ir_version: 8, opset_import: ["": 18]>'
BOTH = pytest.mark.skipif(len(available_engines()) < 2, reason="needs onnxruntime-training")


def network_with_loss(network: str, *, rows: int | None) -> onnx.ModelProto:
    """Return the network with the loss that PyTorch took, as its first output."""
    model = onnx.load(DATA / f"{network}.onnx")
    graph, (scores,) = model.graph, model.graph.output
    floats = network == "two_tower"
    shape = ["N", 1] if floats else ["N"]
    kind = onnx.TensorProto.FLOAT if floats else onnx.TensorProto.INT64
    graph.input.append(onnx.helper.make_tensor_value_info("y", kind, shape))
    if floats:
        graph.node.append(onnx.helper.make_node("Sub", [scores.name, "y"], ["residual"]))
        graph.node.append(onnx.helper.make_node("Mul", ["residual", "residual"], ["squares"]))
        graph.node.append(onnx.helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0))
    else:
        graph.node.append(onnx.helper.make_node("SoftmaxCrossEntropyLoss", [scores.name, "y"], ["loss"]))
    graph.output.insert(0, onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    for value in graph.input:
        if rows is not None:
            value.type.tensor_type.shape.dim[0].dim_value = rows
    return model


@pytest.mark.parametrize("batch", ["static", "dynamic"])
@pytest.mark.parametrize("network", ["mlp", "lenet", "attention", "two_tower", "residual_bn"])
def test_gradients_are_those_of_pytorch(network, batch):
    with np.load(DATA / f"{network}.npz") as archive:
        arrays = dict(archive)
    wanted = {name.removeprefix("grad/"): array for name, array in arrays.items() if name.startswith("grad/")}
    model = network_with_loss(network, rows=arrays["y"].shape[1] if batch == "static" else None)
    graph = gradient_graph(model, wrt=list(wanted), engine="portable")
    session = session_of(graph)
    feeds = {v.name: arrays[v.name][0] for v in session.get_inputs()}
    gradients = session.run([f"{name}_grad" for name in wanted], feeds)
    for (name, array), gradient in zip(wanted.items(), gradients, strict=True):
        assert_allclose(gradient, array, rtol=1e-3, atol=2e-6 + 2e-5 * np.abs(array).max(), err_msg=name)


@BOTH
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_engines_train_to_the_same_weights(activation, optimizer):
    X, y = make_classification(320, 20, n_informative=8, n_classes=3, random_state=0)
    weights = []
    for engine in available_engines():
        network = MLP((32, 16), activation=activation)
        classifier = OrtGradientClassifier(
            network, optimizer=optimizer, batch_size=32, max_iter=5, random_state=0, engine=engine, alpha=0.01
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(X.astype(np.float32), y)
        assert classifier.engine_ == engine
        weights.append(classifier.weights_)
    for name, array in weights[0].items():
        assert_allclose(weights[1][name], array, rtol=0, atol=1e-5, err_msg=name)


def nodes(model: onnx.ModelProto, engine: str) -> int:
    return len(gradient_graph(model, wrt=[one.name for one in model.graph.initializer], engine=engine).graph.node)


def mlp_with_loss() -> onnx.ModelProto:
    model = MLP((32, 16)).build(20, 10, random_state=0)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 32
    model.graph.input.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [32]))
    model.graph.node.append(onnx.helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "y"], ["loss", "log_prob"]))
    model.graph.output.insert(0, onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return model


def test_graph_of_an_mlp_is_lean():
    # Three layers forward, the loss, its gradient from plain operators; then two Gemm, a sum and a mask for each layer.
    assert nodes(mlp_with_loss(), "portable") <= 40


@BOTH
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_graphs_are_not_much_larger_than_those_of_the_other_engine(network):
    model = mlp_with_loss() if network == "mlp" else network_with_loss("lenet", rows=8)
    ratio = nodes(model, "portable") / nodes(model, "ort-training")
    assert ratio <= 1.3, f"{ratio:.2f} of {len(model.graph.node)} nodes forward"


@BOTH
def test_auto_takes_the_portable_engine_where_the_other_one_refuses():
    for operator, engine in (("Tanh", "ort-training"), ("Mish", "portable")):
        text = f"{HEAD} g (float[3] x) => (float y) {{ z = {operator}(x) y = ReduceSum<keepdims = 0>(z) }}"
        model = onnx.parser.parse_model(text)
        assert gradient_graph(model, wrt="x") == gradient_graph(model, wrt="x", engine=engine)
    model = onnx.parser.parse_model(text.replace("Mish", "Tanh"))
    assert gradient_graph(model, wrt="x") != gradient_graph(model, wrt="x", engine="portable")


def test_names_with_one_gradient_stay_apart():
    text = f"{HEAD} g (float[3] a, float[3] b, float[3] c, float[3] d, float[3] e) => (float y) "
    text += "{ f = Sum(a, b, c) r = Round(d) s = Sign(e) t = Sum(f, r, s) y = ReduceSum<keepdims = 0>(t) }"
    names = ["a", "b", "c", "d", "e"]
    graph = gradient_graph(onnx.parser.parse_model(text), wrt=names, engine="portable")
    session = session_of(graph)
    slopes = session.run([f"{name}_grad" for name in names], dict.fromkeys(names, np.ones(3, np.float32)))
    assert_allclose(slopes, np.repeat([1.0, 0.0], [3, 2])[:, None] * np.ones(3))


def test_a_value_used_twice_sums_its_gradients_and_names_stay_apart():
    text = f"{HEAD} g (float[3] x, float[3] z) => (float y) {{ a = Add(x, z) y = ReduceSum<keepdims = 0>(a) }}"
    graph = gradient_graph(onnx.parser.parse_model(text), wrt=["x", "z"], engine="portable")
    session = session_of(graph)
    ones = np.ones(3, np.float32)
    _, x, z = session.run(None, {"x": ones, "z": ones})
    assert_allclose([x, z], 1.0)


def test_consecutive_reshapes_are_merged():
    """A pair, of which the second has fixed sizes, does not load on onnxruntime 1.21."""
    text = f"{HEAD} g (float[3] x, int64[2] s, float[2, 3] z) => (float loss)"
    model = onnx.parser.parse_model(f"{text} {{ r = Reshape(x, s) y = Sub(r, z) loss = ReduceSum<keepdims = 0>(y) }}")
    graph = gradient_graph(model, wrt="x", engine="portable")
    made = {output: node.op_type for node in graph.graph.node for output in node.output}
    pairs = [n for n in graph.graph.node if n.op_type == "Reshape" and made.get(n.input[0]) == "Reshape"]
    assert not pairs
    feeds = {"x": np.zeros(3, np.float32), "s": np.array([1, 3]), "z": np.zeros((2, 3), np.float32)}
    session = session_of(graph)
    (gradient,) = session.run(["x_grad"], {i.name: feeds[i.name] for i in session.get_inputs()})
    assert_allclose(gradient, 2.0)


def test_gradients_of_gradients():
    text = f"{HEAD} g (float[2, 3] x) => (float y) {{ a = Mul(x, x) b = Mul(a, x) y = ReduceSum<keepdims = 0>(b) }}"
    first = gradient_graph(onnx.parser.parse_model(text), wrt="x", engine="portable")
    first.graph.node.append(onnx.helper.make_node("ReduceSum", ["x_grad"], ["total"], keepdims=0))
    del first.graph.output[:]
    first.graph.output.append(onnx.helper.make_tensor_value_info("total", onnx.TensorProto.FLOAT, []))
    first.graph.node[-2].output[0] = first.graph.node[-1].input[0] = "slope"
    second = gradient_graph(first, wrt="x", engine="portable")
    session = session_of(second)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    total, slope = session.run(None, {"x": x})
    assert_allclose(total, (3 * x**2).sum())
    assert_allclose(slope, 6 * x)


def test_unread_outputs_are_kept():
    model = mlp_with_loss()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "unread"))
    graph = gradient_graph(model, wrt="layers.0.weight", engine="portable").graph
    assert "unread" in {i.name for i in graph.initializer}
    assert [o.name for o in graph.output] == ["loss", "scores", "layers.0.weight_grad"]


@pytest.mark.parametrize("engine", available_engines())
def test_the_gradient_of_dropout_passes_where_nothing_was_dropped(engine):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]> g (float[50, 20] x, float[50, 20] w) => (float loss, float[50, 20] d) {
            r = Constant<value_float = 0.4>() t = Constant<value = bool {1}>()
            d = Dropout(x, r, t) p = Mul(d, w) loss = ReduceSum<keepdims = 0>(p) }""")
    rng = np.random.default_rng(0)
    x, w = rng.uniform(1, 2, size=(2, 50, 20)).astype(np.float32)
    graph = gradient_graph(model, wrt="x", engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    dropped, gradient = session.run(["d", "x_grad"], {"x": x, "w": w})
    assert 0.3 < np.mean(dropped == 0) < 0.5
    np.testing.assert_allclose(gradient, np.where(dropped == 0, 0, w / 0.6), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_relu_passes_gradients_of_tiny_outputs(dtype):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({dtype}[7] x, {dtype}[7] w) => ({dtype} loss) {{
        y = Relu(x) z = Mul(y, w) loss = ReduceSum<keepdims = 0>(z) }}"""
    graph = gradient_graph(onnx.parser.parse_model(text), wrt=["x"], engine="portable")
    session = session_of(graph)
    kind = {"float": np.float32, "double": np.float64}[dtype]
    tiny = np.finfo(kind).smallest_subnormal
    x, w = np.array([-2, -tiny, -0.0, 0, tiny, 1e-39, 3], kind), np.arange(1, 8, dtype=kind)
    np.testing.assert_array_equal(session.run(["x_grad"], {"x": x, "w": w})[0], [0, 0, 0, 0, 5, 6, 7])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("opset", [13, 17, 18])
def test_normalization_by_a_norm_in_float64(opset, p):
    """Opsets below 18 have a kernel of the operator in float64, but on some versions none of the norm alone."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g (double[3] x, double[3] w) => (double loss) {{
        y = LpNormalization<axis = 0, p = {p}>(x) z = Mul(y, w) loss = ReduceSum<keepdims = 0>(z)
    }}"""
    graph = gradient_graph(onnx.parser.parse_model(text), wrt=["x"], engine="portable")
    session = session_of(graph)
    x, w = np.array([0.5, -2.0, 1.5]), np.array([1.0, 3.0, -2.0])
    norm = np.linalg.norm(x, p)
    of_norm = np.sign(x) if p == 1 else x / norm
    (gradient,) = session.run(["x_grad"], {"x": x, "w": w})
    assert_allclose(gradient, w / norm - of_norm * (w @ x) / norm**2, rtol=1e-12)


@pytest.mark.parametrize(("index", "operator"), [("{1}", "Pad"), ("{1, 2}", "Pad"), ("{2, 0}", "ScatterElements")])
def test_gather_of_consecutive_constant_indices_is_padded(index, operator):
    count = index.count(",") + 1
    graph = gradient_graph(
        onnx.parser.parse_model(f"""{HEAD} g (float[3,4] x) => (float loss) <int64[{count}] i = {index}>
            {{ part = Gather(x, i) q = Mul(part, part) loss = ReduceSum <keepdims = 0> (q) }}"""),
        wrt="x",
        engine="portable",
    )
    assert [node.op_type for node in graph.graph.node if node.op_type in ("Pad", "ScatterElements")] == [operator]


def test_a_sum_of_gradients_broadcasts_one_operand_at_most():
    """Of three operands, onnxruntime's kernel for CUDA adds two that are broadcast along different axes wrongly."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2, 3, 4] x) => (float y) {
            rows = Constant <value_ints = [1]> () columns = Constant <value_ints = [2]> ()
            a = ReduceMean(x, rows) b = ReduceMean(x, columns) c = Exp(x)
            p = Mul(a, a) q = Mul(b, b) s = ReduceSum <keepdims = 0> (p) t = ReduceSum <keepdims = 0> (q)
            u = ReduceSum <keepdims = 0> (c) v = Add(s, t) y = Add(u, v) }"""
    )
    gradient = onnx.shape_inference.infer_shapes(gradient_graph(model, wrt="x", engine="portable"))
    known = {v.name: v for v in (*gradient.graph.value_info, *gradient.graph.output, *gradient.graph.input)}
    shapes = {name: [d.dim_value for d in v.type.tensor_type.shape.dim] for name, v in known.items()}
    sums = [node for node in gradient.graph.node if node.op_type == "Sum"]
    assert [len(node.input) for node in sums] == [3]
    assert sum(shapes[name] != [2, 3, 4] for name in sums[0].input) == 1
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    expected = 2 * x.mean(1, keepdims=True) / 3 + 2 * x.mean(2, keepdims=True) / 4 + np.exp(x)
    assert_allclose(evaluate(gradient, x=x)[1], expected, rtol=0, atol=1e-6)


TIES = {
    "Unique": ("float[3]", "y = Unique(x)", [2, 1, 1, 3, 3, 3], [10, 1 / 2, 1 / 2, 100 / 3, 100 / 3, 100 / 3]),
    "Max": ("float[3]", "y = Max(x, x)", [1, 2, 3], [1, 10, 100]),
    "ReduceMax": ("float[1]", "y = ReduceMax(x)", [1, 3, 3], [0, 1 / 2, 1 / 2]),
    "ReduceMin": ("float[1]", "y = ReduceMin(x)", [1, 1, 3, 1], [1 / 3, 1 / 3, 0, 1 / 3]),
    "DynamicQuantizeLinear": (  # the scale is (max(x, 0) - min(x, 0)) / 255
        "float", "q, y, z = DynamicQuantizeLinear(x)", [-2, -2, 4, 1, 4, 4],
        [-1 / 510, -1 / 510, 1 / 765, 0, 1 / 765, 1 / 765],
    ),
}  # fmt: skip
"""For each operator the type of the output, the node, x, and the gradient of x where the output has the cotangents 1,
10 and 100: an element that equals others gets its part of the slope along which they move together."""


@pytest.mark.each(by=lambda operator: operator)
@pytest.mark.parametrize("operator", TIES)
def test_equal_elements_share_the_gradient(operator):
    kind, node, x, expected = TIES[operator]
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        ties (float[{len(x)}] x, {kind} w) => (float loss) {{
            {node} weighted = Mul(y, w) loss = ReduceSum <keepdims = 0> (weighted)
        }}""")
    weights = np.array([1, 10, 100], np.float32)[: 3 if "3" in kind else 1].reshape(() if kind == "float" else -1)
    graph = gradient_graph(model, wrt="x", of="loss", engine="portable")
    (found,) = session_of(graph).run(["x_grad"], {"x": np.array(x, np.float32), "w": weights})
    assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


DEPTHWISE = """{head}
    g (float[N, 4, 9, 8] x, float[4, 1, 5, 5] {given}) => (float loss) <float[4, 1, 5, 5] {held} = {{{kernel}}}> {{
        y = Conv<group = 4, pads = [2, 1, 2, 3]>(x, w) z = Mul(y, y) u = Mul(z, y) loss = ReduceSum<keepdims = 0>(u)
    }}"""


def test_gradient_by_a_constant_depthwise_kernel_is_a_convolution():
    rng = np.random.default_rng(0)
    kernel, x, v = (rng.normal(size=shape).astype("float32") for shape in ((4, 1, 5, 5), (2, 4, 9, 8), (2, 4, 9, 8)))
    numbers = ", ".join(map(str, kernel.ravel()))
    constant, given = (
        onnx.parser.parse_model(DEPTHWISE.format(head=HEAD, given=a, held=b, kernel=numbers))
        for a, b in (("unread", "w"), ("w", "unread"))
    )
    for graph, feeds in ((gradient_graph, {}), (hvp_graph, {"x_vector": v})):
        back, forth = graph(constant, "x", engine="portable"), graph(given, "x", engine="portable")
        kinds = [{node.op_type for node in one.graph.node} for one in (back, forth)]
        assert ["ConvTranspose" in one for one in kinds] == [False, True]
        found = evaluate(back, x=x, unread=kernel, **feeds)[-1]
        expected = evaluate(forth, x=x, w=kernel, **feeds)[-1]
        assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    slices = [node for node in back.graph.node if node.op_type == "Slice"]
    assert {node.input[0] for node in slices} == {"w"}  # twice reversed, the kernel is read as it is
