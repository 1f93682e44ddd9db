"""Find out whether the rows of a minibatch meet in a graph: by analysis, and by trials where it does not tell.

*Rows meet* if the result of one row depends on other rows of its minibatch: see :mod:`.._training.rows_meet`, which
asks this module about the graph and looks into the loss itself. :func:`where_rows_meet_in_graph` asks about a
trainable model, :func:`meeting_in` about any graph. Both first ask ``_model/batch_axis``. Where it is not certain,
:func:`meet_in_numbers` tries: it changes one row after the other, and if the results of other rows change, rows meet.
They meet too if results change where rows are added, as those of a graph that divides by the number of rows. Graphs of
equal structure share the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from .._ir.edits import keep_outputs, swap_initializers
from .._ir.protobuf import to_proto
from .._ir.queries import node_label, structure
from .._model.batch_axis import Finding, trace_rows, with_batch
from .._model.modes import inference_form, normalizes_by_batch
from .._model.trainable import TrainableModel
from .._model.weights import form_of
from .._ort import devices, sessions
from .._utils.cache import Cache
from .._utils.typing import DType

TRIED_ROWS, ADDED_ROWS, TRIALS = 5, 3, 4
"""Rows of a trial, rows that are added to them, and how often other numbers are tried."""

KNOWN_ROWS = 1013
"""Rows for which shapes are inferred: a prime number, which is seldom the size of anything else."""

Numbers: TypeAlias = Mapping[str, np.ndarray]
Options: TypeAlias = Mapping[str, object] | None

_of_forms: WeakKeyDictionary[ir.Model, dict[object, str | None]] = WeakKeyDictionary()
_of_structures: Cache[list[Meeting]] = Cache(256, 2**20, lambda found: 256)
_lock = Lock()


class Meeting(NamedTuple):
    """Node where rows meet; not ``seen``: it is unknown, because the graph does not run on the numbers of a trial."""

    node: str
    seen: bool


def where_rows_meet_in_graph(model: TrainableModel, options: Options, *, in_training: bool = True) -> str | None:
    """Return where the rows of a minibatch meet, or may meet, in a graph; None: nowhere. It is found once for a form.

    In training, normalization takes statistics of the minibatch. ``options`` are those of the sessions that try it.
    """
    form = form_of(model.model)
    with _lock:
        known = _of_forms.setdefault(form, {})
    key = (in_training, model.scores, model.forms)
    if key not in known:
        statistics = next((node for node in form.graph if normalizes_by_batch(node)), None) if in_training else None
        if statistics is not None:
            known[key] = node_label(statistics)
        else:
            inputs, ends = [spec.name for spec in model.inputs], [one.scores for one in model.forms] or [model.scores]
            weights = {*model.parameters, *model.statistics}
            found = meeting_in(form, inputs, ends, model.parameters, weights, options)
            known[key] = None if found is None else found.node
    return known[key]


def meeting_in(
    form: ir.Model,
    by_row: Sequence[str],
    ends: Sequence[str],
    trained: Sequence[str],
    weights: Collection[str] = (),
    options: Options = None,
) -> Meeting | None:
    """Return where the rows of the inputs ``by_row`` meet on the way to the outputs ``ends``; None: nowhere.

    ``trained`` are the initializers that a trial gives other numbers, ``weights`` those on whose values the answer does
    not depend.
    """
    verdict = trace_rows(form.graph, by_row, [v for v in form.graph.outputs if v.name in ends])
    if verdict.certain:
        return Meeting(verdict.node, True) if verdict.node else None

    def decided() -> list[Meeting]:
        later = _of_fixed_batch(form, by_row, ends) or verdict
        if later.certain:
            return [Meeting(later.node, True)] if later.node else []
        meet = _meet_in_trial(form, by_row, ends, trained, options)
        return [] if meet is False else [Meeting(later.node, bool(meet))]

    key = structure(form, set(weights)), tuple(by_row), tuple(ends)
    return next(iter(_of_structures.get(key, decided)), None)


def _of_fixed_batch(form: ir.Model, by_row: Sequence[str], ends: Sequence[str]) -> Finding | None:
    """Return the answer for a fixed number of rows, which fixes the sizes that depend on it too."""
    try:
        fixed = with_batch(form, KNOWN_ROWS)
    except Exception:  # a graph may take other numbers of rows only
        return None
    return trace_rows(fixed.graph, by_row, [v for v in fixed.graph.outputs if v.name in ends], KNOWN_ROWS)


def _meet_in_trial(
    model: ir.Model, by_row: Sequence[str], ends: Sequence[str], trained: Sequence[str], options: Options = None
) -> bool | None:
    """Return whether numbers show that rows meet; None: the graph does not run on them."""
    try:
        graph = inference_form(model)
        rng = np.random.RandomState(0)
        every = graph.graph.initializers
        weights = {name: _numbers(rng, every[name], 0) for name in trained if name in every}
        swap_initializers(graph.graph, weights)  # a new model may have zeros, which hide everything upstream of them
        keep_outputs(graph, [value for value in graph.graph.outputs if value.name in ends], inputs=True)
        content, device = to_proto(graph).SerializeToString(), devices.resolve_device()
        session = sessions.create_session(content, device, options=options)
        given = list(graph.graph.inputs)
        fixed = {v.name or "": _numbers(rng, v, 0) for v in given if v.name not in by_row}

        def run(feeds: Numbers) -> list[np.ndarray]:
            return [np.asarray(found) for found in sessions.run_session(session, list(ends), {**feeds, **fixed})]

        def draw(trial: int, rows: int) -> dict[str, np.ndarray]:
            kinds = (np.random.RandomState(1 + trial), rows)
            return {v.name or "": _numbers(kinds[0], v, trial, rows) for v in given if v.name in by_row}

        return meet_in_numbers(run, draw)
    except Exception:  # of whatever cannot be run with such numbers
        return None


def meet_in_numbers(run: Callable[[Numbers], list[np.ndarray]], draw: Callable[[int, int], Numbers]) -> bool:
    """Return whether results of rows depend on other rows.

    Parameters
    ----------
    run : callable (inputs) -> list of ndarray
        Results whose first axis is that of the rows.
    draw : callable (trial, rows) -> inputs
        Random numbers for so many rows.
    """
    seen = False
    for trial in range(TRIALS):
        first, other = draw(trial, TRIED_ROWS), draw(trial + TRIALS, TRIED_ROWS)
        before = run(first)
        if any(not len(one) or len(one) % TRIED_ROWS for one in before):
            return True
        seen |= any(np.isfinite(one).any() if one.dtype.kind == "f" else True for one in before)
        row = trial % TRIED_ROWS
        changed = {name: array.copy() for name, array in first.items()}
        for name in changed:
            changed[name][row] = other[name][row]
        if not _equal(before, run(changed), np.arange(TRIED_ROWS) != row):
            return True
        if trial > 1:  # a large graph takes its time
            continue
        more = {name: np.concatenate([array, array[[0] * ADDED_ROWS]]) for name, array in first.items()}
        kept = np.arange(TRIED_ROWS + ADDED_ROWS) < TRIED_ROWS
        if not _equal(before, run(more), np.ones(TRIED_ROWS, bool), kept):
            return True
    return not seen


def _equal(
    one: Sequence[np.ndarray], two: Sequence[np.ndarray], kept: np.ndarray, others: np.ndarray | None = None
) -> bool:
    """Return True if results are equal up to rounding in the rows that are kept."""
    pairs = [(_by_row(a, kept), _by_row(b, kept if others is None else others)) for a, b in zip(one, two, strict=True)]
    return all(_close(a, b) for a, b in pairs)


def _by_row(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    rows: np.ndarray = array.reshape(len(kept), -1)[kept]
    return rows


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind != "f" or np.array_equal(a, b, equal_nan=True):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    scale = np.abs(a[finite]).max(initial=0.0)
    return bool(np.allclose(a[finite], b[finite], rtol=1e-4, atol=1e-5 * scale))


def _numbers(rng: np.random.RandomState, value: ir.Value, trial: int, rows: int = 0) -> np.ndarray:
    """Return random numbers for a value: normal, or positive in every other trial; of integers 0 and 1."""
    shape = [d if isinstance(d, int) else 3 for d in value.shape or ()]
    if rows and shape:
        shape[0] = rows
    kind = np.dtype(np.float32) if value.dtype is None else np.dtype(value.dtype.numpy())
    return numbers_of_type(rng, kind, tuple(shape), trial)


def numbers_of_type(rng: np.random.RandomState, kind: DType, shape: tuple[int, ...], trial: int) -> np.ndarray:
    """Return random numbers of a type: normal, or positive in every other trial; of integers 0 and 1."""
    if kind.kind == "f":
        numbers = rng.normal(size=shape) if trial % 2 == 0 else rng.uniform(0.1, 1.0, shape)
        return numbers.astype(kind)
    if kind.kind in "OUS":
        return np.array(["a", "b"], dtype=object)[rng.randint(0, 2, shape)]
    return rng.randint(0, 2, shape).astype(kind)
