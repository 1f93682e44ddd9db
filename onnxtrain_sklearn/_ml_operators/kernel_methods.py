"""Rewrite support vector machines and pairwise distances.

:func:`squared_distances` and :func:`root` are the distances of kernels, neighbors and Gaussian processes. A machine has
kernels, votes of pairs of classes, and probabilities by pairwise coupling.

The parameters of machines have the layout of the attributes, which is that of LIBSVM and scikit-learn:
``support_vectors`` (vectors, features), ``dual_coef`` (classes - 1, vectors), and one ``rho``, ``prob_a``, ``prob_b``
per pair of classes i < j in the order (0, 1), (0, 2), ..., (1, 2), ... A positive score of a pair speaks for its first
class.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import onnx_ir as ir

from .._ir.queries import before_identities
from ..graph import DOUBLE, FLOAT, GraphBuilder
from . import linear
from .rewritten_node import LazyValue, RewriteRule, RewrittenNode

# Pairwise distances: the operator CDist of onnxruntime, and loops over rows. At zero, their gradient is zero.


def squared_distances(op: GraphBuilder, a: ir.Value, b: ir.Value, center: np.ndarray | None = None) -> ir.Value:
    """Return |a_i|² - 2 a_i·b_j + |b_j|², not below zero.

    Both are shifted by ``center`` first if it is given, which reduces cancellation.
    """
    if center is not None:
        a, b = op.Sub(a, center.astype(np.float32)), op.Sub(b, center.astype(np.float32))
    rows = op.ReduceSum(op.Mul(a, a), axes=[1], keepdims=True)
    columns = op.Transpose(op.ReduceSum(op.Mul(b, b), axes=[1], keepdims=True), perm=[1, 0])
    return op.Relu(op.Add(op.Sub(rows, op.Mul(op.Gemm(a, b, transB=1), 2.0)), columns))


def root(op: GraphBuilder, squared: ir.Value) -> ir.Value:
    """Return the square root of numbers that are not below zero, with gradient zero at zero instead of infinity."""
    apart = op.Greater(squared, 0.0)
    return op.Where(apart, op.Sqrt(op.Where(apart, squared, 1.0)), 0.0)


_ELEMENT_BY_ELEMENT = frozenset({"Abs", "Add", "Div", "Exp", "Identity", "Mul", "Neg", "Pow", "Sqrt", "Sub"})
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare"})


def _cdist(r: RewrittenNode) -> Sequence[LazyValue]:
    metric = r.attribute("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        r.refuse(f"metric {metric!r} is neither 'euclidean' nor 'sqeuclidean'")

    def distances() -> ir.Value:
        constant = ir.convenience.get_const_tensor(r.input(1))
        center = None if constant is None else constant.numpy().mean(axis=0)
        squared = squared_distances(r.op, r.matrix(0), r.matrix(1), center)
        return squared if metric == "sqeuclidean" else root(r.op, squared)

    return (distances,)


def _scan_over_rows(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Replace a Scan that compares each row with all rows of a matrix: compute all pairs at once.

    In its body the state is a constant matrix and the scanned row a vector. Here the body runs once, on tensors of
    three axes: rows of the loop, rows of the state, features. Any other loop is kept.
    """
    body = r.node.attributes["body"].as_graph()
    kept = (None, None)
    axes = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    if len(r.node.inputs) != 2 or len(r.node.outputs) != 2 or any(any(r.attribute(name, ())) for name in axes):
        return kept
    keeps_state = before_identities(body.outputs[0]) is body.inputs[0]
    if not keeps_state or not all(_runs_on_three_axes(body, node) for node in body):
        return kept
    return r.input, lambda: _all_pairs(r, body)


def _runs_on_three_axes(body: ir.Graph, node: ir.Node) -> bool:
    """Return True if a node is elementwise, with at most single numbers as other operands, or reduces the features."""
    if node.domain:
        return False
    if node.op_type in _ELEMENT_BY_ELEMENT:

        def is_element_or_number(value: ir.Value) -> bool:
            if value.name in body.initializers:
                return value.const_value is not None and value.const_value.size == 1
            made = value.producer()
            return value in body.inputs or (made is not None and made.graph is body)

        return all(v is not None and is_element_or_number(v) for v in node.inputs)
    drops = "keepdims" in node.attributes and node.attributes["keepdims"].as_int() == 0
    if node.op_type not in _REDUCTIONS or not drops:
        return False
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints()) in ([1], [-1])
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None else ir.convenience.get_const_tensor(axes)
    return tensor is not None and tensor.numpy().tolist() in ([1], [-1])


