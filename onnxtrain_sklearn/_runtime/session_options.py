"""Options of sessions, set by name."""

from __future__ import annotations

import os
import warnings

from ..exceptions import OnnxTrainWarning, nearest
from .distributions import onnxruntime

THREADS = 64
"""Threads that a session may have on any machine; to create 1000 takes half a minute, 5000 never finish."""


def _bounded_threads(name: str, value: object) -> object:
    """Return ``value``, or the number of cores where ``value`` exceeds any sensible number of threads."""
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


def set_option(settings: onnxruntime.SessionOptions, name: str, value: object) -> None:
    """Set one option by its name; a name with a dot is a configuration entry."""
    if not isinstance(name, str):
        raise TypeError(f"The keys of session_options must be names of options (strings), got {name!r}.")
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
        raise TypeError(f"Session option {name!r} expects {kind}, got {got}.") from None
