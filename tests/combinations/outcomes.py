"""What is seen of a fitted estimator, and comparisons of two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 2e-3
"""Of float32, after some epochs."""


def outcome(estimator: Any, X: Any) -> dict[str, np.ndarray]:
    """Return what is seen of a fitted estimator."""
    found = {f"weight {name}": array for name, array in estimator.weights_.items()}
    found["losses"] = np.array(estimator.loss_curve_)
    found["scores"] = np.array(estimator.validation_scores_ or [])
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(estimator, method):
            result = getattr(estimator, method)(X)
            results = {f"{method} {name}": one for name, one in result.items()} if isinstance(result, dict) else {}
            found |= {name: np.asarray(array) for name, array in (results or {method: result}).items()}
    return found


def same(a: Any, b: Any, X: Any, other: Any = None, leave_out: tuple[str, ...] = ()) -> None:
    """Compare two estimators to the bit."""
    first, second = outcome(a, X), outcome(b, X if other is None else other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        if name in leave_out:
            continue
        assert np.array_equal(array, second[name]), difference(name, array, second[name])


def near(a: Any, b: Any, X: Any, tolerance: float = TOLERANCE, leave_out: tuple[str, ...] = ("scores",)) -> None:
    """Compare two estimators but for rounding; labels and their scores may differ where two classes are as likely."""
    first, second = outcome(a, X), outcome(b, X)
    for name, array in first.items():
        if name in leave_out or array.dtype.kind not in "f" or (name == "predict" and "losses" in leave_out):
            continue
        assert array.shape == second[name].shape, name
        scale = max(0.1, float(np.abs(array).max(initial=0)))
        error = float(np.abs(array - second[name]).max(initial=0))
        assert error <= tolerance * scale, difference(name, array, second[name])


def difference(name: str, a: np.ndarray, b: np.ndarray) -> str:
    return f"{name} {a.shape} {b.shape}: {a.ravel()[:6]} {b.ravel()[:6]}"


class NotApplicable(Exception):
    """The relation says nothing about this case."""


def applies(condition: bool) -> None:
    if not condition:
        raise NotApplicable
