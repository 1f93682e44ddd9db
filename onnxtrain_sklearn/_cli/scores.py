"""Scores of a trained model and what a report says about it: baselines, threshold, calibration, importances.

``evaluate`` scores all rows of a table, in parts. ``assess`` looks closer at rows in memory, by scikit-learn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from .._data.statistics import LabelCounts, Moments
from .rows import AnyRows, Rows
from .tables import MISSING_TEXT, TableTask, as_numbers_and_text, text_columns

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Trained:
    """A fitted estimator, and how it reads a table.

    Attributes
    ----------
    predictor : estimator
        The whole estimator, which may be a pipeline; it predicts from the results of ``prepare``.
    net : estimator
        The estimator of this package in it, with the losses of its epochs.
    prepare : callable
        Makes the input of ``predictor`` from a data frame.
    columns : list of str
        The columns that it reads, in their order.
    missing_text : str
        The text that stands for a missing one in the ONNX file.
    earlier : int
        Epochs of earlier fits that this training went on from.
    """

    predictor: Any
    net: Any
    prepare: Callable[[Any], Any]
    columns: list[str]
    missing_text: str = MISSING_TEXT
    earlier: int = 0


RANKED_ROWS = 5_000_000
"""Most rows whose probabilities are kept for ROC AUC and average precision."""

LARGEST_TABLE = 12
"""Most classes for which the report has a confusion matrix."""


class Scores:
    """Scores of predictions, from all parts of the rows.

    Parameters
    ----------
    task : {"classification", "regression"}
    labels : sequence
        The classes that a model knows, if it gives probabilities or its confusion matrix is asked for.
    positive : object, optional
        The one of two classes by whose probabilities the rows are ranked.
    """

    def __init__(self, task: TableTask, labels: Sequence[Any] = (), positive: Any = None) -> None:
        self._task = task
        self._labels = list(labels)
        self.positive = positive
        self._n_rows = 0
        self._counts: Counter[tuple[Any, Any]] = Counter()  # of pairs of true and predicted labels
        self._log_loss: float | None = 0.0 if self._labels else None
        self._moments = Moments()
        self._errors = 0.0
        self._squares = 0.0
        self._ranked: list[tuple[np.ndarray, np.ndarray]] = []  # whether rows are positive, and their probabilities

    def update(self, y: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray | None = None) -> None:
        """Add the predictions for some rows."""
        self._n_rows += len(y)
        if self._task == "regression":
            errors = np.abs(y.ravel() - predicted.ravel())
            self._errors += float(errors.sum())
            self._squares += float((errors**2).sum())
            self._moments.update(y.reshape(-1, 1))
            return
        self._counts.update(zip(y.tolist(), predicted.tolist(), strict=True))
        if probabilities is None or not set(np.unique(y)) <= set(self._labels):
            self._log_loss = None
        elif self._log_loss is not None:
            if self.positive in self._labels and self._n_rows <= RANKED_ROWS:
                place = self._labels.index(self.positive)
                self._ranked.append((y == self.positive, np.asarray(probabilities[:, place], np.float32)))
            shares = np.asarray(probabilities, np.float64)
            shares = shares / shares.sum(axis=1, keepdims=True)  # in float32 they sum to 1 less closely
            loss = metrics.log_loss(y, shares, labels=self._labels, normalize=False)
            self._log_loss += float(loss)

    def by_name(self) -> dict[str, float]:
        """Return the scores by name."""
        n_rows = self._n_rows
        if self._task == "regression":
            total = float((self._moments.deviation**2 * self._moments.weight)[0])
            # As scikit-learn's r2_score: undefined for one row; of a constant target, 1 if all is predicted exactly.
            if n_rows < 2:
                r2 = math.nan
            elif total:
                r2 = 1 - self._squares / total
            else:
                r2 = float(not self._squares)
            root = math.sqrt(self._squares / n_rows)
            return {"r2": r2, "mean_absolute_error": self._errors / n_rows, "root_mean_squared_error": root}
        rows, right = Counter[Any](), Counter[Any]()
        for (label, predicted), count in self._counts.items():
            rows[label] += count
            right[label] += count * (label == predicted)
        found = {
            "accuracy": sum(right.values()) / n_rows,
            # scikit-learn's balanced accuracy warns if a class is predicted that is not in y
            "balanced_accuracy": float(np.mean([right[label] / rows[label] for label in rows])),
        }
        if self._log_loss is None:
            return found
        found["log_loss"] = self._log_loss / n_rows
        if (ranked := self.ranked()) is not None:
            positive, chance = ranked
            found["roc_auc"] = float(metrics.roc_auc_score(positive, chance))
            found["average_precision"] = float(metrics.average_precision_score(positive, chance))
        return found

    def ranked(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return whether each row is positive, and its probability; None without two classes."""
        if sum(len(one) for one, _ in self._ranked) != self._n_rows or not self._ranked:
            return None
        positive, chance = (np.concatenate(parts) for parts in zip(*self._ranked, strict=True))
        return (positive, chance) if positive.any() and not positive.all() else None

    def confusion(self) -> tuple[list[Any], list[list[int]]] | None:
        """Return labels and counts (true by predicted) for few classes."""
        if not 2 <= len(self._labels) <= LARGEST_TABLE:
            return None
        return self._labels, [[self._counts[true, found] for found in self._labels] for true in self._labels]


