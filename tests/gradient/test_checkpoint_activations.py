"""Activations that the backward pass computes again: the same numbers in less memory."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor, Runtime, clear_cache
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.data import DATA
from tests.helpers.environment import OWN_MEMORY, available_engines
from tests.helpers.graphs import in_double
from tests.helpers.observed import record_pass_sessions, trained_on_device
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 5)).astype(np.float32)
y = X[:, 0] * X[:, 1]
DEEP = MLP([8] * 12, "tanh")


def regressor(model=DEEP, **settings):
    defaults = {"max_iter": 4, "batch_size": 16, "learning_rate_init": 0.01, "tol": NEVER, "random_state": 0}
    return configured(OrtGradientRegressor(model), **defaults | {"engine": "portable"} | settings)


def both(**settings):
    return [regressor(runtime=Runtime(checkpoint_activations=again), **settings).fit(X, y) for again in (False, True)]


@pytest.fixture
def graphs(monkeypatch):
    """Return the list of the gradient graphs that sessions are made for."""
    return record_pass_sessions(monkeypatch)


def copies(graph):
    return [node for node in graph.graph.node if node.name.startswith("again/")]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": MLP([8] * 12)},
        {"model": MLP([8] * 6, normalization="batch", residual=True, dropout=0.3)},
        {"optimizer": LBFGS(), "batch_size": "auto"},
        {"optimizer__accumulate": 2, "optimizer__ema_decay": 0.9},
        {"batch_size": 24},
    ],
    ids=["tanh", "relu", "batch statistics and dropout", "lbfgs", "accumulated", "a last, shorter minibatch"],
)
def test_results_are_the_same_to_the_bit(settings, graphs):
    plain, again = both(**settings)
    assert not copies(graphs[0])
    assert copies(graphs[-1])
    assert plain.loss_curve_ == again.loss_curve_
    for name, array in plain.weights_.items():
        assert_array_equal(again.weights_[name], array)


def deep_network(skips, layers=24):
    """Return layers of tanh; those named by ``skips`` are added to the last one, whose gradient they get at once."""
    body = "".join(f"P{i} = MatMul(H{i}, W{i}) H{i + 1} = Tanh(P{i}) " for i in range(layers))
    body += "".join(f"S{n + 1} = Add({f'S{n}' if n else f'H{layers}'}, H{i}) " for n, i in enumerate(skips))
    last = f"S{len(skips)}" if skips else f"H{layers}"
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 8] H0) => (float[N, 1] Y)
        {{ {body} Y = MatMul({last}, V) }}""")
    draw = np.random.default_rng(1)
    arrays = {f"W{i}": draw.normal(size=(8, 8)) / 3 for i in range(layers)} | {"V": draw.normal(size=(8, 1))}
    tensors = (onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items())
    net.graph.initializer.extend(tensors)
    return net


@pytest.mark.parametrize("skips", [(2, 7, 12, 17), ()], ids=str)
def test_copies_wait_for_the_gradients_of_the_layers_above(graphs, skips):
    """However a runtime orders the nodes, no segment is computed again before the one above it was used."""
    regressor(deep_network(skips), max_iter=1, runtime=Runtime(checkpoint_activations=True)).fit(
        np.tile(X, 2)[:, :8], y
    )
    again = copies(graphs[-1])
    producers = {name: node for node in graphs[-1].graph.node for name in node.output}

    def above(node):
        """Return the nodes that must run before a node, and itself."""
        found, left = {node.name: node}, [node]
        while left:
            for name in left.pop().input:
                if name in producers and producers[name].name not in found:
                    found[producers[name].name] = producers[name]
                    left.append(producers[name])
        return set(found)

    signals = {node.input[0]: producers[node.input[0]] for node in again if node.op_type == "Where"}
    waiting = {name: {node.name for node in again if node.op_type == "Tanh" and signal.name in above(node)}
               for name, signal in signals.items()}  # fmt: skip
    needed = {name: above(signal) for name, signal in signals.items()}
    assert len(signals) >= 3
    order = sorted(signals, key=lambda name: len(needed[name]))
    for upper, lower in pairwise(order):
        assert waiting[upper] & needed[lower]


