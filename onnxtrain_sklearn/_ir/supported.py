"""Declare the part of an operator that a rule supports; a node with any other setting is refused.

:class:`Supported` is the declaration. New versions of ONNX add attributes, values of attributes, inputs and outputs to
operators. A rule that ignored one of them would return the gradient of the earlier operator, without an error.
Therefore each rule, each lowering and each entry of the table of proven operators declares the settings that it
supports, and each node is compared with this declaration before it is differentiated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from sys import maxsize
from typing import Generic, TypeVar

import onnx.defs
import onnx_ir as ir

from .queries import is_read

T_co = TypeVar("T_co", covariant=True)

ANY = maxsize
"""Number of inputs or outputs of variadic operators."""

WINDOW = "auto_pad=NOTSET|SAME_LOWER|SAME_UPPER|VALID dilations kernel_shape pads strides"
"""Attributes of convolutions and pooling."""

SCAN = "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions"
"""Attributes of Scan."""


@dataclass(frozen=True)
class Supported(Generic[T_co]):
    """A rule of an operator, with the attributes, inputs and outputs that the rule supports.

    Attributes
    ----------
    rule : object
        The function or table entry that differentiates or lowers the operator.
    attributes : str
        Supported names, separated by spaces; ``mode=linear|cubic`` lists the supported values of a string.
    inputs, outputs : int
        Number of supported inputs and outputs, counted from the first, including optional ones.
    cotangents : int
        Number of outputs, counted from the first, whose cotangents are propagated.
    """

    rule: T_co
    attributes: str = ""
    inputs: int = 1
    outputs: int = 1
    cotangents: int = 1

    @cached_property
    def values(self) -> dict[str, frozenset[str]]:
        """Return the supported values of each attribute; an empty set means any value."""
        pairs = (entry.partition("=") for entry in self.attributes.split())
        return {name: frozenset(filter(None, values.split("|"))) for name, _, values in pairs}

    def unknown(self, node: ir.Node) -> str | None:
        """Return the reason why the rule does not support ``node``, or None if it supports the node."""
        attributes = (a for a in node.attributes.values() if not self.honors(a) and not is_default(node, a))
        inputs = (i for i, x in enumerate(node.inputs) if x is not None and i >= self.inputs)
        outputs = (i for i, y in enumerate(node.outputs) if i >= self.outputs and is_read(y))
        reasons = [
            *(self._describe(a) for a in attributes),
            *(f"no gradient is known with its input {_formal(node, i, 'inputs')}" for i in inputs),
            *(f"no gradient is known with its output {_formal(node, i, 'outputs')}" for i in outputs),
        ]
        return next(iter(reasons), None)

    def missing(self, node: ir.Node, outputs: Iterable[int]) -> str | None:
        """Return the reason why the cotangents of ``outputs`` cannot be propagated, or None if they can."""
        further = [i for i in sorted(outputs) if i >= self.cotangents]
        return f"the gradient through its output {_formal(node, further[0], 'outputs')} is missing" if further else None

    def honors(self, attribute: ir.Attr) -> bool:
        """Return True if the rule supports the value of an attribute; a subclass may accept further attributes."""
        if attribute.is_ref() or attribute.name not in self.values:
            return False
        values = self.values[attribute.name]
        return not values or attribute.value in values

    def _describe(self, attribute: ir.Attr) -> str:
        values = self.values.get(attribute.name)
        given = f"{attribute.name} = {attribute.value!r}"
        hint = f" (only with {' or '.join(sorted(values))})" if values else ""
        return f"no gradient is known with its attribute {given}{hint}"


def is_default(node: ir.Node, attribute: ir.Attr) -> bool:
    """Return True if an attribute has its default value."""
    schema = _schema(node)
    formal = None if schema is None else schema.attributes.get(attribute.name)
    if formal is None or attribute.is_ref() or not formal.default_value.name:
        return False
    return bool(ir.serde.deserialize_attribute(formal.default_value).value == attribute.value)


def _formal(node: ir.Node, index: int, parameters: str) -> str:
    """Return the number and the schema's name of an input or output, for a message."""
    schema = _schema(node)
    names = [] if schema is None else [parameter.name for parameter in getattr(schema, parameters)]
    return f"{index} ({names[index]})" if index < len(names) else str(index)


def _schema(node: ir.Node) -> onnx.defs.OpSchema | None:
    versions = {} if node.graph is None else node.graph.opset_imports
    try:
        return onnx.defs.get_schema(node.op_type, versions.get(node.domain, 0), node.domain)
    except onnx.defs.SchemaError:
        return None
