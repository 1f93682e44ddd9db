"""Parameters of estimators and components: rules for their values, copies, and their documentation.

A component (:class:`Component`: a loss, an optimizer, a schedule, a builder) stores the arguments of its constructor
and nothing else, as scikit-learn requires; its class declares in :attr:`Component.valid` the valid values of each
parameter. :func:`resolve` looks up a component by its name and validates it. Estimators declare a :class:`Declaration`
with rules and text for each argument; :func:`documented` writes their docstrings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from textwrap import indent
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast, get_origin
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator, clone

from ..exceptions import InvalidParameterError, instead_of, nearest
from .cache import OWN_PACKAGE

# Rules for the values of parameters, and the check of an object's parameters against them.
#
# Estimators, losses, optimizers, schedules and builders declare their parameters by these rules. A declaration is a
# tuple: a value is valid where one of the rules accepts it.


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
        """Return True if ``value`` is a number in the range."""
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
        """Return True if ``value`` is one of them."""
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
        """Return True if ``value`` is of the type."""
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return self.named


class Sizes:
    """An int >= 1, or a sequence of them that may be empty."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a size or sequence."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return COUNT.accepts(value)
        return all(COUNT.accepts(size) for size in value)

    def __str__(self) -> str:
        return "an int >= 1 or a sequence of them"


class ColumnSigns:
    """-1, 0 and 1: one for each column in a sequence, or of some columns in a dict by name or index."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a sequence or dict."""
        if isinstance(value, Mapping):
            return all(isinstance(one, Integral | str) for one in value) and _are_signs(list(value.values()))
        return isinstance(value, Iterable) and not isinstance(value, str | bytes) and _are_signs(list(value))

    def __str__(self) -> str:
        return "a sequence of -1, 0 and 1, one for each column, or a dict from names or indices of columns to them"


def _are_signs(values: list[Any]) -> bool:
    return all(isinstance(one, Integral) and int(one) in (-1, 0, 1) for one in values)


class Callbacks:
    """A list or tuple of callables, or objects with the hooks of callbacks.

    A class is refused, although it can be called: ``[EarlyStopping]`` lacks the brackets of an instance.

    Parameters
    ----------
    hooks : tuple of str
        The methods of an object that is not called itself.
    """

    def __init__(self, hooks: tuple[str, ...]) -> None:
        self._hooks = hooks

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a list."""
        if not isinstance(value, list | tuple):
            return False
        return all(
            (callable(one) or all(callable(getattr(one, name, None)) for name in self._hooks))
            and not isinstance(one, type)
            for one in value
        )

    def __str__(self) -> str:
        return "a list of callables"


class PatternFactors:
    """A mapping from glob patterns to factors, finite numbers >= 0; it may be empty."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a mapping."""
        if not isinstance(value, Mapping):
            return False
        return all(isinstance(k, str) and NOT_NEGATIVE.accepts(x) for k, x in value.items())

    def __str__(self) -> str:
        return "a dict from glob patterns to finite numbers >= 0"


class CodeColumns:
    """A mapping from column numbers to the number of codes of the column, ints >= 1; it may be empty."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a mapping."""
        if not isinstance(value, Mapping):
            return False
        return all(Range(Integral, 0).accepts(i) and COUNT.accepts(size) for i, size in value.items())

    def __str__(self) -> str:
        return "a dict from column numbers to numbers of codes"


class Levels:
    """A sequence of increasing numbers in (0, 1), 0.5 among them."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is such a sequence."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
            return False
        inner = Range(Real, 0, 1, closed="neither")
        numbers = list(value)
        rises = all(inner.accepts(number) for number in numbers) and all(a < b for a, b in pairwise(numbers))
        return rises and 0.5 in numbers

    def __str__(self) -> str:
        return "increasing floats in the range (0.0, 1.0), 0.5 among them"


class RowChoice:
    """Rows: their indices, a mask of all rows, or a splitter of scikit-learn."""

    def accepts(self, value: object) -> bool:
        """Return True if ``value`` is a list of indices, a mask or a splitter."""
        if is_splitter(value):
            return True
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            return False
        array = np.asarray(value)
        return array.ndim == 1 and (array.dtype.kind in "iub" or not array.size)

    def __str__(self) -> str:
        return "indices of rows, a mask of rows or a splitter of scikit-learn"


def is_splitter(value: object) -> bool:
    """Return True if ``value`` splits rows as scikit-learn's splitters do."""
    methods = (getattr(value, name, None) for name in ("split", "get_n_splits"))
    return all(map(callable, methods)) and not isinstance(value, type)


