"""Scale targets for training, and clip predictions to their range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._model.activation import TargetScaling
from .._utils.typing import DType
from .columns import COARSE, warn_of_steps
from .targets import Targets


@dataclass(frozen=True, eq=False)
class TargetScale:
    """``(y - center) / scale``, by column.

    Attributes
    ----------
    method : {"standard", "mean"}
        As losses declare it.
    center, scale : ndarray of shape (n_outputs,) of float64
    """

    method: TargetScaling
    center: np.ndarray
    scale: np.ndarray

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Return targets of shape (n_samples, n_outputs) as they are trained on."""
        return np.asarray((values - self.center) / self.scale)


def require_in_range(scale: TargetScale, values: np.ndarray, dtype: DType) -> None:
    """Raise where predictions in units of the targets ``values`` would not be numbers of the type of the graph."""
    limits = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    if np.abs(values).max(initial=0.0) > limits.max or scale.scale.max() > limits.max:
        raise ValueError(f"y contains a value too large for {limits.dtype}, the type of the graph's output. Scale y.")
    if scale.scale.min() < limits.tiny:
        raise ValueError(
            f"The values of y are about {scale.scale.min():.2g} apart, which is too small for {limits.dtype}, the type "
            f"of the graph's output. Scale y."
        )


def warn_of_equal_targets(scale: TargetScale, values: np.ndarray, dtype: DType) -> None:
    """Warn where different targets ``values`` are one number in the type of the graph, as predictions then are."""
    steps = np.spacing(np.abs(scale.center).astype(dtype))
    for column in np.flatnonzero(scale.scale < COARSE * steps)[:1]:
        warn_of_steps(values[:, column], dtype, "y")


def target_scale(
    method: TargetScaling | None, targets: Targets, rows: np.ndarray, weights: np.ndarray | None, *, centered: bool
) -> TargetScale | None:
    """Return the scale of the targets of some rows; None where they stay as they are.

    ``method`` is what the loss declares; ``centered`` is False for graphs without an intercept, which predict 0 (or
    the exponential of 0) for a row of zeros.
    """
    if method is None or targets.task != "regression":
        return None
    values = targets.values[rows]
    weights = None if weights is None else weights[rows]
    if method == "standard":
        return _standard(values, weights, centered=centered)
    return _mean_of_targets(values, weights) if centered else None


def _standard(values: np.ndarray, weights: np.ndarray | None, *, centered: bool) -> TargetScale:
    """Mean 0 and standard deviation 1, or a mean square of 1; a constant column is centered alone."""
    unit = _not_zero(np.abs(values).max(axis=0))  # the squares of numbers beyond 1e154 overflow
    values = values / unit
    center = np.average(values, axis=0, weights=weights) if centered else np.zeros(values.shape[1])
    deviation = np.sqrt(np.average((values - center) ** 2, axis=0, weights=weights))
    constant = deviation <= 10 * np.finfo(np.float64).eps  # the largest value is 1 now
    return TargetScale("standard", center * unit, np.where(constant, 1.0, deviation * unit))


def _mean_of_targets(values: np.ndarray, weights: np.ndarray | None) -> TargetScale:
    """Mean 1, for targets that are not negative."""
    mean = np.average(values, axis=0, weights=weights)
    return TargetScale("mean", np.zeros_like(mean), _not_zero(mean))


def _not_zero(sizes: np.ndarray) -> np.ndarray:
    return np.where(sizes > 0, sizes, 1.0)


# The range of the regression targets that were trained on, to which predictions can be clipped.
#
# A constant target has a range of one number, which a graph that is built for the targets predicts exactly.


@dataclass(frozen=True, eq=False)
class TargetRange:
    """The smallest and the largest target of each output.

    Attributes
    ----------
    low, high : ndarray of shape (n_outputs,) of float64
    clips : bool
        Whether predictions are clipped to the range.
    holds_constants : bool
        Whether an output whose targets are all equal is predicted as their value.
    """

    low: np.ndarray
    high: np.ndarray
    clips: bool
    holds_constants: bool = False

    @property
    def constant(self) -> np.ndarray:
        """Mask of the outputs whose value is that of their targets, which are all equal."""
        return np.asarray((self.low == self.high) & self.holds_constants)

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Smallest and largest prediction of each output; None: there are none."""
        if self.clips:
            return self.low, self.high
        if not self.constant.any():
            return None
        return np.where(self.constant, self.low, -np.inf), np.where(self.constant, self.high, np.inf)


def target_range(
    earlier: TargetRange | None, values: np.ndarray, *, clips: bool, holds_constants: bool = False
) -> TargetRange:
    """Return the range of targets of shape (n_samples, n_outputs), which contains that of earlier calls."""
    low, high = values.min(axis=0), values.max(axis=0)
    if earlier is not None:
        low, high = np.minimum(low, earlier.low), np.maximum(high, earlier.high)
    return TargetRange(low, high, clips, holds_constants)
