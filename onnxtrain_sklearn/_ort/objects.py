"""onnxruntime's own objects and files: values, devices, sessions, training agents, ORT format, adapter files.

``classic`` takes and returns the objects; of all this, the estimators use the adapter files only. An array that becomes
a value may lend its memory, to which onnxruntime holds no reference: the caller keeps the array alive, or copies it by
:func:`value_of`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .._utils.errors import refusing
from ..exceptions import ModelError, RuntimeNotFoundError, nearest
from .devices import OWN_MEMORY, Device, resolve_device
from .packages import onnxruntime, version
from .packages import pybind as C
from .sessions import ARRAY_TYPES, create_session
from .wrong_kernels import exact

OrtValue: TypeAlias = Any
"""``onnxruntime.capi._pybind_state.OrtValue``, which the wrapper ``onnxruntime.OrtValue`` holds."""
OrtValueVector: TypeAlias = Any
OrtDevice: TypeAlias = Any
Provider: TypeAlias = "str | tuple[str, Mapping[str, object]]"


def has_training_agent() -> bool:
    """Return True if this onnxruntime is a training build, which can pause a graph between forward and backward."""
    return hasattr(C, "TrainingAgent")


def resolve_providers(
    providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, object]] | None, index: int = 0
) -> Device:
    """Return the providers as they are named, CPU by default; ValueError where this onnxruntime does not know one."""
    given = ["CPUExecutionProvider"] if providers is None else list(providers)
    names = [one if isinstance(one, str) else one[0] for one in given]
    inside = [{} if isinstance(one, str) else dict(one[1]) for one in given]
    if any(inside) and provider_options is not None:
        raise ValueError("providers holds options already: leave provider_options out.")
    available = onnxruntime.get_available_providers()
    for name in names:
        if name not in available:
            raise ValueError(f"Unknown execution provider {name!r}.{nearest(name, available)}")
    options = inside if provider_options is None else [dict(one) for one in provider_options]
    for name, chosen in zip(names, options, strict=False):
        if index and name in OWN_MEMORY:
            chosen.setdefault("device_id", index)
    return resolve_device("cpu", names, options)


def ort_device(device: Device) -> OrtDevice:
    """Return onnxruntime's description of the memory that the first provider computes in."""
    name, index = device.memory or ("cpu", 0)
    return C.OrtDevice(getattr(C.OrtDevice, name)(), C.OrtDevice.default_memory(), index)


def device_name(device: OrtDevice) -> str:
    """Return onnxruntime's name for a kind of device, such as "cpu" or "cuda"."""
    kinds = ("cpu", "cuda", "fpga", "npu", "dml")
    known = {getattr(C.OrtDevice, kind)(): kind for kind in kinds if hasattr(C.OrtDevice, kind)}
    if device.device_type() not in known:
        raise ValueError(f"Unknown kind of device {device.device_type()!r}; known are {sorted(known.values())}.")
    return known[device.device_type()]


def vector(values: Iterable[OrtValue] = ()) -> OrtValueVector:
    """Return an OrtValueVector of values."""
    result = C.OrtValueVector()
    for value in values:
        result.push_back(value)
    return result


def is_vector(value: object) -> bool:
    """Return True if ``value`` is an OrtValueVector."""
    return isinstance(value, C.OrtValueVector)


def unwrapped_value(value: object) -> OrtValue | None:
    """Return the onnxruntime value that ``value`` is or wraps; None if it is neither."""
    if isinstance(value, onnxruntime.OrtValue):
        return value._ortvalue
    return value if isinstance(value, C.OrtValue) else None


def value_of(array: np.ndarray, device: OrtDevice) -> OrtValue:
    """Return a copy of ``array`` in memory of onnxruntime."""
    array = np.asarray(array, order="C")
    value = C.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype, device)
    if array.size:
        value.update_inplace(array)
    return value


def wrapped(value: OrtValue) -> onnxruntime.OrtValue:
    """Return the value in onnxruntime's wrapper for Python."""
    return onnxruntime.OrtValue(value)


def copied_array(value: OrtValue) -> np.ndarray:
    """Return a copy of the value as an array."""
    return np.array(value.numpy())


def dtype_of(kind: str) -> np.dtype[Any]:
    """Return the numpy dtype of a type in onnxruntime's notation, such as ``tensor(float)``."""
    if kind not in ARRAY_TYPES:
        raise ValueError(f"{kind!r} is no tensor type that numpy has.{nearest(kind, ARRAY_TYPES)}")
    return np.dtype(ARRAY_TYPES[kind])


def session(model: bytes, device: Device, options: onnxruntime.SessionOptions | None = None) -> Any:
    """Return a session; ``options`` are onnxruntime's own object, None: those of the estimators' sessions."""
    if options is None:
        return create_session(model, device)
    providers = list(zip(device.providers, device.provider_options, strict=True))
    with refusing(f"onnxruntime {version()} cannot load the graph"):
        return onnxruntime.InferenceSession(exact(model), options, providers=providers)


def require_options(options: object, kind: str) -> None:
    """Raise TypeError where ``options`` are neither None nor onnxruntime's object of this kind."""
    expected = getattr(onnxruntime, kind)
    if options is not None and not isinstance(options, expected):
        raise TypeError(f"expected onnxruntime.{kind} or None, got {type(options).__name__} ({options!r}).")


def option_values(options: object) -> dict[str, Any] | None:
    """Return the attributes of SessionOptions or RunOptions by name, as plain values that can be pickled."""
    if options is None:
        return None
    names = [n for n in dir(options) if n[0] != "_" and not callable(getattr(options, n))]
    values = {name: getattr(options, name) for name in names}
    return {name: getattr(value, "name", value) for name, value in values.items()}


