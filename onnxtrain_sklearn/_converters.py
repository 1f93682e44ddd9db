"""Converters of our own: for estimators that skl2onnx has none for, or one whose graph is wrong or has no gradient.

Each emits what one estimator computes, in operators that are trained or that have a rewriting rule; its fitted numbers
are parameters under the names of their attributes. :data:`CONVERTERS` lists them by class, with the settings that they
are for. While skl2onnx converts a model, a node of :data:`DOMAIN` stands for such an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.ensemble._iforest import _average_path_length
from sklearn.linear_model import SGDOneClassSVM
from sklearn.neighbors import LocalOutlierFactor

from ._graph.builder import GraphBuilder
from ._graph.rewrites.distances import root, squared_distances

DOMAIN = "onnxtrain.sklearn"
"""Domain of the nodes that stand for estimators."""

_FLOAT = int(ir.DataType.FLOAT)


@dataclass(frozen=True)
class Converter:
    """How one class of estimators is converted.

    Attributes
    ----------
    emit : callable
        ``(op, x, estimator)`` to what it predicts or transforms rows into; of a detector of outliers the scores.
    columns : callable
        The number of columns of that, from the estimator.
    takes : callable
        Whether these settings of the estimator are converted here.
    """

    emit: Callable[[GraphBuilder, ir.Value, Any], ir.Value]
    columns: Callable[[Any], int]
    takes: Callable[[Any], bool] = lambda estimator: True


def converter_of(estimator: Any) -> Converter | None:
    """Return the converter for an estimator, None where it is left to skl2onnx."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None


def put_in_place(graph: ir.Graph, node: ir.Node, estimator: Any) -> None:
    """Replace the node that stands for an estimator by what the estimator computes."""
    op = GraphBuilder(graph, prefix=node.name or type(estimator).__name__, constant_nodes=True)
    columns = [v if v.dtype is ir.DataType.FLOAT else op.Cast(v, to=_FLOAT) for v in node.inputs]
    found = converter_of(estimator)
    assert found is not None
    result = found.emit(op, columns[0] if len(columns) == 1 else op.Concat(*columns, axis=1), estimator)
    results = [result] if len(node.outputs) == 1 else [_labels(op, result), result]
    for old, new in zip(node.outputs, results, strict=True):
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = op.name("stood_for"), old.name
    graph.remove(node, safe=True)
    graph.sort()


