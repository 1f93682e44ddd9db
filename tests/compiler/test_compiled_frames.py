"""Estimators for tables with ``engine="compiled"``: categories, missing numbers and tokens as the portable engine."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
import pytest

from onnxtrain_sklearn import (
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
)
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from onnxtrain_sklearn.models import MLP, Embedded, PeriodicEmbedding, PiecewiseLinearEmbedding, RealMLP, TabM

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS = 90


def frame(seed=0):
    """Return columns of several types, with missing values and rare categories."""
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(
        {
            "a": rng.normal(size=ROWS),
            "b": rng.normal(size=ROWS).astype(np.float32),
            "whole": rng.integers(0, 50, ROWS),
            "short": rng.integers(0, 5, ROWS).astype(np.int8),
            "truth": rng.random(ROWS) < 0.5,
            "few": pd.Categorical(rng.choice(list("xyz"), ROWS)),
            "many": pd.Categorical(rng.choice([f"city {i}" for i in range(25)], ROWS)),
            "more": pd.Categorical(rng.integers(0, 12, ROWS)),
        }
    )
    data.loc[rng.random(ROWS) < 0.2, "a"] = np.nan
    for name in ("few", "many"):
        data.loc[rng.random(ROWS) < 0.1, name] = None
    return data


X = frame()
NUMBER = X["b"].to_numpy() + (X["whole"].to_numpy() > 20) + 0.1 * np.random.default_rng(1).normal(size=ROWS)
TWO, THREE = (NUMBER > 0.5).astype(int), np.digitize(NUMBER, [0, 1])
NAN = X[["a", "b", "whole"]].to_numpy(float)
BOTH = {"RealMLP": (RealMLPClassifier, RealMLPRegressor), "TabM": (TabMClassifier, TabMRegressor)}

CASES = {
    "two classes": (X, TWO, {}),
    "three classes": (X, THREE, {}),
    "numbers": (X, NUMBER, {}),
    "missing numbers": (NAN, NUMBER, {}),
    "categories alone": (X[["few", "many", "more", "truth"]], THREE, {}),
    "piecewise linear": (X, NUMBER, {"embedding": PiecewiseLinearEmbedding(size=3, n_bins=5)}),
    "periodic": (X, THREE, {"embedding": PeriodicEmbedding(form="plr")}),
    "ensemble": (X, TWO, {"n_ensembles": 2}),
}


def recipe(kind, engine, y, **settings):
    small = {"hidden_layer_sizes": (12, 12), "max_iter": 3, "random_state": 0, "batch_size": 32}
    small |= {"n_members": 3} if kind == "TabM" else {"n_ensembles": 1}
    return BOTH[kind][y.dtype.kind == "f"](engine=engine, **{**small, **settings})


def scores(estimator, X):
    return estimator.predict_proba(X) if hasattr(estimator, "classes_") else estimator.predict(X)


@pytest.mark.long
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_of_the_portable_engine(name, kind):
    data, y, settings = CASES[name]
    ours, theirs = (recipe(kind, engine, y, **settings).fit(data, y) for engine in ("compiled", "portable"))
    new = data if isinstance(data, np.ndarray) else data.assign(**{k: "unseen" for k in ("few", "many") if k in data})
    for table in (data, new):
        expected = scores(theirs, table)
        np.testing.assert_allclose(scores(ours, table), expected, rtol=0, atol=2e-4 * max(1.0, abs(expected).max()))
    assert np.ptp(scores(theirs, data), axis=0).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("kind", BOTH)
def test_a_seed_gives_the_same_bits(kind):
    first, again = (recipe(kind, "compiled", THREE).fit(X, THREE).to_onnx().SerializeToString() for _ in range(2))
    assert first == again


CODES = np.column_stack(
    [np.random.default_rng(2).normal(size=(ROWS, 2)), X["few"].cat.codes + 1, X["many"].cat.codes + 1]
)
MODELS = {
    "RealMLP": RealMLP(hidden_layer_sizes=(8,), categories={2: 4, 3: 26}),
    "RealMLP, simple": RealMLP("td-s", hidden_layer_sizes=(8,), categories={2: 4, 3: 26}),
    "TabM": TabM(hidden_layer_sizes=(8,), n_members=3, categories={2: 4, 3: 26}),
    "piecewise linear": Embedded(PiecewiseLinearEmbedding(size=3, n_bins=5), MLP((8,))),
    "periodic": Embedded(PeriodicEmbedding(), MLP((8,), activation="gelu")),
}


def assert_close(ours, theirs, tolerance=2e-5):
    """Assert that weights differ by rounding."""
    assert ours.weights_.keys() == theirs.weights_.keys()
    for name, array in theirs.weights_.items():
        np.testing.assert_allclose(ours.weights_[name], array, rtol=0, atol=tolerance * max(abs(array).max(), 1e-2))


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("y", [THREE, NUMBER], ids=["classes", "numbers"])
def test_weights_of_built_networks(name, y):
    kind = OrtGradientRegressor if y.dtype.kind == "f" else OrtGradientClassifier
    settings = {"batch_size": 20, "max_iter": 3, "random_state": 0}
    data = CODES.astype(np.float32)
    ours, theirs = (kind(MODELS[name], engine=one, **settings).fit(data, y) for one in ("compiled", "portable"))
    assert ours.engine_ == "compiled"
    assert_close(ours, theirs)


def token_network(rows=40, kind="INT64"):
    """Return a network of tokens: the sum of their vectors, and two linear layers."""
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        net ({kind.lower()}[N, 6] tokens) => (float[N, 3] scores) {{
            e = Gather(table, tokens) m = ReduceMean<keepdims = 0>(e, axis) h = Gemm(m, V, a) t = Tanh(h)
            scores = Gemm(t, W, b)
        }}"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    shapes = {"table": (rows, 5), "V": (5, 4), "a": (4,), "W": (4, 3), "b": (3,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, array in {**arrays, "axis": np.array([1])}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


TOKENS = np.random.default_rng(3).integers(-40, 40, (ROWS, 6))


@pytest.mark.parametrize(("rows", "kind"), [(40, "INT64"), (40, "INT32"), (60_000, "INT64")])
def test_networks_of_tokens(rows, kind):
    """Rows of a large table are updated one by one: the graph returns their gradients, and their indices."""
    settings = {"model": token_network(rows, kind), "batch_size": 20, "max_iter": 3, "random_state": 0}
    data = TOKENS.astype(kind.lower()), THREE
    ours, theirs = (OrtGradientClassifier(engine=one, **settings).fit(*data) for one in ("compiled", "portable"))
    assert ours.engine_ == "compiled"
    assert_close(ours, theirs)


@pytest.mark.parametrize("wrong", [40, -41, 2**24, 2**40, -(2**63)])
def test_a_token_outside_the_table_is_an_error_that_changes_nothing(wrong):
    settings = {"model": token_network(), "batch_size": 20, "max_iter": 3, "random_state": 0, "engine": "compiled"}
    estimator = OrtGradientClassifier(**settings).fit(TOKENS, THREE)
    before = {name: array.tobytes() for name, array in estimator.weights_.items()}
    tokens = TOKENS.copy()
    tokens[-1, 3] = wrong
    with pytest.raises(ModelError, match=r"Gather.* beyond .*40 .* from 0 to 39 are valid"):
        estimator.fit(tokens, THREE)
    assert {name: array.tobytes() for name, array in estimator.weights_.items()} == before
    again = OrtGradientClassifier(**settings)
    attributes = set(vars(again))
    with pytest.raises(ModelError, match="Gather"):
        again.fit(tokens, THREE)
    assert set(vars(again)) == attributes


def test_compile_error_names_the_node():
    model = token_network()
    model.graph.node.insert(0, onnx.helper.make_node("Mod", ["tokens", "n"], ["rest"], name="hash"))
    model.graph.node[1].input[1] = "rest"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(40), "n"))
    with pytest.raises(UnsupportedOperatorError, match=r"'hash' \(Mod\)"):
        OrtGradientClassifier(model, engine="compiled", max_iter=1).fit(TOKENS, THREE)
