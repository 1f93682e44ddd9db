"""Base class of the two estimators: scikit-learn's interface to a training run.

Constructors only store their arguments. ``fit`` resolves and validates everything before it changes the estimator: an
error leaves it unchanged, including weights, optimizer state and random state. Targets and predictions, in which
classification and regression differ, are left to the public classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from .._data.targets import Classes, Targets
from .._fitted.model import is_estimator
from .._training.trainer import Trainer
from .._utils.typing import Estimator, MatrixLike
from .adaptation import Adapted
from .describe import Describable, HtmlRepr
from .examples import Call, FitRows
from .fit import Attempt, is_on, prepared
from .fitted_state import FittedState
from .parameters import CallbackSupportMixin, Parameters, resolved
from .pickling import Copied
from .predict import Results

if TYPE_CHECKING:
    from typing_extensions import Self


class GraphEstimator(
    CallbackSupportMixin, Copied, Attempt, Describable, Adapted, Parameters, HtmlRepr, BaseEstimator, ABC
):
    """Base class of the estimators that train an ONNX graph, on one output or on several."""

    _state: FittedState

    def set_params(self, **params: Any) -> GraphEstimator:
        """Set parameters of this estimator, or of a nested builder or component by ``NAME__PARAMETER``.

        If a component is given by name (``optimizer="sgd"``, or ``model=None`` for ``MLP()``), setting a parameter
        within it replaces the name by the object.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            A name is unknown, or belongs to a fitted model: its parameters are those it was fitted with.
        """
        within = [name for name in params if name.startswith("model__")]
        if within and is_estimator(params.get("model", self.model)):
            raise ValueError(
                f"{within[0]}: the parameters of a fitted model are those that it was fitted with. Set them before "
                f"fitting it, and give it as model."
            )
        if not params.keys() <= set(self._own_names()):
            return super().set_params(**resolved(self, params))
        for name, value in params.items():  # as scikit-learn does, after a look at all parameters
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        # Without it scikit-learn looks through all attributes, which fails while another thread fits the estimator.
        return "_state" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = is_estimator(self.model) and _takes_nan(self.model)
        return tags


class BaseOrtGradient(Results, GraphEstimator):
    """Base class of the classifier and the regressor."""

    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        X_old: MatrixLike | None = None,
        y_old: ArrayLike | None = None,
        sample_weight_old: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or dict of str to array-like
            Data in the shape of the graph's input; rows that are flattened are given the input's shape. A graph with
            several inputs takes a dict of arrays by input name, :class:`Inputs`, or a data frame whose columns are
            named after the inputs; a fitted model that encodes text takes what it was fitted on.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or of more axes
            Targets. Rows of several axes, such as images, have the shape of a row of the graph's output.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the mean loss, >= 0; None: one.
        X_val, y_val, sample_weight_val : like the ones above, default=None
            Validation data, scored after each epoch; with ``early_stopping`` they replace the split.
        X_old, y_old, sample_weight_old : like the ones above, default=None
            Rows like those that a model was trained on before, for fine-tuning only: they help where the new rows are
            few. How much they count beside the new ones is ``old_weight`` of :class:`FineTuner`.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid; the estimator is unchanged.
        ModelError
            The graph cannot be read, or cannot be trained on these data.
        DivergenceError
            The loss became NaN or infinite; the estimator holds the last finite weights.
        """
        rows = FitRows((X, y, sample_weight), (X_val, y_val, sample_weight_val), (X_old, y_old, sample_weight_old))
        return self._fit(rows)

    def _fit(self, rows: FitRows, classes: Classes = None) -> Self:
        return self._train(rows.call(classes, resume=is_on(self.warm_start)))

    @abstractmethod
    def _encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the targets as numbers; ``classes`` are the classes already known."""

    @abstractmethod
    def _score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the validation score of the predictions."""

    _default_loss: str
    """The default loss: with a fitted model, the loss of that model replaces it."""

    def _prepare(self, call: Call) -> tuple[FittedState, Trainer]:
        state, trainer = prepared(self, call)
        return self._announced(state, vars(self).get("_state") if call.resume else None), trainer


def _takes_nan(model: Estimator) -> bool:
    from .._fitted.inspect import takes_nan  # needs much of scikit-learn

    return takes_nan(model)
