"""Training starts from the given graph: the untrained estimator must predict the same, or ``fit`` is refused.

:func:`require_same_start` compares the estimator with the output of a graph. :func:`started` compares it with the file
of a fitted model, whose labels and scores must fit each other too. A difference means that the output was misread, as
scores instead of probabilities for instance, and training would start from another model than the given one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit, softmax

from .._data.columns import InputData
from .._fitted.fitted_model import FittedModel, sample_rows
from .._inference.graph import Decoding
from .._inference.predictor import Predictor
from .._model.activation import NARROW
from .._model.trainable import TrainableModel
from .._ort import devices
from .._ort.devices import Device
from ..exceptions import ModelError
from .file_as_given import FileCompared, require_file_as_given
from .given_output import ReferenceOutput, is_quantized, run_graph
from .ml_files import FILE_TOLERANCE, FittedFile, Labels, are_indicators, outputs_of_file

SOME_STEPS = 0.1
"""Largest difference of outputs of a quantized graph: what rounds the other way in one layer does so in later ones."""

Given: TypeAlias = "tuple[TrainableModel, FittedModel | None]"
Predict: TypeAlias = Callable[[Mapping[str, InputData]], Mapping[str, np.ndarray]]

_OTHER_MODEL = "Training would not start from the ONNX file, so it is refused:"


def require_same_start(
    reference: ReferenceOutput,
    source: TrainableModel,
    decoding: Decoding,
    predictor: Predictor,
    columns: Mapping[str, InputData],
    device: Device,
) -> np.ndarray:
    """Raise if predictions of the untrained estimator, or the scores of its loss, differ from the graph's output.

    ``predictor`` returns the scores as its last output. Return them.
    """
    # Runtimes compute pairs of QuantizeLinear and DequantizeLinear by products of integers in one session and of floats
    # in another, which round otherwise where a number lies between two integers.
    relative, absolute = (SOME_STEPS, SOME_STEPS) if is_quantized(reference.graph.graph) else (1e-4, 2 * NARROW)
    scores = predictor.run(columns, reference.rows, output=-1)
    for what, numbers, expected in _compared_outputs(reference, source, decoding, predictor, columns, scores):
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        if not np.allclose(numbers, expected, rtol=relative, atol=absolute * scale, equal_nan=True):
            again = reference.as_matrix(run_graph(reference.graph, columns, reference.rows, device))
            # A graph that draws random numbers differs from itself, and cannot be compared.
            if np.allclose(again, reference.numbers, rtol=1e-4, atol=1e-4, equal_nan=True):
                distance = float(np.nanmax(np.abs(numbers - expected)))
                raise ModelError(
                    f"Training would not start from the given graph: {what} of the untrained estimator and its output "
                    f"{reference.name!r} differ by up to {distance:.2g} on rows of X. Say what the output holds, or "
                    f"name another: model=GraphModel(..., output_kind=...) or GraphModel(..., output=...)."
                )
    return scores


def _compared_outputs(
    reference: ReferenceOutput,
    source: TrainableModel,
    decoding: Decoding,
    predictor: Predictor,
    columns: Mapping[str, InputData],
    scores: np.ndarray,
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return what is compared: its name, the estimator's numbers and the graph's."""

    def as_rows(found: np.ndarray) -> np.ndarray:
        return found.reshape(-1, found.shape[-1] if reference.positions else math.prod(found.shape[1:])).astype(
            np.float64
        )

    def ours(output: int) -> np.ndarray:
        return as_rows(predictor.run(columns, reference.rows, output=output))

    scores = as_rows(scores)
    if decoding.task == "regression":
        adds = decoding.link != "identity" and source.link != decoding.link
        return [("its scores" if adds else "predict()", scores if adds else ours(0), reference.numbers)]
    if source.link not in ("sigmoid", "softmax"):
        return [("its scores", scores, reference.numbers)]
    expected = np.exp(reference.numbers) if source.log_output else reference.numbers
    p = expit(scores) if source.link == "sigmoid" else softmax(scores, axis=1)
    found = [("the link of its scores", np.hstack([1 - p, p]) if source.paired else p, expected)]
    if decoding.has_probabilities and decoding.link == source.link:
        ours_ = ours(1)
        found.append(("predict_proba()", ours_[:, -expected.shape[1] :], expected))
    return found


