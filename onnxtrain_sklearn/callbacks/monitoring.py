"""Callbacks that watch training: EpochScoring, EarlyStopping, TimeLimit, GradientStatistics, MetricLogger.

They read and add entries of ``history_``; only EarlyStopping and TimeLimit affect training, which they end.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np

from .._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, OneOf, Rules
from .base import CALLBACKS_MODULE, Callback, Part, TrainingInProgress

LOWER_IS_BETTER = ("loss", "train_loss", "validation_loss")
"""Entries of ``history_`` that are better when lower."""


def measured(training: TrainingInProgress, name: str) -> float:
    """Return an entry of ``history_``; compute it if it is named by rows and a scorer, such as ``train_accuracy``."""
    on, _, scoring = name.partition("_")
    if name not in training.row and (on not in ("train", "validation") or not scoring):
        raise ValueError(
            f"monitor={name!r} is no entry of history_, which has {', '.join(training.row)}. Scores and losses are "
            f"named after the rows and the scorer, such as 'validation_loss' or 'train_accuracy'."
        )
    return training.measure(name, scoring, cast("Part", on))


class EpochScoring(Callback):
    """Compute a score of scikit-learn, or the loss, after each epoch, as an entry of ``history_``.

    Parameters
    ----------
    scoring : str or callable
        Name of a scorer of scikit-learn, a function ``(estimator, X, y) -> float``, or "loss": the training loss,
        without penalty and dropout, in the units of the scaled targets.
    on : {"validation", "train"}, default="validation"
        The rows to score: validation data (``early_stopping=True``, or ``X_val`` and ``y_val``), or training data.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import EpochScoring
    >>> X, y = load_iris(return_X_y=True)
    >>> scores = [EpochScoring("loss", on="train"), EpochScoring("f1_macro", on="train")]
    >>> net = OrtGradientClassifier(callbacks=scores, random_state=0).partial_fit(X, y, classes=[0, 1, 2])
    >>> [name for name in net.history_[-1] if name.startswith("train")]
    ['train_loss', 'train_f1_macro']
    """

    __module__ = CALLBACKS_MODULE
    name = "epoch_scoring"
    steers = False
    valid: ClassVar[Rules] = {"on": (OneOf(("train", "validation")),)}

    def __init__(self, scoring: str | Callable[..., float], on: str = "validation") -> None:
        self.scoring = scoring
        self.on = on

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.scoring, str) and not callable(self.scoring):
            raise TypeError(f"scoring must be the name of a scorer, 'loss' or a function, got {self.scoring!r}.")

    def after_epoch(self, training: TrainingInProgress) -> None:
        name = self.scoring if isinstance(self.scoring, str) else getattr(self.scoring, "__name__", "score")
        training.measure(f"{self.on}_{name}", self.scoring, cast("Part", self.on))


class EarlyStopping(Callback):
    """End training when a score or a loss has not improved for some epochs.

    Parameters
    ----------
    monitor : str, default="validation_loss"
        An entry of ``history_`` (``"loss"``, ``"validation_score"``, or one that another callback adds), or rows and a
        scorer of scikit-learn: ``"validation_loss"``, ``"train_loss"``, ``"validation_neg_log_loss"``,
        ``"train_accuracy"``.
    patience : int, default=10
        Number of consecutive epochs without improvement after which training ends.
    restore_best : bool, default=True
        If True, training ends with the weights of the best epoch.
    min_delta : float, default=0.0
        Smallest change that counts as an improvement.
    mode : {"auto", "min", "max"}, default="auto"
        Direction of improvement. "auto": down for losses, up for all other entries.

    Notes
    -----
    The estimator's own parameters end training too, by scikit-learn's rules: by default when the training loss stops
    falling, with ``early_stopping=True`` when the validation score or loss stops improving. This callback
    can watch other entries. Set ``n_iter_no_change=np.inf`` to leave the decision to it. ``partial_fit`` makes one
    pass, which is neither ended nor undone.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import EarlyStopping
    >>> X, y = load_iris(return_X_y=True)
    >>> stopping = EarlyStopping("validation_loss", patience=5)
    >>> settings = {"learning_rate_init": 0.1, "n_iter_no_change": np.inf, "random_state": 0}
    >>> net = OrtGradientClassifier(callbacks=[stopping], **settings).fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2])
    >>> net.n_iter_ < 200, net.callbacks_["EarlyStopping"]["epoch"] == net.n_iter_ - 5
    (True, True)
    """

    __module__ = CALLBACKS_MODULE
    name = "early_stopping"
    passing = ("weights",)
    valid: ClassVar[Rules] = {
        "patience": (COUNT,),
        "restore_best": (bool,),
        "min_delta": (NOT_NEGATIVE,),
        "mode": (OneOf(("auto", "min", "max")),),
    }

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 10,
        *,
        restore_best: bool = True,
        min_delta: float = 0.0,
        mode: str = "auto",
    ) -> None:
        self.monitor = monitor
        self.patience = patience
        self.restore_best = restore_best
        self.min_delta = min_delta
        self.mode = mode

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.monitor, str):
            raise TypeError(f"monitor must be the name of an entry of history_, got {self.monitor!r}.")

    def begin(self, training: TrainingInProgress) -> None:
        training.memory(self).clear()  # forget the memory of an earlier call of fit

    def after_epoch(self, training: TrainingInProgress) -> bool:
        lower = self.mode == "min" or (self.mode == "auto" and self.monitor in LOWER_IS_BETTER)
        memory = training.memory(self)
        value = measured(training, self.monitor)
        signed = -value if lower else value
        gain = signed - memory.get("gain", -math.inf)
        if gain > self.min_delta:  # False for NaN, which does not count as an improvement
            memory.update(gain=signed, best=value, epoch=training.row["epoch"], waited=0)
            if self.restore_best and not training.one_epoch:
                # Copy the whole buffer, because running statistics and the moving average belong to the weights.
                memory["weights"] = training.parameters.buffer.copy()
        else:
            memory["waited"] = memory.get("waited", 0) + 1
        return bool(memory["waited"] >= self.patience)

    def end(self, training: TrainingInProgress) -> None:
        weights = training.memory(self).pop("weights", None)
        if weights is not None:
            training.parameters.buffer[...] = weights


class TimeLimit(Callback):
    """End training after some time.

    The first step is always taken. The weights are then those that the estimator keeps in any case: with
    ``early_stopping``, those of the best epoch so far. An epoch that ends within it is recorded with the rows that it
    has seen, and is scored too.

    Parameters
    ----------
    seconds : float
        Seconds since the call of ``fit`` or ``partial_fit``. Training ends with the step that exceeds them.
    within_epochs : bool, default=True
        Whether training may end within an epoch. False: it ends after the epoch that exceeds the limit. Clusters and
        fine-tuning, which take no single steps, need False, and it is faster on devices, which otherwise wait for each
        step.

    Notes
    -----
    How far training comes depends on the machine; until then, it is the training without the limit. A schedule of the
    learning rate is not shortened: to train less by a schedule that ends, lower ``max_iter``. Training that is resumed
    by a :class:`Checkpoint` has the whole time again.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import TimeLimit
    >>> X, y = load_iris(return_X_y=True)
    >>> net = OrtGradientClassifier(callbacks=[TimeLimit(0.05)], max_iter=100_000, tol=-1, random_state=0).fit(X, y)
    >>> net.n_iter_ < 100_000, net.callbacks_["TimeLimit"]["reached"]
    (True, True)
    """

    __module__ = CALLBACKS_MODULE
    name = "time_limit"
    valid: ClassVar[Rules] = {"seconds": (POSITIVE,), "within_epochs": (bool,)}

    def __init__(self, seconds: float, *, within_epochs: bool = True) -> None:
        self.seconds = seconds
        self.within_epochs = within_epochs

    @property
    def follows_steps(self) -> bool:
        """True if training may end within an epoch."""
        return bool(self.within_epochs)

    def begin(self, training: TrainingInProgress) -> None:
        training.memory(self).clear()  # forget an earlier call of fit

    def after_step(self, training: TrainingInProgress, loss: float) -> bool:
        return training.seconds >= self.seconds

    def after_epoch(self, training: TrainingInProgress) -> bool:
        memory = training.memory(self)
        memory["reached"] = training.seconds >= self.seconds
        return bool(memory["reached"])


class GradientStatistics(Callback):
    """Add the Euclidean norm of the gradients of the last step to ``history_``, as ``gradient_norm``.

    The gradients are those of the last minibatch of an epoch, with the penalty and after clipping.

    Parameters
    ----------
    by_parameter : bool, default=False
        If True, add the norm of each parameter too, as ``gradient_norm/NAME``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import Linear, OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import GradientStatistics
    >>> X, y = load_iris(return_X_y=True)
    >>> statistics = GradientStatistics(by_parameter=True)
    >>> net = OrtGradientClassifier(Linear(), callbacks=[statistics]).partial_fit(X, y, classes=[0, 1, 2])
    >>> [name for name in net.history_[-1] if name.startswith("gradient")]
    ['gradient_norm', 'gradient_norm/weight', 'gradient_norm/bias']
    """

    __module__ = CALLBACKS_MODULE
    name = "gradient_statistics"
    steers = False
    valid: ClassVar[Rules] = {"by_parameter": (bool,)}

    def __init__(self, by_parameter: bool = False) -> None:
        self.by_parameter = by_parameter

    def begin(self, training: TrainingInProgress) -> None:
        if not training.holds_gradient:
            raise ValueError(
                "GradientStatistics is for training in minibatches on the CPU: the gradients of L-BFGS, of fine-tuning "
                "and of other devices are not in the host's memory after a step."
            )

    def after_epoch(self, training: TrainingInProgress) -> None:
        parameters = training.parameters
        training.row["gradient_norm"] = float(np.linalg.norm(parameters.gradient))
        if self.by_parameter:
            norms = {name: float(np.linalg.norm(parameters.gradient_view(name))) for name in parameters.names}
            training.row.update({f"gradient_norm/{name}": norm for name, norm in norms.items()})


# Experiment trackers are recognized by their methods, so that none of them is imported.


NOT_METRICS = ("epoch", "step")
"""Entries of a row that are counters, not metrics."""


class MetricLogger(Callback):
    """Send the entries of ``history_`` to an experiment tracker after each epoch.

    Parameters
    ----------
    target : object or callable
        MLflow's module (``log_metrics``), a writer for TensorBoard (``add_scalar``), or a run of Weights & Biases
        (``log``), or any object with one of these methods. Or a function without arguments that returns one, called
        once in each process, as copies and workers cannot share open files and connections.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import MetricLogger
    >>> class Writer:  # as torch.utils.tensorboard.SummaryWriter has it
    ...     def add_scalar(self, tag, value, step):
    ...         print(tag, round(value, 1), step)
    >>> X, y = load_iris(return_X_y=True)
    >>> net = OrtGradientClassifier(callbacks=[MetricLogger(Writer())], random_state=0)
    >>> net = net.partial_fit(X, y, classes=[0, 1, 2])  # doctest: +ELLIPSIS
    loss ... 1
    learning_rate 0.0 1
    seconds ... 1
    """

    __module__ = CALLBACKS_MODULE
    name = "metric_logger"
    steers = False
    target: Any

    def __init__(self, target: object) -> None:
        self.target = target

    def validate(self) -> None:
        super().validate()
        if not _is_tracker(self.target) and not callable(self.target):
            raise TypeError(_wrong_target(self.target))

    def after_epoch(self, training: TrainingInProgress) -> None:
        training.defer(lambda: self._log(training.row))  # later, so that all callbacks have added their entries

    def _log(self, row: Mapping[str, object]) -> None:
        target, epoch = self._tracker(), row["epoch"]
        # Trackers take only numbers. A user's callback may have added text, and the learning rate of L-BFGS is None.
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, Real) and k not in NOT_METRICS}
        if hasattr(target, "log_metrics"):
            target.log_metrics(numbers, step=epoch)
        elif hasattr(target, "add_scalar"):
            for name, number in numbers.items():
                target.add_scalar(name, number, epoch)
        else:
            target.log(numbers, step=epoch)

    def _tracker(self) -> Any:
        """Return the target if it is a tracker, else the tracker that the target returned when it was first called."""
        if _is_tracker(self.target):
            return self.target
        if "_made" not in vars(self):  # ``_made`` is no parameter, so clones and pickles call the function again
            self._made = self.target()
            if not _is_tracker(self._made):
                raise TypeError(_wrong_target(self._made))
        return self._made

    def __sklearn_clone__(self) -> MetricLogger:
        """Return a logger with the same target object, because a copy of a tracker would be another tracker."""
        return MetricLogger(self.target)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickles: a target module by its name, and no tracker that a target function returned."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_made"}
        if isinstance(self.target, ModuleType):
            state |= {"target": None, "module": self.target.__name__}
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a pickle, and import a target that is a module."""
        if "module" in state:
            state = {name: value for name, value in state.items() if name != "module"} | {
                "target": importlib.import_module(str(state["module"]))
            }
        super().__setstate__(state)


def _is_tracker(value: object) -> bool:
    """Return True if an object has a method of an experiment tracker and is not a class."""
    methods = (getattr(value, name, None) for name in ("log_metrics", "add_scalar", "log"))
    return not isinstance(value, type) and any(map(callable, methods))


def _wrong_target(value: object) -> str:
    return (
        f"target must have a method log_metrics (MLflow's module), add_scalar (a writer for TensorBoard) or log (a run "
        f"of Weights & Biases), or be a function that returns such an object, got {value!r}."
    )
