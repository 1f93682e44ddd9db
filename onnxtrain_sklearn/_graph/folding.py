"""Shapes that a graph computes itself: what Shape, Gather, Concat and their like give is followed through the graph.

ONNX's inference stops where a shape comes from such a chain, and with it every rank behind. Here the integers of a
chain are computed as far as they are known, each a number, the name of a dimension or None; the outputs behind them get
their shapes, and :func:`fold` puts constants where all numbers are known. Floats are not computed, and no graph is run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx.defs
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir

from .builder import GraphBuilder
from .shapes import infer_shapes

Size: TypeAlias = "int | str | None"
"""A number, a name, or nothing that is known."""

Known: TypeAlias = "dict[ir.Value, np.ndarray]"
"""Integers and booleans of a value, in arrays of objects."""

MOST = 4096
"""Longer arrays of integers are data, not shapes."""

_WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


def complete_shapes(model: ir.Model) -> ir.Model:
    """Infer types and shapes, in place, those behind computed shapes too."""
    infer_shapes(model)
    if _computes_shapes(model.graph):
        _follow(model)
    return model


def fold(model: ir.Model) -> ir.Model:
    """As :func:`complete_shapes`, and put constants where a graph computes integers that are always the same."""
    infer_shapes(model)
    if _computes_shapes(model.graph) and _put_constants(model.graph, _follow(model)):
        infer_shapes(model)
    return model


def _computes_shapes(graph: ir.Graph) -> bool:
    return any(node.op_type in ("Shape", "Size") and not node.domain for node in graph)


def _follow(model: ir.Model) -> Known:
    """Go through the main graph once, in order; fill in shapes that are missing, and return what is known."""
    follower = Follower(model)
    for node in model.graph:
        follower.visit(node)
    return follower.known


class Follower:
    """What is known of the integers of a model, node by node in their order."""

    def __init__(self, model: ir.Model) -> None:
        self.known: Known = {}
        self._model = model
        for value in model.graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                _note(self.known, value, value.const_value)

    def visit(self, node: ir.Node) -> None:
        """Fill in the shapes and types of a node's outputs that are missing, and compute its integers."""
        if any(v.shape is None or v.dtype is None for v in node.outputs if v.name):
            _infer_node(self._model, node, self.known)
        if not node.domain and len(node.outputs) == 1:
            _evaluate(node, self.known)


def _note(known: Known, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    if tensor.dtype in _WHOLE and tensor.size <= MOST:
        known[value] = tensor.numpy().astype(object)


def _put_constants(graph: ir.Graph, known: Known) -> bool:
    """Replace what is known in full where something else reads it; nodes that nothing reads then are removed."""
    op = GraphBuilder(graph, prefix="folded", constant_nodes=True)
    made = {v: known[v] for node in graph if node.op_type != "Constant" and (v := node.outputs[0]) in known}
    whole = {v: array for v, array in made.items() if _complete(array) and not v.is_graph_output()}
    ends = [v for v in whole if any(not whole.keys() >= set(user.outputs) for user, _ in v.uses())]
    for value in ends:
        assert value.dtype is not None
        value.replace_all_uses_with(op.constant(whole[value].astype(value.dtype.numpy())))
    if ends:
        graph.sort()
        for node in reversed(list(graph)):
            if node.outputs[0] in known and not any(v.uses() or v.is_graph_output() for v in node.outputs):
                graph.remove(node, safe=True)
    return bool(ends)


def _complete(array: np.ndarray) -> bool:
    return all(isinstance(x, int | bool | np.integer | np.bool_) for x in array.ravel())


def _infer_node(model: ir.Model, node: ir.Node, known: Known) -> None:
    """Infer the outputs of one node from its inputs; what cannot be inferred stays as it is."""
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return
    inputs = [v for v in node.inputs if v is not None]
    found = {} if any(v.type is None for v in inputs) else _inferred(model, node, inputs, known)
    for value in node.outputs:
        if value.name in found and found[value.name].HasField("tensor_type"):
            value.type = value.type or ir.serde.deserialize_type_proto_for_type(found[value.name])
            shape = ir.serde.deserialize_type_proto_for_shape(found[value.name])
            value.shape = shape if value.shape is None else value.shape
    if node.op_type in _SHAPED and not node.domain:
        _shape_by_known(node, known)


def _inferred(model: ir.Model, node: ir.Node, inputs: Sequence[ir.Value], known: Known) -> dict[str, Any]:
    """Return what ONNX infers for the outputs of a node, by name; nothing where it fails."""
    version = model.graph.opset_imports.get(node.domain, 0)
    try:
        return onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, version, node.domain),
            ir.serde.serialize_node(node),
            {v.name or "": ir.serde.serialize_value(v).type for v in inputs},
            {v.name or "": _proto(v, known[v]) for v in inputs if v in known and _complete(known[v])},
            opset_imports=[onnx.helper.make_opsetid(d, n) for d, n in model.graph.opset_imports.items()],
        )
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError):
        return {}


