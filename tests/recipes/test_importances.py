"""Importances of the columns by integrated gradients: completeness, a float64 reference, and scikit-learn's use."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from onnx import numpy_helper
from sklearn.base import clone
from sklearn.feature_selection import SelectFromModel

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, RowBlocks, TabMClassifier, TabMRegressor
from onnxtrain_sklearn._recipes.importances import baseline
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 200
RNG = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "size": RNG.uniform(20, 200, N),
        "noise": RNG.standard_normal(N),
        "city": RNG.choice(["Bonn", "Lyon", None], N),
        "street": RNG.choice([f"s{i}" for i in range(15)], N),
        "gaps": np.where(RNG.random(N) < 0.2, np.nan, RNG.random(N)),
        "floor": pd.Series(RNG.integers(0, 4, N), dtype="category"),
        "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(RNG.integers(0, 365, N), "D"),
    }
)
Y = X["size"] / 50 + X["city"].isna() + X["gaps"].isna() + X["floor"].astype(float) + X["sold"].dt.month / 4

RECIPES = {
    "td-s": RealMLPRegressor("td-s", max_iter=4),
    "td, linear part": RealMLPRegressor("td", n_ensembles=2, max_iter=4, linear_part=True),
    "piecewise": RealMLPRegressor("td-s", max_iter=4, embedding="piecewise_linear"),
    "distribution": RealMLPRegressor("td-s", n_ensembles=2, max_iter=4, loss="gaussian_nll"),
    "classes": RealMLPClassifier("td", n_ensembles=2, max_iter=4, linear_part=True),
    "tabm": TabMRegressor(n_members=4, hidden_layer_sizes=32, max_iter=4),
    "tabm, classes": TabMClassifier(n_members=4, hidden_layer_sizes=32, max_iter=4, embedding="piecewise_linear"),
}


def targets(net):
    return np.digitize(Y, np.quantile(Y, [0.3, 0.6])) if hasattr(net, "predict_proba") else Y


def predictions(net, table):
    """Return the prediction of each row of a raw table, of classes the probability of the predicted one."""
    output = 1 if hasattr(net, "predict_proba") else 0
    return net._predictor().run(net._inputs.columns(table), output=output).astype(float)


@each_engine
@pytest.mark.parametrize("name", RECIPES)
def test_effects_of_a_row_sum_to_the_difference_of_predictions(name, engine):
    net = clone(RECIPES[name]).set_params(engine=engine, random_state=0)
    # A sum over points converges slowly over the narrow bins of piecewise linear embeddings of repeated numbers.
    is_piecewise = net.embedding == "piecewise_linear"
    columns = X.drop(columns=["sold", "gaps"]) if is_piecewise else X
    net.fit(columns, targets(net))
    source = net._effects
    reference = baseline(source.table, source.categorical)
    (found,) = source.effects(net._graph, net._inputs, reference, n_steps=2048 if is_piecewise else 512)
    rows, base = predictions(net, source.table), predictions(net, reference)
    chosen = rows.argmax(axis=1)[:, np.newaxis]
    expected = (np.take_along_axis(rows, chosen, 1) - base[0, chosen]).ravel()
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(found.sum(axis=1), expected, atol=1e-3 * np.abs(expected).max())
    importances = net.feature_importances_
    assert importances.shape == (columns.shape[1],)
    assert importances.min() >= 0
    assert importances.sum() == pytest.approx(1)
    rough = np.abs(source.effects(net._graph, net._inputs, reference)[0]).mean(axis=0)
    np.testing.assert_allclose(importances, rough / rough.sum(), rtol=1e-6)
    exact = np.abs(found).mean(axis=0)
    np.testing.assert_allclose(importances, exact / exact.sum(), atol=0.01)


def test_effects_equal_a_float64_reference():
    """Gradients by central differences of the network, written in NumPy with the weights of the file."""
    numbers = X[["size", "noise"]].assign(third=np.sin(X["size"] / 9))
    net = RealMLPRegressor("td-s", n_ensembles=1, max_iter=4, random_state=0, linear_part=False).fit(numbers, Y)
    source = net._effects
    reference = baseline(source.table, source.categorical)
    (found,) = source.effects(net._graph, net._inputs, reference, n_steps=32)
    weights = {one.name: numpy_helper.to_array(one).astype(float) for one in net.to_onnx().graph.initializer}
    products = [node for node in net.to_onnx().graph.node if node.op_type == "Gemm"]
    alphas = [next((a.f for a in node.attribute if a.name == "alpha"), 1.0) for node in products]

    def scores(z):
        h = z * weights["scale"]
        for i, alpha in enumerate(alphas):
            h = alpha * (h @ weights[f"layers.{i}.weight"]) + weights[f"layers.{i}.bias"]
            if i < len(alphas) - 1:
                h = h * np.tanh(np.logaddexp(0, h))  # mish
        return h[..., 0]

    end, start = (net._inputs.transform(one, net._device).astype(float) for one in (source.table, reference))
    slope, offset = np.polyfit(scores(end), predictions(net, source.table).ravel(), 1)
    np.testing.assert_allclose(slope * scores(end) + offset, predictions(net, source.table).ravel(), rtol=1e-4)
    times = (np.arange(32) + 0.5)[:, np.newaxis, np.newaxis] / 32
    points = start + times * (end - start)
    shift = 1e-5 * np.eye(3)
    gradients = [(scores(points + one) - scores(points - one)).mean(axis=0) / 2e-5 for one in shift]
    expected = slope * np.stack(gradients, axis=1) * (end - start)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_baseline_is_the_median_and_the_most_frequent_category():
    net = RealMLPRegressor("td-s", n_ensembles=1, max_iter=1, random_state=0).fit(X, Y)
    table = net._effects.table
    found = dict(zip(table.names, (c[0] for c in baseline(table, net._effects.categorical).columns), strict=True))
    rows = dict(zip(table.names, table.columns, strict=True))
    assert found["size"] == np.quantile(rows["size"], 0.5, method="lower")
    assert found["gaps"] == np.nanquantile(rows["gaps"], 0.5, method="lower")
    assert found["sold"] == np.sort(rows["sold"])[31]
    for name in ("city", "street", "floor"):
        values = rows[name].tolist()
        assert values.count(found[name]) == max(map(values.count, values))


def test_columns_with_an_effect_are_selected_by_scikit_learn():
    net = RealMLPRegressor("td-s", n_ensembles=1, max_iter=40, random_state=0)
    selector = SelectFromModel(net, threshold=0.2).fit(X[["noise", "size"]], X["size"] / 50)
    assert selector.get_feature_names_out().tolist() == ["size"]
    labels = np.stack([X["size"] > 100, X["size"] > 150], axis=1).astype(int)
    tagger = RealMLPClassifier("td-s", max_iter=20, random_state=0).fit(X[["noise", "size"]], labels)
    assert tagger.feature_importances_[1] > 0.8
    both = RealMLPRegressor("td-s", max_iter=20, random_state=0).fit(X[["noise", "size"]], labels * 1000.0)
    assert both.feature_importances_[1] > 0.8


def test_importances_survive_pickles_and_are_computed_once():
    net = RealMLPRegressor("td-s", n_ensembles=1, max_iter=2, random_state=0)
    assert not hasattr(net, "feature_importances_")
    net.fit(X, Y)
    copy = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(copy.feature_importances_, net.feature_importances_)
    net.feature_importances_[:] = 0  # a copy
    assert net.feature_importances_.sum() == pytest.approx(1)
    constant = RealMLPRegressor("td-s", n_ensembles=1, max_iter=2, random_state=0).fit(np.ones((30, 2)), np.arange(30))
    assert constant.feature_importances_.tolist() == [0, 0]


def test_importances_of_tables_in_blocks(tmp_path):
    frame = X[["noise", "size", "city"]].assign(y=X["size"] / 50)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=20)
    blocks = RowBlocks(str(tmp_path / "rows.parquet"), target="y", buffer_rows=60)
    net = RealMLPRegressor("td-s", n_ensembles=1, max_iter=20, random_state=0).fit(blocks)
    assert 60 <= len(net._effects.table) <= 70
    assert net.feature_importances_.argmax() == 1
