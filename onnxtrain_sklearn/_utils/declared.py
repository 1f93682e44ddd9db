"""Estimators whose parameters are declared once: validation and documentation are derived from the declarations.

The constructors repeat names, types and defaults, because scikit-learn and type checkers read their signatures. A
parameter without rules is checked where it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from textwrap import indent
from typing import Any, TypeVar

from .params import Rule, Rules

K = TypeVar("K", bound=type)


@dataclass(frozen=True)
class Parameter:
    """The declaration of a parameter.

    Attributes
    ----------
    kind : str
        Its type and valid values, as in the documentation.
    text : str
        Its meaning.
    rules : tuple
        The constraints on its values; empty if they are checked elsewhere.
    """

    kind: str
    text: str
    rules: tuple[Rule, ...] = ()

    def documented(self, name: str, default: object) -> str:
        """Return the entry of the documentation."""
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        return f"{name} : {self.kind}, default={shown}\n{indent(self.text.strip(), '    ')}\n"


def switch(text: str) -> Parameter:
    """Return the declaration of a parameter that is True or False."""
    return Parameter("bool", text, (bool,))


@lru_cache(maxsize=64)
def rules_of(kind: Any) -> Rules:
    """Return the rules of the parameters of a class that have rules."""
    declared: Mapping[str, Parameter] = kind.declared
    return {name: parameter.rules for name, parameter in declared.items() if parameter.rules}


def documented(**texts: str) -> Callable[[K], K]:
    """Return a decorator that fills ``{parameters}`` in the docstring of an estimator, then the names of ``texts``."""

    def fill(cls: K) -> K:
        if cls.__doc__ is not None:  # python -OO
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{parameters}\n", _parameter_section(cls))
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


def _parameter_section(cls: Any) -> str:
    """Return the section on parameters, in the order and with the defaults of the constructor."""
    signature = inspect.signature(cls).parameters
    entries = (cls.declared[name].documented(name, given.default) for name, given in signature.items())
    return f"Parameters\n----------\n{''.join(entries)}\n"
