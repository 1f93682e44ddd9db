"""Labels that are no classes: missing ones, and texts among numbers, which cannot be sorted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import scipy.sparse as sp


def require_present(y: object) -> None:
    """Raise where a target among Python objects is missing: NumPy and scikit-learn take None for NaN, or for a text."""
    if sp.issparse(y) or (isinstance(y, np.ndarray) and y.dtype != object):  # scikit-learn looks at these
        return
    found = _objects(y)
    if found is None:
        found = _floats(y)
    if missing := sum(map(is_missing, found)):
        raise ValueError(
            f"Input y contains NaN: it lacks {missing} of {len(found)} labels or numbers (None or NaN). Leave these "
            f"rows out, or give missing labels a label of their own. OrtGradientClassifier leaves them out by "
            f"ignore_label=float('nan')."
        )


@contextmanager
def sortable_labels(labels: object, name: str) -> Iterator[None]:
    """Where an error comes from labels that cannot be sorted, say which ones they are: Python compares two of them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if fault := _fault(labels):
            raise ValueError(f"{name} {fault}") from error
        raise


def _fault(labels: object) -> str | None:
    """Return why Python objects among labels cannot be sorted; None if that is not known."""
    found = None if sp.issparse(labels) else _objects(labels)
    if found is None:
        return None
    if missing := sum(map(is_missing, found)):
        return (
            f"lacks {missing} of {len(found)} labels (None or NaN): leave these rows out, or give them a label of "
            f"their own."
        )
    if len({isinstance(label, str) for label in found}) == 2:
        kinds = sorted({type(label).__name__ for label in found})
        return f"must hold texts or numbers, and not both; got {', '.join(kinds)}: make them texts with str."
    return None


def _objects(labels: object) -> list[object] | None:
    try:
        array = np.asarray(labels)
    except ValueError:  # rows of different lengths
        return None
    return array.ravel().tolist() if array.dtype == object else None


def _floats(labels: object) -> list[object]:
    try:
        array = np.asarray(labels)
    except ValueError:
        return []
    return array.ravel().tolist() if array.dtype.kind == "f" and np.isnan(array).any() else []


def is_missing(value: object) -> bool:
    """Whether a cell holds None, NaN, or the missing values of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
