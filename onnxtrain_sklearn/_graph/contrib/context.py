"""Context of the lowerings of fused operators, and helpers that several lowerings use.

A lowering is a function of a :class:`Fused` node. It returns the outputs of the node, in order, computed by ONNX's own
operators in the opset of the graph. A :class:`FusionRule` declares which attributes, inputs and outputs the lowering
supports; a node with any other setting stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import onnx_ir as ir

from ..builder import GraphBuilder
from ..queries import attribute, is_read, operand
from ..supported import Supported


class Refused(Exception):
    """A node has a setting that its lowering does not support."""


@dataclass(frozen=True)
class Fused:
    """One node and the builder of its graph, whose floats have the type of the node's floats."""

    op: GraphBuilder
    node: ir.Node

    def x(self, index: int = 0) -> ir.Value:
        """Return a required input."""
        value = self.given(index)
        return self.refuse(f"its input {index} is missing") if value is None else value

    def given(self, index: int) -> ir.Value | None:
        """Return an input, None where it is left out."""
        return operand(self.node, index)

    def wants(self, index: int) -> bool:
        """Whether an output is read."""
        value = self.node.outputs[index] if index < len(self.node.outputs) else None
        return value is not None and is_read(value)

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute of the node."""
        return attribute(self.node, name, default)

    def needed(self, name: str) -> Any:
        """Return a required attribute."""
        value = self.attribute(name)
        return self.refuse(f"its attribute {name} is missing") if value is None else value

    def rank(self, value: ir.Value) -> int:
        """Return the number of axes of a value, or refuse."""
        return self.refuse(f"the rank of {value.name!r} is not known") if value.shape is None else len(value.shape)

    def size(self, value: ir.Value, axis: int) -> int:
        """Return a size of a value, or refuse where it is not fixed."""
        self.rank(value)
        size = value.shape[axis]  # type: ignore[index]
        return size if isinstance(size, int) else self.refuse(f"size {axis} of {value.name!r} is not fixed")

    def refuse(self, reason: str) -> NoReturn:
        """Leave the node as it is."""
        raise Refused(reason)


Outputs: TypeAlias = "Sequence[ir.Value | None]"
LoweringFunction: TypeAlias = Callable[[Fused], Outputs]


@dataclass(frozen=True)
class FusionRule(Supported[LoweringFunction]):
    """A lowering and what it supports; ``defaults`` are values of further attributes that have no effect."""

    defaults: Mapping[str, Any] = field(default_factory=dict)

    def _honors(self, attribute: ir.Attr) -> bool:
        missing = object()
        return self.defaults.get(attribute.name, missing) == attribute.value or super()._honors(attribute)


def gelu(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return the exact GELU, by the error function."""
    if op.opset >= 20:
        return op.Gelu(x)
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))


def fast_gelu(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return the approximation of GELU by tanh, with onnxruntime's constants."""
    inner = op.Mul(x, op.Add(op.Mul(op.Mul(x, x), 0.035677408136300125), 0.7978845608028654))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def plus(op: GraphBuilder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Return the sum with an optional bias."""
    return x if bias is None else op.Add(x, bias)
