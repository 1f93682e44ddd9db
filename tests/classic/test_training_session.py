"""Training sessions: optimizers against numpy, a run against our estimator, accumulation, introspection."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as C

from onnxtrain_sklearn import SGD, Adam, AdamW, OrtGradientRegressor
from onnxtrain_sklearn.classic.training_session import TrainingParameters, TrainingSession
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training
from tests.helpers.training_sessions import BODY, WEIGHTS, X, Y, feed, net, parameters, train, with_loss

ENGINES = available_engines()


def numpy_gradients(weights, x=X, y=Y):
    h = np.tanh(x @ weights["W"] + weights["b"])
    d = 2 * (h @ weights["V"] - y) / y.size
    back = d @ weights["V"].T * (1 - h**2)
    return {"W": x.T @ back, "b": back.sum(axis=0), "V": h.T @ d}


def reference_weights(kind, steps, rate, settings, clip):
    """Return weights after some steps, in float64, by the formulas of onnxruntime's kernels."""
    w = {name: array.astype(float) for name, array in WEIGHTS.items()}
    m, v = ({name: np.zeros_like(a) for name, a in w.items()} for _ in range(2))
    for t in range(1, steps + 1):
        g = numpy_gradients(w, X.astype(float), Y.astype(float))
        norm = np.sqrt(sum((a**2).sum() for a in g.values()))
        for name in w:
            one = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-6, "correct": 1, "late": 0}
            one |= {"lo": -np.inf, "hi": np.inf} | settings.get(name, {})
            slope = g[name] * min(clip / norm, 1) if clip else g[name]
            if kind == "SGDOptimizer":
                w[name] -= rate * slope
                continue
            m[name] = one["alpha"] * m[name] + (1 - one["alpha"]) * slope
            v[name] = one["beta"] * v[name] + (1 - one["beta"]) * slope**2
            first, second = (1 - one["alpha"] ** t, 1 - one["beta"] ** t) if one["correct"] else (1, 1)
            if one["late"]:
                w[name] -= rate * np.sqrt(second) / first * m[name] / (np.sqrt(v[name]) + one["epsilon"])
                w[name] -= rate * one["lambda"] * w[name]
                continue
            d = m[name] / first / (np.sqrt(v[name] / second) + one["epsilon"]) + one["lambda"] * w[name]
            r = 1.0
            if kind == "LambOptimizer":
                r = np.clip(np.linalg.norm(w[name]) / np.linalg.norm(d), one["lo"], one["hi"])
            w[name] -= rate * r * d
    return w


