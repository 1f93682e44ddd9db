"""Which estimators have a converter of ours, and the node that stands for each of them while skl2onnx converts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import is_outlier_detector
from sklearn.ensemble import VotingClassifier, VotingRegressor

from .._graph.builder import GraphBuilder
from . import detectors, expansions, features, neighbours, targets
from .converter import Converter

DOMAIN = "onnxtrain.sklearn"
"""Domain of the nodes that stand for estimators."""

CONVERTERS: dict[type, Converter] = {
    **detectors.CONVERTERS,
    **expansions.CONVERTERS,
    **features.CONVERTERS,
    **neighbours.CONVERTERS,
    **targets.CONVERTERS,
}
"""The converters by class."""


def converter_of(estimator: Any) -> Converter | None:
    """Return the converter for an estimator, None where it is left to skl2onnx."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None


def put_in_place(graph: ir.Graph, node: ir.Node, estimator: Any) -> None:
    """Replace the node that stands for an estimator by what the estimator computes."""
    op = GraphBuilder(graph, prefix=node.name or type(estimator).__name__, constant_nodes=True)
    found, inputs = converter_of(estimator), [value for value in node.inputs if value is not None]
    assert found is not None
    x = inputs[0] if len(inputs) == 1 else op.Concat(*inputs, axis=1)
    if x.dtype is not ir.DataType.FLOAT:
        x = op.Cast(x, to=int(ir.DataType.FLOAT))
    result = found.emit(op, x, estimator)
    results = [_labels(op, result), result] if is_outlier_detector(estimator) else [result]
    for old, new in zip(node.outputs, results, strict=True):
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = op.name("stood_for"), old.name
    graph.remove(node, safe=True)
    graph.sort()


def _labels(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    return op.Where(op.Less(scores, 0.0), np.array(-1), np.array(1))


def _with_weights(voting: Any) -> Any:
    """Return it with its weights as an array of one for each estimator, which skl2onnx reads them from."""
    if voting.weights is None:
        return voting
    voting = copy.copy(voting)
    voting.weights = np.asarray(voting._weights_not_none, float)
    return voting


def _unflattened(voting: Any) -> Any:
    """Return it without the setting for ``transform``, which skl2onnx refuses; predictions know nothing of it."""
    voting = _with_weights(voting)
    if voting.voting == "soft" and voting.flatten_transform:
        voting = copy.copy(voting)
        voting.flatten_transform = False
    return voting


GIVEN: dict[type, Callable[[Any], Any]] = {VotingClassifier: _unflattened, VotingRegressor: _with_weights}
"""What is given to skl2onnx in place of an estimator of these classes."""


def given(estimator: Any) -> Any:
    """Return what is given to skl2onnx for an estimator: itself, or a copy with settings in another form."""
    return GIVEN.get(type(estimator), lambda same: same)(estimator)
