"""The graph that is trained, beside the one that predicts: of the scores of a given graph, both have the same loss.

Each is made of the given graph by itself: the trained one is cut to a minibatch, gets the loss, perhaps another opset,
and is differentiated. Before the first step of a given file the loss of some rows is computed by both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from .._data.batches import Batches
from .._data.several_targets import SeveralTargets
from .._given.as_given import FileCompared
from .._given.comparison import SOME_STEPS, OwnOutput, is_quantized
from .._given.ml_files import FittedFile
from .._graph.as_given import first_difference
from .._graph.batch_statistics import normalizes_by_batch
from .._graph.inference_form import inference_form
from .._graph.protobuf import from_bytes, to_proto
from .._graph.reweighted import form_of
from .._optimizers.lbfgs import LBFGS
from .._runtime import devices
from .._training.base_step import StepParts
from .._training.compiled_pass import COMPILED
from .._training.dropout import draws_numbers
from .._training.host_step import HostStep
from .._training.loop import Trainer
from .._training.loss_graph import WEIGHT, Scheduled, StepSettings, settings_of_output
from .._training.meeting_rows import meeting
from .._training.parameters import FlatParameters
from .._training.programs import PassProgram, PassSource, pass_program
from .._training.score_loss import ScoreLoss
from .._training.step import OptimizerState
from .._training.total_loss import TotalLoss
from ..exceptions import ModelError, UnsupportedOperatorError
from .examples import Examples, scaled_values
from .run import Run

NEAR = 1e-3
"""How far apart scores may be, in parts of the largest: the losses may differ by what this does to them."""

Scores = Sequence[np.ndarray]

_of_programs: WeakKeyDictionary[PassProgram, FileCompared] = WeakKeyDictionary()
"""What was compared of a program: fits of an equal structure share it."""


def _of_both(file: FileCompared, training: FileCompared) -> str:
    """Return what came of the comparisons of the file and of the graph that is trained, for users."""
    return f"{_told('file as given', file)}; {_told('training graph', training)}"


def _told(what: str, found: FileCompared) -> str:
    if found.reason:
        return f"{what} not compared: {found.reason}"
    return f"{what} compared{f' without {found.without}' if found.without else ''}"


def compare_training(
    run: Run,
    settings: StepSettings,
    examples: Examples,
    owns: Sequence[OwnOutput | None],
    scores: Scores,
    trainer: Trainer,
) -> None:
    """Compare the trained graph with the one that predicts, where a file was given; keep what was compared."""
    known = [own for own in owns if own is not None and own.file is not None]
    if isinstance(run.fitted, FittedFile) and run.fitted.compared is not None:
        run.compared = _of_both(run.fitted.compared, FileCompared("it is that of a fitted model"))
    elif known:
        own = min(known, key=lambda one: len(one.rows))
        file = max(one.file for one in known if one.file is not None)
        program = trainer.step.program if isinstance(trainer.step, HostStep) else None
        found = None if program is None else _of_programs.get(program)
        if found is None:
            found = _compared(run, settings, examples, own, scores, trainer)
        if program is not None:
            _of_programs[program] = found
        run.compared = _of_both(file, found)


def _compared(
    run: Run, settings: StepSettings, examples: Examples, own: OwnOutput, scores: Scores, trainer: Trainer
) -> FileCompared:
    """Raise ModelError if the trained graph has another loss than the scores of the graph that predicts.

    ``scores`` are those of the rows of ``own``, of each output.
    """
    left_out, step = _left_out(run), trainer.step
    if left_out or not isinstance(step, HostStep) or meeting(run.model, settings) is not None:
        try:
            parts = _parts_in_form(run, settings, len(own.rows))
            step = HostStep(parts)
        except (ModelError, UnsupportedOperatorError) as reason:
            return FileCompared(f"it has no form without {left_out or 'its device'}: {reason}")
    else:
        parts = StepParts(run.model, step.settings, run.parameters, run.frozen, run.state, step.batch)
    count = min(len(own.rows), step.batch)
    rows = own.rows[:count]
    found = _loss_of_step(step, trainer.batches, rows)
    by_scores = _loss_by_scores(run, settings, examples, rows)
    scores = [one[:count] for one in scores]
    expected = by_scores(scores)
    if not math.isfinite(expected):
        return FileCompared("its loss is not finite at the start")
    error = SOME_STEPS if is_quantized(own.graph.graph) else NEAR
    if abs(found - expected) <= _allowed(by_scores, scores, expected, error):
        return FileCompared(without=left_out)
    raise ModelError(
        f"Training would not start from the given graph: the graph that is trained has a loss of {found:.5g} for "
        f"{count} rows of X, and the scores of the graph that predicts have one of {expected:.5g}."
        f"{_node(own, step, parts)} Set engine= to another engine, or export the model with "
        f"another opset (18 is a good choice) or without that operator, and please report it."
    )


def _left_out(run: Run) -> str:
    """Return what makes the trained graph another function than the one that predicts."""
    model = form_of(run.model.model)
    found = ["random numbers"] if draws_numbers(model) else []
    found += ["statistics of minibatches"] * any(normalizes_by_batch(node) for node in model.graph)
    return " and ".join(found)


def _parts_in_form(run: Run, settings: StepSettings, batch: int) -> StepParts:
    """Return what makes a step of the trained graph in the form in which it predicts, with copies of the weights."""
    parameters, model = run.parameters, run.model
    statistics = {name: parameters.view(name).copy() for name in parameters.running_statistics}
    plain = replace(
        settings,
        optimizer=LBFGS(),  # it has no update graph
        alpha=0.0,
        max_grad_norm=None,
        engine=run.engine,
        device=devices.resolve_device(),
        scheduled=Scheduled(),
        accumulate=1,
        ema_decay=None,
    )
    trained = FlatParameters(
        {name: parameters.view(name) for name in parameters.names}, parameters.vector.dtype, {}, settings.factors
    )
    model = replace(model, model=inference_form(model.model))
    return StepParts(model, plain, trained, {**run.frozen, **statistics}, OptimizerState(), batch, run.sparse)


def _loss_of_step(step: HostStep, batches: Batches, rows: np.ndarray) -> float:
    buffers = step.buffers(len(rows))
    batches.gather(rows, buffers)
    buffers.sample_weight[: len(rows)], buffers.sample_weight[len(rows) :] = 1.0, 0.0
    buffers.has_ones = False
    return step.loss()


def _loss_by_scores(
    run: Run, settings: StepSettings, examples: Examples, rows: np.ndarray
) -> Callable[[Scores], float]:
    """Return the function from the scores of rows to their mean loss, without the graph."""
    dtype, targets, total = run.parameters.buffer.dtype, examples.targets.take(rows), settings.loss
    if not isinstance(total, TotalLoss):
        mean, y = ScoreLoss(settings, dtype, len(rows)), scaled_values(run, targets)
        return lambda scores: mean(scores[0], y, None)
    assert isinstance(targets, SeveralTargets)
    means = [ScoreLoss(settings_of_output(settings, one), dtype, len(rows)) for one in total.outputs]
    columns = targets.values[:, -len(means) :] if total.has_factors else np.ones((len(rows), len(means)))
    each = list(zip(total.outputs, means, targets.parts, columns.T, strict=True))

    def loss(scores: Scores) -> float:
        parts = [
            one.weight * w.mean() * mean(s, part.values, w)
            for s, (one, mean, part, w) in zip(scores, each, strict=True)
            if w.any()
        ]
        return float(np.sum(parts))

    return loss


def _allowed(by_scores: Callable[[Scores], float], scores: Scores, expected: float, error: float) -> float:
    """Return how far losses may be apart: what they change by where the scores do by ``error``, and rounding."""
    rng, changes = np.random.RandomState(0), [0.0]
    for _ in range(4):
        moved = [one + error * np.abs(one).max(initial=0.0) * rng.choice([-1.0, 1.0], one.shape) for one in scores]
        changes.append(abs(by_scores([m.astype(s.dtype) for m, s in zip(moved, scores, strict=True)]) - expected))
    return 3 * max(c for c in changes if math.isfinite(c)) + 1e-5 * abs(expected) + 1e-6


def _node(own: OwnOutput, step: HostStep, parts: StepParts) -> str:
    """Return which node is the first whose result is another one in the trained graph, for the rows in the buffers."""
    buffers = step.buffers(parts.batch)
    if buffers.sparse:
        return ""
    settings = parts.settings
    settings = replace(settings, engine="portable") if settings.engine == COMPILED else settings
    source = PassSource(parts.model, settings, parts.parameters, parts.frozen, len(buffers.sample_weight))
    made = to_proto(from_bytes(pass_program(source).graph))
    feeds = {**buffers.columns, WEIGHT: buffers.sample_weight, **parts.parameters.views()}
    return first_difference(to_proto(own.graph.clone()), made, feeds)
