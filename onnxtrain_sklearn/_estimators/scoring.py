"""Score validation data during training, by scikit-learn's scorers or by losses."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from numbers import Real
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from .._data.held_out import log_loss_of_labels, naming_validation_data, require_scorable, squared_error_of_labels
from .._data.row_weights import given_weights, weights_of_labels
from .._data.targets import (
    IGNORED,
    SeveralTargets,
    Targets,
    masked_labels,
    position_shares,
    require_same_places,
    rows_with_labels,
    values_in_rows,
)
from .._fitted import sklearn_private
from .._inference.graph import Decoding
from .._inference.predictor import Predictor
from .._model.links import Task
from .._training.step_parts import StepSettings, TotalLoss, settings_of_output
from .._training.validation_loss import SCORED_PIECE, ScoreLoss, weighted_mean
from .._utils.cache import with_attributes
from .._utils.typing import MatrixLike
from ..callbacks.base import Part
from ..exceptions import InvalidParameterError, ModelError, nearest
from ..losses import Loss
from ..losses.regression import reconstructs
from .call import Call, EncodedData, FitContext
from .config import TrainingConfig
from .examples import scaled_values, validation_examples
from .fitted_state import Columns, FittedState
from .outputs import ignoring, loss_of, score_row
from .parameters import Parameters

Scoring: TypeAlias = "str | Callable[..., float]"

OF_ALL_CLASSES = {"neg_log_loss": "log_loss", "d2_log_loss_score": "d2_log_loss_score"}
"""Scorers whose metric takes all classes as an argument, because the validation data may lack a rare class."""

OF_ONE_LABEL: Mapping[str, Callable[..., float] | None] = {
    "neg_log_loss": log_loss_of_labels,
    "neg_brier_score": squared_error_of_labels,
    "d2_log_loss_score": None,
    "d2_brier_score": None,
}
"""Scorers that would read a row of several binary labels as a one-hot row, each with the metric that replaces it.