def _proto(value: ir.Value, array: np.ndarray) -> Any:
    assert value.dtype is not None
    return ir.serde.serialize_tensor(ir.tensor(array.astype(value.dtype.numpy()), name=value.name))


def _shape_by_known(node: ir.Node, known: Known) -> None:
    """Give the output the shape that an input tells, where names are among its sizes."""
    wanted = known.get(_input(node, _SHAPED[node.op_type]))  # type: ignore[arg-type]
    if wanted is None or wanted.ndim != 1:
        return
    sizes: list[Size] | None = list(wanted)
    if node.op_type == "Reshape":
        sizes = _reshaped(_sizes(node.inputs[0]), wanted, _attribute(node, "allowzero", 0))
    elif node.op_type == "Expand":
        sizes = _expanded(_sizes(node.inputs[0]), list(wanted))
    if sizes is not None:
        node.outputs[0].shape = ir.Shape(sizes)


_SHAPED = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose output has the shape that an input holds: its position."""


def _reshaped(given: list[Size] | None, wanted: np.ndarray, allowzero: int) -> list[Size]:
    """Return the sizes of Reshape's output: 0 keeps a size, -1 is what remains."""
    sizes = list(wanted)
    for i, size in enumerate(sizes):
        if size == 0 and not allowzero:
            sizes[i] = given[i] if given is not None and i < len(given) else None
    if -1 in sizes:
        sizes[sizes.index(-1)] = _remaining(given, [d for d in sizes if d != -1])
    return sizes


def _remaining(given: list[Size] | None, others: list[Size]) -> int | str | None:
    """Return the size that is left of ``given`` beside ``others``; equal names cancel each other out."""
    if given is None or None in given or None in others:
        return None
    names = Counter(d for d in given if isinstance(d, str))
    names.subtract(d for d in others if isinstance(d, str))
    if any(names.values()):
        only = [name for name, count in names.items() if count]
        numbers = _product(given) == _product(others)
        return only[0] if numbers and len(only) == 1 and names[only[0]] == 1 else None
    rest = _product(others)
    return _product(given) // rest if rest else None


def _product(sizes: Sequence[Size]) -> int:
    return math.prod(d for d in sizes if d is not None and not isinstance(d, str))


def _expanded(given: list[Size] | None, wanted: list[Size]) -> list[Size] | None:
    if given is None:
        return None
    rank = max(len(given), len(wanted))
    pairs = zip([1] * (rank - len(given)) + given, [1] * (rank - len(wanted)) + wanted, strict=True)
    return [b if a == 1 else a if b in (1, a) or isinstance(a, int) else None for a, b in pairs]


def _sizes(value: ir.Value | None) -> list[Size] | None:
    """Return numbers, names and None; names that inference invented are not the same everywhere."""
    if value is None or value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    return [None if isinstance(d, str) and d.startswith("unk__") else d for d in sizes]


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _attribute(node: ir.Node, name: str, default: object) -> Any:
    return node.attributes[name].value if name in node.attributes else default


