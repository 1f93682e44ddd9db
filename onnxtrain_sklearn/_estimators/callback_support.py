"""What scikit-learn's protocol of callbacks gives an estimator: ``set_callbacks``, where scikit-learn has it (1.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

try:
    from sklearn.callback import AutoPropagatedCallback, with_callbacks
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
except ImportError:  # before 1.9: the parameter callbacks takes the same objects

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An estimator without ``set_callbacks``."""

    class AutoPropagatedCallback:  # type: ignore[no-redef]
        """No callback is one."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``method``."""
        return method


SET = "_skl_callbacks"
"""The attribute of scikit-learn that holds the callbacks of ``set_callbacks``."""


def set_callbacks_of(estimator: object) -> list[Any]:
    """Return the callbacks that were set by ``set_callbacks``, or that a search or a pipeline passed on."""
    return list(vars(estimator).get(SET, ()))


def is_propagated(callback: object) -> bool:
    """Whether scikit-learn passes a callback on to nested estimators."""
    return isinstance(callback, AutoPropagatedCallback)


def call_with_teardown(estimator: object, call: Callable[[], R]) -> R:
    """Return what a call returns; afterwards scikit-learn tears down the callbacks that it has set up in it.

    The call is not made by a function of scikit-learn: warnings are to name the line of the user.
    """
    try:
        return call()
    finally:
        with_callbacks(lambda _: None)(estimator)
