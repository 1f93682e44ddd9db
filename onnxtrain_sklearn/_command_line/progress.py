"""Progress of a training on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .._support.typing import Estimator
from .._training.history import Epoch
from .console import Console


@dataclass
class EpochProgress:
    """Prints epochs on stderr, at most one a second, later one for each tenth of the time so far."""

    console: Console
    total: int
    begun: float = field(default_factory=time.monotonic)
    printed: float = field(default=-np.inf)

    def __call__(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if epoch.number < self.total and now - self.printed < max(1.0, (now - self.begun) / 10):
            return
        self.printed = now
        score = "" if epoch.validation_score is None else f", validation score {epoch.validation_score:.4f}"
        self.console.progress(f"epoch {epoch.number} of at most {self.total}: loss {epoch.loss:.5g}{score}")


@contextmanager
def epochs_shown(estimator: Estimator, console: Console, earlier: int = 0) -> Iterator[None]:
    """Print epochs while ``estimator`` is fitted; ``earlier`` ones are those that it goes on from.

    The callback is taken away afterwards: a stored estimator has its own alone.
    """
    own = estimator.callbacks
    estimator.callbacks = [*(own or ()), EpochProgress(console, earlier + int(estimator.max_iter))]
    try:
        yield
    finally:
        estimator.callbacks = own
