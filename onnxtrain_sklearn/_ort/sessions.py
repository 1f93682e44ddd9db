"""Create, share, configure and run sessions; ask which versions of ONNX the installed onnxruntime supports.

:func:`create_session` is the one place that makes a session of a graph: it sets the options, adds libraries of custom
operators, rewrites the graph where a kernel of the device or of this processor is wrong (``wrong_kernels``), and
translates errors. :func:`shared_session` gives fits of one structure the same session. :func:`loading_error` and
:func:`survives_loading` load a graph on trial.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from .._utils.cache import Cache, content
from .._utils.errors import NOT_ENOUGH, ran_out, reason
from ..exceptions import DeviceError, InvalidParameterError, ModelError, OnnxTrainWarning, instead_of, nearest
from .devices import OWN_MEMORY, Device, resolve_device
from .packages import onnxruntime, version
from .wrong_kernels import exact, in_pairs, with_listed_axes

InferenceSession: TypeAlias = "onnxruntime.InferenceSession"

SPIN_MICROSECONDS = 50
"""Time that an idle thread spins before it sleeps; an option of onnxruntime since 1.26.

By default a thread spins for 3 to 500 ms, depending on the processor, and takes a core from everything else: with
another process on one of two cores, steps of convolutional networks take 1.3 to 1.9 times as long as with this setting.
"""

SPIN = "session.intra_op.spin_duration_us"

_indexed: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, Mapping[str, int]] = weakref.WeakKeyDictionary()
_mapped: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, frozenset[str]] = weakref.WeakKeyDictionary()
_sessions: weakref.WeakSet[onnxruntime.InferenceSession] = weakref.WeakSet()
_forks = 0


def forks() -> int:
    """Return the number of forks between this process and the one that imported the package.

    A forked child has no copy of the threads of a session: a run there would wait for them forever. Code that caches a
    session compares this number with the one at its creation, and creates a new session if they differ.
    """
    return _forks


def _abandon_sessions() -> None:
    """Count the fork in the child, and never destroy the parent's sessions there: destruction waits for threads too."""
    global _forks
    _forks += 1
    for session in list(_sessions):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_sessions)


_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_IN_PLACE = {
    "session.disable_prepacking": "1",
    "optimization.disable_specified_optimizers": "ConstantFolding",
}
"""Options without which onnxruntime copies weights: packed for its products, and transposed for gradients."""

_files = dict[str, tuple[int, int]]()
"""The sizes and times of files of weights, by the paths with which graphs name them: see :func:`name_of_file`."""


def reads_in_place() -> bool:
    """Return True if sessions can read weights in files, which onnxruntime 1.20 and newer map into memory."""
    return tuple(map(int, version().split(".")[:2])) >= (1, 20)


def name_of_file(path: str) -> str:
    """Return the absolute path with which graphs name a file of weights as it is now.

    A file that was written anew gets another name, so that graphs of the earlier file are refused and those of the new
    one run: as many ``.`` before its own name as there were earlier files.
    """
    facts, name = os.stat(path), path
    while _files.setdefault(name, (facts.st_size, facts.st_mtime_ns)) != (facts.st_size, facts.st_mtime_ns):
        name = os.path.join(os.path.dirname(name), os.curdir, os.path.basename(name))
    return name


def require_unchanged(name: str) -> tuple[int, int]:
    """Return size and time of a file of weights; ModelError if they have changed since :func:`name_of_file`."""
    facts = os.stat(name) if os.path.isfile(name) else None
    found = None if facts is None else (facts.st_size, facts.st_mtime_ns)
    if found is None or found != _files.get(name):
        what = "is not there any more" if facts is None else "has changed since it was read"
        raise ModelError(
            f"The file {os.path.normpath(name)!r}, which holds weights of the graph, {what}. Restore it, or fit a new "
            f"estimator to train the graph with the file as it is now."
        )
    return found


def _with_files(model: bytes) -> tuple[bytes, dict[str, str], frozenset[str]]:
    """Return a graph that names its files relative to a folder, the options that name the folder, and the files."""
    if not any(os.fsencode(path) in model for path in _files):
        return model, {}, frozenset()
    proto = onnx.load_model_from_string(model)
    places = [
        entry
        for tensor in proto.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    ]
    if not places:
        return model, {}, frozenset()
    paths = frozenset(entry.value for entry in places)
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    for path in paths:
        require_unchanged(path)
    for entry in places:
        entry.value = os.path.relpath(entry.value, folder)
    return proto.SerializeToString(), {_FOLDER_OPTION: folder, **_IN_PLACE}, paths


