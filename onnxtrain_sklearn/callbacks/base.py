"""The base class of callbacks, their view of the training, and the contexts that call them.

Derive from :class:`Callback`: its hooks receive a :class:`TrainingInProgress`. A callback stores no state on itself, as
one instance may serve several fits at a time, in a search for example. Its state belongs in
:meth:`TrainingInProgress.memory`, which checkpoints and pickles hold.

Callbacks follow the protocol of ``sklearn.callback``. :class:`TaskContext` calls the callbacks in an estimator's
parameter ``callbacks``, with every version of scikit-learn. scikit-learn itself calls the callbacks that were set by
``set_callbacks``.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from .._utils.params import Component

CALLBACKS_MODULE = "onnxtrain_sklearn.callbacks"
"""The module under which pickles store the callbacks."""

ACTIVE = "_training"
"""The attribute of an estimator that holds the training in progress."""

EPOCH = "epoch"
"""The name of the task of an epoch."""

Part = Literal["train", "validation"]

State: TypeAlias = "dict[str, Any]"
"""The state of a training: dicts and lists of arrays, numbers and texts."""


class TaskOfHook(Protocol):
    """The context of a task: scikit-learn's, or a :class:`TaskContext`."""

    task_name: str


class TrainedVectors(Protocol):
    """The trained parameters, as callbacks see them.

    Attributes
    ----------
    buffer : ndarray
        Everything that training changes in one vector: parameters, running statistics, moving average.
    vector, gradient : ndarray of shape (P,)
        The parameters, a view into ``buffer``, and the gradients of the last minibatch.
    names, running_statistics : tuple of str
    """

    buffer: np.ndarray
    vector: np.ndarray
    gradient: np.ndarray
    names: tuple[str, ...]
    running_statistics: tuple[str, ...]

    @property
    def averages(self) -> bool:
        """True if the estimator predicts by a moving average of the parameters."""

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of the parameter ``name``, a view."""


class TrainingOfMembers(Protocol):
    """A training that can end in an ensemble of its weights at several epochs."""

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Lower the learning rate to 0 by half a cosine until each of these epochs of this call, then restart it."""

    def require_ensemble(self) -> None:
        """Raise ValueError if :meth:`predict_by` is not possible."""

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Predict by the mean of several networks until training continues; ``snapshots`` are copies of the buffer."""


class TrainingInProgress(TrainingOfMembers, Protocol):
    """A training in progress, as callbacks see it.

    Attributes
    ----------
    estimator : estimator
    row : dict
        The entries of the last epoch in ``history_``; callbacks may add numbers.
    max_iter : int
        Most epochs of the call; ``epochs_done`` of them are done.
    ended : bool
        True if training ends with this epoch; decided when deferred calls run (:meth:`defer`).
    one_epoch : bool
        True if the call is one of ``partial_fit``.
    parameters : TrainedVectors
    """

    estimator: Any
    max_iter: int
    one_epoch: bool
    ended: bool

    @property
    def row(self) -> dict[str, Any]: ...
    @property
    def parameters(self) -> TrainedVectors: ...
    @property
    def step(self) -> int:
        """Steps of the optimizer over all calls; L-BFGS has iterations instead, which are its epochs."""

    @property
    def is_resumable(self) -> bool:
        """True if training runs in epochs of minibatches, whose state after each epoch can be stored."""

    @property
    def holds_gradient(self) -> bool:
        """True if the gradient of the last step is in the memory of the host."""

    @property
    def epochs_done(self) -> int:
        """Epochs that this call has trained."""

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""

    def memory(self, callback: Callback) -> dict[str, Any]:
        """Return the memory of a callback, which is kept from call to call.

        It holds numbers, texts, arrays, and lists and dicts of these, whose keys are texts. Checkpoints return tuples
        as lists.

        Training that resumes from a file gets the memory in it after :meth:`Callback.begin`: a clock that ``begin``
        set would then be that of another process.
        """

    def measure(self, name: str, scoring: str | Callable[..., float], on: Part) -> float:
        """Return the entry ``name`` of ``row``; compute it first if it is missing.

        ``scoring`` is a scorer of scikit-learn or "loss", computed on the rows that ``on`` names.
        """

    def state(self) -> State:
        """Return a copy of the complete state of the training, in dicts, lists, arrays, numbers and texts."""

    def restore(self, state: State) -> None:
        """Continue from a state that :meth:`state` returned."""

    def identity(self) -> str:
        """Return a text that is equal for two calls whose training gives the same bits."""

    def defer(self, call: Callable[[], None]) -> None:
        """Call ``call`` after the hooks of all callbacks, when it is decided whether training ends.

        If training ends within an epoch, calls deferred in ``after_step`` wait for the end of this epoch.
        """

    def sweep(self, rates: np.ndarray) -> np.ndarray:
        """Return the losses of trial steps at these learning rates, NaN where they diverged; nothing is changed.

        It begins an epoch of its own, so that ``after_step`` cannot call it.
        """

    def refresh_statistics(self) -> None:
        """Recompute running statistics for the current weights, by a pass over the data; not in ``after_step``."""

    def set_learning_rate(self, rate: float) -> None:
        """Use this as the initial learning rate of the schedule, for the rest of the call."""


class Callback(Component):
    """Base class of the callbacks; derive from it to write your own.

    Override :meth:`begin`, :meth:`after_step`, :meth:`after_epoch` or :meth:`end`, which do nothing here. They are
    called by the hooks of scikit-learn's protocol (``setup``, ``on_fit_task_begin``, ``on_fit_task_end``,
    ``teardown``). A class that does not override :meth:`after_step` pays nothing for it. Estimators take callbacks in
    their parameter ``callbacks``, or by ``set_callbacks`` where scikit-learn has it (1.9).

    Attributes
    ----------
    steers : bool
        True, the default, if the weights depend on the callback, because it may end training or change weights. A
        :class:`Checkpoint` then regards a fit with the callback, or with other settings of it, as a different fit,
        which starts from the beginning. Set ``steers = False`` in a class that only measures, stores or logs: it may
        then be added, changed or removed before a fit is resumed.
    passing : tuple of str
        Names of entries of ``training.memory(self)`` that are used only during training, such as copies of weights.
        They are dropped when training ends, also after Ctrl-C.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import Callback
    >>> class Norm(Callback):
    ...     steers = False
    ...
    ...     def after_epoch(self, training):
    ...         training.row["norm"] = float(abs(training.parameters.vector).max())
    >>> X, y = load_iris(return_X_y=True)
    >>> net = OrtGradientClassifier(callbacks=[Norm()], random_state=0).partial_fit(X, y, classes=[0, 1, 2])
    >>> sorted(net.history_[-1])
    ['epoch', 'learning_rate', 'loss', 'norm', 'seconds', 'step']
    """

    __module__ = CALLBACKS_MODULE
    steers: ClassVar[bool] = True
    """True if the weights depend on the callback, so that its settings are part of a checkpoint's identity."""
    passing: ClassVar[tuple[str, ...]] = ()
    """Entries of the memory that are dropped when training ends, also after Ctrl-C."""

    @property
    def follows_steps(self) -> bool:
        """True if :meth:`after_step` is called; by default, if the class overrides it."""
        return type(self).after_step is not Callback.after_step

    def begin(self, training: TrainingInProgress) -> None:
        """Run before the first epoch."""

    def after_step(self, training: TrainingInProgress, loss: float) -> bool | None:
        """Run after each step of the optimizer; return True to end training.

        ``loss`` is the loss of the step's rows before the update. With ``accumulate``, a step is one update from a
        group of minibatches. With L-BFGS, it is an iteration, and ``loss`` that of the new weights. Fine-tuning takes
        no steps and refuses callbacks that override this hook. An epoch that ends early is recorded with the rows that
        it has seen, and ``after_epoch`` is called. On a device, each step is awaited, and the vectors are copied to the
        host and back.
        """

    def after_epoch(self, training: TrainingInProgress) -> bool | None:
        """Run after each epoch; return True to end training."""

    def end(self, training: TrainingInProgress) -> None:
        """Run after the last epoch; changes of the final weights are kept."""

    def setup(self, estimator: object, context: TaskOfHook) -> None:
        """Check the parameters, and that ``estimator`` is one of this package."""
        self.validate()
        training_of(estimator, self)

    def on_fit_task_begin(self, estimator: object, context: TaskOfHook) -> None:
        """Call :meth:`begin` when the task of the whole fit begins."""
        if context.task_name != EPOCH:
            self.begin(training_of(estimator, self))

    def on_fit_task_end(self, estimator: object, context: TaskOfHook) -> bool:
        """Call :meth:`after_epoch` or :meth:`end`; return True to end training."""
        training = training_of(estimator, self)
        if context.task_name == EPOCH:
            return bool(self.after_epoch(training))
        self.end(training)
        return False

    def teardown(self, estimator: object, context: TaskOfHook) -> None:
        """Drop the entries of the memory that are used only during training."""
        memory = training_of(estimator, self).memory(self) if self.passing else {}
        for name in self.passing:
            memory.pop(name, None)


