"""The batch axis of a graph: fix its size, and find where rows meet along it.

:func:`with_batch` makes the copy that a training step runs. It infers the shapes of all values from those of the
inputs (:func:`infer_anew`), because the file may declare sizes that hold only for another batch. ``fixed_batch`` lets a
file of a fixed batch take any number of rows.

Rows *meet* at a node if one row of the minibatch affects the result of another. :func:`trace_rows` goes through the
nodes in order and tracks the *place* of the rows in each value (:class:`Rows`): their axis, and how many elements of
that axis belong to one row. ``RULES`` has a function for each operator that returns the places in the outputs of a node
from those in its inputs. It raises :class:`RowsMeet` if the operator reduces, sorts, multiplies or moves along the axis
of the rows, and :class:`Unknown` if it cannot tell. An operator or a setting without a rule is unknown; the caller may
then try it with numbers (``_training/rows_meet``).

Numbers that depend on the number of rows, such as results of Shape, are tracked separately: an operator may read them
as sizes, but not as data, because every row would then depend on how many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from .._ir.control_flow import complete_bodies, states_of_known_start
from .._ir.queries import attribute, constant, dims, graphs_in, kind, node_label, operand, opset
from .._ir.shape_values import Integers, evaluate, is_complete, note_constant
from .._ir.shapes import forget_shapes, infer_shapes

SIZES = "sizes_of_example"
"""Name of the input that graphs of one example a pass have: the sizes of its free axes, in the order of the inputs."""


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """Return a clone whose inputs have ``batch`` rows, with shapes inferred anew.

    A value whose shape cannot be inferred keeps its declared shape, with ``batch`` as the size of the batch axis.
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
        if value.shape is None:  # not inferred, for example after operators of other domains
            sizes = [batch if isinstance(d, ir.SymbolicDim) and d.value and d.value in rows else d for d in shape]
            value.shape = ir.Shape(sizes)
    return fixed


def infer_anew(model: ir.Model) -> ir.Model:
    """Infer all shapes from those of the inputs, in place; drop the declared shapes of computed values."""
    for value in states_of_known_start(model.graph):
        value.shape = None
    forget_shapes(model.graph)
    infer_shapes(model)
    complete_bodies(model)
    return model


ROW_LOSSES = "onnxtrain/row_losses"
"""Key in the ``meta`` of values that hold the losses of the rows, with the rows on the first axis."""


class Rows(NamedTuple):
    """The place of the rows in a value: the axis ``axis`` has ``before * N * after`` elements, for N rows.

    The index of an element on this axis is ``(i * N + row) * after + j``, where i < ``before`` and j < ``after``.
    Reshapes that join or split axes change ``before`` and ``after``.
    """

    axis: int
    before: int = 1
    after: int = 1


Place: TypeAlias = "Rows | None"
"""The place of the rows in a value; None if the value does not depend on the rows."""

BATCH = 1_000_003
"""The size that stands for a free number of rows: a large prime number, which no other axis has."""


class Finding(NamedTuple):
    """The result of :func:`trace_rows`: rows meet at ``node``, do not meet (no ``node``), or may meet there.

    Attributes
    ----------
    certain : bool
        Whether the result is proven; if not, rows may or may not meet at ``node``.
    node : str
        The node where rows meet or may meet; empty if they do not.
    """

    certain: bool
    node: str = ""


class RowsMeet(Exception):
    """Raised by a rule if rows meet at a node."""


class Unknown(Exception):
    """Raised by a rule if it cannot tell how a node affects the rows."""


