"""Fine-tuning of given models: when it replaces plain training, and which weights it leaves alone.

With ``finetune="auto"`` a fitted model is fine-tuned unless a setting of plain training differs from its default: an
optimizer or a learning rate that a user chooses must have an effect.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor

from .._data.batches import Batches
from .._data.validation import faults_of_old_data
from .._fitted.model import FittedModel
from .._fitted.traversal import follow
from .._given.ml_files import FittedFile
from .._graph.queries import mixes_positions
from .._graph.trainable import TrainableModel
from .._training.fine_tuning import FineTuningTrainer, Tuning
from .._training.loop import Trainer
from .._training.loss_graph import StepSettings
from .._training.meeting_rows import meeting
from .._training.parameters import Trainable
from .._training.row_objective import RowObjective
from ..exceptions import ModelError, instead_of, warn
from ..finetuning import FineTuner
from ..models import resolve_builder
from .damping import damping_of
from .examples import Call, Examples, batches_for, validation_examples
from .parameters import Parameters
from .plan import Plan
from .precomputed import searched_rows
from .run import Run

USED = {
    "model", "loss", "trainable", "output", "output_kind", "class_weight", "target_scaling", "clip_predictions",
    "scoring", "callbacks",
    "checkpoint_activations",
    "finetune", "warm_start", "random_state", "verbose", "engine", "device", "providers", "provider_options",
    "session_options",
}  # fmt: skip
"""The parameters that fine-tuning uses; the others are those of plain training."""

TUNED_PIECE = 1024
"""Rows of the pieces from which a search accumulates the gradient of all rows."""

OLD_PIECE = 256
"""Rows of the pieces of old rows; the cross-validation takes the first one."""

SCORED_ROWS = 64
"""Rows whose scores tell which weights scale and shift the output."""


def tuner_of(estimator: Parameters, fitted: FittedModel | None) -> FineTuner | None:
    """Return the settings of fine-tuning for a call of ``fit``; None: plain training."""
    tuner = estimator.finetune
    if tuner is None:
        return None
    if tuner == "auto":
        if fitted is None or estimator.warm_start or (isinstance(fitted, FittedFile) and fitted.is_plain):
            return None
        if changed := changed_from_default(estimator):
            _warn_of_plain_training(changed)
            return None
        return FineTuner()
    if not isinstance(tuner, FineTuner):
        raise TypeError(f"finetune must be 'auto', a FineTuner object or None, {instead_of(tuner)}.")
    tuner.validate()
    if resolve_builder(estimator.model) is not None:
        raise ValueError(
            "finetune is for a trained model: a fitted scikit-learn model or an ONNX graph with weights. This model is "
            "built for the data; leave finetune='auto' or None."
        )
    if changed := changed_from_default(estimator):
        name, value = next(iter(changed.items()))
        raise ValueError(
            f"{name}={value!r} has no effect on fine-tuning, which searches on all rows at once. Leave {name} at its "
            f"default, or train plainly with finetune=None."
        )
    return tuner


def _warn_of_plain_training(changed: Mapping[str, object]) -> None:
    """Warn if nothing but a rate decides that a fitted model is not fine-tuned, which needs none."""
    if set(changed) == {"learning_rate_init"}:
        warn(
            f"learning_rate_init={changed['learning_rate_init']!r} turns off the fine-tuning of the fitted model, "
            f"which chooses its own steps: the model is trained plainly, for max_iter epochs. Leave out "
            f"learning_rate_init to fine-tune it, or set finetune=None to train plainly without this warning."
        )


def changed_from_default(estimator: Parameters) -> dict[str, object]:
    """Return the parameters of plain training that differ from their defaults."""
    signature: Mapping[str, inspect.Parameter] = inspect.signature(type(estimator)).parameters
    names = [name for name in signature if name not in USED]
    return {n: getattr(estimator, n) for n in names if not _is_default(getattr(estimator, n), signature[n].default)}


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, type(default)) and bool(value == default))


def tuned_names(
    estimator: Parameters,
    tuner: FineTuner,
    source: TrainableModel,
    fitted: FittedModel | None,
    head: tuple[str, ...] = (),
) -> Trainable:
    """Return what ``trainable`` stands for: "all" leaves out transformers, and may leave out what is before a head."""
    if not (isinstance(estimator.trainable, str) and estimator.trainable == "all"):
        return estimator.trainable
    if head and not _tunes_body(tuner, source):
        return head
    if fitted is None or not tuner.freeze_preprocessing:
        return "all"
    frozen = transformer_names(estimator, source, fitted)
    names = [name for name in source.parameters if name not in frozen]
    return names or "all"


def _tunes_body(tuner: FineTuner, source: TrainableModel) -> bool:
    return bool(tuner.tune_body) if isinstance(tuner.tune_body, bool) else not mixes_positions(source.model.graph)


def transformer_names(estimator: Parameters, source: TrainableModel, fitted: FittedModel | None) -> set[str]:
    """Return the parameters that belong to transformers of a fitted model."""
    if fitted is None:
        return set()
    return _of_files(source) if isinstance(fitted, FittedFile) else _of_transformers(estimator.model, fitted)


def _of_transformers(model: Any, fitted: FittedModel) -> set[str]:
    """Return the parameters that belong to transformers, not to predictors."""
    owners = {origin.name: follow(model, origin.owner) for origin in fitted.origins}
    return {name for name, owner in owners.items() if _transforms(owner)}


def _transforms(owner: Any) -> bool:
    return hasattr(owner, "transform") and not (is_classifier(owner) or is_regressor(owner))


def _of_files(source: TrainableModel) -> set[str]:
    """Return the parameters of the operator Scaler, after which they are named."""
    return {name for name in source.parameters if re.match(r"scaler(_\d+)?\.", name)}


def tuning_trainer(
    plan: Plan,
    run: Run,
    settings: StepSettings,
    examples: Examples,
    rows: np.ndarray,
    old: Examples | None,
    batches: Batches,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the trainer that fine-tunes the parameters of ``run`` on ``rows``, beside the ``old`` ones."""
    assert plan.tuner is not None
    where = meeting(run.model, settings)
    if where is not None:
        raise ModelError(
            f"Fine-tuning adds up the losses of all rows, but rows meet within a minibatch: the result of a row "
            f"depends on the others. {where} does that. Train plainly with finetune=None; export a graph with batch "
            f"normalization in inference mode."
        )
    if any(node.op_type == "Dropout" for node in run.model.model.graph):
        raise ModelError(
            "Fine-tuning searches for the least loss of all rows, which dropout changes from batch to batch. Export "
            "the graph in inference mode, or train it plainly with finetune=None."
        )
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}
    predictor = run.live_predictor(live, with_scores=True)

    def scores() -> np.ndarray:
        return predictor.run(live, rows[:SCORED_ROWS], -1)

    searched = searched_rows(run, settings, run.parameters, examples.columns, batches)
    run.engine = searched.step.engine
    old_rows = None if old is None else _objective_of(run, settings, old)
    damping = None if plan.head_names else _damping(plan.estimator, run, examples, rows)
    tuning = Tuning(plan.tuner, scores, run.rng, old_rows, plan.head_names, damping)
    return FineTuningTrainer(tuning, plan.loop, searched.step, searched.batches, run.history, validate)


