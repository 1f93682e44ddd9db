"""Run a call of ``fit`` or ``partial_fit``: prepare, train, publish or roll back.

:func:`prepared` validates the call and builds its run: ``source`` finds the graph, ``examples`` checks the data,
``heads`` chooses the head, ``state_setup`` makes the run and compares its start with a given model. :func:`trainer_for`
then sets up minibatches, step and epoch loop of ``_training``, and ``Attempt._train`` runs the loop. On success the
fitted attributes are published, on an error they are rolled back.

Two other outcomes leave the estimator fitted: training diverges, which raises an error, or it is interrupted, which
raises if the interrupt is meant for a caller. An interrupt may come between any two lines: the fitted attributes
change atomically, and objects that a run shares with the last one are published with it.

A call that resumes an earlier one shares weights, optimizer state, history and random state with it. They are copied
before the call, and restored after an error. They are not copied only if weights and optimizer state are large for the
steps of the call, and none of its callbacks and scores are the user's: then an error of the runtime or the device after
the first step restores the weights from before the epoch, and nothing else.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._data.several_targets import SeveralTargets
from .._fitted.skl2onnx_bridge import register_waiting
from .._model.trainable import TrainableModel
from .._ort import sessions
from .._training.choice import new_step, new_trainer
from .._training.loss_graph import LAZY, StepSettings
from .._training.programs import COMPILED, LIKELY_EPOCHS
from .._training.row_dependence import meeting, outputs_that_meet
from .._training.state import TrainingStep
from .._training.step import StepParts
from .._training.trainer import Trainer
from .._utils.cache import content, with_attributes
from .._utils.errors import refusing
from ..exceptions import DivergenceError, warn
from ..losses import LOSSES, Loss
from ..optimizers import LBFGS
from .callbacks import ActiveTraining, CallbackWatcher, HookValues, hooks_of, train_watched
from .config import batch_limit, trainer_settings
from .describe import TrainingRecord
from .examples import Call, Examples, TrainingRows, balanced_weights, batches_for, ignoring, training_examples
from .finetuning import TUNED_PIECE, old_examples, tuner_of, tuning_trainer
from .fitted_state import FittedState, sparse_inputs
from .heads import Plan, body_of, choose_head, gets_new_head, headed
from .parameters import Parameters, set_callbacks_of
from .resumable_state import ALWAYS_COPIED, COPIED_FOR_STEPS, MANY_STEPS, StateBefore, generator_for, size_of_state
from .scoring import (
    Measures,
    OwnScore,
    ScoredRows,
    loss_of_rows,
    scored_rows,
    validation_rows,
    validation_score,
    watches_loss,
)
from .source import built_for, known_source
from .starting_state import compare_training, own_scores, require_equal_start, require_fit, run_for

if TYPE_CHECKING:
    from typing_extensions import Self


class Attempt(TrainingRecord):
    """An estimator that prepares a run and trains it."""

    random_state: Any
    callbacks: Any
    scoring: Any
    n_outputs_: int
    classes_: np.ndarray | list[np.ndarray]

    @abstractmethod
    def _prepare(self, call: Call) -> tuple[FittedState, Trainer]:
        """Validate the call and return the run and its trainer; nothing is trained yet."""

    def _train(self, call: Call) -> Self:
        register_waiting()  # so that skl2onnx, imported by now, converts what is fitted here
        before, state, trainer = dict(vars(self)), None, None
        old: FittedState | None = before.get("_state") if call.resume else None
        before_call = None if old is None else StateBefore(old)
        try:
            with self._unchanged_on_error():
                state, trainer = self._prepare(call)
            if old is not None and before_call is not None and self._is_copied(old, call, trainer):
                before_call.copy_arrays()
            train_watched(trainer.watcher, trainer.one_pass if call.one_pass else trainer.fit)
            self._publish(state)
        except KeyboardInterrupt as interrupt:
            if state is None or trainer is None:
                raise
            trainer.settle()
            self._publish(state)
            raise_or_warn(interrupt, self)
        except BaseException as error:
            if state is not None and (
                isinstance(error, DivergenceError) or (before_call is not None and not before_call.is_whole)
            ):
                self._publish(state)
            else:
                if state is not None and before_call is not None:
                    before_call.restore()
                self._restore(before)
            raise
        return self

    def _is_copied(self, old: FittedState, call: Call, trainer: Trainer) -> bool:
        """Return True if weights and optimizer state must be copied before the call for a rollback."""
        if self.callbacks or set_callbacks_of(self) or callable(self.scoring):
            return True
        steps = trainer.most_steps(one_pass=call.one_pass)
        return size_of_state(old) < (COPIED_FOR_STEPS if steps is None or steps >= MANY_STEPS else ALWAYS_COPIED)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        before = dict(vars(self))
        generators = (self.random_state, getattr(before.get("_state"), "rng", None))
        states = [(rng, rng.get_state()) for rng in generators if isinstance(rng, np.random.RandomState)]
        try:
            yield
        except BaseException:
            self._restore(before)
            for rng, before_call in states:
                rng.set_state(before_call)
            raise

    def _restore(self, attributes: dict[str, object]) -> None:
        self.__dict__.update(attributes)  # first, as an interrupt may come before the rest
        for name in vars(self).keys() - attributes.keys():
            del self.__dict__[name]

    def _publish(self, state: FittedState) -> None:
        """Set the fitted attributes atomically."""
        self.__dict__.update(state.fitted_attributes())


# Preparation of a call of ``fit`` or ``partial_fit``, in steps: model, examples, run, loop.
#
# Nothing is trained here. The training step comes last: nothing before it changes objects shared with an earlier run.


def prepared(estimator: Parameters, call: Call) -> tuple[FittedState, Trainer]:
    """Validate everything; return the run and the loop that will train it.

    The parameters of the estimator are read, and its feature attributes are set.
    """
    plan, source, examples = _planned(estimator, call)
    is_new = plan.body is not None
    chosen = choose_head(estimator, plan.old, source, plan.fitted, examples, plan.rng, is_new=is_new)
    state, settings = run_for(plan, chosen, examples)
    state.balanced = balanced_weights(estimator, call.sample_weight, examples.targets)
    scores = own_scores(plan, state, chosen, examples)
    require_equal_start(plan, state, examples)
    require_fit(plan, state, examples)
    # Fitted models were compared unclipped.
    state.head = with_attributes(state.head, target_range=plan.rows.target_range(examples))
    state.live.predictors.clear()  # they hold the current weights
    scored = validation_rows(estimator, state, examples, plan.rows.split(examples)[1], call)
    validate = validation_score(estimator, state, scored, call)
    trainer = trainer_for(plan, state, settings, examples, scored, validate)
    compare_training(state, settings, examples, [chosen.own], scores, trainer)
    return state, trainer


def _planned(estimator: Parameters, call: Call) -> tuple[Plan, TrainableModel, Examples]:
    """Return what the call decides, the graph, which is built for the data if need be, and the data as its inputs."""
    if call.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    loop = trainer_settings(estimator)
    old: FittedState | None = getattr(estimator, "_state", None) if call.resume else None
    body = body_of(estimator) if gets_new_head(estimator, old) else None
    names: tuple[str, ...] = ()
    source, fitted = known_source(estimator, old, call.X) if body is None else (body.source, None)
    examples = training_examples(estimator, call, source, fitted, old)
    rng = generator_for(estimator, call, examples) if old is None else old.rng
    tuner = None if call.one_pass else tuner_of(estimator, fitted)
    rows = TrainingRows(estimator, call, old, rng)
    if body is not None:
        source, names = headed(body, examples)
    if source is None:
        rows.choose_scale(examples)
        source, examples = built_for(estimator, call, examples, rows, rng)
    return Plan(estimator, call, loop, old, rng, rows, fitted, tuner, body, names), source, examples


# Conditional methods: they exist depending on the parameters and the fitted run.


def trains_in_minibatches(estimator: Parameters) -> bool:
    if isinstance(estimator.optimizer, LBFGS) or estimator.optimizer == "lbfgs":
        raise AttributeError("partial_fit trains on minibatches; optimizer='lbfgs' takes all data at once.")
    return True


def check_one_pass(estimator: Parameters) -> None:
    stopping = estimator.early_stopping
    if is_on(stopping) or isinstance(stopping, str):
        raise ValueError(
            f"partial_fit does not support early_stopping={stopping!r}; it makes one pass and cannot stop earlier."
        )
    given = getattr(estimator, "class_weight", None)
    balances = given.values() if isinstance(given, Mapping) else [given]  # by output, where there are several
    if any(isinstance(one, str) and one == "balanced" for one in balances):
        raise ValueError(
            "class_weight='balanced' needs all data at once, partial_fit sees a part of them: give a dict, such as "
            "sklearn.utils.class_weight.compute_class_weight makes."
        )


def is_on(switch: object) -> bool:
    """Return True if a boolean parameter is true; invalid values are refused when all parameters are validated."""
    return isinstance(switch, bool | np.bool_) and bool(switch)


def gives_probabilities(estimator: Parameters) -> bool:
    state: FittedState | None = getattr(estimator, "_state", None)
    loss = estimator.loss
    if not (links_classes(loss) if state is None else state.head.has_probabilities):
        raise AttributeError(f"predict_proba is not available: loss={loss!r} gives scores without probabilities.")
    return True


def links_classes(loss: object) -> bool:
    """Return True if ``loss`` gives probabilities; for an invalid loss ``fit`` raises the error."""
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    return not isinstance(known, Loss) or known.link("binary") != "identity"


def takes_negative_numbers(loss: object) -> bool:
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    try:
        if isinstance(known, Loss):
            known.check_targets(np.array([[-1.0]]))
    except ValueError:
        return False
    return True


# Epoch loop of a call: its minibatches, its step, the score of the validation rows.


def trainer_for(
    plan: Plan,
    state: FittedState,
    settings: StepSettings,
    examples: Examples,
    scored: ScoredRows | None,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the loop over the training rows; ``validate`` scores the validation rows ``scored``."""
    estimator, call, tuner = plan.estimator, plan.call, plan.tuner
    rows, _ = plan.rows.split(examples)
    old = old_examples(estimator, state, call, tuner)
    settings = settings if old is None else ignoring(settings, old.targets)
    rows = plan.rng.permutation(rows) if tuner else rows  # the first rows stand for all
    limit = TUNED_PIECE if tuner else batch_limit(estimator.batch_size, settings.optimizer)
    shuffle = bool(estimator.shuffle) and not isinstance(settings.optimizer, LBFGS)
    drop_last = bool(estimator.drop_last) and tuner is None
    rows_meet = meeting(state.model, settings) is not None
    if rows_meet and isinstance(examples.targets, SeveralTargets):
        _require_labels(outputs_that_meet(state.model, settings), examples.targets, rows)
    if rows_meet and isinstance(settings.optimizer, LBFGS) and tuner is None:
        limit = len(rows)  # the full batch is no sum over pieces
    size = min(len(rows), limit)
    batches = batches_for(state, examples, rows, size, shuffle=shuffle, drop_last=drop_last, rows_meet=rows_meet)
    if tuner is not None:
        trainer = tuning_trainer(plan, state, settings, examples, rows, old, batches, validate)
    else:
        # calls of partial_fit may bring more or fewer rows
        room, most = (min(len(rows), limit), limit) if call.one_pass else (batches.size, batches.size)
        state.sparse = sparse_inputs(examples.columns, every=True)
        sparse = state.sparse if settings.sparse_updates == LAZY else sparse_inputs(examples.columns)
        step = prepare_step(state, settings, room, most, sparse, _planned_steps(plan, batches.steps))
        trainer = new_trainer(plan.loop, step, batches, state.history, validate)
    if scored is not None and isinstance(validate, OwnScore) and watches_loss(estimator, state, call):
        trainer.validation_loss = loss_of_rows(state, settings, scored, validate.predictor)
    if hooks_of(estimator):
        trained = scored_rows(state, examples, np.sort(rows), call)
        measures = Measures(estimator, state, settings, {"train": trained, "validation": scored})
        training = ActiveTraining(estimator, state, trainer, call, measures, scored)
        trainer.watcher = CallbackWatcher(training, HookValues(estimator, state, trainer, call, trained))
    return trainer


