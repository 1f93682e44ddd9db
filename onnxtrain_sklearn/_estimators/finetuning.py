"""Decide when to fine-tune a given model, and which weights to damp or leave alone.

With ``finetune="auto"`` a fitted model is fine-tuned unless a setting of plain training differs from its default: an
optimizer or a learning rate that a user chooses must have an effect.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier, is_regressor

from .._data.batches import ArrayBatches
from .._data.columns import COPY_LIMIT, Column
from .._data.validation import faults_of_old_data
from .._finetuning.objective import RowObjective
from .._finetuning.tuning_trainer import FineTuningTrainer, Tuning
from .._fitted.fitted_model import FittedModel
from .._fitted.traversal import follow
from .._given.comparison import run_graph
from .._given.ml_files import FittedFile
from .._inference.predictor import Predictor
from .._ir.queries import int_attribute, mixes_positions, reaching
from .._model.frozen_part import FrozenPart, frozen_part
from .._model.new_head import graph_of_features
from .._model.trainable import TensorSpec, TrainableModel
from .._ort.devices import Device
from .._training.loss_graph import TARGET, StepSettings
from .._training.parameters import FlatParameters, Trainable
from .._training.row_dependence import meeting
from .._training.state import GradientStep, OptimizerState
from .._training.step import StepParts
from .._training.step_choice import new_step
from .._training.trainer import Trainer
from .._utils.errors import refusing
from ..exceptions import ModelError, instead_of, warn
from ..finetuning import FineTuner
from ..models import resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .examples import Call, Examples, batches_for, validation_examples
from .fitted_state import Columns, FittedState, sparse_inputs
from .heads import Plan
from .parameters import Parameters

USED = {
    "model", "loss", "trainable", "class_weight", "target_scaling", "clip_predictions",
    "scoring", "callbacks",
    "finetune", "warm_start", "random_state", "verbose", "engine", "device", "runtime",
}  # fmt: skip
"""The parameters that fine-tuning uses; the others are those of plain training."""

PLAIN_SETTINGS: Mapping[str, object] = {"training_mode": False, "class_axis": "auto"}
"""The settings of a :class:`GraphModel` that are those of plain training, with their defaults."""

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
    given = resolve_graph_model(estimator.model)
    settings = {n: getattr(given, n) for n, default in PLAIN_SETTINGS.items() if getattr(given, n) != default}
    changed = {n: getattr(estimator, n) for n in names if not _is_default(getattr(estimator, n), signature[n].default)}
    return settings | changed


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
    if head:
        # features of convolutions and attention, which mix positions, are general, and their tuning takes long
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
    """Return the trainer that fine-tunes the parameters of ``state`` on ``rows``, beside the ``old`` ones."""
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
    damping = None if plan.head_names else _damping(plan.estimator, state, examples, rows)
    tuning = Tuning(plan.tuner, scores, state.rng, old_rows, plan.head_names, damping)
    return FineTuningTrainer(tuning, plan.config.loop, searched.step, searched.batches, state.history, validate)


def _damping(estimator: Parameters, state: FittedState, examples: Examples, rows: np.ndarray) -> np.ndarray | None:
    """Return what the weights behind columns out of the range of frozen transformers are divided by."""
    scalers = transformer_names(estimator, state.source, state.fitted)
    return damping_of(state, examples, rows, scalers - {*state.parameters.names})


def _objective_of(state: FittedState, settings: StepSettings, old: Examples) -> RowObjective:
    """Return the loss of the old rows, by a step of their number that shares the parameters."""
    rows = np.arange(len(old)) if old.weights is None else np.flatnonzero(old.weights)
    rows = state.rng.permutation(rows)
    batches = batches_for(state, old, rows, min(len(rows), OLD_PIECE), shuffle=False)
    searched = searched_rows(state, settings, state.parameters, old.columns, batches)
    return RowObjective(searched.step, searched.batches)


def old_examples(estimator: Parameters, state: FittedState, call: Call, tuner: FineTuner | None) -> Examples | None:
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
        return validation_examples(estimator, state, *call.old)


# Columns that new rows take out of the range of a frozen scaler, and the weights that read them.
#
# A column that hardly varies in the old rows has a tiny scale. Where it varies in the new rows, its scaled values are
# far larger than all that the model has seen, and its weights, which training has hardly moved, spoil the scores.


OUT_OF_RANGE = 5.0
"""Root mean square of a scaled column beyond which the column is out of range.

