"""Take embedding reads and sparse first products out of a graph before it is differentiated.

The gradient of an embedding matrix is zero except for the rows that are read, but an engine would write the whole
matrix. :func:`take_lookups` removes the Gather. The graph then reads the rows from a new input, whose gradient has a
row for each index, and returns the indices. The pass that runs the graph adds up the gradients of equal indices.

:func:`take_first_products` removes products of inputs with matrices, for a pass that multiplies sparse data itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._importers.torch_program import padding_row
from .._ir.edits import replace_node, replace_value
from .._ir.queries import attribute, constant, dims, fixed, kind, operand
from ..graph import GraphBuilder

LARGE = 4096
"""Least elements of a matrix for which it is faster to add up the gradient outside the graph (50 ns per element)."""


@dataclass(frozen=True)
class Lookup:
    """A Gather that was taken out of a graph. The graph reads the gathered rows from an input instead.

    Attributes
    ----------
    weight : str
        Name of the initializer.
    shape : tuple of int
        Its shape.
    count : int
        Number of indices.
    rows, indices : str
        Names of the input for the rows, (count, width), and of the output for the indices, (count,) of int64.
    padding : int or None
        The row that gets no gradient, like PyTorch's ``padding_idx``.
    """

    weight: str
    shape: tuple[int, ...]
    count: int
    rows: str
    indices: str
    padding: int | None

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])


def take_lookups(model: ir.Model, names: Collection[str], least: int = LARGE) -> list[Lookup]:
    """Take the Gathers of the named initializers out of ``model``, in place, and return them.

    An initializer stays if it has fewer than ``least`` elements, or if other nodes read it too.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="lookup", constant_nodes=True)
    found = list[Lookup]()
    for name, value in [(name, value) for name, value in graph.initializers.items() if name in names]:
        # Only Gathers of rows may read it, in the main graph, with a known number of indices.
        shape = dims(value)
        if value.is_graph_output() or not value.uses() or not fixed(shape) or not shape or math.prod(shape) < least:
            continue
        if not all(
            use.node.graph is graph
            and use.idx == 0
            and (use.node.op_type, use.node.domain) == ("Gather", "")
            and not use.node.outputs[0].is_graph_output()
            and attribute(use.node, "axis", 0) % len(shape) == 0
            and fixed(dims(use.node.inputs[1]))
            and fixed(dims(use.node.outputs[0]))
            for use in value.uses()
        ):
            continue
        for node in [use.node for use in value.uses()]:
            # Replace the Gather by an input for the rows, and add an output for the indices.
            index, read = node.inputs[1], dims(node.outputs[0])
            assert index is not None
            assert value.dtype is not None
            assert fixed(read)
            count = math.prod(dims(index) or ())  # type: ignore[arg-type]
            places = op.Reshape(op.Cast(index, to=ir.DataType.INT64), [-1])
            places.dtype, places.shape = ir.DataType.INT64, ir.Shape([count])
            graph.outputs.append(places)
            rows = op.input("rows", value.dtype, (count, math.prod(shape[1:])))  # a row of a vector is one number
            ends = rows.name or "", places.name or ""
            found.append(Lookup(name, tuple(shape), count, *ends, padding_row(node)))
            replace_node(op, node, [op.Reshape(rows, read)])
    for name in {one.weight for one in found}:
        del graph.initializers[name]
    if found:
        graph.sort()
    return found


def put_back_lookups(model: ir.Model, lookups: Sequence[Lookup]) -> None:
    """Put the Gathers back into the gradient graph ``model``, in place; the embedding matrices become its inputs."""
    graph = model.graph
    op = GraphBuilder(graph, prefix="lookup", constant_nodes=True)
    outputs = {value.name: value for value in graph.outputs}
    tables: dict[str, ir.Value] = {}
    for lookup in lookups:
        rows = next(value for value in graph.inputs if value.name == lookup.rows)
        if lookup.weight not in tables:
            assert rows.dtype is not None
            tables[lookup.weight] = ir.val(lookup.weight, rows.dtype, lookup.shape)
            graph.inputs.append(tables[lookup.weight])
        read = op.Gather(tables[lookup.weight], outputs[lookup.indices], axis=0)
        read = read if len(lookup.shape) == 2 else op.Reshape(read, [lookup.count, lookup.width])
        replace_value(op, rows, read)
        graph.inputs.remove(rows)
    if lookups:
        graph.sort()


