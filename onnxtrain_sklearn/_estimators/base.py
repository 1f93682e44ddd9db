"""Base class of the two estimators: scikit-learn's interface to a training run.

Constructors only store their arguments. ``fit`` resolves and validates everything before it changes the estimator: an
error leaves it unchanged, including weights, optimizer state and random state. Targets and predictions, in which
classification and regression differ, are left to the public classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .._data.targets import Classes, Targets
from .._fitted.model import is_estimator, takes_nan
from .._graph.protobuf import to_proto
from .._inference.graph import OutputOptions
from .._support.typing import MatrixLike
from .._training.loop import Trainer
from .adaptation import Adapted, adaptable_graph
from .attempt import Attempt
from .availability import is_on
from .coefficients import LinearCoefficients
from .components import resolved
from .copies import Copied
from .description import Describable
from .device_training import DeviceTraining
from .examples import Call, FitRows
from .graph_inputs import graph_inputs, require_numbers
from .parameters import Parameters
from .plain_rows import plain_prediction
from .preparation import prepared
from .run import Run
from .trained_estimator import trained_estimator

if TYPE_CHECKING:
    from typing_extensions import Self


class BaseOrtGradient(
    Copied, Attempt, LinearCoefficients, Describable, DeviceTraining, Adapted, Parameters, BaseEstimator, ABC
):
    """Base class of the classifier and the regressor."""

    _run: Run

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
    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph."""

    def _exported(self, form: OutputOptions, *, adapter: bool = False) -> onnx.ModelProto:
        check_is_fitted(self)
        if not isinstance(adapter, bool):
            raise ValueError(f"adapter must be True or False, got {adapter!r}.")
        return to_proto(adaptable_graph(self._run, form)) if adapter else self._run.to_onnx(form)

    def to_sklearn(self, X: MatrixLike | None = None) -> Any:
        """Return the fitted scikit-learn model that was given, with the trained numbers written back.

        Parameters
        ----------
        X : data as for :meth:`fit`, default=None
            Rows on which the predictions of both models are compared. None: some rows of the last fit. An unpickled
            estimator holds no data and needs ``X``.

        Returns
        -------
        estimator
            A deep copy of ``model``, which is unchanged. Its predictions are those of this estimator, within 1e-5 if
            scikit-learn computes in float64.

        Raises
        ------
        ModelError
            ``model`` is not a fitted scikit-learn model, or a trained number has no counterpart in it; the message
            names the number.
        ValueError
            There are no rows for the comparison.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from onnxtrain_sklearn import OrtGradientRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> fitted = make_pipeline(StandardScaler(), Ridge()).fit(X[:200], y[:200])
        >>> tuned = OrtGradientRegressor(fitted, trainable=["ridge.*"], learning_rate_init=0.1, max_iter=500)
        >>> tuned = tuned.fit(X[200:], y[200:]).to_sklearn()
        >>> type(tuned).__name__, bool((tuned[-1].coef_ != fitted[-1].coef_).all())
        ('Pipeline', True)
        """
        check_is_fitted(self)
        return trained_estimator(self, self._run, X)

    def set_params(self, **params: Any) -> BaseOrtGradient:
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
        return super().set_params(**resolved(self, params))

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return self._run.weights()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = is_estimator(self.model) and takes_nan(self.model)
        return tags

    @abstractmethod
    def _encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the targets as numbers; ``classes`` are the classes already known."""

    @abstractmethod
    def _score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the validation score of the predictions."""

    _default_loss: str
    """The default loss: with a fitted model, the loss of that model replaces it."""

    def _prepare(self, call: Call) -> tuple[Run, Trainer]:
        run, trainer = prepared(self, call)
        return self._announced(run, vars(self).get("_run") if call.resume else None), trainer

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        found = plain_prediction(self, X, output, with_scores=with_scores)
        if found is not None:
            return found
        check_is_fitted(self)
        columns = graph_inputs(self, X, self._run.source.inputs, self._run.fitted, reset=False)
        require_numbers(self, self._run, columns)
        return self._run.predictor(columns, with_scores=with_scores).run(columns, output=output)
