"""`gradient_graph`: what it keeps, adds and refuses, and networks exported from PyTorch with PyTorch's gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import ModelError, RuntimeNotFoundError, UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.environment import ENGINES, available_engines
from tests.helpers.faults import fail_gradient_builder

training_runtime = pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")

X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]], dtype=np.float32)
W = np.array([0.5, -1.5, 2.0], dtype=np.float32)


def parse(signature, body, *, opset=18, ir_version=8, **initializers):
    model = onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["": {opset}]> graph {signature} {{ {body} }}'
    )
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in initializers.items())
    return model


def run_gradient(model, **feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def linear_scalar():
    body = "product = Mul(x, w) shifted = Add(product, b) loss = ReduceSum<keepdims = 0>(shifted)"
    return parse("(float[2, 3] x) => (float loss, float[2, 3] shifted)", body, w=W, b=np.zeros(3, np.float32))


def test_outputs_precede_gradients_in_requested_order():
    result = gradient_graph(linear_scalar(), wrt=["b", "x", "w"])
    assert [o.name for o in result.graph.output] == ["loss", "shifted", "b_grad", "x_grad", "w_grad"]
    assert [i.name for i in result.graph.input] == ["x"]
    assert {"w", "b"} <= {i.name for i in result.graph.initializer}
    values = run_gradient(result, x=X)
    np.testing.assert_allclose(values["shifted"], X * W, rtol=1e-6)
    np.testing.assert_allclose(values["loss"], (X * W).sum(), rtol=1e-6)
    np.testing.assert_allclose(values["b_grad"], [2, 2, 2])
    np.testing.assert_allclose(values["x_grad"], np.broadcast_to(W, (2, 3)))
    np.testing.assert_allclose(values["w_grad"], X.sum(axis=0), rtol=1e-6)


def test_gradients_declare_shape_and_type():
    body = "y = MatMul(x, w) loss = ReduceSum<keepdims = 0>(y)"
    model = parse("(float[N, 3] x, float[3, 2] w) => (float loss)", body)
    outputs = {o.name: o.type.tensor_type for o in gradient_graph(model, wrt=["x", "w"]).graph.output}
    assert [d.dim_param or d.dim_value for d in outputs["x_grad"].shape.dim] == ["N", 3]
    assert [d.dim_value for d in outputs["w_grad"].shape.dim] == [3, 2]
    assert outputs["w_grad"].elem_type == onnx.TensorProto.FLOAT


def test_result_is_a_valid_model_that_names_no_unused_domain():
    result = gradient_graph(linear_scalar(), wrt="w")
    onnx.checker.check_model(result)
    assert [o.domain for o in result.opset_import] == [""]


def test_an_unused_initializer_is_kept_and_has_the_gradient_zero():
    model = parse("(float[2, 3] x) => (float loss)", "loss = ReduceSum<keepdims = 0>(x)", w=W, unused=W)
    result = gradient_graph(model, wrt=["x", "w"])
    assert {i.name for i in result.graph.initializer} >= {"w", "unused"}
    np.testing.assert_array_equal(run_gradient(result, x=X)["w_grad"], np.zeros(3, np.float32))


def test_given_model_is_unchanged():
    model = parse("(float[2, 3] x) => (float loss)", "y = Mul(x, x) loss = ReduceSum<keepdims = 0>(y)")
    before = model.SerializeToString(deterministic=True)
    gradient_graph(model, wrt="x")
    assert model.SerializeToString(deterministic=True) == before


def test_single_string_and_repeated_names_are_one_name():
    assert [o.name for o in gradient_graph(linear_scalar(), wrt="w").graph.output] == ["loss", "shifted", "w_grad"]
    assert [o.name for o in gradient_graph(linear_scalar(), wrt=["w", "w"]).graph.output] == [
        "loss",
        "shifted",
        "w_grad",
    ]


def test_of_chooses_the_output():
    body = "a = ReduceSum<keepdims = 0>(x) y = Mul(x, x) b = ReduceSum<keepdims = 0>(y)"
    model = parse("(float[2, 3] x) => (float a, float b)", body)
    np.testing.assert_allclose(run_gradient(gradient_graph(model, wrt="x"), x=X)["x_grad"], np.ones((2, 3)))
    np.testing.assert_allclose(run_gradient(gradient_graph(model, wrt="x", of="b"), x=X)["x_grad"], 2 * X)


@pytest.mark.parametrize(
    "body",
    [
        "used = Identity(x) unused = Sin(w)",
        "used = Identity(x) size = Shape(w)",
        "half = Greater(w, w) f = Cast<to = 1>(half) used = Add(x, f)",
        "i = Cast<to = 7>(w) f = Cast<to = 1>(i) used = Mul(x, f)",
    ],
)
def test_unused_weights_have_zero_gradients(body):
    model = parse("(float[2, 3] x, float[2, 3] w) => (float loss)", f"{body} loss = ReduceSum<keepdims = 0>(used)")
    values = run_gradient(gradient_graph(model, wrt=["w", "x"]), x=X, w=X)
    np.testing.assert_array_equal(values["w_grad"], np.zeros((2, 3), np.float32))
    only = run_gradient(gradient_graph(model, wrt="w"), x=X, w=X)
    np.testing.assert_array_equal(only["w_grad"], np.zeros((2, 3), np.float32))


def test_a_value_read_by_a_subgraph_counts_as_read():
    body = (
        "yes = Greater(x, zero) "
        "loss = If(yes) <then_branch = a () => (float u) {u = Mul(x, w)}, else_branch = b () => (float v) {v = Neg(w)}>"
    )
    model = gradient_graph(parse("(float x, float zero, float w) => (float loss)", body), wrt="w")
    for x, wanted in ((2.5, 2.5), (-2.5, -1.0)):
        feeds = {name: np.array(value, np.float32) for name, value in (("x", x), ("zero", 0), ("w", 3))}
        assert run_gradient(model, **feeds)["w_grad"] == wanted


def test_a_tied_parameter_gets_the_sum_of_its_gradients():
    body = "a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) loss = ReduceSum<keepdims = 0>(c)"
    w = np.arange(9, dtype=np.float32).reshape(3, 3) / 10
    values = run_gradient(gradient_graph(parse("(float[2, 3] x) => (float loss)", body, w=w), wrt="w"), x=X)
    hidden, ones = np.tanh(X @ w), np.ones((2, 3))
    wanted = hidden.T @ ones + X.T @ (ones @ w.T * (1 - hidden**2))
    np.testing.assert_allclose(values["w_grad"], wanted, rtol=1e-5)


def test_products_behind_third_part_of_concat_accumulate():
    body = "a = MatMul(x, w) b = Tanh(x) c = Concat<axis = 1>(x1, x1, a) loss0 = ReduceSum<keepdims = 0>(c) "
    body += "loss1 = ReduceSum<keepdims = 0>(b) loss = Add(loss0, loss1)"
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    model = parse("(float[2, 3] x, float[2, 1] x1) => (float loss)", body, w=w)
    values = run_gradient(gradient_graph(model, wrt="x"), x=X, x1=X[:, :1])
    np.testing.assert_allclose(values["x_grad"], 1 - np.tanh(X) ** 2 + w.sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Mul(x, x)", 2 * X),
        ("y = Add(x, x)", np.full((2, 3), 2.0)),
        ("y = Sub(x, x)", np.zeros((2, 3))),
        ("z = Mul(x, x) y = Mul(z, x)", 3 * X**2),
    ],
)
def test_a_name_that_one_node_reads_twice(body, wanted):
    model = parse("(float[2, 3] x) => (float loss)", f"{body} loss = ReduceSum<keepdims = 0>(y)")
    np.testing.assert_allclose(
        run_gradient(gradient_graph(model, wrt="x"), x=X)["x_grad"], wanted, rtol=1e-6, atol=1e-7
    )


def test_a_wanted_name_may_be_an_output_and_the_output_itself():
    model = parse("(float[2, 3] x) => (float loss, float[2, 3] x)", "loss = ReduceSum<keepdims = 0>(x)")
    np.testing.assert_array_equal(run_gradient(gradient_graph(model, wrt="x"), x=X)["x_grad"], np.ones((2, 3)))
    model = parse("(float x) => (float y, float x)", "y = Mul(x, x)")
    np.testing.assert_array_equal(
        run_gradient(gradient_graph(model, wrt="x", of="x"), x=np.array(3, np.float32))["x_grad"], 1
    )


def test_a_loss_that_is_used_further():
    body = "loss = ReduceSum<keepdims = 0>(x) doubled = Add(loss, loss)"
    model = parse("(float[2, 3] x) => (float loss, float doubled)", body)
    values = run_gradient(gradient_graph(model, wrt="x"), x=X)
    np.testing.assert_array_equal(values["x_grad"], np.ones((2, 3)))
    np.testing.assert_allclose(values["doubled"], 2 * X.sum(), rtol=1e-6)


def test_a_loss_in_float64():
    model = parse("(double[2, 3] x) => (double loss)", "y = Mul(x, x) loss = ReduceSum<keepdims = 0>(y)")
    gradient = run_gradient(gradient_graph(model, wrt="x"), x=X.astype(np.float64))["x_grad"]
    assert gradient.dtype == np.float64
    np.testing.assert_allclose(gradient, 2 * X.astype(np.float64), rtol=1e-15)


@pytest.mark.parametrize("engine", available_engines())
def test_second_gradient_by_the_same_name_is_numbered(engine):
    model = parse("(float[2, 3] x) => (float loss)", "z = Mul(x, x) y = Mul(z, x) loss = ReduceSum<keepdims = 0>(y)")
    first = gradient_graph(model, wrt="x", engine=engine)
    again = gradient_graph(first, wrt="x")
    assert [value.name for value in again.graph.output] == ["loss", "x_grad", "x_grad_2"]
    values = run_gradient(again, x=X)
    np.testing.assert_allclose(values["x_grad"], 3 * X**2, rtol=1e-5)
    np.testing.assert_allclose(values["x_grad_2"], 3 * X**2, rtol=1e-5)
    first.graph.node.append(onnx.helper.make_node("ReduceSum", ["x_grad"], ["total"], "total", keepdims=0))
    values = run_gradient(gradient_graph(first, wrt="x", of="total"), x=X)
    np.testing.assert_allclose(values["x_grad_2"], 6 * X, rtol=1e-5)


def test_colliding_gradient_names_are_renamed():
    body = "h = Mul(x, w) g = Mul(h, h_grad) loss = ReduceSum<keepdims = 0>(g)"
    model = parse("(float[2, 3] x, float[3] w, float[2, 3] h_grad) => (float loss)", body)
    values = run_gradient(gradient_graph(model, wrt="w"), x=X, w=W, h_grad=2 * X)
    np.testing.assert_allclose(values["w_grad"], (X * 2 * X).sum(axis=0), rtol=1e-6)


def test_functions_are_inlined():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "local": 1]> graph (float[2, 3] x) => (float loss) '
        "{ y = local.square(x) loss = ReduceSum<keepdims = 0>(y) } "
        '<domain: "local", opset_import: ["": 18]> square (a) => (b) { b = Mul(a, a) }'
    )
    np.testing.assert_allclose(run_gradient(gradient_graph(model, wrt="x"), x=X)["x_grad"], 2 * X)


def test_a_model_of_a_newer_ir_version_loads():
    model = parse("(float[2, 3] x, float w) => (float loss)", "loss = ReduceSum<keepdims = 0>(x)", ir_version=13)
    for name, gradient in (("x", np.ones((2, 3))), ("w", 0)):
        values = run_gradient(gradient_graph(model, wrt=name), x=X, w=np.array(1, np.float32))
        np.testing.assert_array_equal(values[f"{name}_grad"], gradient)


def test_dropout_in_training_passes_gradient_of_kept_units():
    body = "y = Dropout<seed = 3>(x, ratio, training) loss = ReduceSum<keepdims = 0>(y)"
    settings = {"ratio": np.float32(0.25), "training": np.array(True)}
    x = np.random.default_rng(0).uniform(1, 2, size=(40, 50)).astype(np.float32)
    model = parse("(float[40, 50] x) => (float loss, float[40, 50] y)", body, **settings)
    values = run_gradient(gradient_graph(model, wrt="x"), x=x)
    np.testing.assert_allclose(values["x_grad"], values["y"] / x, rtol=1e-5)
    assert 0.6 < np.mean(values["y"] > 0) < 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wrt": "ww"}, r"wrt names 'ww', which is no value of the graph\. Did you mean 'w'"),
        ({"wrt": "w", "of": "los"}, r"of names 'los', which is no value of the graph\. Did you mean 'loss'"),
        ({"wrt": "w", "of": "shifted"}, r"taken of a scalar, but 'shifted' has shape \(2, 3\). Reduce it first"),
    ],
)
def test_wrong_names_are_explained(arguments, message):
    with pytest.raises(ModelError, match=message):
        gradient_graph(linear_scalar(), **arguments)


@pytest.mark.parametrize(
    ("wrt", "error", "message"),
    [
        (3, TypeError, "wrt must be the name of a value, or a list of names, got int"),
        ([], ValueError, "wrt is an empty list: name at least one"),
    ],
)
def test_no_names_are_refused(wrt, error, message):
    with pytest.raises(error, match=message):
        gradient_graph(linear_scalar(), wrt=wrt)


def test_integers_have_no_gradient():
    body = "y = Gather(w, i) loss = ReduceSum<keepdims = 0>(y) count = Size(i)"
    model = parse("(float[3] w, int64[2] i) => (float loss, int64 count)", body)
    with pytest.raises(ModelError, match="wrt names 'i' of type INT64; only floats have a gradient"):
        gradient_graph(model, wrt="i")
    with pytest.raises(ModelError, match="'count' is of type INT64; only floats have a gradient"):
        gradient_graph(model, wrt="w", of="count")


def test_unknown_engine():
    with pytest.raises(ValueError, match=r"Unknown engine 'ort-trainin'\. Did you mean 'ort-training'"):
        gradient_graph(linear_scalar(), wrt="w", engine="ort-trainin")


def test_an_engine_that_does_not_run_here(monkeypatch):
    monkeypatch.setitem(ENGINES, "ort-training", (ENGINES["ort-training"][0], lambda: False))
    with pytest.raises(RuntimeNotFoundError, match="engine='ort-training' cannot run on the installed onnxruntime"):
        gradient_graph(linear_scalar(), wrt="w", engine="ort-training")


@training_runtime
def test_errors_of_the_builder_name_the_node_and_hide_its_source(monkeypatch):
    fail_gradient_builder(
        monkeypatch,
        "/src/orttraining/graph/gradient_builder_registry.cc:29 GradientDef GetGradientForOp(const Node&) "
        "gradient_builder != nullptr was false. The gradient builder has not been registered: Mul for node node0\n",
    )
    with pytest.raises(UnsupportedOperatorError) as caught:
        gradient_graph(linear_scalar(), wrt="w", engine="ort-training")
    assert str(caught.value).startswith("Node 'node0' (Mul) cannot be differentiated: gradient_builder != nullptr")
    assert ".cc" not in str(caught.value)
    assert "Freeze the parameters before it" in str(caught.value)


def exported(name, batch=None):
    """Return a network exported from PyTorch, with a cross-entropy behind it, and PyTorch's data and gradients."""
    model, run_of_torch = onnx.load(DATA / f"{name}.onnx"), np.load(DATA / f"{name}.npz")
    classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    rows = run_of_torch["y"][0]
    if batch:
        for value in [*model.graph.input, *model.graph.output]:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    target = onnx.helper.make_tensor_value_info("target", onnx.TensorProto.FLOAT, [batch or "N", classes])
    loss = onnx.parser.parse_graph(
        "g (float[n, k] scores, float[n, k] target) => (float loss) "
        "{ logs = LogSoftmax(scores) chosen = Mul(logs, target) total = ReduceSum<keepdims = 0>(chosen) "
        f"negative = Neg(total) rows = Constant<value = float {{{len(rows)}.0}}>() loss = Div(negative, rows) }}"
    )
    model.graph.node.extend(loss.node)
    model.graph.input.append(target)
    model.graph.output.append(loss.output[0])
    return model, run_of_torch, np.eye(classes, dtype=np.float32)[rows]


