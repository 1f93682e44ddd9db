"""Call the callbacks of an estimator during training.

Callbacks in the parameter ``callbacks`` get a task tree of this package, on every version of scikit-learn. Callbacks
set by ``set_callbacks`` get scikit-learn's tree, which joins the tree of a pipeline or search around the estimator.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np

from .._data.inputs import Inputs
from .._training.trainer import Trainer, Watcher
from ..callbacks.base import ACTIVE, EPOCH, Callback, Hooked, Part, TaskContext, Values, has_hooks
from .call import Call
from .fitted_state import FittedState, LiveSessions
from .parameters import Parameters, call_with_teardown, set_callbacks_of
from .scoring import Measures, ScoredRows, Scoring, rows_of
from .training_state import StatefulTraining, identity_of

SharedContext: TypeAlias = Any
"""A context of scikit-learn."""

BEGIN, END = "on_fit_task_begin", "on_fit_task_end"


class SharedTask:
    """A wrapper that gives scikit-learn's callback context the interface of :class:`TaskContext`."""

    def __init__(self, context: SharedContext, attributes: Callable[[], dict[str, object]]) -> None:
        self._context, self._attributes = context, attributes

    def subcontext(self, task_name: str) -> SharedTask:
        """Return a new subtask of this task."""
        return SharedTask(self._context.subcontext(task_name=task_name), self._attributes)

    def call(self, hook: str, estimator: object, values: Values) -> bool:
        """Call a hook of all callbacks; return True if an end hook of any callback returned True."""
        given = {name: value for name, value in values.items() if name != "fitted_estimator"}
        tell = getattr(self._context, f"call_{hook}")
        answer = tell(estimator=estimator, reconstruction_attributes=self._attributes, **given)
        return hook == END and bool(answer)


def own_hooks(estimator: Parameters) -> list[Hooked]:
    """Return the objects with hooks in the parameter ``callbacks``, which may also hold plain functions."""
    return [cast("Hooked", one) for one in estimator.callbacks or () if has_hooks(one)]


def hooks_of(estimator: Parameters) -> list[Hooked]:
    """Return all callbacks with hooks: those in the parameter ``callbacks``, then those of ``set_callbacks``."""
    return [*own_hooks(estimator), *set_callbacks_of(estimator)]


class CallbackWatcher:
    """A :class:`~.trainer.Watcher` that calls the callbacks of an estimator during training."""

    def __init__(self, training: ActiveTraining, values: HookValues) -> None:
        self.estimator, self._training = training.estimator, training
        self._values = values.functions()
        self._attributes = values.fitted_attributes
        self._roots: list[TaskContext | SharedTask] = []
        self._epochs: list[TaskContext | SharedTask] = []
        self._set_up: list[tuple[Hooked, TaskContext]] = []

    def begin(self) -> bool:
        """Set up the callbacks and call their begin hooks; return True if one restored a training that had ended."""
        estimator, training = self.estimator, self._training
        name = "partial_fit" if training.one_epoch else "fit"
        epochs = training.max_iter
        vars(estimator)[ACTIVE] = training
        training.name(hooks_of(estimator))
        if own := own_hooks(estimator):
            root = TaskContext(own, type(estimator).__name__, name, max_subtasks=epochs)
            self._roots.append(root)
            for callback in own:
                self._set_up.append((callback, root))
                callback.setup(estimator, root)
        if set_callbacks_of(estimator):
            context = cast("Any", estimator)._init_callback_context(task_name=name, max_subtasks=epochs)
            self._roots.append(SharedTask(context, self._attributes))
        self._call(self._roots, BEGIN)
        training.conclude_epoch(ended=False)  # restore a state after all begin hooks
        return training.ended

    def step_hook(self) -> Callable[[float], bool] | None:
        """Return the function that calls the after-step hooks; None if no callback overrides them."""
        training = self._training
        found = [one for one in hooks_of(self.estimator) if isinstance(one, Callback) and one.follows_steps]

        def call(loss: float) -> bool:
            answers: list[object] = [one.after_step(training, loss) for one in found]  # a list, so that all are called
            # a hook may also return a number, such as a loss, which does not end training
            ends = any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
            if not ends:
                training.conclude_step()
            return ends

        return call if found else None

    def begin_epoch(self) -> None:
        """Call the epoch-begin hooks."""
        self._training.begin_epoch()
        self._epochs = [root.subcontext(EPOCH) for root in self._roots]
        self._call(self._epochs, BEGIN)

    def end_epoch(self) -> bool:
        """Call the epoch-end hooks; return True if a callback stops training."""
        if not self._epochs:  # a search on all rows reports an iteration only when it has ended
            self.begin_epoch()
        epochs, self._epochs = self._epochs, []
        return self._call(epochs, END)

    def conclude_epoch(self, *, ended: bool) -> None:
        """Make the calls that callbacks deferred to the end of the epoch; ``ended``: training stops after it."""
        self._training.conclude_epoch(ended=ended)

    def end(self) -> None:
        """Call the hooks for the end of training."""
        self._call(self._roots, END)

    def close(self) -> None:
        """Tear down every callback that was set up, then raise the first error."""
        errors = []
        for callback, root in self._set_up:
            try:
                callback.teardown(self.estimator, root)
            except Exception as error:
                errors.append(error)
        vars(self.estimator).pop(ACTIVE, None)
        if errors:
            raise errors[0]

    def _call(self, tasks: Sequence[TaskContext | SharedTask], hook: str) -> bool:
        answers = [task.call(hook, self.estimator, self._values) for task in tasks]
        return any(answers)