CASES = [
    ("SGDOptimizer", {}, {}, {}),
    ("AdamOptimizer", {}, {}, {}),
    ("AdamOptimizer", {"W": {"alpha": 0.8, "beta": 0.99, "lambda": 0.1, "epsilon": 1e-4}, "b": {"alpha": 0.5}}, {}, {}),
    ("AdamOptimizer", {"W": {"lambda": 0.1}}, {"W": {"do_bias_correction": 0}}, {"W": {"correct": 0}}),
    ("AdamOptimizer", {"V": {"lambda": 0.1}}, {"V": {"weight_decay_mode": 1}}, {"V": {"late": 1}}),
    ("AdamWOptimizer", {n: {"weight_decay": 0.1, "epsilon": 1e-6} for n in WEIGHTS}, {}, {}),
    (
        "AdamWOptimizer",
        {n: {"weight_decay": 0.0, "epsilon": 1e-6} for n in WEIGHTS},
        {n: {"adam_mode": 1, "correct_bias": 0} for n in WEIGHTS},
        {n: {"late": 1, "correct": 0} for n in WEIGHTS},
    ),
    ("LambOptimizer", {}, {}, {}),
    ("LambOptimizer", {"W": {"ratio_max": 0.5, "lambda": 0.1}, "b": {"ratio_min": 3.0}}, {}, {}),
]
NAMES = {"weight_decay": "lambda", "ratio_min": "lo", "ratio_max": "hi"}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("kind", "floats", "integers", "more"), CASES)
def test_optimizers(kind, floats, integers, more, clip):
    given = parameters(
        kind,
        optimizer_attributes_map=floats,
        optimizer_int_attributes_map=integers,
        enable_grad_norm_clip=clip,
    )
    session = TrainingSession(with_loss(), given)
    train(session, 10)
    settings = {name: {NAMES.get(k, k): x for k, x in one.items()} for name, one in floats.items()}
    for name, one in more.items():
        settings[name] = {**settings.get(name, {}), **one}
    limit = 1.0 if clip and kind != "SGDOptimizer" else None
    for name, array in reference_weights(kind, 10, 0.01, settings, limit).items():
        np.testing.assert_allclose(session.get_state()[name], array, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "optimizer", "attributes"),
    [
        ("SGDOptimizer", SGD(), {}),
        ("AdamOptimizer", Adam(), {"epsilon": 1e-8}),
        ("AdamWOptimizer", AdamW(weight_decay=0.05), {"weight_decay": 0.05}),
    ],
)
def test_a_session_trains_as_our_estimator_does(kind, optimizer, attributes, engine):
    maps = {"optimizer_attributes_map": dict.fromkeys(WEIGHTS, attributes)}
    session = TrainingSession(with_loss(), parameters(kind, enable_grad_norm_clip=False, **maps), engine=engine)
    estimator = OrtGradientRegressor(net(), optimizer=optimizer, learning_rate_init=0.01, engine=engine)
    for i in range(20):
        rows = slice(i % 4 * 10, i % 4 * 10 + 10)
        (loss,) = session.run(["loss"], feed(0.01, rows))
        estimator.partial_fit(X[rows], Y[rows].ravel())
        np.testing.assert_allclose(loss, estimator.loss_, rtol=1e-3, atol=1e-5)
    for name, array in estimator.weights_.items():
        np.testing.assert_allclose(session.get_state()[name], array, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [0.0, 8.0])
@pytest.mark.parametrize("shape", ["1", "1, 1", "1, 1, 1"])
def test_a_loss_of_one_element(shape, scale, engine):
    ones = np.ones(shape.count("1"), np.int64)
    body = BODY + " D = Sub(P, y) Q = Mul(D, D) M = ReduceMean<keepdims = 0>(Q) loss = Reshape(M, ones)"
    model = net(body, "float[N, 3] X, float[N, 1] y", f"float[{shape}] loss", {**WEIGHTS, "ones": ones})
    session = TrainingSession(model.SerializeToString(), parameters(loss_scale=scale), engine=engine)
    assert session.get_outputs()[0].shape == [1] * len(ones)
    (loss,) = session.run(["loss"], feed(0.01))
    h = np.tanh(X.astype(float) @ WEIGHTS["W"] + WEIGHTS["b"])
    np.testing.assert_allclose(loss, np.reshape(((h @ WEIGHTS["V"] - Y) ** 2).mean(), ones), rtol=1e-5)
    for name, array in reference_weights("SGDOptimizer", 1, 0.01, {}, None).items():
        np.testing.assert_allclose(session.get_state()[name], array, rtol=1e-5, atol=1e-6)


