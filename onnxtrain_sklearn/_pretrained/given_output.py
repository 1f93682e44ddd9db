"""The output of the given graph before training: its numbers on some rows of the data, its shape and its kind.

:func:`reference_output` runs the graph, and refuses one that computes across rows. :func:`settled` decides whether the
output holds scores or probabilities: by the operators at its end, and by its numbers where these do not tell.
``same_start`` then holds the untrained estimator to these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._data.columns import InputData
from .._data.targets import Targets
from .._fitted.fitted_model import is_estimator
from .._inference.predictor import Predictor
from .._inference.row_trials import meeting_in
from .._ir.edits import multiply_by_columns
from .._ir.queries import dims
from .._model.activation import NARROW
from .._model.batch_axis import has_fixed_batch
from .._model.links import Positions
from .._model.modes import alone
from .._model.trainable import TrainableModel, with_scores_from_output
from .._ort.devices import Device
from .._utils.errors import refusing
from ..exceptions import ModelError, warn
from ..models import MODELS, ModelSource, resolve_builder
from ..models.given import bare_model
from .file_as_given import FileCompared, require_file_as_given

COMPARED_ROWS = 13
"""Number of rows for the given graph, spread over the data: no exporter fixes the batch to this size."""

COMPARED_NUMBERS = 2**20
"""Most numbers of the output for these rows: of a graph with large rows, such as words by a vocabulary, take fewer."""

TELLING_ROWS = 8
"""Smallest number of rows in [0, 1] for which a warning is issued."""

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
MIXED = "of the graph for a row of X depends on the other rows"
EXPORT = (
    "Export the graph with a dynamic batch axis as the first one (in PyTorch: torch.onnx.export(..., "
    "dynamic_shapes=({0: torch.export.Dim('rows')},)), and batch_first=True in recurrent layers)."
)


@dataclass(frozen=True)
class ReferenceOutput:
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

    def at(self, positions: Positions) -> ReferenceOutput:
        """Return the output with one row for each position."""
        whole = replace(self, positions=positions)
        return replace(whole, numbers=whole.as_matrix(self.numbers.reshape(-1, *self.row_shape)))


def is_foreign(model: ModelSource) -> bool:
    """Return True if ``model`` is a foreign ONNX graph: given, or built by a builder of the user."""
    return type(resolve_builder(model)) not in MODELS.values() and not is_estimator(bare_model(model))


def reference_output(
    model: ModelSource, source: TrainableModel, columns: Mapping[str, InputData], device: Device
) -> ReferenceOutput | None:
    """Run the graph from which ``source`` was made on some rows of the data; None if ``model`` is not foreign."""
    if not is_foreign(model):
        return None
    whole = source.model if source.reference is None else source.reference
    graph = multiply_by_columns(alone(whole, source.output))
    columns, n = _inputs_of(graph, columns, source.output), len(next(iter(columns.values())))
    sizes = next((dims(v) for v in whole.graph.outputs if v.name == source.output), None)
    numbers_of_row = math.prod(d for d in (sizes or [])[1:] if isinstance(d, int))
    most = min(COMPARED_ROWS, COMPARED_NUMBERS // max(1, numbers_of_row))
    rows = np.linspace(0, n - 1, max(3, min(n, most))).astype(int)
    with refusing("The graph does not run on the data"):
        predictor = Predictor(graph, device, None)
    found = _numbers_of(whole, predictor, columns, rows)
    file = require_file_as_given(
        model, graph, source.joined, columns, rows, found, lambda some: predictor.run(columns, some)
    )
    if any(len(rows) in column.shape[1:] for column in columns.values()):
        # The first axis of the output may be another axis of an input, which is as long as there are rows by chance:
        # another number of rows tells, and the predictor raises.
        predictor.run(columns, rows[:2])
    numbers = _as_flat_rows(found)
    if any(has_fixed_batch(v) and len(rows) == v.shape[0] for v in whole.graph.inputs if v.shape is not None):
        _numbers_of(whole, predictor, columns, rows[[0, -1, 0]])  # it may run on so many rows only
    _require_independent_rows(whole, graph, source)
    return ReferenceOutput(graph, source.output, rows, numbers.astype(np.float64), found.shape[1:], file=file)


def _numbers_of(
    whole: ir.Model, predictor: Predictor, columns: Mapping[str, InputData], rows: np.ndarray
) -> np.ndarray:
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


def _runs_on(count: int, predictor: Predictor, columns: Mapping[str, InputData], rows: np.ndarray) -> bool:
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


def is_quantized(graph: ir.Graph) -> bool:
    """Return True if numbers of the graph are rounded to integers; QuantizeLinear is trained as Round."""
    return any(node.op_type == "Round" or "Quantize" in node.op_type for node in graph.all_nodes())


def require_independent_features(model: ir.Model, name: str, trained: Sequence[str]) -> None:
    """Raise if the features for a new head go along the rows."""
    if _may_go_along_rows(model.graph) and _rows_meet(alone(model, name), name, trained):
        raise _across_rows(name)


def _rows_meet(graph: ir.Model, name: str, trained: Sequence[str]) -> bool:
    """Return True if rows are known to meet on the way to an output of an inference form."""
    names, own = [value.name or "" for value in graph.graph.inputs], set(graph.graph.initializers)
    found = meeting_in(graph, names, [name], [one for one in trained if one in own], trained)
    return found is not None and found.seen


def _may_go_along_rows(graph: ir.Graph) -> bool:
    """Return True if the graph is recurrent, or an input names a later axis as that of the batch."""
    if any(node.op_type in RECURRENT and not node.domain for node in graph):
        return True
    for value in graph.inputs:
        named = [isinstance(d, ir.SymbolicDim) and "batch" in str(d.value).lower() for d in value.shape or ()]
        if any(named) and not named[0]:
            return True
    return False


def _across_rows(name: str) -> ModelError:
    return ModelError(
        f"Output {name!r} {MIXED}: its first axis is not that of the rows, or the graph computes across rows. {EXPORT}"
    )


def run_graph(graph: ir.Model, columns: Mapping[str, InputData], rows: np.ndarray, device: Device) -> np.ndarray:
    """Return the output of a graph for some rows; raise ModelError if it does not run on them."""
    with refusing("The graph does not run on the data"):
        return Predictor(graph, device, None).run(_inputs_of(graph, columns, graph.graph.outputs[0].name or ""), rows)


def _inputs_of(graph: ir.Model, columns: Mapping[str, InputData], output: str) -> Mapping[str, InputData]:
    """Return the inputs of a graph: one of several outputs may depend on some of the inputs alone."""
    names = {value.name for value in graph.graph.inputs}
    if not names:
        raise ModelError(f"Output {output!r} depends on no input of the graph: there are no data to train it on.")
    return {name: column for name, column in columns.items() if name in names}


def as_columns(numbers: np.ndarray, name: str) -> np.ndarray:
    """Return an output as a matrix with one row per row of the data; further axes must have size one."""
    require_column_shape(numbers.shape[1:], name)
    return _as_flat_rows(numbers)


def _as_flat_rows(numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(len(numbers), math.prod(numbers.shape[1:]))


def require_column_shape(row_shape: tuple[int, ...], name: str) -> None:
    """Raise if a row of an output has several axes of sizes other than one."""
    if sum(size != 1 for size in row_shape) > 1:
        raise ModelError(
            f"The trained output {name!r} has shape {('n', *row_shape)}; it must be (n,), (n, 1) or (n, k), "
            f"with further axes only of size one. Name another: model=GraphModel(..., output=...)."
        )


def require_target_shape(reference: ReferenceOutput, targets: Targets) -> None:
    """Raise if rows of the output differ in shape from those of numeric targets; one of them may be flat."""
    shapes = reference.row_shape, targets.row_shape or (targets.n_outputs,)
    output, y = ([size for size in shape if size != 1] for shape in shapes)
    if output != y and min(len(output), len(y)) > 1:
        raise ValueError(
            f"The graph's output {reference.name!r} has shape {('n', *shapes[0])}, but y has shape "
            f"{('n', *shapes[1])}: a row of y must have the shape of a row of the output."
        )


def settled(
    source: TrainableModel, reference: ReferenceOutput, kind: str, *, classifies: bool
) -> tuple[TrainableModel, int]:
    """Return the model with the loss computed according to the kind of its output, and the number of scores."""
    if kind == "scores":
        found = source.ignoring_activation()
    elif classifies:
        found = _of_classifier(source, reference, kind)
    elif source.link == "exp":
        found = source
    elif kind == "means" or source.range[0] >= 0:
        # Means, and outputs that cannot be negative, get a log link, for losses of the logarithm of the mean.
        found = with_scores_from_output(source, "exp", link_unproven=source.range[0] < 0)
    else:
        found = source.ignoring_activation()
    return found, 1 if found.paired else reference.numbers.shape[1]


def _of_classifier(source: TrainableModel, reference: ReferenceOutput, kind: str) -> TrainableModel:
    claimed, log = kind == "probabilities", source.ends_in_log
    if source.link in ("sigmoid", "softmax"):
        _require_probabilities(reference, claimed and not source.log_output)
        return source
    _require_probabilities(reference, claimed)
    p = np.exp(reference.numbers) if log and not claimed else reference.numbers
    low, high = source.range
    proven = high <= NARROW if log else low >= 0 and high <= 1 + NARROW
    shared = p.shape[1] > 1 and bool(np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-3))
    if not (proven or claimed or (_in_unit(p) and shared)):
        # Ambiguous numbers count as scores, as in most graphs. A warning needs numbers that are not all small, as the
        # scores of an untrained graph are, on enough rows.
        rows = len(np.unique(reference.rows))
        if rows >= TELLING_ROWS and _in_unit(reference.numbers) and np.ptp(reference.numbers) > 0.5:
            warn(
                f"Output {reference.name!r} of the graph is taken for scores (logits), though its numbers lie in [0, "
                f"1] on {rows} rows of X. Say model=GraphModel(..., output_kind='scores') to confirm it, "
                f"'probabilities' if they are probabilities."
            )
        return source.ignoring_activation()
    if not (proven or claimed):
        warn(
            f"Output {reference.name!r} of the graph is taken for probabilities: on rows of X its numbers lie in [0, "
            f"1] and add up to one. Say model=GraphModel(..., output_kind='probabilities') to confirm it, 'scores' if "
            f"they are scores (logits)."
        )
    link = "softmax" if shared else "sigmoid"
    return with_scores_from_output(source, link, log=log and not claimed, link_unproven=not proven)


def _in_unit(numbers: np.ndarray) -> bool:
    return bool(((numbers >= -NARROW) & (numbers <= 1 + NARROW)).all())


def _require_probabilities(reference: ReferenceOutput, claimed: bool) -> None:
    if claimed and not _in_unit(reference.numbers):
        raise ModelError(
            f"output_kind='probabilities', but output {reference.name!r} of the graph holds numbers from "
            f"{reference.numbers.min():.3g} to {reference.numbers.max():.3g} on rows of X. Leave 'auto', or say "
            f"'scores'."
        )
