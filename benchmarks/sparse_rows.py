"""CPU time of an epoch over wide sparse rows, beside scikit-learn's SGDClassifier.

The rows are like those of a TF-IDF: 20,000 rows, 50,000 columns, 100 entries a row, of which some columns are frequent.
An epoch is the difference of fits of one and three epochs; runs alternate, and the least of the repetitions counts.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier

from onnxtrain_sklearn import SGD, AdamW, Linear, OrtGradientClassifier

ROWS, COLUMNS, ENTRIES = 20_000, 50_000, 100
OURS = {
    "Linear, SGD": (Linear(), SGD()),
    "Linear, SGD with momentum": (Linear(), SGD(momentum=0.9)),
    "Linear, AdamW": (Linear(), AdamW()),
}


def data(classes: int) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(0)
    places = (COLUMNS * rng.random((ROWS, ENTRIES)) ** 2).astype(np.int32)
    numbers, ends = rng.random(ROWS * ENTRIES).astype(np.float32), np.arange(0, ROWS * ENTRIES + 1, ENTRIES)
    X = sp.csr_matrix((numbers, places.ravel(), ends), shape=(ROWS, COLUMNS))
    X.sum_duplicates()
    return X, np.argmax(X @ rng.normal(size=(COLUMNS, classes)), axis=1)


def seconds(estimator: object, X: sp.csr_matrix, y: np.ndarray) -> float:
    start = time.process_time()
    estimator.fit(X, y)
    return time.process_time() - start


def epoch(name: str, X: sp.csr_matrix, y: np.ndarray) -> float:
    if name == "SGDClassifier":
        fits = [SGDClassifier(loss="log_loss", max_iter=n, tol=None) for n in (1, 3)]
    else:
        model, optimizer = OURS[name]
        fits = [OrtGradientClassifier(model, optimizer=optimizer, max_iter=n, tol=0, random_state=0) for n in (1, 3)]
    one, three = (seconds(estimator, X, y) for estimator in fits)
    return (three - one) / 2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of an epoch over wide sparse rows, beside SGDClassifier.")
    parser.add_argument("--repeat", type=int, default=3, help="alternating repetitions (default: %(default)s)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for classes in (2, 20):
        X, y = data(classes)
        runs = [{name: epoch(name, X, y) for name in ("SGDClassifier", *OURS)} for _ in range(options.repeat)]
        best = {name: min(run[name] for run in runs) for name in runs[0]}
        for name, own in best.items():
            print(
                f"{classes:>3} classes  {name:<28} {own * 1e3:>8.1f} ms  {own / best['SGDClassifier']:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
