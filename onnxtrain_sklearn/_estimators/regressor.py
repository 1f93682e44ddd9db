"""The regressor: what it adds to the base estimator, targets and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if

from .._data.inputs import prediction_type
from .._data.targets import (
    Classes,
    Targets,
    regression_targets,
)
from .._inference.graph import OutputOptions
from .._support.typing import MatrixLike
from .availability import (
    check_one_pass,
    takes_negative_numbers,
    trains_in_minibatches,
)
from .base import BaseOrtGradient
from .docstrings import ATTRIBUTES, PARAMETERS
from .examples import Call

if TYPE_CHECKING:
    from typing_extensions import Self


class OrtGradientRegressor(MultiOutputMixin, RegressorMixin, BaseOrtGradient):
    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it
    __doc__ = (
        "Train an ONNX graph for regression, by gradient descent on its own weights.\n"
        + PARAMETERS.format(
            loss="squared_error",
            model_extra=" for classifiers; an exponential for the losses with a log link (poisson, gamma)",
            kind="regressor",
            labels="",
            fitted_loss="the loss that it minimises, where that is the Poisson, gamma, Huber or quantile loss",
            kinds='"auto", "scores", "means"',
            output_kind="""
        "means": the means that are predicted. "scores": for the losses with a log link (poisson, gamma) the logarithms
        of the means; for others the same as means. "auto": means where the operators at the end allow no negative
        number (Exp, Softplus, Relu, Sigmoid, bounds), else scores.""",
            class_weight="",
        )
        + ATTRIBUTES.format(classes="", score="R²")
        + """
    See Also
    --------
    OrtGradientClassifier : The same for classification.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> X, y = make_regression(200, 5, noise=1.0, random_state=0)
    >>> regressor = OrtGradientRegressor(Linear(), optimizer="lbfgs", random_state=0).fit(X, y)
    >>> round(regressor.score(X, y), 2)
    1.0
    """
    )

    _default_loss = "squared_error"

    @available_if(trains_in_minibatches)
    def partial_fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one pass over the data, going on from where the last call ended.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        self
        """
        check_one_pass(self)
        return self._train(Call(X, y, sample_weight, resume=True, one_pass=True))

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            float32 where ``X`` is float32, else float64; the numbers are those that the graph gives.
        """
        prediction = self._predict(X).astype(prediction_type(X), copy=False)
        return prediction.ravel() if self.n_outputs_ == 1 else prediction.reshape(len(prediction), -1)

    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph.

        Returns
        -------
        onnx.ModelProto
            Without training-only operators, with the opset domains that it uses. The output keeps the name that it
            has in the graph, and is named ``variable`` where the loss adds a link to it (poisson, gamma). Its
            predictions are those of :meth:`predict`.

        Examples
        --------
        >>> from sklearn.datasets import make_regression
        >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
        >>> X, y = make_regression(200, 5, random_state=0)
        >>> regressor = OrtGradientRegressor(Linear(), optimizer="lbfgs").fit(X, y)
        >>> [output.name for output in regressor.to_onnx().graph.output]
        ['scores']
        """
        return self._exported(OutputOptions())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = not takes_negative_numbers(self.loss)
        return tags

    def _encode(self, y: ArrayLike, classes: Classes) -> Targets:
        return regression_targets(y)

    def _score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        prediction = predicted.reshape(targets.values.shape).astype(np.float64)
        return float(r2_score(targets.values, prediction, sample_weight=weights))
