"""Embeddings of numeric columns, and the builder that puts them before another one."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from onnxtrain_sklearn.models import (
    EMBEDDINGS,
    BaseBuilder,
    Embedded,
    Embedding,
    PeriodicEmbedding,
    PiecewiseLinearEmbedding,
)
from onnxtrain_sklearn.models.embeddings import quantile_edges
from tests.helpers.differences import assert_gradients, run_proto
from tests.helpers.environment import each_engine
from tests.helpers.training import quietly, weights_equal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3)).astype(np.float32)
SETTINGS = {"learning_rate_init": 0.02, "max_iter": 5, "random_state": 0}


class Identity(BaseBuilder):
    """A builder whose graph returns its input."""

    def build(self, n_features, n_outputs, random_state=None):
        return onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> g (float[N, {n_features}] X) => '
            f"(float[N, {n_features}] scores) {{ scores = Identity(X) }}"
        )


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}


def with_random_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the weights that start at zero."""
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if not array.any():
            array = RNG.normal(size=array.shape).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return proto


def periodic(X: np.ndarray, w: dict[str, np.ndarray], form: str) -> np.ndarray:
    columns = []
    for j, x in enumerate(X.T.astype(np.float64)):
        angles = 2 * np.pi * x[:, None] * w["embedding.frequencies"][j]
        if "b" in form:
            waves = np.cos(angles + w["embedding.phases"][j])
        else:
            waves = np.hstack([np.cos(angles), np.sin(angles)])
        y = waves @ w["embedding.weight"][j] + w["embedding.bias"][j]
        columns.append(np.maximum(y, 0) if "r" in form else y)
    return np.hstack([*columns, X] if "d" in form else columns)


def expected_edges(column: list[float], n_edges: int) -> list[float]:
    """Return the edges of a column: the most frequent values as long as quantiles of the others would repeat them."""
    edges: list[float] = []
    while column and column.count(value := max(column, key=column.count)) * (n_edges - len(edges)) > len(column):
        edges, column = [*edges, value], [x for x in column if x != value]
    others = np.quantile(column, np.linspace(0, 1, n_edges - len(edges))) if column else ()
    return sorted({*edges, *others})


def piecewise_linear(X: np.ndarray, w: dict[str, np.ndarray], n_bins: int, rows: np.ndarray) -> np.ndarray:
    columns = []
    for j, x in enumerate(X.T.astype(np.float64)):
        edges = expected_edges(rows[:, j].tolist(), n_bins + 1)
        y = x[:, None] * w["embedding.slope"][j] + w["embedding.bias"][j]
        for i, (a, b) in enumerate(pairwise(edges)):
            low, high = -np.inf if i == 0 else 0.0, np.inf if i == len(edges) - 2 else 1.0
            y = y + np.clip((x - a) / (b - a), low, high)[:, None] * w["embedding.weight"][j, i]
        columns.append(y)
    return np.hstack(columns)


@pytest.mark.parametrize("form", ["pbld", "pblrd", "pl", "plr"])
def test_periodic_embedding_is_its_formula(form):
    proto = Embedded(PeriodicEmbedding(5, 8, 0.7, form), Identity()).build(3, 1, 0)
    onnx.checker.check_model(proto, full_check=True)
    (found,) = run_proto(proto, {"X": X})
    assert found.shape == (200, 15)
    assert_allclose(found, periodic(X, arrays(proto), form), atol=2e-5)


def test_initial_weights_of_a_periodic_embedding():
    w = arrays(Embedded(PeriodicEmbedding(8, 400, 0.3), Identity()).build(20, 1, 0))
    assert_allclose(w["embedding.frequencies"].std(), 0.3, rtol=0.03)
    assert_allclose(np.abs(w["embedding.phases"]).max(), np.pi, rtol=1e-3)
    assert_allclose(np.abs(w["embedding.weight"]).max(), 400**-0.5, rtol=1e-3)
    assert w["embedding.weight"].shape == (20, 400, 7)


