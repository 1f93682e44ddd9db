"""The training state of an estimator as arrays and numbers by name, for files, other processes, and averaging.

It is the state of ``resumable_state`` with flat names, beside what it belongs to: a digest of the graph, its constants
and scales, engine and seed. No value is an object that NumPy or msgpack would have to pickle.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from .._data.target_scale import TargetRange
from .._gradient.engine import available_engines
from .._ir.protobuf import to_proto
from .._training.machine_code import COMPILED, auto_compiles
from .._training.parameters import state_slots
from .._training.state import OptimizerState
from .._utils.cache import digest, with_attributes
from .._utils.errors import refusing
from ..callbacks.base import State
from ..callbacks.checkpoint import as_text, from_text
from ..exceptions import ModelError, nearest
from ..optimizers import resolve_optimizer
from .fitted_state import FittedState
from .parameters import Parameters
from .resumable_state import restore_state, stored_state
from .training_files import constants_of, require_same_constants

FORMAT = 1
"""The number of the format of a state."""

GROUPS = ("slots", "counts", "rng", "progress", "history", "fine_tuning", "log", "ranges", "balanced")
"""The parts of a state with several entries, named ``part/entry``."""

OWN = ("format", "graph", "constants", "engine", "seed", "minibatch_rows")
ARRAYS = ("parameters", "statistics", "average", "losses", "scores", "snapshots")


def training_state(state: FittedState) -> dict[str, Any]:
    """Return a copy of everything that a training goes on from."""
    nested = stored_state(state)
    arrays: dict[str, np.ndarray] = {}
    text = as_text({"rows": nested.pop("rows"), "memories": nested.pop("memories")}, arrays)
    for name in ("last_finite", "best"):  # of use within a call only
        del nested[name]
    nested["log"] = {"text": json.dumps(text), **arrays}
    nested["ranges"] = {
        f"{i}": {"low": one.low, "high": one.high, "clips": one.clips, "holds_constants": one.holds_constants}
        for i, one in enumerate(_ranges(state))
        if one is not None
    }
    balanced = state.balanced_outputs if state.head.parts else (state.balanced,)
    nested["balanced"] = {f"{i}": np.array(one) for i, one in enumerate(balanced) if one is not None}
    if state.snapshots:
        nested["snapshots"] = np.stack(state.snapshots)
    own = {
        "format": FORMAT,
        "graph": _graph_digest(state),
        "constants": json.dumps(constants_of(state)),
        "engine": state.engine,
        "seed": state.seed,
        "minibatch_rows": state.rows or 0,
    }
    return {**own, **dict(_flat(nested))}


def load_training_state(estimator: Parameters, state: FittedState, given: object) -> None:
    """Set a state that :func:`training_state` returned, perhaps in another process and through a file.

    ModelError if it is none, or is that of another graph or optimizer; nothing has changed then.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"A training state is a dict, as training_state() returns it, got {type(given).__name__}.")
    values = {str(name): _plain(value) for name, value in given.items()}
    for name in values:
        part, _, entry = name.partition("/")
        if not (name in OWN or name in ARRAYS or (part in GROUPS and entry)):
            raise ModelError(f"The training state holds an unknown entry {name!r}.{nearest(name, (*OWN, *ARRAYS))}")
    if missing := [name for name in (*OWN, "parameters", "statistics") if name not in values]:
        raise ModelError(f"The training state lacks {missing[0]!r}: give all that training_state() returned.")
    if values["format"] != FORMAT:
        raise ModelError(f"The training state has format {values['format']!r}, and this version reads {FORMAT}.")
    _require_same_graph(state, values)
    engine = _engine(estimator, state, values["engine"])
    with refusing("The training state does not fit"):
        nested = _nested(values)
        _require_numbers(nested)
        seed, rows = _count(values, "seed"), _count(values, "minibatch_rows")
        ranges = _read_ranges(state, nested.pop("ranges"))
        balanced = _read_balanced(state, nested.pop("balanced"))
        snapshots = _read_snapshots(state, nested.pop("snapshots", None))
        # An optimizer that has not begun is one with its initial vectors.
        slots = state_slots(resolve_optimizer(estimator.optimizer), state.parameters)
        optimizer, dtype = state.optimizer, state.parameters.buffer.dtype
        if not optimizer.fits(slots):
            optimizer = OptimizerState()
            optimizer.prepare(slots, dtype)
        if not nested["slots"] and nested["counts"].get("t") == 0:
            nested["slots"] = {name: np.full(slot.shape, slot.fill, dtype) for name, slot in slots.items()}
    target = copy.copy(state)
    target.optimizer = optimizer
    restore_state(target, nested)  # checks, then writes into the arrays

    if optimizer is not state.optimizer or (engine, seed) != (state.engine, state.seed):
        state.live.step = state.live.step_key = None  # bound to other arrays, or made for other settings
    elif state.live.step is not None:
        state.live.step.reload()
    state.live.predictors.clear()
    head = state.head
    if head.parts:
        parts = tuple(with_attributes(one, target_range=own) for one, own in zip(head.parts, ranges, strict=True))
        head = with_attributes(head, parts=parts)
        state.balanced_outputs = balanced
    else:
        (state.balanced,) = balanced
        head = with_attributes(head, target_range=ranges[0])
    vars(state).update(optimizer=optimizer, head=head, engine=engine, seed=seed, rows=rows or None, snapshots=snapshots)


