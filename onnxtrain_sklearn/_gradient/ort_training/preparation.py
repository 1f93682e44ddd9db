"""Rewrites nodes to forms that onnxruntime-training's gradient builder differentiates correctly.

Each function of :data:`PREPARE` rewrites nodes of one operator to an equivalent form; its docstring describes the
problem. Nodes that it cannot rewrite stay unchanged, and the engine refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.edits import copy_type, insert_behind, read_through_identity, replace_value
from ..._graph.open_clip import bound_of, is_open
from ..._graph.queries import Dims, attribute, constant, dims, fixed, is_float, kind, operand
from ..._graph.shapes import infer_shapes
from ...exceptions import ModelError
from ..norms import is_norm
from ..path import Passage, path

Prepare = Callable[[GraphBuilder, Passage], None]

_NO_AXES = np.zeros(0, np.int64)


def prepare(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Value:
    """Rewrite the nodes on the path to ``of``, in place; return the value to differentiate."""
    graph, op = model.graph, GraphBuilder(model.graph, prefix="prepared", constant_nodes=True)
    known = len(op.taken)
    for passage in path(graph, wrt, _output(graph, of)):
        _free_names(op, passage.node)
        _separate_reads(op, passage.node, wrt)
        PREPARE.get(kind(passage.node), _keep_node)(op, passage)
        if not any(v.uses() or v.is_graph_output() for v in passage.node.outputs):
            graph.remove(passage.node, safe=True)
    seed = _seed(op, _output(graph, of))
    if len(op.taken) > known:
        graph.sort()
        infer_shapes(model)
    _forget_invented_names(graph)
    return seed


def _output(graph: ir.Graph, name: str) -> ir.Value:
    return next(v for v in graph.outputs if v.name == name)


def _seed(op: GraphBuilder, output: ir.Value) -> ir.Value:
    """Append a Cast if needed: the builder seeds with a float32 1.0, and a node must compute the output."""
    plain = output.dtype is ir.DataType.FLOAT and output.producer() is not None
    return output if plain else op.Cast(output, to=int(ir.DataType.FLOAT))


def _free_names(op: GraphBuilder, node: ir.Node) -> None:
    """Rename values if the name of their gradient is already in use."""
    for value in node.outputs:
        if f"{value.name}_grad" in op.taken:
            if value.is_graph_output():
                raise ModelError(f"The graph already has a value named '{value.name}_grad'; rename it.")
            value.name = op.name("value")


def _separate_reads(op: GraphBuilder, node: ir.Node, wrt: Collection[str]) -> None:
    """Insert Identity where a node reads a wanted name again: the builder would define its gradient twice."""
    seen: set[ir.Value] = set()
    for i, x in enumerate(node.inputs):
        if x is not None and x.name in wrt:
            if x in seen:
                read_through_identity(op, node, i)
            seen.add(x)


def _forget_invented_names(graph: ir.Graph) -> None:
    """Remove the names that shape inference gives unknown dimensions: the builder assumes they equal any size."""
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        if None in (sizes := dims(value) or []):
            value.shape = ir.Shape(sizes)


def _keep_node(op: GraphBuilder, passage: Passage) -> None:
    pass


def _own_reads(op: GraphBuilder, passage: Passage) -> None:
    """Read unwanted inputs through Identity: the builder defines all gradients, twice if two nodes share an input."""
    for i, x in enumerate(passage.node.inputs):
        if x is not None and i not in passage.inputs:
            read_through_identity(op, passage.node, i)


def _distinct_reads(op: GraphBuilder, passage: Passage) -> None:
    """Read a repeated operand through Identity: with unknown shapes the builder would give two nodes the same name."""
    node = passage.node
    for i, x in enumerate(node.inputs):
        if x is not None and x in node.inputs[:i]:
            read_through_identity(op, node, i)


def _prepare_where(op: GraphBuilder, passage: Passage) -> None:
    """Expand the operands: the builder does not reduce broadcast gradients, and returns a vector for a scalar."""
    _expand_operands(op, passage.node, (1, 2))
    _lift(op, passage)


def _prepare_power(op: GraphBuilder, passage: Passage) -> None:
    """As for Where, for the base; the exponent must have the type of the base."""
    base, exponent = passage.node.inputs
    if base is not None and base.dtype is not None and exponent is not None and exponent.dtype is not base.dtype:
        passage.node.replace_input_with(1, op.Cast(exponent, to=int(base.dtype)))
    _expand_operands(op, passage.node, (0,))
    _flatten_norm(op, passage)
    _lift(op, passage)


def _prepare_sqrt(op: GraphBuilder, passage: Passage) -> None:
    _flatten_norm(op, passage)
    _lift(op, passage)


def _flatten_norm(op: GraphBuilder, passage: Passage) -> None:
    """Compute the root of one in place of a norm's zero, times zero: the builder's derivative is infinite there."""
    node = passage.node
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.dtype is None or not is_norm(node, passage.inputs):
        return
    kind = x.dtype.numpy()
    is_zero = copy_type(op.Cast(op.Equal(x, op.constant(np.zeros((), kind))), to=int(x.dtype)), x)
    apart = copy_type(op.Sub(op.constant(np.ones((), kind)), is_zero), x)
    insert_behind(op, y, lambda root: op.Mul(root, apart))
    node.replace_input_with(0, copy_type(op.Add(x, is_zero), x))


def _expand_operands(op: GraphBuilder, node: ir.Node, positions: Sequence[int]) -> None:
    """Expand these operands to the shape of the output; if it is unknown, a copy of the node computes it."""
    target = dims(node.outputs[0])
    smaller = [(i, x) for i in positions if (x := node.inputs[i]) is not None and not _same_dims(dims(x), target)]
    if smaller:
        shape = np.array(target, np.int64) if fixed(target) else op.Shape(_emit_like(op, node, *node.inputs))
        for i, x in smaller:
            node.replace_input_with(i, op.Expand(x, shape))


def _lift(op: GraphBuilder, passage: Passage) -> None:
    """Reshape a scalar to a vector and back: the builder's constants have one axis, and so would the gradient."""
    node = passage.node
    if dims(node.outputs[0]) == []:
        vectors = [op.Reshape(x, [1]) if x is not None and is_float(x) else x for x in node.inputs]
        replace_value(op, node.outputs[0], op.Reshape(_emit_like(op, node, *vectors), _NO_AXES))


