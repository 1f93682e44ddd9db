"""Run a call of ``fit`` or ``partial_fit``: prepare, train, then publish the result or roll back.

:func:`prepare` does everything before the first step, in this order: ``config`` resolves the parameters, ``graph_plan``
finds or builds the graph, ``examples`` checks the data, ``outputs`` chooses the decoding, ``starting_state`` makes the
state and compares it with a given model, and :func:`trainer_for` makes minibatches, step and epoch loop of
``_training``. If several outputs are trained, :class:`Preparation` holds the steps that differ. :func:`train` runs the
loop; :class:`Transaction` publishes the result or rolls back. A recipe publishes and rolls back by itself, with a
:class:`Snapshot`.

Rows *meet* if the result of one row depends on the other rows of its minibatch, as in batch normalization.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._data.held_out import RowsToSplit, require_group_reader
from .._data.targets import SeveralTargets, values_in_rows, with_label_shares, without_missing
from .._export.exported import ExportedOutput
from .._fitted.fitted_model import FittedModel
from .._fitted.skl2onnx_bridge import register_waiting
from .._ir.queries import require_files_unchanged
from .._model.trainable import TrainableModel
from .._ort import sessions
from .._pretrained.comparison import FixedBatchError
from .._training.programs import COMPILED
from .._training.rows_meet import outputs_where_rows_meet, where_rows_meet
from .._training.step import TrainingStep
from .._training.step_choice import LIKELY_EPOCHS, new_step, new_trainer
from .._training.step_parts import StepParts, StepSettings
from .._training.trainer import Trainer
from .._utils.cache import content
from .._utils.errors import refusing
from ..callbacks.base import State
from ..exceptions import DivergenceError, ModelError, warn
from ..losses.regression import reconstructs
from .call import Call, EncodedData, FitContext, Split, bytes_of, generator_of
from .callbacks import ActiveTraining, CallbackWatcher, HookValues, hooks_of, train_watched
from .config import TrainingConfig, default_alpha, factor_for_tails
from .describe import announce
from .examples import batches_for, graph_inputs, training_examples
from .finetuning import TUNED_PIECE, old_examples, tuner_of, tuning_trainer
from .fitted_state import FittedState, sparse_inputs
from .graph_plan import GraphPlan, graph_plan
from .outputs import DecodedGraph, choose_decoding, ignoring, takes_y, targets_declared_by
from .parameters import Parameters, set_callbacks_of
from .scoring import (
    DefaultScore,
    Measures,
    ScoredRows,
    loss_of_outputs,
    loss_of_rows,
    scored_rows,
    validation,
    watches_loss,
)
from .starting_state import compare_training, complete_state, starting_state
from .streams import (
    Stream,
    block_parts,
    named_block,
    named_place,
    opened,
    place_of,
    raise_for_block,
    sizes_of_blocks,
    with_arrays,
)

EstimatorT = TypeVar("EstimatorT", bound=Parameters)


def train(estimator: EstimatorT, call: Call) -> EstimatorT:
    """Train an estimator; return it fitted.

    After an error the estimator is unchanged, except after divergence, an interrupt, or an error in a call that resumes
    a state too large to copy: :class:`Transaction` lists the outcomes.
    """
    register_waiting()  # our converters for skl2onnx, if the user has imported it by now
    resumed = call.resumed_state(estimator)
    transaction = Transaction(estimator, resumed)
    state, trainer = None, None
    try:
        state, trainer = prepare(estimator, call)
        if resumed is None and estimator.verbose:
            announce(estimator, state)
        transaction.begin_training(trainer, one_epoch=call.one_epoch)
        train_watched(trainer.watcher, trainer.partial_fit if call.one_epoch else trainer.fit)
        transaction.publish(state)
    except KeyboardInterrupt as interrupt:
        if state is None or trainer is None:
            transaction.fail(interrupt, None)
            raise
        trainer.restore_usable()  # see _training/kept_weights.py
        transaction.publish(state)
        raise_or_warn(interrupt, estimator)
    except BaseException as error:
        transaction.fail(error, state)
        raise
    finally:
        call.resources.close()
    return estimator


def initialize(estimator: EstimatorT, call: Call) -> EstimatorT:
    """Prepare an estimator as ``fit`` does, without a step, and return it; after an error it is unchanged."""
    register_waiting()
    transaction = Transaction(estimator, None)
    try:
        state, _ = prepare(estimator, call)
        if estimator.verbose:
            announce(estimator, state)
        transaction.publish(state)
    except BaseException as error:
        transaction.fail(error, None)
        raise
    finally:
        call.resources.close()
    return estimator


class Preparation(NamedTuple):
    """The functions that differ between one trained output and several; :func:`prepare` calls all but ``exported``.

    Attributes
    ----------
    graph_plan : function
        Returns the plan for the graph, which says whether it is known before the data.
    examples : function
        Returns the data as inputs of the graph, with targets and weights.
    decoding : function
        Returns the decoding that follows the scores, and the settings of the step.
    complete_state : function
        Checks the state before the first step: raises if its predictions differ from those of the given model. Sets its
        balanced weights and the range of the targets. Returns the scores of a given graph for some rows, which
        :func:`compare_training` needs.
    validation : function
        Returns the rows to score, and the function that scores them.
    exported : function
        Returns the losses and decodings of several outputs, for ``export_training``; a fit does not call it.
    stream : function
        Returns the class of the facts on a table that is trained in blocks, with its task.
    """

    graph_plan: Callable[[Any, FittedState | None, Any], GraphPlan]
    examples: Callable[[Any, Call, TrainableModel | None, FittedModel | None, FittedState | None], EncodedData]
    decoding: Callable[[FitContext, TrainableModel, EncodedData], DecodedGraph]
    complete_state: Callable[[FitContext, FittedState, DecodedGraph, EncodedData], Sequence[np.ndarray]]
    validation: Callable[
        [FitContext, FittedState, StepSettings, EncodedData], tuple[ScoredRows | None, Callable[[], float] | None]
    ]
    exported: Callable[[Any, FittedState], tuple[ExportedOutput, ...]]
    stream: Callable[[Any], Callable[..., Stream]]


ONE_OUTPUT = Preparation(
    graph_plan,
    training_examples,
    choose_decoding,
    complete_state,
    validation,
    exported=lambda estimator, state: (),
    stream=lambda estimator: partial(Stream, output_spec=estimator._output_spec()),
)


def prepare(estimator: Any, call: Call) -> tuple[FittedState, Trainer]:
    """Validate everything; return the state and the loop that will train it.

    No step is taken here. Weights and optimizer state of an earlier call stay unchanged until :func:`trainer_for` makes
    the training step, which may reset the optimizer's state. Splits draw from its random generator, which
    :class:`Transaction` restores. Only the feature attributes of the estimator change.
    """
    call = opened(estimator, call)
    if call.y is None and call.source is None and takes_y(estimator.loss):
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    config = TrainingConfig.of(estimator)
    preparation: Preparation = estimator._preparation()  # ONE_OUTPUT, or that of `_multi_output/fit.py`
    resumed = call.resumed_state(estimator)
    if call.source is not None and reconstructs(estimator.loss):
        raise TypeError("loss='reconstruction' learns rows in memory: read the table first.")
    if resumed is not None:
        require_files_unchanged(resumed.graph.model)
    if call.source is None:
        return _prepare_rows(estimator, call, config, resumed, preparation)

    def known_graph(X: Any) -> TrainableModel | None:
        return preparation.graph_plan(estimator, resumed, X).known

    new_stream = preparation.stream(estimator)
    call = with_arrays(estimator, call, config, resumed, new_stream, known_graph)
    try:
        return _prepare_rows(estimator, call, config, resumed, preparation)
    except (ValueError, TypeError) as error:
        if call.stream is None:  # all rows are in memory, and checked together
            raise_for_block(error, _block_checks(estimator, call, resumed, preparation, new_stream))
        raise


def _block_checks(
    estimator: Any, call: Call, resumed: FittedState | None, preparation: Preparation, new_stream: Callable[..., Stream]
) -> Iterator[Callable[[], object]]:
    """Yield functions that check the blocks of a source one by one; all rows of it are in memory."""
    source = call.source
    plan = preparation.graph_plan(estimator, resumed, call.X)
    specs = None if plan.known is None else plan.known.inputs
    stream = new_stream(source, [], 0, 0, np.random.RandomState(0))
    known = call.classes if resumed is None else stream.known_classes(resumed)

    def check_targets(i: int) -> None:
        with named_block(source, i):
            _, y, sample_weight = block_parts(source, i)
            trains = bool(stream.counted(y, sample_weight).any())  # checks the weights, which ``add`` takes as checked
            stream.add(i, y, sample_weight, known, trains=trains)

    def check_inputs(i: int) -> None:
        with named_block(source, i):
            X = block_parts(source, i)[0]
            with named_place(place_of(source, i), X):
                graph_inputs(estimator, X, specs, plan.fitted, reset=False)

    filled = [i for i, size in enumerate(sizes_of_blocks(source)) if size]
    for check in (check_targets, check_inputs):
        yield from (partial(check, i) for i in filled)


def _prepare_rows(
    estimator: Any, call: Call, config: TrainingConfig, resumed: FittedState | None, preparation: Preparation
) -> tuple[FittedState, Trainer]:
    """Validate and prepare a call whose rows are in memory, or a sample of them."""
    plan = preparation.graph_plan(estimator, resumed, call.X)
    seed = estimator.random_state
    drawn = seed.get_state() if isinstance(seed, np.random.RandomState) else None
    try:
        return _prepare_plan(estimator, call, config, resumed, preparation, plan)
    except FixedBatchError as error:
        own = None if resumed is not None else plan.at_own_batch()
        if own is None:
            raise ModelError(str(error)) from error.__cause__
    if drawn is not None:
        seed.set_state(drawn)
    return _prepare_plan(estimator, call, config, resumed, preparation, own)


def _prepare_plan(
    estimator: Any,
    call: Call,
    config: TrainingConfig,
    resumed: FittedState | None,
    preparation: Preparation,
    plan: GraphPlan,
) -> tuple[FittedState, Trainer]:
    """Validate and prepare a call with this plan for its graph."""
    # The graph, if it is known before the data, and the data as its inputs, with targets.
    if plan.known is not None and plan.known.batch is not None and call.stream is not None:
        raise ValueError(
            f"The graph runs only on {plan.known.batch} rows at a time, which is for data in memory: give arrays, or "
            f"export it with a dynamic batch axis."
        )
    if plan.known is not None and plan.known.is_whole:
        if targets_declared_by(estimator.loss) is not None:
            raise ValueError("batch_size=None takes labels or numbers as y, not targets that a loss declares by name.")
        call = _whole_call(estimator, call)
    examples = preparation.examples(estimator, call, plan.known, plan.fitted, resumed)
    if reconstructs(estimator.loss):
        call = replace(call, y=values_in_rows(examples.targets))
    if resumed is not None:
        rng = resumed.rng  # a training that continues goes on drawing from its generator
    else:
        rng = generator_of(estimator, lambda: bytes_of(examples, call)) if call.stream is None else call.stream.rng
    # Fine-tuning takes all rows at once.
    tuner = None if call.one_epoch or call.stream is not None else tuner_of(estimator, plan.fitted)
    if tuner is not None and plan.known is not None and plan.known.batch is not None:
        raise ModelError(
            f"The graph runs only on {plan.known.batch} rows at a time, and fine-tuning takes any number: set "
            f"finetune=None, or export it with a dynamic batch axis."
        )
    if tuner is not None and examples.targets.declared is not None:
        raise ValueError("Fine-tuning takes labels or numbers, not targets that a loss declares: set finetune=None.")

    # The graph for these data: a builder builds it now, and a new head is sized to the targets.
    holds_out = config.loop.early_stopping and call.validation is None and not call.one_epoch
    choice = estimator.validation_split if call.validation_split is None else call.validation_split
    require_group_reader(call.groups, choice if holds_out else None)
    split = Split(choice if holds_out else None, rng, RowsToSplit(call.X, call.y, call.groups))
    graph, examples = plan.complete(config, call, examples, split, rng)
    if config.alpha is None:
        config = replace(config, alpha=_automatic_alpha(estimator, config, call, examples, split))
    if isinstance(examples.targets, SeveralTargets):
        # Outputs may weigh rows differently: scale the weights of each, so that its loss is a mean over training rows.
        means = None if call.stream is None else call.stream.mean_weights
        examples = replace(examples, targets=examples.targets.with_factors(split.of(examples)[0], means))
    context = FitContext(
        estimator,
        call,
        config,
        resumed,
        rng,
        split,
        tuner,
        fitted=plan.fitted,
        transforming_model=plan.transforming_model,
        head_names=plan.head_names,
        target_scale=plan.target_scale,
    )

    # The decoding (from scores to predictions), and the state to train, which must predict as a given model does.
    chosen = preparation.decoding(context, graph, examples)
    state, settings = starting_state(context, chosen, examples)
    scores = preparation.complete_state(context, state, chosen, examples)
    state.live.predictors.clear()  # their copies of the weights are outdated after the first step

    # The loop, its minibatches and its step. Finally, compare the training graph with the predicting graph.
    scored, validate = preparation.validation(context, state, settings, examples)
    trainer = trainer_for(context, state, settings, examples, scored, validate)
    compare_training(state, settings, examples, chosen.references, scores, trainer)
    return state, trainer


def _whole_call(estimator: Any, call: Call) -> Call:
    """Return a call for data that are one thing, in which rows without a target have the weight zero."""
    if call.source is not None or call.stream is not None:
        raise ValueError(
            "batch_size=None takes all of the data at once, and a source is read in blocks: give arrays, or set "
            "batch_size to a number."
        )
    several = isinstance(estimator.loss, Mapping)
    if several and not isinstance(call.y, Mapping):
        raise TypeError(f"batch_size=None takes y as a dict of arrays by output, got {type(call.y).__name__}.")
    y, sample_weight = without_missing(call.y, call.sample_weight)
    validation = call.validation
    if validation is not None:
        validation = (validation[0], *without_missing(*validation[1:]))
    return replace(call, y=y, sample_weight=sample_weight, validation=validation)


def _automatic_alpha(estimator: Any, config: TrainingConfig, call: Call, examples: EncodedData, split: Split) -> float:
    """Return the value of ``alpha="auto"``: 0 with several outputs, and in ``partial_fit``, where rows may follow."""
    if call.one_epoch or isinstance(examples.targets, SeveralTargets):
        return 0.0
    weights = np.ones(len(examples)) if examples.weights is None else examples.weights[examples.weights > 0]
    n_rows = len(weights) if call.stream is None else call.stream.n_rows
    # The penalty of a step is divided by the sum of its weights. Whole weights count rows, as scikit-learn demands:
    # doubling them doubles the rows, so they are not rescaled. Other weights have no scale of their own, so divide by
    # their mean. Weights that are all the same whole number could be either; they are taken as counts.
    scale = 1.0 if (weights == np.round(weights)).all() else float(weights.mean())
    alpha = scale * default_alpha(estimator, config, examples.targets.task, n_rows)
    if alpha and examples.targets.task == "regression" and call.stream is None:
        rows, _ = split.of(examples)  # training is not to know the targets that are held out
        own = np.ones(len(rows)) if examples.weights is None else examples.weights[rows]
        alpha *= factor_for_tails(examples.targets.values[rows], own)
    return alpha


# Make the epoch loop of a call: its minibatches, its step, the score of the validation rows, its callbacks.


def trainer_for(
    context: FitContext,
    state: FittedState,
    settings: StepSettings,
    examples: EncodedData,
    scored: ScoredRows | None,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the loop over the training rows; ``validate`` scores the validation rows ``scored``."""
    estimator, config, call, tuner = context.estimator, context.config, context.call, context.tuner
    rows, _ = context.split.of(examples)
    old_rows = old_examples(estimator, state, call, tuner)
    if old_rows is not None:
        if examples.targets.label_shares is not None or old_rows.targets.label_shares is not None:
            examples = replace(examples, targets=with_label_shares(examples.targets))
            old_rows = replace(old_rows, targets=with_label_shares(old_rows.targets))
        settings = ignoring(settings, old_rows.targets)

    # Minibatches. Fine-tuning takes all rows, in pieces. Shuffle them first, because the cross-validation of
    # fine-tuning reads only the first pieces.
    rows = context.rng.permutation(rows) if tuner else rows
    limit = TUNED_PIECE if tuner else config.batch_size
    rows_meet = where_rows_meet(state.trained_form, settings) is not None
    if rows_meet and isinstance(examples.targets, SeveralTargets):
        outputs = outputs_where_rows_meet(state.trained_form, settings)
        missing = _missing_labels(examples.targets, rows) if call.stream is None else call.stream.missing_labels
        _require_labels(outputs, missing, len(rows) if call.stream is None else call.stream.n_rows)
    if rows_meet and not settings.optimizer.takes_minibatches and tuner is None:
        limit = len(rows)  # the loss of the full batch is not a sum over pieces
    size = min(len(rows), limit)
    shuffle, drop_last = config.shuffle and tuner is None, config.drop_last and tuner is None
    batches: Any
    if call.stream is None:
        batches = batches_for(state, examples, rows, size, shuffle=shuffle, drop_last=drop_last, rows_meet=rows_meet)
    else:
        batches = call.stream.batches(
            estimator, state, settings.loss, ignores=settings.ignores, size=limit, shuffle=shuffle, drop_last=drop_last
        )
        call.resources.callback(batches.close)

    # The step, and the loop around it.
    if tuner is not None:
        trainer = tuning_trainer(context, state, settings, examples, rows, old_rows, batches, validate)
    else:
        # Calls of partial_fit may bring more or fewer rows: any step with ``smallest`` to ``largest`` rows serves.
        smallest, largest = (size, limit) if call.one_epoch else (batches.size, batches.size)
        loop = config.loop
        if state.graph.batch is not None:  # a minibatch takes several passes, whose gradients are accumulated
            smallest = largest = state.graph.batch
            loop = replace(loop, accumulate=loop.accumulate * batches.passes)
            settings = replace(settings, accumulate=loop.accumulate)
        state.sparse = sparse_inputs(examples.columns, every=True)
        sparse = state.sparse if settings.lazy_rows else sparse_inputs(examples.columns)
        # The engine "auto" counts the passes of at most LIKELY_EPOCHS epochs, because most fits stop before max_iter.
        # Each minibatch is a pass, also where ``accumulate`` makes one step of several. A call that continues keeps its
        # engine.
        passes = 0
        if context.resumed is None and not call.one_epoch:
            epochs = loop.max_iter if loop.all_epochs else min(loop.max_iter, LIKELY_EPOCHS)
            passes = batches.n_minibatches * epochs
        step = step_for(state, settings, smallest, largest, sparse, passes)
        if call.stream is not None:
            step = call.stream.training_step(step, state, settings, sparse)
        trainer = new_trainer(loop, step, batches, state.history, validate)

    # Observers: early stopping and the choice of fine-tuning may watch the validation loss, callbacks anything.
    if scored is not None and watches_loss(context, state, settings):
        shared = validate.predictor if isinstance(validate, DefaultScore) else None
        predictor = shared or state.live_predictor(scored.live, with_scores=True)
        measure = loss_of_outputs if state.decoding.parts else loss_of_rows
        trainer.validation_loss = measure(state, settings, scored, predictor)
    if hooks_of(estimator):
        training_rows = scored_rows(state, examples, np.sort(rows), call)
        measures = Measures(estimator, state, settings, {"train": training_rows, "validation": scored})
        training = ActiveTraining(estimator, state, trainer, call, measures, scored)
        trainer.watcher = CallbackWatcher(training, HookValues(estimator, state, trainer, call, training_rows))
    return trainer


