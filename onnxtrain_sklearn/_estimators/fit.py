"""Run a call of ``fit`` or ``partial_fit``: prepare, train, publish or roll back.

:func:`prepared` is the way of ``X`` up to the first step: ``config`` resolves the parameters, ``source`` finds the
graph, ``examples`` checks the data, ``heads`` chooses the head, ``starting_state`` makes the state, ``start_checks``
compares it with a given model, and ``trainer_setup`` makes minibatches, step and epoch loop of ``_training``.
:func:`train` runs the loop; ``transaction`` publishes the result, or takes the call back.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .._fitted.skl2onnx_bridge import register_waiting
from .._training.trainer import Trainer
from .._utils.cache import with_attributes
from .callbacks import train_watched
from .config import TrainingConfig
from .describe import announce
from .examples import Call, TrainingRows, balanced_weights, training_examples
from .finetuning_setup import tuner_of
from .fitted_state import FittedState
from .heads import Plan, body_of, choose_head, gets_new_head, headed
from .interrupts import raise_or_warn
from .random_generator import generator_for
from .scoring import validation_rows, validation_score
from .source import built_for, known_source
from .start_checks import compare_training, own_scores, require_equal_start, require_fit
from .starting_state import starting_state
from .trainer_setup import trainer_for
from .transaction import Transaction

EstimatorT = TypeVar("EstimatorT")


def train(fitted: EstimatorT, call: Call) -> EstimatorT:
    """Train an estimator; return it fitted, or raise and leave it as it was, or as ``transaction`` says."""
    register_waiting()  # so that skl2onnx, imported by now, converts what is fitted here
    estimator: Any = fitted
    old: FittedState | None = vars(estimator).get("_state") if call.resume else None
    transaction = Transaction(estimator, old)
    state, trainer = None, None
    try:
        state, trainer = estimator._prepare(call)
        if old is None:
            announce(estimator, state)
        transaction.begin_training(trainer, one_pass=call.one_pass)
        train_watched(trainer.watcher, trainer.one_pass if call.one_pass else trainer.fit)
        transaction.publish(state)
    except KeyboardInterrupt as interrupt:
        if state is None or trainer is None:
            transaction.fail(interrupt, None)
            raise
        trainer.settle()
        transaction.publish(state)
        raise_or_warn(interrupt, estimator)
    except BaseException as error:
        transaction.fail(error, state)
        raise
    return fitted


def initialize(fitted: EstimatorT, call: Call) -> EstimatorT:
    """Prepare an estimator as a call of ``fit`` does, and take no step; return it fitted, or leave it as it was."""
    register_waiting()
    estimator: Any = fitted
    transaction, state = Transaction(estimator, None), None
    try:
        state, _ = estimator._prepare(call)
        announce(estimator, state)
        transaction.publish(state)
    except BaseException as error:
        transaction.fail(error, None)
        raise
    return fitted


def prepared(estimator: Any, call: Call) -> tuple[FittedState, Trainer]:
    """Validate everything; return the state and the loop that will train it.

    Nothing is trained here, and nothing before the training step, which comes last, changes an object that is shared
    with an earlier state. The feature attributes of the estimator are set.
    """
    if call.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    config = TrainingConfig.of(estimator)
    old: FittedState | None = getattr(estimator, "_state", None) if call.resume else None

    # The graph, if it is known before the data: a given one, or that of an earlier call.
    body = body_of(estimator) if gets_new_head(estimator, old) else None
    source, fitted = known_source(estimator, old, call.X) if body is None else (body.source, None)

    # The data, as inputs of the graph, and targets; a builder builds its graph for them.
    examples = training_examples(estimator, call, source, fitted, old)
    rng = generator_for(estimator, call, examples) if old is None else old.rng
    tuner = None if call.one_pass else tuner_of(estimator, fitted)
    rows = TrainingRows(estimator, call, old, rng)
    names: tuple[str, ...] = ()
    if body is not None:
        source, names = headed(body, examples)
    if source is None:
        rows.choose_scale(examples)
        source, examples = built_for(estimator, call, examples, rows, rng)
    plan = Plan(estimator, call, config, old, rng, rows, fitted, tuner, body, names)

    # What follows the scores, and the state to train, which must predict what a given model does.
    chosen = choose_head(estimator, config, old, source, fitted, examples, rng, is_new=body is not None)
    state, settings = starting_state(plan, chosen, examples)
    state.balanced = balanced_weights(estimator._task(), call.sample_weight, examples.targets)
    scores = own_scores(plan, state, chosen, examples)
    require_equal_start(plan, state, examples)
    require_fit(plan, state, examples)
    # only now, as fitted models are compared unclipped
    state.head = with_attributes(state.head, target_range=rows.target_range(examples))
    state.live.predictors.clear()  # they hold the current weights

    # The loop, its minibatches and its step.
    scored = validation_rows(estimator, state, examples, rows.split(examples)[1], call)
    validate = validation_score(estimator, state, scored, call)
    trainer = trainer_for(plan, state, settings, examples, scored, validate)
    compare_training(state, settings, examples, [chosen.own], scores, trainer)
    return state, trainer
