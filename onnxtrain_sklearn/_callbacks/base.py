"""The base class of callbacks, by the protocol of ``sklearn.callback``, and what they see of a training.

A callback keeps nothing of a training on itself: one instance may serve several fits at a time, in a search for
example. What it remembers is in :meth:`TrainingInProgress.memory`, which checkpoints and pickles hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from .._support.components import Component

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
    """The context of a task, of scikit-learn or of :mod:`.tasks`."""

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
        """Whether there is a moving average of the parameters, which predicts in their place."""

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of ``name``."""


class TrainingOfMembers(Protocol):
    """A training whose weights of several moments may predict together."""

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Let the learning rate fall to 0 by half a cosine up to each of these epochs of this call, and start again."""

    def require_ensemble(self) -> None:
        """Raise ValueError if :meth:`predict_by` cannot be."""

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Let the mean of networks predict, whose parameters are copies of the buffer, until training goes on."""


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
    def is_resumable(self) -> bool:
        """Whether training goes in epochs of minibatches, so that its state after each is known."""

    @property
    def holds_gradient(self) -> bool:
        """Whether the gradient of the last step is in the host's memory."""

    @property
    def epochs_done(self) -> int:
        """Epochs of this call."""

    def memory(self, callback: Callback) -> dict[str, Any]:
        """Return what a callback remembers of this run: numbers, texts, arrays; it is kept from call to call."""

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
        """Let running statistics follow the weights by a pass over the data that changes no weight."""

    def set_learning_rate(self, rate: float) -> None:
        """Let the schedule start from this learning rate, in this call."""


class Callback(Component):
    """Base class of the callbacks; derive from it to write your own.

    It has the hooks of scikit-learn's protocol (``setup``, ``on_fit_task_begin``, ``on_fit_task_end``, ``teardown``),
    and calls :meth:`begin`, :meth:`after_epoch` and :meth:`end`, which do nothing until they are overridden. Estimators
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
    """Whether the weights depend on it: a checkpoint of a training with other settings of it is another's."""
    passing: ClassVar[tuple[str, ...]] = ()
    """The entries of its memory that are dropped with the end of training, also after an interrupt."""

    def begin(self, training: TrainingInProgress) -> None:
        """Called before the first epoch."""

    def after_epoch(self, training: TrainingInProgress) -> bool | None:
        """Called after each epoch; True ends training."""

    def end(self, training: TrainingInProgress) -> None:
        """Called after the last epoch, with the final weights; what it changes in them is kept."""

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
        """Drop what is of use in training only."""
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