@pytest.mark.parametrize("rows", [X, np.round(X), np.column_stack([X[:, 0], X[:, 1] > 0, np.full(200, 7.0)])])
def test_piecewise_linear_embedding_is_its_formula(rows):
    rows = rows.astype(np.float32)
    proto = Embedded(PiecewiseLinearEmbedding(4, 6), Identity()).build(3, 1, 0, X=rows)
    onnx.checker.check_model(proto, full_check=True)
    assert not arrays(proto)["embedding.weight"].any()
    proto, beyond = with_random_weights(proto), 3 * X  # outer bins go on as lines
    (found,) = run_proto(proto, {"X": beyond})
    expected = piecewise_linear(beyond, arrays(proto), 6, rows)
    assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.linspace(0, 8, 65), [0, 2, 4, 6, 8]),  # no value repeats: quantiles
        ([0] * 90 + [10, 20, 30, 40], [0, 10, 20, 30, 40]),  # quantiles of all would be 0, 0, 0, 0, 40
        ([0] * 60 + [5] * 30 + list(range(11, 22)), [0, 5, 11, 16, 21]),  # two values, and quantiles of the others
        ([0] * 400 + [1] * 200 + [2] * 100 + [3] * 50 + list(range(4, 24)), [0, 1, 2, 3, 23]),  # the largest is one
        ([7] * 50 + [1, 2], [1, 2, 7]),  # fewer values than edges: all of them
        ([3] * 9, [3]),
    ],
)
def test_edges_of_bins_do_not_fall_together_on_frequent_values(column, expected):
    (edges,) = quantile_edges(np.reshape(column, (-1, 1)), 4)
    assert edges.tolist() == expected


def test_a_single_bin_spans_the_column():
    (edges,) = quantile_edges(np.r_[np.zeros(60), np.linspace(1, 100, 40)][:, None], 1)
    assert edges.tolist() == [0, 100]


def test_rare_nonzero_value_has_own_effect():
    x = np.r_[np.zeros(1900), np.tile(np.arange(1.0, 21.0), 5)]
    t, y = x[:, None], (x == 13.0) * 4.0
    model = Embedded(PiecewiseLinearEmbedding(8, 24), Linear())
    net = quietly(OrtGradientRegressor(model, optimizer="lbfgs", max_iter=200, random_state=0).fit, t, y)
    assert net.score(t, y) > 0.99


def test_columns_of_one_value_are_embedded_linearly():
    rows = np.ones((9, 2), np.float32)
    w = arrays(Embedded("piecewise_linear", Identity()).build(2, 1, 0, X=rows))
    assert w["embedding.weight"].shape == (2, 1, 16)


@each_engine
@pytest.mark.parametrize(
    "embedding", [PeriodicEmbedding(4, 6, 0.5), PeriodicEmbedding(4, 6, 0.5, "plr"), PiecewiseLinearEmbedding(3, 5)]
)
def test_gradients(engine, embedding):
    proto = with_random_weights(Embedded(embedding, MLP((4,), "tanh")).build(3, 2, 0, X=X))
    names = assert_gradients(proto, "scores", {"X": X[:7]}, engine)
    assert set(names) == set(arrays(proto))


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_embedded_networks_learn(embedding):
    t = np.linspace(-2, 2, 400)[:, None]
    y = np.sign(np.sin(6 * t[:, 0]))
    settings = SETTINGS | {"max_iter": 150, "batch_size": 40}
    embedded = quietly(OrtGradientRegressor(Embedded(embedding, MLP((16,))), **settings).fit, t, y)
    plain = quietly(OrtGradientRegressor(MLP((16,)), **settings).fit, t, y)
    assert embedded.score(t, y) > plain.score(t, y) + 0.1


class Seen(Linear):
    """A linear model in an older opset that checks what it is shown."""

    learning_rate_factors = {"weight": 0.5}  # noqa: RUF012
    weight_decay_factors = {"bias": 0.0}  # noqa: RUF012

    def build(self, n_features, n_outputs, random_state=None, *, row_shape, X, y, sample_weight):
        assert row_shape == (n_features,)
        assert X.shape == (len(y), n_features)
        assert sample_weight is None
        assert X.std(axis=0).min() > 0
        proto = super().build(n_features, n_outputs, random_state)
        proto.opset_import[0].version = 13
        return proto


@pytest.mark.parametrize("embedding", [PeriodicEmbedding(), PiecewiseLinearEmbedding(2, 4)])
def test_the_builder_sees_the_embedded_rows(embedding):
    model = Embedded(embedding, Seen())
    assert model.scales_targets
    assert model.learning_rate_factors == {"weight": 0.5}
    assert model.weight_decay_factors == {"bias": 0.0}
    fitted = quietly(OrtGradientRegressor(model, **SETTINGS).fit, X, X[:, 0])
    assert fitted.to_onnx().opset_import[0].version == 13


def test_the_factors_of_a_builder_without_any():
    assert Embedded(model=Identity()).learning_rate_factors is None
    assert Embedded(model=Identity()).weight_decay_factors is None
    assert not Embedded(model=Identity()).scales_targets
    assert Embedded().scales_targets


