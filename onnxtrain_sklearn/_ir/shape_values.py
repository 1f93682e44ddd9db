"""Evaluate integers that a graph computes from shapes, node by node, as far as they are known.

Exporters compute shapes by chains of Shape, Gather, Mul and Concat. :func:`evaluate` computes the numbers of one node
from those of its inputs, by the functions in the tables at the end; :func:`note_constant` enters those of a constant.
An element is a number, the name of a dimension, or None where it is unknown. Floats between the integers are computed
in their own type, and only by operations that IEEE 754 rounds exactly: the integers equal those of the runtime. No
graph is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .queries import attribute, dims

Dimension: TypeAlias = "int | str | None"
"""A number, the name of a dimension, or None if it is unknown."""


Integers: TypeAlias = "dict[ir.Value, np.ndarray]"
"""The known elements of values (integers, booleans, and floats in short arrays), in arrays of objects."""


MAX_ELEMENTS = 4096
"""Longer arrays of integers are data, not shapes."""


MAX_FLOATS = 16
"""Longer arrays of floats are data, not sizes or scales."""


WHOLE_TYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})

FLOAT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def product_of_known(sizes: Sequence[Dimension]) -> int:
    """Return the product of the sizes that are numbers."""
    return math.prod(d for d in sizes if d is not None and not isinstance(d, str))


def note_constant(known: Integers, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Enter the elements of a constant into ``known``: up to MAX_ELEMENTS integers, or up to MAX_FLOATS floats."""
    if tensor.dtype in WHOLE_TYPES and tensor.size <= MAX_ELEMENTS:
        known[value] = tensor.numpy().astype(object)
    elif tensor.dtype in FLOAT_TYPES and tensor.size <= MAX_FLOATS:
        known[value] = _object_array(list(tensor.numpy().ravel())).reshape(tuple(tensor.shape))


def is_complete(array: np.ndarray) -> bool:
    """Return True if every element is a number."""
    return all(isinstance(x, int | bool | np.integer | np.bool_ | np.floating) for x in array.ravel())


def evaluate(node: ir.Node, known: Integers) -> None:
    """Compute the output of a node and enter it into ``known``, if its inputs are known."""
    value, function = node.outputs[0], None
    if value.dtype in WHOLE_TYPES:
        function = _EVALUATORS.get(node.op_type)
    elif value.dtype in FLOAT_TYPES:
        function = _FLOAT_ARITHMETIC.get(node.op_type) or _EVALUATORS.get(
            node.op_type if node.op_type in _EXACT else ""
        )
    if function is None:
        return
    if node.op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            note_constant(known, value, tensor)
        return
    needed = node.inputs[:1] if node.op_type == "CastLike" else [x for x in node.inputs if x is not None]
    if node.op_type not in ("Shape", "Size") and any(x not in known for x in needed):
        return
    try:
        with np.errstate(all="raise"):
            array = function(node, [None if x is None else known.get(x) for x in node.inputs])
    except (ArithmeticError, IndexError, TypeError, ValueError):
        return  # the chain is not valid; the runtime will report the error
    if (
        array is None
        or value.dtype is None
        or array.size > (MAX_FLOATS if value.dtype in FLOAT_TYPES else MAX_ELEMENTS)
    ):
        return
    # Refuse results that overflow in onnxruntime, since Python's integers do not overflow.
    if value.dtype in (ir.DataType.INT32, ir.DataType.INT64):
        bounds = np.iinfo(value.dtype.numpy())
        if not all(bounds.min <= x <= bounds.max for x in array.ravel() if isinstance(x, int)):
            return
    known[value] = array


def _require_short(*shapes: tuple[int, ...]) -> None:
    """Raise before an array is computed that is longer than any shape."""
    if math.prod(np.broadcast_shapes(*shapes)) > MAX_ELEMENTS:
        raise ValueError


Arrays: TypeAlias = "Sequence[Any]"


