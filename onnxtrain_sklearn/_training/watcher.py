"""What the loop tells of the course of training to whoever watches it: the callbacks of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """Watches a run; where there are no callbacks, there is none."""

    def begin(self) -> bool:
        """Begin with the training; return whether a stored state was restored that ended it."""

    def begin_epoch(self) -> None:
        """Begin with an epoch."""

    def end_epoch(self) -> bool:
        """Tell of the epoch that was recorded; return whether training is to end."""

    def settle(self, *, ended: bool) -> None:
        """Note that all is decided on the epoch, and whether training ends with it."""

    def end(self) -> None:
        """Note that training has ended, with its final weights."""


class Watched:
    """A training that tells its watcher of what happens.

    Attributes
    ----------
    watcher : Watcher or None
    """

    watcher: Watcher | None = None

    def _watched(self, train: Callable[[], bool]) -> bool:
        """Begin and train; return what ``train`` returns, or True if a restored state is that of the end."""
        return (self.watcher is not None and self.watcher.begin()) or train()

    def _tell_epoch(self) -> None:
        if self.watcher is not None:
            self.watcher.begin_epoch()

    def _settle(self, ended: bool) -> bool:
        """Return ``ended``, which is told first."""
        if self.watcher is not None:
            self.watcher.settle(ended=ended)
        return ended

    def _tell_end(self) -> None:
        if self.watcher is not None:
            self.watcher.end()
