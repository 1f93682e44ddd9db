"""Small data sets: classes, numbers, rows of noise; and the folder of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.preprocessing import scale

DATA = Path(__file__).parents[1] / "files"


def blobs(n: int = 120, features: int = 5, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n, features, n_informative=features, n_redundant=0, n_classes=classes, class_sep=1.5, random_state=seed
    )
    return scale(X).astype(np.float32), y


def line(n: int = 120, features: int = 4, outputs: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_regression(n, features, n_targets=outputs, noise=5.0, random_state=seed)
    return scale(X).astype(np.float32), scale(y)


def rows(n: int = 8, k: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)
