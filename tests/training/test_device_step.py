"""The step of devices with memory of their own, run in memory of the host's that only it can see."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, MLP, SGD, Adam, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._ort.binding import Binding, DeviceArray
from onnxtrain_sklearn._ort.devices import resolve_device
from onnxtrain_sklearn._ort.sessions import create_session
from onnxtrain_sklearn._training import device_step as _device_step
from onnxtrain_sklearn._training.device_step import ALIGNMENT
from onnxtrain_sklearn.exceptions import DivergenceError
from onnxtrain_sklearn.schedules import Cosine, Warmup
from tests.helpers.environment import OWN_MEMORY
from tests.helpers.meeting_losses import HardTriplets
from tests.helpers.observed import trained_on_device
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(53, 5)).astype(np.float32)
y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int) + (X[:, 3] > 0.5)
WEIGHTS = rng.uniform(0.1, 2.0, 53)

DROPOUT = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] X) => (float[N, 3] Y)
    <float[5, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, -0.1, -0.2, -0.3, -0.4, -0.5, 0.1, 0.2, 0.3, 0.4, 0.5},
     float r = {0.4}, bool t = {1}>
    { D = Dropout(X, r, t) Y = MatMul(D, W) }"""
)
BATCH_NORM = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] X) => (float[N, 3] Y)
    <float[5, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, -0.1, -0.2, -0.3, -0.4, -0.5, 0.1, 0.2, 0.3, 0.4, 0.5},
     float[5] s = {1, 1, 1, 1, 1},
     float[5] b = {0, 0, 0, 0, 0}, float[5] m = {0, 0, 0, 0, 0}, float[5] v = {1, 1, 1, 1, 1}>
    { B, n, u = BatchNormalization <training_mode = 1> (X, s, b, m, v) Y = MatMul(B, W) }"""
)

CASES = {
    "plain": {},
    "sgd": {"optimizer": SGD(momentum=0.9, nesterov=True)},
    "schedule": {"optimizer": "adam", "learning_rate": Warmup(5, Cosine())},
    "penalty": {"alpha": 0.3, "l1_ratio": 0.4},
    "clipping": {"optimizer__max_grad_norm": 0.05},
    "all of it": {"alpha": 0.3, "optimizer": Adam(weight_decay=0.1, max_grad_norm=0.05)},
    "one batch": {"batch_size": 64},
    "frozen": {"trainable": ["layers.1.*"]},
    "early stopping": {"early_stopping": True, "validation_split": 0.3},
    "dropout": {"model": DROPOUT},
    "batch statistics": {"model": BATCH_NORM},
    "rows meet in the loss": {"loss": HardTriplets(), "optimizer": SGD()},  # biases have no gradient but rounding
}


@pytest.fixture
def own_memory(monkeypatch):
    """Let the CPU pass for a device whose memory the host does not see."""
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")


def device_step_classifier(**settings):
    defaults = {"learning_rate_init": 0.02, "max_iter": 4, "batch_size": 16, "random_state": 0, "engine": "portable"}
    if "trainable" in settings:
        defaults["model"] = MLP((6,)).build(5, 3, 0)
    return configured(OrtGradientClassifier(), **{"model": MLP((6,))} | defaults | settings)


def assert_same_training(a, b, rtol=1e-5, atol=1e-6):
    assert_allclose(a.loss_curve_, b.loss_curve_, rtol=1e-5)
    for name, array in a.weights_.items():
        assert_allclose(array, b.weights_[name], rtol=rtol, atol=atol, err_msg=name)
    assert (a.n_iter_, a.t_, a.validation_scores_) == (b.n_iter_, b.t_, b.validation_scores_)


@pytest.mark.parametrize("limit", [2**31, 0], ids=["resident", "minibatches uploaded"])
@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_the_host(name, limit, monkeypatch):
    host = device_step_classifier(**CASES[name]).fit(X, y, WEIGHTS)
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    monkeypatch.setattr(_device_step, "RESIDENT_LIMIT", limit)
    device = device_step_classifier(**CASES[name]).fit(X, y, WEIGHTS)
    assert trained_on_device(device)
    assert not trained_on_device(host)
    assert_same_training(device, host)
    host_state, device_state = host._state.optimizer_state, device._state.optimizer_state
    assert (host_state.t, host_state.draws) == (device_state.t, device_state.draws)
    for slot, vector in host_state.slots.items():
        assert_allclose(device_state.slots[slot], vector, rtol=1e-4, atol=1e-6)


def test_parameters_are_aligned_and_nothing_between_them_moves(own_memory):
    settings = {"alpha": 0.3, "l1_ratio": 0.4, "optimizer": Adam(weight_decay=0.1, max_grad_norm=0.05)}
    fitted = device_step_classifier(model=MLP((7, 3)), optimizer__ema_decay=0.9, **settings).fit(X, y)
    vectors = fitted._state.live.step._vectors
    layout, own = vectors.layout, fitted._state.parameters
    taken = np.zeros(len(layout.vector), bool)
    for name in own.names:
        assert layout.span(name).start % ALIGNMENT == 0
        assert (vectors.parameter(name).pointer - vectors.buffer.pointer) % (4 * ALIGNMENT) == 0
        assert (vectors.gradient_of(name).pointer - vectors.gradient.pointer) % (4 * ALIGNMENT) == 0
        assert (layout.view(name) == own.view(name)).all()
        taken[layout.span(name)] = True
    assert taken.sum() == len(own.vector) < len(taken)
    for vector in (
        vectors.buffer.read()[: len(taken)],
        vectors.gradient.read(),
        *(s.read() for s in vectors.slots.values()),
    ):
        assert not vector[~taken].any()
        assert vector[taken].any()
    assert_array_equal(layout.average[taken], own.average)


def test_data_are_uploaded_once(own_memory, monkeypatch):
    uploaded = []
    write = DeviceArray.write
    monkeypatch.setattr(DeviceArray, "write", lambda self, a: (uploaded.append(a.nbytes), write(self, a))[1])
    device_step_classifier(max_iter=1).fit(X, y)
    once, uploaded[:] = uploaded.count(X.nbytes), []
    device_step_classifier(max_iter=7).fit(X, y)
    assert once == uploaded.count(X.nbytes) == 1


def test_the_host_reads_once_an_epoch(own_memory, monkeypatch):
    reads = []
    read = DeviceArray.read
    monkeypatch.setattr(DeviceArray, "read", lambda self: (reads.append(self.shape), read(self))[1])
    device_step_classifier(max_iter=5, batch_size=4, optimizer="sgd").fit(X, y)
    assert reads.count((14,)) == 10  # losses and penalties of the steps of an epoch
    assert len(reads) == 15  # and the weights


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly_and_change_between_host_and_device(how, own_memory, monkeypatch):
    device = device_step_classifier(optimizer="adam").partial_fit(X, y, classes=[0, 1, 2])
    twin, third = how(device), how(device)
    device.partial_fit(X[:30], y[:30])
    twin.partial_fit(X[:30], y[:30])
    for name, array in device.weights_.items():
        assert_array_equal(array, twin.weights_[name])
    monkeypatch.delitem(OWN_MEMORY, "CPUExecutionProvider")
    third.partial_fit(X[:30], y[:30])
    assert not trained_on_device(third)
    assert_same_training(third, device)


def test_several_inputs_sparse_rows_and_doubles(monkeypatch):
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] a, int64[N] k) => (float[N, 1] Y)
        <float[5, 1] W = {0.1, 0.2, 0.3, 0.4, 0.5}, float[3, 1] T = {1, 2, 3}>
        { p = MatMul(a, W) q = Gather(T, k) Y = Add(p, q) }"""
    )
    double = MLP((4,)).build(5, 1, 0)
    inputs = {"two": (graph, {"a": X, "k": y}), "sparse": (MLP((4,)), sp.csr_matrix(X)), "double": (double, X)}

    def trained(name):
        model, data = inputs[name]
        return OrtGradientRegressor(model, max_iter=3, random_state=0, batch_size=20).fit(data, X[:, 0] + y)

    hosts = {name: trained(name) for name in inputs}
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    for name, host in hosts.items():
        assert_same_training(trained(name), host)


