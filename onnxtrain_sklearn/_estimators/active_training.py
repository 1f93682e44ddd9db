"""A training in progress as callbacks see it: its rows and weights, its state, losses and scores on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._callbacks.base import Callback, Part
from .._training.host_step import HostStep
from .._training.loop import Trainer
from .examples import Call
from .measures import Measures
from .parameters import Parameters
from .run import Run
from .scoring import Scoring
from .stateful_training import StatefulTraining
from .training_identity import identity_of
from .validation import ScoredRows


class ActiveTraining(StatefulTraining):
    """A training in progress; the public attributes are those of :class:`~.._callbacks.base.TrainingInProgress`.

    Parameters
    ----------
    estimator : BaseOrtGradient
    run : Run
    trainer : Trainer
    call : Call
    measures : Measures
    held_out : ScoredRows or None
        The validation data.
    """

    def __init__(
        self,
        estimator: Parameters,
        run: Run,
        trainer: Trainer,
        call: Call,
        measures: Measures,
        held_out: ScoredRows | None,
    ) -> None:
        self.estimator, self.one_pass = estimator, call.one_pass
        self.max_iter = 1 if call.one_pass else int(estimator.max_iter)
        self._run, self._trainer, self._call, self._measures, self._held_out = run, trainer, call, measures, held_out
        self._names: dict[int, str] = {}
        self._deferred: list[Callable[[], None]] = []

    @property
    def row(self) -> dict[str, Any]:
        """The entries of the last epoch in ``history_``."""
        return self._run.history.log.last()

    @property
    def is_resumable(self) -> bool:
        """Whether training goes in epochs of minibatches, so that its state after each is known."""
        return type(self._trainer) is Trainer

    @property
    def holds_gradient(self) -> bool:
        """Whether the gradient of the last step is in the host's memory."""
        return self.is_resumable and isinstance(self._trainer.step, HostStep)

    @property
    def epochs_done(self) -> int:
        """Epochs of this call."""
        return self._run.history.progress.epoch - self._trainer.first_epoch

    def name(self, callbacks: Sequence[object]) -> None:
        """Name the callbacks, which may remember something, by class and by number among those of the class."""
        kinds = [type(one).__name__ for one in callbacks]
        counts = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
        names = [f"{kind} {count + 1}" if count else kind for kind, count in zip(kinds, counts, strict=True)]
        self._names = dict(zip(map(id, callbacks), names, strict=True))

    def memory(self, callback: Callback) -> dict[str, Any]:
        """Return what a callback remembers of this run."""
        return self._run.history.memories.setdefault(self._names[id(callback)], {})

    def measure(self, name: str, scoring: Scoring, on: Part) -> float:
        """Return an entry of the row, and compute it if it is missing."""
        if name not in self.row:
            self.row[name] = self._measures(name, scoring, on)
        return float(self.row[name])

    def identity(self) -> str:
        """Return a text that two calls share whose training is the same to the bit."""
        return identity_of(self.estimator, self._run, self._trainer, self._call, self._held_out)

    def defer(self, call: Callable[[], None]) -> None:
        """Call ``call`` when all is decided on the epoch."""
        self._deferred.append(call)

    def settle(self, *, ended: bool) -> None:
        """Make the calls that were deferred."""
        self.ended, calls, self._deferred = ended, self._deferred, []
        for call in calls:
            call()