def of_kind(given: Given, *, classifies: bool) -> Given:
    """Return ``given``; raise if a file that returns labels would be trained for regression, or the other way round."""
    source, known = given
    if isinstance(known, FittedFile) and known.is_plain:
        return source, replace(known, loss="log_loss" if classifies else "squared_error")
    if isinstance(known, FittedFile) and known.label is None and classifies:
        raise ModelError(
            f"The ONNX file has operators of ai.onnx.ml and returns {known.values!r} without labels, so it is a "
            f"regressor: train it with OrtGradientRegressor, or make the label of its classifier an output too."
        )
    if isinstance(known, FittedFile) and known.label is not None and not classifies:
        raise ModelError("The ONNX file is a classifier: train it with OrtGradientClassifier.")
    return given


def started(known: FittedFile, model: Any, columns: Mapping[str, InputData], predict: Predict) -> FittedFile:
    """Compare ``predict`` with the file on rows of the data; return the description without the file.

    ``model`` is the file as given, run by onnxruntime.

    Raises
    ------
    ModelError
        The results differ.
    """
    rows = sample_rows(np.arange(len(next(iter(columns.values())))))
    sample = {name: InputData(column.rows(rows), column.dtype) for name, column in columns.items()}
    file, of_sample, of_file = known.file, np.arange(len(rows)), FileCompared()
    if file is not None:
        running = Predictor(file, devices.resolve_device(), None)
        run = partial(running.run, sample, output=len(running.outputs) - 1)
        last = running.outputs[-1]
        of_file = require_file_as_given(model, file, (), sample, of_sample, run(of_sample), run, last) or of_file
    _require_file_start(known, sample, predict(sample))
    return replace(known, file=None, compared=of_file)


def _require_file_start(known: FittedFile, columns: Mapping[str, InputData], ours: Mapping[str, np.ndarray]) -> None:
    label, values = outputs_of_file(known, columns)
    values = values if known.order is None else values[:, known.order]
    if label is None and len(ours) > 1:
        _require_scores_start(values, ours)
        return
    if label is None:
        _require_close("predict", values, ours["predict"].reshape(values.shape))
        return
    if known.labels is not None:
        _require_labels_start(known, known.labels, label, values, ours)
        return
    method = "predict_proba" if known.of_probabilities else "decision_function"
    numbers = ours.get(method)
    if numbers is not None and numbers.shape == values.shape:
        _require_close(method, values, numbers)
    elif numbers is not None and method == "decision_function" and numbers.size == len(values):
        _require_close(method, np.abs(values[:, -1]), np.abs(numbers.ravel()))
    elif numbers is None and "predict_proba" in ours:  # margins, which the log loss takes for scores
        _require_margins(values, ours["predict_proba"])
    if not known.of_probabilities:
        _require_consistent(known, label, values)
    different = label.ravel() != ours["predict"]
    if (different & (_distance_from_tie(values) > FILE_TOLERANCE)).any():
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the label of the file in {different.mean():.0%} of the rows: its "
            f"decision rule is not the class with the largest score."
        )


def _require_scores_start(values: np.ndarray, ours: Mapping[str, np.ndarray]) -> None:
    """Compare a classifier with a file that returns scores, or probabilities by its last activation, and no labels."""
    if "predict_proba" not in ours:
        _require_close("decision_function", values, ours["decision_function"].reshape(values.shape))
        return
    p = ours["predict_proba"]
    p = p[:, 1:] if p.shape[1] == 2 and values.shape[1] == 1 else p
    if p.shape != values.shape:
        raise ModelError(f"{_OTHER_MODEL} its output has {values.shape[1]} columns for {p.shape[1]} probabilities.")
    if np.allclose(values, p, atol=FILE_TOLERANCE):
        return
    shares = bool((values >= 0).all()) and np.allclose(values.sum(axis=1), 1, atol=FILE_TOLERANCE)
    if shares and values.shape[1] > 1:
        raise ModelError(f"{_OTHER_MODEL} its output holds probabilities. End it in Softmax, or in the scores before.")
    several = values.shape[1] == 1 or not np.allclose(p.sum(axis=1), 1, atol=FILE_TOLERANCE)
    _require_close("predict_proba", expit(values) if several else softmax(values, axis=1), p)


