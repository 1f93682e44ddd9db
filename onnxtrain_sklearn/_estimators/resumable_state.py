"""The state of a training as plain values, from which another process resumes to the same bits.

Checkpoints store and restore it; ``identity_of`` tells whether a stored state belongs to a training.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from .._data.several_targets import SeveralTargets
from .._ir.protobuf import to_proto
from .._ort import packages
from .._training.history import Curve, EpochLog
from .._training.parameters import FlatParameters
from .._training.rates import swept_losses
from .._training.state import Rates
from .._training.trainer import Trainer
from .._utils.cache import digest
from .._utils.errors import refusing
from ..callbacks.base import Callback, State
from ..exceptions import ModelError
from ..models.given import resolve_graph_model
from ..schedules import Progress, Restarts
from .examples import Call
from .fitted_state import FittedState, require_single_scores
from .parameters import Parameters, set_callbacks_of
from .random_generator import IRRELEVANT, PIECE_ROWS
from .scoring import ScoredRows

PLAIN = ("least_loss", "best_loss", "best_score", "best_watched", "idle_epochs", "early_stopping", "warned_of_end")
"""The attributes of a history that are numbers."""


def stored_state(state: FittedState) -> State:
    """Return weights, optimizer state, random state and history; arrays are copied."""
    optimizer, history = state.optimizer, state.history
    return {
        "parameters": state.parameters.vector.copy(),
        "statistics": state.parameters.statistics.copy(),
        "average": _copied(state.parameters.average),
        "slots": {name: slot.copy() for name, slot in optimizer.slots.items()},
        "counts": {name: count for name, count in vars(optimizer).items() if name != "slots"},
        "rng": state.rng.get_state(legacy=False),
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


def restore_state(state: FittedState, stored: State) -> None:
    """Set a state that :func:`stored_state` returned; arrays that sessions are bound to are written in place.

    One that does not fit raises ModelError and changes nothing: it may come from a file.
    """
    with refusing("The stored state is none of this training"):
        history = _fitting_history(state, stored)
        _require_generator(stored["rng"])
    for name, array in _weights(state).items():
        array[...] = stored[name]
    for name, slot in state.optimizer.slots.items():
        slot[...] = stored["slots"][name]
    vars(state.optimizer).update(stored["counts"])
    state.rng.set_state(stored["rng"])
    state.history.change(**history)


def _require_generator(stored: Any) -> None:
    """Raise for a state that a generator does not take, or reads beyond: NumPy does not check the position."""
    own = stored["state"]
    key, position = own["key"], own["pos"]
    if not isinstance(key, np.ndarray) or (key.dtype, key.shape) != (np.uint32, (624,)):
        raise ValueError("its random state has no key of 624 words")
    if not _is_count(position) or position > 624 or stored["has_gauss"] not in (0, 1):
        raise ValueError("its random state has no position in the key")
    if not math.isfinite(stored["gauss"]):
        raise ValueError("its random state holds a number that is not finite")
    np.random.RandomState(0).set_state(stored)


def _weights(state: FittedState) -> dict[str, np.ndarray]:
    """Return the arrays of which the buffer of the parameters consists."""
    parameters = state.parameters
    weights = {"parameters": parameters.vector, "statistics": parameters.statistics}
    return weights if parameters.average is None else {**weights, "average": parameters.average}


def _fitting_history(state: FittedState, stored: State) -> dict[str, Any]:
    """Return what becomes of the history; raise whatever error for a state that does not fit."""
    weights, slots, counts = _weights(state), state.optimizer.slots, vars(state.optimizer).keys() - {"slots"}
    pairs = {name: (stored[name], array) for name, array in weights.items()}
    if stored["average"] is not None and "average" not in weights:
        raise ValueError("it holds a moving average of the weights, which this training lacks (ema_decay)")
    if stored["slots"].keys() != slots.keys():
        raise ValueError(f"it holds the vectors {sorted(stored['slots'])} of an optimizer, not {sorted(slots)}")
    pairs |= {name: (stored["slots"][name], slot) for name, slot in slots.items()}
    buffer = state.parameters.buffer
    pairs |= {name: (stored[name], buffer) for name in ("last_finite", "best") if stored[name] is not None}
    for name, (array, known) in pairs.items():
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (known.shape, known.dtype):
            raise ValueError(f"it holds {name!r} in another shape or type")
    if stored["counts"].keys() != counts or not all(map(_is_count, stored["counts"].values())):
        raise ValueError(f"its counts must be {sorted(counts)}, each a number of steps")
    curves = {name: np.asarray(stored[name], np.float64) for name in ("losses", "scores")}
    plain, rows, memories = stored["history"], stored["rows"], stored["memories"]
    if plain.keys() != set(PLAIN) or any(curve.ndim != 1 for curve in curves.values()):
        raise ValueError("its history is incomplete")
    progress = {name: value for name, value in stored["progress"].items() if (name, value) != ("total_steps", None)}
    if stored["progress"].keys() != vars(state.history.progress).keys() or not all(map(_is_count, progress.values())):
        raise ValueError("its progress must be numbers of steps")
    if not all(value is None or isinstance(value, bool | int | float) for value in plain.values()):
        raise ValueError("its history must be numbers")
    if not all(isinstance(row, dict) for row in (*rows, *memories.values())):
        raise ValueError("its rows or memories are no mappings")
    return {
        "progress": Progress(**stored["progress"]),
        **{name: Curve(curve.copy(), len(curve)) for name, curve in curves.items()},
        "log": EpochLog(list(map(dict, rows)), len(rows)),
        "memories": copy.deepcopy(memories),
        "last_finite": _copied(stored["last_finite"]),
        "best": _copied(stored["best"]),
        "fine_tuning": copy.deepcopy(stored.get("fine_tuning")),
        **plain,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()


# A training whose state is stored and restored: for checkpoints, and for steps beside the course of training.


class StatefulTraining:
    """The state and its loop.

    Attributes
    ----------
    ended : bool
        Whether training ends with this epoch, where that is decided.
    """

    ended = False
    _state: FittedState
    _trainer: Trainer

    @property
    def parameters(self) -> FlatParameters:
        """The trained parameters."""
        return self._state.parameters

    def state(self) -> State:
        """Return a copy of all that the training goes on from."""
        self._trainer.step.synchronize()
        return {**stored_state(self._state), "ended": self.ended}

    def restore(self, stored: State) -> None:
        """Go on from a state."""
        ended = stored.get("ended")
        if not isinstance(ended, bool | np.bool_):
            raise ModelError("The stored state is none of this training: it does not say whether that had ended.")
        restore_state(self._state, stored)
        self._trainer.step.reload()
        self.ended = bool(ended)

    def sweep(self, rates: np.ndarray) -> np.ndarray:
        """Return the losses of steps at these learning rates; the training stays as it is."""
        before = self.state()
        try:
            return swept_losses(self._trainer.step, self._trainer.batches, rates)
        finally:
            self.restore(before)

    def refresh_statistics(self) -> None:
        """Let running statistics follow the weights by a pass over the data that changes no weight."""
        before = self.state()
        steps = self._trainer.batches.steps
        if steps is None:  # a stream: the end of an epoch is where it ends
            deque(self._trainer.step.train(self._trainer.batches, lambda: Rates(0.0)), maxlen=0)
        else:
            swept_losses(self._trainer.step, self._trainer.batches, np.zeros(steps))
        statistics = self.parameters.statistics.copy()
        self.restore(before)
        self.parameters.statistics[...] = statistics

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Let the learning rate fall to 0 up to each of these epochs of this call, and start again."""
        step, total = self._state.history.progress.step, self._state.history.progress.total_steps
        if total is None:
            raise ValueError(
                "Cycles of the learning rate need the steps of an epoch, which this stream does not know before it has "
                "been read. Give a source that knows its number of rows."
            )
        each = (total - step) // ends[-1]
        self._trainer.rates.follow(Restarts(step, [step + each * epochs for epochs in ends]))

    def require_ensemble(self) -> None:
        """Raise ValueError if :meth:`predict_by` cannot be."""
        require_single_scores(self._state)

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Let the mean of networks predict, whose parameters are copies of the buffer, until training goes on."""
        self._state.snapshots = tuple(snapshots)
        self._state.live.predictors.clear()

    def set_learning_rate(self, rate: float) -> None:
        """Let the schedule start from this learning rate, in this call."""
        self._trainer.rates.initial = rate


# Identity of a training: its settings, graph, data, and the state that it begins from.


NO_ORIGIN = {"memories", "rows", "fine_tuning"}
"""Parts of the state on which no weight depends."""


def identity_of(
    estimator: Parameters, state: FittedState, trainer: Trainer, call: Call, held_out: ScoredRows | None
) -> str:
    """Return a digest that is equal for calls whose training is the same to the bit."""
    hasher = blake2b(digest_size=12)
    names = [name for name in inspect.signature(type(estimator)).parameters if name not in IRRELEVANT]
    parameters = {name: getattr(estimator, name) for name in names} | _reading_of(estimator)
    stored = {name: value for name, value in stored_state(state).items() if name not in NO_ORIGIN}
    settings = (type(estimator).__qualname__, state.engine, state.device.name, state.seed, packages.version())
    padded_to = call.one_pass and trainer.step.batch  # a fit has the rows of its minibatches, which are data
    for value in (settings, parameters, stored, dict(state.frozen), padded_to, _steering(estimator)):
        hasher.update(digest(value))
    graph = to_proto(state.model.model)
    graph.graph.name = ""  # skl2onnx draws one
    hasher.update(graph.SerializeToString())
    for data in trainer.data:
        data.digest(hasher.update, PIECE_ROWS)
    if held_out is not None:
        _add_rows(hasher.update, held_out)
    return hasher.hexdigest()


def _reading_of(estimator: Parameters) -> dict[str, object]:
    """Return how the graph of an estimator is read; the graph itself is compared by its bytes."""
    given = resolve_graph_model(estimator.model)
    return {name: value for name, value in given.get_params(deep=False).items() if name != "graph"}


def _steering(estimator: Parameters) -> list[object]:
    """Return the callbacks on which the weights depend, with their settings."""
    held = [*(estimator.callbacks or ()), *set_callbacks_of(estimator)]
    found = [one for one in held if isinstance(one, Callback) and one.steers]
    return [(type(one).__qualname__, one.get_params()) for one in found]


def _add_rows(update: Callable[[bytes], object], scored: ScoredRows) -> None:
    for name, column in scored.live.items():
        update(name.encode())
        for start in range(0, len(scored.rows), PIECE_ROWS):
            update(column.rows(scored.rows[start : start + PIECE_ROWS]).tobytes())
    update(digest([np.asarray(scored.targets.values), scored.weights]))
    if isinstance(scored.targets, SeveralTargets):
        update(digest(list(scored.targets.weights)))
