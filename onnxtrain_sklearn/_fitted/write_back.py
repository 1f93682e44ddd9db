"""Write trained parameters back to the attributes of a copy of the scikit-learn model, for ``to_sklearn()``.

:func:`write_back` writes each parameter to the attribute of its :class:`Origin`, through the inverse of the form in
which the graph holds it. Only numbers that training changed are written: an inverse would round the others. Attributes
that repeat a written one are updated. Trees have no attribute to assign: :data:`LEAVES` holds the functions that write
into them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import linalg
from sklearn import ensemble
from sklearn.base import is_classifier
from sklearn.covariance import EmpiricalCovariance
from sklearn.svm import OneClassSVM
from sklearn.tree import BaseDecisionTree

from .._utils.typing import Estimator
from ..exceptions import ModelError
from .provenance import FORMS, Origin
from .traversal import Path, assign, follow


def write_back(
    model: Estimator, origins: Sequence[Origin], before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]
) -> Any:
    """Return a deep copy of ``model`` with the numbers that differ between ``before`` and ``now`` written back."""
    changed = [origin for origin in origins if not np.array_equal(before[origin.name], now[origin.name])]
    lost = [origin.name for origin in changed if not origin.attribute and origin.role not in LEAVES]
    for origin in (one for one in changed if not one.attribute and one.role in LEAVES):
        owner = follow(model, origin.owner)
        if not isinstance(owner, WITH_TREES):
            raise ModelError(
                f"{origin.name!r} was trained, and {type(owner).__name__} keeps its trees in a form of its own that "
                f"numbers cannot be written back to. Freeze it with trainable=..., or take to_onnx()."
            )
    if lost:
        raise ModelError(
            f"These trained numbers have no attribute in {type(model).__name__}: {', '.join(lost)}. Freeze them with "
            f"trainable=..., or take to_onnx()."
        )
    result = copy.deepcopy(model)
    for origin in changed:
        owner = follow(result, origin.owner)
        if origin.attribute:
            assign(owner, origin.attribute, FORMS[origin.form][1](np.asarray(now[origin.name], np.float64)))
        else:
            LEAVES[origin.role](owner, origin, before[origin.name], now[origin.name])
        _complete(follow(owner, origin.attribute[:-1]) if len(origin.attribute) > 1 else owner, origin.attribute)
    return result


def _complete(owner: Estimator, path: Path) -> None:
    """Update attributes that repeat the written one."""
    attribute = str(path[-1]) if path else ""
    if attribute == "scale_" and hasattr(owner, "var_"):
        owner.var_ = owner.scale_**2
    if attribute.strip("_") in ("dual_coef", "intercept") and hasattr(owner, "_dual_coef_"):
        _repeat_for_libsvm(owner, attribute)
    if attribute == "y_thresholds_":
        owner._build_f(owner.X_thresholds_, owner.y_thresholds_)
    if attribute == "precision_" and isinstance(owner, EmpiricalCovariance):
        owner.covariance_ = linalg.pinvh(owner.precision_)
    if attribute == "_fit_X" and getattr(owner, "_tree", None) is not None:
        metric = {"metric": owner.effective_metric_, **owner.effective_metric_params_}
        owner._tree = type(owner._tree)(owner._fit_X, owner.leaf_size, **metric)


def _repeat_for_libsvm(owner: Estimator, attribute: str) -> None:
    """Update LIBSVM's private copies, which have the opposite sign for two classes."""
    name = attribute.strip("_")
    sign = -1.0 if is_classifier(owner) and len(owner.classes_) == 2 else 1.0
    public, private = f"{name}_", f"_{name}_"
    if attribute == private:
        vars(owner)[public] = sign * vars(owner)[private]
    else:
        vars(owner)[private] = sign * vars(owner)[public]
    if isinstance(owner, OneClassSVM):
        owner.offset_ = -owner.intercept_


# Trees


WITH_TREES = (
    BaseDecisionTree,
    ensemble.ExtraTreesClassifier,
    ensemble.ExtraTreesRegressor,
    ensemble.GradientBoostingClassifier,
    ensemble.GradientBoostingRegressor,
    ensemble.HistGradientBoostingClassifier,
    ensemble.HistGradientBoostingRegressor,
    ensemble.IsolationForest,
    ensemble.RandomForestClassifier,
    ensemble.RandomForestRegressor,
)
"""The estimators whose trees can be written; those of other libraries cannot."""


