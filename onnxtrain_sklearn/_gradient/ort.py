"""The engine "ort-training": onnxruntime-training's forward-backward graph builder, held to what is proven right.

The builder differentiates some operators wrongly without an error and fails on others with a message about its
insides. So every node on a path from a wanted name to the output is looked up in :data:`PROVEN` first: it is there
only if its gradient was checked against finite differences, with a function that names the settings in which it is
wrong. Nodes that the builder wants in another form (extra outputs) are brought into it by :data:`PREPARE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from .. import _runtime
from ..exceptions import UnsupportedOperatorError

Check = Callable[[ir.Node], "str | None"]


def _always(node: ir.Node) -> str | None:
    return None


PROVEN: dict[str, Check] = {
    name: _always
    for name in (
        "Abs Add Cast Concat Div Erf Exp Expand Flatten Gather Gemm Identity Log LogSoftmax MatMul Max Mul Neg Pow "
        "Reciprocal ReduceMean ReduceSum Relu Reshape Sigmoid Softmax Softplus Sqrt Squeeze Sub Tanh Transpose Unsqueeze "
        "Where LeakyRelu ReduceLogSumExp Min"
    ).split()
}


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract."""
    if not wrt:
        return model.clone()
    for node in _path(model.graph, wrt, of):
        _require_proven(node)
    proto = ir.to_proto(model)
    try:
        result = _runtime.build_gradient_graph(proto.SerializeToString(), wrt=wrt, of=of)
    except Exception as error:
        raise UnsupportedOperatorError(f"onnxruntime-training could not differentiate the graph: {error}") from error
    return _clean(result, model)


def _path(graph: ir.Graph, wrt: Sequence[str], of: str) -> list[ir.Node]:
    """Return the nodes between a wanted name and the output."""
    below: set[str] = set(wrt)
    forward = []
    for node in graph:
        if any(x is not None and x.name in below for x in node.inputs):
            forward.append(node)
            below |= {v.name for v in node.outputs if v.name and (v.dtype is None or v.dtype.is_floating_point())}
    above = {of}
    path = []
    for node in reversed(forward):
        if any(v.name in above for v in node.outputs):
            path.append(node)
            above |= {x.name for x in node.inputs if x is not None and x.name}
    return path[::-1]


def _require_proven(node: ir.Node) -> None:
    kind = node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
    reason = PROVEN[kind](node) if kind in PROVEN else "onnxruntime-training has no gradient for it that is proven right"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} ({kind}) cannot be differentiated: {reason}. Freeze the parameters before it "
            f"(trainable=...), or replace the operator."
        )


def _clean(result: bytes, source: ir.Model) -> ir.Model:
    """Return the builder's model with the domains that it uses, not the eight that it lists."""
    model = ir.from_proto(onnx.load_model_from_string(result))
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(model.graph)} | {""}
    for domain in set(model.opset_imports) - used:
        del model.opset_imports[domain]
    model.ir_version = source.ir_version
    return model
