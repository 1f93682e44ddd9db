"""Make a fitted model that was given as an ONNX file trainable.

The graph is converted like that of a fitted scikit-learn model: it is pruned to its scores, its operators are
rewritten, and its probabilities are replaced by scores. The class labels, the decision rule, and whether the output
holds probabilities are read from the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .._fitted.scores import (
    CLASS_OUTPUT,
    PAIRS,
    Place,
    add_output,
    drop_needless_norms,
    end_in_scores,
    end_in_scores_of_labels,
    ends_in,
    keep_first_of_ties,
    normalize_leaves,
    number_classes,
    source_of_columns,
)
from .._fitted.text_encoder import in_parts
from .._ir.edits import hold_as_constant, keep_outputs
from .._ir.protobuf import to_proto
from .._ir.queries import attribute, is_float
from .._ir.shapes import infer_shapes
from .._ml_operators.linear import post_transform_of
from .._ml_operators.rewrite import hold_formulas, rewrite
from .._ml_operators.rewritten_node import Role
from .._model.fixed_batch import free_batch_axis
from .._model.trainable import TrainableModel, spec_of, trainable_model
from .._ort import devices, sessions
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder
from .ml_files import (
    FILE_TOLERANCE,
    ML,
    FittedFile,
    Labels,
    are_indicators,
    classes_of_graph,
    constant_of,
    declare_columns,
    is_sequence,
    is_text_network,
    maker_of,
    numbers_of_attribute,
    prepare_text,
    table_of_file,
    takes_missing_values,
    trained_output_of,
)


def fitted_file(
    given: ir.Model, output: str | None, zipped: Sequence[np.ndarray | None] = ()
) -> tuple[TrainableModel, FittedFile]:
    """Return the trainable form of a graph with operators of ai.onnx.ml, and its description as a fitted model.

    ``zipped`` holds the keys of the dicts in which the graph returns its scores.

    Raises
    ------
    ModelError
        An input is neither a number nor a column of text, or the graph has no parameter that can be trained.
    """
    if is_text_network(given, output):
        return _text_network(given, output)
    model = given.clone()
    table = table_of_file(model)
    prepare_text(model.graph)
    declare_columns(model.graph)
    free_batch_axis(model)

    # The outputs are a label, and the numbers that are trained. Run the graph on random rows to learn what the numbers
    # are, and whether a row has several labels, because the shapes that skl2onnx declares are often wrong.
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
        final.shape = ir.Shape([n if n != PROBES else None for n in probed[1].shape])  # skl2onnx declares other sizes
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
        if probed is not None and labels is None and not probable:
            # If two margins are each other's negatives, keep only the score of the second class: the softmax of both
            # would be the sigmoid of twice the margin.
            predicted, found = probed
            of_two = isinstance(found, np.ndarray) and found.ndim == 2 and found.shape[1] == 2
            if of_two and len(np.unique(predicted)) == 2:
                opposite = np.allclose(found[:, 0], -found[:, 1], rtol=FILE_TOLERANCE, atol=FILE_TOLERANCE)
                is_second = predicted.ravel() == predicted.max()
                margin = 1 if opposite and ((found[:, 1] > 0) == is_second).all() else None
    return _trainable_file(model, label, final, known, margin)


def _text_network(given: ir.Model, output: str | None) -> tuple[TrainableModel, FittedFile]:
    """Return the part of a graph downstream of its text encoder, and a description with the table that it takes."""
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
        is_text_network=True,
    )
    source, parts = in_parts(trainable_model(infer_shapes(model), final.name, foreign=True))
    if not source.parameters:
        raise ModelError(_WITHOUT_GRADIENT.format(name=final.name))
    return source, replace(known, parts=parts)


def _trainable_file(
    model: ir.Model, label: ir.Value | None, final: ir.Value, known: FittedFile, margin: int | None
) -> tuple[TrainableModel, FittedFile]:
    """Edit a graph into its trainable form; return it, and its description completed by the edits.

    ``label`` and ``final`` are the label and the trained output. ``margin`` is the column of the second class, if the
    output holds two margins that are each other's negatives.
    """
    graph, name, labels = model.graph, final.name, known.labels

    # Keep the trained output, and the decision rule of a support vector machine, while its operators still exist.
    labels_first = labels is not None and has_labels_first(final, len(labels))
    graph.outputs[:] = [plain_value(value) for value in parts_of(final)]
    if label is not None and labels is None and (machine := machine_of_votes(label)) is not None:
        keep_votes_of_machine(graph, machine)
        if not known.of_probabilities:
            pairs = any(value.name == PAIRS for value in graph.outputs)
            known = replace(known, loss="hinge", of_pairs=pairs and maker_of(final) == (machine, 1))
    keep_outputs(model, graph.outputs)

    # Rewrite the operators of ai.onnx.ml, whose attributes become parameters.
    narrow_selected_doubles(graph)
    drop_needless_norms(infer_shapes(model).graph)
    transforms = {node.name or "": post_transform_of(node) for node in graph}
    hold_formulas(model)
    rewritten = rewrite(model, keep_decided=True)
    model = rewritten.model
    for role in rewritten.roles:
        if role.operator == f"{ML}.TreeEnsembleClassifier" and transforms[role.node] == "NONE":
            keep_leaf_shares(model, role)

    # End in scores, of classes in sorted order.
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
    model = infer_shapes(model)
    names = {value.name for value in model.graph.outputs}
    of_pairs, class_output = (name if name in names else None for name in (PAIRS, CLASS_OUTPUT))
    try:
        source = trainable_model(model, pairs=of_pairs, class_output=class_output)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name)) from error

    # Settings are not parameters; neither are numbers upstream of the text encoder.
    settings = {role.name for role in rewritten.roles if is_fixed_role(role, source)}
    hold_as_constants(source.model.graph, settings)
    source = replace(source, parameters=tuple(n for n in source.parameters if n not in settings))
    if known.table is not None:
        source, parts = in_parts(source)
        known = replace(known, parts=parts)
    if not source.parameters:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name))
    return source, known


def _with_outputs(model: ir.Model, label: ir.Value | None, final: ir.Value, n_labels: int | None) -> ir.Model:
    """Return a copy of the graph that outputs the label and the trained output; several labels become a matrix."""
    final.shape = final.shape if final.is_graph_output() else None
    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    kept = [values[v.name] for v in (label, final) if v is not None]
    op = GraphBuilder(copy.graph, prefix="label", constant_nodes=True)
    if n_labels is not None:
        kept[1] = as_matrix(op, kept[1], n_labels)
        kept[1].type = ir.TensorType(ir.DataType.FLOAT)
        kept[0].shape = None
    elif label is not None:
        # An ArrayFeatureExtractor that selects the labels from a vector returns the shape (1, N).
        node = label.producer()
        while node is not None and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        held = constant_of(node.inputs[0]) if node is not None and node.op_type == "ArrayFeatureExtractor" else None
        if held is not None and held.ndim == 1:
            kept[0] = op.Reshape(kept[0], np.array([-1]))
            kept[0].type = label.type
    keep_outputs(copy, kept)
    copy.graph.sort()
    return copy


PROBES = 16
"""Number of random rows on which to test whether an output holds probabilities."""


_WITHOUT_GRADIENT = (
    "Output {name!r} of the graph holds no number that it has a gradient for: it changes in steps, as counts of "
    "neighbors and of votes do, or not at all."
)


def _probed(model: ir.Model, label: ir.Value, final: ir.Value) -> tuple[np.ndarray, Any] | None:
    """Return the labels and the trained output for random rows; None if the graph does not run on them."""
    copy, rng = model.clone(), np.random.RandomState(0)
    values = {v.name: v for node in copy.graph for v in node.outputs}
    shown = [values[label.name], values[final.name]]
    for value in shown:
        value.shape = None  # onnxruntime warns if the declared shape is wrong
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


def _are_of_kind(labels: Labels | None, label: np.ndarray, found: Any) -> bool:
    """Return True if the numbers ``found`` are probabilities, not margins, which may lie between 0 and 1 too."""
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


# Edit the end of a graph with operators of ai.onnx.ml: votes, order of classes, leaves of forests, constants.


def plain_value(value: ir.Value) -> ir.Value:
    """Return the value from which Identity nodes, Casts to its own type or products with one lead to ``value``."""
    while (node := value.producer()) is not None and not node.domain and (x := node.inputs[0]) is not None:
        same = node.op_type == "Identity" or (node.op_type == "Cast" and x.dtype == value.dtype and is_float(x))
        factor = constant_of(node.inputs[1]) if node.op_type == "Mul" else None
        if not same and (factor is None or factor.ravel().tolist() != [1.0]):
            break
        value = x
    return value


def narrow_selected_doubles(graph: ir.Graph) -> None:
    """Store float64 constants as float32, in place, if nodes only select from them and cast the selection to float32.

    skl2onnx writes such constants for the targets of nearest neighbors.
    """
    for value in [
        v for v in graph.initializers.values() if v.dtype is ir.DataType.DOUBLE and v.const_value is not None
    ]:
        chain = _selected_before_cast(value)
        if chain is not None and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            for one in (value, *chain):
                one.type = ir.TensorType(ir.DataType.FLOAT)  # a new type object, because clones share types


def _selected_before_cast(value: ir.Value) -> list[ir.Value] | None:
    """Return the values selected from ``value``; None unless only selections and casts to float32 read them."""
    found: list[ir.Value] = []
    if value.is_graph_output() or not value.uses():
        return None
    for node, index in value.uses():
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            continue
        if node.op_type not in SELECTIONS or index:
            return None
        inner = _selected_before_cast(node.outputs[0])
        if inner is None:
            return None
        found += [node.outputs[0], *inner]
    return found


SELECTIONS = frozenset({"ArrayFeatureExtractor", "Gather", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def machine_of_votes(label: ir.Value) -> ir.Node | None:
    """Return the node of the support vector machine that computes the label; None if none does."""
    node, index = maker_of(label)
    machine = node is not None and node.domain == ML and node.op_type == "SVMClassifier" and index == 0
    return node if machine and node is not None and sum(numbers_of_attribute(node, "vectors_per_class")) else None


def keep_votes_of_machine(graph: ir.Graph, machine: ir.Node) -> None:
    """Add the class chosen by votes as an output, and the scores of pairs of classes if votes are counted.

    The first of two margin columns of LIBSVM is the score of the second class.
    """
    classes = len(numbers_of_attribute(machine, "vectors_per_class"))
    of_probabilities = bool(numbers_of_attribute(machine, "prob_a"))
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    if of_probabilities or classes > 2:
        add_output(graph, CLASS_OUTPUT, op.Identity(number_classes(machine, classes)))
    if classes > 2 and not of_probabilities:
        add_output(graph, PAIRS, op.Neg(machine.outputs[1]))
    if classes == 2 and not of_probabilities:
        graph.outputs[0] = op.Gather(machine.outputs[1], np.array([0]), axis=1)
        graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        graph.sort()


def keep_leaf_shares(model: ir.Model, role: Role) -> None:
    """Normalize the trained leaves of a forest, so that its output remains probabilities.

    Each leaf sums to the share of its tree in the output, or is a single number below this share.
    """
    value = model.graph.initializers[role.name].const_value
    if role.role != "leaf_values" or value is None or role.places is None:
        return
    numbers = value.numpy()
    trees = len(np.unique(role.places[..., 0]))
    total = numbers.sum(axis=1) if numbers.ndim == 2 else np.full(1, 1 / trees)
    share = float(total.mean())
    within = bool((numbers >= 0).all() and (numbers <= share * (1 + FILE_TOLERANCE)).all())
    if within and np.allclose(total, share, rtol=FILE_TOLERANCE):
        normalize_leaves(model, role.name, share, np.ones((numbers.shape[-1], 1), np.float32), several=False)


def sort_classes(graph: ir.Graph, classes: np.ndarray | list[np.ndarray]) -> np.ndarray | None:
    """Reorder the columns of the scores, and the index of the chosen class, in place, so that labels are sorted.

    Return the order of the columns; None if the labels are sorted already.
    """
    order = np.argsort(classes, kind="stable")
    if (order == np.arange(len(order))).all():
        return None
    if any(v.name == PAIRS for v in graph.outputs):
        raise ModelError(f"The classes of the graph, {list(classes)}, are not sorted, as scikit-learn's are.")
    op = GraphBuilder(graph, prefix="sorted", constant_nodes=True)
    for i, value in enumerate(graph.outputs):
        by_class = op.Gather(value, order, axis=1) if i == 0 else op.Gather(np.argsort(order), value)
        by_class.type = value.type
        graph.outputs[i] = by_class
        if i:
            value.name, by_class.name = None, value.name
    graph.sort()
    return order


def keep_name(graph: ir.Graph, name: str | None) -> None:
    """Give the trained output the requested name, unless another value has it."""
    final = graph.outputs[0]
    taken = {v.name for v in (*graph.inputs, *graph.initializers.values())}
    holder = next((v for node in graph for v in node.outputs if v.name == name and v is not final), None)
    if final.name != name and holder is None and name not in taken and final.producer() is not None:
        final.name = name


def is_fixed_role(role: Role, graph: TrainableModel) -> bool:
    """Return True if a parameter is not trained: imputed values, codes of categories, neutral scaling.

    The numbers that a classifier adds to its trees are not trained either, because they follow from the shares of the
    classes.
    """
    of_classes = role.operator == f"{ML}.TreeEnsembleClassifier"
    if role.role in ("imputed", "default") or (role.role == "base_values" and of_classes):
        return True
    if role.name not in graph.parameters:
        return False
    value = graph.model.graph.initializers[role.name].const_value
    numbers = np.empty(0) if value is None else value.numpy()
    if role.role == "values":
        first = np.min(numbers) if numbers.size else 0.0
        return bool(first in (0.0, 1.0) and (np.sort(numbers) == first + np.arange(numbers.size)).all())
    neutral = {"offset": 0.0, "scale": 1.0}.get(role.role)
    return neutral is not None and bool((numbers == neutral).all())


def hold_as_constants(graph: ir.Graph, names: Collection[str]) -> None:
    """Turn initializers into Constant nodes, so that training the exported graph does not treat them as weights."""
    op = GraphBuilder(graph, prefix="setting", constant_nodes=True)
    for value in [value for name, value in graph.initializers.items() if name in names]:
        hold_as_constant(op, value)
    graph.sort()


# Files of classifiers with several labels per row: find the classes of each label, and the columns of its scores.
#
# skl2onnx writes the scores as a matrix with a column for each label, as a tensor whose first axis is the labels, or as
# a sequence with a matrix for each label. This section converts them to one matrix.


def labels_of_graph(label: ir.Value, found: np.ndarray | None) -> Labels | None:
    """Return the classes of each label if the graph returns several labels per row; None if it returns one.

    ``found`` are the labels of some rows, because the shape that skl2onnx declares may be wrong. Labels whose classes
    no operator names must be 0 or 1.

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
    if width < 2 or (found is not None and shape[0] == 1):  # (1, N), as QuadraticDiscriminantAnalysis
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
    """Return the classes as ``classes_`` holds them: the indices of binary labels, else the classes of each label."""
    return np.arange(len(labels)) if are_indicators(labels) else list(labels)


def parts_of(final: ir.Value) -> list[ir.Value]:
    """Return the tensors of a trained output: the elements of a sequence, or the output itself."""
    node = final.producer()
    return [value for value in node.inputs if value is not None] if node and is_sequence(final) else [final]


def as_matrix(op: GraphBuilder, final: ir.Value, n_labels: int) -> ir.Value:
    """Emit a trained output as one matrix, with the columns of all labels side by side."""
    parts = parts_of(final)
    if has_labels_first(final, n_labels):
        parts = [op.Gather(final, i, axis=0) for i in range(n_labels)]
    return op.Concat(*parts, axis=1)


def end_in_labels(model: ir.Model, labels: Labels, *, probable: bool, labels_first: bool) -> None:
    """Change the graph to end in scores: one for each binary label, or one for each class of each label."""
    infer_shapes(model)
    values = list(model.graph.outputs)
    sizes = [len(one) for one in labels]
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
    """Return True if a trained output is a tensor whose first axis holds the labels, not the rows."""
    return final.shape is not None and len(final.shape) == 3 and final.shape[0] == n_labels


def _width(op: GraphBuilder, value: ir.Value) -> int | None:
    shape = op.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None
