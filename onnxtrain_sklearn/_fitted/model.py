"""Facts about a fitted scikit-learn model that training needs beside its graph; tests for such models.

Every estimator of the package imports this module, so it imports none that converts models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from .._support.typing import Estimator

if TYPE_CHECKING:
    from ..losses import Loss
    from .provenance import Origin
    from .table_graph import TablePipeline
    from .tables import Table

FEATURES = ("n_features_in_", "feature_names_in_")


@dataclass(frozen=True)
class FittedModel:
    """Facts about a fitted model beside its graph.

    Attributes
    ----------
    origins : tuple of Origin
        Where each parameter comes from.
    classes : ndarray, list of ndarray or None
        The labels of a classifier, a list if it predicts several labels per row that are not all 0 or 1; -1 and 1 for
        an outlier detector.
    features : dict
        The attributes that scikit-learn checks the data with: ``n_features_in_`` and ``feature_names_in_``, if present.
    loss : str or Loss
        The loss that is minimized unless the user names another one.
    n_labels : int or None
        The number of labels per row, where a classifier predicts several.
    table : Table or None
        The columns of a model that takes text.
    parts : TablePipeline or None
        The graph with one input per column, and the steps before the part of it that is trained.
    """

    origins: tuple[Origin, ...]
    classes: np.ndarray | list[np.ndarray] | None
    features: Mapping[str, Any]
    loss: str | Loss
    n_labels: int | None = None
    table: Table | None = None
    parts: TablePipeline | None = None

    def known_classes(self, classes: ArrayLike | list[np.ndarray] | None, y: ArrayLike) -> Any:
        """Return the labels that rows may have; ``classes`` and ``y`` must fit the model."""
        if self.classes is None:
            return classes
        self._require_labels(_shape(y))
        given, known = listed(classes), listed(self.classes)
        if classes is not None and given != known:
            raise ValueError(f"classes={given} are not those of the fitted model, {known}.")
        return self.classes

    def _require_labels(self, shape: tuple[int, ...]) -> None:
        given = shape[1] if len(shape) > 1 else 1
        if self.n_labels is not None and given != self.n_labels:
            raise ValueError(
                f"The fitted model predicts {self.n_labels} labels a row, and y has {given}, being of shape {shape}. "
                f"Give a matrix with a column for each label."
            )
        if self.n_labels is None and given > 1:
            raise ValueError(f"The fitted model predicts one label a row, and y has {given}, being of shape {shape}.")


def _shape(y: ArrayLike) -> tuple[int, ...]:
    try:
        return np.shape(y)
    except ValueError:
        raise ValueError("y must hold the same number of labels in every row, but its rows differ in length.") from None


def listed(classes: ArrayLike | list[np.ndarray] | None) -> Any:
    """Return classes as a list, or those of several labels as a list of lists."""
    if isinstance(classes, list | tuple) and any(np.ndim(known) for known in classes):
        return [np.asarray(known).tolist() for known in classes]
    return np.asarray(classes).tolist()


def is_estimator(model: object) -> TypeGuard[Estimator]:
    """Whether ``model`` is a scikit-learn estimator, fitted or not."""
    return isinstance(model, BaseEstimator) and hasattr(model, "fit")
