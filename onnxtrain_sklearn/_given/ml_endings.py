"""Edits of the end of a graph of ai.onnx.ml: votes, order of classes, leaves of forests, constants."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from .._fitted.decision_rules import CHOICE, PAIRS, add_output, number_classes
from .._fitted.scores import normalize_leaves
from .._graph.builder import GraphBuilder
from .._graph.edits import hold_as_constant
from .._graph.queries import is_float
from .._graph.trainable import TrainableModel
from .._ml_operators.context import Role
from ..exceptions import ModelError
from .ml_graphs import (
    FILE_TOLERANCE,
    ML,
    constant_of,
    maker_of,
    numbers_of_attribute,
)


def plain_value(value: ir.Value) -> ir.Value:
    """Return the value before Identity, Casts to its own type, and multiplications by one."""
    while (node := value.producer()) is not None and not node.domain and (x := node.inputs[0]) is not None:
        same = node.op_type == "Identity" or (node.op_type == "Cast" and x.dtype == value.dtype and is_float(x))
        if not same and not _is_times_one(node):
            break
        value = x
    return value


def _is_times_one(node: ir.Node) -> bool:
    factor = constant_of(node.inputs[1]) if node.op_type == "Mul" else None
    return factor is not None and factor.ravel().tolist() == [1.0]


def narrow_selected_doubles(graph: ir.Graph) -> None:
    """Store float64 constants as float32, in place, if nodes only select from them and cast the selection to float32.

    skl2onnx keeps the targets of nearest neighbors so.
    """
    for value in [
        v for v in graph.initializers.values() if v.dtype is ir.DataType.DOUBLE and v.const_value is not None
    ]:
        chain = _selected_before_cast(value)
        if chain is not None and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            for one in (value, *chain):
                one.type = ir.TensorType(ir.DataType.FLOAT)  # clones share types


def _selected_before_cast(value: ir.Value) -> list[ir.Value] | None:
    """Return the selections from a value, if each is read by selections and by casts to float32 alone."""
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
    """Return the support vector machine that computes the label, if one does."""
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
        add_output(graph, CHOICE, op.Identity(number_classes(machine, classes)))
    if classes > 2 and not of_probabilities:
        add_output(graph, PAIRS, op.Neg(machine.outputs[1]))
    if classes == 2 and not of_probabilities:
        graph.outputs[0] = op.Gather(machine.outputs[1], np.array([0]), axis=1)
        graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        graph.sort()


def keep_leaf_shares(model: ir.Model, role: Role) -> None:
    """Keep the leaves of a forest probabilities: each sums to the share of its tree, or is a number below it."""
    value = model.graph.initializers[role.name].const_value
    if role.role != "leaf_values" or value is None or role.places is None:
        return
    numbers, trees = value.numpy(), len(np.unique(role.places[..., 0]))
    total = numbers.sum(axis=1) if numbers.ndim == 2 else np.full(1, 1 / trees)
    share = float(total.mean())
    within = bool((numbers >= 0).all() and (numbers <= share * (1 + FILE_TOLERANCE)).all())
    if within and np.allclose(total, share, rtol=FILE_TOLERANCE):
        normalize_leaves(model, role.name, share, np.ones((numbers.shape[-1], 1), np.float32), several=False)


def sort_classes(graph: ir.Graph, classes: np.ndarray | list[np.ndarray]) -> np.ndarray | None:
    """Reorder the columns of the scores and the index of the chosen class to sorted labels.

    Returns the order, None if the labels are sorted.
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
    final, taken = graph.outputs[0], {v.name for v in (*graph.inputs, *graph.initializers.values())}
    holder = next((v for node in graph for v in node.outputs if v.name == name and v is not final), None)
    if final.name != name and holder is None and name not in taken and final.producer() is not None:
        final.name = name


def is_fixed_role(role: Role, source: TrainableModel) -> bool:
    """Whether a parameter stays fixed: imputed values, codes of categories, neutral scaling.

    Numbers added to trees that classify are a function of the shares of the classes, as in the estimators.
    """
    of_classes = role.operator == f"{ML}.TreeEnsembleClassifier"
    if role.role in ("imputed", "default") or (role.role == "base_values" and of_classes):
        return True
    if role.name not in source.parameters:
        return False
    value = source.model.graph.initializers[role.name].const_value
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
