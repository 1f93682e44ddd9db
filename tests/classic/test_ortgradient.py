"""OrtGradientForwardBackward: passes against central differences, pending passes, names, pickles, errors."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as C

from onnxtrain_sklearn.classic.ortgradient import OrtGradientForwardBackward, OrtGradientForwardBackwardFunction
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.passes import BIAS, ENGINES, ONE, THREE, TWO, net, slopes

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 3)).astype(np.float32)
W = np.array([[1, -2], [3, 0.5], [0.25, -1]], np.float32)
B = np.array([0.5, -0.25], np.float32)


def one(**options):
    return OrtGradientForwardBackward(net(*ONE, weights=BIAS), **options)


def gradient(shape):
    return RNG.normal(size=shape).astype(np.float32)


def arrays(vector):
    return [np.array(value.numpy()) for value in vector]


def assert_slopes(trained, inputs, grads):
    function = trained.new_instance()
    outputs = arrays(function.forward(inputs, training=True))
    found = dict(zip(trained.cls_type_._bw_fetches_names, arrays(function.backward(list(grads.values()))), strict=True))
    model = trained.cls_type_._optimized_pre_grad_model
    feeds = dict(zip(trained.cls_type_._grad_input_names, inputs, strict=True))
    expected = slopes(model, feeds, grads)
    assert found.keys() == {f"{name}_grad" for name in expected}
    for name, slope in expected.items():
        np.testing.assert_allclose(found[f"{name}_grad"], slope, rtol=1e-3, atol=1e-3)
    evaluated = arrays(trained.new_instance().forward(inputs))
    for a, b in zip(outputs, evaluated, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("graph", "shapes"),
    [(ONE, {"Y": (4, 2)}), (TWO, {"Y": (4, 2), "V": (4, 2)}), (THREE, {"V": (4, 2), "S": (), "Y": (4, 2)})],
    ids=["one", "two", "three"],
)
def test_gradients_of_one_two_and_three_outputs(graph, shapes, engine):
    trained = OrtGradientForwardBackward(net(*graph, weights=BIAS), engine=engine)
    assert_slopes(trained, [X, W, B], {name: gradient(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("engine", ENGINES)
def test_subset_of_weights_and_outputs_in_any_order(engine):
    model = net(*THREE, weights=BIAS)
    trained = OrtGradientForwardBackward(model, ["b", "W"], output_names=["Y", "V"], engine=engine)
    assert trained.cls_type_._bw_fetches_names == ["X_grad", "b_grad", "W_grad"]
    assert_slopes(trained, [X, B, W], {"Y": gradient((4, 2)), "V": gradient((4, 2))})
    part = OrtGradientForwardBackward(model, ["b"], output_names=["S"], engine=engine)
    assert_slopes(part, [X, B], {"S": gradient(())})


@pytest.mark.parametrize("engine", ENGINES)
def test_integer_inputs_and_outputs_have_no_gradient(engine):
    model = net(
        "E = Gather(W, I) Y = Mul(E, X) K = Add(I, I)",
        "int64[N] K, float[N, 2] Y",
        inputs="int64[N] I, float[N, 2] X",
        weights="float[3, 2] W = {1, -2, 3, 0.5, 0.25, -1}",
    )
    trained = OrtGradientForwardBackward(model, engine=engine)
    assert trained.cls_type_._bw_fetches_names == ["X_grad", "W_grad"]
    index, data, grad = np.array([2, 0, 2, 2]), gradient((4, 2)), gradient((4, 2))
    function = trained.new_instance()
    integers, products = arrays(function.forward([index, data, W], training=True))
    np.testing.assert_array_equal(integers, 2 * index)
    np.testing.assert_allclose(products, W[index] * data)
    x_grad, w_grad = arrays(function.backward(grad))
    np.testing.assert_allclose(x_grad, grad * W[index])
    expected = np.zeros_like(W)
    np.add.at(expected, index, grad * data)
    np.testing.assert_allclose(w_grad, expected, rtol=1e-6)


def test_float64():
    body = "Z = MatMul(X, W) Y = Tanh(Z)"
    double = net(body, "double[N, 2] Y", inputs="double[N, 3] X", weights="double[3, 2] W = {1, -2, 3, 0.5, 0.25, -1}")
    trained = OrtGradientForwardBackward(double)
    function = trained.new_instance()
    function.forward([X.astype(np.float64), W.astype(np.float64)], training=True)
    grad = np.ones((4, 2))
    found = arrays(function.backward([grad]))
    expected = slopes(trained.cls_type_._optimized_pre_grad_model, {"X": X, "W": W}, {"Y": grad})
    assert [a.dtype for a in found] == [np.float64] * 2
    np.testing.assert_allclose(found[1], expected["W"], rtol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_pending_passes_run_backward_in_any_order(order, engine):
    trained = one(engine=engine)
    data, grads = [gradient((n, 3)) for n in (2, 4, 3)], [gradient((n, 2)) for n in (2, 4, 3)]
    expected = []
    for x, grad in zip(data, grads, strict=True):
        function = trained.new_instance()
        function.forward([x, W, B], training=True)
        expected.append(arrays(function.backward([grad])))
    instances = [trained.new_instance() for _ in data]
    for function, x in zip(instances, data, strict=True):
        function.forward([x, W, B], training=True)
    for i in order:
        for a, b in zip(arrays(instances[i].backward([grads[i]])), expected[i], strict=True):
            np.testing.assert_array_equal(a, b)
    waiting, function = list(range(3)), trained.new_instance()
    for x in data:
        function.forward([x, W, B], training=True)
    for i in order:
        found = arrays(function.backward([grads[i]], pending=waiting.index(i)))
        waiting.remove(i)
        for a, b in zip(found, expected[i], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(function.saved_tensors[0].numpy(), data[i])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_pending_pass_is_the_first_to_run_backward(engine):
    function = one(engine=engine).new_instance()
    function.forward([X, W, B], training=True)
    function.forward([2 * X, W, B], training=True)
    np.testing.assert_array_equal(function.saved_tensors[0].numpy(), 2 * X)
    grad = np.ones((4, 2), np.float32)
    second, first = arrays(function.backward([grad])), arrays(function.backward([grad]))
    np.testing.assert_allclose(first[2], (1 - np.tanh(X @ W + B) ** 2).sum(0), rtol=1e-3)
    np.testing.assert_allclose(second[2], (1 - np.tanh(2 * X @ W + B) ** 2).sum(0), rtol=1e-3)
    with pytest.raises(RuntimeError, match="0 forward passes await"):
        function.backward([grad])


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_may_change_between_the_passes(engine):
    function, x = one(engine=engine).new_instance(), X.copy()
    function.forward([x, W, B], training=True)
    x[...] = np.nan
    found = arrays(function.backward([np.ones((4, 2), np.float32)]))
    np.testing.assert_allclose(found[1], X.T @ (1 - np.tanh(X @ W + B) ** 2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_values_vectors_and_arrays_give_the_same(engine):
    trained, grad = one(engine=engine), gradient((4, 2))
    wrapped = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in (X, W, B)]
    vector = trained.cls_type_.input_to_ort([X, W, B], trained.cls_type_._fw_outputs_device_info * 3, True)
    assert isinstance(vector, C.OrtValueVector)
    results = []
    for inputs in ([X, W, B], wrapped, [value._ortvalue for value in wrapped], vector):
        for given in (grad, [grad], [onnxruntime.OrtValue.ortvalue_from_numpy(grad)], grad.ravel(), grad.astype(float)):
            function = trained.new_instance()
            function.forward(inputs, training=True)
            results.append(arrays(function.backward(given)))
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors_of_results_are_filled_or_written_again(engine):
    function, grad = one(engine=engine).new_instance(), np.ones((4, 2), np.float32)
    outputs, grads = C.OrtValueVector(), C.OrtValueVector()
    assert function.forward([X, W, B], True, outputs) is outputs
    assert function.backward([grad], grads) is grads
    places = [value.data_ptr() for value in (*outputs, *grads)]
    first = arrays(grads)
    function.forward([X + 1, W, B], True, outputs)
    function.backward([grad], grads)
    assert [value.data_ptr() for value in (*outputs, *grads)] == places
    np.testing.assert_allclose(outputs[0].numpy(), np.tanh((X + 1) @ W + B), rtol=1e-5)
    np.testing.assert_allclose(grads[2].numpy(), (1 - np.tanh((X + 1) @ W + B) ** 2).sum(0), rtol=1e-3, atol=1e-6)
    assert not np.allclose(first[2], grads[2].numpy())
    assert function.forward([X, W, B], False, outputs) is outputs
    np.testing.assert_allclose(outputs[0].numpy(), np.tanh(X @ W + B), rtol=1e-5)
    with pytest.raises(TypeError, match="must be an OrtValueVector, got list"):
        function.forward([X, W, B], forward_outputs_cache=[])
    with pytest.raises(ValueError, match="must be empty or hold 1 values, got 3"):
        function.forward([X, W, B], forward_outputs_cache=grads)


def test_masks_of_dropout_are_drawn_once():
    body = "Z, M = Dropout(X, r, t) Y = Mul(Z, w)"
    weights = "float r = {0.5}, bool t = {1}, float[1] w = {3}"
    model = net(body, "float[N, 3] Y", weights=weights)
    for engine in ENGINES:
        function = OrtGradientForwardBackward(model, ["w"], engine=engine).new_instance()
        x = np.ones((100, 3), np.float32)
        (y,) = arrays(function.forward([x, np.array([3], np.float32)], training=True))
        x_grad, _ = arrays(function.backward([np.ones_like(x)]))
        assert 0 < np.count_nonzero(y) < y.size
        np.testing.assert_array_equal(x_grad != 0, y != 0)


def test_attributes_of_the_class():
    cls = one(class_name="Net").cls_type_
    assert issubclass(cls, OrtGradientForwardBackwardFunction)
    assert cls.__name__ == "Net"
    assert (cls._input_names, cls._output_names, cls._weights_to_train) == (["X"], ["Y"], ["W", "b"])
    assert cls._grad_input_names == ["X", "W", "b"]
    assert cls._bw_fetches_names == ["X_grad", "W_grad", "b_grad"]
    assert [i.name for i in cls._sess.get_inputs()] == ["X"]
    assert [i.name for i in cls._sess_eval.get_inputs()] == ["X", "W", "b"]
    assert [i.name for i in cls._optimized_pre_grad_model.graph.input] == ["X", "W", "b"]
    assert isinstance(cls._trained_onnx, onnx.ModelProto)
    assert cls._graph_info.initializer_grad_names_to_train == ["W_grad", "b_grad"]
    assert len(cls._fw_outputs_device_info) == 1
    assert len(cls._bw_outputs_device_info) == 3
    assert cls.device_name(cls._fw_outputs_device_info[0]) == "cpu"
    assert callable(cls._training_agent.run_forward)
    assert callable(cls._training_agent.run_backward)
    agent = type(cls._training_agent).__name__
    assert agent == ("TrainingAgent" if hasattr(C, "TrainingAgent") else "TwoSessions")


def test_two_outputs_bind_to_own_devices():
    cls = OrtGradientForwardBackward(net(*TWO, weights=BIAS)).cls_type_
    assert len(cls._fw_outputs_device_info) == 2


def test_initializers():
    trained = one()
    np.testing.assert_array_equal(trained.get_initializer("W"), W)
    assert trained.get_initializer("w", exc=False) is None
    with pytest.raises(ValueError, match=r"no initializer 'w'\. Did you mean 'W'\? Valid names: 'W', 'b'"):
        trained.get_initializer("w")


def test_pickle():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    trained = one(weights_to_train=["b", "W"], sess_options=options, run_options=onnxruntime.RunOptions())
    copy = pickle.loads(pickle.dumps(trained))
    for name in ("weights_to_train", "input_names", "output_names", "class_name", "providers", "engine"):
        assert getattr(copy, name) == getattr(trained, name)
    assert copy.onnx_model == trained.onnx_model
    assert copy.sess_options.graph_optimization_level == options.graph_optimization_level
    results = []
    for each in (trained, copy):
        function = each.new_instance()
        function.forward([X, B, W], training=True)
        results.append(arrays(function.backward([np.ones((4, 2), np.float32)])))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_repr():
    assert repr(one()) == "OrtGradientForwardBackward(...)"
    assert OrtGradientForwardBackward._repr_helper_({"a": [1, "x"]}) == "a=[1, 'x']"


def test_graphs_are_saved(tmp_path):
    cls = one(class_name="Net").cls_type_
    contents = cls.save_onnx_graph(bytes)
    assert set(contents) == {"_trained_onnx", "_optimized_pre_grad_model"}
    files = cls.save_onnx_graph(str(tmp_path), prefix="a_", suffix="_b")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a_Net_optimized_pre_grad_model_b.onnx",
        "a_Net_trained_onnx_b.onnx",
    ]
    for name, path in files.items():
        assert onnx.load(path) == onnx.load_model_from_string(contents[name])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        cls.save_onnx_graph(str(tmp_path / "none"))


def test_given_by_path_and_bytes(tmp_path):
    model = net(*ONE, weights=BIAS)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    for given in (model.SerializeToString(), str(path), path):
        assert OrtGradientForwardBackward(given).weights_to_train == ["W", "b"]


def test_log(caplog):
    with caplog.at_level(logging.INFO, logger="onnxtrain_sklearn"):
        one(enable_logging=True).new_instance().forward([X, W, B])
    assert "_bw_fetches_names" in caplog.text
    assert "forward: {'Y': [4, 2]}" in caplog.text


def test_debug_finds_numbers_that_are_not_finite():
    function = one(debug=True).new_instance()
    function.forward([X, W, B], training=True)
    with pytest.raises(FloatingPointError, match="'Y' holds NaN"):
        function.forward([X * np.nan, W, B])
    with pytest.raises(FloatingPointError, match="'X_grad' holds NaN"):
        function.backward([np.full((4, 2), np.inf, np.float32)])


class Config:
    """The attributes of onnxruntime-training's OrtModuleGraphBuilderConfiguration."""

    initializer_names_to_train = ("b",)
    input_names_require_grad = ()
    build_gradient_graph = True
    enable_caching = False
    use_memory_efficient_gradient = False


