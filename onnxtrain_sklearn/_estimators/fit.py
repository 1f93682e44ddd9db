"""Run a call of ``fit`` or ``partial_fit``: prepare, train, then publish the result or roll back.

:func:`prepared` does everything before the first step, in this order: ``config`` resolves the parameters, ``source``
finds or builds the graph, ``examples`` checks the data, ``heads`` chooses the head, ``starting_state`` makes the state
and compares it with a given model, and :func:`trainer_for` makes minibatches, step and epoch loop of ``_training``. If
several outputs are trained, :class:`Outputs` holds the functions that differ. :func:`train` runs the loop;
``transaction`` publishes the result or rolls back.

Rows *meet* if the result of one row depends on the other rows of its minibatch, as in batch normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._data.targets import SeveralTargets
from .._export.source import OutputSource
from .._fitted.fitted_model import FittedModel
from .._fitted.skl2onnx_bridge import register_waiting
from .._model.trainable import TrainableModel
from .._ort import sessions
from .._training.machine_code import COMPILED, LIKELY_EPOCHS
from .._training.row_dependence import meeting, outputs_that_meet
from .._training.settings import StepSettings
from .._training.step_choice import new_step, new_trainer
from .._training.step_interface import StepParts, TrainingStep
from .._training.trainer import Trainer
from .._utils.cache import content
from .._utils.errors import refusing
from .callbacks import ActiveTraining, CallbackWatcher, HookValues, hooks_of, train_watched
from .config import TrainingConfig
from .describe import announce
from .examples import Call, Examples, TrainingRows, batches_for, ignoring, training_examples
from .finetuning_setup import TUNED_PIECE, old_examples, tuner_of, tuning_trainer
from .fitted_state import FittedState, sparse_inputs
from .heads import HeadChoice, Plan, body_of, choose_head, gets_new_head, headed
from .random_generator import bytes_of, generator_of
from .scoring import (
    Measures,
    OwnScore,
    ScoredRows,
    loss_of_rows,
    scored_rows,
    validation,
    watches_loss,
)
from .source import built_for, known_source
from .starting_state import compare_training, require_own_start, starting_state
from .transaction import Transaction, raise_or_warn

EstimatorT = TypeVar("EstimatorT")


def train(fitted: EstimatorT, call: Call) -> EstimatorT:
    """Train an estimator; return it fitted.

    After an error the estimator is unchanged. ``transaction`` describes the exceptions: divergence, an interrupt, and a
    resumed state whose arrays were too large to copy.
    """
    register_waiting()  # the converters for skl2onnx, if it has been imported by now
    estimator: Any = fitted
    old: FittedState | None = vars(estimator).get("_state") if call.resume else None
    transaction = Transaction(estimator, old)
    state, trainer = None, None
    try:
        state, trainer = prepared(estimator, call)
        if old is None and estimator.verbose:
            announce(estimator, state)
        transaction.begin_training(trainer, one_pass=call.one_pass)
        train_watched(trainer.watcher, trainer.one_pass if call.one_pass else trainer.fit)
        transaction.publish(state)
    except KeyboardInterrupt as interrupt:
        if state is None or trainer is None:
            transaction.fail(interrupt, None)
            raise
        trainer.restore_usable()
        transaction.publish(state)
        raise_or_warn(interrupt, estimator)
    except BaseException as error:
        transaction.fail(error, state)
        raise
    return fitted


def initialize(fitted: EstimatorT, call: Call) -> EstimatorT:
    """Prepare an estimator as ``fit`` does, without a step, and return it; after an error it is unchanged."""
    register_waiting()
    estimator: Any = fitted
    transaction, state = Transaction(estimator, None), None
    try:
        state, _ = prepared(estimator, call)
        if estimator.verbose:
            announce(estimator, state)
        transaction.publish(state)
    except BaseException as error:
        transaction.fail(error, None)
        raise
    return fitted


class Outputs(NamedTuple):
    """The functions of a preparation that differ between one trained output and several.

    Attributes
    ----------
    source : function
        Returns the graph if it is known before the data, and the description of a fitted model.
    examples : function
        Returns the data as inputs of the graph, with targets and weights.
    head : function
        Returns the head that follows the scores, and the settings of the step.
    require_own_start : function
        Raises if the predictions of the state differ from those of the given model. Returns the scores of a given
        graph for some rows.
    validation : function
        Returns the rows to score, and the function that scores them.
    exported : function
        Returns the losses and heads of several outputs, for training graphs.
    """

    source: Callable[[Any, FittedState | None, Any], tuple[TrainableModel | None, FittedModel | None]]
    examples: Callable[[Any, Call, Any, FittedModel | None, FittedState | None], Examples]
    head: Callable[[Plan, TrainableModel, Examples], HeadChoice]
    require_own_start: Callable[[Plan, FittedState, HeadChoice, Examples], Sequence[np.ndarray]]
    validation: Callable[[Plan, FittedState, Examples], tuple[ScoredRows | None, Callable[[], float] | None]]
    exported: Callable[[Any, FittedState], tuple[OutputSource, ...]]


ONE_OUTPUT = Outputs(
    known_source, training_examples, choose_head, require_own_start, validation, exported=lambda estimator, state: ()
)


def prepared(estimator: Any, call: Call) -> tuple[FittedState, Trainer]:
    """Validate everything; return the state and the loop that will train it.

    No step is taken here. Objects shared with an earlier state stay unchanged until ``trainer_for`` makes the training
    step. The feature attributes of the estimator are set.
    """
    if call.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    config = TrainingConfig.of(estimator)
    outputs: Outputs = estimator._outputs()
    old: FittedState | None = getattr(estimator, "_state", None) if call.resume else None

    # The graph, if it is known before the data: a given graph, or the graph of an earlier call.
    body = body_of(estimator) if gets_new_head(estimator, old) else None
    source, fitted = outputs.source(estimator, old, call.X) if body is None else (body.source, None)

    # The data as inputs of the graph, with targets. A builder builds its graph for them.
    examples = outputs.examples(estimator, call, source, fitted, old)
    rng = generator_of(estimator, lambda: bytes_of(examples, call)) if old is None else old.rng
    tuner = None if call.one_pass else tuner_of(estimator, fitted)
    rows = TrainingRows(estimator, call, old, rng)
    names: tuple[str, ...] = ()
    if body is not None:
        source, names = headed(body, examples)
    if source is None:
        rows.choose_scale(examples)
        source, examples = built_for(estimator, call, examples, rows, rng)
    if isinstance(examples.targets, SeveralTargets):
        examples = replace(examples, targets=examples.targets.with_factors(rows.split(examples)[0]))
    plan = Plan(estimator, call, config, old, rng, rows, fitted, tuner, body, names)

    # The head, which follows the scores, and the state to train; its predictions must equal those of a given model.
    chosen = outputs.head(plan, source, examples)
    state, settings = starting_state(plan, chosen, examples)
    scores = outputs.require_own_start(plan, state, chosen, examples)
    state.live.predictors.clear()  # they hold the current weights

    # The loop, its minibatches and its step.
    scored, validate = outputs.validation(plan, state, examples)
    trainer = trainer_for(plan, state, settings, examples, scored, validate)
    compare_training(state, settings, examples, chosen.owns, scores, trainer)
    return state, trainer


# The epoch loop of a call: its minibatches, its step, the score of the validation rows, its callbacks.


def trainer_for(
    plan: Plan,
    state: FittedState,
    settings: StepSettings,
    examples: Examples,
    scored: ScoredRows | None,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the loop over the training rows; ``validate`` scores the validation rows ``scored``."""
    estimator, config, call, tuner = plan.estimator, plan.config, plan.call, plan.tuner
    rows, _ = plan.rows.split(examples)
    old = old_examples(estimator, state, call, tuner)
    settings = settings if old is None else ignoring(settings, old.targets)

    # Minibatches. Fine-tuning takes all rows, in pieces. Shuffle them first, because its cross-validation uses only the
    # first pieces.
    rows = plan.rng.permutation(rows) if tuner else rows
    limit = TUNED_PIECE if tuner else config.batch_size
    rows_meet = meeting(state.model, settings) is not None
    if rows_meet and isinstance(examples.targets, SeveralTargets):
        _require_labels(outputs_that_meet(state.model, settings), examples.targets, rows)
    if rows_meet and not settings.optimizer.takes_minibatches and tuner is None:
        limit = len(rows)  # the loss of the full batch is not a sum over pieces
    size = min(len(rows), limit)
    shuffle, drop_last = config.shuffle and tuner is None, config.drop_last and tuner is None
    batches = batches_for(state, examples, rows, size, shuffle=shuffle, drop_last=drop_last, rows_meet=rows_meet)

    # The step, and the loop around it.
    if tuner is not None:
        trainer = tuning_trainer(plan, state, settings, examples, rows, old, batches, validate)
    else:
        # The smallest and largest minibatch size that a reused step may have: calls of partial_fit may bring more or
        # fewer rows.
        room, most = (size, limit) if call.one_pass else (batches.size, batches.size)
        state.sparse = sparse_inputs(examples.columns, every=True)
        sparse = state.sparse if settings.lazy_rows else sparse_inputs(examples.columns)
        # The engine "auto" chooses by the steps that a new training plans; it is likely to stop before max_iter. A call
        # that continues keeps its engine.
        loop, planned = config.loop, 0
        if plan.old is None and not call.one_pass:
            planned = batches.steps * (loop.max_iter if loop.all_epochs else min(loop.max_iter, LIKELY_EPOCHS))
        step = prepare_step(state, settings, room, most, sparse, planned)
        trainer = new_trainer(loop, step, batches, state.history, validate)

    # Observers: early stopping may watch the validation loss, callbacks may watch anything.
    if scored is not None and isinstance(validate, OwnScore) and watches_loss(estimator, state, call):
        trainer.validation_loss = loss_of_rows(state, settings, scored, validate.predictor)
    if hooks_of(estimator):
        trained = scored_rows(state, examples, np.sort(rows), call)
        measures = Measures(estimator, state, settings, {"train": trained, "validation": scored})
        training = ActiveTraining(estimator, state, trainer, call, measures, scored)
        trainer.watcher = CallbackWatcher(training, HookValues(estimator, state, trainer, call, trained))
    return trainer


