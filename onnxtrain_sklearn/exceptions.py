"""The errors and warnings of this package.

::

    OnnxTrainError (Exception)
    ├── ModelError (ValueError)                 the graph cannot be read, or cannot be trained as asked
    │   └── UnsupportedOperatorError            an operator on the gradient path has no proven gradient
    ├── DivergenceError (ArithmeticError)       training became NaN or infinite
    ├── DeviceError (RuntimeError)              the requested device or provider is not available
    ├── ClusterError (RuntimeError)             a Dask cluster cannot finish a task
    └── RuntimeNotFoundError (ImportError)      no onnxruntime, or several in one environment
    InvalidParameterError (ValueError, TypeError)  a parameter has an invalid value
    OnnxTrainWarning (UserWarning)

Wrong arguments and wrong data raise ``ValueError`` and ``TypeError``, as everywhere in scikit-learn. An
``InvalidParameterError`` is both, like scikit-learn's own.
"""

from __future__ import annotations

import reprlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = [
    "ClusterError",
    "DeviceError",
    "DivergenceError",
    "InvalidParameterError",
    "ModelError",
    "OnnxTrainError",
    "OnnxTrainWarning",
    "RuntimeNotFoundError",
    "UnsupportedOperatorError",
]


class OnnxTrainError(Exception):
    """Base class of the errors raised by this package."""


class ModelError(OnnxTrainError, ValueError):
    """The graph cannot be read, or cannot be trained as asked."""


class UnsupportedOperatorError(ModelError):
    """An operator between a trained parameter and the loss has no gradient that is proven right."""


class DivergenceError(OnnxTrainError, ArithmeticError):
    """Loss, weights, optimizer state or validation predictions became NaN or infinite; finite weights were restored.

    Attributes
    ----------
    loss_curve : list of float
        Mean loss of each epoch that ended before the divergence.
    """

    def __init__(self, message: str, loss_curve: Sequence[float] = ()) -> None:
        super().__init__(message)
        self.loss_curve = list(loss_curve)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.loss_curve)


class DeviceError(OnnxTrainError, RuntimeError):
    """The requested device or execution provider is not available in this environment."""


class ClusterError(OnnxTrainError, RuntimeError):
    """A Dask cluster cannot finish a task: its workers died, are paused, or are gone, or it took too long."""


class RuntimeNotFoundError(OnnxTrainError, ImportError):
    """No onnxruntime is installed, or several distributions of it overwrite each other."""


class InvalidParameterError(ValueError, TypeError):
    """A parameter has an invalid value."""


class OnnxTrainWarning(UserWarning):
    """Base category of the warnings of this package."""


def instead_of(value: object) -> str:
    """Return the end of an error message, "got VALUE"; for a class, also the advice to give an instance."""
    if isinstance(value, type):
        return f"got the class {value.__name__}; give an instance: {value.__name__}()"
    shown = "" if value is None else f" ({reprlib.repr(value)})"
    return f"got {type(value).__name__}{shown}"


def warn(message: str, category: type[Warning] = OnnxTrainWarning) -> None:
    """Issue a warning that names the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_back.f_globals.get("__name__")).startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)


MOST_NAMES = 60
"""Most names that an error lists in full; of more names, it shows only the nearest."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error message: the nearest valid name, then all of them."""
    choices = sorted(valid)
    # Compare in lower case, because difflib sees nothing in common in "LAMB" and "lamb".
    spellings: dict[str, list[str]] = {}
    for choice in choices:
        spellings.setdefault(choice.lower(), []).append(choice)
    wanted = str(name).lower()
    alike = [wanted] if wanted in spellings else get_close_matches(wanted, spellings, n=3, cutoff=0.5)
    close = [choice for one in alike for choice in spellings[one]]
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    if len(choices) > MOST_NAMES:
        return f"{hint} There are {len(choices)} valid names, among them {choices[0]!r} and {choices[-1]!r}."
    return f"{hint} Valid names: {', '.join(repr(c) for c in choices) or 'none'}."
