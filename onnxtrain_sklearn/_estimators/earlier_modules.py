"""Module names of earlier versions, for pickles and files of skops and joblib that contain them.

Importing such a name gives a module with the classes that pickles of that version contain. The finder is asked last,
only if Python has found no module of that name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .stored import PACKAGE, Earlier

EARLIER: dict[str, tuple[str, ...]] = {
    "_estimators": ("OrtGradientClassifier", "OrtGradientRegressor"),
    "_fitted": ("FittedModel",),
    "_graph.columns": ("Parts",),
    "_graph.model": ("TensorSpec", "TrainableModel"),
    "_history": ("Curve", "History"),
    "_inference": ("Head",),
    "_inputs": ("Inputs",),
    "_ml_files": ("FittedFile",),
    "_origins": ("Origin",),
    "_parameters": ("FlatParameters",),
    "_run": ("Run",),
    "_runtime": ("Device",),
    "_start": ("Start",),
    "_step": ("OptimizerState",),
    "_tables": ("Table", "TableColumn"),
}
"""Modules of earlier versions, with their classes whose objects are in pickles; some modules are packages now."""


class _EarlierModuleFinder(MetaPathFinder, Loader):
    """Imports stand-ins for earlier modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == PACKAGE and name in EARLIER else None

    def exec_module(self, module: ModuleType) -> None:
        _add_classes(module)


def know_earlier_modules() -> None:
    """Make the names of earlier modules importable; a package of that name gets the classes instead."""
    sys.meta_path.append(_EarlierModuleFinder())
    for name in EARLIER:
        if (module := sys.modules.get(f"{PACKAGE}.{name}")) is not None:
            _add_classes(module)


def _add_classes(module: ModuleType) -> None:
    names = EARLIER[module.__name__.partition(".")[2]]

    def find(name: str) -> type:
        if name not in names:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return _class(name)

    vars(module)["__getattr__"] = find  # called for missing attributes only


@cache
def _class(name: str) -> type:
    """Return the public class of this name, or a stand-in for a private class."""
    public: type | None = getattr(importlib.import_module(PACKAGE), name, None)
    return type(name, (Earlier,), {}) if public is None else public
