"""Find out where the rows of a minibatch meet in training: in the graph, or in the loss.

*Rows meet* if the result of one row depends on other rows of its minibatch, as with batch normalization in training, or
with a user's loss that ranks the rows. Much depends on it. If rows do not meet, a short minibatch is padded with rows
of weight zero, equal rows are merged, and predictions are computed in pieces of any size. If they do, each of these
would change results: a minibatch of another size gets a graph of its own, and some settings are refused.

:func:`where_rows_meet` asks about the graph of the scores, :func:`rows_meet_in_loss` about the loss, and
:func:`meeting_in` about any graph. First :mod:`.._model.batch_axis` follows the axis of the rows through the operators.
Where it is not certain, :func:`meet_in_numbers` tries: it changes one row after the other, and if the results of other
rows change, rows meet. They meet too if results change where rows are added, as those of a graph that divides by the
number of rows. Graphs of equal structure share the answer. Rows meet in losses that say so (``mixes_rows``). The other
losses of this package compute each row by itself; those of users are tried, unless the analysis is certain that rows
meet in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from .._ir.edits import keep_outputs, swap_initializers
from .._ir.protobuf import to_proto
from .._ir.queries import all_values, node_label, structure
from .._model.batch_axis import ROW_LOSSES, trace_rows, with_batch
from .._model.declared_targets import DeclaredTargets
from .._model.modes import inference_form, normalizes_by_batch
from .._model.trainable import TrainableModel
from .._model.weights import template_of
from .._ort import devices, sessions
from .._utils.cache import Cache
from .._utils.typing import DType
from ..exceptions import ModelError
from ..losses import LOSSES
from .loss_graph import TARGET, WEIGHT, score_loss_graph, target_layout
from .step_parts import StepSettings, TotalLoss, settings_of_output

TRIED_ROWS, ADDED_ROWS, TRIALS = 5, 3, 4
"""Number of rows in a trial, number of rows added to them, and number of trials with other random numbers."""

KNOWN_ROWS = 1013
"""Number of rows for which shapes are inferred: a prime, which is seldom the size of another axis."""

Numbers: TypeAlias = Mapping[str, np.ndarray]
Options: TypeAlias = Mapping[str, object] | None

# Caches of the answers: for graphs by identity and by structure, for losses by structure and by identity of settings.
_of_forms: WeakKeyDictionary[ir.Model, dict[object, str | None]] = WeakKeyDictionary()
_of_structures: Cache[list[Meeting]] = Cache(256, 2**20, lambda found: 256)
_lock = Lock()
_of_losses: Cache[list[bool]] = Cache(256, 2**20, lambda found: 256)
_of_settings: deque[tuple[StepSettings, object, list[tuple[str, StepSettings]]]] = deque(maxlen=4)


def where_rows_meet(graph: TrainableModel, settings: StepSettings) -> str | None:
    """Return where the rows of a minibatch meet, in the graph or in the loss; None: nowhere.

    Raise ModelError if the loss would mix more than rows: positions within rows, or members of an ensemble.
    """
    losses = [one for _, one in _losses_that_meet(graph, settings)]
    for one in _each_output(settings).values():
        require_separate_labels(one, graph.dtype)
    for one in losses:
        name, more = type(one.loss).__name__, ""
        if one.positions is not None:
            more = "labels at positions: it would compare positions of different rows, and those without a label"
        elif graph.members is not None:
            more = f"the {graph.members} members of a network: it would compare the rows of different members"
        if more:
            raise ModelError(
                f"Rows meet in the loss {name}, so it cannot be used with {more}. Take a loss of single rows."
            )
    if graph.batch is not None and losses:
        raise ModelError(
            f"Rows meet in the loss {type(losses[0].loss).__name__}, and the graph is run on {graph.batch} of the rows "
            f"of a minibatch at a time. Take a loss of single rows."
        )
    found = where_rows_meet_in_graph(graph, settings.session_options)
    return found or (f"The loss {type(losses[0].loss).__name__}" if losses else None)


def outputs_where_rows_meet(graph: TrainableModel, settings: StepSettings) -> list[str]:
    """Return the names of the outputs, where several are trained, in whose loss rows meet."""
    return [name for name, _ in _losses_that_meet(graph, settings) if name]


def _losses_that_meet(graph: TrainableModel, settings: StepSettings) -> list[tuple[str, StepSettings]]:
    """Return pairs of name and settings of the outputs in whose loss rows meet; a single output has an empty name.

    The result is cached, because a fit asks several times with the same settings.
    """
    key = graph.dtype, graph.link == "votes"
    for known, of, found in list(_of_settings):
        if known is settings and of == key:
            return found
    result = [
        (name, one)
        for name, one in _each_output(settings).items()
        if rows_meet_in_loss(one, graph.dtype, of_pairs=key[1])
    ]
    _of_settings.append((settings, key, result))
    return result


def _each_output(settings: StepSettings) -> dict[str, StepSettings]:
    """Return the settings of each output by name; a single output has an empty name."""
    total = settings.loss
    several = total.outputs if isinstance(total, TotalLoss) else ()
    return {one.name: settings_of_output(settings, one) for one in several} or {"": settings}


# The graph: by analysis of its operators, and by trials where it is not certain.


class Meeting(NamedTuple):
    """A node where rows meet (``seen``), or may meet: no trial could tell, as the graph does not run on its numbers."""

    node: str
    seen: bool


def where_rows_meet_in_graph(graph: TrainableModel, options: Options, *, in_training: bool = True) -> str | None:
    """Return where the rows of a minibatch meet, or may meet, in a graph; None: nowhere. The answer is cached.

    ``in_training``, batch normalization uses statistics of the minibatch, so rows meet. ``options`` are the session
    options of the trials. Where a graph runs on some rows at a time, they were tried when it was read.
    """
    form = template_of(graph.model)
    if graph.batch is not None:
        if in_training and (node := next((node for node in form.graph if normalizes_by_batch(node)), None)):
            raise ModelError(
                f"{node_label(node)} normalizes by the statistics of a minibatch, and the graph is run on "
                f"{graph.batch} of its rows at a time. Leave training_mode=False, freeze it by trainable, or use "
                f"another normalization."
            )
        return None
    with _lock:
        known = _of_forms.setdefault(form, {})
    key = (in_training, graph.scores, graph.forms)
    if key not in known:
        statistics = next((node for node in form.graph if normalizes_by_batch(node)), None) if in_training else None
        if statistics is not None:
            known[key] = node_label(statistics)
        else:
            inputs = [spec.name for spec in graph.inputs]
            ends = [one.scores for one in graph.forms] or [graph.scores]
            weights = {*graph.parameters, *graph.statistics}
            found = meeting_in(form, inputs, ends, graph.parameters, weights, options)
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
        # Analyze the graph for a fixed number of rows, so that the sizes that depend on it are fixed too.
        try:
            fixed = with_batch(form, KNOWN_ROWS).graph
        except Exception:  # the graph may not accept this number of rows
            later = verdict
        else:
            later = trace_rows(fixed, by_row, [v for v in fixed.outputs if v.name in ends], KNOWN_ROWS)
        if later.certain:
            return [Meeting(later.node, True)] if later.node else []
        meet = _meet_in_trial(form, by_row, ends, trained, options)
        return [] if meet is False else [Meeting(later.node, bool(meet))]

    key = structure(form, set(weights)), tuple(by_row), tuple(ends)
    return next(iter(_of_structures.get(key, decided)), None)


def meet_in_batch(model: ir.Model, end: str, trained: Sequence[str], batch: int) -> bool:
    """Return True if numbers show that the rows of a graph that runs on ``batch`` rows meet, or depend on their place.

    ``end`` is its output, and ``trained`` are the initializers that a trial gives other numbers.
    """
    by_row = [value.name or "" for value in model.graph.inputs]
    held = [name for name in trained if name in model.graph.initializers]
    return batch > 1 and bool(_meet_in_trial(model, by_row, [end], held, batch=batch))


def _meet_in_trial(
    model: ir.Model,
    by_row: Sequence[str],
    ends: Sequence[str],
    trained: Sequence[str],
    options: Options = None,
    batch: int | None = None,
) -> bool | None:
    """Return whether numbers show that rows meet; None: the graph does not run on them, or gives no finite results."""
    try:
        graph = inference_form(model)
        rng = np.random.RandomState(0)
        every = graph.graph.initializers
        weights = {name: _numbers(rng, every[name], 0) for name in trained if name in every}
        swap_initializers(graph.graph, weights)  # a new model may have zeros, which hide everything upstream of them
        keep_outputs(graph, [value for value in graph.graph.outputs if value.name in ends], inputs=True)
        content = to_proto(graph).SerializeToString()
        device = devices.resolve_device()
        session = sessions.create_session(content, device, options=options)
        given = list(graph.graph.inputs)
        fixed = {v.name or "": _numbers(rng, v, 0) for v in given if v.name not in by_row}

        def run(feeds: Numbers) -> list[np.ndarray]:
            return [np.asarray(found) for found in sessions.run_session(session, list(ends), {**feeds, **fixed})]

        def draw(trial: int, rows: int) -> dict[str, np.ndarray]:
            rng = np.random.RandomState(1 + trial)
            return {v.name or "": _numbers(rng, v, trial, rows) for v in given if v.name in by_row}

        return meet_in_numbers(run, draw, batch)
    except Exception:  # the graph does not run on such numbers
        return None


def _numbers(rng: np.random.RandomState, value: ir.Value, trial: int, rows: int = 0) -> np.ndarray:
    """Return random numbers for a value: floats are normal, or positive in every second trial; integers are 0 or 1."""
    shape = [d if isinstance(d, int) else 3 for d in value.shape or ()]
    if rows and shape:
        shape[0] = rows
    kind = np.dtype(np.float32) if value.dtype is None else np.dtype(value.dtype.numpy())
    return numbers_of_type(rng, kind, tuple(shape), trial)


# Trials with random numbers.


def meet_in_numbers(
    run: Callable[[Numbers], list[np.ndarray]], draw: Callable[[int, int], Numbers], batch: int | None = None
) -> bool | None:
    """Return True if results of rows depend on other rows, or on their number; None if no result is finite.

    If all runs take ``batch`` rows, the place of a row is tried instead of their number.

    Parameters
    ----------
    run : callable (inputs) -> list of ndarray
        Results whose first axis is that of the rows.
    draw : callable (trial, rows) -> inputs
        Random numbers for so many rows.
    """
    seen, tried = False, batch or TRIED_ROWS
    for trial in range(TRIALS):
        first, other = draw(trial, tried), draw(trial + TRIALS, tried)
        before = run(first)
        if any(not len(one) or len(one) % tried for one in before):
            return True
        seen |= any(np.isfinite(one).any() if one.dtype.kind == "f" else True for one in before)
        row = trial % tried
        changed = {name: array.copy() for name, array in first.items()}
        for name in changed:
            changed[name][row] = other[name][row]
        if not _equal(before, run(changed), np.arange(tried) != row):
            return True
        if batch is not None:
            moved = run({name: np.roll(array, 1, axis=0) for name, array in first.items()})
            if not _equal([np.roll(one, len(one) // tried, axis=0) for one in before], moved, np.ones(tried, bool)):
                return True
            continue
        if trial > 1:  # the first two trials suffice for added rows, which takes time with large graphs
            continue
        more = {name: np.concatenate([array, array[[0] * ADDED_ROWS]]) for name, array in first.items()}
        kept = np.arange(TRIED_ROWS + ADDED_ROWS) < TRIED_ROWS
        if not _equal(before, run(more), np.ones(TRIED_ROWS, bool), kept):
            return True
    return False if seen else None


def _equal(
    one: Sequence[np.ndarray], two: Sequence[np.ndarray], kept: np.ndarray, others: np.ndarray | None = None
) -> bool:
    """Return True if results are equal up to rounding in the rows that are kept."""
    places = kept, kept if others is None else others
    for pair in zip(one, two, strict=True):
        a, b = (array.reshape(len(at), -1)[at] for array, at in zip(pair, places, strict=True))
        is_float = a.dtype.kind == "f"
        if np.array_equal(a, b, equal_nan=is_float):
            continue
        finite = np.isfinite(a) if is_float else None
        if finite is None or not np.array_equal(finite, np.isfinite(b)):
            return False
        scale = np.abs(a[finite]).max(initial=0.0)
        if not np.allclose(a[finite], b[finite], rtol=1e-4, atol=1e-5 * scale):
            return False
    return True


def numbers_of_type(rng: np.random.RandomState, kind: DType, shape: tuple[int, ...], trial: int) -> np.ndarray:
    """Return random numbers of a type: floats are normal, or positive in every second trial; integers are 0 or 1."""
    if kind.kind == "f":
        numbers = rng.normal(size=shape) if trial % 2 == 0 else rng.uniform(0.1, 1.0, shape)
        return numbers.astype(kind)
    if kind.kind in "OUS":
        return np.array(["a", "b"], dtype=object)[rng.randint(0, 2, shape)]
    return rng.randint(0, 2, shape).astype(kind)


# The loss.


def rows_meet_in_loss(settings: StepSettings, dtype: DType, *, of_pairs: bool = False) -> bool:
    """Return True if the loss of a row depends on other rows, or on their number."""
    if type(settings.loss) in LOSSES.values() or getattr(settings.loss, "mixes_rows", False):
        return bool(getattr(settings.loss, "mixes_rows", False))
    trials = (TRIED_ROWS, TRIED_ROWS + ADDED_ROWS)
    try:
        graphs = {rows: _graph_of_loss(settings, dtype, rows, of_pairs=of_pairs) for rows in trials}
    except Exception as error:
        # The loss may work only for the real number of rows. If it does not work at all, training raises a clear error
        # later. Fine-tuning would not.
        if of_pairs and isinstance(error, ModelError):
            raise
        return True

    def found() -> list[bool]:
        model, ends = graphs[TRIED_ROWS]
        verdict = trace_rows(model.graph, ("scores", TARGET), ends, TRIED_ROWS)
        if verdict.certain and verdict.node:
            return [True]
        return [_losses_meet_in_trial(settings, dtype, graphs)]

    key = (
        tuple(structure(model, ()) for model, _ in graphs.values()),
        settings.task,
        settings.n_scores,
        settings.n_targets,
    )
    return _of_losses.get(key, found)[0]


def _graph_of_loss(
    settings: StepSettings, dtype: DType, rows: int, *, of_pairs: bool
) -> tuple[ir.Model, list[ir.Value]]:
    """Return the graph of the losses of ``rows`` rows, and the values that hold the losses."""
    positions = settings.positions
    shape = (rows, settings.n_scores) if positions is None else (rows, *positions.shape, settings.n_scores)
    model = score_loss_graph(settings, shape, dtype, of_pairs=of_pairs)
    ends = [value for value in all_values(model) if ROW_LOSSES in value.meta]
    for value in ends:
        value.dtype = value.dtype or ir.DataType.from_numpy(np.dtype(dtype))
    return model, ends


def _losses_meet_in_trial(
    settings: StepSettings, dtype: DType, graphs: Mapping[int, tuple[ir.Model, list[ir.Value]]]
) -> bool:
    runners, device = {}, devices.resolve_device()
    for rows, (model, ends) in graphs.items():
        model.graph.outputs.extend(value for value in ends if value not in model.graph.outputs)
        runners[rows] = sessions.create_session(to_proto(model).SerializeToString(), device)
    names = [value.name or "" for value in graphs[TRIED_ROWS][1]]

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        rows = len(feeds["scores"])
        own = [value.name or "" for value in graphs[rows][1]]
        every = {**feeds, WEIGHT: np.ones(rows, dtype)}
        return [np.asarray(found) for found in sessions.run_session(runners[rows], own, every)]

    def draw(trial: int, rows: int) -> dict[str, np.ndarray]:
        rng = np.random.RandomState(trial)
        shape, kind = target_layout(settings, rows, dtype, settings.positions)
        scores = graphs[rows][0].graph.inputs[0]
        given = numbers_of_type(rng, np.dtype(dtype), tuple(int(str(d)) for d in scores.shape or ()), 0)
        if settings.declared is not None:
            return {"scores": given, TARGET: _declared_numbers(settings.declared, rng, rows, trial).astype(kind)}
        # Draw targets: class indices, indicators, or numbers, which are 0 or 1 in some trials.
        if kind.kind in "iu":
            several = settings.positions is not None or settings.task == "multiclass"
            classes = 2 if settings.task == "binary" else max(settings.n_columns, 2)
            targets = rng.randint(0, classes if several else 2, shape)
        elif settings.task != "regression" or trial % 4 == 2:
            targets = rng.randint(0, 2, shape).astype(kind)
        else:
            targets = numbers_of_type(rng, np.dtype(kind), shape, trial)
        return {"scores": given, TARGET: targets}

    try:
        return not names or meet_in_numbers(run, draw) is not False
    except Exception:  # the loss does not run on such numbers, so the trial gives no answer
        return True


def _declared_numbers(declared: DeclaredTargets, rng: np.random.RandomState, rows: int, trial: int) -> np.ndarray:
    """Return random numbers for the matrix of declared targets."""
    arrays = []
    for one in declared.targets:
        kind = np.dtype(np.float32 if one.dtype == "float" else np.int64)
        arrays.append(numbers_of_type(rng, kind, (rows, *one.row_shape), trial))
    return declared.matrix(arrays, rows)


def require_separate_labels(settings: StepSettings, dtype: DType) -> None:
    """Raise ModelError if ignored labels would affect the losses of other labels."""
    if not settings.ignores or type(settings.loss) in LOSSES.values():
        return
    _graph_of_loss(settings, dtype, TRIED_ROWS, of_pairs=False)  # raises for a loss that does not separate labels
    name = type(settings.loss).__name__
    advice = "Leave these rows out, or take a loss of single labels."
    if rows_meet_in_loss(settings, dtype):
        raise ModelError(
            f"Rows meet in the loss {name}, and some labels or numbers of rows do not count (ignore_label, NaN): they "
            f"would meet the others. {advice}"
        )
    if not settings.groups and _labels_meet(replace(settings, ignores=False, n_shares=0), dtype):
        raise ModelError(
            f"In the loss {name} the labels or numbers of a row meet, and some of them do not count (ignore_label, "
            f"NaN): the losses of the others would depend on them. {advice}"
        )


def _labels_meet(settings: StepSettings, dtype: DType) -> bool:
    """Return True if the loss of a label depends on the scores or targets of other labels of its row."""
    model, ends = _graph_of_loss(settings, dtype, TRIED_ROWS, of_pairs=False)
    model.graph.outputs.extend(value for value in ends if value not in model.graph.outputs)
    session = sessions.create_session(to_proto(model).SerializeToString(), devices.resolve_device())
    names = [value.name or "" for value in ends]
    width = settings.n_columns
    if settings.n_scores % width:
        return True  # which scores belong to a number is not known
    times = settings.n_scores // width
    for trial in range(4):
        rng = np.random.RandomState(trial)
        drawn = [
            (rng.normal(0, 2, (TRIED_ROWS, times * width)).astype(dtype), rng.randint(0, 2, (TRIED_ROWS, width)))
            for _ in range(2)
        ]
        drawn = [(scores, y.astype(dtype)) for scores, y in drawn]
        changed = rng.permutation(width) % 2 == 0
        pairs = [
            drawn[0],
            tuple(np.where(np.tile(changed, n), b, a) for n, a, b in zip((times, 1), *drawn, strict=True)),
        ]
        feeds = [{"scores": scores, TARGET: y, WEIGHT: np.ones(TRIED_ROWS, dtype)} for scores, y in pairs]
        first, second = (np.asarray(sessions.run_session(session, names, one)[0])[:, ~changed] for one in feeds)
        if not np.allclose(first, second, rtol=1e-5, atol=1e-6, equal_nan=True):
            return True
    return False