def test_some_columns():
    proto = Embedded(PiecewiseLinearEmbedding(4, 6), Identity(), columns=[2, 0]).build(3, 1, 0, X=X)
    (found,) = run_proto(proto, {"X": X})
    expected = piecewise_linear(X[:, [2, 0]], arrays(proto), 6, X[:, [2, 0]])
    assert_allclose(found, np.hstack([expected, X[:, [1]]]), atol=1e-5)
    every = Embedded("periodic", Identity(), columns=range(3)).build(3, 1, 0)
    assert_array_equal(run_proto(every, {"X": X})[0], run_proto(Embedded(model=Identity()).build(3, 1, 0), {"X": X})[0])


def test_embeddings_of_embeddings():
    model = Embedded("periodic", Embedded("periodic", Identity()))
    names = list(arrays(model.build(2, 1, 0)))
    assert len(set(names)) == 8
    assert {"embedding.weight", "embedding.weight_1"} <= set(names)


def test_sparse_rows():
    rows, y = np.where(X > 0, X, 0), (X[:, 0] > 0).astype(int)
    model = Embedded("piecewise_linear", MLP((4,)))
    dense, sparse = (
        quietly(OrtGradientClassifier(model, **SETTINGS).fit, form, y) for form in (rows, sp.csr_matrix(rows))
    )
    assert weights_equal(dense, sparse)


def test_a_graph_in_double_behind_an_embedding():
    class Doubles(BaseBuilder):
        def build(self, n_features, n_outputs, random_state=None):
            proto = onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["": 18]> g (double[N, {n_features}] X) => '
                f"(double[N, {n_outputs}] s) {{ s = MatMul(X, w) }}"
            )
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((n_features, n_outputs)), "w"))
            return proto

    fitted = quietly(OrtGradientRegressor(Embedded("piecewise_linear", Doubles()), **SETTINGS).fit, X, X[:, 0])
    assert fitted.weights_["w"].dtype == np.float64
    assert np.isfinite(fitted.predict(X)).all()


@pytest.mark.parametrize("embedding", [PeriodicEmbedding(6, 10, 0.2, "plr"), PiecewiseLinearEmbedding(3, 7)])
def test_copies_train_the_same(embedding):
    y = (X[:, 0] > 0).astype(int)
    net = OrtGradientClassifier(Embedded(embedding, MLP((4,))), **SETTINGS)
    fitted = quietly(net.fit, X, y)
    for twin in (clone(net), pickle.loads(pickle.dumps(net))):
        assert twin.get_params().keys() == net.get_params().keys()
        assert weights_equal(quietly(twin.fit, X, y), fitted)
    restored = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(restored.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.slow
def test_a_search_over_embeddings():
    data, y = load_diabetes(return_X_y=True)
    grid = {
        "model__embedding": [PeriodicEmbedding(), PiecewiseLinearEmbedding(4)],
        "model__model__hidden_layer_sizes": [(4,), (8,)],
    }
    net = OrtGradientRegressor(Embedded(model=MLP()), **SETTINGS)
    search = quietly(GridSearchCV(net, grid, cv=2, error_score="raise").fit, scale(data), y)
    assert search.best_params_["model__embedding"] in grid["model__embedding"]
    net.set_params(model__embedding=PiecewiseLinearEmbedding(), model__embedding__n_bins=5)
    assert net.model.embedding.n_bins == 5


class Wrong(Embedding):
    def emit(self, op, x, n_features, random_state, X=None):
        return op.ReduceSum(x, axes=[1], keepdims=False)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (Embedded("piecewise"), ValueError, "Unknown embedding 'piecewise'. Did you mean 'piecewise_linear'"),
        (Embedded(PeriodicEmbedding(size=1)), InvalidParameterError, "'size' .* Got 1"),
        (Embedded(PeriodicEmbedding(form="pld")), InvalidParameterError, "'form' .* Got 'pld'"),
        (Embedded(PeriodicEmbedding(4, 7, form="pl")), ValueError, "n_frequencies must be even, got 7"),
        (Embedded(PiecewiseLinearEmbedding(n_bins=1)), InvalidParameterError, "'n_bins' .* Got 1"),
        (Embedded("piecewise_linear"), ValueError, "build needs X, the rows to train on"),
        (Embedded(model="mlp"), TypeError, "model must be a builder, .* got str"),
        (Embedded(model=MLP), TypeError, "got the class MLP; give an instance"),
        (Embedded(columns=[0, 0]), ValueError, "a list of different column numbers, got"),
        (Embedded(columns=[3]), ValueError, "between 0 and 2, as X has 3 columns, got"),
        (Embedded(Wrong()), ModelError, r"shape \(N, width\) of a fixed width"),
    ],
)
def test_errors(model, error, message):
    with pytest.raises(error, match=message):
        model.build(3, 1, 0)
