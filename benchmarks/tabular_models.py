"""The models of the benchmark, each with its default settings: a function from a table to an estimator.

Models that take no categories get them one-hot encoded, and scaled numbers where their documentation asks for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Maker = Callable[[bool, int], Any]


def encoded(estimator: Any) -> Any:
    """Put one-hot encoding and scaling before an estimator of scikit-learn."""
    text = make_column_selector(dtype_include="category")
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), text), remainder=StandardScaler())
    return make_pipeline(columns, estimator)


def linear(classifies: bool, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return encoded(LogisticRegression(max_iter=1000) if classifies else Ridge())


def sklearn_mlp(classifies: bool, seed: int) -> Any:
    """scikit-learn's network; its regressor fails on targets that are not scaled, so they are."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if classifies:
        return encoded(MLPClassifier(random_state=seed))
    return TransformedTargetRegressor(encoded(MLPRegressor(random_state=seed)), transformer=StandardScaler())


def boosting(classifies: bool, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    return (HistGradientBoostingClassifier if classifies else HistGradientBoostingRegressor)(random_state=seed)


def lightgbm(classifies: bool, seed: int) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    return (LGBMClassifier if classifies else LGBMRegressor)(random_state=seed, verbose=-1, n_jobs=1)


def ours(name: str, *given: Any, **settings: Any) -> Maker:
    def make(classifies: bool, seed: int) -> Any:
        import onnxtrain_sklearn

        kind = getattr(onnxtrain_sklearn, f"{name}{'Classifier' if classifies else 'Regressor'}")
        return kind(*given, **settings, random_state=seed)

    return make


def network(**settings: Any) -> Maker:
    """Our perceptron without a penalty behind the preprocessing that scikit-learn's has."""

    def make(classifies: bool, seed: int) -> Any:
        from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

        kind = OrtGradientClassifier if classifies else OrtGradientRegressor
        return encoded(kind(**settings, alpha=0, random_state=seed))

    return make


def original(name: str) -> Maker:
    def make(classifies: bool, seed: int) -> Any:
        import torch
        from pytabkit.models.sklearn import sklearn_interfaces

        torch.set_num_threads(1)
        kind = getattr(sklearn_interfaces, f"{name}_{'Classifier' if classifies else 'Regressor'}")
        return kind(random_state=seed, n_threads=1, device="cpu")

    return make


MODELS: dict[str, Maker] = {
    "linear": linear,
    "sklearn MLP": sklearn_mlp,
    "HistGradientBoosting": boosting,
    "LightGBM": lightgbm,
    "MLP": network(),
    "MLP early stopping": network(early_stopping=True),
    "MLP best epoch": network(early_stopping="best_epoch", validation_split=0.2),
    "RealMLP": ours("RealMLP", "td"),
    "RealMLP TD-S": ours("RealMLP", "td-s"),
    "RealMLP PWL": ours("RealMLP", "td", embedding="piecewise_linear"),
    "TabM": ours("TabM"),
    "TabM-mini": ours("TabM", mini=True),
    "TabM-mini PWL": ours("TabM", 8, mini=True, embedding="piecewise_linear"),
    "RealMLP (pytabkit)": original("RealMLP_TD"),
    "RealMLP TD-S (pytabkit)": original("RealMLP_TD_S"),
    "TabM (pytabkit)": original("TabM_D"),
}
"""The models by name."""

ORIGINALS = tuple(name for name in MODELS if name.endswith("(pytabkit)"))
"""Those that need PyTorch, in an environment of their own."""


def prepared(name: str, X: pd.DataFrame) -> pd.DataFrame:
    """Return the table as a model takes it: the names of columns that LightGBM refuses are replaced."""
    return X.set_axis([f"x{i}" for i in range(X.shape[1])], axis=1) if name == "LightGBM" else X