def test_divergence_takes_back_weights_and_state(own_memory):
    fitted = device_step_classifier(optimizer="adam").partial_fit(X, y, classes=[0, 1, 2])
    before = fitted.weights_
    with pytest.raises(DivergenceError):
        fitted.set_params(learning_rate_init=1e38, alpha=1.0).partial_fit(X, y)
    for name, array in before.items():
        assert_array_equal(fitted.weights_[name], array)
    fitted.set_params(learning_rate_init=0.01, alpha=0.0).partial_fit(X, y)
    assert np.isfinite(fitted.loss_)


def test_an_interruption_keeps_the_weights_reached(own_memory, monkeypatch):
    run, left = Binding.run, [40]

    def interrupted(self, **changed):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return run(self, **changed)

    monkeypatch.setattr(Binding, "run", interrupted)
    fitted = device_step_classifier(batch_size=4, alpha=0)
    start = {t.name: onnx.numpy_helper.to_array(t) for t in MLP((6,)).build(5, 3, 0).graph.initializer}
    with pytest.warns(UserWarning, match="interrupted"):
        fitted.fit(X, y)
    assert fitted.n_iter_ == 1
    monkeypatch.undo()
    one = device_step_classifier(batch_size=4, alpha=0, max_iter=1).fit(X, y)
    assert start.keys() == one.weights_.keys()
    assert any((fitted.weights_[name] != one.weights_[name]).any() for name in one.weights_)


