"""The range of the regression targets that were trained on, to which predictions can be clipped."""

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
    """

    low: np.ndarray
    high: np.ndarray
    clips: bool


def target_range(earlier: TargetRange | None, values: np.ndarray, *, clips: bool) -> TargetRange:
    """Return the range of targets of shape (n_samples, n_outputs), which contains that of earlier calls."""
    low, high = values.min(axis=0), values.max(axis=0)
    if earlier is not None:
        low, high = np.minimum(low, earlier.low), np.maximum(high, earlier.high)
    return TargetRange(low, high, clips)