def _missing_labels(targets: SeveralTargets, rows: np.ndarray) -> dict[str, int]:
    """Return how many of the rows have no label for each output."""
    each = zip(targets.names, targets.weights, strict=True)
    return {name: 0 if weights is None else int(np.sum(weights[rows] == 0)) for name, weights in each}


def _require_labels(outputs: Collection[str], missing: Mapping[str, int], count: int) -> None:
    """Raise if rows meet in the loss of an output, and some of the ``count`` rows have no label for this output."""
    for name in outputs:
        if missing[name]:
            raise ValueError(
                f"Output {name!r}: its loss compares rows with each other, and {missing[name]} of {count} rows have no "
                f"label for it (weight zero), though they have one for another output. Label all rows, or set a loss "
                f"that treats rows separately."
            )


# The training step, on the host or on a device; it is reused while settings and shapes are equal.


@refusing("The graph cannot be trained")
def step_for(
    state: FittedState, settings: StepSettings, smallest: int, largest: int, sparse: Collection[str], passes: int
) -> TrainingStep:
    """Return the step of a state; make a new one only if the existing one does not fit.

    The last step is reused if its settings are equal and its minibatch has ``smallest`` to ``largest`` rows; a
    larger step would run mostly padding. A new step keeps the minibatch size of the last call where it may, because
    rounding and dropout masks depend on it: so an unpickled state, which has the size but no step, trains on as before.
    Inputs named in ``sparse`` come sparse; steps on a device take dense rows. The engine "auto" chooses by the number
    of planned ``passes``; a later call keeps the engine.

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
        (settings.ignores, settings.n_shares),
        state.decoding.task,
        state.decoding.link,
        state.parameters.names,
        tuple(spec.shape for spec in state.trained_form.inputs),
        sparse,
    )
    last, live = state.minibatch_rows, state.live
    rows = last if last is not None and smallest <= last <= largest else smallest
    if live.step is None or live.step_key != key or live.step.batch_size != rows:
        parts = StepParts(
            state.trained_form, settings, state.parameters, state.frozen, state.optimizer_state, rows, sparse
        )
        live.step = new_step(parts, passes, compiled=state.engine == COMPILED)
        state.step_kind = live.step.kind
    live.step_key, state.engine, state.minibatch_rows = key, live.step.engine, rows
    return live.step


# Publish the result of a call, or roll back.


ALWAYS_COPIED = 2**18
"""Bytes of weights and optimizer state below which a copy takes almost no time."""

COPIED_FOR_STEPS, MANY_STEPS = 2**26, 20
"""Bytes up to which weights and optimizer state are copied if at least MANY_STEPS steps follow.

