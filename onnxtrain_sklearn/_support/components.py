"""Base class of losses, optimizers, schedules and builders: parameters that are declared, checked, found by name.

A component stores the arguments of its constructor and nothing else, as scikit-learn requires; its class declares in
:attr:`Component.valid` which values each parameter may have. Whatever uses a component calls :meth:`Component.validate`
first, most simply by :func:`resolve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar, TypeVar, cast, get_origin

from ..exceptions import instead_of, nearest
from .content import OWN_PACKAGE
from .parametrized import Parametrized, copied
from .rules import Rules, check_parameters

C = TypeVar("C", bound="Component")


class Component(Parametrized):
    """An object with declared parameters.

    Attributes
    ----------
    name : str
        The name by which the estimators take it. A component of the package declares one; :func:`registered` finds it.
    valid : mapping of str to tuple
        What each parameter may be: rules of :mod:`onnxtrain_sklearn._support.rules`, ``bool`` for True and False, and
        None. Parameters that are not listed are checked in :meth:`validate`, or not at all.
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
        What they derive from. A class that inherits its name, as a user's may, is not one of them.
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
