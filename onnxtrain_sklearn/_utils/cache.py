"""Bounded caches of graphs and sessions that fits of a process share, and the keys that identify their entries.

A :class:`Cache` holds nothing of one fit: neither weights nor buffers. Its keys compare by :func:`content`, so a hit is
interchangeable with a new value. Several threads may read a cache; a forked child starts with locks of its own.
:func:`digest` identifies a value in all processes, for checkpoints; :func:`content` only within one.
"""

from __future__ import annotations

import os
import pickle
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

T = TypeVar("T")


class Cache(Generic[T]):
    """A cache that drops the least recently used entries.

    Parameters
    ----------
    entries, nbytes : int
        The most entries it holds, and the most bytes by ``size``. A value larger than a quarter of ``nbytes`` is not
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
        value = make()  # without the lock, as it may take long
        size = self._size(value)
        if size <= self.nbytes // 4:
            with self._lock:
                self._total += size - self._held.pop(key, (value, 0))[1]
                self._held[key] = value, size
                while len(self._held) > self.entries or self._total > self.nbytes:
                    self._total -= self._held.popitem(last=False)[1][1]
        return value

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
    bounded without this call, to 256 MB of sessions and about as much for all other results: the least recently used
    ones go first. Estimators that are fitted are not affected.

    Examples
    --------
    >>> from onnxtrain_sklearn import clear_cache
    >>> clear_cache()
    """
    for cache in Cache.every:
        cache.clear()


# The content of an object as a comparable value: arrays by their bytes, objects by class and state.
#
# A ``repr`` does not suffice: numpy abbreviates arrays of more than 1000 numbers, and rounds. Two objects of equal
# content are interchangeable. Objects of different content may still behave alike: then a value is made needlessly.


_LONG = 4096
"""Size in bytes from which on an array is represented by its digest."""

_ATOMS = (type(None), bool, int, str, bytes, type, np.dtype)

_PLAIN_TYPES = frozenset({type(None), bool, int, str, bytes})
"""The types of most atoms, found without a search through base classes."""

OWN_PACKAGE = __name__.partition(".")[0]

Seen = dict[int, tuple[int, Any]]
"""Objects already visited, by address, with their number; the references keep the addresses valid."""

Splitter = Callable[[Any, Seen], Iterable[Any]]


