"""Converters: classifiers of several outputs a row.

Trees, whose leaves hold a probability for each class of each output, and one estimator for each output, whatever it is.
The labels that they give are stand-ins: labels are made of the scores where predictions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from ..._support.typing import Estimator
from ...exceptions import ModelError
from .context import FLOAT, INT64, Converter, Source
from .trees import branches, leaves

T = TypeVar("T")


def in_order_of_labels(estimator: Estimator, parts: Sequence[T]) -> list[T]:
    """Return what there is of each estimator an output in the order of the labels, not of a chain."""
    return [parts[i] for i in np.argsort(estimator.order_)] if hasattr(estimator, "order_") else list(parts)


def joined_outputs(s: Source) -> Sequence[ir.Value]:
    """Return what the estimators of the outputs give, side by side."""
    parts = [s.within(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _stand_in(s, parts[0]), s.op.Concat(*parts, axis=1)


def _side_by_side(s: Source) -> Sequence[ir.Value]:
    parts = [s.within(one, s.x, False)[-1] for one in s.estimator.estimators_]
    return _stand_in(s, parts[0]), s.op.SequenceConstruct(*parts)


def _chain(s: Source) -> Sequence[ir.Value]:
    """Each estimator is given what those before it predict."""
    owner, method = s.estimator, getattr(s.estimator, "chain_method_", "predict")
    if method not in ("predict", "predict_proba"):
        raise ModelError(
            f"This ClassifierChain has chain_method {method!r}; those that can be trained are 'predict' and "
            f"'predict_proba'."
        )
    if any(list(known) != [0, 1] for known in owner.classes_):
        raise ModelError("This ClassifierChain has labels that are not 0 or 1, which its ONNX form lacks.")
    given, parts = [s.x], list[ir.Value]()
    for one in owner.estimators_:
        rows = s.op.Concat(*given, axis=1) if len(given) > 1 else s.x
        label, numbers = s.within(one, rows, False)
        parts.append(numbers)
        given.append(_link(s, label if method == "predict" else numbers, method))
    parts = in_order_of_labels(owner, parts)
    return _stand_in(s, parts[0]), s.op.Concat(*parts, axis=1)


def _link(s: Source, value: ir.Value, method: str) -> ir.Value:
    """Return the column that an estimator of a chain hands to the next ones: its label, or the probability of it."""
    if method == "predict":
        return s.op.Reshape(s.op.Cast(value, to=FLOAT), np.array([-1, 1]))
    return s.op.Gather(value, np.array([1]), axis=1)


def _stand_in(s: Source, numbers: ir.Value) -> ir.Value:
    return s.op.Cast(numbers, to=INT64)


def _trees(s: Source) -> Sequence[ir.Value]:
    owner = s.estimator
    trees = [one.tree_ for one in getattr(owner, "estimators_", [owner])]
    attributes = branches(trees) | _leaves(trees, np.asarray(owner.n_classes_))
    (probabilities,) = s.op.emit("TreeEnsembleRegressor", s.x, domain="ai.onnx.ml", **attributes)
    probabilities.dtype = ir.DataType.FLOAT
    return _stand_in(s, probabilities), probabilities


def _leaves(trees: Sequence[Estimator], n_classes: np.ndarray) -> dict[str, Any]:
    """Return the probabilities in the leaves, of one tree its share among all: the classes of each output in turn."""
    ends, columns = leaves(trees), int(n_classes.sum())
    weights = [_probabilities(tree, n_classes)[own] / len(trees) for tree, own in zip(trees, ends, strict=True)]
    return {
        "n_targets": columns,
        "target_treeids": np.repeat(np.arange(len(trees)), [len(own) * columns for own in ends]).tolist(),
        "target_nodeids": np.repeat(np.concatenate(ends), columns).tolist(),
        "target_ids": np.tile(np.arange(columns), sum(map(len, ends))).tolist(),
        "target_weights": np.concatenate(weights).ravel().astype(np.float32).tolist(),
    }


def _probabilities(tree: Estimator, n_classes: np.ndarray) -> np.ndarray:
    """Return what each node of a tree holds for the classes of each output in turn; they add up to one an output."""
    parts = [tree.value[:, i, :n] for i, n in enumerate(n_classes)]
    return np.concatenate([part / part.sum(axis=1, keepdims=True) for part in parts], axis=1)


CONVERTERS: dict[type, Converter] = {
    ClassifierChain: Converter(_chain, lambda chain: len(chain.estimators_)),
    DecisionTreeClassifier: Converter(_trees, takes=lambda tree: tree.n_outputs_ > 1),
    ExtraTreeClassifier: Converter(_trees, takes=lambda tree: tree.n_outputs_ > 1),
    ExtraTreesClassifier: Converter(_trees, takes=lambda forest: forest.n_outputs_ > 1),
    MultiOutputClassifier: Converter(_side_by_side),
    RandomForestClassifier: Converter(_trees, takes=lambda forest: forest.n_outputs_ > 1),
}
