"""Opset and IR version: what the installed onnxruntime reads and the gradients are checked with stays as it is.

The rest is converted by ONNX's converter, or refused: a graph is never read by the rules of another opset than its own.
"""

from __future__ import annotations

import onnx
import onnx.checker
import onnx.version_converter
import onnx_ir as ir

from .._runtime.capabilities import Limits
from .._support.refusal import reason
from ..exceptions import ModelError
from .names import Names
from .queries import values
from .shapes import infer_shapes

MIN_OPSET, MAX_OPSET = 11, 26
"""The opsets that the gradients are checked with; later ones bring operators further settings (28: SpaceToDepth)."""

OLDEST_IR = 4
"""Before, initializers had to be inputs too, which they no longer are."""

OLD_OPSET, RENEWED_OPSET = 13, 18
"""Graphs that are older than the one, and are to be rewritten, are brought to the other."""

TYPES_SINCE = {
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
"""Element types that not all IR versions have, from 10 on: the type and the version that brought it."""


def readable(proto: onnx.ModelProto, limits: Limits, *, renew: bool = False) -> ir.Model:
    """Return the model in versions that the runtime reads: as given, or converted; ``renew``: up from old opsets."""
    least = RENEWED_OPSET if renew and _opset(proto) < OLD_OPSET else MIN_OPSET
    model = ir.from_proto(_in_opset_range(proto, limits, least))
    _name_nodes(model.graph)  # the converter drops names too
    _refuse_newer_ml(model, limits)
    _restamp(model, limits)
    return model


def _in_opset_range(proto: onnx.ModelProto, limits: Limits, least: int) -> onnx.ModelProto:
    """Bring the default opset into the range that can be trained, or say why that cannot be done."""
    opset = _opset(proto)
    newest = min(MAX_OPSET, limits.opset)
    target = min(max(opset, least), newest)
    if opset == target:
        return proto
    try:
        converted = onnx.version_converter.convert_version(proto, target)
        onnx.checker.check_model(converted)
    except Exception as error:
        other = " or use a newer onnxruntime" if newest < opset <= MAX_OPSET else ""
        raise ModelError(
            f"The graph is of opset {opset}; {limits.runtime} can train opsets {MIN_OPSET} to {newest}, and ONNX's "
            f"converter cannot bring it to {target}: {reason(error)}. Export the model again with an opset in that "
            f"range (18 is a good choice){other}."
        ) from error
    return converted


def in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in a newer default opset, its shapes inferred; ModelError where ONNX's converter cannot."""
    proto = ir.to_proto(model)
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
        onnx.checker.check_model(converted)
    except Exception as error:
        raise ModelError(f"ONNX's converter cannot bring the graph to opset {opset}: {reason(error)}") from error
    result = ir.from_proto(converted)
    _name_nodes(result.graph)
    return infer_shapes(result)


def _opset(proto: onnx.ModelProto) -> int:
    return int(next(o.version for o in proto.opset_import if not o.domain))


def _refuse_newer_ml(model: ir.Model, limits: Limits) -> None:
    """ONNX has no converter for this domain."""
    version = model.opset_imports.get("ai.onnx.ml", 0)
    if version > limits.ml_opset and any(node.domain == "ai.onnx.ml" for node in model.graph.all_nodes()):
        raise ModelError(
            f"The graph is of opset {version} of ai.onnx.ml; {limits.runtime} reads opsets up to {limits.ml_opset}. "
            f"Export the model again with one of these, or use a newer onnxruntime."
        )


def _restamp(model: ir.Model, limits: Limits) -> None:
    """Stamp the newest IR version that the runtime reads on a newer model; what it lacks are element types."""
    newest = limits.ir_version
    model.ir_version = max(model.ir_version, OLDEST_IR)
    if model.ir_version <= newest:
        return
    infer_shapes(model)  # which tells the types
    newer = [v for v in values(model) if v.dtype is not None and TYPES_SINCE.get(v.dtype, 0) > newest]
    if newer:
        raise ModelError(
            f"The graph is of IR version {model.ir_version} and uses {newer[0].dtype} in {newer[0].name!r}, which IR "
            f"version {newest}, the newest that {limits.runtime} reads, lacks."
        )
    model.ir_version = newest


def _name_nodes(graph: ir.Graph) -> None:
    names = Names()
    for node in graph.all_nodes():
        node.name = names.free(node.name, 0) if node.name else names.numbered(node.op_type, 0)
