"""The loop of a call: its minibatches, its step, the score of the validation rows."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from .._data.several_targets import SeveralTargets
from .._optimizers.lbfgs import LBFGS
from .._training.choice import new_trainer
from .._training.compiled_pass import LIKELY_EPOCHS
from .._training.loop import Trainer
from .._training.loss_graph import LAZY, StepSettings
from .._training.meeting_rows import meeting, outputs_that_meet
from .active_training import ActiveTraining
from .callback_watcher import CallbackWatcher, hooks_of
from .examples import Examples, batches_for, ignoring
from .fine_tuning import TUNED_PIECE, old_examples, tuning_trainer
from .hook_values import HookValues
from .measures import Measures, loss_of_rows
from .plan import Plan
from .run import Run, sparse_inputs
from .settings import batch_limit
from .step_choice import prepare_step
from .validation import OwnScore, ScoredRows, scored_rows, watches_loss


def trainer_for(
    plan: Plan,
    run: Run,
    settings: StepSettings,
    examples: Examples,
    scored: ScoredRows | None,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the loop over the training rows; ``validate`` scores the validation rows ``scored``."""
    estimator, call, tuner = plan.estimator, plan.call, plan.tuner
    rows, _ = plan.rows.split(examples)
    old = old_examples(estimator, run, call, tuner)
    settings = settings if old is None else ignoring(settings, old.targets)
    rows = plan.rng.permutation(rows) if tuner else rows  # the first rows stand for all
    limit = TUNED_PIECE if tuner else batch_limit(estimator.batch_size, settings.optimizer)
    shuffle = bool(estimator.shuffle) and not isinstance(settings.optimizer, LBFGS)
    drop_last = bool(estimator.drop_last) and tuner is None
    rows_meet = meeting(run.model, settings) is not None
    if rows_meet and isinstance(examples.targets, SeveralTargets):
        _require_labels(outputs_that_meet(run.model, settings), examples.targets, rows)
    if rows_meet and isinstance(settings.optimizer, LBFGS) and tuner is None:
        limit = len(rows)  # the full batch is no sum over pieces
    size = min(len(rows), limit)
    batches = batches_for(run, examples, rows, size, shuffle=shuffle, drop_last=drop_last, rows_meet=rows_meet)
    if tuner is not None:
        trainer = tuning_trainer(plan, run, settings, examples, rows, old, batches, validate)
    else:
        # calls of partial_fit may bring more or fewer rows
        room, most = (min(len(rows), limit), limit) if call.one_pass else (batches.size, batches.size)
        run.sparse = sparse_inputs(examples.columns, every=True)
        sparse = run.sparse if settings.sparse_updates == LAZY else sparse_inputs(examples.columns)
        step = prepare_step(run, settings, room, most, sparse, _planned_steps(plan, batches.steps))
        trainer = new_trainer(plan.loop, step, batches, run.history, validate)
    if scored is not None and isinstance(validate, OwnScore) and watches_loss(estimator, run, call):
        trainer.validation_loss = loss_of_rows(run, settings, scored, validate.predictor)
    if hooks_of(estimator):
        trained = scored_rows(run, examples, np.sort(rows), call)
        measures = Measures(estimator, run, settings, {"train": trained, "validation": scored})
        training = ActiveTraining(estimator, run, trainer, call, measures, scored)
        trainer.watcher = CallbackWatcher(training, HookValues(estimator, run, trainer, call, trained))
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
