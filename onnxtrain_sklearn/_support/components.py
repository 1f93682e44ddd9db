"""Base class of losses, optimizers, schedules and builders: parameters that are declared, checked, found by name.

A component stores the arguments of its constructor and nothing else, as scikit-learn requires; its class declares in
:attr:`Component.valid` which values each parameter may have. Whatever uses a component calls :meth:`Component.validate`
first, most simply by :func:`resolve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from ..exceptions import instead_of, nearest

C = TypeVar("C", bound="Component")


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


Rule: TypeAlias = "Range | type[bool] | None"
Rules: TypeAlias = Mapping[str, tuple[Rule, ...]]

COUNT = Range(Integral, 1)
NOT_NEGATIVE = Range(Real, 0)
POSITIVE = Range(Real, 0, closed="neither")
FRACTION = Range(Real, 0, 1, closed="both")
BELOW_ONE = Range(Real, 0, 1)


class Component(BaseEstimator):
    """An object with declared parameters.

    Attributes
    ----------
    valid : mapping of str to tuple
        What each parameter may be: any of some ranges, ``bool`` for True and False, and None. Parameters that are not
        listed are checked by nobody, or in :meth:`validate`.
    """

    valid: ClassVar[Rules] = {}

    def validate(self) -> None:
        """Raise ValueError, naming parameter, valid values and value, where a parameter is out of range.

        It is called before training, never by the constructor.
        """
        for name, rules in self.valid.items():
            value = getattr(self, name)
            if not any(_accepts(rule, value) for rule in rules):
                raise ValueError(
                    f"The {name!r} parameter of {type(self).__name__} must be {' or '.join(map(_named, rules))}. "
                    f"Got {value!r} instead."
                )


def _accepts(rule: Rule, value: object) -> bool:
    if isinstance(rule, Range):
        return rule.accepts(value)
    return value is None if rule is None else isinstance(value, bool | np.bool_)


def _named(rule: Rule) -> str:
    return "a bool" if rule is bool else str(rule)


def resolve(role: str, value: Any, registry: Mapping[str, type[C]], base: Any, *, kind: str = "") -> C:
    """Return the component that a name or an object stands for, its parameters validated.

    Parameters
    ----------
    role : str
        The parameter of the estimators that ``value`` is given for.
    value : str or component
    registry : mapping of str to type
        The components by name.
    base : type
        What objects must derive from; ``kind`` is its name in the message, by default that of the class.
    """
    if isinstance(value, str):
        if value not in registry:
            raise ValueError(f"Unknown {role} {value!r}.{nearest(value, registry)}")
        return registry[value]()
    if not isinstance(value, base):
        article = "an" if (kind or base.__name__)[0] in "AEIOU" else "a"
        hint = f" The rate itself is learning_rate_init={value!r}." if _is_rate(role, value) else ""
        raise TypeError(
            f"{role} must be a name or {article} {kind or base.__name__} object, {instead_of(value)}.{hint}"
        )
    component: C = value
    component.validate()
    return component


def _is_rate(role: str, value: object) -> bool:
    return role == "learning_rate" and isinstance(value, Real)
