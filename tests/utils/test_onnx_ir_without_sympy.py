"""onnx-ir is imported without SymPy, which is loaded where an expression of sizes is computed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.processes import run_in_new_process

BEGINNING = """
import sys
import onnxtrain_sklearn
from onnxtrain_sklearn._utils.imports import SYMPY, _Substitute
import onnx_ir as ir
"""

# SymPy is loaded by an expression, or where onnx-ir needs another name while it is imported
EXPRESSIONS = """
assert SYMPY not in sys.modules
assert ir.SymbolicDim("n").value == "n" and SYMPY not in sys.modules
largest = ir.SymbolicDim("max(n, m) // 2")
assert largest.evaluate({"n": 3, "m": 8}) == 4
import sympy
assert type(sympy) is type(sys) and isinstance(sympy.Symbol("n") + 1, ir._core.sympy.Expr)
assert (ir.SymbolicDim("n") + 1).value == "n + 1"
"""
OTHER_NAMES = """
substitute = _Substitute(SYMPY)
later = substitute.Max
assert SYMPY not in sys.modules
symbol = substitute.Symbol
import sympy
assert symbol is sympy.Symbol
assert later(2, 3) == 3
"""

# another thread imports SymPy, and a module within it, in the middle of onnx-ir's import
OTHER_THREAD = """
import builtins, sys, threading
found = []
def other_thread():
    import sympy
    from sympy.core.numbers import Integer
    found.append(type(sympy) is type(sys) and Integer(1) == 1)
def watch(name, globals=None, *others):
    if (globals or {}).get("__name__", "").startswith("onnx_ir._") and not threads:
        threads.append(threading.Thread(target=other_thread))
        threads[0].start()
        threads[0].join()
    return statement(name, globals, *others)
threads = []
statement, builtins.__import__ = builtins.__import__, watch
"""
THERE = """
assert found == [True]
import sympy
assert isinstance(sympy.Symbol("n") + 1, ir._core.sympy.Expr)
assert ir.SymbolicDim("max(n, m) // 2").evaluate({"n": 3, "m": 8}) == 4
"""

# the import statement is Python's own again
AS_BEFORE = """
import builtins
assert type(builtins.__import__) is type(len)
"""

FIRST = "import sympy"
STAYS = "assert sys.modules[SYMPY] is ir._core.sympy"


@pytest.mark.slow
@pytest.mark.parametrize("program", [AS_BEFORE + OTHER_NAMES, EXPRESSIONS], ids=["stand_in", "later"])
def test_sympy_is_loaded_where_it_is_needed(program):
    run_in_new_process(BEGINNING + program)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [FIRST + BEGINNING + STAYS, OTHER_THREAD + BEGINNING + THERE], ids=["imported_before", "other_thread"]
)
def test_sympy_is_there_before_onnx_ir(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