Of old rows it is about one; for indicators of rare categories it reaches three or four with little drift.
"""

LOOKED_AT = 1000
"""Rows that tell the range of the columns; the rows come in random order."""

MIXES = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators of decompositions and layers: what they compute has no unit scale."""


def damping_of(state: FittedState, examples: Examples, rows: np.ndarray, scalers: Collection[str]) -> np.ndarray | None:
    """Return what each trained weight is to be divided by: at least one, more behind columns out of range.

    ``scalers`` names the parameters of the transformers. None: no column is out of range.
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
    """Yield the input, the weight, and whether it is transposed, of each trained layer right behind scalers."""
    for node in graph:
        if node.op_type not in ("Gemm", "MatMul") or int_attribute(node, "transA", 0):
            continue
        values, weight = node.inputs[0], node.inputs[1]
        if values is not None and weight is not None and weight.name in trained and _is_scaled(graph, values, scalers):
            yield values.name or "", weight.name or "", bool(int_attribute(node, "transB", 0))


def _is_scaled(graph: ir.Graph, values: ir.Value, scalers: Collection[str]) -> bool:
    names = reaching(values)
    mixed = any(node.op_type in MIXES and not names.isdisjoint(v.name or "" for v in node.outputs) for node in graph)
    return not mixed and not names.isdisjoint(scalers)


def _sizes(state: FittedState, examples: Examples, rows: np.ndarray, values: str) -> np.ndarray | None:
    """Return the root mean square of each column of an inner tensor on the rows; None for sparse rows made dense."""
    model, _ = graph_of_features(state.source.model, values)
    if sparse_inputs(examples.columns):
        return _sizes_of_sparse(state, examples, rows, model)
    found = run_graph(model, examples.columns, rows, state.device).astype(np.float64)
    weights = None if examples.weights is None else examples.weights[rows]
    squares = np.average(found.reshape(len(found), -1) ** 2, axis=0, weights=weights)
    return np.nan_to_num(np.sqrt(squares), nan=1.0, posinf=1.0)


def _sizes_of_sparse(state: FittedState, examples: Examples, rows: np.ndarray, model: ir.Model) -> np.ndarray | None:
    factors = column_factors(model, examples.columns, state.device)
    if factors is None:
        return None
    weights = None if examples.weights is None else examples.weights[rows]
    (name,) = (value.name or "" for value in model.graph.inputs)
    return np.asarray(np.abs(factors) * root_mean_squares(examples.columns[name], rows, weights))


# Precompute everything independent of the trained weights, once for all rows before a search.
#
# Features of a frozen body, the leaves that rows reach in trees, the columns behind scalers.


NARROWER = 4
"""Of sparse rows only what is narrower by this factor is computed once: they are cheap as they are."""


@dataclass(frozen=True, eq=False)
class Remaining:
    """Computation left for each iteration.

    Attributes
    ----------
    model : TrainableModel
        Its inputs are those of the graph, and the values computed once.
    parameters : FlatParameters
        The weights that are trained.
    frozen : mapping of str to ndarray
        The others.
    columns : mapping of str to Column
        The data for the inputs.
    """

    model: TrainableModel
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    columns: Columns


def remaining(state: FittedState, parameters: FlatParameters, columns: Columns) -> Remaining:
    """Return what is left to compute where ``parameters`` are trained: the whole graph, or what comes behind a cut."""
    model, trained = state.model, parameters.names
    frozen = {n: array for n, array in {**state.frozen, **state.parameters.weights()}.items() if n not in trained}
    part = frozen_part(model.model, model.scores, trained, frozen)
    found = None if part is None else _computed(state, part, columns)
    if part is None or found is None:
        return Remaining(model, parameters, frozen, columns)
    kept = {v.name or "": v for v in part.second.graph.inputs}
    every = {name: column for name, column in {**columns, **found}.items() if name in kept}
    for name in found:
        kept[name].shape = ir.Shape([ir.SymbolicDim("N"), *every[name].shape[1:]])
    inputs = tuple(TensorSpec(name, column.dtype, (None, *column.shape[1:])) for name, column in every.items())
    rest = {name: array for name, array in frozen.items() if name in part.second.graph.initializers}
    return Remaining(replace(model, model=part.second, inputs=inputs, reference=None), parameters, rest, every)


@dataclass(frozen=True, eq=False)
class SearchedRows:
    """The step of a search and the minibatches of its rows."""

    step: GradientStep
    batches: ArrayBatches


@refusing("The graph cannot be trained")
def searched_rows(
    state: FittedState, settings: StepSettings, parameters: FlatParameters, columns: Columns, batches: ArrayBatches
) -> SearchedRows:
    """Return the step that trains ``parameters``, and ``batches`` of what it reads.

    The optimizer in ``settings`` is L-BFGS: the step is the host's.
    """
    rest = remaining(state, parameters, columns)
    sparse = () if settings.device.memory is not None else sparse_inputs(rest.columns)
    parts = StepParts(rest.model, settings, parameters, rest.frozen, OptimizerState(), batches.size, sparse)
    own = batches.of({**rest.columns, TARGET: batches.column(TARGET)})
    return SearchedRows(cast("GradientStep", new_step(parts)), own)


def _computed(state: FittedState, part: FrozenPart, columns: Columns) -> dict[str, Column] | None:
    """Return the values at which the graph is cut, for all rows; None where they are too large or no rows."""
    names = [v.name or "" for v in part.first.graph.outputs]
    own = {v.name: columns[v.name or ""] for v in part.first.graph.inputs}
    given, sparse = {str(name): column for name, column in own.items()}, sparse_inputs(columns)
    factors = column_factors(part.first, given, state.device) if sparse and len(names) == 1 else None
    if factors is not None:
        return {names[0]: multiplied(next(iter(given.values())), factors)}
    predictor = Predictor(part.first, state.device, state.session_options, sparse=sparse)
    n_rows, found = len(next(iter(given.values()))), dict[str, Column]()
    try:
        for i, name in enumerate(names):
            few = predictor.run(given, np.array([n_rows - 1, 0, n_rows - 1]), output=i)
            if not _fits(few, n_rows, given, sparse):
                return None
            values = predictor.run(given, output=i)
            if not np.allclose(few, values[[-1, 0, -1]], rtol=1e-3, atol=1e-5, equal_nan=True):
                return None  # rows depend on each other
            found[name] = Column(values, values.dtype)
    except ModelError:  # its first axis is not that of the rows
        return None
    return found


def _fits(few: np.ndarray, n_rows: int, columns: Columns, sparse: Collection[str]) -> bool:
    """Return True if values like these are few enough to be kept for all rows."""
    narrow = all(NARROWER * math.prod(few.shape[1:]) <= math.prod(columns[name].shape[1:]) for name in sparse)
    return narrow and few.nbytes / len(few) * n_rows <= COPY_LIMIT


# Scaling of sparse rows without making them dense: a scaler that keeps zeros multiplies columns by numbers.


KEEPS = frozenset({"Cast", "Identity"})
"""Operators that change no number."""


def column_factors(model: ir.Model, columns: Columns, device: Device) -> np.ndarray | None:
    """Return what a graph multiplies each column of sparse rows by; None where it computes anything else."""
    graph = model.graph
    names = [value.name or "" for value in graph.inputs]
    if len(names) != 1 or names[0] not in sparse_inputs(columns) or not _multiplies_only(graph):
        return None
    column = columns[names[0]]
    ones = Column(np.ones((1, *column.shape[1:]), column.dtype), column.dtype)
    found = run_graph(model, {names[0]: ones}, np.arange(1), device)
    return found[0] if found.shape == ones.shape and np.isfinite(found).all() else None


def _multiplies_only(graph: ir.Graph) -> bool:
    """Return True if the graph at most multiplies its input by numbers or divides it by them."""
    of_data = set(graph.inputs)
    for node in graph:
        places = [i for i, value in enumerate(node.inputs) if value in of_data]
        if not places:
            continue
        allowed = {"Mul": ([0], [1]), "Div": ([0],)}.get(node.op_type, ([0],) if node.op_type in KEEPS else ())
        if node.domain or places not in allowed:
            return False
        of_data.update(node.outputs)
    return True


def multiplied(column: Column, factors: np.ndarray) -> Column:
    """Return sparse data with each column multiplied by its factor."""
    rows = column.sparse_rows(slice(None))
    numbers = (rows.data * factors[rows.indices]).astype(factors.dtype)
    return Column(type(rows)((numbers, rows.indices, rows.indptr), shape=rows.shape, copy=False), factors.dtype)


def root_mean_squares(column: Column, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the root mean square of each column of sparse data over the weighted rows."""
    part = column.sparse_rows(rows).astype(np.float64)
    own = np.ones(len(rows)) if weights is None else weights
    return np.asarray(np.sqrt((part.multiply(part).T @ own) / own.sum()))
