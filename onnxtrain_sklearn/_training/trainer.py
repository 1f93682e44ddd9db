"""The epoch loop: rates, stopping, divergence, best weights, watchers.

The trainer passes numbers between a training step, the batches and a schedule. It knows no graph, no session and no
estimator. What happened is recorded in :class:`~onnxtrain_sklearn._training.history.History`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar, Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._data.batches import Batches
from .._utils.errors import ignores_float_errors
from ..exceptions import DivergenceError, warn
from ..optimizers import LBFGS
from ..schedules import Constant, Progress, Schedule
from .history import Epoch, EpochTable, History, report_of
from .kept_weights import KeptWeights
from .step import HostStep, TrainingStep
from .step_parts import Rates, Scheduled


@dataclass
class EpochPart:
    """The part of the current epoch that has been trained so far.

    Attributes
    ----------
    steps_before : int
        Steps of all calls before the epoch.
    total, weight : float
        Weighted sum of the losses, and sum of the weights; 0 before the first step.
    """

    steps_before: int
    total: float = 0.0
    weight: float = 0.0


# Events that the loop reports to its watcher, which calls the callbacks of the estimator.


class Watcher(Protocol):
    """Watches a run for the callbacks; without callbacks, a trainer has no watcher."""

    def begin(self) -> bool:
        """Begin training; return True if a callback restored a state in which training had already ended."""

    def step_hook(self) -> Callable[[float], bool] | None:
        """Return the function to call with the loss of each step, or None; if it returns True, training ends."""

    def begin_epoch(self) -> None:
        """Begin an epoch."""

    def end_epoch(self) -> bool:
        """Call the callbacks after an epoch; return True if one of them ends training."""

    def conclude_epoch(self, *, ended: bool) -> None:
        """Tell the callbacks, after :meth:`end_epoch` and the stopping rules, whether training ended here."""

    def end(self) -> None:
        """Handle the end of training, with its final weights."""


# The epoch loop: minibatches, learning rate, validation, early stopping, divergence.


class Digested(Protocol):
    """Data with a digest that identifies them."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with the bytes of all data, ``size`` rows at a time."""


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of the loop; most are named after the estimators' parameters.

    With ``all_epochs``, the loop runs all ``max_iter`` epochs, as for ``early_stopping="best_epoch"``. ``planned_fits``
    counts the fits like this one (networks of an ensemble) whose total time is announced if it is long; 0: nothing is
    announced.
    """

    learning_rate_init: float
    schedule: Schedule
    max_iter: int
    tol: float
    n_iter_no_change: float
    early_stopping: bool
    verbose: int
    callbacks: Sequence[Callable[[Epoch], object]] = ()
    decay_schedule: Schedule = field(default_factory=Constant)
    dropout_schedule: Schedule = field(default_factory=Constant)
    all_epochs: bool = False
    accumulate: int = 1
    planned_fits: int = 1

    @property
    def scheduled(self) -> Scheduled:
        """Flags for weight decay and dropout: True if they change from step to step."""
        return Scheduled(not isinstance(self.decay_schedule, Constant), not isinstance(self.dropout_schedule, Constant))


class Trainer:
    """Train for some epochs.

    Parameters
    ----------
    settings : TrainerSettings
    step : TrainingStep
    batches : Batches
    history : History
        Continued in place.
    validate : callable () -> float, optional
        Score of the current parameters on the validation data, higher is better.

    Attributes
    ----------
    step, batches, history, rates
    data : tuple
        All data that training depends on; each item has a method ``digest``.
    validation_loss : callable () -> float, or None
        Loss of the current parameters on the validation data, which early stopping watches instead of the score.
    epochs_before : int
        Epochs before this call.
    part : EpochPart or None
        The part of the current epoch that has been trained; None between epochs.
    watcher : Watcher or None
    """

    is_resumable: ClassVar[bool] = True
    """True if training can resume from the state after any epoch."""

    watcher: Watcher | None = None

    def __init__(
        self,
        settings: TrainerSettings,
        step: TrainingStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self._settings, self.step, self.batches, self.history = settings, step, batches, history
        self._validate = validate
        self.data: tuple[Digested, ...] = (batches,)
        self.validation_loss: Callable[[], float] | None = None
        self._vector, self._buffer = step.parameters.vector, step.parameters.buffer
        self._kept = KeptWeights(step, history)
        history.best_parameters = None
        self._recorded = time.perf_counter()
        self._step_hook: Callable[[float], bool] | None = None
        self._stopped = self._announces = False
        self.part: EpochPart | None = None
        self._resumed: EpochPart | None = None
        self._report = report_of(settings.verbose, settings.max_iter)
        self.epochs_before = history.progress.epoch
        self.rates = ScheduledRates(
            history,
            settings.learning_rate_init,
            settings.schedule,
            decay=settings.decay_schedule,
            dropout=settings.dropout_schedule,
        )

    def fit(self) -> None:
        """Train until improvement stops, for at most ``max_iter`` epochs; warn if they end before improvement does.

        There is no warning with ``early_stopping="best_epoch"``, or if the schedule has finished. The schedule is
        planned for ``max_iter`` epochs. Each call measures improvement anew, because losses of earlier calls may come
        from other data or another loss function.
        """
        settings = self._settings
        history = self.history
        progress = self.history.progress
        steps = self.most_steps()
        # The scores to beat. With early stopping, a call that continues first scores the weights that it starts from on
        # its own validation rows. The validation loss is watched if there is one, else the score.
        score = watched = history.best_score
        if settings.early_stopping and self._validate is not None and progress.epoch:
            score = self._validate()
            watched = score if self.validation_loss is None else -self.validation_loss()
        history.change(
            progress=replace(progress, total_steps=None if steps is None else progress.step + steps),
            best_loss=math.inf,
            best_score=-math.inf if math.isnan(score) else score,
            best_watched=-math.inf if math.isnan(watched) else watched,
            best_parameters=self._buffer.copy() if settings.early_stopping else None,
            idle_epochs=0,
            early_stopping=settings.early_stopping,
        )
        self.rates.warn_if_finished()
        self._announces = settings.planned_fits > 0
        ended = self._guarded(self._train)
        self._kept.restore_best()
        if self.watcher is not None:
            self.watcher.end()
        planned = settings.all_epochs or self.rates.finished
        if not ended and not planned:
            warn(
                f"Training has not converged after max_iter={settings.max_iter} epochs. Raise max_iter or "
                f"learning_rate_init, or relax tol.",
                ConvergenceWarning,
            )

    def partial_fit(self) -> None:
        """Train for one epoch."""
        progress = self.history.progress
        if progress.total_steps is None:
            progress.total_steps = self.most_steps()
        self.history.change(early_stopping=False, best_watched=self.history.best_score)
        self.rates.warn_if_finished()
        if self._settings.verbose:  # each call adds a line to the table
            self._report = EpochTable(goes_on=self.epochs_before > 0)

        def one_epoch() -> bool:
            if self.history.progress.epoch == self.epochs_before:  # a checkpoint may already include this epoch
                self._conclude(self._record(*self._epoch()))
            return True

        self._guarded(one_epoch)
        if self.watcher is not None:
            self.watcher.end()

    def resume_within_epoch(self, part: EpochPart, rate: float) -> None:
        """Begin the next epoch where ``part`` ends, after a step at the learning rate ``rate``."""
        self._resumed = part
        self.rates.go_on_from(rate)

    def most_steps(self, epochs: int | None = None) -> int | None:
        """Return the largest number of steps of ``epochs``, by default ``max_iter``; None for streams of any length."""
        minibatches = self.batches.n_minibatches
        if minibatches is None:
            return None
        # An epoch ends with a step of its last minibatches, even if they are fewer than ``accumulate``.
        return (self._settings.max_iter if epochs is None else epochs) * -(-minibatches // self._settings.accumulate)

    def restore_usable(self) -> None:
        """Restore usable weights after an interrupt: finite ones, and with early stopping the best ones."""
        self.step.synchronize()
        if not self._is_finite():
            self._kept.restore_finite()
        self._kept.restore_best()

    def _conclude(self, ended: bool) -> bool:
        """Tell the watcher whether training ends here; return ``ended`` unchanged."""
        if self.watcher is not None:
            self.watcher.conclude_epoch(ended=ended)
        return ended

    def _guarded(self, train: Callable[[], bool]) -> bool:
        """Call ``train``, unless a callback restored a state that had ended; return True if training ended.

        After an error restore weights: those that :class:`KeptWeights` kept if training diverged, else those from the
        start of the epoch. An interrupt restores nothing here (:meth:`restore_usable`).
        """
        try:
            if self.watcher is not None:
                if self.watcher.begin():
                    return True
                self._step_hook = self.watcher.step_hook()
            return train()
        except DivergenceError:
            self._kept.restore_finite()
            raise
        except Exception:
            self._kept.restore_epoch()
            raise
        finally:
            self._report.end()

    def _train(self) -> bool:
        """Train for up to ``max_iter`` epochs; return True if training ended earlier."""
        done = self.history.progress.epoch - self.epochs_before  # epochs of this call in a restored state
        for _ in range(self._settings.max_iter - done):
            ended = self._record(*self._epoch())
            if not ended and self.history.idle_epochs > self._settings.n_iter_no_change:
                # A schedule may lower the rate at a plateau instead of ending training.
                ended = self.rates.stops_at_plateau() and not self._settings.all_epochs
            if self._conclude(ended):
                return True
        return False

    def _epoch(self) -> tuple[float, int]:
        """Train on all data once, or until the hook of a step ends training; return the mean loss and rows seen."""
        if self.watcher is not None:
            self.watcher.begin_epoch()
        resumed, self._resumed = self._resumed, None
        self._kept.begin_epoch(resumes=resumed is not None)
        steps_taken = self.history.progress.step
        accumulate = self._settings.accumulate
        self.part = part = EpochPart(steps_taken) if resumed is None else resumed
        after = None if self._step_hook is None else self._after_step
        skip = (steps_taken - part.steps_before) * accumulate
        try:
            _run_steps(self.step.train(self.batches, self.rates.advance, after, skip), self._kept, part)
        finally:
            self.part = None
        if not (math.isfinite(part.total) and self._is_finite()):
            self._diverge()
        rows = self.batches.n_rows
        if self._stopped and self.batches.n_minibatches is not None:  # a callback may have stopped mid-epoch
            minibatches = (self.history.progress.step - part.steps_before) * (accumulate // self.batches.passes)
            rows = min(rows, minibatches * self.batches.size)
        # Divide by the total weight if known: the sum over minibatches rounds differently for each order of rows.
        return part.total / (part.weight if self.batches.weight is None or self._stopped else self.batches.weight), rows

    def _after_step(self, loss: float) -> bool:
        """Call the hook of a step; return True if training ends."""
        assert self._step_hook is not None
        self._stopped = self._step_hook(loss)
        return self._stopped

    def _is_finite(self) -> bool:
        """Return True if weights and optimizer state are finite: an infinite second moment silently stops training."""
        return all(map(is_finite, (self._buffer, *self.step.optimizer_state.slots.values())))

    def _diverge(self) -> None:
        """Reset the optimizer's state, which may not be finite, and raise; the caller restores the weights."""
        self.step.forget_state()
        epoch = self.history.progress.epoch + 1
        raise DivergenceError(
            f"Training diverged in epoch {epoch} with learning_rate_init={self._settings.learning_rate_init}: the "
            f"loss, the weights, the optimizer's state or the validation predictions became NaN or infinite. The "
            f"weights from the start of the last epoch with a finite first loss were restored. "
            f"Scale the inputs (StandardScaler), lower learning_rate_init, or limit the gradient: "
            f"optimizer=AdamW(max_grad_norm=1.0).",
            self.history.loss_curve,
        )

    def _record(self, loss: float, rows: int) -> bool:
        """Record an epoch over ``rows`` rows and call the callbacks; return True if one of them ends training."""
        score = None if self._validate is None else self._validate()
        if score is not None and math.isnan(score):
            self._diverge()
        settings = self._settings
        rate = self.rates.learning_rate
        now = time.perf_counter()
        took, self._recorded = now - self._recorded, now
        self.history.add_epoch(
            loss,
            score,
            rows=rows,
            tol=settings.tol,
            parameters=self._buffer,
            validation_loss=None if self.validation_loss is None else self.validation_loss(),
            latest=settings.all_epochs,
            rate=rate,
            seconds=took,
        )
        done = self.history.progress.epoch - self.epochs_before
        self._report.show(self.history, rate, done)
        if self._announces:
            self._announce_length(done, took, rows)
        if not settings.callbacks and self.watcher is None:
            return False
        answers: list[object] = [self._stopped]
        epoch = Epoch(self.history.progress.epoch, loss, score, rate)
        answers += [callback(epoch) for callback in settings.callbacks]
        if self.watcher is not None:
            before = None if self.step.in_host_memory else self._buffer.copy()
            answers.append(self.watcher.end_epoch())
            if before is not None and not np.array_equal(before, self._buffer):
                self.step.reload()  # upload the weights that a callback changed on the host
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    def _announce_length(self, done: int, took: float, rows: int) -> None:
        """Say how long training may take if that is more than a minute, after the first epoch or the second one.

        The first epoch includes preparations, which may be most of a short one: then the second decides.
        """
        self._announces = done < 2
        settings = self._settings
        fits = self._settings.planned_fits
        left = took * (settings.max_iter * fits - done)
        if left < LONG or (done < 2 and took < 1.0):
            return
        self._announces = False
        networks = f" of {fits} networks" if fits > 1 else ""
        self._report.announce(
            f"This fit{networks} may take another {_duration(left)}: {settings.max_iter} epochs at most, and an epoch "
            f"of {rows:,} rows took {took:.2g} s ({rows / took:,.0f} rows a second). verbose=1 shows the progress; "
            f"callbacks.TimeLimit, or time_limit of RealMLP and TabM, ends it earlier."
        )


