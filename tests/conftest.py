"""Which tests a run takes, and when garbage is collected meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

import pytest

from tests.helpers import selection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--operator", metavar="NAME", help="only the proofs of the gradients of one operator")
    parser.addoption("--quick", action="store_true", help="some cases of each test; no proofs, nothing long or slow")
    parser.addoption("--cases", type=int, default=1, help="beside --quick: how many cases of each test, at most")
    parser.addoption("--and", dest="also", metavar="MARK", help="beside --quick: all tests that have this mark")


def pytest_configure(config: pytest.Config) -> None:
    for marker in selection.MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)  # before pytest reads -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.thin(items)
    selection.mark_engines(items)
    if operator := config.getoption("--operator"):
        take(config, items, selection.of_operator(items, operator))
    if config.getoption("--quick"):
        take(config, items, selection.of_quick_run(items, *map(config.getoption, ("cases", "also"))))


def take(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Run the chosen tests alone."""
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no doctests in the tests."""
    return [found for found in (yield) if type(found) is pytest.Module]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no cases of what a quick run leaves out."""
    quick_alone = collector.config.getoption("--quick") and not collector.config.getoption("also")
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    return [] if quick_alone and selection.is_left_out(marks) else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Make the cases that a quick run takes, and no others: all 16,000 take each worker four seconds."""
    yield
    config, calls = metafunc.config, metafunc._calls
    if config.getoption("--quick") and not config.getoption("also"):
        each = metafunc.definition.get_closest_marker("each")
        own = {mark.name for mark in metafunc.definition.iter_markers()}
        quick = [call for call in calls if not selection.is_left_out(own | {mark.name for mark in call.marks})]
        calls[:] = selection.quick_cases(quick or calls, lambda call: call.params, config.getoption("cases"), each)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and let no later collection of it traverse what was imported.

    Later collections come a tenth as often: those of all that tests leave take half a second each, and most of what is
    young is soon gone without one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        youngest, middle, oldest = gc.get_threshold()
        gc.set_threshold(10 * youngest, middle, 10 * oldest)
        gc.enable()


@pytest.fixture(autouse=True)
def updates_of_a_new_process() -> None:
    """Let each test begin with updates by NumPy, whatever tests before it did in the process."""
    module = sys.modules.get("onnxtrain_sklearn._training.update_executors")  # an import here would change warnings
    if module is not None:
        vars(module.SAVINGS).update(vars(module.Savings()))


@pytest.fixture(params=["host", "device"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The memory that the training step is in: the host's, or that of a device, which the CPU stands for."""
    from tests.helpers.environment import OWN_MEMORY

    if request.param == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    return str(request.param)
