"""Plan a compiled function: views of values, constants, checks, stages, and the memory that they share.

:class:`FunctionPlan` collects these while :mod:`.nodes` translates a graph node by node; then :func:`places_of` assigns
memory to the buffers, and :mod:`.code` writes the stages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from .._ir import queries
from .elementwise import EmitElements, unchanged
from .kernels import RegisterTile
from .products import ProductStage
from .stages import ARRAY_TYPES, LARGEST_INTEGER, Elementwise, RangeCheck, Stage
from .views import Buffer, Shape, View, new_view, strides_of


class NotCompiledError(Exception):
    """No stage computes a node, or a value of the graph."""


class FunctionPlan:
    """State of a graph's translation, node by node.

    Parameters
    ----------
    tile : RegisterTile
        The part of a product that is computed at once.

    Attributes
    ----------
    stages : list of Stage
    constants : dict of Buffer to ndarray
        The arrays that the stages read in addition to the inputs of the graph.
    checks : list of str
        The message of check ``i`` is ``checks[i - 1]``; "{}" stands for the offending element.
    status : Buffer
        Runs write two numbers here: that of the first failed check, and the offending element.
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
        """Make runs fail if an element is outside ``[low, high)``, the two ``bounds``.

        ``reason`` is the message, with "{}" for the element.
        """
        once = view.without_repeats()
        key = once, *bounds
        if key not in self._checked:
            self._checked.add(key)
            self.checks.append(reason)
            self.stages.append(RangeCheck(self.contiguous(once), *bounds, len(self.checks), self.status))

    def set(self, value: ir.Value, view: View) -> None:
        """Record the view of a value."""
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
        """Fuse an operation into the first stage of its shape that has its operands; without one, add a stage."""
        shape = np.broadcast_shapes(*(view.shape for view in operands))
        given = [view.broadcast(shape) for view in operands]
        result = new_view(shape)
        # The earliest stage that may have the operation is the last one that writes an operand.
        after = max((self._written.get(view.buffer, -1) for view in given), default=-1)
        for i in range(max(after, 0), len(self.stages)):
            stage = self.stages[i]
            if isinstance(stage, Elementwise) and stage.shape == shape:
                # An operand that this stage writes must be one of its whole results, in the same element order; a view
                # of one may read elements that are not computed yet.
                own = [v for v in given if self._written.get(v.buffer, -1) == i]
                computed = stage.results()
                if all(view in computed for view in own):
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
        """Return the view, or that of a copy, with contiguous elements in memory."""
        return view if view.is_contiguous and view.buffer.number is None else self.copy(view)

    def reshaped(self, view: View, shape: Shape) -> View:
        """Return the elements in another shape, copied unless they are contiguous."""
        return self.contiguous(view)._replace(shape=shape, strides=strides_of(shape))

    def output(self, value: ir.Value, taken: Iterable[Buffer]) -> View:
        """Return the view of an output of the graph, which has a buffer of its own."""
        view = self.view(value)
        # The view can be returned as it is only if it fills a buffer that stages write and no other output uses.
        own = view.is_contiguous and view.size == view.buffer.size and view.buffer in self._written
        return view if own and view.buffer not in taken else self.copy(view)

    def keep(self, outputs: Iterable[View]) -> None:
        """Mark the results that elementwise stages must write to memory: outputs, and views that other stages read."""
        wanted = {view.buffer for view in outputs}.union(view.buffer for stage in self.stages for view in stage.read())
        for stage in self.stages:
            if isinstance(stage, Elementwise):
                stage.kept = {result for result in stage.results() if result.buffer in wanted}


def _with_elements(value: ir.Value, shape: Shape) -> Shape:
    """Return the shape of a value; raise if it has no elements."""
    if 0 in shape:
        raise NotCompiledError(f"{value.name!r} has no elements")
    return shape


def _require_numbers(value: ir.Value) -> None:
    """Raise unless a value has the type float32, bool or integer; the last two are stored as float32."""
    if value.dtype not in (None, ir.DataType.FLOAT, *ARRAY_TYPES):
        raise NotCompiledError(f"{value.name!r} has the type {value.dtype}, not float32")


# Operands of nodes, for the modules that translate them.


def first_operand(node: ir.Node) -> ir.Value:
    """Return the first input of a node, which its operator requires."""
    value = node.inputs[0]
    assert value is not None
    return value


def operand_views(plan: FunctionPlan, node: ir.Node) -> list[View]:
    """Return the views of the inputs that are given."""
    return [plan.view(value) for value in node.inputs if value is not None]


def known_operand(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the array of an input that has to be a constant; None if the optional input is absent."""
    value = queries.operand(node, index)
    if value is None:
        return None
    array = queries.constant(value)
    if array is None:
        raise NotCompiledError(f"{queries.node_label(node)} computes {value.name!r}, which has to be a constant")
    return array


def loaded(plan: FunctionPlan, view: View) -> View:
    """Return a view that can be read from memory."""
    return view if view.buffer.number is None else plan.copy(view)


# Memory: a buffer reuses the place of buffers that no later stage reads.


LINE = 16
"""Float32 numbers in a line of the processor's cache."""


def places_of(stages: Sequence[Stage], external: Collection[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Return the first element of each buffer that is not external, and the number of elements of all.

    A buffer gets the first gap, in the order of the stages, that is large enough; places are whole cache lines.
    """
    last = {view.buffer: i for i, stage in enumerate(stages) for view in stage.read()}
    places = dict[Buffer, int]()
    ends = dict[Buffer, int]()
    known = set(external)
    total = 0
    # Reusing memory keeps a small network's intermediate results in the cache.
    for i, stage in enumerate(stages):
        written = [view.buffer for view in stage.written()]
        written += [stage.scratch] if isinstance(stage, ProductStage) else []
        new = [buffer for buffer in dict.fromkeys(written) if buffer not in known]
        known.update(new)
        for buffer in new:
            place = 0
            for other in sorted(ends, key=places.__getitem__):
                if places[other] - place >= buffer.size:
                    break
                place = max(place, ends[other])
            places[buffer] = place
            ends[buffer] = place + -(-buffer.size // LINE) * LINE
            total = max(total, ends[buffer])
        # Free the places of buffers that no later stage reads; of one that none reads, at once.
        for buffer in [buffer for buffer in ends if last.get(buffer, i) <= i]:
            del ends[buffer]
    return places, total