def _graph_digest(state: FittedState) -> str:
    """Return a digest of the trained graph without the numbers of what is trained.

    What is fixed counts: constants, frozen weights, and the head that predicts. The range of the targets is no part of
    it, as calls of ``partial_fit`` widen it.
    """
    trained = {*state.parameters.names, *state.parameters.running_statistics}
    proto = to_proto(state.model.model)
    proto.graph.name = ""  # skl2onnx draws one
    for one in proto.graph.initializer:
        if one.name in trained or one.name in state.frozen:
            for field in ("raw_data", "float_data", "double_data"):
                one.ClearField(field)
    hasher = blake2b(proto.SerializeToString(deterministic=True), digest_size=16)
    for head in (state.head, *state.head.parts):
        hasher.update(repr((head.task, head.link, head.n_outputs, head.row_shape, head.positions)).encode())
    layout = [(name, view.shape) for name, view in state.parameters.views().items()]
    hasher.update(repr((layout, str(state.parameters.buffer.dtype))).encode())
    hasher.update(digest({name: state.frozen[name] for name in sorted(state.frozen)}))
    return hasher.hexdigest()


def _require_same_graph(state: FittedState, values: Mapping[str, Any]) -> None:
    """Raise ModelError if the state is that of another graph; where constants differ, it names the first one."""
    try:
        constants = json.loads(values["constants"])
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError("The training state holds constants that cannot be read.") from error
    require_same_constants(state, constants)
    if values["graph"] != _graph_digest(state):
        raise ModelError(
            "The training state belongs to another graph, or to one with other frozen weights. Load it into an "
            "estimator with the same model that was initialized or fitted on data of the same columns and classes."
        )


def _engine(estimator: Parameters, state: FittedState, stored: object) -> str:
    """Return the engine with which training goes on; ModelError if it is another one than that of the state."""
    known = [*available_engines(), *([COMPILED] if auto_compiles() else [])]
    if stored == state.engine or (estimator.engine == "auto" and stored in known):
        return str(stored)
    raise ModelError(
        f"The training state is that of the engine {stored!r}, by which the last bits of a step differ, and this "
        f"estimator trains with {state.engine!r}. Available here: {known}. Set engine= to the same in both."
    )


# Flat names.


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each entry with its path; None is left out, which NumPy would pickle."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{name}/")
        elif one is not None:
            yield f"{prefix}{name}", one


