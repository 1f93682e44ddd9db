"""Set up fine-tuning: whether a call of ``fit`` fine-tunes, which weights it tunes or damps, and its trainer.

:func:`tuner_of` decides. With ``finetune="auto"`` a fitted model is fine-tuned unless the user changed a setting of
plain training, such as the optimizer or the learning rate, which fine-tuning would ignore. :func:`tuning_trainer` puts
the parts together: the step of ``precomputed``, which reuses results of the frozen part of the graph, the old rows
(like those on which the model was trained before), and the damping of weights that read columns out of range.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier, is_regressor

from .._anchored_search.objective import RowObjective
from .._anchored_search.tuning_trainer import FineTuningTrainer, Tuning
from .._data.batches import ArrayBatches
from .._data.held_out import faults_of_old_data
from .._fitted.fitted_model import FittedModel
from .._fitted.traversal import follow
from .._given.given_output import run_graph
from .._given.ml_files import FittedFile
from .._ir.queries import int_attribute, mixes_positions, reaching
from .._model.new_head import graph_of_features
from .._model.trainable import TrainableModel
from .._training.parameters import Trainable
from .._training.row_dependence import meeting
from .._training.settings import StepSettings
from .._training.trainer import Trainer
from ..exceptions import ModelError, instead_of, warn
from ..finetuning import FineTuner
from ..models import resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .examples import Call, Examples, batches_for, validation_examples
from .fitted_state import FittedState, sparse_inputs
from .heads import Plan
from .parameters import Parameters
from .precomputed import column_factors, root_mean_squares, searched_rows

USED = {
    "model", "loss", "trainable", "class_weight", "target_scaling", "clip_predictions",
    "scoring", "callbacks",
    "finetune", "warm_start", "random_state", "verbose", "engine", "device", "runtime",
}  # fmt: skip
"""The parameters that fine-tuning uses; all others are settings of plain training."""

PLAIN_SETTINGS: Mapping[str, object] = {"training_mode": False, "class_axis": "auto"}
"""The settings of a :class:`GraphModel` that only plain training uses, with their defaults."""

TUNED_PIECE = 1024
"""Rows of the pieces from which a search accumulates the gradient of all rows."""

OLD_PIECE = 256
"""Rows of the pieces of old rows; the cross-validation takes the first one."""

SCORED_ROWS = 64
"""Rows whose scores show which weights scale and shift the output."""

OUT_OF_RANGE = 5.0
"""Root mean square of a scaled column beyond which the column is out of range.

In old rows it is about one; in indicators of rare categories, a little drift raises it to three or four.
"""

LOOKED_AT = 1000
"""Rows from which the range of the columns is measured; the rows come in random order."""

MIXES = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators of decompositions and layers.

Their results need not have unit scale, so columns downstream of them are not checked for being out of range.
"""


def tuner_of(estimator: Parameters, fitted: FittedModel | None) -> FineTuner | None:
    """Return the settings of fine-tuning for a call of ``fit``; None if it trains plainly."""
    tuner = estimator.finetune
    if tuner is None:
        return None
    if tuner == "auto":
        if fitted is None or estimator.warm_start or (isinstance(fitted, FittedFile) and fitted.is_plain):
            return None
        changed = changed_from_default(estimator)
        if set(changed) == {"learning_rate_init"}:
            # Other settings show that plain training is wanted. A user may set the rate by habit, though fine-tuning
            # needs none.
            warn(
                f"learning_rate_init={changed['learning_rate_init']!r} turns off the fine-tuning of the fitted model, "
                f"which chooses its own steps: the model is trained plainly, for max_iter epochs. Leave out "
                f"learning_rate_init to fine-tune it, or set finetune=None to train plainly without this warning."
            )
        return None if changed else FineTuner()
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


def changed_from_default(estimator: Parameters) -> dict[str, object]:
    """Return the parameters of plain training that differ from their defaults."""
    signature: Mapping[str, inspect.Parameter] = inspect.signature(type(estimator)).parameters
    given = resolve_graph_model(estimator.model)
    changed = {n: getattr(given, n) for n, default in PLAIN_SETTINGS.items() if getattr(given, n) != default}
    for name, parameter in signature.items():
        value, default = getattr(estimator, name), parameter.default
        # Compare only values of the default's type: an array, for instance, would be compared element by element.
        equal = value is default or (isinstance(value, type(default)) and bool(value == default))
        if name not in USED and not equal:
            changed[name] = value
    return changed


def tuned_names(
    estimator: Parameters,
    tuner: FineTuner,
    source: TrainableModel,
    fitted: FittedModel | None,
    head: tuple[str, ...] = (),
) -> Trainable:
    """Return the trained parameters: "all" excludes transformers and, with a new head, possibly its body."""
    if not (isinstance(estimator.trainable, str) and estimator.trainable == "all"):
        return estimator.trainable
    if head:
        # Leave a body as it is if it mixes positions (convolutions, attention): its features are general, and tuning it
        # takes long.
        auto = not mixes_positions(source.model.graph)
        if not (tuner.tune_body if isinstance(tuner.tune_body, bool) else auto):
            return head
    if fitted is None or not tuner.freeze_preprocessing:
        return "all"
    frozen = transformer_names(estimator, source, fitted)
    names = [name for name in source.parameters if name not in frozen]
    return names or "all"


