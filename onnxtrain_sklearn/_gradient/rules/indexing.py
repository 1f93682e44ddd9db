"""Operators that pick elements by an index, and those that put them there. Indices have no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..reverse import Reverse, Rule, Thunk, flat_index, scatter_add, scatter_flat, shape_of, zeros_like


def _gather(r: Reverse) -> Sequence[Thunk]:
    """An index may be picked more than once: its gradients add up."""
    op, x, rank = r.op, r.x(), r.rank()
    axis = r.attribute("axis", 0) % rank
    before, after = np.arange(axis, dtype=np.int64), np.arange(axis + 1, rank, dtype=np.int64)
    size = op.Reshape(op.Size(r.x(1)), [1])
    shape = op.Concat(*_pieces(r, before), size, *_pieces(r, after), axis=0)
    index = op.Reshape(r.x(1), np.array([1] * axis + [-1] + [1] * (rank - axis - 1), np.int64))
    index = op.Cast(index, to=7)
    return [
        lambda: scatter_add(r, zeros_like(op, x), op.Expand(index, shape), op.Reshape(r.g, shape), axis, repeats=True)
    ]


def _pieces(r: Reverse, axes: np.ndarray) -> list[object]:
    return [r.op.Gather(shape_of(r.op, r.x()), axes)] if len(axes) else []


def _gather_elements(r: Reverse) -> Sequence[Thunk]:
    axis = r.attribute("axis", 0)
    return [lambda: scatter_add(r, zeros_like(r.op, r.x()), r.x(1), r.g, axis, repeats=True)]


def _gather_nd(r: Reverse) -> Sequence[Thunk]:
    places = r.again(flat_index(r.op, r.x()), r.x(1))
    return [lambda: scatter_flat(r, r.g, places, r.x(), repeats=True)]


def _scatter_elements(r: Reverse) -> Sequence[Thunk | None]:
    """What is put in replaces what was there, or is added to it."""
    op, axis, added = r.op, r.attribute("axis", 0), _adds(r)
    return (
        lambda: r.g if added else op.ScatterElements(r.g, r.x(1), zeros_like(op, r.x(2)), axis=axis),
        None,
        lambda: op.GatherElements(r.g, r.x(1), axis=axis),
    )


def _scatter_nd(r: Reverse) -> Sequence[Thunk | None]:
    op, added = r.op, _adds(r)
    return (
        lambda: r.g if added else op.ScatterND(r.g, r.x(1), zeros_like(op, r.x(2))),
        None,
        lambda: op.GatherND(r.g, r.x(1)),
    )


def _adds(r: Reverse) -> bool:
    reduction = r.attribute("reduction", "none")
    if reduction not in ("none", "add"):
        r.refuse(f"only reductions 'none' and 'add' have a gradient, not {reduction!r}")
    return bool(reduction == "add")


def _top_k(r: Reverse) -> Sequence[Thunk]:
    axis = r.attribute("axis", -1)
    places = r.further_output(1, ir.DataType.INT64, r.y.shape)
    return [lambda: r.op.ScatterElements(zeros_like(r.op, r.x()), places, r.g, axis=axis)]


RULES: dict[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
}