def create_session(
    model: bytes, device: Device, *, threads: int = 1, options: Mapping[str, object] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session for ``model`` on ``device``; ``options`` override the defaults by name of the option."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors are raised
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    model, of_files, paths = _with_files(model)
    for name, value in {SPIN: SPIN_MICROSECONDS, **of_files, **(options or {})}.items():
        if name != LIBRARY_OPTION:
            set_option(settings, name, value)
    for path in libraries_of(options):
        register_library(settings, path)
    providers = list(zip(device.providers, device.provider_options, strict=True))
    model = with_listed_axes(exact(model))
    indexed: Mapping[str, int] = {}
    if any(name in OWN_MEMORY for name in device.providers):
        proto = onnx.load_model_from_string(model)
        indexed = index_sizes(proto.graph)
        model = proto.SerializeToString() if in_pairs(proto) else model
    try:
        try:
            session = onnxruntime.InferenceSession(model, settings, providers=providers)
        except Exception:
            # Perhaps it lacks an operator: try again with all libraries that estimators of this process name.
            if not add_known_libraries(settings, options):
                raise
            session = onnxruntime.InferenceSession(model, settings, providers=providers)
    except Exception as error:  # each release has another class for it
        raise not_loaded(error, model) from error
    used = session.get_providers()
    if device.providers[0] not in used:
        raise DeviceError(
            f"{device.providers[0]} could not be started for device={device.name!r}; onnxruntime fell back to {used}."
        )
    _sessions.add(session)
    if indexed:
        _indexed[session] = indexed
    if paths:
        _mapped[session] = paths
    return session


ARRAY_TYPES: Mapping[str, type] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}
"""NumPy's types of inputs and outputs, by onnxruntime's names."""


