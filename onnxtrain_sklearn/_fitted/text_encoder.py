"""Split a graph that takes a table into an encoder of the text and a trained part with numeric inputs.

Text has no gradient and no place in the buffers of a training step. :func:`in_parts` moves the nodes that depend on
text and hold no trained number into a graph of their own, the encoder, which runs once over the data before training.
Its outputs are inputs of the trained part, and the numeric columns of the table become one matrix.
:func:`encoding_graph` is the way from the columns to these inputs, for exports. Encoder and trained part together
compute what the whole graph does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import keep_outputs, read_as_input, replace_value
from .._ir.protobuf import from_bytes, to_proto
from .._ir.queries import reads
from .._ir.shapes import infer_shapes
from .._model.trainable import TrainableModel, spec_of
from ..graph import GraphBuilder, names_of


@dataclass(frozen=True)
class TablePipeline:
    """A graph that takes a table, divided into the steps before its trained part and that part.

    Attributes
    ----------
    whole : TrainableModel
        The graph with one input for each column.
    encoder : bytes or None
        The encoder of the text. Its outputs have the names of inputs of the trained part.
    matrix : str
        The input of the trained part with the numeric columns.
    numbers : tuple of str
        The names of the columns of that matrix.
    """

    whole: TrainableModel
    encoder: bytes | None
    matrix: str
    numbers: tuple[str, ...]


def in_parts(whole: TrainableModel) -> tuple[TrainableModel, TablePipeline]:
    """Return the trained part of a graph, and the steps before it."""
    texts = [spec for spec in whole.inputs if spec.dtype.kind not in "f"]
    rest, encoder = _split_off_encoder(whole) if texts else (whole, None)
    given = {spec.name for spec in whole.inputs}
    model = rest.model.clone()
    columns = [v for v in model.graph.inputs if v.name in given]
    numbers = tuple(v.name or "" for v in columns)
    matrix = join_columns(model.graph, columns) if columns else ""
    inputs = tuple(spec_of(v) for v in model.graph.inputs)
    rest = replace(rest, model=infer_shapes(model), inputs=inputs)
    return rest, TablePipeline(whole, encoder, matrix, numbers)


def encoding_graph(parts: TablePipeline) -> ir.Model:
    """Return the graph from the columns of a table to the inputs of the trained part, by their names."""
    whole = parts.whole.model
    if parts.encoder is None:
        graph = ir.Graph([], [], nodes=[], opset_imports=dict(whole.opset_imports), name="encoder")
        model = ir.Model(graph, ir_version=whole.ir_version)
    else:
        model = from_bytes(parts.encoder)
        graph = model.graph
    known = {value.name: value for value in graph.inputs}
    fresh = {v.name: ir.Value(name=v.name, type=v.type, shape=v.shape) for v in whole.graph.inputs}
    columns = {name: known.get(name, value) for name, value in fresh.items()}
    graph.inputs[:] = list(columns.values())
    if parts.numbers:
        op = GraphBuilder(graph, prefix="columns")
        matrix = op.Concat(*(columns[name] for name in parts.numbers), axis=1)
        matrix.name = parts.matrix
        graph.outputs.append(matrix)
    return model


def name_inputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Rename the inputs, in place; other values with one of these names get a new one."""
    for value in _computed_values(graph):
        if value.name in names:
            value.name = names_of(graph).free(f"{value.name}_")
    for value, name in zip(graph.inputs, names, strict=True):
        value.name = name


def join_columns(graph: ir.Graph, columns: Sequence[ir.Value]) -> str:
    """Replace inputs of one float32 column each by a single matrix, in place; return its name."""
    matrix = ir.Value(
        name=names_of(graph).free("X"),
        type=columns[0].type,
        shape=ir.Shape([ir.SymbolicDim("N"), len(columns)]),
    )
    op = GraphBuilder(graph, prefix="column", constant_nodes=True)
    for i, column in enumerate(columns):
        replace_value(op, column, op.Gather(matrix, np.array([i]), axis=1))
    graph.inputs[:] = [matrix, *(v for v in graph.inputs if v not in columns)]
    graph.sort()
    return matrix.name or ""


def _split_off_encoder(whole: TrainableModel) -> tuple[TrainableModel, bytes]:
    """Return the trained part of ``whole``, with its parameters, and the encoder of its text.

    The encoder ends before nodes that read a parameter or numeric columns. A parameter on which the encoder's nodes
    depend moves into the encoder and becomes a constant.
    """
    graph, trained = whole.model.graph, whole.parameters

    # Find the nodes that read or compute text. Operators of other domains do not declare the types of their outputs.
    texts = {v for v in graph.inputs if v.dtype is ir.DataType.STRING}
    nodes = set[ir.Node]()
    for node in graph:
        if texts & set(reads(node)) or any(v.dtype is ir.DataType.STRING for v in node.outputs):
            nodes.add(node)
            texts |= {v for v in node.outputs if v.dtype in (ir.DataType.STRING, None)}
    # Add the nodes upstream of these.
    front = list(nodes)
    while front:
        makers = {maker for v in reads(front.pop()) if (maker := v.producer()) is not None} - nodes
        nodes |= makers
        front += makers
    # Add the downstream nodes that read only results of the encoder and constants.
    for node in graph:
        values = list(reads(node))
        encoded = [v.producer() in nodes and not _is_constant(v) for v in values]
        fixed = [_is_constant(v) and v.name not in trained for v in values]
        if any(encoded) and all(a or b for a, b in zip(encoded, fixed, strict=True)):
            nodes.add(node)

    # Cut at results that other nodes read; constants are copied to both sides.
    border = {
        v.name
        for node in nodes
        for v in node.outputs
        if not _is_constant(v) and any(user not in nodes for user, _ in v.uses())
    }
    encoder, rest = whole.model.clone(), whole.model.clone()
    keep_outputs(encoder, [v for v in _computed_values(encoder.graph) if v.name in border], inputs=True)
    for value in [v for v in _computed_values(rest.graph) if v.name in border]:
        sizes = [None, None] if value.shape is None else list(value.shape)  # encoders make matrices
        shape = ir.Shape([ir.SymbolicDim("N"), *(d if isinstance(d, int) else None for d in sizes[1:])])
        read_as_input(rest.graph, value, shape)
    keep_outputs(rest, rest.graph.outputs, inputs=True)
    frozen, left = encoder.graph.initializers, rest.graph.initializers
    parameters = tuple(name for name in trained if name in left and name not in frozen)
    return replace(whole, model=rest, parameters=parameters), to_proto(encoder).SerializeToString()


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.is_initializer() if node is None else node.op_type == "Constant"


def _computed_values(graph: ir.Graph) -> list[ir.Value]:
    return [v for node in graph for v in node.outputs]
