"""Run the given graph on some rows of the data before training, and hold the untrained estimator to its output.

:func:`own_output` runs the graph. :func:`settled` decides whether the output holds scores or probabilities: by the
operators at its end, and by its numbers where these do not tell. :func:`require_own_start` then compares the
predictions of the untrained estimator with the output: training starts from what was given, or is refused.
:func:`started` does the same for files of fitted models, whose labels and scores must fit each other too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from scipy.special import expit, softmax

from .._data.columns import Column
from .._data.targets import Targets
from .._fitted.fitted_model import FittedModel, is_estimator, sample_rows
from .._inference.graph import Head
from .._inference.predictor import Predictor
from .._inference.row_trials import meeting_in
from .._ir.edits import multiply_by_columns
from .._ir.queries import dims
from .._model.batch_axis import has_fixed_batch
from .._model.expressions import NARROW
from .._model.modes import alone
from .._model.score_axes import Positions
from .._model.trainable import TrainableModel, with_output_for
from .._ort import devices
from .._ort.devices import Device
from .._utils.errors import refusing
from ..exceptions import ModelError, warn
from ..models import MODELS, ModelSource, resolve_builder
from ..models.given import bare_model
from .file_as_given import FileCompared, require_file_as_given
from .ml_files import FILE_TOLERANCE, FittedFile, Labels, are_indicators, outputs_of_file

COMPARED_ROWS = 13
COMPARED_NUMBERS = 2**20
"""Number of rows for the given graph, spread over the data: no exporter fixes the batch to this size."""

SOME_STEPS = 0.1
"""Largest difference of outputs of a quantized graph: what rounds the other way in one layer does so in later ones."""

_ENOUGH = 8
"""Smallest number of rows in [0, 1] for which a warning is issued."""

_LINKS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "sigmoid": expit,
    "softmax": lambda scores: softmax(scores, axis=1),
}


@dataclass(frozen=True)
class OwnOutput:
    """Output of the given graph for some rows.

    Attributes
    ----------
    graph : onnx_ir.Model
        The given graph in inference form.
    name : str
        Name of its output.
    rows : ndarray of int
    numbers : ndarray of shape (n_rows, n_columns)
        Its rows are flat; with positions, one row for each of them.
    row_shape : tuple of int
        Shape of a row of the output.
    positions : Positions or None
        The axes of scores at each position of a row.
    file : FileCompared or None
        What was compared with the file as given, run by onnxruntime; None: the model is no file.
    """

    graph: ir.Model
    name: str
    rows: np.ndarray
    numbers: np.ndarray
    row_shape: tuple[int, ...]
    positions: Positions | None = None
    file: FileCompared | None = None

    def as_matrix(self, found: np.ndarray) -> np.ndarray:
        """Return an output of the graph in the layout of ``numbers``."""
        if self.positions is None:
            return _as_flat_rows(found)
        whole = self.positions.classes_last(found)
        return whole.reshape(-1, whole.shape[-1])

    def at(self, positions: Positions) -> OwnOutput:
        """Return the output with one row for each position."""
        whole = replace(self, positions=positions)
        return replace(whole, numbers=whole.as_matrix(self.numbers.reshape(-1, *self.row_shape)))


def is_foreign(model: ModelSource) -> bool:
    """Return True if ``model`` is a foreign ONNX graph: given, or built by a builder of the user."""
    return type(resolve_builder(model)) not in MODELS.values() and not is_estimator(bare_model(model))


def own_output(
    model: ModelSource, source: TrainableModel, columns: Mapping[str, Column], device: Device
) -> OwnOutput | None:
    """Run the graph from which ``source`` was made on some rows of the data; None if ``model`` is not foreign."""
    if not is_foreign(model):
        return None
    whole = source.model if source.reference is None else source.reference
    graph = multiply_by_columns(alone(whole, source.output))
    columns, n = _inputs_of(graph, columns, source.output), len(next(iter(columns.values())))
    # Fewer rows are compared where a row of the output is large, such as words by a vocabulary.
    sizes = next((dims(v) for v in whole.graph.outputs if v.name == source.output), None)
    numbers_of_row = math.prod(d for d in (sizes or [])[1:] if isinstance(d, int))
    most = min(COMPARED_ROWS, COMPARED_NUMBERS // max(1, numbers_of_row))
    rows = np.linspace(0, n - 1, max(3, min(n, most))).astype(int)
    with refusing("The graph does not run on the data"):
        predictor = Predictor(graph, device, None)
    found = _own_numbers(whole, predictor, columns, rows)
    file = require_file_as_given(
        model, graph, source.joined, columns, rows, found, lambda some: predictor.run(columns, some)
    )
    if any(len(rows) in column.shape[1:] for column in columns.values()):
        # The first axis of the output may be another axis of an input, which is as long as there are rows by chance:
        # another number of rows tells, and the predictor raises.
        predictor.run(columns, rows[:2])
    numbers = _as_flat_rows(found)
    if any(has_fixed_batch(v) and len(rows) == v.shape[0] for v in whole.graph.inputs if v.shape is not None):
        _own_numbers(whole, predictor, columns, rows[[0, -1, 0]])  # it may run on so many rows only
    _require_independent_rows(whole, graph, source)
    return OwnOutput(graph, source.output, rows, numbers.astype(np.float64), found.shape[1:], file=file)


def _own_numbers(whole: ir.Model, predictor: Predictor, columns: Mapping[str, Column], rows: np.ndarray) -> np.ndarray:
    """Return the output for some rows; if the graph runs on as many rows as it was exported for only, say so."""
    try:
        with refusing("The graph does not run on the data"):
            return predictor.run(columns, rows)
    except ModelError as error:
        fixed = next((v for v in whole.graph.inputs if has_fixed_batch(v)), None)
        if fixed is None or fixed.shape is None or not _runs_on(int(str(fixed.shape[0])), predictor, columns, rows):
            raise
        raise ModelError(
            f"The graph was exported for {fixed.shape[0]} rows (input {fixed.name!r} has shape {fixed.shape}) and does "
            f"not run on other numbers of rows. {EXPORT}"
        ) from error


def _runs_on(count: int, predictor: Predictor, columns: Mapping[str, Column], rows: np.ndarray) -> bool:
    try:
        with refusing("The graph does not run on its batch"):
            predictor.run(columns, np.resize(rows, count))
    except ModelError:
        return False
    return True


def _require_independent_rows(whole: ir.Model, graph: ir.Model, source: TrainableModel) -> None:
    """Raise or warn if the output for a row depends on the other rows.

    A graph with a free batch axis may decide for all rows together on purpose: it is only warned of. A recurrent one
    goes along that axis by mistake: PyTorch's layers take the steps first by default.
    """
    if not _rows_meet(graph, source.output, source.parameters):
        return
    if _may_go_along_rows(whole.graph) or any(has_fixed_batch(v) for v in whole.graph.inputs):
        raise _across_rows(source.output)
    if is_quantized(whole.graph):  # perhaps by the range of the batch, which rounding alone shows
        return
    warn(
        f"Output {source.output!r} {MIXED}: predictions depend on which rows are predicted together, and training on "
        f"which rows a minibatch holds. Where the first axis of the graph is not that of rows, give X an axis before "
        f"it; where the graph is to see all rows together, set batch_size to their number and shuffle=False."
    )


def _rows_meet(graph: ir.Model, name: str, trained: Sequence[str]) -> bool:
    """Return True if rows are known to meet on the way to an output of an inference form."""
    names, own = [value.name or "" for value in graph.graph.inputs], set(graph.graph.initializers)
    found = meeting_in(graph, names, [name], [one for one in trained if one in own], trained)
    return found is not None and found.seen


def is_quantized(graph: ir.Graph) -> bool:
    """Return True if numbers of the graph are rounded to integers; QuantizeLinear is trained as Round."""
    return any(node.op_type == "Round" or "Quantize" in node.op_type for node in graph.all_nodes())


def require_own_features(model: ir.Model, name: str, trained: Sequence[str]) -> None:
    """Raise if the features for a new head go along the rows."""
    if _may_go_along_rows(model.graph) and _rows_meet(alone(model, name), name, trained):
        raise _across_rows(name)


def _across_rows(name: str) -> ModelError:
    return ModelError(
        f"Output {name!r} {MIXED}: its first axis is not that of the rows, or the graph computes across rows. {EXPORT}"
    )


def _may_go_along_rows(graph: ir.Graph) -> bool:
    """Return True if the graph is recurrent, or an input names a later axis as that of the batch."""
    if any(node.op_type in RECURRENT and not node.domain for node in graph):
        return True
    for value in graph.inputs:
        named = [isinstance(d, ir.SymbolicDim) and "batch" in str(d.value).lower() for d in value.shape or ()]
        if any(named) and not named[0]:
            return True
    return False


MIXED = "of the graph for a row of X depends on the other rows"
EXPORT = (
    "Export the graph with a dynamic batch axis as the first one (in PyTorch: torch.onnx.export(..., "
    "dynamic_shapes=({0: torch.export.Dim('rows')},)), and batch_first=True in recurrent layers)."
)
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


def run_graph(graph: ir.Model, columns: Mapping[str, Column], rows: np.ndarray, device: Device) -> np.ndarray:
    """Return the output of a graph for some rows; raise ModelError if it does not run on them."""
    with refusing("The graph does not run on the data"):
        return Predictor(graph, device, None).run(_inputs_of(graph, columns, graph.graph.outputs[0].name or ""), rows)


def _inputs_of(graph: ir.Model, columns: Mapping[str, Column], output: str) -> Mapping[str, Column]:
    """Return the inputs of a graph: one of several outputs may depend on some of the inputs alone."""
    names = {value.name for value in graph.graph.inputs}
    if not names:
        raise ModelError(f"Output {output!r} depends on no input of the graph: there are no data to train it on.")
    return {name: column for name, column in columns.items() if name in names}


def _as_flat_rows(numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(len(numbers), math.prod(numbers.shape[1:]))


def as_columns(numbers: np.ndarray, name: str) -> np.ndarray:
    """Return an output as a matrix with one row per row of the data; further axes must have size one."""
    require_column_shape(numbers.shape[1:], name)
    return _as_flat_rows(numbers)


def require_column_shape(row_shape: tuple[int, ...], name: str) -> None:
    """Raise if a row of an output has several axes of sizes other than one."""
    if sum(size != 1 for size in row_shape) > 1:
        raise ModelError(
            f"The trained output {name!r} has shape {('n', *row_shape)}; it must be (n,), (n, 1) or (n, k), "
            f"with further axes only of size one. Name another: model=GraphModel(..., output=...)."
        )


def require_target_shape(own: OwnOutput, targets: Targets) -> None:
    """Raise if rows of the output differ in shape from those of numeric targets; one of them may be flat."""
    shapes = own.row_shape, targets.row_shape or (targets.n_outputs,)
    output, y = ([size for size in shape if size != 1] for shape in shapes)
    if output != y and min(len(output), len(y)) > 1:
        raise ValueError(
            f"The graph's output {own.name!r} has shape {('n', *shapes[0])}, but y has shape {('n', *shapes[1])}: a "
            f"row of y must have the shape of a row of the output."
        )


# The kind of the output


def settled(source: TrainableModel, own: OwnOutput, kind: str, *, classifies: bool) -> tuple[TrainableModel, int]:
    """Return the model with the loss computed according to the kind of its output, and the number of scores."""
    if kind == "scores":
        found = source.ignoring_activation()
    elif classifies:
        found = _of_classifier(source, own, kind)
    elif source.link == "exp":
        found = source
    elif kind == "means" or source.range[0] >= 0:
        # Means, and outputs that cannot be negative, get a log link, for losses of the logarithm of the mean.
        found = with_output_for(source, "exp", normalised=source.range[0] < 0)
    else:
        found = source.ignoring_activation()
    return found, 1 if found.paired else own.numbers.shape[1]


def _of_classifier(source: TrainableModel, own: OwnOutput, kind: str) -> TrainableModel:
    claimed, log = kind == "probabilities", source.ends_in_log
    if source.link in _LINKS and source.link != "exp":
        _require_probabilities(own, claimed and not source.log_output)
        return source
    _require_probabilities(own, claimed)
    p = np.exp(own.numbers) if log and not claimed else own.numbers
    low, high = source.range
    proven = high <= NARROW if log else low >= 0 and high <= 1 + NARROW
    shared = p.shape[1] > 1 and bool(np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-3))
    if not (proven or claimed or (_in_unit(p) and shared)):
        # Ambiguous numbers count as scores, as in most graphs. A warning needs numbers that are not all small, as the
        # scores of an untrained graph are, on enough rows.
        rows = len(np.unique(own.rows))
        if rows >= _ENOUGH and _in_unit(own.numbers) and np.ptp(own.numbers) > 0.5:
            warn(
                f"Output {own.name!r} of the graph is taken for scores (logits), though its numbers lie in [0, 1] on "
                f"{rows} rows of X. Say model=GraphModel(..., output_kind='scores') to confirm it, "
                f"'probabilities' if they are probabilities."
            )
        return source.ignoring_activation()
    if not (proven or claimed):
        warn(
            f"Output {own.name!r} of the graph is taken for probabilities: on rows of X its numbers lie in [0, 1] and "
            f"add up to one. Say model=GraphModel(..., output_kind='probabilities') to confirm it, 'scores' if they "
            f"are scores (logits)."
        )
    link = "softmax" if shared else "sigmoid"
    return with_output_for(source, link, log=log and not claimed, normalised=not proven)


def _in_unit(numbers: np.ndarray) -> bool:
    return bool(((numbers >= -NARROW) & (numbers <= 1 + NARROW)).all())


def _require_probabilities(own: OwnOutput, claimed: bool) -> None:
    if claimed and not _in_unit(own.numbers):
        raise ModelError(
            f"output_kind='probabilities', but output {own.name!r} of the graph holds numbers from "
            f"{own.numbers.min():.3g} to {own.numbers.max():.3g} on rows of X. Leave 'auto', or say 'scores'."
        )


# Training starts from the given graph


def require_own_start(
    own: OwnOutput,
    source: TrainableModel,
    head: Head,
    predictor: Predictor,
    columns: Mapping[str, Column],
    device: Device,
) -> np.ndarray:
    """Raise if predictions of the untrained estimator, or the scores of its loss, differ from the graph's output.

    ``predictor`` returns the scores as its last output. Return them.
    """
    # Runtimes compute pairs of QuantizeLinear and DequantizeLinear by products of integers in one session and of floats
    # in another, which round otherwise where a number lies between two integers.
    relative, absolute = (SOME_STEPS, SOME_STEPS) if is_quantized(own.graph.graph) else (1e-4, 2 * NARROW)
    scores = predictor.run(columns, own.rows, output=-1)
    for what, numbers, expected in _compared_outputs(own, source, head, predictor, columns, scores):
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        if not np.allclose(numbers, expected, rtol=relative, atol=absolute * scale, equal_nan=True):
            again = own.as_matrix(run_graph(own.graph, columns, own.rows, device))
            # A graph that draws random numbers differs from itself, and cannot be compared.
            if np.allclose(again, own.numbers, rtol=1e-4, atol=1e-4, equal_nan=True):
                distance = float(np.nanmax(np.abs(numbers - expected)))
                raise ModelError(
                    f"Training would not start from the given graph: {what} of the untrained estimator and its output "
                    f"{own.name!r} differ by up to {distance:.2g} on rows of X. Say what the output holds, or name "
                    f"another: model=GraphModel(..., output_kind=...) or GraphModel(..., output=...)."
                )
    return scores


def _compared_outputs(
    own: OwnOutput,
    source: TrainableModel,
    head: Head,
    predictor: Predictor,
    columns: Mapping[str, Column],
    scores: np.ndarray,
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return what is compared: its name, the estimator's numbers and the graph's."""

    def as_rows(found: np.ndarray) -> np.ndarray:
        return found.reshape(-1, found.shape[-1] if own.positions else math.prod(found.shape[1:])).astype(np.float64)

    def ours(output: int) -> np.ndarray:
        return as_rows(predictor.run(columns, own.rows, output=output))

    scores = as_rows(scores)
    if head.task == "regression":
        adds = head.link != "identity" and source.link != head.link
        return [("its scores" if adds else "predict()", scores if adds else ours(0), own.numbers)]
    if source.link not in ("sigmoid", "softmax"):
        return [("its scores", scores, own.numbers)]
    expected = np.exp(own.numbers) if source.log_output else own.numbers
    p = _LINKS[source.link](scores)
    found = [("the link of its scores", np.hstack([1 - p, p]) if source.paired else p, expected)]
    if head.has_probabilities and head.link == source.link:
        ours_ = ours(1)
        found.append(("predict_proba()", ours_[:, -expected.shape[1] :], expected))
    return found


