"""Gradients of any value by any value, products with Jacobians and Hessians, Jacobians."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain_sklearn import gradient_graph, hvp_graph, jacobian_graph, jvp_graph, vjp_graph
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.environment import NEWEST_OPSET, available_engines
from tests.helpers.sessions import session

W = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, -0.7, 0.8], [0.9, -1.0, 1.1, -1.2]])
B = np.array([0.1, 0.2, -0.3, 0.4])
X = np.random.default_rng(0).normal(size=(5, 3))
DIRECTION = np.random.default_rng(1).normal(size=X.shape)
COTANGENT = np.random.default_rng(2).normal(size=(5, 4))

BODY = "z = MatMul(x, W) h = Add(z, b) y = Tanh(h) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s)"


def network(rows="N", kind="float", body=BODY, outputs="{kind}[{rows}, 4] y, {kind} loss"):
    signature = f"({kind}[{rows}, 3] x) => ({outputs.format(kind=kind, rows=rows)})"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {signature} {{ {body} }}')
    dtype = np.float32 if kind == "float" else np.float64
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(dtype), name) for name, array in {"W": W, "b": B}.items()
    )
    return model


def parsed(signature, body):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {signature} {{ {body} }}')


def run(model, dtype=np.float32, **feeds):
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session(model).run(names, {n: a.astype(dtype) for n, a in feeds.items()}), strict=True))


def formulas(x=X):
    y = np.tanh(x @ W + B)
    slope = 1 - y * y
    return y, slope, 2 * y * slope


@pytest.mark.parametrize("rows", ["N", "5"])
@pytest.mark.parametrize("engine", available_engines())
class TestValues:
    def test_gradient_of_inner_values_holds_all_ways(self, engine, rows):
        y, _, of_h = formulas()
        found = run(gradient_graph(network(rows), ["x", "y", "h", "W"], "loss", engine=engine), x=X)
        for name, expected in {"x": of_h @ W.T, "y": 2 * y, "h": of_h, "W": X.T @ of_h}.items():
            np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["y"], y, rtol=1e-6)

    def test_gradient_of_an_inner_scalar_appends_it(self, engine, rows):
        body = BODY + " v = ReduceMean<keepdims = 0>(h) w = Exp(v) e = Add(loss, w)"
        found = run(gradient_graph(network(rows, body=body), ["x"], "w", engine=engine), x=X)
        w = np.exp((X @ W + B).mean())
        assert list(found) == ["y", "loss", "w", "x_grad"]
        np.testing.assert_allclose(found["x_grad"], np.tile(w * W.sum(axis=1) / 20, (5, 1)), rtol=1e-5)

    def test_vjp_weighs_the_outputs(self, engine, rows):
        _, slope, _ = formulas()
        model = vjp_graph(network(rows), ["x", "b"], "y", engine=engine)
        assert [i.name for i in model.graph.input] == ["x", "y_cotangent"]
        found = run(model, x=X, y_cotangent=COTANGENT)
        np.testing.assert_allclose(found["x_grad"], (COTANGENT * slope) @ W.T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["b_grad"], (COTANGENT * slope).sum(axis=0), rtol=1e-5, atol=1e-6)

    def test_jacobian_has_all_pairs(self, engine, rows):
        _, slope, _ = formulas()
        found = run(jacobian_graph(network(rows), ["x", "b"], "y", engine=engine), x=X)
        expected = np.zeros((5, 4, 5, 3))
        for i in range(5):
            expected[i, :, i] = slope[i][:, None] * W.T
        np.testing.assert_allclose(found["x_jacobian"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["b_jacobian"], slope[:, :, None] * np.eye(4), rtol=1e-5, atol=1e-6)

    def test_jacobian_per_row_is_its_diagonal(self, engine, rows):
        _, slope, _ = formulas()
        found = run(jacobian_graph(network(rows), ["x", "h"], "y", per_row=True, engine=engine), x=X)
        np.testing.assert_allclose(found["x_jacobian"], slope[:, :, None] * W.T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["h_jacobian"], slope[:, :, None] * np.eye(4), rtol=1e-5, atol=1e-6)

    def test_weights_as_inputs_are_read_and_have_defaults(self, engine, rows):
        model = gradient_graph(network(rows), ["W"], "loss", weights_as_inputs=True, engine=engine)
        assert [i.name for i in model.graph.input] == ["x", "W", "b"]
        for scale in (1, 2):
            feeds = {} if scale == 1 else {"W": scale * W}
            found = run(model, x=X, **feeds)
            y = np.tanh(X @ (scale * W) + B)
            np.testing.assert_allclose(found["W_grad"], X.T @ (2 * y * (1 - y * y)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ["N", "5"])
@pytest.mark.parametrize("kind", ["float", "double"])
class TestSecondDerivatives:
    def test_jvp_is_the_slope_along_the_tangents(self, rows, kind):
        _, slope, _ = formulas()
        model = jvp_graph(network(rows, kind), ["x", "b"], "y")
        assert [i.name for i in model.graph.input] == ["x", "x_tangent", "b_tangent"]
        dtype = np.float32 if kind == "float" else np.float64
        found = run(model, dtype, x=X, x_tangent=DIRECTION, b_tangent=2 * B)
        tolerance = 1e-5 if kind == "float" else 1e-13
        np.testing.assert_allclose(found["y_jvp"], slope * (DIRECTION @ W + 2 * B), tolerance, tolerance)

    def test_hvp_is_the_slope_of_the_gradient(self, rows, kind):
        def gradient(x):
            return formulas(x)[2] @ W.T

        expected = (gradient(X + 1e-5 * DIRECTION) - gradient(X - 1e-5 * DIRECTION)) / 2e-5
        model = hvp_graph(network(rows, kind), "x", "loss")
        assert [o.name for o in model.graph.output] == ["y", "loss", "x_hvp"]
        dtype = np.float32 if kind == "float" else np.float64
        found = run(model, dtype, x=X, x_vector=DIRECTION)["x_hvp"]
        tolerance = 1e-5 if kind == "float" else 1e-8
        np.testing.assert_allclose(found, expected, tolerance, tolerance)

    def test_hvp_of_several_names_has_the_mixed_derivatives(self, rows, kind):
        def gradients(x, b):
            y = np.tanh(x @ W + b)
            of_h = 2 * y * (1 - y * y)
            return of_h @ W.T, of_h.sum(axis=0)

        step, other = 1e-5, np.array([1.0, -2, 3, -4])
        ends = [gradients(X + s * DIRECTION, B + s * other) for s in (step, -step)]
        dtype = np.float32 if kind == "float" else np.float64
        model = hvp_graph(network(rows, kind), ["x", "b"], "loss")
        found = run(model, dtype, x=X, x_vector=DIRECTION, b_vector=other)
        tolerance = 3e-5 if kind == "float" else 1e-8
        for name, above, below in zip(("x", "b"), *ends, strict=True):
            np.testing.assert_allclose(found[f"{name}_hvp"], (above - below) / (2 * step), tolerance, tolerance)


def test_hvp_by_an_inner_value_and_by_one_before_it():
    body = "h = MatMul(x, W) y = Mul(h, h) u = Mul(y, h) loss = ReduceSum<keepdims = 0>(u)"  # the sum of cubes
    found = run(
        hvp_graph(network("5", "double", body), ["x", "h"], "loss"),
        np.float64,
        x=X,
        x_vector=DIRECTION,
        h_vector=COTANGENT,
    )
    # moved by the step along x and, on top of it, by that along h
    moved = 6 * (X @ W) * (DIRECTION @ W + COTANGENT)
    np.testing.assert_allclose(found["h_hvp"], moved, rtol=1e-12)
    np.testing.assert_allclose(found["x_hvp"], moved @ W.T, rtol=1e-12)


@pytest.mark.parametrize("engine", available_engines())
def test_a_rewrite_does_not_pass_over_a_value(engine):
    body = "e = Exp(x) t = ReduceSum<keepdims = 1>(e, axes) p = Div(e, t) l = Log(p) loss = ReduceSum<keepdims = 0>(l)"
    model = parsed("(float[5, 3] x) => (float loss) <int64[1] axes = {1}>", body)
    p = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    found = run(gradient_graph(model, ["p", "x"], engine=engine), x=X)
    np.testing.assert_allclose(found["p_grad"], 1 / p, rtol=1e-5)
    np.testing.assert_allclose(found["x_grad"], 1 - 3 * p, rtol=1e-4, atol=1e-5)


def test_jvp_where_a_condition_drops_infinite_slopes():
    body = "c = Greater(x, zero) l = Log(x) s = Sqrt(x) y = Where(c, l, zero) v = Mul(y, y) w = Sub(v, y)"
    model = parsed("(float[4] x) => (float[4] w) <float zero = {0.0}>", body)
    x = np.array([-1.0, 0.0, 0.5, 2.0])
    slope = np.array([0, 0, (2 * np.log(0.5) - 1) / 0.5, (2 * np.log(2.0) - 1) / 2])
    found = run(jvp_graph(model, "x", "w"), x=x, x_tangent=np.ones(4))["w_jvp"]
    np.testing.assert_allclose(found, slope, rtol=1e-5)


def test_sums_that_cancel_keep_their_jvp():
    # the cotangents of l cancel if those of a and n are equal, but neither derivative is zero
    body = "c = Greater(x, zero) l = Log(x) k = Where(c, l, zero) n = Neg(k) y = Concat<axis = 0>(k, n)"
    model = parsed("(float[3] x) => (float[6] y) <float zero = {0.0}>", body)
    x = np.array([0.5, 2.0, 4.0])
    found = run(jvp_graph(model, "x", "y"), x=x, x_tangent=np.ones(3))["y_jvp"]
    np.testing.assert_allclose(found, np.r_[1 / x, -1 / x], rtol=1e-6)


def test_results_are_differentiated_again():
    model = vjp_graph(network("5", "double"), "x", "y", engine="portable")
    again = jacobian_graph(model, "y_cotangent", "x_grad")
    found = run(again, np.float64, x=X, y_cotangent=COTANGENT)["y_cotangent_jacobian"]
    forward = run(jacobian_graph(network("5", "double"), "x", "y"), np.float64, x=X)["x_jacobian"]
    np.testing.assert_allclose(found, np.moveaxis(forward, (2, 3), (0, 1)), rtol=1e-12, atol=1e-14)


def test_jacobian_of_a_gradient_is_the_hessian():
    gradient = gradient_graph(network("5", "double"), "b", "loss", engine="portable")
    found = run(jacobian_graph(gradient, "b", "b_grad"), np.float64, x=X)["b_jacobian"]
    y, slope, _ = formulas()
    np.testing.assert_allclose(found, np.diag((2 * slope**2 - 4 * y * y * slope).sum(axis=0)), rtol=1e-10, atol=1e-12)


def test_names_without_influence_have_zeros():
    model = network("5")
    assert not run(jacobian_graph(model, "b", "z"), x=X)["b_jacobian"].any()
    assert not run(
        hvp_graph(network("5", body="y = MatMul(x, W) loss = ReduceSum<keepdims = 0>(y)"), "x", "loss"), x=X, x_vector=X
    )["x_hvp"].any()
    assert not run(jvp_graph(model, "b", "z"), x=X, b_tangent=B)["z_jvp"].any()


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (gradient_graph, ("xx", "loss"), "wrt names 'xx', which is no value of the graph. Did you mean 'x'"),
        (vjp_graph, ("x", "yy"), "of names 'yy', which is no value of the graph. Did you mean 'y'"),
        (hvp_graph, ("x", "y"), r"taken of a scalar, but 'y' has shape \('N', 4\). Reduce it first, or use vjp_graph"),
        (jacobian_graph, ("b", "y", True), "'b' is a weight, which all rows share"),
        (jacobian_graph, ("x", "loss", True), "'loss' has none"),
    ],
)
def test_what_cannot_be_asked_for_is_explained(function, arguments, message):
    keywords = {"per_row": True} if len(arguments) == 3 else {}
    with pytest.raises(ModelError, match=message):
        function(network(), *arguments[:2], **keywords)


def test_per_row_is_refused_where_rows_meet():
    body = "m = ReduceMean<keepdims = 1>(x, axes) y = Sub(x, m)"
    model = parsed("(float[N, 3] x) => (float[N, 3] y) <int64[1] axes = {0}>", body)
    with pytest.raises(ModelError, match=r"rows meet at .*ReduceMean.* a row may affect the result of another"):
        jacobian_graph(model, "x", "y", per_row=True)
    found = run(jacobian_graph(model, "x", "y"), x=X)["x_jacobian"]
    expected = np.einsum("ij,kl->ikjl", np.eye(5) - 1 / 5, np.eye(3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_hvp_through_pooling_of_any_number_of_images():
    body = "p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) "
    body += "q = Mul(p, p) c = Mul(q, p) y = ReduceSum<keepdims = 0>(c)"
    x, vector = np.random.default_rng(0).normal(size=(2, 3, 1, 4, 4))
    found = run(hvp_graph(parsed("(float[N, 1, 4, 4] x) => (float y)", body), "x", "y"), x=x, x_vector=vector)["x_hvp"]
    blocks = x.reshape(3, 1, 2, 2, 2, 2)
    largest = (blocks == blocks.max(axis=(3, 5), keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(found, 6 * x * vector * largest, rtol=1e-5, atol=1e-6)


def test_old_file_whose_unread_initializer_is_an_input_loads():
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["": 11]> g (float[3] x, float[2] u) => (float[3] y) { y = Mul(x, x) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "u"))
    x = np.array([1.0, 2.0, 3.0])
    found = run(vjp_graph(model, "x", "y"), x=x, y_cotangent=np.ones(3))["x_grad"]
    np.testing.assert_allclose(found, 2 * x)


def test_integers_have_no_derivative():
    model = parsed("(float[3] x) => (int64[3] k)", "r = Round(x) k = Cast<to = 7>(r)")
    with pytest.raises(ModelError, match="'k' is of type INT64; only floats"):
        vjp_graph(model, "x", "k")


@pytest.mark.parametrize(
    ("body", "opset", "slope"),
    [
        ("y = ReduceProd<keepdims = 0>(x)", 18, 60),
        ("p = CumProd(x, axis) y = ReduceSum<keepdims = 0>(p)", 26, 81),
        ('p = ScatterElements<reduction = "mul">(one, axes, x) y = ReduceSum<keepdims = 0>(p)', 18, 120),
    ],
)
def test_gradients_that_are_right_only_at_points_have_no_derivative(body, opset, slope):
    if opset > NEWEST_OPSET:
        pytest.skip(f"this runtime has opsets to {NEWEST_OPSET}")
    constants = "<int64 axis = {0}, int64[3] axes = {0, 0, 1}, float[2] one = {1.0, 1.0}>"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[3] x) => (float y) {constants} {{ {body} }}'
    )
    x = np.array([2.0, 0.0, 3.0])
    assert run(jvp_graph(model, "x", "y"), x=x, x_tangent=np.array([1.0, 10.0, 100.0]))["y_jvp"] == slope
    stored = gradient_graph(model, "x", "y", engine="portable").SerializeToString()  # the mark is kept in a file
    for given, of in ((model, "y"), (onnx.load_model_from_string(stored), "x_grad")):
        with pytest.raises(UnsupportedOperatorError, match="where a factor is zero its own derivative is not known"):
            (hvp_graph if of == "y" else vjp_graph)(given, "x", of, engine="portable")