def _labels(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    return op.Where(op.Less(scores, 0.0), np.array(-1), np.array(1))


def _parameter(op: GraphBuilder, name: str, numbers: Any) -> ir.Value:
    return op.parameter(op.name(name), np.ascontiguousarray(numbers, np.float32))


# Detectors of outliers: scores that are positive for inliers


def _linear_machine(op: GraphBuilder, x: ir.Value, machine: SGDOneClassSVM) -> ir.Value:
    coef = _parameter(op, "coef", np.reshape(machine.coef_, (-1, 1)))
    return op.Sub(op.MatMul(x, coef), _parameter(op, "offset", np.ravel(machine.offset_)))


def _elliptic_envelope(op: GraphBuilder, x: ir.Value, envelope: EllipticEnvelope) -> ir.Value:
    """The squared Mahalanobis distance, with its sign turned, above an offset."""
    centred = op.Sub(x, _parameter(op, "location", envelope.location_))
    product = op.MatMul(centred, _parameter(op, "precision", envelope.get_precision()))
    distance = op.ReduceSum(op.Mul(product, centred), axes=[1], keepdims=True)
    return op.Sub(op.Neg(distance), _parameter(op, "offset", np.ravel(envelope.offset_)))


def _isolation_forest(op: GraphBuilder, x: ir.Value, forest: IsolationForest) -> ir.Value:
    """-2 ** (-length / usual length) above an offset: the path to a leaf is short where a row is alone.

    The length of the path to a leaf, and of those that would go on from it, is a number of the leaf.
    """
    paths = op.emit("TreeEnsembleRegressor", x, domain="ai.onnx.ml", n_targets=1, **_isolating_trees(forest))[0]
    paths.dtype = ir.DataType.FLOAT
    usual = len(forest.estimators_) * float(_average_path_length([forest._max_samples])[0])
    scores = op.Neg(op.Exp(op.Mul(paths, -math.log(2) / usual)))
    return op.Sub(scores, _parameter(op, "offset", np.ravel(forest.offset_)))


def _isolating_trees(forest: IsolationForest) -> dict[str, Any]:
    """Return the attributes of the operator: its nodes, and the length of the paths to each leaf."""
    parts = zip(
        forest.estimators_,
        forest.estimators_features_,
        forest._decision_path_lengths,
        forest._average_path_length_per_tree,
        strict=True,
    )
    columns: dict[str, list[Any]] = {}
    for i, (estimator, features, depths, beyond) in enumerate(parts):
        tree, numbers = estimator.tree_, np.arange(estimator.tree_.node_count)
        leaf = tree.children_left < 0
        values = {
            "nodes_treeids": np.full(len(numbers), i),
            "nodes_nodeids": numbers,
            "nodes_featureids": np.where(leaf, 0, np.asarray(features)[np.maximum(tree.feature, 0)]),
            "nodes_values": _not_above(np.where(leaf, 0.0, tree.threshold)),
            "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
            "nodes_truenodeids": np.where(leaf, 0, tree.children_left),
            "nodes_falsenodeids": np.where(leaf, 0, tree.children_right),
            "nodes_missing_value_tracks_true": np.asarray(tree.missing_go_to_left, int),
            "target_treeids": np.full(leaf.sum(), i),
            "target_nodeids": numbers[leaf],
            "target_ids": np.zeros(leaf.sum(), int),
            "target_weights": (depths + beyond - 1.0)[leaf],
        }
        for name, array in values.items():
            columns.setdefault(name, []).extend(array.tolist())
    return columns


def _not_above(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above each threshold: it tells the same float32 numbers apart."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _local_outlier_factor(op: GraphBuilder, x: ir.Value, factor: LocalOutlierFactor) -> ir.Value:
    """How dense it is at a row, of how dense it is at its neighbours, with the sign turned, above an offset.

    A distance counts as no less than that from the neighbour to its own farthest one; density is the inverse of their
    mean.
    """
    nearest, distance = _neighbours(op, x, factor)
    usual = np.ascontiguousarray(factor._distances_fit_X_[:, factor.n_neighbors_ - 1], np.float32)
    reached = op.Max(distance, op.Gather(usual, nearest, axis=0))
    mean = op.Add(op.ReduceMean(reached, axes=[1], keepdims=True), 1e-10)
    ratios = op.Mul(op.Gather(_parameter(op, "lrd", factor._lrd), nearest, axis=0), mean)
    score = op.Neg(op.ReduceMean(ratios, axes=[1], keepdims=True))
    return op.Sub(score, _parameter(op, "offset", np.ravel(factor.offset_)))


def _neighbours(op: GraphBuilder, x: ir.Value, model: Any) -> tuple[ir.Value, ir.Value]:
    """Return the positions of the rows that are nearest to each row, and their distances: (rows, neighbours).

    Only those distances are exact, and have a gradient: they are taken of differences, not of what squares differ in.
    """
    fitted, euclidean = _parameter(op, "fit_X", model._fit_X), model.effective_metric_ == "euclidean"
    rows = op.Unsqueeze(x, axes=[1])
    if euclidean:
        order = squared_distances(op, x, fitted, np.asarray(model._fit_X).mean(axis=0))
    else:
        order = op.ReduceSum(op.Abs(op.Sub(rows, fitted)), axes=[2], keepdims=False)
    count = int(getattr(model, "n_neighbors_", model.n_neighbors))
    nearest = op.emit("TopK", order, np.array([count]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    apart = op.Sub(rows, op.Gather(fitted, nearest, axis=0))
    sizes = op.Mul(apart, apart) if euclidean else op.Abs(apart)
    total = op.ReduceSum(sizes, axes=[2], keepdims=False)
    return nearest, root(op, total) if euclidean else total


def _measures_differences(model: Any) -> bool:
    return model.effective_metric_ in ("euclidean", "manhattan") and isinstance(model._fit_X, np.ndarray)


CONVERTERS: dict[type, Converter] = {
    EllipticEnvelope: Converter(_elliptic_envelope, lambda envelope: 1),
    IsolationForest: Converter(_isolation_forest, lambda forest: 1, lambda forest: forest._max_samples > 1),
    LocalOutlierFactor: Converter(_local_outlier_factor, lambda factor: 1, _measures_differences),
    SGDOneClassSVM: Converter(_linear_machine, lambda machine: 1),
}
"""The converters by class."""