@dataclass(frozen=True)
class _Identity:
    """An object that is equal only to itself."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


_FROZEN = (_Identity, tuple, frozenset, bytes)
"""Types of parts that are contents already."""


def content(value: object) -> object:
    """Return the nested content of ``value``; compare two contents with ``==``.

    A function is equal only to itself, and only while the values in its closure stay the same.
    """
    try:
        return _content(value, {})
    except RecursionError:
        return object()  # equal to nothing


def is_plain(value: object) -> bool:
    """Return True if ``value`` is a number, a text, an array, or a list, dict or component of this package of these.

    Its content then determines everything that it computes. A class of another author may depend on more: attributes of
    the class, variables outside it.
    """
    if type(value) in _PLAIN_TYPES:
        return True
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, None | bool | int | float | complex | str | bytes | np.generic | np.ndarray):
        return not isinstance(value, np.ndarray) or value.dtype.kind != "O"
    return type(value).__module__.partition(".")[0] == OWN_PACKAGE and all(map(is_plain, vars(value).values()))


def _content(value: object, seen: Seen) -> object:
    kind: Any = type(value)
    if kind in _PLAIN_TYPES or isinstance(value, _ATOMS):
        return kind, value
    if isinstance(value, float | complex):
        return kind, repr(value)  # NaN equals itself, and -0.0 differs from 0.0
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    parts = [part if isinstance(part, _FROZEN) else _content(part, seen) for part in _splitter(kind)(value, seen)]
    if attributes := getattr(value, "__dict__", None):
        names = sorted(attributes)
        parts.append((tuple(names), _each([attributes[name] for name in names], seen)))
    return kind, *parts


@lru_cache(maxsize=256)
def _splitter(kind: type) -> Splitter:
    """Return the function that yields the parts of objects of a type beside their attributes."""
    return next((split for types_, split in _SPLITTERS if issubclass(kind, types_)), _pickled)


def _array_parts(value: Any, seen: Seen) -> Iterable[Any]:
    if value.dtype.kind == "O":
        return _each(value.shape, seen), value.ravel().tolist()
    array = np.asarray(value)
    data = array.tobytes()
    return array.dtype, _each(array.shape, seen), data if len(data) < _LONG else blake2b(data).digest()


def _mapping_parts(value: Any, seen: Seen) -> Iterable[Any]:
    return [_each(pair, seen) for pair in value.items()]


def _sequence_parts(value: Any, seen: Seen) -> Iterable[Any]:
    return [_each(value, seen)]


def _set_parts(value: Any, seen: Seen) -> Iterable[Any]:
    return [frozenset(_each([item], seen) for item in value)]


def _function_parts(value: Any, seen: Seen) -> Iterable[Any]:
    cells = []
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # an empty cell: the outer function has not set the name yet
            if cell.cell_contents is not cell:
                cells.append(cell.cell_contents)
    return _Identity(value), [cells, value.__defaults__, value.__kwdefaults__]


def _method_parts(value: Any, seen: Seen) -> Iterable[Any]:
    return value.__func__, value.__self__


_SPLITTERS: tuple[tuple[Any, Splitter], ...] = (
    (np.ndarray | np.generic, _array_parts),
    (Mapping, _mapping_parts),
    (list | tuple, _sequence_parts),
    (set | frozenset, _set_parts),
    (types.FunctionType, _function_parts),
    (types.MethodType, _method_parts),
)


def _each(values: Iterable[object], seen: Seen) -> tuple[object, ...]:
    # plain items without a call for each: components have dozens
    return tuple([(type(v), v) if type(v) in _PLAIN_TYPES else _content(v, seen) for v in values])


def _pickled(value: Any, seen: Seen) -> Iterator[Any]:
    """Yield the state of an object beside its ``__dict__``: its slots, or its pickled state; else the object itself."""
    kind: Any = type(value)
    slots, own_reduction = _class_layout(kind)
    if slots:
        yield [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    if own_reduction:
        try:
            reduced: Any = value.__reduce_ex__(2)
            whole, *items = reduced[:5]
        except Exception:  # any error of a class that cannot be pickled
            yield _Identity(value)
        else:
            yield [whole, *(list(part) if isinstance(part, Iterator) else part for part in items)]
    elif not slots and not hasattr(value, "__dict__"):
        yield _Identity(value)


@lru_cache(maxsize=256)
def _class_layout(kind: type) -> tuple[list[str], bool]:
    """Return the slots of a class, and whether it defines its own pickling."""
    declared = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    slots = [name for names in declared for name in ((names,) if isinstance(names, str) else names)]
    own_reduction = any(getattr(kind, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__"))
    return [name for name in slots if name not in ("__dict__", "__weakref__")], own_reduction


# Digests of values that are equal in all processes, where :func:`content` compares within one.


_BY_REPR = (type(None), bool, int, float, complex, str, bytes, np.generic)


def digest(value: object) -> bytes:
    """Return a digest of ``value``; TypeError if it holds an object that cannot be pickled."""
    hasher = blake2b(digest_size=16)
    for part in _digested(value):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _digested(value: object) -> Iterator[bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, _BY_REPR):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield f"{value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield digest(key) + digest(item)
    elif isinstance(value, list | tuple):
        yield from map(digest, value)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(digest, value))
    elif isinstance(value, BaseEstimator):
        yield from _digested(vars(value))
    elif isinstance(value, types.FunctionType):  # name, code, and its values; variables of the module are not followed
        yield f"{value.__module__}.{value.__qualname__}".encode()
        yield from _of_code(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield digest([cells, value.__defaults__, value.__kwdefaults__])
    else:
        try:
            yield pickle.dumps(value, 5)
        except Exception as error:  # any error of a class that cannot be pickled
            raise TypeError(
                f"{value!r} cannot be pickled, so that a checkpoint cannot tell whether a later fit has the same "
                f"settings."
            ) from error


def _of_code(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant)
        else:
            yield digest(constant)


# Copies of frozen data classes, made in a fraction of the time of :func:`dataclasses.replace`.


FrozenValue = TypeVar("FrozenValue")


def with_attributes(value: FrozenValue, **attributes: object) -> FrozenValue:
    """Return a copy of ``value``, what is cached in it included, with other values of some attributes."""
    twin = object.__new__(type(value))
    vars(twin).update({**vars(value), **attributes})
    return twin
