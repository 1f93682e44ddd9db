"""Settings that must be in place before SciPy is imported, and the way to examples in docstrings."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# scikit-learn's common checks skip those of the array API unless SciPy was imported with it.
os.environ["SCIPY_ARRAY_API"] = "1"

ROOT = Path(__file__).parent


def pytest_collect_file(file_path: Path) -> None:
    """Import a module of the package by its name before pytest looks for examples in it.

    If pytest imported it first, there would be a second module with classes of its own, which tests in the same run
    would take for foreign ones.
    """
    if (
        file_path.suffix == ".py"
        and file_path.name != "__main__.py"
        and ROOT / "onnxtrain_sklearn" in file_path.parents
    ):
        parts = file_path.relative_to(ROOT).with_suffix("").parts
        with suppress(ImportError):  # of an optional package: pytest reports it
            import_module(".".join(part for part in parts if part != "__init__"))