def options_from(kind: str, values: Mapping[str, object] | None) -> Any:
    """Return the object whose attributes :func:`option_values` returned."""
    if values is None:
        return None
    options = getattr(onnxruntime, kind)()
    for name, value in values.items():
        members = getattr(type(getattr(options, name)), "__members__", {})
        setattr(options, name, members.get(value, value) if isinstance(value, str) else value)
    return options


@contextmanager
def keeping_activations(options: object) -> Iterator[Any]:
    """Make a session created within keep every value until the backward pass has read it."""
    names = ("enable_mem_pattern", "enable_mem_reuse")
    before = {name: getattr(options, name) for name in names}
    for name in names:
        setattr(options, name, False)
    try:
        yield options
    finally:
        for name, value in before.items():
            setattr(options, name, value)


def quiet_options() -> Any:
    """Return session options of one thread that log nothing: every problem is raised."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
    return options


def training_agent(
    training_session: Any, inputs: list[str], outputs: list[OrtDevice], gradients: list[str], devices: list[OrtDevice]
) -> Any:
    """Return onnxruntime-training's agent; it needs a device for each output, and for each gradient."""
    return C.TrainingAgent(training_session._sess, inputs, outputs, gradients, devices, 0)


def pass_state() -> Any:
    """Return the state that a training agent keeps from a forward pass until the backward pass."""
    return C.PartialGraphExecutionState()


def value_cache() -> Any:
    """Return an empty cache of values that a training agent shares between passes."""
    return C.OrtValueCache()


def run(
    of: Any,
    feeds: Mapping[str, OrtValue],
    outputs: Sequence[str],
    held: Sequence[OrtValue] = (),
    options: object = None,
    *,
    memory: tuple[str, int] | None = None,
) -> list[OrtValue]:
    """Run a session on values and return its outputs; the first ones are written into the memory of ``held``."""
    with refusing("The graph does not run on the data"):
        binding = of.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, wrapped(value))
        for i, name in enumerate(outputs):
            if i < len(held):
                binding.bind_ortvalue_output(name, wrapped(held[i]))
            else:
                binding.bind_output(name, *(memory or ("cpu", 0)))
        of.run_with_iobinding(binding, options)
        return [value._ortvalue for value in binding.get_outputs()]


def fill(fetches: OrtValueVector, values: Sequence[OrtValue]) -> None:
    """Put values into an empty vector; a run has already written into the values of one that is not empty."""
    if not len(fetches):
        for value in values:
            fetches.push_back(value)


def require_ort_format() -> None:
    """Raise unless training graphs can be written in onnxruntime's own format here."""
    if not has_training_agent():
        raise RuntimeNotFoundError(
            f"ort_format needs onnxruntime-training, whose operators onnxruntime {version()} lacks. "
            "Install onnxtrain-sklearn[ort-training], or leave ort_format=False."
        )


def to_ort_format(path: Path, custom_op_library: str | bytes | os.PathLike[Any] | None = None) -> None:
    """Write a model in onnxruntime's own format beside its file, not optimized for this machine."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".ort"))
    options.add_session_config_entry("session.save_model_format", "ORT")
    if custom_op_library is not None:
        options.register_custom_ops_library(os.fsdecode(custom_op_library))
    with refusing(f"{path.name} cannot be written in onnxruntime's format"):
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def on_host(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a copy of ``array`` as onnxruntime's wrapper of a value in the host's memory."""
    return wrapped(value_of(array, C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)))


# Adapter files: named arrays that replace inputs with defaults at run time.

_ADAPTER_IDENTIFIER = b"TORT"
_LARGEST_ADAPTER = 2**31 - 1
"""The bytes 4 to 8 of an adapter file, and the largest size of one, which is a FlatBuffer."""


def write_adapter(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to an ``.onnx_adapter`` file."""
    _require_adapters("Save the adapter where a newer one is, from a pickle of the estimator, or take to_onnx().")
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for n, a in arrays.items()}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters(values)
    adapter.export_adapter(os.fspath(path))


def read_adapter(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.onnx_adapter`` file."""
    _require_adapters("Read the adapter where a newer one is, and give its arrays as a dict.")
    what = f"{os.fspath(path)} is not an adapter file of onnxruntime"
    with open(path, "rb") as file:  # onnxruntime reads all of a file before it looks at its beginning
        if file.read(8)[4:] != _ADAPTER_IDENTIFIER or os.fstat(file.fileno()).st_size > _LARGEST_ADAPTER:
            raise ModelError(f"{what}: it does not begin like one, or is too large.")
    try:
        adapter = onnxruntime.AdapterFormat.read_adapter(os.fspath(path))  # the values lie in its memory
        found = adapter.get_parameters()
    except Exception as error:  # each release has another class for it
        raise ModelError(f"{what}: {error}") from error
    arrays = {name: value.numpy() for name, value in found.items()}  # they lie in its memory, too
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays.values() if array.nbytes)
    if any(start + length > following for (start, length), (following, _) in pairwise(places)):
        raise ModelError(f"{what}: its arrays overlap.")
    return {name: np.array(array) for name, array in arrays.items()}


def _require_adapters(advice: str) -> None:
    if not hasattr(onnxruntime, "AdapterFormat"):
        raise RuntimeNotFoundError(
            f"Adapter files need onnxruntime 1.20 or newer, and {version()} is installed. {advice}"
        )
