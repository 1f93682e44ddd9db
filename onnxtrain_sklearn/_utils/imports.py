"""Prepare the imports of other packages; the root of this package imports this module first.

:func:`require` names all missing packages at once, with the command that installs them; in the program
``onnxtrain-sklearn`` it prints this sentence and ends the process. The program itself cannot: the root of the package,
which imports these packages, is imported before any module of it. onnxruntime is not among them: the package can be
imported without it, and ``onnxtrain-sklearn doctor`` says how to install it.

:func:`import_onnx_ir` imports onnx-ir without SymPy, whose import takes several times as long as the rest of onnx-ir.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

PROGRAM = "onnxtrain-sklearn"
DISTRIBUTIONS = {
    "numpy": "numpy",
    "onnx": "onnx",
    "onnx_ir": "onnx-ir",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}
"""The packages by the names that are imported, and their distributions."""


def require() -> None:
    """Raise ModuleNotFoundError if a package is missing; exit the program with a sentence."""
    missing = []
    for name in DISTRIBUTIONS:
        try:
            found = bool(sys.modules.get(name) or find_spec(name))
        except ImportError:  # of finders that refuse a name
            found = False
        if not found:
            missing.append(name)
    if not missing:
        return
    names = " ".join(DISTRIBUTIONS[name] for name in missing)
    text = f"onnxtrain_sklearn needs packages that {sys.executable} does not find: pip install {names}"
    # Is this the console script, or ``python -m onnxtrain_sklearn``? While the package of a module that -m names is
    # imported, the name is in the original arguments alone.
    script = os.path.splitext(os.path.basename(sys.argv[0]))[0] if sys.argv else ""
    if script == PROGRAM or (script == "-m" and "onnxtrain_sklearn" in sys.orig_argv):
        sys.exit(f"error: {text}")
    raise ModuleNotFoundError(text, name=missing[0])


# onnx-ir without SymPy.
#
# onnx-ir computes with SymPy only where sizes of axes are expressions ("batch * 2"), which few graphs have. But it
# imports SymPy at once, because the parser of these expressions keeps a table of a few functions.
#
# While onnx-ir is imported, ``builtins.__import__`` is replaced: an ``import sympy`` statement in a module of onnx-ir
# gets a stand-in, which loads SymPy when more is needed than the names of the table. A stub in ``sys.modules`` would
# save the same time, but other threads that import SymPy meanwhile would get it too. Here they get SymPy itself, and so
# does everyone once onnx-ir is imported. A release of onnx-ir that uses more of SymPy during its import still works: it
# only takes longer.


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
    substitute = _Substitute(SYMPY)
    statement = builtins.__import__

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


require()
import_onnx_ir()
