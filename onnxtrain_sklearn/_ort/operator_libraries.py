"""Libraries of custom operators: named in an estimator's ``session_options``, used by every session that needs one.

An estimator reads, compares, trains and exports its graph in several sessions, and most of them are created where the
options of the estimator are not known. So :func:`know_libraries` records the libraries for the whole process, and a
session that does not know an operator is created once more with all of them (:func:`add_known`). Operators that no
library has stay unknown: the session is refused as before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..exceptions import ModelError, instead_of
from .packages import onnxruntime, version

OPTION = "register_custom_ops_library"
"""The key of ``session_options``, named as the method of onnxruntime's SessionOptions."""

_known = dict[str, None]()


def libraries_of(options: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the paths that session options name, one or several."""
    given: Any = (options or {}).get(OPTION)
    if given is None:
        return ()
    paths = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError(
            f"session_options[{OPTION!r}] must be the path of a library, or a list of paths, {instead_of(given)}."
        )
    return tuple(os.fspath(path) for path in paths)


def know_libraries(options: Mapping[str, object] | None) -> None:
    """Make the libraries that session options name available to later sessions of this process.

    Raises
    ------
    ModelError
        onnxruntime does not load one of them.
    """
    for path in libraries_of(options):
        if path not in _known:
            register(onnxruntime.SessionOptions(), path)
            _known[path] = None


def register(settings: onnxruntime.SessionOptions, path: str) -> None:
    """Add the operators of a library to a session; ModelError if onnxruntime does not load it."""
    try:
        settings.register_custom_ops_library(path)
    except Exception as error:  # each release has another class for it
        raise ModelError(
            f"onnxruntime {version()} cannot load the library of custom operators {path!r}, named in session_options: "
            f"{error}. Give the path of a shared library that is built for this onnxruntime and this system."
        ) from error


def add_known(settings: onnxruntime.SessionOptions, options: Mapping[str, object] | None) -> bool:
    """Add every library that this process knows and ``options`` do not name; return True if there was one."""
    more = [path for path in _known if path not in libraries_of(options)]
    for path in more:
        register(settings, path)
    return bool(more)
