"""Validation scores by scikit-learn's scorers during training."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from .._data.validation_scores import log_loss_of_labels, squared_error_of_labels
from .._fitted import sklearn_private
from .._graph.links import Task
from .._inference.head import Head
from .._inference.predictor import Predictor
from .._support.typing import MatrixLike
from ..exceptions import nearest
from .run import Columns, Run

Scoring: TypeAlias = "str | Callable[..., float]"

OF_ALL_CLASSES = {"neg_log_loss": "log_loss", "d2_log_loss_score": "d2_log_loss_score"}
"""Scorers whose metric has to be told the classes where the validation data lack one, a rare class for example."""

OF_ONE_LABEL: Mapping[str, Callable[..., float] | None] = {
    "neg_log_loss": log_loss_of_labels,
    "neg_brier_score": squared_error_of_labels,
    "d2_log_loss_score": None,
    "d2_brier_score": None,
}
"""Scorers that take several labels a row for the one-hot row of one, and what stands for them; None: refused."""


_SCORERS: Mapping[Task, tuple[str, str]] = {
    "binary": ("these labels of two classes", "'accuracy', 'balanced_accuracy', 'neg_log_loss' or 'roc_auc'"),
    "multiclass": ("labels of several classes", "'accuracy', 'balanced_accuracy', 'f1_macro' or 'neg_log_loss'"),
    "multilabel": ("several labels a row", "'neg_log_loss', 'neg_brier_score', 'f1_macro' or 'roc_auc'"),
    "multioutput": ("several labels of several classes a row", "a function (estimator, X, y) -> float"),
    "regression": ("these numbers", "'r2', 'neg_mean_absolute_error' or 'neg_root_mean_squared_error'"),
}
"""What the targets of each task are, and scorers that take them."""


def scorer_of(
    estimator: Any,
    scoring: Scoring,
    run: Run,
    data: tuple[MatrixLike, Any, np.ndarray | None],
    predictions: Predictions[Any],
) -> Callable[[], float]:
    """Return the function that scores the current parameters.

    Parameters
    ----------
    estimator : BaseOrtGradient
    scoring : str or callable
    run : Run
    data : tuple of X, y and weights
        The validation data as given by the user.
    predictions : Predictions
        Those of the validation data by the parameters in training.
    """
    X, y, weights = data
    several = run.head.task == "multilabel" and isinstance(scoring, str) and scoring in OF_ONE_LABEL
    known = _classes_of_rows(run.head)
    scorer = _scorer_of_indicators(str(scoring)) if several else scorer_by_name(estimator, scoring, known)
    twin = _twin(estimator, run, predictions)
    if weights is not None and not _takes_weights(scorer):
        raise ValueError(
            f"Rows are weighted, by sample_weight or class_weight, so scoring must be a function "
            f"(estimator, X, y, sample_weight) -> float, but {scorer!r} takes no sample_weight."
        )
    more = {} if weights is None else {"sample_weight": weights}

    def score() -> float:
        predictions.forget()
        if not predictions.finite():
            return math.nan
        try:
            value: object = scorer(twin, X, y, **more)
        except (AttributeError, TypeError, ValueError) as error:
            if not isinstance(scoring, str):
                raise
            raise ValueError(f"{_unfit(scoring, run.head.task)}: {error}") from error
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"scoring={scoring!r} must give a number for the validation data, got {value!r}.")
        return float(value)

    return score


def _unfit(scoring: str, task: Task) -> str:
    """Return why a scorer of scikit-learn fails on the targets of a task, and which ones do not."""
    what, names = _SCORERS[task]
    return f"scoring={scoring!r} does not score {what}; take {names}, for example. scikit-learn says"


def _classes_of_rows(head: Head) -> np.ndarray | None:
    """Return the classes where each row has one label."""
    return np.asarray(head.classes) if head.task in ("binary", "multiclass") else None


def scorer_by_name(estimator: Any, scoring: Scoring, classes: np.ndarray | None) -> Callable[..., float]:
    """Return the scorer of scikit-learn of this name, or a function as it is; ``classes`` are those of each label."""
    from sklearn.metrics import check_scoring, get_scorer_names  # needs a fifth of scikit-learn

    if classes is not None and isinstance(scoring, str) and scoring in OF_ALL_CLASSES:
        return _scorer_of_classes(scoring, classes)
    names = get_scorer_names()
    if not callable(scoring) and scoring not in names:
        raise ValueError(
            f"scoring must be the name of a scorer of scikit-learn (sklearn.metrics.get_scorer_names()), a function or "
            f"None, got {scoring!r}.{nearest(str(scoring), names)}"
        )
    scorer: Callable[..., float] = check_scoring(estimator, scoring)
    return scorer


def _scorer_of_classes(name: str, classes: np.ndarray) -> Callable[..., float]:
    """Return a scorer of probabilities whose metric is told the classes."""
    from sklearn import metrics

    metric, higher = getattr(metrics, OF_ALL_CLASSES[name]), not name.startswith("neg_")
    scorer: Callable[..., float] = metrics.make_scorer(
        metric, greater_is_better=higher, response_method="predict_proba", labels=classes
    )
    return scorer


def _scorer_of_indicators(name: str) -> Callable[..., float]:
    """Return the scorer of the probabilities of labels that are 0 or 1: minus the mean over rows and labels."""
    metric = OF_ONE_LABEL[name]
    if metric is None:
        raise ValueError(
            f"scoring={name!r} is for one label a row: take 'neg_log_loss' or 'neg_brier_score', which are means over "
            f"the labels, or a function (estimator, X, y) -> float."
        )

    def score(estimator: Any, X: Any, y: Any, sample_weight: np.ndarray | None = None) -> float:
        truth = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        return -metric(truth, estimator.predict_proba(X), sample_weight)

    return score


def _takes_weights(scorer: Callable[..., float]) -> bool:
    """Whether a scorer has a parameter ``sample_weight``, or takes any keyword, as those of scikit-learn do."""
    parameters = inspect.signature(scorer).parameters.values()
    return any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)


def rows_of(data: Any, rows: np.ndarray) -> Any:
    """Return some rows of the data, in the same container type."""
    if isinstance(data, Mapping):
        return {name: sklearn_private._safe_indexing(part, rows) for name, part in data.items()}
    return sklearn_private._safe_indexing(data, rows)


P = TypeVar("P")


class Predictions(ABC, Generic[P]):
    """The predictions for the validation rows, computed once per score.

    Parameters
    ----------
    run : Run
    X : data
        The validation data as given by the user.
    live : mapping of str to Column
        The data that contain the rows, as inputs of the trained graph.
    rows : ndarray of int
        The validation rows among them.
    """

    def __init__(self, run: Run, X: MatrixLike, live: Columns, rows: np.ndarray) -> None:
        self._run, self._X, self._live, self._rows = run, X, live, rows
        self._predictors = {False: run.live_predictor(live)}
        self._found: dict[tuple[int, bool], P] = {}

    def forget(self) -> None:
        """Discard the predictions: the parameters have changed."""
        self._found.clear()

    @abstractmethod
    def finite(self) -> bool:
        """Whether all scores are finite."""

    @abstractmethod
    def _computed(self, output: int, *, with_scores: bool) -> P:
        """Return the predictions by the current parameters."""

    def _predictor(self, *, with_scores: bool) -> Predictor:
        if with_scores not in self._predictors:
            self._predictors[with_scores] = self._run.live_predictor(self._live, with_scores=with_scores)
        return self._predictors[with_scores]

    def __call__(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> P:
        """Return an output of the graph; replaces the estimator's own method during training."""
        if X is not self._X:
            raise ValueError("A scorer can predict the validation data only, as they are given to it.")
        if (output, with_scores) not in self._found:
            self._found[output, with_scores] = self._computed(output, with_scores=with_scores)
        return self._found[output, with_scores]


class LivePredictions(Predictions[np.ndarray]):
    """The predictions of a graph with one trained output."""

    def _computed(self, output: int, *, with_scores: bool) -> np.ndarray:
        return self._predictor(with_scores=with_scores).run(self._live, self._rows, output)

    def finite(self) -> bool:
        scores = self(self._X, -1, with_scores=True)
        return bool(np.isfinite(scores).all())


def _twin(estimator: Any, run: Run, predictions: Predictions[Any]) -> Any:
    """Return a fitted copy of the estimator that predicts with the parameters in training."""
    twin = object.__new__(type(estimator))
    vars(twin).update(vars(estimator))
    twin._publish(run)
    twin._predict = predictions
    return twin
