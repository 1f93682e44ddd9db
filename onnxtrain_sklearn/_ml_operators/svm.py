"""Rewriting rules for support vector machines.

The parameters have the layout of the attributes, which is that of LIBSVM and scikit-learn: ``support_vectors``
(vectors, features), ``dual_coef`` (classes - 1, vectors), and one ``rho``, ``prob_a``, ``prob_b`` per pair of classes
i < j in the order (0, 1), (0, 2), ..., (1, 2), ... A positive score of a pair speaks for its first class.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import onnx_ir as ir

from .._graph.cast_types import DOUBLE, FLOAT
from . import post_transforms
from .context import LazyValue, RewriteRule, RewrittenNode
from .distances import squared_distances
from .pairwise_coupling import coupled

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST_PROBABILITY = 1e-7


def _svm_regressor(r: RewrittenNode) -> Sequence[LazyValue]:
    """K(X, SV) a + rho; onnxruntime ignores ``post_transform`` here."""
    count, coef, rho = int(r.attribute("n_supports", 0)), r.floats("coefficients"), r.floats("rho")
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
    labels, per_class = r.labels("classlabels_ints"), r.ints("vectors_per_class")
    if len(labels) < 2:
        r.refuse(f"it has {len(labels)} class labels")
    if not per_class.sum():
        return _linear_machine_scores(r, labels)
    if len(per_class) != len(labels):
        r.refuse(f"it has vectors_per_class of {len(per_class)} classes and {len(labels)} class labels")
    pairs = functools.cache(lambda: _pair_scores(r, per_class))
    return lambda: _voted(r, pairs(), labels), lambda: _class_scores(r, pairs(), len(labels))


def _linear_machine_scores(r: RewrittenNode, labels: np.ndarray) -> Sequence[LazyValue]:
    coef, rho = r.floats("coefficients").reshape(len(labels), -1), r.floats("rho")
    raw = functools.cache(lambda: _linear(r, coef, rho[:1]))

    def label() -> ir.Value:
        if len(labels) > 2 or r.floats("prob_a").size:
            return post_transforms.largest(r, raw(), labels)
        top = r.op.ReduceMax(raw(), axes=[1], keepdims=True)
        positive = r.op.Greater(top, 0.0) if (coef < 0).any() else r.op.GreaterOrEqual(top, 0.5)
        largest = r.op.Cast(r.op.ArgMax(raw(), axis=1, keepdims=True), to=FLOAT)
        return post_transforms.label_above(r, r.op.Where(positive, 1.0, largest), 0.5, labels)

    return label, lambda: post_transforms.transformed(r, raw())


def _linear(r: RewrittenNode, coef: np.ndarray, rho: np.ndarray) -> ir.Value:
    weights = r.parameter("coef", coef)
    return r.op.Gemm(r.matrix(), weights, r.parameter("rho", rho), transB=1)


def _kernel_matrix(r: RewrittenNode, count: int) -> ir.Value:
    """Return the kernel of each row of X with each support vector."""
    op, kind = r.op, str(r.attribute("kernel_type", "LINEAR"))
    array = r.floats("support_vectors")
    if kind not in KERNELS:
        r.refuse(f"kernel_type {kind!r} is none of {', '.join(KERNELS)}")
    if array.size % count or r.columns() not in (None, array.size // count):
        r.refuse(f"its {array.size} numbers do not make {count} support vectors of {r.columns()} features")
    gamma, coef0, degree = r.floats("kernel_params") if r.floats("kernel_params").size else np.zeros(3, np.float32)
    array = array.reshape(count, -1)
    x, vectors = r.matrix(), r.parameter("support_vectors", array)
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

    The column of a pair i < j has the coefficients of the vectors of class i from row j - 1, and those of class j from
    row i. The others are zero: a zero is appended to the coefficients for them.
    """
    classes, count = len(per_class), int(per_class.sum())
    coef, rho = r.floats("coefficients"), r.floats("rho")
    if coef.size != (classes - 1) * count or rho.size < classes * (classes - 1) // 2:
        r.refuse(f"its {coef.size} coefficients and {rho.size} rho do not fit {classes} classes and {count} vectors")
    owner, column = np.repeat(np.arange(classes), per_class), np.arange(count)
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
    return post_transforms.largest(r, total, labels)


def _class_scores(r: RewrittenNode, pairs: ir.Value, classes: int) -> ir.Value:
    if r.floats("prob_a").size:
        return post_transforms.transformed(r, coupled(r.op, _pairwise_probabilities(r, pairs), classes))
    if classes > 2:
        return post_transforms.transformed(r, pairs)
    raw = r.attribute("post_transform", "NONE") == "NONE"
    return post_transforms.both_signs(r, pairs) if raw else post_transforms.complement(r, pairs)


def _pairwise_probabilities(r: RewrittenNode, pairs: ir.Value) -> ir.Value:
    """Platt's sigmoid(-(a s + b)) of each pair, clipped away from 0 and 1."""
    op, count = r.op, len(r.floats("rho"))
    slope = r.parameter("prob_a", r.floats("prob_a")[:count])
    scaled = op.Add(op.Mul(pairs, slope), r.parameter("prob_b", r.floats("prob_b")[:count]))
    least = np.float32(_LEAST_PROBABILITY)
    return op.Clip(op.Sigmoid(op.Neg(scaled)), least, np.float32(1) - least)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("ai.onnx.ml", "SVMClassifier"): _svm_classifier,
    ("ai.onnx.ml", "SVMRegressor"): _svm_regressor,
}
