"""The emitter of ONNX operators, :class:`GraphBuilder`, for losses, optimizers and builders of networks.

Losses and optimizers receive a GraphBuilder as ``op``. A builder of networks, an object with a method ``build`` such as
:class:`.MLP`, makes one for its own graph. Values are :class:`onnx_ir.Value`; an :data:`Operand` is anything that an
operator accepts. :func:`stop_gradient` makes the gradient treat a value as a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx.defs
import onnx_ir as ir

from ._ir.queries import graphs_in
from ._ir.shapes import infer_shapes
from .exceptions import ModelError, OnnxTrainError

__all__ = ["GraphBuilder", "Operand", "stop_gradient"]


# Emission of nodes: a thin layer over :class:`onnx_ir.tape.Tape`.
#
# Every node and value gets a unique name (an unnamed node crashes some of onnxruntime's fusions), equal constants are
# shared, and operators are called in one form for all opsets: a keyword becomes an input or an attribute, as the schema
# of the graph's opset requires (``axes`` changed from attribute to input between opsets 13 and 18). Nothing here runs
# or differentiates a graph.


Operand: TypeAlias = "ir.Value | np.ndarray | float | int | bool | Sequence[int] | Sequence[float] | None"
Setting: TypeAlias = "Operand | str | Sequence[str] | ir.TensorProtocol | ir.Graph"
"""A keyword argument of an emitted operator: an attribute, or an input by its name."""

_SINGLE_TYPES = {"tensor(int64)": ir.DataType.INT64, "tensor(bool)": ir.DataType.BOOL}
"""Types that schemas name for an output itself, or as the only type of a type parameter: its element type is known."""


PYTHON = (
    "values of a graph have no operators of Python. Call methods of op: op.Sub(a, b) for a - b; op.Add, op.Mul, "
    "op.Div, op.MatMul and op.Pow for +, *, /, @ and **; op.Neg(a) and op.Abs(a); op.Greater(a, b) and op.Less(a, b) "
    "for comparisons, whose result op.Where takes"
)

_ON_VALUES = re.compile(r"magic handler|'Value'")
"""Matches errors of onnx_ir and Python for an operator, a function or an attribute that values lack."""


@contextmanager
def operators_of(author: str) -> Iterator[None]:
    """Replace the error for a Python operator applied to a value by a ModelError that names the method of ``op``.

    ``author`` names the code in the message, such as a builder or a loss.
    """
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, OnnxTrainError) or not _ON_VALUES.search(str(error)):
            raise
        raise ModelError(f"{author}: {PYTHON}. ({error})") from error


class GraphBuilder:
    """Emit operators into one graph: ``op.Add(x, 1.0)`` appends an ``Add`` and returns its output.

    Parameters
    ----------
    graph : onnx_ir.Graph
        The graph to which nodes are appended. Its opset determines the form of the operators.
    dtype : onnx_ir.DataType, default=FLOAT
        Type of the constants made from Python floats.
    prefix : str, default="train"
        Start of the names of all nodes, values and constants that are emitted.
    constant_nodes : bool, default=False
        Whether constants become ``Constant`` nodes instead of initializers, which could be mistaken for weights.
    shared : bool, default=False
        Whether to reuse an equal node that was emitted before, instead of appending a second one.

    Attributes
    ----------
    graph, dtype
        The arguments. The ``dtype`` may be changed between two operators.
    opset : int
        Version of ONNX's operators in the graph.

    Notes
    -----
    Operands are values of the graph, numpy arrays (whose type is kept) or Python numbers. A float becomes a constant
    of type ``dtype``. An int, or a list of ints, becomes a constant of the type of the operand with which it is
    combined (``op.Mul(x, 2)``), else int64. Attributes and optional inputs are keywords:
    ``op.ReduceSum(x, axes=[1], keepdims=False)``.

    Examples
    --------
    >>> import onnx_ir as ir
    >>> from onnxtrain_sklearn.graph import GraphBuilder
    >>> x = ir.val("X", ir.DataType.FLOAT, ("N", 4))
    >>> op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}))
    >>> length = op.Sqrt(op.ReduceSum(op.Mul(x, x), axes=[1]))
    >>> [node.op_type for node in op.graph]
    ['Mul', 'ReduceSum', 'Sqrt']
    >>> op.shape(length)
    ('N', 1)
    """

    def __init__(
        self,
        graph: ir.Graph,
        *,
        dtype: ir.DataType = ir.DataType.FLOAT,
        prefix: str = "train",
        constant_nodes: bool = False,
        shared: bool = False,
    ) -> None:
        self.graph = graph
        self.dtype = dtype
        self.opset: int = graph.opset_imports.get("", 0)
        self._prefix = prefix
        self._constant_nodes = constant_nodes
        # Keys hold the identities of operands and bodies. These stay here too, beside the results, because later edits
        # may let go of them, and another value could then get the identity of one of them.
        self._emitted: dict[tuple[object, ...], tuple[object, Sequence[ir.Value]]] | None = {} if shared else None
        self._tape = ir.tape.Tape(graph)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    @cached_property
    def taken(self) -> Names:
        """The names in the graph, collected when the first new name is needed, because most edits change nothing."""
        return names_of(self.graph)

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return lambda *inputs, **keywords: self.emit(op_type, *inputs, **keywords)[0]

    def emit(
        self, op_type: str, *inputs: Operand, domain: str = "", outputs: int = 1, **keywords: Setting
    ) -> Sequence[ir.Value]:
        """Append a node and return its outputs; it may have several outputs, or an operator of another domain."""
        keywords = {key: value for key, value in keywords.items() if value is not None}
        for operand in inputs:
            if isinstance(operand, bool):  # Python computes a == b for two values as False
                raise ModelError(
                    f"An operand of {op_type} is {operand} of Python, which a == b and a != b give for values of a "
                    f"graph: compare them by op.Equal(a, b). A constant is np.array({operand})."
                )
        types: dict[int, ir.DataType] = {}  # types of outputs that are known without inference
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
            values = [self.value(x) for x in inputs]
            attributes = dict[str, Any](keywords)
        else:
            # Keywords that are inputs in this opset become operands.
            signature = _signature_of(op_type, self.opset)
            operands = list(inputs)
            attributes = dict[str, Any](keywords)
            for key in [k for k in attributes if k in signature.inputs and k not in signature.attributes]:
                position = signature.inputs.index(key)
                operands += [None] * (position + 1 - len(operands))
                operands[position] = attributes.pop(key)
            if unknown := [key for key in attributes if key not in signature.attributes]:
                raise ModelError(f"{op_type} of opset {self.opset} has no attribute or input {unknown[0]!r}.")

            # The type parameter of each operand. All operands of a variadic input have the parameter of the input.
            kinds = signature.kinds + signature.kinds[-1:] * (len(operands) - len(signature.kinds))
            pairs = list(zip(kinds, operands, strict=False))
            values = [self.value(x, self._type_of_integer(x, kind, pairs)) for kind, x in pairs]
            types = signature.output_types(zip(kinds, values, strict=False), attributes)

        attributes = {key: int(a) if isinstance(a, bool) else a for key, a in attributes.items()}
        identity = () if self._emitted is None else (op_type, domain, outputs, *map(id, values), _hashable(attributes))
        if self._emitted is not None and identity in self._emitted:
            return self._emitted[identity][1]
        # Make attributes of integers here, because onnx_ir checks lists against its protocols, which takes 0.1 ms.
        typed = {
            key: ir.AttrInt64s(key, a)
            if isinstance(a, list | tuple) and a and all(type(one) is int for one in a)
            else a
            for key, a in attributes.items()
        }
        name = self.name(op_type)
        results = self._tape.op_multi_out(op_type, values, typed, num_outputs=outputs, domain=domain, name=name)
        for i, result in enumerate(results):
            result.name = name if outputs == 1 else f"{name}:{i}"
            if i in types:
                result.dtype = types[i]
        if self._emitted is not None:
            self._emitted[identity] = ((values, attributes), results)
        return results

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return the constant that holds ``array``; equal constants are shared."""
        array = np.asarray(array)
        if array.dtype.kind == "O":
            array = array.astype(str)  # the bytes of objects are addresses
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.name("constant")
            if array.dtype.kind == "U":
                texts = [str(text).encode() for text in array.ravel()]
                tensor: ir.TensorProtocol = ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
            else:
                # ir.Tensor skips the slow type checks of ir.tensor
                tensor = (ir.Tensor if array.dtype.kind in "fiub" else ir.tensor)(array, name=name)
            if self._constant_nodes:
                value = self._tape.op("Constant", [], {"value": tensor}, name=tensor.name)
                value.name, value.dtype, value.shape = tensor.name, tensor.dtype, ir.Shape(tensor.shape.numpy())
            else:
                value = self._tape.initializer(tensor)
            self._constants[key] = value
        return self._constants[key]

    def parameter(self, name: str, array: np.ndarray) -> ir.Value:
        """Return a new initializer named ``name`` for a weight; equal weights are not shared."""
        self.taken.add(name)
        return self._tape.initializer(ir.tensor(array, name=name))

    def value(self, operand: Operand, partner: ir.DataType | None = None) -> ir.Value | None:
        """Return ``operand`` as a value; a Python int becomes a constant of type ``partner``, if that is not None."""
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, np.ndarray | np.generic):
            return self.constant(np.asarray(operand))
        array = np.asarray(operand)
        if array.dtype.kind == "b":
            return self.constant(array)
        if array.dtype.kind == "f" and array.size:  # an empty list means no axes, or the shape of a scalar
            return self.constant(array.astype(self.dtype.numpy()))
        return self.constant(array.astype(np.int64 if partner is None else partner.numpy()))

    def shape(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
        """Return the inferred shape of ``value``, None if its rank is unknown."""
        if value.shape is None:
            infer_shapes(ir.Model(self.graph, ir_version=10))
        return None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)

    def body(self, stem: str) -> GraphBuilder:
        """Return a builder for a new body of an If, Loop or Scan, with constants as nodes and unique names."""
        graph = ir.Graph([], [], nodes=[], name=self.name(stem), opset_imports=dict(self.graph.opset_imports))
        inner = GraphBuilder(graph, dtype=self.dtype, prefix=self._prefix, constant_nodes=True)
        inner.taken = self.taken
        return inner

    def input(self, stem: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> ir.Value:
        """Add an input to the graph, under a new name; None is an unknown size."""
        value = ir.Value(name=self.name(stem), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        return value

    def name(self, stem: str) -> str:
        """Return a new unique name."""
        return self.taken.free(f"{self._prefix}/{stem}")

    def emitted(self, value: ir.Value) -> bool:
        """Return True if a node of this builder computes ``value``, so that it may be renamed."""
        node = value.producer()
        return node is not None and (node.name or "").startswith(f"{self._prefix}/")

    def _type_of_integer(self, x: Operand, kind: str, pairs: Sequence[tuple[str, Operand]]) -> ir.DataType | None:
        """Return the type for an int or a list of ints: the type of the operands that share its type parameter."""
        if x is None or isinstance(x, ir.Value | np.ndarray | np.generic) or np.asarray(x).dtype.kind != "i":
            return None
        values = [other for shared, other in pairs if shared == kind and isinstance(other, ir.Value)]
        if values and values[0].dtype is None:
            infer_shapes(ir.Model(self.graph, ir_version=10))
        return (values[0].dtype or self.dtype) if values else None


@dataclass(frozen=True)
class _OperatorSignature:
    """Names and types in the schema of an operator, cached because ONNX reads a schema slowly.

    ``kinds`` and ``outputs`` are the type parameters of inputs and outputs. ``mixed`` holds the type parameters of
    variadic inputs whose values may have different types. ``single`` maps a type parameter to its only type.
    """

    is_cast: bool
    inputs: tuple[str, ...]
    attributes: frozenset[str]
    kinds: tuple[str, ...]
    outputs: tuple[str, ...]
    mixed: frozenset[str]
    single: Mapping[str, ir.DataType]

    def output_types(
        self, inputs: Iterable[tuple[str, ir.Value | None]], attributes: Mapping[str, Any]
    ) -> dict[int, ir.DataType]:
        """Return the element type of each output, by position, if it is known without inference."""
        if self.is_cast:
            return {0: ir.DataType(attributes["to"])}
        typed = ((kind, x.dtype) for kind, x in inputs if x is not None)
        known = {kind: dtype for kind, dtype in typed if dtype is not None and kind not in self.mixed} | _SINGLE_TYPES
        known = {**self.single, **known}
        return {i: known[kind] for i, kind in enumerate(self.outputs) if kind in known}


@cache
def _signature_of(op_type: str, opset: int) -> _OperatorSignature:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        raise ModelError(f"ONNX has no operator {op_type!r} in opset {opset}, that of this graph.") from None
    limits = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    return _OperatorSignature(
        schema.name == "Cast",
        tuple(p.name for p in schema.inputs),
        frozenset(schema.attributes),
        tuple(p.type_str for p in schema.inputs),
        tuple(p.type_str for p in schema.outputs),
        frozenset(p.type_str for p in schema.inputs if not p.is_homogeneous),
        {kind: _SINGLE_TYPES[one[0]] for kind, one in limits.items() if len(one) == 1 and one[0] in _SINGLE_TYPES},
    )


def _hashable(attributes: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return attributes as a hashable key, which is equal for equal nodes."""
    found = []
    for name, attribute in sorted(attributes.items()):
        key = attribute
        if isinstance(attribute, int | float | str | list | tuple):
            pass  # tested first, because the protocol below takes 50 microseconds
        elif isinstance(attribute, ir.TensorProtocol):
            key = attribute.dtype, tuple(attribute.shape), attribute.numpy().tobytes()
        elif isinstance(attribute, np.ndarray):  # the repr of an array is shortened
            key = attribute.dtype, attribute.shape, attribute.tobytes()
        elif isinstance(attribute, ir.Graph):
            key = id(attribute)
        found.append((name, repr(key)))
    return tuple(found)


def new_graph(inputs: Sequence[ir.Value], dtype: ir.DataType, name: str) -> GraphBuilder:
    """Return a builder for a new graph of opset 18 with the given inputs; names of nodes start with ``name``."""
    graph = ir.Graph(list(inputs), [], nodes=[], opset_imports={"": 18}, name=name)
    return GraphBuilder(graph, dtype=dtype, prefix=name)


def length_along(op: GraphBuilder, value: ir.Value, axis: int) -> ir.Value:
    """Emit the size of an axis, as a vector of one element."""
    return op.Slice(op.Shape(value), [axis], [axis + 1], [0])


def positions_along(op: GraphBuilder, value: ir.Value, axis: int) -> ir.Value:
    """Emit the indices 0, 1, 2, ... of an axis."""
    return op.Range(np.array(0), op.Squeeze(length_along(op, value, axis), axes=[0]), np.array(1))


# Stop the gradient: insert a node that returns its operand, at which differentiation stops.
#
# The node is a Sum of one operand with a special name, because passes remove an Identity.


MARK_OF_STOP = "onnxtrain/stop_gradient"


def stop_gradient(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return a value equal to ``x`` that the gradient treats as a constant.

    Parameters
    ----------
    op : GraphBuilder
        The builder that emits into the graph of ``x``.
    x : onnx_ir.Value
        A value of floats.

    Returns
    -------
    onnx_ir.Value
        A value equal to ``x``, through which no gradient flows. The portable engine differentiates a graph with such a
        value.

    Examples
    --------
    The straight-through estimate: rounded numbers, with the gradient of the numbers before rounding.

    >>> import onnx_ir as ir
    >>> from onnxtrain_sklearn import gradient_graph
    >>> from onnxtrain_sklearn.graph import GraphBuilder, stop_gradient
    >>> x = ir.val("x", ir.DataType.FLOAT, (3,))
    >>> op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g"))
    >>> rounded = op.Add(x, stop_gradient(op, op.Sub(op.Round(x), x)))
    >>> loss = op.ReduceSum(op.Mul(rounded, rounded), keepdims=False)
    >>> loss.name, loss.dtype, loss.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    >>> op.graph.outputs.append(loss)
    >>> model = ir.to_proto(ir.Model(op.graph, ir_version=8))
    >>> import numpy as np, onnxruntime
    >>> gradients = gradient_graph(model, wrt=["x"], engine="portable").SerializeToString()
    >>> session = onnxruntime.InferenceSession(gradients)
    >>> session.run(["x_grad"], {"x": np.array([0.4, 0.6, 1.2], np.float32)})[0].tolist()
    [0.0, 2.0, 2.0]
    """
    found = op.emit("Sum", x)[0]
    node = found.producer()
    assert node is not None
    node.name = op.taken.free(MARK_OF_STOP)
    return copy_type(found, x)


def stops_gradient(node: ir.Node | None) -> bool:
    """Return True if :func:`stop_gradient` made a node."""
    return node is not None and node.op_type == "Sum" and (node.name or "").startswith(MARK_OF_STOP)


# Unique names of nodes and values, for GraphBuilder and the edits of graphs.
#
# onnx-ir's NameFixPass does not suffice: it gives names to omitted outputs, which are then no longer omitted, and may
# give a node of a subgraph the name of a node of the main graph.


class Names(set[str]):
    """A set of used names. It remembers the last number of each base name, so that numbering many nodes is fast."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._counts: dict[str, int] = {}

    def free(self, base: str, first: int = 1) -> str:
        """Take and return ``base`` if it is free, else the next free name of ``base_1``, ``base_2``, ..."""
        if base in self:
            return self.numbered(base, first)
        self.add(base)
        return base

    def numbered(self, base: str, first: int = 1) -> str:
        """Take and return the next free name of ``base_1``, ``base_2``, ...; ``first`` is the first number."""
        while True:
            count = self._counts.get(base, first)
            self._counts[base] = count + 1
            if f"{base}_{count}" not in self:
                self.add(f"{base}_{count}")
                return f"{base}_{count}"


def names_of(graph: ir.Graph) -> Names:
    """Return the names of all nodes and values of ``graph`` and its subgraphs."""
    found = Names(value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name)
    for node in graph:
        found.update(name for name in (node.name, *(value.name for value in node.outputs)) if name)
        for inner in graphs_in(node):
            found |= names_of(inner)
    return found


# Element types as integers, for the attribute ``to`` of a Cast.


DOUBLE = int(ir.DataType.DOUBLE)
FLOAT = int(ir.DataType.FLOAT)
INT32 = int(ir.DataType.INT32)
INT64 = int(ir.DataType.INT64)


def copy_type(value: ir.Value, like: ir.Value) -> ir.Value:
    """Set the type and shape of ``value`` to those of ``like``, and return ``value``."""
    value.type, value.shape = like.type, like.shape
    return value
