"""Training starts only from a graph that computes what onnxruntime computes of the file as given."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn._graph import meanings
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.graphs import model

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.RandomState(0).normal(size=(20, 3)).astype(np.float32)
Y = X.sum(axis=1)
HARD = "R = Reshape (X, s) H = Hardmax (R) F = Flatten (H) Y = MatMul (F, W)"
SHAPES = "float[3, 1] W = {1, -2, 3}, int64[3] s = {-1, 3, 1}"


def test_graph_that_was_misread_is_refused_by_node(monkeypatch):
    proto = model(HARD, weights=SHAPES, opset=10)
    OrtGradientRegressor(proto, max_iter=1, random_state=0).fit(X, Y)
    monkeypatch.setattr(meanings, "_changes", lambda *_: False)  # ONNX's converter leaves Hardmax as it stands
    monkeypatch.setattr("onnxtrain_sklearn._graph.versions.MIN_OPSET", 13)
    with pytest.raises(ModelError, match=r"file as given: output 'Y' .* first node that differs is 'H' \(Hardmax\)"):
        OrtGradientRegressor(proto, max_iter=1).fit(X, Y)


def test_random_numbers_are_not_compared():
    noisy = "N = RandomNormalLike <scale = 9.0> (X) H = Add (X, N) Y = MatMul (H, W)"
    OrtGradientRegressor(model(noisy), max_iter=1, random_state=0).fit(X, Y)
