"""Converters for skl2onnx of our own: of models for which its own give nothing that can be trained.

A converter adds the nodes of one estimator to skl2onnx's container. Here are classifiers of several outputs a row:
trees, whose leaves hold a probability for each class of each output, and one estimator for each output, whatever it
is. The labels that they give are stand-ins: labels are made of the scores where predictions are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

Converter = Callable[[Any, Any, Any], None]
Parser = Callable[[Any, Any, Any], Any]

FLOAT, INT64 = 1, 7  # as TensorProto numbers them


def own_converter(estimator: Any, parse: Parser) -> Converter | None:
    """Return the converter that stands in for skl2onnx's, if there is one; ``parse`` is its parser of estimators."""
    if type(estimator) in TREES and estimator.n_outputs_ > 1:
        return _trees_of_several_outputs
    if is_estimator_an_output(estimator):
        return lambda scope, operator, container: _estimator_an_output(scope, operator, container, parse)
    return None


def is_estimator_an_output(estimator: Any) -> bool:
    """Whether a classifier holds a fitted estimator for each of its outputs."""
    several = isinstance(estimator, OneVsRestClassifier) and bool(getattr(estimator, "multilabel_", False))
    return several or isinstance(estimator, MultiOutputClassifier | ClassifierChain)


def in_order_of_labels(estimator: Any, parts: Sequence[Any]) -> list[Any]:
    """Return what there is of each estimator an output in the order of the labels, not of a chain."""
    return [parts[i] for i in np.argsort(estimator.order_)] if hasattr(estimator, "order_") else list(parts)


def _estimator_an_output(scope: Any, operator: Any, container: Any, parse: Parser) -> None:
    owner = operator.raw_operator
    if isinstance(owner, ClassifierChain):
        parts = in_order_of_labels(owner, _links_of_chain(scope, operator, container, parse))
    else:
        parts = [parse(scope, one, operator.inputs)[-1].full_name for one in owner.estimators_]
    joined = operator.outputs[1].full_name
    if isinstance(owner, MultiOutputClassifier):
        container.add_node("SequenceConstruct", parts, [joined], op_version=11, name=_name(scope, "SequenceConstruct"))
    else:
        container.add_node("Concat", parts, [joined], op_version=13, name=_name(scope, "Concat"), axis=1)
    _stand_in(scope, operator, container, parts[0])


def shapes_of_chain(operator: Any) -> None:
    """Declare the outputs of a chain, which skl2onnx does not know."""
    for variable in operator.outputs:
        variable.type.shape = [None, len(operator.raw_operator.estimators_)]


def _links_of_chain(scope: Any, operator: Any, container: Any, parse: Parser) -> list[str]:
    """Return the probabilities or scores of the estimators of a chain: each is given what those before it predict."""
    owner, (rows,) = operator.raw_operator, operator.inputs
    method = getattr(owner, "chain_method_", "predict")
    if method not in ("predict", "predict_proba"):
        raise ValueError(f"its chain_method is {method!r}; those that can be trained are 'predict' and 'predict_proba'")
    if any(list(known) != [0, 1] for known in owner.classes_):
        raise ValueError("not all of its labels are 0 or 1")
    given, parts = [rows.full_name], list[str]()
    for one in owner.estimators_:
        augmented = scope.declare_local_variable("rows", type(rows.type)([None, one.n_features_in_]))
        container.add_node("Concat", given, [augmented.full_name], op_version=13, name=_name(scope, "Concat"), axis=1)
        label, numbers = (variable.full_name for variable in parse(scope, one, [augmented]))
        parts.append(numbers)
        given = [*given, _link(scope, container, label if method == "predict" else numbers, method)]
    return parts


def _link(scope: Any, container: Any, value: str, method: str) -> str:
    """Return the column that an estimator of a chain hands to the next ones: its label, or the probability of it."""
    column, cast = (scope.get_unique_variable_name(name) for name in ("column", "cast"))
    if method == "predict":
        shape = scope.get_unique_variable_name("shape")
        container.add_initializer(shape, INT64, [2], [-1, 1])
        container.add_node("Cast", [value], [cast], op_version=13, name=_name(scope, "Cast"), to=FLOAT)
        container.add_node("Reshape", [cast, shape], [column], op_version=13, name=_name(scope, "Reshape"))
        return str(column)
    second = scope.get_unique_variable_name("second")
    container.add_initializer(second, INT64, [1], [1])
    container.add_node("Gather", [value, second], [column], op_version=13, name=_name(scope, "Gather"), axis=1)
    return str(column)


