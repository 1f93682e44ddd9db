"""Translate the errors of other libraries and of exhausted memory; silence NumPy's floating-point errors.

Other libraries raise anything from IndexError to classes of their own, and which one changes from release to release.
So the few places where a graph passes into a library, or where the code relies on what a graph says, stand in a
``with refusing(...)``: its sentence says what was tried, and the library's own words follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from ..exceptions import ModelError, OnnxTrainError

NOT_ENOUGH = "There is not enough memory"

LONGEST = 600
"""Characters of a library's words that are quoted: some quote the whole graph."""


@contextmanager
def refusing(sentence: str, kind: type[ModelError] = ModelError) -> Iterator[None]:
    """Raise ``kind``, which begins with ``sentence``, for whatever goes wrong within.

    Errors that are ours pass, and a MemoryError stays one: the graph is not to blame for it.
    """
    try:
        yield
    except OnnxTrainError:
        raise
    except MemoryError as error:
        if str(error).startswith(NOT_ENOUGH):
            raise
        raise MemoryError(f"{NOT_ENOUGH}. {sentence}.") from error
    except Exception as error:
        raise kind(f"{sentence}: {reason(error)}.") from error


def reason(error: BaseException) -> str:
    """Return the text of the first cause of an error, without the place in ONNX's source where it arose."""
    while error.__cause__ is not None:  # onnx_ir wraps an error once for each function on the way
        error = error.__cause__
    text = " ".join(str(error).rpartition(" failed: ")[2].split()).rstrip(".:")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    known = isinstance(error, ValueError | TypeError | RuntimeError) and text
    return text if known else f"{type(error).__name__}{': ' if text else ''}{text}"


# Functions in which NumPy ignores floating-point errors, whatever the thread that calls them has set.


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_SETTINGS_MEET = np.lib.NumpyVersion(np.__version__) < "2.0.0"
"""Whether all calls of a function decorated by ``np.errstate`` share one memory of the settings, in all threads."""


def ignores_float_errors(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Make ``function`` ignore all floating-point errors; a ``with`` in it takes twice the time with NumPy 2."""
    if not _SETTINGS_MEET:
        return np.errstate(all="ignore")(function)

    @wraps(function)
    def run(*args: _Given.args, **keywords: _Given.kwargs) -> _Result:
        with np.errstate(all="ignore"):
            return function(*args, **keywords)

    return run


# Memory that runs out: libraries end the process then, or say that a file is broken.


ROOM, RESERVE = 4, 2**25
"""Copies of a model that reading and checking it take at a time, and bytes for everything else."""

_SIGNS = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Available memory of")


def require_memory(size: int, what: str, copies: int = ROOM) -> None:
    """Raise MemoryError where the process may not have ``copies`` times ``size`` bytes more.

    Only a limit of the process itself counts (``ulimit -v``): under it protobuf does not survive an allocation that
    fails, or takes it for a broken file.
    """
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    needed = copies * size + RESERVE
    if limit == resource.RLIM_INFINITY:
        return
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
    except OSError:  # macOS has none
        return
    left = limit - pages * resource.getpagesize()
    if left < needed:
        raise MemoryError(
            f"There is not enough memory for {what} of {size:,} bytes: it takes about {needed:,} bytes, and the "
            f"process may take {max(0, left):,} more (its limit of address space, ulimit -v). Raise the limit, or "
            f"take a smaller model."
        )


def ran_out(error: BaseException) -> bool:
    """Return True if an error is a MemoryError, or the words of a library say that memory ran out."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)
