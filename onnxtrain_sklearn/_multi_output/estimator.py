"""The estimator that trains several outputs of a graph together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.held_out import r2_by_number, r2_of_maps
from .._data.inputs import prediction_type
from .._data.targets import checked_weights, rows_that_count, without_missing
from .._estimators.base import GraphEstimator
from .._estimators.call import Call, optional_data
from .._estimators.config import check_partial_fit, is_on, trains_in_minibatches
from .._estimators.examples import graph_inputs
from .._estimators.fit import Preparation, initialize, train
from .._estimators.outputs import OutputSpec, has_probabilities
from .._estimators.parameters import Parameters, naming_places, output_attributes
from .._estimators.predict import (
    accuracy_of_several,
    by_label,
    decisions,
    has_one_label,
    numbers_in_rows,
    typed_labels,
    within_one,
)
from .._estimators.scoring import numbers_of_outputs, rows_of
from .._estimators.streams_predictions import (
    Batching,
    SumOfAccuracies,
    predicted_batches,
    reads_source,
    result_of,
    scored_batches,
    sum_of_scores,
)
from .._inference.graph import Decoding, OutputOptions
from .._utils.params import documented
from .._utils.typing import MatrixLike, TableLike
from .fit import (
    OUTPUTS,
    by_output,
    naming,
    output_specs_of,
    several_outputs,
    weights_and_rows,
    weights_by_output,
)
from .streams import OutputsStream

if TYPE_CHECKING:
    from typing_extensions import Self


# The methods that the estimator has depend on its losses; the score of each output.


def _require_probabilities(estimator: Parameters) -> bool:
    state = vars(estimator).get("_state")
    losses = estimator.loss
    if state is not None:
        some = any(part.has_probabilities for part in state.decoding.parts)
    else:
        some = not isinstance(losses, Mapping) or any(map(has_probabilities, losses.values()))
    if not some:
        raise AttributeError("predict_proba is not available: no output has a loss that gives probabilities.")
    return True


def _require_scores_of_classes(estimator: Parameters) -> bool:
    state = vars(estimator).get("_state")
    losses = estimator.loss
    if state is not None:
        some = any(part.task != "regression" for part in state.decoding.parts)
    else:
        some = not isinstance(losses, Mapping) or any(
            output_spec.classifies for output_spec in output_specs_of(estimator).values()
        )
    if not some:
        raise AttributeError("decision_function is not available: no output has a loss for classification.")
    return True


def _score(output_spec: OutputSpec, decoding: Decoding, y: Any, predicted: np.ndarray, sample_weight: Any) -> float:
    """Return the score of one output on the rows whose weight for it is above zero."""
    weights, counted = weights_and_rows(output_spec, y, sample_weight, len(predicted))
    if not counted.any():
        raise ValueError("No row has a target of positive weight, so that there is no score.")
    if not counted.all():
        rows = np.flatnonzero(counted)
        y = rows_of(y, rows)
        predicted = predicted[rows]
        weights = None if weights is None else weights[rows]
    from sklearn.metrics import accuracy_score, r2_score  # imports much of scikit-learn

    if not output_spec.classifies:
        if decoding.row_shape:
            return r2_of_maps(np.asarray(y), predicted, weights)
        if (found := r2_by_number(y, weights, lambda: predicted)) is not None:
            return found
        return float(r2_score(y, predicted, sample_weight=weights))
    if decoding.positions is None:
        y, predicted, given = rows_that_count(y, predicted, weights, output_spec.ignore_label)
        weights = None if given is None else np.asarray(given)
    if has_one_label(decoding):
        return float(accuracy_score(y, predicted, sample_weight=weights))
    return accuracy_of_several(decoding, y, predicted, output_spec.ignore_label, weights)


def _scores_of_source(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, float]:
    """Return the score of each output for all rows of a source."""
    output_specs = output_specs_of(estimator)
    with scored_batches(estimator, X, y, sample_weight, several=True) as batches:
        decodings = dict(zip(output_specs, estimator._state.decoding.parts, strict=True))
        sums = {name: sum_of_scores(one, decodings[name]) for name, one in output_specs.items()}
        for rows in batches:
            predicted = result_of(estimator.predict, rows, rows.X)
            targets = by_output(rows.y, output_specs, "y")
            weights = weights_by_output(rows.weights, output_specs)
            for name, output_spec in output_specs.items():
                y, found, own, total = targets[name], predicted[name], weights[name], sums[name]
                with naming(name):
                    if own is not None:  # targets of rows of weight zero are not read
                        counted = np.flatnonzero(checked_weights(own, rows.n_rows))
                        y, found, own = y[counted], found[counted], own[counted]
                    if isinstance(total, SumOfAccuracies):
                        total.update(y, own, partial(_score, output_spec, decodings[name], y, found, own))
                    elif len(y):
                        total.update(output_spec.encode(y, None).values, found, own)
        scores = {}
        for name, total in sums.items():
            with naming(name):
                scores[name] = total.score()
        return scores


# The estimator that trains several outputs of a graph together.


@documented(attributes=output_attributes())
@naming_places
@dataclass(kw_only=True, eq=False, repr=False)
class OrtGradientMultiOutput(GraphEstimator):
    """Train several outputs of an ONNX graph together, each with its own loss.

    It minimizes the sum of the losses, ``sum_j loss_weights[j] * loss_j``. Each loss is the mean over the rows,
    weighted by the sample weights of its output. ``y`` and the predictions are dicts by output. They hold labels for an
    output with a loss for classification, and numbers for an output with a loss for regression.

    {parameters}
    {attributes}

    See Also
    --------
    OrtGradientClassifier : Train one output for classification.
    OrtGradientRegressor : Train one output for regression.

    Notes
    -----
    A row whose weight is zero for an output needs no target for this output: ``y`` is not read there. So rows that lack
    some targets can be trained by ``sample_weight={"size": size_is_known}``; numbers may also be NaN or None. If
    outputs weight rows differently, the mean of each loss is scaled by a factor that is fixed for all rows of a call,
    so that minibatches estimate the sum of the means without bias. The penalty is divided by the number of rows with
    any target.

    ``predict`` returns a dict, so scikit-learn's meta-estimators that read predictions do not work. Searches and
    cross-validation work, with ``y`` as :class:`Inputs` or as a data frame, because they call :meth:`score`.

    Examples
    --------
    >>> import onnx
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientMultiOutput
    >>> graph = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ... net (float[N, 3] X) => (float[N, 3] species, float[N, 1] width)
    ... <float[3, 3] A = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float[3] a = {0, 0, 0}, float[3, 1] B = {0, 0, 0}>
    ... { species = Gemm(X, A, a)  width = MatMul(X, B) }''')
    >>> X, species = load_iris(return_X_y=True)
    >>> X, y = X[:, :3], {"species": species, "width": X[:, 3]}
    >>> estimator = OrtGradientMultiOutput(
    ...     graph, loss={"species": "log_loss", "width": "huber"}, loss_weights={"width": 2.0},
    ...     learning_rate_init=0.05, max_iter=500, tol=1e-3, random_state=0,
    ... ).fit(X, y)
    >>> all(score > 0.9 for score in estimator.output_scores(X, y).values())
    True
    >>> [output.name for output in estimator.to_onnx().graph.output]
    ['species_label', 'species_probabilities', 'width']
    """

    __module__ = "onnxtrain_sklearn"  # pickles refer to the class by this path

    loss: Any = None
    loss_weights: Mapping[str, float] | None = None
    ignore_label: Any = -100
    class_weight: Any = None

    declared = OUTPUTS
    _output_kinds = ("auto", "scores")

    def fit(
        self,
        X: TableLike,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: MatrixLike | None = None,
        sample_weight_val: ArrayLike | Mapping[str, ArrayLike | None] | None = None,
        groups: ArrayLike | None = None,
        classes: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        """Train the outputs for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : as in :meth:`OrtGradientRegressor.fit`
        y : dict of str to array-like, Inputs or data frame
            The targets of each output that has a loss, as in :meth:`OrtGradientClassifier.fit` and
            :meth:`OrtGradientRegressor.fit`. A data frame has a column named after each output, or columns that begin
            with its name. If X is a table in files, a dict of the target column, or columns, of each output; None for
            :class:`RowBlocks`, whose ``target`` is that dict.
        sample_weight : array-like of shape (n_samples,), or dict of str to array-like, default=None
            Weight of each row in the mean losses, >= 0: an array for all outputs, or a dict by output, in which an
            output may have a weight for each of its numbers or labels. None: one, also in the dict. Targets of weight
            zero are not read. If X is a table in files, the name of a column, or a dict of names.
        X_val, y_val, sample_weight_val : like X, y and sample_weight, default=None
            Validation data, scored after each epoch; with ``early_stopping`` they replace the split.
        groups : array-like of shape (n_samples,), default=None
            The group of each row, as in :meth:`OrtGradientRegressor.fit`.
        classes : dict of str to array-like, default=None
            All labels, sorted, of each output for which ``y`` lacks some labels.

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
            The loss, weights, optimizer state or validation predictions became NaN or infinite; the estimator holds
            the weights at the start of the last epoch that began with a finite loss.
        """
        known: Any = classes
        validation = optional_data("val", X_val, y_val, sample_weight_val)
        resume = is_on(self.warm_start)
        return train(self, Call(X, y, sample_weight, known, validation, resume=resume, groups=groups))

    def initialize(
        self,
        X: TableLike,
        y: Any = None,
        sample_weight: Any = None,
        *,
        classes: Mapping[str, ArrayLike] | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Prepare the estimator for training, as :meth:`fit` does, without taking a step.

        The scales and classes of the outputs are determined, and the optimizer is in its initial state.
        :meth:`partial_fit` and :meth:`load_training_state` continue from there.

        Parameters
        ----------
        X, y, sample_weight, classes, groups : as for :meth:`fit`

        Returns
        -------
        self
        """
        known: Any = classes
        return initialize(self, Call(X, y, sample_weight, known, groups=groups))

    @available_if(trains_in_minibatches)
    def partial_fit(
        self,
        X: TableLike,
        y: Any = None,
        classes: Mapping[str, ArrayLike] | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train for one pass over the data, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`
        classes : dict of str to array-like, default=None
            All labels of all calls, by output with labels; needed at the first call, optional later.

        Returns
        -------
        self
        """
        check_partial_fit(self)
        known: Any = classes
        return train(self, Call(X, y, sample_weight, known, resume=True, one_epoch=True))

    def predict(self, X: TableLike) -> Any:
        """Predict labels and numbers.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            The labels or numbers of each output, in the form of :meth:`OrtGradientClassifier.predict` or
            :meth:`OrtGradientRegressor.predict`. For a source, a ``pyarrow.RecordBatchReader`` with columns by
            the names of the outputs: ``width``, or ``width_0``, ... for several numbers.
        """
        if reads_source(X):
            return predicted_batches(self, "predict", X)
        return OutputPredictions(
            (
                name,
                numbers_in_rows(decoding, found, X) if decoding.task == "regression" else typed_labels(decoding, found),
            )
            for name, decoding, found in self._predicted(X)
        )

    @available_if(_require_probabilities)
    def predict_proba(self, X: TableLike) -> Any:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            The probabilities of each output whose loss gives them, in the form of
            :meth:`OrtGradientClassifier.predict_proba`. For a source, a ``pyarrow.RecordBatchReader`` with columns
            such as ``species_setosa``.
        """
        if reads_source(X):
            return predicted_batches(self, "predict_proba", X)
        number_type = prediction_type(X)
        found = self._predicted(X, 1, with_scores=number_type is np.float64)
        return OutputPredictions(
            (name, by_label(decoding, within_one(decoding.link, p).astype(np.result_type(number_type, p), copy=False)))
            for name, decoding, p in found
            if decoding.has_probabilities
        )

    @available_if(_require_scores_of_classes)
    def decision_function(self, X: TableLike) -> Any:
        """Return the scores of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            The scores of each output with labels, in the form of :meth:`OrtGradientClassifier.decision_function`.
        """
        if reads_source(X):
            return predicted_batches(self, "decision_function", X)
        found = self._predicted(X, -1, with_scores=True)
        return OutputPredictions(
            (name, decisions(decoding, own, X)) for name, decoding, own in found if decoding.task != "regression"
        )

    def score(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean of the scores of the outputs: accuracy of labels, R² of numbers.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`

        Returns
        -------
        float
            The unweighted mean of :meth:`output_scores`; ``loss_weights`` do not affect it.
        """
        return float(np.mean(list(self.output_scores(X, y, sample_weight).values())))

    def output_scores(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> dict[str, float]:
        """Return the score of each output: accuracy of labels, R² of numbers.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`

        Returns
        -------
        dict of str to float
            The score of each output, as :meth:`OrtGradientClassifier.score` and :meth:`OrtGradientRegressor.score`
            define it. Rows whose weight for an output is zero do not affect its score.
        """
        check_is_fitted(self)
        if reads_source(X):
            return _scores_of_source(self, X, y, sample_weight)
        output_specs = output_specs_of(self)
        predicted = self.predict(X)
        found = {}
        y = by_output(y, output_specs, "y")
        weights = weights_by_output(sample_weight, output_specs)
        if self._state.graph.is_whole:
            y, weights = without_missing(y, weights)
        for (name, output_spec), decoding in zip(output_specs.items(), self._state.decoding.parts, strict=True):
            with naming(name):
                found[name] = _score(output_spec, decoding, y[name], predicted[name], weights[name])
        return found

    def to_onnx(
        self, *, raw_scores: bool = False, adapter: bool = False, path: str | os.PathLike[str] | None = None
    ) -> onnx.ModelProto:
        """Return the trained inference graph.

        Parameters
        ----------
        raw_scores : bool, default=False
            Whether the values of :meth:`decision_function` replace the probabilities, one column per class.
        adapter : bool, default=False
            Whether the graph is the given model, in which what was trained are inputs with defaults, for the files of
            :meth:`save_adapter`. False: low-rank factors are merged into the matrices of the given graph.
        path : str or path, default=None
            File to write the graph to as well. A model above 2 GiB, whose weights no ModelProto can hold, needs it: its
            weights go to a file ``<path>.data`` beside it, and the returned ModelProto refers to that file.

        Returns
        -------
        onnx.ModelProto
            A graph without training-only operators. An output of numbers keeps its name. Two outputs replace an output
            of labels: ``NAME_label``, and ``NAME_probabilities`` with a column per class, or ``NAME_scores`` if the
            loss gives no probabilities.
        """
        if not isinstance(raw_scores, bool):
            raise ValueError(f"raw_scores must be True or False, got {raw_scores!r}.")
        return self._exported(OutputOptions(raw_scores=raw_scores), adapter=adapter, path=path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def _preparation(self) -> Preparation:
        specs = output_specs_of(self)
        return several_outputs(specs, partial(OutputsStream, output_spec=specs))

    def _batching(self) -> Batching:
        return Batching.of(self)

    def _predicted(
        self, X: TableLike, output: int = 0, *, with_scores: bool = False
    ) -> list[tuple[str, Decoding, np.ndarray]]:
        """Return, for each trained output, its name, its decoding and one of its outputs in the inference graph."""
        check_is_fitted(self)
        found = self._predict(X, output, with_scores=with_scores)
        state = self._state
        return list(zip((form.output for form in state.graph.forms), state.decoding.parts, found, strict=True))

    def _predict(self, X: TableLike, output: int = 0, *, with_scores: bool = False) -> list[np.ndarray]:
        state = self._state
        rows: Any = X  # a batch of rows, if X is a table in files
        columns = graph_inputs(self, rows, state.graph.inputs, None, reset=False)
        numbers = numbers_of_outputs(state.decoding, output, with_scores=with_scores)
        return state.predictor(columns, with_scores=with_scores).run_several(columns, numbers)


# Predictions of several outputs: a dict with a clear error for scikit-learn's metrics, which do not take it.


OutputArray = TypeVar("OutputArray")


class OutputPredictions(dict[str, OutputArray]):
    """A dict of predictions by output, whose ``shape`` raises a clear error.

    Metrics of scikit-learn read the shape of their arguments. For a plain dict, which has none, their errors would
    mention the number of outputs as the number of rows, or print all rows.
    """

    @property
    def shape(self) -> Any:
        """Raise a TypeError that says how to score predictions by output, because a dict has no shape."""
        raise TypeError(
            f"Metrics of scikit-learn take one array, and these predictions are a dict by output: {list(self)}. Score "
            f"one output, metric(y[{next(iter(self), '...')!r}], predictions[{next(iter(self), '...')!r}]), or all of "
            f"them by score() and output_scores(); scoring= of searches and callbacks may be a function "
            f"(estimator, X, y) that does."
        )

    def __reduce__(self) -> tuple[type[dict[str, OutputArray]], tuple[dict[str, OutputArray]]]:
        """Pickle a plain dict."""
        return dict, (dict(self),)
