"""Make a converted graph end in scores that a loss can be computed on, and keep its decision rule.

A converted graph ends in probabilities, or in scores that may be redundant. :func:`expose_scores`, and for several
labels per row :func:`expose_labels`, change it to end in scores, or in an activation of scores. If the model does not
predict the class of the largest score, its decision rule becomes an output of its own, :data:`CLASS_OUTPUT`: votes of
pairs of classes (:func:`keep_votes`), the first of tied classes (:func:`keep_first_of_ties`), and decision thresholds
(:func:`keep_threshold`). The scores are trained, and the rule still decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.neighbors import NearestCentroid
from sklearn.tree import DecisionTreeClassifier

from .._ir.edits import bypass, insert_after, keep_outputs, replace_node
from .._ir.queries import attribute, constant, dims
from .._model.activation import activation_of
from .._utils.typing import Estimator
from ..exceptions import ModelError
from ..graph import GraphBuilder, copy_type
from .converters.context import EPSILON, ConversionRecord, several_labels
from .converters.linear import MARGINS
from .converters.meta import in_order_of_labels
from .converters.neighbors import APART
from .converters.svm import CONFIDENCES
from .fitted_model import Origin, follow
from .model_record import ModelRecord
from .provenance import VOTES

CLASSIFYING_TREES = (DecisionTreeClassifier, ExtraTreesClassifier, RandomForestClassifier)
"""The estimators whose leaves hold probabilities."""


def prune(model: ir.Model, position: int) -> None:
    """Remove all outputs but the one at ``position``, in place; a sequence becomes its elements."""
    output = model.graph.outputs[position]
    maker = output.producer()
    sequence = maker is not None and maker.op_type == "SequenceConstruct"
    kept = [value for value in maker.inputs if value is not None] if maker and sequence else [output]
    for value in kept:
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"Its output {value.name!r} is not a tensor. Only tensors can be trained.")
        value.shape = None  # skl2onnx may declare two columns where there is one
    keep_outputs(model, kept)


def drop_needless_norms(graph: ir.Graph) -> None:
    """Remove L1 norms of probabilities that add up to one: a softmax, or the two sigmoids of one score."""
    for node in [n for n in graph if n.op_type == "Normalizer"]:
        x = node.inputs[0]
        maker = None if x is None else x.producer()
        if x is None or maker is None or maker.op_type != "LinearClassifier":
            continue
        transform = maker.attributes["post_transform"].as_string() if "post_transform" in maker.attributes else "NONE"
        two = len(maker.attributes["intercepts"].as_floats()) <= 2
        if transform == "SOFTMAX" or (transform == "LOGISTIC" and two):
            bypass(node, x)


def as_probabilities(model: ir.Model, origin: Origin, root: Estimator) -> Origin:
    """Normalize the probabilities in the leaves of classification trees, so that they stay probabilities in training.

    The weights w of a leaf become |w| / sum(|w|), or |w| / (|w| + |1 - w|) for the single number of two classes, over
    the number of trees. With several outputs, the classes of each output are normalized separately. Unlike a softmax,
    this gives a probability of zero a gradient. The votes of training points are normalized in the same way.
    """
    owner = follow(root, origin.owner)
    if origin.form == VOTES:
        counts = [len(known) for known in owner.classes_] if several_labels(owner) else [len(owner.classes_)]
        normalize_leaves(model, origin.name, 1.0, _group_sums(np.array(counts)), several=len(counts) > 1)
        return origin
    if origin.role != "leaf_values" or not isinstance(owner, CLASSIFYING_TREES):
        return origin
    share = 1.0 / len(getattr(owner, "estimators_", [owner]))
    sizes = np.atleast_1d(owner.n_classes_)
    done = normalize_leaves(model, origin.name, share, _group_sums(sizes), several=len(sizes) > 1)
    return replace(origin, role="leaf_probabilities") if done else origin


def normalize_leaves(model: ir.Model, name: str, share: float, groups: np.ndarray, *, several: bool) -> bool:
    """Normalize the numbers of each leaf to the sum ``share``, in place; return False if they have another sum now."""
    value = model.graph.initializers[name]
    assert value.const_value is not None
    p = value.const_value.numpy() / share
    if p.ndim == 2 and not np.allclose(p @ groups, 1, atol=1e-4):
        return False
    op = GraphBuilder(model.graph, prefix=f"{name}/normalized", constant_nodes=True)
    value.const_value = ir.tensor(np.clip(p, EPSILON, 1 - EPSILON).astype(np.float32), name=name)

    def normalized(value: ir.Value) -> ir.Value:
        size = op.Abs(value)
        if p.ndim < 2:
            total = op.Add(size, op.Abs(op.Sub(1.0, value)))
        else:
            total = op.MatMul(size, groups) if several else op.ReduceSum(size, axes=[1], keepdims=True)
        return op.Mul(op.Div(size, total), share)

    insert_after(op, value, normalized)
    model.graph.sort()
    return True


def _group_sums(sizes: np.ndarray) -> np.ndarray:
    """Return the matrix (columns, columns) of 0 and 1 that replaces each column by the sum of its group."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    return np.asarray(group[:, None] == group, np.float32)


