"""Parameters of scikit-learn's objects, read and copied in a fraction of scikit-learn's time.

``get_params`` goes without a look at the constructor each time: clones and searches call it dozens of times per fit.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sklearn.base import BaseEstimator, clone

_SHARED = (type(None), bool, int, float, str)

_names: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


class Parametrized(BaseEstimator):
    """An object of scikit-learn's whose class reads the names of its parameters once."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return those of the parameters that are objects too, as ``NAME__PARAMETER``.

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
        """Return the names of the parameters, without those of objects among them."""
        kind = type(self)
        if kind not in _names:
            _names[kind] = tuple(super().get_params(deep=False))
        return _names[kind]


def copied(value: Any) -> Any:
    """Return an unfitted copy of a parameter, as ``clone`` makes it."""
    return value if isinstance(value, _SHARED) else clone(value, safe=False)
