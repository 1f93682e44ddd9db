"""Bounded stores of what is expensive to make and the same for all fits of a process.

A store holds nothing of one fit: neither weights nor buffers. Its keys compare by content, so a hit is
interchangeable with what would be made anew. Stores may be read from several threads; a forked child starts with
locks of its own.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """A store that forgets what was used least recently.

    Parameters
    ----------
    entries, nbytes : int
        The most entries it holds, and the most bytes by ``size``. What is larger than a quarter of ``nbytes`` is not
        stored at all.
    size : callable (value) -> int
        The bytes of a value.
    """

    every: ClassVar[list[Cache[Any]]] = []

    def __init__(self, entries: int, nbytes: int, size: Callable[[T], int]) -> None:
        self.entries, self.nbytes, self._size = entries, nbytes, size
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total, self._lock = 0, Lock()
        Cache.every.append(self)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value for ``key``, made where it is missing; two threads may make it at the same time."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        value = make()
        size = self._size(value)
        if size <= self.nbytes // 4:
            with self._lock:
                self._store(key, value, size)
        return value

    def _store(self, key: Hashable, value: T, size: int) -> None:
        self._total += size - self._held.pop(key, (value, 0))[1]
        self._held[key] = value, size
        while len(self._held) > self.entries or self._total > self.nbytes:
            self._total -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held, self._total = OrderedDict(), 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """The bytes of all entries."""
        return self._total

    def renew_lock(self) -> None:
        """Replace the lock: in a forked child nobody releases one that a thread of the parent held."""
        self._lock = Lock()


def _renew_locks() -> None:
    for cache in Cache.every:
        cache.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def clear_cache() -> None:
    """Forget the graphs and sessions that fits of this process share.

    A fit compiles its graphs: the loss, its gradients, the optimizer's step, the predictions. What is compiled depends
    on the structure of the graph, the loss, the optimizer, the batch size, the device and the options, but not on the
    data, the weights or the learning rate, so that a later ``fit`` of an equal structure starts at once. The memory is
    bounded without this call: of 128 sessions and 256 MB, the least recently used ones go first. Estimators that are
    fitted are not affected.

    Examples
    --------
    >>> from onnxtrain_sklearn import clear_cache
    >>> clear_cache()
    """
    for cache in Cache.every:
        cache.clear()
