"""Walk through fitted scikit-learn estimators: find nested ones, and read and assign numbers at paths from a model.

A :data:`Path` names a number across copies of a model: :func:`walk` yields paths, :func:`follow` and :func:`assign`
take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator

from .._utils.typing import Estimator

Path: TypeAlias = "tuple[str | int, ...]"
"""Attributes and positions from a model to a nested object."""


def walk(root: Estimator, depth: int = 12) -> Iterator[tuple[Path, Any]]:
    """Yield every estimator within ``root`` once, with the path to it; itself first."""
    seen: set[int] = set()
    front: list[tuple[Path, Any]] = [((), root)]
    while front:
        path, value = front.pop(0)
        if id(value) in seen or len(path) > depth:
            continue
        if has_attributes(value):
            seen.add(id(value))
            yield path, value
            front += [((*path, name), inner) for name, inner in vars(value).items() if _may_hold(inner)]
        elif isinstance(value, Mapping):
            front += [((*path, key), inner) for key, inner in value.items() if _may_hold(inner)]
        else:
            front += [((*path, i), inner) for i, inner in enumerate(value) if _may_hold(inner)]


def _may_hold(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == object)
    return isinstance(value, list | tuple | dict) or has_attributes(value)


def has_attributes(value: object) -> bool:
    """Return True if ``value`` is an estimator, or another object of scikit-learn that may hold estimators."""
    is_own = type(value).__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__")
    return isinstance(value, BaseEstimator) or (is_own and not isinstance(value, type))


def follow(root: object, path: Path) -> Any:
    """Return the object at a path from ``root``."""
    value: Any = root
    for part in path:
        value = getattr(value, part) if isinstance(part, str) and not isinstance(value, Mapping) else value[part]
    return value


def assign(owner: Estimator, path: Path, numbers: np.ndarray) -> None:
    """Assign numbers at a path from ``owner``, in the shape and type of those there."""
    holder, last = follow(owner, path[:-1]), path[-1]
    old = follow(holder, (last,))
    new = numbers.reshape(np.shape(old))
    if isinstance(old, np.ndarray):  # stored training data may be integers
        value = new.astype(np.float64 if old.dtype.kind in "iub" else old.dtype)
    else:
        value = float(new)
    if isinstance(last, str) and not isinstance(holder, Mapping):
        setattr(holder, last, value)
    elif isinstance(holder, tuple):  # replaced as a whole, in the object that holds it
        items = list(holder)
        items[int(last)] = value
        setattr(follow(owner, path[:-2]), str(path[-2]), tuple(items))
    else:
        holder[last] = value
