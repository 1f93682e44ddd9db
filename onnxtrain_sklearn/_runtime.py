"""The only importer of onnxruntime: what this build can do, devices, sessions, threads, memory binding.

All onnxruntime distributions install the same import package and overwrite each other's files: importing this module
checks that there is one, or that they are of one version. A :class:`Binding` ties a session to fixed arrays:
onnxruntime borrows their memory and holds no reference, so the binding keeps them alive, and a run neither copies nor
allocates.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ._support.refusal import reason
from .exceptions import DeviceError, ModelError, OnnxTrainWarning, RuntimeNotFoundError, nearest

DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
)
_EXTRAS = (
    "pip install 'onnxtrain-sklearn[ort-training]' (Python 3.10-3.12, Linux) "
    "or pip install 'onnxtrain-sklearn[portable]' (any current Python)"
)


def installed_distributions(names: Iterable[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Return the versions of the onnxruntime distributions that are installed in this environment, by name."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def check_distributions(installed: Mapping[str, str], imported: Sequence[str]) -> None:
    """Warn where several distributions of onnxruntime share one environment; raise where they do not fit together.

    ``imported`` are the versions that the imported package tells: that of its Python files, and of its library.
    """
    if len(installed) < 2:
        return
    listed = ", ".join(f"{name} {version}" for name, version in installed.items())
    told = f"Several distributions of onnxruntime are installed: {listed}. They overwrite each other's files"
    mend = f"  pip uninstall -y {' '.join(installed)}\n  {_EXTRAS}"
    released = {version.partition("+")[0] for version in (*installed.values(), *imported)}
    if len(released) > 1 or not imported:
        raise RuntimeNotFoundError(
            f"{told}, and what is imported is a mixture of versions ({', '.join(imported) or 'it fails'}). Remove all "
            f"of them and install the one that you want:\n{mend}"
        )
    warnings.warn(
        f"{told}. They are of one version, and what is imported works; which of them it is, nobody can tell. To be "
        f"sure, remove all of them and install the one that you want:\n{mend}",
        OnnxTrainWarning,
        stacklevel=2,
    )


_installed = installed_distributions()
try:
    import onnxruntime
    from onnxruntime.capi import _pybind_state

    _imported = (str(onnxruntime.__version__), str(_pybind_state.get_version_string()))
    onnxruntime.SessionOptions()
except (ImportError, AttributeError) as error:
    check_distributions(_installed, [])
    raise RuntimeNotFoundError(
        f"onnxtrain_sklearn needs onnxruntime and could not import it ({error}). Install one of its distributions:\n"
        f"  {_EXTRAS}"
    ) from error
check_distributions(_installed, _imported)

_NONE = [("Sub", ["O(0)", "O(0)"], ["zero"]), ("Mul", ["GO(0)", "zero"], ["GI(0)"])]
_GRADIENTS: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "Softplus": [("Sigmoid", ["I(0)"], ["sigmoid"]), ("Mul", ["GO(0)", "sigmoid"], ["GI(0)"])],
    **dict.fromkeys(("Ceil", "Floor", "Round", "Sign"), _NONE),
}
_registered: set[str] = set()


def version() -> str:
    """Return the version of the installed onnxruntime."""
    return str(onnxruntime.__version__)


def has_gradient_builder() -> bool:
    """Whether this onnxruntime is a training build with the forward-backward graph builder."""
    return hasattr(_pybind_state, "GradientGraphBuilder")


@dataclass(frozen=True)
class Limits:
    """The newest versions of ONNX that an onnxruntime reads.

    Attributes
    ----------
    runtime : str
        Its name and version, for messages.
    opset, ml_opset : int
        Of ONNX's own operators and of the domain ai.onnx.ml.
    ir_version : int
    """

    runtime: str
    opset: int
    ml_opset: int
    ir_version: int


@cache
def limits() -> Limits:
    """Return what the installed onnxruntime reads, found once a process by loading graphs of a single node.

    It refuses whatever is newer than the last release of ONNX that it was built with, and has no other way to ask.
    """
    return Limits(
        runtime=f"onnxruntime {version()}",
        opset=_newest(21, lambda opset: _loads(opset=opset)),
        ml_opset=_newest(5, lambda ml_opset: _loads(ml_opset=ml_opset)),
        ir_version=_newest(10, lambda ir_version: _loads(ir_version=ir_version)),
    )


def _newest(oldest: int, accepts: Callable[[int], bool]) -> int:
    """Return the last of the versions that are accepted one after the other; all runtimes take ``oldest``."""
    return next(version for version in range(oldest, 1000) if not accepts(version + 1))


def _loads(*, opset: int = 18, ml_opset: int = 3, ir_version: int = 8) -> bool:
    x = ir.val("x", ir.DataType.FLOAT, (1,))
    imports = {"": opset, "ai.onnx.ml": ml_opset}
    return _runs(ir.node("Relu", [x], name="relu"), imports, ir_version)


@cache
def text_locale() -> str | None:
    """Return the locale of this machine that texts can be written small in; None for the one that onnxruntime takes."""
    for locale in (None, "C.UTF-8"):
        settings = {"case_change_action": "LOWER"} | ({} if locale is None else {"locale": locale})
        text = ir.val("x", ir.DataType.STRING, (1,))
        if _runs(ir.node("StringNormalizer", [text], settings, name="lower"), {"": 18}, 8):
            return locale
    return None


def _runs(node: ir.Node, imports: dict[str, int], ir_version: int) -> bool:
    """Whether the installed onnxruntime takes a graph of this node, whose output is like its input."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    y.name, y.type, y.shape = "y", x.type, x.shape
    model = ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports=imports, name="g"), ir_version=ir_version)
    try:
        create_session(ir.to_proto(model).SerializeToString(), resolve_device())
    except Exception:  # each release has another class for it
        return False
    return True


