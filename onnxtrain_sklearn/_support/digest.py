"""Digests of values that are equal in all processes, where :mod:`.content` compares within one."""

from __future__ import annotations

import pickle
import types
from collections.abc import Iterator, Mapping
from hashlib import blake2b

import numpy as np
from sklearn.base import BaseEstimator

_BY_REPR = (type(None), bool, int, float, complex, str, bytes, np.generic)


def digest(value: object) -> bytes:
    """Return a digest of ``value``; TypeError if it holds an object that cannot be told from others."""
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
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    else:
        yield _pickled_bytes(value)


def _of_function(function: types.FunctionType) -> Iterator[bytes]:
    """Yield name, code and what the code was given; variables of the module are not followed."""
    yield f"{function.__module__}.{function.__qualname__}".encode()
    yield from _of_code(function.__code__)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    yield digest([cells, function.__defaults__, function.__kwdefaults__])


def _of_code(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant)
        else:
            yield digest(constant)


def _pickled_bytes(value: object) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as error:  # any error of a class that cannot be pickled
        raise TypeError(
            f"{value!r} cannot be pickled, so that a checkpoint cannot tell whether a later fit has the same settings."
        ) from error