A scorer with None is refused.
"""


_SCORERS: Mapping[Task, tuple[str, str]] = {
    "binary": ("these labels of two classes", "'accuracy', 'balanced_accuracy', 'neg_log_loss' or 'roc_auc'"),
    "multiclass": ("labels of several classes", "'accuracy', 'balanced_accuracy', 'f1_macro' or 'neg_log_loss'"),
    "multilabel": ("several labels a row", "'neg_log_loss', 'neg_brier_score', 'f1_macro' or 'roc_auc'"),
    "multioutput": ("several labels of several classes a row", "a function (estimator, X, y) -> float"),
    "regression": ("these numbers", "'r2', 'neg_mean_absolute_error' or 'neg_root_mean_squared_error'"),
}
"""For error messages, by task: a phrase for the targets, and scorers that suit them."""


def scorer_of(
    estimator: Any,
    scoring: Scoring,
    state: FittedState,
    data: tuple[MatrixLike, Any, np.ndarray | None],
    predictions: Predictions[Any],
) -> Callable[[], float]:
    """Return a function that computes the score ``scoring`` of the parameters in training on the validation data.

    Parameters
    ----------
    estimator : BaseOrtGradient
    scoring : str or callable
    state : FittedState
    data : tuple of X, y and weights
        The validation data as given by the user.
    predictions : Predictions
        Predictions for the validation data by the parameters in training.
    """
    X, y, weights = data
    several = state.decoding.task == "multilabel" and isinstance(scoring, str) and scoring in OF_ONE_LABEL
    # the classes if each row has one label
    known = np.asarray(state.decoding.classes) if state.decoding.task in ("binary", "multiclass") else None
    scorer = _scorer_of_indicators(str(scoring)) if several else scorer_by_name(estimator, scoring, known)
    # a fitted copy of the estimator that predicts by the parameters in training
    twin = object.__new__(type(estimator))
    vars(twin).update(vars(estimator))
    vars(twin).update(state.fitted_attributes())
    twin._predict = predictions
    takes = inspect.signature(scorer).parameters.values()
    takes_weights = any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in takes)  # or **kwargs
    if weights is not None and not takes_weights:
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
            what, names = _SCORERS[state.decoding.task]
            raise ValueError(
                f"scoring={scoring!r} does not score {what}; take {names}, for example. scikit-learn says: {error}"
            ) from error
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"scoring={scoring!r} must give a number for the validation data, got {value!r}.")
        return float(value)

    return score


def scorer_by_name(estimator: Any, scoring: Scoring, classes: np.ndarray | None) -> Callable[..., float]:
    """Return scikit-learn's scorer of a name; return a function unchanged.

    ``classes`` are all classes if each row has one label, else None.
    """
    from sklearn.metrics import check_scoring, get_scorer_names  # needs a fifth of scikit-learn

    if classes is not None and isinstance(scoring, str) and scoring in OF_ALL_CLASSES:
        return _scorer_of_classes(scoring, classes)
    names = get_scorer_names()
    if not callable(scoring) and scoring not in names:
        raise InvalidParameterError(
            f"scoring must be the name of a scorer of scikit-learn (sklearn.metrics.get_scorer_names()), a function or "
            f"None, got {scoring!r}.{nearest(str(scoring), names)}"
        )
    scorer: Callable[..., float] = check_scoring(estimator, scoring)
    return scorer


def _scorer_of_classes(name: str, classes: np.ndarray) -> Callable[..., float]:
    """Return a scorer of probabilities that passes all classes to its metric."""
    from sklearn import metrics

    metric = getattr(metrics, OF_ALL_CLASSES[name])
    higher = not name.startswith("neg_")
    scorer: Callable[..., float] = metrics.make_scorer(
        metric, greater_is_better=higher, response_method="predict_proba", labels=classes
    )
    return scorer


def _scorer_of_indicators(name: str) -> Callable[..., float]:
    """Return the scorer for several binary labels per row: minus the mean of the metric over rows and labels."""
    metric = OF_ONE_LABEL[name]
    if metric is None:
        raise ValueError(
            f"scoring={name!r} is for one label a row: take 'neg_log_loss' or 'neg_brier_score', which are means over "
            f"the labels, or a function (estimator, X, y) -> float."
        )

    def score(estimator: Any, X: Any, y: Any, sample_weight: np.ndarray | None = None) -> float:
        truth = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        weights = sample_weight
        if (found := masked_labels(truth, estimator.ignore_label)) is not None:
            own = 1.0 if sample_weight is None else sample_weight.reshape(len(truth), -1)
            weights = found[1] * own
            truth = np.where(found[1], truth, 0).astype(float)
        return -metric(truth, estimator.predict_proba(X), weights)

    return score


def rows_of(data: Any, rows: np.ndarray) -> Any:
    """Return the rows of ``data`` with the indices ``rows``, in the same container type."""
    if isinstance(data, Mapping):
        return {name: sklearn_private._safe_indexing(part, rows) for name, part in data.items()}
    return sklearn_private._safe_indexing(data, rows)


P = TypeVar("P")


class Predictions(ABC, Generic[P]):
    """The predictions for the validation rows, computed once per score.

    Parameters
    ----------
    state : FittedState
    X : data
        The validation data as given by the user.
    live : mapping of str to InputData
        The data that contain the rows, as inputs of the trained graph.
    rows : ndarray of int
        The indices of the validation rows in ``live``.
    """

    def __init__(self, state: FittedState, X: MatrixLike, live: Columns, rows: np.ndarray) -> None:
        self._state, self._X, self._live, self._rows = state, X, live, rows
        self._predictors = {False: state.live_predictor(live)}
        self._found: dict[tuple[int, bool], P] = {}

    def forget(self) -> None:
        """Discard the cached predictions, because the parameters have changed."""
        self._found.clear()

    @abstractmethod
    def finite(self) -> bool:
        """Return True if all scores are finite."""

    @abstractmethod
    def _computed(self, output: int, *, with_scores: bool) -> P:
        """Compute the output number ``output`` with the current parameters."""

    def _predictor(self, *, with_scores: bool) -> Predictor:
        if with_scores not in self._predictors:
            self._predictors[with_scores] = self._state.live_predictor(self._live, with_scores=with_scores)
        return self._predictors[with_scores]

    def __call__(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> P:
        """Return an output of the graph for the validation data; this replaces the estimator's method in training."""
        if X is not self._X:
            raise ValueError("A scorer can predict the validation data only, as they are given to it.")
        if (output, with_scores) not in self._found:
            self._found[output, with_scores] = self._computed(output, with_scores=with_scores)
        return self._found[output, with_scores]