def build_gradient_graph(model: bytes, *, wrt: Iterable[str], of: str) -> bytes:
    """Run onnxruntime-training's gradient builder; raises RuntimeError where it refuses."""
    _register_gradients()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    builder = _pybind_state.GradientGraphBuilder(model, {of}, set(wrt), of, options)
    builder.build()
    return bytes(builder.get_model())


def _register_gradients() -> None:
    """Teach the builder, once a process, gradients that it lacks; they are blind to attributes: there must be none."""
    for op_type, nodes in _GRADIENTS.items():
        if op_type not in _registered:
            _pybind_state.register_gradient_definition(f"::{op_type}", [_definition(*node) for node in nodes])
            _registered.add(op_type)


def _definition(op_type: str, inputs: list[str], outputs: list[str]) -> Any:
    node = _pybind_state.GradientNodeDefinition()
    node.op_type, node.domain, node.inputs, node.outputs, node.attributes = op_type, "", inputs, outputs, []
    return node


OWN_MEMORY = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}
"""Execution providers that compute in memory of their own, and onnxruntime's name of it."""


@dataclass(frozen=True)
class Device:
    """Where sessions run: a name such as "cpu" or "cuda:1", and the execution providers behind it."""

    name: str
    providers: tuple[str, ...]
    provider_options: tuple[dict[str, str], ...]

    @property
    def memory(self) -> tuple[str, int] | None:
        """Name and number of the memory that the first provider computes in; None: the host's."""
        name = OWN_MEMORY.get(self.providers[0])
        return None if name is None else (name, int(self.provider_options[0].get("device_id", 0)))


