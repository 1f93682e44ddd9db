"""Sessions of onnxruntime: their creation and their runs."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..exceptions import DeviceError
from . import custom_operators
from .device_graphs import check_indices, for_device
from .devices import OWN_MEMORY, Device
from .distributions import onnxruntime
from .errors import not_loaded, not_run
from .integer_products import exact
from .session_options import set_option

InferenceSession: TypeAlias = "onnxruntime.InferenceSession"

SPIN_MICROSECONDS = 50
"""How long a thread without work looks for some before it sleeps; onnxruntime can be told so from 1.26 on.

By default it spins for 3 to 500 ms, as the processor has it, and takes a core from whatever else runs: with another
process on one of two cores, steps of convolutional networks take 1.3 to 1.9 times as long as with these microseconds.
"""

SPIN = "session.intra_op.spin_duration_us"

_indexed: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, Mapping[str, int]] = weakref.WeakKeyDictionary()
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


def create_session(
    model: bytes, device: Device, *, threads: int = 1, options: Mapping[str, object] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session for ``model`` on ``device``; ``options`` override the defaults by name of the option."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors are raised
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    for name, value in {SPIN: SPIN_MICROSECONDS, **(options or {})}.items():
        if name != custom_operators.OPTION:
            set_option(settings, name, value)
    for path in custom_operators.libraries_of(options):
        custom_operators.register(settings, path)
    providers = list(zip(device.providers, device.provider_options, strict=True))
    model = exact(model)
    indexed: Mapping[str, int] = {}
    if any(name in OWN_MEMORY for name in device.providers):
        model, indexed = for_device(model)
    try:
        session = _session(model, settings, providers, options)
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
    return session


def _session(
    model: bytes, settings: onnxruntime.SessionOptions, providers: Sequence[Any], options: Mapping[str, object] | None
) -> onnxruntime.InferenceSession:
    """Return a session; where it fails, with the libraries of custom operators that estimators of the process name."""
    try:
        return onnxruntime.InferenceSession(model, settings, providers=providers)
    except Exception:  # each release has another class for it
        if not custom_operators.add_known(settings, options):
            raise
        return onnxruntime.InferenceSession(model, settings, providers=providers)


def require_indices(session: InferenceSession, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError if an array for a session on a device holds an index that its table does not have."""
    check_indices(_indexed.get(session, {}), arrays)


def session_runner(session: InferenceSession) -> Callable[[Sequence[str], Mapping[str, np.ndarray]], list[Any]]:
    """Return :func:`run_session` for one session; on a CPU without the checks that its class makes each time."""
    own = getattr(session, "_sess", None)
    if own is None or session.get_providers() != ["CPUExecutionProvider"] or session in _indexed:
        return partial(run_session, session)

    def run(outputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
        try:
            return list(own.run(outputs, feeds, None))
        except Exception as error:  # each release has another class for it
            raise not_run(error) from error

    return run


def run_session(session: InferenceSession, outputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Return outputs of a session by name; raises ModelError if the run fails."""
    require_indices(session, feeds)
    try:
        return list(session.run(outputs, feeds))
    except Exception as error:  # each release has another class for it
        raise not_run(error) from error