def test_a_loop_over_the_c_bindings():
    """onnxcustom's loops bind to ``_iobinding`` and run ``_sess``; a run with a rate takes a step."""
    device = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
    session, other = (TrainingSession(with_loss(), parameters()) for _ in range(2))
    bind = session.io_binding()._iobinding
    given = feed(0.01)
    out = np.zeros((40, 1), np.float32)
    for name in ("X", "y"):
        bind.bind_input(name, device, given[name].dtype, given[name].shape, given[name].ctypes.data)
    bind.bind_ortvalue_input("Learning_Rate", C.OrtValue.ortvalue_from_numpy(given["Learning_Rate"], device))
    bind.bind_output("loss", device)
    bind.bind_output("P", device, np.float32, out.shape, out.ctypes.data)
    assert [value.name for value in session._sess.inputs_meta] == ["X", "y", "Learning_Rate"]
    for _ in range(5):
        session._sess.run_with_iobinding(bind, None)
        loss, predicted = other.run(["loss", "P"], given)
        np.testing.assert_array_equal(bind.get_outputs()[0].numpy(), loss)
        np.testing.assert_array_equal(bind.copy_outputs_to_cpu()[0], loss)
        np.testing.assert_array_equal(out, predicted)
    for name, array in reference_weights("SGDOptimizer", 5, 0.01, {}, None).items():
        np.testing.assert_allclose(session._sess.get_state()[name], array, rtol=1e-4, atol=1e-5)
    values = {name: C.OrtValue.ortvalue_from_numpy(given[name], device) for name in ("X", "y")}
    (loss,) = session._sess.run_with_ort_values(values, ["loss"], None)
    assert isinstance(loss, C.OrtValue)
    np.testing.assert_array_equal(loss.numpy(), session._sess.run(["loss"], feed(), None)[0])
    with pytest.raises(TypeError, match="expected the _iobinding"):
        session._sess.run_with_iobinding(session.io_binding(), None)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        session._sess.nothing  # noqa: B018


def test_without_the_rate_nothing_is_trained():
    session = TrainingSession(with_loss(), parameters())
    first = session.run(None, feed())
    assert [a.shape for a in first] == [(), (40, 1)]
    assert session.run(["loss"], feed()) == session.run(["loss"], feed())
    np.testing.assert_array_equal(session.get_state()["W"], WEIGHTS["W"])


def test_accumulated_gradients():
    session = TrainingSession(with_loss(), parameters(gradient_accumulation_steps=4))
    for i in range(4):
        np.testing.assert_array_equal(session.get_state()["W"], WEIGHTS["W"])
        session.run(["loss"], feed(0.1, slice(10 * i, 10 * i + 10)))
    whole = TrainingSession(with_loss(), parameters())
    whole.run(["loss"], feed(0.1))
    for name in WEIGHTS:
        np.testing.assert_allclose(session.get_state()[name], whole.get_state()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_as_outputs(engine):
    session = TrainingSession(with_loss(), parameters("", set_gradients_as_graph_outputs=True), engine=engine)
    assert [v.name for v in session.get_outputs()] == ["loss", "P", "W_grad", "b_grad", "V_grad"]
    assert [v.name for v in session.get_inputs()] == ["X", "y"]
    found = session.run(["W_grad", "b_grad", "V_grad"], feed())
    for array, expected in zip(found, numpy_gradients(WEIGHTS).values(), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-5)
    assert session.get_optimizer_state() == {}


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({}, {"W", "b", "V"}),
        ({"weights_to_train": {"W"}}, {"W"}),
        ({"weights_not_to_train": {"W"}}, {"b", "V"}),
        ({"immutable_weights": {"Mul": {1: 0.5}}}, {"W", "b", "V"}),
        ({"immutable_weights": {"Mul": {1: 2.0}}}, {"W", "b", "V", "half"}),
        ({"immutable_weights": {"Add": {1: 0.5}}}, {"W", "b", "V", "half"}),
    ],
)
def test_weights_to_train(attributes, names):
    body, weights = BODY, WEIGHTS
    if "immutable_weights" in attributes:
        body = BODY.replace("P = MatMul(H, V)", "R = MatMul(H, V) P = Mul(R, half)")
        weights = {**WEIGHTS, "half": np.array([0.5], np.float32)}
    session = TrainingSession(with_loss(body, weights=weights), parameters(**attributes))
    assert set(session.get_model_state()["full_precision"]) == names
    train(session, 1)
    assert all(np.abs(session.get_state()[n] - weights[n]).max() > 0 for n in names)


def test_another_name_of_the_rate():
    session = TrainingSession(with_loss(), parameters(lr_params_feed_name="lr"))
    session.run(["loss"], {**feed(), "lr": np.array([0.1], np.float32)})
    assert np.abs(session.get_state()["W"] - WEIGHTS["W"]).max() > 0
    assert [v.name for v in session.get_inputs()] == ["X", "y", "lr"]
    with pytest.raises(ValueError, match="no input 'Learning_Rate'"):
        session.run(["loss"], feed(0.1))


