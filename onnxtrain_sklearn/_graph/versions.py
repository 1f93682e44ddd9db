"""Opset and IR version of a model, kept if the installed onnxruntime and the gradient rules support them.

Other versions are converted by ONNX's converter, or refused: no graph is interpreted by the rules of another opset.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from .._runtime import capabilities
from .._runtime.capabilities import Limits
from .._support.refusal import reason
from ..exceptions import ModelError
from .meanings import converted
from .names import Names
from .old_forms import without_old_forms
from .own_tensors import from_proto
from .queries import all_values, every_node
from .shapes import infer_shapes

MIN_OPSET, MAX_OPSET = 11, 26
"""The opsets that the gradients are tested with; later ones add settings to operators (28: SpaceToDepth)."""

OLDEST_IR = 4
"""In earlier versions, initializers had to be inputs too."""

OLD_OPSET, RENEWED_OPSET = 13, 18
"""Graphs below the first opset that are to be rewritten are converted to the second."""

TYPES_SINCE = {
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
"""Element types that were added after IR version 10: type -> version."""


def readable(proto: onnx.ModelProto, limits: Limits | None = None, *, renew: bool = False) -> ir.Model:
    """Return the model in supported versions, converted if necessary; ``renew`` converts old opsets upwards.

    ``limits`` are by default those of the installed onnxruntime.
    """
    limits = _installed_limits(proto) if limits is None else limits
    least = RENEWED_OPSET if renew and _opset(proto) < OLD_OPSET else MIN_OPSET
    model = from_proto(_in_opset_range(without_old_forms(proto), limits, least))
    _name_nodes(model.graph)  # the converter drops names
    _refuse_newer_ml(model, limits)
    _restamp(model, limits)
    return model


def _installed_limits(proto: onnx.ModelProto) -> Limits:
    opset, ml_opset = _opset(proto), max((o.version for o in proto.opset_import if o.domain == "ai.onnx.ml"), default=0)
    if opset < OLD_OPSET:  # it may be converted, and an error of the converter names the limits
        return capabilities.limits()
    return capabilities.limits_for(opset=opset, ml_opset=ml_opset, ir_version=proto.ir_version)


def _in_opset_range(proto: onnx.ModelProto, limits: Limits, least: int) -> onnx.ModelProto:
    """Convert the default opset into the range that can be trained, or raise ModelError."""
    opset = _opset(proto)
    newest = min(MAX_OPSET, limits.opset)
    target = min(max(opset, least), newest)
    if opset == target:
        return proto
    try:
        result = converted(proto, target)
    except Exception as error:
        other = " or use a newer onnxruntime" if newest < opset <= MAX_OPSET else ""
        raise ModelError(
            f"The graph is of opset {opset}; {limits.runtime} can train opsets {MIN_OPSET} to {newest}, and ONNX's "
            f"converter cannot bring it to {target}: {reason(error)}. Export the model again with an opset in that "
            f"range (18 is a good choice){other}."
        ) from error
    _copy_metadata(proto, result)
    return result


def _copy_metadata(source: onnx.ModelProto, target: onnx.ModelProto) -> None:
    """Copy what exporters record of graph, nodes (by first output) and values; the converter drops it."""
    nodes = {node.output[0]: node for node in source.graph.node if node.output}
    values = {value.name: value for value in source.graph.value_info}
    for node in (node for node in target.graph.node if node.output and node.output[0] in nodes):
        node.metadata_props.extend(nodes[node.output[0]].metadata_props)
    kept = {value.name for value in target.graph.value_info}
    target.graph.metadata_props.extend(source.graph.metadata_props)
    target.graph.value_info.extend(v for name, v in values.items() if v.metadata_props and name not in kept)


def in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in a newer default opset, with inferred shapes; ModelError if ONNX's converter fails."""
    try:
        proto = converted(ir.to_proto(model), opset)
    except Exception as error:
        raise ModelError(f"ONNX's converter cannot bring the graph to opset {opset}: {reason(error)}") from error
    result = from_proto(proto)
    _name_nodes(result.graph)
    return infer_shapes(result)


def _opset(proto: onnx.ModelProto) -> int:
    return int(next(o.version for o in proto.opset_import if not o.domain))


def _refuse_newer_ml(model: ir.Model, limits: Limits) -> None:
    """Refuse a newer version of ai.onnx.ml, for which ONNX has no converter."""
    version = model.opset_imports.get("ai.onnx.ml", 0)
    if version > limits.ml_opset and any(node.domain == "ai.onnx.ml" for node in every_node(model.graph)):
        raise ModelError(
            f"The graph is of opset {version} of ai.onnx.ml; {limits.runtime} reads opsets up to {limits.ml_opset}. "
            f"Export the model again with one of these, or use a newer onnxruntime."
        )


def _restamp(model: ir.Model, limits: Limits) -> None:
    """Lower the IR version to the newest supported one; only newer element types prevent that."""
    newest = limits.ir_version
    model.ir_version = max(model.ir_version, OLDEST_IR)
    if model.ir_version <= newest:
        return
    infer_shapes(model)  # to know the types
    newer = [v for v in all_values(model) if v.dtype is not None and TYPES_SINCE.get(v.dtype, 0) > newest]
    if newer:
        raise ModelError(
            f"The graph is of IR version {model.ir_version} and uses {newer[0].dtype} in {newer[0].name!r}, which IR "
            f"version {newest}, the newest that {limits.runtime} reads, lacks."
        )
    model.ir_version = newest


def _name_nodes(graph: ir.Graph) -> None:
    names = Names()
    for node in every_node(graph):
        node.name = names.free(node.name, 0) if node.name else names.numbered(node.op_type, 0)