class LivePredictions(Predictions[np.ndarray]):
    """The predictions of a graph with one trained output."""

    def _computed(self, output: int, *, with_scores: bool) -> np.ndarray:
        found: np.ndarray = self._predictor(with_scores=with_scores).run(self._live, self._rows, output)
        if output == 1 and self._state.decoding.has_probabilities:
            # a float32 sigmoid may give 1.0000001 (`within_one`), which scikit-learn's metrics refuse
            found = np.minimum(found, 1, dtype=found.dtype)
        return found

    def finite(self) -> bool:
        scores = self(self._X, -1, with_scores=True)
        return bool(np.isfinite(scores).all())


# Losses and scores of the current parameters on training or validation rows, for callbacks.


class Measures:
    """The losses and scores that callbacks measure after an epoch; the function of each is made on first use."""

    def __init__(
        self, estimator: Parameters, state: FittedState, settings: StepSettings, rows: Mapping[Part, ScoredRows | None]
    ) -> None:
        self._estimator, self._state, self._settings, self._rows = estimator, state, settings, rows
        self._known: dict[tuple[str, Part], Callable[[], float]] = {}

    def __call__(self, name: str, scoring: Scoring, on: Part) -> float:
        """Return the score ``scoring`` of the rows ``on``, or their loss if ``scoring`` is "loss"."""
        if (name, on) not in self._known:
            rows = self._rows[on]
            if rows is None:
                raise ValueError(
                    f"{name!r} needs validation data: set early_stopping=True, or give X_val and y_val to fit."
                )
            if isinstance(scoring, str) and scoring == "loss":
                self._known[name, on] = self._loss(rows)
            else:
                self._known[name, on] = score_by(self._estimator, scoring, self._state, rows)
        return self._known[name, on]()

    def _loss(self, rows: ScoredRows) -> Callable[[], float]:
        if self._state.trained_form.link == "votes":
            raise ModelError("The loss on validation data is not known for one-vs-one votes: take a score.")
        predictor = self._state.live_predictor(rows.live, with_scores=True)
        loss = loss_of_outputs if self._state.decoding.parts else loss_of_rows
        return loss(self._state, self._settings, rows, predictor)


def loss_of_rows(
    state: FittedState, settings: StepSettings, scored: ScoredRows, predictor: Predictor
) -> Callable[[], float]:
    """Return a function that computes the mean loss of the rows ``scored`` with the current parameters.

    It computes the scores in pieces, as ``predict`` does, because a score for each position takes much memory.
    """
    mean = ScoreLoss(
        ignoring(settings, scored.targets), state.parameters.buffer.dtype, state.minibatch_rows or SCORED_PIECE
    )
    y = scaled_values(state, scored.targets)
    rows = scored.rows
    weights = np.ones(len(rows)) if scored.weights is None else scored.weights
    if mean.rows_meet:  # minibatches have no rows of weight zero, which would change this loss
        y, rows, weights = y[weights > 0], rows[weights > 0], weights[weights > 0]
    pieces = [slice(0, len(rows))] if mean.rows_meet else predictor.pieces_of(scored.live, rows)

    def loss() -> float:
        found = [mean(predictor.run(scored.live, rows[p], -1), y[p], weights[p]) for p in pieces]
        return weighted_mean(found, [weights[p] for p in pieces])

    return loss


# The loss of several outputs: the weighted sum of their mean losses.