Rule: TypeAlias = (
    "Range | OneOf | Instance | Sizes | ColumnSigns | Callbacks | PatternFactors | CodeColumns | Levels | RowChoice "
    "| type[bool] | None"
)
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
        if not allowed:
            continue
        if not any(accepts(rule, value) for rule in allowed):
            expected = ("a bool" if rule is bool else str(rule) for rule in allowed)
            names = [n for rule in allowed if isinstance(rule, OneOf) for n in rule.values if isinstance(n, str)]
            hint = nearest(value, names) if isinstance(value, str) and len(names) > 1 else ""
            raise InvalidParameterError(
                f"The {name!r} parameter of {type(owner).__name__} must be {' or '.join(expected)}. "
                f"Got {value!r} instead.{hint}"
            )
        if kind in _SIMPLE and len(_found_valid) < 4096:
            _found_valid[id(allowed), kind, value] = allowed


_SIMPLE = frozenset({bool, int, float, str, type(None)})

_found_valid: dict[tuple[int, type, object], tuple[Rule, ...]] = {}
"""Simple values that rules accepted, by the address of the rules, which stays valid as they are held here."""


def accepts(rule: Rule, value: object) -> bool:
    """Return True if a rule accepts a value."""
    if rule is None:
        return value is None
    return isinstance(value, bool | np.bool_) if isinstance(rule, type) else rule.accepts(value)


# Parameters of scikit-learn's objects, read and copied in a fraction of scikit-learn's time.
#
# ``get_params`` goes without a look at the constructor each time: clones and searches call it dozens of times per fit.


_SHARED = (type(None), bool, int, float, str)

_names: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


class Parametrized(BaseEstimator):
    """An object of scikit-learn's whose class reads the names of its parameters once."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return the parameters of parameters too, as ``NAME__PARAMETER``.

        Returns
        -------
        dict
        """
        found: dict[str, Any] = {}
        for name in self._own_names():
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": one for inner, one in value.get_params().items()}
            found[name] = value
        return found

    def _own_names(self) -> tuple[str, ...]:
        """Return the names of the parameters, without the parameters of parameters."""
        kind = type(self)
        if kind not in _names:
            _names[kind] = tuple(super().get_params(deep=False))
        return _names[kind]


def copied(value: Any) -> Any:
    """Return an unfitted copy of a parameter, as ``clone`` makes it."""
    return value if isinstance(value, _SHARED) else clone(value, safe=False)


# Base class of losses, optimizers, schedules and builders: parameters that are declared, checked, found by name.


C = TypeVar("C", bound="Component")


class Component(Parametrized):
    """An object with declared parameters.

    Attributes
    ----------
    name : str
        The name by which the estimators take it. A component of the package declares one; :func:`registered` finds it.
    valid : mapping of str to tuple
        The valid values of each parameter: rules of :mod:`onnxtrain_sklearn._utils.params`, ``bool`` for True and
        False, and None. Parameters that are not listed are checked in :meth:`validate`, or not at all.
    """

    name: ClassVar[str]
    valid: ClassVar[Rules] = {}

    def validate(self) -> None:
        """Raise InvalidParameterError, naming parameter, valid values and value, where a parameter breaks its rules.

        It is called before training, never by the constructor.
        """
        check_parameters(self, self.valid)

    def __sklearn_clone__(self) -> Any:
        """Return a copy; constructors of this package need no check that they store what they are given."""
        if type(self).__module__.partition(".")[0] != OWN_PACKAGE:
            return super().__sklearn_clone__()  # type: ignore[misc]
        return type(self)(**{name: copied(value) for name, value in self.get_params(deep=False).items()})


