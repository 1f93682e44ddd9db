"""Makes a fitted model that was given as an ONNX file trainable.

The graph becomes trainable as a fitted scikit-learn model does: it is pruned to its scores, its operators are
rewritten, and its probabilities are replaced by scores. The labels of the classes, the decision rule, and whether the
output holds probabilities are read from the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._data.columns import Column
from .._fitted.decision_rules import CHOICE, PAIRS, keep_first_of_ties
from .._fitted.scores import drop_needless_norms, end_in_scores
from .._fitted.table_graph import in_parts
from .._graph.batch_axis import free_batch_axis
from .._graph.builder import GraphBuilder
from .._graph.edits import keep_outputs
from .._graph.shapes import infer_shapes
from .._graph.trainable import TrainableModel, spec_of, trainable_model
from .._ml_operators.formulas import hold_formulas
from .._ml_operators.post_transforms import post_transform_of
from .._ml_operators.rewrite import rewrite
from ..exceptions import ModelError, UnsupportedOperatorError
from .ml_endings import (
    hold_as_constants,
    is_fixed_role,
    keep_leaf_shares,
    keep_name,
    keep_votes_of_machine,
    machine_of_votes,
    narrow_selected_doubles,
    plain_value,
    sort_classes,
)
from .ml_files import FittedFile, outputs_of_file
from .ml_graphs import (
    FILE_TOLERANCE,
    ML,
    classes_of_graph,
    constant_of,
    declare_columns,
    table_of_file,
    takes_missing_values,
    trained_output_of,
)


def fitted_file(
    given: ir.Model, output: str | None, zipped: Sequence[np.ndarray | None] = ()
) -> tuple[TrainableModel, FittedFile]:
    """Return the trainable form of a graph with operators of ai.onnx.ml, and its description as a fitted model.

    ``zipped`` are the keys of the dictionaries in which it returns its scores.

    Raises
    ------
    ModelError
        An input is neither a number nor a column of text, or the graph has no parameter that can be trained.
    """
    model = given.clone()
    table = table_of_file(model)
    declare_columns(model.graph)
    free_batch_axis(model)
    label = next((v for v in model.graph.outputs if v.dtype in (ir.DataType.INT64, ir.DataType.STRING)), None)
    if label is not None:
        _require_one_label(label)
    classes = None if label is None else classes_of_graph(label, zipped)
    final = trained_output_of(model.graph, output)
    known = FittedFile(
        origins=(),
        classes=classes,
        features={} if table is None else table.features,
        table=table,
        loss="squared_error" if label is None else "log_loss",
        file=_with_outputs(model, label, final),
        label=None if label is None else label.name,
        values=final.name or "",
        allows_missing=any(takes_missing_values(node) for node in model.graph),
    )
    if label is not None:
        known = replace(known, of_probabilities=_has_probabilities(known))
    return _trainable_file(model, label, final, known)


def _require_one_label(label: ir.Value) -> None:
    """Raise ModelError if the graph returns several labels a row, or may: skl2onnx declares (1, N) for one a row."""
    sizes = [] if label.shape is None else list(label.shape)
    if len(sizes) == 2 and isinstance(sizes[1], int) and sizes[1] > 1:
        raise ModelError(
            f"The ONNX file returns {sizes[1]} labels a row ({label.name!r} has shape {label.shape}); files of one "
            f"label a row are trained. Give the fitted scikit-learn model itself, which may have several."
        )


def _trainable_file(
    model: ir.Model, label: ir.Value | None, final: ir.Value, known: FittedFile
) -> tuple[TrainableModel, FittedFile]:
    graph, name = model.graph, final.name
    graph.outputs[:] = [plain_value(final)]
    if label is not None and (machine := machine_of_votes(label)) is not None:
        keep_votes_of_machine(graph, machine)
        known = known if known.of_probabilities else replace(known, loss="hinge")
    keep_outputs(model, graph.outputs)
    narrow_selected_doubles(graph)
    drop_needless_norms(infer_shapes(model).graph)
    transforms = {node.name or "": post_transform_of(node) for node in graph}
    hold_formulas(model)
    rewritten = rewrite(model)
    model = rewritten.model
    for role in rewritten.roles:
        if role.operator == f"{ML}.TreeEnsembleClassifier" and transforms[role.node] == "NONE":
            keep_leaf_shares(model, role)
    if label is not None and known.classes is not None:
        known = replace(known, classes=np.sort(known.classes), order=sort_classes(model.graph, known.classes))
    end_in_scores(model, probabilities=known.of_probabilities if label is not None else None)
    of_trees = any(role.operator == f"{ML}.TreeEnsembleClassifier" for role in rewritten.roles)
    if of_trees and known.of_probabilities:
        keep_first_of_ties(infer_shapes(model).graph)
    keep_name(model.graph, name)
    source = _pruned(infer_shapes(model), name)
    settings = {role.name for role in rewritten.roles if is_fixed_role(role, source)}
    hold_as_constants(source.model.graph, settings)
    source = replace(source, parameters=tuple(n for n in source.parameters if n not in settings))
    if known.table is not None:
        source, parts = in_parts(source)
        known = replace(known, parts=parts)
    if not source.parameters:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name))
    return source, known


def _pruned(model: ir.Model, name: str | None) -> TrainableModel:
    pairs, choice = (key if key in {v.name for v in model.graph.outputs} else None for key in (PAIRS, CHOICE))
    try:
        return trainable_model(model, pairs=pairs, choice=choice)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name)) from error


def _with_outputs(model: ir.Model, label: ir.Value | None, final: ir.Value) -> ir.Model:
    """Return a copy of the graph with the label and the trained output as outputs."""
    final.shape = final.shape if final.is_graph_output() else None
    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    kept = [values[v.name] for v in (label, final) if v is not None]
    if label is not None and _is_row_of_labels(label):
        op = GraphBuilder(copy.graph, prefix="label", constant_nodes=True)
        kept[0] = op.Reshape(kept[0], np.array([-1]))
        kept[0].type = label.type
    keep_outputs(copy, kept)
    copy.graph.sort()
    return copy


def _is_row_of_labels(label: ir.Value) -> bool:
    """Return True if an ArrayFeatureExtractor selects the labels from a vector: its result has the shape (1, N)."""
    node = label.producer()
    while node is not None and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "ArrayFeatureExtractor":
        return False
    held = constant_of(node.inputs[0])
    return held is not None and held.ndim == 1


PROBES = 16
"""Number of random rows to test whether an output holds probabilities."""


_WITHOUT_GRADIENT = (
    "Output {name!r} of the graph holds no number that it has a gradient for: it changes in steps, as counts of "
    "neighbors and of votes do, or not at all."
)


def _has_probabilities(known: FittedFile) -> bool:
    """Whether the rows of the trained output are probabilities, tested on random inputs."""
    assert known.file is not None
    rng, columns = np.random.RandomState(0), dict[str, Column]()
    for value in known.file.graph.inputs:
        spec = spec_of(value)
        drawn = 3 * rng.standard_normal((PROBES, *(n or 1 for n in spec.shape[1:])))
        columns[spec.name] = Column(drawn.astype(spec.dtype), spec.dtype)
    try:
        found = outputs_of_file(known, columns)[1]
    except Exception:  # the number of columns is unknown: decide by the name
        return "proba" in known.values
    return found.ndim == 2 and found.shape[1] > 1 and _are_probabilities(found)


def _are_probabilities(found: np.ndarray) -> bool:
    return bool((found >= -FILE_TOLERANCE).all() and np.allclose(found.sum(axis=1), 1, atol=FILE_TOLERANCE))