# First products. The graph reads each product from a new input; the original input and the matrix are removed.


@dataclass(frozen=True, eq=False)
class FirstProduct:
    """A product of an input with a matrix that was taken out of a graph.

    Attributes
    ----------
    input, weight : str
        Names of the input and of the initializer that were multiplied.
    n_columns : int
        Columns of the product.
    transposed : bool
        Whether the initializer has the shape (n_columns, n_features), not (n_features, n_columns).
    name : str
        The input from which the graph reads the product.
    factors : ndarray of shape (n_features,) or None
        Constants by which the graph multiplied the columns of the input before the product; None if there are none.
    """

    input: str
    weight: str
    n_columns: int
    transposed: bool
    name: str
    factors: np.ndarray | None = None


def take_first_products(model: ir.Model, names: Collection[str]) -> list[FirstProduct]:
    """Take the products of the named inputs with initializers out of ``model``, in place, and return them.

    An input stays if other nodes read it too, or if its matrix is read twice. If the graph first multiplies the input
    by one constant per column, that product is also taken out: see ``FirstProduct.factors``.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="product", constant_nodes=True)
    chosen, found = list[ir.Value](), list[FirstProduct]()
    for value in [value for value in graph.inputs if value.name in names]:
        # The rows are the input, or its product with one factor per column if nothing else reads the input.
        rows = value
        factors = None
        uses = list(value.uses())
        sizes = dims(value) or ()
        node = uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
        if node is not None and kind(node) == "Mul" and not uses[0].idx and node.inputs[1] is not None:
            known = constant(node.inputs[1])
            if known is not None and len(sizes) == 2 and known.shape == (1, sizes[1]):
                rows, factors = node.outputs[0], known[0]

        # Every node that reads the rows must multiply them by a matrix on their right that it alone reads.
        products = [use.node for use in rows.uses() if use.idx == 0 and use.node.graph is graph]
        if rows.is_graph_output() or not products or len(products) < len(rows.uses()) or len(dims(rows) or ()) != 2:
            continue
        if all(map(_is_product, products)):
            found += [_taken(op, value, factors, node) for node in products]
            chosen.append(value)
    for value in chosen:
        graph.remove([use.node for use in value.uses()], safe=True)
    graph.inputs[:] = [value for value in graph.inputs if value not in chosen]
    if found:
        graph.sort()
    return found


def _is_product(node: ir.Node) -> bool:
    """Return True if a node multiplies its first operand by a stored matrix that only it reads."""
    if node.op_type not in ("Gemm", "MatMul") or node.domain or attribute(node, "transA", 0):
        return False
    weight = node.inputs[1]
    if weight is None or not weight.is_initializer() or weight.is_graph_output() or len(weight.uses()) != 1:
        return False
    matrix = constant(weight)
    return matrix is not None and matrix.ndim == 2


def _taken(op: GraphBuilder, value: ir.Value, factors: np.ndarray | None, node: ir.Node) -> FirstProduct:
    """Replace the product in a MatMul or Gemm by an input; Gemm's scale and third operand stay in the graph."""
    weight = node.inputs[1]
    batch, _ = dims(value) or (None, None)
    matrix = None if weight is None else constant(weight)
    assert weight is not None
    assert matrix is not None
    assert value.dtype is not None
    transposed = bool(attribute(node, "transB", 0))
    n_columns = int(matrix.shape[0 if transposed else 1])
    product = op.input("first", value.dtype, (batch, n_columns))
    scale = np.asarray(attribute(node, "alpha", 1.0), matrix.dtype)
    result = product if scale == 1 else op.Mul(product, scale)
    added = operand(node, 2)
    if added is not None:
        share = np.asarray(attribute(node, "beta", 1.0), matrix.dtype)
        result = op.Add(result, added if share == 1 else op.Mul(added, share))
    replace_node(op, node, [op.Identity(result) if result is product else result])
    del op.graph.initializers[weight.name or ""]
    return FirstProduct(value.name or "", weight.name or "", n_columns, transposed, product.name or "", factors)