def evaluate(trained: Trained, rows: AnyRows, task: TableTask, positive: Any = None) -> Scores:
    """Return the scores of a model on some rows; ``positive`` is the class of two that ranks them."""
    labels = np.asarray(trained.net.classes_).tolist() if task == "classification" else ()
    scores = Scores(task, labels, positive)
    for part in rows.parts():
        X = trained.prepare(part.frame)
        require_probabilities = task == "classification" and hasattr(trained.predictor, "predict_proba")
        probabilities = trained.predictor.predict_proba(X) if require_probabilities else None
        scores.update(part.y, np.asarray(trained.predictor.predict(X)), probabilities)
    return scores


def baseline(train: AnyRows, test: AnyRows, task: TableTask) -> dict[str, float]:
    """Return the score of the most frequent class, or of the mean, of the rows that were trained."""
    if task == "regression":
        moments = Moments()
        for y in train.targets():
            moments.update(y.reshape(-1, 1))
        constant: Any = moments.mean[0]
    else:
        counts = LabelCounts()
        for y in train.targets():
            counts.update(y)
        constant = counts.labels[np.argmax(counts.totals)]
    scores = Scores(task)
    for y in test.targets():
        scores.update(y, np.full(len(y), constant))
    found = scores.by_name()
    return found if task == "regression" else {"accuracy": found["accuracy"]}


def class_shares(rows: AnyRows) -> dict[Any, float]:
    """Return the share of the rows of each class, the rarest first."""
    counts = LabelCounts()
    for y in rows.targets():
        counts.update(y)
    shares = np.asarray(counts.totals, np.float64) / np.sum(counts.totals)
    order = np.argsort(shares, kind="stable")
    labels = counts.labels.tolist()
    # Of classes of equal size, the second one is positive, as in scikit-learn.
    if len(order) == 2 and shares[0] == shares[1]:
        order = order[::-1]
    return {labels[i]: float(shares[i]) for i in order}


def rare_classes(shares: Mapping[Any, float]) -> dict[Any, float]:
    """Return those with less than a fifth of an equal share; of two classes, that is 10 %."""
    return {label: share for label, share in shares.items() if share < 0.2 / len(shares)}


# What a report says besides.


@dataclass(frozen=True)
class Assessment:
    """What a report says about a model, on rows that are held out.

    Attributes
    ----------
    n_rows : int
        The rows that were looked at.
    baselines : mapping of str to mapping of str to float
        Scores of other models by their names.
    verdict : str
        A sentence that compares the model with them.
    importances : mapping of str to tuple of float
        How much the loss rises if a column is shuffled, and the standard deviation of that, the largest first.
    per_class : mapping
        Precision, recall, F1 and rows of each class.
    """

    n_rows: int
    baselines: Mapping[str, Mapping[str, float]]
    verdict: str
    importances: Mapping[str, tuple[float, float]]
    per_class: Mapping[Any, tuple[float, float, float, int]]