def _prepare_matmul(op: GraphBuilder, passage: Passage) -> None:
    """Reshape vector operands to matrices: with a vector, both gradients are wrong."""
    a, b = passage.node.inputs
    shapes = dims(a), dims(b)
    if None in shapes or all(len(s) != 1 for s in shapes if s is not None):
        return
    rows, columns = (len(s or []) == 1 for s in shapes)
    product = op.MatMul(op.Unsqueeze(a, axes=[0]) if rows else a, op.Unsqueeze(b, axes=[1]) if columns else b)
    rank = max(2, *(len(s or []) for s in shapes))
    replace_value(op, passage.node.outputs[0], op.Squeeze(product, axes=[rank - 2] * rows + [rank - 1] * columns))


def _prepare_gemm(op: GraphBuilder, passage: Passage) -> None:
    """Reshape a scalar bias, whose gradient would be a vector."""
    bias = operand(passage.node, 2)
    if bias is not None and dims(bias) == []:
        passage.node.replace_input_with(2, op.Reshape(bias, [1]))


def _keep_axes(op: GraphBuilder, passage: Passage) -> None:
    """Set keepdims=1 and squeeze afterwards: with keepdims=0 the builder's graph is invalid in some opsets."""
    node = passage.node
    if not attribute(node, "keepdims", 1):
        kept = _emit_like(op, node, *node.inputs, keepdims=1)
        axes = operand(node, 1) or attribute(node, "axes", None)
        replace_value(op, node.outputs[0], op.Reshape(kept, _NO_AXES) if axes is None else op.Squeeze(kept, axes=axes))


def _prepare_split(op: GraphBuilder, passage: Passage) -> None:
    """Replace Split by slices if an output is unused: the builder's gradient contains only the used parts."""
    node, shapes = passage.node, [dims(v) for v in passage.node.outputs]
    axis = attribute(node, "axis", 0)
    ends = np.cumsum([s[axis] for s in shapes if s is not None and fixed([s[axis]])])
    if len(passage.outputs) < len(ends) == len(shapes):
        starts = [0, *ends]
        for i in passage.outputs:
            part = op.Slice(node.inputs[0], [int(starts[i])], [int(ends[i])], [axis])
            replace_value(op, node.outputs[i], part)