def training_of(estimator: object, callback: Callback) -> TrainingInProgress:
    """Return the training in progress of an estimator; TypeError if it has none."""
    training: TrainingInProgress | None = vars(estimator).get(ACTIVE)
    if training is None:
        name = type(callback).__name__
        raise TypeError(
            f"{name} is for the estimators that train a graph, got {type(estimator).__name__}. Give it to the one "
            f"within, such as pipeline[-1].set_callbacks({name}(...)), or by its parameter callbacks."
        )
    return training


# Contexts of tasks, for the callbacks in an estimator's parameter ``callbacks``.
#
# They have the attributes of scikit-learn's CallbackContext that callbacks read, also on versions without that class.
# The tasks of a fit form a separate tree here. Callbacks that also follow the outer levels of a search must be set by
# ``set_callbacks``; they get scikit-learn's own contexts.


HOOKS = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")
"""The methods that make an object a callback of scikit-learn's protocol; any other callable is a function."""

PASSED = ("X", "y", "metadata", "fitted_estimator")
"""Values that hooks may request by keyword-only parameters."""


class Hooked(Protocol):
    """A callback of scikit-learn's protocol; its hooks may request more values (:data:`PASSED`)."""

    def setup(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_begin(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_end(self, estimator: object, context: TaskContext) -> object: ...
    def teardown(self, estimator: object, context: TaskContext) -> object: ...


Values = Mapping[str, Callable[[], object]]
"""Functions that compute the values which hooks may request, by name."""

_signature = lru_cache(maxsize=256)(inspect.signature)


def has_hooks(value: object) -> bool:
    """Return True if an object has the hooks of scikit-learn's callbacks and is not a class."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in HOOKS)


class TaskContext:
    """A task and the callbacks that its hooks call; the attributes are those of scikit-learn's context."""

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
        self.parent = parent
        self.task_id = 0 if parent is None else parent._children
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
        """Call a hook of all callbacks with the values that each requests; return True if one of them returned True."""
        known: dict[str, object] = {}
        ends = False
        for callback in self._callbacks:  # all of them, even after one has returned True
            method = getattr(callback, hook)
            # Cache the signature of the function, not of the bound method, which would keep the instance alive.
            parameters = _signature(getattr(method, "__func__", method)).parameters.values()
            names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
            if unknown := [name for name in names if name not in PASSED]:
                raise TypeError(
                    f"{hook} of the callback {type(callback).__name__} asks for {unknown}, but a hook is given "
                    f"{', '.join(PASSED)} only."
                )
            for name in names:  # compute only requested values, because fitted_estimator, for example, is a copy
                if name not in known:
                    known[name] = values[name]() if name in values else None
            ends |= bool(method(estimator, self, **{name: known[name] for name in names}))
        return ends
