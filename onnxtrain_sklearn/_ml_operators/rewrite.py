"""Rewrites operators of ai.onnx.ml to trainable operators of the default domain.

The operators of ai.onnx.ml hold their numbers in attributes and have no gradient. Each rule of :data:`RULES` replaces
one such node by nodes of the default domain that compute what onnxruntime computes, with the numbers in initializers.
An operator without a rule is kept: on the path of the gradient, the engines refuse it. Nothing here depends on
scikit-learn: :class:`Rewritten` tells which node each parameter comes from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from .._graph.builder import GraphBuilder
from .._graph.edits import copy_type, replace_value
from .._graph.names import Names
from .._graph.queries import reaching
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
    """Replace a node by what the rule emits, with the names of its outputs."""
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
