"""What scikit-learn's protocol of callbacks gives an estimator: ``set_callbacks``, where scikit-learn has it (1.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
    from sklearn.callback import with_callbacks
except ImportError:  # before 1.9: the parameter callbacks takes the same objects

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An estimator without ``set_callbacks``."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``method``."""
        return method


SET = "_skl_callbacks"
"""The attribute of scikit-learn that holds the callbacks of ``set_callbacks``."""


def set_callbacks_of(estimator: Any) -> list[Any]:
    """Return the callbacks that were set by ``set_callbacks``, or that a search or a pipeline passed on."""
    return list(vars(estimator).get(SET, ()))


def call_with_teardown(estimator: Any, call: Callable[[], None]) -> None:
    """Make a call; afterwards scikit-learn tears down the callbacks that it has set up in it."""
    with_callbacks(lambda _: call())(estimator)
