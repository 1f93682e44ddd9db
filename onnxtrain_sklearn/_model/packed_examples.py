"""Lists of examples that differ in size (molecules, texts, images), in the graph: it unpacks and runs one at a time.

All other modules assume inputs with a row for each sample. :func:`packed` makes such inputs: a row holds the numbers of
an example, one after the other, and a further input holds the sizes that differ between examples. A pass takes one
such row (:attr:`TrainableModel.batch` is 1), of which the first nodes of the graph make the arrays of the example.
:func:`unpacked` undoes this for export.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.edits import replace_value
from .._ir.queries import dims
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .batch_axis import SIZES, infer_anew
from .trainable import TensorSpec, TrainableModel

_UNPACKED = "/of_one_example"
"""Suffix of the values that take the place of the inputs of the given graph."""

_ALLOWS_ZERO = 14
"""The opset from which on Reshape can make axes without elements, such as the edges of a single atom."""


def packed(graph: TrainableModel, ranks: Mapping[str, int]) -> TrainableModel:
    """Return a graph, which takes the arrays of one example, as a graph that takes a packed row.

    ``ranks`` holds, by input, the number of axes of its array in an example. An array that lacks an axis lacks that of
    the rows, of which there is one.
    """
    for name in dict.fromkeys(form.output for form in graph.forms) if graph.forms else (graph.output,):
        shape = dims(next(value for value in graph.model.graph.outputs if value.name == name))
        if shape is not None and (not shape or isinstance(shape[0], int)) and shape[:1] != [1]:
            raise ModelError(
                f"X is a list of examples, and output {name!r} of the graph has the shape {tuple(shape)}: it must have "
                f"one row for each example, (1, k). End the graph in a mean or sum over the nodes or steps that keeps "
                f"an axis of size 1, or in Unsqueeze."
            )
    given = tuple(
        replace(spec, shape=(1, *spec.shape[1:]))
        if ranks.get(spec.name) == len(spec.shape) - 1 and spec.shape[0] is None
        else spec
        for spec in graph.inputs
    )
    specs = tuple(_packed_spec(spec) for spec in given)
    n_sizes = sum(spec.shape.count(None) for spec in given)
    sizes = (TensorSpec(SIZES, np.dtype(np.int64), (None, n_sizes), example=()),) if n_sizes else ()
    return replace(graph, model=packed_model(graph.model, given), inputs=(*specs, *sizes), batch=1)


def _packed_spec(spec: TensorSpec) -> TensorSpec:
    width = None if None in spec.shape else math.prod(d for d in spec.shape if d is not None)
    return TensorSpec(spec.name, spec.dtype, (None, width), axes=spec.axes, example=spec.shape)


def packed_model(given: ir.Model, specs: tuple[TensorSpec, ...]) -> ir.Model:
    """Return ``given`` with packed inputs in place of those that ``specs`` describe; it may lack some of them."""
    model = given.clone()
    graph, place = model.graph, 0
    op = GraphBuilder(graph, prefix="example", constant_nodes=True)
    sizes = ir.Value(name=SIZES, type=ir.TensorType(ir.DataType.INT64))
    flat_sizes = op.Reshape(sizes, np.array([sum(spec.shape.count(None) for spec in specs)]))
    inputs = {value.name: value for value in graph.inputs}
    known = 0
    for spec in specs:
        own = list(range(place, place + spec.shape.count(None)))
        place += len(own)
        if spec.name not in inputs:
            continue
        value, free = inputs[spec.name], iter(own)
        known += len(own)
        numbers = ir.Value(name=spec.name, type=value.type, shape=ir.Shape([ir.SymbolicDim("N"), _width(spec)]))
        value.name = f"{spec.name}{_UNPACKED}"
        graph.inputs[graph.inputs.index(value)] = numbers
        parts = [
            op.Slice(flat_sizes, [i := next(free)], [i + 1], [0]) if size is None else np.array([size])
            for size in spec.shape
        ]
        shape: Any = op.Concat(*parts, axis=0) if own else np.array(spec.shape, np.int64)
        flat = op.Reshape(numbers, np.array([-1]))
        if own:  # a row is as long as the largest example
            flat = op.Slice(flat, [0], op.ReduceProd(shape, axes=[0]), [0])
        if len(own) == 1 and 0 not in spec.shape:  # shape inference then knows the other axes
            shape = np.array([-1 if size is None else size for size in spec.shape])
        zero = {"allowzero": 1} if op.opset >= _ALLOWS_ZERO else {}
        made = op.Reshape(flat, shape, **zero)
        replace_value(op, value, made, typed=False)
    if known:
        sizes.shape = ir.Shape([ir.SymbolicDim("N"), place])
        graph.inputs.append(sizes)
    else:
        graph.remove(flat_sizes.producer(), safe=True)  # type: ignore[arg-type]
    graph.sort()
    return infer_anew(model)


def _width(spec: TensorSpec) -> int | ir.SymbolicDim:
    if None in spec.shape:
        return ir.SymbolicDim(f"{spec.name}/numbers")
    return math.prod(d for d in spec.shape if d is not None)


def unpacked(graph: TrainableModel) -> TrainableModel:
    """Return a packed graph as it was given; a graph that is not packed is returned unchanged."""
    if not graph.takes_examples:
        return graph
    model = graph.model.clone()
    inner = model.graph
    op = GraphBuilder(inner, prefix="given")
    values = {value.name: value for node in inner for value in node.outputs}
    specs = []
    for spec in graph.inputs:
        value = next(value for value in inner.inputs if value.name == spec.name)
        if spec.name == SIZES:
            inner.inputs.remove(value)
            continue
        assert spec.example is not None
        made = values[f"{spec.name}{_UNPACKED}"]
        names = spec.axes or (None,) * len(spec.example)
        axes = [
            ir.SymbolicDim(name) if name or size is None else size
            for name, size in zip(names, spec.example, strict=True)
        ]
        own = ir.Value(name=f"{spec.name}{_UNPACKED}/given", type=value.type, shape=ir.Shape(axes))
        inner.inputs[inner.inputs.index(value)] = own
        replace_value(op, made, own)
        shape = tuple(None if name else size for name, size in zip(names, spec.example, strict=True))
        specs.append(TensorSpec(spec.name, spec.dtype, shape, False, spec.axes))
    common.RemoveUnusedNodesPass()(model)
    for value in inner.inputs:
        value.name = (value.name or "").removesuffix(f"{_UNPACKED}/given")
    return replace(graph, model=infer_anew(model), inputs=tuple(specs), batch=None)