LONG = 60.0
"""Seconds left from which on a fit is announced as a long one."""


def _duration(seconds: float) -> str:
    """Return a duration in minutes, or in hours."""
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@ignores_float_errors
def _run_steps(steps: Iterable[tuple[float, float]], kept: KeptWeights, part: EpochPart) -> None:
    """Take steps until a loss is not finite, and add their losses and weights to ``part``."""
    for weight, loss in steps:
        part.total += weight * loss
        if not math.isfinite(part.total):
            break
        if not part.weight:  # the first step
            kept.keep_first()
        part.weight += weight


SINGLE_THREAD_LENGTH = 10_000
"""Longest vector whose sum of squares BLAS computes in one thread."""

CHECKED_AT_ONCE = 2**20
"""Elements checked at once: the Booleans for a whole large vector would take memory."""


def is_finite(vector: np.ndarray) -> bool:
    """Return True if all numbers of a vector are finite."""
    # One product is faster than a look at each number; np.dot would warn of overflow.
    if len(vector) <= SINGLE_THREAD_LENGTH and math.isfinite(np.vdot(vector, vector)):
        return True
    blocks = (vector[i : i + CHECKED_AT_ONCE] for i in range(0, len(vector), CHECKED_AT_ONCE))
    return all(bool(np.isfinite(block).all()) for block in blocks)