def loss_of_outputs(
    state: FittedState, settings: StepSettings, scored: ScoredRows, predictor: Predictor
) -> Callable[[], float]:
    """Return a function that computes the total loss of several outputs on the rows ``scored``.

    The last outputs of ``predictor`` are the scores.
    """
    total = settings.loss
    targets = scored.targets
    dtype = state.parameters.buffer.dtype
    assert isinstance(total, TotalLoss)
    assert isinstance(targets, SeveralTargets)
    numbers = numbers_of_outputs(state.decoding, -1, with_scores=True)
    batch_size = state.minibatch_rows or SCORED_PIECE
    parts = [
        ignoring(settings_of_output(settings, one), own) for one, own in zip(total.outputs, targets.parts, strict=True)
    ]
    losses = [ScoreLoss(one, dtype, batch_size) for one in parts]
    each = list(zip(total.outputs, losses, targets.parts, targets.weights, strict=True))

    def loss() -> float:
        found = predictor.run_several(scored.live, numbers, scored.rows)
        pairs = zip(found, each, strict=True)
        return float(np.sum([one.weight * mean(s, own.with_shares(own.values), w) for s, (one, mean, own, w) in pairs]))

    return loss


# The score on validation data, which were held out or given by the user, during training.


Metric = Callable[[np.ndarray, Targets, "np.ndarray | None"], float]
"""A function that returns the score from predictions, targets and weights."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows that are scored during training.

    Attributes
    ----------
    given : callable () -> tuple of data
        Returns X and y of these rows as the user gave them. It is called only if a scorer or a callback reads them,
        because it copies data that are mapped from a file into memory.
    targets : Targets
    weights : ndarray or None
    live : mapping of str to InputData
        The data that contain the rows, as inputs of the trained graph.
    rows : ndarray of int
        The indices of the rows in ``live``.
    """

    given: Callable[[], tuple[Any, Any]]
    targets: Targets
    weights: np.ndarray | None
    live: Columns
    rows: np.ndarray

    @cached_property
    def data(self) -> tuple[Any, Any]:
        """X and y of these rows as the user gave them."""
        return self.given()


def validation(
    context: FitContext, state: FittedState, settings: StepSettings, examples: EncodedData
) -> tuple[ScoredRows | None, Callable[[], float] | None]:
    """Return the validation rows, and a function that scores the current parameters on them; None without such rows."""
    estimator = context.estimator
    call = context.call
    given = context.call.validation
    held_out = context.split.of(examples)[1]
    if given is not None:
        with naming_validation_data():
            own = validation_examples(estimator, state, *given)
            if reconstructs(estimator.loss):
                given = (given[0], values_in_rows(own.targets), given[2])
            require_same_places(examples.targets, own.targets)
            _check_declared(state.decoding, settings.loss, own.targets)
        require_scorable(own.targets, own.weights)
        rows = rows_with_labels(own.targets)
        if state.graph.is_whole and own.weights is not None:
            rows = np.flatnonzero(own.weights)
        if len(rows) == len(own):
            scored = rows_to_score(state, own, rows, lambda: given[:2])
        else:
            scored = rows_to_score(
                state, own, rows, lambda: (_rows_of_data(state, given[0], rows), rows_of(given[1], rows))
            )
    elif held_out is not None:
        scored = scored_rows(state, examples, held_out, call)
        if scored.targets.counts_in_part:
            require_scorable(scored.targets, scored.weights)
    else:
        require_no_scoring(estimator, call)
        return None, None
    if examples.targets.declared is not None:
        return scored, _score_of_declared(estimator, state, settings, scored)
    # The accuracy is computed without scikit-learn's scorer of that name, which takes longer.
    computes_accuracy = (
        state.decoding.task in ("binary", "multiclass", "multilabel") and state.decoding.positions is None
    )
    is_accuracy = computes_accuracy and isinstance(estimator.scoring, str) and estimator.scoring == "accuracy"
    if estimator.scoring is not None and not is_accuracy:
        return scored, score_by(estimator, estimator.scoring, state, scored)
    with_scores = watches_loss(context, state, settings)
    return scored, DefaultScore(estimator._output_spec().score, state, scored, with_scores=with_scores)