def _require_labels(meeting: Collection[str], targets: SeveralTargets, rows: np.ndarray) -> None:
    """Raise if rows meet in the loss of an output, and some of them have no label for this output."""
    ones = np.ones(len(targets.values))
    weights = {name: ones if w is None else w for name, w in zip(targets.names, targets.weights, strict=True)}
    counted = np.max([own[rows] for own in weights.values()], axis=0) > 0
    for name in meeting:
        missing = int(np.sum(counted & (weights[name][rows] == 0)))
        if missing:
            raise ValueError(
                f"Output {name!r}: its loss compares rows with each other, and {missing} of {int(counted.sum())} rows "
                f"have no label for it (weight zero), though they have one for another output. Label all rows, or set "
                f"a loss that treats rows separately."
            )


# The training step, on the host or on a device; it is reused while settings and shapes are equal.


@refusing("The graph cannot be trained")
def prepare_step(
    state: FittedState, settings: StepSettings, batch: int, limit: int, sparse: Collection[str] = (), steps: int = 0
) -> TrainingStep:
    """Return the step of a state; make a new one only if the existing one does not fit.

    The last step is reused if its settings are equal and its minibatch has ``batch`` to ``limit`` rows; a larger
    minibatch would be mostly padding. A new step keeps the minibatch size of the last call (``state.rows``) within
    these limits, because this size determines rounding and dropout masks; after unpickling there is only this number,
    and no step. Inputs named in ``sparse`` come sparse; steps on a device take dense rows. The engine "auto" chooses by
    ``steps``, the number of steps that a new training plans; a later call keeps the engine.

    The step and its settings are kept in ``state.live``, its engine and minibatch size in ``state``.
    """
    sparse = () if settings.device.memory is not None else tuple(sparse)
    objects = tuple(map(content, (settings.loss, settings.optimizer, settings.session_options)))
    numbers = (settings.alpha, settings.l1_ratio, settings.max_grad_norm, settings.accumulate, settings.ema_decay)
    key = (
        sessions.forks(),  # sessions do not survive a fork
        objects,
        numbers,
        (*settings.factors.items(), settings.scheduled),
        settings.lazy_rows,
        settings.checkpoint_activations,
        settings.engine,
        settings.device,
        settings.positions,
        settings.ignores,
        state.head.task,
        state.head.link,
        state.parameters.names,
        tuple(spec.shape for spec in state.model.inputs),
        sparse,
    )
    rows = batch if state.rows is None or not batch <= state.rows <= limit else state.rows
    if state.live.step is None or state.live.step_key != key or state.live.step.batch != rows:
        parts = StepParts(state.model, settings, state.parameters, state.frozen, state.optimizer, rows, sparse)
        state.live.step = new_step(parts, steps, compiled=state.engine == COMPILED)
        state.choice = state.live.step.choice
    state.live.step_key, state.engine, state.rows = key, state.live.step.engine, rows
    return state.live.step
