"""Infer types and shapes over a whole model or for one node, by ONNX's inference.

:func:`infer_shapes` fills in the types and shapes of a model. For speed, it passes to ONNX only the nodes whose results
are unknown. :func:`infer_over_declared` and :func:`infer_declared` infer all shapes anew, because declared shapes may
be wrong. :func:`infer_node` completes the shapes of one node from known integers; ``control_flow`` calls it for each
node of a graph that computes shapes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir
import onnx_ir.serde as serde

from .._utils.untrusted_text import printable
from .queries import attribute, dims, every_node, graphs_in, kind, operand, reads
from .shape_values import Dimension, Integers, is_complete, product_of_known

# Inference of one node from its inputs and from integers that are known.


def infer_node(model: ir.Model, node: ir.Node, known: Integers) -> None:
    """Complete the types and shapes of a node's outputs, in place, as far as they can be inferred."""
    if graphs_in(node):
        return
    inputs = [v for v in node.inputs if v is not None]
    found = dict[str, Any]()
    failures = onnx.checker.ValidationError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError
    with suppress(*failures):
        if all(v.type is not None for v in inputs):
            held = {}
            for value in (v for v in inputs if v in known and is_complete(known[v])):
                assert value.dtype is not None
                tensor = ir.tensor(known[value].astype(value.dtype.numpy()), name=value.name)
                held[value.name or ""] = ir.serde.serialize_tensor(tensor)
            found = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, model.graph.opset_imports.get(node.domain, 0), node.domain),
                ir.serde.serialize_node(node),
                {v.name or "": ir.serde.serialize_value(v).type for v in inputs},
                held,
                opset_imports=[onnx.helper.make_opsetid(d, n) for d, n in model.graph.opset_imports.items()],
            )
    for value in node.outputs:
        if value.name in found and found[value.name].HasField("tensor_type"):
            value.type = value.type or ir.serde.deserialize_type_proto_for_type(found[value.name])
            shape = ir.serde.deserialize_type_proto_for_shape(found[value.name])
            value.shape = shape if value.shape is None else value.shape
    if node.op_type in _SHAPE_INPUT and not node.domain:
        # ONNX reads a shape from an input only if all sizes are numbers. Here sizes may also be names.
        wanted = known.get(operand(node, _SHAPE_INPUT[node.op_type]))  # type: ignore[arg-type]
        if wanted is None or wanted.ndim != 1:
            return
        sizes: list[Dimension] = list(wanted)
        own = dims(node.inputs[0])
        if node.op_type == "Reshape":
            for i, size in enumerate(sizes):
                if size == 0 and not attribute(node, "allowzero", 0):  # a zero copies the size
                    sizes[i] = own[i] if own is not None and i < len(own) else None
            if -1 in sizes:
                sizes[sizes.index(-1)] = _remaining_size(own, [d for d in sizes if d != -1])
        elif node.op_type == "Expand":
            if own is None:
                return
            rank = max(len(own), len(sizes))
            pairs = zip([1] * (rank - len(own)) + own, [1] * (rank - len(sizes)) + sizes, strict=True)
            sizes = [b if a == 1 else a if b in (1, a) or isinstance(a, int) else None for a, b in pairs]
        node.outputs[0].shape = ir.Shape(sizes)
    elif node.domain == "com.microsoft" and node.op_type in _PRODUCTS_OF_FEW_BITS:
        given = node.inputs[0]
        value = node.outputs[0]
        width = attribute(node, "N", None)
        rows = dims(given)
        if given is not None and rows and width is not None:
            value.type = given.type if value.type is None else value.type
            value.shape = ir.Shape([*rows[:-1], int(width)]) if value.shape is None else value.shape


_PRODUCTS_OF_FEW_BITS = frozenset({"MatMulNBits", "MatMulBnb4", "MatMulFpQ4"})
"""onnxruntime's products with a matrix of few bits, for which ONNX has no inference."""

