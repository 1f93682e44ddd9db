"""Pickles of earlier versions load, predict what they predicted and train on as they would have.

The files in data/pickles were written before the private modules moved. Each estimator had made a pass or more over
``rows.npz``; ``expected.npz`` holds its predictions then, and its weights after one more call.
"""

from __future__ import annotations

import gzip
import importlib
import io
import pickle
import pickletools
from pathlib import Path

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import onnxtrain_sklearn
from onnxtrain_sklearn import MLP, SGD, Inputs, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._estimators import earlier_modules, stored

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning"),
    pytest.mark.skipif(int(np.__version__[0]) < 2, reason="NumPy 1 does not read pickles of NumPy 2"),
]

FOLDER = Path(__file__).parent / "data" / "pickles"
ROWS = np.load(FOLDER / "rows.npz")
X = ROWS["X"]
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(word=ROWS["word"])
WORDS = np.array(["no", "yes"])[Y]
CASES = {
    "classifier": (X, WORDS),
    "regressor": (X, X[:, 0]),
    "pipeline": (X, Y),
    "table": (FRAME, Y),
    "graph": (X, Y),
    "ml_file": (X, Y),
    "early_stopping": (X, Y),
}


def read_pickle(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes())


def from_skops() -> OrtGradientClassifier:
    skops_io = pytest.importorskip("skops.io")
    file = FOLDER / "classifier.skops"
    return skops_io.load(file, trusted=skops_io.get_untrusted_types(file=file))


def train_on(estimator, data, target):
    return estimator.fit(data, target) if estimator.warm_start else estimator.partial_fit(data, target)


def require_expected(estimator, name: str) -> None:
    data, target = CASES[name]
    expected = np.load(FOLDER / "expected.npz")
    method = "predict_proba" if hasattr(estimator, "predict_proba") else "predict"
    assert_allclose(getattr(estimator, method)(data), expected[f"{name}.before"], rtol=1e-5, atol=1e-6)
    if name == "early_stopping":
        estimator.scoring = "accuracy"  # what early stopping watched then
    train_on(estimator, data, target)
    for key, array in estimator.weights_.items():
        assert_allclose(array, expected[f"{name}.{key}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_pickle_predicts_and_trains_on(name):
    require_expected(pickle.loads(read_pickle(name)), name)


@pytest.mark.parametrize(
    "load", [lambda: joblib.load(FOLDER / "classifier.joblib"), from_skops], ids=["joblib", "skops"]
)
def test_other_files_predict_and_train_on(load):
    require_expected(load(), "classifier")


@pytest.mark.parametrize("name", CASES)
def test_pickled_again_it_trains_on_with_equal_bits(name):
    estimator = pickle.loads(read_pickle(name))
    twin = pickle.loads(pickle.dumps(estimator))
    for each in (estimator, twin):
        train_on(each, *CASES[name])
    for key, array in estimator.weights_.items():
        assert_array_equal(twin.weights_[key], array)


def test_a_fitted_pipeline_comes_back_from_an_earlier_pickle():
    estimator = pickle.loads(read_pickle("pipeline"))
    tuned = estimator.to_sklearn(X)
    assert_allclose(tuned.predict_proba(X), estimator.predict_proba(X), rtol=1e-4)
    assert (tuned[-1].coef_ != estimator.model[-1].coef_).all()


def test_containers_of_data_load():
    loaded = pickle.loads(read_pickle("inputs"))
    assert isinstance(loaded, Inputs)
    assert_array_equal(loaded["a"], X[:2])


# -- pickles of now ---------------------------------------------------------------------------------------------------


def stored_table():
    columns = make_column_transformer((StandardScaler(), list("abcd")), (OneHotEncoder(), ["word"]))
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)


def ml_file() -> onnx.ModelProto:
    return pickle.loads(read_pickle("ml_file")).model


MADE = {
    "classifier": lambda: OrtGradientClassifier(MLP((3,)), optimizer=SGD(momentum=0.9), max_iter=2).fit(X, WORDS),
    "regressor": lambda: OrtGradientRegressor(Linear(), max_iter=2).fit(X, X[:, 0]),
    "graph": lambda: OrtGradientRegressor(Linear().build(4, 1, 0), max_iter=2).fit(X, X[:, 0]),
    "pipeline": lambda: OrtGradientClassifier(make_pipeline(LogisticRegression()).fit(X, Y), max_iter=2).fit(X, Y),
    "table": lambda: OrtGradientClassifier(stored_table(), max_iter=2).fit(FRAME, Y),
    "ml_file": lambda: OrtGradientClassifier(ml_file(), max_iter=2).fit(X, Y),
    "several labels": lambda: OrtGradientClassifier(max_iter=2).fit(X, WORDS[np.c_[:40, 39:-1:-1].clip(0)]),
    "data": lambda: Inputs({"a": X}),
}


@pytest.mark.parametrize("name", MADE)
def test_pickles_name_no_private_path_of_the_package(name):
    file = io.BytesIO()
    pickle.Pickler(file, protocol=2).dump(MADE[name]())
    named = {arg for opcode, arg, _ in pickletools.genops(file.getvalue()) if opcode.name == "GLOBAL"}
    assert any(path.startswith("onnxtrain_sklearn ") for path in named)
    assert not [path for path in named if path.startswith("onnxtrain_sklearn._")]


@pytest.mark.parametrize("name", stored.CLASSES)
def test_every_stored_class_is_where_the_table_says(name):
    module = f"onnxtrain_sklearn.{stored.CLASSES[name]}"
    assert getattr(importlib.import_module(module), name).__module__ == module


@pytest.mark.parametrize("module", earlier_modules.EARLIER)
def test_every_earlier_class_leads_to_one_of_now(module):
    found = importlib.import_module(f"onnxtrain_sklearn.{module}")
    for name in earlier_modules.EARLIER[module]:
        private = issubclass(getattr(found, name), stored.Earlier)
        now = stored.EARLIER_CLASSES.get(name, name)
        assert now in stored.CLASSES if private else hasattr(onnxtrain_sklearn, name)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        found.Nothing  # noqa: B018


def test_other_names_of_modules_are_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("onnxtrain_sklearn._nothing")


def test_fields_that_were_renamed_keep_their_values():
    state = {"onnxtrain_sklearn class": "FittedFile", "state": {"label": "label", "takes_gaps": True}}
    file = stored.restored(state)
    assert file.allows_missing
    assert file.label == "label"
