"""The training state of an estimator as a dict of arrays and numbers, for files, other processes, and averaging.

It is :func:`stored_state` with flat names. It also identifies its training: by a digest of the graph, its constants and
scales, the engine and the seed. No value is an object that NumPy or msgpack would have to pickle.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import onnx_ir as ir

from .._data.target_scale import TargetRange
from .._data.targets import SeveralTargets
from .._gradient.engine import available_engines
from .._ir.protobuf import to_proto
from .._ir.queries import constant, every_node
from .._ort import packages
from .._training.history import Curve, EpochLog
from .._training.parameters import FlatParameters, state_slots
from .._training.programs import COMPILED
from .._training.step_choice import auto_compiles
from .._training.step_parts import OptimizerState
from .._training.trainer import EpochPart, Trainer, swept_losses, without_updates
from .._utils.cache import digest, with_attributes
from .._utils.errors import refusing
from ..adapters import without_low_rank
from ..callbacks.base import Callback, State
from ..callbacks.checkpoint import as_text, from_text
from ..exceptions import ModelError, nearest
from ..models.given import resolve_graph_model
from ..optimizers import resolve_optimizer
from ..schedules import Progress, Restarts
from .call import PIECE_ROWS, Call, steering_parameters
from .fitted_state import FittedState, require_single_scores
from .parameters import Parameters, set_callbacks_of
from .scoring import ScoredRows

FORMAT = 1
"""The number of the format of a state."""

GROUPS = ("slots", "counts", "rng", "progress", "history", "fine_tuning", "log", "ranges", "balanced")
"""The groups of a state, whose entries are named ``group/entry``."""

OWN = ("format", "graph", "constants", "engine", "seed", "minibatch_rows")
ARRAYS = ("parameters", "statistics", "average", "losses", "scores", "snapshots")


def training_state(state: FittedState) -> dict[str, Any]:
    """Return a copy of everything that training continues from, as arrays, numbers and strings by name."""
    nested = stored_state(state)
    arrays: dict[str, np.ndarray] = {}
    text = as_text({"rows": nested.pop("rows"), "memories": nested.pop("memories")}, arrays)
    for name in ("last_finite", "best"):  # used only within a call
        del nested[name]
    nested["log"] = {"text": json.dumps(text), **arrays}
    nested["ranges"] = {
        f"{i}": {"low": one.low, "high": one.high, "holds_constants": one.holds_constants}
        for i, one in enumerate(_ranges(state))
        if one is not None
    }
    balanced = state.balanced_outputs if state.decoding.parts else (state.balanced,)
    nested["balanced"] = {f"{i}": np.array(one) for i, one in enumerate(balanced) if one is not None}
    if state.snapshots:
        nested["snapshots"] = np.stack(state.snapshots)
    own = {
        "format": FORMAT,
        "graph": _graph_digest(state),
        "constants": json.dumps(constants_of(state)),
        "engine": state.engine,
        "seed": state.seed,
        "minibatch_rows": state.minibatch_rows or 0,
    }
    return {**own, **dict(_flat(nested))}


def load_training_state(estimator: Parameters, state: FittedState, given: object) -> None:
    """Set a state that :func:`training_state` returned, possibly in another process or read from a file.

    Raise ModelError, before anything changes, if ``given`` is not such a state or belongs to another graph or
    optimizer.
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
    try:
        constants = json.loads(values["constants"])
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError("The training state holds constants that cannot be read.") from error
    require_same_constants(state, constants, "")  # names the constant that differs, which a digest cannot
    if values["graph"] != _graph_digest(state):
        raise ModelError(
            "The training state belongs to another graph, or to one with other frozen weights. Load it into an "
            "estimator with the same model that was initialized or fitted on data of the same columns and classes."
        )
    engine = _engine(estimator, state, values["engine"])
    with refusing("The training state does not fit"):
        nested = _nested(values)
        _require_numbers(nested)
        seed, rows = _count(values, "seed"), _count(values, "minibatch_rows")
        ranges = _read_ranges(state, nested.pop("ranges"))
        balanced = _read_balanced(state, nested.pop("balanced"))
        stacked = nested.pop("snapshots", np.empty((0, 0)))
        buffer = state.parameters.buffer
        if len(stacked) and (stacked.shape[1:] != buffer.shape or stacked.dtype != buffer.dtype):
            raise ValueError("it holds 'snapshots' in another shape or type")
        snapshots = tuple(one.copy() for one in stacked)
        # If the optimizer has no vectors yet, take the initial ones.
        slots = state_slots(resolve_optimizer(estimator.optimizer), state.parameters)
        optimizer_state = state.optimizer_state
        dtype = state.parameters.buffer.dtype
        if not optimizer_state.fits(slots):
            optimizer_state = OptimizerState()
            optimizer_state.prepare(slots, dtype)
        if not nested["slots"] and nested["counts"].get("t") == 0:
            nested["slots"] = {name: np.full(slot.shape, slot.fill, dtype) for name, slot in slots.items()}
    target = replace(state, optimizer_state=optimizer_state)
    restore_state(target, nested)  # checks, then writes into the arrays

    if optimizer_state is not state.optimizer_state or (engine, seed) != (state.engine, state.seed):
        state.live.step = state.live.step_key = None  # the step is bound to other arrays or settings
    elif state.live.step is not None:
        state.live.step.reload()
    state.live.predictors.clear()
    decoding = state.decoding
    if decoding.parts:
        parts = tuple(with_attributes(one, target_range=own) for one, own in zip(decoding.parts, ranges, strict=True))
        decoding = with_attributes(decoding, parts=parts)
        state.balanced_outputs = balanced
    else:
        (state.balanced,) = balanced
        decoding = with_attributes(decoding, target_range=ranges[0])
    vars(state).update(
        optimizer_state=optimizer_state,
        decoding=decoding,
        engine=engine,
        seed=seed,
        minibatch_rows=rows or None,
        snapshots=snapshots,
    )


