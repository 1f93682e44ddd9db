"""Publish the result of a call of ``fit`` or ``partial_fit``, or roll back; no other module does either.

A call has one of four outcomes.

* It succeeds. The fitted attributes are published, all at once.
* It fails. Attributes, random states, weights and optimizer state are as before, with the exception below.
* Training diverges. The last finite weights are published, and the error is raised.
* It is interrupted. The weights reached so far are published. A direct call warns; the interrupt is raised if it is
  meant for a caller of ``fit``, such as a search.

A call that resumes an earlier one shares weights, optimizer state, history and random state with it. They are copied
before the first step, and restored after an error. The copy is skipped if weights and optimizer state are large for the
number of steps of the call, and neither callbacks nor a score are the user's code. An error of the runtime or the
device after the first step then restores only the weights, to what they were before the epoch.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
import threading
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np

from .._training.trainer import Trainer
from ..callbacks.base import State
from ..exceptions import DivergenceError, warn
from .fitted_state import FittedState
from .parameters import set_callbacks_of

ALWAYS_COPIED = 2**18
"""Bytes of weights and optimizer state below which a copy costs next to nothing."""

COPIED_FOR_STEPS, MANY_STEPS = 2**26, 20
"""Below so many bytes a copy takes a few percent of so many steps: it takes about a third of one step."""


class Transaction:
    """Everything that a call may change, kept to roll back.

    Parameters
    ----------
    estimator : estimator
    resumed : FittedState or None
        The state that the call continues.
    """

    def __init__(self, estimator: Any, resumed: FittedState | None) -> None:
        self._estimator, self._attributes, self._trains = estimator, dict(vars(estimator)), False
        generators = (estimator.random_state, getattr(self._attributes.get("_state"), "rng", None))
        self._random = [(rng, rng.get_state()) for rng in generators if isinstance(rng, np.random.RandomState)]
        self._resumed = None if resumed is None else ResumedState(resumed)

    def begin_training(self, trainer: Trainer, *, one_pass: bool) -> None:
        """Copy weights and optimizer state of a resumed training if this costs little compared with the steps."""
        self._trains, estimator = True, self._estimator
        if self._resumed is None:
            return
        size = self._resumed.size
        of_the_user = estimator.callbacks or set_callbacks_of(estimator) or callable(estimator.scoring)
        steps = trainer.most_steps(one_pass=one_pass)
        many = steps is None or steps >= MANY_STEPS
        if of_the_user or size < (COPIED_FOR_STEPS if many else ALWAYS_COPIED):
            self._resumed.copy_arrays()

    def publish(self, state: FittedState) -> None:
        """Set the fitted attributes atomically, because an interrupt may come between any two lines."""
        vars(self._estimator).update(state.fitted_attributes())

    def fail(self, error: BaseException, state: FittedState | None) -> None:
        """Roll back; publish ``state`` if training diverged, or if the arrays that it changed were not copied."""
        overwritten = self._resumed is not None and not self._resumed.is_whole
        if state is not None and (isinstance(error, DivergenceError) or overwritten):
            self.publish(state)
            return
        if self._trains and self._resumed is not None:
            self._resumed.restore()
        attributes = vars(self._estimator)
        attributes.update(self._attributes)  # first, because an interrupt may come before the rest
        for name in attributes.keys() - self._attributes.keys():
            del attributes[name]
        for rng, random_state in self._random:
            rng.set_state(random_state)


class ResumedState:
    """Everything that a call changes in the state that it continues.

    A call has a state of its own, and shares only the parts kept here. Curves and rows of the history are immutable.
    Weights and optimizer state are references until :meth:`copy_arrays`, because nothing before the first step writes
    into these arrays.
    """

    def __init__(self, state: FittedState) -> None:
        optimizer, history = state.optimizer, state.history
        self._state, self._buffer, self._random = state, state.parameters.buffer, state.rng.get_state(legacy=False)
        self._optimizer, self._is_copied = {**vars(optimizer), "slots": dict(optimizer.slots)}, False
        self._history = {
            **vars(history),
            "progress": replace(history.progress),
            "memories": {name: _as_far_as_possible(memory) for name, memory in history.memories.items()},
            "last_finite": None,
        }

    def copy_arrays(self) -> None:
        """Copy weights and optimizer state, which the steps overwrite."""
        self._buffer = self._buffer.copy()
        self._optimizer["slots"] = {name: slot.copy() for name, slot in self._optimizer["slots"].items()}
        self._is_copied = True

    @property
    def size(self) -> int:
        """Bytes of weights and optimizer state."""
        slots = self._state.optimizer.slots
        return self._state.parameters.buffer.nbytes + sum(slot.nbytes for slot in slots.values())

    @property
    def is_whole(self) -> bool:
        """True if the arrays are unchanged: they are copies, or neither a step nor an epoch was taken."""
        optimizer, history = self._state.optimizer, self._state.history
        same = optimizer.t == self._optimizer["t"] and history.progress.epoch == self._history["progress"].epoch
        return self._is_copied or same

    def restore(self) -> None:
        """Restore the state. The step is made anew: it may be bound to other arrays, or hold its own on a device."""
        state = self._state
        state.live.step = state.live.step_key = None
        state.parameters.buffer[...] = self._buffer
        vars(state.optimizer).update(self._optimizer)
        state.history.change(**self._history)
        state.rng.set_state(self._random)
        state.live.predictors.clear()  # callbacks and other threads may have predicted during the call


def _as_far_as_possible(memory: State) -> State:
    """Return a copy of a callback's memory; values that cannot be copied, such as open files, are kept as they are."""
    copied = {}
    for name, value in memory.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # a class of the user may raise any error when it is copied
            copied[name] = value
    return copied


# Decide whether an interrupt (Ctrl-C) ends this ``fit`` or propagates to its caller.
#
# A direct call ends early and keeps the weights reached so far, as in scikit-learn's MLP. Inside a search, a
# cross-validation or an ensemble that would be wrong: the next fit would begin, and the score of the truncated one
# would count.

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
    """Raise an interrupt that is meant for the caller of ``fit``; else warn that the training is not complete."""
    if belongs_to_caller(estimator):
        raise interrupt
    warn(INTERRUPTED, UserWarning)
