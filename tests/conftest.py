"""Settings that must be in place before scikit-learn and SciPy are imported, and which tests a run takes."""

from __future__ import annotations

import gc
import os

# scikit-learn's common checks skip those of the array API unless SciPy was imported with it.
os.environ["SCIPY_ARRAY_API"] = "1"

import pytest

from tests.helpers import selection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--operator", metavar="NAME", help="only the proofs of the gradients of one operator")
    parser.addoption("--quick", action="store_true", help="a few cases of each test; no proofs, nothing slow")


def pytest_configure(config: pytest.Config) -> None:
    for marker in selection.MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)  # before pytest reads -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.thin(items)
    if operator := config.getoption("--operator"):
        take(config, items, selection.of_operator(items, operator))
    if config.getoption("--quick"):
        take(config, items, selection.of_quick_run(items))


def take(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Run the chosen tests alone."""
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of all later collections of garbage, which would traverse it."""
    gc.collect()
    gc.freeze()
