"""What tells one training from another: settings, graph, data, and the state that it begins from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from .._callbacks.base import Callback
from .._data.several_targets import SeveralTargets
from .._graph.protobuf import to_proto
from .._runtime import distributions
from .._support.digest import digest
from .._training.loop import Trainer
from .callback_support import set_callbacks_of
from .examples import Call
from .parameters import Parameters
from .run import Run
from .training_state import stored_state
from .validation import ScoredRows

IRRELEVANT = {"model", "callbacks", "verbose"}
"""Parameters that are not compared: the graph is, and of callbacks those that steer."""

NO_ORIGIN = {"memories", "rows", "fine_tuning"}
"""Parts of the state on which no weight depends."""

PIECE_ROWS = 4096
"""Rows of the data that are read at a time."""


def identity_of(estimator: Parameters, run: Run, trainer: Trainer, call: Call, held_out: ScoredRows | None) -> str:
    """Return a digest that is equal for calls whose training is the same to the bit."""
    hasher = blake2b(digest_size=12)
    names = [name for name in inspect.signature(type(estimator)).parameters if name not in IRRELEVANT]
    parameters = {name: getattr(estimator, name) for name in names}
    state = {name: value for name, value in stored_state(run).items() if name not in NO_ORIGIN}
    settings = (type(estimator).__qualname__, run.engine, run.device.name, run.seed, distributions.version())
    padded_to = call.one_pass and trainer.step.batch  # a fit has the rows of its minibatches, which are data
    for value in (settings, parameters, state, dict(run.frozen), padded_to, _steering(estimator)):
        hasher.update(digest(value))
    graph = to_proto(run.model.model)
    graph.graph.name = ""  # skl2onnx draws one
    hasher.update(graph.SerializeToString())
    for data in trainer.data:
        data.digest(hasher.update, PIECE_ROWS)
    if held_out is not None:
        _add_rows(hasher.update, held_out)
    return hasher.hexdigest()


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
