"""Calls the callbacks of an estimator in the course of its training, as tasks in the form of ``sklearn.callback``.

The callbacks of the parameter ``callbacks`` are told of a tree of their own, on every version of scikit-learn; those of
``set_callbacks`` of scikit-learn's, which joins that of a pipeline or a search around the estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from .._callbacks.base import ACTIVE, EPOCH
from .._callbacks.tasks import Hooked, TaskContext, Values, has_hooks
from .._training.watcher import Watcher
from .active_training import ActiveTraining
from .callback_support import call_with_teardown, set_callbacks_of
from .hook_values import HookValues
from .parameters import Parameters

SharedContext: TypeAlias = Any
"""A context of scikit-learn."""

BEGIN, END = "on_fit_task_begin", "on_fit_task_end"


class SharedTask:
    """A task of scikit-learn's context, called as a :class:`TaskContext` is."""

    def __init__(self, context: SharedContext, attributes: Callable[[], dict[str, object]]) -> None:
        self._context, self._attributes = context, attributes

    def subcontext(self, task_name: str) -> SharedTask:
        """Return the next task within this one."""
        return SharedTask(self._context.subcontext(task_name=task_name), self._attributes)

    def call(self, hook: str, estimator: object, values: Values) -> bool:
        """Call a hook of all callbacks; return whether one of them returned True."""
        given = {name: value for name, value in values.items() if name != "fitted_estimator"}
        tell = getattr(self._context, f"call_{hook}")
        answer = tell(estimator=estimator, reconstruction_attributes=self._attributes, **given)
        return hook == END and bool(answer)


def own_hooks(estimator: Parameters) -> list[Hooked]:
    """Return the callbacks of the parameter that have hooks; the others are functions."""
    return [cast("Hooked", one) for one in estimator.callbacks or () if has_hooks(one)]


def hooks_of(estimator: Parameters) -> list[Hooked]:
    """Return the callbacks of an estimator that have hooks, those of its parameter first."""
    return [*own_hooks(estimator), *set_callbacks_of(estimator)]


class CallbackWatcher:
    """Tells the callbacks of an estimator of its training; it is a :class:`~.._training.watcher.Watcher`."""

    def __init__(self, training: ActiveTraining, values: HookValues) -> None:
        self.estimator, self._training = training.estimator, training
        self._values, self._attributes = values.functions(), values.fitted_attributes
        self._roots: list[TaskContext | SharedTask] = []
        self._epochs: list[TaskContext | SharedTask] = []
        self._set_up: list[tuple[Hooked, TaskContext]] = []

    def begin(self) -> bool:
        """Set the callbacks up and tell them; return whether one restored a state that had ended."""
        estimator, training = self.estimator, self._training
        name, epochs = "partial_fit" if training.one_pass else "fit", training.max_iter
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
        training.settle(ended=False)  # a state is restored when all callbacks have begun
        return training.ended

    def begin_epoch(self) -> None:
        """Tell of the begin of an epoch."""
        self._epochs = [root.subcontext(EPOCH) for root in self._roots]
        self._call(self._epochs, BEGIN)

    def end_epoch(self) -> bool:
        """Tell of the end of an epoch; return whether a callback ends training."""
        if not self._epochs:  # of a search on all rows, whose iterations are known when they have ended
            self.begin_epoch()
        epochs, self._epochs = self._epochs, []
        return self._call(epochs, END)

    def settle(self, *, ended: bool) -> None:
        """Note that all is decided on the epoch."""
        self._training.settle(ended=ended)

    def end(self) -> None:
        """Tell of the end of training."""
        self._call(self._roots, END)

    def close(self) -> None:
        """Tear down what was set up; the first error is raised when all have been told."""
        errors = [error for one, root in self._set_up if (error := self._torn_down(one, root)) is not None]
        vars(self.estimator).pop(ACTIVE, None)
        if errors:
            raise errors[0]

    def _torn_down(self, callback: Hooked, root: TaskContext) -> Exception | None:
        try:
            callback.teardown(self.estimator, root)
        except Exception as error:
            return error
        return None

    def _call(self, tasks: Sequence[TaskContext | SharedTask], hook: str) -> bool:
        answers = [task.call(hook, self.estimator, self._values) for task in tasks]
        return any(answers)


def train_watched(watcher: Watcher | None, train: Callable[[], None]) -> None:
    """Train, and tear down the callbacks when training has ended, in whatever way; without a watcher there are none."""
    if not isinstance(watcher, CallbackWatcher):
        train()
        return
    try:
        call_with_teardown(watcher.estimator, train)
    finally:
        watcher.close()
