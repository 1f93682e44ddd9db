"""The rows that a call trains on and those that it holds out, with the scale and the range of their targets."""

from __future__ import annotations

import numpy as np

from .._data.target_range import TargetRange, target_range
from .._data.target_scale import TargetScale, target_scale
from .._data.validation import split_rows
from ..exceptions import ModelError
from ..losses import Loss, resolve_loss
from ..models import resolve_builder
from .examples import Call, Examples
from .parameters import Parameters
from .run import Run


class TrainingRows:
    """The split of the rows of a call, drawn when it is first asked for, and the scale of the targets.

    Parameters
    ----------
    estimator : BaseOrtGradient
    call : Call
    old : Run or None
        The run that the call continues. Its targets keep their scale.
    rng : numpy.random.RandomState
        Draws the rows that are held out.
    """

    def __init__(self, estimator: Parameters, call: Call, old: Run | None, rng: np.random.RandomState) -> None:
        self._estimator, self._call, self._rng = estimator, call, rng
        self._head = None if old is None else old.head
        self.scale: TargetScale | None = None if self._head is None else self._head.target_scale
        self._split: tuple[np.ndarray, np.ndarray | None] | None = None

    def split(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the training rows and the rows held out for early stopping; the first call draws them."""
        if self._split is None:
            self._split = self._new_split(examples)
        return self._split

    def _new_split(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw both parts; rows of weight zero are in neither."""
        weights, estimator = examples.weights, self._estimator
        rows = np.arange(len(examples)) if weights is None else np.flatnonzero(weights)
        if not estimator.early_stopping or self._call.validation is not None or self._call.one_pass:
            return rows, None
        return split_rows(rows, examples.targets, float(estimator.validation_fraction), self._rng)

    def choose_scale(self, examples: Examples) -> None:
        """Choose the scale in which a graph that is built for these targets is trained."""
        estimator, builder = self._estimator, resolve_builder(self._estimator.model)
        if getattr(estimator, "target_scaling", None) is None or not getattr(builder, "scales_targets", False):
            return
        loss = resolve_loss(estimator.loss)
        loss.check_targets(examples.targets.values)
        rows, centered = self.split(examples)[0], getattr(builder, "fit_intercept", True)
        self.scale = target_scale(loss.target_scaling, examples.targets, rows, examples.weights, centered=centered)

    def require_same_units(self, loss: Loss) -> None:
        """Raise if an earlier call scaled the targets in a way that the current loss does not support."""
        if self.scale is not None and loss.target_scaling != self.scale.method:
            raise ModelError(
                f"The targets were scaled for another loss when training began, and {type(loss).__name__} cannot take "
                f"them so. Call fit with warm_start=False, or begin with target_scaling=None."
            )

    def target_range(self, examples: Examples) -> TargetRange | None:
        """Return the range of a regressor's targets that it has been trained on, with those of this call."""
        if examples.targets.task != "regression":
            return None
        earlier = None if self._head is None else self._head.target_range
        values = examples.targets.values[self.split(examples)[0]]
        clips = bool(getattr(self._estimator, "clip_predictions", False))
        shifts = getattr(resolve_builder(self._estimator.model), "fit_intercept", True)
        return target_range(earlier, values, clips=clips, holds_constants=shifts and self.scale is not None)