# Training by L-BFGS: each iteration of the search sees all rows and counts as an epoch.


class FullBatchTrainer(Trainer):
    """Minimize the loss of all rows by ``optimizer``; the other parameters are those of :class:`Trainer`."""

    is_resumable = False

    def __init__(
        self,
        optimizer: LBFGS,
        settings: TrainerSettings,
        step: HostStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(settings, step, batches, history, validate)
        if batches.weight is None:
            raise ValueError(
                f"{type(optimizer).__name__} computes the loss of all rows in each evaluation, and the rows of this "
                f"stream have no known weight. Set an optimizer of minibatch steps, such as AdamW()."
            )
        self._optimizer, self._gradient_step, self._weight = optimizer, step, batches.weight
        self._reached = np.empty(len(self._vector))
        self._met_overflow = False

    def _train(self) -> bool:
        """Search for the minimum; return True if the search ended before a limit was reached.

        There is no warning if a line search finds no lower loss: in float32 this happens at a minimum. But if the
        search met losses that are not finite and ended at its start, training has diverged.
        """
        self._kept.copy_first()
        start = self._vector.copy()
        self._reached[...] = start
        try:
            end = self._optimizer.minimize(
                self._objective,
                self._reached,
                max_iter=self._settings.max_iter,
                tol=self._settings.tol,
                callback=self._after_iteration,
            )
        finally:
            self._vector[...] = self._reached
        if not math.isfinite(end.loss) or (self._met_overflow and np.array_equal(end.vector, start)):
            self._diverge()
        if not end.n_iter:
            self._after_iteration(self._reached, end.loss)
        self.history.idle_epochs = 0
        self._conclude(True)
        return not end.limited

    def _objective(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss of all rows and its gradient, both in float64."""
        step, total_weight = self._gradient_step, self._weight
        self._vector[...] = vector
        loss, gradient = 0.0, np.zeros(len(vector))
        for minibatch in self.batches.epoch():
            weight = step.load(minibatch)
            del minibatch  # it may hold the window of a stream
            loss += weight * step.compute_gradients(total_weight)
            gradient += weight * step.parameters.gradient
        self._met_overflow |= not math.isfinite(loss)
        return loss / total_weight, gradient / total_weight

    def _after_iteration(self, vector: np.ndarray, loss: float) -> bool:
        """Record the iteration; return True if the search is to stop."""
        self._reached[...] = self._vector[...] = vector
        if not (math.isfinite(loss) and np.isfinite(vector).all()):
            self._diverge()
        self._kept.keep_current()
        if self._step_hook is not None:
            before = self._vector.copy()
            self._after_step(loss)
            if not np.array_equal(self._vector, before):
                raise ValueError(
                    f"A callback changed weights in after_step, but {type(self._optimizer).__name__} goes on from its "
                    f"own. Change them at the end, or set an optimizer of minibatch steps, such as AdamW()."
                )
        ended = self._record(loss, self.batches.n_rows)
        stops = self._settings.early_stopping and not self._settings.all_epochs
        return ended or (stops and self.history.idle_epochs > self._settings.n_iter_no_change)


# Learning rate, weight decay and dropout of each step, and sweeps over learning rates for ``LearningRateFinder``.


NEGLIGIBLE_FACTOR = 1e-3
"""Factor of a finished schedule below which further training has practically no effect."""


class ScheduledRates:
    """The rates of the steps of a run.

    Parameters
    ----------
    history : History
        Its progress says which step is next, and :meth:`advance` counts it.
    learning_rate_init : float
    schedule, decay, dropout : Schedule
        The schedules of the learning rate, of weight decay and of dropout.

    Attributes
    ----------
    initial : float
        The learning rate that the schedule starts from.
    learning_rate : float or None
        The rate of the last step; None before the first one.
    """

    def __init__(
        self, history: History, learning_rate_init: float, schedule: Schedule, decay: Schedule, dropout: Schedule
    ) -> None:
        self._history, self.initial = history, learning_rate_init
        self._schedule, self._decay, self._dropout = schedule, decay, dropout
        self._changes_more = not (isinstance(decay, Constant) and isinstance(dropout, Constant))
        self._is_constant = type(schedule) is Constant
        self.learning_rate: float | None = None
        self._latest = Rates(math.nan)

    def advance(self) -> Rates:
        """Return the rates of the next step, and count it."""
        # This runs in every step: constant schedules are not called, and equal rates are the same object.
        progress = self._history.progress
        rate = self.initial * (1.0 if self._is_constant else _factor(self._schedule, progress))
        if self._changes_more:
            self._latest = Rates(rate, _factor(self._decay, progress), _factor(self._dropout, progress))
        elif rate != self.learning_rate:
            self._latest = Rates(rate)
        self.learning_rate = rate
        progress.step += 1
        return self._latest

    def go_on_from(self, rate: float) -> None:
        """Set the learning rate of the last step before training was resumed."""
        self.learning_rate, self._latest = rate, Rates(rate)

    def warn_if_finished(self) -> None:
        """Warn once if the schedule has ended near a rate of 0, so that training on has practically no effect."""
        history = self._history
        schedule = self._schedule
        progress = self._history.progress
        if history.warned_of_end or not schedule.finished(progress) or schedule.factor(progress) >= NEGLIGIBLE_FACTOR:
            return
        history.warned_of_end = True
        warn(
            f"{schedule!r} was at its end when this call began, at step {progress.step}: the learning rate stays at "
            f"{self.initial * schedule.factor(progress):.3g}, so training changes practically nothing. Without "
            f"total_steps the schedule lasts max_iter epochs of the last fit or the first partial_fit. Give "
            f"total_steps, the steps of all calls together, such as "
            f"learning_rate=schedules.Cosine(total_steps=100_000).",
        )

    def follow(self, schedule: Schedule) -> None:
        """Switch to another schedule of the learning rate."""
        self._schedule, self._is_constant = schedule, type(schedule) is Constant

    @property
    def finished(self) -> bool:
        """True if the schedule has ended."""
        return self._schedule.finished(self._history.progress)

    def stops_at_plateau(self) -> bool:
        """Notify the schedule of a plateau; return True if training ends with it."""
        self._history.add_plateau()
        return self._schedule.stops_at_plateau(self._history.progress, self.initial)


@ignores_float_errors
def swept_losses(step: TrainingStep, batches: Batches, rates: np.ndarray) -> np.ndarray:
    """Take a step at each learning rate; return the losses. From the first one that is not finite on, all are NaN.

    Growing rates show where training begins to learn and where it diverges. The steps change weights and state: the
    caller restores them.
    """
    losses = np.full(len(rates), np.nan)
    remaining = iter(rates.tolist())
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


@ignores_float_errors
def without_updates(step: TrainingStep, batches: Batches) -> None:
    """Run an epoch at a learning rate of zero, which updates only the running statistics."""
    deque(step.train(batches, lambda: Rates(0.0)), maxlen=0)


def _factor(schedule: Schedule, progress: Progress) -> float:
    """Return the factor of a schedule as a float; raise if a user's schedule returns anything else."""
    factor: object = schedule.factor(progress)
    if isinstance(factor, np.ndarray | np.generic) and not factor.ndim:  # a scalar array, as np.where returns it
        factor = factor.item()
    if isinstance(factor, Real) and 0 <= (number := float(factor)) < math.inf:
        return number
    raise ValueError(
        f"{schedule!r}.factor must return a finite number >= 0, by which the initial value is multiplied; for step "
        f"{progress.step} it returned {factor!r}."
    )
