"""Memory that runs out: libraries end the process then, or say that a file is broken."""

from __future__ import annotations

import sys

ROOM, MARGIN = 4, 2**25
"""Copies of a model that reading and checking it take at a time, and bytes for everything else."""

_SIGNS = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Available memory of")


def require_memory(size: int, what: str, copies: int = ROOM) -> None:
    """Raise MemoryError where the process may not have ``copies`` times ``size`` bytes more.

    Only a limit of the process itself counts (``ulimit -v``): under it protobuf does not survive an allocation that
    fails, or takes it for a broken file.
    """
    left = _bytes_left()
    if left is not None and left < copies * size + MARGIN:
        needed = copies * size + MARGIN
        raise MemoryError(
            f"There is not enough memory for {what} of {size:,} bytes: it takes about {needed:,} bytes, and the "
            f"process may take {max(0, left):,} more (its limit of address space, ulimit -v). Raise the limit, or "
            f"take a smaller model."
        )


def ran_out(error: BaseException) -> bool:
    """Whether the words of a library say that memory ran out."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def _bytes_left() -> int | None:
    """Return the bytes that the process may still take; None where no limit is set."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
    except OSError:  # macOS has none
        return None
    return limit - pages * resource.getpagesize()