def test_configuration_of_the_graph_builder():
    config = C.OrtModuleGraphBuilderConfiguration() if hasattr(C, "OrtModuleGraphBuilderConfiguration") else Config()
    config.initializer_names_to_train = ["b"]
    assert one(graph_builder_config=config).weights_to_train == ["b"]
    with pytest.raises(ValueError, match="contradicts"):
        one(weights_to_train=["W"], graph_builder_config=config)
    config.use_memory_efficient_gradient = True
    with pytest.raises(ValueError, match="use_memory_efficient_gradient=True has no meaning"):
        one(graph_builder_config=config)
    config.use_memory_efficient_gradient = False
    body = "Z = Mul(A, W) Y = Add(Z, D)"
    config.initializer_names_to_train, config.input_names_require_grad = [], ["D"]
    two = net(body, "float[N, 2] Y", inputs="float[N, 2] A, float[N, 2] D", weights="float[2] W = {1, 2}")
    trained = OrtGradientForwardBackward(two, graph_builder_config=config)
    assert trained.cls_type_._bw_fetches_names == ["D_grad", "W_grad"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"weights_to_train": ["w"]}, ValueError, "Unknown name 'w' in weights_to_train. Did you mean 'W'"),
        ({"weights_to_train": "W"}, TypeError, "weights_to_train must be a list of names"),
        ({"weights_to_train": ["W", "W"]}, ValueError, "contains a name twice"),
        ({"input_names": ["x"]}, ValueError, "Unknown name 'x' in input_names"),
        ({"input_names": []}, ValueError, "'X'.* are missing"),
        ({"output_names": ["Z"]}, ValueError, "Unknown name 'Z' in output_names"),
        ({"providers": ["NoProvider"]}, ValueError, "Unknown execution provider 'NoProvider'"),
        ({"sess_options": {}}, TypeError, "expected onnxruntime.SessionOptions"),
        ({"run_options": 3}, TypeError, "expected onnxruntime.RunOptions"),
        ({"engine": "none"}, ValueError, "Unknown engine"),
    ],
)
def test_wrong_arguments(options, error, match):
    with pytest.raises(error, match=match):
        one(**options)


