"""Classification and regression on raw tables: targets and predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin

from .._data.inputs import prediction_type
from .._data.targets import Targets, class_targets, regression_targets
from .._support.typing import ClassWeight, MatrixLike
from .training_files import RecipeTrainingFiles


class ClassifierRecipe(ClassifierMixin, RecipeTrainingFiles):
    """A classifier of raw tables."""

    class_weight: ClassWeight

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing.

        Returns
        -------
        ndarray of shape (n_samples,)
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
            In the order of ``classes_``.

        Notes
        -----
        For float32 ``X`` these are the outputs of the graph of :meth:`to_onnx`. For other ``X`` they are float64, and
        divided by their sum in it, which metrics such as the log loss require to be 1.
        """
        numbers = self._predict(X, 1).astype(prediction_type(X), copy=False)
        return numbers if numbers.dtype == np.float32 else numbers / numbers.sum(axis=1, keepdims=True)

    def _encode(self, y: ArrayLike) -> Targets:
        targets = class_targets(y, None)
        if targets.task not in ("binary", "multiclass"):
            raise ValueError(f"{type(self).__name__} takes one label a row, y holds {targets.task} targets.")
        return targets


class RegressorRecipe(MultiOutputMixin, RegressorMixin, RecipeTrainingFiles):
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
