"""The interface of the rewriting rules: a node to be replaced by operators of the default domain.

A rule is a function of a :class:`RewrittenNode` that returns one thunk per output of the node, in order. Only the
thunks of used outputs are called; if one of these is None, the node is kept. :meth:`RewrittenNode.parameter` makes an
initializer for trainable numbers. All other numbers are ``Constant`` nodes, which are never mistaken for weights. The
operators of ai.onnx.ml compute in float32 for all types of input, and so do the operators that replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from ..exceptions import UnsupportedOperatorError
from ..graph import FLOAT, GraphBuilder

LazyValue: TypeAlias = Callable[[], ir.Value]
RewriteRule: TypeAlias = "Callable[[RewrittenNode], Sequence[LazyValue | None]]"


@dataclass(frozen=True)
class Role:
    """A parameter that a rule made, and where its numbers come from.

    Attributes
    ----------
    name : str
        The initializer in the rewritten graph: the family of the operator, a dot, the role.
    operator : str
        The operator that held the numbers, with its domain as a prefix.
    node : str
        Name of the node that held them.
    role : str
        Their role: "coef", "intercept", "leaf_values", ...
    shape : tuple of int
        Shape of the initializer.
    places : numpy.ndarray or None
        For leaf values the tree id, node id and target of each number, as the node's attributes count them, along an
        axis added to those of ``shape``. None: the numbers are in the order of the attribute.
    """

    name: str
    operator: str
    node: str
    role: str
    shape: tuple[int, ...]
    places: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class RewrittenNode:
    """A node to be rewritten.

    Attributes
    ----------
    op : GraphBuilder
        Emits the operators; its constants are nodes.
    node : onnx_ir.Node
    stem : str
        Prefix of the names of the parameters.
    roles : list of Role
        The parameters made so far.
    """

    op: GraphBuilder
    node: ir.Node
    stem: str
    roles: list[Role]

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute of the node, or ``default``."""
        return self.node.attributes[name].value if name in self.node.attributes else default

    def floats(self, name: str) -> np.ndarray:
        """Return a list of floats, empty if it is missing; a tensor keeps its type."""
        tensor = self.attribute(f"{name}_as_tensor")
        return np.array(self.attribute(name, ()), np.float32) if tensor is None else tensor.numpy().ravel()

    def ints(self, name: str) -> np.ndarray:
        """Return a list of integers, empty if it is missing."""
        return np.array(self.attribute(name, ()), np.int64)

    def labels(self, ints: str) -> np.ndarray:
        """Return the class labels, strings or integers."""
        strings = self.attribute("classlabels_strings", ())
        return np.array(list(strings), dtype=object) if strings else self.ints(ints)

    @property
    def number_type(self) -> type[np.float32 | np.float64]:
        """The type in which the node computes: float32, but for a TreeEnsemble of float64."""
        double = self.node.op_type == "TreeEnsemble" and self.node.inputs[0].dtype is ir.DataType.DOUBLE  # type: ignore[union-attr]
        return np.float64 if double else np.float32

    def parameter(self, role: str, array: np.ndarray, places: np.ndarray | None = None) -> ir.Value:
        """Return a new initializer for numbers that may be trained."""
        array = np.ascontiguousarray(array, self.number_type)
        name = f"{self.stem}.{role}"
        self.roles.append(Role(name, operator(self.node), self.node.name or "", role, array.shape, places))
        return self.op.parameter(name, array)

    def input(self, index: int = 0) -> ir.Value:
        """Return a required input."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return self.refuse(f"its input {index} is missing") if value is None else value

    def float_input(self, index: int = 0) -> ir.Value:
        """Return an input as float32."""
        value = self.input(index)
        return value if value.dtype is ir.DataType.FLOAT else self.op.Cast(value, to=FLOAT)

    def matrix(self, index: int = 0) -> ir.Value:
        """Return an input as float32, with one row per sample and one column per feature."""
        self.need_rank(self.input(index), 2)
        return self.float_input(index)

    def need_rank(self, value: ir.Value, rank: int) -> None:
        """Refuse a value that is known to have another rank."""
        if value.shape is not None and len(value.shape) != rank:
            self.refuse(f"its input {value.name!r} has {len(value.shape)} axes instead of {rank}")

    def rank(self, value: ir.Value) -> int:
        """Return the rank of a value."""
        shape = self._shape(value)
        if shape is None:
            self.refuse(f"the number of axes of its input {value.name!r} is not known")
        return len(shape)

    def columns(self, index: int = 0) -> int | None:
        """Return the number of features, None if it is not known."""
        last = (self._shape(self.input(index)) or [None])[-1]
        return last if isinstance(last, int) else None

    def _shape(self, value: ir.Value) -> Sequence[int | str | None] | None:
        """Return a shape, inferred again if nodes upstream were rewritten."""
        if value.shape is None:
            self.op.graph.sort()
        return self.op.shape(value)

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names the node, the reason and the remedy."""
        raise UnsupportedOperatorError(
            f"Node {self.node.name!r} ({operator(self.node)}) has no form that can be trained: {reason}. Train an "
            f"output before it, or convert the model with another setting of this step."
        )


def operator(node: ir.Node) -> str:
    """Return the operator type with its domain as a prefix."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
