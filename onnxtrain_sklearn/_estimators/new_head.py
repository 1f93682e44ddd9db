"""A new head for other classes or targets than those of the given model: the features behind it, and its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from .._fitted.model import FittedModel, is_estimator
from .._given.comparison import as_columns, require_own_features, run_graph
from .._given.ml_files import is_fitted_graph
from .._graph.new_head import SAME_TYPES, HeadTypes, graph_of_features, types_of_head, with_head
from .._graph.protobuf import LABELS
from .._graph.shapes import infer_shapes
from .._graph.trainable import TrainableModel, trainable_model
from .._runtime import devices
from ..exceptions import ModelError
from ..finetuning import FineTuner
from ..models import resolve_builder
from .examples import Examples
from .model_source import given_graph, source_of
from .parameters import Parameters
from .run import Run


@dataclass(frozen=True)
class Body:
    """The part of a given model that a new head is put on.

    Attributes
    ----------
    source : TrainableModel
        The graph that ends in the features.
    fitted : FittedModel or None
        The fitted model from which it comes: its transformers stay as they are.
    types : HeadTypes
        The types in which the file keeps what the head replaces.
    """

    source: TrainableModel
    fitted: FittedModel | None
    types: HeadTypes = SAME_TYPES


def gets_new_head(estimator: Parameters, old: Run | None) -> bool:
    """Whether a call of ``fit`` replaces the head of the given model."""
    tuner = estimator.finetune
    if old is not None or not isinstance(tuner, FineTuner) or resolve_builder(estimator.model) is not None:
        return False
    tuner.validate()
    return bool(tuner.new_head)


def body_of(estimator: Parameters) -> Body:
    """Return the part of the given model before its head."""
    model, output = estimator.model, estimator.output
    whole = None if is_estimator(model) else given_graph(cast("bytes", model))
    if whole is not None and not (whole.meta[LABELS] or is_fitted_graph(whole, output)):
        whole = infer_shapes(whole.clone())  # the final activation is recognized by the axes that it normalizes
        graph, features = graph_of_features(whole, output)
        source = replace(trainable_model(graph, features, foreign=True), reference=None)
        return Body(source, None, types_of_head(whole, output))
    source, fitted = source_of(model, None)
    if fitted is not None and fitted.table is not None:
        raise ModelError(
            f"new_head=True needs a model that takes numbers, and {type(model).__name__} encodes text. Convert the "
            f"table by its transformers first, and give the model behind them."
        )
    final = next(v for v in source.model.graph.outputs if v.name == source.scores)
    graph, features = graph_of_features(source.model, output, final)
    return Body(trainable_model(graph, features), fitted)


def headed(body: Body, examples: Examples) -> tuple[TrainableModel, tuple[str, str]]:
    """Return the graph with a head for the targets, and the names of the head's weights."""
    rows = np.array([0, len(examples) - 1, 0])
    found = run_graph(body.source.model, examples.columns, rows, devices.resolve_device())
    require_own_features(body.source.model, body.source.output, body.source.parameters)
    width = as_columns(found, body.source.output).shape[1]
    graph, names = with_head(body.source.model, body.source.output, width, examples.targets.n_outputs, body.types)
    return trainable_model(graph, foreign=body.fitted is None), names
