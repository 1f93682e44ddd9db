"""Arguments that several commands take: parameters of estimators (``--set NAME=VALUE``) and files to write.

Both are checked before the work begins, so that no training is lost to a misspelled name or a folder without
permission.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._utils.typing import Estimator
from ..exceptions import nearest
from ..losses import LOSSES
from ..optimizers import OPTIMIZERS
from ..schedules import SCHEDULES
from .console import UsageError


def parsed_settings(given: Sequence[str]) -> dict[str, object]:
    """Return the values of ``NAME=VALUE``: literals of Python, else text."""
    values: dict[str, object] = {}
    for one in given:
        name, sign, text = (part.strip() for part in one.partition("="))
        if not sign or not name:
            raise UsageError(f"--set takes NAME=VALUE, such as max_iter=50, got {one.partition('=')[0]!r}.")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    return values


def apply_settings(estimator: Estimator, settings: dict[str, object]) -> None:
    """Set parameters of an estimator, in place; a name that it lacks raises UsageError."""
    settings = _with_objects(estimator, settings)
    known = estimator.get_params()
    for name in settings:
        if name not in known and name.partition("__")[0] not in known:
            raise UsageError(f"--set {name!r} is no parameter of {type(estimator).__name__}.{nearest(name, known)}")
    try:
        estimator.set_params(**settings)
    except (ValueError, AttributeError) as error:
        raise UsageError(f"--set: {error}") from error


_COMPONENTS: dict[str, Mapping[str, type]] = {"optimizer": OPTIMIZERS, "loss": LOSSES, "learning_rate": SCHEDULES}


def _with_objects(estimator: Estimator, settings: dict[str, object]) -> dict[str, object]:
    """Replace names of components whose own parameters are set by objects, as for ``optimizer__momentum``.

    An estimator accepts a component by its name, but set_params reaches into objects only.
    """
    result = dict(settings)
    for name, components in _COMPONENTS.items():
        chosen = settings.get(name, getattr(estimator, name, None))
        if any(key.startswith(f"{name}__") for key in settings) and isinstance(chosen, str) and chosen in components:
            result[name] = components[chosen]()
    return result


def require_writable(files: Sequence[Path | None], tables: Sequence[Path | None]) -> None:
    """Raise UsageError if one of the files cannot be written, or is one of the tables that are read."""
    for path in files:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{str(path)!r} is a folder: name a file to write.")
        folder = next(one for one in path.absolute().parents if one.exists())
        if not folder.is_dir():
            raise UsageError(f"{str(path)!r} cannot be written: {str(folder)!r} is no folder.")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{str(path)!r} cannot be written: there is no permission to write there.")
        for table in tables:
            if table is not None and path.exists() and table.exists() and path.samefile(table):
                raise UsageError(f"{str(path)!r} is a table that is read: name another file to write.")
