"""Class probabilities from the probabilities of pairs of classes, coupled as in LIBSVM.

The class probabilities p minimize p'Qp over the simplex, with Q[i, i] = sum of r[j, i]² over j and Q[i, j] =
-r[j, i] r[i, j], where r[i, j] is the probability of class i beside class j. LIBSVM and onnxruntime approach the
minimum by sweeps over the classes, and stop when no component of Qp differs from p'Qp by more than 0.005 / classes.
This is early: the probabilities of a fitted model are not those of the minimum, and their gradient is not that of the
linear system of the minimum. So the sweeps are computed here too, and each row stops where LIBSVM stops it.

The graph is a Loop over the sweeps, which ends when all rows have stopped, around a Scan over the classes: its size
depends neither on the number of sweeps nor on that of classes. Over a million rows of 2 to 50 classes, random, sharp
and contradictory ones, none took more than 6 sweeps. Inside, the rows are the last axis: what a step reads and writes
is contiguous.

Reference: Wu, Lin, Weng: Probability estimates for multi-class classification by pairwise coupling, JMLR 5 (2004).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder

SWEEPS = 8
TOLERANCE = np.float32(0.005)

_BOOL = ir.DataType.BOOL


def coupled(op: GraphBuilder, pairs: ir.Value, classes: int) -> ir.Value:
    """Return the probabilities of the classes, (rows, classes), from those of the pairs i < j, (rows, pairs)."""
    form = _quadratic_form(op, pairs, classes)
    start = _State.of(op, form, op.Mul(form.ones, np.full((classes, 1), 1 / classes, op.dtype.numpy())))
    body = op.body("sweep")
    body.input("number", ir.DataType.INT64, [])
    body.input("go_on", _BOOL, [])
    both, value = body.input("both", op.dtype, [2 * classes, None]), body.input("value", op.dtype, [1, None])
    state = _State(both, value, body.input("arrived", _BOOL, [1, None]), classes)
    swept = _State.of(body, form, body.Where(state.arrived, state.p(body), _updated_probabilities(body, form, state)))
    body.graph.outputs.extend([swept.incomplete(body), *swept.values()])
    most = np.array(SWEEPS if classes > 2 else 3)  # two classes need two at most
    ends = op.emit("Loop", most, start.incomplete(op), *start.values(), outputs=3, body=body.graph)
    # Shape inference does not know the shapes of the outputs of a Loop.
    shape = op.Concat(op.Gather(op.Shape(pairs), np.array([0]), axis=0), np.array([classes]), axis=0)
    return op.Reshape(op.Transpose(_State(ends[0], ends[1], ends[2], classes).p(op), perm=[1, 0]), shape)


@dataclass(frozen=True)
class _Form:
    """Q, (classes, classes, rows), its diagonal, (classes, 1, rows), and a one for each row, (1, rows).

    A slice of ``columns``, (classes, 2 classes, rows), is what the step of a class adds to p and to Qp.
    """

    matrix: ir.Value
    diagonal: ir.Value
    columns: ir.Value
    ones: ir.Value
    classes: int


def _quadratic_form(op: GraphBuilder, pairs: ir.Value, classes: int) -> _Form:
    count, places = classes * (classes - 1) // 2, np.zeros((classes, classes), np.int64)
    for k, (i, j) in enumerate(combinations(range(classes), 2)):
        places[i, j], places[j, i] = k, count + k
    unit = np.eye(classes, dtype=op.dtype.numpy())[:, :, None]
    first = op.Transpose(pairs, perm=[1, 0])
    row = op.Gather(first, np.array([0]), axis=0)
    ones = op.Cast(op.Equal(row, row), to=op.dtype)  # its shape is inferred, which the Loop needs
    r = op.Mul(op.Gather(op.Concat(first, op.Sub(1.0, first), axis=0), places, axis=0), 1 - unit)
    squares = op.ReduceSum(op.Mul(r, r), axes=[0], keepdims=True)
    matrix = op.Sub(op.Mul(squares, unit), op.Mul(r, op.Transpose(r, perm=[1, 0, 2])))
    columns = op.Concat(op.Mul(ones, unit), matrix, axis=1)
    return _Form(matrix, op.Transpose(squares, perm=[1, 0, 2]), columns, ones, classes)


@dataclass(frozen=True)
class _State:
    """What a sweep begins with: p and Qp, (2 classes, rows), p'Qp and which rows have converged, (1, rows)."""

    both: ir.Value
    value: ir.Value
    arrived: ir.Value
    classes: int

    @classmethod
    def of(cls, op: GraphBuilder, form: _Form, p: ir.Value) -> _State:
        product = op.ReduceSum(op.Mul(form.matrix, p), axes=[1], keepdims=False)
        value = op.ReduceSum(op.Mul(p, product), axes=[0], keepdims=True)
        away = op.ReduceMax(op.Abs(op.Sub(product, value)), axes=[0], keepdims=True)
        arrived = op.Less(away, float(TOLERANCE / np.float32(form.classes)))
        return cls(op.Concat(p, product, axis=0), value, arrived, form.classes)

    def p(self, op: GraphBuilder) -> ir.Value:
        return op.Slice(self.both, [0], [self.classes], [0])

    def values(self) -> tuple[ir.Value, ...]:
        return self.both, self.value, self.arrived

    def incomplete(self, op: GraphBuilder) -> ir.Value:
        """Return whether some row has not converged, a scalar."""
        open_rows = op.Cast(op.Not(self.arrived), to=ir.DataType.INT32)
        return op.Cast(op.ReduceMax(open_rows, keepdims=False), to=_BOOL)


def _updated_probabilities(op: GraphBuilder, form: _Form, state: _State) -> ir.Value:
    """Return p after a step for each class.

    Each step divides by the new sum of p, as LIBSVM does. One division at the end would give the same numbers, but
    where a probability of a pair is near 0 or 1 their gradients would cancel in float32.
    """
    body = op.body("step")
    sizes = {"both": 2 * form.classes, "value": 1, "diagonal": 1, "column": 2 * form.classes}
    both, value, diagonal, column = (body.input(stem, op.dtype, [n, None]) for stem, n in sizes.items())
    component = body.MatMul(body.input("unit", op.dtype, [1, 2 * form.classes]), both)
    step = body.Div(body.Sub(value, component), diagonal)
    total = body.Add(step, 1.0)
    moved = body.Div(body.Add(both, body.Mul(step, column)), total)
    raised = body.Div(body.Add(value, body.Mul(step, body.Add(value, component))), body.Mul(total, total))
    body.graph.outputs.extend([moved, raised])
    units = np.eye(form.classes, 2 * form.classes, form.classes, dtype=op.dtype.numpy())[:, None, :]
    given = state.both, state.value, form.diagonal, form.columns, units
    ends = op.emit("Scan", *given, outputs=2, body=body.graph, num_scan_inputs=3)
    return _State(ends[0], ends[1], state.arrived, form.classes).p(op)
