"""What a rule knows of its operator; whatever else a node has set is refused.

ONNX goes on giving its operators attributes, values of attributes, inputs and outputs. A rule that passed over one
would return the gradient of the operator as it was before, without an error. So each rule, lowering and row of what is
proven declares what it honors, and a node is compared with that before it is differentiated, at every opset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from sys import maxsize
from typing import Generic, TypeVar

import onnx.defs
import onnx_ir as ir

T_co = TypeVar("T_co", covariant=True)

ANY = maxsize
"""For operators that take or return as many values as they are given."""

PADDING = "auto_pad=NOTSET|SAME_LOWER|SAME_UPPER|VALID"


@dataclass(frozen=True)
class Known(Generic[T_co]):
    """A rule of an operator, and how much of the operator it knows.

    Attributes
    ----------
    rule : what differentiates the operator, or lowers it, or tells whether it is proven
    attributes : str
        Names separated by spaces; ``mode=linear|cubic`` lists the values of a text that are known.
    inputs, outputs : int
        How many are known, counted from the first, optional ones included.
    slopes : int
        How many outputs, counted from the first, a gradient may come in at.
    """

    rule: T_co
    attributes: str = ""
    inputs: int = 1
    outputs: int = 1
    slopes: int = 1

    @cached_property
    def values(self) -> dict[str, frozenset[str]]:
        """Return the known values of each attribute; of one that can have any value, none."""
        pairs = (entry.partition("=") for entry in self.attributes.split())
        return {name: frozenset(filter(None, values.split("|"))) for name, _, values in pairs}

    def unknown(self, node: ir.Node) -> str | None:
        """Return the reason why ``node`` is not one that the rule is for, None where it knows all that is set."""
        attributes = (a for a in node.attributes.values() if not self._honors(a) and not is_default(node, a))
        inputs = (i for i, x in enumerate(node.inputs) if x is not None and i >= self.inputs)
        outputs = (i for i, y in enumerate(node.outputs) if i >= self.outputs and (y.uses() or y.is_graph_output()))
        reasons = [
            *(self._describe(a) for a in attributes),
            *(f"no gradient is known with its input {_formal(node, i, 'inputs')}" for i in inputs),
            *(f"no gradient is known with its output {_formal(node, i, 'outputs')}" for i in outputs),
        ]
        return next(iter(reasons), None)

    def missing(self, node: ir.Node, outputs: Iterable[int]) -> str | None:
        """Return the reason why a gradient that comes in at ``outputs`` cannot go on, None where it can."""
        further = [i for i in sorted(outputs) if i >= self.slopes]
        return f"the gradient through its output {_formal(node, further[0], 'outputs')} is missing" if further else None

    def _honors(self, attribute: ir.Attr) -> bool:
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
    """Whether an attribute is what the operator has without it."""
    schema = _schema(node)
    formal = None if schema is None else schema.attributes.get(attribute.name)
    if formal is None or attribute.is_ref() or not formal.default_value.name:
        return False
    return bool(ir.serde.deserialize_attribute(formal.default_value).value == attribute.value)


def _formal(node: ir.Node, index: int, parameters: str) -> str:
    """Return the position of an input or output, and its name in the standard."""
    schema = _schema(node)
    names = [] if schema is None else [parameter.name for parameter in getattr(schema, parameters)]
    return f"{index} ({names[index]})" if index < len(names) else str(index)


def _schema(node: ir.Node) -> onnx.defs.OpSchema | None:
    versions = {} if node.graph is None else node.graph.opset_imports
    try:
        return onnx.defs.get_schema(node.op_type, versions.get(node.domain, 0), node.domain)
    except onnx.defs.SchemaError:
        return None