def expose_scores(model: ir.Model, record: ModelRecord) -> None:
    """Change the graph of a model to end in scores, or in an activation of scores."""
    if not record.gives_labels:
        end_in_scores(model, probabilities=None)
        return
    probabilities = record.has_probabilities
    end_in_scores(model, probabilities=probabilities, margin=None if probabilities else 1)


def end_in_scores(model: ir.Model, *, probabilities: bool | None, margin: int | None = None) -> None:
    """Change a graph to end in scores, or in an activation of scores.

    ``probabilities`` is True if the output holds probabilities, False if it holds decision functions, and None for the
    predictions of a regressor. ``margin`` is the column of the second class if two columns are each other's negatives.
    """
    if probabilities is None:
        _put_exponential_last(model.graph)
        return
    output = model.graph.outputs[0]
    op = GraphBuilder(model.graph, prefix="scores", constant_nodes=True)
    shown = _single_column(output)
    if shown is None and probabilities:
        # If no scores precede the probabilities, use their logarithms as scores, although these may saturate.
        found = activation_of(output)
        if found is None or not (found.link == "softmax" or found.paired):
            shown = copy_type(op.Softmax(op.Log(op.Add(op.Relu(output), EPSILON)), axis=1), output)
    elif shown is None and margin is not None and (dims(output) or [0])[-1] == 2:
        shown = op.Gather(output, np.array([margin]), axis=1)
        shown.type = output.type
    if shown is not None:
        model.graph.outputs[0] = shown
        model.graph.sort()
        keep_outputs(model, model.graph.outputs)


def _put_exponential_last(graph: ir.Graph) -> None:
    """Move a factor and a Reshape before a regressor's exponential: losses with a log link need it as the last node."""
    product = graph.outputs[0].producer()
    if product is not None and product.op_type == "Mul" and not product.domain:
        exponential, factor = product.inputs
        exponent = None if exponential is None else input_of(exponential, "Exp")
        tensor = None if factor is None else ir.convenience.get_const_tensor(factor)
        if exponent is not None and tensor is not None and tensor.size == 1 and (tensor.numpy() > 0).all():
            op = GraphBuilder(graph, prefix="factor", constant_nodes=True)
            replace_node(op, product, [op.Exp(op.Add(exponent, math.log(tensor.numpy().item())))])
    reshape = graph.outputs[0].producer()
    before = None if reshape is None or reshape.op_type != "Reshape" else reshape.inputs[0]
    scores = None if before is None else input_of(before, "Exp")
    if reshape is not None and scores is not None:
        op = GraphBuilder(graph, prefix="link", constant_nodes=True)
        replace_node(op, reshape, [op.Exp(op.Reshape(scores, reshape.inputs[1]))])


def ends_in(value: ir.Value, op_type: str) -> bool:
    """Return True if an operator of type ``op_type`` computes ``value``."""
    node = value.producer()
    return node is not None and node.op_type == op_type


def input_of(value: ir.Value, op_type: str) -> ir.Value | None:
    """Return the first input of the operator that computes ``value``; None if it is of another type."""
    node = value.producer()
    return node.inputs[0] if node is not None and node.op_type == op_type else None


def _single_column(output: ir.Value) -> ir.Value | None:
    """Return the score s, or its sigmoid, of an output with the columns (-s, s), or their sigmoids; else None."""
    concat = output.producer()
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != 2:
        return None
    first, second = concat.inputs
    assert first is not None
    assert second is not None
    scores = input_of(first, "Sigmoid"), input_of(second, "Sigmoid")
    if scores[0] is not None and scores[1] is not None:
        return second if _is_negation(scores[0], scores[1]) else None
    return second if _is_negation(first, second) else None


