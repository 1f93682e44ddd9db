"""Scores of converted models: changes the end of a graph so that a loss can be computed on it.

A converted graph ends in probabilities, or in scores that may be redundant. Here it is changed to end in scores, or in
an activation of scores.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from .._graph.builder import GraphBuilder
from .._graph.edits import bypass, copy_type, insert_behind, keep_outputs, replace_node
from .._graph.final_activation import activation_of
from .._graph.queries import dims
from .._support.typing import Estimator
from ..exceptions import ModelError
from .converters.context import EPSILON, several_labels
from .provenance import VOTES, Origin
from .record import ModelRecord
from .traversal import follow

CLASSIFYING_TREES = (DecisionTreeClassifier, ExtraTreesClassifier, RandomForestClassifier)
"""The estimators whose leaves hold probabilities."""


def prune(model: ir.Model, position: int) -> None:
    """Keep one output, or the elements of a sequence."""
    output = model.graph.outputs[position]
    maker = output.producer()
    sequence = maker is not None and maker.op_type == "SequenceConstruct"
    kept = [value for value in maker.inputs if value is not None] if maker and sequence else [output]
    for value in kept:
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"Its output {value.name!r} is not a tensor. Only tensors can be trained.")
        value.shape = None  # skl2onnx declares two columns where there is one
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
    the number of trees. Each of several outputs has a sum of its own. Unlike a softmax, this gives a probability of
    zero a gradient. The votes of training points are normalized in the same way.
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
    """Normalize the numbers of leaves to the sum ``share``, in place; False where they have another sum."""
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

    insert_behind(op, value, normalized)
    model.graph.sort()
    return True


def _group_sums(sizes: np.ndarray) -> np.ndarray:
    """Return the matrix that sums the columns of each group."""
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

    ``probabilities`` says whether the output holds probabilities or margins; None: predictions of a regressor.
    ``margin`` is the column of the second class where two margins are each other's negatives.
    """
    if probabilities is None:
        _fold_factor(model.graph)
        _expose_exponential(model.graph)
        return
    output, op = model.graph.outputs[0], GraphBuilder(model.graph, prefix="scores", constant_nodes=True)
    shown = _single_column(output)
    if shown is None and probabilities and not _has_scores(output):
        shown = copy_type(op.Softmax(op.Log(op.Add(op.Relu(output), EPSILON)), axis=1), output)
    elif shown is None and margin is not None and (dims(output) or [0])[-1] == 2:
        shown = op.Gather(output, np.array([margin]), axis=1)
        shown.type = output.type
    if shown is not None:
        model.graph.outputs[0] = shown
        model.graph.sort()
        keep_outputs(model, model.graph.outputs)


def _has_scores(output: ir.Value) -> bool:
    """Whether the graph computes the scores behind probabilities: logarithms of these saturate, scores do not."""
    found = activation_of(output)
    return found is not None and (found.link == "softmax" or found.paired)


def _fold_factor(graph: ir.Graph) -> None:
    """Move a factor of an exponential into the exponent: losses with a log link need the exponential last."""
    product = graph.outputs[0].producer()
    if product is None or product.op_type != "Mul" or product.domain or None in product.inputs:
        return
    exponential, factor = product.inputs
    assert exponential is not None
    assert factor is not None
    tensor = ir.convenience.get_const_tensor(factor)
    if tensor is None or tensor.size != 1 or not (tensor.numpy() > 0).all():
        return
    exponent = input_of(exponential, "Exp")
    if exponent is None:
        return
    op = GraphBuilder(graph, prefix="factor", constant_nodes=True)
    replace_node(op, product, [op.Exp(op.Add(exponent, math.log(tensor.numpy().item())))])


def _expose_exponential(graph: ir.Graph) -> None:
    """Move a Reshape before the exponential of a regressor: losses with a log link need the exponential last."""
    reshape = graph.outputs[0].producer()
    before = None if reshape is None or reshape.op_type != "Reshape" else reshape.inputs[0]
    scores = None if before is None else input_of(before, "Exp")
    if reshape is None or scores is None:
        return
    op = GraphBuilder(graph, prefix="link", constant_nodes=True)
    replace_node(op, reshape, [op.Exp(op.Reshape(scores, reshape.inputs[1]))])


def ends_in(value: ir.Value, op_type: str) -> bool:
    """Whether an operator of this type computes a value."""
    node = value.producer()
    return node is not None and node.op_type == op_type


def input_of(value: ir.Value, op_type: str) -> ir.Value | None:
    """Return the first input of the operator that computes ``value``; None where it is of another type."""
    node = value.producer()
    return node.inputs[0] if node is not None and node.op_type == op_type else None


def _single_column(output: ir.Value) -> ir.Value | None:
    """Return the score s, or its sigmoid, where the output has the columns (-s, s), or their sigmoids."""
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
