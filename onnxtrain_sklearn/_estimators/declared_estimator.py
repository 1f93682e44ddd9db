"""Estimators whose parameters are declared once: stored, checked, documented, and shown in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .._utils.declared import Parameter, check_declared
from .._utils.params import Parametrized
from . import html


class DeclaredEstimator(Parametrized):
    """An estimator with declared parameters: the constructor stores them, training first validates them."""

    declared: ClassVar[Mapping[str, Parameter]] = {}

    def _store(self, arguments: Mapping[str, object]) -> None:
        """Store the arguments of the constructor unchanged; ``vars()`` there includes ``self``."""
        vars(self).update({name: value for name, value in arguments.items() if name != "self"})

    def check_declared(self) -> None:
        """Raise InvalidParameterError if a parameter violates its declared rules."""
        check_declared(self)

    _doc_link_module = html.PACKAGE

    def _get_doc_link(self) -> str:
        return html.page_of(type(self))

    def _repr_html_inner(self) -> str:
        base: Any = super()
        return f"{base._repr_html_inner()}{html.meanings(self)}{html.pictures(self)}"

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        base: Any = super()
        bundle: dict[str, str] = base._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += f"{html.meanings(self)}{html.pictures(self)}"
        return bundle
