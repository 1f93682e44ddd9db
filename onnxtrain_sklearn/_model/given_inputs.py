"""Inputs of a given graph that are not rows, and rows on another axis than the first.

All other modules assume that every input has a row for each sample, on its first axis. A file may differ.
:func:`bind_constants` stores inputs that are the same in every call as constants of the graph, and
:func:`move_rows_first` inserts transpositions at the start and end of the graph. Both edit a graph right after it is
read. :func:`in_layout_of_file` removes these transpositions from a graph that is exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import scipy.sparse as sp

from .._ir.control_flow import take_branches
from .._ir.edits import bypass, replace_by_initializer, replace_input
from .._ir.queries import attribute
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder
from .batch_axis import infer_anew
from .roles import CONSTANT_INPUT

Axes = int | Mapping[str, int]
"""The axis of the rows: one number for all inputs and outputs, or numbers by name, with 0 for all other names."""


def axis_of(axes: Axes, name: str) -> int:
    """Return the axis that holds the rows in the input or output ``name`` of a file."""
    return axes.get(name, 0) if isinstance(axes, Mapping) else axes


# Inputs that are the same in every call.


def bind_constants(model: ir.Model, constants: Mapping[str, Any], axes: Axes, *, whole: bool = False) -> None:
    """Replace inputs by initializers, in place, and mark them as constants, which are never trained.

    With ``whole``, the data are one thing, so that a constant may have an axis of their rows.

    An If whose condition depends only on such constants is replaced by the nodes of the chosen branch, so that the
    graph has no weights of the other branch. Raise ModelError if an array does not fit its input.
    """
    if not constants:
        return
    graph = model.graph
    inputs = {value.name or "": value for value in graph.inputs}
    _require_known("constant_inputs", constants, inputs, "input")
    by_row = [value for name, value in inputs.items() if name not in constants]
    if not by_row:
        raise ModelError(
            f"constant_inputs names all inputs of the graph, {list(inputs)}: one of them must hold the rows of X."
        )
    rows = {name: value.name for value in by_row if (name := _name_of_axis(value, axis_of(axes, value.name or "")))}
    arrays = {name: _array_for(inputs[name], given) for name, given in constants.items()}
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in arrays.items():
        for axis, (dim, size) in enumerate(zip(inputs[name].shape or (), array.shape, strict=True)):
            symbol = dim.value if isinstance(dim, ir.SymbolicDim) else None
            if symbol in rows and symbol is not None and not whole:
                raise ModelError(
                    f"constant_inputs[{name!r}]: axis {axis} of this input is {symbol!r}, the axis of the rows of "
                    f"{rows[symbol]!r}. Its size depends on the rows of a call, so it is no constant: give a row for "
                    f"each sample in X, with model=GraphModel(..., batch_axis={{{name!r}: {axis}}}) if rows are not on "
                    f"its first axis. If the rows are the nodes of a single graph, set batch_size=None: they are then "
                    f"computed together."
                )
            if symbol and sizes.setdefault(symbol, (size, name))[0] != size:
                first, other = sizes[symbol]
                raise ModelError(
                    f"constant_inputs: the axis {symbol!r} has {first} elements in {other!r}, but {size} in {name!r}."
                )
    for name, array in arrays.items():
        value = inputs[name]
        graph.inputs.remove(value)
        if value.is_graph_output():
            copy = GraphBuilder(graph, prefix="constant").Identity(value)
            for i in [i for i, output in enumerate(graph.outputs) if output is value]:
                graph.outputs[i] = copy
        replace_by_initializer(graph, value, array, name)
        graph.initializers[name].metadata_props[CONSTANT_INPUT] = "1"
    for value in by_row:  # axes with the names of the bound axes now have their sizes
        if value.shape is not None:
            value.shape = ir.Shape([_bound(d, sizes) for d in value.shape])
    _infer(model)
    take_branches(model)
    _infer(model)


def _infer(model: ir.Model) -> None:
    """Infer all shapes anew; an output whose shape cannot be inferred keeps its declared shape."""
    declared = {value: value.shape for value in model.graph.outputs}
    infer_anew(model)
    for value, shape in declared.items():
        value.shape = shape if value.shape is None else value.shape


def _bound(dim: int | ir.SymbolicDim, sizes: Mapping[str, tuple[int, str]]) -> int | ir.SymbolicDim:
    symbol = dim.value if isinstance(dim, ir.SymbolicDim) else None
    return sizes[symbol][0] if symbol in sizes and symbol is not None else dim


def _name_of_axis(value: ir.Value, axis: int) -> str | None:
    """Return the name of the size of an axis; None if it is fixed or has no name."""
    sizes = list(value.shape or ())
    dim = sizes[axis] if axis < len(sizes) else None
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def _array_for(value: ir.Value, given: Any) -> np.ndarray:
    """Return the user's constant as an array of the input's type and shape; raise ModelError if it does not fit."""
    what = f"constant_inputs[{value.name!r}]"
    if value.dtype is None or not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
        raise ModelError(f"{what}: this input ({value.type}) is not a numeric tensor; only those can be constant.")
    array = np.asarray(given.toarray() if sp.issparse(given) else given)
    wanted = np.dtype(value.dtype.numpy())
    if array.dtype.kind not in "fiub":
        raise ModelError(f"{what} must be a number or an array of {wanted}, got {given!r}.")
    with np.errstate(all="ignore"):
        result = array.astype(wanted)
    if np.isnan(array).any():
        raise ModelError(f"{what} contains NaN.")
    exact = result == array if wanted.kind in "iub" else np.isfinite(result) | ~np.isfinite(array)
    if not exact.all():
        raise ModelError(f"{what}: the input takes {wanted}, which cannot hold {array[~exact].ravel()[0]!r}.")
    if value.shape is None:
        return result
    shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    if result.size == 1 and all(d in (1, None) for d in shape):
        return result.reshape([1] * len(shape))  # a single number fits any axes of size one
    fits = len(shape) == result.ndim and all(d in (n, None) for d, n in zip(shape, result.shape, strict=True))
    if not fits:
        kind = "a single number" if not shape else f"the shape {tuple(_shown(value))}"
        raise ModelError(f"{what} has the shape {result.shape}, but the graph's input takes {kind}.")
    return result


def constant_for_file(given: Any, dtype: Any, rank: int) -> np.ndarray:
    """Return a constant that :func:`bind_constants` has checked in the type and rank of the file's input."""
    array = np.asarray(given.toarray() if sp.issparse(given) else given).astype(dtype)
    return array.reshape([1] * rank) if array.size == 1 else array


