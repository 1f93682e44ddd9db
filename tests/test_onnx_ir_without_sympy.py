"""onnx-ir is imported without SymPy, which is loaded where an expression of sizes is computed."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGINNING = """
import sys
import onnxtrain_sklearn
from onnxtrain_sklearn._support.onnx_ir_without_sympy import SYMPY, _Substitute
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
sys.modules[SYMPY] = substitute = _Substitute(SYMPY)
later = substitute.Max
assert sys.modules[SYMPY] is substitute
symbol = substitute.Symbol
import sympy
assert sympy is not substitute and symbol is sympy.Symbol
assert later(2, 3) == 3
"""


FIRST = "import sympy"
STAYS = "assert sys.modules[SYMPY] is ir._core.sympy"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [BEGINNING + EXPRESSIONS + OTHER_NAMES, FIRST + BEGINNING + STAYS], ids=["later", "imported_before"]
)
def test_sympy_is_loaded_where_it_is_needed(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
