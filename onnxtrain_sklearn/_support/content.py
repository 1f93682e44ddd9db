"""The content of an object as a comparable value: arrays by their bytes, objects by class and state.

A ``repr`` does not suffice: numpy abbreviates arrays of more than 1000 numbers, and rounds. Two objects of equal
content are interchangeable. If objects of different content behave alike, something is rebuilt needlessly.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

_LONG = 4096
"""Size in bytes from which on an array is represented by its digest."""

_ATOMS = (type(None), bool, int, str, bytes, type, np.dtype)

_PACKAGE = __name__.partition(".")[0]

Seen = dict[int, tuple[int, Any]]
"""Objects already visited, by address, with their number; the references keep the addresses valid."""


@dataclass(frozen=True)
class _Identity:
    """An object that is equal only to itself."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def content(value: object) -> object:
    """Return the nested content of ``value``; compare two contents with ``==``.

    A function is equal only to itself, as long as the values in its closure do not change.
    """
    try:
        return _content(value, {})
    except RecursionError:
        return object()  # equal to nothing


def is_plain(value: object) -> bool:
    """Whether ``value`` is a number, a text, an array, or a component of this package that consists of such.

    Its content then says all that it computes. What a class of somebody else computes may depend on more: on attributes
    of the class, on variables outside.
    """
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, None | bool | int | float | complex | str | bytes | np.generic | np.ndarray):
        return not isinstance(value, np.ndarray) or value.dtype.kind != "O"
    return type(value).__module__.partition(".")[0] == _PACKAGE and all(map(is_plain, vars(value).values()))


def _content(value: object, seen: Seen) -> object:
    if isinstance(value, _ATOMS):
        return type(value), value
    if isinstance(value, float | complex):
        return type(value), repr(value)  # NaN equals itself, and -0.0 differs from 0.0
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    return type(value), *(
        part if isinstance(part, bytes) else _frozen(part, seen) for part in _parts_of_value(value, seen)
    )


def _frozen(part: object, seen: Seen) -> object:
    return part if isinstance(part, _Identity | tuple | frozenset) else _content(part, seen)


def _parts_of_value(value: object, seen: Seen) -> Iterator[Any]:
    """Yield the parts of ``value``."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        array = np.asarray(value)
        data = array.tobytes()
        yield from (array.dtype, _each(array.shape, seen), data if len(data) < _LONG else blake2b(data).digest())
    elif isinstance(value, np.ndarray):
        yield from (_each(value.shape, seen), value.ravel().tolist())
    elif isinstance(value, Mapping):
        yield from (_each(pair, seen) for pair in value.items())
    elif isinstance(value, list | tuple):
        yield _each(value, seen)
    elif isinstance(value, set | frozenset):
        yield frozenset(_each([item], seen) for item in value)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        yield from (_Identity(value), [cells, value.__defaults__, value.__kwdefaults__])
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    else:
        yield from _pickled(value)
    if attributes := getattr(value, "__dict__", None):
        yield tuple((name, _content(attributes[name], seen)) for name in sorted(attributes))


def _each(values: Iterable[object], seen: Seen) -> tuple[object, ...]:
    return tuple(_content(item, seen) for item in values)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # an empty cell: the outer function has not set the name yet
        return False


def _pickled(value: object) -> Iterator[Any]:
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
