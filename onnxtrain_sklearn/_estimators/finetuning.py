"""Fine-tuning: whether a call of ``fit`` fine-tunes, which weights it tunes or damps, its trainer and its step.

:func:`tuner_of` decides. With ``finetune="auto"`` a fitted model is fine-tuned unless the user changed a setting of
plain training, such as the optimizer or the learning rate, which fine-tuning would ignore. :func:`tuning_trainer` puts
the parts together: the step of :func:`searched_rows`, which reuses results of the frozen part of the graph, the old
rows (like those on which the model was trained before), and the damping of weights that read columns out of range.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier, is_regressor

from .._anchored_search.objective import InnerScores, RowObjective
from .._anchored_search.tuning_trainer import FineTuningTrainer, Tuning
from .._data.batches import ArrayBatches
from .._data.columns import COPY_LIMIT, InputData
from .._data.held_out import naming_old_data
from .._fitted.fitted_model import FittedModel, follow
from .._inference.predictor import Predictor
from .._ir.edits import swap_initializers
from .._ir.queries import mixes_positions, reaching, reads
from .._model.heads import FrozenPart, frozen_part, graph_of_features
from .._model.trainable import TensorSpec, TrainableModel
from .._ort.devices import Device
from .._pretrained.comparison import run_graph
from .._pretrained.ml_files import FittedFile
from .._training.loss_graph import TARGET
from .._training.parameters import Trainable
from .._training.rows_meet import where_rows_meet
from .._training.step import HostStep
from .._training.step_choice import new_step
from .._training.step_parts import OptimizerState, StepParts, StepSettings
from .._training.trainer import Trainer
from .._utils.errors import refusing
from ..exceptions import ModelError, instead_of, warn
from ..finetuning import FineTuner
from ..models import resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .call import Call, EncodedData, FitContext
from .examples import batches_for, validation_examples
from .fitted_state import Columns, FittedState, sparse_inputs
from .parameters import Parameters

PLAIN_SETTINGS: Mapping[str, object] = {"training_mode": False, "class_axis": "auto"}
"""The settings of a :class:`GraphModel` that only plain training uses, with their defaults."""

TUNED_PIECE = 1024
"""Rows of a piece of the data; a search adds up the gradients of the pieces."""

OLD_PIECE = 256
"""Rows of a piece of the old rows; the cross-validation takes the first piece."""

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
    """Return the settings of fine-tuning for a call of ``fit``; None for plain training."""
    tuner = estimator.finetune
    if tuner is None:
        return None
    if tuner == "auto":
        if fitted is None or estimator.warm_start or (isinstance(fitted, FittedFile) and fitted.is_text_network):
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
    used = {name for name, one in estimator.declared.items() if one.tunes}
    given = resolve_graph_model(estimator.model)
    changed = {n: getattr(given, n) for n, default in PLAIN_SETTINGS.items() if getattr(given, n) != default}
    for name, parameter in signature.items():
        value = getattr(estimator, name)
        default = parameter.default
        # Compare only values of the default's type: an array, for instance, would be compared element by element.
        equal = value is default or (isinstance(value, type(default)) and bool(value == default))
        if name not in used and not equal:
            changed[name] = value
    return changed


def tuned_names(
    estimator: Parameters,
    tuner: FineTuner,
    graph: TrainableModel,
    fitted: FittedModel | None,
    head: tuple[str, ...] = (),
) -> Trainable:
    """Return the trained parameters: "all" leaves out frozen preprocessing and, with a new head, possibly the body."""
    if not (isinstance(estimator.trainable, str) and estimator.trainable == "all"):
        return estimator.trainable
    if head:
        # Do not tune a body that mixes positions (convolutions, attention), because its features are general and tuning
        # takes long.
        auto = not mixes_positions(graph.model.graph)
        if not (tuner.tune_body if isinstance(tuner.tune_body, bool) else auto):
            return head
    if fitted is None or not tuner.freeze_preprocessing:
        return "all"
    frozen = transformer_names(estimator, graph, fitted)
    names = [name for name in graph.parameters if name not in frozen]
    return names or "all"


def transformer_names(estimator: Parameters, graph: TrainableModel, fitted: FittedModel | None) -> set[str]:
    """Return the parameters that belong to transformers of a fitted model."""
    if fitted is None:
        return set()
    if isinstance(fitted, FittedFile):  # the operator Scaler, after which its parameters are named
        return {name for name in graph.parameters if re.match(r"scaler(_\d+)?\.", name)}
    owners = {origin.name: follow(bare_model(estimator.model), origin.owner) for origin in fitted.origins}
    return {
        name
        for name, owner in owners.items()
        if hasattr(owner, "transform") and not (is_classifier(owner) or is_regressor(owner))
    }


def old_examples(estimator: Parameters, state: FittedState, call: Call, tuner: FineTuner | None) -> EncodedData | None:
    """Return the old rows of a call, checked like the training examples; None if it has none."""
    if call.old_rows is None:
        return None
    if tuner is None:
        raise ValueError(
            "X_old and y_old have a use in fine-tuning only, and this call trains plainly. Concatenate old and new "
            "rows, with sample_weight; or give a fitted model, or finetune=FineTuner() with a trained graph, and leave "
            "the parameters of plain training at their defaults."
        )
    if tuner.new_head:
        raise ValueError("X_old and y_old have no use with new_head=True: the old rows have other targets.")
    with naming_old_data():
        return validation_examples(estimator, state, *call.old_rows)


def tuning_trainer(
    context: FitContext,
    state: FittedState,
    settings: StepSettings,
    examples: EncodedData,
    rows: np.ndarray,
    old_rows: EncodedData | None,
    batches: ArrayBatches,
    validate: Callable[[], float] | None,
) -> Trainer:
    """Return the trainer that fine-tunes the parameters of ``state`` on ``rows``, and on the ``old_rows`` if given."""
    assert context.tuner is not None
    where = where_rows_meet(state.trained_form, settings)
    if where is not None:
        raise ModelError(
            f"Fine-tuning adds up the losses of all rows, but rows meet within a minibatch: the result of a row "
            f"depends on the others. {where} does that. Train plainly with finetune=None; export a graph with batch "
            f"normalization in inference mode."
        )
    if any(node.op_type == "Dropout" for node in state.trained_form.model.graph):
        raise ModelError(
            "Fine-tuning searches for the least loss of all rows, which dropout changes from batch to batch. Export "
            "the graph in inference mode, or train it plainly with finetune=None."
        )
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in state.trained_form.inputs}
    predictor = state.live_predictor(live, with_scores=True)

    def scores() -> np.ndarray:
        return predictor.run(live, rows[:SCORED_ROWS], -1)

    step, searched = searched_rows(state, settings, examples.columns, batches)
    state.engine = step.engine
    old_objective = None
    if old_rows is not None:  # their loss is computed by a separate step that shares the parameters
        counted = np.arange(len(old_rows)) if old_rows.weights is None else np.flatnonzero(old_rows.weights)
        counted = state.rng.permutation(counted)
        pieces = batches_for(state, old_rows, counted, min(len(counted), OLD_PIECE), shuffle=False)
        old_objective = RowObjective(*searched_rows(state, settings, old_rows.columns, pieces))
    damping = None
    if not context.head_names:
        frozen = transformer_names(context.estimator, state.graph, state.fitted) - {*state.parameters.names}
        damping = damping_of(state, examples, rows, frozen)
    inner = inner_scores(state, live, rows[:SCORED_ROWS])
    tuning = Tuning(context.tuner, scores, state.rng, old_objective, context.head_names, damping, inner)
    return FineTuningTrainer(tuning, context.config.loop, step, searched, state.history, validate)


# Find the scores of a regressor before a fixed function at the end of the graph, such as the inverse of a transformer
# of targets. Its output is recalibrated there if no weights scale or shift the predictions themselves: a shift before
# an exponential multiplies the predictions.


def inner_scores(state: FittedState, columns: Columns, rows: np.ndarray) -> InnerScores | None:
    """Return the scores before the fixed function at the end of the graph; None if no such function ends it."""
    form = state.trained_form
    origins = [] if state.fitted is None else state.fitted.origins
    of_targets = {one.name for one in origins if one.attribute[:1] == ("transformer_",)}
    names = tuple(name for name in state.parameters.names if name not in of_targets)
    name = inner_value(form.model.graph, form.scores, names)
    if state.decoding.task != "regression" or state.decoding.row_shape or name is None:
        return None

    @cache
    def predictor() -> Predictor:
        weights = {**state.frozen, **state.parameters.weights()}
        model = form.model.clone()
        swap_initializers(model.graph, {n: array for n, array in weights.items() if n in model.graph.initializers})
        # Keep the nodes of the fixed function, because the predictor expects the weights that they read as inputs.
        model.graph.outputs[:] = [v for node in model.graph for v in node.outputs if v.name == name]
        return Predictor(
            model, state.device, state.session_options, live=state.parameters, sparse=sparse_inputs(columns)
        )

    return InnerScores(lambda: predictor().run(columns, rows), names)


def inner_value(graph: ir.Graph, scores: str, trained: Collection[str]) -> str | None:
    """Return the name of the earliest value that alone determines the scores, by nodes without trained weights.

    None if there is none before the scores.
    """
    moving: set[ir.Value] = {*graph.inputs, *(v for v in graph.initializers.values() if v.name in trained)}
    order = dict[ir.Value, int]()
    for i, node in enumerate(graph):
        if not moving.isdisjoint(reads(node)):
            moving.update(node.outputs)
        order |= dict.fromkeys(node.outputs, i)
    # Go back from the scores: replace the latest value by the inputs of its node, until a node reads a trained weight
    # or the data.
    found = None
    front = {v for v in order if v.name == scores}
    while front:
        maker = max(front, key=lambda v: order.get(v, -1)).producer()
        if maker is None or any(v.is_initializer() and v in moving for v in reads(maker)):
            break
        front = (front - set(maker.outputs)) | {v for v in reads(maker) if v in moving}
        found = next(iter(front)) if len(front) == 1 else found
    return None if found is None or found.producer() is None else found.name


# Damp the weights of columns that are out of the range of a frozen scaler in the new rows.
#
# A column that hardly varies in the old rows has a tiny scale. If it varies in the new rows, its scaled values are far
# larger than any value that the model was trained on, and its weights, which are nearly untrained, dominate the scores.


def damping_of(
    state: FittedState, examples: EncodedData, rows: np.ndarray, scalers: Collection[str]
) -> np.ndarray | None:
    """Return the divisor of each trained weight: 1, or more for columns out of range; None if no column is.

    ``scalers`` names the parameters of the transformers.
    """
    rows = rows[:LOOKED_AT]
    result = np.ones(len(state.parameters.vector))
    for values, weight, transposed in _scaled_layers(state.graph.model.graph, state.parameters.names, scalers):
        sizes = _sizes(state, examples, rows, values)
        if sizes is None:
            continue
        view = result[state.parameters.span(weight)].reshape(state.parameters.view(weight).shape)
        if len(sizes) == view.shape[1 if transposed else 0] and sizes.max() > OUT_OF_RANGE:
            factors = np.maximum(1.0, sizes)
            view *= factors if transposed else factors[:, None]
    return result if np.max(result) > 1 else None


def _scaled_layers(
    ir_graph: ir.Graph, trained: Collection[str], scalers: Collection[str]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the input, the weight, and whether it is transposed, of each trained layer that reads scaled columns."""
    for node in ir_graph:
        if node.op_type not in ("Gemm", "MatMul") or node.attributes.get_int("transA", 0) == 1:
            continue
        values, weight = node.inputs[0], node.inputs[1]
        if values is None or weight is None or weight.name not in trained:
            continue
        upstream = reaching(values)
        mixed = any(one.op_type in MIXES and any(v.name in upstream for v in one.outputs) for one in ir_graph)
        if not mixed and not upstream.isdisjoint(scalers):
            yield values.name or "", weight.name or "", bool(node.attributes.get_int("transB", 0))