Such a copy takes about a third of a step.
"""


class Snapshot:
    """The attributes of an estimator and the states of its random generators, kept to restore them."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._attributes = dict(vars(estimator))
        splitter = estimator.validation_split
        generators = (
            estimator.random_state,
            getattr(splitter, "random_state", None),
            getattr(self._attributes.get("_state"), "rng", None),
        )
        self._random = [(rng, rng.get_state()) for rng in generators if isinstance(rng, np.random.RandomState)]

    def restore(self) -> None:
        """Restore attributes and generators, and remove attributes that were set since."""
        attributes = vars(self._estimator)
        attributes.update(self._attributes)  # first, because an interrupt may come before the rest
        for name in attributes.keys() - self._attributes.keys():
            del attributes[name]
        for rng, random_state in self._random:
            rng.set_state(random_state)


class Transaction:
    """Everything that a call may change, kept to roll back.

    A call has one of four outcomes.

    * It succeeds. The fitted attributes are published, all at once.
    * It fails. Attributes, random states, weights and optimizer state are as before, but see the last paragraph.
    * Training diverges. The weights that :class:`.KeptWeights` keeps are published, and the error is raised.
    * It is interrupted. The weights reached so far are published, or better ones (:meth:`.Trainer.restore_usable`). A
      direct call warns; the interrupt is raised if it is meant for a caller of ``fit``, such as a search.

    A call that resumes an earlier one shares weights, optimizer state, history and random state with it. They are
    copied before the first step, and restored after an error. Weights and optimizer state are always copied where code
    of the user runs (callbacks, a score); otherwise only if they are small for the number of steps. Without a copy, an
    error after the first step restores only the weights, to those before the epoch.

    Parameters
    ----------
    estimator : estimator
    resumed : FittedState or None
        The state that the call continues.
    """

    def __init__(self, estimator: Any, resumed: FittedState | None) -> None:
        self._estimator = estimator
        self._before = Snapshot(estimator)
        self._resumed = None if resumed is None else ResumedState(resumed)

    def begin_training(self, trainer: Trainer, *, one_epoch: bool) -> None:
        """Copy weights and optimizer state of a resumed training if this costs little compared with the steps."""
        if self._resumed is None:
            return
        estimator, size = self._estimator, self._resumed.size
        of_the_user = estimator.callbacks or set_callbacks_of(estimator) or callable(estimator.scoring)
        steps = trainer.most_steps(1 if one_epoch else None)
        many = steps is None or steps >= MANY_STEPS
        if of_the_user or size < (COPIED_FOR_STEPS if many else ALWAYS_COPIED):
            self._resumed.copy_arrays()

    def publish(self, state: FittedState) -> None:
        """Set the fitted attributes atomically, because an interrupt may come between any two lines."""
        vars(self._estimator).update(state.fitted_attributes())

    def fail(self, error: BaseException, state: FittedState | None) -> None:
        """Roll back; publish ``state`` if training diverged, or if the arrays that it changed were not copied."""
        overwritten = self._resumed is not None and not self._resumed.can_restore
        if state is not None and (isinstance(error, DivergenceError) or overwritten):
            self.publish(state)
            return
        if self._resumed is not None:  # making the step may reset the optimizer's state before training begins
            self._resumed.restore()
        self._before.restore()


