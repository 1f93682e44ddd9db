"""Plan a compiled function: values as views of buffers, tables of constants, stages and reused memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .._ir import queries
from .elementwise import EmitElements, unchanged
from .kernels import RegisterTile
from .llvm_text import Index, Join, Text, literal, vector_type
from .products import ProductStage
from .reductions import MAXIMUM, joined
from .stages import LANES, Buffer, Elementwise, Placement, Shape, Stage, View, chunks, merged_axes, new_view

LARGEST_INTEGER = 2**24
"""Float32 holds every integer below it."""


class NotCompiledError(Exception):
    """A node, or a value, that no stage computes."""


class FunctionPlan:
    """State of a graph's translation, node by node.

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
    """Return True if a stage computes these views itself, in the order in which they are read."""
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


# Operands of nodes as views of a plan, for the modules that translate nodes.


def first_operand(node: ir.Node) -> ir.Value:
    """Return the first input of a node, which its operator requires."""
    value = node.inputs[0]
    assert value is not None
    return value


def operand_views(plan: FunctionPlan, node: ir.Node) -> list[View]:
    """Return the views of the inputs that are given."""
    return [plan.view(value) for value in node.inputs if value is not None]


def known_operand(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the array of an input that has to be a constant; None where it is left out."""
    value = queries.operand(node, index)
    if value is None:
        return None
    array = queries.constant(value)
    if array is None:
        raise NotCompiledError(f"{queries.describe(node)} computes {value.name!r}, which has to be a constant")
    return array


def loaded(plan: FunctionPlan, view: View) -> View:
    """Return a view that can be read from memory."""
    return view if view.buffer.number is None else plan.copy(view)


# Places of buffers in the memory of a run: one takes the place of others that are read no more.


LINE_NUMBERS = 16
"""Numbers to a line of the processor's cache."""


def places_of(stages: Sequence[Stage], external: Collection[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Return the first element of each buffer that is not external, and the elements of all."""
    last = {view.buffer: i for i, stage in enumerate(stages) for view in stage.read()}
    places, ends, known = dict[Buffer, int](), dict[Buffer, int](), set(external)
    total = 0
    for i, stage in enumerate(stages):
        for buffer in _new(stage, known):
            place = _free_place(buffer.size, places, ends)
            places[buffer] = ends[buffer] = place
            ends[buffer] += -(-buffer.size // LINE_NUMBERS) * LINE_NUMBERS
            total = max(total, ends[buffer])
        for buffer in [buffer for buffer in ends if last.get(buffer, i) <= i]:
            del ends[buffer]
    return places, total


def _new(stage: Stage, known: set[Buffer]) -> list[Buffer]:
    """Return the buffers that a stage is the first to write."""
    written = [view.buffer for view in stage.written()]
    written += [stage.scratch] if isinstance(stage, ProductStage) else []
    found = [buffer for buffer in dict.fromkeys(written) if buffer not in known]
    known.update(found)
    return found


def _free_place(size: int, places: Mapping[Buffer, int], ends: Mapping[Buffer, int]) -> int:
    """Return the first place with enough room between the buffers that are still read."""
    start = 0
    for buffer in sorted(ends, key=places.__getitem__):
        if places[buffer] - start >= size:
            break
        start = max(start, ends[buffer])
    return start


# Other types as numbers, checks of numbers, and elements at computed indices.
#
# Integers and truth values are float32 like all other numbers. An integer from 2**24 on is rounded once: as an index it
# stays beyond every table, and what computes with it is to check it.


ARRAY_TYPES: dict[ir.DataType, tuple[type[np.generic], str, int]] = {
    ir.DataType.INT64: (np.int64, "i64", 8),
    ir.DataType.INT32: (np.int32, "i32", 4),
    ir.DataType.BOOL: (np.bool_, "i8", 1),
}
"""Types of arrays that are not float32: NumPy's, LLVM's, and the bytes of an element."""


@dataclass(eq=False)
class Conversion:
    """Integers or truth values as float32, rounded, or integers of 64 bits from float32; both views are contiguous."""

    source: View
    result: View
    kind: ir.DataType
    back: bool = False

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        _, type_, size = ARRAY_TYPES[self.kind]
        with text.loop(self.result.size) as loop:
            stored = self.result if self.back else self.source
            place = text.value(f"getelementptr {type_}, ptr {stored.buffer.pointer}, i64 {loop.index}")
            if self.back:
                number = text.load(self.source.buffer.pointer, text.add(loop.index, self.source.offset))
                text.lines.append(f"  store {type_} {_integer(text, number)}, ptr {place}, align {size}")
                return
            integer = text.value(f"load {type_}, ptr {place}, align {size}")
            text.store(text.value(f"sitofp {type_} {integer} to float"), self.result.buffer.pointer, loop.index)


@dataclass(eq=False)
class RangeCheck:
    """A test of all elements of a contiguous view: at least ``low``, and below ``high``.

    The first check of a run that fails writes its number to ``status``, then a number that is not in the range.
    """

    source: View
    low: float
    high: float
    number: int
    status: Buffer

    NONE: ClassVar = -np.inf

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return []

    def write(self, text: Text) -> None:
        worst = literal(self.NONE, 1)
        for first, count, width in chunks(self.source.size, LANES):
            with text.loop(count * width, width, [(vector_type(width), literal(self.NONE, width))]) as loop:
                place = text.add(loop.index, self.source.offset + first)
                value = text.load(self.source.buffer.pointer, place, width)
                loop.following = [MAXIMUM.join(text, loop.carried[0], self._outside(text, value, width), width)]
            worst = MAXIMUM.join(text, worst, joined(text, loop.following[0], width, MAXIMUM), 1)
        self._report(text, worst)

    def _outside(self, text: Text, value: str, width: int) -> str:
        """Add the numbers that are not in the range, NONE for the others; NaN is in no range."""
        type_, truths = vector_type(width), "i1" if width == 1 else f"<{width} x i1>"
        tests = [
            text.value(f"fcmp {test} {type_} {value}, {literal(bound, width)}")
            for test, bound in (("oge", self.low), ("olt", self.high))
        ]
        inside = text.value(f"and {truths} {tests[0]}, {tests[1]}")
        finite = text.call("maximum", [value, literal(float(np.finfo(np.float32).min), width)], width)
        return text.value(f"select {truths} {inside}, {type_} {literal(self.NONE, width)}, {type_} {finite}")

    def _report(self, text: Text, worst: str) -> None:
        before = [text.load(self.status.pointer, i) for i in range(2)]
        failed = text.value(f"fcmp une float {worst}, {literal(self.NONE, 1)}")
        is_first = text.value(f"fcmp oeq float {before[0]}, {literal(0.0, 1)}")
        writes = text.value(f"and i1 {failed}, {is_first}")
        for i, (new, old) in enumerate(zip((literal(self.number, 1), worst), before, strict=True)):
            text.store(text.value(f"select i1 {writes}, float {new}, float {old}"), self.status.pointer, i)


@dataclass(eq=False)
class Selection:
    """Elements at indices along an axis of a table, read from it or joined with what it has there, one by one in order.

    Attributes
    ----------
    table, indices, elements : View
        Of one shape; the table has the stride 0 along the axis. Indices count from the end where they are negative;
        those outside the table select its first element.
    length, step : int
        Of the axis.
    scatters : bool
        Whether the table is written.
    join : callable or None
        What joins an element with the one in the table; None: it takes its place.
    """

    table: View
    indices: View
    elements: View
    length: int
    step: int
    scatters: bool = False
    join: Join | None = None

    def read(self) -> Sequence[View]:
        return [self.table, self.indices, *([self.elements] if self.scatters else [])]

    def written(self) -> Sequence[View]:
        return [self.table if self.scatters else self.elements]

    def write(self, text: Text) -> None:
        views = self.table, self.indices, self.elements
        shape, strides = merged_axes(self.table.shape, [view.strides for view in views])
        self._nest(text, shape, [Placement(view.offset, steps) for view, steps in zip(views, strides, strict=True)])

    def _nest(self, text: Text, shape: Shape, places: Sequence[Placement]) -> None:
        """Add a loop for each axis but the last."""
        if len(shape) > 1:
            with text.loop(shape[0]) as loop:
                self._nest(text, shape[1:], [place.inner(text, loop.index) for place in places])
            return
        table, indices, elements = places
        width = LANES if (table.step, indices.step, elements.step) == (1, 0, 1) else 1
        at_row = None if indices.step else self._start(text, table.start, indices.start)
        for first, count, lanes in chunks(shape[0] if shape else 1, width):
            with text.loop(count * lanes, lanes) as loop:
                index = text.add(loop.index, first)
                start = self._start(text, table.start, indices.at(text, index)) if at_row is None else at_row
                at = text.add(start, text.multiply(index, table.step))
                self._move(text, at, elements.at(text, index), lanes)

    def _start(self, text: Text, start: Index, place: Index) -> Index:
        """Add where the chosen row starts, never one outside the table."""
        row = _integer(text, text.load(self.indices.buffer.pointer, place))
        before = text.value(f"icmp slt i64 {row}, 0")
        turned = text.value(f"add i64 {row}, {self.length}")
        row = text.value(f"select i1 {before}, i64 {turned}, i64 {row}")
        inside = text.value(f"icmp ult i64 {row}, {self.length}")
        row = text.value(f"select i1 {inside}, i64 {row}, i64 0")
        return text.add(start, text.multiply(row, self.step))

    def _move(self, text: Text, at: Index, place: Index, lanes: int) -> None:
        table, elements = self.table.buffer.pointer, self.elements.buffer.pointer
        if not self.scatters:
            text.store(text.load(table, at, lanes), elements, place, lanes)
            return
        value = text.load(elements, place, lanes)
        text.store(self.join(text, text.load(table, at, lanes), value, lanes) if self.join else value, table, at, lanes)


def _integer(text: Text, number: str) -> str:
    """Add a number as an integer; the nearest one of 64 bits where there is none, 0 for NaN."""
    text.declare("declare i64 @llvm.fptosi.sat.i64.f32(float)")
    return text.value(f"call i64 @llvm.fptosi.sat.i64.f32(float {number})")