def trace_rows(graph: ir.Graph, by_row: Collection[str], ends: Iterable[ir.Value], batch: int = 0) -> Finding:
    """Return whether and where rows meet between the inputs and ``ends``, whose first axis must be that of the rows.

    Parameters
    ----------
    graph : onnx_ir.Graph
        A graph with inferred shapes.
    by_row : collection of str
        The inputs whose first axis is that of the rows; the other inputs do not depend on the rows.
    ends : iterable of onnx_ir.Value
        The scores, or the losses of rows.
    batch : int, default=0
        The number of rows; 0 if it is free, so that the first axis of these inputs has a name instead of a size.
    """
    ends = list(ends)
    upstream, front = set[ir.Node](), list(ends)
    while front:
        node = front.pop().producer()
        if node is not None and node not in upstream:
            upstream.add(node)
            front += [x for x in node.inputs if x is not None]

    tracer = Tracer(graph, by_row, batch)
    unknown: Finding | None = None
    for node in (node for node in graph if node in upstream):
        try:
            tracer.add(node)
        except RowsMeet:
            return Finding(True, node_label(node))
        except Unknown:  # continue, because rows may certainly meet at a later node whose inputs are known
            unknown = unknown or Finding(False, node_label(node))
    if unknown is not None:
        return unknown
    for end in ends:
        place = tracer.places.get(end)
        if place is not None and (place.axis, place.before) != (0, 1):
            return Finding(False, f"The value {end.name!r}")
    return Finding(True)


