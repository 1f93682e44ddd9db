"""CPU time of an epoch over wide sparse rows, beside scikit-learn's SGDClassifier.

The rows are like those of a TF-IDF: 20,000 rows, 50,000 columns (``--columns``), 100 entries a row, of which some
columns are frequent.
An epoch is a fifth of the difference of fits of six epochs and one; runs alternate, and the least of the repetitions
counts.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from fit_step import compile_at_once
from sklearn.linear_model import SGDClassifier

from onnxtrain_sklearn import SGD, AdamW, Linear, OrtGradientClassifier

ROWS, ENTRIES = 20_000, 100
EPOCHS = 1, 6
OURS = {
    "Linear, SGD": (Linear(), {"optimizer": SGD()}),
    "Linear, SGD with momentum": (Linear(), {"optimizer": SGD(momentum=0.9)}),
    "Linear, AdamW": (Linear(), {"optimizer": AdamW()}),
    "Linear, AdamW, lazy": (Linear(), {"optimizer": AdamW(lazy_rows=True)}),
}


def data(classes: int, width: int) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(0)
    places = (width * rng.random((ROWS, ENTRIES)) ** 2).astype(np.int32)
    numbers, ends = rng.random(ROWS * ENTRIES).astype(np.float32), np.arange(0, ROWS * ENTRIES + 1, ENTRIES)
    X = sp.csr_matrix((numbers, places.ravel(), ends), shape=(ROWS, width))
    X.sum_duplicates()
    return X, np.argmax(X @ rng.normal(size=(width, classes)), axis=1)


def seconds(estimator: object, X: sp.csr_matrix, y: np.ndarray) -> float:
    start = time.process_time()
    estimator.fit(X, y)
    return time.process_time() - start


def fit_seconds(name: str, epochs: int, X: sp.csr_matrix, y: np.ndarray) -> float:
    if name == "SGDClassifier":
        return seconds(SGDClassifier(loss="log_loss", max_iter=epochs, tol=None), X, y)
    model, settings = OURS[name]
    return seconds(OrtGradientClassifier(model, max_iter=epochs, tol=0, random_state=0, **settings), X, y)


def epoch_seconds(X: sp.csr_matrix, y: np.ndarray, repeat: int) -> dict[str, float]:
    """Return the time of an epoch of each competitor: the difference of the least times of a short and a long fit."""
    runs = [(name, epochs) for name in ("SGDClassifier", *OURS) for epochs in EPOCHS]
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        best = {run: min(found, fit_seconds(*run, X, y)) for run, found in best.items()}
    short, long = EPOCHS
    return {name: (best[name, long] - best[name, short]) / (long - short) for name, _ in runs}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of an epoch over wide sparse rows, beside SGDClassifier.")
    parser.add_argument("--repeat", type=int, default=3, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=50_000, help="columns of the data (default: %(default)s)")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 20], help="classes (default: 2 20)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    compile_at_once()
    for classes in options.classes:
        X, y = data(classes, options.columns)
        best = epoch_seconds(X, y, options.repeat)
        for name, own in best.items():
            print(
                f"{classes:>3} classes  {name:<28} {own * 1e3:>8.1f} ms  {own / best['SGDClassifier']:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
