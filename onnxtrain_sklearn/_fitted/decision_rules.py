"""Decision rules other than the largest score: one-vs-one votes and decision thresholds.

Classifiers that compare classes by pairs choose the class with the most votes, whatever probabilities or decision
functions are made of their scores. The rule stays in the graph as an output of its own; the scores are trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.neighbors import NearestCentroid

from .._graph.builder import GraphBuilder
from .._support.typing import Estimator
from ..exceptions import ModelError
from .converters.context import EPSILON, ConversionRecord
from .converters.linear import MARGINS
from .converters.one_vs_one import CONFIDENCES
from .converters.points import APART
from .record import ModelRecord

PAIRS, CHOICE = "pairs", "choice"
"""Names of the outputs with the scores of pairs of classes, and with the index of the predicted class."""


def keep_votes(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Add outputs for decisions by votes to a graph with operators of ai.onnx.ml, in place.

    The index of the class, where probabilities need not agree with the votes and no threshold decides, and the scores
    of pairs of classes, where the decision function counts votes: these have no gradient.
    """
    if record.is_libsvm:
        _keep_votes_of_machine(graph, record, conversions)
    elif record.is_one_vs_one:
        _keep_confidences(graph, record, conversions)
    elif record.is_linear_by_descent and record.has_probabilities and record.threshold is None:
        _keep_largest_margin(graph, record, conversions)
    elif isinstance(record.last, NearestCentroid) and record.threshold is None:
        _keep_nearest(graph, record, conversions)


def _keep_nearest(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Take the nearest centroid as scikit-learn does where no class is likelier before: in the units of the data."""
    prior = np.asarray(record.last.class_prior_)
    if np.isclose(prior, 1 / len(prior)).all():
        made = next(one for one in conversions if one.estimator is record.last)
        apart = graph.node(made.marked[APART]).outputs[0]
        op = GraphBuilder(graph, prefix="nearest", constant_nodes=True)
        away = op.ReduceSum(op.Mul(apart, apart), axes=[2], keepdims=False)
        add_output(graph, CHOICE, op.ArgMin(away, axis=1, keepdims=False))


def _keep_votes_of_machine(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    machine, probable, decides = record.last, record.has_probabilities, record.threshold is None
    node = _node_of(graph, machine, conversions)
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    if decides and (probable or (len(machine.classes_) > 2 and not machine.break_ties)):
        add_output(graph, CHOICE, op.Identity(number_classes(node, len(machine.classes_))))
    if not probable and len(machine.classes_) > 2:
        add_output(graph, PAIRS, op.Neg(node.outputs[1]))


def _keep_largest_margin(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Saturated probabilities tie; take the argmax of the margins instead."""
    made = next(one for one in conversions if one.estimator is record.last)
    if MARGINS in made.marked:
        margin = graph.node(made.marked[MARGINS]).outputs[0]
        op = GraphBuilder(graph, prefix="margins", constant_nodes=True)
        add_output(graph, CHOICE, op.ArgMax(margin, axis=1, keepdims=False))


def _node_of(graph: ir.Graph, machine: Estimator, conversions: Sequence[ConversionRecord]) -> ir.Node:
    made = next(one for one in conversions if one.estimator is machine)
    return next(node for node in graph if node.op_type == "SVMClassifier" and node.name in made.nodes)


def chosen_index(graph: ir.Graph, machine: Estimator, conversions: Sequence[ConversionRecord]) -> ir.Value:
    """Return the index of the class that a support vector machine predicts by votes."""
    return number_classes(_node_of(graph, machine, conversions), len(machine.classes_))


def number_classes(node: ir.Node, classes: int) -> ir.Value:
    """Replace the labels of a classifier by their positions; return its label output."""
    node.attributes.pop("classlabels_strings", None)
    node.attributes["classlabels_ints"] = ir.AttrInt64s("classlabels_ints", range(classes))
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    return node.outputs[0]


def _keep_confidences(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Add the confidences of pairs of classes as an output: they have a gradient, votes have none."""
    estimator = record.last
    made = next(one for one in conversions if one.estimator is estimator)
    confidences = graph.node(made.marked[CONFIDENCES]).outputs[0]
    op = GraphBuilder(graph, prefix="confidences", constant_nodes=True)
    inner = estimator.estimators_[0]
    if not hasattr(inner, "decision_function") and is_classifier(inner):
        logarithms = [op.Log(op.Add(op.Relu(p), EPSILON)) for p in (confidences, op.Sub(1.0, confidences))]
        confidences = op.Sub(*logarithms)
        if record.threshold is None and len(estimator.classes_) == 2:  # the decision function is positive for both
            second = op.Reshape(op.Greater(confidences, 0.0), np.array([-1]))
            add_output(graph, CHOICE, op.Cast(second, to=int(ir.DataType.INT64)))
    add_output(graph, PAIRS, op.Identity(confidences))


TIE = 1e-6
"""Difference of probabilities that counts as a tie: float32 sums of equal votes of a hundred trees differ by less."""


def keep_first_of_ties(graph: ir.Graph, *, of_two: bool = False) -> None:
    """Add an output for the class with the largest probability, the first one of a tie, in place.

    Votes tie often. Trained votes are normalized, so that sums of equal votes differ in the last bits. With ``of_two``,
    two classes are compared in this way, too.
    """
    p, named = graph.outputs[0], {value.name for value in graph.outputs}
    if (
        p.shape is None
        or len(p.shape) != 2
        or p.shape[1] in ((1,) if of_two else (1, 2))
        or not {PAIRS, CHOICE}.isdisjoint(named)
    ):
        return
    op = GraphBuilder(graph, prefix="ties", constant_nodes=True)
    near = op.GreaterOrEqual(p, op.Sub(op.ReduceMax(p, axes=[1], keepdims=True), TIE))
    first = op.ArgMax(op.Cast(near, to=ir.DataType.FLOAT), axis=1, keepdims=False)
    add_output(graph, CHOICE, first)


def add_output(graph: ir.Graph, name: str, value: ir.Value) -> None:
    """Make a value an output of the graph with this name."""
    value.name = name
    graph.outputs.append(value)
    graph.sort()


# Thresholds


def keep_threshold(graph: ir.Graph, record: ModelRecord) -> None:
    """Add an output for the class that a threshold of the probability, or of the decision function, decides.

    The first output of the graph is the one or the other, of one column or of two.
    """
    threshold = record.threshold
    if threshold is None:
        return
    output, positive = graph.outputs[0], threshold.positive
    op = GraphBuilder(graph, prefix="threshold", constant_nodes=True)
    end = output.producer()
    if not threshold.of_probabilities and end is not None and end.op_type == "Sigmoid" and end.inputs[0] is not None:
        output = end.inputs[0]
    elif not threshold.of_probabilities and end is not None and end.op_type == "Softmax":
        raise ModelError(
            f"{type(threshold.rule).__name__} chooses labels by decision_function(), which the trained probabilities "
            f"do not determine. Fit it with response_method='predict_proba'."
        )
    shape = op.shape(output)
    if shape is not None and shape[-1] == 2:
        score = op.Gather(output, np.array([positive]), axis=1)
    else:
        negative = op.Sub(1.0, output) if threshold.of_probabilities else op.Neg(output)
        score = output if positive else negative
    reached = op.Reshape(op.GreaterOrEqual(score, threshold.limit), np.array([-1]))
    add_output(graph, CHOICE, op.Where(reached, np.array(positive), np.array(1 - positive)))
