"""Embeddings of numbers as a parameter of the recipe of RealMLP."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor
from onnxtrain_sklearn.models import PeriodicEmbedding

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (500, 2)).astype(np.float32)
STEPS = RNG.normal(size=(2, 16))[0][np.floor(8 * (X[:, 0] + 1)).astype(int)]
"""A target that is constant between edges."""

SMALL = {"hidden_layer_sizes": 32, "batch_size": 32, "max_iter": 40, "random_state": 0}


def embedded_by(fitted):
    """Return the last parts of the names of the parameters of the embedding in the graph."""
    names = [tensor.name for tensor in fitted.to_onnx().graph.initializer]
    return {name.rpartition("embedding.")[2] for name in names if "embedding." in name}


@pytest.mark.parametrize(
    ("variant", "embedding", "expected"),
    [
        ("td", "auto", {"frequencies", "phases", "weight", "bias"}),
        ("td-s", "auto", set()),
        ("td", None, set()),
        ("td-s", "piecewise_linear", {"slope", "weight", "bias"}),
        ("td", PeriodicEmbedding(form="plr"), {"frequencies", "weight", "bias"}),
    ],
)
def test_the_embedding_is_the_one_named(variant, embedding, expected):
    fitted = RealMLPClassifier(variant, embedding=embedding, **SMALL | {"max_iter": 1}).fit(X, STEPS > 0)
    assert embedded_by(fitted) == expected


@pytest.mark.slow
def test_piecewise_linear_functions_follow_steps():
    before, piecewise = (
        RealMLPRegressor(embedding=name, **SMALL).fit(X[:400], STEPS[:400]).score(X[400:], STEPS[400:])
        for name in ("auto", "piecewise_linear")
    )
    assert piecewise > max(before + 0.1, 0.8)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"'embedding' .*Did you mean 'piecewise_linear'"):
        RealMLPRegressor(embedding="piecewise").fit(X, STEPS)