class ResumedState:
    """The parts of a continued state that training changes, kept to restore them.

    The :class:`FittedState` around them is a new one. Curves and rows of the history are immutable. Weights and
    optimizer state are references until :meth:`copy_arrays`, because nothing before the first step writes into these
    arrays.
    """

    def __init__(self, state: FittedState) -> None:
        optimizer, history = state.optimizer_state, state.history
        self._state = state
        self._buffer = state.parameters.buffer
        self._random = state.rng.get_state(legacy=False)
        self._optimizer = {**vars(optimizer), "slots": dict(optimizer.slots)}
        self._is_copied = False
        self._history = {
            **vars(history),
            "progress": replace(history.progress),
            "memories": {name: _copied_memory(memory) for name, memory in history.memories.items()},
            "last_finite": None,
        }

    def copy_arrays(self) -> None:
        """Copy weights and optimizer state, which the steps overwrite."""
        self._buffer = self._buffer.copy()
        self._optimizer["slots"] = {name: slot.copy() for name, slot in self._optimizer["slots"].items()}
        self._is_copied = True

    @property
    def size(self) -> int:
        """Bytes of weights and optimizer state."""
        slots = self._state.optimizer_state.slots
        return self._state.parameters.buffer.nbytes + sum(slot.nbytes for slot in slots.values())

    @property
    def can_restore(self) -> bool:
        """True if the kept arrays hold the values from before the call: they are copies, or no step changed them."""
        optimizer, history = self._state.optimizer_state, self._state.history
        same = optimizer.t == self._optimizer["t"] and history.progress.epoch == self._history["progress"].epoch
        return self._is_copied or same

    def restore(self) -> None:
        """Restore the state, and discard the step, which may be bound to other arrays or hold copies on a device."""
        state = self._state
        state.live.step = state.live.step_key = None
        state.parameters.buffer[...] = self._buffer
        vars(state.optimizer_state).update(self._optimizer)
        state.history.change(**self._history)
        state.rng.set_state(self._random)
        state.live.predictors.clear()  # callbacks and other threads may have predicted during the call


