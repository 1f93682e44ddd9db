"""Several labels a row in files of fitted classifiers: their classes, and the columns that hold the scores of each.

skl2onnx writes the scores as a matrix with a column for each label, as a tensor whose first axis is that of the
labels, or as a sequence with a matrix for each. They become one matrix here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._fitted.multioutput import Place, end_in_scores_of_labels, source_of_columns
from .._fitted.scores import ends_in
from .._graph.builder import GraphBuilder
from .._graph.queries import attribute
from .._graph.shapes import infer_shapes
from ..exceptions import ModelError
from .ml_files import Labels, are_indicators
from .ml_graphs import classes_of_graph, is_sequence, maker_of


def labels_of_graph(label: ir.Value, found: np.ndarray | None) -> Labels | None:
    """Return the classes of each of several labels a row, None if the graph returns one a row.

    ``found`` are labels of some rows: what skl2onnx declares may be another shape. Labels that no operator names are
    indicators: 0 or 1.

    Raises
    ------
    ModelError
        The labels are not 0 or 1 and no operator names them, or they are not sorted as scikit-learn's are.
    """
    node, _ = maker_of(label)
    joined = node is not None and node.op_type == "Concat" and not node.domain and attribute(node, "axis", 0) in (1, -1)
    parts = [value for value in node.inputs if value is not None] if joined and node is not None else []
    declared = () if label.shape is None else tuple(label.shape)
    shape = declared if found is None else found.shape
    width = shape[1] if len(shape) == 2 and isinstance(shape[1], int) else len(parts)
    if width < 2 or (found is not None and shape[0] == 1):  # QuadraticDiscriminantAnalysis: a row of labels
        return None
    named = [classes_of_graph(value, ()) for value in parts] if len(parts) == width else [None] * width
    unknown = [i for i, one in enumerate(named) if one is None]
    given = np.empty(0) if found is None else found[:, unknown]
    if unknown and (label.dtype is not ir.DataType.INT64 or not np.isin(given, (0, 1)).all()):
        raise ModelError(
            f"The ONNX file returns {width} labels a row in {label.name!r} that are not 0 or 1, and no operator names "
            f"their classes. Give the fitted scikit-learn model itself."
        )
    classes = tuple(np.arange(2) if one is None else one for one in named)
    if any(not np.array_equal(np.sort(one), one) for one in classes):
        raise ModelError(f"The classes of the labels of the graph, {classes}, are not sorted, as scikit-learn's are.")
    return classes


def classes_of_labels(labels: Labels) -> np.ndarray | list[np.ndarray]:
    """Return the classes as the classifier has them: the positions of indicators, else those of each label."""
    return np.arange(len(labels)) if are_indicators(labels) else list(labels)


def parts_of(final: ir.Value) -> list[ir.Value]:
    """Return the tensors that a trained output consists of: those of a sequence, or itself."""
    node = final.producer()
    return [value for value in node.inputs if value is not None] if node and is_sequence(final) else [final]


def as_matrix(op: GraphBuilder, final: ir.Value, n_labels: int) -> ir.Value:
    """Return a trained output as one matrix: the columns of each label side by side."""
    parts = parts_of(final)
    if has_labels_first(final, n_labels):
        parts = [op.Gather(final, i, axis=0) for i in range(n_labels)]
    return op.Concat(*parts, axis=1)


def end_in_labels(model: ir.Model, labels: Labels, *, probable: bool, labels_first: bool) -> None:
    """Change the graph to end in scores: one sigmoid for each indicator, else one score for each class."""
    infer_shapes(model)
    values, sizes = list(model.graph.outputs), [len(one) for one in labels]
    if probable and len(values) == 1 and ends_in(source_of_columns(values[0]), "Sigmoid"):
        return
    op = GraphBuilder(model.graph, prefix="labels", constant_nodes=True)
    places = _places(op, values, sizes, labels_first=labels_first)
    end_in_scores_of_labels(op, model, places, sizes, indicators=are_indicators(labels), probable=probable)


def _places(op: GraphBuilder, values: Sequence[ir.Value], sizes: Sequence[int], *, labels_first: bool) -> list[Place]:
    if len(values) == len(sizes):
        return [(value, 0, _width(op, value) or size) for value, size in zip(values, sizes, strict=True)]
    (value,) = values
    if labels_first:
        return [(op.Gather(value, i, axis=0), 0, size) for i, size in enumerate(sizes)]
    if _width(op, value) == sum(sizes):
        return [(value, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    return [(value, i, 1) for i in range(len(sizes))]


def has_labels_first(final: ir.Value, n_labels: int) -> bool:
    """Whether a trained output is a tensor whose first axis is that of the labels."""
    return final.shape is not None and len(final.shape) == 3 and final.shape[0] == n_labels


def _width(op: GraphBuilder, value: ir.Value) -> int | None:
    shape = op.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None
