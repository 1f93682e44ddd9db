"""What an estimator of several outputs gives: predictions and scores by output, weights, the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from sklearn.base import is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.ignored_labels import rows_that_count
from .._data.inputs import prediction_type
from .._data.maps import r2_of_maps
from .._data.targets import checked_weights
from .._estimators.adaptation import adaptable_graph
from .._estimators.availability import links_classes
from .._estimators.built_in import constants_of
from .._estimators.classification import accuracy_of_several, by_label, decisions, has_one_label, typed_labels
from .._estimators.graph_inputs import graph_inputs
from .._estimators.output_predictions import numbers_of_outputs
from .._estimators.parameters import Parameters
from .._estimators.regressor import numbers_in_rows
from .._estimators.run import Run
from .._estimators.scoring import rows_of
from .._graph.protobuf import to_proto
from .._inference.graph import OutputOptions
from .._inference.head import Head
from .._support.state_arrays import StateArrays
from .._support.typing import MatrixLike
from .predictions import OutputPredictions
from .single_estimators import OutputEstimator, by_output, naming, output_estimators, weights_by_output


def _gives_probabilities(estimator: Parameters) -> bool:
    run, losses = vars(estimator).get("_run"), estimator.loss
    if run is not None:
        some = any(part.has_probabilities for part in run.head.parts)
    else:
        some = not isinstance(losses, Mapping) or any(map(links_classes, losses.values()))
    if not some:
        raise AttributeError("predict_proba is not available: no output has a loss that gives probabilities.")
    return True


def _gives_scores_of_classes(estimator: Parameters) -> bool:
    run, losses = vars(estimator).get("_run"), estimator.loss
    if run is not None:
        some = any(part.task != "regression" for part in run.head.parts)
    else:
        some = not isinstance(losses, Mapping) or any(map(is_classifier, output_estimators(estimator).values()))
    if not some:
        raise AttributeError("decision_function is not available: no output has a loss for classification.")
    return True


class OutputResults:
    """An estimator of several outputs with a run."""

    _run: Run

    def predict(self, X: MatrixLike) -> dict[str, np.ndarray]:
        """Predict labels and numbers.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            By output: labels as :meth:`OrtGradientClassifier.predict` gives them, numbers as
            :meth:`OrtGradientRegressor.predict` does.
        """
        return OutputPredictions(
            (name, numbers_in_rows(head, found, X) if head.task == "regression" else typed_labels(head, found))
            for name, head, found in self._predicted(X)
        )

    @available_if(_gives_probabilities)
    def predict_proba(self, X: MatrixLike) -> dict[str, Any]:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            For each output whose loss gives probabilities, as :meth:`OrtGradientClassifier.predict_proba`.
        """
        number_type = prediction_type(X)
        found = self._predicted(X, 1, with_scores=number_type is np.float64)
        return OutputPredictions(
            (name, by_label(head, p.astype(np.result_type(number_type, p), copy=False)))
            for name, head, p in found
            if head.has_probabilities
        )

    @available_if(_gives_scores_of_classes)
    def decision_function(self, X: MatrixLike) -> dict[str, Any]:
        """Return the scores of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        dict of str to ndarray
            For each output with labels, as :meth:`OrtGradientClassifier.decision_function`.
        """
        found = self._predicted(X, -1, with_scores=True)
        return OutputPredictions(
            (name, decisions(head, own, X)) for name, head, own in found if head.task != "regression"
        )

    def score(self, X: MatrixLike, y: MatrixLike, sample_weight: MatrixLike | None = None) -> float:
        """Return the mean of the scores of the outputs: accuracy of labels, R² of numbers.

        Parameters
        ----------
        X, y, sample_weight : dict of str to array-like
            As in :meth:`fit`.

        Returns
        -------
        float
            The plain mean of :meth:`output_scores`; ``loss_weights`` have no part in it.
        """
        return float(np.mean(list(self.output_scores(X, y, sample_weight).values())))

    def output_scores(self, X: MatrixLike, y: MatrixLike, sample_weight: MatrixLike | None = None) -> dict[str, float]:
        """Return the score of each output: accuracy of labels, R² of numbers.

        Parameters
        ----------
        X, y, sample_weight : dict of str to array-like
            As in :meth:`fit`.

        Returns
        -------
        dict of str to float
            By output, as :meth:`OrtGradientClassifier.score` and :meth:`OrtGradientRegressor.score` define them. Rows
            of weight zero in an output have no part in its score.
        """
        check_is_fitted(self)
        singles, predicted, found = output_estimators(self), self.predict(X), {}
        y, weights = by_output(y, singles, "y"), weights_by_output(sample_weight, singles)
        for (name, single), head in zip(singles.items(), self._run.head.parts, strict=True):
            with naming(name):
                found[name] = _score(single, head, y[name], predicted[name], weights[name])
        return found

    def to_onnx(self, *, raw_scores: bool = False, adapter: bool = False) -> onnx.ModelProto:
        """Return the trained inference graph.

        Parameters
        ----------
        raw_scores : bool, default=False
            Whether the values of :meth:`decision_function` replace the probabilities, one column per class.
        adapter : bool, default=False
            Whether the graph is the given model, in which what was trained are inputs with defaults, for the files of
            :meth:`save_adapter`. False: low-rank factors are merged into the matrices of the given graph.

        Returns
        -------
        onnx.ModelProto
            A graph without training-only operators. An output of numbers keeps its name. One of labels is replaced by
            two: ``NAME_label``, and ``NAME_probabilities`` with a column per class, or ``NAME_scores`` where the loss
            gives no probabilities.
        """
        check_is_fitted(self)
        for name, value in (("raw_scores", raw_scores), ("adapter", adapter)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, got {value!r}.")
        form = OutputOptions(raw_scores=raw_scores)
        return to_proto(adaptable_graph(self._run, form)) if adapter else self._run.to_onnx(form)

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return StateArrays(self._run.weights(), constants_of(self._run))

    def _predicted(
        self, X: MatrixLike, output: int = 0, *, with_scores: bool = False
    ) -> list[tuple[str, Head, np.ndarray]]:
        """Return the name, the head and one output of the inference graph of each part."""
        check_is_fitted(self)
        found, run = self._predict(X, output, with_scores=with_scores), self._run
        return list(zip((form.output for form in run.source.forms), run.head.parts, found, strict=True))

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> list[np.ndarray]:
        run = self._run
        columns = graph_inputs(self, X, run.source.inputs, None, reset=False)
        numbers = numbers_of_outputs(run.head, output, with_scores=with_scores)
        return run.predictor(columns, with_scores=with_scores).run_several(columns, numbers)


def _score(single: OutputEstimator, head: Head, y: Any, predicted: np.ndarray, sample_weight: Any) -> float:
    """Return the score of one output on the rows that have a weight."""
    weights: Any = None
    if sample_weight is not None:
        weights = checked_weights(sample_weight, len(predicted))
        rows = np.flatnonzero(weights)
        if not len(rows):
            raise ValueError("No row has a positive weight, so that there is no score.")
        y, predicted, weights = rows_of(y, rows), predicted[rows], weights[rows]
    from sklearn.metrics import accuracy_score, r2_score  # need a fifth of scikit-learn

    if not is_classifier(single):
        if head.row_shape:
            return r2_of_maps(np.asarray(y), predicted, weights)
        return float(r2_score(y, predicted, sample_weight=weights))
    if head.positions is None:
        y, predicted, weights = rows_that_count(y, predicted, weights, getattr(single, "ignore_label", None))
    if has_one_label(head):
        return float(accuracy_score(y, predicted, sample_weight=weights))
    return accuracy_of_several(head, y, predicted, getattr(single, "ignore_label", None), weights)