def _sizes(state: FittedState, examples: EncodedData, rows: np.ndarray, values: str) -> np.ndarray | None:
    """Return the root mean square of each column of the tensor ``values``; None if it would make sparse rows dense."""
    model, _ = graph_of_features(state.graph.model, values)
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


# Precompute everything independent of the trained weights, once for all rows before a search.
#
# These are, for example, features of a frozen body, the leaves that rows reach in trees, or columns after scalers. Each
# iteration of a search then computes only the rest. :func:`remaining` cuts the graph, and :func:`searched_rows` makes
# the step for the part that remains. Sparse rows stay sparse: if the other part only multiplies columns by numbers
# (:func:`column_factors`), as a scaler that keeps zeros does, the stored numbers of the rows are multiplied.


NARROWER = 4
"""Results of sparse rows are precomputed only if narrower by this factor, because sparse rows are cheap as they are."""

KEEPS = frozenset({"Cast", "Identity"})
"""Operators that change no number."""


@refusing("The graph cannot be trained")
def searched_rows(
    state: FittedState, settings: StepSettings, columns: Columns, batches: ArrayBatches
) -> tuple[HostStep, ArrayBatches]:
    """Return the step of a search, and ``batches`` of the columns that it reads.

    The optimizer in ``settings`` is L-BFGS, so the step has its gradient on the host.
    """
    rest = remaining(state, columns)
    sparse = () if settings.device.memory is not None else sparse_inputs(rest.columns)
    parts = StepParts(rest.graph, settings, state.parameters, rest.frozen, OptimizerState(), batches.size, sparse)
    own = batches.of({**rest.columns, TARGET: batches.column(TARGET)})
    return cast("HostStep", new_step(parts)), own


