"""The values of a graph as views, and the stages that compute them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from .._graph import queries
from .elementwise import EmitElements, unchanged
from .kernels import RegisterTile
from .stages import Elementwise, Stage
from .tables import ARRAY_TYPES, RangeCheck
from .views import Buffer, Shape, View, new_view

LARGEST_INTEGER = 2**24
"""Float32 holds every integer below it."""


class NotCompiledError(Exception):
    """A node, or a value, that no stage computes."""


class FunctionPlan:
    """What is known while the nodes of a graph are translated.

    Parameters
    ----------
    tile : RegisterTile
        What products compute at once.

    Attributes
    ----------
    stages : list of Stage
    constants : dict of Buffer to ndarray
        The arrays that the stages read beside the inputs of the graph.
    checks : list of str
        What is wrong where a check of a run fails, by its number from 1 on; "{}" stands for a number.
    status : Buffer
        Where runs write the number of the check that failed.
    """

    def __init__(self, tile: RegisterTile) -> None:
        self.tile, self.status = tile, Buffer(2)
        self.checks = list[str]()
        self._checked = set[tuple[View, float, float]]()
        self.stages: list[Stage] = []
        self.constants = dict[Buffer, np.ndarray]()
        self._views = dict[ir.Value, View]()
        self._written = dict[Buffer, int]()

    def shape(self, value: ir.Value) -> Shape:
        """Return the sizes of a value."""
        _require_numbers(value)
        sizes = queries.dims(value)
        if not queries.fixed(sizes):
            raise NotCompiledError(f"{value.name!r} has a shape that is not known")
        return _with_elements(value, tuple(sizes))

    def view(self, value: ir.Value) -> View:
        """Return the view of an operand."""
        if value not in self._views:
            array = queries.constant(value)
            if array is None:
                raise NotCompiledError(f"{value.name!r} is not computed")
            self._views[value] = self._constant(value, array)
        return self._views[value]

    def _constant(self, value: ir.Value, array: np.ndarray) -> View:
        view = new_view(self.shape(value))
        if array.dtype.kind == "i" and np.abs(array.astype(float)).max(initial=0) >= LARGEST_INTEGER:
            raise NotCompiledError(f"{value.name!r} has integers from {LARGEST_INTEGER} on")
        if view.size == 1:
            view.buffer.number = float(array.reshape(()))
        self.constants[view.buffer] = np.ascontiguousarray(array, np.float32)
        return view

    def number(self, number: float) -> View:
        """Return the view of a number."""
        view = new_view(())
        view.buffer.number = number
        self.constants[view.buffer] = np.array(number, np.float32)
        return view

    def array(self, array: np.ndarray) -> View:
        """Return the view of numbers, or of truth values."""
        view = new_view(array.shape)
        self.constants[view.buffer] = np.ascontiguousarray(array, np.float32)
        return view

    def require(self, view: View, bounds: tuple[float, float], reason: str) -> None:
        """Let runs fail where an element is not from the first of two bounds on and below the second.

        ``reason`` says what is wrong then, with "{}" for the element.
        """
        once = view.without_repeats()
        key = once, *bounds
        if key not in self._checked:
            self._checked.add(key)
            self.checks.append(reason)
            self.stages.append(RangeCheck(self.contiguous(once), *bounds, len(self.checks), self.status))

    def set(self, value: ir.Value, view: View) -> None:
        """Let a value be a view."""
        _require_numbers(value)
        _with_elements(value, view.shape)  # a loop over no elements would run once
        if queries.fixed(sizes := queries.dims(value)) and tuple(sizes) != view.shape:
            raise NotCompiledError(f"{value.name!r} has the shape {sizes}, computed as {list(view.shape)}")
        self._views[value] = view

    def add(self, stage: Stage, result: View) -> View:
        """Add a stage; return its result."""
        self._written[result.buffer] = len(self.stages)
        self.stages.append(stage)
        return result

    def elementwise(self, emit: EmitElements, operands: Sequence[View]) -> View:
        """Add an operation to the first stage over its shape that knows the operands, or to a new one."""
        shape = np.broadcast_shapes(*(view.shape for view in operands))
        given, result = [view.broadcast(shape) for view in operands], new_view(shape)
        after = max((self._written.get(view.buffer, -1) for view in given), default=-1)
        for i in range(max(after, 0), len(self.stages)):
            stage = self.stages[i]
            if (
                isinstance(stage, Elementwise)
                and stage.shape == shape
                and _reads_in_order(stage, [v for v in given if self._written.get(v.buffer, -1) == i])
            ):
                break
        else:
            i, stage = len(self.stages), Elementwise(shape)
            self.stages.append(stage)
        stage.operations.append((emit, given, result))
        self._written[result.buffer] = i
        return result

    def copy(self, view: View) -> View:
        """Return the elements of a view in a buffer of their own."""
        return self.elementwise(unchanged, [view])

    def copy_into(self, view: View, place: View) -> None:
        """Copy the elements of a view to a place in another buffer."""
        stage = Elementwise(view.shape, [(unchanged, [view], place)])
        self.add(stage, place)

    def contiguous(self, view: View) -> View:
        """Return a view whose elements follow each other in memory, if need be of a copy."""
        return view if view.is_contiguous and view.buffer.number is None else self.copy(view)

    def output(self, value: ir.Value, taken: Iterable[Buffer]) -> View:
        """Return the view of an output of the graph, which has a buffer of its own."""
        view = self.view(value)
        own = view.is_contiguous and view.size == view.buffer.size and view.buffer in self._written
        return view if own and view.buffer not in taken else self.copy(view)

    def keep(self, outputs: Iterable[View]) -> None:
        """Let the elementwise stages write what other stages read, and the outputs."""
        wanted = {view.buffer for view in outputs}.union(view.buffer for stage in self.stages for view in stage.read())
        for stage in self.stages:
            if isinstance(stage, Elementwise):
                stage.kept = {result for result in stage.results() if result.buffer in wanted}


def _reads_in_order(stage: Elementwise, written: Iterable[View]) -> bool:
    """Whether a stage computes these views itself, as they are read: in the order in which it computes them."""
    computed = stage.results()
    return all(view in computed for view in written)


def _with_elements(value: ir.Value, shape: Shape) -> Shape:
    """Return the shape of a value; raise if it has no elements."""
    if 0 in shape:
        raise NotCompiledError(f"{value.name!r} has no elements")
    return shape


def _require_numbers(value: ir.Value) -> None:
    """Raise for other types than floats, truth values, and integers, which are held as floats."""
    if value.dtype not in (None, ir.DataType.FLOAT, *ARRAY_TYPES):
        raise NotCompiledError(f"{value.name!r} has the type {value.dtype}, not float32")