def _trees_of_several_outputs(scope: Any, operator: Any, container: Any) -> None:
    owner, probabilities = operator.raw_operator, operator.outputs[1].full_name
    trees = [one.tree_ for one in getattr(owner, "estimators_", [owner])]
    attributes = _nodes(trees) | _leaves(trees, np.asarray(owner.n_classes_))
    container.add_node(
        "TreeEnsembleRegressor",
        [operator.inputs[0].full_name],
        [probabilities],
        op_domain="ai.onnx.ml",
        op_version=3,
        name=_name(scope, "TreeEnsembleRegressor"),
        **attributes,
    )
    _stand_in(scope, operator, container, probabilities)


def _stand_in(scope: Any, operator: Any, container: Any, numbers: str) -> None:
    label = operator.outputs[0].full_name
    container.add_node("Cast", [numbers], [label], op_version=13, name=_name(scope, "Cast"), to=INT64)


def _name(scope: Any, operator: str) -> str:
    return str(scope.get_unique_operator_name(operator))


def _nodes(trees: Sequence[Any]) -> dict[str, Any]:
    counts = [tree.node_count for tree in trees]
    columns = {
        "featureids": [np.maximum(tree.feature, 0) for tree in trees],
        "values": [_threshold(tree) for tree in trees],
        "truenodeids": [np.maximum(tree.children_left, 0) for tree in trees],
        "falsenodeids": [np.maximum(tree.children_right, 0) for tree in trees],
        "missing_value_tracks_true": [np.asarray(tree.missing_go_to_left) for tree in trees],
        "treeids": [np.full(count, i) for i, count in enumerate(counts)],
        "nodeids": [np.arange(count) for count in counts],
    }
    nodes = {f"nodes_{name}": np.concatenate(parts).tolist() for name, parts in columns.items()}
    nodes["nodes_missing_value_tracks_true"] = [int(x) for x in nodes["nodes_missing_value_tracks_true"]]
    nodes["nodes_modes"] = ["LEAF" if end else "BRANCH_LEQ" for tree in trees for end in tree.children_left < 0]
    return nodes


def _threshold(tree: Any) -> np.ndarray:
    """Return the largest float32 that no threshold is below: what is compared with it is float32 too."""
    exact = np.where(tree.children_left < 0, 0.0, tree.threshold)
    rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _leaves(trees: Sequence[Any], n_classes: np.ndarray) -> dict[str, Any]:
    """Return the probabilities in the leaves, of one tree its share among all: the classes of each output in turn."""
    ends = [np.flatnonzero(tree.children_left < 0) for tree in trees]
    columns, count = int(n_classes.sum()), sum(map(len, ends))
    weights = [probabilities(tree, n_classes)[own] / len(trees) for tree, own in zip(trees, ends, strict=True)]
    return {
        "n_targets": columns,
        "target_treeids": np.repeat(np.arange(len(trees)), [len(own) * columns for own in ends]).tolist(),
        "target_nodeids": np.repeat(np.concatenate(ends), columns).tolist(),
        "target_ids": np.tile(np.arange(columns), count).tolist(),
        "target_weights": np.concatenate(weights).ravel().astype(np.float32).tolist(),
    }


def probabilities(tree: Any, n_classes: np.ndarray) -> np.ndarray:
    """Return what each node of a tree holds for the classes of each output in turn; they add up to one an output."""
    parts = [tree.value[:, i, :n] for i, n in enumerate(n_classes)]
    return np.concatenate([part / part.sum(axis=1, keepdims=True) for part in parts], axis=1)


TREES = frozenset({DecisionTreeClassifier, ExtraTreeClassifier, ExtraTreesClassifier, RandomForestClassifier})
"""Classes whose trees hold several outputs."""