def transformer_names(estimator: Parameters, source: TrainableModel, fitted: FittedModel | None) -> set[str]:
    """Return the parameters that belong to transformers of a fitted model."""
    if fitted is None:
        return set()
    if isinstance(fitted, FittedFile):  # the operator Scaler, after which its parameters are named
        return {name for name in source.parameters if re.match(r"scaler(_\d+)?\.", name)}
    owners = {origin.name: follow(bare_model(estimator.model), origin.owner) for origin in fitted.origins}
    return {
        name
        for name, owner in owners.items()
        if hasattr(owner, "transform") and not (is_classifier(owner) or is_regressor(owner))
    }


def old_examples(estimator: Parameters, state: FittedState, call: Call, tuner: FineTuner | None) -> Examples | None:
    """Return the old rows of a call, checked like the training examples; None if it has none."""
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
        return validation_examples(estimator, state, *call.old)


def tuning_trainer(
    plan: Plan,
    state: FittedState,
    settings: StepSettings,
    examples: Examples,
    rows: np.ndarray,
    old: Examples | None,
    batches: ArrayBatches,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the trainer that fine-tunes the parameters of ``state`` on ``rows``, and on the ``old`` rows if given."""
    assert plan.tuner is not None
    where = meeting(state.model, settings)
    if where is not None:
        raise ModelError(
            f"Fine-tuning adds up the losses of all rows, but rows meet within a minibatch: the result of a row "
            f"depends on the others. {where} does that. Train plainly with finetune=None; export a graph with batch "
            f"normalization in inference mode."
        )
    if any(node.op_type == "Dropout" for node in state.model.model.graph):
        raise ModelError(
            "Fine-tuning searches for the least loss of all rows, which dropout changes from batch to batch. Export "
            "the graph in inference mode, or train it plainly with finetune=None."
        )
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in state.model.inputs}
    predictor = state.live_predictor(live, with_scores=True)

    def scores() -> np.ndarray:
        return predictor.run(live, rows[:SCORED_ROWS], -1)

    searched = searched_rows(state, settings, state.parameters, examples.columns, batches)
    state.engine = searched.step.engine
    old_rows = None if old is None else _objective_of(state, settings, old)
    damping = None
    if not plan.head_names:
        frozen = transformer_names(plan.estimator, state.source, state.fitted) - {*state.parameters.names}
        damping = damping_of(state, examples, rows, frozen)
    tuning = Tuning(plan.tuner, scores, state.rng, old_rows, plan.head_names, damping)
    return FineTuningTrainer(tuning, plan.config.loop, searched.step, searched.batches, state.history, validate)


def _objective_of(state: FittedState, settings: StepSettings, old: Examples) -> RowObjective:
    """Return the loss of the old rows, computed by a separate step that shares the parameters."""
    rows = np.arange(len(old)) if old.weights is None else np.flatnonzero(old.weights)
    rows = state.rng.permutation(rows)
    batches = batches_for(state, old, rows, min(len(rows), OLD_PIECE), shuffle=False)
    searched = searched_rows(state, settings, state.parameters, old.columns, batches)
    return RowObjective(searched.step, searched.batches)


# Damp the weights of columns that are out of the range of a frozen scaler in the new rows.
#
# A column that hardly varies in the old rows has a tiny scale. If it varies in the new rows, its scaled values are far
# larger than any value that the model was trained on, and its weights, which are nearly untrained, dominate the scores.


def damping_of(state: FittedState, examples: Examples, rows: np.ndarray, scalers: Collection[str]) -> np.ndarray | None:
    """Return the divisor of each trained weight: 1, or more for columns out of range; None if no column is.

    ``scalers`` names the parameters of the transformers.
    """
    rows, result = rows[:LOOKED_AT], np.ones(len(state.parameters.vector))
    for values, weight, transposed in _scaled_layers(state.source.model.graph, state.parameters.names, scalers):
        sizes = _sizes(state, examples, rows, values)
        if sizes is None:
            continue
        view = result[state.parameters.span(weight)].reshape(state.parameters.view(weight).shape)
        if len(sizes) == view.shape[1 if transposed else 0] and sizes.max() > OUT_OF_RANGE:
            factors = np.maximum(1.0, sizes)
            view *= factors if transposed else factors[:, None]
    return result if np.max(result) > 1 else None


def _scaled_layers(
    graph: ir.Graph, trained: Collection[str], scalers: Collection[str]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the input, the weight, and whether it is transposed, of each trained layer that reads scaled columns."""
    for node in graph:
        if node.op_type not in ("Gemm", "MatMul") or int_attribute(node, "transA", 0):
            continue
        values, weight = node.inputs[0], node.inputs[1]
        if values is None or weight is None or weight.name not in trained:
            continue
        upstream = reaching(values)
        mixed = any(one.op_type in MIXES and any(v.name in upstream for v in one.outputs) for one in graph)
        if not mixed and not upstream.isdisjoint(scalers):
            yield values.name or "", weight.name or "", bool(int_attribute(node, "transB", 0))


def _sizes(state: FittedState, examples: Examples, rows: np.ndarray, values: str) -> np.ndarray | None:
    """Return the root mean square of each column of an inner tensor on the rows; None for sparse rows made dense."""
    model, _ = graph_of_features(state.source.model, values)
    weights = None if examples.weights is None else examples.weights[rows]
    if sparse_inputs(examples.columns):
        factors = column_factors(model, examples.columns, state.device)
        if factors is None:
            return None
        (name,) = (value.name or "" for value in model.graph.inputs)
        return np.asarray(np.abs(factors) * root_mean_squares(examples.columns[name], rows, weights))
    found = run_graph(model, examples.columns, rows, state.device).astype(np.float64)
    squares = np.average(found.reshape(len(found), -1) ** 2, axis=0, weights=weights)
    return np.nan_to_num(np.sqrt(squares), nan=1.0, posinf=1.0)
