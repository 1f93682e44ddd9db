"""Compare fine-tuning with and without old rows, on tables whose new rows lie elsewhere.

A model is fitted on the rows in which one column is below its 65 % quantile; few of the others are new, and the rest
judge. Rivals: the old model, and the model refitted on old and new rows with equal weights of both. Scores are R² or
minus the log loss. Results are appended to a file of JSON lines, and fits that it holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from early_stopping import TABLES as NUMBERS
from sklearn.base import clone, is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular_data import TABLES as CLASSES

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

TABLES = (
    "diabetes",
    "carseats",
    "boston",
    "births14",
    "bwght",
    "SLID",
    "breast_cancer",
    "pima",
    "contraceptive",
    "phoneme",
)
MODELS: dict[str, tuple[Any, Any]] = {
    "linear": (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        make_pipeline(StandardScaler(), Ridge()),
    ),
    "network": (
        make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(32,), max_iter=200, random_state=0)),
        make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(32,), max_iter=200, random_state=0)),
    ),
    "boosting": (
        HistGradientBoostingClassifier(max_iter=40, random_state=0),
        HistGradientBoostingRegressor(max_iter=40, random_state=0),
    ),
}


def numbers_of(name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the numeric columns of a table, its targets, and whether they are classes."""
    table = NUMBERS[name]() if name in NUMBERS else CLASSES[name]()
    X = table.X.select_dtypes("number")
    X = X.fillna(X.median()).to_numpy(np.float32)[:4000]
    return X, np.asarray(table.y)[:4000], table.classifies


def scores(name: str, kind: str, n: int, seed: int) -> dict[str, float] | None:
    """Return the score of each method; None if the rows lack a class."""
    X, y, classifies = numbers_of(name)
    rng = np.random.default_rng(seed)
    spreads = [len(np.unique(column)) for column in X.T]
    varied = np.flatnonzero(np.array(spreads) > 10)
    column = X[:, varied[seed % len(varied)]]
    is_new = column > np.quantile(column, 0.65)
    old, others = np.flatnonzero(~is_new)[:2000], rng.permutation(np.flatnonzero(is_new))
    new, test = others[:n], others[n:]
    if len(test) < 30 or (classifies and len(np.unique(y[new])) < len(np.unique(y))):
        return None
    model = clone(MODELS[kind][0 if classifies else 1]).fit(X[old], y[old])

    def score(one: Any) -> float:
        if classifies:
            return -float(log_loss(y[test], np.clip(one.predict_proba(X[test]), 1e-7, 1), labels=one.classes_))
        return float(r2_score(y[test], one.predict(X[test])))

    both = np.concatenate([old, np.repeat(new, max(1, len(old) // len(new)))])
    found = {"old": score(model), "refit on both": score(clone(model).fit(X[both], y[both]))}
    estimator = OrtGradientClassifier if is_classifier(model) else OrtGradientRegressor
    found["without old rows"] = score(estimator(model, random_state=0).fit(X[new], y[new]))
    tuned = estimator(model, random_state=0).fit(X[new], y[new], X_old=X[old], y_old=y[old])
    found["with old rows"] = score(tuned)
    return found


def report(results: list[dict[str, Any]]) -> None:
    """Print how each method compares with the best of the old model, the refit and fine-tuning without old rows."""
    for kind in (*MODELS, ""):
        found = [one["scores"] for one in results if one["scores"] and one["model"].startswith(kind)]
        if not found:
            continue
        best = np.array([max(one["old"], one["refit on both"]) for one in found])
        plain = np.array([one["without old rows"] for one in found])
        print(
            f"{kind or 'all'}: {len(found)} stories; of each method, the share that is at least the best rival - 0.01,"
        )
        print("and against fine-tuning without old rows how many are worse and better by 0.01")
        for method in found[0]:
            own = np.array([one[method] for one in found])
            worse, better = np.sum(own < plain - 0.01), np.sum(own > plain + 0.01)
            print(f"  {method}: {np.mean(own >= best - 0.01):.2f}, {worse} worse, {better} better")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("build/old_rows.jsonl"))
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    path: Path = arguments.results
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(one["table"], one["model"], one["rows"], one["seed"]) for one in results}
    warnings.simplefilter("ignore")
    for seed in range(arguments.seeds):
        for n in (40, 120):
            for kind in MODELS:
                for name in TABLES:
                    if (name, kind, n, seed) not in done:
                        found = scores(name, kind, n, seed)
                        results.append({"table": name, "model": kind, "rows": n, "seed": seed, "scores": found})
                        with path.open("a") as file:
                            file.write(json.dumps(results[-1]) + "\n")
    report(results)


if __name__ == "__main__":
    main()
