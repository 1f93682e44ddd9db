"""Sessions that fits share: one for each graph, device, number of threads and options.

A session may run in several threads at once; what it reads and writes is bound by each of its users. It is shared only
if nothing else of it can be told apart: options and graphs that give a session a state or a file of its own get a new
session each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from .._support.cache import Cache
from .._support.content import content
from . import sessions
from .devices import Device
from .sessions import InferenceSession

SHARED_OPTIONS = frozenset(
    "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse execution_mode execution_order graph_optimization_level "
    "inter_op_num_threads intra_op_num_threads log_severity_level log_verbosity_level logid use_deterministic_compute "
    "optimization.disable_specified_optimizers".split()
)
"""Options of sessions that may be shared; others write files, or refer to objects outside."""

OVERHEAD = 2**19
"""Bytes of a session beside its graph and what it allocates when it runs."""

DEVICE_OVERHEAD = 2**24
"""The same for a device with memory of its own: CUDA's libraries get workspaces there for each session."""

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
        session = sessions.create_session(model, device, threads=threads, options=options)
        overhead = OVERHEAD if device.memory is None else DEVICE_OVERHEAD
        return session, int(min(memory, 2**62)) + len(model) + overhead

    if not may_be_shared(device, options):
        return made()[0]
    graph = blake2b(model, digest_size=32).digest()
    given = None if options is None else content(options)
    return _cache.get((graph, device.key, threads, given, sessions.forks()), made)[0]


def may_be_shared(device: Device, options: Mapping[str, object] | None) -> bool:
    """Whether a session has no state: graphs that CUDA captures hold the addresses of the first run."""
    captures = any("graph" in name for chosen in device.provider_options for name in chosen)
    return not captures and set(options or ()) <= SHARED_OPTIONS
