"""The engine "ort-training": onnxruntime-training's forward-backward graph builder, held to what is proven right.

The builder differentiates some operators wrongly without an error and fails on others with a message about its
insides. So every node on a path from a wanted name to the output is looked up in :data:`PROVEN` first: it is there
only if its gradient was checked against finite differences, with a function that names the settings in which it is
wrong. Nodes that the builder wants in another form are brought into it by :data:`PREPARE`, on a clone of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx
import onnx_ir as ir

from .. import _runtime
from .._graph.builder import GraphBuilder, infer_shapes
from ..exceptions import UnsupportedOperatorError

Check = Callable[[ir.Node], "str | None"]
Prepare = Callable[[GraphBuilder, ir.Node], "ir.Value | None"]


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract."""
    if not wrt:
        return model.clone()
    prepared = _prepare(model.clone(), wrt, of)
    for node in _path(prepared.graph, wrt, of):
        _require_proven(node)
    proto = ir.to_proto(prepared)
    try:
        result = _runtime.build_gradient_graph(proto.SerializeToString(), wrt=wrt, of=of)
    except Exception as error:
        raise UnsupportedOperatorError(f"onnxruntime-training could not differentiate the graph: {error}") from error
    return _clean(result, model)


def _path(graph: ir.Graph, wrt: Collection[str], of: str) -> list[ir.Node]:
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
            above |= {x.name for x in node.inputs if x is not None and x.name in below}
    return path[::-1]


def _prepare(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Bring the nodes on the path, in place, into the forms that the builder differentiates rightly."""
    op = GraphBuilder(model.graph, prefix="prepared")
    path = _path(model.graph, wrt, of)
    for node in path:
        _separate_reads(op, node, wrt)
        prepare = PREPARE.get(_kind(node))
        value = prepare(op, node) if prepare else None
        if value is not None:
            _replace(model.graph, node, value)
    model.graph.sort()
    return infer_shapes(model)


def _separate_reads(op: GraphBuilder, node: ir.Node, wrt: Collection[str]) -> None:
    """Put an Identity before each further read of a wanted name by one node: the builder would define its gradient twice."""
    seen: set[str] = set()
    for i, x in enumerate(node.inputs):
        if x is not None and x.name in wrt:
            if x.name in seen:
                node.replace_input_with(i, _like(op.Identity(x), x))
            seen.add(x.name)


def _like(value: ir.Value, model: ir.Value) -> ir.Value:
    value.dtype, value.shape = model.dtype, model.shape
    return value


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Let ``value`` stand, under its name, for the single output of ``node``."""
    old = node.outputs[0]
    name = old.name
    ir.convenience.replace_all_uses_with(old, _like(value, old), replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name


def _expand_operands(op: GraphBuilder, node: ir.Node) -> None:
    """Where: the builder does not reduce the gradient of a broadcast operand."""
    condition, *operands = node.inputs
    target = node.outputs[0].shape
    if target is not None and target.is_static():
        shape = op.value(list(target.numpy()))
        if all(x is not None and x.shape == target for x in operands):
            return
    else:
        shape = op.Shape(op.Where(condition, *operands))
    for i, x in enumerate(operands, start=1):
        node.replace_input_with(i, op.Expand(x, shape))


def _matrices(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """MatMul: a vector as operand becomes a matrix, and the axis that this adds is dropped."""
    a, b = node.inputs
    if a is None or b is None or a.shape is None or b.shape is None or min(len(a.shape), len(b.shape)) > 1:
        return None
    rows, columns = len(a.shape) == 1, len(b.shape) == 1
    added = [-2] * rows + [-1] * columns
    product = op.MatMul(op.Unsqueeze(a, [0]) if rows else a, op.Unsqueeze(b, [1]) if columns else b)
    rank = max(len(a.shape) + rows, len(b.shape) + columns)
    return op.Squeeze(product, [rank + axis for axis in added])


PREPARE: dict[str, Prepare] = {"Where": _expand_operands, "MatMul": _matrices}


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


def _require_proven(node: ir.Node) -> None:
    kind = _kind(node)
    reason = PROVEN[kind](node) if kind in PROVEN else "onnxruntime-training has no gradient for it that is proven right"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} ({kind}) cannot be differentiated: {reason}. Freeze the parameters before it "
            f"(trainable=...), or replace the operator."
        )


def _kind(node: ir.Node) -> str:
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


def _clean(result: bytes, source: ir.Model) -> ir.Model:
    """Return the builder's model with the domains that it uses, not the eight that it lists."""
    model = ir.from_proto(onnx.load_model_from_string(result))
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(model.graph)} | {""}
    for domain in set(model.opset_imports) - used:
        del model.opset_imports[domain]
    model.ir_version = source.ir_version
    return model