def train_watched(watcher: Watcher | None, train: Callable[[], None]) -> None:
    """Call ``train``, then tear down the callbacks, also after an error. Without callbacks ``watcher`` is None."""
    if not isinstance(watcher, CallbackWatcher):
        train()
        return
    try:
        call_with_teardown(watcher.estimator, train)
    finally:
        watcher.close()


# The training in progress that callbacks receive: its rows and weights, its state, and losses and scores on demand.


class ActiveTraining(StatefulTraining):
    """A training in progress; the public attributes are those of :class:`~.base.TrainingInProgress`.

    Parameters
    ----------
    estimator : BaseOrtGradient
    state : FittedState
    trainer : Trainer
    call : Call
    measures : Measures
    held_out : ScoredRows or None
        The validation data.
    """

    def __init__(
        self,
        estimator: Parameters,
        state: FittedState,
        trainer: Trainer,
        call: Call,
        measures: Measures,
        held_out: ScoredRows | None,
    ) -> None:
        self.estimator, self.one_epoch = estimator, call.one_epoch
        self.max_iter = 1 if call.one_epoch else int(estimator.max_iter)
        self._state, self._trainer, self._call = state, trainer, call
        self._measures, self._held_out = measures, held_out
        self._names: dict[int, str] = {}
        self._deferred: list[Callable[[], None]] = []

    @property
    def row(self) -> dict[str, Any]:
        """The entries of the last epoch in ``history_``; empty before the first epoch has ended."""
        return self._state.history.log.last() if self._state.history.log.size else {}

    @property
    def step(self) -> int:
        """Number of steps taken, over all calls."""
        return self._state.history.progress.step

    @property
    def is_resumable(self) -> bool:
        """True if training can resume from the state after any epoch, which needs epochs of minibatches."""
        return self._trainer.is_resumable

    @property
    def holds_gradient(self) -> bool:
        """True if the gradient of the last step is in the host's memory."""
        return self.is_resumable and self._trainer.step.in_host_memory

    @property
    def epochs_done(self) -> int:
        """Number of epochs that this call has trained."""
        return self._state.history.progress.epoch - self._trainer.epochs_before

    @property
    def seconds(self) -> float:
        """Seconds since the call began, its preparation included."""
        return time.perf_counter() - self._call.began

    def name(self, callbacks: Sequence[object]) -> None:
        """Choose the name of each callback's memory: its class, with a number if an earlier callback has that class."""
        kinds = [type(one).__name__ for one in callbacks]
        counts = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
        names = [f"{kind} {count + 1}" if count else kind for kind, count in zip(kinds, counts, strict=True)]
        self._names = dict(zip(map(id, callbacks), names, strict=True))

    def memory(self, callback: Callback) -> dict[str, Any]:
        """Return the memory of a callback of this training."""
        return self._state.history.memories.setdefault(self._names[id(callback)], {})

    def measure(self, name: str, scoring: Scoring, on: Part) -> float:
        """Return the entry ``name`` of :attr:`row`; if it is missing, compute it by ``scoring`` on the rows ``on``."""
        if name not in self.row:
            self.row[name] = self._measures(name, scoring, on)
        return float(self.row[name])

    def identity(self) -> str:
        """Return a digest that is equal for two calls if they train to the same bits."""
        return identity_of(self.estimator, self._state, self._trainer, self._call, self._held_out)

    def defer(self, call: Callable[[], None]) -> None:
        """Defer ``call`` until the outcome of the current step or epoch is final."""
        self._deferred.append(call)

    def conclude_step(self) -> None:
        """Make the calls deferred during a minibatch step. A search on all rows has no such steps: its calls wait."""
        if self._trainer.part is not None:
            self.conclude_epoch(ended=False)

    def conclude_epoch(self, *, ended: bool) -> None:
        """Make the deferred calls; ``ended`` is True if training stops after this epoch."""
        self.ended, calls, self._deferred = ended, self._deferred, []
        for call in calls:
            call()


