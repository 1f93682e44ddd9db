"""Scikit-learn's scorers, by name, on images and series and on labels at positions, which its metrics do not take.

The elements of a row are the columns of a target, which R² and the explained variance weight as ``score`` does: the
mean of their scores would be decided by elements that hardly vary. Each label that counts is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from .._data.ignored_labels import IGNORED
from .._data.positions import given_weights, position_shares
from .._data.targets import Targets
from .scoring import scorer_by_name

RESPONSE_METHODS = ("predict", "predict_proba", "decision_function")


class FlatScorer:
    """A scorer of scikit-learn that is given flat targets and predictions.

    Parameters
    ----------
    estimator : BaseOrtGradient
    name : str
        The name of the scorer.
    targets : Targets
        Those of the validation data, with rows of several axes.
    weights : ndarray or None
        The weights of rows, as training weights them.
    """

    def __init__(self, estimator: Any, name: str, targets: Targets, weights: np.ndarray | None) -> None:
        self.name = name
        self._scorer = _by_elements(name) or scorer_by_name(estimator, name, _classes_at_positions(targets))
        flat = _flat_labels if targets.has_positions else _flat_elements
        self._y, weights, self._flatten = flat(targets, weights)
        self._more = {} if weights is None else {"sample_weight": weights}

    def __repr__(self) -> str:
        return repr(self.name)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the predictions; ``y`` and the weights are those given before."""
        flat = object.__new__(type(estimator))
        vars(flat).update(vars(estimator))
        for name in RESPONSE_METHODS:
            if hasattr(estimator, name):
                setattr(flat, name, _flattened(getattr(estimator, name), self._flatten))
        return float(self._scorer(flat, X, self._y, **self._more))


def _classes_at_positions(targets: Targets) -> np.ndarray | None:
    return np.asarray(targets.classes) if targets.has_positions else None


def _flattened(method: Callable[..., Any], flatten: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(method)  # scikit-learn looks methods up by their names
    def flat(X: Any) -> Any:
        return flatten(method(X))

    return flat


def _by_elements(name: str) -> Callable[..., float] | None:
    """Return the scorer in which each element weighs as much as it varies; None for scores that know no such mean."""
    from sklearn.metrics import explained_variance_score, make_scorer, r2_score  # needs a fifth of scikit-learn

    metric = {"r2": r2_score, "explained_variance": explained_variance_score}.get(name)
    scorer: Callable[..., float] | None = metric and make_scorer(metric, multioutput="variance_weighted")
    return scorer


Flat = tuple[np.ndarray, "np.ndarray | None", Callable[[np.ndarray], np.ndarray]]


def _flat_elements(targets: Targets, weights: np.ndarray | None) -> Flat:
    return targets.values.reshape(len(targets.values), -1), weights, lambda found: found.reshape(len(found), -1)


def _flat_labels(targets: Targets, weights: np.ndarray | None) -> Flat:
    """Return the labels that count, their weights, None where all are one, and the function that selects them."""
    counted = targets.values.ravel() != IGNORED
    rows = None if weights is None else given_weights(targets, weights)
    shares = position_shares(targets)
    own = (shares if rows is None else rows[:, None] * shares).ravel()[counted]

    def flatten(found: np.ndarray) -> np.ndarray:
        axes = found.shape[1 + len(targets.row_shape) :]
        chosen: np.ndarray = found.reshape(-1, *axes)[counted]
        return chosen

    labels = np.asarray(targets.classes)[targets.values.ravel()[counted]]
    return labels, None if (own == 1).all() else own, flatten
