"""Imports onnx-ir without SymPy, whose import takes five times as long as the rest of onnx-ir.

onnx-ir computes with SymPy where sizes of axes are expressions ("batch * 2"), which few graphs have. It imports SymPy
at once all the same, because its parser of expressions keeps a table of a few functions. Two modules of onnx-ir get a
stand-in from their own ``import sympy`` statement, until they need more than the names of the table: then SymPy is
loaded. Nobody else sees the stand-in: it is never in ``sys.modules``, so other threads may import SymPy meanwhile.
A release of onnx-ir that uses more of SymPy while it is imported loads it there, and works as without this module.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

SYMPY = "sympy"
IMPORTERS = frozenset({"onnx_ir._core", "onnx_ir._symbolic_shapes"})
IN_TABLE = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""The functions in the table. Nothing calls them before an expression is parsed."""


class _Substitute(ModuleType):
    """Stand-in for SymPy in modules of onnx-ir."""

    importing = True

    def __getattr__(self, name: str) -> object:
        return _later(name) if self.importing and name in IN_TABLE else getattr(import_module(SYMPY), name)


def _later(name: str) -> Callable[..., object]:
    return lambda *arguments: getattr(import_module(SYMPY), name)(*arguments)


class _Finder(MetaPathFinder):
    """Finds the modules that import SymPy; ``substitute`` is what they get."""

    def __init__(self, substitute: ModuleType) -> None:
        self.substitute = substitute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in IMPORTERS else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.substitute)
        return spec


class _Loader(Loader):
    """Runs the body of a module with an import statement of its own, by the loader that the module has else."""

    def __init__(self, loader: Loader, substitute: ModuleType) -> None:
        self.loader, self.substitute = loader, substitute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        statement = partial(_import, vars(module), self.substitute)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": statement}
        self.loader.exec_module(module)


def _import(
    module: dict[str, object],
    substitute: ModuleType,
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as the statement does, but for SymPy; functions of the module have Python's own builtins from here on."""
    module["__builtins__"] = vars(builtins)
    if name == SYMPY and not fromlist and SYMPY not in sys.modules:
        return substitute
    return builtins.__import__(name, globals, locals, fromlist or (), level)


def import_onnx_ir() -> None:
    """Import onnx-ir; without SymPy, unless that or onnx-ir has been imported already."""
    if SYMPY in sys.modules or "onnx_ir" in sys.modules:
        return
    substitute = _Substitute(SYMPY)
    finder = _Finder(substitute)
    sys.meta_path.insert(0, finder)
    try:
        import_module("onnx_ir")
    finally:
        substitute.importing = False
        sys.meta_path.remove(finder)


import_onnx_ir()
"""onnx-ir is imported without SymPy, which is loaded where an expression of sizes is computed."""
