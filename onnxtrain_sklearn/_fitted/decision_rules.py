"""Classes that a fitted model chooses otherwise than by its largest score: by votes, or at a threshold.

Machines that tell classes apart by pairs choose the class with most votes, whatever probabilities or decision functions
are made of their scores. The rule stays in the graph as an output of its own, and what is trained are the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.multiclass import OneVsOneClassifier
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC, NuSVC

from .._graph.builder import GraphBuilder
from .._typing import Estimator
from ..exceptions import ModelError
from .conversion import ConversionRecord
from .converters.context import EPSILON
from .traversal import last_step

PAIRS, CHOICE = "pairs", "choice"
"""Names of the outputs that hold the scores of pairs of classes, and the index of the class that is chosen."""


def keep_votes(graph: ir.Graph, estimator: Estimator, watched: list[ConversionRecord]) -> None:
    """Make outputs of what a graph with operators of ai.onnx.ml chooses by votes, in place.

    The index of the class, where probabilities need not agree with the votes and no threshold decides, and the scores
    of pairs of classes, where the decision function counts votes: these have no gradient.
    """
    last, decides = last_step(estimator), threshold_rule(estimator) is None
    if isinstance(last, SVC | NuSVC):
        _keep_votes_of_machine(graph, last, watched, decides=decides)
    elif isinstance(last, OneVsOneClassifier):
        _keep_confidences(graph, last, decides=decides)
    elif isinstance(last, SGDClassifier) and hasattr(last, "predict_proba") and decides:
        _keep_largest_margin(graph, last, watched)


def _keep_votes_of_machine(
    graph: ir.Graph, machine: Estimator, watched: list[ConversionRecord], *, decides: bool
) -> None:
    node = _node_of(graph, machine, watched)
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    with_probabilities = hasattr(machine, "predict_proba")
    if decides and (with_probabilities or (len(machine.classes_) > 2 and not machine.break_ties)):
        add_output(graph, CHOICE, op.Identity(number_classes(node, len(machine.classes_))))
    if not with_probabilities and len(machine.classes_) > 2:
        add_output(graph, PAIRS, op.Neg(node.outputs[1]))


def _keep_largest_margin(graph: ir.Graph, classifier: SGDClassifier, watched: Sequence[ConversionRecord]) -> None:
    """Probabilities at their bounds are even where margins, which are the first sum of the converter, are not."""
    made = next(one for one in watched if one.estimator is classifier)
    if len(classifier.classes_) > 2:
        margin = next(n for n in graph if n.op_type in ("Add", "Gemm") and n.name in made.nodes).outputs[0]
        op = GraphBuilder(graph, prefix="margins", constant_nodes=True)
        add_output(graph, CHOICE, op.ArgMax(margin, axis=1, keepdims=False))


def _node_of(graph: ir.Graph, machine: Estimator, watched: Sequence[ConversionRecord]) -> ir.Node:
    made = next(one for one in watched if one.estimator is machine)
    return next(node for node in graph if node.op_type == "SVMClassifier" and node.name in made.nodes)


def chosen_index(graph: ir.Graph, machine: Estimator, watched: Sequence[ConversionRecord]) -> ir.Value:
    """Return the index of the class that a support vector machine chooses by votes."""
    return number_classes(_node_of(graph, machine, watched), len(machine.classes_))


def number_classes(node: ir.Node, classes: int) -> ir.Value:
    """Let a classifier number its classes; return its label."""
    node.attributes.pop("classlabels_strings", None)
    node.attributes["classlabels_ints"] = ir.AttrInt64s("classlabels_ints", range(classes))
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    return node.outputs[0]


def _keep_confidences(graph: ir.Graph, estimator: OneVsOneClassifier, *, decides: bool) -> None:
    """The converter of one-vs-one classifiers takes one confidence after the other, by nodes of this name."""
    taken = next(node for node in graph if (node.outputs[0].name or "").startswith("Csvc_"))
    confidences, op = taken.inputs[0], GraphBuilder(graph, prefix="confidences", constant_nodes=True)
    if not hasattr(estimator.estimators_[0], "decision_function") and is_classifier(estimator.estimators_[0]):
        logarithms = [op.Log(op.Add(op.Relu(p), EPSILON)) for p in (confidences, op.Sub(1.0, confidences))]
        confidences = op.Sub(*logarithms)
        if decides and len(estimator.classes_) == 2:  # whose decision function is above zero for both
            second = op.Reshape(op.Greater(confidences, 0.0), np.array([-1]))
            add_output(graph, CHOICE, op.Cast(second, to=int(ir.DataType.INT64)))
    add_output(graph, PAIRS, op.Identity(confidences))


def add_output(graph: ir.Graph, name: str, value: ir.Value) -> None:
    value.name = name
    graph.outputs.append(value)
    graph.sort()


# Thresholds


def keep_threshold(graph: ir.Graph, estimator: Estimator) -> None:
    """Make an output of the class that is chosen where the probability, or the decision function, reaches a threshold.

    The first output of the graph is the one or the other, of one column or of two.
    """
    rule = threshold_rule(estimator)
    if rule is None:
        return
    limit, positive, of_probabilities = threshold(rule)
    output, op = graph.outputs[0], GraphBuilder(graph, prefix="threshold", constant_nodes=True)
    end = output.producer()
    if not of_probabilities and end is not None and end.op_type == "Sigmoid" and end.inputs[0] is not None:
        output = end.inputs[0]
    elif not of_probabilities and end is not None and end.op_type == "Softmax":
        raise ModelError(
            f"{type(rule).__name__} chooses labels by decision_function(), of which the probabilities that are trained "
            f"know nothing. Fit it with response_method='predict_proba'."
        )
    shape = op.shape(output)
    if shape is not None and shape[-1] == 2:
        score = op.Gather(output, np.array([positive]), axis=1)
    else:
        negative = op.Sub(1.0, output) if of_probabilities else op.Neg(output)
        score = output if positive else negative
    reached = op.Reshape(op.GreaterOrEqual(score, float(limit)), np.array([-1]))
    add_output(graph, CHOICE, op.Where(reached, np.array(positive), np.array(1 - positive)))


def threshold_rule(estimator: Estimator) -> Any:
    """Return what chooses the labels at a threshold, or None."""
    while True:
        if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV):
            return estimator
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif isinstance(estimator, SelfTrainingClassifier):
            estimator = estimator.estimator_
        elif isinstance(estimator, BaseSearchCV):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        else:
            return None


def threshold(rule: Estimator) -> tuple[float, int, bool]:
    """Return the threshold, the index of the class beyond it, and whether it is one of probabilities."""
    methods = rule._get_response_method()
    methods = [methods] if isinstance(methods, str) else methods
    of_probabilities = next(name for name in methods if hasattr(rule, name)) == "predict_proba"
    if isinstance(rule, TunedThresholdClassifierCV):
        limit, label = rule.best_threshold_, rule._curve_scorer._get_pos_label()
    else:
        automatic = isinstance(rule.threshold, str)
        limit, label = (0.5 if of_probabilities else 0.0) if automatic else rule.threshold, rule.pos_label
    classes = list(rule.classes_)
    return float(limit), classes.index(label) if label is not None else 1, of_probabilities
