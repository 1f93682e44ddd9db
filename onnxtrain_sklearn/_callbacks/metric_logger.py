"""Metrics for trackers of experiments, by the methods that they have; none of them is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from numbers import Real
from types import ModuleType
from typing import Any

from .base import CALLBACKS_MODULE, Callback, TrainingInProgress

NOT_METRICS = ("epoch", "step")


class MetricLogger(Callback):
    """Pass the entries of ``history_`` on to a tracker of experiments, after each epoch.

    Parameters
    ----------
    target : object or callable
        MLflow's module (``log_metrics``), a writer for TensorBoard (``add_scalar``), or a run of Weights & Biases
        (``log``); anything with one of these methods. A function without arguments is called for it, once in each
        process: copies and workers cannot hold open files and connections.

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
        training.defer(lambda: self._log(training.row))  # with what callbacks after this one add

    def _log(self, row: Mapping[str, object]) -> None:
        target, epoch = self._tracker(), row["epoch"]
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, Real) and k not in NOT_METRICS}
        if hasattr(target, "log_metrics"):
            target.log_metrics(numbers, step=epoch)
        elif hasattr(target, "add_scalar"):
            for name, number in numbers.items():
                target.add_scalar(name, number, epoch)
        else:
            target.log(numbers, step=epoch)

    def _tracker(self) -> Any:
        """Return the target, or what it returns, which is kept."""
        if _is_tracker(self.target):
            return self.target
        if "_made" not in vars(self):
            self._made = self.target()
            if not _is_tracker(self._made):
                raise TypeError(_wrong_target(self._made))
        return self._made

    def __sklearn_clone__(self) -> MetricLogger:
        """Return a logger with the same target: a copy of a tracker would be another one."""
        return MetricLogger(self.target)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy; a module is named, and what a function returned is left out."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_made"}
        if isinstance(self.target, ModuleType):
            state |= {"target": None, "module": self.target.__name__}
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; a module is imported."""
        if "module" in state:
            state = {name: value for name, value in state.items() if name != "module"} | {
                "target": importlib.import_module(str(state["module"]))
            }
        super().__setstate__(state)


def _is_tracker(value: object) -> bool:
    """Whether an object, not a class, has one of the methods."""
    methods = (getattr(value, name, None) for name in ("log_metrics", "add_scalar", "log"))
    return not isinstance(value, type) and any(map(callable, methods))


def _wrong_target(value: object) -> str:
    return (
        f"target must have a method log_metrics (MLflow's module), add_scalar (a writer for TensorBoard) or log (a run "
        f"of Weights & Biases), or be a function that returns such an object, got {value!r}."
    )
