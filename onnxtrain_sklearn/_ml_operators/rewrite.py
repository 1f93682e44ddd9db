"""Rewrite the operators of ai.onnx.ml in a graph as operators that have gradients.

:func:`rewrite` returns a :class:`Rewritten` model. The operators of ai.onnx.ml hold their numbers in attributes and
have no gradient. Each rule of :data:`RULES` replaces one such node by nodes of the default domain that compute the
result of onnxruntime, with the numbers in initializers. An operator without a rule is kept: on the path of the
gradient, the engines refuse it. Nothing here depends on scikit-learn: :class:`Rewritten` tells which node each
parameter comes from.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.edits import hold_as_constant, replace_value
from .._ir.queries import reaching
from .._ir.shapes import infer_over_declared
from ..graph import GraphBuilder, Names, copy_type
from . import linear, preprocessing, svm, trees
from .context import LazyValue, RewriteRule, RewrittenNode, Role

# Formulas of skl2onnx and onnxmltools: their constants become Constant nodes.
#
# Both write the constants of their formulas as initializers, beside the weights. A file does not say which is which,
# and the graph does not tell them apart either: the weight of a boosted classifier and the sum of all weights are both
# single numbers that scores are multiplied by. The names of the converters' variables do. Fitted estimators do not need
# this: their converters name each parameter.


_FORMULA = re.compile(
    r"(unity|negate|n_classes|num_classes|clf_length|exponent|prod_operand|mul_operand|half_scalar|est_weights_sum|"
    r"symmetrix_weight|constant|zero_tensor|unit_float_tensor|const_[np]\d+|cst|eqp\w*cst|dec_\w*cst)\d*"
)
_ANY_NUMBER = re.compile(r"_[A-Z]\w*cst\d*$")


def hold_formulas(model: ir.Model) -> None:
    """Turn the constants of formulas into Constant nodes, in place.

    onnxmltools has all weights in attributes, so that each single number that is an initializer is such a constant.
    """
    if model.producer_name not in ("OnnxMLTools", "skl2onnx"):
        return
    every_number = model.producer_name == "OnnxMLTools"
    op = GraphBuilder(model.graph, prefix="setting", constant_nodes=True)
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point():
            continue
        if (every_number and tensor.size == 1) or _is_formula(name, tensor.numpy()):
            hold_as_constant(op, value)
    model.graph.sort()


def _is_formula(name: str, array: np.ndarray) -> bool:
    """Return True if skl2onnx names constants of formulas so, or any number and this one is whole or a half."""
    if _FORMULA.fullmatch(name):
        return True
    return array.size == 1 and bool(_ANY_NUMBER.search(name)) and float(2 * array.ravel()[0]).is_integer()


# Rules for operators of the default domain that an engine does not differentiate.


def _pairwise_sum(r: RewrittenNode) -> Sequence[LazyValue]:
    """Replace Sum by a chain of Add."""
    return (lambda: functools.reduce(r.op.Add, [r.input(i) for i in range(len(r.node.inputs))]),)


def _rewrite_lp_normalization(r: RewrittenNode) -> Sequence[LazyValue]:
    """Divide X by its norm along an axis, or by 1 where that is zero."""
    op, axes = r.op, [int(r.attribute("axis", -1))]

    def normalized() -> ir.Value:
        x = r.input()
        if int(r.attribute("p", 2)) == 1:
            size = op.ReduceSum(op.Abs(x), axes=axes, keepdims=True)
            return op.Div(x, op.Where(op.Equal(size, 0.0), 1.0, size))
        size = op.ReduceSum(op.Mul(x, x), axes=axes, keepdims=True)
        return op.Div(x, op.Sqrt(op.Where(op.Equal(size, 0.0), 1.0, size)))

    return (normalized,)


# The rewriting of a graph.


_TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})

STEMS = {
    "LinearClassifier": "linear_classifier",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
    "TreeEnsemble": "trees",
    "TreeEnsembleClassifier": "trees",
    "TreeEnsembleRegressor": "trees",
}
"""Prefixes of parameter names, where they are not the operator's name in snake case."""


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model.

    Attributes
    ----------
    model : onnx_ir.Model
        A copy; the given model is not changed.
    roles : tuple of Role
        The parameters that the rules made, in the order of the graph.
    """

    model: ir.Model
    roles: tuple[Role, ...]


def rewrite(source: ir.Model, *, keep_decided: bool = False) -> Rewritten:
    """Return ``source`` with every operator that has a rule rewritten; prune it to the trained output before.

    With ``keep_decided``, trees stay as they are where no gradient reaches what they compute, as where the nearest of
    some thresholds is taken: their sums, in another order, would decide otherwise now and then.

    Raises
    ------
    UnsupportedOperatorError
        A used node has a setting without a trainable form.
    """
    model = source.clone()
    graph, roles = model.graph, list[Role]()
    reached = set().union(*(reaching(output) for output in graph.outputs))
    for node in list(graph):
        if keep_decided and node.op_type in _TREES and all(v.name not in reached for v in node.outputs):
            node.outputs[-1].shape = node.outputs[-1].shape or ir.Shape([None, None])  # as later rules have to know
            continue
        rule = RULES.get((node.domain, node.op_type))
        if rule is not None and any(_in_use(v) for v in node.outputs):
            _replace(graph, node, rule, roles)
    graph.sort()
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    infer_over_declared(model)  # converters declare wrong shapes, such as two columns for one
    return Rewritten(model, tuple(role for role in roles if role.name in graph.initializers))


def _replace(graph: ir.Graph, node: ir.Node, rule: RewriteRule, roles: list[Role]) -> None:
    """Replace a node by the nodes that the rule emits, with the names of its outputs."""
    op = GraphBuilder(graph, prefix=node.name or node.op_type, constant_nodes=True)
    thunks = rule(RewrittenNode(op, node, _parameter_stem(graph, node), roles))
    used = [(old, thunk) for old, thunk in zip(node.outputs, thunks, strict=False) if _in_use(old)]
    if any(thunk is None for _, thunk in used) or len(thunks) < len(node.outputs):
        return
    for old, thunk in used:
        assert thunk is not None
        _take_over(op, old, thunk())
    graph.remove(node, safe=True)


def _take_over(op: GraphBuilder, old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` by ``new``, without the type of inner values: converters often declare wrong ones."""
    declared = old.is_graph_output() and isinstance(old.type, ir.TensorType)
    new = replace_value(op, old, new, typed=False)
    if declared:
        copy_type(new, old)


def _in_use(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _parameter_stem(graph: ir.Graph, node: ir.Node) -> str:
    """Return an unused prefix for the names of the node's parameters."""
    stem = STEMS.get(node.op_type) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.op_type).lower()
    return Names(name.partition(".")[0] for name in graph.initializers).free(stem)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("", "LpNormalization"): _rewrite_lp_normalization,
    ("", "Sum"): _pairwise_sum,
    **svm.RULES,
    **preprocessing.RULES,
    **linear.RULES,
    **trees.RULES,
}
"""The rules by domain and operator."""
