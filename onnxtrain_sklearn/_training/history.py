"""The history of a training, recorded after each epoch, and its progress as ``verbose`` prints it.

The epoch loop calls :meth:`History.add_epoch` and then a :class:`ProgressReport`, which :func:`report_of` chooses. The
estimators' ``loss_curve_``, ``history_`` and other records are read from the history.

Ctrl-C may interrupt between any two lines. So that a history is never half updated, values that belong together are set
by one update of a dict (:meth:`History.change`), and curves and logs are immutable: a longer one replaces them, and
shares their buffer, so that the time of an update does not grow with the number of epochs.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..exceptions import warn
from ..schedules import Progress

KEPT = 100_000
"""Largest number of epochs in a curve; the earliest ones are dropped."""

KEPT_ROWS = 10_000
"""Largest number of epochs whose whole row a log keeps."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Numbers of the latest epochs, in a buffer with spare capacity.

    ``filled`` holds one number, which all curves in a buffer share: the size of the longest.
    """

    buffer: np.ndarray = field(default_factory=lambda: np.empty(0))
    size: int = 0
    filled: list[int] = field(default_factory=lambda: [0])

    def plus(self, value: float) -> Curve:
        """Return the curve with one more number; it may use the same buffer."""
        buffer, size, filled = self.buffer, self.size, self.filled
        # Copy the buffer if it is full, or if another curve has already continued this one in it.
        if size == len(buffer) or size != filled[0]:
            kept = self._kept()
            buffer = np.empty(max(16, 2 * len(kept)))
            size = len(kept)
            buffer[:size] = kept
            filled = [size]
        buffer[size] = value
        filled[0] = size + 1
        return Curve(buffer, size + 1, filled)

    def values(self) -> list[float]:
        """Return the numbers that are kept, in order of the epochs."""
        return [float(value) for value in self._kept()]

    def last(self) -> float:
        """Return the latest number, or NaN if there is none."""
        return float(self.buffer[self.size - 1]) if self.size else math.nan

    def _kept(self) -> np.ndarray:
        return self.buffer[max(0, self.size - KEPT) : self.size]

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept().copy()  # without the spare capacity
        return {"buffer": kept, "size": len(kept), "filled": [len(kept)]}


@dataclass(frozen=True, eq=False)
class EpochLog:
    """Rows of the latest epochs, one dict each, in a list that longer logs share."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0

    def plus(self, row: dict[str, Any]) -> EpochLog:
        """Return the log with one more row; it may share the list."""
        rows = self.rows
        # Copy the list if another log has already appended to it, and from time to time, to drop rows that are too old.
        if self.size != len(rows) or self.size >= 2 * KEPT_ROWS:
            rows = self.kept()
        rows.append(row)
        return EpochLog(rows, len(rows))

    def last(self) -> dict[str, Any]:
        """Return the latest row, not a copy: callbacks add entries to it."""
        return self.rows[self.size - 1]

    def kept(self) -> list[dict[str, Any]]:
        """Return the rows that are kept, in order of the epochs."""
        return self.rows[max(0, self.size - KEPT_ROWS) : self.size]

    def __getstate__(self) -> dict[str, Any]:
        kept = [dict(row) for row in self.kept()]
        return {"rows": kept, "size": len(kept)}


class EpochRows(list[dict[str, Any]]):
    """The rows of a history: a list of dicts, one for each epoch."""

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame; entries that an epoch lacks are NaN."""
        import pandas  # an optional dependency

        return pandas.DataFrame(self)


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended, as callbacks that are functions receive it.

    Attributes
    ----------
    number : int
        Epochs trained, over all calls.
    loss : float
        Mean loss of the epoch, including the penalty.
    validation_score : float or None
        Score on the validation data after the epoch; None without such data.
    learning_rate : float or None
        Learning rate of the last step; None for L-BFGS.
    """

    number: int
    loss: float
    validation_score: float | None
    learning_rate: float | None