@dataclass(frozen=True, eq=False)
class Remaining:
    """The part of the computation that each iteration of a search repeats.

    Attributes
    ----------
    graph : TrainableModel
        Its inputs are those of the whole graph, and the values that are computed once.
    frozen : mapping of str to ndarray
        The weights that it reads and that are not trained.
    columns : mapping of str to InputData
        The data for the inputs.
    """

    graph: TrainableModel
    frozen: Mapping[str, np.ndarray]
    columns: Columns


def remaining(state: FittedState, columns: Columns) -> Remaining:
    """Return the computation for each iteration of a search: the whole graph, or the part downstream of a cut."""
    graph = state.trained_form
    names = state.parameters.names
    frozen = {n: array for n, array in {**state.frozen, **state.parameters.weights()}.items() if n not in names}
    part = frozen_part(graph.model, graph.scores, names, frozen)
    found = None if part is None else _computed(state, part, columns)
    if part is None or found is None:
        return Remaining(graph, frozen, columns)
    kept = {v.name or "": v for v in part.second.graph.inputs}
    read = {name: column for name, column in {**columns, **found}.items() if name in kept}
    for name in found:
        kept[name].shape = ir.Shape([ir.SymbolicDim("N"), *read[name].shape[1:]])
    inputs = tuple(TensorSpec(name, column.dtype, (None, *column.shape[1:])) for name, column in read.items())
    rest = {name: array for name, array in frozen.items() if name in part.second.graph.initializers}
    return Remaining(replace(graph, model=part.second, inputs=inputs, reference=None), rest, read)


