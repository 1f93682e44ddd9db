"""ONNX files of tables: the estimators train what RealMLP, TabM and the command line wrote, from where it ended."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.base import clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxtrain_sklearn import (
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
)
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.command import main
from tests.helpers.selection import one_case

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
NUMBERS = RNG.standard_normal((120, 3)).astype(np.float32)
KINDS = np.array(["low", "mid", "high"])[RNG.randint(3, size=120)]
FRAME = pd.DataFrame(NUMBERS, columns=["width", "b", "c"]).assign(kind=KINDS)
LABELS = np.where(NUMBERS[:, 0] + (KINDS == "mid") > 0.5, "yes", "no")
AMOUNTS = 10 + 3 * NUMBERS[:, 0] - 2 * (KINDS == "low")
AT_REST = {"max_iter": 1, "optimizer": "sgd", "learning_rate_init": 1e-30}

REALMLP = {"hidden_layer_sizes": (16, 16), "max_iter": 2, "random_state": 0}
TABM = REALMLP | {"hidden_layer_sizes": 16, "n_members": 4}
RECIPES = [
    RealMLPClassifier(n_ensembles=1, **REALMLP),
    RealMLPRegressor(n_ensembles=1, **REALMLP),
    TabMClassifier(**TABM),
    TabMRegressor(**TABM),
]


def results(proto, X, missing_text=""):
    """Return the outputs of a file for a table, computed by onnxruntime alone."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    if isinstance(X, np.ndarray):
        return session.run(None, {"X": X})
    feeds = {
        name: column.fillna(missing_text).to_numpy(object) if column.dtype.kind not in "f" else column.to_numpy()
        for name, column in X.items()
    }
    return session.run(None, {one.name: feeds[one.name].reshape(-1, 1) for one in session.get_inputs()})


def with_gaps(X):
    """Return a table in which numbers and texts are missing."""
    X = X.copy()
    if isinstance(X, np.ndarray):
        X[:9, 1] = np.nan
        return X
    X.loc[:9, "b"], X.loc[5:14, "kind"] = np.nan, None
    return X


@pytest.mark.thinned(by=lambda X, **others: "text" if X is FRAME else "numbers")
@pytest.mark.parametrize("X", [NUMBERS, FRAME], ids=["numbers", "text"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
@pytest.mark.long
def test_files_of_recipes_start_from_their_predictions(recipe, X):
    X = with_gaps(X)
    kind, y = (OrtGradientClassifier, LABELS) if is_classifier(recipe) else (OrtGradientRegressor, AMOUNTS)
    proto = clone(recipe).fit(X, y).to_onnx()
    start = kind(proto, **AT_REST).fit(X, y)
    *labels, numbers = results(proto, X)
    if labels:
        assert_array_equal(start.predict(X), labels[0])
        assert_allclose(start.predict_proba(X), numbers, atol=1e-6)
    else:
        assert_allclose(start.predict(X), numbers.ravel(), rtol=1e-6)
    assert not any("encoder" in name or "prepare" in name for name in start.weights_)
    longer = kind(proto, learning_rate_init=1e-3, optimizer="adam", max_iter=8, random_state=0).fit(X, y)
    assert longer.loss_curve_[-1] < longer.loss_curve_[0]
    again = longer.to_onnx()
    *labels, numbers = results(again, X)
    assert_allclose(numbers, longer.predict_proba(X) if labels else longer.predict(X).reshape(-1, 1), rtol=1e-5)
    third = kind(again, **AT_REST).fit(X, y)
    assert_array_equal(third.predict(X), longer.predict(X))


@pytest.mark.long
@one_case
@pytest.mark.parametrize("ensembles", [1, 2])
def test_files_of_ensembles_and_unseen_categories(ensembles):
    proto = RealMLPClassifier(**REALMLP, n_ensembles=ensembles).fit(FRAME, LABELS).to_onnx()
    start = OrtGradientClassifier(proto, **AT_REST).fit(FRAME, LABELS)
    other = with_gaps(FRAME).assign(kind="never seen")
    assert_allclose(start.predict_proba(other), results(proto, other)[1], atol=1e-6)


@pytest.mark.parametrize("model", ["mlp", "linear", "realmlp"])
def test_files_of_the_command_line_train_further(model, tmp_path):
    table, file = with_gaps(FRAME).assign(target=LABELS), tmp_path / "net.onnx"
    table.to_csv(tmp_path / "table.csv", index=False)
    X = pd.read_csv(tmp_path / "table.csv").drop(columns="target").astype({"width": "f4", "b": "f4", "c": "f4"})
    words = ["train", f"{tmp_path}/table.csv", "--target=target", f"--model={model}", f"--output={file}", "--quiet"]
    assert main([*words, "--set", "max_iter=2"]) == 0
    proto = onnx.load(file)
    missing = json.loads(proto.metadata_props[0].value)["missing_text"]
    start = OrtGradientClassifier(file, **AT_REST).fit(X, LABELS)
    labels, numbers = results(proto, X, missing)
    assert_array_equal(start.predict(X), labels)
    assert_allclose(start.predict_proba(X), numbers, atol=1e-6)
    longer = OrtGradientClassifier(file, learning_rate_init=1e-3, max_iter=8, random_state=0).fit(X, LABELS)
    assert longer.loss_curve_[-1] < longer.loss_curve_[0]
    assert_allclose(results(longer.to_onnx(), X, missing)[1], longer.predict_proba(X), rtol=1e-6)


TYPES = [(name, FloatTensorType([None, 1])) for name in ("width", "b", "c")] + [("kind", StringTensorType([None, 1]))]


@pytest.mark.parametrize("last", [LogisticRegression(), Ridge()])
def test_files_of_skl2onnx_take_text(last):
    columns = make_column_transformer((StandardScaler(), ["width", "b", "c"]), (OneHotEncoder(), ["kind"]))
    kind, y = (
        (OrtGradientClassifier, LABELS) if isinstance(last, LogisticRegression) else (OrtGradientRegressor, AMOUNTS)
    )
    model = make_pipeline(columns, last).fit(FRAME, y)
    proto = to_onnx(model, initial_types=TYPES)
    start = kind(proto, **AT_REST).fit(FRAME, y)
    assert_array_equal(start.feature_names_in_, FRAME.columns)
    method = "predict_proba" if kind is OrtGradientClassifier else "predict"
    assert_allclose(getattr(start, method)(FRAME), getattr(model, method)(FRAME), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="Text is missing in column 'kind'"):
        start.predict(FRAME.assign(kind=[None, *KINDS[1:]]))
    with pytest.raises(ValueError, match="feature names"):
        start.predict(FRAME[["b", "width", "c", "kind"]])


def test_columns_beside_text_are_single_and_float():
    columns = make_column_transformer(("passthrough", ["n"]), (OneHotEncoder(), ["kind"]))
    frame = pd.DataFrame({"n": np.arange(120), "kind": KINDS})
    proto = to_onnx(
        make_pipeline(columns, Ridge()).fit(frame, AMOUNTS),
        initial_types=[("n", Int64TensorType([None, 1])), ("kind", StringTensorType([None, 1]))],
    )
    with pytest.raises(ModelError, match=r"input 'n' is INT64.*one column of shape \(N, 1\), text or float32"):
        OrtGradientRegressor(proto).fit(frame, AMOUNTS)