def _all_pairs(r: RewrittenNode, body: ir.Graph) -> ir.Value:
    op = r.op
    known: dict[ir.Value, ir.Value] = {
        body.inputs[0]: op.Unsqueeze(r.input(0), axes=[0]),
        body.inputs[1]: op.Unsqueeze(r.input(1), axes=[1]),
    }
    for node in body:
        if node.op_type in _REDUCTIONS:
            assert node.inputs[0] is not None
            value, operator = known[node.inputs[0]], node.op_type
            if operator == "ReduceSumSquare":  # both engines differentiate a product
                value, operator = op.Mul(value, value), "ReduceSum"
            known[node.outputs[0]] = op.emit(operator, value, axes=[2], keepdims=0)[0]
        else:
            values = [v for v in node.inputs if v is not None]
            inputs = [known[v] if v in known else v.const_value.numpy() for v in values]  # type: ignore[union-attr]
            known[node.outputs[0]] = op.emit(node.op_type, *inputs)[0]
    return known[body.outputs[1]]


# Support vector machines.


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST_PROBABILITY = 1e-7  # LIBSVM's min_prob


def _svm_regressor(r: RewrittenNode) -> Sequence[LazyValue]:
    """Compute K(X, SV) a + rho; onnxruntime ignores ``post_transform`` here."""
    count = int(r.attribute("n_supports", 0))
    coef = r.floats("coefficients")
    rho = r.floats("rho")
    if not rho.size:
        r.refuse("it has no rho")

    def score() -> ir.Value:
        if not count:
            return _linear(r, coef.reshape(1, -1), rho[:1])
        kernel = _kernel_matrix(r, count)
        return r.op.Gemm(kernel, r.parameter("dual_coef", coef.reshape(1, -1)), r.parameter("rho", rho[:1]), transB=1)

    if not int(r.attribute("one_class", 0)):
        return (score,)
    return (lambda: r.op.Where(r.op.Greater(score(), 0.0), 1.0, -1.0),)


def _svm_classifier(r: RewrittenNode) -> Sequence[LazyValue]:
    labels = r.labels("classlabels_ints")
    per_class = r.ints("vectors_per_class")
    if len(labels) < 2:
        r.refuse(f"it has {len(labels)} class labels")
    if not per_class.sum():
        return _linear_machine(r, labels)
    if len(per_class) != len(labels):
        r.refuse(f"it has vectors_per_class of {len(per_class)} classes and {len(labels)} class labels")
    pairs = functools.cache(lambda: _pair_scores(r, per_class))
    return lambda: _voted(r, pairs(), labels), lambda: _class_scores(r, pairs(), len(labels))


def _linear_machine(r: RewrittenNode, labels: np.ndarray) -> Sequence[LazyValue]:
    """Label and scores without support vectors: one row of coefficients for each class."""
    coef = r.floats("coefficients").reshape(len(labels), -1)
    rho = r.floats("rho")
    raw = functools.cache(lambda: _linear(r, coef, rho[:1]))

    def label() -> ir.Value:
        if len(labels) > 2 or r.floats("prob_a").size:
            return linear.largest(r, raw(), labels)
        top = r.op.ReduceMax(raw(), axes=[1], keepdims=True)
        positive = r.op.Greater(top, 0.0) if (coef < 0).any() else r.op.GreaterOrEqual(top, 0.5)
        largest = r.op.Cast(r.op.ArgMax(raw(), axis=1, keepdims=True), to=FLOAT)
        return linear.label_above(r, r.op.Where(positive, 1.0, largest), 0.5, labels)

    return label, lambda: linear.transformed(r, raw())


def _linear(r: RewrittenNode, coef: np.ndarray, rho: np.ndarray) -> ir.Value:
    weights = r.parameter("coef", coef)
    return r.op.Gemm(r.matrix(), weights, r.parameter("rho", rho), transB=1)


