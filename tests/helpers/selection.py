"""Which tests a run takes: every subject once, all of them, or those of one operator.

A matrix of cases is marked ``thinned(by=...)``: ``by`` takes the parameters of a case and returns what the case covers,
such as an operator and a form. `make test` runs the cases that cover something for the first time; the others become
``exhaustive``, and `make test-all` runs these too. So nothing that ``by`` names is ever left out, and a case that is
added needs no mark.

A test marked ``proof(operators=...)`` compares gradients with central differences; the function returns the operators
that a case proves, and ``--operator Resize`` takes the proofs of that one alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

MARKERS = (
    "exhaustive: a further case of what a case before it covers; `make test-all` runs it, `make test` does not",
    "thinned(by): a matrix of cases; by(**parameters) returns what a case covers, and each is covered once by the "
    "cases that are not exhaustive",
    "proof(operators): a comparison of gradients with central differences, which `make quick` leaves out; "
    "operators(**parameters) returns those that a case proves",
)


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark as exhaustive what covers nothing that a case of the same test before it does not cover."""
    covered: dict[str, set[Hashable]] = {}
    for item in items:
        mark = item.get_closest_marker("thinned")
        if mark is None:
            continue
        seen = covered.setdefault(item.nodeid.partition("[")[0], set())
        subjects = set(of(mark.kwargs["by"], item))
        if subjects <= seen:
            item.add_marker(pytest.mark.exhaustive)
        seen |= subjects


def of(function: Callable[..., Iterable[Hashable]], item: Any) -> Iterable[Hashable]:
    """Return what a function of a test's parameters says; a text is one thing, not its letters."""
    found = function(**item.callspec.params)
    return [found] if isinstance(found, str) else found


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
