"""Find out where the rows of a minibatch meet in training: in the graph, or in the loss.

*Rows meet* if the result of one row depends on other rows of its minibatch, as with batch normalization in training, or
with a user's loss that ranks the rows. Much depends on it. If rows do not meet, a short minibatch is padded with rows
of weight zero, equal rows are merged, and predictions are computed in pieces of any size. If they do, each of these
would change results: a minibatch of another size gets a graph of its own, and some settings are refused.

Three modules find the answer:

- :mod:`.._model.batch_axis` follows the axis of the rows through the operators of a graph;
- :mod:`.._inference.row_trials` asks it, and runs the graph on random numbers where it is not certain;
- :func:`where_rows_meet` here asks that about the graph of the scores, and :func:`rows_meet_in_loss` about the loss.
  The losses of this package compute each row by itself; those of users are always tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._inference.row_trials import ADDED_ROWS, TRIED_ROWS, meet_in_numbers, numbers_of_type, where_rows_meet_in_graph
from .._ir.protobuf import to_proto
from .._ir.queries import all_values, structure
from .._model.batch_axis import ROW_LOSSES, trace_rows
from .._model.trainable import TrainableModel
from .._ort import devices, sessions
from .._utils.cache import Cache
from .._utils.typing import DType
from ..exceptions import ModelError
from ..losses import LOSSES
from .loss_graph import TARGET, WEIGHT, score_loss_graph, target_layout
from .step_parts import StepSettings, TotalLoss, settings_of_output

_known: Cache[list[bool]] = Cache(256, 2**20, lambda found: 256)
_recent: deque[tuple[StepSettings, object, list[tuple[str, StepSettings]]]] = deque(maxlen=4)


def where_rows_meet(model: TrainableModel, settings: StepSettings) -> str | None:
    """Return where the rows of a minibatch meet, in the graph or in the loss; None: nowhere.

    Raise ModelError if the loss would mix more than rows: positions within rows, or members of an ensemble.
    """
    losses = [one for _, one in _losses_that_meet(model, settings)]
    for one in _each_output(settings).values():
        require_separate_labels(one, model.dtype)
    for one in losses:
        name, more = type(one.loss).__name__, ""
        if one.positions is not None:
            more = "labels at positions: positions of different rows, and those without a label, would meet"
        elif model.members is not None:
            more = f"the {model.members} members of a network: the rows of different members would meet"
        if more:
            raise ModelError(f"Rows meet in the loss {name}, which is not for {more}. Take a loss of single rows.")
    found = where_rows_meet_in_graph(model, settings.session_options)
    return found or (f"The loss {type(losses[0].loss).__name__}" if losses else None)


def outputs_where_rows_meet(model: TrainableModel, settings: StepSettings) -> list[str]:
    """Return the names of the outputs, where several are trained, in whose loss rows meet."""
    return [name for name, _ in _losses_that_meet(model, settings) if name]


def _losses_that_meet(model: TrainableModel, settings: StepSettings) -> list[tuple[str, StepSettings]]:
    """Return the losses in which rows meet: the name of the output where several are trained, and its settings.

    A fit asks several times, with the same settings.
    """
    key = model.dtype, model.link == "votes"
    for known, of, found in list(_recent):
        if known is settings and of == key:
            return found
    result = [
        (name, one)
        for name, one in _each_output(settings).items()
        if rows_meet_in_loss(one, model.dtype, of_pairs=key[1])
    ]
    _recent.append((settings, key, result))
    return result


def _each_output(settings: StepSettings) -> dict[str, StepSettings]:
    """Return the settings of each of several outputs by name, of a single one by an empty name."""
    total = settings.loss
    several = total.outputs if isinstance(total, TotalLoss) else ()
    return {one.name: settings_of_output(settings, one) for one in several} or {"": settings}


def require_separate_labels(settings: StepSettings, dtype: DType) -> None:
    """Raise ModelError where labels that do not count would have a part in the losses of others."""
    if not settings.ignores or type(settings.loss) in LOSSES.values():
        return
    _graph_of_loss(settings, dtype, TRIED_ROWS, of_pairs=False)  # which refuses one loss for all labels
    name, advice = type(settings.loss).__name__, "Leave these rows out, or take a loss of single labels."
    if rows_meet_in_loss(settings, dtype):
        raise ModelError(
            f"Rows meet in the loss {name}, and some labels of rows do not count (ignore_label): they would meet the "
            f"others. {advice}"
        )
    if not settings.groups and _labels_meet(replace(settings, ignores=False), dtype):
        raise ModelError(
            f"In the loss {name} the labels of a row meet, and some of them do not count (ignore_label): the losses of "
            f"the others would depend on them. {advice}"
        )


def _labels_meet(settings: StepSettings, dtype: DType) -> bool:
    """Return True if the loss of a label depends on the scores or targets of other labels of its row."""
    model, ends = _graph_of_loss(settings, dtype, TRIED_ROWS, of_pairs=False)
    model.graph.outputs.extend(value for value in ends if value not in model.graph.outputs)
    session = sessions.create_session(to_proto(model).SerializeToString(), devices.resolve_device())
    shape, names = (TRIED_ROWS, settings.n_outputs), [value.name or "" for value in ends]
    for trial in range(4):
        rng = np.random.RandomState(trial)
        drawn = [(rng.normal(0, 2, shape).astype(dtype), rng.randint(0, 2, shape).astype(dtype)) for _ in range(2)]
        changed = rng.permutation(settings.n_outputs) % 2 == 0
        pairs = [drawn[0], tuple(np.where(changed, b, a) for a, b in zip(*drawn, strict=True))]
        feeds = [{"scores": scores, TARGET: y, WEIGHT: np.ones(TRIED_ROWS, dtype)} for scores, y in pairs]
        first, second = (np.asarray(sessions.run_session(session, names, one)[0])[:, ~changed] for one in feeds)
        if not np.allclose(first, second, rtol=1e-5, atol=1e-6, equal_nan=True):
            return True
    return False


def rows_meet_in_loss(settings: StepSettings, dtype: DType, *, of_pairs: bool = False) -> bool:
    """Return True if the loss of a row depends on other rows, or on their number."""
    if type(settings.loss) in LOSSES.values():
        return False
    trials = (TRIED_ROWS, TRIED_ROWS + ADDED_ROWS)
    try:
        graphs = {rows: _graph_of_loss(settings, dtype, rows, of_pairs=of_pairs) for rows in trials}
    except Exception as error:
        # The loss may work for the real number of rows only. If it does not, training raises a clear error later; but
        # fine-tuning would not.
        if of_pairs and isinstance(error, ModelError):
            raise
        return True

    def found() -> list[bool]:
        model, ends = graphs[TRIED_ROWS]
        verdict = trace_rows(model.graph, ("scores", TARGET), ends, TRIED_ROWS)
        if verdict.certain and verdict.node:
            return [True]
        return [_meet_in_trial(settings, dtype, graphs)]

    key = tuple(structure(model, ()) for model, _ in graphs.values()), settings.task, settings.n_outputs
    return _known.get(key, found)[0]


def _graph_of_loss(
    settings: StepSettings, dtype: DType, rows: int, *, of_pairs: bool
) -> tuple[ir.Model, list[ir.Value]]:
    """Return the graph of the losses of so many rows, and the values that hold them."""
    positions = settings.positions
    shape = (rows, settings.n_outputs) if positions is None else (rows, *positions.shape, settings.n_outputs)
    model = score_loss_graph(settings, shape, dtype, of_pairs=of_pairs)
    ends = [value for value in all_values(model) if ROW_LOSSES in value.meta]
    for value in ends:
        value.dtype = value.dtype or ir.DataType.from_numpy(np.dtype(dtype))
    return model, ends


def _meet_in_trial(settings: StepSettings, dtype: DType, graphs: Mapping[int, tuple[ir.Model, list[ir.Value]]]) -> bool:
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
        shape, kind = target_layout(settings.task, settings.n_outputs, rows, dtype, settings.positions)
        scores = graphs[rows][0].graph.inputs[0]
        given = numbers_of_type(rng, np.dtype(dtype), tuple(int(str(d)) for d in scores.shape or ()), 0)
        return {"scores": given, TARGET: _targets(rng, settings, shape, kind, trial)}

    try:
        return not names or meet_in_numbers(run, draw)
    except Exception:  # of a loss that cannot be run with such numbers: nothing is known then
        return True


def _targets(
    rng: np.random.RandomState,
    settings: StepSettings,
    shape: tuple[int, ...],
    kind: DType,
    trial: int,
) -> np.ndarray:
    """Return random targets: classes, indicators, or numbers, which are 0 and 1 in some trials."""
    if kind.kind in "iu":
        classes = 2 if settings.task == "binary" else max(settings.n_outputs, 2)
        return rng.randint(0, classes if settings.positions is not None or settings.task == "multiclass" else 2, shape)
    if settings.task != "regression" or trial % 4 == 2:
        return rng.randint(0, 2, shape).astype(kind)
    return numbers_of_type(rng, np.dtype(kind), shape, trial)