def test_checkpointing_may_change_between_calls(graphs):
    fitted = regressor(warm_start=True).fit(X, y)
    assert not copies(graphs[-1])
    fitted.set_params(runtime=Runtime(checkpoint_activations=True)).fit(X, y)
    assert copies(graphs[-1])
    assert fitted.loss_curve_ == regressor(max_iter=8).fit(X, y).loss_curve_


def test_graphs_of_float64(graphs):
    given = in_double(DEEP.build(5, 1, 0))
    plain, again = both(model=given)
    assert copies(graphs[-1])
    assert again._state.parameters.vector.dtype == np.float64
    assert_allclose(again.loss_curve_, plain.loss_curve_, rtol=1e-13)


def test_memory_of_a_device(monkeypatch):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    plain, again = both()
    assert trained_on_device(again)
    assert plain.loss_curve_ == again.loss_curve_


def rows_of(name):
    if name == "residual_bn":
        return rng.normal(size=(12, 3, 12, 12)).astype(np.float32), np.arange(12) % 5
    with np.load(DATA / f"{name}.npz") as archive:
        known = {key: archive[key] for key in archive if key not in ("losses", "scores")}
    labels = known.pop("y")
    return (known if len(known) > 1 else known["X"]), labels


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual_bn", "bert", "encoder"])
def test_exported_networks(name, graphs):
    rows, labels = rows_of(name)
    settings = {"optimizer": SGD(), "learning_rate_init": 0.02, "max_iter": 2, "batch_size": len(labels), "tol": NEVER}
    fitted = [
        OrtGradientClassifier(
            DATA / f"{name}.onnx", engine="portable", runtime=Runtime(checkpoint_activations=again), **settings
        )
        for again in (False, True)
    ]
    plain, again = (one.fit(rows, labels) for one in fitted)
    assert len(copies(graphs[-1])) > 10
    for weight, array in plain.weights_.items():
        assert_allclose(again.weights_[weight], array, rtol=1e-4, atol=1e-6)


PEAK = """
import re, sys
import numpy as np
from onnxtrain_sklearn import MLP, SGD, OrtGradientRegressor, Runtime

def memory(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024

X = np.random.default_rng(0).normal(size=(16384, 16)).astype(np.float32)
net = OrtGradientRegressor(
    MLP([64] * 20), optimizer=SGD(), batch_size=16384, max_iter=1, tol=-1e9, random_state=0, engine="portable",
    runtime=Runtime(checkpoint_activations=sys.argv[1] == "again"),
)
before = memory("VmRSS")
net.fit(X, X[:, 0])
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_the_peak_of_a_deep_network_is_less():
    """An activation takes 4 MiB, and 20 of them are kept; cotangents are freed as the backward pass goes."""
    peaks = []
    for mode in ("keep", "again"):
        command = [sys.executable, "-W", "ignore", "-c", PEAK, mode]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[0] < 150
    assert peaks[1] < 0.7 * peaks[0]


def test_onnxruntime_does_not_merge_the_copies(graphs, tmp_path):
    regressor(runtime=Runtime(checkpoint_activations=True)).fit(X, y)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(graphs[-1].SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    kinds = ("Tanh", "FusedGemm")  # the product is fused with its activation
    tanh = [sum(node.op_type in kinds for node in graph.graph.node) for graph in (graphs[-1], optimized)]
    assert tanh[0] > 12
    assert tanh[1] == tanh[0]


def test_other_engines():
    assert regressor(engine="auto", runtime=Runtime(checkpoint_activations=True)).fit(X, y).engine_ == "portable"
    if "ort-training" in available_engines():
        with pytest.raises(ValueError, match="checkpoint_activations=True needs the portable engine"):
            regressor(engine="ort-training", runtime=Runtime(checkpoint_activations=True)).fit(X, y)


def test_graphs_without_activations_warn():
    clear_cache()
    for _ in range(2):
        with pytest.warns(OnnxTrainWarning, match="checkpoint_activations=True has no effect"):
            regressor(Linear(), runtime=Runtime(checkpoint_activations=True)).fit(X, y)
    with pytest.raises(ValueError, match=r"The 'checkpoint_activations' parameter .* must be a bool"):
        regressor(runtime=Runtime(checkpoint_activations="sqrt")).fit(X, y)
