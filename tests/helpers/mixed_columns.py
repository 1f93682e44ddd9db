"""A table of numbers and texts, fitted models of it, and what their graphs give."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

rng = np.random.default_rng(0)
N, OLD, NEW = 120, slice(0, 60), slice(60, None)
KINDS, SIZES = rng.choice(["red", "green", "blue"], N), rng.choice(["S", "M", "L"], N)
FRAME = pd.DataFrame(
    {
        "a": rng.normal(size=N),
        "kind": KINDS,
        "b": rng.normal(size=N),
        "size": np.where(rng.random(N) < 0.2, np.nan, SIZES.astype(object)),
        "count": rng.integers(0, 4, N),
        "old": rng.random(N) < 0.5,
        "day": pd.date_range("2020-01-01", periods=N),
        "note": [f"The {kind.upper()} box, naïve {size * 2} {kind}" for kind, size in zip(KINDS, SIZES, strict=True)],
    }
)
NUMBER = np.array(FRAME["a"] - 2 * FRAME["b"] + 1.5 * (KINDS == "red") - (SIZES == "M") + 0.3 * rng.normal(size=N))
BINARY = np.where(NUMBER > 0, "yes", "no")
THREE = np.digitize(NUMBER, [-1.0, 1.0])
OPSETS = {"": 18, "ai.onnx.ml": 3}


def columns(*transformers, **parameters):
    return make_column_transformer(*transformers, **parameters)


def encoded(encoder=None, names=("kind",)):
    encoder = OneHotEncoder(handle_unknown="ignore") if encoder is None else encoder
    return columns((encoder, list(names)), (StandardScaler(), ["a", "b"]))


def fitted_to_table(*steps, y=NUMBER, X=FRAME, last=None):
    return make_pipeline(*steps, Ridge() if last is None else last).fit(X[OLD], y[OLD])


def table_regressor(model, **parameters):
    return OrtGradientRegressor(model, **{"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0} | parameters)


def table_classifier(model, **parameters):
    return OrtGradientClassifier(model, **{"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0} | parameters)


def session_results(proto, X=FRAME):
    """Return what a bare session gives for a frame: a column of text or float32 for each input."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(string)": object}
    feeds = {}
    for given in session.get_inputs():
        assert given.shape[1] == 1
        values = X[[given.name]].to_numpy()
        text = values.astype(str) if given.type == "tensor(string)" else values
        feeds[given.name] = text.astype(kinds[given.type])
    return session.run(None, feeds)


def with_value(name, value, row=70):
    frame = FRAME.astype({name: object})
    frame.loc[row, name] = value
    return frame


TRANSFORMERS = {
    "one-hot": encoded(),
    "one-hot of two": encoded(OneHotEncoder(drop="first"), ["size", "kind"]),
    "one-hot of rare ones": encoded(OneHotEncoder(max_categories=2), ["kind", "size"]),
    "one-hot to integers": encoded(OneHotEncoder(dtype=np.int64, sparse_output=False)),
    "text and numbers": encoded(OneHotEncoder(), ["kind", "count", "old"]),
    "ordinal": encoded(OrdinalEncoder(), ["kind"]),
    "ordinal, missing": encoded(OrdinalEncoder(encoded_missing_value=-2), ["size"]),
    "target": encoded(TargetEncoder(random_state=0), ["kind", "size"]),
    "imputed": columns(
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["size"]),
        (make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
    ),
    "imputed by a constant": columns(
        (make_pipeline(SimpleImputer(strategy="constant", fill_value="?"), OneHotEncoder()), ["size", "kind"]),
        ("passthrough", ["a", "b"]),
    ),
    "selected": columns(
        (OneHotEncoder(), make_column_selector(pattern="kind|size")),
        (StandardScaler(), make_column_selector(dtype_include=float)),
    ),
    "passed on": columns((OneHotEncoder(), ["kind"]), ("drop", ["size", "day", "note"]), remainder="passthrough"),
    "by position": columns((OneHotEncoder(), [1]), (StandardScaler(), slice(2, 3))),
    "text alone": columns((OneHotEncoder(), ["kind", "size"])),
    "numbers alone": columns((StandardScaler(), ["a", "b"])),
    "union": columns((make_union(OneHotEncoder(), OrdinalEncoder()), ["kind"]), (StandardScaler(), ["a", "b"])),
    "nested": columns((encoded(), ["kind", "a", "b"]), (OneHotEncoder(), ["size"])),
    "words": columns((TfidfVectorizer(), "note"), (OneHotEncoder(), ["kind"]), (StandardScaler(), ["a", "b"])),
}
