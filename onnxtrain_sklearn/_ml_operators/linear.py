"""Rewriting rules for linear regression and classification.

The weights have scikit-learn's shapes and names: ``coef`` has one row per target or class, ``intercept`` one number.
Two classes with opposite rows are one score s in two columns (-s, s): the parameter is their one row, so that they stay
opposite in training.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from . import post_transforms
from .context import LazyValue, RewriteRule, RewrittenNode


def _linear_regressor(r: RewrittenNode) -> Sequence[LazyValue]:
    coef, intercept = _coefficient_matrix(r, int(r.attribute("targets", 1)))
    finish = post_transforms.transformed if len(coef) > 1 else post_transforms.untransformed
    return (lambda: finish(r, _linear_product(r, coef, intercept)),)


def _linear_classifier(r: RewrittenNode) -> Sequence[LazyValue]:
    labels = r.labels("classlabels_ints")
    coef, intercept = _coefficient_matrix(r, len(r.floats("intercepts")))
    tied = len(coef) == 2 and np.array_equal(coef[0], -coef[1]) and np.array_equal(intercept[0], -intercept[1])
    raw = functools.cache(
        lambda: _linear_product(r, coef[1:], intercept[1:]) if tied else _linear_product(r, coef, intercept)
    )
    if len(labels) != max(len(coef), 2):
        r.refuse(f"it has {len(coef)} rows of weights for {len(labels)} labels")
    if len(coef) == 1:
        return lambda: post_transforms.label_above(r, raw(), 0.0, labels), lambda: post_transforms.complement(r, raw())
    if not tied:
        return lambda: post_transforms.largest(r, raw(), labels), lambda: post_transforms.transformed(r, raw())
    return lambda: post_transforms.label_above(r, raw(), 0.0, labels), lambda: _two_columns(r, raw())


def _two_columns(r: RewrittenNode, score: ir.Value) -> ir.Value:
    """Apply LOGISTIC by columns, so that the final sigmoid is recognized; other transforms as for several classes."""
    if r.attribute("post_transform", "NONE") in ("NONE", "LOGISTIC"):
        return post_transforms.both_signs(r, score)
    return post_transforms.transformed(r, r.op.Concat(r.op.Neg(score), score, axis=1))


def _coefficient_matrix(r: RewrittenNode, rows: int) -> tuple[np.ndarray, np.ndarray]:
    coef, intercept = r.floats("coefficients"), r.floats("intercepts")
    if not rows or not coef.size or coef.size % rows:
        r.refuse(f"its {coef.size} coefficients do not make {rows} rows")
    coef = coef.reshape(rows, -1)
    if r.columns() not in (None, coef.shape[1]):
        r.refuse(f"it has weights for {coef.shape[1]} features, and its input has {r.columns()}")
    if intercept.size not in (0, rows):
        r.refuse(f"it has {intercept.size} intercepts for {rows} rows of weights")
    return coef, intercept


def _linear_product(r: RewrittenNode, coef: np.ndarray, intercept: np.ndarray) -> ir.Value:
    weights = r.parameter("coef", coef)
    return r.op.Gemm(r.matrix(), weights, *([r.parameter("intercept", intercept)] if intercept.size else []), transB=1)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("ai.onnx.ml", "LinearRegressor"): _linear_regressor,
    ("ai.onnx.ml", "LinearClassifier"): _linear_classifier,
}