def _score_of_declared(
    estimator: Any, state: FittedState, settings: StepSettings, scored: ScoredRows
) -> Callable[[], float]:
    """Return a function that computes minus the mean loss, or the score of a function ``scoring``."""
    if estimator.scoring is None:
        loss = loss_of_rows(state, settings, scored, state.live_predictor(scored.live, with_scores=True))
        return lambda: -loss()
    return score_by(estimator, estimator.scoring, state, scored)


def loss_of_declared(estimator: Any, X: MatrixLike, y: Any, sample_weight: Any) -> float:
    """Return the mean loss of a fitted estimator whose loss declares its targets."""
    state: FittedState = estimator._state
    examples = validation_examples(estimator, state, X, y, sample_weight)
    loss = loss_of(estimator._output_spec(), state.fitted, state.graph)
    decoding = state.decoding
    if decoding.declared is not None and state.graph.own_loss is None:  # the sizes of X may differ from the last call's
        row = score_row(state.graph, examples.columns, state.device)
        declared = decoding.declared.with_scores(row or (1,))
        decoding = with_attributes(decoding, declared=declared, n_scores=math.prod(row))
    _check_declared(decoding, loss, examples.targets)
    settings = TrainingConfig.of(estimator).with_decoding(loss, decoding, state.seed)
    scored = ScoredRows(lambda: (X, y), examples.targets, examples.weights, examples.columns, np.arange(len(examples)))
    return loss_of_rows(state, settings, scored, state.predictor(examples.columns, with_scores=True))()


def _check_declared(decoding: Decoding, loss: Loss | TotalLoss, targets: Targets) -> None:
    """Raise ValueError if rows to score have declared targets for which the loss is not defined."""
    if isinstance(loss, Loss) and decoding.declared is not None:
        loss.check_targets(targets.content)
        loss.check_scores(decoding.declared.score_row, targets.content)


def scored_rows(state: FittedState, examples: EncodedData, rows: np.ndarray, call: Call) -> ScoredRows:
    """Return the rows with the indices ``rows`` of the call's training data, to be scored during training."""
    X, y = call.X, call.y
    if len(rows) == len(examples):
        return rows_to_score(state, examples, rows, lambda: (X, y))
    return rows_to_score(state, examples, rows, lambda: (_rows_of_data(state, X, rows), rows_of(y, rows)))


def _rows_of_data(state: FittedState, X: Any, rows: np.ndarray) -> Any:
    """Return the rows of X that are scored; all of X if the data are one thing."""
    return X if state.graph.is_whole else rows_of(X, rows)


def rows_to_score(
    state: FittedState, examples: EncodedData, rows: np.ndarray, given: Callable[[], tuple[Any, Any]]
) -> ScoredRows:
    """Return the rows with the indices ``rows`` of ``examples``, to be scored; ``given`` returns the user's X and y."""
    targets = examples.targets.take(rows)
    weights = None if examples.weights is None else examples.weights[rows]
    if state.graph.is_whole and weights is not None and (weights == 1).all():
        weights = None  # only rows that are not scored, those without a target, have another one
    inputs = state.scored_form(examples.columns).inputs
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in inputs}
    return ScoredRows(given, targets, weights, live, rows)


class DefaultScore:
    """The default score of the current parameters on validation data: accuracy or R².

    Attributes
    ----------
    predictor : Predictor
        The loss on the same rows uses it too, because each session keeps memory for its largest values.
    """

    def __init__(self, metric: Metric, state: FittedState, scored: ScoredRows, *, with_scores: bool) -> None:
        self._metric, self._scored = metric, scored
        self.predictor = state.live_predictor(scored.live, with_scores=with_scores)

    def __call__(self) -> float:
        scored = self._scored
        predicted = self.predictor.run(scored.live, scored.rows)
        finite = predicted.dtype.kind != "f" or np.isfinite(predicted).all()
        return self._metric(predicted, scored.targets, scored.weights) if finite else math.nan


