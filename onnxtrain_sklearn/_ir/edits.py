"""Edit a graph in place: replace, insert, copy and remove nodes and values, and simplify some operators.

The edits are the vocabulary of all passes over graphs; the passes decide what is edited. An edit keeps the names of the
graph's outputs. It does not sort the nodes: a pass calls ``graph.sort()`` once after its last edit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from ..graph import GraphBuilder, copy_type
from .limits import nodes_of
from .queries import every_node, is_read
from .shapes import infer_shapes

KEPT_TYPE = "onnxtrain/kept_type"
"""Metadata key of a value that is computed in float32; it holds the narrower type that the value has in the file."""


def replace_value(op: GraphBuilder, old: ir.Value, new: ir.Value, *, typed: bool = True) -> ir.Value:
    """Replace ``old`` by ``new`` everywhere; return the value that replaces it.

    If ``op`` emitted ``new``, it gets the name of ``old``. If not, and ``old`` is an output of the graph, an Identity
    of ``new`` gets that name. With ``typed``, a missing type or shape of ``new`` is copied from ``old``.
    """
    # A loop, because a builder that shares nodes may return an Identity that already is an output.
    while old.is_graph_output() and (new.is_graph_output() or not op.emitted(new)):
        new = op.Identity(new)
    is_named = new.is_graph_output()
    if typed:
        new.type = old.type if new.type is None else new.type
        new.shape = old.shape if new.shape is None else new.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if op.emitted(new) and old.name and not is_named:  # an omitted output has an empty name
        name, old.name = old.name, op.name("replaced")
        new.name = name
    return new


def replace_node(op: GraphBuilder, node: ir.Node, results: Sequence[ir.Value | None]) -> None:
    """Replace the outputs of ``node`` by ``results``, in order, and remove it; None stands for an unread output."""
    assert node.graph is not None
    for old, new in zip(node.outputs, results, strict=False):
        if new is not None:
            replace_value(op, old, new)
    node.graph.remove(node, safe=True)


def bypass(node: ir.Node, source: ir.Value) -> None:
    """Replace the first output of ``node`` by ``source``, which keeps its name, and remove the node."""
    assert node.graph is not None
    node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)


def insert_after(op: GraphBuilder, value: ir.Value, function: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Insert ``function`` between ``value`` and its readers; return the result, which has the same type and shape.

    If ``value`` is an output of the graph, the result replaces it under its name.
    """
    users = list(value.uses())
    result = copy_type(function(value), value)
    for node, index in users:
        node.replace_input_with(index, result)
    for i, output in enumerate(op.graph.outputs):
        if output is value:
            op.graph.outputs[i] = result
            value.name, result.name = op.name("raw"), value.name
    return result


def hold_as_constant(op: GraphBuilder, value: ir.Value) -> None:
    """Replace the initializer ``value`` by a Constant node, so that it is not taken for a weight."""
    assert value.const_value is not None
    replace_by_constant(op, value, value.const_value.numpy())
    del op.graph.initializers[value.name or ""]


def replace_by_constant(op: GraphBuilder, value: ir.Value, array: np.ndarray) -> None:
    """Rewire consumers of ``value`` to a constant of ``op`` that holds ``array``."""
    value.replace_all_uses_with(op.constant(array))


