"""Fitted scikit-learn models that are trained, or refused: their settings as code, by the kind of their targets.

Each line is an expression over scikit-learn's classes; together they name every class that skl2onnx has a converter
for, but for those of ``NOT_IN_MODELS``.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import gaussian_process
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_regression
from sklearn.feature_selection import f_regression
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline, make_union
from sklearn.utils import all_estimators

from tests.contracts import fitted_expressions as models
from tests.contracts import fitted_pipelines as pipelines

FITTED_ON = 60
"""Rows that a model is fitted on; it is trained on those behind them."""


@dataclass(frozen=True)
class Setting:
    """A fitted model to train.

    Attributes
    ----------
    group : str
        Heading of the table that it stands in.
    targets : str
        What it is fitted to, a key of :data:`TARGETS`, and the kind of ``X`` by that of :data:`DATA`.
    code : str
    data : str
    """

    group: str
    code: str
    targets: str
    data: str = "numbers"

    @property
    def key(self) -> str:
        """What the setting is known by in the file of outcomes."""
        kind = "" if self.targets == "number" else f", {self.targets}"
        return f"{self.code}{kind}{'' if self.data == 'numbers' else f', {self.data}'}"

    def fitted(self) -> Any:
        """Return the model, fitted."""
        X, y = self.rows(slice(0, FITTED_ON))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(self.expression(), namespace()).fit(X, y)

    def rows(self, chosen: slice) -> tuple[Any, np.ndarray]:
        """Return some rows of the data."""
        X = DATA[self.data]
        return (X.iloc[chosen] if hasattr(X, "iloc") else X[chosen]), TARGETS[self.targets][chosen]

    def expression(self) -> str:
        """Return the code with ``a >> b`` as the pipeline that it stands for."""
        before, arrow, after = self.code.partition(" >> ")
        return f"make_pipeline({before}, {after})" if arrow else self.code


@functools.cache
def namespace() -> dict[str, Any]:
    """Return what the code of the settings may name."""
    from skl2onnx.sklapi import CastRegressor, CastTransformer, ReplaceTransformer

    own = [CastRegressor, CastTransformer, ReplaceTransformer, FrozenEstimator]
    helpers = [make_pipeline, make_union, make_column_transformer]
    names = dict(all_estimators()) | {thing.__name__: thing for thing in (*own, *helpers)}
    names |= {"np": np, "f_regression": f_regression}
    return names | {"kernels": gaussian_process.kernels, "DATA": (DATA["numbers"], TARGETS["number"])}


def _data() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    X, number = make_regression(100, 5, noise=20, random_state=0)
    number /= 100
    number[FITTED_ON:] += 0.3 * X[FITTED_ON:, 0] + 0.2  # the rows that come later are not like the first
    binary = (number > np.median(number)).astype(int)
    three = np.digitize(number, np.quantile(number, [0.33, 0.67]))
    X = X.astype(np.float32)
    gaps = np.where(rng.random(X.shape) < 0.1, np.float32(np.nan), X)
    whole = rng.integers(0, 3, (100, 4)).astype(np.float32)
    counts = np.clip(np.round(X + 2), 0, 4)
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    kinds = np.array(["red", "green", "blue"])[whole[:, 0].astype(int)]
    sizes = np.array(["small", "large", np.nan], object)[whole[:, 1].astype(int)]
    weights = np.where(X[:, 0] > 0, "light", "heavy")
    data = {
        "numbers": X,
        "small": X / 10,
        "counts": counts,
        "gaps": gaps,
        "whole numbers": whole,
        "frame": frame,
        "mixed frame": frame[["a", "b"]].assign(kind=kinds, size=sizes),
        "texts": [f"A {size} {kind} box, {weight}" for size, kind, weight in zip(sizes, kinds, weights, strict=True)],
    }
    targets = {
        "number": number,
        "positive": np.exp(number / 2),
        "two numbers": np.stack([number, 0.5 - number + X[:, 1]], axis=1),
        "binary": binary,
        "three classes": three,
        "outliers": np.where(np.abs(number) > np.quantile(np.abs(number), 0.7), -1, 1),
        "two labels": np.stack([binary, (X[:, 1] + number > 0).astype(int)], axis=1),
        "three labels": np.stack([binary, X[:, 1] + number > 0, X[:, 2] - number > 0], axis=1).astype(int),
        "labels of several classes": np.array(["low", "high", "top"])[np.stack([binary, three], axis=1)],
    }
    return data, targets


DATA, TARGETS = _data()


def _settings() -> list[Setting]:
    def of(code: str, group: str, targets: str, data: str = "numbers") -> list[Setting]:
        return [Setting(group, line, targets, data) for line in code.strip().splitlines()]

    ridge = "\n".join(f"make_pipeline({line}, Ridge())" for line in pipelines.BEFORE_RIDGE.strip().splitlines())
    found = of(models.REGRESSORS, "Regressors", "number") + of(models.POSITIVE, "Regressors", "positive")
    found += of(models.TWO_NUMBERS, "Regressors", "two numbers")
    for targets in ("binary", "three classes"):
        found += of(models.CLASSIFIERS, "Classifiers", targets) + of(models.COUNTS, "Classifiers", targets, "counts")
        found += of(models.GAPPED_CLASSIFIERS, "Classifiers", targets, "gaps")
    found += of(models.BINARY, "Classifiers", "binary")
    found += of(models.TWO_LABELS, "Several labels", "two labels") + of(
        models.THREE_LABELS, "Several labels", "three labels"
    )
    found += of(models.SEVERAL_LABELS, "Several labels", "three labels")
    found += of(models.SEVERAL_LABELS + models.LABELS_OF_TREES.lstrip(), "Several labels", "labels of several classes")
    found += of(ridge, "Pipelines", "number") + of(pipelines.WITH_GAPS, "Pipelines", "number", "gaps")
    found += of(pipelines.WHOLE, "Pipelines", "number", "whole numbers") + of(
        pipelines.FRAMES, "Pipelines", "number", "frame"
    )
    found += of(pipelines.MIXED_FRAMES, "Tables with text", "number", "mixed frame")
    for targets in ("binary", "three classes"):
        found += of(pipelines.MIXED_CLASSES, "Tables with text", targets, "mixed frame")
    found += of(pipelines.TEXTS, "Tables with text", "number", "texts")
    found += of(models.DETECTORS, "Detectors of outliers", "outliers")
    return found + of(models.NEITHER, "Others", "number")


SETTINGS = {setting.key: setting for setting in _settings()}
"""Every setting by its key."""