def _computed(state: FittedState, part: FrozenPart, columns: Columns) -> dict[str, InputData] | None:
    """Return the values at the cut of the graph for all rows; None if they are too large, or if rows affect others."""
    names = [v.name or "" for v in part.first.graph.outputs]
    own = {v.name: columns[v.name or ""] for v in part.first.graph.inputs}
    given = {str(name): column for name, column in own.items()}
    sparse = sparse_inputs(columns)
    factors = column_factors(part.first, given, state.device) if sparse and len(names) == 1 else None
    if factors is not None:
        return {names[0]: multiplied(next(iter(given.values())), factors)}
    predictor = Predictor(part.first, state.device, state.session_options, sparse=sparse)
    n_rows = len(next(iter(given.values())))
    found = dict[str, InputData]()
    try:
        for i, name in enumerate(names):
            few = predictor.run(given, np.array([n_rows - 1, 0, n_rows - 1]), output=i)
            # Keep the values only if they fit into memory for all rows, and are narrow compared with sparse rows.
            narrow = all(NARROWER * math.prod(few.shape[1:]) <= math.prod(given[name].shape[1:]) for name in sparse)
            if not narrow or few.nbytes / len(few) * n_rows > COPY_LIMIT:
                return None
            values = predictor.run(given, output=i)
            if not np.allclose(few, values[[-1, 0, -1]], rtol=1e-3, atol=1e-5, equal_nan=True):
                return None  # the last row gets other values beside other rows, so rows depend on each other
            found[name] = InputData(values, values.dtype)
    except ModelError:  # the first axis of the value is not the axis of the rows
        return None
    return found


def column_factors(model: ir.Model, columns: Columns, device: Device) -> np.ndarray | None:
    """Return the factor by which a graph multiplies each column of sparse rows; None if it computes anything else."""
    ir_graph = model.graph
    names = [value.name or "" for value in ir_graph.inputs]
    if len(names) != 1 or names[0] not in sparse_inputs(columns) or not _multiplies_only(ir_graph):
        return None
    column = columns[names[0]]
    ones = InputData(np.ones((1, *column.shape[1:]), column.dtype), column.dtype)
    found = run_graph(model, {names[0]: ones}, np.arange(1), device)
    return found[0] if found.shape == ones.shape and np.isfinite(found).all() else None


def _multiplies_only(ir_graph: ir.Graph) -> bool:
    """Return True if the graph at most multiplies its input by numbers or divides it by them."""
    of_data = set(ir_graph.inputs)
    for node in ir_graph:
        places = [i for i, value in enumerate(node.inputs) if value in of_data]
        if not places:
            continue
        allowed = {"Mul": ([0], [1]), "Div": ([0],)}.get(node.op_type, ([0],) if node.op_type in KEEPS else ())
        if node.domain or places not in allowed:
            return False
        of_data.update(node.outputs)
    return True


def multiplied(column: InputData, factors: np.ndarray) -> InputData:
    """Return sparse data with each column multiplied by its factor."""
    rows = column.sparse_rows(slice(None))
    numbers = (rows.data * factors[rows.indices]).astype(factors.dtype)
    return InputData(type(rows)((numbers, rows.indices, rows.indptr), shape=rows.shape, copy=False), factors.dtype)


def root_mean_squares(column: InputData, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the root mean square of each column of sparse data over the weighted rows."""
    part = column.sparse_rows(rows).astype(np.float64)
    own = np.ones(len(rows)) if weights is None else weights
    return np.asarray(np.sqrt((part.multiply(part).T @ own) / own.sum()))