_SHAPE_INPUT = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""For each operator that reads the shape of its output from an input, the position of that input."""


def _remaining_size(given: list[Dimension] | None, others: list[Dimension]) -> int | str | None:
    """Return the size for -1: the product of the sizes ``given`` divided by that of ``others``; equal names cancel."""
    if given is None or None in given or None in others:
        return None
    names = Counter(d for d in given if isinstance(d, str))
    names.subtract(d for d in others if isinstance(d, str))
    if any(names.values()):
        only = [name for name, count in names.items() if count]
        numbers = product_of_known(given) == product_of_known(others)
        return only[0] if numbers and len(only) == 1 and names[only[0]] == 1 else None
    rest = product_of_known(others)
    return product_of_known(given) // rest if rest else None


# Inference over the part of a model whose types or shapes are not known in full, by ONNX.
#
# The inference pass of ``onnx_ir`` spends most of its time on writing and reading the whole model. Here nodes with
# completely known outputs are left out, except constants and integers from which sizes are computed. Only types and
# shapes are read from the result.


_LARGE = 1000
"""From this number of bytes on, inference gets only the type and shape of an initializer, not its numbers."""

_MANY = 2**17
"""If a value holds more known integers than this, inference runs without known integers (``data_prop``)."""

_MOST_NODES = 200_000
"""With more nodes than this (nodes of functions count at each call), inference runs without known integers."""

_DEEPEST = 100
"""If functions and bodies are nested more deeply than this, inference runs without known integers."""

_log = logging.getLogger(__name__)


def infer_types(model: ir.Model) -> None:
    """Fill in the types and shapes that ONNX infers, in place; if inference fails, the model stays unchanged."""
    # Give initializers the types of their tensors, and move the large ones to the end. This order must not change: the
    # parameters have it too, and the last bits of sums over all parameters depend on it.
    graph = model.graph
    initializers = list(graph.initializers.values())
    for value in initializers:
        tensor = value.const_value
        if tensor is not None and (value.shape is None or value.type is None):
            value.shape = ir.Shape(tensor.shape.numpy()) if value.shape is None else value.shape
            value.dtype = tensor.dtype if value.dtype is None else value.dtype
    ordered = sorted(initializers, key=_is_large_initializer)
    if ordered != initializers:
        graph.initializers.clear()
        graph.initializers.update((value.name or "", value) for value in ordered)

    # Select nodes with outputs that are not completely known, and the nodes that compute their constants and integers.
    part = {node for node in graph if graphs_in(node) or not all(map(_is_known, node.outputs))}
    if not part:
        return
    for node in reversed(graph):
        if node in part:
            for value in reads(node):
                producer = value.producer()
                tells_sizes = value.dtype is not None and value.dtype.is_integer()
                if producer is not None and (tells_sizes or producer.op_type == "Constant"):
                    part.add(producer)
    nodes = [node for node in graph if node in part]
    proto = _proto_of(model, nodes)
    may_know_many = len(nodes) > _MOST_NODES or any(map(_may_know_many_integers, nodes))
    data_prop = not may_know_many or knows_few_integers(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False, data_prop=data_prop)
    except Exception as error:
        _log.warning("Shape inference failed: %s", printable(str(error)))
        return
    _declare_values(nodes, inferred.graph)


def _is_known(value: ir.Value) -> bool:
    """Return True if type and shape of a value are known in full, or if nothing reads it, as it has no name."""
    known = isinstance(value.type, ir.TensorType) and value.shape is not None
    return not value.name or (known and all(type(size) is int for size in value.shape or ()))


def _may_know_many_integers(node: ir.Node) -> bool:
    """Return True if inference may know many integers of an output of the node, more than of any of its inputs."""
    if node.op_type == "Constant":
        held = node.attributes.get("value")
        return held is None or held.is_ref() or held.as_tensor().nbytes > _LARGE
    return node.op_type in ("Range", "Concat") or bool(graphs_in(node))


def knows_few_integers(proto: onnx.ModelProto) -> bool:
    """Return True if inference with known integers (``data_prop``) needs little memory: 200 bytes for each integer.

    In a file of a few bytes, a Range or a chain of Concat nodes that double their input, perhaps in a body or function,
    could fill all memory.
    """
    functions = {(f.domain, f.name): f for f in proto.functions}
    left = _MOST_NODES

    def stays_small(
        nodes: Sequence[Any], counts: dict[str, int], single: dict[str, float], given: dict[str, Any], depth: int
    ) -> bool:
        """Add the numbers of integers that ``nodes`` compute to ``counts``, and their values, if single, to ``single``.

        ``given`` holds the attributes of the call of a function. Return False if there are too many.
        """
        nonlocal left
        left -= len(nodes)
        if left < 0 or depth > _DEEPEST:
            return False
        for node in nodes:
            count = max((counts.get(name, 0) for name in node.input), default=0)
            held = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
            function = functions.get((node.domain, node.op_type))
            if function is not None:
                passed = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
                passed |= {a.name: given[a.ref_attr_name] for a in node.attribute if a.ref_attr_name in given}
                pairs = list(zip(function.input, node.input, strict=False))
                inner = {own: counts[name] for own, name in pairs if name in counts}
                numbers = {own: single[name] for own, name in pairs if name in single}
                if not stays_small(function.node, inner, numbers, passed, depth + 1):
                    return False
                ends = list(zip(node.output, function.output, strict=False))
                counts |= {name: inner.get(own, 0) for name, own in ends}
                single |= {name: numbers[own] for name, own in ends if own in numbers}
                continue
            if held is not None:
                held = given.get(held.ref_attr_name, held)
                count = math.prod(held.t.dims) if held.HasField("t") else max(1, len(held.ints))
                if count == 1 and node.output:
                    single[node.output[0]] = _number(held.t) if held.HasField("t") else float(held.i or held.f)
            elif node.op_type == "Range" and len(node.input) == 3 and all(name in single for name in node.input):
                start, limit, delta = (single[name] for name in node.input)
                count = math.ceil((limit - start) / delta) if delta else 0
            elif node.op_type == "Concat":
                count = sum(counts.get(name, 0) for name in node.input)
            elif node.op_type == "Identity" and node.input[0] in single:
                single |= dict.fromkeys(node.output, single[node.input[0]])
            for body in (g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)):
                pairs = list(zip(body.input, node.input, strict=False))
                own_counts, own_single = _held_integers(body)
                inner = {**counts, **{v.name: counts[name] for v, name in pairs if name in counts}, **own_counts}
                if not stays_small(body.node, inner, {**single, **own_single}, given, depth + 1):
                    return False
                count = max([count, *(inner.get(v.name, 0) for v in body.output)])
            if count > _MANY:
                return False
            counts |= dict.fromkeys(node.output, count)
        return True

    counts, single = _held_integers(proto.graph)
    return stays_small(proto.graph.node, counts, single, {}, 0)


def _held_integers(graph: Any) -> tuple[dict[str, int], dict[str, float]]:
    """Return the number of elements of each short initializer, and the value of each with a single element."""
    counts = {t.name: t.dims[0] if t.dims else 1 for t in graph.initializer if len(t.dims) < 2}
    return counts, {t.name: _number(t) for t in graph.initializer if math.prod(t.dims) == 1}


def _number(tensor: Any) -> float:
    """Return the single number that a tensor holds; 0 if it does not hold a number."""
    array = ir.from_proto(tensor).numpy().ravel()
    return float(array[0]) if array.size == 1 and array.dtype.kind in "iuf" and np.isfinite(array[0]) else 0.0


def _is_large_initializer(value: ir.Value) -> bool:
    return value.const_value is None or value.const_value.nbytes > _LARGE


def _proto_of(model: ir.Model, nodes: Sequence[ir.Node]) -> onnx.ModelProto:
    """Return a model of ``nodes`` only; other values that they read are inputs, with the numbers of small constants."""
    graph = model.graph
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in {**model.opset_imports, **graph.opset_imports}.items():
        proto.opset_import.add(domain=domain, version=version)
    found, own = dict.fromkeys(graph.inputs), set(nodes)
    for value in (value for node in nodes for value in reads(node)):
        if value.graph is graph and value.producer() not in own:
            found[value] = None
    for value in found:
        _write_value(proto.graph.input.add(), value)
        if value.const_value is not None and not _is_large_initializer(value):
            serde.serialize_tensor_into(proto.graph.initializer.add(), value.const_value)
            proto.graph.initializer[-1].name = value.name or ""
    for node in nodes:
        _write_node(proto.graph.node.add(), node)
        for value in node.outputs:
            if value.name and value.type is not None:
                _write_value(proto.graph.value_info.add(), value)
    return proto


def _write_node(proto: Any, node: ir.Node) -> None:
    """Write what inference reads of a node into a NodeProto, in half of the time that onnx-ir takes."""
    proto.op_type = node.op_type
    proto.domain = node.domain
    proto.name = node.name or ""
    proto.input.extend(["" if value is None else value.name or "" for value in node.inputs])
    outputs = [value.name or "" for value in node.outputs]
    while outputs and not outputs[-1]:
        del outputs[-1]
    proto.output.extend(outputs)
    for held in node.attributes.data.values():
        if held.is_ref():
            serde.serialize_reference_attribute_into(proto.attribute.add(), held)
        elif held.type is ir.AttributeType.INT:
            proto.attribute.add(name=held.name, i=held.value, type=held.type.value)
        else:
            serde.serialize_attribute_into(proto.attribute.add(), held)


def _write_value(proto: Any, value: ir.Value) -> None:
    """Write name, type and shape into a ValueInfoProto, in a fifth of the time that onnx-ir takes."""
    kind = value.type
    if not isinstance(kind, ir.TensorType):
        serde.serialize_value_into(proto, value)
        return
    proto.name = value.name
    tensor = proto.type.tensor_type
    tensor.elem_type = kind.dtype.value
    if value.shape is not None:
        tensor.shape.SetInParent()
        for size in value.shape:
            if isinstance(size, int):
                tensor.shape.dim.add(dim_value=size)
            elif size.value is None:  # write nothing: ONNX would take an empty string for a name
                tensor.shape.dim.add()
            else:
                tensor.shape.dim.add(dim_param=size.value)


def _declare_values(nodes: Iterable[ir.Node], inferred: Any, others: Iterable[ir.Value] = ()) -> None:
    """Give the outputs of ``nodes``, the values of their subgraphs, and ``others`` the types in a GraphProto.

    What is known in full stays as it is: inference changes none of it.
    """
    unknown = {value.name: value for value in others if not _is_known(value)}
    for node, source in zip(nodes, inferred.node, strict=True):
        unknown.update((value.name, value) for value in node.outputs if not _is_known(value))
        if inner := graphs_in(node):
            protos = [graph for a in source.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]
            for graph, proto in zip(inner, protos, strict=True):
                _declare_values(graph, proto, [*graph.inputs, *graph.initializers.values()])
    for described in (*inferred.output, *inferred.value_info, *inferred.input):
        value = unknown.pop(described.name, None)
        if value is None:
            continue
        kind: Any = described.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):  # go on to the type of the elements
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        kind = kind.tensor_type
        if kind.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
            if value.shape is None or value.shape != sizes:
                value.shape = ir.Shape(sizes)
        if kind.elem_type and value.dtype != kind.elem_type:
            value.dtype = ir.DataType(kind.elem_type)


# Inference over a whole model, by ONNX, with or without its declared shapes, in place.


_NO_TENSORS = frozenset(
    "Optional SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceMap SplitToSequence".split()
)
_TREES = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_LISTS = ("nodes_", "class_", "target_")
_OF_EQUAL_RESULTS = {"GroupNormalization": "InstanceNormalization", "com.microsoft.Inverse": "Identity"}
"""Operators for which ONNX has no inference, each with one whose result has the same type and shape."""


def infer_shapes(model: ir.Model) -> ir.Model:
    """Fill in the types and shapes of the values of ``model``, in place, as far as ONNX infers them."""
    with _inferable(model.graph):
        infer_types(model)
    # Values that hold sequences, such as states of loops, now wrongly have the type of a sequence's tensors: remove it.
    # The nodes of a body come after the node with this body.
    others = set[ir.Value]()
    for node in every_node(model.graph):
        if node.op_type in _NO_TENSORS and not node.domain:
            others.update(node.outputs)
        elif node.op_type == "Loop" and not node.domain:
            states = list(node.attributes["body"].as_graph().inputs)[2:]
            for start, *held in zip(list(node.inputs)[2:], states, node.outputs, strict=False):
                others.update(held if start in others else ())
    for value in others:
        value.type = value.shape = None
    return model


@contextmanager
def _inferable(graph: ir.Graph) -> Iterator[None]:
    """Replace nodes, for the duration of ONNX's inference, that it does not know or that slow it down."""
    replaced = [(node, kind(node)) for node in every_node(graph) if kind(node) in _OF_EQUAL_RESULTS]
    # Inference copies the long attributes of tree ensembles twice and needs none.
    trees = [(node, list(node.attributes.items())) for node in graph if node.op_type in _TREES]
    for node, name in replaced:
        node.domain, node.op_type = "", _OF_EQUAL_RESULTS[name]
    for node, attributes in trees:
        for name, _ in attributes:
            if name.startswith(_LISTS) and not name.endswith("_as_tensor"):
                del node.attributes[name]
    try:
        yield
    finally:
        for node, name in replaced:
            node.domain, _, node.op_type = name.rpartition(".")
        for node, attributes in trees:
            node.attributes.clear()
            node.attributes.update(attributes)


