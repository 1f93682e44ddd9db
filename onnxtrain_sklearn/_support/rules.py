"""Rules for the values of parameters, and the check of an object's parameters against them.

Estimators, losses, optimizers, schedules and builders declare their parameters by these rules. A declaration is a
tuple: a value is valid where one of the rules accepts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np

from ..exceptions import InvalidParameterError, nearest


@dataclass(frozen=True)
class Range:
    """Numbers of a kind between two bounds; NaN is in no range.

    Parameters
    ----------
    kind : {numbers.Real, numbers.Integral}
    low, high : float
        The bounds; the upper one is infinity by default.
    closed : {"left", "right", "both", "neither"}
        The bounds that are valid themselves.
    """

    kind: type
    low: float
    high: float = np.inf
    closed: Literal["left", "right", "both", "neither"] = "left"

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is a number in the range."""
        if not isinstance(value, self.kind):
            return False
        number: Any = value
        above = number >= self.low if self.closed in ("left", "both") else number > self.low
        return bool(above and (number <= self.high if self.closed in ("right", "both") else number < self.high))

    def __str__(self) -> str:
        left, right = "[" if self.closed in ("left", "both") else "(", "]" if self.closed in ("right", "both") else ")"
        whole = self.kind is Integral
        low, high = (int(x) if whole and np.isfinite(x) else float(x) for x in (self.low, self.high))
        return f"{'an int' if whole else 'a float'} in the range {left}{low}, {high}{right}"


@dataclass(frozen=True)
class OneOf:
    """Some strings and numbers."""

    values: Collection[str | float]

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is one of them."""
        return isinstance(value, str | Real) and any(value == known for known in self.values)

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.values))
        return shown if len(self.values) == 1 else f"one of {shown}"


@dataclass(frozen=True)
class Instance:
    """Objects of a type, which ``named`` names in messages."""

    kind: type
    named: str

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is of the type."""
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return self.named


class Sizes:
    """An int >= 1, or a sequence of them that may be empty."""

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a size or sequence."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return COUNT.accepts(value)
        return all(COUNT.accepts(size) for size in value)

    def __str__(self) -> str:
        return "an int >= 1 or a sequence of them"


class Callbacks:
    """A list or tuple of callables, or objects with the hooks of callbacks; a class is an instance that was forgotten.

    Parameters
    ----------
    hooks : tuple of str
        The methods of an object that is not called itself.
    """

    def __init__(self, hooks: tuple[str, ...]) -> None:
        self._hooks = hooks

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a list."""
        if not isinstance(value, list | tuple):
            return False
        return all((callable(one) or self._has_hooks(one)) and not isinstance(one, type) for one in value)

    def _has_hooks(self, value: object) -> bool:
        return all(callable(getattr(value, name, None)) for name in self._hooks)

    def __str__(self) -> str:
        return "a list of callables"


class PatternFactors:
    """A mapping from glob patterns to factors, finite numbers >= 0; it may be empty."""

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a mapping."""
        if not isinstance(value, Mapping):
            return False
        return all(isinstance(k, str) and NOT_NEGATIVE.accepts(x) for k, x in value.items())

    def __str__(self) -> str:
        return "a dict from glob patterns to finite numbers >= 0"


class CodeColumns:
    """A mapping from column numbers to the number of codes of the column, ints >= 1; it may be empty."""

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is such a mapping."""
        if not isinstance(value, Mapping):
            return False
        return all(Range(Integral, 0).accepts(i) and COUNT.accepts(size) for i, size in value.items())

    def __str__(self) -> str:
        return "a dict from column numbers to numbers of codes"


Rule: TypeAlias = "Range | OneOf | Instance | Sizes | Callbacks | PatternFactors | CodeColumns | type[bool] | None"
Rules: TypeAlias = Mapping[str, tuple[Rule, ...]]

COUNT = Range(Integral, 1)
NOT_NEGATIVE = Range(Real, 0)
POSITIVE = Range(Real, 0, closed="neither")
FRACTION = Range(Real, 0, 1, closed="both")
BELOW_ONE = Range(Real, 0, 1)
FACTORS = PatternFactors()
CODE_COLUMNS = CodeColumns()


def check_parameters(owner: object, rules: Rules) -> None:
    """Raise InvalidParameterError, naming parameter, valid values and value, where a parameter breaks its rules.

    A parameter without rules is checked elsewhere.
    """
    for name, allowed in rules.items():
        value = getattr(owner, name)
        kind = type(value)
        if kind in _SIMPLE and (id(allowed), kind, value) in _found_valid:
            continue  # an estimator has dozens, most with the values of the last fit
        if allowed and not _accepted(allowed, value):
            raise InvalidParameterError(
                f"The {name!r} parameter of {type(owner).__name__} must be {' or '.join(map(_expected, allowed))}. "
                f"Got {value!r} instead.{_hint(value, allowed)}"
            )


_SIMPLE = frozenset({bool, int, float, str, type(None)})

_found_valid: dict[tuple[int, type, object], tuple[Rule, ...]] = {}
"""Simple values that rules accepted, by the address of the rules, which stays valid as they are held here."""


def _accepted(allowed: tuple[Rule, ...], value: object) -> bool:
    """Whether one of the rules accepts a value, which is remembered if it is simple."""
    kind, valid = type(value), any(accepts(rule, value) for rule in allowed)
    if valid and kind in _SIMPLE and len(_found_valid) < 4096:
        _found_valid[id(allowed), kind, value] = allowed
    return valid


def accepts(rule: Rule, value: object) -> bool:
    """Whether a rule accepts a value."""
    if rule is None:
        return value is None
    return isinstance(value, bool | np.bool_) if isinstance(rule, type) else rule.accepts(value)


def _expected(rule: Rule) -> str:
    return "a bool" if rule is bool else str(rule)


def _hint(value: object, rules: tuple[Rule, ...]) -> str:
    names = [name for rule in rules if isinstance(rule, OneOf) for name in rule.values if isinstance(name, str)]
    return nearest(value, names) if isinstance(value, str) and len(names) > 1 else ""
