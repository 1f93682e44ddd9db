"""Converts data to graph inputs, with scikit-learn's checks: features, feature names, missing values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .._data.columns import Column, dimensions
from .._data.inputs import has_several_inputs, input_columns
from .._fitted.encoding import InputColumns, Specs, table_columns
from .._fitted.model import FEATURES, FittedModel
from .._given.ml_files import FittedFile
from .._graph.trainable import TensorSpec
from .._support.typing import MatrixLike
from ..models import ModelSource, keywords_of, resolve_builder
from .parameters import Parameters
from .run import Run


def graph_inputs(
    estimator: Any, X: MatrixLike, specs: Specs, fitted: FittedModel | None, *, reset: bool
) -> InputColumns:
    """Return the data as the graph's inputs; ``specs`` is None if the graph is not built yet.

    ``reset`` says whether the estimator takes over the features of these data, or checks the data against its own.
    """
    if fitted is not None and fitted.table is not None:
        return table_columns(estimator, X, fitted)
    if fitted is not None and has_several_inputs(X):
        raise TypeError("A fitted scikit-learn model takes X as it was fitted, got a dict of arrays.")
    if reset:
        _forget_features(estimator)
    return input_columns(estimator, X, specs, reset=reset, missing=partial(_allows_missing, estimator, fitted))


def expected_inputs(model: ModelSource, X: MatrixLike) -> Specs:
    """Return the input of a graph that is not built yet, if rows have several axes and the builder accepts them."""
    builder = resolve_builder(model)
    if builder is None or "row_shape" not in keywords_of(builder) or dimensions(X) <= 2:
        return None
    return (TensorSpec("X", np.dtype(np.float32), (None,) * dimensions(X)),)


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


def require_numbers(estimator: Parameters, run: Run, columns: Mapping[str, Column]) -> None:
    """Raise if a fitted model returns NaN for missing values: one step accepts them, the next one does not."""
    if run.fitted is None or run.fitted.table is not None or not _allows_missing(estimator, run.fitted):
        return
    rows = np.unique(np.concatenate([column.rows_with_missing() for column in columns.values()]))
    if len(rows) and np.isnan(run.predictor(columns, with_scores=True).run(columns, rows, output=-1)).any():
        raise ValueError(
            f"Input X contains NaN in columns in which {type(estimator.model).__name__} takes no missing values. Fill "
            f"them in before, with a SimpleImputer for instance."
        )


def predictions_on(estimator: Parameters, run: Run, rows: MatrixLike) -> dict[str, np.ndarray]:
    """Return the predictions of the graph for some rows, by scikit-learn method."""
    return run.predictions(graph_inputs(estimator, rows, run.source.inputs, run.fitted, reset=False))
