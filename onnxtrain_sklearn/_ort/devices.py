"""Devices: the execution providers that a name stands for, the memory that they compute in, the cores of this machine.

:func:`resolve_device` turns the parameters of an estimator into a :class:`Device`, and starts it: a device that cannot
be used is an error there, not a silent fallback to the CPU. :func:`resumed` does so for the device of a pickle.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from ..exceptions import DeviceError, InvalidParameterError, nearest
from .packages import installed_distributions, onnxruntime, pybind, version

OWN_MEMORY = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}
"""Execution providers with a memory of their own, and onnxruntime's name for that memory."""


@dataclass(frozen=True)
class Device:
    """Device of sessions: a name such as "cpu" or "cuda:1" and its execution providers."""

    name: str
    providers: tuple[str, ...]
    provider_options: tuple[dict[str, str], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """All parts of the device as a key."""
        return self.name, self.providers, tuple(tuple(sorted(chosen.items())) for chosen in self.provider_options)

    @property
    def memory(self) -> tuple[str, int] | None:
        """Name and index of the memory that the first provider computes in; None: host memory."""
        name = OWN_MEMORY.get(self.providers[0])
        return None if name is None else (name, int(self.provider_options[0].get("device_id", 0)))


_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_CPU = Device("cpu", (_PROVIDERS["cpu"],), ({},))


def resolve_device(
    device: str = "cpu",
    providers: Sequence[str] | None = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
) -> Device:
    """Return the execution providers of a device name, or check given providers; there is no fallback."""
    if type(device) is str and device == _CPU.name and providers is None and provider_options is None:
        return _CPU
    kind, _, index = str(device).partition(":")
    if kind not in _PROVIDERS or (index and not index.isdigit()):
        raise InvalidParameterError(
            f"Unknown device {device!r}.{nearest(kind, _PROVIDERS)} A number may follow: 'cuda:1'."
        )
    for name, value, one_kind in (("providers", providers, str), ("provider_options", provider_options, Mapping)):
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        if not (is_list and all(isinstance(one, one_kind) for one in value or ())) and value is not None:
            raise InvalidParameterError(
                f"providers must list names, provider_options one dict for each; got {name}={value!r}."
            )
    for name in (name for options in provider_options or () for name in options):
        if not isinstance(name, str):
            raise InvalidParameterError(
                f"The keys of provider_options must be names of options (strings), got {name!r}."
            )
    if providers is None and kind == "cpu" and any(provider_options or ()):
        raise InvalidParameterError(
            f"provider_options={provider_options!r} has no effect without providers: the CPU takes no options. Name "
            f"the provider that takes them in providers, or set another device."
        )
    names = list(providers) if providers is not None else [_PROVIDERS[kind]]
    if not names:
        raise InvalidParameterError("providers is an empty list: name at least one, or leave it None.")
    if kind != "cpu" and kind not in map(OWN_MEMORY.get, names):
        raise InvalidParameterError(
            f"device={device!r} is none of providers={names}: name {_PROVIDERS[kind]}, or leave one out."
        )
    options = [{k: str(v) for k, v in o.items()} for o in provider_options or [{} for _ in names]]
    if len(options) != len(names):
        raise InvalidParameterError(
            f"provider_options has {len(options)} entries for {len(names)} providers {names}; give one dict each."
        )
    if names != [_PROVIDERS["cpu"]]:  # which every onnxruntime has
        _check_available(names, f"device={device!r}" if providers is None else f"providers={names}")
    if index and providers is None and kind != "cpu":
        options[0].setdefault("device_id", index)
    _start_providers(names, options)
    if names[-1] != _PROVIDERS["cpu"]:
        names, options = [*names, _PROVIDERS["cpu"]], [*options, {}]
    return Device(str(device), tuple(names), tuple(options))


def resumed(device: Device) -> Device | None:
    """Return the device of a pickle, started in this process; None: it cannot be had here."""
    options = [dict(chosen) for chosen in device.provider_options]
    try:
        if missing_providers(device.providers):
            return None
        _start_providers(device.providers, options)
    except DeviceError:
        return None
    return replace(device, provider_options=tuple(options))


def _start_providers(names: Sequence[str], options: Sequence[dict[str, str]]) -> None:
    """Raise DeviceError if a device cannot be started, and compute products of float32 in float32.

    Options that capture graphs raise InvalidParameterError.

    By default onnxruntime rounds the operands of a product on CUDA to TF32, which has 10 bits after the leading one.
    """
    for name, chosen in zip(names, options, strict=True):
        if OWN_MEMORY.get(name) == "cuda":
            require_cuda(int(chosen.get("device_id", 0)))
        if name == _PROVIDERS["cuda"]:
            chosen.setdefault("use_tf32", "0")
        if captured := [option for option in chosen if "cuda_graph" in option and chosen[option] != "0"]:
            raise InvalidParameterError(
                f"provider_options must not have {captured[0]!r}: a captured graph reads the addresses of its first "
                f"run, and each minibatch lies at another one. Leave it out."
            )


def available_providers() -> list[str]:
    """Return the execution providers of the installed onnxruntime."""
    return list(onnxruntime.get_available_providers())


def missing_providers(names: Sequence[str]) -> list[str]:
    """Return the execution providers among ``names`` that this onnxruntime lacks."""
    available = available_providers()
    return [name for name in names if name not in available]


def _check_available(names: Sequence[str], setting: str) -> None:
    missing = missing_providers(names)
    available = available_providers()
    if missing:
        known = {_provider_stem(provider): provider for provider in onnxruntime.get_all_providers()}
        close = get_close_matches(_provider_stem(missing[0]), known, n=1, cutoff=0.7)
        meant = f" Did you mean {known[close[0]]!r}?" if close and missing[0] not in known.values() else ""
        raise DeviceError(
            f"{setting} needs {missing[0]}, which the installed onnxruntime {version()} "
            f"({', '.join(installed_distributions()) or 'unknown distribution'}) lacks; it has {', '.join(available)}."
            f"{meant} "
            f"For CUDA install onnxtrain-sklearn[portable-cuda] or [ort-training-cuda]; else use device='cpu'."
        )


def _provider_stem(provider: str) -> str:
    return provider.lower().removesuffix("provider").removesuffix("execution")


def available_threads() -> int:
    """Return the number of cores that this process may use; joblib sets OMP_NUM_THREADS to the share of a worker."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


# The start of CUDA: its libraries are loaded from NVIDIA's packages, and a device proves that it gives memory.
#
# onnxruntime finds the libraries of CUDA and cuDNN on the paths of the system alone. The packages of NVIDIA, which its
# extras install, lie elsewhere. Without them onnxruntime writes a line to the log and computes on the CPU.


ADVICE = (
    "Is there a GPU, and does nvidia-smi list it? CUDA and cuDNN must be those that onnxruntime was built for: "
    "pip install 'onnxtrain-sklearn[portable-cuda]' installs them as packages. Else use device='cpu'."
)


@cache
def load_libraries() -> str:
    """Load CUDA and cuDNN from NVIDIA's packages or from the system; return the libraries that were not found."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:  # before 1.21: only the paths of the system count
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        preload()
    return said.getvalue().strip()


@cache
def require_cuda(index: int) -> None:
    """Raise DeviceError unless the device with this index gives memory; once in a process where it does."""
    missing = load_libraries()
    try:
        device = pybind.OrtDevice(pybind.OrtDevice.cuda(), pybind.OrtDevice.default_memory(), index)
        pybind.OrtValue.ortvalue_from_shape_and_type([1], float, device)
    except Exception as error:  # each release has another class for it
        reason = (missing or str(error)).splitlines()[0].rstrip(".")
        raise DeviceError(
            f"CUDA device {index} could not be started by onnxruntime {version()}: {reason}. {ADVICE}"
        ) from error
