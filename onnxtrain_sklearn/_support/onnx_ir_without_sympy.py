"""Imports onnx-ir without SymPy, whose import takes five times as long as the rest of onnx-ir.

onnx-ir computes with SymPy where sizes of axes are expressions ("batch * 2"), which few graphs have. It imports SymPy
at once all the same, because its parser of expressions keeps a table of a few functions. This module stands in for
SymPy while onnx-ir is imported, and in its modules until they need more than the names of the table: then SymPy is
loaded.
A release of onnx-ir that uses more of SymPy while it is imported loads it there, and works as without this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

SYMPY = "sympy"
IN_TABLE = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""The functions in the table. Nothing calls them before an expression is parsed."""


class _Substitute(ModuleType):
    """What modules of onnx-ir have in place of SymPy."""

    importing = True

    def __getattr__(self, name: str) -> object:
        return _later(name) if self.importing and name in IN_TABLE else getattr(_loaded(), name)


def _later(name: str) -> Callable[..., object]:
    return lambda *arguments: getattr(_loaded(), name)(*arguments)


def _loaded() -> ModuleType:
    _withdraw()
    return import_module(SYMPY)


def _withdraw() -> None:
    if isinstance(sys.modules.get(SYMPY), _Substitute):
        del sys.modules[SYMPY]


def import_onnx_ir() -> None:
    """Import onnx-ir; without SymPy, unless that or onnx-ir has been imported already."""
    if SYMPY in sys.modules or "onnx_ir" in sys.modules:
        return
    sys.modules[SYMPY] = substitute = _Substitute(SYMPY)
    try:
        import_module("onnx_ir")
    finally:
        substitute.importing = False
        _withdraw()


import_onnx_ir()
