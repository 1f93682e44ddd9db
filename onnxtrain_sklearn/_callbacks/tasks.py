"""The context of tasks for callbacks that an estimator holds itself, in the form of ``sklearn.callback``.

It is that of scikit-learn's CallbackContext as far as callbacks read it, on versions that have none too. The tasks of
a fit are a tree of their own here: callbacks that take part in the nested levels of a search are set by
``set_callbacks``, whose contexts are scikit-learn's.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Protocol

HOOKS = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")
"""The methods by which an object is a callback in the form of scikit-learn; another callable is a function."""

PASSED = ("X", "y", "metadata", "fitted_estimator")
"""What a hook may ask for by keyword-only parameters."""


class Hooked(Protocol):
    """A callback in the form of scikit-learn; its hooks may ask for more by keywords."""

    def setup(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_begin(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_end(self, estimator: object, context: TaskContext) -> object: ...
    def teardown(self, estimator: object, context: TaskContext) -> object: ...


Values = Mapping[str, Callable[[], object]]
"""What hooks may ask for, computed when the first one does."""

_signature = lru_cache(maxsize=256)(inspect.signature)


def has_hooks(value: object) -> bool:
    """Whether an object, not a class, has the hooks of scikit-learn's callbacks."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in HOOKS)


class TaskContext:
    """A task, and the callbacks that are told of it; the attributes are those of scikit-learn's context."""

    def __init__(
        self,
        callbacks: Sequence[Hooked],
        estimator_name: str,
        task_name: str,
        *,
        max_subtasks: int | None = 0,
        parent: TaskContext | None = None,
    ) -> None:
        self._callbacks, self._children = callbacks, 0
        self.estimator_name, self.task_name, self.max_subtasks = estimator_name, task_name, max_subtasks
        self.parent, self.task_id = parent, 0 if parent is None else parent._children
        self.root_uuid: uuid.UUID = uuid.uuid4() if parent is None else parent.root_uuid
        self.init_time = datetime.now(timezone.utc)
        self.sequential_subtasks = True
        self.source_estimator_name = self.source_task_name = None

    def subcontext(self, task_name: str = "", *, max_subtasks: int | None = 0) -> TaskContext:
        """Return the context of the next task within this one."""
        child = TaskContext(self._callbacks, self.estimator_name, task_name, max_subtasks=max_subtasks, parent=self)
        self._children += 1
        return child

    def call(self, hook: str, estimator: object, values: Values) -> bool:
        """Call a hook of all callbacks with what each asks for; return whether one of them returned True."""
        known: dict[str, object] = {}
        answers = [self._answer(callback, hook, estimator, values, known) for callback in self._callbacks]
        return any(map(bool, answers))

    def _answer(
        self, callback: Hooked, hook: str, estimator: object, values: Values, known: dict[str, object]
    ) -> object:
        method = getattr(callback, hook)
        parameters = _signature(getattr(method, "__func__", method)).parameters.values()
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if unknown := [name for name in names if name not in PASSED]:
            raise TypeError(
                f"{hook} of the callback {type(callback).__name__} asks for {unknown}, but a hook is given "
                f"{', '.join(PASSED)} only."
            )
        for name in names:
            if name not in known:
                known[name] = values[name]() if name in values else None
        return method(estimator, self, **{name: known[name] for name in names})
