"""Held-out scores and seconds of optimizers of whole parameters beside AdamW: two tables and a transformer.

    python benchmarks/optimizers.py [--optimizers adamw,muon,lamb,adafactor] [--seeds 3]

Each optimizer trains for the same number of epochs with each of its learning rates. Printed are the mean score on
held-out rows and the mean seconds with the best of these rates, which the same rows choose: the scores are optimistic,
equally for all.
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


def scored(task: str, optimizer: str, rate: float, seed: int) -> tuple[float, float]:
    """Return the held-out accuracy and the seconds of a fit."""
    data, model, settings = TASKS[task]
    X, X_test, y, y_test = train_test_split(*data(), test_size=0.25, random_state=seed)
    given = {"batch_size": 32, "learning_rate": "cosine", "n_iter_no_change": 1000, "random_state": seed, **settings}
    net = OrtGradientClassifier(model(), optimizer=optimizer, learning_rate_init=rate, **given)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(X, y)
    return net.score(X_test, y_test), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", default=",".join(RATES))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for task in TASKS:
        for optimizer in given.optimizers.split(","):
            means = {}
            for rate in RATES[optimizer]:
                runs = [scored(task, optimizer, rate, seed) for seed in range(given.seeds)]
                means[rate] = np.mean(runs, axis=0)
            best = max(means, key=lambda rate: means[rate][0])
            score, seconds = means[best]
            print(f"{task}: {optimizer:9} {score:.3f} in {seconds:.2f} s, learning rate {best}", flush=True)


if __name__ == "__main__":
    main()