@dataclass(frozen=True)
class Threshold:
    """The probability of ``positive`` from which on predicting it gives the best ``score``; ``usual``: that of 0.5."""

    positive: Any
    threshold: float
    score: str
    value: float
    usual: float


THRESHOLD_SCORES: dict[str, Callable[..., Any]] = {
    "balanced_accuracy": lambda y, predicted: metrics.balanced_accuracy_score(y, predicted),
    "f1": lambda y, predicted: metrics.f1_score(y, predicted, zero_division=0),
    "accuracy": metrics.accuracy_score,
    "matthews_corrcoef": metrics.matthews_corrcoef,
}
"""Scores that a threshold can maximize."""

MOST_THRESHOLDS, MOST_ROWS_OF_THRESHOLD = 200, 50_000
IMPORTANCE_ROWS = 1000
CALIBRATION_BINS = 10


def assess(trained: Trained, train: Rows, test: Rows, task: TableTask, *, positive: Any, seed: int) -> Assessment:
    """Assess a model on the rows ``test``, beside models that are fitted to ``train``."""
    labels = np.asarray(trained.net.classes_).tolist() if task == "classification" else []
    X = trained.prepare(test.frame)
    predicted = np.asarray(trained.predictor.predict(X))
    probabilities = None
    if task == "classification" and hasattr(trained.predictor, "predict_proba"):
        probabilities = np.asarray(trained.predictor.predict_proba(X), np.float64)
    baselines, losses = {}, {}
    before, table = as_numbers_and_text(train.frame[trained.columns]), as_numbers_and_text(test.frame[trained.columns])
    models = _baselines(before, task, seed) if len(np.unique(train.y)) > 1 else {}  # a classifier refuses one class
    for name, model in models.items():
        model.fit(before, train.y)
        known = model.classes_.tolist() if task == "classification" else []
        shares = model.predict_proba(table) if known else None
        scores = Scores(task, known, positive)
        answers = np.asarray(model.predict(table))
        scores.update(test.y, answers, shares)
        baselines[name], losses[name] = scores.by_name(), row_losses(test.y, answers, shares, known)
    own_losses = row_losses(test.y, predicted, probabilities, labels)
    per_class: dict[Any, tuple[float, float, float, int]] = {}
    if task == "classification":
        parts = metrics.precision_recall_fscore_support(test.y, predicted, labels=labels, zero_division=0)
        per_class = {
            label: (float(a), float(b), float(c), int(n)) for label, a, b, c, n in zip(labels, *parts, strict=True)
        }
    return Assessment(
        len(test.y),
        baselines,
        verdict(own_losses, losses, task, has_probabilities=probabilities is not None),
        _importances(trained, test, labels, seed),
        per_class,
    )