def test_wrong_tensors():
    function = one().new_instance()
    with pytest.raises(RuntimeError, match="No tensors were saved"):
        _ = function.saved_tensors
    with pytest.raises(ValueError, match=r"expects 3 tensors \(X, W, b\), got 1"):
        function.forward([X])
    with pytest.raises(TypeError, match="'X' expects float32, got int64"):
        function.forward([X.astype(np.int64), W, B])
    with pytest.raises(TypeError, match="'X' expects float32, got float64"):
        function.forward([onnxruntime.OrtValue.ortvalue_from_numpy(X.astype(float)), W, B])
    with pytest.raises(ValueError, match="does not run"):
        function.forward([X[:, :2], W, B])
    function.forward([X, W, B], training=True)
    with pytest.raises(ValueError, match="expects 1 gradients, of Y; got 2"):
        function.backward([X, X])
    with pytest.raises(ValueError, match=r"gradient of 'Y' has shape \[4, 3\], but the output has shape"):
        function.backward([X])
    assert arrays(function.backward([np.ones((4, 2), np.float32)]))  # a refused gradient uses nothing up


def test_operators_without_a_gradient_are_refused():
    model = net("Z, M = Dropout(X, r, t) Y = MatMul(Z, W)", "float[N, 2] Y", weights="float r = {0.5}, bool t = {1}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "W"))
    with pytest.raises(UnsupportedOperatorError, match="Dropout"):
        OrtGradientForwardBackward(model)
    assert OrtGradientForwardBackward(model, ["W"]).weights_to_train == ["W"]


@pytest.mark.parametrize("engine", ENGINES)
def test_names_of_the_gradient_graph(engine):
    kind = OrtGradientForwardBackward(net(*ONE, weights=BIAS), engine=engine).cls_type_
    assert kind._onx_out == ["X_grad", "W_grad", "b_grad"]
    assert kind._onx_inp == ["X", "W", "b"]
