"""Compare fine-tuning with and without old rows, on tables whose new rows lie elsewhere.

A model is fitted on the rows in which one column is below its 65 % quantile; few of the others are new, and the rest
judge. Rivals: the old model, and the model refitted on the new rows, or on old and new rows with equal weights of both.
Scores are R² or minus the log loss. Results are appended to benchmarks/old_rows_results.jsonl, and fits that it holds
are not repeated. ``--page`` writes the table to benchmarks/defaults.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from defaults_report import write_section
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


@dataclass
class Story:
    """The rows that judge, and what each method predicts for them."""

    y: np.ndarray
    classes: np.ndarray | None
    X: np.ndarray
    predicted: dict[str, np.ndarray] = field(default_factory=dict)

    def predict(self, model: Any) -> np.ndarray:
        """Return the numbers or the probabilities of the rows that judge."""
        if self.classes is None:
            return np.asarray(model.predict(self.X)).ravel()
        return np.clip(model.predict_proba(self.X), 1e-7, 1)

    def score(self, predicted: np.ndarray, rows: Any = slice(None)) -> float:
        """Return R² or minus the log loss on some of the rows."""
        if self.classes is None:
            return float(r2_score(self.y[rows], predicted[rows]))
        return -float(log_loss(self.y[rows], predicted[rows], labels=self.classes))


def story(name: str, kind: str, n: int, seed: int) -> Story | None:
    """Return the story of a table, a kind of model and a number of new rows; None if the rows lack a class."""
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
    found = Story(y[test], np.unique(y) if classifies else None, X[test])
    both = np.concatenate([old, np.repeat(new, max(1, len(old) // len(new)))])
    found.predicted = {
        "old": found.predict(model),
        "refit on new": found.predict(clone(model).fit(X[new], y[new])),
        "refit on both": found.predict(clone(model).fit(X[both], y[both])),
    }
    estimator = OrtGradientClassifier if is_classifier(model) else OrtGradientRegressor
    for method, old_rows in (("without old rows", {}), ("with old rows", {"X_old": X[old], "y_old": y[old]})):
        found.predicted[method] = found.predict(estimator(model, random_state=0).fit(X[new], y[new], **old_rows))
    return found


def scores(name: str, kind: str, n: int, seed: int) -> dict[str, float] | None:
    """Return the score of each method; None if the rows lack a class."""
    found = story(name, kind, n, seed)
    return None if found is None else {method: found.score(one) for method, one in found.predicted.items()}


RIVALS = ("old", "refit on new", "refit on both")
OURS = ("without old rows", "with old rows")
NEAR = 0.01
"""A score counts as level with the best rival if it is at most this far behind."""


def report(results: list[dict[str, Any]]) -> list[str]:
    """Return a table of all stories, after one that counts those level with the best rival, by model and rows."""
    stories = [one for one in results if one["scores"]]
    best = {id(one): max(one["scores"][name] for name in RIVALS) for one in stories}
    methods = (*RIVALS, *OURS)
    lines = [f"| model | new rows | stories | {' | '.join(methods)} |", f"|---|---|---|{'---|' * len(methods)}"]
    groups = [(kind, n) for kind in MODELS for n in sorted({one["rows"] for one in stories})]
    for kind, n in [*groups, ("all", None)]:
        part = [one for one in stories if kind == "all" or (one["model"], one["rows"]) == (kind, n)]
        if part:
            level = [sum(one["scores"][name] >= best[id(one)] - NEAR for one in part) for name in methods]
            lines.append(f"| {kind} | {n or ''} | {len(part)} | {' | '.join(map(str, level))} |")
    lines += ["", f"| table | model | new rows | {' | '.join(methods)} |", f"|---|---|---|{'---|' * len(methods)}"]
    for one in sorted(stories, key=lambda one: (TABLES.index(one["table"]), list(MODELS).index(one["model"]))):
        found = [one["scores"][name] for name in methods]
        shown = [f"**{score:.3f}**" if score >= best[id(one)] else f"{score:.3f}" for score in found]
        lines.append(f"| {one['table']} | {one['model']} | {one['rows']} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("old_rows_results.jsonl"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the table to benchmarks/defaults.md")
    arguments = parser.parse_args()
    path: Path = arguments.results
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
    lines = report(results)
    print(*lines, sep="\n")
    if arguments.page:
        write_section("drift", lines)


if __name__ == "__main__":
    main()
