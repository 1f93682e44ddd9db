"""Check that the packages that every import of this one needs are installed, before the first of them is imported.

Importing this module checks it. :func:`require` names all missing ones at once, with the command that installs them;
in the program ``onnxtrain-sklearn`` it prints this sentence and ends the process. The program itself cannot: the root
of the package, which imports these packages, is imported before any module of it. onnxruntime is not among them: the
package can be imported without it, and ``onnxtrain-sklearn doctor`` says what to install.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

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
    missing = [name for name in DISTRIBUTIONS if not _is_installed(name)]
    if not missing:
        return
    names = " ".join(DISTRIBUTIONS[name] for name in missing)
    text = f"onnxtrain_sklearn needs packages that {sys.executable} does not find: pip install {names}"
    if _is_program():
        sys.exit(f"error: {text}")
    raise ModuleNotFoundError(text, name=missing[0])


def _is_installed(name: str) -> bool:
    try:
        return bool(sys.modules.get(name) or find_spec(name))
    except ImportError:  # of finders that refuse a name
        return False


def _is_program() -> bool:
    """Return True if the process runs the console script, or ``python -m onnxtrain_sklearn``."""
    script = os.path.splitext(os.path.basename(sys.argv[0]))[0] if sys.argv else ""
    # While the package of a module that -m names is imported, the name is in the original arguments alone.
    return script == PROGRAM or (script == "-m" and "onnxtrain_sklearn" in sys.orig_argv)


require()
