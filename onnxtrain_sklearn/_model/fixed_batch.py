"""Graphs exported for a fixed batch: free their batch axis, or find the batch that each call must have.

:func:`free_batch_axis` runs once, when a graph is read. It goes through the nodes in order, follows the axis of the
rows (:mod:`.batch_axis`), and edits constants that are valid only for the batch size of the file: shapes of Reshape and
Expand, sizes of Resize, ends of Slice, and operands with a row for each row of the batch, such as initial states of
recurrent layers. One row replaces such an operand; it is repeated if necessary.

These edits are guesses, because an axis of size one may hold a single row or something else. The caller must compare
the result with the file, on more rows of data than the batch: the edited graph takes them together, the file in
batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .._ir.queries import attribute, constant, dims, kind, operand
from .._ir.shape_values import is_complete, note_constant
from .._ir.shapes import forget_shapes, infer_node, infer_shapes
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .batch_axis import ELEMENTWISE, Rows, RowsMeet, Tracer, Unknown, infer_anew
from .roles import REPEATS

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})

_LARGEST = 2**63 - 1


def free_batch_axis(model: ir.Model) -> None:
    """Make the first axis of every input dynamic, in place: exporters often fix it to the batch that they traced."""
    graph = model.graph
    fixed = [v for v in graph.inputs if has_fixed_batch(v)]
    if not fixed:
        return
    for value in fixed:
        _require_batch_first(value, graph.inputs)
    batches = {int(str(v.shape[0])) for v in fixed if v.shape is not None}
    infer_shapes(model)  # while the inputs are fixed, because the edits compare fixed sizes
    if len(batches) == 1:
        _Freeing(model, batches.pop()).run()
    else:
        for node in [n for n in graph if n.op_type == "Reshape" and not n.domain]:
            _keep_first_axis(graph, node, batches, dims(node.inputs[0]))
    for value in fixed:
        assert value.shape is not None
        value.shape = ir.Shape([ir.SymbolicDim("N"), *list(value.shape)[1:]])
    infer_anew(model)


def has_fixed_batch(value: ir.Value) -> bool:
    """Return True if the first axis of an input has a fixed size."""
    return value.shape is not None and bool(len(value.shape)) and isinstance(value.shape[0], int)


def own_batch(model: ir.Model) -> int | None:
    """Return the number of rows that all inputs have; None if they are free or differ."""
    shapes = [value.shape for value in model.graph.inputs]
    sizes = {shape[0] if shape is not None and len(shape) else None for shape in shapes}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and size > 0 else None


def _keep_first_axis(graph: ir.Graph, node: ir.Node, batches: set[int], sizes: Sequence[object] | None) -> None:
    """Make a Reshape keep the first axis of its data, if its shape is constant and begins with the batch size."""
    data = node.inputs[0]
    wanted = None if node.inputs[1] is None else constant(node.inputs[1])
    sizes = None if data is None or constant(data) is not None else sizes
    if wanted is None or not wanted.size or not sizes or int(wanted[0]) not in batches or sizes[0] != wanted[0]:
        return
    if node.attributes.get_int("allowzero", 0):  # written by PyTorch; a zero then is the size 0, not "keep"
        if 0 in wanted:
            return
        del node.attributes["allowzero"]
    _set_shape(graph, node, [0, *wanted[1:]])


def _set_shape(graph: ir.Graph, node: ir.Node, sizes: Sequence[int]) -> None:
    freed = np.array(sizes, np.int64)
    name = f"{node.outputs[0].name}/rows"
    own = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(freed.shape))
    own.const_value = ir.tensor(freed, name=name)
    graph.initializers.add(own)
    node.replace_input_with(1, own)


class _Freeing:
    """Goes through the nodes of a graph and edits those that are valid only for ``batch`` rows.

    Attributes
    ----------
    tracer : Tracer
        The places of the rows in the values of all nodes so far, for any number of rows.
    before : dict of onnx_ir.Value to list
        The sizes of the values for the batch size of the file.
    """

    def __init__(self, model: ir.Model, batch: int) -> None:
        self.model, self.graph, self.batch = model, model.graph, batch
        self.before = {value: dims(value) for node in self.graph for value in (*node.inputs, *node.outputs) if value}
        self._op = GraphBuilder(self.graph, prefix="rows", constant_nodes=True)

    def run(self) -> None:
        """Edit all nodes, in place, without changing the shapes of the inputs."""
        graph, nodes = self.graph, list(self.graph)
        shapes = {value: value.shape for value in graph.inputs}
        for value in graph.inputs:
            if value.shape is not None and len(value.shape):
                value.shape = ir.Shape([ir.SymbolicDim("N"), *list(value.shape)[1:]])
        forget_shapes(graph)
        self.tracer = Tracer(graph, [value.name or "" for value in graph.inputs], 0)
        for node in nodes:
            if not self._knows(node):
                if kind(node) == "Reshape":
                    self._keep_rows(node)
            else:
                self._edit(node)
            self._follow(node)
        for value, shape in shapes.items():
            value.shape = shape
        graph.sort()

    def _knows(self, node: ir.Node) -> bool:
        tracer = self.tracer
        read = [x for x in node.inputs if x is not None]
        return all(x not in tracer.unknown and (x in tracer.places or x.producer() is None) for x in read)

    def _follow(self, node: ir.Node) -> None:
        """Infer the sizes of a node's outputs, and the places of the rows in them."""
        for value in node.inputs:  # constants that an edit added
            if value is not None and value.const_value is not None and value not in self.tracer.known:
                note_constant(self.tracer.known, value, value.const_value)
        infer_node(self.model, node, self.tracer.known)
        try:
            self.tracer.add(node)
        except (RowsMeet, Unknown):
            self.tracer.unknown.update(node.outputs)

    def _emitted(self, value: ir.Value) -> ir.Value:
        """Call :meth:`_follow` for the nodes that an edit emitted to compute ``value``; return ``value``."""
        own, front = list[ir.Node](), [value]
        while front:
            node = front.pop().producer()
            if node is not None and not any(output in self.tracer.places for output in node.outputs):
                own.append(node)
                front += [x for x in node.inputs if x is not None]
        for node in reversed(own):
            node.meta[REPEATS] = True
            self._follow(node)
        return value

    def _edit(self, node: ir.Node) -> None:
        """Edit a node if its constants are valid only for the batch size of the file."""
        name = kind(node)
        places = [self.tracer.place(x) for x in node.inputs]
        if not any(places):
            if name == "Expand":
                self._edit_expanded_rows(node)
            return
        if name == "Reshape":
            self._edit_reshape(node, places[0])
        elif name == "Expand":
            self._edit_expand(node, places[0])
        elif name == "Slice":
            self._edit_slice(node, places[0])
        elif name == "Resize":
            self._edit_resize(node, places[0])
        elif name in _RECURRENT:
            self._edit_states(node, places[0])
        elif name in ("Concat", "GatherElements", "ScatterElements"):
            self._edit_joined(node, places)
        elif name in ELEMENTWISE or name in ("Gemm", "MatMul"):
            self._edit_broadcast(node, places)

    # The edits.

    def _keep_rows(self, node: ir.Node) -> None:
        """Make a Reshape keep the first axis of its data, by the sizes that the data have in the file."""
        data = node.inputs[0]
        _keep_first_axis(self.graph, node, {self.batch}, None if data is None else self.before.get(data))

    def _at_batch(self, value: ir.Value | None, place: Rows) -> list[int] | None:
        """Return the sizes of a value for the batch size of the file; None if any size is unknown."""
        try:
            sizes = self.tracer.sizes(value)
        except Unknown:
            return None
        sizes[place.axis] = place.before * self.batch * place.after
        return None if None in sizes else [int(d) for d in sizes if d is not None]

    def _integers(self, value: ir.Value | None) -> list[int] | None:
        """Return the integers in a value that does not depend on the number of rows; None if they are unknown."""
        if value is None or value in self.tracer.counts:
            return None
        found = self.tracer.known.get(value)
        found = constant(value) if found is None else found
        return None if found is None or not is_complete(found.astype(object)) else [int(x) for x in found.ravel()]

    def _edit_reshape(self, node: ir.Node, place: Rows | None) -> None:
        wanted = self._integers(node.inputs[1])
        sizes = None if place is None else self._at_batch(node.inputs[0], place)
        if place is None or wanted is None:
            return
        if sizes is None:
            self._keep_rows(node)
            return
        copies = not node.attributes.get_int("allowzero", 0)
        full = list(wanted)
        for i, size in enumerate(full):
            if size == 0 and copies and i < len(sizes):
                full[i] = sizes[i]
        if full.count(-1) == 1:
            rest = -math.prod(full)
            full[full.index(-1)] = math.prod(sizes) // rest if rest else -1
        if -1 in full or math.prod(full) != math.prod(sizes) or not math.prod(full):
            return
        # A reshape keeps the order of elements, so the number of elements before and after the rows stays the same.
        outer = place.before * math.prod(sizes[: place.axis])
        found = []
        for axis, size in enumerate(full):
            leading = math.prod(full[:axis])
            own = outer // leading
            if outer % leading == 0 and size % (own * self.batch) == 0:
                after = size // (own * self.batch)
                # If the rows shared the last axis with features, they would meet in the next product.
                mixed = after > 1 and axis == len(full) - 1
                found.append((mixed, own, after, axis != place.axis, axis))
        if not found:
            return
        axis = min(found)[-1]
        keeps = axis == 0 and place == Rows(0) and wanted[0] == self.batch == sizes[0]
        if keeps:
            _keep_first_axis(self.graph, node, {self.batch}, sizes)
        elif wanted[axis] > 0:
            _set_shape(self.graph, node, [*full[:axis], -1, *full[axis + 1 :]])

    def _edit_expand(self, node: ir.Node, place: Rows | None) -> None:
        wanted = self._integers(node.inputs[1])
        rank = dims(node.inputs[0])
        if place is None or wanted is None or rank is None:
            return
        axis = place.axis + len(wanted) - len(rank)
        if axis >= 0 and wanted[axis] == place.before * self.batch * place.after != 1:
            _set_shape(self.graph, node, [*wanted[:axis], 1, *wanted[axis + 1 :]])

    def _edit_expanded_rows(self, node: ir.Node) -> None:
        """Replace a constant with the batch size of the file by one row, if it is expanded to the number of rows."""
        shape = node.inputs[1]
        sizes = dims(node.inputs[0]) or []
        known = None if shape is None else self.tracer.known.get(shape)
        wanted = [] if known is None else list(known.ravel())
        for i, size in enumerate(wanted):
            axis = i - len(wanted) + len(sizes)
            if size == "N" and axis >= 0 and self.batch > 1 and (row := self._row(node.inputs[0], axis)) is not None:
                node.replace_input_with(0, row)

    def _edit_slice(self, node: ir.Node, place: Rows | None) -> None:
        if place is None or "starts" in node.attributes:
            return
        starts, ends = self._integers(operand(node, 1)), self._integers(operand(node, 2))
        rank = len(dims(node.inputs[0]) or ())
        given, steps = self._integers(operand(node, 3)), self._integers(operand(node, 4))
        if starts is None or ends is None or not rank or (operand(node, 4) is not None and steps is None):
            return
        axes = list(range(len(starts))) if operand(node, 3) is None else given
        size = place.before * self.batch * place.after
        for i, axis in enumerate(axes or ()):
            step = 1 if steps is None else steps[i]
            if axis % rank == place.axis and starts[i] == 0 and step == 1 and size <= ends[i] < _LARGEST:
                changed = np.array([*ends[:i], _LARGEST, *ends[i + 1 :]], np.int64)
                node.replace_input_with(2, self._emitted(self._op.constant(changed)))

    def _edit_resize(self, node: ir.Node, place: Rows | None) -> None:
        wanted = self._integers(operand(node, 3))
        rank = len(dims(node.inputs[0]) or ())
        if place is None or wanted is None or (place.before, place.after) != (1, 1):
            return
        axes = [axis % rank for axis in attribute(node, "axes", range(rank))]
        if place.axis in axes and wanted[axes.index(place.axis)] == self.batch:
            i = axes.index(place.axis)
            node.replace_input_with(3, self._sizes(node.inputs[0], place.axis, wanted[:i], wanted[i + 1 :]))

    def _sizes(self, rows: ir.Value | None, axis: int, before: Sequence[int], after: Sequence[int]) -> ir.Value:
        """Emit a vector of sizes that are constant, except for the number of rows on ``axis``."""
        op = self._op
        count = op.Slice(op.Shape(rows), np.array([axis]), np.array([axis + 1]))
        parts: list[Any] = [np.array(before, np.int64), count, np.array(after, np.int64)]
        parts = [part for part in parts if part is count or part.size]
        return self._emitted(op.Concat(*parts, axis=0) if len(parts) > 1 else count)

    def _edit_states(self, node: ir.Node, place: Rows | None) -> None:
        """Repeat initial states and lengths of a recurrent layer for all rows, if they do not depend on the rows."""
        first = bool(node.attributes.get_int("layout", 0))
        if place != Rows(0 if first else 1):
            return
        for i in (4, 5, 6):
            self._repeat(node, i, 0 if first or i == 4 else 1, node.inputs[0], place.axis)

    def _edit_joined(self, node: ir.Node, places: Sequence[Rows | None]) -> None:
        """Repeat operands for all rows if their batch axis must be as long as that of other operands."""
        found = {place for place in places if place is not None}
        if len(found) != 1 or (place := found.pop())[1:] != (1, 1):
            return
        default = 1 if node.op_type == "Concat" else 0
        rank = len(dims(node.inputs[0]) or ())
        if not rank or node.attributes.get_int("axis", default) % rank == place.axis:
            return
        rows = next(x for x, own in zip(node.inputs, places, strict=True) if own is not None)
        for i, own in enumerate(places):
            if own is None:
                self._repeat(node, i, place.axis, rows, place.axis)

    def _edit_broadcast(self, node: ir.Node, places: Sequence[Rows | None]) -> None:
        """Replace operands with the batch size of the file by one row, which is broadcast to all rows."""
        ranks = [len(dims(x) or ()) for x in node.inputs]
        rank = max(ranks)
        aligned = {p._replace(axis=p.axis + rank - r) for p, r in zip(places, ranks, strict=True) if p is not None}
        if len(aligned) != 1 or (place := aligned.pop())[1:] != (1, 1) or self.batch == 1:
            return
        if kind(node) == "MatMul" and place.axis >= rank - 2:
            return
        if kind(node) == "Gemm" and (places[0] != Rows(0) or attribute(node, "transA", 0)):
            return
        for i, (own, own_rank) in enumerate(zip(places, ranks, strict=True)):
            axis = place.axis - rank + own_rank
            if own is None and axis >= 0 and (kind(node) != "Gemm" or i == 2):
                row = self._row(node.inputs[i], axis)
                if row is not None:
                    node.replace_input_with(i, row)

    def _row(self, value: ir.Value | None, axis: int) -> ir.Value | None:
        """Return the first row of a value whose rows for the batch are all equal; None if they may differ."""
        sizes = dims(value)
        if value is None or not sizes or axis >= len(sizes) or sizes[axis] != self.batch:
            return None
        if self.batch == 1:
            return value
        array = constant(value)
        if array is None and not _repeats(value, axis):
            return None
        if array is not None and not (np.take(array, [0], axis) == array).all():
            return None
        if array is not None and value.is_initializer() and len(value.uses()) == 1:  # perhaps a weight
            row = np.take(array, [0], axis)
            value.const_value, value.shape = ir.tensor(row, name=value.name), ir.Shape(row.shape)
            return value
        return self._emitted(self._op.Slice(value, np.array([0]), np.array([1]), np.array([axis])))

    def _repeat(self, node: ir.Node, index: int, axis: int, rows: ir.Value | None, axis_of_rows: int) -> None:
        """Replace an operand by its first row, repeated for all rows."""
        value = operand(node, index)
        if value is None or self.tracer.place(value) is not None or (row := self._row(value, axis)) is None:
            return
        rank = len(dims(value) or ())
        shape = self._sizes(rows, axis_of_rows, [1] * axis, [1] * (rank - axis - 1))
        node.replace_input_with(index, self._emitted(self._op.Expand(row, shape)))


