"""Networks that PyTorch exported untrained learn here, and the trained files give the same labels in onnxruntime alone.

The files are those of ``data/make_learning_exports.py``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import OrtGradientClassifier
from tests.helpers.data import DATA
from tests.helpers.environment import each_engine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]


def classifier(name, **parameters):
    settings = {
        "optimizer": "adamw", "learning_rate": "cosine", "learning_rate_init": 0.01, "batch_size": 32, "max_iter": 20,
        "random_state": 0,
    }  # fmt: skip
    return OrtGradientClassifier(str(DATA / f"learns_{name}.onnx"), **settings | parameters)


def held_out_score(fitted, X, y):
    """Return the accuracy of the file of a trained network, which must give the labels and scores of the estimator."""
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    labels, probabilities = session.run(None, {entry.name: X})
    assert_array_equal(labels, fitted.predict(X))
    assert_allclose(probabilities, fitted.predict_proba(X), rtol=0, atol=1e-5)
    assert_array_equal(session.run(None, {entry.name: X[:1]})[0], labels[:1])
    return np.mean(labels == y)


def digits():
    """Return images with their labels, and a third of them that is held out."""
    loaded = load_digits()
    X, y = (loaded.images[:, None] / 16).astype(np.float32), loaded.target
    return train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)


def operators(proto):
    return [node.op_type for node in proto.graph.node]


def in_evaluation_mode(proto):
    modes = [entry.i for node in proto.graph.node for entry in node.attribute if entry.name == "training_mode"]
    return "Dropout" not in operators(proto) and not any(modes)


@each_engine
def test_a_convolutional_network_reads_digits(engine):
    X, others, y, expected = digits()
    fitted = classifier("digits", engine=engine).fit(X, y)
    assert held_out_score(fitted, others, expected) >= 0.985


def test_batch_statistics_and_dropout_read_more_digits():
    X, others, y, expected = digits()
    given = operators(onnx.load(DATA / "learns_digits_training.onnx"))
    assert (given.count("BatchNormalization"), given.count("Dropout")) == (3, 1)
    fitted = classifier("digits_training").fit(X, y)
    assert held_out_score(fitted, others, expected) >= 0.985
    assert in_evaluation_mode(fitted.to_onnx())


def test_the_page_on_pytorch_trains_a_network_for_digits(tmp_path, monkeypatch):
    """Its code runs on a file that its export writes: ``optimize=False`` keeps BatchNormalization."""
    shutil.copy(DATA / "learns_digits_kept.onnx", tmp_path / "digits.onnx")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL) if "load_digits" in code]
    found = {"__name__": "page"}
    exec(compile(code, "pytorch.md", "exec"), found)
    assert found["accuracy"] == held_out_score(found["classifier"], found["X_test"], found["y_test"]) >= 0.985
    assert in_evaluation_mode(onnx.load("digits_trained.onnx"))


@each_engine
def test_a_transformer_finds_the_word_that_the_first_one_points_at(engine):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 8, (2500, 9))
    y = X[np.arange(2500), 1 + X[:, 0]]
    fitted = classifier("transformer", learning_rate_init=0.005, batch_size=64, engine=engine).fit(X[:2000], y[:2000])
    assert held_out_score(fitted, X[2000:], y[2000:]) > 0.95


def test_an_lstm_counts_modulo_three():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (2500, 10))
    y = np.array(["none", "one", "two"])[np.sum(X == 1, axis=1) % 3]
    fitted = classifier("lstm", batch_size=64, max_iter=30).fit(X[:2000], y[:2000])
    assert held_out_score(fitted, X[2000:], y[2000:]) > 0.95