_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def resolve_device(
    device: str = "cpu",
    providers: Sequence[str] | None = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
) -> Device:
    """Return the execution providers for a device name, or check those that are named; never falls back."""
    kind, _, index = str(device).partition(":")
    if kind not in _PROVIDERS or (index and not index.isdigit()):
        raise ValueError(f"Unknown device {device!r}.{nearest(kind, _PROVIDERS)} A number may follow: 'cuda:1'.")
    _check_lists(providers, provider_options)
    names = list(providers) if providers is not None else [_PROVIDERS[kind]]
    if not names:
        raise ValueError("providers is an empty list: name at least one, or leave it None.")
    options = [{k: str(v) for k, v in o.items()} for o in provider_options or [{} for _ in names]]
    if len(options) != len(names):
        raise ValueError(
            f"provider_options has {len(options)} entries for {len(names)} providers {names}; give one dict each."
        )
    _check_available(names, device)
    if index and providers is None and kind != "cpu":
        options[0].setdefault("device_id", index)
    if names[-1] != _PROVIDERS["cpu"]:
        names, options = [*names, _PROVIDERS["cpu"]], [*options, {}]
    return Device(str(device), tuple(names), tuple(options))


def _check_lists(providers: object, provider_options: Sequence[Mapping[str, object]] | None) -> None:
    for name, value, kind in (("providers", providers, str), ("provider_options", provider_options, Mapping)):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            wrong = not all(isinstance(one, kind) for one in value)
        else:
            wrong = value is not None
        if wrong:
            raise TypeError(f"providers holds names, provider_options a dict for each; got {name}={value!r}.")
    for name in (name for options in provider_options or () for name in options):
        if not isinstance(name, str):
            raise TypeError(f"provider_options maps names of options to their values; got {name!r} in place of a name.")


def missing_providers(names: Sequence[str]) -> list[str]:
    """Return the execution providers among ``names`` that this onnxruntime lacks."""
    available = onnxruntime.get_available_providers()
    return [name for name in names if name not in available]


def _check_available(names: Sequence[str], device: str) -> None:
    missing, available = missing_providers(names), onnxruntime.get_available_providers()
    if missing:
        raise DeviceError(
            f"device={device!r} needs {missing[0]}, which the installed onnxruntime {version()} "
            f"({', '.join(installed_distributions()) or 'unknown distribution'}) lacks; it has {', '.join(available)}."
            f"{_meant(missing[0])} "
            f"For CUDA install onnxtrain-sklearn[portable-cuda] or [ort-training-cuda]; else use device='cpu'."
        )


def _meant(name: str) -> str:
    """Return the question whether another provider was meant, where ``name`` is none that onnxruntime knows of."""
    known = {_stem(provider): provider for provider in onnxruntime.get_all_providers()}
    close = get_close_matches(_stem(name), known, n=1, cutoff=0.7)
    return f" Did you mean {known[close[0]]!r}?" if close and name not in known.values() else ""


def _stem(provider: str) -> str:
    return provider.lower().removesuffix("provider").removesuffix("execution")


