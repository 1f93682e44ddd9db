"""Check that training starts from a given ONNX graph: run it, decide what its output holds, compare predictions.

Three comparisons ensure that ``fit`` does not silently train another model than the given one. Each raises ModelError
if results differ on some rows of the data:

- :func:`require_exact_import` compares the graph that was read with the unchanged file, which onnxruntime runs. Reading
  rewrites a graph: it converts the opset, undoes changes that exporters made, replaces operators.
- :func:`require_same_outputs` compares predictions of the untrained estimator with the output of the graph. They differ
  if the output was misread, for instance as scores instead of probabilities.
- :func:`require_same_model` compares them with a file of a fitted model, whose labels must also agree with its scores.

:func:`reference_output` runs the graph, and refuses a graph that computes across rows. :func:`resolve_output_kind`
decides whether its output holds scores or probabilities: by the operators at its end or, if they do not determine it,
by the numbers of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from scipy.special import expit, softmax

from .._data.columns import InputData
from .._data.lists_of_examples import one_example
from .._data.targets import Targets
from .._fitted.fitted_model import is_estimator, sample_rows
from .._importers.load import without_zip_maps
from .._inference.graph import Decoding
from .._inference.predictor import Predictor
from .._ir.edits import multiply_by_columns
from .._ir.files import read, without_program
from .._ir.protobuf import to_proto
from .._ir.queries import dims
from .._model.activation import NARROW
from .._model.fixed_batch import has_fixed_batch
from .._model.given_inputs import axis_of, constant_for_file
from .._model.graph_comparison import (
    LARGEST,
    Comparison,
    compare_outputs,
    drawn_input,
    draws,
    in_predicting_form,
    inputs_of,
    plain_session,
)
from .._model.links import Positions
from .._model.modes import inference_form_of
from .._model.packed_examples import packed_model
from .._model.trainable import TrainableModel, with_scores_from_output
from .._ort import devices
from .._ort.devices import Device
from .._training.rows_meet import meet_in_batch, meet_in_numbers, meeting_in
from .._utils.errors import refusing
from ..exceptions import ModelError, warn
from ..models import MODELS, ModelLike, resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .ml_files import FILE_TOLERANCE, FileComparison, FittedFile, Labels, are_indicators

COMPARED_ROWS = 13
"""Number of rows, spread over the data, on which the given graph is run; no exporter fixes the batch to this size."""

COMPARED_NUMBERS = 2**20
"""Most numbers of the output for these rows; a graph with larger output rows, such as a vocabulary, gets fewer rows."""

TELLING_ROWS = 8
"""Least number of rows with all numbers in [0, 1] for a warning that scores may be probabilities."""

SOME_STEPS = 0.1
"""Largest difference of outputs of a quantized graph, where one number that rounds the other way affects all layers."""

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})

MIXED = "of the graph for a row of X depends on the other rows"
EXPORT = (
    "Export the graph with a dynamic batch axis as the first one (in PyTorch: torch.onnx.export(..., "
    "dynamic_shapes=({0: torch.export.Dim('rows')},)), and batch_first=True in recurrent layers)."
)
_OTHER_MODEL = "Training would not start from the ONNX file, so it is refused:"

Predict: TypeAlias = Callable[[Mapping[str, InputData]], Mapping[str, np.ndarray]]


class FixedBatchError(ModelError):
    """A file computes a fixed number of rows, and what was read of it does not compute any other number as it does."""


@dataclass(frozen=True)
class ReferenceOutput:
    """The output of the given graph for some rows, before training.

    Attributes
    ----------
    model : onnx_ir.Model
        The given graph in inference form.
    name : str
        Name of its output.
    rows : ndarray of int
    numbers : ndarray of shape (n_rows, n_columns)
        The output with flattened rows; with positions, with one row for each position.
    row_shape : tuple of int
        Shape of a row of the output.
    positions : Positions or None
        The axes of the scores, if rows have a label for each position.
    file : FileComparison or None
        Result of the comparison with the file; None if the graph was not read from a file.
    whole : bool
        Whether the data of the graph are one thing.
    batch : int or None
        The only number of rows on which the graph runs.
    """

    model: ir.Model
    name: str
    rows: np.ndarray
    numbers: np.ndarray
    row_shape: tuple[int, ...]
    positions: Positions | None = None
    file: FileComparison | None = None
    whole: bool = False
    batch: int | None = None

    def as_matrix(self, found: np.ndarray) -> np.ndarray:
        """Return another output of the graph as a matrix of the form of ``numbers``."""
        if self.positions is None:
            return _as_flat_rows(found)
        whole = self.positions.classes_last(found)
        return whole.reshape(-1, whole.shape[-1])

    def at(self, positions: Positions) -> ReferenceOutput:
        """Return the output with one row for each position."""
        whole = replace(self, positions=positions)
        return replace(whole, numbers=whole.as_matrix(self.numbers.reshape(-1, *self.row_shape)))


def is_foreign(model: ModelLike) -> bool:
    """Return True if the ONNX graph of ``model`` comes from the user: given, or built by the user's own builder."""
    return type(resolve_builder(model)) not in MODELS.values() and not is_estimator(bare_model(model))