def _evaluate(node: ir.Node, known: Known) -> None:
    """Compute the integers of a node's output, as far as they are known."""
    value, function = node.outputs[0], _FUNCTIONS.get(node.op_type)
    if function is None or value.dtype not in _WHOLE:
        return
    if node.op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            _note(known, value, tensor)
        return
    needed = [x for x in node.inputs if x is not None]
    if node.op_type not in ("Shape", "Size") and any(x not in known for x in needed):
        return
    try:
        array = function(node, [None if x is None else known.get(x) for x in node.inputs])
    except (IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return  # a chain that does not hold together is left to the runtime, which says what is wrong
    if array is not None and array.size <= MOST and _fits(array, value.dtype):
        known[value] = array


def _fits(array: np.ndarray, dtype: ir.DataType) -> bool:
    """Whether no number runs over: what a runtime then computes is not what is computed here."""
    if dtype is ir.DataType.BOOL:
        return True
    bounds = np.iinfo(dtype.numpy())
    return all(bounds.min <= x <= bounds.max for x in array.ravel() if isinstance(x, int))


def _require_few(*shapes: tuple[int, ...]) -> None:
    """Refuse to compute what would be longer than a shape, before it is there."""
    if math.prod(np.broadcast_shapes(*shapes)) > MOST:
        raise ValueError


Arrays: TypeAlias = "Sequence[Any]"


def _shape(node: ir.Node, _: Arrays) -> np.ndarray | None:
    sizes = _sizes(node.inputs[0])
    if sizes is None:
        return None
    return _objects(sizes[slice(_attribute(node, "start", None), _attribute(node, "end", None))])


def _size(node: ir.Node, _: Arrays) -> np.ndarray | None:
    sizes = _sizes(node.inputs[0])
    if sizes is None or not all(isinstance(d, int) for d in sizes):
        return None
    return np.array(_product(sizes), object)


def _objects(items: Sequence[object]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _elementwise(function: Callable[..., object]) -> Callable[[ir.Node, Arrays], np.ndarray]:
    """Return the operator on elements, None where one of them is not a number."""

    def one(*elements: object) -> object:
        return None if any(e is None or isinstance(e, str) for e in elements) else function(*elements)

    def apply(node: ir.Node, arrays: Arrays) -> np.ndarray:
        _require_few(*(a.shape for a in arrays))
        return np.asarray(np.frompyfunc(one, len(arrays), 1)(*arrays), object)

    return apply


def _product_of(a: Size, b: Size) -> Size:
    """Multiply; a name times one is that name."""
    if isinstance(a, str) or isinstance(b, str):
        return a if b == 1 else b if a == 1 else None
    return None if a is None or b is None else a * b


def _multiply(node: ir.Node, arrays: Arrays) -> np.ndarray:
    _require_few(*(a.shape for a in arrays))
    return np.asarray(np.frompyfunc(_product_of, 2, 1)(*arrays), object)


def _quotient(a: int, b: int) -> int:
    """Integers are divided towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(node: ir.Node, arrays: Arrays) -> np.ndarray:
    fmod = _attribute(node, "fmod", 0)
    function = (lambda a, b: a - b * _quotient(a, b)) if fmod else (lambda a, b: a % b)
    return _elementwise(function)(node, arrays)


def _gather(node: ir.Node, arrays: Arrays) -> np.ndarray:
    _require_few((arrays[0].size * arrays[1].size,))
    return np.asarray(np.take(arrays[0], arrays[1].astype(np.int64), axis=_attribute(node, "axis", 0)), object)


def _concat(node: ir.Node, arrays: Arrays) -> np.ndarray:
    return np.asarray(np.concatenate(arrays, axis=_attribute(node, "axis", 0)))


def _axes(node: ir.Node, arrays: Arrays) -> tuple[int, ...] | None:
    axes = arrays[1] if len(arrays) > 1 and arrays[1] is not None else _attribute(node, "axes", None)
    return None if axes is None else tuple(int(a) for a in np.ravel(axes))


def _unsqueeze(node: ir.Node, arrays: Arrays) -> np.ndarray:
    return np.asarray(np.expand_dims(arrays[0], _axes(node, arrays) or ()))


def _squeeze(node: ir.Node, arrays: Arrays) -> np.ndarray:
    return np.asarray(np.squeeze(arrays[0], _axes(node, arrays)), object)


def _slice(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, starts, ends, *more = arrays
    axes = more[0] if more and more[0] is not None else range(len(starts))
    steps = more[1] if len(more) > 1 and more[1] is not None else [1] * len(starts)
    where = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        backwards_to_front = step < 0 and end < -x.shape[axis]
        where[axis] = slice(int(start), None if backwards_to_front else int(end), int(step))
    return np.asarray(x[tuple(where)])


def _reshape(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, shape = arrays
    sizes = [x.shape[i] if d == 0 and not _attribute(node, "allowzero", 0) else int(d) for i, d in enumerate(shape)]
    return np.asarray(x.reshape(sizes))


def _filled(node: ir.Node, arrays: Arrays) -> np.ndarray:
    tensor = _attribute(node, "value", None)
    assert tensor is not None  # of floats, by default
    shape = tuple(int(d) for d in arrays[0])
    _require_few(shape)
    return np.full(shape, tensor.numpy().ravel()[0].item(), object)


def _expand(node: ir.Node, arrays: Arrays) -> np.ndarray:
    x, shape = arrays[0], tuple(int(d) for d in arrays[1])
    _require_few(x.shape, shape)
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)))


def _range(node: ir.Node, arrays: Arrays) -> np.ndarray:
    start, limit, delta = (int(a.item()) for a in arrays)
    numbers = range(start, limit, delta)
    _require_few((len(numbers),))
    return _objects(numbers)


def _reduce_product(node: ir.Node, arrays: Arrays) -> np.ndarray:
    axes = _axes(node, arrays)
    if axes is None and _attribute(node, "noop_with_empty_axes", 0):
        return _same(node, arrays)
    if not _complete(arrays[0]):
        raise TypeError
    return np.asarray(arrays[0].prod(axis=axes, keepdims=bool(_attribute(node, "keepdims", 1))), object)


def _same(node: ir.Node, arrays: Arrays) -> np.ndarray:
    return np.asarray(arrays[0])


def _cast(node: ir.Node, arrays: Arrays) -> np.ndarray:
    to = ir.DataType(_attribute(node, "to", 0))
    return _elementwise(bool if to is ir.DataType.BOOL else int)(node, arrays) if not _named(arrays[0]) else arrays[0]


def _named(array: np.ndarray) -> bool:
    return any(isinstance(x, str) for x in array.ravel())


def _where(node: ir.Node, arrays: Arrays) -> np.ndarray:
    """Choose by a condition that is known; the element that is not taken need not be."""

    def one(condition: object, a: object, b: object) -> object:
        return None if condition is None else a if condition else b

    _require_few(*(a.shape for a in arrays))
    return np.asarray(np.frompyfunc(one, 3, 1)(*arrays), object)


_FUNCTIONS: dict[str, Callable[[ir.Node, Arrays], np.ndarray | None]] = {
    "Abs": _elementwise(abs),
    "Add": _elementwise(lambda a, b: a + b),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _same,
    "ConstantOfShape": _filled,
    "Div": _elementwise(_quotient),
    "Equal": _elementwise(lambda a, b: bool(a == b)),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _elementwise(lambda a, b: bool(a > b)),
    "GreaterOrEqual": _elementwise(lambda a, b: bool(a >= b)),
    "Identity": _same,
    "Less": _elementwise(lambda a, b: bool(a < b)),
    "LessOrEqual": _elementwise(lambda a, b: bool(a <= b)),
    "Max": _elementwise(max),
    "Min": _elementwise(min),
    "Mod": _remainder,
    "Mul": _multiply,
    "Neg": _elementwise(lambda a: -a),
    "Not": _elementwise(lambda a: not a),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Range": _range,
    "ReduceProd": _reduce_product,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(lambda a, b: a - b),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
