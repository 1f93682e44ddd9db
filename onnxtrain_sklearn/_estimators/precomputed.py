"""Precompute everything independent of the trained weights, once for all rows before a search.

Features of a frozen body, the leaves that rows reach in trees, the columns after scalers: each iteration of a search
then computes the rest alone. :func:`remaining` cuts the graph, :func:`searched_rows` makes the step of the search of
what remains. Sparse rows stay sparse: where the cut part multiplies columns by numbers (:func:`column_factors`), as a
scaler that keeps zeros does, their stored numbers are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import onnx_ir as ir

from .._data.batches import ArrayBatches
from .._data.columns import COPY_LIMIT, InputData
from .._given.given_output import run_graph
from .._inference.predictor import Predictor
from .._model.frozen_part import FrozenPart, frozen_part
from .._model.trainable import TensorSpec, TrainableModel
from .._ort.devices import Device
from .._training.loss_graph import TARGET
from .._training.parameters import FlatParameters
from .._training.settings import StepSettings
from .._training.step_choice import new_step
from .._training.step_interface import GradientStep, OptimizerState, StepParts
from .._utils.errors import refusing
from ..exceptions import ModelError
from .fitted_state import Columns, FittedState, sparse_inputs

NARROWER = 4
"""Results of sparse rows are precomputed only if narrower by this factor, because sparse rows are cheap as they are."""

KEEPS = frozenset({"Cast", "Identity"})
"""Operators that change no number."""


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
    columns : mapping of str to InputData
        The data for the inputs.
    """

    model: TrainableModel
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    columns: Columns


def remaining(state: FittedState, parameters: FlatParameters, columns: Columns) -> Remaining:
    """Return the computation left if ``parameters`` are trained: the whole graph, or the part downstream of a cut."""
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


def _computed(state: FittedState, part: FrozenPart, columns: Columns) -> dict[str, InputData] | None:
    """Return the values at the cut of the graph for all rows; None if they are too large, or not one for each row."""
    names = [v.name or "" for v in part.first.graph.outputs]
    own = {v.name: columns[v.name or ""] for v in part.first.graph.inputs}
    given, sparse = {str(name): column for name, column in own.items()}, sparse_inputs(columns)
    factors = column_factors(part.first, given, state.device) if sparse and len(names) == 1 else None
    if factors is not None:
        return {names[0]: multiplied(next(iter(given.values())), factors)}
    predictor = Predictor(part.first, state.device, state.session_options, sparse=sparse)
    n_rows, found = len(next(iter(given.values()))), dict[str, InputData]()
    try:
        for i, name in enumerate(names):
            few = predictor.run(given, np.array([n_rows - 1, 0, n_rows - 1]), output=i)
            # Keep the values only if they fit into memory for all rows, and are narrow compared with sparse rows.
            narrow = all(NARROWER * math.prod(few.shape[1:]) <= math.prod(given[name].shape[1:]) for name in sparse)
            if not narrow or few.nbytes / len(few) * n_rows > COPY_LIMIT:
                return None
            values = predictor.run(given, output=i)
            if not np.allclose(few, values[[-1, 0, -1]], rtol=1e-3, atol=1e-5, equal_nan=True):
                return None  # the last row has other values among other rows: rows depend on each other
            found[name] = InputData(values, values.dtype)
    except ModelError:  # its first axis is not the axis of the rows
        return None
    return found


def column_factors(model: ir.Model, columns: Columns, device: Device) -> np.ndarray | None:
    """Return the factor by which a graph multiplies each column of sparse rows; None if it computes anything else."""
    graph = model.graph
    names = [value.name or "" for value in graph.inputs]
    if len(names) != 1 or names[0] not in sparse_inputs(columns) or not _multiplies_only(graph):
        return None
    column = columns[names[0]]
    ones = InputData(np.ones((1, *column.shape[1:]), column.dtype), column.dtype)
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