def _require_labels(meeting: Collection[str], targets: SeveralTargets, rows: np.ndarray) -> None:
    """Raise where rows without a label of an output would meet others in its loss."""
    ones = np.ones(len(targets.values))
    weights = {name: ones if w is None else w for name, w in zip(targets.names, targets.weights, strict=True)}
    counted = np.max([own[rows] for own in weights.values()], axis=0) > 0
    for name in meeting:
        missing = int(np.sum(counted & (weights[name][rows] == 0)))
        if missing:
            raise ValueError(
                f"Output {name!r}: rows meet in its loss, and {missing} of {int(counted.sum())} rows have weight zero "
                f"for it but not for another output: they would meet the others without a label. Give it labels for "
                f"all rows, or a loss of single rows."
            )


def _planned_steps(plan: Plan, steps: int) -> int:
    """Return the minibatches that a new run is likely to have, ``steps`` in each epoch; 0 for calls that go on."""
    if plan.old is not None or plan.call.one_pass:
        return 0
    loop = plan.loop
    return steps * (loop.max_iter if loop.all_epochs else min(loop.max_iter, LIKELY_EPOCHS))


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
        if _fits_others(frame, estimator):
            return True
        frame = frame.f_back
    return False


def raise_or_warn(interrupt: KeyboardInterrupt, estimator: object) -> None:
    """Raise an interrupt that is meant for what called ``fit``; else warn that the training is not complete."""
    if belongs_to_caller(estimator):
        raise interrupt
    warn(INTERRUPTED, UserWarning)