@dataclass
class History:
    """The history of a training run.

    Attributes
    ----------
    losses : Curve
        Mean loss over the rows of each epoch, including the penalty.
    scores : Curve
        Score of each epoch on the validation data; empty without such data.
    least_loss : float
        The smallest loss of all calls.
    best_loss : float
        The smallest loss since the last call of ``fit`` began, which the next epoch must improve on.
    best_score : float
        The score of the best epoch: the highest, or with a validation loss that of the smallest loss. With early
        stopping, only epochs of the latest call count.
    best_watched : float
        What the next epoch must improve on with validation data: the best score, or minus the smallest validation loss.
    idle_epochs : int
        Consecutive epochs that did not improve by ``tol``.
    early_stopping : bool
        True if the validation score or loss, rather than the training loss, must improve in the latest call.
    warned_of_end : bool
        True once a warning has said that the schedule has ended.
    last_finite : ndarray or None
        The parameters that gave the first loss of the latest epoch in which that loss was finite, for a rollback; not
        pickled.
    best_parameters : ndarray or None
        The parameters of the best epoch by ``best_watched``, if there are validation data; not pickled.
    fine_tuning : dict of str to ndarray, or None
        The candidates of the latest fine-tuning, in columns.
    log : EpochLog
        A row for each epoch, with the entries that callbacks add.
    memories : dict of str to dict
        The memory of each callback, which lasts from one call to the next.
    """

    progress: Progress = field(default_factory=Progress)
    losses: Curve = field(default_factory=Curve)
    scores: Curve = field(default_factory=Curve)
    least_loss: float = math.inf
    best_loss: float = math.inf
    best_score: float = -math.inf
    best_watched: float = -math.inf
    idle_epochs: int = 0
    early_stopping: bool = False
    warned_of_end: bool = False
    last_finite: np.ndarray | None = None
    best_parameters: np.ndarray | None = None
    fine_tuning: dict[str, np.ndarray] | None = None
    log: EpochLog = field(default_factory=EpochLog)
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def loss_curve(self) -> list[float]:
        """The mean loss of each epoch that the curve still holds."""
        return self.losses.values()

    @property
    def validation_scores(self) -> list[float]:
        """The validation score of each epoch that the curve still holds."""
        return self.scores.values()

    @property
    def rows(self) -> EpochRows:
        """A row for each epoch in the loss curve; where the log has dropped a row, only number and loss are left."""
        known, losses = self.log.kept(), self.loss_curve
        first = self.progress.epoch - len(losses) + 1
        missing = max(0, len(losses) - len(known))
        earlier = [{"epoch": first + i, "loss": loss} for i, loss in enumerate(losses[:missing])]
        return EpochRows([*earlier, *map(dict, known)])

    def change(self, **values: object) -> None:
        """Set several attributes in one step that Ctrl-C cannot split."""
        self.__dict__.update(values)

    def add_epoch(
        self,
        loss: float,
        score: float | None,
        *,
        rows: int,
        tol: float,
        parameters: np.ndarray,
        validation_loss: float | None = None,
        latest: bool = False,
        rate: float | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Add an epoch over ``rows`` rows that ended with ``parameters``, which are copied if they are the best so far.

        The best epoch has the highest score, or the smallest ``validation_loss`` if one is given; among equal ones it
        is the first, or with ``latest`` the last. ``rate`` is the learning rate of the last step.

        The estimator's own stopping reads ``idle_epochs`` and ``best``. It follows scikit-learn's MLP, with the same
        parameters and defaults: it watches the training loss, or with ``early_stopping`` the validation score or loss.
        The callback ``EarlyStopping`` is a separate rule, with defaults of its own, for any other loss or score.
        """
        progress = self.progress
        improved = loss <= self.best_loss - tol
        changed: dict[str, Any] = {}
        row: dict[str, Any] = {"epoch": progress.epoch + 1, "step": progress.step, "loss": loss, "learning_rate": rate}
        if score is not None:
            watched = score if validation_loss is None else -validation_loss
            improved = watched >= self.best_watched + tol if self.early_stopping else improved
            changed["scores"] = self.scores.plus(score)
            row["validation_score"] = score
            if validation_loss is not None:
                row["validation_loss"] = validation_loss
            if watched > self.best_watched or (latest and watched == self.best_watched):
                changed |= {"best_watched": watched, "best_score": score, "best_parameters": parameters.copy()}
        row["seconds"] = seconds
        self.change(
            progress=Progress(
                progress.step, progress.epoch + 1, progress.samples + rows, progress.total_steps, progress.plateaus
            ),
            losses=self.losses.plus(loss),
            least_loss=min(self.least_loss, loss),
            best_loss=min(self.best_loss, loss),
            idle_epochs=0 if improved else self.idle_epochs + 1,
            log=self.log.plus(row),
            **changed,
        )

    def add_plateau(self) -> None:
        """Count a plateau, and reset the idle epochs."""
        self.change(idle_epochs=0, progress=replace(self.progress, plateaus=self.progress.plateaus + 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "last_finite": None, "best_parameters": None}


# The output of ``verbose``: a progress line that is rewritten, in a terminal or a notebook, or a table of epochs.


WIDTH = 20
"""Width of the progress bar in characters."""

INTERVAL = 0.1
"""Seconds between two updates of the line."""


class ProgressReport(Protocol):
    """A report of progress that is updated after each epoch."""

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Report the latest epoch; ``done`` is the number of epochs that this call has trained."""

    def announce(self, text: str) -> None:
        """Say that training will take long."""

    def end(self) -> None:
        """End an unfinished line, so that later output starts on a new line."""


def report_of(verbose: int, epochs: int) -> ProgressReport:
    """Return the report for ``verbose``: none for 0, a line for 1 if the output can rewrite it, else a table."""
    if not verbose:
        return NoReport()
    output = sys.stdout
    can_rewrite = output.isatty() or type(output).__module__.partition(".")[0] == "ipykernel"  # a notebook cell
    return ProgressLine(epochs) if verbose == 1 and can_rewrite else EpochTable()


class NoReport:
    """Print nothing; only a warning says that training will take long."""

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Do nothing."""

    def announce(self, text: str) -> None:
        """Warn."""
        warn(text)

    def end(self) -> None:
        """Do nothing."""


class EpochTable:
    """Print a line for each epoch below a heading; ``goes_on`` continues the table of an earlier call."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self._began = time.perf_counter()
        self._has_head = goes_on

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Print the line of the last epoch."""
        epoch = history.progress.epoch
        seconds = time.perf_counter() - self._began
        if not self._has_head:
            self._has_head = True
            print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
        score = f"{history.scores.last():12.6f}" if history.scores.size else f"{'':>12}"
        rate = f"{'':>12}" if learning_rate is None else f"{learning_rate:12.3g}"
        print(f"{epoch:6d} {history.losses.last():12.6f} {score} {rate} {seconds:9.2f}")

    def announce(self, text: str) -> None:
        """Print the text between two lines of the table."""
        print(text)

    def end(self) -> None:
        """Do nothing."""


class ProgressLine:
    """Show the progress of ``epochs`` epochs in one line that is rewritten."""

    def __init__(self, epochs: int) -> None:
        self._epochs, self._shown = epochs, 0
        self._began = time.perf_counter()
        self._changed = -INTERVAL
        self._line = ""
        self._length = 0

    def show(self, history: History, learning_rate: float | None, done: int) -> None:
        """Show the latest epoch, unless the line was updated less than ``INTERVAL`` seconds ago."""
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

    def announce(self, text: str) -> None:
        """Do nothing: the line shows the time left."""

    def end(self) -> None:
        """Show the last epoch, and start a new line."""
        if self._line:
            self._write()
            print(flush=True)
        self._line, self._length = "", 0

    def _write(self) -> None:
        line = self._line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be rewritten
        print(f"\r{line:{self._length}}", end="", flush=True)
        self._length = len(line)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