def _nested(values: Mapping[str, Any]) -> State:
    """Return the entries as ``resumable_state`` takes them."""
    nested: State = {name: {} for name in GROUPS} | {"average": None, "last_finite": None, "best": None}
    for name, value in values.items():
        part, _, entry = name.partition("/")
        if part in ("rng", "ranges"):
            place = nested[part]
            *path, entry = entry.split("/")
            for step in path:
                place = place.setdefault(step, {})
            place[entry] = value
        elif part in GROUPS:
            nested[part][entry] = value
        elif name in ARRAYS:
            nested[name] = value
    text = nested["log"].pop("text")
    log = from_text(json.loads(text), nested.pop("log"))
    nested["progress"].setdefault("total_steps", None)
    nested["fine_tuning"] = nested["fine_tuning"] or None
    return {**nested, "rows": log["rows"], "memories": log["memories"]}


def _plain(value: Any) -> Any:
    """Return a number or a text that a file of NumPy holds as an array without axes; arrays as they are."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def _require_numbers(nested: State) -> None:
    """Raise where weights are not finite, or the optimizer's state is NaN; its squares may be infinite."""
    for name in ("parameters", "statistics", "average", "snapshots"):
        array = nested.get(name)
        if array is not None and not (isinstance(array, np.ndarray) and np.isfinite(array).all()):
            raise ValueError(f"{name!r} must be an array of finite numbers")
    for name, array in nested["slots"].items():
        if not isinstance(array, np.ndarray) or np.isnan(array).any():
            raise ValueError(f"'slots/{name}' must be an array without NaN")


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name!r} must be an integer >= 0, got {value!r}")
    return value


# The range of the targets, balanced weights of classes, and the networks that predict together.


def _ranges(state: FittedState) -> list[TargetRange | None]:
    """Return the range of the targets of each output."""
    return [head.target_range for head in state.head.parts or (state.head,)]


def _read_ranges(state: FittedState, stored: Mapping[str, Any]) -> list[TargetRange | None]:
    known = _ranges(state)
    if stored.keys() != {f"{i}" for i, one in enumerate(known) if one is not None}:
        raise ValueError("it holds the ranges of other targets")
    found: list[TargetRange | None] = []
    for i, one in enumerate(known):
        if one is None:
            found.append(None)
            continue
        entry = stored[f"{i}"]
        low, high = entry["low"], entry["high"]
        for array, own in ((low, one.low), (high, one.high)):
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (own.shape, own.dtype):
                raise ValueError("it holds the range of the targets in another shape or type")
        flags = {name: entry[name] for name in ("clips", "holds_constants")}
        if not (low <= high).all() or not all(isinstance(flag, bool) for flag in flags.values()):
            raise ValueError("its range of the targets is none")
        found.append(TargetRange(low.copy(), high.copy(), **flags))
    return found


def _read_balanced(state: FittedState, stored: Mapping[str, Any]) -> tuple[tuple[float, ...] | None, ...]:
    """Return the weights of the classes of each output that ``class_weight="balanced"`` came to; None: there are none.

    They belong to the rows of the fit, which the estimator that loads the state need not have seen.
    """
    heads = state.head.parts or (state.head,)
    if not stored.keys() <= {f"{i}" for i in range(len(heads))}:
        raise ValueError("it holds balanced weights of other outputs")
    found: list[tuple[float, ...] | None] = []
    for i, head in enumerate(heads):
        weights = stored.get(f"{i}")
        if weights is None:
            found.append(None)
            continue
        shape = (len(head.classes),) if isinstance(head.classes, np.ndarray) else None
        if not isinstance(weights, np.ndarray) or (weights.dtype, weights.shape) != (np.float64, shape):
            raise ValueError("it holds balanced weights of other classes")
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("its balanced weights must be finite and not negative")
        found.append(tuple(weights.tolist()))
    return tuple(found)


def _read_snapshots(state: FittedState, stored: np.ndarray | None) -> tuple[np.ndarray, ...]:
    if stored is None:
        return ()
    buffer = state.parameters.buffer
    if stored.shape[1:] != buffer.shape or stored.dtype != buffer.dtype:
        raise ValueError("it holds 'snapshots' in another shape or type")
    return tuple(one.copy() for one in stored)
