"""What a trained estimator gives: predictions, weights, the graph, the fitted scikit-learn model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import onnx
from sklearn.utils.validation import check_is_fitted

from .._graph.protobuf import to_proto
from .._inference.graph import OutputOptions
from .._support.state_arrays import StateArrays
from .._support.typing import MatrixLike
from .adaptation import adaptable_graph
from .built_in import constants_of
from .coefficients import LinearCoefficients
from .device_training import DeviceTraining
from .graph_inputs import graph_inputs, require_numbers
from .parameters import Parameters
from .plain_rows import plain_prediction
from .run import Run
from .trained_estimator import trained_estimator


class Results(LinearCoefficients, DeviceTraining, Parameters):
    """An estimator with a run."""

    _run: Run

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

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return StateArrays(self._run.weights(), constants_of(self._run))

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        found = plain_prediction(self, X, output, with_scores=with_scores)
        if found is not None:
            return found
        check_is_fitted(self)
        columns = graph_inputs(self, X, self._run.source.inputs, self._run.fitted, reset=False)
        require_numbers(self, self._run, columns)
        return self._run.predictor(columns, with_scores=with_scores).run(columns, output=output)
