"""Names of devices, and the execution providers behind them: what is chosen, what is refused, what does not start."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._ort.devices import Device, resolve_device
from onnxtrain_sklearn._ort.sessions import create_session
from onnxtrain_sklearn.exceptions import DeviceError

CPU = "CPUExecutionProvider"
DOUBLED = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> g (float[N] X) => (float[N] Y) { Y = Add(X, X) }""").SerializeToString()
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
without_cuda = pytest.mark.skipif(HAS_CUDA, reason="this build has CUDA")


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_cpu(name):
    assert resolve_device(name) == Device(name, (CPU,), ({},))


def test_named_providers_and_their_options():
    assert resolve_device("cpu", [CPU], [{"flag": 1}]) == Device("cpu", (CPU,), ({"flag": "1"},))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("gpu",), ValueError, r"Unknown device 'gpu'\. Did you mean 'cpu'.*Valid names: 'cpu', 'cuda'"),
        (("cuda:x",), ValueError, r"Unknown device 'cuda:x'\. Did you mean 'cuda'.*A number may follow: 'cuda:1'"),
        ((None,), ValueError, "Unknown device None"),
        (("cpu", []), ValueError, "providers is an empty list"),
        (("cpu", [CPU], [{}, {}]), ValueError, "provider_options has 2 entries for 1 providers .*; give one dict each"),
        (("cpu", [(CPU, {})]), TypeError, "providers must list names, provider_options one dict for each"),
        (
            ("cpu", ["NoneProvider"]),
            DeviceError,
            r"^providers=\['NoneProvider'\] needs NoneProvider, which the .* lacks; it has [^?]*CPU[^?]*$",
        ),
        (("cpu", ["CPU"]), DeviceError, r"needs CPU, .* lacks; .* Did you mean 'CPUExecutionProvider'\?"),
        (("cpu", ["CUDA"]), DeviceError, r"needs CUDA, .* lacks; .* Did you mean 'CUDAExecutionProvider'\?"),
        (("cpu", ["CUDAProvider"]), DeviceError, r"Did you mean 'CUDAExecutionProvider'\?"),
        (("cpu", ["openvino"]), DeviceError, r"Did you mean 'OpenVINOExecutionProvider'\?"),
        (("cpu", ["cudaexecutionprovider"]), DeviceError, r"Did you mean 'CUDAExecutionProvider'\?"),
        (("cpu", ["TensorRT"]), DeviceError, r"Did you mean 'TensorrtExecutionProvider'\?"),
    ],
)
def test_wrong_devices(arguments, error, message):
    with pytest.raises(error, match=message):
        resolve_device(*arguments)


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_a_cuda_build(device):
    message = rf"device='{device}' needs CUDAExecutionProvider, .* {onnxruntime.__version__} \(onnxruntime.*\) lacks"
    with pytest.raises(DeviceError, match=message + r".*onnxtrain-sklearn\[portable-cuda\].*use device='cpu'"):
        resolve_device(device)
    with pytest.raises(DeviceError, match=message):
        OrtGradientRegressor(device=device).fit(np.eye(4), np.arange(4.0))


def test_cuda_with_a_cuda_build(monkeypatch):
    started = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(devices, "require_cuda", started.append)
    exact = {"use_tf32": "0"}
    assert resolve_device("cuda") == Device("cuda", ("CUDAExecutionProvider", CPU), (exact, {}))
    assert resolve_device("cuda:1").provider_options == ({"device_id": "1", **exact}, {})
    named = resolve_device("cuda:1", ["CUDAExecutionProvider"], [{"device_id": 2, "use_tf32": 1}])
    assert named.provider_options == ({"device_id": "2", "use_tf32": "1"}, {})
    assert resolve_device("cpu", [CPU, "CUDAExecutionProvider"]).provider_options == ({}, exact, {})
    assert started == [0, 1, 2, 0]


@pytest.mark.parametrize("option", ["enable_cuda_graph", "trt_cuda_graph_enable"])
def test_captured_graphs_are_refused(option, monkeypatch):
    provider = "TensorrtExecutionProvider" if option.startswith("trt") else "CUDAExecutionProvider"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [provider, CPU])
    monkeypatch.setattr(devices, "require_cuda", lambda index: None)
    with pytest.raises(ValueError, match=f"must not have '{option}': a captured graph"):
        resolve_device("cpu", [provider], [{option: 1}])
    assert resolve_device("cpu", [provider], [{option: 0}]).provider_options[0][option] == "0"


@without_cuda
def test_cuda_that_does_not_start(monkeypatch):
    """A build for CUDA is installed, but its libraries or the GPU are missing."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(
        onnxruntime, "preload_dlls", lambda: print("Failed to load libcublas.so.13: no such file"), raising=False
    )
    devices.load_libraries.cache_clear()
    with pytest.raises(
        DeviceError, match=r"CUDA device 1 could not .*: Failed to load libcublas.* nvidia-smi .*cuda\]"
    ):
        resolve_device("cuda:1")
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    devices.load_libraries.cache_clear()
    with pytest.raises(DeviceError, match=r"CUDA device 0 could not be started .*: Can't allocate memory"):
        OrtGradientRegressor(device="cuda").fit(np.eye(4), np.arange(4.0))
    devices.load_libraries.cache_clear()


@without_cuda
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_provider_that_does_not_start():
    device = Device("cuda", ("CUDAExecutionProvider", CPU), ({}, {}))
    with pytest.raises(DeviceError, match=r"CUDAExecutionProvider could not be started .*'cuda'; .* fell back"):
        create_session(DOUBLED, device)
