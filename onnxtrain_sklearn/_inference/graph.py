"""Build the inference graph: the trained graph without training-only operators, with predictions after its scores.

:func:`inference_model` appends the operators of a :class:`Decoding`, which turn scores into labels and probabilities of
a classifier, or into numbers of a regressor in the units of its targets. The outputs follow the conventions of skl2onnx
(``label`` and ``probabilities``). ``predict`` runs the same graph, so an estimator and its exported file cannot
disagree. :func:`exported_model` differs only in the types of the weights. :func:`ensemble_of` joins several states of
one network into one graph, which averages their predictions. :func:`averaged_predictions` averages the outputs of whole
networks.

Several fits share a session if their graphs have equal structure (``predictor``). Therefore the numbers of a decoding
that differ between fits (:func:`target_numbers`) are initializers with reserved names in such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._data.target_scale import TargetRange, TargetScale
from .._importers.quantization import requantized
from .._ir.edits import append_nodes, multiply_by_columns, swap_initializers
from .._ir.shapes import infer_shapes
from .._model.activation import as_rows
from .._model.declared_targets import DeclaredTargets
from .._model.given_inputs import in_layout_of_file
from .._model.links import (
    Link,
    Positions,
    Task,
    apply_link,
    as_position_rows,
    log_probabilities_in_order,
    mean_of_members,
    split_columns,
)
from .._model.modes import inference_form
from .._model.precision import narrowed
from .._model.trainable import TrainableModel
from .._utils.errors import refusing
from .._utils.typing import DType
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..losses import Loss


@dataclass(frozen=True)
class OutputOptions:
    """Options for the outputs of a classifier's graph besides the label.

    Attributes
    ----------
    zipmap : bool or "columns"
        One output with a column per class, one with a dict per row, or one output per class.
    raw_scores : bool
        Whether the decision function, with a column per class, replaces the probabilities.
    per_class : bool
        Whether to raise an error unless there is one score for each class.
    """

    zipmap: bool | str = False
    raw_scores: bool = False
    per_class: bool = False


@dataclass(frozen=True)
class Decoding:
    """How the scores of a graph become predictions, in reverse of the encoding of the targets.

    Attributes
    ----------
    task : {"regression", "binary", "multiclass", "multilabel", "multioutput"}
    link : str
        The function from scores to predictions or probabilities.
    n_scores : int
        Columns of the scores.
    classes : ndarray, list of ndarray or None
        The labels in the order of their indices; with several labels per row, a list with the classes of each.
    target_scale : TargetScale or None
        Scale of the targets in training; predictions are scaled back.
    target_range : TargetRange or None
        For a regressor: the range of the training targets.
    clips : bool
        For a regressor: whether predictions are clipped to ``target_range``.
    row_shape : tuple of int
        Shape of a row of numeric targets that has several axes, such as an image; else empty.
    positions : Positions or None
        The axes of the scores if a classifier has a label for each position of a row; ``n_scores`` is then the number
        of scores per position.
    n_targets : int or None
        Columns of the targets and of predictions, if the loss takes another number of scores; else None.
    distribution : Loss or None
        For a regressor: the loss whose further predictions, such as the scale of each target, are outputs as well.
    soft : bool
        Whether a classifier was trained on soft labels: the share of each class in each row.
    declared : DeclaredTargets or None
        The targets that the loss declares by name; None if it takes labels or numbers.
    parts : tuple of Decoding
        The decodings of the trained outputs, if there are several; ``n_scores`` is then the columns of all targets.
    """

    task: Task
    link: Link
    n_scores: int
    classes: np.ndarray | list[np.ndarray] | None = None
    target_scale: TargetScale | None = None
    target_range: TargetRange | None = None
    clips: bool = False
    row_shape: tuple[int, ...] = ()
    positions: Positions | None = None
    soft: bool = False
    n_targets: int | None = None
    n_shares: ClassVar[int] = 0
    declared: DeclaredTargets | None = None
    distribution: Loss | None = None
    parts: tuple[Decoding, ...] = ()

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Smallest and largest prediction of each output; None if predictions are not limited."""
        return None if self.target_range is None else self.target_range.limits(clips=self.clips)

    def in_units_of_training(self) -> Decoding:
        """Return the decoding without what changes the numbers of a regressor: scale, range and parameters."""
        return replace(self, target_scale=None, target_range=None, clips=False)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of score columns of each label, if rows have several labels of several classes; else empty."""
        return tuple(map(len, self.classes)) if isinstance(self.classes, list) else ()

    @property
    def n_columns(self) -> int:
        """Columns of the targets and of predictions; with declared targets, of predictions."""
        return self.n_scores if self.n_targets is None else self.n_targets

    @property
    def has_probabilities(self) -> bool:
        """True for a classifier whose link gives probabilities."""
        return self.task != "regression" and self.link != "identity"


@refusing("The graph that predicts cannot be made")
def inference_model(
    graph: TrainableModel,
    weights: Mapping[str, np.ndarray],
    decoding: Decoding,
    *,
    form: OutputOptions = OutputOptions(),
    with_scores: bool = False,
    in_double: bool = True,
    named_numbers: bool = False,
) -> ir.Model:
    """Return the inference graph with ``weights``.

    ``with_scores`` adds the scores as the last output. It also computes probabilities in float64, unless ``in_double``
    is False: in float32, rows with different scores may have equal probabilities, because there is no number between
    1 - 6e-8 and 1. ``named_numbers`` stores the numbers of :func:`target_numbers` in initializers with these names, so
    that the numbers of another fit can replace them.
    """
    result = inference_form(graph.model)
    ir_graph = result.graph
    swap_initializers(ir_graph, weights)
    outputs = {v.name or "": v for v in ir_graph.outputs}
    ir_graph.outputs.clear()
    # Store constants in Constant nodes, so that the exported graph has only weights as initializers.
    op = GraphBuilder(ir_graph, dtype=ir.DataType.from_numpy(graph.dtype), prefix="predict", constant_nodes=True)
    if decoding.parts:
        for view, part in zip(graph.views, decoding.parts, strict=True):
            names = OutputNames(view.output, f"{view.output}_")
            found = target_numbers(part, graph.dtype)
            _append_outputs(op, view, outputs, part, form, names, found, with_scores=with_scores, in_double=in_double)
    else:
        found = target_numbers(decoding, graph.dtype)
        numbers: Mapping[str, ir.Value] | Mapping[str, np.ndarray] = found
        if named_numbers:
            numbers = {name: op.parameter(name, array) for name, array in found.items()}
        own = OutputNames()
        _append_outputs(op, graph, outputs, decoding, form, own, numbers, with_scores=with_scores, in_double=in_double)
    common.RemoveUnusedNodesPass()(result)
    if graph.own_loss is not None and not with_scores:  # predictions read no targets
        names_of_X = {spec.name for spec in graph.inputs_of_X}
        ir_graph.inputs[:] = [value for value in ir_graph.inputs if value.name in names_of_X]
    infer_shapes(result)
    multiply_by_columns(result)
    for node in (v.producer() for v in ir_graph.outputs):  # restore types of sequences, which shape inference drops
        if node is not None and node.op_type == "SequenceConstruct" and node.inputs[0] is not None:
            node.outputs[0].type = ir.SequenceType(ir.TensorType(node.inputs[0].dtype or ir.DataType.FLOAT))
    if form.zipmap is True:
        # A dict for each row replaces the last output. This comes after shape inference, because onnx_ir has no type
        # for it.
        assert isinstance(decoding.classes, np.ndarray)
        labels = class_constant(decoding.classes)
        if labels.dtype.kind == "f":
            if not (labels == np.rint(labels)).all():
                raise ModelError(
                    f"zipmap=True: the keys of ONNX's dicts are integers or strings, the labels are "
                    f"{labels.tolist()}. Leave zipmap=False or take zipmap='columns'."
                )
            labels = labels.astype(np.int64)
        keys = {"classlabels_int64s" if labels.dtype.kind == "i" else "classlabels_strings": labels.tolist()}
        values = ir_graph.outputs.pop()
        values = values if values.dtype == ir.DataType.FLOAT else op.Cast(values, to=ir.DataType.FLOAT)
        _add_output(op, "output_probability", op.emit("ZipMap", values, domain="ai.onnx.ml", **keys)[0], None)
    return result


def exported_model(
    graph: TrainableModel, weights: Mapping[str, np.ndarray], decoding: Decoding, form: OutputOptions
) -> ir.Model:
    """Return the inference graph with the weight types and the order of axes of the given file."""
    inference = inference_model(graph, weights, decoding, form=form)
    return narrowed(requantized(in_layout_of_file(inference, graph.layout)), graph.kept)


TARGET_SCALE, TARGET_CENTER = "onnxtrain/target_scale", "onnxtrain/target_center"


TARGET_LOW, TARGET_HIGH = "onnxtrain/target_low", "onnxtrain/target_high"
"""Reserved names of the initializers that hold the numbers of a decoding; no given graph may use them."""


def target_numbers(decoding: Decoding, dtype: DType) -> dict[str, np.ndarray]:
    """Return the numbers of a decoding that differ between fits, by name: scale and range of the targets.

    A center of zeros is left out, because it needs no addition in the graph.
    """
    scale = decoding.target_scale
    found: dict[str, np.ndarray] = {}
    if scale is not None:
        found[TARGET_SCALE] = scale.scale
        if scale.center.any():
            found[TARGET_CENTER] = scale.center
    if decoding.limits is not None:
        found[TARGET_LOW], found[TARGET_HIGH] = decoding.limits
    return {name: array.astype(dtype).reshape(decoding.row_shape or (-1,)) for name, array in found.items()}


class OutputNames(NamedTuple):
    """Names of outputs: ``numbers`` for predicted numbers, and a ``prefix`` for labels, probabilities and scores."""

    numbers: str = "variable"
    prefix: str = ""


def _append_outputs(
    op: GraphBuilder,
    graph: TrainableModel,
    outputs: Mapping[str, ir.Value],
    decoding: Decoding,
    form: OutputOptions,
    names: OutputNames,
    numbers: Mapping[str, np.ndarray] | Mapping[str, ir.Value],
    *,
    with_scores: bool,
    in_double: bool,
) -> None:
    """Append the predictions of one trained output; ``outputs`` are the outputs of the trained graph, by name."""
    given, scores = outputs[graph.output], outputs[graph.scores]
    own = given if graph.link == decoding.link and not (graph.log_output or graph.link_unproven) else None
    of_members = scores
    scores = scores if graph.members is None else mean_of_members(op, scores, decoding.link, decoding.groups)
    final = given if graph.members is None else scores
    decision = raw_decision = final if graph.link == "votes" else scores
    if decoding.task == "regression":
        if decoding.n_targets is not None and graph.own_loss is None:  # the first scores are the locations
            columns = op.Slice(_as_score_columns(op, scores), [0], [decoding.n_targets], [1])
            prediction: ir.Value | None = apply_link(op, decoding.link, columns)
        elif graph.own_loss is not None:
            prediction = given
        else:
            prediction = final if graph.link is None and decoding.link == "identity" else own
        prediction = apply_link(op, decoding.link, scores) if prediction is None else prediction
        shape = op.shape(prediction)
        computes = decoding.limits is not None or decoding.target_scale is not None
        if decoding.row_shape and (computes or shape is None or len(shape) < 3):
            # Reshape rows to the shape of the targets, unless the output of a given graph has several axes already.
            prediction = op.Reshape(prediction, [-1, *decoding.row_shape])
        if TARGET_SCALE in numbers:
            prediction = op.Mul(prediction, numbers[TARGET_SCALE])
        if TARGET_CENTER in numbers:
            prediction = op.Add(prediction, numbers[TARGET_CENTER])
        learned, members = decoding.distribution, graph.members
        predicts_more = learned is not None and (members is None or has_ensembles(learned))
        further = _further_predictions(op, of_members, decoding, numbers, members) if predicts_more else {}
        if TARGET_LOW in numbers:
            is_single = decoding.target_range is not None and decoding.target_range.low.size == 1
            rows = prediction if is_single or decoding.row_shape else as_rows(op, prediction)
            prediction = _clipped(op, rows, numbers)
        _add_output(op, names.numbers, prediction, given)
        for name, values in further.items():
            _add_output(op, names.prefix + name, values, None)
    else:
        if decoding.link == "ordinal":  # from here on, a softmax of the log-probabilities
            decision = log_probabilities_in_order(op, _as_score_columns(op, scores))
            own = None
            decoding = replace(decoding, link="softmax", n_scores=decoding.n_columns, n_targets=None)
        # Recompute probabilities in float64 only if the graph's own are a plain activation of the scores. Keep any
        # other computation at the end of a given graph.
        last = None if own is None else own.producer()
        activates = last is not None and last.op_type in ("Sigmoid", "Softmax") and last.inputs[0] is scores
        exact = with_scores and in_double and decoding.has_probabilities and (own is None or activates)
        columns, own, in_places = _as_rows_of_labels(op, decision, own, decoding, form)
        if graph.class_output is not None:
            label = _label_names(op, outputs[graph.class_output], decoding)
        elif decoding.task == "multilabel":
            label = op.Cast(op.Greater(columns, 0.0), to=ir.DataType.INT64)
        else:
            if isinstance(decoding.classes, list):
                parts = split_columns(op, columns, decoding.groups)
                index = op.Concat(*(op.ArgMax(part, axis=1) for part in parts), axis=1)
            elif decoding.task == "binary":
                index = op.Cast(op.Greater(op.Squeeze(columns, axes=[1]), 0.0), to=ir.DataType.INT64)
            else:
                index = op.ArgMax(columns, axis=1, keepdims=False)
            label = _label_names(op, index, decoding)
        _add_output(op, names.prefix + ("output_label" if form.zipmap else "label"), in_places(label), None)
        if exact:
            op, columns = _in_double(op, columns, decoding)
            own = None
        for name, values in _further_outputs(op, columns, own, decoding, form).items():
            _add_output(op, names.prefix + name, in_places(values), None)
    if with_scores:
        if decoding.positions is None:
            raw = _as_score_columns(op, raw_decision)
        else:
            raw = decoding.positions.emit_classes_last(op, raw_decision)
        _add_output(op, f"{names.prefix}raw_scores", op.Identity(raw), None)


def has_ensembles(loss: Loss) -> bool:
    """Return True if ensembles have the further predictions of a loss."""
    return type(loss).of_members is not Loss.of_members


def _clipped(op: GraphBuilder, rows: ir.Value, numbers: Mapping[str, np.ndarray] | Mapping[str, ir.Value]) -> ir.Value:
    """Emit predictions within the range of the targets."""
    low, high = numbers[TARGET_LOW], numbers[TARGET_HIGH]
    above = op.Where(op.Less(rows, low), low, rows)  # Clip may replace NaN by a bound
    return op.Where(op.Greater(above, high), high, above)


def _further_predictions(
    op: GraphBuilder,
    scores: ir.Value,
    decoding: Decoding,
    numbers: Mapping[str, np.ndarray] | Mapping[str, ir.Value],
    members: int | None,
) -> dict[str, ir.Value]:
    """Emit what the loss predicts of each target besides the prediction, in the unit of the targets."""
    loss = decoding.distribution
    assert loss is not None
    rows = _as_score_columns(op, scores) if members is None else op.Reshape(scores, [-1, decoding.n_scores])
    found = {}
    for name, one in loss.further_predictions(op, rows).items():
        values = list(one.values)
        if members is not None:
            own = apply_link(op, decoding.link, op.Slice(rows, [0], [decoding.n_columns], [1]))
            predictions, *each = (op.Reshape(value, [-1, members, decoding.n_columns]) for value in (own, *values))
            values = list(loss.of_members(op, predictions, each) or ())
        if one.unit != "none" and TARGET_SCALE in numbers:
            values = [op.Mul(value, numbers[TARGET_SCALE]) for value in values]
        if one.unit == "location" and TARGET_CENTER in numbers:
            values = [op.Add(value, numbers[TARGET_CENTER]) for value in values]
        if one.unit == "location" and TARGET_LOW in numbers:
            values = [_clipped(op, value, numbers) for value in values]
        if len(values) == 1:
            found[name] = values[0]
        elif decoding.n_columns == 1:
            found[name] = op.Concat(*values, axis=1)
        else:
            found[name] = op.Concat(*(op.Unsqueeze(value, axes=[2]) for value in values), axis=2)
    return found


def _as_rows_of_labels(
    op: GraphBuilder, scores: ir.Value, own: ir.Value | None, decoding: Decoding, form: OutputOptions
) -> tuple[ir.Value, ir.Value | None, Callable[[ir.Value], ir.Value]]:
    """Return scores and probabilities with one row per label, and a function that reshapes results to the positions."""
    if decoding.positions is None:
        return _as_score_columns(op, scores), own, lambda result: result
    if form.zipmap or form.per_class:
        raise ModelError("zipmap is for one label a row, but these rows have a label at each position: leave it.")
    rows, in_places = as_position_rows(op, scores, decoding.positions, decoding.n_scores)
    return (
        rows,
        None if own is None else as_position_rows(op, own, decoding.positions, decoding.n_scores)[0],
        in_places,
    )


def _as_score_columns(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    shape = op.shape(scores)
    return op.Unsqueeze(scores, axes=[1]) if shape is not None and len(shape) == 1 else as_rows(op, scores)


def _label_names(op: GraphBuilder, index: ir.Value, decoding: Decoding) -> ir.Value:
    """Emit the labels with the class indices ``index``; several labels per row have a column each."""
    if decoding.task == "multilabel":
        return index
    if isinstance(decoding.classes, list):
        columns = split_columns(op, index, [1] * len(decoding.groups))
        constants = [class_constant(known) for known in decoding.classes]
        if all(known.dtype.kind in "if" for known in constants):  # Concat takes operands of one type
            kind = np.result_type(*constants)
            constants = [known.astype(kind) for known in constants]
        named = zip(constants, columns, strict=True)
        return op.Concat(*(op.Gather(known, own) for known, own in named), axis=1)
    assert decoding.classes is not None
    return op.Gather(class_constant(decoding.classes), index)


def class_constant(classes: np.ndarray) -> np.ndarray:
    """Return the labels as an array of a type that ONNX has: strings, int64 or float64."""
    if classes.dtype.kind in "iub":
        return classes.astype(np.int64)
    if classes.dtype.kind == "f":
        return classes.astype(np.float64)
    if all(isinstance(c, str) for c in classes):
        return np.array([str(c) for c in classes])
    kind = type(classes[0]).__name__
    raise ModelError(f"ONNX has no tensors for labels of type {kind}; use strings, integers or floats.")


def _in_double(op: GraphBuilder, scores: ir.Value, decoding: Decoding) -> tuple[GraphBuilder, ir.Value]:
    """Return a builder for float64, and the scores in float64.

    Two scores of a softmax become 0 and their difference in the type of the graph. This difference is also the decision
    function, so probabilities and decision function rank rows alike.
    """
    groups = decoding.groups or (decoding.n_scores,)
    if decoding.link == "softmax" and 2 in groups:
        parts = split_columns(op, scores, groups)
        parts = [
            op.Sub(part, op.Gather(part, [0], axis=1)) if n == 2 else part
            for part, n in zip(parts, groups, strict=True)
        ]
        scores = op.Concat(*parts, axis=1)
    double = GraphBuilder(op.graph, dtype=ir.DataType.DOUBLE, prefix="double", constant_nodes=True)
    return double, double.Cast(scores, to=ir.DataType.DOUBLE)


def _further_outputs(
    op: GraphBuilder, scores: ir.Value, own: ir.Value | None, decoding: Decoding, form: OutputOptions
) -> dict[str, ir.Value]:
    """Return the outputs besides the label, named as by skl2onnx, but ``scores`` if the link has no probabilities."""
    name = "probabilities" if decoding.has_probabilities else "scores"
    if decoding.groups:
        # With several labels per row, the output is a sequence with the probabilities, or scores, of each label.
        if form.zipmap:
            raise ModelError(
                f"zipmap={form.zipmap!r} is for one label a row, and here are {len(decoding.groups)}: leave it."
            )
        parts = split_columns(op, scores, decoding.groups)
        if decoding.has_probabilities and not form.raw_scores:
            parts = [apply_link(op, decoding.link, part) for part in parts]
        elif form.raw_scores:
            for i, n_classes in enumerate(decoding.groups):
                if n_classes == 2:  # the margins of two classes are -s and s
                    s = op.Sub(op.Gather(parts[i], [1], axis=1), op.Gather(parts[i], [0], axis=1))
                    s = s if decoding.has_probabilities else op.Mul(s, 0.5)
                    parts[i] = op.Concat(op.Neg(s), s, axis=1)
        return {name: op.SequenceConstruct(*parts)}

    if decoding.has_probabilities and not form.raw_scores:
        # ``own`` are the graph's own probabilities: for two classes, of the second class or of both.
        values = apply_link(op, decoding.link, scores) if own is None else _as_score_columns(op, own)
        if decoding.task == "binary" and (op.shape(values) or [1])[-1] != 2:
            values = op.Concat(op.Sub(1.0, values), values, axis=1)
    else:
        # The decision function gets a column for each class; for two classes, these are its negative and itself.
        of_two = decoding.task == "multiclass" and decoding.n_scores == 2
        by_class = form.raw_scores or form.zipmap
        if of_two and by_class:
            scores = op.Sub(op.Gather(scores, [1], axis=1), op.Gather(scores, [0], axis=1))
        if by_class and (of_two or decoding.task == "binary"):
            values = op.Concat(op.Neg(scores), scores, axis=1)
        else:
            values = op.Identity(scores)
    if (form.zipmap or form.per_class) and decoding.task == "multiclass":
        shape = op.shape(values)
        classes = () if decoding.classes is None else decoding.classes
        if shape is not None and isinstance(shape[-1], int) and shape[-1] != len(classes):
            raise ModelError(
                f"There is no score for each of the {len(classes)} classes: the decision function has {shape[-1]} "
                f"columns, one for each pair. Fit the model with decision_function_shape='ovr', or take to_onnx() as "
                f"it is."
            )
    if form.zipmap != "columns":
        return {name: values}
    assert isinstance(decoding.classes, np.ndarray)
    prefix = "i" if decoding.classes.dtype.kind in "iub" else "s"
    return {f"{prefix}{c}": op.Gather(values, i, axis=1) for i, c in enumerate(class_constant(decoding.classes))}


def _add_output(op: GraphBuilder, name: str, value: ir.Value, keep: ir.Value | None) -> None:
    """Make ``value`` an output named ``name``, unless it is ``keep``, the user's own output, which keeps its name."""
    if value is not keep:
        if value.producer() is None or value in op.graph.outputs:
            value = op.Identity(value)
        if value.name != name:
            # Rename an inner value that has the name. Inputs and initializers keep it, because users know their names.
            for node in ir.traversal.RecursiveGraphIterator(op.graph):
                for other in node.outputs:
                    if other.name == name:
                        other.name = op.name(name)
            kept = {v.name for v in op.graph.inputs} | set(op.graph.initializers)
            value.name = op.name(name) if name in kept else name
    op.graph.outputs.append(value)


