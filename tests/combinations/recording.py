"""Records what a call of ``fit`` or ``partial_fit`` trained: initial weights, minibatches, losses and scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from onnxtrain_sklearn._data.batches import ArrayBatches, Minibatch
from onnxtrain_sklearn._training.trainer import Trainer
from tests.combinations.draws import Draw


@dataclass
class RecordedCall:
    """What a call trained.

    ``rows`` are those to train on, ``passes`` the rows of each minibatch of each epoch, which may leave some out,
    ``statistics`` the running statistics that moved, ``watched`` what early stopping watches, higher is better.
    """

    initial: dict[str, np.ndarray] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    statistics: list[str] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    passes: list[list[np.ndarray]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    watched: list[float | None] = field(default_factory=list)
    watched_before: float = -np.inf


@contextmanager
def recording(call: RecordedCall) -> Iterator[None]:
    """Record a call that is made inside of the block."""
    epoch, fit, partial_fit, begin = ArrayBatches.epoch, Trainer.fit, Trainer.partial_fit, Trainer._guarded

    def recorded(batches: ArrayBatches, skip: int = 0) -> Iterator[Minibatch]:
        found, call.rows = list(epoch(batches, skip)), np.sort(batches._rows)
        call.passes.append([one.rows.copy() for one in found])
        return iter(found)

    def note(trainer: Trainer) -> None:
        parameters = trainer.step.parameters
        call.trained, call.statistics = list(parameters.names), list(parameters.running_statistics)
        frozen = getattr(trainer.step, "passes", trainer.step)._parts.frozen
        call.initial = {n: np.array(a) for n, a in {**frozen, **parameters.weights()}.items()}

    def noted_fit(trainer: Trainer) -> None:
        note(trainer)
        fit(trainer)

    def noted_pass(trainer: Trainer) -> None:
        note(trainer)
        partial_fit(trainer)

    def noted_begin(trainer: Trainer, train: Callable[[], bool]) -> bool:
        if train == trainer._train:  # not for partial_fit
            call.watched_before = trainer.history.best_watched
        return begin(trainer, train)

    with (
        mock.patch.object(ArrayBatches, "epoch", recorded),
        mock.patch.object(Trainer, "fit", noted_fit),
        mock.patch.object(Trainer, "partial_fit", noted_pass),
        mock.patch.object(Trainer, "_guarded", noted_begin),
    ):
        yield


def recorded_call(draw: Draw, estimator: Any, kind: str) -> RecordedCall:
    """Call ``fit`` or ``partial_fit`` on the data of a draw; return what was trained."""
    call, before = RecordedCall(), getattr(estimator, "n_iter_", 0)
    arguments = draw.fit_arguments()
    if kind == "partial_fit":
        arguments = {name: value for name, value in arguments.items() if not name.endswith("_val")}
    with recording(call), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(estimator, kind)(draw.rows(draw.X), draw.y, **arguments)
    rows = estimator.history_[before:]
    call.losses, call.scores = [row["loss"] for row in rows], [row.get("validation_score") for row in rows]
    call.watched = [watched_in(row) for row in rows]
    return call


def watched_in(row: dict[str, Any]) -> float | None:
    """Return what early stopping watches in an epoch, higher is better: the validation loss of classifiers, a score."""
    return -row["validation_loss"] if "validation_loss" in row else row.get("validation_score")