def _copied_memory(memory: State) -> State:
    """Return a copy of a callback's memory; values that cannot be copied, such as open files, are kept as they are."""
    copied = {}
    for name, value in memory.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # a class of the user may raise any error when it is copied
            copied[name] = value
    return copied


# Decide whether an interrupt (Ctrl-C) ends this ``fit`` or propagates to its caller.
#
# A direct call ends early and keeps the weights reached so far, as in scikit-learn's MLP. Inside a search, a
# cross-validation or an ensemble that would be wrong: the next fit would begin, and the score of the truncated one
# would count.

INTERRUPTED = "Training was interrupted: the estimator keeps the weights reached so far."

CALLERS = ("sklearn", "joblib")
"""Packages whose functions fit given estimators."""


def belongs_to_caller(estimator: object) -> bool:
    """Return True if an interrupt of the running ``fit`` of ``estimator`` is meant for its caller.

    True in a worker process or thread. Also true if the call stack contains a function of scikit-learn or joblib, or a
    method of another object that has a ``fit`` (a search, a pipeline, an ensemble of any package).
    """
    if threading.current_thread() is not threading.main_thread() or multiprocessing.parent_process() is not None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        caller = frame.f_locals.get("self")
        # the estimator's own ``fit`` is on the stack as well
        of_another = caller is not None and caller is not estimator and hasattr(type(caller), "fit")
        if package in CALLERS or of_another:
            return True
        frame = frame.f_back
    return False


def raise_or_warn(interrupt: KeyboardInterrupt, estimator: object) -> None:
    """Raise an interrupt that is meant for the caller of ``fit``; otherwise warn that training was cut short."""
    if belongs_to_caller(estimator):
        raise interrupt
    warn(INTERRUPTED, UserWarning)
