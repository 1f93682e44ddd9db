"""The regressor: numeric targets and predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.held_out import r2_by_number, r2_of_maps
from .._data.targets import without_missing
from .._inference.graph import OutputOptions
from .._utils.params import documented
from .._utils.typing import MatrixLike, Predictions, TableLike
from ..losses import Loss, LossBlock
from ..losses.regression import reconstructs
from ..models.given import resolve_graph_model
from .base import BaseOrtGradient
from .call import Call
from .config import check_partial_fit, trains_in_minibatches
from .distributions import PredictsDistributions
from .examples import graph_inputs, rows_as_targets
from .fit import train
from .outputs import NumberOutput, OutputSpec, takes_negative_numbers
from .parameters import REGRESSOR, attributes, naming_places
from .predict import numbers_in_rows, predicted_with_further
from .scoring import loss_of_declared
from .streams_predictions import predicted_batches, reads_source, score_of_source, scored_targets

if TYPE_CHECKING:
    from typing_extensions import Self


@documented(attributes=attributes(score="R²"))
@naming_places
@dataclass(kw_only=True, eq=False, repr=False)
class OrtGradientRegressor(PredictsDistributions, MultiOutputMixin, RegressorMixin, BaseOrtGradient):
    """Train an ONNX graph for regression, by gradient descent on its own weights.

    {parameters}
    {attributes}

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

    __module__ = "onnxtrain_sklearn"  # pickles refer to the class by this path

    loss: str | Loss | LossBlock = "squared_error"
    target_scaling: str | None = "auto"
    clip_predictions: bool = False

    declared = REGRESSOR
    _output_kinds = ("auto", "scores", "means")

    @available_if(trains_in_minibatches)
    def partial_fit(self, X: TableLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one pass over the data, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As in :meth:`fit`.

        Returns
        -------
        self
        """
        check_partial_fit(self)
        return train(self, Call(X, y, sample_weight, resume=True, one_epoch=True))

    def predict(self, X: TableLike, return_std: bool = False) -> Predictions:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`
            From a source, the columns of ``feature_names_in_`` are read.
        return_std : bool, default=False
            Whether to return the standard deviation of :meth:`predict_distribution` too, as a second array of the same
            shape. It needs a loss for a distribution, such as ``"gaussian_nll"``, and rows in memory.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs), or of the axes of ``y``
            float32 if ``X`` is float32, else float64; the numbers are those of the graph. For a source, a
            ``pyarrow.RecordBatchReader``, which reads and predicts a batch at a time, in the order of the rows. Its
            column is ``prediction``; with several numbers per row, its columns are ``prediction_0``, ...
        """
        if return_std:
            return self._with_deviation(X)
        if reads_source(X):
            return predicted_batches(self, "predict", X)
        prediction = self._predict(X)  # raises if it is not fitted
        return numbers_in_rows(self._state.decoding, prediction, X)

    def score(self, X: TableLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return R², the coefficient of determination.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As in :meth:`fit`; a source is read a batch at a time. ``loss="reconstruction"`` ignores ``y``.

        Returns
        -------
        float
            With several outputs, the mean of their R², as everywhere in scikit-learn. If ``y`` has more than two axes,
            a single R² compares the sum of the squared errors of all elements with that of the mean row, because
            elements that hardly vary, such as the corners of images, would dominate a mean. With a loss that declares
            targets of its own, minus the mean loss; if rows meet in it, over minibatches of the size of training.
        """
        check_is_fitted(self)
        if reads_source(X):
            return score_of_source(self, X, y, sample_weight)
        if self._state.decoding.declared is not None:
            return -loss_of_declared(self, X, y, sample_weight)
        if reconstructs(self.loss):
            state = self._state
            y = rows_as_targets(graph_inputs(self, X, state.graph.inputs_of_X, state.fitted, reset=False))
        y = scored_targets(self, y, sample_weight)
        if self._state.graph.is_whole:
            y, sample_weight = without_missing(y, sample_weight)
        if self._state.decoding.row_shape:
            return r2_of_maps(np.asarray(y), self.predict(X), sample_weight)
        if (found := r2_by_number(y, sample_weight, partial(self.predict, X))) is not None:
            return found
        return float(super().score(X, y, sample_weight))

    def _learned(self) -> tuple[Loss | None, bool]:
        state = self._state
        return state.decoding.distribution, state.graph.members is not None or bool(state.snapshots)

    def _with_further(self, X: MatrixLike) -> tuple[np.ndarray, dict[str, np.ndarray], Loss | None, Any]:
        location, further = predicted_with_further(self, X)
        return location, further, self._state.decoding.distribution, self._state.graph.dtype

    def to_onnx(self, *, adapter: bool = False, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """Return the trained inference graph.

        Parameters
        ----------
        adapter : bool, default=False
            Whether the graph is the given model, in which what was trained are inputs with defaults, for the files of
            :meth:`save_adapter`. False: low-rank factors are merged into the matrices of the given graph.
        path : str or path, default=None
            File to write the graph to as well. A model above 2 GiB, whose weights no ModelProto can hold, needs it: its
            weights go to a file ``<path>.data`` beside it, and the returned ModelProto refers to that file.

        Returns
        -------
        onnx.ModelProto
            A graph without training-only operators; it imports only the opset domains that it uses. If the scale of
            the targets or the link of the loss (poisson, gamma, tweedie) follows the graph, the output is named
            ``variable``, as skl2onnx names it; else it keeps its name. The predictions are those of :meth:`predict`.
            What a loss predicts besides them follows as ``scale``, ``dispersion`` or ``quantiles``; if an input or a
            weight has that name, as in :class:`~onnxtrain_sklearn.RealMLP`, as ``predict/scale``.

        Examples
        --------
        >>> from sklearn.datasets import make_regression
        >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
        >>> X, y = make_regression(200, 5, random_state=0)
        >>> regressor = OrtGradientRegressor(Linear(), optimizer="lbfgs").fit(X, y)
        >>> [output.name for output in regressor.to_onnx().graph.output]
        ['variable']
        """
        return self._exported(OutputOptions(), adapter=adapter, path=path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = not takes_negative_numbers(self.loss)
        if reconstructs(self.loss):  # a transformer
            tags.estimator_type, tags.regressor_tags, tags.target_tags.required = None, None, False
            tags.input_tags.sparse = False
        return tags

    def _output_spec(self) -> OutputSpec:
        given: Any = resolve_graph_model(self.model)
        return NumberOutput(self.loss, given.output_kind)

    def _decoding_settings(self) -> dict[str, Any]:
        return {"clips": bool(self.clip_predictions)}
