"""Fine-tuning with default settings beside simple rivals, on stories of drift: scores, and whether they differ.

Rivals: the old model as it is; the same model refitted on the new rows; refitted on old and new rows, the new ones
weighted as much as the old ones; the old predictions recalibrated on the new rows by a line (regression) or a logistic
regression of the old scores (classification); for LightGBM, ``init_model``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from drift_stories import STORIES, Drift
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor


def _weights_of(model: Any, weights: np.ndarray) -> dict[str, Any]:
    if isinstance(model, Pipeline):
        return {f"{model.steps[-1][0]}__sample_weight": weights}
    return {"sample_weight": weights}


def old_model(drift: Drift) -> Any:
    return drift.model


def refit_on_new(drift: Drift) -> Any:
    return clone(drift.model).fit(*drift.new)


def refit_on_both(drift: Drift) -> Any:
    X = np.concatenate([drift.old[0], drift.new[0]])
    y = np.concatenate([drift.old[1], drift.new[1]])
    share = len(drift.old[1]) / len(drift.new[1])
    weights = np.concatenate([np.ones(len(drift.old[1])), np.full(len(drift.new[1]), share)])
    return clone(drift.model).fit(X, y, **_weights_of(drift.model, weights))


class Recalibrated:
    """The old model, its output corrected by a model of that output."""

    def __init__(self, drift: Drift) -> None:
        self.model, self.classes_ = drift.model, getattr(drift.model, "classes_", None)
        self._estimator_type = "classifier" if self.classes_ is not None else "regressor"
        logistic = make_pipeline(StandardScaler(), LogisticRegression())
        linear = logistic if is_classifier(drift.model) else LinearRegression()
        self.correction = linear.fit(self._output(drift.new[0]), drift.new[1])

    def _output(self, X: Any) -> np.ndarray:
        if self.classes_ is None:
            return np.asarray(self.model.predict(X)).reshape(-1, 1)
        p = np.log(np.clip(self.model.predict_proba(X), 1e-7, 1))
        return p[:, 1:] - p[:, :1] if len(self.classes_) == 2 else p

    def __sklearn_tags__(self) -> Any:
        return self.model.__sklearn_tags__()

    def fit(self) -> None: ...

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.correction.predict(self._output(X)))

    def predict_proba(self, X: Any) -> np.ndarray:
        small = self.correction.predict_proba(self._output(X))
        known = self.correction.classes_
        result = np.full((len(small), len(self.classes_)), 1e-7)
        result[:, np.searchsorted(self.classes_, known)] = small
        return result


def init_model(drift: Drift) -> Any:
    return clone(drift.model).fit(*drift.new, init_model=drift.model)


def fine_tuned(drift: Drift) -> Any:
    estimator = OrtGradientClassifier if is_classifier(drift.model) else OrtGradientRegressor
    return estimator(drift.model, random_state=0).fit(*drift.new)


METHODS: dict[str, Callable[[Drift], Any]] = {
    "old": old_model,
    "refit new": refit_on_new,
    "refit both": refit_on_both,
    "recalibrated": Recalibrated,
    "fine-tuned": fine_tuned,
}


def score(drift: Drift, model: Any) -> float:
    try:
        if drift.score == "neg_log_loss":
            p = np.clip(model.predict_proba(drift.test[0]), 1e-7, 1)
            picked = p[np.arange(len(p)), np.searchsorted(drift.model.classes_, drift.test[1])]
            return float(np.log(picked / p.sum(axis=1)).mean())
        return float(get_scorer(drift.score)._score_func(drift.test[1], model.predict(drift.test[0])))
    except Exception as error:
        print(error)
        return float("nan")


def measure(name: str, n: int, seeds: int, methods: dict[str, Callable[[Drift], Any]]) -> dict[str, Any]:
    """Return the scores of each method by seed, and the seconds that it took."""
    found: dict[str, Any] = {method: [] for method in methods}
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for seed in range(seeds):
        drift = STORIES[name][0](n, seed)
        tried = dict(methods)
        if hasattr(drift.model, "booster_") and "old" in tried:
            tried["refit both"] = init_model if False else refit_on_both
        for method, fit in tried.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.process_time()
                model = fit(drift)
                seconds[method].append(time.process_time() - start)
                found[method].append(score(drift, model))
    return {"scores": found, "seconds": seconds}