# Build the graph of an ensemble, which averages the predictions of one network with several sets of weights, or of
# several networks.


MemberWeights = Mapping[str, np.ndarray]


def ensemble_of(graph: TrainableModel, each: Sequence[MemberWeights]) -> tuple[TrainableModel, dict[str, np.ndarray]]:
    """Return a model with one member for each set of weights in ``each``, and the weights of all members by name."""
    whole = graph.model.clone()
    op = GraphBuilder(whole.graph, dtype=ir.DataType.from_numpy(graph.dtype), prefix="ensemble", constant_nodes=True)
    scores = []
    for number in range(len(each)):
        ir_graph = whole.graph if number == 0 else graph.model.clone().graph
        own = next(value for value in ir_graph.outputs if value.name == graph.scores)
        ir_graph.outputs[:] = [own]
        # Rename the weights of each member, and move weights and constants to the joint graph.
        held = list(ir_graph.initializers.values())
        ir_graph.initializers.clear()
        for value in held:
            weight = value.name or ""
            value.name = _member_name(weight, number) if weight in each[number] else op.taken.free(weight)
            op.graph.register_initializer(value)
        scores.append(own if number == 0 else append_nodes(op, ir_graph, whole.graph.inputs)[0])
    whole.graph.outputs.clear()
    rows = [as_rows(op, value) for value in scores]  # a single score may be (N,) or (N, 1)
    joined = op.Concat(*(op.Unsqueeze(value, axes=[1]) for value in rows), axis=1)
    whole.graph.outputs.append(joined)
    name = joined.name or ""
    named = {_member_name(weight, i): array for i, one in enumerate(each) for weight, array in one.items()}
    made = replace(
        graph, model=whole, output=name, scores=name, link=None, log_output=False, paired=False, link_unproven=False,
        members=len(each),
    )  # fmt: skip
    return made, named