def _shown(value: ir.Value) -> list[object]:
    return [d if isinstance(d, int) else (d.value or "?") for d in value.shape or ()]


def _require_known(what: str, given: Iterable[str], known: Mapping[str, object], kind: str) -> None:
    if unknown := [name for name in given if name not in known]:
        raise ModelError(
            f"{what} names {unknown[0]!r}, which is no {kind} of the graph.{nearest(str(unknown[0]), known)}"
        )


# Rows on another axis than the first.


def move_rows_first(model: ir.Model, axes: Axes) -> dict[str, int]:
    """Move the axis of the rows to the front in inputs and outputs, in place; return the moved axes by name.

    Inputs and outputs keep their names. Transpositions connect them with the original values of the file.
    """
    graph = model.graph
    if isinstance(axes, Mapping):
        known = {value.name or "": value for value in (*graph.inputs, *graph.outputs)}
        _require_known("batch_axis", axes, known, "input and no output")
    moved: dict[str, int] = {}
    op = GraphBuilder(graph, prefix="rows_first")
    for value in list(graph.inputs):
        name = value.name or ""
        if not (axis := axis_of(axes, name)):
            continue
        order = _order(value, axis, axes)
        own = ir.Value(name=name, type=value.type, shape=ir.Shape([_sizes(value)[i] for i in order]))
        own.metadata_props.update(value.metadata_props)
        value.name = op.name(f"{name}/in_file")
        replace_input(graph, value, own, op.Transpose(own, perm=_inverse(order)))
        moved[name] = axis
    for i, value in enumerate(list(graph.outputs)):
        name = value.name or ""
        if not (axis := axis_of(axes, name)):
            continue
        order = _order(value, axis, axes)
        first = op.Transpose(value, perm=order)
        value.name = op.name(f"{name}/in_file")
        first.name, first.type, first.shape = name, value.type, ir.Shape([_sizes(value)[j] for j in order])
        first.metadata_props.update(value.metadata_props)
        graph.outputs[i] = first
        moved[name] = axis
    if moved:
        graph.sort()
        _infer(model)
    return moved


def _order(value: ir.Value, axis: int, axes: Axes) -> list[int]:
    """Return the order of axes that puts the axis of the rows first."""
    if value.shape is None:
        raise ModelError(f"batch_axis: {value.name!r} has no declared shape in the file: declare its axes.")
    rank = len(value.shape)
    if axis >= rank:
        others = "" if isinstance(axes, Mapping) else " Give a dict, batch_axis={name: axis}, of those that have it."
        raise ModelError(f"batch_axis: {value.name!r} has no axis {axis}, its shape is {tuple(_shown(value))}.{others}")
    return [axis, *(i for i in range(rank) if i != axis)]


def _sizes(value: ir.Value) -> list[Any]:
    return list(value.shape or ())


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


def in_layout_of_file(model: ir.Model, layout: Mapping[str, int]) -> ir.Model:
    """Restore the file's order of axes in inputs and outputs, in place; return the model.

    ``layout`` holds the axes that :func:`move_rows_first` returned. Outputs that the file lacks, such as labels, keep
    the rows on the first axis.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="in_file")
    for value in [value for value in graph.inputs if value.name in layout]:
        order = _order(value, layout[value.name or ""], layout)
        back = _inverse(order)
        name = value.name or ""
        own = ir.Value(name=name, type=value.type, shape=ir.Shape([_sizes(value)[i] for i in back]))
        readers = [node for node, _ in value.uses() if _transposes(node, back)]
        value.name = op.name(f"{name}/rows_first")
        for node in readers:
            bypass(node, own)
        if value.uses() or value.is_graph_output():
            replace_input(graph, value, own, op.Transpose(own, perm=order))
        else:
            graph.inputs[graph.inputs.index(value)] = own
    for i, value in enumerate(list(graph.outputs)):
        name = value.name or ""
        if name not in layout or value.shape is None or len(value.shape) <= layout[name]:
            continue
        order = _order(value, layout[name], layout)
        maker = value.producer()
        source = maker.inputs[0] if maker is not None and _transposes(maker, order) else None
        shape = ir.Shape([_sizes(value)[j] for j in _inverse(order)])
        if source is None or source.producer() is None or source.is_graph_output():
            own = op.Transpose(value, perm=_inverse(order))
        else:
            own = source
        value.name = op.name(f"{name}/rows_first")
        own.name, own.shape = name, shape
        own.type = value.type if own.type is None else own.type
        graph.outputs[i] = own
        if maker is not None and own is source and not value.uses():
            graph.remove(maker, safe=True)
    graph.sort()
    return model


def _transposes(node: ir.Node, order: Sequence[int]) -> bool:
    return node.op_type == "Transpose" and not node.domain and list(attribute(node, "perm", ())) == list(order)