def require_indices(session: InferenceSession, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError if an array for a session on a device holds an index that its table does not have."""
    for name, size in _indexed.get(session, {}).items():
        array = arrays.get(name)
        if array is not None and array.size and not -size <= int(array.min()) <= int(array.max()) < size:
            wrong = int(array.max()) if int(array.max()) >= size else int(array.min())
            raise beyond_table(f"{name.rpartition('/')[2]!r} holds other integers", wrong, size)


def session_runner(session: InferenceSession) -> Callable[[Sequence[str], Mapping[str, np.ndarray]], list[Any]]:
    """Return :func:`run_session` for one session; on a CPU without the checks that its class makes each time."""
    own = getattr(session, "_sess", None)
    if own is None or session.get_providers() != ["CPUExecutionProvider"] or session in _indexed or session in _mapped:
        return partial(run_session, session)

    def run(outputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
        try:
            return list(own.run(outputs, feeds, None))
        except Exception as error:  # each release has another class for it
            raise not_run(error) from error

    return run


def run_session(session: InferenceSession, outputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Return outputs of a session by name; raises ModelError if the run fails, or a file that it reads has changed."""
    require_indices(session, feeds)
    for path in _mapped.get(session, ()):  # what is written to a file changes the weights of the session
        require_unchanged(path)
    try:
        return list(session.run(outputs, feeds))
    except Exception as error:  # each release has another class for it
        raise not_run(error) from error


# Sessions shared between fits: one for each graph, device, number of threads and options.
#
# A session may run in several threads at once: each of its users binds the arrays that it reads and writes. Sessions
# whose options or graphs give them a state or a file of their own are not shared.


SHARED_OPTIONS = frozenset(
    "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse execution_mode execution_order graph_optimization_level "
    "inter_op_num_threads intra_op_num_threads log_severity_level log_verbosity_level logid use_deterministic_compute "
    "optimization.disable_specified_optimizers".split()
)
"""Options of sessions that may be shared; others write files, or refer to objects outside the session."""

OVERHEAD = 2**19
"""Bytes of a session beside its graph and what it allocates when it runs."""

DEVICE_OVERHEAD = 2**24
"""The same on a device with its own memory, where CUDA's libraries allocate workspaces for each session."""

_cache: Cache[tuple[InferenceSession, int]] = Cache(128, 2**28, lambda entry: entry[1])


def shared_session(
    model: bytes,
    device: Device,
    *,
    threads: int = 1,
    options: Mapping[str, object] | None = None,
    memory: float = 0.0,
) -> InferenceSession:
    """Return the session for ``model``, which has no state; ``memory`` are the bytes that a run allocates."""

    def made() -> tuple[InferenceSession, int]:
        session = create_session(model, device, threads=threads, options=options)
        overhead = OVERHEAD if device.memory is None else DEVICE_OVERHEAD
        return session, int(min(memory, 2**62)) + len(model) + overhead

    if not may_be_shared(device, options):
        return made()[0]
    graph = blake2b(model, digest_size=32).digest()
    given = None if options is None else content(options)
    return _cache.get((graph, device.key, threads, given, forks()), made)[0]


def may_be_shared(device: Device, options: Mapping[str, object] | None) -> bool:
    """Return True if a session is known to have no state.

    Captured graphs have one, the addresses of the first run. Options that are not in ``SHARED_OPTIONS`` may have one.
    """
    captures = any("graph" in name for chosen in device.provider_options for name in chosen)
    return not captures and set(options or ()) <= SHARED_OPTIONS


# Trial loads of a graph, in this process or in a child.


def loading_error(model: bytes) -> ModelError | None:
    """Return the error of onnxruntime for a model that it cannot load; the trial leaves out the slow optimization."""
    try:
        create_session(model, resolve_device(), options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    except ModelError as error:
        return error
    return None


CHILD_SECONDS = 60
"""Time that a graph may take to load in a child process."""

_IN_CHILD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
onnxruntime.InferenceSession(sys.stdin.buffer.read(), options, providers=["CPUExecutionProvider"])
"""


def survives_loading(model: bytes) -> bool:
    """Return True if a child process survives loading ``model``; an exception of onnxruntime counts as survival."""
    command = [sys.executable or "python", "-c", _IN_CHILD]
    try:
        child = subprocess.run(command, input=model, capture_output=True, timeout=CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    except OSError:  # this system starts no processes
        return True
    return 0 <= child.returncode < 2  # Python exits with 1 after an exception, an abort gives a signal or its code


# Support of the installed onnxruntime: versions of ONNX, and the locale in which it lower-cases text.


@dataclass(frozen=True)
class SupportedVersions:
    """The newest versions of ONNX that an onnxruntime supports.

    Attributes
    ----------
    runtime : str
        Name and version of the onnxruntime, for messages.
    opset, ml_opset : int
        Versions of the default domain and of the domain ai.onnx.ml.
    ir_version : int
        Version of the file format.
    """

    runtime: str
    opset: int
    ml_opset: int
    ir_version: int


OLDEST = {"opset": 21, "ml_opset": 5, "ir_version": 10}
"""The versions that every supported onnxruntime accepts."""


def versions_for(**versions: int) -> SupportedVersions:
    """Return the newest supported versions, as far as they matter for a graph of the given versions.

    Most graphs have versions that every onnxruntime accepts: they get :data:`OLDEST`, because finding out the newest
    versions takes a quarter of the first ``fit`` of a process. ``versions`` have the names of the attributes of
    :class:`SupportedVersions`.
    """
    matters = any(version > OLDEST[name] for name, version in versions.items())
    return supported_versions() if matters else SupportedVersions(_runtime_name(), **OLDEST)


def _runtime_name() -> str:
    return f"onnxruntime {version()}"


@cache
def supported_versions() -> SupportedVersions:
    """Return the versions that the installed onnxruntime supports, found once per process by loading tiny graphs.

    onnxruntime refuses versions newer than the ONNX release that it was built with, and has no function that tells
    them.
    """
    return SupportedVersions(
        runtime=_runtime_name(),
        opset=_newest(OLDEST["opset"], lambda opset: _loads(opset=opset)),
        ml_opset=_newest(OLDEST["ml_opset"], lambda ml_opset: _loads(ml_opset=ml_opset)),
        ir_version=_newest(OLDEST["ir_version"], lambda ir_version: _loads(ir_version=ir_version)),
    )


def _newest(oldest: int, accepts: Callable[[int], bool]) -> int:
    """Return the newest version without a gap since ``oldest``, which every supported onnxruntime accepts."""
    return next(version for version in range(oldest, 1000) if not accepts(version + 1))


def _loads(*, opset: int = 18, ml_opset: int = 3, ir_version: int = 8) -> bool:
    x = ir.val("x", ir.DataType.FLOAT, (1,))
    imports = {"": opset, "ai.onnx.ml": ml_opset}
    return _runs(ir.node("Relu", [x], name="relu"), imports, ir_version)


@cache
def text_locale() -> str | None:
    """Return a locale in which StringNormalizer can lower-case on this machine; None: its default locale."""
    for locale in (None, "C.UTF-8"):
        settings = {"case_change_action": "LOWER"} | ({} if locale is None else {"locale": locale})
        text = ir.val("x", ir.DataType.STRING, (1,))
        if _runs(ir.node("StringNormalizer", [text], settings, name="lower"), {"": 18}, 8):
            return locale
    return None


def _runs(node: ir.Node, imports: dict[str, int], ir_version: int) -> bool:
    """Return True if onnxruntime loads a graph of this node; its output has the type and shape of its input."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    y.name, y.type, y.shape = "y", x.type, x.shape
    model = ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports=imports, name="g"), ir_version=ir_version)
    try:
        create_session(ir.to_proto(model).SerializeToString(), resolve_device())
    except Exception:  # each release has another class for it
        return False
    return True


