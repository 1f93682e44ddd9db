"""Imports onnx-ir without SymPy, whose import takes several times as long as the rest of onnx-ir.

onnx-ir computes with SymPy where sizes of axes are expressions ("batch * 2"), which few graphs have. It imports SymPy
at once all the same, because its parser of expressions keeps a table of a few functions. While onnx-ir is imported,
an ``import sympy`` statement in its own modules gives a stand-in, which loads SymPy when more is needed than the names
of the table. Statements elsewhere get SymPy itself, also in other threads meanwhile: the stand-in is never in
``sys.modules``. A release of onnx-ir that uses more of SymPy while it is imported works as without this module.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType

SYMPY = "sympy"
IN_TABLE = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""The functions in the table. Nothing calls them before an expression is parsed."""


class _Substitute(ModuleType):
    """Stand-in for SymPy in modules of onnx-ir."""

    importing = True

    def __getattr__(self, name: str) -> object:
        return _later(name) if self.importing and name in IN_TABLE else getattr(import_module(SYMPY), name)


def _later(name: str) -> Callable[..., object]:
    return lambda *arguments: getattr(import_module(SYMPY), name)(*arguments)


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
"""onnx-ir is imported without SymPy, which is loaded where an expression of sizes is computed."""
