"""Fitted models made trainable: operators of ai.onnx.ml and their helpers become operators of the default domain.

The operators of domain ai.onnx.ml keep their numbers in attributes and have no gradient. Each rule of :data:`RULES`
puts nodes of the default domain in the place of one such node, which give what onnxruntime gives for it and hold its
numbers in initializers, so that they can be trained. An operator without a rule stays: where it is on the path of the
gradient, the engines refuse it. Nothing here knows of scikit-learn: :class:`Rewritten` tells where each number came
from, for those who do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from .._graph.builder import GraphBuilder
from .._graph.edits import copy_type, replace_value
from .._graph.names import Names
from .._graph.shapes import infer_over_declared
from . import default_domain, distances, linear, preprocessing, svm, trees
from .context import RewriteRule, RewrittenNode, Role

RULES: dict[tuple[str, str], RewriteRule] = {
    **distances.RULES,
    **preprocessing.RULES,
    **linear.RULES,
    **default_domain.RULES,
    **svm.RULES,
    **trees.RULES,
}
"""The rules by domain and operator."""

STEMS = {
    "LinearClassifier": "linear_classifier",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
    "TreeEnsemble": "trees",
    "TreeEnsembleClassifier": "trees",
    "TreeEnsembleRegressor": "trees",
}
"""Start of the names of parameters, where it is not the operator's name with underscores."""


@dataclass(frozen=True)
class Rewritten:
    """A model whose operators can be trained.

    Attributes
    ----------
    model : onnx_ir.Model
        A model of its own; the given one is left as it is.
    roles : tuple of Role
        The parameters that the rules made, in the order of the graph.
    """

    model: ir.Model
    roles: tuple[Role, ...]


def rewrite(source: ir.Model) -> Rewritten:
    """Return ``source`` with every operator that has a rule rewritten; it should be pruned to what is trained.

    Raises
    ------
    UnsupportedOperatorError
        A node that is in use has a setting without a form that can be trained.
    """
    model = source.clone()
    graph, roles = model.graph, list[Role]()
    for node in list(graph):
        rule = RULES.get((node.domain, node.op_type))
        if rule is not None and any(_in_use(v) for v in node.outputs):
            _replace(graph, node, rule, roles)
    graph.sort()
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    infer_over_declared(model)  # converters declare wrong shapes, two columns of scores where there is one, say
    return Rewritten(model, tuple(role for role in roles if role.name in graph.initializers))


def _replace(graph: ir.Graph, node: ir.Node, rule: RewriteRule, roles: list[Role]) -> None:
    """Put what the rule emits in the place of a node, under its names."""
    op = GraphBuilder(graph, prefix=node.name or node.op_type, constant_nodes=True)
    thunks = rule(RewrittenNode(op, node, _stem(graph, node), roles))
    used = [(old, thunk) for old, thunk in zip(node.outputs, thunks, strict=False) if _in_use(old)]
    if any(thunk is None for _, thunk in used) or len(thunks) < len(node.outputs):
        return
    for old, thunk in used:
        assert thunk is not None
        _take_over(op, old, thunk())
    graph.remove(node, safe=True)


def _take_over(op: GraphBuilder, old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` stand for ``old``; what a converter declares of values within the graph is often wrong."""
    declared = old.is_graph_output() and isinstance(old.type, ir.TensorType)
    new = replace_value(op, old, new, typed=False)
    if declared:
        copy_type(new, old)


def _in_use(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _stem(graph: ir.Graph, node: ir.Node) -> str:
    """Return a start for the names of the node's parameters that no initializer has yet."""
    stem = STEMS.get(node.op_type) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.op_type).lower()
    return Names(name.partition(".")[0] for name in graph.initializers).free(stem)
