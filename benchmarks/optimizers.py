"""Test scores and seconds of optimizers of whole parameters beside AdamW: two tables and a transformer.

    python benchmarks/optimizers.py [--optimizers adamw,muon,lamb,adafactor] [--seeds 5]

Each optimizer trains for the same number of epochs with each of its learning rates. The rate of the best mean score on
validation rows counts. Printed are its accuracy on test rows, which chose nothing (mean and standard deviation over
seeds, each with a split of its own), and the mean seconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn.models import GraphModel

RATES = {
    "adamw": (0.001, 0.003, 0.01),
    "muon": (0.001, 0.003, 0.01),
    "lamb": (0.003, 0.01, 0.03),
    "adafactor": (0.003, 0.01, 0.03),
}
TRANSFORMER = Path(__file__).parents[1] / "tests" / "files" / "learns_transformer.onnx"


def scaled(data: Any) -> tuple[np.ndarray, np.ndarray]:
    return StandardScaler().fit_transform(data.data).astype(np.float32), data.target


def pointed_at() -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of words, and the word that the first one points at."""
    X = np.random.default_rng(0).integers(0, 8, (2500, 9))
    return X, X[np.arange(len(X)), 1 + X[:, 0]]


TASKS: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], Callable[[], Any], dict[str, Any]]] = {
    "digits, MLP (128, 64)": (lambda: scaled(load_digits()), lambda: MLP((128, 64)), {"max_iter": 15}),
    "breast cancer, MLP (64, 64)": (lambda: scaled(load_breast_cancer()), lambda: MLP((64, 64)), {"max_iter": 20}),
    "pointed word, transformer": (pointed_at, lambda: GraphModel(str(TRANSFORMER)), {"max_iter": 10, "batch_size": 64}),
}


def scored(task: str, optimizer: str, rate: float, seed: int) -> tuple[float, float, float]:
    """Return the accuracy of a fit on validation rows and on test rows, and its seconds."""
    data, model, settings = TASKS[task]
    X, X_test, y, y_test = train_test_split(*data(), test_size=0.25, random_state=seed)
    X, X_val, y, y_val = train_test_split(X, y, test_size=0.2, random_state=seed)
    given = {
        "batch_size": 32,
        "learning_rate": "cosine",
        "n_iter_no_change": 1000,
        "alpha": 0,
        "random_state": seed,
        **settings,
    }
    net = OrtGradientClassifier(model(), optimizer=optimizer, learning_rate_init=rate, **given)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(X, y)
    seconds = time.perf_counter() - begun
    return net.score(X_val, y_val), net.score(X_test, y_test), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", default=",".join(RATES))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for task in TASKS:
        for optimizer in given.optimizers.split(","):
            runs = {
                rate: np.array([scored(task, optimizer, rate, seed) for seed in range(given.seeds)])
                for rate in RATES[optimizer]
            }
            best = max(runs, key=lambda rate: runs[rate][:, 0].mean())
            _, score, seconds = runs[best].mean(axis=0)
            spread = runs[best][:, 1].std(ddof=min(1, given.seeds - 1))
            print(f"{task}: {optimizer:9} {score:.3f} ± {spread:.3f} in {seconds:.2f} s, rate {best}", flush=True)


if __name__ == "__main__":
    main()