def _require_labels_start(
    known: FittedFile, labels: Labels, label: np.ndarray, values: np.ndarray, ours: Mapping[str, np.ndarray]
) -> None:
    """Compare what several labels a row give; a label counts where its two best classes are not equally likely."""
    expected, ends = _columns_of_classes(values, labels), np.cumsum([len(one) for one in labels])[:-1]
    method, likely = "predict_proba" if known.of_probabilities else "decision_function", expected
    if not known.of_probabilities and "predict_proba" in ours:  # margins, which the log loss takes for scores
        method = "predict_proba"
        if are_indicators(labels):
            likely = np.asarray(expit(expected))
        else:
            likely = np.hstack([softmax(part, axis=1) for part in np.split(expected, ends, axis=1)])
    numbers = ours[method]
    if numbers.shape != likely.shape:
        raise ModelError(f"{_OTHER_MODEL} {known.values!r} does not hold a number for each label or class.")
    _require_close(method, likely, numbers)
    if are_indicators(labels):
        margin = np.abs(expected - (0.5 if known.of_probabilities else 0.0))
    else:
        margin = np.stack([_distance_from_tie(part) for part in np.split(expected, ends, axis=1)], axis=1)
    different = label.reshape(margin.shape) != ours["predict"]
    if (different & (margin > FILE_TOLERANCE)).any():
        if are_indicators(labels) and not known.of_probabilities:
            at_half = (expected > 0.5) == (label.reshape(expected.shape) == 1)
            if (at_half | (np.abs(expected - 0.5) <= FILE_TOLERANCE)).all():  # ties may fall on either side
                raise ModelError(
                    f"{_OTHER_MODEL} its labels are 1 where the margin in {known.values!r} is above 0.5, as of "
                    f"probabilities, instead of above 0. skl2onnx writes so of OneVsRestClassifier around an estimator "
                    f"without probabilities, such as LinearSVC: give the fitted scikit-learn model itself, or convert "
                    f"one that has probabilities."
                )
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the labels of the file in {different.any(axis=1).mean():.0%} of "
            f"the rows: its decision rule is not the class with the largest score."
        )


def _columns_of_classes(numbers: np.ndarray, labels: Labels) -> np.ndarray:
    """Return numbers with a column for each class of each label; of indicators with one, that of 1.

    Single columns of labels of two classes are margins, which the other class has with the other sign.
    """
    sizes, width = [len(one) for one in labels], numbers.shape[1]
    if are_indicators(labels):
        return numbers[:, 1::2] if width == sum(sizes) else numbers
    if width != sum(1 if size == 2 else size for size in sizes) or width == sum(sizes):
        return numbers
    ends = np.cumsum([1 if size == 2 else size for size in sizes])
    parts = np.split(numbers, ends[:-1], axis=1)
    return np.hstack([np.hstack([-p, p]) if size == 2 else p for p, size in zip(parts, sizes, strict=True)])


def _require_margins(values: np.ndarray, p: np.ndarray) -> None:
    """Compare margins with the probabilities of the log loss; the margin of two classes may have either sign.

    Random rows may not show that an output holds probabilities: naive Bayes gives zeros for far ones.
    """
    if p.shape == values.shape and np.allclose(p, values, rtol=FILE_TOLERANCE, atol=FILE_TOLERANCE):
        return
    if p.shape[1] == 2 and values.shape[1] <= 2:
        opposite = values.shape[1] == 1 or np.allclose(values[:, 0], -values[:, 1], FILE_TOLERANCE, FILE_TOLERANCE)
        margin = values[:, -1] if opposite else values[:, 1] - values[:, 0]
        _require_close("predict_proba", expit(np.abs(margin)), p.max(axis=1))
    elif p.shape == values.shape:
        _require_close("predict_proba", softmax(values, axis=1), p)


def _require_consistent(known: FittedFile, label: np.ndarray, values: np.ndarray) -> None:
    """Raise if the scores of classes point to other classes than the labels: training would begin at the opposite.

    Two margins that are each other's negatives may come in either order. Margins of pairs are not scores of classes,
    though three classes have three of both.
    """
    classes = known.classes
    if not isinstance(classes, np.ndarray) or values.shape[1] != len(classes) or known.of_pairs:
        return
    if len(classes) == 2 and np.allclose(values[:, 0], -values[:, 1], FILE_TOLERANCE, FILE_TOLERANCE):
        return
    if (classes[values.argmax(axis=1)] != label.ravel()).mean() > 0.5:
        raise ModelError(
            f"The labels of the file are not the classes of the largest scores in {known.values!r}, of which training "
            f"would start. skl2onnx writes negative probabilities for raw_scores of support vector machines with "
            f"probability=True: convert without raw_scores, or with probability=False."
        )


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
