"""Questions about nodes and values of a graph: operator, opset, attributes, inputs, constants, dimensions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

Dims: TypeAlias = "list[int | str | None]"


def kind(node: ir.Node) -> str:
    """Return the operator type, behind its domain where that is not ONNX's own."""
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


def describe(node: ir.Node) -> str:
    """Return the start of a sentence about ``node``."""
    name = f"Node {node.name!r}" if node.name else f"The node that computes {node.outputs[0].name!r}"
    return f"{name} ({kind(node)})"


def opset(node: ir.Node) -> int:
    """Return the version of ONNX's own operators in the graph of ``node``."""
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return the value of an attribute; ONNX's default is the caller's to know."""
    return node.attributes[name].value if name in node.attributes else default


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at ``index``, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant(value: ir.Value) -> np.ndarray | None:
    """Return what ``value`` always is, None where it can change from run to run."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def dims(value: ir.Value | None) -> Dims | None:
    """Return the dimensions of ``value``: numbers, names given by the model, and None for those that are not known."""
    if value is None or value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    return [None if isinstance(d, str) and d.startswith("unk__") else d for d in sizes]


def fixed(sizes: Dims | None) -> bool:
    """Whether every dimension is a number."""
    return sizes is not None and all(isinstance(d, int) for d in sizes)