def watches_loss(context: FitContext, state: FittedState, settings: StepSettings) -> bool:
    """Return True if the loss on the validation data, not the score, decides which weights are best.

    The attribute ``judged_by`` of a loss of numbers says whether R² suits it: R² falls, for example, while a network
    learns a quantile. Labels are judged by the loss, because the accuracy on few rows may not change for many epochs
    while the network learns.
    """
    call = context.call
    stops = bool(context.estimator.early_stopping)
    if context.estimator.scoring is not None or call.one_epoch:
        return False
    if isinstance(settings.loss, TotalLoss):
        losses = [(one.task, one.loss) for one in settings.loss.outputs]
    else:
        losses = [(settings.task, settings.loss)]
    if any(task == "regression" and loss.judged_by == "loss" for task, loss in losses):
        return stops or context.tuner is not None
    classifies = state.decoding.task != "regression" and not state.decoding.parts and state.trained_form.link != "votes"
    return stops and classifies


def score_by(estimator: Parameters, scoring: Scoring, state: FittedState, scored: ScoredRows) -> Callable[[], float]:
    """Return a function that scores the current parameters by the scorer that the parameter ``scoring`` names or is."""
    weights, targets, (X, y) = scored.weights, scored.targets, scored.data
    if state.decoding.parts:
        if not callable(scoring):
            raise InvalidParameterError(
                f"scoring must be a function (estimator, X, y) -> float where y has several outputs, or None; "
                f"scikit-learn's scorers take one. Got {scoring!r}."
            )
        return scorer_of(estimator, scoring, state, (X, y, None), LiveOutputs(state, X, scored.live, scored.rows))
    if targets.declared is not None and isinstance(scoring, str):
        raise ValueError(
            f"scoring={scoring!r}: scikit-learn's scorers take numbers as y, and the loss takes targets of its own. "
            f"Take None, for minus the loss, or a function (estimator, X, y) -> float."
        )
    if targets.soft and isinstance(scoring, str):
        raise ValueError(
            f"scoring={scoring!r}: scikit-learn's scorers take one label a row, and y holds soft labels. Take None, "
            f"'accuracy' (the mean share of the predicted class), or a function (estimator, X, y) -> float."
        )
    if targets.row_shape and isinstance(scoring, str):
        scoring = FlatScorer(estimator, scoring, targets, weights)
    of_labels = targets.task == "multilabel" and isinstance(scoring, str) and scoring in OF_ONE_LABEL
    if isinstance(scoring, str) and targets.counts_in_part and not of_labels:
        raise ValueError(
            f"scoring={scoring!r} cannot leave out single labels of a row, which are missing or ignored here or have "
            f"weights of their own, or such numbers. Take a function (estimator, X, y) -> float, or None, for the "
            f"accuracy, or R², of those that count."
        )
    if weights is not None and (targets.has_positions or targets.counts_in_part):
        weights = weights_of_labels(targets, weights)
    return scorer_of(estimator, scoring, state, (X, y, weights), LivePredictions(state, X, scored.live, scored.rows))


def require_no_scoring(estimator: Parameters, call: Call) -> None:
    """Raise if ``scoring`` is set but there are no validation data."""
    if estimator.scoring is not None and not call.one_epoch:
        raise ValueError(
            f"scoring={estimator.scoring!r} needs validation data: set early_stopping=True, or give X_val and y_val."
        )


# Apply scikit-learn's scorers to targets with rows of several axes, which its metrics do not take.
#
# For numbers, such as images, each element of a row becomes a column of the target. R² and the explained variance then
# weight the columns by their variance, as ``score`` does, because columns that hardly vary would dominate a plain mean.
# For a label at each position, each label that is not ignored becomes a row.


RESPONSE_METHODS = ("predict", "predict_proba", "decision_function")


