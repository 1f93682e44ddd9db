"""Names of modules that earlier versions had, for pickles and files of skops and joblib that name them.

An import of such a name gives a module with the classes that pickles of that time hold. Python asks for it here only
where it has found no module of that name.
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
"""Modules of earlier versions with the classes in them whose objects are in pickles; some are packages now."""


class _Finder(MetaPathFinder, Loader):
    """Makes modules for the names of earlier ones."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == PACKAGE and name in EARLIER else None

    def exec_module(self, module: ModuleType) -> None:
        _add_classes(module)


def know_earlier_modules() -> None:
    """Let the names of earlier modules be imported; where a package has such a name, it gets the classes."""
    sys.meta_path.append(_Finder())
    for name in EARLIER:
        if (module := sys.modules.get(f"{PACKAGE}.{name}")) is not None:
            _add_classes(module)


def _add_classes(module: ModuleType) -> None:
    names = EARLIER[module.__name__.partition(".")[2]]

    def find(name: str) -> type:
        if name not in names:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return _class(name)

    vars(module)["__getattr__"] = find  # asked for what the module does not have


@cache
def _class(name: str) -> type:
    """Return the public class of this name, or a stand-in for a private one."""
    public: type | None = getattr(importlib.import_module(PACKAGE), name, None)
    return type(name, (Earlier,), {}) if public is None else public
