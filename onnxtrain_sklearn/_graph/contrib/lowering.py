"""Lowering of operators that onnxruntime's optimizers write to ONNX's own operators, when a graph is read.

Both engines differentiate the result, and it runs on any runtime. Initializers keep their names and values. A node
without a rule, or with a setting that its rule does not support, stays as it is, since it may be frozen;
:func:`refusal` then says why it has no gradient.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ..builder import GraphBuilder
from ..edits import remove_unread, replace_node
from ..folding import IntegerTracker
from ..queries import every_node, graphs_in, is_float
from . import activations, attention, normalization, products
from .context import Fused, FusionRule, Refused

LOWERINGS: dict[str, FusionRule] = {
    **activations.LOWERINGS,
    **attention.LOWERINGS,
    **normalization.LOWERINGS,
    **products.LOWERINGS,
}

FIRST_OPSETS = {"LayerNormalization": 17}
"""Operators that are onnxruntime's in the default domain before the opset in which ONNX defines them."""

REASONS = {
    "com.microsoft.nchwc": "onnxruntime's optimizer laid it out for the processor that it ran on; save the optimized "
    "model with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL, or train the file that it was made from",
    "com.microsoft.nhwc": "onnxruntime's optimizer laid it out for one device; train the file that it was made from",
}
"""Domains whose operators have no rule, and why."""

_QUANTIZED_OPERATORS = re.compile(
    r"Q[A-Z]|Dequantize|DynamicQuantize|Quantize|MatMul(Integer|NBits|Bnb4|FpQ4)|GatherBlockQuantized"
)
"""Prefixes of onnxruntime's operators with integer weights."""

_PREFIX, _WHY = "lowered", "onnxtrain/why"


def is_fused(domain: str, op_type: str, opset: int) -> bool:
    """Whether an operator has a rule in this opset."""
    kind = f"{domain}.{op_type}" if domain else op_type
    return kind in LOWERINGS and opset < FIRST_OPSETS.get(kind, opset + 1)


def lower(model: ir.Model) -> ir.Model:
    """Replace the nodes that have a rule, in place, also in subgraphs; shapes are inferred along the way."""
    opset = model.graph.opset_imports.get("", 0)
    if any(is_fused(node.domain, node.op_type, opset) for node in every_node(model.graph)):
        builder = GraphBuilder(model.graph, prefix=_PREFIX, constant_nodes=True)
        _lower_graph(builder, IntegerTracker(model), opset)
        if not any(node.domain == "com.microsoft" for node in every_node(model.graph)):
            model.graph.opset_imports.pop("com.microsoft", None)
    return model


def refusal(node: ir.Node) -> str | None:
    """Return why a node was not lowered, None where there is no particular reason."""
    if node.domain == "com.microsoft" and _QUANTIZED_OPERATORS.match(node.op_type):
        return "its numbers are quantized; train the file that was quantized"
    return node.meta.get(_WHY) or REASONS.get(node.domain)


def _lower_graph(op: GraphBuilder, tracker: IntegerTracker, opset: int) -> None:
    replaced = False
    for node in list(op.graph):
        for body in graphs_in(node):
            _lower_graph(_body_builder(op, body), tracker, opset)
        if is_fused(node.domain, node.op_type, opset):
            replaced = _lower_node(op, node, tracker) or replaced
        else:
            tracker.visit(node)
    if replaced:
        op.graph.sort()
    own = [n for n in op.graph if n.op_type == "Constant" and (n.name or "").startswith(_PREFIX)]
    remove_unread(op.graph, own)


def _body_builder(op: GraphBuilder, graph: ir.Graph) -> GraphBuilder:
    """Return a builder for a body, with names that are unique in the whole model."""
    graph.opset_imports.update(op.graph.opset_imports)
    inner = GraphBuilder(graph, prefix=_PREFIX, constant_nodes=True)
    inner.taken = op.taken
    return inner


def _lower_node(op: GraphBuilder, node: ir.Node, tracker: IntegerTracker) -> bool:
    """Replace a node; nodes emitted before a refusal are removed again."""
    rule = LOWERINGS[f"{node.domain}.{node.op_type}" if node.domain else node.op_type]
    before = len(op.graph)
    floats = [v.dtype for v in [*node.inputs, *node.outputs] if v is not None and v.dtype is not None and is_float(v)]
    op.dtype = floats[0] if floats else ir.DataType.FLOAT
    try:
        reason = rule.unknown(node)
        if reason is not None:
            raise Refused(reason)
        results = rule.rule(Fused(op, node))
    except Refused as error:
        node.meta[_WHY] = str(error)
        _remove_emitted(op, list(op.graph)[before:])
        return False
    for emitted in list(op.graph)[before:]:
        tracker.visit(emitted)
    replace_node(op, node, results)
    return True


def _remove_emitted(op: GraphBuilder, nodes: list[ir.Node]) -> None:
    for node in reversed(nodes):
        if node.op_type != "Constant":  # later nodes may share it
            op.graph.remove(node, safe=True)
