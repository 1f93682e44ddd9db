"""Classifiers that predict several labels per row: one matrix of scores for all labels.

Converters return the labels as a sequence, as one tensor of rank 3, or as columns of a matrix. Here the scores behind
them are found, as for a single label, and concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import keep_outputs
from .._graph.queries import attribute, constant
from ..exceptions import ModelError
from .converters.context import EPSILON, ConversionRecord
from .converters.multioutput import in_order_of_labels
from .decision_rules import CHOICE, add_output, chosen_index
from .record import ModelRecord
from .scores import ends_in

Place = tuple[ir.Value, int, int]
"""A matrix, the first column of an output in it, and the number of its columns."""


def keep_votes_of_labels(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Add an output for classes that machines with probabilities predict by votes, one column per label."""
    parts = in_order_of_labels(record.last, record.members) if record.members else []
    machines = [one.last for one in parts if one.is_libsvm and one.has_probabilities]
    if not machines:
        return
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    chosen = {id(one): op.Reshape(chosen_index(graph, one, conversions), np.array([-1, 1])) for one in machines}
    nothing = op.Mul(chosen[id(machines[0])], 0)
    columns = [chosen[id(p.last)] if id(p.last) in chosen else op.Add(nothing, int(p.last.y_[0])) for p in parts]
    add_output(graph, CHOICE, op.Concat(*columns, axis=1))


def expose_labels(model: ir.Model, record: ModelRecord) -> None:
    """Change the graph to end in scores: one sigmoid for each label that is 0 or 1, else one score for each class."""
    graph, probable, classes = model.graph, record.has_probabilities, record.outputs
    assert classes is not None
    if len(graph.outputs) == 1 and ends_in(source_of_columns(graph.outputs[0]), "Sigmoid"):
        return
    op = GraphBuilder(graph, prefix="labels", constant_nodes=True)
    machine = bool(record.members) and record.members[0].is_libsvm
    places, sizes = _label_columns(op, record), [len(known) for known in classes]
    end_in_scores_of_labels(
        op, model, places, sizes, indicators=record.has_indicators, probable=probable, machine=machine
    )


def end_in_scores_of_labels(
    op: GraphBuilder,
    model: ir.Model,
    places: Sequence[Place],
    sizes: Sequence[int],
    *,
    indicators: bool,
    probable: bool,
    machine: bool = False,
) -> None:
    """Change the graph to end in the scores behind the columns of each label, of which there are as many as classes."""
    if indicators:
        columns = [_logit(op, place) if probable else _margin(op, place) for place in places]
    else:
        columns = [_scores(op, place, size, probable, machine) for place, size in zip(places, sizes, strict=True)]
    scores = op.Concat(*columns, axis=1)
    output = op.Sigmoid(scores) if probable and indicators else scores
    for value in (scores, output):
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape([None, len(sizes) if indicators else sum(sizes)])
    model.graph.sort()
    keep_outputs(model, [output, *(value for value in model.graph.outputs if value.name == CHOICE)])


def _scores(op: GraphBuilder, place: Place, size: int, probable: bool, machine: bool) -> ir.Value:
    """Return a score for each class of a label; their softmax gives the probabilities."""
    value, start, width = place
    if not probable:
        return _margins(op, place, size, machine)
    whole = source_of_columns(value)
    if ends_in(whole, "Softmax") and _known_width(op, whole) == size:
        return _input(whole)
    if size == 2 and ends_in(p := _column(op, value, start + width - 1), "Sigmoid"):
        return op.Concat(op.Mul(_input(p), 0.0), _input(p), axis=1)
    own = value if _known_width(op, value) == size else op.Slice(value, [start], [start + size], [1])
    return op.Log(op.Add(op.Relu(own), EPSILON))


def _margins(op: GraphBuilder, place: Place, size: int, machine: bool) -> ir.Value:
    if size == 2:
        margin = _margin(op, place)
        return op.Concat(op.Neg(margin), margin, axis=1)
    if machine:
        raise ModelError(
            "The scores of support vector machines of several classes count votes, of which only the tie-break has "
            "a gradient. Fit them with probability=True, whose probabilities can be trained."
        )
    return place[0]