def _evaluate_shape(node: ir.Node, _: Arrays) -> np.ndarray | None:
    sizes = dims(node.inputs[0])
    if sizes is None:
        return None
    return _object_array(sizes[slice(attribute(node, "start", None), attribute(node, "end", None))])


def _evaluate_size(node: ir.Node, _: Arrays) -> np.ndarray | None:
    sizes = dims(node.inputs[0])
    if sizes is None or not all(isinstance(d, int) for d in sizes):
        return None
    return np.array(product_of_known(sizes), object)


def _object_array(items: Sequence[object]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _by_element(function: Callable[..., object]) -> Callable[[ir.Node, Arrays], np.ndarray]:
    """Return a rule that applies ``function`` to elements, broadcast as by the operator."""

    def apply(node: ir.Node, arrays: Arrays) -> np.ndarray:
        _require_short(*(a.shape for a in arrays))
        return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)

    return apply


def _elementwise(function: Callable[..., object]) -> Callable[[ir.Node, Arrays], np.ndarray]:
    """Return a rule that applies ``function`` to numbers; the result is None if an element is not a number."""

    def one(*elements: object) -> object:
        return None if any(e is None or isinstance(e, str) for e in elements) else function(*elements)

    return _by_element(one)


def _product_of_sizes(a: Dimension, b: Dimension) -> Dimension:
    """Multiply sizes; a name times one is that name."""
    if isinstance(a, str) or isinstance(b, str):
        return a if b == 1 else b if a == 1 else None
    return None if a is None or b is None else a * b


def _choice(condition: object, a: object, b: object) -> object:
    """Return ``a`` or ``b`` by a known condition; the element that is not chosen may be unknown."""
    return None if condition is None else a if condition else b


