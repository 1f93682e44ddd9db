"""Results of a trained estimator: predictions, weights, the graph, the fitted scikit-learn model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx
from sklearn.utils.validation import check_is_fitted

from .._export.folder import StateArrays
from .._fitted.model import sample_rows
from .._given.ml_files import FittedFile
from .._inference.graph import OutputOptions
from .._ir.protobuf import to_proto
from .._model.trainable import TensorSpec
from .._utils.typing import Estimator, MatrixLike
from ..exceptions import ModelError
from .adaptation import adaptable_graph
from .artifact_files import DeviceTraining
from .coefficients import LinearCoefficients
from .examples import graph_inputs, predictions_on, require_numbers
from .fitted_state import FittedState
from .parameters import Parameters
from .training_files import constants_of


class Results(LinearCoefficients, DeviceTraining, Parameters):
    """An estimator with a run."""

    _state: FittedState

    @abstractmethod
    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph."""

    def _exported(self, form: OutputOptions, *, adapter: bool = False) -> onnx.ModelProto:
        check_is_fitted(self)
        if not isinstance(adapter, bool):
            raise ValueError(f"adapter must be True or False, got {adapter!r}.")
        return to_proto(adaptable_graph(self._state, form)) if adapter else self._state.to_onnx(form)

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
        return trained_estimator(self, self._state, X)

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return StateArrays(self._state.weights(), constants_of(self._state))

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        found = plain_prediction(self, X, output, with_scores=with_scores)
        if found is not None:
            return found
        check_is_fitted(self)
        columns = graph_inputs(self, X, self._state.source.inputs, self._state.fitted, reset=False)
        require_numbers(self, self._state, columns)
        return self._state.predictor(columns, with_scores=with_scores).run(columns, output=output)


# Predictions for plain arrays without scikit-learn's checks, which take several times as long as a row.
#
# This path takes only data that scikit-learn takes as they are: plain NumPy arrays of native floats, with rows of the
# fitted shape, finite, where no feature names are to be compared. Everything else goes through scikit-learn, which
# raises and warns.


_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def plain_prediction(estimator: Any, X: object, output: int, *, with_scores: bool) -> np.ndarray | None:
    """Return an output of the graph of a fitted estimator for the rows of ``X``; None if they need other checks."""
    if type(X) is not np.ndarray or X.dtype not in _FLOATS or not _checks_numbers_alone(estimator):
        return None
    state = estimator._state
    spec = _single_input(state.source.inputs)
    if (state.fitted is not None and state.fitted.table is not None) or spec is None or not _suits(X, spec, estimator):
        return None
    result: np.ndarray | None = state.predictor({}, with_scores=with_scores).run_finite(
        spec.name, X, spec.dtype, output
    )
    return result


def _checks_numbers_alone(estimator: Any) -> bool:
    """Return True if the estimator is fitted without feature names."""
    fitted = "n_features_in_" in estimator.__dict__ and estimator.__sklearn_is_fitted__()
    return fitted and getattr(estimator, "feature_names_in_", None) is None


def _single_input(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    return inputs[0] if len(inputs) == 1 and inputs[0].dtype in _FLOATS and len(inputs[0].shape) > 1 else None


def _suits(X: np.ndarray, spec: TensorSpec, estimator: Any) -> bool:
    """Return True if there are rows, all with the shape of the graph's input and the number of features."""
    shape, wanted = X.shape, spec.shape
    suits = len(shape) == len(wanted) and (
        shape[1:] == wanted[1:] or all(w is None or w == n for w, n in zip(wanted[1:], shape[1:], strict=True))
    )
    return suits and X.size > 0 and math.prod(shape[1:]) == estimator.n_features_in_


# ``to_sklearn``: a copy of the fitted model that was given, with the trained numbers written into it.


def trained_estimator(estimator: Any, state: FittedState, X: MatrixLike | None) -> Any:
    """Return a copy of the fitted model with the numbers of ``run``; both predict the same on rows of data."""
    if state.fitted is None or isinstance(state.fitted, FittedFile):
        raise ModelError(
            "to_sklearn() needs model= to be a fitted scikit-learn estimator; this one was built or given as ONNX. "
            "Use to_onnx()."
        )
    if state.head.target_range is not None and state.head.target_range.clips:
        raise ModelError(
            "clip_predictions=True: scikit-learn's model does not clip what it predicts. Use to_onnx(), or set "
            "clip_predictions=False and train on."
        )
    if state.snapshots:
        raise ModelError("to_sklearn() gives one model, and a SnapshotEnsemble predicts by several: use to_onnx().")
    if X is None and state.live.sample is None:
        raise ValueError(
            "to_sklearn() compares both models on rows of data, and a pickled estimator holds none: give "
            "some rows, to_sklearn(X)."
        )
    from .._fitted.equivalence import require_equal  # both need much of scikit-learn
    from .._fitted.write_back import write_back

    rows = state.live.sample if X is None else sample_rows(X)
    result = write_back(
        cast("Estimator", estimator.model), state.fitted.origins, state.source.weights(), state.weights()
    )
    found = predictions_on(estimator, state, rows)
    doubles = any(spec.dtype == "float64" for spec in state.deployed.inputs)
    require_equal(
        result, rows, found, what="Take to_onnx(), as the trained graph", tolerance=1e-5, reads_float64=doubles
    )
    return result
