"""Converters of classifiers that hold one estimator for each of several outputs.

The labels that they give are stand-ins: labels are made of the scores where predictions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier

from ..._graph.cast_types import FLOAT, INT64
from ..._support.typing import Estimator
from ...exceptions import ModelError
from .context import Converter, Source

T = TypeVar("T")


def in_order_of_labels(estimator: Estimator, parts: Sequence[T]) -> list[T]:
    """Return one item per output in the order of the labels, not in that of a chain."""
    return [parts[i] for i in np.argsort(estimator.order_)] if hasattr(estimator, "order_") else list(parts)


def joined_outputs(s: Source) -> Sequence[ir.Value]:
    """Return the concatenated outputs of the estimators of the labels."""
    parts = [s.convert_inner(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _as_labels(s, parts[0]), s.op.Concat(*parts, axis=1)


def _results_of_each(s: Source) -> Sequence[ir.Value]:
    parts = [s.convert_inner(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _as_labels(s, parts[0]), s.op.SequenceConstruct(*parts)


def _chain(s: Source) -> Sequence[ir.Value]:
    """Each estimator takes the rows and the predictions of those before it."""
    owner, method = s.estimator, getattr(s.estimator, "chain_method_", "predict")
    if method not in ("predict", "predict_proba"):
        raise ModelError(
            f"This ClassifierChain has chain_method {method!r}; those that can be trained are 'predict' and "
            f"'predict_proba'."
        )
    if any(list(known) != [0, 1] for known in owner.classes_):
        raise ModelError("This ClassifierChain has labels other than 0 and 1, which its ONNX form does not support.")
    given, parts = [s.x], list[ir.Value]()
    for one in owner.estimators_:
        rows = s.op.Concat(*given, axis=1) if len(given) > 1 else s.x
        label, numbers = s.convert_inner(one, rows, False)
        parts.append(numbers)
        given.append(_link(s, label if method == "predict" else numbers, method))
    parts = in_order_of_labels(owner, parts)
    return _as_labels(s, parts[0]), s.op.Concat(*parts, axis=1)


def _link(s: Source, value: ir.Value, method: str) -> ir.Value:
    """Return the column that an estimator passes on in a chain: its label, or the probability of label 1."""
    if method == "predict":
        return s.op.Reshape(s.op.Cast(value, to=FLOAT), np.array([-1, 1]))
    return s.op.Gather(value, np.array([1]), axis=1)


def _as_labels(s: Source, numbers: ir.Value) -> ir.Value:
    return s.op.Cast(numbers, to=INT64)


CONVERTERS: dict[type, Converter] = {
    ClassifierChain: Converter(_chain, lambda chain: len(chain.estimators_)),
    MultiOutputClassifier: Converter(_results_of_each),
}
