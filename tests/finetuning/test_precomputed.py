"""What no trained weight affects is computed once, before a search."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, ConvNet, FineTuner, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.fine_tuning import limit_precomputed_bytes, record_searched_graphs, search_whole_graphs

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
NUMBER = X @ np.linspace(-1, 1, 64)
NEW, TEST = slice(300, 360), slice(400, 800)
SMALL = FineTuner(cv=2, max_iter=10)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def searched(monkeypatch, fit):
    """Return the operators that each iteration of a search computes, and the shapes of its inputs."""
    found = record_searched_graphs(monkeypatch)
    fit()
    graph = found[0].graph
    return [node.op_type for node in graph.model.graph], {spec.name: spec.shape for spec in graph.inputs}


@each_engine
def test_trees_are_walked_once(monkeypatch, engine):
    old = GradientBoostingRegressor(n_estimators=5).fit(X[:300], NUMBER[:300])
    tuned = OrtGradientRegressor(old, finetune=SMALL, random_state=0, engine=engine)
    operators, inputs = searched(monkeypatch, lambda: tuned.fit(X[NEW], NUMBER[NEW] + 1))
    assert "TreeEnsembleRegressor" not in operators
    assert list(inputs.values()) == [(None, 5)]
    assert tuned.engine_ == engine


@each_engine
def test_the_features_of_a_frozen_body_are_computed_once(monkeypatch, engine):
    graph = ConvNet((4,)).build(64, 6, random_state=0, row_shape=(1, 8, 8))
    images = X.reshape(-1, 1, 8, 8)
    tuner = FineTuner(new_head=True, cv=2, max_iter=10)
    tuned = OrtGradientClassifier(graph, finetune=tuner, random_state=0, engine=engine)
    operators, _ = searched(monkeypatch, lambda: tuned.fit(images[NEW], Y[NEW]))
    assert "Conv" not in operators
    assert set(tuned.fine_tuning_["candidate"]) == {"head only"}
    assert {"head.weight", "head.bias"} < set(tuned.weights_)
    assert tuned.score(images[TEST], Y[TEST]) > 0.5


@pytest.mark.long
def test_the_body_with_convolutions_is_tuned_where_asked_for():
    graph = ConvNet((4,)).build(64, 6, random_state=0, row_shape=(1, 8, 8))
    images = X.reshape(-1, 1, 8, 8)
    tuner = FineTuner(new_head=True, tune_body=True, cv=2, max_iter=3)
    tuned = OrtGradientClassifier(graph, finetune=tuner, random_state=0).fit(images[NEW], Y[NEW])
    assert set(tuned.fine_tuning_["candidate"]) == {"head only", "new head"}


@pytest.mark.long
def test_a_body_of_matrices_stays_where_asked_for():
    graph = MLP((8,)).build(64, 6, random_state=0)
    names = {}
    for tune_body in (False, "auto"):
        tuner = FineTuner(new_head=True, tune_body=tune_body, cv=2, max_iter=3)
        tuned = OrtGradientClassifier(graph, finetune=tuner, random_state=0).fit(X[NEW], Y[NEW])
        names[tune_body] = set(tuned.fine_tuning_["candidate"])
    assert names == {False: {"head only"}, "auto": {"head only", "new head"}}


def test_other_layers_of_a_network_go_on_from_the_head():
    graph = ConvNet((4,)).build(64, 6, random_state=0, row_shape=(1, 8, 8))
    images = X.reshape(-1, 1, 8, 8)
    tuner = FineTuner(new_head=True, cv=2, max_iter=10)
    tuned = OrtGradientClassifier(graph, finetune=tuner, random_state=0).fit(images[NEW], Y[NEW])
    before = tuned.weights_
    tuned.partial_fit(images[NEW], Y[NEW])
    assert all(np.abs(tuned.weights_[name] - before[name]).max() > 0 for name in before)


@pytest.mark.long
@pytest.mark.parametrize("last", [Ridge(), MLPRegressor(hidden_layer_sizes=(8,), random_state=0, max_iter=50)])
def test_the_result_is_that_of_the_whole_graph(monkeypatch, last):
    old = make_pipeline(StandardScaler(), last).fit(X[:300], NUMBER[:300])
    settings = {"finetune": FineTuner(cv=2, max_iter=10), "random_state": 0}
    once = OrtGradientRegressor(old, **settings).fit(X[NEW], NUMBER[NEW] + 1).predict(X[TEST])
    search_whole_graphs(monkeypatch)
    always = OrtGradientRegressor(old, **settings).fit(X[NEW], NUMBER[NEW] + 1).predict(X[TEST])
    assert_allclose(once, always, rtol=1e-3, atol=1e-3)


def test_large_values_are_computed_in_each_iteration(monkeypatch):
    old = make_pipeline(StandardScaler(), Ridge()).fit(X[:300], NUMBER[:300])
    limit_precomputed_bytes(monkeypatch, 100)
    tuned = OrtGradientRegressor(old, finetune=SMALL, random_state=0)
    _, inputs = searched(monkeypatch, lambda: tuned.fit(X[NEW], NUMBER[NEW]))
    assert list(inputs) == ["X"]


@pytest.mark.long
def test_sparse_rows_are_not_made_dense(monkeypatch):
    rows = sp.random(400, 3000, density=0.01, random_state=0, format="csr", dtype=np.float32)
    y = np.arange(400) % 2
    old = make_pipeline(StandardScaler(with_mean=False), LogisticRegression()).fit(rows[:300], y[:300])
    tuned = OrtGradientClassifier(old, finetune=SMALL, random_state=0)
    operators, inputs = searched(monkeypatch, lambda: tuned.fit(rows[300:], y[300:]))
    assert list(inputs.values()) == [(None, 3000)]
    assert "Div" not in operators