def _kernel_matrix(r: RewrittenNode, count: int) -> ir.Value:
    """Return the kernel of each row of X with each support vector."""
    op = r.op
    kind = str(r.attribute("kernel_type", "LINEAR"))
    array = r.floats("support_vectors")
    if kind not in KERNELS:
        r.refuse(f"kernel_type {kind!r} is none of {', '.join(KERNELS)}")
    if array.size % count or r.columns() not in (None, array.size // count):
        r.refuse(f"its {array.size} numbers do not make {count} support vectors of {r.columns()} features")
    gamma, coef0, degree = r.floats("kernel_params") if r.floats("kernel_params").size else np.zeros(3, np.float32)
    array = array.reshape(count, -1)
    x = r.matrix()
    vectors = r.parameter("support_vectors", array)
    if kind == "LINEAR":
        return op.Gemm(x, vectors, transB=1)
    width = r.parameter("gamma", np.array([gamma]))
    if kind == "RBF":
        return op.Exp(op.Neg(op.Mul(squared_distances(op, x, vectors, array.mean(axis=0)), width)))
    product = op.Mul(op.Gemm(x, vectors, transB=1), width)
    product = op.Add(product, r.parameter("coef0", np.array([coef0])))
    return op.Tanh(product) if kind == "SIGMOID" else op.Pow(product, np.float32(degree))


def _pair_scores(r: RewrittenNode, per_class: np.ndarray) -> ir.Value:
    """Return the scores of the pairs of classes: K(X, SV) A + rho, summed in float64, as their terms almost cancel.

    In the column of a pair i < j, the coefficients of the vectors of class i come from row j - 1, those of class j from
    row i. All others are zero; they are gathered from a zero appended to the coefficients.
    """
    classes, count = len(per_class), int(per_class.sum())
    coef, rho = r.floats("coefficients"), r.floats("rho")
    if coef.size != (classes - 1) * count or rho.size < classes * (classes - 1) // 2:
        r.refuse(f"its {coef.size} coefficients and {rho.size} rho do not fit {classes} classes and {count} vectors")
    owner = np.repeat(np.arange(classes), per_class)
    column = np.arange(count)
    rows = [np.where(owner == i, j - 1, np.where(owner == j, i, -1)) for i, j in combinations(range(classes), 2)]
    places = np.stack([np.where(row < 0, coef.size, row * count + column) for row in rows], axis=1)
    kernel = _kernel_matrix(r, count)
    dual = r.op.Reshape(r.parameter("dual_coef", coef.reshape(classes - 1, count)), np.array([-1]))
    if classes > 2:
        dual = r.op.Concat(dual, np.zeros(1, np.float32), axis=0)
    table = r.op.Gather(dual, places.astype(np.int64), axis=0)
    exact = [r.op.Cast(v, to=DOUBLE) for v in (kernel, table, r.parameter("rho", rho[: len(rows)]))]
    return r.op.Cast(r.op.Add(r.op.MatMul(exact[0], exact[1]), exact[2]), to=FLOAT)


def _voted(r: RewrittenNode, pairs: ir.Value, labels: np.ndarray) -> ir.Value:
    """Return the label with the most votes, the first one of a tie."""
    op, classes = r.op, len(labels)
    first, second = (np.array(side) for side in zip(*combinations(range(classes), 2), strict=True))
    won = op.Cast(op.Greater(pairs, 0.0), to=FLOAT)
    votes = [np.eye(classes, dtype=np.float32)[side] for side in (first, second)]
    total = op.Add(op.MatMul(won, votes[0]), op.MatMul(op.Sub(1.0, won), votes[1]))
    return linear.largest(r, total, labels)


def _class_scores(r: RewrittenNode, pairs: ir.Value, classes: int) -> ir.Value:
    if r.floats("prob_a").size:
        # Platt's sigmoid(-(a s + b)) of each pair, clipped away from 0 and 1.
        count = len(r.floats("rho"))
        least = np.float32(_LEAST_PROBABILITY)
        slope = r.parameter("prob_a", r.floats("prob_a")[:count])
        scaled = r.op.Add(r.op.Mul(pairs, slope), r.parameter("prob_b", r.floats("prob_b")[:count]))
        p = r.op.Clip(r.op.Sigmoid(r.op.Neg(scaled)), least, np.float32(1) - least)
        return linear.transformed(r, coupled(r.op, p, classes))
    if classes > 2:
        return linear.transformed(r, pairs)
    raw = r.attribute("post_transform", "NONE") == "NONE"
    return linear.both_signs(r, pairs) if raw else linear.complement(r, pairs)


# Pairwise coupling: class probabilities from those of pairs of classes, as in LIBSVM.
#
# The class probabilities p minimize p'Qp over the simplex, with Q[i, i] = sum of r[j, i]² over j and Q[i, j] =
# -r[j, i] r[i, j], where r[i, j] is the probability of class i rather than class j. LIBSVM and onnxruntime approach the
# minimum by sweeps over the classes, and stop when no component of Qp differs from p'Qp by more than 0.005 / classes.
# This is early: the probabilities of a fitted model are not those of the minimum, and their gradient is not that of the
# minimum's linear system. So the sweeps are computed here too, and each row stops where LIBSVM stops it.
#
# The graph is a Loop over the sweeps, which ends when all rows have stopped, around a Scan over the classes: its size
# depends neither on the number of sweeps nor on that of classes. Inside, the rows are the last axis, so that each step
# reads and writes contiguous numbers.
#
# Wu, Lin, Weng: Probability estimates for multi-class classification by pairwise coupling, JMLR 5 (2004).


SWEEPS = 8
"""Most sweeps: of a million rows of 2 to 50 classes (random, sharp and contradictory ones), none took more than 6."""

TOLERANCE = np.float32(0.005)
"""LIBSVM's, for the difference from the minimum; it is divided by the number of classes."""


def coupled(op: GraphBuilder, pairs: ir.Value, classes: int) -> ir.Value:
    """Return the probabilities of the classes, (rows, classes), from those of the pairs i < j, (rows, pairs)."""
    form = _quadratic_form(op, pairs, classes)
    start = _State.of(op, form, op.Mul(form.ones, np.full((classes, 1), 1 / classes, op.dtype.numpy())))
    body = op.body("sweep")
    body.input("number", ir.DataType.INT64, [])
    body.input("go_on", ir.DataType.BOOL, [])
    both, value = body.input("both", op.dtype, [2 * classes, None]), body.input("value", op.dtype, [1, None])
    state = _State(both, value, body.input("arrived", ir.DataType.BOOL, [1, None]), classes)
    swept = _State.of(body, form, body.Where(state.arrived, state.p(body), _updated_probabilities(body, form, state)))
    body.graph.outputs.extend([swept.incomplete(body), *swept.values()])
    most = np.array(SWEEPS if classes > 2 else 3)  # two classes need at most two
    ends = op.emit("Loop", most, start.incomplete(op), *start.values(), outputs=3, body=body.graph)
    # Shape inference does not know the shapes of the outputs of a Loop.
    shape = op.Concat(op.Gather(op.Shape(pairs), np.array([0]), axis=0), np.array([classes]), axis=0)
    return op.Reshape(op.Transpose(_State(ends[0], ends[1], ends[2], classes).p(op), perm=[1, 0]), shape)


@dataclass(frozen=True)
class _Form:
    """The quadratic form.

    Attributes
    ----------
    matrix : onnx_ir.Value
        Q, (classes, classes, rows).
    diagonal : onnx_ir.Value
        Its diagonal, (classes, 1, rows).
    columns : onnx_ir.Value
        What a unit step of each class adds to p and to Qp, (classes, 2 classes, rows).
    ones : onnx_ir.Value
        A one for each row, (1, rows).
    """

    matrix: ir.Value
    diagonal: ir.Value
    columns: ir.Value
    ones: ir.Value
    classes: int


def _quadratic_form(op: GraphBuilder, pairs: ir.Value, classes: int) -> _Form:
    count = classes * (classes - 1) // 2
    places = np.zeros((classes, classes), np.int64)
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
    """The state before a sweep: p and Qp, (2 classes, rows), p'Qp, (1, rows), and the converged rows, (1, rows)."""

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
        """Return a scalar, True if a row has not converged."""
        open_rows = op.Cast(op.Not(self.arrived), to=ir.DataType.INT32)
        return op.Cast(op.ReduceMax(open_rows, keepdims=False), to=ir.DataType.BOOL)


def _updated_probabilities(op: GraphBuilder, form: _Form, state: _State) -> ir.Value:
    """Return p after a sweep, a Scan with a step for each class.

    Each step divides by the new sum of p, as LIBSVM does. One division at the end would give the same numbers, but if
    the probability of a pair is near 0 or 1, their gradients would cancel in float32.
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


RULES: dict[tuple[str, str], RewriteRule] = {
    ("", "Scan"): _scan_over_rows,
    ("ai.onnx.ml", "SVMClassifier"): _svm_classifier,
    ("ai.onnx.ml", "SVMRegressor"): _svm_regressor,
    ("com.microsoft", "CDist"): _cdist,
}