def reference_output(
    model: ModelLike, graph: TrainableModel, columns: Mapping[str, InputData], device: Device, n_rows: int
) -> ReferenceOutput | None:
    """Return the output of the user's graph, from which ``graph`` was made, for some rows; None if there is none.

    ``n_rows`` is the number of targets.
    """
    if not is_foreign(model):
        return None
    whole = graph.model if graph.reference is None else graph.reference
    fixed = graph.is_whole or graph.batch is not None
    reduced = multiply_by_columns(inference_form_of(whole, graph.output, fixed=fixed))
    if graph.takes_examples:
        return _output_of_examples(model, graph, reduced, columns, device)
    if graph.is_whole:
        return _output_of_whole(model, graph, reduced, columns, device, n_rows)
    with_targets = columns
    n = len(next(iter(columns.values())))
    columns = _inputs_of(reduced, columns, graph.output)
    sizes = next((dims(v) for v in whole.graph.outputs if v.name == graph.output), None)
    numbers_of_row = math.prod(d for d in (sizes or [])[1:] if isinstance(d, int))
    most = min(COMPARED_ROWS, COMPARED_NUMBERS // max(1, numbers_of_row))
    rows = np.linspace(0, n - 1, max(3, min(n, most))).astype(int)
    with refusing("The graph does not run on the data"):
        predictor = Predictor(reduced, device, None, batch=graph.batch)
    found = _run_on_any_batch(whole, predictor, columns, rows)
    file = require_exact_import(
        model, reduced, graph.joined, columns, rows, found, lambda some: predictor.run(columns, some)
    )

    if graph.own_loss is not None and graph.own_loss.by_row and file is not None:
        of_loss = Predictor(multiply_by_columns(inference_form_of(whole, graph.scores)), device, None)
        with refusing("The graph does not run on the data"):
            losses = of_loss.run(with_targets, rows)
        other = require_exact_import(
            model, whole, (), with_targets, rows, losses, lambda some: of_loss.run(with_targets, some), graph.scores
        )
        file = max(one for one in (file, other) if one is not None)  # the less complete of both

    if graph.batch is not None:
        met = meet_in_batch(reduced, graph.output, graph.parameters, graph.batch)
        if met or _meet_in_data(predictor, columns, graph.batch):
            raise _across_batch(graph.output, graph.batch, ModelError)
        numbers = _as_flat_rows(found).astype(np.float64)
        return ReferenceOutput(reduced, graph.output, rows, numbers, found.shape[1:], file=file, batch=graph.batch)

    # The first axis of the output must be the axis of the rows. It could be another axis of an input that has the same
    # size by chance. Then the predictor raises for another number of rows, unless the batch size is fixed.
    if any(len(rows) in column.shape[1:] for column in columns.values()):
        predictor.run(columns, rows[:2])
    numbers = _as_flat_rows(found)
    if any(has_fixed_batch(v) and len(rows) == v.shape[0] for v in whole.graph.inputs if v.shape is not None):
        _run_on_any_batch(whole, predictor, columns, rows[[0, -1, 0]])

    # The output for a row must not depend on the other rows. A graph with a free batch axis may mix rows on purpose, so
    # only warn. But a recurrent graph mixes them by mistake: PyTorch's layers have the time steps first by default.
    if _rows_meet(reduced, graph.output, graph.parameters):
        fixed = any(has_fixed_batch(v) for v in whole.graph.inputs)
        if _may_go_along_rows(whole.graph) or fixed:
            raise _across_rows(graph.output, FixedBatchError if fixed else ModelError)
        if not is_quantized(whole.graph):  # its rounding may depend on the range of the batch
            warn(
                f"Output {graph.output!r} {MIXED}: predictions depend on which rows are predicted together, and "
                f"training on which rows a minibatch holds. Where the first axis of the graph is not that of rows, "
                f"give X an axis before it; where the graph is to see all rows together, set batch_size to their "
                f"number and shuffle=False."
            )
    return ReferenceOutput(reduced, graph.output, rows, numbers.astype(np.float64), found.shape[1:], file=file)


def _meet_in_data(predictor: Predictor, columns: Mapping[str, InputData], batch: int) -> bool:
    """Return True if results of rows of the data depend on the other rows of a pass, or on their place in it.

    A graph may run on none of the random numbers of other trials, such as one that selects rows of a table.
    """
    n = len(next(iter(columns.values())))

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [predictor.run({name: InputData(of, of.dtype) for name, of in feeds.items()}, np.arange(batch))]

    def draw(trial: int, size: int) -> dict[str, np.ndarray]:
        rows = np.random.RandomState(trial).randint(n, size=size)
        return {name: np.array(column.rows(rows)) for name, column in columns.items()}

    return batch > 1 and bool(meet_in_numbers(run, draw, batch))


def require_target_of_each_row(name: str, found: np.ndarray, n_rows: int) -> None:
    """Raise unless the output ``name`` of a graph whose data are one thing has as many rows as there are targets."""
    if found.shape[:1] != (n_rows,):
        raise ValueError(
            f"Output {name!r} of the graph has the shape {found.shape} for X, and y has {n_rows} rows: y must have a "
            f"target for each row of the output; NaN where one is not known, or sample_weight 0."
        )


def _output_of_whole(
    model: ModelLike,
    graph: TrainableModel,
    reduced: ir.Model,
    columns: Mapping[str, InputData],
    device: Device,
    n_rows: int,
) -> ReferenceOutput:
    """Return the output of a graph whose data are one thing."""
    columns = _inputs_of(reduced, columns, graph.output)
    run = Predictor(reduced, device, None, whole=True).run
    found = run(columns)
    require_target_of_each_row(graph.output, found, n_rows)
    every = np.arange(n_rows)
    file = require_exact_import(
        model, reduced, graph.joined, columns, every, found, lambda some: run(columns, some), whole=True
    )
    rows = np.linspace(0, n_rows - 1, max(3, min(n_rows, COMPARED_ROWS))).astype(int)
    numbers = _as_flat_rows(found[rows]).astype(np.float64)
    return ReferenceOutput(reduced, graph.output, rows, numbers, found.shape[1:], file=file, whole=True)


def _output_of_examples(
    model: ModelLike, graph: TrainableModel, reduced: ir.Model, columns: Mapping[str, InputData], device: Device
) -> ReferenceOutput:
    """Return the output of a graph for some examples of different sizes, each computed by itself."""
    n = len(next(iter(columns.values())))
    rows = np.linspace(0, n - 1, max(3, min(n, COMPARED_ROWS))).astype(int)
    run = Predictor(reduced, device, None, whole=True).run
    results = dict[int, np.ndarray]()
    file = list[FileComparison | None]()
    compared = {int(rows[0]), int(rows[len(rows) // 2]), int(rows[-1])}
    for i in dict.fromkeys(rows.tolist()):
        own = _inputs_of(reduced, one_example(columns, i), graph.output)
        found = run(own)
        if found.shape[:1] != (1,):
            raise ModelError(
                f"Output {graph.output!r} of the graph has the shape {found.shape} for X[{i}], one example: it must "
                f"have one row for each example, (1, k)."
            )
        if results and found.shape != next(iter(results.values())).shape:
            raise ModelError(
                f"Output {graph.output!r} of the graph has the shape {found.shape} for X[{i}], and "
                f"{next(iter(results.values())).shape} for another example: all examples must have an output of the "
                f"same shape. Train others in groups of one size, as arrays, or one by one: partial_fit."
            )
        results[i] = found
        if i in compared:
            run_again = partial(_run_example, run, own)
            file.append(
                require_exact_import(model, reduced, graph.joined, own, np.arange(1), found, run_again, whole=True)
            )
    every = np.concatenate([results[i] for i in rows.tolist()])
    specs = tuple(replace(spec, shape=spec.example) for spec in graph.inputs if spec.example)
    known = [one for one in file if one is not None]
    return ReferenceOutput(
        packed_model(reduced, specs),
        graph.output,
        rows,
        _as_flat_rows(every).astype(np.float64),
        every.shape[1:],
        file=max(known) if known else None,
        batch=1,
    )


def _run_example(run: Callable[..., np.ndarray], columns: Mapping[str, InputData], rows: np.ndarray) -> np.ndarray:
    return run(columns)[np.zeros(len(rows), int)]


def _run_on_any_batch(
    whole: ir.Model, predictor: Predictor, columns: Mapping[str, InputData], rows: np.ndarray
) -> np.ndarray:
    """Return the output for some rows; raise a clear error if the graph runs only on the batch size of its export."""
    try:
        with refusing("The graph does not run on the data"):
            return predictor.run(columns, rows)
    except ModelError as error:
        fixed = next((v for v in whole.graph.inputs if has_fixed_batch(v)), None)
        if fixed is None or fixed.shape is None:
            raise
        runs_on_batch = False
        with suppress(ModelError), refusing("The graph does not run on its batch"):
            predictor.run(columns, np.resize(rows, int(str(fixed.shape[0]))))
            runs_on_batch = True
        if not runs_on_batch:
            raise
        raise FixedBatchError(
            f"The graph was exported for {fixed.shape[0]} rows (input {fixed.name!r} has shape {fixed.shape}) and does "
            f"not run on other numbers of rows. {EXPORT}"
        ) from error


def is_quantized(graph: ir.Graph) -> bool:
    """Return True if numbers of the graph are rounded to integers; QuantizeLinear is trained as Round."""
    return any(node.op_type == "Round" or "Quantize" in node.op_type for node in graph.all_nodes())


def require_independent_features(model: ir.Model, name: str, trained: Sequence[str]) -> None:
    """Raise ModelError if the features for a new head depend on other rows by mistake."""
    if _may_go_along_rows(model.graph) and _rows_meet(inference_form_of(model, name), name, trained):
        raise _across_rows(name)


def _rows_meet(graph: ir.Model, name: str, trained: Sequence[str]) -> bool:
    """Return True if the output of a row is known to depend on other rows, in a graph in inference form."""
    names = [value.name or "" for value in graph.graph.inputs]
    held = set(graph.graph.initializers)
    found = meeting_in(graph, names, [name], [one for one in trained if one in held], trained)
    return found is not None and found.seen


def _may_go_along_rows(graph: ir.Graph) -> bool:
    """Return True if the graph may take its rows on another axis: it is recurrent, or an input names one ``batch``."""
    if any(node.op_type in RECURRENT and not node.domain for node in graph):
        return True
    for value in graph.inputs:
        named = [isinstance(d, ir.SymbolicDim) and "batch" in str(d.value).lower() for d in value.shape or ()]
        if any(named) and not named[0]:
            return True
    return False


def _across_batch(name: str, batch: int, kind: type[ModelError]) -> ModelError:
    return kind(
        f"Output {name!r} {MIXED}, or on its place among the {batch} rows for which the graph was exported. {EXPORT}"
    )


def _across_rows(name: str, kind: type[ModelError] = ModelError) -> ModelError:
    return kind(
        f"Output {name!r} {MIXED}: its first axis is not that of the rows, or the graph computes across rows. {EXPORT}"
    )


def run_graph(
    graph: ir.Model,
    columns: Mapping[str, InputData],
    rows: np.ndarray,
    device: Device,
    *,
    whole: bool = False,
    batch: int | None = None,
) -> np.ndarray:
    """Return the output of a graph for some rows; raise ModelError if it does not run on them."""
    with refusing("The graph does not run on the data"):
        return Predictor(graph, device, None, whole=whole, batch=batch).run(
            _inputs_of(graph, columns, graph.graph.outputs[0].name or ""), rows
        )


def _inputs_of(graph: ir.Model, columns: Mapping[str, InputData], output: str) -> Mapping[str, InputData]:
    """Return the inputs that a graph reads, because a single output may not depend on all inputs."""
    names = {value.name for value in graph.graph.inputs}
    if not names:
        raise ModelError(f"Output {output!r} depends on no input of the graph: there are no data to train it on.")
    return {name: column for name, column in columns.items() if name in names}


def as_columns(numbers: np.ndarray, name: str) -> np.ndarray:
    """Return an output as a matrix with a row per row of the data; raise ModelError if rows have several long axes."""
    require_column_shape(numbers.shape[1:], name)
    return _as_flat_rows(numbers)


def _as_flat_rows(numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(len(numbers), math.prod(numbers.shape[1:]))


def require_column_shape(row_shape: tuple[int, ...], name: str) -> None:
    """Raise ModelError if a row of an output has several axes of sizes other than one."""
    if sum(size != 1 for size in row_shape) > 1:
        raise ModelError(
            f"The trained output {name!r} has shape {('n', *row_shape)}; it must be (n,), (n, 1) or (n, k), "
            f"with further axes only of size one. Name another: model=GraphModel(..., output=...)."
        )


def require_target_shape(reference: ReferenceOutput, targets: Targets) -> None:
    """Raise ValueError if a row of the output has another shape than a row of numeric targets, unless one is flat."""
    shapes = reference.row_shape, targets.row_shape or (targets.n_scores,)
    output, y = ([size for size in shape if size != 1] for shape in shapes)
    if output != y and min(len(output), len(y)) > 1:
        raise ValueError(
            f"The graph's output {reference.name!r} has shape {('n', *shapes[0])}, but y has shape "
            f"{('n', *shapes[1])}: a row of y must have the shape of a row of the output."
        )


# Decide what an output holds: scores, probabilities, or means.


def resolve_output_kind(
    graph: TrainableModel, reference: ReferenceOutput, kind: str, *, classifies: bool
) -> tuple[TrainableModel, int]:
    """Decide whether the output holds scores, probabilities or means; ``kind`` is ``output_kind`` of GraphModel.

    Return the model with the scores that the loss reads, and their number.
    """
    if kind == "scores":
        found = graph.ignoring_activation()
    elif classifies:
        found = _resolve_classifier(graph, reference, kind)
    elif graph.link == "exp":
        found = graph
    elif kind == "means" or graph.range[0] >= 0:
        # Means, and outputs that cannot be negative, get a log link, for losses that read the logarithm of the mean.
        found = with_scores_from_output(graph, "exp", link_unproven=graph.range[0] < 0)
    else:
        found = graph.ignoring_activation()
    return found, 1 if found.paired else reference.numbers.shape[1]


def _resolve_classifier(graph: TrainableModel, reference: ReferenceOutput, kind: str) -> TrainableModel:
    """Return the model of a classifier with scores, after deciding whether its output holds probabilities or scores."""
    claimed = kind == "probabilities"
    log = graph.ends_in_log
    ends_in_link = graph.link in ("sigmoid", "softmax")
    in_unit = _in_unit(reference.numbers)
    if claimed and not (ends_in_link and graph.log_output) and not in_unit:
        raise ModelError(
            f"output_kind='probabilities', but output {reference.name!r} of the graph holds numbers from "
            f"{reference.numbers.min():.3g} to {reference.numbers.max():.3g} on rows of X. Leave 'auto', or say "
            f"'scores'."
        )
    if ends_in_link:
        return graph
    p = np.exp(reference.numbers) if log and not claimed else reference.numbers
    low, high = graph.range
    proven = high <= NARROW if log else low >= 0 and high <= 1 + NARROW
    shared = p.shape[1] > 1 and bool(np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-3))
    if not (proven or claimed or (_in_unit(p) and shared)):
        # Ambiguous numbers count as scores, as in most graphs. Warn only if there are enough rows, and numbers that are
        # not all small, as scores of an untrained graph are.
        rows = len(np.unique(reference.rows))
        if rows >= TELLING_ROWS and in_unit and np.ptp(reference.numbers) > 0.5:
            warn(
                f"Output {reference.name!r} of the graph is taken for scores (logits), though its numbers lie in "
                f"[0, 1] on {rows} rows of X. Say model=GraphModel(..., output_kind='scores') to confirm it, "
                f"'probabilities' if they are probabilities."
            )
        return graph.ignoring_activation()
    if not (proven or claimed):
        warn(
            f"Output {reference.name!r} of the graph is taken for probabilities: on rows of X its numbers lie in "
            f"[0, 1] and add up to one. Say model=GraphModel(..., output_kind='probabilities') to confirm it, "
            f"'scores' if they are scores (logits)."
        )
    link = "softmax" if shared else "sigmoid"
    return with_scores_from_output(graph, link, log=log and not claimed, link_unproven=not proven)


def _in_unit(numbers: np.ndarray) -> bool:
    return bool(((numbers >= -NARROW) & (numbers <= 1 + NARROW)).all())


# Compare the graph that was read with the unchanged file.


def require_exact_import(
    model: Any,
    graph: ir.Model,
    joined: tuple[int, ...],
    columns: Mapping[str, InputData],
    rows: np.ndarray,
    found: np.ndarray,
    run: Callable[[np.ndarray], np.ndarray],
    name: str | None = None,
    *,
    whole: bool = False,
) -> FileComparison | None:
    """Raise ModelError, naming the first node that differs, if the file computes other outputs than ``graph``.

    ``graph`` is the inference form of the graph that was read. ``found`` is its output ``name`` (None: the first) for
    ``rows``, and ``run`` returns it for other rows. ``model`` may be a GraphModel, whose settings say which inputs are
    constant and which axes hold rows. If several outputs of the file are ``joined``, ``graph`` has their columns side
    by side. With ``whole``, a run takes all of the data, and ``rows`` are all rows of the output. Return None if the
    model is not a file.
    """
    reading = resolve_graph_model(model)
    constants = reading.constant_inputs or {}
    axes = reading.batch_axis
    model = without_program(reading.graph)
    if not isinstance(model, onnx.ModelProto | bytes | str) and not hasattr(model, "__fspath__"):
        return None
    proto = without_zip_maps(read(model, in_place=True))
    if proto.ByteSize() > LARGEST:
        return FileComparison("it is larger than 2 GB")
    proto, without = in_predicting_form(proto)
    if draws(proto):
        return FileComparison("it draws random numbers")
    if (given := plain_session(proto)) is None:
        return FileComparison("onnxruntime does not load it as it is")
    names = [name or graph.graph.outputs[0].name or ""]
    cuts = list[int]()
    if joined:
        kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
        names = [name for name, kind in kinds.items() if kind and ir.DataType(kind).is_floating_point()]
        cuts = list(accumulate(joined))[:-1]

    # Repeat rows to fill the batch if the file takes a fixed number of rows.
    inputs = inputs_of(proto)
    own = [(value.type.tensor_type.shape.dim, axis_of(axes, value.name)) for value in inputs if value.name in columns]
    batch = 0 if whole else max((sizes[axis].dim_value for sizes, axis in own if len(sizes) > axis), default=0)
    every = np.arange(len(rows))
    for at in [np.resize(every[i : i + batch], batch) for i in range(0, len(rows), batch)] if batch > 0 else [every]:
        part = rows[at]
        feeds = dict[str, np.ndarray]()
        for value in inputs:
            kind = ir.DataType(value.type.tensor_type.elem_type)
            if value.name in columns:
                dtype = np.dtype(np.float32) if kind is ir.DataType.BFLOAT16 else kind.numpy()
                data = columns[value.name].rows(slice(None) if whole else part).astype(dtype, copy=False)
                feeds[value.name] = np.ascontiguousarray(np.moveaxis(data, 0, axis_of(axes, value.name)))
            elif value.name in constants:
                rank = len(value.type.tensor_type.shape.dim)
                feeds[value.name] = constant_for_file(constants[value.name], kind.numpy(), rank)
            else:  # the trained output does not depend on this input
                feeds[value.name] = drawn_input(value, len(part))

        def compare(ours: np.ndarray, feeds: Mapping[str, np.ndarray] = feeds) -> Comparison:
            made = np.split(ours, cuts, axis=1) if joined else [ours]
            made = [np.moveaxis(one, 0, axis_of(axes, name)) for one, name in zip(made, names, strict=True)]
            return compare_outputs(given, names, feeds, "rows of X", made, lambda: to_proto(graph.clone()))

        # The graph computed all rows together, but the file computes one batch. In a quantized graph, the range of the
        # rows may then round numbers to other integers.
        outcome = None
        together = batch <= 0 or not is_quantized(graph.graph)
        if together and len(found) == len(rows):
            outcome = compare(found[at])
        if batch > 0 and (outcome is None or outcome.different):
            try:
                alone = compare(run(part))
            except ModelError:
                return FileComparison(f"what was read does not run on {len(part)} rows")
            if outcome is not None and not alone.different:
                if _rows_meet(graph, names[0], ()):
                    raise _across_rows(names[0], FixedBatchError)
                raise _across_batch(names[0], batch, FixedBatchError)
            outcome = alone
        outcome = compare(found) if outcome is None else outcome
        if outcome.different:
            dynamic = f" The graph was exported for {batch} rows. {EXPORT}" if batch > 0 else ""
            raise (FixedBatchError if batch > 0 else ModelError)(
                f"The graph that was read does not compute what onnxruntime computes of the file as given: "
                f"{outcome.different}{dynamic} Export the model with another opset (18 is a good choice) or without "
                f"that operator, and please report it."
            )
        if outcome.reason:
            return FileComparison(outcome.reason)
    return FileComparison(without=without)


# Compare the untrained estimator with the output of the graph.


def require_same_outputs(
    reference: ReferenceOutput,
    graph: TrainableModel,
    decoding: Decoding,
    predictor: Predictor,
    columns: Mapping[str, InputData],
    device: Device,
) -> np.ndarray:
    """Raise ModelError if predictions or scores of the untrained estimator differ from the output of the given graph.

    Return the scores, which are the last output of ``predictor``.
    """
    # onnxruntime computes pairs of QuantizeLinear and DequantizeLinear by products of integers in one session and of
    # floats in another. Numbers halfway between two integers may then round to either.
    relative, absolute = (SOME_STEPS, SOME_STEPS) if is_quantized(reference.model.graph) else (1e-4, 2 * NARROW)
    scores = predictor.run(columns, reference.rows, output=-1)
    for what, numbers, expected in _compared_outputs(reference, graph, decoding, predictor, columns, scores):
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        if not np.allclose(numbers, expected, rtol=relative, atol=absolute * scale, equal_nan=True):
            again = reference.as_matrix(
                run_graph(
                    reference.model, columns, reference.rows, device, whole=reference.whole, batch=reference.batch
                )
            )
            # A graph that draws random numbers differs between two runs, so it cannot be compared.
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
    graph: TrainableModel,
    decoding: Decoding,
    predictor: Predictor,
    columns: Mapping[str, InputData],
    scores: np.ndarray,
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return the pairs to compare: a name for messages, numbers of the estimator, and numbers of the given graph."""

    def as_rows(found: np.ndarray) -> np.ndarray:
        width = found.shape[-1] if reference.positions else math.prod(found.shape[1:])
        return found.reshape(-1, width).astype(np.float64)

    def ours(output: int) -> np.ndarray:
        return as_rows(predictor.run(columns, reference.rows, output=output))

    scores = as_rows(scores)
    if decoding.task == "regression":
        if graph.own_loss is not None:
            return [("predict()", ours(0), reference.numbers)]
        adds = decoding.n_targets is not None or (decoding.link != "identity" and graph.link != decoding.link)
        return [("its scores" if adds else "predict()", scores if adds else ours(0), reference.numbers)]
    if graph.link not in ("sigmoid", "softmax"):
        return [("its scores", scores, reference.numbers)]
    expected = np.exp(reference.numbers) if graph.log_output else reference.numbers
    p = expit(scores) if graph.link == "sigmoid" else softmax(scores, axis=1)
    found = [("the link of its scores", np.hstack([1 - p, p]) if graph.paired else p, expected)]
    if decoding.has_probabilities and decoding.link == graph.link:
        found.append(("predict_proba()", ours(1)[:, -expected.shape[1] :], expected))
    return found


# Compare the untrained estimator with a file of a fitted model.


def require_same_model(
    fitted: FittedFile, model: Any, columns: Mapping[str, InputData], predict: Predict
) -> FittedFile:
    """Raise ModelError if the results of ``predict`` differ from those of the file on rows of the data.

    ``model`` is the file. Return ``fitted`` without the graph of the file, which is no longer needed.
    """
    rows = sample_rows(np.arange(len(next(iter(columns.values())))))
    columns = {name: InputData(column.rows(rows), column.dtype) for name, column in columns.items()}
    rows, file = np.arange(len(rows)), fitted.file
    assert file is not None
    running = Predictor(file, devices.resolve_device(), None)
    label = None if fitted.label is None else running.run(columns, rows, output=0)
    run = partial(running.run, columns, output=len(running.outputs) - 1)
    values = run(rows)
    compared = require_exact_import(model, file, (), columns, rows, values, run, running.outputs[-1])
    same = replace(fitted, file=None, compared=compared or FileComparison())
    n_labels = fitted.n_labels or 1
    labels_of_row = "one label" if n_labels == 1 else f"{n_labels} labels"
    for array, size, of_row in ((label, len(rows) * n_labels, labels_of_row), (values, None, "values of its own")):
        if array is not None and (len(np.atleast_1d(array)) != len(rows) or size not in (None, array.size)):
            raise ModelError(
                f"The ONNX file returns an array of shape {array.shape} for {len(rows)} rows: each row must have "
                f"{of_row}."
            )
    values = values.reshape(len(rows), -1)
    values = values if fitted.order is None else values[:, fitted.order]

    ours = predict(columns)
    if label is None and len(ours) > 1:
        _require_same_scores(values, ours)
        return same
    if label is None:
        _require_close("predict", values, ours["predict"].reshape(values.shape))
        return same
    if fitted.labels is not None:
        _require_same_labels(fitted, fitted.labels, label, values, ours)
        return same
    method = "predict_proba" if fitted.of_probabilities else "decision_function"
    numbers = ours.get(method)
    if numbers is not None and numbers.shape == values.shape:
        _require_close(method, values, numbers)
    elif numbers is not None and method == "decision_function" and numbers.size == len(values):
        _require_close(method, np.abs(values[:, -1]), np.abs(numbers.ravel()))
    elif numbers is None and "predict_proba" in ours:  # the log loss takes margins as scores
        _require_same_margins(values, ours["predict_proba"])

    # The largest score must belong to the label, or training would begin at the opposite. This does not apply to
    # margins of pairs of classes, of which three classes also have three. If two margins are each other's negatives,
    # either may come first.
    classes, opposite = fitted.classes, False
    if not fitted.of_probabilities and not fitted.of_pairs and isinstance(classes, np.ndarray):
        if len(classes) == values.shape[1] == 2:
            opposite = np.allclose(values[:, 0], -values[:, 1], FILE_TOLERANCE, FILE_TOLERANCE)
        of_classes = values.shape[1] == len(classes) and not opposite
        if of_classes and (classes[values.argmax(axis=1)] != label.ravel()).mean() > 0.5:
            raise ModelError(
                f"The labels of the file are not the classes of the largest scores in {fitted.values!r}, of which "
                f"training would start. skl2onnx writes negative probabilities for raw_scores of support vector "
                f"machines with probability=True: convert without raw_scores, or with probability=False."
            )
    different = label.ravel() != ours["predict"]
    if (different & (_distance_from_tie(values) > FILE_TOLERANCE)).any():
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the label of the file in {different.mean():.0%} of the rows: its "
            f"decision rule is not the class with the largest score."
        )
    return same


def _require_same_scores(values: np.ndarray, ours: Mapping[str, np.ndarray]) -> None:
    """Compare a classifier with a file that returns no labels, only scores or probabilities."""
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


def _require_same_labels(
    fitted: FittedFile, labels: Labels, label: np.ndarray, values: np.ndarray, ours: Mapping[str, np.ndarray]
) -> None:
    """Compare a classifier with several labels per row with a file, except where two classes are equally likely."""
    # There is a column for each class of each label, and one for each binary label. A file may also have a single
    # column for a label of two classes: the margin of the second class, which is the negative margin of the first.
    sizes = [len(one) for one in labels]
    width = values.shape[1]
    indicators = are_indicators(labels)
    ends, expected = np.cumsum(sizes)[:-1], values
    if indicators and width == sum(sizes):
        expected = values[:, 1::2]
    elif not indicators and width == sum(1 if size == 2 else size for size in sizes) != sum(sizes):
        cuts = np.cumsum([1 if size == 2 else size for size in sizes])[:-1]
        parts = np.split(values, cuts, axis=1)
        expected = np.hstack([np.hstack([-p, p]) if size == 2 else p for p, size in zip(parts, sizes, strict=True)])

    method = "predict_proba" if fitted.of_probabilities else "decision_function"
    likely = expected
    if not fitted.of_probabilities and "predict_proba" in ours:  # the log loss takes margins as scores
        method = "predict_proba"
        if indicators:
            likely = np.asarray(expit(expected))
        else:
            likely = np.hstack([softmax(part, axis=1) for part in np.split(expected, ends, axis=1)])
    numbers = ours[method]
    if numbers.shape != likely.shape:
        raise ModelError(f"{_OTHER_MODEL} {fitted.values!r} does not hold a number for each label or class.")
    _require_close(method, likely, numbers)

    if indicators:
        margin = np.abs(expected - (0.5 if fitted.of_probabilities else 0.0))
    else:
        margin = np.stack([_distance_from_tie(part) for part in np.split(expected, ends, axis=1)], axis=1)
    different = label.reshape(margin.shape) != ours["predict"]
    if (different & (margin > FILE_TOLERANCE)).any():
        if indicators and not fitted.of_probabilities:
            at_half = (expected > 0.5) == (label.reshape(expected.shape) == 1)
            if (at_half | (np.abs(expected - 0.5) <= FILE_TOLERANCE)).all():  # ties may round to either side
                raise ModelError(
                    f"{_OTHER_MODEL} its labels are 1 where the margin in {fitted.values!r} is above 0.5, as of "
                    f"probabilities, instead of above 0. skl2onnx writes so of OneVsRestClassifier around an estimator "
                    f"without probabilities, such as LinearSVC: give the fitted scikit-learn model itself, or convert "
                    f"one that has probabilities."
                )
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the labels of the file in {different.any(axis=1).mean():.0%} of "
            f"the rows: its decision rule is not the class with the largest score."
        )


def _require_same_margins(values: np.ndarray, p: np.ndarray) -> None:
    """Compare margins of a file with the probabilities of the log loss; the margin of two classes may have any sign."""
    # The values may be probabilities after all: the random rows may have failed to show it, because naive Bayes returns
    # zeros for rows far from its data.
    if p.shape == values.shape and np.allclose(p, values, rtol=FILE_TOLERANCE, atol=FILE_TOLERANCE):
        return
    if p.shape[1] == 2 and values.shape[1] <= 2:
        opposite = values.shape[1] == 1 or np.allclose(values[:, 0], -values[:, 1], FILE_TOLERANCE, FILE_TOLERANCE)
        margin = values[:, -1] if opposite else values[:, 1] - values[:, 0]
        _require_close("predict_proba", expit(np.abs(margin)), p.max(axis=1))
    elif p.shape == values.shape:
        _require_close("predict_proba", softmax(values, axis=1), p)


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
