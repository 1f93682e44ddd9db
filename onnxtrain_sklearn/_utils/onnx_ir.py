"""Import onnx-ir without SymPy, whose import takes several times as long as the rest of onnx-ir.

onnx-ir computes with SymPy only where sizes of axes are expressions ("batch * 2"), which few graphs have. But it
imports SymPy at once, because the parser of these expressions keeps a table of a few functions. Importing this module
imports onnx-ir.

While onnx-ir is imported, ``builtins.__import__`` is replaced: an ``import sympy`` statement in a module of onnx-ir
gets a stand-in, which loads SymPy when more is needed than the names of the table. A stub in ``sys.modules`` would save
the same time, but other threads that import SymPy meanwhile would get it too. Here they get SymPy itself, and so does
everyone once onnx-ir is imported. A release of onnx-ir that uses more of SymPy during its import still works: it only
takes longer.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

SYMPY = "sympy"
IN_TABLE = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""The functions in the table. Nothing calls them before an expression is parsed."""


class _Substitute(ModuleType):
    """Stand-in for SymPy in modules of onnx-ir."""

    importing = True

    def __getattr__(self, name: str) -> object:
        if self.importing and name in IN_TABLE:
            return lambda *arguments: getattr(import_module(SYMPY), name)(*arguments)  # import SymPy when it is called
        return getattr(import_module(SYMPY), name)


def import_onnx_ir() -> None:
    """Import onnx-ir; without SymPy, unless that or onnx-ir has been imported already."""
    if SYMPY in sys.modules or "onnx_ir" in sys.modules:
        return
    substitute, statement = _Substitute(SYMPY), builtins.__import__

    def without_sympy(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        wanted = name == SYMPY and not fromlist and substitute.importing and SYMPY not in sys.modules
        if wanted and str((globals or {}).get("__name__")).startswith("onnx_ir."):
            return substitute
        return statement(name, globals, locals, fromlist or (), level)

    builtins.__import__ = without_sympy
    try:
        import_module("onnx_ir")
    finally:
        substitute.importing = False
        if builtins.__import__ is without_sympy:  # else another replacement calls it, and it does nothing by now
            builtins.__import__ = statement


import_onnx_ir()
