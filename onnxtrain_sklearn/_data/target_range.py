"""The range of the regression targets that were trained on, to which predictions can be clipped.

A constant target has a range of one number, which a graph that is built for the targets predicts exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
        """Whether the value of each output is that of its targets, which are all equal."""
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