def append_copy(op: GraphBuilder, body: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """Append copies of the nodes of ``body``, under new names, that read ``inputs``; return the copy's outputs."""
    return append_nodes(op, body.clone(allow_outer_scope_values=True), inputs)


def append_nodes(op: GraphBuilder, graph: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """Move the nodes of ``graph``, under new names, to the graph of ``op``, where they read ``inputs``.

    Return the outputs. The caller moves the initializers.
    """
    given = dict(zip(graph.inputs, inputs, strict=True))
    results = [given.get(value, value) for value in graph.outputs]
    nodes = list(graph)
    graph.outputs.clear()
    for formal, value in given.items():
        formal.replace_all_uses_with(value)
    graph.remove(nodes)
    for node in nodes:
        node.name = op.name(node.op_type)
        for output in node.outputs:
            output.name = op.name(output.name) if output.name else output.name
    op.graph.extend(nodes)
    return results


def append_graph(op: GraphBuilder, graph: ir.Graph, inputs: Sequence[ir.Value], prefix: str = "") -> list[ir.Value]:
    """Move all nodes of ``graph`` into the graph of ``op``, reading ``inputs``; return the outputs.

    Nodes get new names. The names of initializers get the ``prefix``, and a number if the name is taken.
    """
    held = list(graph.initializers.values())
    graph.initializers.clear()
    for value in held:
        value.name = op.taken.free(f"{prefix}{value.name}")
        op.graph.register_initializer(value)
    return append_nodes(op, graph, inputs)


def replace_input(graph: ir.Graph, old: ir.Value, new: ir.Value, value: ir.Value) -> None:
    """Replace the input ``old`` by ``new``; the nodes that read ``old`` read ``value``, which is computed from ``new``.

    Outputs of the graph that are ``old`` become ``value``.
    """
    graph.inputs[graph.inputs.index(old)] = new
    old.replace_all_uses_with(value, replace_graph_outputs=True)


def replace_inputs(graph: ir.Graph, values: Mapping[str, ir.Value]) -> None:
    """Replace inputs by computed values: ``values`` maps names of inputs to the values that their readers read then."""
    for old in [value for value in graph.inputs if value.name in values]:
        old.replace_all_uses_with(values[old.name or ""], replace_graph_outputs=True)
        graph.inputs.remove(old)


def read_as_input(graph: ir.Graph, value: ir.Value, shape: ir.Shape | None = None) -> ir.Value:
    """Rewire consumers of ``value`` to a new input of its name, type and shape, or of ``shape``; return the input.

    The node that computes ``value`` stays, under another name.
    """
    given = ir.Value(name=value.name, type=value.type, shape=value.shape if shape is None else shape)
    value.name = f"{value.name}/computed"
    value.replace_all_uses_with(given)
    graph.inputs.append(given)
    return given


def read_from_outside(body: ir.Graph, value: ir.Value, outside: ir.Value) -> None:
    """Replace a constant of a body by a value of the graph around it; an output of the body becomes an Identity."""
    for i, output in enumerate(body.outputs):
        if output is value:
            node = ir.node("Identity", [outside])
            body.append(node)
            body.outputs[i] = node.outputs[0]
            copy_type(node.outputs[0], value).name = "constant"
    value.replace_all_uses_with(outside)
    producer = value.producer()
    if producer is None:
        del body.initializers[value.name or ""]
    else:
        body.remove(producer, safe=True)


def remove_states(node: ir.Node, states: Sequence[int], first: int, done: int) -> None:
    """Replace some states of a Loop or Scan by their initial values, read from outside, in place.

    ``first`` and ``done`` are the numbers of inputs and of outputs of the body before its states.
    """
    body = node.attributes["body"].as_graph()
    starts = list(node.inputs)[first:]
    for i in reversed(states):
        start = starts[i]
        assert start is not None
        node.outputs[i].replace_all_uses_with(start)
        body.outputs.pop(done + i)
        body.inputs.pop(first + i).replace_all_uses_with(start)
    if states:
        # A node of onnx-ir has a fixed number of outputs, so make a new node and move the body to it.
        assert node.graph is not None
        read = [x for i, x in enumerate(node.inputs) if i - first not in states]
        outputs = [value for i, value in enumerate(node.outputs) if i not in states]
        attributes = dict(node.attributes)
        node.attributes.clear()  # because a body can belong to one node only
        fewer = ir.node(node.op_type, read, attributes, num_outputs=len(outputs), name=node.name)
        node.graph.insert_before(node, fewer)
        for old, new in zip(outputs, fewer.outputs, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name, old.name = old.name, None
            copy_type(new, old)
        node.graph.remove(node, safe=True)


def replace_by_initializer(graph: ir.Graph, value: ir.Value, array: np.ndarray, name: str) -> None:
    """Rewire consumers of ``value`` to a new initializer of ``graph``."""
    own = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
    own.const_value = ir.tensor(array, name=name)
    _keep_type(own, value)
    graph.initializers.add(own)
    value.replace_all_uses_with(own)


def copy_initializer(graph: ir.Graph, value: ir.Value, name: str, array: np.ndarray | None = None) -> ir.Value:
    """Add a copy of an initializer, or ``array`` cast to its type, under a free name like ``name``; return the copy."""
    assert value.const_value is not None
    held = value.const_value.numpy()
    held = held if array is None else array.astype(held.dtype)
    own = ir.Value(name=name, type=value.type, shape=ir.Shape(held.shape), const_value=ir.tensor(held, name=name))
    _keep_type(own, value)
    graph.initializers.add(own)
    return own


def _keep_type(value: ir.Value, like: ir.Value) -> None:
    if KEPT_TYPE in like.metadata_props:
        value.metadata_props[KEPT_TYPE] = like.metadata_props[KEPT_TYPE]


def read_through_identity(op: GraphBuilder, node: ir.Node, index: int) -> None:
    """Insert an Identity before this operand of a node."""
    x = node.inputs[index]
    assert x is not None
    node.replace_input_with(index, copy_type(op.Identity(x), x))


def append_output(graph: ir.Graph, value: ir.Value, name: str, like: ir.Value) -> None:
    """Add ``value`` to the outputs of ``graph`` under this name, with the type and shape of ``like``."""
    copy_type(value, like).name = name
    graph.outputs.append(value)


def remove_unread(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove the ``nodes`` whose outputs nothing reads; ``nodes`` are in the order in which they run."""
    for node in reversed(list(nodes)):
        if not any(is_read(value) for value in node.outputs):
            graph.remove(node, safe=True)


def remove_unread_initializers(graph: ir.Graph, kept: Container[str] = ()) -> None:
    """Remove the initializers that no node reads, except the names in ``kept``."""
    for name in [name for name, value in graph.initializers.items() if name not in kept and not value.uses()]:
        del graph.initializers[name]


def keep_outputs(model: ir.Model, outputs: Sequence[ir.Value], *, inputs: bool = False) -> None:
    """Keep these outputs and the nodes that compute them; with ``inputs``, keep only the inputs that these read."""
    model.graph.outputs[:] = list(outputs)
    common.RemoveUnusedNodesPass()(model)
    if inputs:
        model.graph.inputs[:] = [value for value in model.graph.inputs if value.uses() or value.is_graph_output()]


def multiply_by_columns(model: ir.Model) -> ir.Model:
    """Turn products with a vector into products with a column, in place; ranks must have been inferred.

    onnxruntime fuses a transposition with the product that reads it, and computes wrong numbers if the other operand is
    a vector: 1.19.2 and 1.31.1 do, at the extended level of optimization.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="by_column", constant_nodes=True)

    def is_by_vector(node: ir.Node) -> bool:
        first, second = (None if value is None or value.shape is None else len(value.shape) for value in node.inputs)
        return second == 1 and first != 1

    found = [node for node in graph if node.op_type == "MatMul" and not node.domain and is_by_vector(node)]
    for node in found:
        first, second = node.inputs
        assert second is not None
        replace_node(op, node, [op.Squeeze(op.MatMul(first, op.Unsqueeze(second, axes=[1])), axes=[-1])])
    if found:
        graph.sort()
        infer_shapes(model)
    return model


def swap_initializers(graph: ir.Graph, weights: Mapping[str, np.ndarray]) -> None:
    """Replace the arrays of the initializers that ``weights`` names."""
    for name, array in weights.items():  # for an array, Tensor is faster than tensor(), which checks and converts
        made = ir.Tensor if array.dtype.kind == "f" else ir.tensor
        graph.initializers[name].const_value = made(np.asarray(array, order="C"), name=name)


def initializers_with_defaults(graph: ir.Graph, free: Mapping[str, int | None]) -> None:
    """Make initializers inputs whose default values they are; ``free`` maps names to the axis of variable size."""
    for name, axis in free.items():
        value = graph.initializers[name]
        assert value.shape is not None
        value.shape = ir.Shape(["rank" if i == axis else d for i, d in enumerate(value.shape)])
        graph.inputs.append(value)


def initializers_to_inputs(graph: ir.Graph, names: list[str]) -> None:
    """Turn initializers into graph inputs, which a session reads from the caller's memory."""
    for name in names:
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)


# Reductions over no axes are replaced by elementwise operators when a graph is read.
#
# With ``noop_with_empty_axes`` a reduction without axes works on single elements: ReduceSumSquare squares them.
# onnxruntime 1.19 fails on some of these nodes, and returns the input of others unchanged.


ELEMENTWISE = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceSumSquare": "Mul",
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), "Identity"),
}
"""For each reduction operator, the elementwise operator that is equal to it over no axes."""


