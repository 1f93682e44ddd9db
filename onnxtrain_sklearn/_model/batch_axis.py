"""The batch axis of inputs: freed where an exporter fixed it, and fixed to the size of a minibatch for training.

:func:`free_batch_axis` runs once, when a graph is read. :func:`with_batch` makes the copy that a training step runs.
Both infer the shapes of all values from those of the inputs (:func:`infer_anew`), as the file may declare sizes that
hold for the old batch alone. All functions but :func:`with_batch` change the model that they are given.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from .._ir.control_flow import complete_bodies, states_of_known_start
from .._ir.queries import constant, int_attribute
from .._ir.shapes import forget_shapes, infer_shapes
from ..exceptions import ModelError


def free_batch_axis(model: ir.Model) -> None:
    """Make the first axis of every input dynamic: exporters often fix it to the batch that they traced.

    Constant shapes of Reshape that begin with that number are freed too. This is a guess: the caller has to compare the
    graph with the file on rows.
    """
    fixed = [v for v in model.graph.inputs if has_fixed_batch(v)]
    if not fixed:
        return
    _free_reshapes(model, {int(str(v.shape[0])) for v in fixed if v.shape is not None})
    for value in fixed:
        assert value.shape is not None
        _require_batch_first(value, model.graph.inputs)
        value.shape = ir.Shape([ir.SymbolicDim("N"), *list(value.shape)[1:]])
    infer_anew(model)


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """Return a clone whose inputs have ``batch`` rows, with shapes inferred anew.

    A value whose shape cannot be inferred keeps the known one, with ``batch`` in place of the name of the rows.
    """
    fixed, rows = model.clone(), set[str | None]()
    known = {value: value.shape for node in fixed.graph for value in node.outputs if value.shape is not None}
    for value in fixed.graph.inputs:
        if value.shape is not None and len(value.shape):
            first, *others = value.shape
            rows.add(first.value if isinstance(first, ir.SymbolicDim) else None)
            value.shape = ir.Shape([batch, *others])
    infer_anew(fixed)
    for value, shape in known.items():
        if value.shape is None:  # ONNX cannot infer it, as of operators of other domains, but the file declares it
            sizes = [batch if isinstance(d, ir.SymbolicDim) and d.value and d.value in rows else d for d in shape]
            value.shape = ir.Shape(sizes)
    return fixed


def infer_anew(model: ir.Model) -> ir.Model:
    """Infer all shapes from those of the inputs, in place; declared shapes of computed values are dropped."""
    for value in states_of_known_start(model.graph):
        value.shape = None
    forget_shapes(model.graph)
    infer_shapes(model)
    complete_bodies(model)
    return model


def has_fixed_batch(value: ir.Value) -> bool:
    """Return True if the first axis of an input has a fixed size."""
    return value.shape is not None and bool(len(value.shape)) and isinstance(value.shape[0], int)


def _free_reshapes(model: ir.Model, batches: set[int]) -> None:
    """Let Reshape keep the first axis of its data where its shape is constant and begins with the batch."""
    infer_shapes(model)  # before the inputs are freed: the fixed sizes of the data are compared below
    for node in [n for n in model.graph if n.op_type == "Reshape" and not n.domain]:
        data, wanted = node.inputs[0], None if node.inputs[1] is None else constant(node.inputs[1])
        sizes = None if data is None or constant(data) is not None else data.shape
        if wanted is None or not wanted.size or not sizes or int(wanted[0]) not in batches or sizes[0] != wanted[0]:
            continue
        if int_attribute(node, "allowzero", 0):  # PyTorch writes it; a zero would then be the size 0, not "keep"
            if 0 in wanted:
                continue
            del node.attributes["allowzero"]
        freed = np.concatenate([[0], wanted[1:]]).astype(np.int64)
        name = f"{node.outputs[0].name}/rows"
        own = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(freed.shape))
        own.const_value = ir.tensor(freed, name=name)
        model.graph.initializers.add(own)
        node.replace_input_with(1, own)


def _require_batch_first(value: ir.Value, inputs: Iterable[ir.Value]) -> None:
    assert value.shape is not None
    first, *others = value.shape
    free = [d.value for d in others if isinstance(d, ir.SymbolicDim) and d.value and not d.value.startswith("unk__")]
    if free and first != 1:
        shape = f"Graph input {value.name!r} has shape {value.shape}: its first axis is fixed to {first}"
        rows = [v.shape[0].value for v in inputs if v.shape and isinstance(v.shape[0], ir.SymbolicDim)]
        if rows and not {*rows} & {*free}:
            raise ModelError(
                f"{shape}, and its free axis {free[0]!r} is not that of the rows, {rows[0]!r}, as with the edges of a "
                f"graph. Every input must have a row for each sample: let a whole graph be a sample, with its nodes as "
                f"(N, nodes, features) and, instead of a list of edges, its adjacency matrix (N, nodes, nodes), which "
                f"MatMul multiplies by the nodes."
            )
        axis = next(i for i, d in enumerate(value.shape) if isinstance(d, ir.SymbolicDim) and d.value in free)
        moved = [free[0], *(d for i, d in enumerate(value.shape) if i != axis)]
        back = [*range(1, axis + 1), 0, *range(axis + 1, len(value.shape))]
        raise ModelError(
            f"{shape}, and its rows are on axis {axis} ({free[0]!r}). The first axis must be that of the rows: let the "
            f"graph take [{', '.join(map(str, moved))}], begin it with Transpose(perm={back}), and give "
            f"np.moveaxis(array, {axis}, 0). In PyTorch: batch_first=True for sequences, and for states, which it "
            f"leaves as they are, state.transpose(0, {axis}) in forward."
        )