def _prepare_dropout(op: GraphBuilder, passage: Passage) -> None:
    """Remove Dropout in inference mode, whose gradient would be masked; add the mask output in training mode."""
    training = training_mode(passage.node)
    if training is False:
        replace_value(op, passage.node.outputs[0], op.Identity(passage.node.inputs[0]))
    elif training is True:
        _declare_outputs(op, passage.node, 2)


def _prepare_layer_normalization(op: GraphBuilder, passage: Passage) -> None:
    """Add optional inputs and outputs: the builder needs all three, and defines the gradients of all inputs."""
    node, scale = passage.node, passage.node.inputs[1]
    _own_reads(op, passage)
    if operand(node, 2) is None and scale is not None:
        node.resize_inputs(3)
        node.replace_input_with(2, op.ConstantOfShape(op.Shape(scale), value=ir.tensor([0], dtype=scale.dtype)))
    _declare_outputs(op, node, 3)


def _prepare_clip(op: GraphBuilder, passage: Passage) -> None:
    """Put Relu in place of a lower bound of zero where the derivative at it is zero; the kernel's is one."""
    node, x = passage.node, operand(passage.node, 0)
    if x is not None and is_open(node) and bound_of(node, 1) == 0.0:
        node.replace_input_with(0, op.Relu(x))
        node.replace_input_with(1, None)


def _prepare_cross_entropy(op: GraphBuilder, passage: Passage) -> None:
    """Add the second output, which the builder needs."""
    _declare_outputs(op, passage.node, 2)


def _explicit_pads(op: GraphBuilder, passage: Passage) -> None:
    """Replace auto_pad, which the gradient ignores, by explicit pads if the shapes are known."""
    node, mode = passage.node, attribute(passage.node, "auto_pad", "NOTSET")
    sizes = (dims(node.inputs[0]) or [])[2:]
    kernel = list(attribute(node, "kernel_shape", None) or (dims(operand(node, 1)) or [])[2:])
    if mode.startswith("SAME") and kernel and sizes and fixed(sizes) and fixed(kernel):
        totals = [max(total, 0) for total in _same_pads(node, sizes, kernel)]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        node.attributes["auto_pad"] = ir.AttrString("auto_pad", "NOTSET")
        node.attributes["pads"] = ir.AttrInt64s("pads", small + large if mode == "SAME_UPPER" else large + small)


def _same_pads(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    strides, dilations = (attribute(node, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    return [
        (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]


PREPARE: dict[str, Prepare] = {
    "AveragePool": _explicit_pads,
    "Clip": _prepare_clip,
    "Concat": _own_reads,
    "Conv": _explicit_pads,
    "Cos": _lift,
    "Dropout": _prepare_dropout,
    "Erf": _lift,
    "Gemm": _prepare_gemm,
    "LayerNormalization": _prepare_layer_normalization,
    "MatMul": _prepare_matmul,
    **dict.fromkeys(("Max", "Min"), _distinct_reads),
    "Pow": _prepare_power,
    "ReduceL2": _keep_axes,
    "ReduceLogSumExp": _keep_axes,
    "SoftmaxCrossEntropyLoss": _prepare_cross_entropy,
    "Split": _prepare_split,
    "Sqrt": _prepare_sqrt,
    "Where": _prepare_where,
}


def training_mode(node: ir.Node) -> bool | None:
    """Return the mode of a Dropout, None if it is not constant."""
    mode = operand(node, 2)
    array = np.array(False) if mode is None else constant(mode)
    return None if array is None else bool(array)


def _declare_outputs(op: GraphBuilder, node: ir.Node, count: int) -> None:
    node.resize_outputs(max(count, len(node.outputs)))
    for value in node.outputs:
        value.name = value.name or op.name(node.op_type)


def _emit_like(op: GraphBuilder, node: ir.Node, *inputs: ir.Value | None, **changes: object) -> ir.Value:
    attributes = {name: a.value for name, a in node.attributes.items()} | changes
    return op.emit(node.op_type, *inputs, **attributes)[0]


def _same_dims(a: Dims | None, b: Dims | None) -> bool:
    return a is not None and a == b and None not in a
