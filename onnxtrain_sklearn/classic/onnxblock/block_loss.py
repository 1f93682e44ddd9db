"""Adapter from blocks to losses of the estimators, which weight rows and pad minibatches.

A loss of an estimator returns one number per row; the estimator computes the weighted mean. So a block is built with
reductions that keep the rows. A trial on random numbers checks that the mean of these equals the result of the original
block: a block that is not a mean over rows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.links import Link, Task
from ..._runtime import devices, sessions
from ...exceptions import ModelError
from ...losses import Loss
from .accessor import IR_VERSION, ModelAccessor, entered

_ROWS = 5
"""Number of rows of the trial of a block."""


class LossBlock(Protocol):
    """A block of ``onnxblock`` that computes a loss."""

    def __call__(self, *outputs: str) -> Any:
        """Add the loss of these outputs to the model; return its name, or a tuple that begins with it."""

    def loss_link(self, task: Task) -> Link:
        """Return the link of the outputs."""


class BlockLoss(Loss):
    """The loss that a block computes from the outputs of a graph.

    Parameters
    ----------
    block : Block
        Its ``build`` takes the names of the outputs and returns the name of a scalar that is a mean over rows.
    widths : tuple of int
        Columns of each output, if the scores are several concatenated outputs; empty: one output.
    """

    def __init__(self, block: LossBlock, widths: tuple[int, ...] = ()) -> None:
        self.block = block
        self.widths = widths

    def link(self, task: Task) -> Link:
        return self.block.loss_link(task)

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        shape = op.shape(scores)
        width = shape[1] if shape is not None and len(shape) == 2 else None
        if not isinstance(width, int):
            raise ModelError(f"A block needs outputs of a known number of columns, got shape {shape}.")
        widths = self.widths or (width,)
        rows, result = self._built(op.opset, widths, by_rows=True)
        self._require_mean(op.opset, widths)
        starts = np.cumsum([0, *widths])
        parts = [_block_columns(op, scores, a, b, width) for a, b in pairwise(starts)]
        names = [value.name for value in rows.graph.input]
        values = dict(zip(names, parts, strict=False))
        values |= _block_targets(op, rows.graph.input[len(parts) :], y, widths)
        return _inlined_block(op, rows, values, result)

    def _built(self, opset: int, widths: Sequence[int], *, by_rows: bool) -> tuple[onnx.ModelProto, str]:
        """Return the graph of the block on outputs of these widths, and the name of its result."""
        values = [
            onnx.helper.make_tensor_value_info(f"output_{i}", onnx.TensorProto.FLOAT, ["N", n])
            for i, n in enumerate(widths)
        ]
        model = onnx.helper.make_model(
            onnx.helper.make_graph([], "loss", values, values),
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=IR_VERSION,
        )
        with entered(ModelAccessor(model, by_rows=by_rows)):
            found = self.block(*(value.name for value in values))
        name = found[0] if isinstance(found, tuple) else found
        for node in model.graph.node:
            if node.op_type == "SoftmaxCrossEntropyLoss" and len(widths) == 1 == widths[0]:
                raise ModelError("CrossEntropyLoss needs a score for each class; for one score take BCEWithLogitsLoss.")
        return model, name

    def _require_mean(self, opset: int, widths: Sequence[int]) -> None:
        """Raise if the block is not a mean over rows."""
        found = []
        for by_rows in (True, False):
            model, name = self._built(opset, widths, by_rows=by_rows)
            del model.graph.output[:]
            model.graph.output.append(onnx.ValueInfoProto(name=name))
            session = sessions.create_session(model.SerializeToString(), devices.resolve_device())
            feeds = {value.name: _random_block_inputs(value, widths) for value in model.graph.input}
            found.append(np.asarray(sessions.run_session(session, [name], feeds)[0], np.float64))
        rows, whole = found
        right = rows.shape[:1] == (_ROWS,) and rows.size == _ROWS and whole.size == 1
        if not right or not np.isclose(rows.mean(), whole.item(), rtol=1e-3):
            raise ModelError(
                f"{type(self.block).__name__} is not a mean over rows, of losses of single rows, so rows cannot be "
                "weighted. As loss= of an estimator a block uses reductions of onnxblock ('mean', not 'sum'), and "
                "behind them only sums and products with constants; class weights are the estimator's class_weight."
            )


def _random_block_inputs(value: onnx.ValueInfoProto, widths: Sequence[int]) -> np.ndarray:
    """Return numbers for an input of the trial: labels, or probabilities, which are valid scores and targets."""
    rng = np.random.default_rng(len(value.name))
    tensor = value.type.tensor_type
    shape = [_ROWS, *(d.dim_value or 1 for d in tensor.shape.dim[1:])]
    if tensor.elem_type == onnx.TensorProto.FLOAT:
        return rng.uniform(size=shape).astype(np.float32)
    return rng.integers(0, min(widths), shape).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _block_columns(op: GraphBuilder, value: ir.Value, start: int, end: int, width: int) -> ir.Value:
    if (start, end) == (0, width):
        return value
    return op.Slice(value, [int(start)], [int(end)], [1])


def _block_targets(
    op: GraphBuilder, inputs: Sequence[onnx.ValueInfoProto], y: ir.Value, widths: Sequence[int]
) -> dict[str, ir.Value]:
    """Return the targets by name: the columns of ``y`` in the order in which the block declared them."""
    shape = op.shape(y)
    total = int(str(shape[1])) if shape is not None else 0
    floats = [value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in inputs]
    sizes = [
        n if is_float or total == sum(widths) else 1
        for n, is_float in zip([*widths, *[1] * len(inputs)], floats, strict=False)
    ]
    if sum(sizes) != total:
        raise ModelError(f"The block takes targets of {' + '.join(map(str, sizes))} columns, but y has {total}.")
    ends = np.cumsum([0, *sizes])
    found = {}
    for value, is_float, start, end in zip(inputs, floats, ends, ends[1:], strict=False):
        part = _block_columns(op, y, start, end, total)
        found[value.name] = part if is_float else _block_labels(op, part, int(end - start))
    return found


def _block_labels(op: GraphBuilder, part: ir.Value, width: int) -> ir.Value:
    """Return class indices, from one-hot rows or from a column of indices."""
    if width > 1:
        return op.ArgMax(part, axis=1, keepdims=False)
    return op.Squeeze(op.Cast(part, to=ir.DataType.INT64), axes=[1])


def _inlined_block(op: GraphBuilder, model: onnx.ModelProto, values: Mapping[str, ir.Value], result: str) -> ir.Value:
    """Emit the nodes of the block; its float constants are cast to the type of the estimator's weights."""
    graph = ir.from_proto(model).graph
    known: dict[str | None, ir.Value] = dict(values.items())
    for name, value in graph.initializers.items():
        array = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
        known[name] = op.constant(array.astype(op.dtype.numpy()) if array.dtype == np.float32 else array)
    for node in graph:
        inputs = [None if x is None else known[x.name] for x in node.inputs]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        outputs = op.emit(node.op_type, *inputs, domain=node.domain, outputs=len(node.outputs), **attributes)
        known |= {old.name: new for old, new in zip(node.outputs, outputs, strict=True)}
    return op.Reshape(known[result], [-1, 1])