def _repeats(value: ir.Value, axis: int) -> bool:
    """Return True if a computed value is certain to be the same all along an axis."""
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in ("Identity", "Cast"):
        return node.inputs[0] is not None and _repeats(node.inputs[0], axis)
    if node.op_type == "Expand":
        sizes = dims(node.inputs[0])
        rank = len(dims(value) or ())
        own = axis - rank + len(sizes or ())
        return sizes is not None and (own < 0 or sizes[own] == 1)
    return node.op_type == "ConstantOfShape"


def _require_batch_first(value: ir.Value, inputs: Iterable[ir.Value]) -> None:
    assert value.shape is not None
    first, *others = value.shape
    free = [d.value for d in others if isinstance(d, ir.SymbolicDim) and d.value and not d.value.startswith("unk__")]
    if free and first != 1:
        shape = f"Graph input {value.name!r} has shape {value.shape}: its first axis is fixed to {first}"
        rows = [v.shape[0].value for v in inputs if v.shape and isinstance(v.shape[0], ir.SymbolicDim)]
        if other := [name for name in rows if name and name not in free]:
            raise ModelError(
                f"{shape}, and its free axis {free[0]!r} is not that of the rows, {other[0]!r}, as with the edges of a "
                f"network. If X is one network, set batch_size=None: it is then computed as a whole. Several networks "
                f"may be a list of dicts, [{{input: array}}, ...]. With a network in each row, an input for the nodes "
                f"has the shape (N, nodes, features), and an adjacency matrix (N, nodes, nodes), which MatMul "
                f"multiplies by the nodes, takes the place of the edges."
            )
        axis = next(i for i, d in enumerate(value.shape) if isinstance(d, ir.SymbolicDim) and d.value in free)
        raise ModelError(
            f"{shape}, and its rows are on axis {axis} ({free[0]!r}). Say so by model=GraphModel(..., batch_axis="
            f"{{{value.name!r}: {axis}}}), with the axes of the rows of all inputs and outputs of which it is not the "
            f"first, and give X with the rows first, np.moveaxis(array, {axis}, 0)."
        )
