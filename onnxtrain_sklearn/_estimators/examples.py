"""Check X and y, and turn them into training and validation examples, from which minibatches are drawn.

:func:`graph_inputs` turns X into the inputs of the graph, also for predictions; functions of :mod:`.outputs` encode y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._data.batches import MERGE_LIMIT, ArrayBatches, distinct_rows, weighted_rows
from .._data.columns import InputData, dimensions, require_in_memory
from .._data.declared_targets import target_inputs
from .._data.inputs import has_several_inputs, input_columns
from .._data.lists_of_examples import require_targets_of_one_shape
from .._data.target_scale import TargetScale
from .._data.targets import Targets
from .._fitted.fitted_model import FEATURES, FittedModel, InputColumns, Specs, encoded_inputs, table_columns
from .._model.own_loss import OWN_LOSS
from .._model.trainable import TensorSpec, TrainableModel
from .._model.whole_data import ROW
from .._pretrained.comparison import require_target_of_each_row
from .._pretrained.ml_files import FittedFile
from .._training.loss_graph import TARGET, as_target
from .._utils.typing import MatrixLike
from ..losses.regression import reconstructs
from ..models import keywords_of, resolve_builder
from ..models.given import bare_model
from .call import Call, EncodedData
from .fitted_state import Columns, FittedState
from .outputs import (
    OutputSpec,
    is_own_loss,
    require_known_labels,
    require_one_label,
    takes_positions,
    trained_positions,
    weighted_targets,
)
from .parameters import Parameters


def training_examples(
    estimator: Any, call: Call, graph: TrainableModel | None, fitted: FittedModel | None, resumed: FittedState | None
) -> EncodedData:
    """Return the examples of a call; ``graph`` is None if a builder builds it after the data are read."""
    output_spec: OutputSpec = estimator._output_spec()
    if graph is not None and graph.takes_examples:
        require_targets_of_one_shape(call.y)
    specs: Specs = None if graph is None else graph.inputs_of_X
    builder = None if graph is not None else resolve_builder(estimator.model)
    if builder is not None and "row_shape" in keywords_of(builder) and dimensions(call.X) > 2:
        # this builder builds graphs for rows of several axes
        specs = (TensorSpec("X", np.dtype(np.float32), (None,) * dimensions(call.X)),)
    # X is checked against the features of a fitted scikit-learn model. An ONNX file has none: X defines them.
    if resumed is None and fitted is not None:
        take_features(estimator, fitted)
    reset = resumed is None and (fitted is None or isinstance(fitted, FittedFile))
    if call.stream is None:
        columns = graph_inputs(estimator, call.X, specs, fitted, reset=reset)
    else:
        convert = partial(graph_inputs, estimator, specs=specs, fitted=fitted, reset=reset)
        columns = call.stream.converted(call.X, convert)
    columns = columns if fitted is None else encoded_inputs(columns, fitted, specs)
    if fitted is None:
        known = call.classes
    else:
        known = fitted.known_classes(call.classes, call.y if output_spec.label_kind == "labels" else None)
    if known is None and call.stream is not None and not call.one_epoch:
        known = call.stream.classes  # call.y is a sample, which may lack some classes
    # Does y have a label for each position of a row? An earlier call or a fitted model decides; else y and the graph.
    at_positions = resumed is None and fitted is None and takes_positions(output_spec, graph, call.y)
    require_one_label(at_positions=at_positions and call.stream is not None)
    if call.one_epoch and resumed is None:
        require_known_labels(output_spec, call.y, known, at_positions=at_positions)
    decoding, known = (None, known) if resumed is None else (resumed.decoding, resumed.decoding.classes)
    if reconstructs(estimator.loss):
        if output_spec.classifies:
            raise ValueError("loss='reconstruction' learns the numbers of X, not labels: take OrtGradientRegressor.")
        call = replace(call, y=rows_as_targets(columns))
    n_rows = _count_of_rows(columns, specs, call.y)
    require_same_kind_of_loss(estimator, graph, resumed)
    if graph is not None and graph.own_loss is not None:
        columns = {**columns, **own_targets(graph, call.y, call.sample_weight, n_rows, resumed)}
        call = replace(call, y=None)
    found = weighted_targets(
        output_spec,
        n_rows,
        call.y,
        call.sample_weight,
        known,
        decoding,
        at_positions=at_positions,
        allow_missing=call.stream is None,
    )
    return EncodedData(columns, *found)


def validation_examples(
    estimator: Any, state: FittedState, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> EncodedData:
    """Return the validation examples, checked like the training examples."""
    columns = graph_inputs(estimator, X, state.graph.inputs_of_X, state.fitted, reset=False)
    columns = columns if state.fitted is None else encoded_inputs(columns, state.fitted, state.graph.inputs_of_X)
    y = rows_as_targets(columns) if reconstructs(estimator.loss) else y
    n_rows = _count_of_rows(columns, state.graph.inputs_of_X, y)
    decoding = state.decoding
    require_same_kind_of_loss(estimator, state.graph, state)
    targets: Any = y
    if state.graph.own_loss is not None:
        columns = {**columns, **own_targets(state.graph, y, sample_weight, n_rows, state)}
        targets = None
    found = weighted_targets(
        estimator._output_spec(),
        n_rows,
        targets,
        sample_weight,
        decoding.classes,
        decoding,
        at_positions=False,
        allow_missing=True,
    )
    require_rows_of_output(state, columns, n_rows)
    return EncodedData(columns, *found)


def rows_as_targets(columns: InputColumns) -> np.ndarray:
    """Return the rows of X as the targets of a network that reconstructs them."""
    if len(columns) != 1 or any(one.is_sparse for one in columns.values()):
        raise TypeError(
            f"loss='reconstruction' learns one array of numbers that is not sparse, got "
            f"{f'{len(columns)} inputs' if len(columns) != 1 else 'a sparse matrix; use X.toarray()'}."
        )
    (column,) = columns.values()
    return column.rows(slice(None))


def require_rows_of_output(state: FittedState, columns: Columns, n_rows: int) -> None:
    """Raise unless there are as many targets as the graph gives rows; X shows their number only if it has rows."""
    if state.graph.is_whole:
        found = state.plain_predictor().run(columns, output=-1)
        require_target_of_each_row(
            state.graph.forms[-1].output if state.graph.forms else state.graph.output, found, n_rows
        )


def own_targets(
    graph: TrainableModel, y: Any, sample_weight: ArrayLike | None, n_rows: int, earlier: FittedState | None
) -> InputColumns:
    """Return ``y`` as the inputs that only the loss of the graph reads; ``earlier`` is the state of the first call."""
    assert graph.own_loss is not None
    if sample_weight is not None and not graph.own_loss.by_row:
        raise ValueError(
            f"Output {graph.own_loss.name!r} of the graph is one loss for a minibatch, in which rows have no weights: "
            f"leave sample_weight=None, or let the graph give a loss for each row."
        )
    specs = [spec for spec in graph.inputs if spec.name in graph.own_loss.targets]
    rows = {} if earlier is None else {spec.name: earlier.shapes[spec.name] for spec in specs}
    return target_inputs(y, specs, n_rows, graph.own_loss.name, rows)


def require_same_kind_of_loss(estimator: Any, graph: TrainableModel | None, resumed: FittedState | None) -> None:
    """Raise ValueError if training began with a loss of the graph itself and goes on with another, or vice versa."""
    own = None if graph is None else graph.own_loss
    same = is_own_loss(estimator.loss) if own is not None else not is_own_loss(estimator.loss)
    if own is not None and same:
        same = estimator.loss in (OWN_LOSS, own.name)
    if not same and resumed is not None:
        began = "another loss" if own is None else f"the loss that the graph computes, loss={own.name!r}"
        raise ValueError(
            f"Training began with {began}, got loss={estimator.loss!r}: take that loss again, or fit anew."
        )


def _count_of_rows(columns: InputColumns, specs: Specs, y: ArrayLike) -> int:
    """Return the number of rows of X; that of y if X has none, because the data are one thing."""
    whole = specs is not None and any(not spec.by_row for spec in specs)
    return len(np.asarray(y)) if whole else len(next(iter(columns.values())))


def batches_for(
    state: FittedState,
    examples: EncodedData,
    rows: np.ndarray,
    size: int,
    *,
    shuffle: bool,
    drop_last: bool = False,
    rows_meet: bool = False,
) -> ArrayBatches:
    """Return the minibatches of the examples with the indices ``rows``; the target is one of their columns.

    If all rows fit into one minibatch and are few, equal rows are merged into one with the sum of their weights. They
    stay separate if rows meet (the result of a row depends on the other rows of its minibatch), because then their
    number matters.
    """
    examples = scaled(examples, state.decoding.target_scale)
    columns = trained_columns(state, examples)
    weights = examples.weights
    n_rows = len(rows)
    merges = n_rows <= min(size, MERGE_LIMIT) and not rows_meet
    rows, weights = distinct_rows(columns, rows, weights) if merges else weighted_rows(rows, weights)
    return ArrayBatches(
        columns,
        rows,
        weights,
        size,
        state.rng if shuffle else None,
        n_rows=n_rows,
        drop_last=drop_last,
        batch=state.graph.batch,
    )


def trained_columns(state: FittedState, examples: EncodedData) -> dict[str, InputData]:
    """Return the columns that the training step reads: the inputs of the graph, and the target.

    The targets of ``examples`` must be scaled already (:func:`scaled`).
    """
    positions = trained_positions(state.decoding, examples.targets)
    values, dtype = as_target(state.decoding, examples.targets.values, state.parameters.buffer.dtype, positions)
    columns: Mapping[str, InputData] = examples.columns
    if state.graph.is_whole:
        columns = {ROW: InputData(np.arange(len(examples)), np.dtype(np.int64))}
    return {**columns, TARGET: InputData(examples.targets.with_shares(values), dtype)}


def scaled(examples: EncodedData, scale: TargetScale | None) -> EncodedData:
    """Return the examples with scaled targets. X is scaled by the graph: ``graph_plan.scale_for``."""
    if scale is None:
        return examples
    targets = examples.targets
    return replace(examples, targets=replace(targets, values=scale.scaled(targets.values)))


def scaled_values(state: FittedState, targets: Targets) -> np.ndarray:
    """Return the targets in the units in which the graph is trained, with their shares."""
    scale = state.decoding.target_scale
    values = targets.values
    return targets.with_shares(values if scale is None else scale.scaled(values))


# Convert data to graph inputs, with scikit-learn's checks: features, feature names, missing values.


def graph_inputs(
    estimator: Any, X: MatrixLike, specs: Specs, fitted: FittedModel | None, *, reset: bool
) -> InputColumns:
    """Return the data as inputs of the graph; ``specs`` describes these inputs, and is None before a graph is built.

    ``reset`` sets the estimator's feature attributes from X; without it, X is checked against them.
    """
    require_in_memory(X)
    if fitted is not None and fitted.table is not None:
        return table_columns(estimator, X, fitted)
    if fitted is not None and has_several_inputs(X):
        raise TypeError("A fitted scikit-learn model takes X as it was fitted, got a dict of arrays.")
    if reset:
        _forget_features(estimator)
    return input_columns(estimator, X, specs, reset=reset, missing=partial(_allows_missing, estimator, fitted))


def take_features(estimator: Parameters, fitted: FittedModel) -> None:
    """Copy the features of the fitted model to the estimator, so that data are checked against them."""
    _forget_features(estimator)
    vars(estimator).update(fitted.features)


def _forget_features(estimator: Parameters) -> None:
    for name in FEATURES:
        vars(estimator).pop(name, None)


def _allows_missing(estimator: Any, fitted: FittedModel | None) -> bool:
    allowed: bool = estimator.__sklearn_tags__().input_tags.allow_nan
    return fitted.allows_missing if isinstance(fitted, FittedFile) else allowed


def require_no_nan(estimator: Parameters, state: FittedState, columns: Mapping[str, InputData]) -> None:
    """Raise if the graph predicts NaN for a row with a missing value.

    In this case a step of the pipeline accepts missing values, and a later one does not.
    """
    if state.fitted is None or state.fitted.table is not None or not _allows_missing(estimator, state.fitted):
        return
    rows = np.unique(np.concatenate([column.rows_with_missing() for column in columns.values()]))
    if len(rows) and np.isnan(state.predictor(columns, with_scores=True).run(columns, rows, output=-1)).any():
        raise ValueError(
            f"Input X contains NaN in columns in which {type(bare_model(estimator.model)).__name__} accepts no missing "
            f"values. Fill them in first, for instance with a SimpleImputer."
        )


def predictions_on(estimator: Parameters, state: FittedState, rows: MatrixLike) -> dict[str, np.ndarray]:
    """Return the predictions of the graph for ``rows`` of data, by the name of scikit-learn's method."""
    return state.predictions(graph_inputs(estimator, rows, state.graph.inputs_of_X, state.fitted, reset=False))
