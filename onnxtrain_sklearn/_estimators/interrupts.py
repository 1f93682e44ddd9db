"""Decide whether an interrupt (Ctrl-C) ends this ``fit`` or propagates to its caller.

A direct call ends early and keeps the weights reached so far, as in scikit-learn's MLP. Inside a search, a
cross-validation or an ensemble that would be wrong: the next fit would begin, and the score of the truncated one
would count.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from types import FrameType

from ..exceptions import warn

INTERRUPTED = "Training was interrupted: the estimator keeps the weights reached so far."

CALLERS = ("sklearn", "joblib")
"""Packages whose functions fit given estimators."""


def belongs_to_caller(estimator: object) -> bool:
    """Return True if an interrupt of the running ``fit`` of ``estimator`` is meant for its caller.

    True in a worker process or thread. Also true if the call stack contains a function of scikit-learn or joblib, or a
    method of another object that has a ``fit`` (a search, a pipeline, an ensemble of any package).
    """
    if threading.current_thread() is not threading.main_thread() or multiprocessing.parent_process() is not None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package, caller = str(frame.f_globals.get("__name__", "")).partition(".")[0], frame.f_locals.get("self")
        # the estimator's own ``fit`` is on the stack as well
        of_another = caller is not None and caller is not estimator and hasattr(type(caller), "fit")
        if package in CALLERS or of_another:
            return True
        frame = frame.f_back
    return False


def raise_or_warn(interrupt: KeyboardInterrupt, estimator: object) -> None:
    """Raise an interrupt that is meant for what called ``fit``; else warn that the training is not complete."""
    if belongs_to_caller(estimator):
        raise interrupt
    warn(INTERRUPTED, UserWarning)
