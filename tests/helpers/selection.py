"""Which tests a run takes: every subject once, all of them, or those of one operator.

A case of a matrix covers the values of its parameters, each for itself. `make test` runs as few cases as cover all that
the matrix does; the others become ``exhaustive``. `make test-all` runs these too, and tests marked ``slow``. A matrix
marked ``thinned(by=...)`` says what a case covers: ``by`` takes its parameters and returns, say, an operator and a
form. So nothing that is covered is ever left out, and a case that is added needs no mark.

A test marked ``proof(operators=...)`` compares gradients with central differences; the function returns the operators
that a case proves, and ``--operator Resize`` takes the proofs of that one alone.

``--quick`` leaves out what is exhaustive and tests marked ``long`` or ``slow``, and takes a case of each test that is
left, or of each entry of a registry where the mark ``each(by=...)`` says which entry a case is of. Of proofs it takes
only those with that mark.
``--quick --cases 2`` takes two, spread evenly over its matrix, and ``--quick --and training_runtime`` adds every test
with that mark.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

NOT_QUICK = {"proof", "long", "slow", "exhaustive"}
"""Marks of what ``--quick`` leaves out."""

MARKERS = (
    "exhaustive: a further case of what other cases cover; `make test-all` runs it, `make test` does not",
    "thinned(by): a matrix of cases; by(**parameters) returns what a case covers, and each is covered once by the "
    "cases that are not exhaustive",
    "each(by): a test of the entries of a registry; by(**parameters) returns the entry, and `make quick` takes a case "
    "of each, not one alone",
    "training_runtime: a case of the engine that needs onnxruntime-training",
    "long: a test of most of a second, of a matter that quicker tests touch; `make quick` leaves it out",
    "slow: a test of seconds, as of other processes or many trainings, which `make test-all` alone runs",
    "proof(operators): a comparison of gradients with central differences, which `make quick` leaves out unless it has "
    "the mark each; operators(**parameters) returns those that a case proves",
)

one_case = pytest.mark.thinned(by=lambda **case: "one")
"""Marks a matrix of which one case is enough."""


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark as exhaustive all cases of a test but a few that cover together what all of them do."""
    tests: dict[str, dict[pytest.Item, set[Hashable]]] = {}
    for item in items:
        if covers := subjects(item):
            tests.setdefault(item.nodeid.partition("[")[0], {})[item] = covers
    for cases in tests.values():
        for item in cases.keys() - few(cases):
            item.add_marker(pytest.mark.exhaustive)


def mark_engines(items: Iterable[pytest.Item]) -> None:
    """Mark what only a training runtime can run: other cases are the same in every environment."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        engines = {value for value in parameters if isinstance(value, str) and value in ("portable", "ort-training")}
        elsewhere = engines == {"portable"} and not item.get_closest_marker("skipif")
        named = re.search(r"classic/|(?<![a-z])ort_training", item.nodeid) and not elsewhere
        if named or "ort-training" in engines:
            item.add_marker(pytest.mark.training_runtime)


def few(cases: Mapping[pytest.Item, set[Hashable]]) -> set[pytest.Item]:
    """Return some cases that cover all: again and again the first of those that cover most of what is left.

    What a case adds never grows, so one that adds as much as it did when last counted is the best.
    """
    left, chosen = set().union(*cases.values()), set()
    waiting = [(-len(covers), i, item, covers) for i, (item, covers) in enumerate(cases.items())]
    heapq.heapify(waiting)
    while left:
        counted, i, item, covers = waiting[0]
        if adds := len(covers & left):
            if adds < -counted:
                heapq.heapreplace(waiting, (-adds, i, item, covers))
                continue
            left -= covers
            chosen.add(item)
        heapq.heappop(waiting)
    return chosen


def subjects(item: Any) -> set[Hashable]:
    """Return what a case covers: what its test's mark says, or else each value of each of its parameters.

    Values that belong together, as the rows of a table do, are one. Nothing where a test has no parameters, or proves
    gradients: every case is a proof of its own.
    """
    if mark := item.get_closest_marker("thinned"):
        return set(of(mark.kwargs["by"], item))
    if item.get_closest_marker("proof") or not hasattr(item, "callspec"):
        return set()
    given, together = item.callspec.params, [names_of(mark) for mark in item.iter_markers("parametrize")]
    alone = [(name,) for name in given if not any(name in names for names in together)]  # of fixtures
    return {(names, *(id(given[name]) for name in names)) for names in (*together, *alone)}


def names_of(parametrize: pytest.Mark) -> tuple[str, ...]:
    """Return the names of the parameters that a mark gives values together."""
    names = parametrize.kwargs.get("argnames") or parametrize.args[0]
    return tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))


def of(function: Callable[..., Iterable[Hashable]], item: Any) -> Iterable[Hashable]:
    """Return what a function of a test's parameters says; a text is one thing, not its letters."""
    found = function(**item.callspec.params)
    return [found] if isinstance(found, str) else found


def is_left_out(marks: Set[str]) -> bool:
    """Return True if a quick run leaves out tests with these marks."""
    return bool(marks & (NOT_QUICK - {"proof"} if "each" in marks else NOT_QUICK))


def of_quick_run(items: Iterable[pytest.Item], most: int, also: str | None = None) -> list[pytest.Item]:
    """Return what `make quick` runs: some cases of each test, but nothing slow or exhaustive and few proofs.

    What is marked ``also`` is added, whatever else it is.
    """
    tests: dict[str, list[Any]] = {}
    for item in items:
        if not is_left_out({mark.name for mark in item.iter_markers()}):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {
        item
        for cases in tests.values()
        for item in quick_cases(cases, lambda item: item.callspec.params, most, cases[0].get_closest_marker("each"))
    }
    return [item for item in items if item in chosen or (also and item.get_closest_marker(also))]


def quick_cases(
    cases: Sequence[Case], parameters: Callable[[Case], Mapping[str, Any]], most: int, each: pytest.Mark | None
) -> list[Case]:
    """Return at most so many cases of a test, or of each group of its cases, where a mark ``each`` makes groups."""
    groups: dict[Hashable, list[Case]] = {}
    for case in cases:
        groups.setdefault(each and each.kwargs["by"](**parameters(case)), []).append(case)
    return [case for group in groups.values() for case in spread(group, most)]


def spread(cases: list[Case], most: int) -> list[Case]:
    """Return at most so many cases: the first, the last and some between at equal distances."""
    if len(cases) <= most:
        return cases
    if most == 1:
        return cases[:1]
    return [cases[round(i * (len(cases) - 1) / (most - 1))] for i in range(most)]


def of_operator(items: list[pytest.Item], operator: str) -> list[pytest.Item]:
    """Return the proofs of an operator; raise UsageError where there are none."""
    proofs = [(item, mark) for item in items if (mark := item.get_closest_marker("proof")) and mark.kwargs]
    operators = {item: set(of(mark.kwargs["operators"], item)) for item, mark in proofs}
    found = [item for item, named in operators.items() if operator in named]
    if not found:
        known = sorted({str(name) for named in operators.values() for name in named})
        near = difflib.get_close_matches(operator, known, cutoff=0.5)
        raise pytest.UsageError(f"no case proves the gradient of {operator!r}; near it: {', '.join(near) or 'none'}")
    return found
