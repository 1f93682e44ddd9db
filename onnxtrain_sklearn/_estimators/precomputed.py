"""What no trained weight affects, computed once for all rows before a search: it is the same in every iteration.

Features of a frozen body, the leaves that rows reach in trees, the columns behind scalers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import onnx_ir as ir

from .._data.batches import Batches
from .._data.columns import COPY_LIMIT, Column
from .._graph.frozen_part import FrozenPart, frozen_part
from .._graph.trainable import TensorSpec, TrainableModel
from .._inference.predictor import Predictor
from .._support.refusal import refusing
from .._training.base_step import StepParts
from .._training.choice import new_step
from .._training.loss_graph import TARGET, StepSettings
from .._training.parameters import FlatParameters
from .._training.step import GradientStep, OptimizerState
from ..exceptions import ModelError
from .run import Columns, Run, sparse_inputs
from .sparse_scaling import column_factors, multiplied

NARROWER = 4
"""Of sparse rows only what is narrower by this factor is computed once: they are cheap as they are."""


@dataclass(frozen=True, eq=False)
class Remaining:
    """What is left to compute in each iteration.

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


def remaining(run: Run, parameters: FlatParameters, columns: Columns) -> Remaining:
    """Return what is left to compute where ``parameters`` are trained: the whole graph, or what comes behind a cut."""
    model, trained = run.model, parameters.names
    frozen = {n: array for n, array in {**run.frozen, **run.parameters.weights()}.items() if n not in trained}
    part = frozen_part(model.model, model.scores, trained, frozen)
    found = None if part is None else _computed(run, part, columns)
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
    batches: Batches


@refusing("The graph cannot be trained")
def searched_rows(
    run: Run, settings: StepSettings, parameters: FlatParameters, columns: Columns, batches: Batches
) -> SearchedRows:
    """Return the step that trains ``parameters``, and ``batches`` of what it reads.

    The optimizer in ``settings`` is L-BFGS: the step is the host's.
    """
    rest = remaining(run, parameters, columns)
    sparse = () if settings.device.memory is not None else sparse_inputs(rest.columns)
    parts = StepParts(rest.model, settings, parameters, rest.frozen, OptimizerState(), batches.size, sparse)
    own = batches.of({**rest.columns, TARGET: batches.column(TARGET)})
    return SearchedRows(cast("GradientStep", new_step(parts)), own)


def _computed(run: Run, part: FrozenPart, columns: Columns) -> dict[str, Column] | None:
    """Return the values at which the graph is cut, for all rows; None where they are too large or no rows."""
    names = [v.name or "" for v in part.first.graph.outputs]
    own = {v.name: columns[v.name or ""] for v in part.first.graph.inputs}
    given, sparse = {str(name): column for name, column in own.items()}, sparse_inputs(columns)
    factors = column_factors(part.first, given, run.device) if sparse and len(names) == 1 else None
    if factors is not None:
        return {names[0]: multiplied(next(iter(given.values())), factors)}
    predictor = Predictor(part.first, run.device, run.session_options, sparse=sparse)
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
    """Whether values like these are few enough to be kept for all rows."""
    narrow = all(NARROWER * math.prod(few.shape[1:]) <= math.prod(columns[name].shape[1:]) for name in sparse)
    return narrow and few.nbytes / len(few) * n_rows <= COPY_LIMIT
