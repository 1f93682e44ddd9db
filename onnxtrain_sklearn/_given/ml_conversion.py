"""Makes a fitted model that was given as an ONNX file trainable.

The graph becomes trainable as a fitted scikit-learn model does: it is pruned to its scores, its operators are
rewritten, and its probabilities are replaced by scores. The labels of the classes, the decision rule, and whether the
output holds probabilities are read from the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .._fitted.decision_rules import CHOICE, PAIRS, keep_first_of_ties
from .._fitted.scores import drop_needless_norms, end_in_scores
from .._fitted.table_graph import in_parts
from .._graph.batch_axis import free_batch_axis
from .._graph.builder import GraphBuilder
from .._graph.edits import keep_outputs
from .._graph.protobuf import to_proto
from .._graph.shapes import infer_shapes
from .._graph.trainable import TrainableModel, spec_of, trainable_model
from .._ml_operators.formulas import hold_formulas
from .._ml_operators.post_transforms import post_transform_of
from .._ml_operators.rewrite import rewrite
from .._runtime import devices, sessions
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
from .ml_files import FittedFile, Labels, is_plain_graph_of_text
from .ml_graphs import (
    FILE_TOLERANCE,
    ML,
    classes_of_graph,
    constant_of,
    declare_columns,
    prepare_text,
    table_of_file,
    takes_missing_values,
    trained_output_of,
)
from .ml_labels import (
    as_matrix,
    classes_of_labels,
    end_in_labels,
    has_labels_first,
    labels_of_graph,
    parts_of,
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
    if is_plain_graph_of_text(given, output):
        return _plain_file_of_text(given, output)
    model = given.clone()
    table = table_of_file(model)
    prepare_text(model.graph)
    declare_columns(model.graph)
    free_batch_axis(model)
    label = next((v for v in model.graph.outputs if v.dtype in (ir.DataType.INT64, ir.DataType.STRING)), None)
    final = trained_output_of(model.graph, output, sequences=label is not None)
    probed = None if label is None else _probed(model, label, final)
    labels = None if label is None else labels_of_graph(label, None if probed is None else probed[0])
    if labels is not None:
        classes: np.ndarray | list[np.ndarray] | None = classes_of_labels(labels)
    else:
        classes = None if label is None else classes_of_graph(label, zipped)
        final = trained_output_of(model.graph, output)
    if labels is not None and probed is not None and not isinstance(probed[1], list):
        final.shape = ir.Shape([n if n != PROBES else None for n in probed[1].shape])  # skl2onnx declares other ones
    known = FittedFile(
        origins=(),
        classes=classes,
        n_labels=None if labels is None else len(labels),
        labels=labels,
        features={} if table is None or table.documents else table.features,
        table=table,
        loss="squared_error" if label is None else "log_loss",
        file=_with_outputs(model, label, final, None if labels is None else len(labels)),
        label=None if label is None else label.name,
        values=final.name or "",
        allows_missing=any(takes_missing_values(node) for node in model.graph),
    )
    margin = None
    if label is not None:
        probable = "proba" in known.values if probed is None else _are_of_kind(labels, *probed)
        known = replace(known, of_probabilities=probable)
        margin = None if probed is None or labels is not None or probable else _margin_of_two(*probed)
    return _trainable_file(model, label, final, known, margin)


def _plain_file_of_text(given: ir.Model, output: str | None) -> tuple[TrainableModel, FittedFile]:
    """Return the network of a graph behind what it makes of text, and the table that it takes."""
    model = given.clone()
    final = trained_output_of(model.graph, output)
    keep_outputs(model, [final], inputs=True)
    table = table_of_file(model)
    assert table is not None
    prepare_text(model.graph)
    free_batch_axis(model)
    known = FittedFile(
        origins=(),
        classes=None,
        features={} if table.documents else table.features,
        table=table,
        loss="squared_error",
        file=_with_outputs(model, None, final, None),
        values=final.name or "",
        is_plain=True,
    )
    source, parts = in_parts(trainable_model(infer_shapes(model), final.name, foreign=True))
    if not source.parameters:
        raise ModelError(_WITHOUT_GRADIENT.format(name=final.name))
    return source, replace(known, parts=parts)


def _trainable_file(
    model: ir.Model, label: ir.Value | None, final: ir.Value, known: FittedFile, margin: int | None
) -> tuple[TrainableModel, FittedFile]:
    graph, name, labels = model.graph, final.name, known.labels
    labels_first = labels is not None and has_labels_first(final, len(labels))
    graph.outputs[:] = [plain_value(value) for value in parts_of(final)]
    if label is not None and labels is None and (machine := machine_of_votes(label)) is not None:
        keep_votes_of_machine(graph, machine)
        known = known if known.of_probabilities else replace(known, loss="hinge")
    keep_outputs(model, graph.outputs)
    narrow_selected_doubles(graph)
    drop_needless_norms(infer_shapes(model).graph)
    transforms = {node.name or "": post_transform_of(node) for node in graph}
    hold_formulas(model)
    rewritten = rewrite(model, keep_decided=True)
    model = rewritten.model
    for role in rewritten.roles:
        if role.operator == f"{ML}.TreeEnsembleClassifier" and transforms[role.node] == "NONE":
            keep_leaf_shares(model, role)
    if labels is not None:
        end_in_labels(model, labels, probable=known.of_probabilities, labels_first=labels_first)
    elif label is not None and isinstance(known.classes, np.ndarray):
        known = replace(known, classes=np.sort(known.classes), order=sort_classes(model.graph, known.classes))
    if labels is None:
        end_in_scores(model, probabilities=known.of_probabilities if label is not None else None, margin=margin)
    of_trees = any(role.operator == f"{ML}.TreeEnsembleClassifier" for role in rewritten.roles)
    if of_trees and known.of_probabilities and labels is None:
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


def _with_outputs(model: ir.Model, label: ir.Value | None, final: ir.Value, n_labels: int | None) -> ir.Model:
    """Return a copy of the graph with the label and the trained output as outputs; of several labels as a matrix."""
    final.shape = final.shape if final.is_graph_output() else None
    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    kept = [values[v.name] for v in (label, final) if v is not None]
    op = GraphBuilder(copy.graph, prefix="label", constant_nodes=True)
    if n_labels is not None:
        kept[1] = as_matrix(op, kept[1], n_labels)
        kept[1].type = ir.TensorType(ir.DataType.FLOAT)
        kept[0].shape = None
    elif label is not None and _is_row_of_labels(label):
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


def _probed(model: ir.Model, label: ir.Value, final: ir.Value) -> tuple[np.ndarray, Any] | None:
    """Return the labels and the trained output for random rows; None if the graph does not run on such."""
    copy, rng = model.clone(), np.random.RandomState(0)
    values = {v.name: v for node in copy.graph for v in node.outputs}
    shown = [values[label.name], values[final.name]]
    for value in shown:
        value.shape = None  # onnxruntime prints a warning where another one is declared
    keep_outputs(copy, shown)
    feeds = dict[str, np.ndarray]()
    for spec in map(spec_of, copy.graph.inputs):
        drawn = 3 * rng.standard_normal((PROBES, *(n or 1 for n in spec.shape[1:])))
        is_text = spec.dtype.kind not in "fiub"
        feeds[spec.name] = np.full(drawn.shape, "", object) if is_text else drawn.astype(spec.dtype)
    try:
        session = sessions.create_session(to_proto(copy).SerializeToString(), devices.resolve_device())
        found: tuple[np.ndarray, Any] = tuple(sessions.run_session(session, [v.name or "" for v in shown], feeds))
    except ModelError:  # the number of columns may be unknown
        return None
    return found


def _margin_of_two(label: np.ndarray, found: Any) -> int | None:
    """Return the column of the second class, where two margins are each other's negatives and tell the label.

    The softmax of both would be the sigmoid of twice the margin.
    """
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.shape[1] != 2 or len(np.unique(label)) != 2:
        return None
    opposite = np.allclose(found[:, 0], -found[:, 1], rtol=FILE_TOLERANCE, atol=FILE_TOLERANCE)
    return 1 if opposite and ((found[:, 1] > 0) == (label.ravel() == label.max())).all() else None


def _are_of_kind(labels: Labels | None, label: np.ndarray, found: Any) -> bool:
    """Whether numbers are probabilities; margins of labels that are 0 or 1 may lie between 0 and 1 too."""
    if labels is None:
        return found.ndim == 2 and found.shape[1] > 1 and _are_probabilities(found)
    parts = list(found) if isinstance(found, list) or found.ndim == 3 else [found]
    if len(parts) == len(labels) and all(one.ndim == 2 and one.shape[1] > 1 for one in parts):
        return all(map(_are_probabilities, parts))
    numbers = np.concatenate(parts, axis=-1)
    if numbers.shape[1:] == (sum(map(len, labels)),):
        return all(map(_are_probabilities, np.split(numbers, np.cumsum([len(one) for one in labels])[:-1], axis=1)))
    within = bool((numbers >= 0).all() and (numbers <= 1).all())
    return within and numbers.shape == label.shape and bool(((numbers > 0.5) == (label > 0)).all())


def _are_probabilities(found: np.ndarray) -> bool:
    return bool((found >= -FILE_TOLERANCE).all() and np.allclose(found.sum(axis=1), 1, atol=FILE_TOLERANCE))
