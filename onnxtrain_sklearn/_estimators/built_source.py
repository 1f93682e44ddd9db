"""The graph that a builder builds for the data of a call.

The data are prepared before the graph exists, as float32 in their own shape. If the graph expects another type, or flat
rows in another shape, they are prepared again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .._data.columns import Column
from .._graph.builder import operators_of
from .._graph.limits import current_limits
from .._graph.protobuf import erase_initializers, load
from .._graph.trainable import TrainableModel, trainable_model
from .._models.base import Draft, makes_drafts
from .._support.cache import Cache
from .._support.content import content, is_plain
from ..exceptions import ModelError
from ..models import Builder, keywords_of, resolve_builder
from .examples import Call, Examples, scaled
from .graph_inputs import graph_inputs
from .input_scaling import InputScale, scale_for, with_scaled_rows
from .parameters import Parameters
from .training_rows import TrainingRows

NEEDS_ROWS = {"X", "y", "sample_weight"}
"""The keywords of a builder that depend on the split into training and validation rows."""


def built_for(
    estimator: Parameters, call: Call, examples: Examples, rows: TrainingRows, rng: np.random.RandomState
) -> tuple[TrainableModel, Examples]:
    """Return the graph that the builder of an estimator builds for the data, and the data as its input."""
    builder = resolve_builder(estimator.model)
    assert builder is not None
    trained = rows.split(examples)[0] if needs_rows(builder) else None
    scale = scale_for(estimator, builder, examples, rows)
    source = built_source(builder, scaled(examples, rows.scale), trained, rng, scale)
    (column,) = examples.columns.values()
    if column.matches(source.inputs[0]):
        return source, replace(examples, columns={source.inputs[0].name: column})
    columns = graph_inputs(estimator, call.X, source.inputs, None, reset=False)
    return source, replace(examples, columns=columns)


def needs_rows(builder: Builder) -> bool:
    """Whether the builder uses the training rows."""
    return not NEEDS_ROWS.isdisjoint(keywords_of(builder))


def built_source(
    builder: Builder,
    examples: Examples,
    rows: np.ndarray | None,
    rng: np.random.RandomState,
    scale: InputScale | None = None,
) -> TrainableModel:
    """Return the trainable form of the graph that a builder builds for ``rows`` of the data; None: for all rows.

    A graph of this package's own scales the rows that it gets by ``scale``.
    """
    (column,) = examples.columns.values()
    n_features, n_outputs = math.prod(column.shape[1:]), examples.targets.n_outputs
    keywords = _keywords(builder, column, examples, rows)
    if is_plain(builder) and makes_drafts(builder):
        draft = builder.draft(n_features, n_outputs, rng, **keywords)
        numbers = None if scale is None else scale.key
        key = content(builder), n_features, n_outputs, draft.form, numbers, current_limits()
        source = _sources.get(key, lambda: _form_of_source(builder, draft, scale))
        _require_one_input(source, column, f"{type(builder).__name__}.build")
        return source.with_weights(draft.weights)
    with operators_of(f"{type(builder).__name__}.build"):
        built = builder.build(n_features, n_outputs, rng, **keywords)
    whole = with_scaled_rows(load(built), scale)
    source = replace(_source_built_by(builder, whole), reference=whole)
    _require_one_input(source, column, f"{type(builder).__name__}.build")
    return source


_sources: Cache[TrainableModel] = Cache(64, 2**25, lambda source: sum(a.nbytes for a in source.weights().values()))


def _form_of_source(builder: Builder, draft: Draft, scale: InputScale | None) -> TrainableModel:
    """Return the graph of a draft with zeros in place of the weights of this fit."""
    proto = draft.graph()
    erase_initializers(proto, draft.weights)
    source = _source_built_by(builder, with_scaled_rows(load(proto), scale))
    return source.with_weights(source.weights())  # as arrays: those of a file are read anew each time


def _source_built_by(builder: Builder, whole: ir.Model) -> TrainableModel:
    source = replace(trainable_model(whole), members=_declared_members(builder))
    _require_scores_of_members(source)
    return source


def _declared_members(builder: Builder) -> int | None:
    """Return how many members the graphs of the builder have; the builder has validated its parameters before."""
    members = getattr(builder, "n_members", None)
    if members is None or (isinstance(members, int | np.integer) and members >= 1):
        return None if members is None else int(members)
    raise ValueError(f"n_members of {type(builder).__name__} must be an int, at least 1, or None, got {members!r}.")


def _require_scores_of_members(source: TrainableModel) -> None:
    if source.members is not None and source.link is not None:
        raise ModelError(
            f"The graph ends in the function {source.link!r}; where the builder has n_members, it must return the "
            f"scores of the members, and the link of the loss follows."
        )


def _require_one_input(source: TrainableModel, column: Column, name: str) -> None:
    """Raise if the graph does not accept the rows; ``name`` is the method that built it."""
    if len(source.inputs) != 1:
        raise ModelError(f"{name} made a graph with {len(source.inputs)} inputs, not 1.")
    spec, row = source.inputs[0], column.shape[1:]
    if len(spec.shape) <= len(row):
        shape = ", ".join(["'N'", *map(str, row)])
        raise ModelError(
            f"{name} made a graph whose input {spec.name!r} has {len(spec.shape)} axes, but X has {len(row) + 1}. Give "
            f"the input the shape ({shape}), and flatten the rows inside the graph."
        )


def _keywords(builder: Builder, column: Column, examples: Examples, rows: np.ndarray | None) -> dict[str, Any]:
    """Return the arguments that the builder declares."""
    every = np.arange(len(examples)) if rows is None else np.sort(rows)
    targets, weights = examples.targets.values, examples.weights
    makers: dict[str, Callable[[], object]] = {
        "row_shape": lambda: column.shape[1:],
        "X": lambda: column.read_only(every),
        "y": lambda: targets[every],
        "sample_weight": lambda: None if weights is None else weights[every],
    }
    return {name: makers[name]() for name in keywords_of(builder)}