def _is_negation(value: ir.Value | None, of: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.inputs[0] is not of:
        return False
    if node.op_type == "Neg":
        return True
    factor = ir.convenience.get_const_tensor(node.inputs[1]) if node.op_type == "Mul" and node.inputs[1] else None
    return factor is not None and factor.numpy().ravel().tolist() == [-1.0]


# Classifiers that predict several labels per row: one matrix of scores for all labels.
#
# Converters return the probabilities of the labels as a sequence, as one tensor of rank 3, or as columns of a matrix.
# Here the scores from which these are computed are found, as for a single label, and concatenated.


Place = tuple[ir.Value, int, int]
"""The columns of a label: a matrix, the position of the first column in it, and the number of columns."""


def keep_votes_of_labels(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Add an output, with a column per label, for the classes that SVMs with probabilities predict by votes."""
    parts = in_order_of_labels(record.last, record.members) if record.members else []
    machines = [one.last for one in parts if one.is_libsvm and one.has_probabilities]
    if not machines:
        return
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    chosen = {id(one): op.Reshape(chosen_index(graph, one, conversions), np.array([-1, 1])) for one in machines}
    nothing = op.Mul(chosen[id(machines[0])], 0)
    columns = [chosen[id(p.last)] if id(p.last) in chosen else op.Add(nothing, int(p.last.y_[0])) for p in parts]
    add_output(graph, CLASS_OUTPUT, op.Concat(*columns, axis=1))


def expose_labels(model: ir.Model, record: ModelRecord) -> None:
    """Change the graph to end in scores: one sigmoid for each label that is 0 or 1, else one score for each class."""
    graph, probable, classes = model.graph, record.has_probabilities, record.outputs
    assert classes is not None
    if len(graph.outputs) == 1 and ends_in(source_of_columns(graph.outputs[0]), "Sigmoid"):
        return
    op = GraphBuilder(graph, prefix="labels", constant_nodes=True)
    machine = bool(record.members) and record.members[0].is_libsvm
    places = _label_columns(op, record)
    sizes = [len(known) for known in classes]
    end_in_scores_of_labels(
        op, model, places, sizes, indicators=record.has_indicators, probable=probable, machine=machine
    )


def end_in_scores_of_labels(
    op: GraphBuilder,
    model: ir.Model,
    places: Sequence[Place],
    sizes: Sequence[int],
    *,
    indicators: bool,
    probable: bool,
    machine: bool = False,
) -> None:
    """Change the graph to end in the scores from which the columns of each label are computed.

    ``sizes`` holds the number of classes of each label.
    """
    if indicators:
        columns = [_logit(op, place) if probable else _margin(op, place) for place in places]
    else:
        columns = [_scores(op, place, size, probable, machine) for place, size in zip(places, sizes, strict=True)]
    scores = op.Concat(*columns, axis=1)
    output = op.Sigmoid(scores) if probable and indicators else scores
    for value in (scores, output):
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape([None, len(sizes) if indicators else sum(sizes)])
    model.graph.sort()
    keep_outputs(model, [output, *(value for value in model.graph.outputs if value.name == CLASS_OUTPUT)])


def _scores(op: GraphBuilder, place: Place, size: int, probable: bool, machine: bool) -> ir.Value:
    """Return a score for each class of a label; their softmax gives the probabilities."""
    value, start, width = place
    if not probable and size == 2:
        margin = _margin(op, place)
        return op.Concat(op.Neg(margin), margin, axis=1)
    if not probable and machine:
        raise ModelError(
            "The scores of support vector machines of several classes count votes, of which only the tie-break has "
            "a gradient. Fit them with probability=True, whose probabilities can be trained."
        )
    if not probable:
        return value
    whole = source_of_columns(value)
    if ends_in(whole, "Softmax") and _known_width(op, whole) == size:
        return _input(whole)
    if size == 2 and ends_in(p := _column(op, value, start + width - 1), "Sigmoid"):
        return op.Concat(op.Mul(_input(p), 0.0), _input(p), axis=1)
    own = value if _known_width(op, value) == size else op.Slice(value, [start], [start + size], [1])
    return op.Log(op.Add(op.Relu(own), EPSILON))


def _label_columns(op: GraphBuilder, record: ModelRecord) -> list[Place]:
    """Return the columns of each label."""
    values = [v for v in op.graph.outputs if v.name != CLASS_OUTPUT]
    sizes = [len(known) for known in record.outputs or ()]
    if len(values) == len(sizes):
        return [(value, 0, size) for value, size in zip(values, sizes, strict=True)]
    (value,) = values
    maker = value.producer()
    if maker is not None and maker.op_type == "Concat" and record.has_one_per_label:
        return [(part, 0, _known_width(op, part) or 1) for part in maker.inputs if part is not None]
    shape = op.shape(value) or ()
    if len(shape) == 3:
        return [(op.Gather(value, i, axis=0), 0, size) for i, size in enumerate(sizes)]
    if shape[-1:] == (sum(sizes),):
        return [(value, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    return [(value, i, 1) for i in range(len(sizes))]


def _logit(op: GraphBuilder, place: Place) -> ir.Value:
    """Return the score whose sigmoid is the probability of the second class."""
    value, start, size = place
    p = _column(op, value, start + size - 1)
    whole = source_of_columns(value)
    if ends_in(p, "Sigmoid"):
        return _input(p)
    if ends_in(whole, "Softmax") and _known_width(op, whole) == 2:
        return op.Sub(*(_column(op, _input(whole), i) for i in (1, 0)))
    q = _column(op, value, start) if size == 2 else op.Sub(1.0, p)
    return op.Sub(*(op.Log(op.Add(op.Relu(side), EPSILON)) for side in (p, q)))


def _margin(op: GraphBuilder, place: Place) -> ir.Value:
    """Return the decision function of an output of two classes."""
    value, start, size = place
    return _column(op, value, start + size - 1)


def _column(op: GraphBuilder, value: ir.Value, i: int) -> ir.Value:
    """Return column ``i`` of a matrix, read from the value before slices and concatenations."""
    value = source_of_columns(value)
    while (before := _before(op, value, i)) is not None:
        value, i = source_of_columns(before[0]), before[1]
    return value if _known_width(op, value) == 1 else op.Gather(value, np.array([i]), axis=1)


def _before(op: GraphBuilder, value: ir.Value, i: int) -> tuple[ir.Value, int] | None:
    """Return the matrix from which the node that computes ``value`` takes column ``i``, and the position there."""
    node = value.producer()
    if node is None or node.domain:
        return None
    settings = [None if x is None else constant(x) for x in node.inputs[1:]]
    if node.op_type == "Slice" and len(settings) == 3:
        start, axes = settings[0], settings[2]
        if start is not None and axes is not None and axes.ravel().tolist() == [1]:
            return _input(value), int(start.item()) + i
    by_columns = attribute(node, "axis", 0) in (1, -1)
    if node.op_type == "Gather" and by_columns and settings[0] is not None:
        return _input(value), int(settings[0].ravel()[i])
    if node.op_type != "Concat" or not by_columns:
        return None
    for part in node.inputs:
        width = _known_width(op, part)
        if part is None or width is None or i < width:
            return None if part is None or width is None else (part, i)
        i -= width
    return None


def _known_width(op: GraphBuilder, value: ir.Value | None) -> int | None:
    shape = None if value is None else op.shape(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def source_of_columns(value: ir.Value) -> ir.Value:
    """Return the value before nodes that do not change the numbers."""
    while (node := value.producer()) is not None and not node.domain and node.op_type in ("Identity", "Cast"):
        before = node.inputs[0]
        if before is None or (node.op_type == "Cast" and before.dtype is not ir.DataType.FLOAT):
            break
        value = before
    return value


def _input(value: ir.Value) -> ir.Value:
    node = value.producer()
    assert node is not None
    assert node.inputs[0] is not None
    return node.inputs[0]


# Decision rules other than the largest score: one-vs-one votes and decision thresholds.
#
# Classifiers that compare pairs of classes predict the class with the most votes, even if the probabilities or decision
# functions that they return disagree. This rule stays in the graph as an output of its own; the scores are trained.


PAIRS, CLASS_OUTPUT = "pairs", "choice"
"""Names of the outputs with the scores of pairs of classes, and with the index of the predicted class."""


def keep_votes(graph: ir.Graph, record: ModelRecord, conversions: Sequence[ConversionRecord]) -> None:
    """Add outputs for decisions by votes to a graph with operators of ai.onnx.ml, in place.

    One output is the index of the class, if the probabilities may disagree with the votes and no threshold decides. The
    other holds the scores of the pairs of classes, if the decision function counts votes, which have no gradient.
    """
    last = record.last
    decides = record.threshold is None
    probable = record.has_probabilities
    marks = next((one.marked for one in conversions if one.estimator is last), {})

    def marked(what: str) -> ir.Value:
        """Return the value that the converter of the last step marked."""
        return graph.node(marks[what]).outputs[0]

    if record.is_libsvm:
        node = _node_of(graph, last, conversions)
        op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
        if decides and (probable or (len(last.classes_) > 2 and not last.break_ties)):
            add_output(graph, CLASS_OUTPUT, op.Identity(number_classes(node, len(last.classes_))))
        if not probable and len(last.classes_) > 2:
            add_output(graph, PAIRS, op.Neg(node.outputs[1]))
    elif record.is_one_vs_one:
        # Train the confidences, because votes have no gradient.
        op = GraphBuilder(graph, prefix="confidences", constant_nodes=True)
        confidences = marked(CONFIDENCES)
        inner = last.estimators_[0]
        if not hasattr(inner, "decision_function") and is_classifier(inner):
            logarithms = [op.Log(op.Add(op.Relu(p), EPSILON)) for p in (confidences, op.Sub(1.0, confidences))]
            confidences = op.Sub(*logarithms)
            if decides and len(last.classes_) == 2:  # votes make the decision functions of both classes positive
                second = op.Reshape(op.Greater(confidences, 0.0), np.array([-1]))
                add_output(graph, CLASS_OUTPUT, op.Cast(second, to=int(ir.DataType.INT64)))
        add_output(graph, PAIRS, op.Identity(confidences))
    elif record.is_linear_by_descent and probable and decides and MARGINS in marks:
        # Predict by the margins, because saturated probabilities may be equal.
        op = GraphBuilder(graph, prefix="margins", constant_nodes=True)
        add_output(graph, CLASS_OUTPUT, op.ArgMax(marked(MARGINS), axis=1, keepdims=False))
    elif isinstance(last, NearestCentroid) and decides:
        # With equal priors, scikit-learn predicts the centroid that is nearest in the units of the data.
        prior = np.asarray(last.class_prior_)
        if np.isclose(prior, 1 / len(prior)).all():
            op = GraphBuilder(graph, prefix="nearest", constant_nodes=True)
            apart = marked(APART)
            away = op.ReduceSum(op.Mul(apart, apart), axes=[2], keepdims=False)
            add_output(graph, CLASS_OUTPUT, op.ArgMin(away, axis=1, keepdims=False))


def _node_of(graph: ir.Graph, machine: Estimator, conversions: Sequence[ConversionRecord]) -> ir.Node:
    made = next(one for one in conversions if one.estimator is machine)
    return next(node for node in graph if node.op_type == "SVMClassifier" and node.name in made.nodes)


def chosen_index(graph: ir.Graph, machine: Estimator, conversions: Sequence[ConversionRecord]) -> ir.Value:
    """Return the index of the class that a support vector machine predicts by votes."""
    return number_classes(_node_of(graph, machine, conversions), len(machine.classes_))


def number_classes(node: ir.Node, classes: int) -> ir.Value:
    """Replace the labels of a classifier node by 0, 1, 2, ..., in place; return its label output."""
    node.attributes.pop("classlabels_strings", None)
    node.attributes["classlabels_ints"] = ir.AttrInt64s("classlabels_ints", range(classes))
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    return node.outputs[0]


TIE = 1e-6
"""Probabilities that differ by less are tied: float32 sums of a hundred trees' equal votes differ by less."""


def keep_first_of_ties(graph: ir.Graph, *, of_two: bool = False) -> None:
    """Add an output for the class with the largest probability, or the first of tied classes, in place.

    Votes are often tied. After normalization in training, sums of equal votes differ in the last bits. With ``of_two``,
    do so for two classes too.
    """
    p = graph.outputs[0]
    named = {value.name for value in graph.outputs}
    if (
        p.shape is None
        or len(p.shape) != 2
        or p.shape[1] in ((1,) if of_two else (1, 2))
        or not {PAIRS, CLASS_OUTPUT}.isdisjoint(named)
    ):
        return
    op = GraphBuilder(graph, prefix="ties", constant_nodes=True)
    near = op.GreaterOrEqual(p, op.Sub(op.ReduceMax(p, axes=[1], keepdims=True), TIE))
    first = op.ArgMax(op.Cast(near, to=ir.DataType.FLOAT), axis=1, keepdims=False)
    add_output(graph, CLASS_OUTPUT, first)


def add_output(graph: ir.Graph, name: str, value: ir.Value) -> None:
    """Make a value an output of the graph with this name."""
    value.name = name
    graph.outputs.append(value)
    graph.sort()


# Thresholds


def keep_threshold(graph: ir.Graph, record: ModelRecord) -> None:
    """Add an output for the class that a threshold on the probability, or on the decision function, decides.

    The first output of the graph holds the probability or the decision function, in one column or in two.
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
    add_output(graph, CLASS_OUTPUT, op.Where(reached, np.array(positive), np.array(1 - positive)))