def _fits_others(frame: FrameType, estimator: object) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    caller = frame.f_locals.get("self")
    return package in CALLERS or (caller is not None and caller is not estimator and hasattr(type(caller), "fit"))


# The training step of a run, on the host or on a device; it is reused while settings and shapes are equal.


@refusing("The graph cannot be trained")
def prepare_step(
    state: FittedState, settings: StepSettings, batch: int, limit: int, sparse: Collection[str] = (), steps: int = 0
) -> TrainingStep:
    """Return the step of a run; make a new one only if the existing one does not fit.

    It fits if it has these settings and at least ``batch``, but at most ``limit`` rows: padding costs as much as other
    rows. A new step takes over the rows of the last one, which pickles lack: the padded shape decides rounding and the
    masks of dropout. Inputs named in ``sparse`` come sparse; steps on a device take dense rows. ``steps`` are
    those that a new run plans, by which "auto" chooses; a run goes on with the engine that it began with.
    """
    sparse = () if settings.device.memory is not None else tuple(sparse)
    shapes = tuple(spec.shape for spec in state.model.inputs)
    key = (
        sessions.forks(),
        _settings_key(settings),
        state.head.task,
        state.head.link,
        settings.positions,
        settings.ignores,
        state.parameters.names,
        shapes,
        sparse,
    )
    rows = batch if state.rows is None or not batch <= state.rows <= limit else state.rows
    if state.live.step is None or state.live.step_key != key or state.live.step.batch != rows:
        parts = StepParts(state.model, settings, state.parameters, state.frozen, state.optimizer, rows, sparse)
        state.live.step = new_step(parts, steps, compiled=state.engine == COMPILED)
    state.live.step_key, state.engine, state.rows = key, state.live.step.engine, rows
    return state.live.step


def _settings_key(settings: StepSettings) -> tuple[object, ...]:
    """Return a key that is equal for settings of equal content."""
    objects = tuple(map(content, (settings.loss, settings.optimizer, settings.session_options)))
    numbers = (settings.alpha, settings.l1_ratio, settings.max_grad_norm, settings.accumulate, settings.ema_decay)
    return (
        objects,
        numbers,
        (*settings.factors.items(), settings.scheduled),
        settings.sparse_updates,
        settings.checkpoint_activations,
        settings.engine,
        settings.device,
    )
