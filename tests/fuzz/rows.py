"""Random graphs in which rows may meet: where the analysis says that they do not, onnxruntime finds the same.

    python -m tests.fuzz.rows --cases 1000
    python -m tests.fuzz.rows --case 4711

A case is made from its number alone; a failure is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime

from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.shapes import infer_shapes
from onnxtrain_sklearn._model.batch_axis import trace_rows, with_batch
from onnxtrain_sklearn.graph import GraphBuilder

ROWS = 5
RESHAPES = ([-1, 4], [-1, 2], [2, -1], [-1, 2, 2], [2, -1, 2], [-1, 1], [-1], [0, -1], [8, -1])


def random_graph(rng):
    """Return a graph from (N, 4) to an output whose first axis is as long as that of five rows; None: there is none."""
    x = ir.val("X", ir.DataType.FLOAT, ("N", 4))
    op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="random"))
    values = [(x, (ROWS, 4))]
    for _ in range(rng.integers(3, 9)):
        value, shape = values[rng.integers(len(values)) if rng.random() < 0.3 else -1]
        other, other_shape = values[rng.integers(len(values))]
        axis, kind = int(rng.integers(len(shape))), rng.integers(15)
        array = np.zeros(shape)
        try:
            if kind == 0:
                order = [int(i) for i in rng.permutation(len(shape))]
                found, array = op.Transpose(value, perm=order), array.transpose(order)
            elif kind == 1:
                found, array = op.ReduceMax(value, axes=[axis], keepdims=True), array.max(axis, keepdims=True)
            elif kind == 2:
                found, array = op.ReduceMean(value, axes=[axis], keepdims=False), array.mean(axis)
            elif kind == 3:
                found = op.Softmax(value, axis=axis)
            elif kind == 4:
                sizes = RESHAPES[rng.integers(len(RESHAPES))]
                array = array.reshape([shape[0] if size == 0 else size for size in sizes])
                found = op.Reshape(value, sizes)
            elif kind == 5:
                matrix = rng.normal(size=(4, 3)).astype(np.float32)
                array, found = array @ matrix, op.MatMul(value, matrix)
            elif kind == 6:
                array, found = array + np.zeros(other_shape), op.Mul(value, other)
            elif kind == 7:
                array, found = array @ np.zeros(other_shape), op.MatMul(value, other)
            elif kind == 8:
                array = np.concatenate([array, np.zeros(other_shape)], axis)
                found = op.Concat(value, other, axis=axis)
            elif kind == 9:
                start = int(rng.integers(2))
                array, found = (
                    array.take(range(start, shape[axis]), axis),
                    op.Slice(value, [start], [2**31 - 1], [axis]),
                )
            elif kind == 10:
                array, found = array.take([0, 1], axis), op.Gather(value, np.array([0, 1]), axis=axis)
            elif kind == 11:
                found = op.CumSum(value, np.array(axis))
            elif kind == 12:
                found = op.Expand(1.0, op.Shape(value))
            elif kind == 13:
                found, array = op.ReduceSum(value, axes=[axis], keepdims=True), array.sum(axis, keepdims=True)
            else:
                array, found = np.expand_dims(array, axis), op.Unsqueeze(value, axes=[axis])
        except (ValueError, IndexError):  # shapes that do not fit
            continue
        if array.ndim and 0 < array.size < 5000:
            values.append((found, array.shape))
    outputs = [value for value, shape in values[1:] if shape[0] == ROWS]
    if not outputs:
        return None
    op.graph.outputs.append(outputs[-1])
    outputs[-1].shape = None
    return infer_shapes(ir.Model(op.graph, ir_version=9))


def rows_meet(model, rng):
    """Whether the output of a row changes with another row, or where there are more rows."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    before, found = session.run(None, {"X": x})[0].reshape(ROWS, -1), False
    for row in range(ROWS):
        for _ in range(2):
            changed = x.copy()
            changed[row] = 3 * rng.normal(size=4)
            moved = np.abs(session.run(None, {"X": changed})[0].reshape(ROWS, -1) - before)
            found |= _differ(np.delete(moved, row, 0), before)
    try:
        longer = session.run(None, {"X": np.concatenate([x, x[:3]])})[0]
        return found or _differ(longer.reshape(ROWS + 3, -1)[:ROWS] - before, before)
    except Exception:  # a graph for five rows
        return found


def _differ(moved, before):
    return bool(np.abs(moved).max(initial=0) > 1e-5 * max(1, np.abs(before).max(initial=0)))


def run(number: int) -> str:
    """Return "apart", "meet", "unsure", "wrong ..." or "none": there is no graph of this number."""
    rng = np.random.default_rng(number)
    model = random_graph(rng)
    if model is None:
        return "none"
    fixed = with_batch(model, 1013)
    verdicts = [
        trace_rows(model.graph, ["X"], model.graph.outputs),
        trace_rows(fixed.graph, ["X"], fixed.graph.outputs, 1013),
    ]
    meet = rows_meet(model, rng)
    if meet and any(verdict.certain and not verdict.node for verdict in verdicts):
        return "wrong: rows meet, which the analysis denies"
    return ("meet" if meet else "apart") if any(verdict.certain for verdict in verdicts) else "unsure"


def main() -> int:
    """Run the cases of the command line; 1: one was wrong, or rows never met."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rows", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="run this one case")
    given = parser.parse_args()
    numbers = [given.case] if given.case is not None else range(given.first, given.first + given.cases)
    counts, started = Counter[str](), time.monotonic()
    for number in numbers:
        outcome = run(number)
        counts[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong") or given.case is not None:
            print(f"python -m tests.fuzz.rows --case {number}\n  {outcome}", flush=True)
    print(f"{counts.total()} cases in {time.monotonic() - started:.0f} s: {dict(counts)}")
    return int(counts["wrong"] > 0 or (given.cases >= 100 and given.case is None and not counts["meet"]))


if __name__ == "__main__":
    sys.exit(main())
