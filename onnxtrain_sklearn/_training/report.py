"""What ``verbose`` prints: a line that shows the progress, in a terminal or a notebook, or a table of epochs."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Protocol

from .history import History

WIDTH = 20
"""Characters of the bar."""

INTERVAL = 0.1
"""Seconds from one change of the line to the next."""


class ProgressReport(Protocol):
    """What is told of each epoch."""

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Tell of the last epoch, number ``done`` of the call."""

    def end(self) -> None:
        """Leave the output as others expect it."""


class NoReport:
    """Tells nothing."""

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class EpochTable:
    """Prints a line for each epoch, below the head of the table; ``goes_on``: the table of an earlier call does."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self._began, self._has_head = time.perf_counter(), goes_on

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Print the line of the last epoch."""
        epoch, seconds = history.progress.epoch, time.perf_counter() - self._began
        if not self._has_head:
            self._has_head = True
            print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
        score = f"{history.scores.last():12.6f}" if history.scores.size else f"{'':>12}"
        rate = f"{'':>12}" if learning_rate is None else f"{learning_rate:12.3g}"
        print(f"{epoch:6d} {history.losses.last():12.6f} {score} {rate} {seconds:9.2f}")

    def end(self) -> None:
        """Do nothing."""


class ProgressLine:
    """Shows the progress of ``epochs`` epochs in one line, which is written over."""

    def __init__(self, epochs: int) -> None:
        self._epochs, self._shown = epochs, 0
        self._began = time.perf_counter()
        self._changed, self._line, self._length = -INTERVAL, "", 0

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Show the last epoch, unless another one was shown just before."""
        self._shown += 1
        elapsed = time.perf_counter() - self._began
        bar = "#" * (WIDTH * done // self._epochs)
        score = f"  validation {history.scores.last():.6g}" if history.scores.size else ""
        rate = "" if learning_rate is None else f"  rate {learning_rate:.3g}"
        left = (self._epochs - done) * elapsed / self._shown
        self._line = (
            f"epoch {done:{len(str(self._epochs))}d}/{self._epochs} [{bar:{WIDTH}}] {_clock(elapsed)}, {_clock(left)} "
            f"left  loss {history.losses.last():.6g}{score}{rate}"
        )
        if elapsed - self._changed >= INTERVAL:
            self._changed = elapsed
            self._write()

    def end(self) -> None:
        """Show the last epoch, and begin a new line."""
        if self._line:
            self._write()
            print(flush=True)
        self._line, self._length = "", 0

    def _write(self) -> None:
        line = self._line[: shutil.get_terminal_size().columns - 1]
        print(f"\r{line:{self._length}}", end="", flush=True)
        self._length = len(line)


def report_of(verbose: int, epochs: int) -> ProgressReport:
    """Return what tells of a call of ``fit``; 1 is a line where it can be written over, more always a table."""
    if not verbose:
        return NoReport()
    return ProgressLine(epochs) if verbose == 1 and _can_be_written_over() else EpochTable()


def _can_be_written_over() -> bool:
    """Whether the output is a terminal, or a cell of a notebook."""
    output = sys.stdout
    return output.isatty() or type(output).__module__.partition(".")[0] == "ipykernel"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