def _damping(estimator: Parameters, run: Run, examples: Examples, rows: np.ndarray) -> np.ndarray | None:
    """Return what the weights behind columns out of the range of frozen transformers are divided by."""
    scalers = transformer_names(estimator, run.source, run.fitted)
    return damping_of(run, examples, rows, scalers - {*run.parameters.names})


def _objective_of(run: Run, settings: StepSettings, old: Examples) -> RowObjective:
    """Return the loss of the old rows, by a step of their number that shares the parameters."""
    rows = np.arange(len(old)) if old.weights is None else np.flatnonzero(old.weights)
    rows = run.rng.permutation(rows)
    batches = batches_for(run, old, rows, min(len(rows), OLD_PIECE), shuffle=False)
    searched = searched_rows(run, settings, run.parameters, old.columns, batches)
    return RowObjective(searched.step, searched.batches)


def old_examples(estimator: Parameters, run: Run, call: Call, tuner: FineTuner | None) -> Examples | None:
    """Return the old rows of a call, checked like the training examples; None without them."""
    if call.old is None:
        return None
    if tuner is None:
        raise ValueError(
            "X_old and y_old have a use in fine-tuning only, and this call trains plainly. Concatenate old and new "
            "rows, with sample_weight; or give a fitted model, or finetune=FineTuner() with a trained graph, and leave "
            "the parameters of plain training at their defaults."
        )
    if tuner.new_head:
        raise ValueError("X_old and y_old have no use with new_head=True: the old rows have other targets.")
    with faults_of_old_data():
        return validation_examples(estimator, run, *call.old)