def infer_over_declared(model: ir.Model) -> ir.Model:
    """Infer all shapes, in place; a declared shape is used only if none can be inferred."""
    declared = forget_shapes(model.graph)
    infer_shapes(model)
    for value, shape in declared.items():
        value.shape = shape if value.shape is None else value.shape
    return model


def infer_declared(model: ir.Model, infer: Callable[[ir.Model], ir.Model] = infer_shapes) -> ir.Model:
    """Infer all shapes, in place; sizes that are only declared stay, unless they contradict the inferred ones."""
    declared = forget_shapes(model.graph)
    infer(model)
    of_graph = _names_of_sizes(model.graph.inputs)
    of_bodies = {
        body: of_graph | _names_of_sizes(body.inputs) for node in every_node(model.graph) for body in graphs_in(node)
    }
    for value, shape in declared.items():
        names = of_bodies.get(value.graph, of_graph) if value.graph is not None else of_graph
        if value.shape is None:
            value.shape = shape
            continue
        # Declared sizes fill in the unknown ones, unless the two shapes contradict. A symbolic size of an input of the
        # graph or of a body counts as inferred, so that a loop state keeps its size if an iteration returns this size.
        pairs = list(zip(value.shape, shape, strict=False))
        clash = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        if len(value.shape) == len(shape) and not clash:
            value.shape = ir.Shape([a if isinstance(a, int) or a.value in names else b for a, b in pairs])
    return model


def _names_of_sizes(values: Iterable[ir.Value]) -> set[str]:
    return {d.value for v in values for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}


def forget_shapes(graph: ir.Graph) -> dict[ir.Value, ir.Shape]:
    """Remove the shapes of all computed values, in place, also in subgraphs; return the shapes.

    Results of custom operators keep the sizes after their first axis, as no inference knows them.
    """
    declared = {v: v.shape for node in every_node(graph) for v in node.outputs if v.shape is not None}
    for value, shape in declared.items():
        node = value.producer()
        is_custom = node is not None and is_custom_domain(node.domain)
        value.shape = None
        if is_custom and len(shape):
            value.shape = ir.Shape([ir.SymbolicDim(None) if isinstance(shape[0], int) else shape[0], *shape[1:]])
    return declared


def is_custom_domain(domain: str) -> bool:
    """Return True if neither ONNX nor onnxruntime has operators of this domain: they come from a library."""
    return domain not in _KNOWN_DOMAINS and not domain.startswith("com.microsoft")


_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