# Arguments for the hooks of callbacks: the training rows, and an estimator as if training had ended now.


LEFT_OUT_OF_COPIES = (ACTIVE, "_parent_callback_ctx", "_callback_fit_ctx", "_skl_callbacks_to_teardown")
"""Attributes of an estimator in training that are left out of its copies."""


class HookValues:
    """The arguments for the hooks of callbacks, each computed on demand."""

    def __init__(
        self, estimator: object, state: FittedState, trainer: Trainer, call: Call, training_rows: ScoredRows
    ) -> None:
        self._estimator, self._state, self._trainer, self._call = estimator, state, trainer, call
        self._training_rows = training_rows

    def functions(self) -> Mapping[str, Callable[[], Any]]:
        """Return a function for each argument of a hook, by the argument's name."""
        return {
            "X": lambda: self._training_rows.data[0],
            "y": lambda: self._training_rows.data[1],
            "metadata": self._metadata,
            "fitted_estimator": self._fitted_estimator,
        }

    def _metadata(self) -> dict[str, Any] | None:
        given = self._call.sample_weight
        if given is None:
            return None
        rows = self._training_rows.rows
        if isinstance(given, Mapping):  # weights by output
            return {"sample_weight": {n: None if w is None else np.asarray(w)[rows] for n, w in given.items()}}
        return {"sample_weight": rows_of(given, rows) if isinstance(given, Inputs) else np.asarray(given)[rows]}

    def fitted_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes as if training had ended now. Later epochs do not change the returned values."""
        self._trainer.step.synchronize()
        now = self._state
        state = replace(
            now,
            parameters=copy.deepcopy(now.parameters),
            optimizer_state=copy.deepcopy(now.optimizer_state),
            rng=copy.deepcopy(now.rng),
            history=copy.copy(now.history),
            live=LiveSessions(),
        )
        state.history.change(progress=copy.copy(state.history.progress), memories=copy.deepcopy(state.history.memories))
        return state.fitted_attributes()

    def _fitted_estimator(self) -> Any:
        twin = object.__new__(type(self._estimator))
        vars(twin).update({n: v for n, v in vars(self._estimator).items() if n not in LEFT_OUT_OF_COPIES})
        vars(twin).update(self.fitted_attributes())
        return twin
