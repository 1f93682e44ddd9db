"""Steps at growing learning rates, which show where training begins to learn and where it diverges."""

from __future__ import annotations

import math

import numpy as np

from .._data.batches import Batches
from .._support.float_errors import ignores_float_errors
from .step import Rates, TrainingStep


@ignores_float_errors
def swept_losses(step: TrainingStep, batches: Batches, rates: np.ndarray) -> np.ndarray:
    """Return the losses of steps at these rates, NaN from the first that is not finite on; the step is changed."""
    losses, remaining = np.full(len(rates), np.nan), iter(rates.tolist())
    count = 0
    while count < len(rates):
        for _, loss in step.train(batches, lambda: Rates(next(remaining, 0.0))):
            if not math.isfinite(loss):
                return losses
            losses[count] = loss
            count += 1
            if count == len(rates):
                break
    return losses
