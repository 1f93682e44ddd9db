"""Nodes on the way that other operators express, put into these: what has no rule of its own may consist of what has.

Recurrences become a Scan over their steps, what reads a sequence reads the tensors that the sequence was made of, and an
operator that ONNX defines as a function of others becomes that function, for those in :data:`FUNCTIONS`. The graph
computes what it did before. Nothing is differentiated here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnx.defs
import onnx_ir as ir
import onnx_ir.passes.common

from .._graph.builder import GraphBuilder, infer_shapes, is_float
from . import attention, recurrent, sequences
from .control import inner_builder
from .nodes import Passage, kind, opset, passages
from .reverse import unsupported

Lowering: TypeAlias = Callable[[GraphBuilder, ir.Node], "Sequence[ir.Value | None]"]

LOWERINGS: dict[str, Lowering] = {**attention.LOWERINGS, **recurrent.LOWERINGS, **sequences.LOWERINGS}

FUNCTIONS = frozenset(
    {
        "CausalConvWithState",
        "CenterCropPad",
        "LinearAttention",
        "MeanVarianceNormalization",
        "SwiGLU",
    }
)
"""Operators that are differentiated as what the standard defines them by; each has a case that proves it."""

DOMAIN = "onnxtrain.expanded"
ROUNDS = 8
"""Functions may consist of functions, but not for ever."""


def expand(model: ir.Model, sources: Collection[ir.Value], end: ir.Value, known: Collection[str]) -> None:
    """Expand the nodes between ``sources`` and ``end`` that are not ``known`` and that others express, in place."""
    for _ in range(ROUNDS):
        op = GraphBuilder(model.graph, prefix="expanded", constant_nodes=True)
        steps = passages(model.graph, set(sources), {end})
        nodes = [node for node in _unknown(steps, known) if kind(node) in LOWERINGS or kind(node) in FUNCTIONS]
        if not nodes:
            return
        for node in nodes:
            if kind(node) in LOWERINGS:
                _lower(op, node)
            else:
                _call(op, model, node)
        if model.functions:
            onnx_ir.passes.common.InlinePass()(model)
            model.graph.opset_imports.pop(DOMAIN, None)
        infer_shapes(model)


def _unknown(steps: Sequence[Passage], known: Collection[str]) -> Iterator[ir.Node]:
    """Yield the nodes to go back through that are not ``known``, those of subgraphs included."""
    for step in steps:
        for attribute in step.node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                sources = step.sources | set(filter(is_float, body.inputs))
                yield from _unknown(passages(body, sources, set(filter(is_float, body.outputs))), known)
        if kind(step.node) not in known:
            yield step.node


def _lower(op: GraphBuilder, node: ir.Node) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    builder = op if graph is op.graph else inner_builder(op, graph)
    builder.dtype = next((v.dtype for v in node.outputs if v.dtype is not None and is_float(v)), op.dtype)
    for old, new in zip(node.outputs, LOWERINGS[kind(node)](builder, node), strict=False):
        if new is not None:
            _replace(builder, old, new)
    graph.remove(node, safe=True)
    graph.sort()


def _replace(op: GraphBuilder, old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` stand for ``old``; an output of the graph keeps its name."""
    if old.is_graph_output():
        new = op.Identity(new)
        old.name, new.name = None, old.name
    new.type = old.type if new.type is None else new.type
    new.shape = old.shape if new.shape is None else new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


# --- functions of the standard ---


def _call(op: GraphBuilder, model: ir.Model, node: ir.Node) -> None:
    """Let ``node`` call its definition, as a function of the model."""
    schema = onnx.defs.get_schema(node.op_type, opset(node), "")
    function = _definition(node, schema)
    _require_same_operators(node, function)
    for name, formal in schema.attributes.items():
        if name not in node.attributes and formal.default_value.type:
            node.attributes[name] = ir.from_proto(formal.default_value)
    for inner in function:
        inner.name = op.name(inner.op_type)
        for value in inner.outputs:
            value.name = op.name(node.op_type) if value.name else value.name
        _retype_constant(inner, node.outputs[0].dtype)
    function.domain, function.name = DOMAIN, op.name(node.op_type)
    node.domain, node.op_type = DOMAIN, function.name
    model.functions[function.identifier()] = function


def _definition(node: ir.Node, schema: onnx.defs.OpSchema) -> ir.Function:
    version = opset(node)
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        body = schema.get_function_with_opset_version(max(versions))
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        types = [b"" if x is None else ir.serde.serialize_value(x).type.SerializeToString() for x in node.inputs]
        call = ir.to_proto(node).SerializeToString()
        body = schema.get_context_dependent_function_with_opset_version(max(versions), call, types)
    else:
        raise unsupported(node, f"the portable engine has no gradient for it, as it is in opset {version}")
    return ir.from_proto(onnx.FunctionProto.FromString(body) if isinstance(body, bytes) else body)


def _require_same_operators(node: ir.Node, function: ir.Function) -> None:
    """A definition may be written in an older opset, as long as its operators have kept their form."""
    written, used = function.opset_imports.get("", 0), opset(node)
    for inner in function.all_nodes():
        if _form(inner.op_type, written) != _form(inner.op_type, used):
            raise unsupported(node, f"its definition uses {inner.op_type} of opset {written}")
    function.opset_imports[""] = used


def _form(op_type: str, version: int) -> object:
    schema = onnx.defs.get_schema(op_type, version, "")
    attributes = {name: a.default_value.SerializeToString() for name, a in schema.attributes.items()}
    return [p.name for p in schema.inputs], attributes


def _retype_constant(node: ir.Node, dtype: ir.DataType | None) -> None:
    """Definitions for all types write their floats as float32."""
    if node.op_type != "Constant" or dtype is None or not dtype.is_floating_point():
        return
    for name, attribute in node.attributes.items():
        if name in ("value_float", "value_floats"):
            array = np.asarray(attribute.value, np.float32)
        elif name == "value" and attribute.value.dtype is ir.DataType.FLOAT:
            array = attribute.value.numpy()
        else:
            continue
        del node.attributes[name]
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array.astype(dtype.numpy())))
        return
