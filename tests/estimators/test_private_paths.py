"""Pickles name public classes only, and hold the objects of private ones as plain data."""

from __future__ import annotations

import io
import pickle
import pickletools

import numpy as np
import pandas as pd
import pytest
from skl2onnx import to_onnx
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Inputs,
    Linear,
    LoRA,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
)
from tests.helpers.several_outputs import data, graph

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(word=rng.choice(["red", "green"], 40))
WORDS = np.array(["no", "yes"])[Y]


def stored_table():
    columns = make_column_transformer((StandardScaler(), list("abcd")), (OneHotEncoder(), ["word"]))
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)


def ml_file():
    return to_onnx(LogisticRegression().fit(X, Y), X[:1], target_opset={"": 18, "ai.onnx.ml": 3})


def several_outputs():
    """Return an estimator of a class, and of labels at positions."""
    rows, y = data(40)
    losses = dict.fromkeys(("class", "words"), "log_loss")
    model = OrtGradientMultiOutput(graph(list(losses)), loss=losses, ignore_label=-100, max_iter=2)
    return model.fit(rows, {name: y[name] for name in losses})


MADE = {
    "classifier": lambda: OrtGradientClassifier(MLP((3,)), optimizer=SGD(momentum=0.9), max_iter=2).fit(X, WORDS),
    "regressor": lambda: OrtGradientRegressor(Linear(), max_iter=2).fit(X, X[:, 0]),
    "graph": lambda: OrtGradientRegressor(Linear().build(4, 1, 0), max_iter=2).fit(X, X[:, 0]),
    "pipeline": lambda: OrtGradientClassifier(make_pipeline(LogisticRegression()).fit(X, Y), max_iter=2).fit(X, Y),
    "table": lambda: OrtGradientClassifier(stored_table(), max_iter=2).fit(FRAME, Y),
    "ml_file": lambda: OrtGradientClassifier(ml_file(), max_iter=2).fit(X, Y),
    "several labels": lambda: OrtGradientClassifier(max_iter=2).fit(X, WORDS[np.c_[:40, 39:-1:-1].clip(0)]),
    "several outputs": several_outputs,
    "adapters": lambda: OrtGradientRegressor(Linear().build(4, 1, 0), adapters=LoRA(1), max_iter=2).fit(X, X[:, 0]),
    "data": lambda: Inputs({"a": X}),
}


@pytest.mark.parametrize("name", MADE)
def test_pickles_name_no_private_path_of_the_package(name):
    file = io.BytesIO()
    pickle.Pickler(file, protocol=2).dump(MADE[name]())
    named = {arg for opcode, arg, _ in pickletools.genops(file.getvalue()) if opcode.name == "GLOBAL"}
    assert any(path.startswith("onnxtrain_sklearn ") for path in named)
    assert not [path for path in named if path.startswith("onnxtrain_sklearn._")]