@pytest.mark.parametrize("engine", ENGINES)
def test_graphs_are_written(tmp_path, engine):
    paths = {f"model_{n}_path": str(tmp_path / f"{n}.onnx") for n in
             ("after_graph_transforms", "with_gradient_graph", "with_training_graph")}  # fmt: skip
    session = TrainingSession(with_loss(), parameters("AdamOptimizer", **paths), engine=engine)
    transformed, gradient, whole = (onnx.load(path) for path in paths.values())
    assert [o.name for o in transformed.graph.output] == ["loss", "P"]
    assert {"W_grad", "b_grad", "V_grad"} <= {o.name for o in gradient.graph.output}
    step = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    before = session.get_state()
    counts = {n: a + 1 for n, a in before.items() if n.startswith("Update_Count")}
    new = dict(
        zip([o.name for o in step.get_outputs()], step.run(None, {**feed(0.01), **before, **counts}), strict=True)
    )
    train(session, 1)
    for name in WEIGHTS:
        np.testing.assert_allclose(new[f"New_{name}"], session.get_state()[name], rtol=1e-6)
        np.testing.assert_allclose(new[f"New_Moment_2_{name}"], session.get_state()[f"Moment_2_{name}"], rtol=1e-6)


def test_values_and_bindings():
    runs = [TrainingSession(with_loss(), parameters()) for _ in range(3)]
    expected = runs[0].run(["loss", "P"], feed(0.1))
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in feed(0.1).items()}
    found = runs[1].run_with_ort_values(["loss", "P"], values)
    for value, array in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), array)
    binding, data, place = runs[2].io_binding(), feed(0.1), np.zeros((40, 1), np.float32)
    binding.bind_cpu_input("X", data["X"])
    binding.bind_ortvalue_input("y", values["y"])
    rate = data["Learning_Rate"]
    binding.bind_input("Learning_Rate", "cpu", 0, np.float32, [1], rate.ctypes.data)
    binding.bind_output("loss")
    binding.bind_output("P", "cpu", 0, np.float32, [40, 1], place.ctypes.data)
    runs[2].run_with_iobinding(binding)
    np.testing.assert_array_equal(place, expected[1])
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected[0])
    np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), expected[1])
    np.testing.assert_array_equal(binding.get_outputs_as_ortvaluevector()[1].numpy(), expected[1])
    assert {n for n in vars(onnxruntime.IOBinding) if n[0] != "_"} <= set(dir(binding))
    out = onnxruntime.OrtValue.ortvalue_from_shape_and_type([40, 1], np.float32)
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("P", out)
    rate[0] = 0  # memory that is bound is read at each run
    before = runs[2].get_state()
    runs[2].run_with_iobinding(binding)
    np.testing.assert_array_equal(runs[2].get_state()["W"], before["W"])
    np.testing.assert_array_equal(out.numpy(), runs[2].run(["P"], feed())[0])
    for run in runs[1:]:
        np.testing.assert_array_equal(run.get_state()["W"], runs[0].get_state()["W"])
    binding.clear_binding_outputs()
    binding.bind_output("P", "cpu", 0, np.float32, [4, 1], place.ctypes.data)
    with pytest.raises(ValueError, match=r"'P' is float32\[40, 1\], but is bound"):
        runs[2].run_with_iobinding(binding)
    with pytest.raises(ValueError, match="no input 'Z'"):
        binding.bind_cpu_input("Z", place)
    with pytest.raises(ValueError, match="bind only host memory"):
        binding.bind_output("P", "cuda")
    with pytest.raises(TypeError, match=r"what io_binding\(\) returns"):
        runs[2].run_with_iobinding(object())