# Options of sessions, set by name.


THREADS = 64
"""Threads that a session may have on any machine: creating 1000 takes half a minute, and 5000 never finish."""


def set_option(settings: onnxruntime.SessionOptions, name: str, value: object) -> None:
    """Set one option by its name; a name with a dot is a configuration entry."""
    if not isinstance(name, str):
        raise TypeError(f"The keys of session_options must be names of options (strings), got {name!r}.")
    if "." in name:
        settings.add_session_config_entry(name, str(value))
        return
    valid = [a for a in dir(settings) if not a.startswith("_") and not callable(getattr(settings, a))]
    if name not in valid:
        raise InvalidParameterError(
            f"Unknown session option {name!r}.{nearest(name, valid)} Names with a dot are configuration entries."
        )
    cores = os.cpu_count() or 1
    if name in ("intra_op_num_threads", "inter_op_num_threads") and isinstance(value, int):
        most = max(THREADS, cores)
        if value > most:
            warnings.warn(
                f"Session option {name}={value} is more than the {most} threads that a session may have here: it gets "
                f"{cores}, one for each core.",
                OnnxTrainWarning,
                stacklevel=2,
            )
            value = cores
    members = getattr(type(getattr(settings, name)), "__members__", {})
    if isinstance(value, str) and members and value not in members:
        raise InvalidParameterError(f"Session option {name!r} has no value {value!r}.{nearest(value, members)}")
    try:
        setattr(settings, name, members.get(value, value) if isinstance(value, str) else value)
    except TypeError:
        kind = type(getattr(settings, name)).__name__
        got = f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"Session option {name!r} expects {kind}, got {got}.") from None


# Indices, which CUDA's kernels do not check: beyond a table, ``Gather`` reads zeros, and the gradient of the table
# would be written outside of it. So the data are checked before they reach such a device.


_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators that return all numbers of their first operand, in another shape, order or type."""


def index_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the integer inputs that are indices as a whole, with the size of the smallest axis that they index.

    An input of which only some columns are indices, as of a table, is not included.
    """
    sizes = {  # 0 stands for a dimension that is not fixed
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
    }
    sizes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    source = {i.name: i.name for i in graph.input if i.type.tensor_type.elem_type in _INTEGERS}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.domain or not node.input:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if node.op_type in _SAME_VALUES or (node.op_type == "Gather" and axis == 0):  # rows of all data
            source |= {node.output[0]: source[node.input[0]]} if node.input[0] in source else {}
        if node.op_type in ("Gather", "GatherElements") and node.input[1] in source:
            name = source[node.input[1]]
            shape = sizes.get(node.input[0], [])
            if shape and shape[axis] > 0:
                found[name] = min(found.get(name, shape[axis]), shape[axis])
    return found


# Libraries of custom operators: named in an estimator's ``session_options``, used by every session that needs one.
#
# An estimator reads, compares, trains and exports its graph in several sessions, and most of them are created where the
# options of the estimator are not known. So :func:`remember_libraries` records the libraries for the whole process, and
# a session that does not know an operator is created once more with all of them. Operators that no library has stay
# unknown: the session is refused as before.


LIBRARY_OPTION = "register_custom_ops_library"
"""The key of ``session_options``, named as the method of onnxruntime's SessionOptions."""

_known_libraries = dict[str, None]()


