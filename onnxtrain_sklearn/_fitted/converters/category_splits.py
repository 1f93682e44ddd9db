"""Splits of histogram trees by categories, as splits by numbers.

A split sends some categories of a column to the left and the others to the right. Missing and unknown ones go where the
split sends missing values. Each different split becomes a column of its own, 1 for the rows that go to the right, which
the trees compare with one half. Nodes that compare categories are not used: onnxruntime 1.21 computes some trees of
them wrongly, and 1.19 has no set membership.

Scikit-learn puts the columns of categories before the others, and replaces each category by its place among those of
the fit. The graph keeps the order of the data. It compares numbers with the categories in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.preprocessing import OrdinalEncoder

from ..._graph.cast_types import FLOAT, INT64
from ..._support.typing import Estimator
from ...exceptions import ModelError
from .context import Source
from .trees import float32_cuts

Nodes = dict[str, np.ndarray]


def categories_by_column(model: Estimator | None) -> dict[int, np.ndarray]:
    """Return the categories of the columns that a histogram booster encodes itself, by position in the data."""
    preprocessor = getattr(model, "_preprocessor", None)
    if model is None or preprocessor is None:
        return {}
    columns = np.flatnonzero(model.is_categorical_)
    encoder = preprocessor.named_transformers_["encoder"]
    return dict(zip(columns.tolist(), encoder.categories_, strict=True))


def with_category_splits(s: Source, trees: Sequence[Any]) -> tuple[ir.Value, list[Nodes]]:
    """Return the rows with a column for each split by categories, and the nodes of each tree on these columns."""
    nodes = np.concatenate([tree.nodes for tree in trees])
    feature, threshold = _columns_of_data(s.estimator)[nodes["feature_idx"]], float32_cuts(nodes["num_threshold"])
    by_category, rows = nodes["is_categorical"].astype(bool), s.x
    if by_category.any():
        splits = _different_splits(feature[by_category], _rights(trees))
        rows = s.op.Concat(rows, *(_columns_of_splits(s, splits, column) for column in splits.columns), axis=1)
        feature[by_category], threshold[by_category] = s.estimator.n_features_in_ + splits.place, 0.5
    columns = {"feature": feature, "threshold": threshold}
    columns |= {name: nodes[name] for name in ("is_leaf", "left", "missing_go_to_left", "right")}
    ends = np.cumsum([len(tree.nodes) for tree in trees])
    return rows, [
        {name: column[end - len(tree.nodes) : end] for name, column in columns.items()}
        for tree, end in zip(trees, ends, strict=True)
    ]


def exact_thresholds(model: Estimator) -> np.ndarray:
    """Return the thresholds of all nodes in float64, those of splits by categories as the graph has them."""
    nodes = np.concatenate([tree.nodes for stage in model._predictors for tree in stage])
    by_category, is_leaf = nodes["is_categorical"].astype(bool), nodes["is_leaf"].astype(bool)
    return np.where(is_leaf, 0.0, np.where(by_category, 0.5, nodes["num_threshold"]))


def _columns_of_data(model: Estimator) -> np.ndarray:
    """Return the position in the data of each column of the trees."""
    if model.is_categorical_ is None:
        return np.arange(model.n_features_in_)
    return np.argsort(~model.is_categorical_, kind="stable")


@dataclass(frozen=True)
class _Splits:
    """The different splits by categories, in the order of their columns.

    Attributes
    ----------
    column : array of int
        The column of the data that each split reads.
    right : array of bool, (splits, 257)
        Whether rows go to the right: those without a known category, then those of each category.
    place : array of int
        The split of each node that splits by categories.
    """

    column: np.ndarray
    right: np.ndarray
    place: np.ndarray

    @property
    def columns(self) -> list[int]:
        """The columns that splits read."""
        return list(dict.fromkeys(self.column.tolist()))


def _rights(trees: Sequence[Any]) -> np.ndarray:
    """Return which rows each node that splits by categories sends to the right, as in :class:`_Splits`."""
    rights = []
    for tree in trees:
        nodes = tree.nodes[tree.nodes["is_categorical"].astype(bool)]
        bits = (tree.raw_left_cat_bitsets[nodes["bitset_idx"]][:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
        left = np.concatenate([nodes["missing_go_to_left"][:, None], bits.reshape(len(nodes), 256)], axis=1)
        rights.append(left == 0)
    return np.concatenate(rights)


def _different_splits(columns: np.ndarray, rights: np.ndarray) -> _Splits:
    keys = [(column, right.tobytes()) for column, right in zip(columns.tolist(), rights, strict=True)]
    node_of = {key: i for i, key in enumerate(keys)}
    place_of = {key: place for place, key in enumerate(sorted(node_of))}
    chosen = [node_of[key] for key in place_of]
    return _Splits(columns[chosen], rights[chosen], np.array([place_of[key] for key in keys]))


def _columns_of_splits(s: Source, splits: _Splits, column: int) -> ir.Value:
    """Return the columns of the splits that read one column of the data, (rows, splits)."""
    known = _numbers(s.estimator, column)
    table = splits.right[splits.column == column, : len(known) + 1].T.astype(np.float32)
    return s.op.Gather(table, _category_places(s, column, known), axis=0)


def _category_places(s: Source, column: int, known: np.ndarray) -> ir.Value:
    """Return the place of each row's category, counted from 1; 0 is that of missing and unknown ones."""
    op = s.op
    values = op.Gather(s.x, np.array([column]), axis=1)
    found = op.Cast(op.Equal(values, known[None]), to=FLOAT)
    places = op.MatMul(found, np.arange(1, len(known) + 1, dtype=np.float32)[:, None])
    return op.Cast(op.Squeeze(places, np.array([1])), to=INT64)


def _numbers(model: Estimator, column: int) -> np.ndarray:
    """Return the known categories of a column as the graph has them: numbers, or the places of texts."""
    known = _without_missing(categories_by_column(model)[column])
    if _are_texts(known):
        return np.arange(len(known), dtype=np.float32)
    numbers = known.astype(np.float32)
    if len(np.unique(numbers)) < len(known):
        raise ModelError(
            f"Categories in column {column} of this {type(model).__name__} are equal as float32, so that its ONNX form "
            f"cannot tell them apart. Number the categories from 0, and fit the model on that."
        )
    return numbers


def _without_missing(categories: np.ndarray) -> np.ndarray:
    return categories[[value is not None and value == value for value in categories.tolist()]]  # NaN is not equal


def _are_texts(categories: np.ndarray) -> bool:
    return any(isinstance(value, str) for value in categories.tolist())


def encoder_of_text(model: Estimator, column: int) -> OrdinalEncoder | None:
    """Return an encoder of the known categories of a column, -1 for the others; None where they are no texts."""
    known = _without_missing(categories_by_column(model).get(column, np.empty(0)))
    if not _are_texts(known):
        return None
    encoder = OrdinalEncoder(categories=[known], handle_unknown="use_encoded_value", unknown_value=-1)
    return encoder.fit(known[:, None])