@pytest.mark.parametrize(("name", "batch"), [("mlp", None), ("lenet", None), ("attention", None), ("attention", 8)])
def test_gradients_of_exported_networks_are_those_of_pytorch(name, batch):
    model, torch, target = exported(name, batch)
    wanted = {key[5:]: torch[key] for key in torch.files if key.startswith("grad/")}
    values = run_gradient(gradient_graph(model, wrt=list(wanted), of="loss"), x0=torch["x0"][0], target=target)
    for parameter, gradient in wanted.items():
        np.testing.assert_allclose(values[f"{parameter}_grad"], gradient, rtol=1e-4, atol=1e-5, err_msg=parameter)


@pytest.mark.parametrize(
    ("name", "operator"), [("two_tower", "Elu"), ("lstm", "LSTM"), ("residual_bn", "BatchNormalization")]
)
@training_runtime
def test_exported_networks_with_other_operators_are_refused_by_name(name, operator):
    model = onnx.load(DATA / f"{name}.onnx")
    total = onnx.parser.parse_graph("g (float[n, k] scores) => (float loss) {loss = ReduceSum<keepdims = 0>(scores)}")
    model.graph.node.extend(total.node)
    model.graph.output.append(total.output[0])
    weights = [i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    with pytest.raises(UnsupportedOperatorError, match=rf"Node '\S*{operator}\S*' \({operator}\) cannot be diff"):
        gradient_graph(model, wrt=weights, of="loss", engine="ort-training")


@pytest.mark.parametrize("engine", available_engines())
def test_products_of_a_transposed_matrix_and_a_vector_are_right(engine):
    """onnxruntime fuses the two nodes, and computes something else."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[3, 4] a, float[3] v) => (float loss)
        { t = Transpose <perm = [1, 0]> (a) p = MatMul(t, v) q = Mul(p, p) loss = ReduceSum <keepdims = 0> (q) }"""
    )
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    graph = gradient_graph(model, wrt=["a", "v"], engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    loss, slope_a, slope_v = session.run(None, {"a": a, "v": v})
    product = a.T @ v
    np.testing.assert_allclose(loss, (product**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(slope_a, 2 * np.outer(v, product), rtol=1e-5)
    np.testing.assert_allclose(slope_v, 2 * a @ product, rtol=1e-5)