def registered(base: type, namespace: Mapping[str, object]) -> dict[str, type[C]]:
    """Return the components of a public module by the names that they declare, in alphabetical order.

    Parameters
    ----------
    base : type
        Their base class. A class that inherits its name, as a user's may, is not included.
    namespace : mapping of str to object
        The ``vars()`` of the module. It becomes the module by which pickles name the classes.
    """
    # Type aliases such as list[int] pass isinstance(v, type) in Python 3.10.
    kinds = [v for v in namespace.values() if isinstance(v, type) and get_origin(v) is None]
    classes = cast("list[type[C]]", [kind for kind in kinds if issubclass(kind, base)])
    named = {kind.name: kind for kind in classes if "name" in vars(kind)}
    for kind in named.values():
        kind.__module__ = str(namespace["__name__"])
    return dict(sorted(named.items()))


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
        The base class of valid objects; ``kind`` is its name in the message, by default the name of the class.
    """
    if isinstance(value, str):
        if value not in registry:
            raise InvalidParameterError(f"Unknown {role} {value!r}.{nearest(value, registry)}")
        return registry[value]()
    if not isinstance(value, base):
        article = "an" if (kind or base.__name__)[0] in "AEIOU" else "a"
        is_rate = role == "learning_rate" and isinstance(value, Real)
        hint = f" The rate itself is learning_rate_init={value!r}." if is_rate else ""
        raise InvalidParameterError(
            f"{role} must be a name or {article} {kind or base.__name__} object, {instead_of(value)}.{hint}"
        )
    component: C = value
    component.validate()
    return component


# Parameters of estimators: declared once, beside their documentation.
#
# The estimators are dataclasses, so that scikit-learn and type checkers read a constructor with names, types and
# defaults. :func:`declare` makes a field that holds the declaration too. A parameter without rules is checked where it
# is used.


K = TypeVar("K", bound=type)


@dataclass(frozen=True)
class Declaration:
    """The declaration of a parameter.

    Attributes
    ----------
    kind : str
        Its type and valid values, as in the documentation.
    text : str
        Its meaning.
    rules : tuple
        The constraints on its values; empty if they are checked elsewhere.
    tunes : bool
        Whether fine-tuning uses it; other parameters, if they are set, ask for plain training.
    steers : bool
        Whether the trained weights depend on its value, so that a checkpoint of another value does not fit.
    """

    kind: str
    text: str
    rules: tuple[Rule, ...] = ()
    tunes: bool = False
    steers: bool = True

    def documented(self, name: str, default: object) -> str:
        """Return the entry of the documentation."""
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        return f"{name} : {self.kind}, default={shown}\n{indent(self.text.strip(), '    ')}\n"


def switch(text: str, *, tunes: bool = False) -> Declaration:
    """Return the declaration of a parameter that is True or False."""
    return Declaration("bool", text, (bool,), tunes=tunes)


_DECLARATION = "declaration"


def declare(default: object, parameter: Declaration) -> Any:
    """Return a field of a dataclass for a parameter; :func:`documented` collects the declarations of the fields."""
    return field(default=default, metadata={_DECLARATION: parameter})


@lru_cache(maxsize=64)
def rules_of(kind: Any) -> Rules:
    """Return the rules of the parameters of a class that have rules."""
    declared: Mapping[str, Declaration] = kind.declared
    return {name: parameter.rules for name, parameter in declared.items() if parameter.rules}


def documented(**texts: str) -> Callable[[K], K]:
    """Return a decorator that fills ``{parameters}`` in the docstring of an estimator, then the names of ``texts``.

    It adds the parameters that fields declare to ``declared``.
    """

    def fill(cls: K) -> K:
        kind: Any = cls
        in_fields = {
            one.name: one.metadata[_DECLARATION] for one in fields(kind) if one.init and _DECLARATION in one.metadata
        }
        declared: Mapping[str, Declaration] = {**kind.declared, **in_fields}
        kind.declared = declared
        if cls.__doc__ is not None:  # python -OO
            # in the order and with the defaults of the constructor
            signature: Any = inspect.signature(cls).parameters
            entries = (declared[name].documented(name, given.default) for name, given in signature.items())
            section = f"Parameters\n----------\n{''.join(entries)}\n"
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{parameters}\n", section)
        return with_texts(**texts)(cls)

    return fill


def with_texts(**texts: str) -> Callable[[K], K]:
    """Return a decorator that puts texts in place of names in braces in the docstring of a class."""

    def fill(cls: K) -> K:
        if cls.__doc__ is not None:
            doc = inspect.cleandoc(cls.__doc__)
            for name, text in texts.items():
                doc = doc.replace(f"{{{name}}}", text)
            cls.__doc__ = doc
        return cls

    return fill