def _graph_digest(state: FittedState) -> str:
    """Return a digest of the trained graph, constants, frozen weights and decoding.

    It leaves out the values that calls change: trained weights, running statistics, and the range of the targets.
    """
    trained = {*state.parameters.names, *state.parameters.running_statistics}
    proto = to_proto(state.trained_form.model)
    proto.graph.name = ""  # skl2onnx draws a random name
    for one in proto.graph.initializer:
        if one.name in trained or one.name in state.frozen:
            for field in ("raw_data", "float_data", "double_data"):
                one.ClearField(field)
    hasher = blake2b(proto.SerializeToString(deterministic=True), digest_size=16)
    for decoding in (state.decoding, *state.decoding.parts):
        facts = (decoding.task, decoding.link, decoding.n_scores, decoding.row_shape, decoding.positions)
        more = ["soft" if decoding.soft else None, decoding.n_targets, decoding.declared]
        hasher.update(repr((*facts, *(fact for fact in more if fact))).encode())
    layout = [(name, view.shape) for name, view in state.parameters.views().items()]
    hasher.update(repr((layout, str(state.parameters.buffer.dtype))).encode())
    hasher.update(digest({name: state.frozen[name] for name in sorted(state.frozen)}))
    return hasher.hexdigest()


def _engine(estimator: Parameters, state: FittedState, stored: object) -> str:
    """Return the engine with which training continues; raise ModelError if the state is of another engine."""
    known = [*available_engines(), *([COMPILED] if auto_compiles() else [])]
    if stored == state.engine or (estimator.engine == "auto" and stored in known):
        return str(stored)
    raise ModelError(
        f"The training state is that of the engine {stored!r}, by which the last bits of a step differ, and this "
        f"estimator trains with {state.engine!r}. Available here: {known}. Set engine= to the same in both."
    )


# Convert between a nested state and a flat dict with names such as ``slots/m``.


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each entry of nested dicts with its path as name; leave out None, which NumPy would pickle."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{name}/")
        elif one is not None:
            yield f"{prefix}{name}", one