class Tracer:
    """The places of the rows in the values of a graph, found node by node.

    Attributes
    ----------
    places : dict of onnx_ir.Value to Rows or None
        The known places; None for a value that does not depend on the rows.
    unknown : set of onnx_ir.Value
        Values in which the place of the rows is not known.
    counts : set of onnx_ir.Value
        Values that hold numbers computed from the number of rows.
    known : dict of onnx_ir.Value to ndarray
        The integers in values that hold sizes, as far as they are known; other elements are None.
    batch : int
        The number of rows, or :data:`BATCH`.
    """

    def __init__(self, graph: ir.Graph, by_row: Collection[str], batch: int) -> None:
        self.places: dict[ir.Value, Rows | None] = {}
        self.unknown, self.counts = set[ir.Value](), set[ir.Value]()
        self.known: Integers = {}
        inputs = [value for value in graph.inputs if value.name in by_row]
        self.batch = batch or BATCH
        self._names = {sizes[0] for sizes in map(dims, inputs) if sizes and isinstance(sizes[0], str)}
        for value in graph.inputs:
            self.places[value] = Rows(0) if value in inputs else None
        for value in graph.initializers.values():
            self.places.setdefault(value, None)
            if value.const_value is not None and value.name not in by_row and value.const_value.size <= 64:
                note_constant(self.known, value, value.const_value)

    def add(self, node: ir.Node) -> None:
        """Find the place of the rows in each output of a node; raise RowsMeet or Unknown."""
        if any(x in self.unknown for x in node.inputs if x is not None):
            self.unknown.update(node.outputs)
            raise Unknown
        try:
            found = self._outputs(node)
        except RowsMeet:
            raise
        # a rule may fail on an invalid or unusual node, whose effect is then unknown
        except (Unknown, ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
            self.unknown.update(node.outputs)
            raise Unknown from error
        places = found if isinstance(found, list) else [found] * len(node.outputs)
        self.places.update(zip(node.outputs, places, strict=False))
        evaluate(node, self.known)

    def _outputs(self, node: ir.Node) -> Result:
        name = kind(node)
        if name in ("Shape", "Size"):
            self._note_count(node)
            return None
        if any(x in self.counts for x in node.inputs if x is not None):
            self._require_sizes(node)
        places = [self.place(x) for x in node.inputs]
        if not any(places):
            if graphs_in(node):
                raise Unknown  # a body may read values of the outer graph
            sized = any(x in self.counts for x in node.inputs if x is not None) and node.outputs[0] not in self.counts
            return self._place_of_sizes(node) if sized else None
        if name not in RULES:
            raise Unknown
        return RULES[name](self, node)

    def _note_count(self, node: ir.Node) -> None:
        """Evaluate Shape or Size; add the result to :attr:`counts` if it depends on the number of rows."""
        evaluate(node, self.known)
        x, value = node.inputs[0], node.outputs[0]
        found, place = self.known.get(value), self.place(x)
        if self.batch == BATCH:
            depends = found is None or not is_complete(found)
        else:
            axes = range(self.rank(x))[slice(attribute(node, "start", None), attribute(node, "end", None))]
            of_rows = place is not None and (node.op_type == "Size" or place.axis in axes)
            depends = of_rows or found is None or any(int(size) % self.batch == 0 for size in found.ravel())
        if depends:
            self.counts.add(value)

    def _require_sizes(self, node: ir.Node) -> None:
        """Raise Unknown if a node reads numbers that depend on the number of rows, except as sizes.

        If it computes other sizes from these, add them to :attr:`counts`.
        """
        name, value = kind(node), node.outputs[0]
        allowed = _SIZE_OPERANDS.get(name, ())
        if name != "Range" and all(x not in self.counts or i in allowed for i, x in enumerate(node.inputs)):
            return
        if name not in _OF_SIZES or any(self.place(x) for x in node.inputs if x is not None):
            raise Unknown
        evaluate(node, self.known)
        found = self.known.get(value)
        if self.batch == BATCH and found is not None and is_complete(found):
            return  # the value depends only on sizes of other axes
        if value.dtype is None or value.dtype.is_floating_point():
            raise Unknown
        self.counts.update(node.outputs)

    def _place_of_sizes(self, node: ir.Node) -> Rows | None:
        """Return the place of the rows in a value that is made from sizes alone, such as zeros in a computed shape."""
        known = self.known.get(node.outputs[0])
        if self.batch == BATCH and known is not None and is_complete(known):
            return None  # the value depends only on sizes of other axes
        sizes = self.sizes(node.outputs[0])
        if None in sizes or not all(sizes):
            raise Unknown
        axes = [axis for axis, size in enumerate(sizes) if size and size % self.batch == 0]
        if any(sizes[axis] != self.batch for axis in axes) or len(axes) > 1:
            raise Unknown
        return Rows(axes[0]) if axes else None

    def place(self, value: ir.Value | None) -> Rows | None:
        """Return the place of the rows in a value."""
        if value is None:
            return None
        if value not in self.places and value.producer() is None:
            return None
        return self.places[value]

    def of(self, node: ir.Node, index: int) -> Rows | None:
        """Return the place of the rows in an operand of a node."""
        return self.place(operand(node, index))

    def rank(self, value: ir.Value | None) -> int:
        sizes = dims(value)
        if sizes is None:
            raise Unknown
        return len(sizes)

    def sizes(self, value: ir.Value | None) -> list[int | None]:
        """Return the sizes of the axes of a value, with :attr:`batch` for the number of rows and None for unknown."""
        found = dims(value)
        if found is None:
            raise Unknown
        sizes = [d if isinstance(d, int) else self.batch if d in self._names else None for d in found]
        if value is not None and (place := self.places.get(value)) is not None:
            sizes[place.axis] = place.before * self.batch * place.after
        return sizes

    def fixed(self, *values: ir.Value | None) -> None:
        """Raise Unknown if any of the values depends on the rows, because the rule is only for fixed operands."""
        if any(self.place(x) is not None for x in values):
            raise Unknown

    def integers(self, value: ir.Value | None) -> list[int]:
        """Return the integers in a value; raise Unknown if they are not known."""
        array = None if value is None else self.known.get(value)
        if array is None and value is not None:
            array = constant(value)
        if array is None or not is_complete(array.astype(object)):
            raise Unknown
        return [int(x) for x in array.ravel()]

    def aligned(self, node: ir.Node, values: Sequence[ir.Value | None]) -> Rows | None:
        """Return the place of the rows in the result of an elementwise operation on broadcast operands."""
        sizes, found = dims(node.outputs[0]), set[Rows]()
        rank = len(sizes) if sizes is not None else max(self.rank(x) for x in values if x is not None)
        for value in values:
            place = self.place(value)
            if place is not None:
                found.add(place._replace(axis=place.axis + rank - self.rank(value)))
        if len(found) > 1:  # rows lie along two axes, so each row of one operand meets each row of the other
            raise RowsMeet if len({place.axis for place in found}) > 1 else Unknown
        return next(iter(found), None)


def _along(place: Rows, axes: Iterable[int]) -> None:
    """Raise RowsMeet if the rows lie on one of ``axes``, along which an operator reduces, sorts or moves."""
    if place.axis in axes:
        raise RowsMeet


def _required(place: Place) -> Rows:
    """Return a place that must not be None; raise Unknown if it is, because the rule expects rows in this operand."""
    if place is None:
        raise Unknown
    return place


Result: TypeAlias = "Rows | list[Rows | None] | None"
Rule: TypeAlias = "Callable[[Tracer, ir.Node], Result]"


def _first_alone(s: Tracer, node: ir.Node) -> Result:
    """Return the place in the first input, for operators whose other inputs are settings."""
    s.fixed(*node.inputs[1:])
    return _required(s.of(node, 0))


def _on_first_axis(s: Tracer, node: ir.Node) -> Result:
    """Return the first axis, for operators that treat each element of the first axis of all inputs separately."""
    places = {s.place(x) for x in node.inputs} - {None}
    if places != {Rows(0)}:
        raise Unknown
    return Rows(0)


def _attention(s: Tracer, node: ir.Node) -> Result:
    if s.of(node, 3) is not None and s.rank(node.inputs[3]) < 4:  # a mask without an axis of rows
        raise Unknown
    return _on_first_axis(s, node)


def _first_with_fixed(s: Tracer, node: ir.Node) -> Result:
    """Return the first axis, for operators that treat each element of the first axis of the first input separately."""
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    if place.axis != 0:
        raise Unknown
    return place


def _reduction(s: Tracer, node: ir.Node) -> Result:
    x, place = node.inputs[0], _required(s.of(node, 0))
    has_axes = attribute(node, "axes", None) is not None or operand(node, 1) is not None
    axes = _axes_of(s, node) if has_axes else []
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        return place
    rank = s.rank(x)
    axes = [axis % rank for axis in axes] or [*range(rank)]
    _along(place, axes)
    gone = 0 if node.attributes.get_int("keepdims", 1) else sum(axis < place.axis for axis in axes)
    return place._replace(axis=place.axis - gone)


def _arg_extreme(s: Tracer, node: ir.Node) -> Result:
    """Return the place of the rows in the result of ArgMax or ArgMin."""
    place = _required(s.of(node, 0))
    axis = node.attributes.get_int("axis", 0) % s.rank(node.inputs[0])
    _along(place, [axis])
    return place._replace(axis=place.axis - (not node.attributes.get_int("keepdims", 1) and axis < place.axis))


def _softmax(s: Tracer, node: ir.Node) -> Result:
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    single = opset(node) >= 13
    axis = node.attributes.get_int("axis", -1 if single else 1) % rank
    _along(place, [axis] if single else range(axis, rank))
    return place


def _over_last_axes(default: int) -> Rule:
    """Return the rule for normalizations over an axis and all later axes, with scales that do not depend on rows."""

    def rule(s: Tracer, node: ir.Node) -> Result:
        s.fixed(*node.inputs[1:])
        place = _required(s.of(node, 0))
        rank = s.rank(node.inputs[0])
        _along(place, range(node.attributes.get_int("axis", default) % rank, rank))
        return place

    return rule


def _along_axis(default: int) -> Rule:
    """Return the rule for operators that move or combine elements along the axis that an attribute names."""

    def rule(s: Tracer, node: ir.Node) -> Result:
        s.fixed(*node.inputs[1:])
        place = _required(s.of(node, 0))
        _along(place, [node.attributes.get_int("axis", default) % s.rank(node.inputs[0])])
        return place

    return rule


def _along_axis_input(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    _along(place, [axis % rank for axis in s.integers(operand(node, 1))])
    return place


def _batch_normalization(s: Tracer, node: ir.Node) -> Result:
    place = _first_alone(s, node)
    assert isinstance(place, Rows)
    # Stored statistics do not mix rows. The caller checks for training mode, whose statistics do.
    return [place] + [None] * (len(node.outputs) - 1)


def _instance_normalization(s: Tracer, node: ir.Node) -> Result:
    place = _first_alone(s, node)
    assert isinstance(place, Rows)
    _along(place, range(2, s.rank(node.inputs[0])))
    return place


def _mean_variance(s: Tracer, node: ir.Node) -> Result:
    place = _required(s.of(node, 0))
    _along(place, [axis % s.rank(node.inputs[0]) for axis in attribute(node, "axes", [0, 2, 3])])
    return place


def _product(s: Tracer, node: ir.Node) -> Result:
    a, b = node.inputs[:2]
    s.fixed(*node.inputs[2:])
    return _product_of(s, a, b, False, False)


def _product_of(s: Tracer, a: ir.Value | None, b: ir.Value | None, turn_a: bool, turn_b: bool) -> Rows | None:
    """Return the place of the rows in a matrix product, whose leading axes are broadcast."""
    left = s.place(a)
    right = s.place(b)
    m = s.rank(a)
    n = s.rank(b)
    if m == 1 or n == 1:  # a vector has only the axis over which the product sums
        if left is not None and (m == 1 or left.axis == m - 1):
            raise RowsMeet
        if right is not None and (n == 1 or right.axis == n - 2):
            raise RowsMeet
        if left is not None and right is not None:
            raise Unknown
        if left is not None:
            return left
        row_place = _required(right)
        return row_place._replace(axis=row_place.axis - (row_place.axis == n - 1))
    # The product sums over the last axis of the left operand and the second to last axis of the right operand. A
    # transposed operand has its last two axes exchanged.
    rank, found = max(m, n), set[Rows]()
    for place, own, turned, summed in ((left, m, turn_a, 1), (right, n, turn_b, 2)):
        if place is None:
            continue
        axis = place.axis + rank - own
        if turned and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        if axis == rank - summed:
            raise RowsMeet
        found.add(place._replace(axis=axis))
    if len(found) > 1:
        raise RowsMeet if len({place.axis for place in found}) > 1 else Unknown
    place = next(iter(found))
    # If both operands have rows, these must lie along a shared leading axis: along one of the last two axes, each row
    # of one operand is multiplied by all rows of the other.
    if left is not None and right is not None and place.axis >= rank - 2:
        raise RowsMeet
    return place


def _gemm(s: Tracer, node: ir.Node) -> Result:
    a = node.inputs[0]
    b = node.inputs[1]
    c = operand(node, 2)
    turned = bool(node.attributes.get_int("transA", 0)), bool(node.attributes.get_int("transB", 0))
    place = _product_of(s, a, b, *turned) if s.place(a) or s.place(b) else None
    own = s.place(c)
    if own is not None:
        own = own._replace(axis=own.axis + 2 - s.rank(c))  # c is broadcast to the matrix
    if place is not None and own is not None and place != own:
        raise RowsMeet
    return place or own


def _transpose(s: Tracer, node: ir.Node) -> Result:
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    order = attribute(node, "perm", None) or [*reversed(range(rank))]
    return place._replace(axis=[*order].index(place.axis))


def _reshape(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    before, after = s.sizes(node.inputs[0]), s.sizes(node.outputs[0])
    # Compute sizes that shape inference left unknown: 0 copies the size of the data, and one size follows from others.
    if None in after and operand(node, 1) is not None:
        wanted = s.known.get(operand(node, 1))  # type: ignore[arg-type]
        if wanted is not None and wanted.ndim == 1 and len(wanted) == len(after):
            copies = not node.attributes.get_int("allowzero", 0)
            for i, size in enumerate(wanted):
                if after[i] is None and size == 0 and copies and i < len(before):
                    after[i] = before[i]
    if after.count(None) == 1 and None not in before:
        rest = math.prod(d for d in after if d is not None)
        total = math.prod(d or 0 for d in before)
        if rest and total % rest == 0:
            after[after.index(None)] = total // rest
    return _reshaped(_required(s.of(node, 0)), before, after, s.batch)


def _reshaped(place: Rows, before: list[int | None], after: list[int | None], batch: int) -> Rows:
    """Return the place of the rows after a reshape from axes of the sizes ``before`` to sizes ``after``.

    A reshape keeps the order of elements, so the number of elements before and after the rows stays the same.
    """
    if place == Rows(0) and after[:1] == before[:1] == [batch]:
        return place
    if None in before or None in after:
        raise Unknown
    outer = place.before * math.prod((d or 0) for d in before[: place.axis])
    # The rows lie on the first axis that starts no later than the rows and holds all of them in whole blocks.
    for axis, size in enumerate(d or 0 for d in after):
        leading = math.prod(d or 0 for d in after[:axis])
        if leading and outer % leading == 0 and size % (outer // leading * batch) == 0 and size:
            own = outer // leading
            return Rows(axis, own, size // (own * batch))
    raise Unknown


def _flatten(s: Tracer, node: ir.Node) -> Result:
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    axis = node.attributes.get_int("axis", 1)
    if place.axis == 0 and rank > 1 and axis % rank == 1:
        return place
    sizes = s.sizes(node.inputs[0])
    if None in sizes:
        raise Unknown
    cut = axis + rank if axis < 0 else axis
    two = [math.prod(d or 0 for d in part) for part in (sizes[:cut], sizes[cut:])]
    return _reshaped(place, sizes, [*two], s.batch)


def _axes_of(s: Tracer, node: ir.Node) -> list[int]:
    """Return the axes of a node, which are an attribute in earlier opsets and an input in later opsets."""
    axes = attribute(node, "axes", None)
    return [*axes] if axes is not None else s.integers(operand(node, 1))


def _squeeze(s: Tracer, node: ir.Node) -> Result:
    place, x = _required(s.of(node, 0)), node.inputs[0]
    if "axes" not in node.attributes and operand(node, 1) is None:
        axes = [i for i, size in enumerate(s.sizes(x)) if size == 1]
    else:
        axes = [axis % s.rank(x) for axis in _axes_of(s, node)]
    if place.axis in axes:  # there is a single row, and the result has no axis of rows
        raise Unknown
    return place._replace(axis=place.axis - sum(axis < place.axis for axis in axes))


def _unsqueeze(s: Tracer, node: ir.Node) -> Result:
    place = _required(s.of(node, 0))
    axes = _axes_of(s, node)
    rank = s.rank(node.inputs[0]) + len(axes)
    new = {axis % rank for axis in axes}
    return place._replace(axis=[i for i in range(rank) if i not in new][place.axis])


def _expand(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    return s.aligned(node, node.inputs[:1])


def _tile(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    times = s.integers(operand(node, 1))[place.axis]
    return place._replace(before=place.before * times)  # all rows, then all rows again


def _concat(s: Tracer, node: ir.Node) -> Result:
    places = [s.place(x) for x in node.inputs]
    rank = s.rank(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % rank
    found = {place for place in places if place is not None}
    if any(place.axis == axis for place in found):
        # The operands are joined along the axis of the rows: all rows of one operand, then all of the next. An operand
        # that does not depend on the rows would add other elements between them.
        if None in places or len({place.after for place in found}) > 1 or len({p.axis for p in found}) > 1:
            raise Unknown
        return next(iter(found))._replace(before=sum(place.before for place in places if place is not None))
    if len(found) > 1:
        raise RowsMeet if len({place.axis for place in found}) > 1 else Unknown
    return next(iter(found))


def _slice(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    if "starts" in node.attributes:
        starts, ends = ([*attribute(node, name, [])] for name in ("starts", "ends"))
        axes = [*attribute(node, "axes", range(len(starts)))]
        steps = [1] * len(starts)
    else:
        count = s.sizes(operand(node, 1))[0]
        axes = [*range(count or rank)] if operand(node, 3) is None else s.integers(operand(node, 3))
        if all(axis % rank != place.axis for axis in axes):
            return place
        starts, ends = (s.integers(operand(node, i)) for i in (1, 2))
        steps = [1] * len(starts) if operand(node, 4) is None else s.integers(operand(node, 4))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # A slice along the axis of the rows must keep all rows.
        if axis % rank == place.axis and not (start == 0 and step == 1 and end >= 2**31 - 1):
            raise RowsMeet
    return place


def _gather(s: Tracer, node: ir.Node) -> Result:
    data, indices = node.inputs[:2]
    axis = node.attributes.get_int("axis", 0) % s.rank(data)
    own = s.place(data)
    read = s.place(indices)
    if own is None:  # a table for all rows, such as an embedding: the axes of the indices replace its axis
        place = _required(read)
        return place._replace(axis=axis + place.axis)
    _along(own, [axis])
    if read is not None:  # any row of the indices may select from any row of the data
        raise Unknown
    return own._replace(axis=own.axis + (s.rank(indices) - 1 if axis < own.axis else 0))


def _gather_elements(s: Tracer, node: ir.Node) -> Result:
    data, indices = s.of(node, 0), s.of(node, 1)
    axis = node.attributes.get_int("axis", 0) % s.rank(node.inputs[0])
    if data is None:
        return _required(indices)
    _along(data, [axis])
    if indices is not None and indices != data:
        raise Unknown
    return data


def _gather_nd(s: Tracer, node: ir.Node) -> Result:
    data = s.of(node, 0)
    indices = s.of(node, 1)
    shared = node.attributes.get_int("batch_dims", 0)
    if data is None and indices is not None and indices.axis < s.rank(node.inputs[1]) - 1 and not shared:
        return indices
    if data is not None and data.axis < shared and indices in (None, data):  # each row selects from its own elements
        return data
    raise Unknown


def _one_hot(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    return place._replace(axis=place.axis + (node.attributes.get_int("axis", -1) % (rank + 1) <= place.axis))


def _pad(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    rank = s.rank(node.inputs[0])
    pads = [*attribute(node, "pads", [])] if "pads" in node.attributes else s.integers(operand(node, 1))
    axes = [*range(rank)] if operand(node, 3) is None else [a % rank for a in s.integers(operand(node, 3))]
    if place.axis in axes:
        i = axes.index(place.axis)
        if pads[i] or pads[i + len(axes)]:
            raise RowsMeet
    return place


def _resize(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    before, after = (s.sizes(x)[place.axis] for x in (node.inputs[0], node.outputs[0]))
    if before is None or before != after:
        raise Unknown
    return place


def _recurrent(s: Tracer, node: ir.Node) -> Result:
    # The rows are on the second axis by default, after the time steps, and on the first axis with layout=1. Lengths
    # (input 4) have only the axis of rows. The first output also has an axis of directions.
    first = node.attributes.get_int("layout", 0)
    wanted = {0: Rows(0 if first else 1), 4: Rows(0), 5: Rows(0 if first else 1), 6: Rows(0 if first else 1)}
    for i, x in enumerate(node.inputs):
        if (place := s.place(x)) is not None and place != wanted.get(i):
            raise Unknown
    last = Rows(0 if first else 1)
    found: list[Rows | None] = [Rows(0 if first else 2), last, last]
    return found[: len(node.outputs)]


def _einsum(s: Tracer, node: ir.Node) -> Result:
    equation = attribute(node, "equation", "").replace(" ", "")
    operands, _, result = equation.partition("->")
    if "." in equation or not result or "->" not in equation:
        raise Unknown
    found = set()
    for term, x in zip(operands.split(","), node.inputs, strict=True):
        if (place := s.place(x)) is not None:
            found.add((term[place.axis], place._replace(axis=0)))
    if len(found) > 1:  # rows under two letters: the result has all pairs of rows
        raise RowsMeet
    letter, place = found.pop()
    # Einsum sums over a letter that the result lacks, and takes a diagonal along a letter that a term has twice.
    if letter not in result or any(term.count(letter) > 1 for term in operands.split(",")):
        raise RowsMeet
    return place._replace(axis=result.index(letter))


def _dynamic_quantize(s: Tracer, node: ir.Node) -> Result:
    """Follow DynamicQuantizeLinear: its range is that of all rows, but such rounding does not count as meeting.

    Padding repeats rows, which does not change the range.
    """
    return [_required(s.of(node, 0)), None, None]


def _triangle(s: Tracer, node: ir.Node) -> Result:
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    if place.axis >= s.rank(node.inputs[0]) - 2:  # the elements that remain of a row would depend on its index
        raise Unknown
    return place


def _loss_of_rows(s: Tracer, node: ir.Node) -> Result:
    if attribute(node, "reduction", "mean") not in ("none", b"none"):
        raise RowsMeet
    s.fixed(*node.inputs[2:])
    return _on_first_axis(s, node)


def _distances(s: Tracer, node: ir.Node) -> Result:
    left, right = s.of(node, 0), s.of(node, 1)
    if left is not None and right is not None:  # the distances between all pairs of rows
        raise RowsMeet
    if any(place not in (None, Rows(0)) for place in (left, right)):
        raise Unknown
    return Rows(0) if left is not None else Rows(1)


def _compress(s: Tracer, node: ir.Node) -> Result:
    """Return the place of the rows in the result of Compress, which keeps elements by a condition."""
    s.fixed(*node.inputs[1:])
    place = _required(s.of(node, 0))
    if "axis" not in node.attributes:  # Compress flattens, and may keep more elements of some rows
        raise RowsMeet
    _along(place, [node.attributes.get_int("axis", 0) % s.rank(node.inputs[0])])
    return place


ELEMENTWISE = frozenset(
    """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu
Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid
Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor Bernoulli
com.microsoft.Gelu com.microsoft.FastGelu com.microsoft.QuickGelu com.microsoft.BiasGelu
""".split()
)

_BY_FIRST_AXIS = """
AffineGrid GridSample RotaryEmbedding MaxUnpool
ai.onnx.ml.FeatureVectorizer ai.onnx.ml.CastMap
"""

_BY_FIRST_AXIS_OF_FIRST = """
AveragePool Conv ConvInteger ConvTranspose DeformConv DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool
GroupNormalization LRN LpPool MaxPool QLinearConv SpaceToDepth Col2Im
ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.CategoryMapper ai.onnx.ml.Imputer
ai.onnx.ml.LabelEncoder ai.onnx.ml.LinearClassifier ai.onnx.ml.LinearRegressor ai.onnx.ml.Normalizer
ai.onnx.ml.SVMClassifier ai.onnx.ml.SVMRegressor ai.onnx.ml.Scaler
ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier ai.onnx.ml.TreeEnsembleRegressor
ai.onnx.ml.OneHotEncoder
"""

_BY_LAST_AXES = """
LayerNormalization RMSNormalization SimplifiedLayerNormalization com.microsoft.MatMulNBits
"""

_REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
"""

_OF_SIZES = frozenset(
    """
Add Cast Ceil Concat Div Equal Floor Gather Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not
Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Slice Split Squeeze Sub Unsqueeze Where Sqrt Pow Reciprocal
""".split()
)
"""Operators that compute sizes from sizes."""

_SIZE_OPERANDS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Split", "Pad", "CenterCropPad"), (1,)),
    "Slice": (1, 2),
    "ConstantOfShape": (0,),
    "Resize": (2, 3),
    "Upsample": (1,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
}
"""The positions of operands that are sizes, by operator."""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, lambda s, node: s.aligned(node, node.inputs)),
    **dict.fromkeys(_BY_FIRST_AXIS.split(), _on_first_axis),
    **dict.fromkeys(_BY_FIRST_AXIS_OF_FIRST.split(), _first_with_fixed),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(_BY_LAST_AXES.split(), _over_last_axes(-1)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _first_alone),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("EyeLike", "RandomNormalLike", "RandomUniformLike"), lambda s, node: s.of(node, 0)),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), _loss_of_rows),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Attention": _attention,
    "BatchNormalization": _batch_normalization,
    "com.microsoft.CDist": _distances,
    "Compress": _compress,
    "Concat": _concat,
    "CumSum": _along_axis_input,
    "CumProd": _along_axis_input,
    "Dropout": _first_alone,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "InstanceNormalization": _instance_normalization,
    "LpNormalization": _along_axis(-1),
    "MeanVarianceNormalization": _mean_variance,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _along_axis(0),
    "Squeeze": _squeeze,
    "TopK": _along_axis(-1),
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
    "Tile": _tile,
}
"""For each operator, the function that returns the places of the rows in the outputs of a node."""