def averaged_predictions(
    op: GraphBuilder,
    results: Sequence[Sequence[ir.Value]],
    task: Task,
    classes: np.ndarray | None,
    distribution: Loss | None = None,
) -> Sequence[ir.Value]:
    """Emit the predictions of an ensemble: the mean of the last outputs and, before it, a classifier's labels.

    A row gets the label with the largest mean. Of several binary labels, those with a mean above one half are 1. Of
    numbers, it is the mean of the first outputs; ``distribution`` is the loss that combines the others.
    """
    if task == "regression":
        # Average the differences from the first prediction, so that the mean of equal predictions is exact.
        first, *others = (result[0] for result in results)
        if not others:
            return results[0]
        differences = [op.Sub(other, first) for other in others]
        total = differences[0]
        for difference in differences[1:]:
            total = op.Add(total, difference)
        mean = op.Add(first, op.Mul(total, 1 / len(results)))
        if distribution is None or not has_ensembles(distribution):
            return [mean]
        outputs = zip(*results, strict=True)
        predictions, *further = (op.Concat(*(op.Unsqueeze(own, axes=[1]) for own in each), axis=1) for each in outputs)
        return [mean, *(v for one in further for v in distribution.of_members(op, predictions, [one]) or ())]
    total = results[0][-1]
    for result in results[1:]:
        total = op.Add(total, result[-1])
    mean = op.Mul(total, 1 / len(results))
    if task == "multilabel":
        return [op.Cast(op.Greater(mean, 0.5), to=ir.DataType.INT64), mean]
    assert classes is not None
    return [op.Gather(class_constant(classes), op.ArgMax(mean, axis=1, keepdims=False)), mean]


def _member_name(weight: str, number: int) -> str:
    return f"{number}.{weight}"
