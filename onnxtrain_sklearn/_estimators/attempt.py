"""A call that trains. It succeeds, or leaves the estimator unchanged, including weights, optimizer and random state.

Two other outcomes leave the estimator fitted: training diverges, which raises an error, or it is interrupted, which
raises if the interrupt is meant for a caller. An interrupt may come between any two lines: the fitted attributes
change atomically, and objects that a run shares with the last one are published with it.

After an error of a callback in a call that goes on from an earlier one, the weights are those before its epoch. The
history, the optimizer's state and the random state, which both runs share, are not taken back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .._training.loop import Trainer
from ..exceptions import DivergenceError
from .callback_watcher import train_watched
from .examples import Call
from .interrupts import raise_or_warn
from .record import TrainingRecord
from .run import Run

if TYPE_CHECKING:
    from typing_extensions import Self


class Attempt(TrainingRecord):
    """An estimator that prepares a run and trains it."""

    random_state: Any
    n_outputs_: int
    classes_: np.ndarray | list[np.ndarray]

    @abstractmethod
    def _prepare(self, call: Call) -> tuple[Run, Trainer]:
        """Validate the call and return the run and its trainer; nothing is trained yet."""

    def _train(self, call: Call) -> Self:
        before, run, trainer = dict(vars(self)), None, None
        old: Run | None = before.get("_run")
        try:
            with self._unchanged_on_error():
                run, trainer = self._prepare(call)
            train_watched(trainer.watcher, trainer.one_pass if call.one_pass else trainer.fit)
            self._publish(run)
        except KeyboardInterrupt as interrupt:
            if run is None or trainer is None:
                raise
            trainer.settle()
            self._publish(run)
            raise_or_warn(interrupt, self)
        except BaseException as error:
            shared = run is not None and old is not None and old.history is run.history
            if run is not None and (isinstance(error, DivergenceError) or shared):
                self._publish(run)
            else:
                self._restore(before)
            raise
        return self

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
