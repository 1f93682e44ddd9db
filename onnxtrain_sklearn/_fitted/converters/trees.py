"""Convert trees, forests and gradient boosting.

The tree operators of ai.onnx.ml are twenty times faster than operators of the default domain would be, so they are
kept. The numbers of their leaves become parameters when the graph is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.preprocessing import OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier, ExtraTreeRegressor

from ..._utils.typing import Estimator
from ...exceptions import ModelError
from ...graph import FLOAT, INT64
from .context import Converter, Source, several_labels

Attributes = dict[str, Any]


def tree_sum(s: Source, nodes: Attributes, leaves: Attributes, rows: ir.Value | None = None) -> ir.Value:
    """Emit the sum of the trees' leaves, (rows, targets), for ``rows``, by default the estimator's input."""
    return s.ml_operator("TreeEnsembleRegressor", rows=rows, **nodes, **leaves)[0]


def branches(trees: Sequence[Estimator], features: Sequence[np.ndarray] | None = None) -> Attributes:
    """Return the operator's attributes for the nodes of ``trees``; ``features`` holds the columns of each tree."""
    columns = []
    for i, tree in enumerate(trees):
        feature = np.maximum(tree.feature, 0)
        columns.append(
            {
                "feature": feature if features is None else np.asarray(features[i])[feature],
                "is_leaf": tree.children_left < 0,
                "left": tree.children_left,
                "missing_go_to_left": tree.missing_go_to_left,
                "right": tree.children_right,
                "threshold": tree.threshold,
            }
        )
    return nodes_in(columns)


def nodes_in(trees: Sequence[dict[str, np.ndarray]]) -> Attributes:
    """Return the operator's attributes for the nodes of trees, each given as arrays with one number per node."""
    sizes = [len(tree["is_leaf"]) for tree in trees]
    joined = {name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]}
    leaf = joined["is_leaf"].astype(bool)
    values = {
        "featureids": np.where(leaf, 0, joined["feature"]),
        "falsenodeids": np.where(leaf, 0, joined["right"]),
        "missing_value_tracks_true": np.asarray(joined["missing_go_to_left"], int),
        "modes": np.where(leaf, "LEAF", "BRANCH_LEQ"),
        "nodeids": np.concatenate([np.arange(size) for size in sizes]),
        "treeids": np.repeat(np.arange(len(trees)), sizes),
        "truenodeids": np.where(leaf, 0, joined["left"]),
        "values": not_above(np.where(leaf, 0.0, joined["threshold"])),
    }
    return {f"nodes_{name}": array.tolist() for name, array in values.items()}


