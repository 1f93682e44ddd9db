"""The content of an object as a comparable value: arrays by their bytes, objects by class and state.

A ``repr`` does not suffice: numpy abbreviates arrays of more than 1000 numbers, and rounds. Two objects of equal
content are interchangeable. If objects of different content behave alike, something is rebuilt needlessly.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

_LONG = 4096
"""Size in bytes from which on an array is represented by its digest."""

_ATOMS = (type(None), bool, int, str, bytes, type, np.dtype)

_PLAIN_TYPES = frozenset({type(None), bool, int, str, bytes})
"""The types of most of them, found without going through base classes."""

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
"""Parts that are contents already."""


def content(value: object) -> object:
    """Return the nested content of ``value``; compare two contents with ``==``.

    A function is equal only to itself, as long as the values in its closure do not change.
    """
    try:
        return _content(value, {})
    except RecursionError:
        return object()  # equal to nothing


def is_plain(value: object) -> bool:
    """Whether ``value`` is a number, a text, an array, or a list, a dict or a component of this package of such.

    Its content then says all that it computes. What a class of somebody else computes may depend on more: on attributes
    of the class, on variables outside.
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
    cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
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


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # an empty cell: the outer function has not set the name yet
        return False


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