def _label_columns(op: GraphBuilder, record: ModelRecord) -> list[Place]:
    """Return the columns of each label."""
    values, sizes = [v for v in op.graph.outputs if v.name != CHOICE], [len(known) for known in record.outputs or ()]
    if len(values) == len(sizes):
        return [(value, 0, size) for value, size in zip(values, sizes, strict=True)]
    (value,) = values
    maker = value.producer()
    if maker is not None and maker.op_type == "Concat" and record.has_one_per_label:
        return [(part, 0, _known_width(op, part) or 1) for part in maker.inputs if part is not None]
    shape = op.shape(value) or ()
    if len(shape) == 3:
        return [(op.Gather(value, i, axis=0), 0, size) for i, size in enumerate(sizes)]
    if shape[-1:] == (sum(sizes),):
        return [(value, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    return [(value, i, 1) for i in range(len(sizes))]


def _logit(op: GraphBuilder, place: Place) -> ir.Value:
    """Return the score whose sigmoid is the probability of the second class."""
    value, start, size = place
    p, whole = _column(op, value, start + size - 1), source_of_columns(value)
    if ends_in(p, "Sigmoid"):
        return _input(p)
    if ends_in(whole, "Softmax") and _known_width(op, whole) == 2:
        return op.Sub(*(_column(op, _input(whole), i) for i in (1, 0)))
    q = _column(op, value, start) if size == 2 else op.Sub(1.0, p)
    return op.Sub(*(op.Log(op.Add(op.Relu(side), EPSILON)) for side in (p, q)))


def _margin(op: GraphBuilder, place: Place) -> ir.Value:
    """Return the decision function of an output of two classes."""
    value, start, size = place
    return _column(op, value, start + size - 1)


def _column(op: GraphBuilder, value: ir.Value, i: int) -> ir.Value:
    """Return one column of a matrix, from before slices and concatenations."""
    value = source_of_columns(value)
    while (before := _before(op, value, i)) is not None:
        value, i = source_of_columns(before[0]), before[1]
    return value if _known_width(op, value) == 1 else op.Gather(value, np.array([i]), axis=1)


def _before(op: GraphBuilder, value: ir.Value, i: int) -> tuple[ir.Value, int] | None:
    """Return the matrix that the last node takes a column from, and the position there."""
    node = value.producer()
    if node is None or node.domain:
        return None
    settings = [None if x is None else constant(x) for x in node.inputs[1:]]
    if node.op_type == "Slice" and len(settings) == 3 and _is(settings[2], 1) and settings[0] is not None:
        return _input(value), int(settings[0].item()) + i
    by_columns = attribute(node, "axis", 0) in (1, -1)
    if node.op_type == "Gather" and by_columns and settings[0] is not None:
        return _input(value), int(settings[0].ravel()[i])
    if node.op_type != "Concat" or not by_columns:
        return None
    for part in node.inputs:
        width = _known_width(op, part)
        if part is None or width is None or i < width:
            return None if part is None or width is None else (part, i)
        i -= width
    return None


def _is(setting: np.ndarray | None, number: int) -> bool:
    return setting is not None and setting.ravel().tolist() == [number]


def _known_width(op: GraphBuilder, value: ir.Value | None) -> int | None:
    shape = None if value is None else op.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def source_of_columns(value: ir.Value) -> ir.Value:
    """Return the value before nodes that do not change it."""
    while (node := value.producer()) is not None and not node.domain and node.op_type in ("Identity", "Cast"):
        before = node.inputs[0]
        if before is None or (node.op_type == "Cast" and before.dtype is not ir.DataType.FLOAT):
            break
        value = before
    return value


def _input(value: ir.Value) -> ir.Value:
    node = value.producer()
    assert node is not None
    assert node.inputs[0] is not None
    return node.inputs[0]