def _quotient(a: int, b: int) -> int:
    """Divide integers, rounding towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _evaluate_remainder(node: ir.Node, arrays: Arrays) -> np.ndarray:
    fmod = attribute(node, "fmod", 0)
    function = (lambda a, b: a - b * _quotient(a, b)) if fmod else (lambda a, b: a % b)
    return _elementwise(function)(node, arrays)


def _evaluate_gather(node: ir.Node, arrays: Arrays) -> np.ndarray:
    _require_short((arrays[0].size * arrays[1].size,))
    return np.asarray(np.take(arrays[0], arrays[1].astype(np.int64), axis=attribute(node, "axis", 0)), object)


def _constant_axes(node: ir.Node, arrays: Arrays) -> tuple[int, ...] | None:
    axes = arrays[1] if len(arrays) > 1 and arrays[1] is not None else attribute(node, "axes", None)
    return None if axes is None else tuple(int(a) for a in np.ravel(axes))


def _evaluate_slice(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, starts, ends, *more = arrays
    axes = more[0] if more and more[0] is not None else range(len(starts))
    steps = more[1] if len(more) > 1 and more[1] is not None else [1] * len(starts)
    where = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # An end before the first element (such as the lowest integer) includes that element. Python needs None instead.
        backwards_to_front = step < 0 and end < -x.shape[axis]
        where[axis] = slice(int(start), None if backwards_to_front else int(end), int(step))
    return np.asarray(x[tuple(where)])


def _evaluate_reshape(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, shape = arrays
    sizes = [x.shape[i] if d == 0 and not attribute(node, "allowzero", 0) else int(d) for i, d in enumerate(shape)]
    return np.asarray(x.reshape(sizes))


def _evaluate_constant_of_shape(node: ir.Node, arrays: Arrays) -> np.ndarray:
    tensor = attribute(node, "value", None)
    assert tensor is not None  # without a value, ConstantOfShape gives floats, which are not followed
    shape = tuple(int(d) for d in arrays[0])
    _require_short(shape)
    return np.full(shape, tensor.numpy().ravel()[0].item(), object)


def _evaluate_expand(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, shape = arrays[0], tuple(int(d) for d in arrays[1])
    _require_short(x.shape, shape)
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)))


def _evaluate_range(node: ir.Node, arrays: Arrays) -> np.ndarray:
    start, limit, delta = (int(a.item()) for a in arrays)
    numbers = range(start, limit, delta)
    _require_short((len(numbers),))
    return _object_array(numbers)


def _evaluate_reduce_product(node: ir.Node, arrays: Arrays) -> np.ndarray:
    axes = _constant_axes(node, arrays)
    if axes is None and attribute(node, "noop_with_empty_axes", 0):
        return _evaluate_identity(node, arrays)
    if not is_complete(arrays[0]):
        raise TypeError
    return np.asarray(arrays[0].prod(axis=axes, keepdims=bool(attribute(node, "keepdims", 1))), object)


def _evaluate_identity(node: ir.Node, arrays: Arrays) -> np.ndarray:
    return np.asarray(arrays[0])


def _evaluate_cast(node: ir.Node, arrays: Arrays) -> np.ndarray:
    to = node.outputs[0].dtype
    if to in FLOAT_TYPES:
        return _elementwise(to.numpy().type)(node, arrays[:1])
    if any(isinstance(x, str) for x in arrays[0].ravel()):  # a cast leaves names of dimensions unchanged
        return np.asarray(arrays[0])
    return _elementwise(bool if to is ir.DataType.BOOL else int)(node, arrays[:1])


_EVALUATORS: dict[str, Callable[[ir.Node, Arrays], np.ndarray | None]] = {
    "Abs": _elementwise(abs),
    "Add": _elementwise(lambda a, b: a + b),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Cast": _evaluate_cast,
    "CastLike": _evaluate_cast,
    "Concat": lambda node, arrays: np.asarray(np.concatenate(arrays, axis=attribute(node, "axis", 0))),
    "Constant": _evaluate_identity,
    "ConstantOfShape": _evaluate_constant_of_shape,
    "Div": _elementwise(_quotient),
    "Equal": _elementwise(lambda a, b: bool(a == b)),
    "Expand": _evaluate_expand,
    "Gather": _evaluate_gather,
    "Greater": _elementwise(lambda a, b: bool(a > b)),
    "GreaterOrEqual": _elementwise(lambda a, b: bool(a >= b)),
    "Identity": _evaluate_identity,
    "Less": _elementwise(lambda a, b: bool(a < b)),
    "LessOrEqual": _elementwise(lambda a, b: bool(a <= b)),
    "Max": _elementwise(max),
    "Min": _elementwise(min),
    "Mod": _evaluate_remainder,
    "Mul": _by_element(_product_of_sizes),
    "Neg": _elementwise(lambda a: -a),
    "Not": _elementwise(lambda a: not a),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Range": _evaluate_range,
    "ReduceProd": _evaluate_reduce_product,
    "Reshape": _evaluate_reshape,
    "Shape": _evaluate_shape,
    "Size": _evaluate_size,
    "Slice": _evaluate_slice,
    "Squeeze": lambda node, arrays: np.asarray(np.squeeze(arrays[0], _constant_axes(node, arrays)), object),
    "Sub": _elementwise(lambda a, b: a - b),
    "Transpose": lambda node, arrays: np.asarray(np.transpose(arrays[0], attribute(node, "perm", None))),
    "Unsqueeze": lambda node, arrays: np.asarray(np.expand_dims(arrays[0], _constant_axes(node, arrays) or ())),
    "Where": _by_element(_choice),
}

_FLOAT_ARITHMETIC: dict[str, Callable[[ir.Node, Arrays], np.ndarray]] = {
    "Ceil": _elementwise(np.ceil),
    "Div": _elementwise(lambda a, b: a / b),
    "Floor": _elementwise(np.floor),
    "Mul": _elementwise(lambda a, b: a * b),
    "Sqrt": _elementwise(np.sqrt),
}
"""Operators with other rules for floats than for integers."""

_EXACT = frozenset(
    "Abs Add Cast CastLike Concat Constant Gather Identity Neg Reshape Slice Squeeze Sub Unsqueeze Where".split()
)
"""Operators with the same rules for floats and for integers."""
