"""The learning rates of a loop over training graphs, and the factors of weight decay and dropout, by schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exceptions import ModelError
from ..schedules import SCHEDULES, Progress, Schedule
from .step_graph import DECAY_FACTOR, DROPOUT_FACTOR

LEARNING_RATE = "learning_rate"
SCHEDULE_KEYS = {
    LEARNING_RATE: LEARNING_RATE,
    DECAY_FACTOR: "weight_decay_schedule",
    DROPOUT_FACTOR: "dropout_schedule",
}
"""The keys of the manifest that name a schedule, by the input that it gives."""


class LoopRates:
    """The rates of the steps of a training that goes on where the export was made, by the manifest."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        known = manifest["hyperparameters"]
        self._initial, self._max_iter = float(known["learning_rate_init"]), known.get("max_iter")
        self._progress = Progress(**manifest.get("progress", {}))
        self._inputs = {role: manifest["inputs"][role] for role in SCHEDULE_KEYS if role in manifest["inputs"]}
        self._facts = {role: manifest[SCHEDULE_KEYS[role]] for role in self._inputs}
        self._schedules = {role: schedule_of(fact) for role, fact in self._facts.items()}

    def begin(self, steps: int) -> None:
        """Begin a pass of so many steps; the first one plans those of ``max_iter`` passes."""
        if self._progress.total_steps is None and self._max_iter is not None:
            self._progress.total_steps = int(self._max_iter) * steps

    def next(self, learning_rate: float | None) -> dict[str, float]:
        """Return the values of the inputs of the next step; a given learning rate is taken as it is."""
        found = {name: self._factor(role) for role, name in self._inputs.items() if role != LEARNING_RATE}
        rate = self._initial * self._factor(LEARNING_RATE) if learning_rate is None else learning_rate
        self._progress.step += 1
        return {self._inputs[LEARNING_RATE]: rate, **found}

    def end(self, rows: int) -> None:
        """End a pass over so many rows."""
        self._progress.epoch += 1
        self._progress.samples += rows

    def _factor(self, role: str) -> float:
        schedule = self._schedules[role]
        if schedule is None:
            hint = (
                "give learning_rate" if role == LEARNING_RATE else "train in a loop of your own, which gives the input"
            )
            raise ModelError(
                f"The schedule {self._facts[role]['name']!r} ({SCHEDULE_KEYS[role]}) is not one of the package, so its "
                f"factors are not known here: {hint}."
            )
        return schedule.factor(self._progress)


def schedule_of(fact: Mapping[str, Any]) -> Schedule | None:
    """Return the schedule that the manifest describes; None for one that is not of the package."""
    kind = SCHEDULES.get(fact["name"])
    if kind is None:
        return None
    found = {name: _parameter_of(value) for name, value in fact["parameters"].items()}
    if any(value is NotImplemented for value in found.values()):
        return None
    schedule = kind(**found)
    schedule.validate()
    return schedule


def _parameter_of(value: object) -> Any:
    """Return a parameter; NotImplemented for a schedule within another that is not of the package."""
    if not (isinstance(value, Mapping) and {"name", "parameters"} <= value.keys()):
        return value
    inner = schedule_of(value)
    return NotImplemented if inner is None else inner
