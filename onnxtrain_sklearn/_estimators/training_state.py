"""The state of a training in plain values: what another process needs to go on to the same weights, bit by bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from .._callbacks.base import State
from .._support.refusal import refusing
from .._training.history import Curve, EpochLog
from ..schedules import Progress
from .run import Run

PLAIN = ("least_loss", "best_loss", "best_score", "best_watched", "idle_epochs", "early_stopping", "warned_of_end")
"""The attributes of a history that are numbers."""


def stored_state(run: Run) -> State:
    """Return weights, optimizer state, random state and history; arrays are copied."""
    state, history = run.state, run.history
    return {
        "buffer": run.parameters.buffer.copy(),
        "slots": {name: slot.copy() for name, slot in state.slots.items()},
        "counts": {name: count for name, count in vars(state).items() if name != "slots"},
        "rng": run.rng.get_state(legacy=False),
        "progress": dict(vars(history.progress)),
        "history": {name: getattr(history, name) for name in PLAIN},
        "losses": np.array(history.loss_curve),
        "scores": np.array(history.validation_scores),
        "rows": [dict(row) for row in history.log.kept()],
        "memories": copy.deepcopy(history.memories),
        "last_finite": _copied(history.last_finite),
        "best": _copied(history.best),
        "fine_tuning": copy.deepcopy(history.fine_tuning),
    }


def restore_state(run: Run, state: State) -> None:
    """Set a state that :func:`stored_state` returned; arrays that sessions are bound to are written in place.

    One that does not fit raises ModelError and changes nothing: it may come from a file.
    """
    with refusing("The stored state is none of this training"):
        history = _fitting_history(run, state)
        rng = np.random.RandomState(0)
        rng.set_state(state["rng"])
    run.parameters.buffer[...] = state["buffer"]
    for name, slot in run.state.slots.items():
        slot[...] = state["slots"][name]
    vars(run.state).update(state["counts"])
    run.rng.set_state(state["rng"])
    run.history.change(**history)


def _fitting_history(run: Run, state: State) -> dict[str, Any]:
    """Return what becomes of the history; raise whatever error for a state that does not fit."""
    like, slots, counts = run.parameters.buffer, run.state.slots, vars(run.state).keys() - {"slots"}
    pairs = {"buffer": (state["buffer"], like)} | {name: (state["slots"][name], slot) for name, slot in slots.items()}
    pairs |= {name: (state[name], like) for name in ("last_finite", "best") if state[name] is not None}
    for name, (array, known) in pairs.items():
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (known.shape, known.dtype):
            raise ValueError(f"it holds {name!r} in another shape or type")
    if state["counts"].keys() != counts or not all(isinstance(one, int) for one in state["counts"].values()):
        raise ValueError(f"its counts must be {sorted(counts)}")
    curves = {name: np.asarray(state[name], np.float64) for name in ("losses", "scores")}
    plain, rows, memories = state["history"], state["rows"], state["memories"]
    if plain.keys() != set(PLAIN) or any(curve.ndim != 1 for curve in curves.values()):
        raise ValueError("its history is incomplete")
    progress = {name: value for name, value in state["progress"].items() if (name, value) != ("total_steps", None)}
    if not all(isinstance(value, int) and 0 <= value < 2**63 for value in progress.values()):
        raise ValueError("its progress must be numbers of steps")
    if not all(value is None or isinstance(value, bool | int | float) for value in plain.values()):
        raise ValueError("its history must be numbers")
    if not all(isinstance(row, dict) for row in (*rows, *memories.values())):
        raise ValueError("its rows or memories are no mappings")
    return {
        "progress": Progress(**state["progress"]),
        **{name: Curve(curve.copy(), len(curve)) for name, curve in curves.items()},
        "log": EpochLog(list(map(dict, rows)), len(rows)),
        "memories": copy.deepcopy(memories),
        "last_finite": _copied(state["last_finite"]),
        "best": _copied(state["best"]),
        "fine_tuning": copy.deepcopy(state.get("fine_tuning")),
        **plain,
    }


ALWAYS_COPIED = 2**18
"""Bytes of weights and optimizer state below which a copy costs next to nothing."""

COPIED_FOR_STEPS, MANY_STEPS = 2**26, 20
"""Bytes up to which a copy takes a few percent of so many steps: it takes about a third of one."""


class StateBefore:
    """All that a call changes of the run that it goes on from, to take the call back.

    Curves and rows of the history are immutable. Nothing else that a run has is changed: a call has a run of its own.
    Weights and optimizer state are the run's own arrays until :meth:`copy_arrays`: what precedes the first step makes
    other arrays and does not write into these.
    """

    def __init__(self, run: Run) -> None:
        state, history = run.state, run.history
        self._run, self._buffer, self._random = run, run.parameters.buffer, run.rng.get_state(legacy=False)
        self._state, self._is_copied = {**vars(state), "slots": dict(state.slots)}, False
        self._history = {
            **vars(history),
            "progress": replace(history.progress),
            "memories": {name: _as_far_as_possible(memory) for name, memory in history.memories.items()},
            "last_finite": None,
        }

    def copy_arrays(self) -> None:
        """Copy weights and optimizer state, which the steps overwrite."""
        self._buffer = self._buffer.copy()
        self._state["slots"] = {name: slot.copy() for name, slot in self._state["slots"].items()}
        self._is_copied = True

    @property
    def is_whole(self) -> bool:
        """Whether the arrays hold what they held: they are copies, or neither a step nor an epoch was taken."""
        state, history = self._run.state, self._run.history
        same = state.t == self._state["t"] and history.progress.epoch == self._history["progress"].epoch
        return self._is_copied or same

    def restore(self) -> None:
        """Go back to it; the step, which may be bound to other arrays or has its own on a device, is made anew."""
        run = self._run
        run.step = run.step_key = None
        run.parameters.buffer[...] = self._buffer
        vars(run.state).update(self._state)
        run.history.change(**self._history)
        run.rng.set_state(self._random)
        run.predictors.clear()  # callbacks and other threads may have asked for predictions in the course of the call


def _as_far_as_possible(memory: State) -> State:
    """Return a copy of what a callback remembers; what cannot be copied, as an open file, is kept as it is."""
    copied = {}
    for name, value in memory.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # whatever a class of the user raises where it is copied
            copied[name] = value
    return copied


def size_of_state(run: Run) -> int:
    """Return the bytes of weights and optimizer state."""
    return run.parameters.buffer.nbytes + sum(slot.nbytes for slot in run.state.slots.values())


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()
