"""A call that trains. It succeeds, or leaves the estimator unchanged, including weights, optimizer and random state.

Two other outcomes leave the estimator fitted: training diverges, which raises an error, or it is interrupted, which
raises if the interrupt is meant for a caller. An interrupt may come between any two lines: the fitted attributes
change atomically, and objects that a run shares with the last one are published with it.

A call that goes on from an earlier one shares weights, optimizer state, history and random state with it. They are
copied before, and taken back after an error. Only where weights and optimizer state are large, for the steps of the
call, and none of its callbacks and scores are the user's, they are not copied: then an error after the first step, of
the runtime or the device, takes the weights back to those before the epoch, and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .._training.loop import Trainer
from ..exceptions import DivergenceError
from .callback_support import set_callbacks_of
from .callback_watcher import train_watched
from .examples import Call
from .interrupts import raise_or_warn
from .record import TrainingRecord
from .run import Run
from .training_state import ALWAYS_COPIED, COPIED_FOR_STEPS, MANY_STEPS, StateBefore, size_of_state

if TYPE_CHECKING:
    from typing_extensions import Self


class Attempt(TrainingRecord):
    """An estimator that prepares a run and trains it."""

    random_state: Any
    callbacks: Any
    scoring: Any
    n_outputs_: int
    classes_: np.ndarray | list[np.ndarray]

    @abstractmethod
    def _prepare(self, call: Call) -> tuple[Run, Trainer]:
        """Validate the call and return the run and its trainer; nothing is trained yet."""

    def _train(self, call: Call) -> Self:
        before, run, trainer = dict(vars(self)), None, None
        old: Run | None = before.get("_run") if call.resume else None
        state = None if old is None else StateBefore(old)
        try:
            with self._unchanged_on_error():
                run, trainer = self._prepare(call)
            if old is not None and state is not None and self._is_copied(old, call, trainer):
                state.copy_arrays()
            train_watched(trainer.watcher, trainer.one_pass if call.one_pass else trainer.fit)
            self._publish(run)
        except KeyboardInterrupt as interrupt:
            if run is None or trainer is None:
                raise
            trainer.settle()
            self._publish(run)
            raise_or_warn(interrupt, self)
        except BaseException as error:
            if run is not None and (isinstance(error, DivergenceError) or (state is not None and not state.is_whole)):
                self._publish(run)
            else:
                if run is not None and state is not None:
                    state.restore()
                self._restore(before)
            raise
        return self

    def _is_copied(self, old: Run, call: Call, trainer: Trainer) -> bool:
        """Whether weights and optimizer state are copied before the call, to take it back."""
        if self.callbacks or set_callbacks_of(self) or callable(self.scoring):
            return True
        steps = trainer.most_steps(one_pass=call.one_pass)
        return size_of_state(old) < (COPIED_FOR_STEPS if steps >= MANY_STEPS else ALWAYS_COPIED)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        before = dict(vars(self))
        generators = (self.random_state, getattr(before.get("_run"), "rng", None))
        states = [(rng, rng.get_state()) for rng in generators if isinstance(rng, np.random.RandomState)]
        try:
            yield
        except BaseException:
            self._restore(before)
            for rng, state in states:
                rng.set_state(state)
            raise

    def _restore(self, attributes: dict[str, object]) -> None:
        self.__dict__.update(attributes)  # first, as an interrupt may come before the rest
        for name in vars(self).keys() - attributes.keys():
            del self.__dict__[name]

    def _publish(self, run: Run) -> None:
        """Set the fitted attributes atomically."""
        self.__dict__.update(run.fitted_attributes())