def best_threshold(scores: Scores, score: str) -> Threshold | None:
    """Return the best one of the probabilities, of many evenly spaced ones; None without two classes."""
    if (ranked := scores.ranked()) is None:
        return None
    step = -(-len(ranked[0]) // MOST_ROWS_OF_THRESHOLD)
    measure = THRESHOLD_SCORES[score]
    positive, chance = ranked[0][::step], ranked[1][::step]
    candidates = np.unique(chance)
    if len(candidates) > MOST_THRESHOLDS:
        candidates = candidates[np.linspace(0, len(candidates) - 1, MOST_THRESHOLDS).round().astype(int)]
    values = [float(measure(positive, chance >= one)) for one in candidates]
    best = int(np.argmax(values))
    usual = float(measure(positive, chance >= 0.5))
    if usual >= values[best]:  # nothing is gained by another one
        return Threshold(scores.positive, 0.5, score, usual, usual)
    return Threshold(scores.positive, float(candidates[best]), score, values[best], usual)


def calibration_of(scores: Scores) -> list[tuple[float, float, int]] | None:
    """Return mean probability, share of the positive class and rows of bins of about equal size; of two classes."""
    if (ranked := scores.ranked()) is None:
        return None
    positive, chance = ranked
    true, mean = calibration_curve(positive, chance, n_bins=CALIBRATION_BINS, strategy="quantile")
    # scikit-learn returns no counts; its bins end at these quantiles
    edges = np.percentile(chance, np.linspace(0, 1, CALIBRATION_BINS + 1) * 100)
    counts = np.bincount(np.searchsorted(edges[1:-1], chance))
    counts = counts[counts > 0]
    return [(float(a), float(b), int(n)) for a, b, n in zip(mean, true, counts, strict=True)]


def _baselines(table: pandas.DataFrame, task: TableTask, seed: int) -> dict[str, Any]:
    """Return models of scikit-learn behind the preprocessing that they need."""
    texts = text_columns(table)
    numbers = [name for name in table.columns if name not in texts]
    linear = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=100), texts),
    )
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan, max_categories=200
    )
    trees = make_column_transformer((codes, texts), ("passthrough", numbers))
    categorical = list(range(len(texts)))
    if task == "classification":
        boosted: Any = HistGradientBoostingClassifier(categorical_features=categorical, random_state=seed)
        plain: Any = LogisticRegression(max_iter=1000)
    else:
        boosted = HistGradientBoostingRegressor(categorical_features=categorical, random_state=seed)
        plain = Ridge()
    return {"HistGradientBoosting": make_pipeline(trees, boosted), type(plain).__name__: make_pipeline(linear, plain)}


def row_losses(y: np.ndarray, predicted: np.ndarray, probabilities: Any, labels: Sequence[Any]) -> np.ndarray:
    """Return the loss of each row: minus the logarithm of the probability of its class, an error, or a square."""
    if y.dtype.kind == "f" and not labels:
        return np.asarray((y - predicted.ravel()) ** 2)
    if probabilities is None:
        return np.asarray(y != predicted, np.float64)
    place = {label: i for i, label in enumerate(labels)}
    own = [probabilities[row, place[label]] if label in place else 0.0 for row, label in enumerate(y.tolist())]
    return np.asarray(-np.log(np.maximum(np.asarray(own, np.float64), np.finfo(np.float32).eps)))


def verdict(
    own: np.ndarray,
    others: Mapping[str, np.ndarray],
    task: TableTask,
    *,
    has_probabilities: bool = True,
    name: str = "the trained model",
) -> str:
    """Return a sentence that compares the mean losses, with twice the standard error of their difference as chance."""
    if not others:
        return "There is no other model to compare with."
    what = "mean squared error" if task == "regression" else "log loss" if has_probabilities else "share of errors"
    parts = []
    for other, losses in others.items():
        gap = losses - own
        error = float(np.std(gap, ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else math.inf
        mean = float(np.mean(gap))
        word = "as good as" if abs(mean) <= 2 * error else "better than" if mean > 0 else "worse than"
        parts.append(f"{word} {other} ({np.mean(losses):.4g})")
    return (
        f"By {what} on {len(own)} rows, {name} ({np.mean(own):.4g}) is {' and '.join(parts)}; differences "
        "within two standard errors count as none."
    )


def _importances(trained: Trained, test: Rows, labels: Sequence[Any], seed: int) -> dict[str, tuple[float, float]]:
    """Return permutation importances of the columns, on up to ``IMPORTANCE_ROWS`` rows."""
    step = -(-len(test.y) // IMPORTANCE_ROWS)
    frame = test.frame[trained.columns].iloc[::step]
    y = test.y[::step]

    def score(estimator: Any, X: pandas.DataFrame, y: np.ndarray) -> float:
        table = trained.prepare(X)
        has_shares = bool(labels) and hasattr(estimator, "predict_proba")
        shares = np.asarray(estimator.predict_proba(table), np.float64) if has_shares else None
        return -float(np.mean(row_losses(y, np.asarray(estimator.predict(table)), shares, labels)))

    found = permutation_importance(
        trained.predictor, frame, y, scoring=score, n_repeats=5 if len(trained.columns) <= 50 else 1, random_state=seed
    )
    order = np.argsort(-found.importances_mean, kind="stable")
    return {trained.columns[i]: (float(found.importances_mean[i]), float(found.importances_std[i])) for i in order}
