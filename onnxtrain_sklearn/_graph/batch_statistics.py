"""BatchNormalization nodes in training mode: their batch statistics and running statistics."""

from __future__ import annotations

import math

import onnx_ir as ir

from ..exceptions import UnsupportedOperatorError
from .builder import GraphBuilder
from .edits import copy_initializer, copy_type
from .keras_normalization import NODES as OF_KERAS
from .names import names_of
from .queries import dims, every_node, int_attribute
from .torch_program import TorchProgram, is_from_torch


def normalizes_by_batch(node: ir.Node) -> bool:
    """Whether a BatchNormalization is in training mode; before opset 14 it then has further outputs."""
    is_batch_norm = node.op_type == "BatchNormalization" and not node.domain
    return is_batch_norm and bool(int_attribute(node, "training_mode", 0) or len(node.outputs) > 1)


def use_running_statistics(node: ir.Node) -> None:
    """Switch a BatchNormalization to inference mode."""
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def separate_running_statistics(graph: ir.Graph) -> None:
    """Give each BatchNormalization in training mode statistics of its own: exporters merge equal initializers.

    In a fresh network of PyTorch the running mean is the bias, and the running variance is the scale.
    """
    nodes = [n for n in every_node(graph) if normalizes_by_batch(n)]
    program, seen = TorchProgram(graph) if nodes else None, set[ir.Value]()
    for node in nodes:
        assert program is not None
        _require_running_statistics(graph, node)
        for i in (3, 4):
            _separate_statistic(graph, node, i, program.buffer_at(node, i), seen)


def separate_stored_statistics(graph: ir.Graph) -> None:
    """Let each BatchNormalization in inference mode read statistics that no other operand of a node is.

    A fresh network of PyTorch has zeros for the mean and for biases, ones for the variance and for scales.
    """
    nodes = [n for n in every_node(graph) if n.op_type == "BatchNormalization" and not n.domain]
    stored = [(n, i) for n in nodes if not normalizes_by_batch(n) for i in (3, 4)]
    merged = [(n, i, x) for n, i in stored if (x := n.inputs[i]) is not None and _is_operand_too(graph, x)]
    program = TorchProgram(graph) if merged else None
    for node, i, x in merged:
        own = None if program is None else program.buffer_at(node, i)
        name = names_of(graph).free(own or f"{x.name}/constant")
        node.replace_input_with(i, copy_initializer(graph, x, name))


def _is_operand_too(graph: ir.Graph, x: ir.Value) -> bool:
    """Whether an initializer is read elsewhere than as a statistic."""
    if x.const_value is None or x.name not in graph.initializers:
        return False
    return not all(u.idx in (3, 4) and u.node.op_type == "BatchNormalization" for u in x.uses())


def _separate_statistic(graph: ir.Graph, node: ir.Node, index: int, own: str | None, seen: set[ir.Value]) -> None:
    """Let no other node read the same statistic; ``own`` is its name in the module."""
    x = node.inputs[index]
    assert x is not None
    others = [use for use in x.uses() if not (use.idx in (3, 4) and normalizes_by_batch(use.node))]
    if x not in seen and not (others and x.name != own):
        seen.add(x)
        moved = copy_initializer(graph, x, names_of(graph).free(f"{x.name}/constant")) if others else x
        for use in others:
            use.node.replace_input_with(use.idx, moved)
    else:
        node.replace_input_with(index, copy_initializer(graph, x, names_of(graph).free(own or f"{x.name}/{node.name}")))


def _require_running_statistics(graph: ir.Graph, node: ir.Node) -> None:
    statistics, updated = node.inputs[3:5], node.outputs[1:]
    reason = ""
    if node.graph is not graph:
        reason = "it is in a subgraph"
    elif graph.opset_imports[""] < 14:
        reason = "before opset 14 its training mode is not supported"
    elif any(x is None or x.name not in graph.initializers for x in statistics):
        reason = "its running statistics are not initializers"
    elif len(updated) != 2 or any(not v.name or v.uses() or v.is_graph_output() for v in updated):
        reason = "it must have three outputs, of which nothing reads the last two"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (BatchNormalization) is in training mode and cannot be trained: {reason}. Export the "
            f"model in evaluation mode (in PyTorch: model.eval())."
        )


def follow_torch(model: ir.Model, prefix: str) -> None:
    """Let the running variances of a graph from PyTorch take unbiased variances, as PyTorch does, in place.

    ONNX's operator averages the variances of batches as those of populations.
    """
    found = [n for n in model.graph if normalizes_by_batch(n)] if is_from_torch(model) else []
    nodes = [n for n in found if not (n.name or "").startswith(OF_KERAS)]
    op = GraphBuilder(model.graph, prefix=prefix)
    for node in nodes:
        _average_unbiased(op, node)
    if nodes:
        model.graph.sort()


def _average_unbiased(op: GraphBuilder, node: ir.Node) -> None:
    """Scale what the node averages with, and its average back: kernels may overwrite the old average itself."""
    old, new = node.inputs[4], node.outputs[2]
    assert old is not None
    op.dtype = old.dtype or op.dtype
    factor = _unbiased_factor(op, node)
    node.replace_input_with(4, op.Div(old, factor))
    name, new.name = new.name, op.name("population")
    copy_type(op.Mul(new, factor), new).name = name


def _unbiased_factor(op: GraphBuilder, node: ir.Node) -> ir.Value | float:
    """Return n / (n - 1) for n numbers of a channel; 1 for a single one, whose variance is 0 in any case."""
    x, scale = node.inputs[:2]
    sizes = dims(x)
    if sizes is not None and all(isinstance(d, int) for d in sizes):
        count = math.prod(int(d or 1) for i, d in enumerate(sizes) if i != 1)
        return count / max(count - 1, 1)
    total = op.Cast(op.Div(op.Size(x), op.Size(scale)), to=op.dtype)
    return op.Div(total, op.Max(op.Sub(total, 1.0), 1.0))