def leaves_of(ends: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> Attributes:
    """Return the operator's attributes for leaves, given each tree's leaf nodes and weights (leaves, targets)."""
    targets = weights[0].shape[1]
    sizes = list(map(len, ends))
    return {
        "n_targets": targets,
        "target_treeids": np.repeat(np.arange(len(ends)), np.multiply(sizes, targets)).tolist(),
        "target_nodeids": np.repeat(np.concatenate(ends), targets).tolist(),
        "target_ids": np.tile(np.arange(targets), sum(sizes)).tolist(),
        "target_weights": np.concatenate(weights).ravel().astype(np.float32).tolist(),
    }


def leaves_of_targets(
    ends: Sequence[np.ndarray], weights: Sequence[np.ndarray], target_of: Sequence[int], targets: int
) -> Attributes:
    """Return the operator's attributes for the leaves of trees with a single target each: one weight per leaf."""
    sizes = list(map(len, ends))
    attributes = leaves_of(ends, [np.reshape(one, (-1, 1)) for one in weights])
    return attributes | {"n_targets": targets, "target_ids": np.repeat(target_of, sizes).tolist()}


def leaves(trees: Sequence[Estimator]) -> list[np.ndarray]:
    """Return, for each tree, the indices of the nodes that are leaves."""
    return [np.flatnonzero(tree.children_left < 0) for tree in trees]


def not_above(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above each threshold, which splits float32 numbers in the same way."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def float32_cuts(thresholds: np.ndarray) -> np.ndarray:
    """Return float32 thresholds that split rounded numbers as the float64 ``thresholds`` split the unrounded ones.

    A threshold may be a number of the data, which goes to the left: then the nearest float32 is right. Otherwise it is
    halfway between two numbers of the data, and the upper one must stay above it, even if the two are neighbors in
    float32. A decimal number halfway between two others may be just above the threshold, by rounding in float64: it
    goes to the right.
    """
    thresholds = np.minimum(thresholds, np.finfo(np.float32).max)  # a threshold of 1e300 sends only NaN to the right
    below = not_above(thresholds)
    with np.errstate(over="ignore"):
        above = np.nextafter(below, np.float32(np.inf))
    nearest = np.where(above.astype(np.float64) - thresholds < thresholds - below.astype(np.float64), above, below)
    decimal = np.array([float(f"{threshold:.9g}") for threshold in thresholds])
    distance = decimal - thresholds
    just_above = (distance > 0) & (distance <= 2 * np.spacing(np.abs(thresholds))) & (below != thresholds)
    return np.where(just_above, np.nextafter(decimal.astype(np.float32), np.float32(-np.inf)), nearest)


# Converters of decision trees and forests, whose leaves hold numbers, or a probability for each class of each output.
#
# The probabilities of two classes are one number per leaf, that of the second class. Labels of several outputs are
# placeholders, because the inference graph makes labels from the scores.


def _forest_regressor(s: Source) -> Sequence[ir.Value]:
    return (_mean_of_trees(s, [tree.value[:, :, 0] for tree in _trees(s.estimator)]),)


def _forest_classifier(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    sizes = np.atleast_1d(model.n_classes_)
    shares = []
    for tree in _trees(model):  # for each node, the probabilities of the classes, output by output
        parts = [tree.value[:, i, :n] for i, n in enumerate(sizes)]
        shares.append(np.concatenate([part / part.sum(axis=1, keepdims=True) for part in parts], axis=1))
    if several_labels(model):
        joined = _mean_of_trees(s, shares)
        return op.Cast(joined, to=INT64), joined
    if len(model.classes_) == 2:
        p = _mean_of_trees(s, [share[:, 1:] for share in shares])
        both = op.Concat(op.Sub(1.0, p), p, axis=1)
        return s.chosen(both), both
    mean = _mean_of_trees(s, shares)
    return s.chosen(mean), mean


def _mean_of_trees(s: Source, values: Sequence[np.ndarray]) -> ir.Value:
    """Return the mean of the trees' leaf values; ``values`` has, for each tree, a row for each node."""
    trees = _trees(s.estimator)
    ends = leaves(trees)
    weights = [value[own] / len(trees) for value, own in zip(values, ends, strict=True)]
    return tree_sum(s, branches(trees), leaves_of(ends, weights))


def _trees(model: Estimator) -> list[Estimator]:
    return [one.tree_ for one in getattr(model, "estimators_", [model])]


# Categorical splits of histogram trees are converted to numeric splits.
#
# A split sends some categories of a column to the left and the others to the right. Missing and unknown categories go
# where the split sends missing values. Each distinct split becomes a new column, 1 for the rows that go to the right,
# which the trees compare with one half. The operator's own nodes for categories are not used: onnxruntime 1.21 computes
# some of these trees wrongly, and 1.19 has no set membership.
#
# scikit-learn moves categorical columns before the others, and replaces each category by its position among the fitted
# categories. The graph keeps the order of the data, and compares numbers with the categories in float32.


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
    """Return the rows extended by a column for each categorical split, and each tree's nodes on these columns."""
    op, model = s.op, s.estimator
    nodes = np.concatenate([tree.nodes for tree in trees])
    position = np.arange(model.n_features_in_)  # maps the trees' columns to columns of the data
    if model.is_categorical_ is not None:
        position = np.argsort(~model.is_categorical_, kind="stable")
    feature = position[nodes["feature_idx"]]
    threshold = float32_cuts(nodes["num_threshold"])
    by_category = nodes["is_categorical"].astype(bool)
    rows = s.x
    if by_category.any():
        # For each categorical node, a Boolean row: True if unknown values, and if each category, go to the right.
        rights = []
        for tree in trees:
            own = tree.nodes[tree.nodes["is_categorical"].astype(bool)]
            bits = (tree.raw_left_cat_bitsets[own["bitset_idx"]][:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
            left = np.concatenate([own["missing_go_to_left"][:, None], bits.reshape(len(own), 256)], axis=1)
            rights += [right.tobytes() for right in left == 0]
        splits = list(zip(feature[by_category].tolist(), rights, strict=True))
        place_of = {split: place for place, split in enumerate(sorted(set(splits)))}

        # Add a column for each distinct split. Positions of categories count from 1; 0 is for missing and unknown ones.
        read, table = np.array([column for column, _ in place_of]), np.array([list(right) for _, right in place_of])
        added = list[ir.Value]()
        for column in dict.fromkeys(read.tolist()):
            known = _numbers(model, column)
            found = op.Cast(op.Equal(op.Gather(s.x, np.array([column]), axis=1), known[None]), to=FLOAT)
            places = op.MatMul(found, np.arange(1, len(known) + 1, dtype=np.float32)[:, None])
            places = op.Cast(op.Squeeze(places, np.array([1])), to=INT64)
            right_of = table[read == column, : len(known) + 1].T.astype(np.float32)
            added.append(op.Gather(right_of, places, axis=0))
        rows = op.Concat(rows, *added, axis=1)
        feature[by_category] = model.n_features_in_ + np.array([place_of[split] for split in splits])
        threshold[by_category] = 0.5
    columns = {"feature": feature, "threshold": threshold}
    columns |= {name: nodes[name] for name in ("is_leaf", "left", "missing_go_to_left", "right")}
    ends = np.cumsum([len(tree.nodes) for tree in trees])
    return rows, [
        {name: column[end - len(tree.nodes) : end] for name, column in columns.items()}
        for tree, end in zip(trees, ends, strict=True)
    ]


def exact_thresholds(model: Estimator) -> np.ndarray:
    """Return the thresholds of all nodes in float64; for categorical splits, the thresholds in the graph (one half)."""
    nodes = np.concatenate([tree.nodes for stage in model._predictors for tree in stage])
    by_category = nodes["is_categorical"].astype(bool)
    is_leaf = nodes["is_leaf"].astype(bool)
    return np.where(is_leaf, 0.0, np.where(by_category, 0.5, nodes["num_threshold"]))


def _numbers(model: Estimator, column: int) -> np.ndarray:
    """Return the known categories of a column as the graph reads them: numbers, or the positions of texts."""
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
    """Return an encoder of the known categories of a column, with -1 for others; None if the categories are no text."""
    known = _without_missing(categories_by_column(model).get(column, np.empty(0)))
    if not _are_texts(known):
        return None
    encoder = OrdinalEncoder(categories=[known], handle_unknown="use_encoded_value", unknown_value=-1)
    return encoder.fit(known[:, None])


# Converters of gradient boosting: an initial prediction plus the sum of the trees' leaves.
#
# The initial prediction is a parameter if an attribute holds it. Scores of classes go through a sigmoid or a softmax.


def _boosting_regressor(s: Source) -> Sequence[ir.Value]:
    model, total = s.estimator, _sum_of_trees(s)
    if isinstance(model.init_, str):  # "zero"
        return (total,)
    if hasattr(model.init_, "constant_"):
        return (s.op.Add(total, s.parameter(model, ("init_", "constant_"), held=(-1,))),)
    return (s.op.Add(total, s.number(model.init_)),)


def _boosting_classifier(s: Source) -> Sequence[ir.Value]:
    """Convert a classifier, whose initial prediction is computed from the class frequencies and is not trained."""
    model, scores = s.estimator, _sum_of_trees(s)
    if not isinstance(model.init_, str):
        if model.init is not None:
            raise ModelError(
                f"{type(model).__name__}(init=...) with an estimator has no ONNX form. Fit it without init."
            )
        start = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))
        scores = s.op.Add(scores, start.ravel().astype(np.float32))
    doubled = model.loss == "exponential" and not s.raw_scores
    return _booster_classes(s, s.op.Mul(scores, 2.0) if doubled else scores)


def _booster_classes(s: Source, scores: ir.Value) -> Sequence[ir.Value]:
    op = s.op
    if len(s.estimator.classes_) == 2:
        return s.chosen(op.Concat(op.Neg(scores), scores, axis=1)), s.columns(scores)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(scores, axis=1)


def _sum_of_trees(s: Source) -> ir.Value:
    model = s.estimator
    trees = [one.tree_ for one in model.estimators_.ravel()]
    ends = leaves(trees)
    weights = [tree.value[own, 0, 0] * model.learning_rate for tree, own in zip(trees, ends, strict=True)]
    return tree_sum(s, branches(trees), _by_stage(ends, weights, model.estimators_.shape[1]))


def _by_stage(ends: Sequence[np.ndarray], weights: Sequence[np.ndarray], targets: int) -> Attributes:
    """Return the operator's attributes for leaves; the trees are in stages of one tree per target."""
    return leaves_of_targets(ends, weights, [i % targets for i in range(len(ends))], targets)


# Converters of histogram gradient boosting


def _histogram_regressor(s: Source) -> Sequence[ir.Value]:
    """Convert the sum of trees, with an exponential after it if the loss has a log link."""
    scores = _sum_over_histograms(s)
    return (s.op.Exp(scores) if s.estimator.loss in ("gamma", "poisson") else scores,)


def _histogram_classifier(s: Source) -> Sequence[ir.Value]:
    return _booster_classes(s, _sum_over_histograms(s))


def _sum_over_histograms(s: Source) -> ir.Value:
    model = s.estimator
    trees = [tree for stage in model._predictors for tree in stage]
    rows, columns = with_category_splits(s, trees)
    ends = [np.flatnonzero(nodes["is_leaf"]) for nodes in columns]
    weights = [tree.nodes["value"][own] for tree, own in zip(trees, ends, strict=True)]
    attributes = _by_stage(ends, weights, len(model._predictors[0]))
    total = tree_sum(s, nodes_in(columns), attributes, rows)
    return s.op.Add(total, s.parameter(model, "_baseline_prediction", held=(-1,)))


CONVERTERS: dict[type, Converter] = {
    DecisionTreeClassifier: Converter(_forest_classifier),
    DecisionTreeRegressor: Converter(_forest_regressor),
    ExtraTreeClassifier: Converter(_forest_classifier),
    ExtraTreeRegressor: Converter(_forest_regressor),
    ExtraTreesClassifier: Converter(_forest_classifier),
    ExtraTreesRegressor: Converter(_forest_regressor),
    RandomForestClassifier: Converter(_forest_classifier),
    RandomForestRegressor: Converter(_forest_regressor),
    GradientBoostingClassifier: Converter(_boosting_classifier),
    GradientBoostingRegressor: Converter(_boosting_regressor),
    HistGradientBoostingClassifier: Converter(_histogram_classifier),
    HistGradientBoostingRegressor: Converter(_histogram_regressor),
}
