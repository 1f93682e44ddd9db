"""Operators that onnxruntime's optimizers write, put into ONNX's own when a graph is read.

Both engines differentiate what comes out, and it runs on any runtime. Initializers keep their names and values. A node
that has no form, or a setting that its form does not honor, stays as it is: it may be frozen. Then :func:`refusal` says
why it has no gradient.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ..builder import GraphBuilder
from ..edits import remove_unread, replace_node
from ..folding import IntegerTracker
from ..queries import is_float
from . import activations, attention, normalization, products
from .context import Form, Fused, Refused

FORMS: dict[str, Form] = {**activations.FORMS, **attention.FORMS, **normalization.FORMS, **products.FORMS}

FIRST_OPSETS = {"LayerNormalization": 17}
"""Operators of ONNX's own domain that are onnxruntime's in older opsets."""

REASONS = {
    "com.microsoft.nchwc": "onnxruntime's optimizer laid it out for the processor that it ran on; save the optimized "
    "model with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL, or train the file that it was made from",
    "com.microsoft.nhwc": "onnxruntime's optimizer laid it out for one device; train the file that it was made from",
}
"""Domains none of whose operators has a form, and why."""

QUANTIZED = re.compile(
    r"Q[A-Z]|Dequantize|DynamicQuantize|Quantize|MatMul(Integer|NBits|Bnb4|FpQ4)|GatherBlockQuantized"
)
"""Starts of the names of operators of onnxruntime's whose weights are whole numbers."""

_PREFIX, _WHY = "lowered", "onnxtrain/why"


def is_fused(domain: str, op_type: str, opset: int) -> bool:
    """Whether an operator has a form that stands for it."""
    kind = f"{domain}.{op_type}" if domain else op_type
    return kind in FORMS and opset < FIRST_OPSETS.get(kind, opset + 1)


def lower(model: ir.Model) -> ir.Model:
    """Replace the nodes that have a form, those of subgraphs too, in place; shapes are filled in on the way."""
    opset = model.graph.opset_imports.get("", 0)
    if any(is_fused(node.domain, node.op_type, opset) for node in model.graph.all_nodes()):
        builder = GraphBuilder(model.graph, prefix=_PREFIX, constant_nodes=True)
        _lower_graph(builder, IntegerTracker(model), opset)
        if not any(node.domain == "com.microsoft" for node in model.graph.all_nodes()):
            model.graph.opset_imports.pop("com.microsoft", None)
    return model


def refusal(node: ir.Node) -> str | None:
    """Return why a node was left as it is, None where there is no more to say than that it has no gradient."""
    if node.domain == "com.microsoft" and QUANTIZED.match(node.op_type):
        return "its numbers are quantized; train the file that was quantized"
    return node.meta.get(_WHY) or REASONS.get(node.domain)


def _lower_graph(op: GraphBuilder, tracker: IntegerTracker, opset: int) -> None:
    replaced = False
    for node in list(op.graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _lower_graph(_inner(op, attribute.as_graph()), tracker, opset)
        if is_fused(node.domain, node.op_type, opset):
            replaced = _lower_node(op, node, tracker) or replaced
        else:
            tracker.visit(node)
    if replaced:
        op.graph.sort()
    own = [n for n in op.graph if n.op_type == "Constant" and (n.name or "").startswith(_PREFIX)]
    remove_unread(op.graph, own)


def _inner(op: GraphBuilder, graph: ir.Graph) -> GraphBuilder:
    """Return a builder for a body; its names are new to the whole model."""
    graph.opset_imports.update(op.graph.opset_imports)
    inner = GraphBuilder(graph, prefix=_PREFIX, constant_nodes=True)
    inner.taken = op.taken
    return inner


def _lower_node(op: GraphBuilder, node: ir.Node, tracker: IntegerTracker) -> bool:
    """Replace a node; what was emitted before a refusal is taken away again."""
    form = FORMS[f"{node.domain}.{node.op_type}" if node.domain else node.op_type]
    before = len(op.graph)
    floats = [v.dtype for v in [*node.inputs, *node.outputs] if v is not None and v.dtype is not None and is_float(v)]
    op.dtype = floats[0] if floats else ir.DataType.FLOAT
    try:
        reason = form.unknown(node)
        if reason is not None:
            raise Refused(reason)
        results = form.rule(Fused(op, node))
    except Refused as error:
        node.meta[_WHY] = str(error)
        _take_back(op, list(op.graph)[before:])
        return False
    for emitted in list(op.graph)[before:]:
        tracker.visit(emitted)
    replace_node(op, node, results)
    return True


def _take_back(op: GraphBuilder, nodes: list[ir.Node]) -> None:
    for node in reversed(nodes):
        if node.op_type != "Constant":  # it may be shared with what comes later
            op.graph.remove(node, safe=True)
