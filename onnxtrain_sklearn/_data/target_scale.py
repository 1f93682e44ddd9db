"""The scale of regression targets for training, and the range to which predictions can be clipped.

:func:`target_scale` computes the scale that the loss declares, from an array; a stream merges :func:`target_moments`
and then calls :func:`scale_of`. :func:`target_range` computes the range, which later calls of ``partial_fit`` widen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .._model.links import TargetScaling
from .._utils.typing import DType
from .columns import COARSE, warn_of_steps
from .row_weights import weights_of_labels
from .statistics import Extremes, Moments
from .targets import Targets, require_numbers_of_columns


@dataclass(frozen=True, eq=False)
class TargetScale:
    """The scaling of the targets, ``(y - center) / scale`` for each column.

    Attributes
    ----------
    method : {"standard", "mean"}
        The method that the loss declares.
    center, scale : ndarray of shape (n_outputs,) of float64
    """

    method: TargetScaling
    center: np.ndarray
    scale: np.ndarray

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Return scaled targets of shape (n_samples, n_outputs), as training uses them."""
        return np.asarray((values - self.center) / self.scale)


def target_scale(
    method: TargetScaling | None, targets: Targets, rows: np.ndarray, weights: np.ndarray | None, *, centered: bool
) -> TargetScale | None:
    """Return the scale of the targets of some rows; None if the targets are not scaled.

    ``method`` is the one that the loss declares. ``centered`` is False for graphs without an intercept, which predict 0
    (or the exponential of 0) for a row of zeros.
    """
    if method is None or targets.task != "regression":
        return None
    values = targets.values[rows]
    weights = None if weights is None else weights[rows]
    if method == "mean" and not centered:
        return None
    if targets.label_mask is not None:
        # Each column by the numbers that it has, which weigh as much as the rows by themselves.
        own = targets.take(rows)
        require_numbers_of_columns(own, " in the rows to train on")
        given = weights_of_labels(own, weights)
        columns = []
        for j in range(values.shape[1]):
            counted = np.flatnonzero(targets.label_mask[rows, j])
            of_column = given[:, j] if given is not None and given.ndim == 2 else given
            columns.append(target_scale(method, _column(own, j), counted, of_column, centered=centered))
        center, scale = (np.concatenate([getattr(one, name) for one in columns]) for name in ("center", "scale"))
        return TargetScale(method, center, scale)
    return scale_of(method, target_moments(method, centered=centered).update(values, weights))


def _column(targets: Targets, j: int) -> Targets:
    """Return the numbers of one output."""
    return replace(targets, values=targets.values[:, [j]], label_mask=None, label_shares=None)


def target_moments(method: TargetScaling, *, centered: bool) -> Moments:
    """Return empty statistics, to be updated with targets, from which :func:`scale_of` computes the scale."""
    return Moments(centered=centered, scaled=method == "standard")


def scale_of(method: TargetScaling, moments: Moments) -> TargetScale:
    """Return the scale of the targets, given their statistics."""
    if not moments.weight.any():
        raise ValueError("All rows to train on have weight zero.")
    # Scale to mean 0 and deviation 1 (or a mean square of 1 if not centered); constant columns are only centered.
    if method == "standard":
        return TargetScale(method, moments.mean, np.where(moments.constant, 1.0, moments.deviation))
    mean = moments.mean  # the method "mean" scales targets that are not negative to mean 1
    return TargetScale(method, np.zeros_like(mean), np.where(mean > 0, mean, 1.0))


def require_in_range(scale: TargetScale, values: np.ndarray, dtype: DType) -> None:
    """Raise if predictions in the units of the targets ``values`` would overflow or underflow the graph's type."""
    limits = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    if np.abs(values).max(initial=0.0) > limits.max or scale.scale.max() > limits.max:
        raise ValueError(f"y contains a value too large for {limits.dtype}, the type of the graph's output. Scale y.")
    if scale.scale.min() < limits.tiny:
        raise ValueError(
            f"The values of y are about {scale.scale.min():.2g} apart, which is too small for {limits.dtype}, the type "
            f"of the graph's output. Scale y."
        )


def warn_of_equal_targets(scale: TargetScale, values: np.ndarray, dtype: DType) -> None:
    """Warn if different targets in ``values`` become equal in the graph's type, so that it cannot tell them apart."""
    steps = np.spacing(np.abs(scale.center).astype(dtype))
    for column in np.flatnonzero(scale.scale < COARSE * steps)[:1]:
        warn_of_steps(values[:, column], dtype, "y")


# The range of the targets. If a target is constant, a graph that was built for these targets predicts this number
# exactly.


@dataclass(frozen=True, eq=False)
class TargetRange:
    """The smallest and the largest target of each output.

    Attributes
    ----------
    low, high : ndarray of shape (n_outputs,) of float64
    holds_constants : bool
        True if outputs whose targets are all equal are predicted as this number.
    """

    low: np.ndarray
    high: np.ndarray
    holds_constants: bool = False

    @property
    def constant(self) -> np.ndarray:
        """Mask of the outputs that are predicted as their constant target."""
        return np.asarray((self.low == self.high) & self.holds_constants)

    def limits(self, *, clips: bool) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the smallest and largest prediction of each output; None if predictions are not limited."""
        if clips:
            return self.low, self.high
        if not self.constant.any():
            return None
        return np.where(self.constant, self.low, -np.inf), np.where(self.constant, self.high, np.inf)


def target_range(earlier: TargetRange | None, values: np.ndarray, *, holds_constants: bool = False) -> TargetRange:
    """Return the range of targets of shape (n_samples, n_outputs) and of those of earlier calls."""
    known = Extremes() if earlier is None else Extremes(earlier.low, earlier.high)
    known.update(values)
    assert known.low is not None
    assert known.high is not None
    return TargetRange(known.low, known.high, holds_constants)
