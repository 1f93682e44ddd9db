"""Predictions of regressors whose loss learns a distribution or quantiles of each target."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.inputs import prediction_type
from .._utils.typing import MatrixLike
from ..losses import DistributionLoss, Loss, Quantiles
from .outputs import require_distribution, require_quantiles, why_no_distribution
from .predict import checked_levels


class PredictsDistributions:
    """The methods of regressors for losses of distributions and quantiles."""

    @abstractmethod
    def _learned(self) -> tuple[Loss | None, bool]:
        """Return the loss that a fitted estimator predicts by, and True if an ensemble predicts."""

    @abstractmethod
    def _with_further(self, X: Any) -> tuple[np.ndarray, dict[str, np.ndarray], Loss | None, Any]:
        """Return the prediction, what the loss predicts besides by name, the loss, and the type of the graph."""

    @available_if(require_distribution)
    def predict_distribution(self, X: MatrixLike) -> Any:
        """Predict the distribution of the targets of each row, for losses such as ``"gaussian_nll"``.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        frozen distribution of SciPy, of shape (n_samples,) or (n_samples, n_outputs)
            ``scipy.stats.norm`` for :class:`~.losses.GaussianNLL`, ``scipy.stats.laplace`` for
            :class:`~.losses.LaplaceNLL`, ``scipy.stats.nbinom`` for :class:`~.losses.NegativeBinomial`,
            ``scipy.stats.gamma`` for :class:`~.losses.GammaNLL`.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> net = OrtGradientRegressor(Linear(), loss="gaussian_nll", optimizer="lbfgs", tol=1e-3).fit(X, y)
        >>> low, high = net.predict_distribution(X).interval(0.8)
        >>> bool(0.77 < ((low < y) & (y < high)).mean() < 0.83)
        True
        """
        return self._location_and_distribution(X)[1]

    @available_if(require_quantiles)
    def predict_quantiles(self, X: MatrixLike, quantiles: Sequence[float] | None = None) -> np.ndarray:
        """Predict quantiles of the targets of each row.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory
        quantiles : sequence of float in (0, 1), default=None
            With :class:`~.losses.Quantiles`, some of its quantiles; None: all of them. With the loss of a
            distribution, any quantiles; None: 0.1, 0.5, 0.9. An ensemble gives the means of the quantiles of its
            networks, or those of :meth:`predict_distribution`.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_outputs, n_quantiles)

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> net = OrtGradientRegressor(Linear(), loss="quantiles", tol=0.01, random_state=0)
        >>> net.fit(X, y).predict_quantiles(X, [0.1, 0.9]).shape
        (442, 2)
        """
        check_is_fitted(self)
        location, further, loss, _ = self._with_further(X)
        levels = checked_levels(quantiles, loss)
        kind = prediction_type(X)
        if isinstance(loss, Quantiles):
            (own,) = further.values()
            each = own.reshape(*location.shape, -1).astype(kind, copy=False)
            known = list(loss.quantiles)
            return each[..., [known.index(level) for level in levels]]
        found = self.predict_distribution(X)
        return np.stack([found.ppf(level) for level in levels], axis=-1).astype(kind, copy=False)

    def _with_deviation(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions and their standard deviations."""
        location, distribution = self._location_and_distribution(X)
        deviation = distribution.std()
        _require_representable(deviation, location.dtype, "standard deviation")
        return location, deviation.astype(location.dtype, copy=False)

    def _location_and_distribution(self, X: Any) -> tuple[np.ndarray, Any]:
        check_is_fitted(self)
        why = why_no_distribution(self, DistributionLoss, "a distribution, such as 'gaussian_nll'")
        if why is not None:
            raise ValueError(f"return_std=True is not available: {why}")
        location, further, loss, dtype = self._with_further(X)
        assert isinstance(loss, DistributionLoss)
        (own,) = further.values()
        own = own.reshape(location.shape)
        _require_representable(location, dtype, "prediction")
        return location, loss.distribution(location.astype(np.float64), own.astype(np.float64))


def _require_representable(numbers: np.ndarray, dtype: Any, what: str) -> None:
    """Raise ValueError if numbers of a distribution are beyond the largest one of their type."""
    beyond = ~(np.abs(numbers) <= np.finfo(dtype).max)  # NaN too
    if beyond.any():
        row = int(np.argwhere(beyond)[0][0])
        raise ValueError(
            f"The {what} of {np.count_nonzero(beyond)} of {numbers.size} targets, such as of row {row}, is beyond the "
            f"largest number of {np.dtype(dtype)}, so they have no distribution. Leave out rows whose features are so "
            f"far from those of the training; predict(X) alone returns inf for them."
        )