def available_threads() -> int:
    """Return the cores this process may use; a worker of joblib is told its share through OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


Session: TypeAlias = "onnxruntime.InferenceSession"

_sessions: weakref.WeakSet[onnxruntime.InferenceSession] = weakref.WeakSet()
_forks = 0


def forks() -> int:
    """Return how many forks this process is away from the one that imported the package.

    The threads of a session do not come along into a forked child: a run there waits for them for ever. Whoever keeps
    a session compares this number with that of its creation, and makes a new one.
    """
    return _forks


def _leave_sessions_behind() -> None:
    """Count a fork, in the child, and keep the sessions of the parent from ever being destroyed: that waits too."""
    global _forks
    _forks += 1
    for session in list(_sessions):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_sessions_behind)


def create_session(
    model: bytes, device: Device, *, threads: int = 1, options: Mapping[str, object] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session for ``model`` on ``device``; ``options`` override the defaults by name of the option."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what goes wrong is raised
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    for name, value in (options or {}).items():
        _set_option(settings, name, value)
    providers = list(zip(device.providers, device.provider_options, strict=True))
    try:
        session = onnxruntime.InferenceSession(model, settings, providers=providers)
    except Exception as error:  # each release has another class for it
        raise _not_loaded(error) from error
    used = session.get_providers()
    if device.providers[0] not in used:
        raise DeviceError(
            f"{device.providers[0]} could not be started for device={device.name!r}; onnxruntime fell back to {used}."
        )
    _sessions.add(session)
    return session


THREADS = 64
"""Threads that a session may have on any machine; a thousand take onnxruntime half a minute, 5000 do not end."""


def _bounded_threads(name: str, value: object) -> object:
    """Return a number of threads, that of the cores where ``value`` is more than any machine like this has use for."""
    cores = os.cpu_count() or 1
    if not isinstance(value, int) or value <= max(THREADS, cores):
        return value
    warnings.warn(
        f"Session option {name}={value} is more than the {max(THREADS, cores)} threads that a session may have here: "
        f"it gets {cores}, one for each core.",
        OnnxTrainWarning,
        stacklevel=2,
    )
    return cores


def loading_error(model: bytes) -> ModelError | None:
    """Return what onnxruntime says of a model that it cannot load; it is not optimized, which takes long."""
    try:
        create_session(model, resolve_device(), options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    except ModelError as error:
        return error
    return None


_IN_CHILD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
onnxruntime.InferenceSession(sys.stdin.buffer.read(), options, providers=["CPUExecutionProvider"])
"""


def survives_loading(model: bytes) -> bool:
    """Whether a process of its own that loads ``model`` is alive afterwards; onnxruntime's errors are none here."""
    command = [sys.executable or "python", "-c", _IN_CHILD]
    try:
        child = subprocess.run(command, input=model, capture_output=True, timeout=CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    except OSError:  # no process can be started here
        return True
    return 0 <= child.returncode < 2  # Python itself ends with 1 after an error, an abort with a signal or its code


CHILD_SECONDS = 60
"""Time that a graph may take to load in a process of its own."""


def _set_option(settings: onnxruntime.SessionOptions, name: str, value: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"session_options maps names of options to their values; got {name!r} in place of a name.")
    if "." in name:
        settings.add_session_config_entry(name, str(value))
        return
    valid = [a for a in dir(settings) if not a.startswith("_") and not callable(getattr(settings, a))]
    if name not in valid:
        raise ValueError(
            f"Unknown session option {name!r}.{nearest(name, valid)} Names with a dot are configuration entries."
        )
    if name in ("intra_op_num_threads", "inter_op_num_threads"):
        value = _bounded_threads(name, value)
    members = getattr(type(getattr(settings, name)), "__members__", {})
    if isinstance(value, str) and members and value not in members:
        raise ValueError(f"Session option {name!r} has no value {value!r}.{nearest(value, members)}")
    try:
        setattr(settings, name, members.get(value, value) if isinstance(value, str) else value)
    except TypeError:
        kind = type(getattr(settings, name)).__name__
        got = f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"Session option {name!r} takes {kind}, got {got}.") from None


def _not_loaded(error: Exception) -> ModelError:
    if not_implemented(error):
        return ModelError(
            f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. Export the model again with "
            f"another opset (18 is a good choice), or put other operators in its place."
        )
    return ModelError(f"onnxruntime {version()} cannot load the graph: {reason(error)}.")


