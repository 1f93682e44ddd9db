"""Make the state that a call trains (new, or an earlier one with the current parameters), and check its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from .._data.batches import ArrayBatches
from .._data.columns import warn_of_rounding
from .._data.target_scale import require_in_range, target_range, warn_of_equal_targets
from .._data.targets import (
    SeveralTargets,
    filled_numbers,
    require_numbers_of_columns,
)
from .._fitted.fitted_model import FittedModel, sample_rows
from .._inference.graph import Decoding
from .._ir.protobuf import from_bytes, to_proto
from .._model.graph_comparison import first_difference
from .._model.modes import inference_form, normalizes_by_batch
from .._model.trainable import TrainableModel
from .._model.weights import template_of
from .._ort import devices
from .._pretrained.comparison import (
    SOME_STEPS,
    ReferenceOutput,
    is_quantized,
    require_same_model,
    require_same_outputs,
)
from .._pretrained.ml_files import FileComparison, FittedFile
from .._training.loss_graph import WEIGHT
from .._training.parameters import FlatParameters, selected, warn_of_doubtful
from .._training.programs import COMPILED, PassParts, PassProgram, pass_program
from .._training.randomness import draws_numbers
from .._training.rows_meet import where_rows_meet
from .._training.step import HostStep, in_trainable_type
from .._training.step_parts import OptimizerState, Scheduled, StepParts, StepSettings, TotalLoss, settings_of_output
from .._training.trainer import Trainer
from .._training.validation_loss import ScoreLoss
from .._utils.cache import with_attributes
from ..exceptions import ModelError, UnsupportedOperatorError, warn
from ..losses import Loss
from ..models.given import bare_model
from ..optimizers import LBFGS
from .adaptation import adapted
from .call import EncodedData, FitContext
from .examples import graph_inputs, predictions_on, require_no_nan, require_rows_of_output, scaled_values
from .finetuning import tuned_names
from .fitted_state import Columns, FittedState, LiveSessions, Start, in_trained_form, sparse_inputs
from .outputs import DecodedGraph, OutputSpec, balanced_class_weights


def starting_state(
    context: FitContext, chosen: DecodedGraph, examples: EncodedData
) -> tuple[FittedState, StepSettings]:
    """Return the state, new or the resumed one with the current parameters, and the settings of its step."""
    estimator, config, resumed, tuner = context.estimator, context.config, context.resumed, context.tuner
    graph, columns = chosen.graph, examples.columns
    if resumed is None and estimator.adapters is not None:
        graph = adapted(estimator, graph, context.rng)

    # The settings, and the choice of the trained parameters.
    settings = config.with_graph(chosen.settings, graph)
    trainable = config.trainable
    if tuner is not None:
        settings = replace(settings, optimizer=LBFGS())  # it only needs gradients, so the step has no update graph
        trainable = tuned_names(estimator, tuner, graph, context.transforming_model, context.head_names)
    loss, scale = settings.loss, context.target_scale
    if isinstance(loss, Loss) and scale is not None and loss.target_scaling != scale.method:
        raise ModelError(
            f"The targets were scaled for another loss when training began, and {type(loss).__name__} cannot take them "
            f"so. Call fit with warm_start=False, or begin with target_scaling=None."
        )
    decoding = replace(chosen.decoding, target_scale=scale, **estimator._decoding_settings())
    shapes = {spec.name: columns[spec.name].shape[1:] for spec in graph.inputs}
    if resumed is not None:
        return _resumed_state(resumed, *selected(graph, trainable), shapes, columns, decoding, settings), settings

    # A new state. It does not hold the given graph (``reference``), which only the comparisons below need.
    graph, names = selected(graph if graph.reference is None else replace(graph, reference=None), trainable)
    weights = graph.weights()
    sparse = sparse_inputs(columns, every=settings.lazy_rows)
    form = in_trained_form(graph, shapes, names, columns=columns)
    form = in_trainable_type(form, settings, names, sparse)
    parameters, frozen = _divided(form, names, weights, settings)
    state = FittedState(
        graph=graph,
        activation=chosen.original.activation,
        shapes=shapes,
        frozen=frozen,
        parameters=parameters,
        decoding=decoding,
        rng=context.rng,
        device=settings.device,
        session_options=settings.session_options,
        engine=settings.engine,
        seed=settings.seed,
        alpha=settings.alpha,
        fitted=context.fitted,
        began=Start.by(estimator),
        live=LiveSessions(trained_form=form),
    )
    warn_of_doubtful(graph, state.parameters.names, config.trainable)
    return state, settings


def _resumed_state(
    resumed: FittedState,
    graph: TrainableModel,
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    columns: Columns,
    decoding: Decoding,
    settings: StepSettings,
) -> FittedState:
    """Return a state that continues from the weights of ``resumed`` with the current settings; it trains ``names``."""
    trains_others = set(names) != set(resumed.parameters.names)
    same = not trains_others and shapes == resumed.shapes and graph == resumed.graph and not graph.is_whole
    dtype = resumed.parameters.buffer.dtype
    form = resumed.live.trained_form if same else in_trained_form(graph, shapes, names, dtype, columns)
    state = replace(
        resumed,
        graph=graph,
        shapes=shapes,
        decoding=decoding,
        device=settings.device,
        session_options=settings.session_options,
        engine=resumed.engine if settings.engine == "auto" else settings.engine,
        alpha=settings.alpha,
        snapshots=(),
        live=replace(resumed.live, trained_form=form, predictors={}),
    )
    if graph.is_whole:
        state.live.step = None  # its graph holds the data of the earlier call
    averages = settings.ema_decay is not None
    if trains_others:
        weights = {**graph.weights(), **resumed.trained_weights()}
        state.parameters, state.frozen = _divided(state.trained_form, names, weights, settings)
        state.optimizer_state = OptimizerState(draws=state.optimizer_state.draws)
        state.live.step = state.history.last_finite = None
    elif averages != resumed.parameters.averages:
        state.parameters = resumed.parameters.with_averages(averages)
        state.optimizer_state = replace(resumed.optimizer_state, averaged=0)
        state.live.step = None
    return state


def _divided(
    graph: TrainableModel, names: Sequence[str], weights: Mapping[str, np.ndarray], settings: StepSettings
) -> tuple[FlatParameters, dict[str, np.ndarray]]:
    """Divide the weights of a graph: return the trained parameters with running statistics, and the frozen weights."""
    selected_weights = {name: weights[name] for name in names}
    statistics = {name: weights[name] for name in graph.running_statistics}
    averages = settings.ema_decay is not None
    parameters = FlatParameters(selected_weights, graph.dtype, statistics, settings.factors, averages=averages)
    frozen = {n: array for n, array in weights.items() if n not in selected_weights and n not in statistics}
    return parameters, {name: array.astype(graph.dtype) for name, array in frozen.items()}


# Compare the untrained estimator with the given model: a fitted model by its predictions for some rows, an ONNX file by
# its output.


def complete_state(
    context: FitContext, state: FittedState, chosen: DecodedGraph, examples: EncodedData
) -> Sequence[np.ndarray]:
    """Complete a state before the first step, and check it: raise if its predictions differ from the given model's.

    Set the balanced class weights, the range of the targets and what was compared of a fitted model. Raise or warn for
    data that the model cannot take. Return the scores of a given graph for some rows, for :func:`compare_training`;
    empty for other models.
    """
    output_spec: OutputSpec = context.estimator._output_spec()
    state.balanced = balanced_class_weights(output_spec, context.call.sample_weight, examples.targets)
    if state.balanced is not None and context.call.stream is not None:
        by_label = context.call.stream.class_weight("balanced")
        state.balanced = tuple(by_label.get(label, 1.0) for label in np.asarray(state.decoding.classes).tolist())
    columns, scores = examples.columns, []
    (reference,) = chosen.references  # one output: `complete_state_of_outputs` is for several
    if context.resumed is not None:
        require_rows_of_output(state, columns, len(examples))
    model: Any = bare_model(context.estimator.model)
    fitted = None if context.resumed is not None else state.fitted
    if reference is not None:
        predictor = state.plain_predictor()
        scores = [require_same_outputs(reference, chosen.graph, state.decoding, predictor, columns, state.device)]
    if isinstance(fitted, FittedFile):
        own_columns = columns
        if fitted.table is not None:  # training reads encoded columns, but the file reads X itself
            own_columns = graph_inputs(context.estimator, context.call.X, state.graph.inputs_of_X, fitted, reset=False)
        state.fitted = require_same_model(fitted, model, own_columns, state.predictions)
    elif fitted is not None:
        _require_equal_predictions(context, state, model, fitted)

    # Raise or warn for values that the model cannot take, or that its type rounds.
    require_no_nan(context.estimator, state, columns)
    if examples.targets.task != "regression":
        return scores
    targets = filled_numbers(examples.targets)
    dtype = state.trained_form.dtype
    stream = context.call.stream
    scale = context.target_scale
    if examples.targets.declared is not None:
        if state.decoding.clips:
            raise ValueError("clip_predictions=True needs numbers as y: the loss takes targets of its own.")
        return scores
    warn_of_rounding(context.call.y, dtype, "y")
    if scale is not None:
        require_in_range(scale, targets if stream is None else stream.range, dtype)
        warn_of_equal_targets(scale, targets, dtype)

    # The range of all targets trained on so far. It is set after the comparison, which needs unclipped predictions.
    earlier = None if context.resumed is None else context.resumed.decoding.target_range
    trained = examples.targets.take(context.split.of(examples)[0])
    require_numbers_of_columns(trained, " in the rows to train on")
    values = trained.values if stream is None else stream.range
    shifts = getattr(context.config.builder, "fit_intercept", True)
    found = target_range(earlier, values, holds_constants=shifts and scale is not None)
    state.decoding = with_attributes(state.decoding, target_range=found)
    return scores


def _require_equal_predictions(context: FitContext, state: FittedState, model: Any, fitted: FittedModel) -> None:
    """Raise if the graph of a fitted model predicts other values than the model; keep rows for later comparisons."""
    from .._fitted.corrections import where_float32_is_coarse  # needs much of scikit-learn
    from .._fitted.equivalence import require_equal, tied_rows  # need much of scikit-learn

    X = context.call.X
    splits_words = fitted.table is not None and fitted.table.splits_words
    rows = X if splits_words else sample_rows(X)  # any row may hold a word that is split in another way, so compare all
    share, step = tied_rows(model, rows)
    ties = (
        f"For {share:.0%} of the rows, several training points are as far away as the last of the n_neighbors of {step}"
    )
    if share:
        advice = (
            f"{ties}, and which of them count depends on their order; models of neighbors within a radius count all "
            f"of them."
        )
    else:
        advice = where_float32_is_coarse(model)
    require_equal(
        model,
        rows,
        predictions_on(context.estimator, state, rows),
        # require_equal completes the sentence: "... and {the model} differ: ..."
        what="It is refused, because training would begin from another model: its ONNX form",
        tolerance=1e-4,
        reads_float64=any(spec.dtype == "float64" for spec in state.deployed.inputs),
        advice=f"{advice} Otherwise give another model, or none: a network is trained then.",
    )
    if share:
        warn(f"{ties}: which of them count depends on their order, so predictions of such rows may differ.")
    state.live.sample = sample_rows(X)


# Check that the training graph and the predicting graph of a given file give the same loss.
#
# The two graphs are made separately from the given graph, and many changes separate them: the training graph has a
# fixed minibatch size, a loss, gradients, and perhaps another opset. So before the first step, compute the loss of some
# rows by both graphs.


NEAR = 1e-3
"""Tolerance of the scores, relative to the largest score; the tolerance of the loss follows from it."""

Scores = Sequence[np.ndarray]

_compared_programs: WeakKeyDictionary[PassProgram, FileComparison] = WeakKeyDictionary()
"""Cached results of the comparison, by program: fits of graphs with equal structure share a program."""


def compare_training(
    state: FittedState,
    settings: StepSettings,
    examples: EncodedData,
    references: Sequence[ReferenceOutput | None],
    scores: Scores,
    trainer: Trainer,
) -> None:
    """If an ONNX file was given, compare the training graph with the predicting graph; keep the result as text."""

    def told(what: str, found: FileComparison) -> str:
        if found.reason:
            return f"{what} not compared: {found.reason}"
        return f"{what} compared{f' without {found.without}' if found.without else ''}"

    known = [one for one in references if one is not None and one.file is not None]
    if isinstance(state.fitted, FittedFile) and state.fitted.compared is not None:
        file = state.fitted.compared
        training = FileComparison("it is that of a fitted model")
    elif known:
        reference = min(known, key=lambda one: len(one.rows))
        # The least complete comparison: its fields are compared in order, and a reason why none was made, or a part
        # that was left out, is greater than an empty text.
        file = max(one.file for one in known if one.file is not None)
        program = cast("HostStep", trainer.step).program if trainer.step.in_host_memory else None
        found = None if program is None else _compared_programs.get(program)
        training = _compared(state, settings, examples, reference, scores, trainer) if found is None else found
        if program is not None:
            _compared_programs[program] = training
    else:
        return
    state.compared = f"{told('file as given', file)}; {told('training graph', training)}"


def _compared(
    state: FittedState,
    settings: StepSettings,
    examples: EncodedData,
    reference: ReferenceOutput,
    scores: Scores,
    trainer: Trainer,
) -> FileComparison:
    """Raise ModelError if the loss of the training graph differs from the loss of the predicting graph's scores.

    ``scores`` holds the scores of each output for the rows of ``reference``.
    """
    batches = trainer.batches
    if not isinstance(batches, ArrayBatches):
        return FileComparison("its rows come as a stream")

    # Use the step of the training, unless dropout or minibatch statistics make it differ from predictions: then make a
    # step of the graph in inference form.
    template = template_of(state.trained_form.model)
    draws = ["random numbers"] if draws_numbers(template) else []
    normalizes = ["statistics of minibatches"] if any(normalizes_by_batch(node) for node in template.graph) else []
    left_out = " and ".join(draws + normalizes)
    if left_out or not trainer.step.in_host_memory or where_rows_meet(state.trained_form, settings) is not None:
        try:
            parts = _parts_in_form(state, settings, len(reference.rows))
            step = HostStep(parts)
        except (ModelError, UnsupportedOperatorError) as reason:
            problem = f"it has no form without {left_out}" if left_out else "it cannot be run on the host"
            return FileComparison(f"{problem}: {reason}")
    else:
        step = cast("HostStep", trainer.step)
        parts = StepParts(
            state.trained_form, step.settings, state.parameters, state.frozen, state.optimizer_state, step.batch_size
        )

    # Compute the loss of some rows by the step.
    count = min(len(reference.rows), step.batch_size)
    rows = reference.rows[:count]
    buffers = step.select(count)
    batches.gather(rows, buffers)
    buffers.sample_weight[:count], buffers.sample_weight[count:] = 1.0, 0.0
    buffers.has_ones = False
    found = step.loss()

    # Compute the loss from the scores. The tolerance is three times the change of the loss when the scores change by
    # ``error``, plus rounding.
    by_scores = _loss_by_scores(state, settings, examples, rows)
    scores = [one[:count] for one in scores]
    expected = by_scores(scores)
    if not math.isfinite(expected):
        return FileComparison("its loss is not finite at the start")
    error = SOME_STEPS if is_quantized(reference.model.graph) else NEAR
    rng, changes = np.random.RandomState(0), [0.0]
    for _ in range(4):
        changed = [one + error * np.abs(one).max(initial=0.0) * rng.choice([-1.0, 1.0], one.shape) for one in scores]
        changes.append(abs(by_scores([m.astype(s.dtype) for m, s in zip(changed, scores, strict=True)]) - expected))
    tolerance = 3 * max(c for c in changes if math.isfinite(c)) + 1e-5 * abs(expected) + 1e-6
    if abs(found - expected) <= tolerance:
        return FileComparison(without=left_out)
    raise ModelError(
        f"Training would not start from the given graph: the graph that is trained has a loss of {found:.5g} for "
        f"{count} rows of X, and the scores of the graph that predicts have one of {expected:.5g}."
        f"{_place_of_difference(reference, step, parts)} Set engine= to another engine, or export the model with "
        f"another opset (18 is a good choice) or without that operator, and please report it."
    )


def _parts_in_form(state: FittedState, settings: StepSettings, batch_size: int) -> StepParts:
    """Return the parts of a step of the training graph in inference form, with copies of the weights."""
    parameters, graph = state.parameters, state.trained_form
    statistics = {name: parameters.view(name).copy() for name in parameters.running_statistics}
    loss_only = replace(
        settings,
        optimizer=LBFGS(),  # it has no update graph
        alpha=0.0,
        max_grad_norm=None,
        engine=state.engine,
        device=devices.resolve_device(),
        scheduled=Scheduled(),
        accumulate=1,
        ema_decay=None,
    )
    copies = FlatParameters(
        {name: parameters.view(name) for name in parameters.names}, parameters.vector.dtype, {}, settings.factors
    )
    graph = replace(graph, model=inference_form(graph.model))
    return StepParts(
        graph, loss_only, copies, {**state.frozen, **statistics}, OptimizerState(), batch_size, state.sparse
    )


def _loss_by_scores(
    state: FittedState, settings: StepSettings, examples: EncodedData, rows: np.ndarray
) -> Callable[[Scores], float]:
    """Return a function that computes the mean loss of rows from their scores, without the graph."""
    dtype = state.parameters.buffer.dtype
    targets = examples.targets.take(rows)
    total = settings.loss
    if not isinstance(total, TotalLoss):
        mean = ScoreLoss(settings, dtype, len(rows))
        y = scaled_values(state, targets)
        return lambda scores: mean(scores[0], y, None)
    assert isinstance(targets, SeveralTargets)
    means = [ScoreLoss(settings_of_output(settings, one), dtype, len(rows)) for one in total.outputs]
    columns = targets.values[:, -len(means) :] if total.has_factors else np.ones((len(rows), len(means)))
    each = list(zip(total.outputs, means, targets.parts, columns.T, strict=True))

    def loss(scores: Scores) -> float:
        parts = [
            one.weight * w.mean() * mean(s, part.with_shares(part.values), w)
            for s, (one, mean, part, w) in zip(scores, each, strict=True)
            if w.any()
        ]
        return float(np.sum(parts))

    return loss


def _place_of_difference(reference: ReferenceOutput, step: HostStep, parts: StepParts) -> str:
    """Return a sentence on the first node whose result differs between the given graph and the training graph."""
    buffers = step.select(parts.batch_size)
    if buffers.sparse:
        return ""
    settings = parts.settings
    settings = replace(settings, engine="portable") if settings.engine == COMPILED else settings
    pass_parts = PassParts(parts.graph, settings, parts.parameters, parts.frozen, len(buffers.sample_weight))
    made = to_proto(from_bytes(pass_program(pass_parts).graph))
    feeds = {**buffers.columns, WEIGHT: buffers.sample_weight, **parts.parameters.views()}
    return first_difference(to_proto(reference.model.clone()), made, feeds)