def _nested(values: Mapping[str, Any]) -> State:
    """Return the entries of a flat dict as nested dicts, which :func:`restore_state` takes."""
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
    """Return the number or string in a 0-D array, as NumPy's files store it; return other values unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def _require_numbers(nested: State) -> None:
    """Raise if a weight is not finite or a vector of the optimizer holds NaN; its squares may be infinite."""
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


# The range of the targets and the balanced class weights.


def _ranges(state: FittedState) -> list[TargetRange | None]:
    """Return the range of the targets of each output."""
    return [decoding.target_range for decoding in state.decoding.parts or (state.decoding,)]


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
        holds_constants = entry["holds_constants"]
        if not (low <= high).all() or not isinstance(holds_constants, bool):
            raise ValueError("its range of the targets is not a range")
        found.append(TargetRange(low.copy(), high.copy(), holds_constants))
    return found


def _read_balanced(state: FittedState, stored: Mapping[str, Any]) -> tuple[tuple[float, ...] | None, ...]:
    """Return the stored class weights of ``class_weight="balanced"`` for each output, None for an output without them.

    They were computed from the rows of the fit, which the estimator that loads the state may lack.
    """
    decodings = state.decoding.parts or (state.decoding,)
    if not stored.keys() <= {f"{i}" for i in range(len(decodings))}:
        raise ValueError("it holds balanced weights of other outputs")
    found: list[tuple[float, ...] | None] = []
    for i, decoding in enumerate(decodings):
        weights = stored.get(f"{i}")
        if weights is None:
            found.append(None)
            continue
        shape = (len(decoding.classes),) if isinstance(decoding.classes, np.ndarray) else None
        if not isinstance(weights, np.ndarray) or (weights.dtype, weights.shape) != (np.float64, shape):
            raise ValueError("it holds balanced weights of other classes")
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("its balanced weights must be finite and not negative")
        found.append(tuple(weights.tolist()))
    return tuple(found)


# Constants that are built into a graph beside its weights, and their comparison between two graphs. A fit takes some of
# them from its data: the scales of inputs and targets, and the labels of the classes.


LISTED = 1024
"""Most numbers of a constant that are listed; a longer constant is represented by a digest."""

CLOSE = 1e-6
"""Relative tolerance for equal floats, because means of the same data differ in the last bits between processors."""

CLASSES = "classes of "
"""Prefix of the name of an output for the constant that holds its labels, in the order of their scores."""

_LISTED_IN_ERRORS = 6


def constants_of(state: FittedState) -> dict[str, Any]:
    """Return the constants by name as JSON values, without dropout ratios, which only training reads."""
    graph = without_low_rank(state.graph)
    own = {*graph.parameters, *graph.statistics}
    found = {name: _fact(array) for name, array in _arrays(graph.model) if name not in own}
    if (scale := state.decoding.target_scale) is not None:
        found |= {"center of y": _fact(scale.center), "scale of y": _fact(scale.scale)}
    decodings = {
        form.output or "": decoding for form, decoding in zip(state.graph.forms, state.decoding.parts, strict=False)
    }
    for name, decoding in (decodings or {"y": state.decoding}).items():
        several = decoding.classes if isinstance(decoding.classes, list) else None
        labels = {"": decoding.classes} if several is None else {f"[:, {i}]": one for i, one in enumerate(several)}
        for i, one in labels.items():
            if one is not None:
                array = np.asarray(one)  # integers may be of any width
                found[f"{CLASSES}{name}{i}"] = _fact(array.astype(np.int64) if array.dtype.kind in "biu" else array)
    return found


def _arrays(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    for node in every_node(model.graph):
        drops = node.op_type == "Dropout" and not node.domain
        for value in node.inputs[:1] if drops else node.inputs:
            if value is not None and value.name and (array := constant(value)) is not None:
                yield value.name, array
        for name, attribute in () if drops or node.op_type == "Constant" else node.attributes.items():
            if isinstance(attribute, ir.Attr) and attribute.type in _FLOATS and not attribute.is_ref():
                yield f"{node.outputs[0].name}.{name}", np.array(attribute.value, np.float32)


_FLOATS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)


def _fact(array: np.ndarray) -> dict[str, Any]:
    plain = array if array.dtype.kind in "biuf" else array.astype(str)
    fact: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.size <= LISTED and plain.dtype.kind != "f":
        return {**fact, "values": plain.ravel().tolist()}
    if array.size <= LISTED:
        return {**fact, "values": [float(x) if math.isfinite(x) else str(x) for x in plain.ravel().astype(np.float64)]}
    content = "\0".join(plain.ravel().tolist()).encode() if plain.dtype.kind == "U" else plain.tobytes()
    return {**fact, "sha256": hashlib.sha256(content).hexdigest()}


def require_same_constants(state: FittedState, given: object, weights_alone: str) -> None:
    """Raise ModelError if the constants of a stored state (``given``) differ from those of the fitted ``state``.

    ``weights_alone`` is appended to the error for other classes: how to load the weights nevertheless, if possible.
    """
    known = constants_of(state)
    facts = given if isinstance(given, Mapping) else {}
    names = [*known, *(str(name) for name in facts if name not in known)]
    for name in sorted(names, key=lambda name: not name.startswith(CLASSES)):
        ours, theirs = known.get(name), facts.get(name)
        if not _are_equal(ours, theirs) and name.startswith(CLASSES):
            raise ModelError(
                f"The state was trained with other {name}: {_told(theirs)}; the estimator has {_told(ours)}, so that "
                f"its scores mean other labels. Load the state into the estimator that it comes from, or into one that "
                f"was fitted to the same labels{weights_alone}."
            )
        if not _are_equal(ours, theirs):
            raise ModelError(
                f"The state was trained in a graph whose constant {name!r} is {_told(theirs)}, and that of the "
                f"estimator is {_told(ours)}{_first_difference(ours, theirs)}: it belongs to another model, or to data "
                f"of another scale, and its weights mean something else here. "
                f"Load it into the estimator that it comes from, or into one that was fitted to the same data."
            )


def _are_equal(ours: object, theirs: object) -> bool:
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return False
    if ours.get("shape") != theirs.get("shape") or ("values" in ours) != ("values" in theirs):
        return False
    if "values" not in ours:
        return bool(ours == theirs)
    pairs = zip(ours["values"], theirs["values"], strict=False) if isinstance(theirs["values"], list) else ()
    return len(ours["values"]) == len(theirs["values"]) and all(_are_close(a, b) for a, b in pairs)


def _are_close(a: object, b: object) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-30))
    return bool(a == b)


def _first_difference(ours: object, theirs: object) -> str:
    """Return text that names the first entry in which two constants of equal shape differ."""
    values = [fact.get("values") if isinstance(fact, dict) else None for fact in (ours, theirs)]
    pairs = zip(*values, strict=False) if all(isinstance(one, list) for one in values) else ()
    found = next(((i, a, b) for i, (a, b) in enumerate(pairs) if not _are_close(a, b)), None)
    return "" if found is None else f" (entry {found[0]}: {found[2]!r}, here {found[1]!r})"


def _told(fact: object) -> str:
    """Describe a constant for a message."""
    if not isinstance(fact, dict):
        return "nothing"
    values = fact.get("values")
    if not isinstance(values, list):
        return f"an array of shape {fact.get('shape')} with the SHA-256 {str(fact.get('sha256'))[:12]}..."
    listed = [f"{one:.6g}" if isinstance(one, float) else str(one)[:40] for one in values[:_LISTED_IN_ERRORS]]
    text = ", ".join([*listed, *(["..."] if len(values) > _LISTED_IN_ERRORS else [])])
    return text if fact.get("shape") == [] else f"[{text}]"


# The state as nested plain values, which checkpoints and callbacks store and restore.

PLAIN = ("least_loss", "best_loss", "best_score", "best_watched", "idle_epochs", "early_stopping", "warned_of_end")
"""The attributes of a history that are single numbers, flags or None."""


def stored_state(state: FittedState) -> State:
    """Return weights, optimizer state, random state and history; arrays are copied."""
    optimizer, history = state.optimizer_state, state.history
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
        "best": _copied(history.best_parameters),
        "fine_tuning": copy.deepcopy(history.fine_tuning),
    }


def restore_state(state: FittedState, stored: State) -> None:
    """Set a state that :func:`stored_state` returned; write into existing arrays, because sessions are bound to them.

    A state that does not fit, perhaps from a file, raises ModelError and changes nothing.
    """
    with refusing("The stored state does not belong to this training"):
        history = _fitting_history(state, stored)
        _require_generator(stored["rng"])
    for name, array in _weights(state).items():
        array[...] = stored[name]
    for name, slot in state.optimizer_state.slots.items():
        slot[...] = stored["slots"][name]
    vars(state.optimizer_state).update(stored["counts"])
    state.rng.set_state(stored["rng"])
    state.history.change(**history)


def _require_generator(stored: Any) -> None:
    """Raise if ``stored`` is not a valid state of a RandomState, because NumPy does not check the position."""
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
    """Return the arrays in the buffer of the parameters, by name: weights, running statistics and average."""
    parameters = state.parameters
    weights = {"parameters": parameters.vector, "statistics": parameters.statistics}
    return weights if parameters.average is None else {**weights, "average": parameters.average}


def _fitting_history(state: FittedState, stored: State) -> dict[str, Any]:
    """Return the attributes of the history in ``stored``; raise any error if ``stored`` does not fit ``state``."""
    weights = _weights(state)
    slots = state.optimizer_state.slots
    counts = vars(state.optimizer_state).keys() - {"slots"}
    pairs = {name: (stored[name], array) for name, array in weights.items()}
    if (stored["average"] is not None) != ("average" in weights):
        held, own = ("a", "none") if stored["average"] is not None else ("no", "one")
        raise ValueError(
            f"it holds {held} moving average of the weights, and this training has {own}: set ema_decay of the "
            f"optimizer as in the training that the state comes from"
        )
    if stored["slots"].keys() != slots.keys():
        raise ValueError(
            f"it holds the vectors {sorted(stored['slots'])} of an optimizer, and the optimizer of this training has "
            f"{sorted(slots)}: set the optimizer that the state was trained with"
        )
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
        raise ValueError("its rows or memories are not dicts")
    return {
        "progress": Progress(**stored["progress"]),
        **{name: Curve(curve.copy(), len(curve)) for name, curve in curves.items()},
        "log": EpochLog(list(map(dict, rows)), len(rows)),
        "memories": copy.deepcopy(memories),
        "last_finite": _copied(stored["last_finite"]),
        "best_parameters": _copied(stored["best"]),
        "fine_tuning": copy.deepcopy(stored.get("fine_tuning")),
        **plain,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()


# A training in progress whose state callbacks store and restore, for checkpoints or after trial steps.


class StatefulTraining:
    """A training in progress: a fitted state and the loop that trains it.

    Attributes
    ----------
    ended : bool
        Whether training ends with this epoch; set when the epoch's outcome is final.
    """

    ended = False
    _state: FittedState
    _trainer: Trainer
    _epoch_rng: Any

    @property
    def parameters(self) -> FlatParameters:
        """The trained parameters."""
        return self._state.parameters

    def state(self) -> State:
        """Return a copy of everything from which the training can continue."""
        self._trainer.step.synchronize()
        state = {**stored_state(self._state), "ended": self.ended, "part": None}
        part = self._trainer.part
        if part is not None:
            # A resumed epoch draws its whole order again, so store the generator as it was at the epoch's beginning.
            state["rng"] = self._epoch_rng
            state["part"] = {**vars(part), "rate": self._trainer.rates.learning_rate}
        return {**state, **self._trainer.step.remote_state()}

    def restore(self, stored: State) -> None:
        """Continue from a state that :meth:`state` returned."""
        ended = stored.get("ended")
        if not isinstance(ended, bool | np.bool_):
            raise ModelError("The stored state does not say whether its training had ended: it is incomplete.")
        part = stored.get("part")
        with refusing("The stored state does not belong to this training"):
            resumed = None if part is None else _part_of_epoch(part, stored)
        restore_state(self._state, stored)
        self._trainer.step.restore_remote(stored)
        if resumed is not None:
            self._trainer.resume_within_epoch(*resumed)
        self._trainer.step.reload()
        self.ended = bool(ended)

    def begin_epoch(self) -> None:
        """Store the state of the random generator before it draws the order of the epoch's rows."""
        self._epoch_rng = self._state.rng.get_state(legacy=False)

    def _require_between_epochs(self, name: str) -> None:
        if self._trainer.part is not None:
            raise RuntimeError(f"{name}() begins an epoch of its own: call it in begin, after_epoch or end.")

    def sweep(self, rates: np.ndarray) -> np.ndarray:
        """Return the losses of trial steps, one at each learning rate; the training is restored afterwards."""
        self._require_between_epochs("sweep")
        before = self.state()
        try:
            return swept_losses(self._trainer.step, self._trainer.batches, rates)
        finally:
            self.restore(before)

    def refresh_statistics(self) -> None:
        """Compute the running statistics for the current weights, by a pass over the data that changes no weight."""
        self._require_between_epochs("refresh_statistics")
        before = self.state()
        without_updates(self._trainer.step, self._trainer.batches)
        statistics = self.parameters.statistics.copy()
        self.restore(before)
        self.parameters.statistics[...] = statistics

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Set cycles of the learning rate: it falls to 0 by each epoch in ``ends``, and starts again after it."""
        step, total = self._state.history.progress.step, self._state.history.progress.total_steps
        if total is None:
            raise ValueError(
                "Cycles of the learning rate need the steps of an epoch, which this stream does not know before it has "
                "been read. Give a source that knows its number of rows."
            )
        each = (total - step) // ends[-1]
        self._trainer.rates.follow(Restarts(step, [step + each * epochs for epochs in ends]))

    def require_ensemble(self) -> None:
        """Raise ValueError if the predictions of several networks cannot be averaged (:meth:`predict_by`)."""
        require_single_scores(self._state)

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Predict the mean of several networks until training continues; ``snapshots`` are copies of the buffer."""
        self._state.snapshots = tuple(snapshots)
        self._state.live.predictors.clear()

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate that the schedule multiplies, for this call."""
        self._trainer.rates.initial = rate


def _part_of_epoch(part: Any, stored: State) -> tuple[EpochPart, float]:
    """Return the part of an epoch trained before a state was stored, and the learning rate of the last step."""
    before, total, weight, rate = (part[name] for name in ("steps_before", "total", "weight", "rate"))
    if not _is_count(before) or before >= stored["progress"]["step"]:
        raise ValueError("the part of its epoch has no steps")
    if not all(isinstance(one, float) and math.isfinite(one) for one in (total, weight, rate)) or min(weight, rate) < 0:
        raise ValueError("the part of its epoch has no sum of losses")
    return EpochPart(before, total, weight), rate


# Identity of a training: a digest of its settings, its graph, its data, and the state that it begins from.


NO_ORIGIN = {"memories", "rows", "fine_tuning"}
"""Parts of the state that do not affect weights."""


def identity_of(
    estimator: Parameters, state: FittedState, trainer: Trainer, call: Call, held_out: ScoredRows | None
) -> str:
    """Return a digest that is equal for two calls if they train to the same bits."""
    hasher = blake2b(digest_size=12)
    names = steering_parameters(estimator)
    # The graph is compared by its bytes below, so include only the other settings of a GraphModel.
    reading = resolve_graph_model(estimator.model).get_params(deep=False)
    parameters = {name: getattr(estimator, name) for name in names}
    parameters |= {name: value for name, value in reading.items() if name != "graph"}
    stored = {name: value for name, value in stored_state(state).items() if name not in NO_ORIGIN}
    settings = (type(estimator).__qualname__, state.engine, state.device.name, state.seed, packages.version())
    padded_to = call.one_epoch and trainer.step.batch_size  # only partial_fit pads to the size of an earlier step
    held = [*(estimator.callbacks or ()), *set_callbacks_of(estimator)]
    steering = [one for one in held if isinstance(one, Callback) and one.steers]  # callbacks that affect weights
    steers = [(type(one).__qualname__, one.get_params()) for one in steering]
    for value in (settings, parameters, stored, dict(state.frozen), padded_to, steers):
        hasher.update(digest(value))
    proto = to_proto(state.trained_form.model)
    proto.graph.name = ""  # skl2onnx draws a random name
    hasher.update(proto.SerializeToString())
    for data in trainer.data:
        data.digest(hasher.update, PIECE_ROWS)
    if held_out is not None:
        for name, column in held_out.live.items():
            hasher.update(name.encode())
            for start in range(0, len(held_out.rows), PIECE_ROWS):
                hasher.update(column.rows(held_out.rows[start : start + PIECE_ROWS]).tobytes())
        targets = held_out.targets
        hasher.update(digest([np.asarray(targets.with_shares(targets.values)), held_out.weights]))
        if isinstance(held_out.targets, SeveralTargets):
            hasher.update(digest(list(held_out.targets.weights)))
    return hasher.hexdigest()
