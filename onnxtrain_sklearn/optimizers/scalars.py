"""The scalars of a step: arithmetic that computes floats in training, and emits operators in exported graphs.

:meth:`~onnxtrain_sklearn.optimizers.Optimizer.scalars` is the only statement of the arithmetic. Training calls it with
floats. The export of training graphs, which run without Python, calls it with :class:`Scalar` objects, whose arithmetic
emits nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError
from ..graph import GraphBuilder

Number: TypeAlias = "float | Scalar"
"""A scalar of a step: a float in training, a :class:`Scalar` in an exported graph."""


class Scalar:
    """A number that a training graph computes: ``+ - * / **`` and comparisons emit operators.

    Parameters
    ----------
    op : GraphBuilder
        The builder that emits the nodes, with constants of the type of the number.
    value : onnx_ir.Value
        A scalar of that type.
    """

    __hash__ = None  # type: ignore[assignment]  # == emits a node

    def __init__(self, op: GraphBuilder, value: ir.Value) -> None:
        self.op, self.value = op, value

    def emit(self, operator: str, *operands: Number) -> Scalar:
        """Return the result of an operator."""
        # Convert Python's integers to floats: Pow(2, t) would be an integer.
        values = [x.value if isinstance(x, Scalar) else float(x) for x in operands]
        return Scalar(self.op, self.op.emit(operator, *values)[0])

    def __add__(self, other: Number) -> Scalar:
        return self.emit("Add", self, other)

    def __sub__(self, other: Number) -> Scalar:
        return self.emit("Sub", self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return self.emit("Sub", other, self)

    def __mul__(self, other: Number) -> Scalar:
        return self.emit("Mul", self, other)

    def __truediv__(self, other: Number) -> Scalar:
        return self.emit("Div", self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.emit("Div", other, self)

    def __pow__(self, other: Number) -> Scalar:
        return self.emit("Pow", self, other)

    def __rpow__(self, other: Number) -> Scalar:
        return self.emit("Pow", other, self)

    def __neg__(self) -> Scalar:
        return self.emit("Neg", self)

    def __eq__(self, other: object) -> Any:
        return self.emit("Equal", self, other)  # type: ignore[arg-type]

    def __lt__(self, other: Number) -> Any:
        return self.emit("Less", self, other)

    def __le__(self, other: Number) -> Any:
        return self.emit("LessOrEqual", self, other)

    def __gt__(self, other: Number) -> Any:
        return self.emit("Greater", self, other)

    def __ge__(self, other: Number) -> Any:
        return self.emit("GreaterOrEqual", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        raise TypeError("a condition on the number of the step has no value yet: take where(condition, x, y)")

    def __float__(self) -> float:
        raise TypeError("a scalar of an exported graph has no value yet: leave out float(), int() and math functions")


def sqrt(x: Number) -> Any:
    """Return the square root of a scalar of a step."""
    return x.emit("Sqrt", x) if isinstance(x, Scalar) else math.sqrt(x)


def minimum(x: Number, y: Number) -> Any:
    """Return the smaller of two scalars of a step."""
    return _known(min, "Min", x, y)


def maximum(x: Number, y: Number) -> Any:
    """Return the greater of two scalars of a step."""
    return _known(max, "Max", x, y)


def where(condition: Any, x: Number, y: Number) -> Any:
    """Return ``x`` if the condition holds, else ``y``: the form of ``if`` for scalars of a step."""
    if isinstance(condition, Scalar):
        return condition.emit("Where", condition, x, y)
    return x if condition else y


def _known(function: Callable[[Any, Any], Any], operator: str, x: Number, y: Number) -> Any:
    scalar = next((one for one in (x, y) if isinstance(one, Scalar)), None)
    return function(x, y) if scalar is None else scalar.emit(operator, x, y)


def emit_scalars(
    op: GraphBuilder, author: str, scalars: Callable[..., Mapping[str, Number]], *given: ir.Value, dtype: ir.DataType
) -> dict[str, ir.Value]:
    """Emit the scalars of a step, integers as int64 and the others in ``dtype``.

    Parameters
    ----------
    op : GraphBuilder
        The scalars are computed in the type of its constants.
    author : str
        The name of ``scalars`` in messages.
    scalars : callable
        The method of the optimizer.
    *given : onnx_ir.Value
        Its arguments, scalars of the type of the constants.
    """
    # Compute the scalars once with Python's numbers to find out which of them are integers.
    kinds = {name: isinstance(x, int) for name, x in scalars(0.001, 1, *(1.0 for _ in given[2:])).items()}
    try:
        found = scalars(*(Scalar(op, value) for value in given))
    except TypeError as error:
        raise ModelError(
            f"{author} computes scalars that cannot be exported: {error}. Compute them by arithmetic, and by sqrt, "
            f"minimum, maximum and where of onnxtrain_sklearn.optimizers."
        ) from error
    emitted = {}
    for name, x in found.items():
        value = x.value if isinstance(x, Scalar) else op.constant(np.array(x, np.float64).astype(op.dtype.numpy()))
        emitted[name] = op.Cast(value, to=ir.DataType.INT64 if kinds[name] else dtype)
    return emitted
