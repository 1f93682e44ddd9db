"""A call of ``fit`` or ``partial_fit``: its arguments, its rows, and what is decided before its state exists."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._data.held_out import split_rows
from .._data.target_scale import TargetRange, TargetScale, target_range
from .._data.targets import (
    Classes,
    Targets,
)
from .._fitted.fitted_model import FittedModel
from .._utils.typing import Validation
from ..exceptions import ModelError
from ..finetuning import FineTuner
from ..losses import Loss
from .config import TrainingConfig
from .fitted_state import Columns, FittedState


@dataclass(frozen=True)
class Call:
    """The arguments of a call of ``fit`` or ``partial_fit``.

    Attributes
    ----------
    X, y, sample_weight : data
    classes : ndarray, list of ndarray or None
        All labels, if the user gives them.
    validation : tuple or None
        X, y and sample_weight of the validation data.
    resume : bool
        Whether training continues from the last call.
    one_epoch : bool
        Whether to train for one epoch only, as ``partial_fit`` does.
    old : tuple or None
        X, y and sample_weight of old rows, for fine-tuning.
    validation_fraction : float or None
        Share of the rows to hold out; None: that of the estimator.
    blocks : object or None
        The table to read in blocks: ``X`` itself, or opened from it; ``y`` and ``sample_weight`` then name columns.
    stream : Stream or None
        The blocks to train on, if X, y and sample_weight are a sample of them.
    resources : ExitStack
        Closes the table, and the thread that reads it, at the end of the call.
    """

    X: Any
    y: Any
    sample_weight: ArrayLike | None = None
    classes: Classes = None
    validation: Validation | None = None
    resume: bool = False
    one_epoch: bool = False
    old: Validation | None = None
    validation_fraction: float | None = None
    blocks: Any = None
    stream: Any = None
    resources: ExitStack = field(default_factory=ExitStack)


def optional_data(name: str, X: Any, y: Any, sample_weight: Any) -> Validation | None:
    """Return optional data as one tuple, such as ``X_val``, ``y_val`` and their weights; None if they are not given."""
    if (X is None) != (y is None):
        raise ValueError(f"X_{name} and y_{name} belong together: give both or neither.")
    if X is None and sample_weight is not None:
        raise ValueError(f"sample_weight_{name} holds the weights of X_{name} and y_{name}: give them too.")
    return None if X is None else (X, y, sample_weight)


@dataclass(frozen=True)
class Examples:
    """Rows with their targets and weights; weights are None if all are one."""

    columns: Columns
    targets: Targets
    weights: np.ndarray | None

    def __len__(self) -> int:
        return len(self.targets.values)


class Split:
    """The training rows of a call, and the rows held out for early stopping; both are drawn on first use.

    Parameters
    ----------
    fraction : float or None
        The fraction of the rows to hold out; None holds out none.
    rng : numpy.random.RandomState
    """

    def __init__(self, fraction: float | None, rng: np.random.RandomState) -> None:
        self._fraction, self._rng = fraction, rng
        self._drawn: tuple[np.ndarray, np.ndarray | None] | None = None

    def of(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the training rows and the held-out rows, or None; rows of weight zero are in neither."""
        # Drawn late on purpose: a builder that needs no split draws its weights first, and another order of draws would
        # give other numbers.
        if self._drawn is None:
            rows = np.arange(len(examples)) if examples.weights is None else np.flatnonzero(examples.weights)
            if self._fraction is None:
                self._drawn = rows, None
            else:
                self._drawn = split_rows(rows, examples.targets, self._fraction, self._rng)
        return self._drawn


@dataclass(frozen=True, eq=False)
class FitContext:
    """The arguments of a call, the resolved parameters, and the decisions made before its state exists.

    Attributes
    ----------
    estimator : BaseOrtGradient
    call : Call
    config : TrainingConfig
    old : FittedState or None
        The state that the call continues.
    rng : numpy.random.RandomState
    split : Split
    tuner : FineTuner or None
        The settings of fine-tuning; None in plain training.
    fitted : FittedModel or None
        The fitted scikit-learn model that is trained; None without one, or if it gets a new head.
    transformers_of : FittedModel or None
        The fitted model whose transformers stay frozen by default: ``fitted``, or the model that gets a new head.
    head_names : tuple of str
        The names of the weights of a new head; empty without one.
    target_scale : TargetScale or None
        The scale of the targets; only graphs of builders are trained on scaled targets.
    """

    estimator: Any
    call: Call
    config: TrainingConfig
    old: FittedState | None
    rng: np.random.RandomState
    split: Split
    tuner: FineTuner | None
    fitted: FittedModel | None
    transformers_of: FittedModel | None
    head_names: tuple[str, ...]
    target_scale: TargetScale | None

    def require_same_units(self, loss: Loss) -> None:
        """Raise if an earlier call scaled the targets in a way that the current loss does not support."""
        if self.target_scale is not None and loss.target_scaling != self.target_scale.method:
            raise ModelError(
                f"The targets were scaled for another loss when training began, and {type(loss).__name__} cannot take "
                f"them so. Call fit with warm_start=False, or begin with target_scaling=None."
            )

    def target_range(self, examples: Examples) -> TargetRange | None:
        """Return the range of all targets trained on so far, including this call; None except in regression."""
        if examples.targets.task != "regression":
            return None
        earlier = None if self.old is None else self.old.decoding.target_range
        if self.call.stream is None:
            values = examples.targets.values[self.split.of(examples)[0]]
        else:
            values = self.call.stream.range
        clips = bool(getattr(self.estimator, "clip_predictions", False))
        shifts = getattr(self.config.builder, "fit_intercept", True)
        return target_range(earlier, values, clips=clips, holds_constants=shifts and self.target_scale is not None)
