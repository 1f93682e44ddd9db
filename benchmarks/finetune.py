"""Fine-tuning with default settings beside simple rivals, on stories of drift: scores, and whether they differ.

It runs with the new rows alone, and with the old rows beside them. Rivals: the old model as it is; the same model
refitted on the new rows; refitted on old and new rows, the new ones weighted as much as the old ones; the old
predictions recalibrated on the new rows by a line (regression) or a logistic regression of the old scores
(classification); for LightGBM, ``init_model``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from drift_stories import STORIES, Drift
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor


def _weights_of(model: Any, weights: np.ndarray) -> dict[str, Any]:
    last = getattr(model, "regressor", model)
    if isinstance(last, Pipeline):
        return {f"{last.steps[-1][0]}__sample_weight": weights}
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
        logistic = make_pipeline(StandardScaler(), LogisticRegression())
        linear = logistic if is_classifier(drift.model) else LinearRegression()
        self.correction = linear.fit(self._output(drift.new[0]), drift.new[1])

    def _output(self, X: Any) -> np.ndarray:
        if self.classes_ is None:
            return np.asarray(self.model.predict(X)).reshape(-1, 1)
        p = np.log(np.clip(self.model.predict_proba(X), 1e-7, 1))
        return p[:, 1:] - p[:, :1] if len(self.classes_) == 2 else p

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


def _estimator(drift: Drift) -> Any:
    estimator = OrtGradientClassifier if is_classifier(drift.model) else OrtGradientRegressor
    return estimator(drift.model, random_state=0)


def fine_tuned(drift: Drift) -> Any:
    return _estimator(drift).fit(*drift.new)


def fine_tuned_with_old_rows(drift: Drift) -> Any:
    return _estimator(drift).fit(*drift.new, X_old=drift.old[0], y_old=drift.old[1])


METHODS: dict[str, Callable[[Drift], Any]] = {
    "old": old_model,
    "refit new": refit_on_new,
    "refit both": refit_on_both,
    "recalibrated": Recalibrated,
    "fine-tuned": fine_tuned,
    "with old rows": fine_tuned_with_old_rows,
}


def score(drift: Drift, model: Any) -> float:
    if drift.score == "neg_log_loss":
        p = np.clip(model.predict_proba(drift.test[0]), 1e-7, 1)
        picked = p[np.arange(len(p)), np.searchsorted(drift.model.classes_, drift.test[1])]
        return float(np.log(picked / p.sum(axis=1)).mean())
    scorer = {"r2": r2_score, "accuracy": accuracy_score}[drift.score]
    return float(scorer(drift.test[1], model.predict(drift.test[0])))


def methods_of(drift: Drift) -> dict[str, Callable[[Drift], Any]]:
    return {**METHODS, "init_model": init_model} if hasattr(drift.model, "booster_") else METHODS


def scores_of(drift: Drift) -> dict[str, tuple[float, float]]:
    """Return score and CPU seconds of each method."""
    found = {}
    for name, fit in methods_of(drift).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            model = fit(drift)
            found[name] = score(drift, model), time.process_time() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--stories", nargs="*", default=[""], help="parts of the names of stories")
    arguments = parser.parse_args()
    print("| story | new rows |", " | ".join(METHODS), "| seconds | with old rows and the best rival |")
    print("|---|---|" + "---|" * (len(METHODS) + 2))
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name, (story, sizes) in STORIES.items():
        if any(part in name for part in arguments.stories):
            for n in sizes:
                print(row(name, n, [scores_of(story(n, seed)) for seed in seeds]), flush=True)


def row(name: str, n: int, found: list[dict[str, tuple[float, float]]]) -> str:
    """Return a row of the table: mean scores, and the difference to the best rival with its standard error."""
    scores = {method: np.array([one[method][0] for one in found]) for method in found[0]}
    rivals = [method for method in scores if method not in ("old", "fine-tuned", "with old rows")]
    best = max(rivals, key=lambda method: float(scores[method].mean()))
    ahead = scores["with old rows"] - scores[best]
    error = ahead.std(ddof=1) / np.sqrt(len(ahead)) if len(ahead) > 1 else np.nan
    means = " | ".join(f"{scores[method].mean():.3f}" for method in METHODS)
    more = "".join(f", {m}: {v.mean():.3f}" for m, v in scores.items() if m not in METHODS)
    seconds = ", ".join(f"{np.mean([one[m][1] for one in found]):.1f}" for m in ("fine-tuned", "with old rows"))
    return f"| {name}{more} | {n} | {means} | {seconds} | {ahead.mean():+.3f} ± {error:.3f} ({best}) |"


if __name__ == "__main__":
    main()