class FlatScorer:
    """Flattens targets and predictions with rows of several axes, and passes them to a scorer of scikit-learn.

    Parameters
    ----------
    estimator : BaseOrtGradient
    name : str
        The name of the scorer.
    targets : Targets
        The targets of the validation data, with rows of several axes.
    weights : ndarray or None
        The weights of the rows, as in training.
    """

    def __init__(self, estimator: Any, name: str, targets: Targets, weights: np.ndarray | None) -> None:
        self.name = name
        from sklearn.metrics import explained_variance_score, make_scorer, r2_score  # needs a fifth of scikit-learn

        # Weight each element by its variance; only these two metrics have such a mean.
        metric = {"r2": r2_score, "explained_variance": explained_variance_score}.get(name)
        classes = np.asarray(targets.classes) if targets.has_positions else None
        self._scorer: Callable[..., float] = (
            make_scorer(metric, multioutput="variance_weighted")
            if metric is not None
            else scorer_by_name(estimator, name, classes)
        )
        flat = _flat_labels if targets.has_positions else _flat_elements
        self._y, weights, self._flatten = flat(targets, weights)
        self._more = {} if weights is None else {"sample_weight": weights}

    def __repr__(self) -> str:
        return repr(self.name)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the predictions for ``X``; targets and weights are those of the constructor."""
        flat = object.__new__(type(estimator))
        vars(flat).update(vars(estimator))
        for name in RESPONSE_METHODS:
            if hasattr(estimator, name):
                setattr(flat, name, _flattened(getattr(estimator, name), self._flatten))
        return float(self._scorer(flat, X, self._y, **self._more))


def _flattened(method: Callable[..., Any], flatten: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(method)  # scikit-learn looks methods up by their names
    def flat(X: Any) -> Any:
        return flatten(method(X))

    return flat


Flat = tuple[np.ndarray, "np.ndarray | None", Callable[[np.ndarray], np.ndarray]]


def _flat_elements(targets: Targets, weights: np.ndarray | None) -> Flat:
    return targets.values.reshape(len(targets.values), -1), weights, lambda found: found.reshape(len(found), -1)


def _flat_labels(targets: Targets, weights: np.ndarray | None) -> Flat:
    """Return the labels that are not ignored, their weights (None if all are one), and a function that selects them.

    The function takes predictions for all rows, and returns those for these labels.
    """
    counted = targets.values.ravel() != IGNORED
    rows = None if weights is None else given_weights(targets, weights)
    shares = position_shares(targets)
    own = (shares if rows is None else rows[:, None] * shares).ravel()[counted]

    def flatten(found: np.ndarray) -> np.ndarray:
        axes = found.shape[1 + len(targets.row_shape) :]
        chosen: np.ndarray = found.reshape(-1, *axes)[counted]
        return chosen

    labels = np.asarray(targets.classes)[targets.values.ravel()[counted]]
    return labels, None if (own == 1).all() else own, flatten


# Several trained outputs: find their labels, numbers and scores among the outputs of the inference graph.


def first_outputs(decoding: Decoding, *, with_scores: bool) -> list[int]:
    """Return, for each trained output, the index of its first output in the inference graph: its label or number."""
    sizes = [(1 if part.task == "regression" else 2) + with_scores for part in decoding.parts]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def numbers_of_outputs(decoding: Decoding, output: int, *, with_scores: bool) -> list[int]:
    """Return, for each trained output, the index of an output of the inference graph.

    ``output`` is 0 for the label or number, 1 for the probabilities, and -1 for the scores.
    """
    first = first_outputs(decoding, with_scores=with_scores)
    last = [1 if part.task == "regression" else 2 for part in decoding.parts]
    return [begin + (end if output == -1 else min(output, end - 1)) for begin, end in zip(first, last, strict=True)]


class LiveOutputs(Predictions[list[np.ndarray]]):
    """The predictions of several trained outputs for the validation rows."""

    def _computed(self, output: int, *, with_scores: bool) -> list[np.ndarray]:
        numbers = numbers_of_outputs(self._state.decoding, output, with_scores=with_scores)
        return self._predictor(with_scores=with_scores).run_several(self._live, numbers, self._rows)

    def finite(self) -> bool:
        return all(bool(np.isfinite(own).all()) for own in self(self._X, -1, with_scores=True))