# Check that training starts from the ONNX file: the untrained estimator must predict the same as the file.


Predict: TypeAlias = Callable[[Mapping[str, Column]], Mapping[str, np.ndarray]]


def started(known: FittedFile, model: Any, columns: Mapping[str, Column], predict: Predict) -> FittedFile:
    """Compare ``predict`` with the file on rows of the data; return the description without the file.

    ``model`` is the file as given, run by onnxruntime.

    Raises
    ------
    ModelError
        The results differ.
    """
    rows = sample_rows(np.arange(len(next(iter(columns.values())))))
    sample = {name: Column(column.rows(rows), column.dtype) for name, column in columns.items()}
    file, of_sample, of_file = known.file, np.arange(len(rows)), FileCompared()
    if file is not None:
        running = Predictor(file, devices.resolve_device(), None)
        run = partial(running.run, sample, output=len(running.outputs) - 1)
        last = running.outputs[-1]
        of_file = require_file_as_given(model, file, (), sample, of_sample, run(of_sample), run, last) or of_file
    _require_file_start(known, sample, predict(sample))
    return replace(known, file=None, compared=of_file)


Given: TypeAlias = "tuple[TrainableModel, FittedModel | None]"


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


def _require_file_start(known: FittedFile, columns: Mapping[str, Column], ours: Mapping[str, np.ndarray]) -> None:
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