def over_no_axes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a GraphProto, and of its subgraphs, that reduce over no axes."""

    def may_keep_all(node: onnx.NodeProto) -> bool:
        attributes = {a.name: a for a in node.attribute}
        noop = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].i
        return node.op_type in ELEMENTWISE and bool(noop) and not ("axes" in attributes and attributes["axes"].ints)

    candidates = [node for node in nodes_of(graph) if not node.domain and may_keep_all(node)]
    empty = {*_empty_constants(graph)} if candidates else set()
    return [node for node in candidates if node.input[1:2] in ([], [""]) or node.input[1] in empty]


def without_empty_reductions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with elementwise operators in place of reductions over no axes."""
    if not over_no_axes(proto.graph):
        return proto
    result = deepcopy(proto)
    for node in over_no_axes(result.graph):
        apply_to_elements(node)
    return result


def apply_to_elements(node: onnx.NodeProto) -> None:
    """Turn a node that reduces over no axes into its elementwise operator."""
    node.op_type = ELEMENTWISE[node.op_type]
    del node.attribute[:]
    del node.input[1:]
    if node.op_type == "Mul":
        node.input.append(node.input[0])


def _empty_constants(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of initializers and constants without elements, also of subgraphs."""
    yield from (tensor.name for tensor in graph.initializer if list(tensor.dims) == [0])
    for node in graph.node:
        for attribute in node.attribute:
            is_empty = (attribute.name == "value" and list(attribute.t.dims) == [0]) or (
                attribute.name == "value_ints" and not attribute.ints
            )
            if node.op_type == "Constant" and is_empty:
                yield from node.output
            for inner in (attribute.g, *attribute.graphs):
                yield from _empty_constants(inner)


# Transpositions that keep all axes in place, as PyTorch's exporter writes them after an indexing.
#
# onnxruntime up to 1.21 fuses them with a product before or after them as if they swapped two axes, without an error.


def remove_identity_transposes(model: ir.Model) -> bool:
    """Remove transpositions that keep all axes in place; return True if there were any.

    A transposition whose result a graph returns becomes an Identity.
    """

    def keeps_axes(node: ir.Node) -> bool:
        order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else []
        return bool(order) and order == sorted(order)

    found = [n for n in every_node(model.graph) if n.op_type == "Transpose" and not n.domain and keeps_axes(n)]
    for node in found:
        source = node.inputs[0]
        if source is None or node.outputs[0].is_graph_output():
            node.op_type = "Identity"
            node.attributes.clear()
        else:
            bypass(node, source)
    return bool(found)
