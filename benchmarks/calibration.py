"""Measure predicted distributions of numbers: the coverage of 80 % intervals, and the CRPS, on real tables.

``python benchmarks/calibration.py`` prints the rows of benchmarks/tabular.md; ``--tables`` and ``--models`` choose.
It needs ``quantile-forest``, ``ngboost``, ``mapie`` and ``ISLP``, with whose tables and one of scikit-learn's it runs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import ShuffleSplit, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from tabular_data import TABLES as DATA

from onnxtrain_sklearn import RealMLPRegressor, TabMRegressor
from onnxtrain_sklearn.losses import Quantiles

TABLES = ("carseats", "diabetes", "wage")
LEVELS = np.round(np.arange(0.05, 0.96, 0.05), 2)
LOW, HIGH = 1, 17
"""Indices of 0.1 and 0.9 in LEVELS."""


def ours(recipe: Callable[..., object], loss: object) -> Callable[..., np.ndarray]:
    def predict(X, y, X_test, seed):
        return recipe(loss=loss, random_state=seed).fit(X, y).predict_quantiles(X_test, LEVELS)

    return predict


class OneQuantile(RegressorMixin, BaseEstimator):
    """A quantile of a fitted network, as MAPIE takes regressors: three of them for an interval."""

    def __init__(self, network=None, quantile=0.5):
        self.network = network
        self.quantile = quantile

    def fit(self, X, y):  # MAPIE asks for it, and does not call it
        raise NotImplementedError("The network is fitted already.")

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X):
        return self.network.predict_quantiles(X, [self.quantile]).ravel()


def conformal(X, y, X_test, seed):
    """Return the bounds of 80 % intervals, conformalized on a quarter of the training rows."""
    from mapie.regression import ConformalizedQuantileRegressor

    X, X_held, y, y_held = train_test_split(X, y, test_size=0.25, random_state=seed)
    network = RealMLPRegressor(loss=Quantiles([0.1, 0.5, 0.9]), random_state=seed).fit(X, y)
    three = [OneQuantile(network, level) for level in (0.1, 0.9, 0.5)]
    mapie = ConformalizedQuantileRegressor(three, 0.8, prefit=True).conformalize(X_held, y_held)
    return mapie.predict_interval(X_test, symmetric_correction=True)[1][:, :, 0]


def forest(X, y, X_test, seed):
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(500, min_samples_leaf=5, n_jobs=-1, random_state=seed)
    return make_pipeline(_codes(), model).fit(X, y).predict(X_test, quantiles=LEVELS.tolist())


def ngboost(X, y, X_test, seed):
    from ngboost import NGBRegressor

    codes = _codes().fit(X)
    model = NGBRegressor(verbose=False, random_state=seed).fit(np.asarray(codes.transform(X)), np.asarray(y))
    found = model.pred_dist(np.asarray(codes.transform(X_test)))
    return np.stack([found.ppf(level) for level in LEVELS], axis=1)


def _codes():
    from sklearn.compose import make_column_selector, make_column_transformer

    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    text = make_column_selector(dtype_exclude="number")
    return make_column_transformer((encoder, text), remainder="passthrough", verbose_feature_names_out=False)


MODELS = {
    'RealMLP, `"gaussian_nll"`': ours(RealMLPRegressor, "gaussian_nll"),
    "RealMLP, `Quantiles`": ours(RealMLPRegressor, Quantiles(LEVELS.tolist())),
    'TabM, `"gaussian_nll"`': ours(TabMRegressor, "gaussian_nll"),
    "RealMLP, `Quantiles`, conformalized by MAPIE": conformal,
    "quantile forest": forest,
    "NGBoost": ngboost,
}


def scores(y: np.ndarray, quantiles: np.ndarray) -> tuple[float, float]:
    """Return the coverage of the 80 % interval, and the CRPS: twice the mean pinball loss of evenly spaced levels.

    Of an interval alone, the CRPS is not known: NaN.
    """
    if quantiles.shape[1] == 2:
        return float(np.mean((quantiles[:, 0] <= y) & (y <= quantiles[:, 1]))), np.nan
    error = y[:, None] - quantiles
    crps = 2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()
    return float(np.mean((quantiles[:, LOW] <= y) & (y <= quantiles[:, HIGH]))), float(crps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for table in options.tables:
        data = DATA[table]()
        y = np.asarray(data.y, float)
        for name in options.models:
            found, began = [], time.perf_counter()
            for seed, (train, test) in enumerate(ShuffleSplit(options.splits, test_size=0.25, random_state=0).split(y)):
                predicted = MODELS[name](data.X.iloc[train], y[train], data.X.iloc[test], seed)
                found.append(scores(y[test], np.asarray(predicted)))
            coverage, crps = np.mean(found, axis=0)
            seconds = (time.perf_counter() - began) / options.splits
            shown = "" if np.isnan(crps) else f"{crps:.4g}"
            print(f"| {table} | {name} | {coverage:.1%} | {shown} | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