def test_lbfgs_trains_with_the_step_of_the_host(own_memory):
    fitted = device_step_classifier(optimizer=LBFGS(), alpha=0, max_iter=30).fit(X, y)
    assert not trained_on_device(fitted)
    assert fitted.loss_ < fitted.loss_curve_[0] / 2


# Memory of a device


def test_arrays_of_a_device_are_copies_with_parts():
    values = np.arange(12, dtype=np.float32)
    array = DeviceArray(values, ("cpu", 0))
    values[...] = 0
    assert_array_equal(array.read(), np.arange(12))
    part = array.part(3, (2, 2))
    assert (part.shape, part.pointer - array.pointer) == ((2, 2), 12)
    array.write(np.ones((3, 4)))
    assert_array_equal(array.read(), np.ones(12))
    scalar = DeviceArray(np.array(2.5), ("cpu", 0))
    assert (scalar.shape, scalar.read().item()) == ((), 2.5)


def test_inputs_are_bound_anew_for_each_run_on_a_device(own_memory, monkeypatch):
    doubled = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N] X) => (float[N] Y) { Y = Add(X, X) }'
    )
    session = create_session(doubled.SerializeToString(), resolve_device())
    vector = DeviceArray(np.arange(6, dtype=np.float32), ("cpu", 0))
    out = np.zeros(2, np.float32)
    binding = Binding(session, {"X": vector.part(0, (2,))}, {"Y": out})
    bound = []
    bind = Binding._bind
    monkeypatch.setattr(Binding, "_bind", lambda self, name: (bound.append(name), bind(self, name))[1])
    binding.run()
    assert out.tolist() == [0, 2]
    binding.run(X=vector.part(4, (2,)))
    assert out.tolist() == [8, 10]
    assert bound == ["X", "X"]


def test_only_providers_with_own_memory_use_device_step(monkeypatch):
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(devices, "require_cuda", lambda index: None)
    assert resolve_device("cpu").memory is None
    assert resolve_device("cuda").memory == ("cuda", 0)
    assert resolve_device("cuda:1").memory == ("cuda", 1)
    assert resolve_device("cpu", ["CUDAExecutionProvider"], [{"device_id": 2}]).memory == ("cuda", 2)