def libraries_of(options: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the paths that session options name, one or several."""
    given: Any = (options or {}).get(LIBRARY_OPTION)
    if given is None:
        return ()
    paths = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError(
            f"session_options[{LIBRARY_OPTION!r}] must be the path of a library, or a list of paths, "
            f"{instead_of(given)}."
        )
    return tuple(os.fspath(path) for path in paths)


def remember_libraries(options: Mapping[str, object] | None) -> None:
    """Make the libraries that session options name available to later sessions of this process.

    Raises
    ------
    ModelError
        onnxruntime does not load one of them.
    """
    for path in libraries_of(options):
        if path not in _known_libraries:
            register_library(onnxruntime.SessionOptions(), path)
            _known_libraries[path] = None


def register_library(settings: onnxruntime.SessionOptions, path: str) -> None:
    """Add the operators of a library to a session; ModelError if onnxruntime does not load it."""
    try:
        settings.register_custom_ops_library(path)
    except Exception as error:  # each release has another class for it
        raise ModelError(
            f"onnxruntime {version()} cannot load the library of custom operators {path!r}, named in session_options: "
            f"{error}. Give the path of a shared library that is built for this onnxruntime and this system."
        ) from error


def add_known_libraries(settings: onnxruntime.SessionOptions, options: Mapping[str, object] | None) -> bool:
    """Add every library that this process knows and ``options`` do not name; return True if there was one."""
    more = [path for path in _known_libraries if path not in libraries_of(options)]
    for path in more:
        register_library(settings, path)
    return bool(more)


# Errors of onnxruntime, translated into errors of this package that name the remedy.
#
# onnxruntime has one class for many causes, and another one in each release: the causes are told by the text.


_LACKING = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")
_BEYOND = re.compile(r"idx=(-?\d+) must be within the inclusive range \[-?\d+, ?(-?\d+)\]")
_OUT_OF_RANGE = ("Out of range value in index tensor", "invalid index found", "invalid indice found")
_SCARCE = (ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
"""The floats that many operators are not implemented in."""


def not_loaded(error: Exception, model: bytes = b"") -> ModelError | MemoryError:
    """Return the error to raise for a graph, serialized in ``model``, that onnxruntime does not load."""
    if ran_out(error):
        return MemoryError(f"{NOT_ENOUGH} to load the graph of {len(model):,} bytes: {reason(error)}.")
    if not_implemented(error):
        if scarce := _scarce_type(error, model):
            return ModelError(
                f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. The reason is the type of its "
                f"inputs, {scarce}, in which onnxruntime lacks some operators whatever the opset. Export the model in "
                f"float32, which takes data of any float type, or replace the operator."
            )
        foreign = "is not a registered function/op" in str(error)
        option = "session_options={'register_custom_ops_library': path}"
        library = f" For an operator of a library, name it: runtime=Runtime({option})."
        return ModelError(
            f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. Export the model again with "
            f"another opset (18 is a good choice), or replace the operator.{library if foreign else ''}"
        )
    return ModelError(f"onnxruntime {version()} cannot load the graph: {reason(error)}.")


def beyond_table(why: str, index: int, size: int) -> ModelError:
    """Return the error to raise for an index that its table does not have."""
    return ModelError(
        f"The graph does not run on the data: {why}. The index {index} is beyond a table of {size} rows that it "
        f"selects from, such as the vocabulary of an embedding: indices from 0 to {size - 1} are valid. Replace the "
        f"others in X, or take the model with the larger table."
    )


def not_run(error: Exception) -> ModelError | MemoryError:
    """Return the error to raise for a graph that fails on its data."""
    if ran_out(error):
        return MemoryError(
            f"{NOT_ENOUGH} to run the graph on the data: {reason(error)}. Take fewer rows at a time (batch_size), or "
            f"runtime=Runtime(checkpoint_activations=True)."
        )
    if found := _BEYOND.search(str(error)):
        index, last = found.groups()
        return beyond_table(reason(error), int(index), int(last) + 1)
    if any(text in str(error) for text in _OUT_OF_RANGE):
        return ModelError(
            f"The graph does not run on the data: {reason(error)}. An index in X, or computed from it, is beyond the "
            f"size of what it selects from."
        )
    return ModelError(
        f"The graph does not run on the data: {reason(error)}. If the number of rows is fixed inside it (by a constant "
        f"shape in a Reshape), export it with a dynamic batch axis."
    )


def not_implemented(error: BaseException) -> bool:
    """Return True if ``error`` or its cause reports a missing kernel for an operator or type."""
    if error.__cause__ is not None and not_implemented(error.__cause__):
        return True
    messages = ("NOT_IMPLEMENTED", "is not a registered function/op")
    return type(error).__name__ in {"NotImplemented", "InvalidGraph"} or any(text in str(error) for text in messages)


def _scarce_type(error: Exception, model: bytes) -> str:
    """Return the type of the floats that the node without a kernel reads, "" if it is float32 or not known."""
    found = _LACKING.search(str(error))
    graph = onnx.load_model_from_string(model).graph if found and model else None
    if found is None or graph is None:
        return ""
    typed = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in typed}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = [node for node in graph.node if (node.op_type, node.name) == found.groups()]
    read = [ir.DataType(types.get(name, 0)) for node in nodes for name in (*node.input, *node.output)]
    return next((dtype.name.lower().replace("double", "float64") for dtype in read if dtype in _SCARCE), "")