def run_session(session: Session, outputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Return outputs of a session by name; what fails in it is a ModelError."""
    try:
        return list(session.run(outputs, feeds))
    except Exception as error:  # each release has another class for it
        raise _not_run(error) from error


def _not_run(error: Exception) -> ModelError:
    return ModelError(
        f"The graph does not run on the data: {reason(error)}. If the number of rows is fixed inside it (by a constant "
        f"shape in a Reshape), export it with a dynamic batch axis."
    )


def not_implemented(error: BaseException) -> bool:
    """Whether ``error``, or what it was raised from, says that a kernel is missing for an operator or type."""
    if error.__cause__ is not None and not_implemented(error.__cause__):
        return True
    told = ("NOT_IMPLEMENTED", "is not a registered function/op")
    return type(error).__name__ in {"NotImplemented", "InvalidGraph"} or any(text in str(error) for text in told)


class DeviceArray:
    """An array in the memory of a device, or a part of one.

    Parameters
    ----------
    array : ndarray
        Initial values, which are copied.
    memory : tuple of str and int
        As :attr:`Device.memory` gives it.
    """

    def __init__(self, array: np.ndarray, memory: tuple[str, int]) -> None:
        self.shape, self.dtype, self.memory = array.shape, array.dtype, memory
        self._flat = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(1, array.size)], array.dtype, *memory)
        self._offset = 0
        self.write(array)

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return int(self._flat.data_ptr()) + self._offset

    def part(self, start: int, shape: Sequence[int]) -> DeviceArray:
        """Return the elements from number ``start`` on as an array of ``shape`` in the same memory."""
        part = object.__new__(DeviceArray)
        part.shape, part.dtype, part.memory = tuple(shape), self.dtype, self.memory
        part._flat, part._offset = self._flat, self._offset + start * self.dtype.itemsize
        return part

    def write(self, array: np.ndarray) -> None:
        """Overwrite the whole array from the host."""
        if array.size:
            self._flat.update_inplace(np.ascontiguousarray(array, self.dtype).ravel())

    def read(self) -> np.ndarray:
        """Return a copy of the whole array on the host."""
        return np.array(self._flat.numpy())[: int(np.prod(self.shape))].reshape(self.shape)


Array: TypeAlias = "np.ndarray | DeviceArray"


class Binding:
    """A session tied to input and output arrays; :meth:`run` reads the ones and writes the others.

    Host arrays of a session on the host are bound once. A session on a device copies host inputs, and inputs that it
    wants on the host, when they are bound, not when it runs: there all inputs are bound anew for each run.

    Kernels write through whatever they are bound to, inputs among it (BatchNormalization), be it read-only memory or
    not. An array that is not contiguous, or an input that is read only, gets a copy bound in its place, which each run
    fills before and empties after; an output that is read only is an error.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        self._session, self._arrays = session, {**inputs, **outputs}
        self._inputs = {value.name for value in session.get_inputs()}
        self._again = session.get_providers()[0] in OWN_MEMORY
        self._copies: dict[str, np.ndarray] = {}
        self._binding = session.io_binding()
        for name in self._arrays:
            self._bind(name)

    def run(self, **changed: Array) -> None:
        """Run the session once, with other arrays for the inputs and outputs named; releases the GIL."""
        self._arrays.update(changed)
        for name in changed.keys() | self._inputs if self._again else changed:
            self._bind(name)
        try:
            if self._copies:
                self._run_on_copies()
            else:
                self._session.run_with_iobinding(self._binding)
        except Exception as error:  # each release has another class for it
            raise _not_run(error) from error

    def _run_on_copies(self) -> None:
        for name in self._copies.keys() & self._inputs:
            self._copies[name][...] = self._arrays[name]
        self._session.run_with_iobinding(self._binding)
        for name in self._copies.keys() - self._inputs:
            self._arrays[name][...] = self._copies[name]  # type: ignore[index]

    def _bind(self, name: str) -> None:
        array, binding = self._arrays[name], self._binding
        bind = binding.bind_input if name in self._inputs else binding.bind_output
        if isinstance(array, DeviceArray):
            bind(name, *array.memory, array.dtype, array.shape, array.pointer)
            return
        if not (array.flags.writeable or name in self._inputs):
            raise ValueError(f"{name!r} is read only: an output must be writable to be bound. Give a copy of it.")
        self._copies.pop(name, None)
        if not array.flags.carray:
            array = self._copies[name] = np.array(array, order="C", subok=False)
        bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
