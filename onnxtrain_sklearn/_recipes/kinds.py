"""Classification and regression on raw tables: targets and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin

from .._data.inputs import prediction_type
from .._data.targets import Targets, class_targets, regression_targets
from .._model.links import Task
from .._utils.typing import ClassWeight, MatrixLike
from .base import BaseRecipe


class ClassifierRecipe(ClassifierMixin, BaseRecipe):
    """A classifier of raw tables."""

    class_weight: ClassWeight
    _task: Task

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing.

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, n_labels) of 0 and 1
        """
        return np.asarray(self._predict(X, 0)).astype(self.classes_.dtype)

    def predict_proba(self, X: MatrixLike) -> np.ndarray:
        """Predict probabilities.

        Parameters
        ----------
        X : as in :meth:`predict`

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``. For several labels a row, the probability of each that it is 1.

        Notes
        -----
        For float32 ``X`` these are the outputs of the graph of :meth:`to_onnx`. For other ``X`` they are float64, and
        those of classes are divided by their sum in it, which metrics such as the log loss require to be 1.
        """
        numbers = self._predict(X, 1).astype(prediction_type(X), copy=False)
        sums_to_one = numbers.dtype != np.float32 and self._task != "multilabel"
        return numbers / numbers.sum(axis=1, keepdims=True) if sums_to_one else numbers

    def _encode(self, y: ArrayLike) -> Targets:
        targets = class_targets(y, None)
        if targets.task == "multioutput":
            raise ValueError(
                f"{type(self).__name__} takes one label a row, or several that are 0 or 1; y holds several of other "
                f"classes. Wrap it in sklearn.multioutput.MultiOutputClassifier."
            )
        return targets

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class RegressorRecipe(MultiOutputMixin, RegressorMixin, BaseRecipe):
    """A regressor of raw tables."""

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
        """
        numbers = self._predict(X, 0).astype(prediction_type(X), copy=False)
        return numbers.ravel() if self.n_outputs_ == 1 else numbers

    def _encode(self, y: ArrayLike) -> Targets:
        return regression_targets(y)
