"""Rewrite the operators of ai.onnx.ml in a graph as operators that have gradients.

The operators of ai.onnx.ml hold their numbers in attributes and have no gradient. :func:`rewrite` applies a rule of
:data:`RULES` to each such node: the rule replaces it by nodes of the default domain that compute the result of
onnxruntime, with the numbers in initializers. :class:`Rewritten` tells which node each of these parameters comes from.
An operator without a rule is kept; the engines refuse it if it is on the path of the gradient.

:func:`hold_formulas` prepares files of converters, whose formulas have constants among the weights. Nothing here
depends on scikit-learn.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.edits import hold_as_constant, replace_value
from .._ir.queries import is_read, reaching
from .._ir.shapes import infer_over_declared
from ..graph import GraphBuilder, Names, copy_type
from . import kernel_methods, linear, preprocessing, trees
from .rewritten_node import LazyValue, RewriteRule, RewrittenNode, Role

_TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})

STEMS = {
    "LinearClassifier": "linear_classifier",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
    "TreeEnsemble": "trees",
    "TreeEnsembleClassifier": "trees",
    "TreeEnsembleRegressor": "trees",
}
"""Prefixes of parameter names that are not the operator's name in snake case."""


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
    """Return ``source`` with every operator that has a rule rewritten; the caller prunes it to the trained output.

    With ``keep_decided``, trees stay as they are if no gradient flows through their results, for example if these are
    compared with thresholds: their sums, in another order, would now and then decide otherwise.

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
            node.outputs[-1].shape = node.outputs[-1].shape or ir.Shape([None, None])  # later rules need its rank
            continue
        rule = RULES.get((node.domain, node.op_type))
        if rule is not None and any(is_read(v) for v in node.outputs):
            _replace(graph, node, rule, roles)
    graph.sort()
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    infer_over_declared(model)  # converters declare wrong shapes, such as two columns for one
    return Rewritten(model, tuple(role for role in roles if role.name in graph.initializers))


def _replace(graph: ir.Graph, node: ir.Node, rule: RewriteRule, roles: list[Role]) -> None:
    """Replace a node by the nodes that the rule emits, with the names of its outputs."""
    op = GraphBuilder(graph, prefix=node.name or node.op_type, constant_nodes=True)
    stem = STEMS.get(node.op_type) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.op_type).lower()
    stem = Names(name.partition(".")[0] for name in graph.initializers).free(stem)
    thunks = rule(RewrittenNode(op, node, stem, roles))
    used = [(old, thunk) for old, thunk in zip(node.outputs, thunks, strict=False) if is_read(old)]
    if any(thunk is None for _, thunk in used) or len(thunks) < len(node.outputs):
        return
    for old, thunk in used:
        assert thunk is not None
        new = thunk()
        # Only graph outputs keep their type: converters often declare wrong ones for inner values.
        declared = old.is_graph_output() and isinstance(old.type, ir.TensorType)
        new = replace_value(op, old, new, typed=False)
        if declared:
            copy_type(new, old)
    graph.remove(node, safe=True)


# Constants in the formulas of converters.
#
# skl2onnx and onnxmltools write the constants of their formulas as initializers, like the weights. A file does not say
# which is which, and the graph does not tell either: the weight of a boosted classifier and the sum of all weights are
# both single numbers that multiply scores. The names of the converters' variables tell. Fitted estimators do not need
# this, as their converters name each parameter.

_FORMULA = re.compile(
    r"(unity|negate|n_classes|num_classes|clf_length|exponent|prod_operand|mul_operand|half_scalar|est_weights_sum|"
    r"symmetrix_weight|constant|zero_tensor|unit_float_tensor|const_[np]\d+|cst|eqp\w*cst|dec_\w*cst)\d*"
)
_ANY_NUMBER = re.compile(r"_[A-Z]\w*cst\d*$")
"""Names that skl2onnx gives to single numbers of any role: those that are whole or a half belong to formulas."""


def hold_formulas(model: ir.Model) -> None:
    """Turn the constants of formulas into Constant nodes, in place."""
    if model.producer_name not in ("OnnxMLTools", "skl2onnx"):
        return
    every_number = model.producer_name == "OnnxMLTools"  # it holds all weights in attributes
    op = GraphBuilder(model.graph, prefix="setting", constant_nodes=True)
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point():
            continue
        number = tensor.numpy().ravel()[0] if tensor.size == 1 else None
        is_setting = number is not None and _ANY_NUMBER.search(name) and float(2 * number).is_integer()
        if (every_number and number is not None) or _FORMULA.fullmatch(name) or is_setting:
            hold_as_constant(op, value)
    model.graph.sort()


# Operators of the default domain that onnxruntime-training does not differentiate.


def _chain_of_adds(r: RewrittenNode) -> Sequence[LazyValue]:
    return (lambda: functools.reduce(r.op.Add, [r.input(i) for i in range(len(r.node.inputs))]),)


def _lp_normalization(r: RewrittenNode) -> Sequence[LazyValue]:
    """Divide X by its norm along an axis, or by 1 where the norm is zero."""
    op, axes = r.op, [int(r.attribute("axis", -1))]

    def normalized() -> ir.Value:
        x = r.input()
        if int(r.attribute("p", 2)) == 1:
            size = op.ReduceSum(op.Abs(x), axes=axes, keepdims=True)
            return op.Div(x, op.Where(op.Equal(size, 0.0), 1.0, size))
        size = op.ReduceSum(op.Mul(x, x), axes=axes, keepdims=True)
        return op.Div(x, op.Sqrt(op.Where(op.Equal(size, 0.0), 1.0, size)))

    return (normalized,)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("", "LpNormalization"): _lp_normalization,
    ("", "Sum"): _chain_of_adds,
    **kernel_methods.RULES,
    **preprocessing.RULES,
    **linear.RULES,
    **trees.RULES,
}
"""The rules, by domain and operator."""
