"""The forms of nodes that onnxruntime-training's gradient builder differentiates rightly.

Each function of :data:`PREPARE` brings a node of one operator into a form of the same value; its docstring names the
trap. What it cannot bring into such a form it leaves as it is, for the engine to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.edits import copy_type, replace_value
from ..._graph.queries import Dims, attribute, constant, dims, fixed, is_float, kind, operand
from ..._graph.shapes import infer_shapes
from ...exceptions import ModelError
from ..path import Passage, path

Prepare = Callable[[GraphBuilder, Passage], None]

_NO_AXES = np.zeros(0, np.int64)


def prepare(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Value:
    """Bring the nodes on the path to ``of`` into the right forms, in place; return the value to differentiate."""
    graph, op = model.graph, GraphBuilder(model.graph, prefix="prepared", constant_nodes=True)
    known = len(op.taken)
    for passage in path(graph, wrt, _output(graph, of)):
        _free_names(op, passage.node)
        _separate_reads(op, passage.node, wrt)
        PREPARE.get(kind(passage.node), _leave)(op, passage)
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
    """The builder starts from the float 1.0, and wants a node behind the value that it differentiates."""
    plain = output.dtype is ir.DataType.FLOAT and output.producer() is not None
    return output if plain else op.Cast(output, to=int(ir.DataType.FLOAT))


def _free_names(op: GraphBuilder, node: ir.Node) -> None:
    """Rename values whose gradient's name the graph has already given to something else."""
    for value in node.outputs:
        if f"{value.name}_grad" in op.taken:
            if value.is_graph_output():
                raise ModelError(f"The graph already has a value named '{value.name}_grad'; rename it.")
            value.name = op.name("value")


def _separate_reads(op: GraphBuilder, node: ir.Node, wrt: Collection[str]) -> None:
    """Read a wanted name only once, and through Identity again: the builder would define its gradient twice."""
    seen: set[ir.Value] = set()
    for i, x in enumerate(node.inputs):
        if x is not None and x.name in wrt:
            if x in seen:
                node.replace_input_with(i, copy_type(op.Identity(x), x))
            seen.add(x)


def _forget_invented_names(graph: ir.Graph) -> None:
    """Shape inference names unknown dimensions, and the builder takes names for equal to whatever they meet."""
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        if None in (sizes := dims(value) or []):
            value.shape = ir.Shape(sizes)


def _leave(op: GraphBuilder, passage: Passage) -> None:
    pass


def _own_reads(op: GraphBuilder, passage: Passage) -> None:
    """The gradients of all inputs are defined, wanted or not: twice where two nodes read the same one."""
    for i, x in enumerate(passage.node.inputs):
        if x is not None and i not in passage.inputs:
            passage.node.replace_input_with(i, copy_type(op.Identity(x), x))


def _distinct_reads(op: GraphBuilder, passage: Passage) -> None:
    """Where shapes are not known, the builder names nodes by the operand: the same name twice, for the same operand."""
    node = passage.node
    for i, x in enumerate(node.inputs):
        if x is not None and x in node.inputs[:i]:
            node.replace_input_with(i, copy_type(op.Identity(x), x))


def _prepare_where(op: GraphBuilder, passage: Passage) -> None:
    """The gradient of a broadcast operand is not reduced, and that of a scalar is a vector."""
    _expand_operands(op, passage.node, (1, 2))
    _lift(op, passage)


def _prepare_power(op: GraphBuilder, passage: Passage) -> None:
    """As Where, for the base; and the exponent must be of the type of the base."""
    base, exponent = passage.node.inputs
    if base is not None and base.dtype is not None and exponent is not None and exponent.dtype is not base.dtype:
        passage.node.replace_input_with(1, op.Cast(exponent, to=int(base.dtype)))
    _expand_operands(op, passage.node, (0,))
    _lift(op, passage)


def _expand_operands(op: GraphBuilder, node: ir.Node, positions: Sequence[int]) -> None:
    """Give these operands the shape of the output; where it is not known, a copy of the node tells it."""
    target = dims(node.outputs[0])
    smaller = [(i, x) for i in positions if (x := node.inputs[i]) is not None and not _same_dims(dims(x), target)]
    if smaller:
        shape = np.array(target, np.int64) if fixed(target) else op.Shape(_emit_like(op, node, *node.inputs))
        for i, x in smaller:
            node.replace_input_with(i, op.Expand(x, shape))


