"""The base class of callbacks, the interface of the training that they see, and scikit-learn's protocol of tasks.

Derive from :class:`Callback`, whose hooks receive a :class:`TrainingInProgress`. A callback keeps nothing of a training
on itself: one instance may serve several fits at a time, in a search for example. It stores its state in
:meth:`TrainingInProgress.memory`, which checkpoints and pickles hold. :class:`TaskContext` calls callbacks in the form
of scikit-learn.
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
"""The module by which pickles name the callbacks."""

ACTIVE = "_training"
"""The attribute of an estimator that holds the training in progress."""

EPOCH = "epoch"
"""The name of the task of an epoch."""

Part = Literal["train", "validation"]

State: TypeAlias = "dict[str, Any]"
"""The state of a training: dicts and lists of arrays, numbers and texts."""


class TaskOfHook(Protocol):
    """The context of a task, of scikit-learn or of this module."""

    task_name: str


class TrainedVectors(Protocol):
    """The trained parameters.

    Attributes
    ----------
    buffer : ndarray
        All that training changes: parameters, running statistics, moving average.
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
        """True if there is a moving average of the parameters, which predicts in their place."""

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of ``name``."""


class TrainingOfMembers(Protocol):
    """A training whose weights of several moments may predict together."""

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Lower the learning rate to 0 by half a cosine up to each of these epochs of this call, then restart it."""

    def require_ensemble(self) -> None:
        """Raise ValueError if :meth:`predict_by` cannot be."""

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Predict by the mean of networks, whose parameters are copies of the buffer, until training goes on."""


class TrainingInProgress(TrainingOfMembers, Protocol):
    """A training in progress, as callbacks see it.

    Attributes
    ----------
    estimator : estimator
    row : dict
        The entries of the last epoch in ``history_``; a callback may add numbers.
    max_iter : int
        Epochs of the call, at most; ``epochs_done`` are behind it.
    ended : bool
        Whether training ends with this epoch, where that is decided.
    one_pass : bool
        Whether the call is one of ``partial_fit``.
    parameters : TrainedVectors
    """

    estimator: Any
    max_iter: int
    one_pass: bool
    ended: bool

    @property
    def row(self) -> dict[str, Any]: ...
    @property
    def parameters(self) -> TrainedVectors: ...
    @property
    def step(self) -> int:
        """Steps of the optimizer, over all calls; L-BFGS takes none: its iterations are epochs."""

    @property
    def is_resumable(self) -> bool:
        """True if training goes in epochs of minibatches, so that its state after each is known."""

    @property
    def holds_gradient(self) -> bool:
        """True if the gradient of the last step is in the host's memory."""

    @property
    def epochs_done(self) -> int:
        """Epochs of this call."""

    def memory(self, callback: Callback) -> dict[str, Any]:
        """Return the memory of a callback in this run: numbers, texts, arrays; it is kept from call to call."""

    def measure(self, name: str, scoring: str | Callable[..., float], on: Part) -> float:
        """Return an entry of ``row``; if it is missing, it is a score of scikit-learn or "loss" on these rows."""

    def state(self) -> State:
        """Return a copy of all that a training goes on from, in dicts, lists, arrays, numbers and texts."""

    def restore(self, state: State) -> None:
        """Go on from a state."""

    def identity(self) -> str:
        """Return a text that two calls share whose training is the same to the bit."""

    def defer(self, call: Callable[[], None]) -> None:
        """Call ``call`` when all callbacks have been told, and all is decided on the epoch."""

    def sweep(self, rates: np.ndarray) -> np.ndarray:
        """Return the losses of steps at these learning rates, NaN where they diverged; all weights stay as they are."""

    def refresh_statistics(self) -> None:
        """Update running statistics to the weights, by a pass over the data that changes no weight."""

    def set_learning_rate(self, rate: float) -> None:
        """Start the schedule from this learning rate, in this call."""


