"""onnx_derivative in each option and combination against central differences, and random_feed."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.checker
import onnxruntime
import pytest

from onnxtrain_sklearn.classic.grad_helper import DerivativeOptions, onnx_derivative, random_feed
from onnxtrain_sklearn.classic.ortgradient import OrtGradientForwardBackward
from tests.helpers.passes import BIAS, ENGINES, ONE, TWO, net, slopes

Zero, KeepYieldOp, KeepOutputs = DerivativeOptions.Zero, DerivativeOptions.KeepYieldOp, DerivativeOptions.KeepOutputs
FillGrad, Loss = DerivativeOptions.FillGrad, DerivativeOptions.Loss
RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 3)).astype(np.float32)
SQUARES = "Z = MatMul(X, W) D = Sub(Z, label) Q = Mul(D, D) loss = ReduceMean<keepdims = 0>(Q)"
LOSS = net(SQUARES, "float[N, 2] Z, float loss", inputs="float[N, 3] X, float[N, 2] label")


def run_by_name(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def weights_of(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def expected_of(model, feeds, grads):
    """Return the slopes along the inputs and weights."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    return slopes(bare, {**feeds, **weights_of(model)}, grads)


def assert_close_to_expected(found, expected):
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name.removesuffix("_grad")], rtol=1e-3, atol=1e-3)


def names(values):
    return [value.name for value in values]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [Zero, KeepOutputs, KeepOutputs | FillGrad])
@pytest.mark.parametrize(("graph", "outputs"), [(ONE, ["Y"]), (TWO, ["Y", "V"])], ids=["one", "two"])
def test_options(graph, outputs, options, engine):
    model = net(*graph, weights=BIAS)
    result = onnx_derivative(model, options=options, engine=engine)
    if engine == "portable":
        onnx.checker.check_model(result, full_check=True)
    gradients = ["X_grad", "W_grad", "b_grad"]
    assert names(result.graph.output) == [*(outputs if KeepOutputs in options else ()), *gradients]
    given = [] if FillGrad in options else [f"{name}_grad" for name in outputs]
    assert names(result.graph.input) == ["X", *given, "W", "b"]
    grads = {name: np.ones((4, 2), np.float32) for name in outputs}
    if given:
        grads = {name: RNG.normal(size=(4, 2)).astype(np.float32) for name in outputs}
    found = run_by_name(result, {"X": X, **{f"{name}_grad": grads[name] for name in outputs if given}})
    for name, value in run_by_name(model, {"X": X}).items():
        if KeepOutputs in options:
            np.testing.assert_allclose(found.pop(name), value, rtol=1e-6)
    assert_close_to_expected(found, expected_of(model, {"X": X}, grads))


TWO_LOSSES = net(
    f"{SQUARES} B = Reshape(loss, ones) S = Sigmoid(W) A = Mul(S, S)",
    "float[N, 2] Z, float loss, float[1, 1] B, float[3, 2] A",
    inputs="float[N, 3] X, float[N, 2] label",
    weights="float[3, 2] W = {1, -2, 3, 0.5, 0.25, -1}, int64[2] ones = {1, 1}",
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("label", "loss", "options", "seeded", "filled"),
    [
        ("loss", "loss", Loss, [], ["loss"]),
        ("B", "B", Loss, [], ["B"]),
        ("Z", "Z", Loss, [], ["Z"]),
        ("D", "D", Loss, [], ["D"]),
        ("Z", "another", Loss, ["Z"], []),
        (["Z"], "loss", Loss | FillGrad, [], ["Z"]),
        ({"loss", "Z", "B"}, "B", Loss, [], ["B"]),
        (("A", "loss"), "loss", Loss, ["A"], ["loss"]),
        ({"A", "Z", "label"} - {"label"}, "loss", Loss | FillGrad, [], ["A", "Z"]),
    ],
)
def test_loss_starts_from_the_label(label, loss, options, seeded, filled, engine, tmp_path):
    path = tmp_path / "gradient.onnx"
    wrt = ["W", "X"]
    result = onnx_derivative(TWO_LOSSES, None, wrt, options, loss, label, path, engine=engine)
    assert names(result.graph.output) == ["Z", "loss", "B", "A", "W_grad", "X_grad"]
    assert names(result.graph.input) == ["X", "label", *(f"{name}_grad" for name in seeded), "W"]
    assert onnx.load(path) == result
    feeds = {"X": X, "label": np.ones((4, 2), np.float32)}
    shown = onnx.ModelProto()
    shown.CopyFrom(TWO_LOSSES)
    shown.graph.output.extend([onnx.helper.make_tensor_value_info("D", 1, ["N", 2])])
    reference = run_by_name(shown, feeds)
    grads = {name: RNG.normal(size=reference[name].shape).astype(np.float32) for name in seeded}
    found = run_by_name(result, {**feeds, **{f"{name}_grad": grads[name] for name in seeded}})
    for name in ("Z", "loss", "B", "A"):
        np.testing.assert_allclose(found.pop(name), reference[name], rtol=1e-6)
    grads |= {name: np.ones_like(reference[name]) for name in filled}
    bare = onnx.ModelProto()
    bare.CopyFrom(shown)
    del bare.graph.initializer[0]
    weights = weights_of(TWO_LOSSES)
    assert_close_to_expected(found, slopes(bare, {**feeds, "W": weights["W"]}, grads))