def _lift(op: GraphBuilder, passage: Passage) -> None:
    """The builder's constants have one axis, which makes the gradient of a scalar a vector: go through a vector."""
    node = passage.node
    if dims(node.outputs[0]) == []:
        vectors = [op.Reshape(x, [1]) if x is not None and is_float(x) else x for x in node.inputs]
        replace_value(op, node.outputs[0], op.Reshape(_emit_like(op, node, *vectors), _NO_AXES))


def _prepare_matmul(op: GraphBuilder, passage: Passage) -> None:
    """The gradient of or beside a vector is wrong: make it a matrix, and drop the axis that this adds."""
    a, b = passage.node.inputs
    shapes = dims(a), dims(b)
    if None in shapes or all(len(s) != 1 for s in shapes if s is not None):
        return
    rows, columns = (len(s or []) == 1 for s in shapes)
    product = op.MatMul(op.Unsqueeze(a, axes=[0]) if rows else a, op.Unsqueeze(b, axes=[1]) if columns else b)
    rank = max(2, *(len(s or []) for s in shapes))
    replace_value(op, passage.node.outputs[0], op.Squeeze(product, axes=[rank - 2] * rows + [rank - 1] * columns))


def _prepare_gemm(op: GraphBuilder, passage: Passage) -> None:
    """The gradient of a scalar bias is a vector."""
    bias = operand(passage.node, 2)
    if bias is not None and dims(bias) == []:
        passage.node.replace_input_with(2, op.Reshape(bias, [1]))


def _keep_axes(op: GraphBuilder, passage: Passage) -> None:
    """With keepdims=0 the builder's graph is invalid in some opsets: keep the axes and drop them afterwards."""
    node = passage.node
    if not attribute(node, "keepdims", 1):
        kept = _emit_like(op, node, *node.inputs, keepdims=1)
        axes = operand(node, 1) or attribute(node, "axes", None)
        replace_value(op, node.outputs[0], op.Reshape(kept, _NO_AXES) if axes is None else op.Squeeze(kept, axes=axes))


def _prepare_split(op: GraphBuilder, passage: Passage) -> None:
    """The gradient has the parts of the used outputs only: where some are not used, cut the others out."""
    node, shapes = passage.node, [dims(v) for v in passage.node.outputs]
    axis = attribute(node, "axis", 0)
    ends = np.cumsum([s[axis] for s in shapes if s is not None and fixed([s[axis]])])
    if len(passage.outputs) < len(ends) == len(shapes):
        starts = [0, *ends]
        for i in passage.outputs:
            part = op.Slice(node.inputs[0], [int(starts[i])], [int(ends[i])], [axis])
            replace_value(op, node.outputs[i], part)


def _prepare_dropout(op: GraphBuilder, passage: Passage) -> None:
    """In inference mode the gradient is masked although the value is not; in training mode the mask is needed."""
    training = training_mode(passage.node)
    if training is False:
        replace_value(op, passage.node.outputs[0], op.Identity(passage.node.inputs[0]))
    elif training is True:
        _declare_outputs(op, passage.node, 2)


def _prepare_layer_normalization(op: GraphBuilder, passage: Passage) -> None:
    """The builder needs all three inputs and outputs, and defines the gradients of all inputs."""
    node, scale = passage.node, passage.node.inputs[1]
    _own_reads(op, passage)
    if operand(node, 2) is None and scale is not None:
        node.resize_inputs(3)
        node.replace_input_with(2, op.ConstantOfShape(op.Shape(scale), value=ir.tensor([0], dtype=scale.dtype)))
    _declare_outputs(op, node, 3)


def _prepare_cross_entropy(op: GraphBuilder, passage: Passage) -> None:
    """The builder needs the second output."""
    _declare_outputs(op, passage.node, 2)


def _explicit_pads(op: GraphBuilder, passage: Passage) -> None:
    """The gradient passes over auto_pad: write the pads out where the shapes tell them."""
    node, mode = passage.node, attribute(passage.node, "auto_pad", "NOTSET")
    sizes = (dims(node.inputs[0]) or [])[2:]
    kernel = list(attribute(node, "kernel_shape", None) or (dims(operand(node, 1)) or [])[2:])
    if mode.startswith("SAME") and kernel and fixed(sizes) and fixed(kernel):
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
    "Sqrt": _lift,
    "Where": _prepare_where,
}


def training_mode(node: ir.Node) -> bool | None:
    """Return the mode of a Dropout, None where it is not constant."""
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