class Callback(Component):
    """Base class of the callbacks; derive from it to write your own.

    It has the hooks of scikit-learn's protocol (``setup``, ``on_fit_task_begin``, ``on_fit_task_end``,
    ``teardown``), and calls :meth:`begin`, :meth:`after_epoch` and :meth:`end`, which do nothing until they are
    overridden; :meth:`after_step` is called in a class that overrides it, and costs nothing in others. Estimators
    take callbacks in their parameter ``callbacks``, or by ``set_callbacks`` where scikit-learn has it (1.9).

    Attributes
    ----------
    steers : bool
        Whether the weights depend on the callback, by default True: a callback may end training or change weights. A
        :class:`Checkpoint` then takes a fit with the callback, or with other settings of it, for another fit, which
        starts from the beginning. Set ``steers = False`` in a class that only measures, stores or logs: it may then be
        added, changed or left out when a fit goes on.
    passing : tuple of str
        Names of entries of ``training.memory(self)`` that are of use in training only, such as copies of weights. They
        are dropped when training has ended, also by Ctrl-C.

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
    """True if the weights depend on the callback: a checkpoint of a training with other settings of it does not fit."""
    passing: ClassVar[tuple[str, ...]] = ()
    """The entries of its memory that are dropped with the end of training, also after an interrupt."""

    def begin(self, training: TrainingInProgress) -> None:
        """Called before the first epoch."""

    def after_step(self, training: TrainingInProgress, loss: float) -> bool | None:
        """Called after each step of the optimizer, with the loss of its rows before it; True ends training.

        With ``accumulate`` a step is that of a group of minibatches, with L-BFGS an iteration, whose ``loss`` is that
        of the new weights. Fine-tuning takes no steps and refuses callbacks that override the hook. An epoch that ends
        early is recorded with the rows that it has seen, and ``after_epoch`` is called. On a device each step is
        awaited, and the vectors are copied to the host and back.
        """

    def after_epoch(self, training: TrainingInProgress) -> bool | None:
        """Called after each epoch; True ends training."""

    def end(self, training: TrainingInProgress) -> None:
        """Called after the last epoch, with the final weights; its changes of them are kept."""

    def setup(self, estimator: object, context: TaskOfHook) -> None:
        """Check the parameters, and that the estimator is one of this package."""
        self.validate()
        training_of(estimator, self)

    def on_fit_task_begin(self, estimator: object, context: TaskOfHook) -> None:
        """Call :meth:`begin` for the task of the whole call."""
        if context.task_name != EPOCH:
            self.begin(training_of(estimator, self))

    def on_fit_task_end(self, estimator: object, context: TaskOfHook) -> bool:
        """Call :meth:`after_epoch` or :meth:`end`; return whether training is to end."""
        training = training_of(estimator, self)
        if context.task_name == EPOCH:
            return bool(self.after_epoch(training))
        self.end(training)
        return False

    def teardown(self, estimator: object, context: TaskOfHook) -> None:
        """Drop everything that is of use in training only."""
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


# Contexts of tasks for callbacks that an estimator holds itself, in the form of ``sklearn.callback``.
#
# It is that of scikit-learn's CallbackContext as far as callbacks read it, on versions that have none too. The tasks of
# a fit are a tree of their own here: callbacks that take part in the nested levels of a search are set by
# ``set_callbacks``, whose contexts are scikit-learn's.


HOOKS = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")
"""The methods by which an object is a callback in the form of scikit-learn; another callable is a function."""

PASSED = ("X", "y", "metadata", "fitted_estimator")
"""Values that a hook may ask for by keyword-only parameters."""


class Hooked(Protocol):
    """A callback in the form of scikit-learn; its hooks may ask for more by keywords."""

    def setup(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_begin(self, estimator: object, context: TaskContext) -> object: ...
    def on_fit_task_end(self, estimator: object, context: TaskContext) -> object: ...
    def teardown(self, estimator: object, context: TaskContext) -> object: ...


Values = Mapping[str, Callable[[], object]]
"""Values that hooks may ask for, computed when the first one does."""

_signature = lru_cache(maxsize=256)(inspect.signature)


def has_hooks(value: object) -> bool:
    """Return True if an object, not a class, has the hooks of scikit-learn's callbacks."""
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
