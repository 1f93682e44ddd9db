"""Check that training starts from the ONNX file: the untrained estimator must predict the same as the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from .._data.columns import Column
from .._fitted.model import FittedModel
from .._fitted.sample import sample_rows
from .._graph.trainable import TrainableModel
from ..exceptions import ModelError
from .ml_files import FittedFile, outputs_of_file
from .ml_graphs import FILE_TOLERANCE

Predict: TypeAlias = Callable[[Mapping[str, Column]], Mapping[str, np.ndarray]]


def started(known: FittedFile, columns: Mapping[str, Column], predict: Predict) -> FittedFile:
    """Compare ``predict`` with the file on rows of the data; return the description without the file.

    Raises
    ------
    ModelError
        The results differ.
    """
    rows = sample_rows(np.arange(len(next(iter(columns.values())))))
    sample = {name: Column(column.rows(rows), column.dtype) for name, column in columns.items()}
    _require_file_start(known, sample, predict(sample))
    return replace(known, file=None)


Given: TypeAlias = "tuple[TrainableModel, FittedModel | None]"


def of_kind(given: Given, *, classifies: bool) -> Given:
    """Return ``given``; raise if a file that returns labels would be trained for regression, or the other way round."""
    known = given[1]
    if isinstance(known, FittedFile) and known.label is None and classifies:
        raise ModelError(
            f"The ONNX file has operators of ai.onnx.ml and returns {known.values!r} without labels, so it is a "
            f"regressor: train it with OrtGradientRegressor, or make the label of its classifier an output too."
        )
    if isinstance(known, FittedFile) and known.label is not None and not classifies:
        raise ModelError("The ONNX file is a classifier: train it with OrtGradientClassifier.")
    return given


def _require_file_start(known: FittedFile, columns: Mapping[str, Column], ours: Mapping[str, np.ndarray]) -> None:
    label, values = outputs_of_file(known, columns)
    values = values if known.order is None else values[:, known.order]
    if label is None:
        _require_close("predict", values, ours["predict"].reshape(values.shape))
        return
    method = "predict_proba" if known.of_probabilities else "decision_function"
    numbers = ours.get(method)
    if numbers is not None and numbers.shape == values.shape:
        _require_close(method, values, numbers)
    elif numbers is not None and method == "decision_function" and numbers.size == len(values):
        _require_close(method, np.abs(values[:, -1]), np.abs(numbers.ravel()))
    different = label.ravel() != ours["predict"]
    if (different & (_distance_from_tie(values) > FILE_TOLERANCE)).any():
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the label of the file in {different.mean():.0%} of the rows: its "
            f"decision rule is not the class with the largest score."
        )


_OTHER_MODEL = "Training would not start from the ONNX file, so it is refused:"


def _require_close(method: str, expected: np.ndarray, numbers: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    if not np.allclose(numbers, expected, rtol=FILE_TOLERANCE, atol=FILE_TOLERANCE * scale):
        distance = float(np.abs(numbers - expected).max())
        raise ModelError(f"{_OTHER_MODEL} {method}() differs by up to {distance:.2g} on rows of X.")


def _distance_from_tie(values: np.ndarray) -> np.ndarray:
    """Return the distance of each row from a tie: of its two largest scores, or of a single score from zero."""
    values = values.reshape(len(values), -1)
    if values.shape[1] == 1:
        return np.asarray(np.abs(values.ravel()))
    top = np.sort(values, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])