def test_introspection():
    session = TrainingSession(with_loss(), parameters())
    assert [(v.name, v.type, v.shape) for v in session.get_inputs()] == [
        ("X", "tensor(float)", ["N", 3]),
        ("y", "tensor(float)", ["N", 1]),
        ("Learning_Rate", "tensor(float)", [1]),
    ]
    assert session.is_output_fp32_node("loss")
    with pytest.raises(ValueError, match="Unknown name 'lost' in output_name"):
        session.is_output_fp32_node("lost")
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "CPUExecutionProvider" in session.get_provider_options()
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.get_modelmeta().graph_name
    assert session.get_overridable_initializers() == []
    assert session.get_profiling_start_time_ns() >= 0
    session.disable_fallback()
    session.enable_fallback()
    assert "get_providers" in dir(session)
    with pytest.raises(AttributeError, match="no attribute 'none'"):
        _ = session.none
    losses = train(session, 2)
    session.set_providers(["CPUExecutionProvider"])
    assert train(session, 1)[0] < losses[-1]
    with pytest.raises(ValueError, match="Unknown execution provider"):
        session.set_providers(["None"])


def test_options_of_the_session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = TrainingSession(with_loss(), parameters(), options, ["CPUExecutionProvider"], [{}])
    assert session.get_session_options().intra_op_num_threads == 2
    with pytest.raises(TypeError, match=r"onnxruntime\.SessionOptions"):
        TrainingSession(with_loss(), parameters(), {})
    with pytest.raises(TypeError, match=r"onnxruntime\.RunOptions"):
        session.run(None, feed(), {})
    session.run(None, feed(), onnxruntime.RunOptions())


@pytest.mark.parametrize(
    ("attributes", "match"),
    [
        ({"loss_output_name": "los"}, "loss_output_name='los' is no output"),
        ({"loss_output_name": "P"}, "must have one element"),
        ({"training_optimizer_name": "Adam"}, "Unknown training_optimizer_name 'Adam'"),
        ({"weights_to_train": {"w"}}, "Unknown name 'w' in weights_to_train"),
        ({"weights_not_to_train": {"W", "b", "V"}}, "no weight to train"),
        ({"weights_to_train": {"W"}, "weights_not_to_train": {"W"}}, "both name"),
        ({"gradient_accumulation_steps": 0}, "at least 1"),
        ({"optimizer_attributes_map": {"w": {}}}, "Unknown name 'w' in optimizer_attributes_map"),
        ({"optimizer_attributes_map": {"W": {"alpha": 1.0}}}, "SGDOptimizer has no attribute 'alpha'"),
        ({"loss_scale": -1.0}, "loss_scale must be a positive number"),
        ({"use_mixed_precision": True}, "use_mixed_precision=True does not apply"),
        ({"use_fp16_moments": True}, "use_fp16_moments=True does not apply"),
        ({"horizontal_parallel_size": 2}, "horizontal_parallel_size=2 does not apply"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 does not apply"),
        ({"world_size": 2}, "world_size=2 does not apply"),
    ],
)
def test_wrong_parameters(attributes, match):
    with pytest.raises(ValueError, match=match):
        TrainingSession(with_loss(), parameters(**attributes))


@needs_training
def test_parameters_are_those_of_onnxruntime():
    ours, theirs = TrainingParameters(), C.TrainingParameters()
    for name in (n for n in dir(theirs) if n[0] != "_" and not callable(getattr(theirs, n))):
        assert getattr(ours, name) == getattr(theirs, name), name
    with pytest.raises(AttributeError, match="no attribute 'learning_rate'"):
        ours.learning_rate = 1.0
    with pytest.raises(TypeError, match="must be TrainingParameters"):
        TrainingSession(with_loss(), theirs)


def test_wrong_feeds():
    session = TrainingSession(with_loss(), parameters())
    with pytest.raises(ValueError, match="no input 'Z'"):
        session.run(None, {**feed(), "Z": X})
    with pytest.raises(ValueError, match="Unknown name 'Z' in output_names"):
        session.run(["Z"], feed())
    with pytest.raises(ValueError, match="one number, got 2"):
        session.run(None, {**feed(), "Learning_Rate": np.ones(2)})
    with pytest.raises(ValueError, match="does not run on the data"):
        session.run(None, {**feed(0.1), "X": X[:, :2]})
    np.testing.assert_array_equal(session.get_state()["W"], WEIGHTS["W"])