def _write_leaves(owner: Estimator, origin: Origin, before: np.ndarray, now: np.ndarray) -> None:
    """Write the values of leaves; the graph holds them times a factor, such as a learning rate or 1 / trees."""
    assert origin.places is not None
    places = origin.places.reshape(-1, 3)
    cells = [_cell(owner, *(int(n) for n in place)) for place in places]
    old = np.array([cell() for cell, _ in cells])
    factor = float((before.ravel() * old).sum() / (old * old).sum()) if old.any() else _factor(owner)
    if not np.allclose(factor * old, before.ravel(), rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(before).max()))):
        raise ModelError(f"The leaves of {type(owner).__name__} are not those of the graph: {origin.name!r}.")
    for (_, write), value in zip(cells, now.ravel().astype(np.float64) / factor, strict=True):
        write(value)


def _factor(owner: Estimator) -> float:
    """Return the factor of the leaves where all values are zero."""
    if isinstance(owner, ensemble.GradientBoostingClassifier | ensemble.GradientBoostingRegressor):
        return float(owner.learning_rate)
    averages = isinstance(owner, ensemble.RandomForestRegressor | ensemble.ExtraTreesRegressor)
    return 1.0 / len(owner.estimators_) if averages else 1.0


def _cell(owner: Estimator, tree: int, node: int, target: int) -> tuple[Callable[[], float], Callable[[float], None]]:
    """Return the functions that read and write one value of one leaf."""
    if isinstance(owner, ensemble.IsolationForest):  # the length of the path, and its expected rest
        beyond, depth = owner._average_path_length_per_tree[tree], owner._decision_path_lengths[tree][node] - 1.0
        return lambda: float(depth + beyond[node]), lambda value: beyond.__setitem__(node, value - depth)
    if hasattr(owner, "_predictors"):
        flat = [predictor for stage in owner._predictors for predictor in stage]
        nodes = flat[tree].nodes
        return lambda: float(nodes["value"][node]), lambda value: nodes["value"].__setitem__(node, value)
    values = _trees_of_model(owner)[tree].value
    # The arrays of scikit-learn's trees are (nodes, outputs, classes); boosting has one number in a leaf.
    place = (node, 0, target) if is_classifier(owner) else (node, target, 0)
    if isinstance(getattr(owner, "estimators_", None), np.ndarray):
        place = (node, 0, 0)
    return lambda: float(values[place]), lambda value: values.__setitem__(place, value)


def _trees_of_model(owner: Estimator) -> list[Any]:
    if hasattr(owner, "tree_"):
        return [owner.tree_]
    return [estimator.tree_ for estimator in np.ravel(np.array(owner.estimators_, dtype=object))]


def _write_probabilities(owner: Estimator, origin: Origin, before: np.ndarray, now: np.ndarray) -> None:
    """Write the probabilities in leaves; the single number of two classes is that of the second class."""
    assert origin.places is not None
    trees, numbers = _trees_of_model(owner), np.abs(now.astype(np.float64))
    if now.ndim == 2:
        cells = [(output, i) for output, n in enumerate(np.atleast_1d(owner.n_classes_)) for i in range(n)]
        for (tree, node, target), value in zip(origin.places.reshape(-1, 3), numbers.ravel(), strict=True):
            output, i = cells[target]
            trees[tree].value[node, output, i] = value
        for tree, node, _ in np.unique(origin.places[:, 0], axis=0):
            held = trees[tree].value[node]
            held /= held.sum(axis=1, keepdims=True)
        return
    p = numbers / (numbers + np.abs(1 - now.astype(np.float64)))
    for place, value in zip(origin.places, p, strict=True):
        trees[place[0]].value[place[1], 0] = [1 - value, value]


LEAVES: dict[str, Callable[[Any, Origin, np.ndarray, np.ndarray], None]] = {
    "leaf_probabilities": _write_probabilities,
    "leaf_values": _write_leaves,
}
"""The functions that write parameters without an attribute, by role."""