def test_loss_takes_the_gradients_of_all_float_inputs(tmp_path):
    given = {"options": Loss, "loss": "loss", "label": "loss", "path_name": tmp_path / "gradient.onnx"}
    assert names(onnx_derivative(LOSS, **given).graph.output) == ["Z", "loss", "X_grad", "label_grad"]
    assert names(onnx_derivative(LOSS, inputs="W", **given).graph.output) == ["Z", "loss", "W_grad"]


@pytest.mark.parametrize("engine", ENGINES)
def test_some_weights_and_inputs(engine):
    model = net(*ONE, weights=BIAS)
    assert names(onnx_derivative(model, weights=["b"], inputs=[], engine=engine).graph.output) == ["b_grad"]
    assert names(onnx_derivative(model, weights=[], engine=engine).graph.output) == ["X_grad"]
    assert names(onnx_derivative(model, weights=["b", "W"], engine=engine).graph.output) == [
        "X_grad",
        "b_grad",
        "W_grad",
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_can_be_fed(engine):
    model, other = net(*ONE, weights=BIAS), {"W": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    result = onnx_derivative(model, options=KeepOutputs | FillGrad, inputs=[], engine=engine)
    slope = 1 - np.tanh(X @ other["W"]) ** 2
    np.testing.assert_allclose(run_by_name(result, {"X": X, **other})["W_grad"], X.T @ slope, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_yield_op(engine):
    model = net(*TWO, weights=BIAS)
    result = onnx_derivative(model, options=KeepYieldOp, engine=engine)
    (node,) = (node for node in result.graph.node if node.op_type == "YieldOp")
    assert (list(node.input), list(node.output)) == (["Y", "V"], ["Y_grad", "V_grad"])
    assert names(result.graph.input) == ["X", "W", "b"]
    assert names(result.graph.output) == ["X_grad", "W_grad", "b_grad"]
    if "ort-training" in ENGINES:  # the agent runs the graph
        trained = OrtGradientForwardBackward(model, engine=engine).cls_type_._trained_onnx
        kinds = [n.op_type for n in trained.graph.node if n.op_type != "YieldOp"]
        assert kinds == [n.op_type for n in result.graph.node if n.op_type != "YieldOp"]


BY_LOSS = {"options": Loss, "loss": "loss", "label": "loss", "path_name": "gradient.onnx"}


@pytest.mark.parametrize("other", [KeepOutputs, FillGrad, Loss, KeepOutputs | FillGrad])
def test_yield_op_combines_with_nothing(other):
    with pytest.raises(ValueError, match="KeepYieldOp combines with no other option"):
        onnx_derivative(LOSS, options=KeepYieldOp | other)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"options": 1}, TypeError, "options must be DerivativeOptions, got int"),
        ({"options": 1}, AssertionError, "options must be DerivativeOptions, got int"),
        ({"options": FillGrad}, ValueError, "FillGrad needs KeepOutputs"),
        ({"options": FillGrad}, AssertionError, "FillGrad needs KeepOutputs"),
        ({"options": Loss, "loss": "loss"}, AssertionError, r"missing: \['label', 'path_name'\]"),
        ({"options": Loss, "label": "loss", "path_name": "g"}, AssertionError, r"missing: \['loss'\]"),
        ({**BY_LOSS, "path_name": None}, AssertionError, r"missing: \['path_name'\]"),
        ({**BY_LOSS, "weights": ["W"]}, AssertionError, "takes no weights: name them in inputs"),
        ({**BY_LOSS, "loss": 3}, AssertionError, "loss must be the name of an output, got int"),
        ({**BY_LOSS, "options": Loss | KeepOutputs}, AssertionError, "Loss keeps the outputs"),
        ({**BY_LOSS, "label": "los"}, ValueError, "computes no value 'los' to start from. Did you mean 'loss'"),
        ({**BY_LOSS, "label": "label"}, ValueError, "computes no value 'label' to start from"),
        ({**BY_LOSS, "inputs": ["w"]}, ValueError, "Unknown name 'w' in inputs"),
        ({**BY_LOSS, "inputs": []}, ValueError, "Neither inputs nor weights"),
        ({"loss": "loss"}, ValueError, "loss='loss' needs the option Loss"),
        ({"label": "label"}, ValueError, "label='label' needs the option Loss"),
        ({"path_name": "x.onnx"}, ValueError, "path_name='x.onnx' needs the option Loss"),
        ({"weights": ["w"]}, ValueError, "Unknown name 'w' in weights"),
        ({"inputs": ["W"]}, ValueError, "Unknown name 'W' in inputs"),
        ({"weights": "W"}, TypeError, "weights must be a list of names"),
        ({"weights": [], "inputs": []}, ValueError, "Neither inputs nor weights"),
        ({"engine": "none"}, ValueError, "Unknown engine"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        onnx_derivative(LOSS, **arguments)


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_input_other_than_a_model_is_refused(error):
    with pytest.raises(error, match=r"expected an onnx.ModelProto, bytes or the path of a file, got int \(3\)"):
        onnx_derivative(3)


def test_verbose(capsys):
    onnx_derivative(net(*ONE, weights=BIAS), verbose=1)
    assert "of 3 nodes with respect to X, W, b" in capsys.readouterr().out


def test_combinations_are_distinguished():
    members = list(DerivativeOptions) or [KeepYieldOp, KeepOutputs, FillGrad, Loss]
    assert all(not a & b for a, b in itertools.combinations([m for m in members if m], 2))
    assert Zero == 0


def test_random_feed():
    model = net("Y = Mul(X, D) K = Add(I, I) Q = Or(B, B)", "float[N, M] Y, int64[2] K, bool[1] Q",
                inputs="float[N, M] X, double[M, N, 0] D, int64[2] I, bool[1] B")  # fmt: skip
    np.random.seed(0)  # noqa: NPY002
    feed = random_feed(model.graph.input, batch=5, empty_dimension=2)
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "X": ((5, 5), "float32"), "D": ((5, 5, 2), "float64"), "I": ((2,), "int64"), "B": ((1,), "bool"),
    }  # fmt: skip
    np.random.seed(0)  # noqa: NPY002
    np.testing.assert_array_equal(random_feed(model.graph.input, batch=5, empty_dimension=2)["X"], feed["X"])
    gradient = onnx_derivative(net(*ONE, weights=BIAS))
    session = onnxruntime.InferenceSession(gradient.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = random_feed(session.get_inputs())
    assert feed["X"].shape == (10, 3)
    assert feed["Y_grad"].shape == (10, 2)
    assert [value.shape for value in session.run(None, feed)] == [(10, 3), (3, 2), (2,)]
    with pytest.raises(TypeError, match="'S' is of type object"):
        random_feed(net("Y = Identity(S)", "string[1] Y", inputs="string[1] S").graph.input)
