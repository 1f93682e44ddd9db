"""RealMLP: its graph, its initial weights, its rates by parameter, and what it learns."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from onnxtrain_sklearn import Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor, RealMLP
from onnxtrain_sklearn.models import PeriodicEmbedding, PiecewiseLinearEmbedding
from tests.helpers.differences import assert_gradients, run_proto
from tests.helpers.environment import each_engine
from tests.helpers.training import quietly, weights_equal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)).astype(np.float32)
CODES = np.column_stack([RNG.integers(0, n, 300) for n in (3, 5, 12)]).astype(np.float32)
CATEGORIES = {3: 3, 4: 5, 5: 12}
TABLE = np.hstack([X, CODES])
LABELS = (X[:, 0] + (CODES[:, 2] > 5) > 0.5).astype(np.int64)
SETTINGS = {"optimizer": Adam(beta_2=0.95), "learning_rate_init": 0.04, "max_iter": 6, "random_state": 0}


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}


def without_dropout(**parameters: object) -> RealMLP:
    return RealMLP(**{"hidden_layer_sizes": (8, 6), "dropout": 0.0} | parameters)


def act(z: np.ndarray, name: str) -> np.ndarray:
    if name == "mish":
        return z * np.tanh(np.logaddexp(0, z))
    return 1.0507009873554805 * np.where(z > 0, z, 1.6732632423543772 * np.expm1(np.minimum(z, 0)))


def network(h: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return the outputs of the layers for embedded columns."""
    h = h * w["scale"]
    for i in range(3):
        h = h @ w[f"layers.{i}.weight"] / np.sqrt(h.shape[1]) + w[f"layers.{i}.bias"]
        if i < 2:
            h = h + w.get(f"layers.{i}.activation", 1.0) * (act(h, name) - h)
    return h


def clipped(columns: np.ndarray) -> np.ndarray:
    """Return columns scaled by median and interquartile range, or half of the range, and clipped smoothly."""
    spread = np.quantile(columns, 0.75, axis=0) - np.quantile(columns, 0.25, axis=0)
    spread = np.where(spread > 0, spread, np.ptp(columns, axis=0) / 2)
    z = (columns - np.median(columns, axis=0)) / spread
    return z / np.sqrt(1 + (z / 3) ** 2)


def indicators(codes: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return a column for each category, but one of 1, -1 and 0 where there are two and missing ones."""
    parts = []
    for column, size in zip(codes.T, sizes, strict=True):
        parts += [(column == 1) * 1.0 - (column == 2)] if size == 3 else [column == c for c in range(1, size)]
    return np.column_stack(parts).astype(float)


@pytest.mark.parametrize(("task", "name"), [("classes", "selu"), ("numbers", "mish")])
@pytest.mark.parametrize("variant", ["td", "td-s"])
def test_the_graph_is_its_formula(variant, task, name):
    y = RNG.integers(0, 4, 300) if task == "classes" else RNG.normal(size=(300, 4))
    proto = without_dropout(variant=variant).build(3, 4, 0, X=X, y=y)
    onnx.checker.check_model(proto, full_check=True)
    w = arrays(proto)
    for tensor in proto.graph.initializer:  # the output layer of td-s starts at zero
        w[tensor.name] = w[tensor.name] + RNG.normal(size=w[tensor.name].shape)
        tensor.CopyFrom(onnx.numpy_helper.from_array(w[tensor.name].astype(np.float32), tensor.name))
    h = X.astype(np.float64)
    if variant == "td":
        angles = 2 * np.pi * h[:, :, None] * w["embedding.frequencies"][:, 0] + w["embedding.phases"][:, 0]
        parts = np.einsum("njf,jfo->njo", np.cos(angles), w["embedding.weight"]) + w["embedding.bias"][:, 0]
        h = np.hstack([parts.reshape(300, -1), h])
    assert ("layers.0.activation" in w) == (variant == "td")
    expected = network(h, w, name)
    assert_allclose(run_proto(proto, {"X": X})[0], expected, atol=2e-5 * np.abs(expected).max())


def test_categories():
    proto = without_dropout(embedding=None, categories=CATEGORIES).build(6, 2, 0, X=TABLE, y=LABELS)
    w = arrays(proto)
    assert w["categories.weight"].shape == (12, 8)
    columns = clipped(indicators(CODES[:, :2], (3, 5)))
    h = np.hstack([X, columns, w["categories.weight"][CODES[:, 2].astype(int)]])
    assert_allclose(run_proto(proto, {"X": TABLE})[0], network(h, w, "selu"), atol=2e-5)
    unseen, missing = TABLE.copy(), TABLE.copy()
    unseen[:, 3:], missing[:, 3:] = 99.0, 0.0
    assert_array_equal(run_proto(proto, {"X": unseen})[0], run_proto(proto, {"X": missing})[0])


def test_the_simple_variant_has_indicators_for_all_categories():
    w = arrays(without_dropout(variant="td-s", categories=CATEGORIES).build(6, 2, 0, X=TABLE, y=LABELS))
    assert w["scale"].shape == (3 + 1 + 4 + 11,)
    assert "categories.weight" not in w


def test_tables_of_categories_alone():
    w = arrays(without_dropout(categories={0: 3, 1: 5}).build(2, 1, 0, X=CODES[:, :2], y=LABELS))
    assert not any(name.startswith("embedding") for name in w)
    net = OrtGradientClassifier(without_dropout(categories={0: 3, 1: 5}), **SETTINGS)
    assert set(quietly(net.fit, CODES[:, :2], LABELS).weights_) == set(w)


@pytest.mark.long
def test_units_start_with_the_deviation_of_the_data():
    X = RNG.normal(size=(4000, 5)).astype(np.float32) * [1, 3, 0.2, 1, 1] + 2
    proto = without_dropout(hidden_layer_sizes=(400, 300), embedding=None).build(5, 3, 0, X=X, y=np.zeros(4000, int))
    w, h = arrays(proto), X.astype(np.float64)
    for i in range(3):
        z = h @ w[f"layers.{i}.weight"] / np.sqrt(h.shape[1])
        assert_allclose(z.std(axis=0), 1.0, rtol=1e-3)
        if i < 2:  # minus a convex combination of five values of the unit
            offset = -w[f"layers.{i}.bias"] - z.mean(axis=0)
            assert_allclose(np.std(offset), np.sqrt(1 / 3), rtol=0.15)  # E Σ p² = 2 / (5 + 1)
            assert (z.min(axis=0) <= -w[f"layers.{i}.bias"]).all()
            assert (-w[f"layers.{i}.bias"] <= z.max(axis=0)).all()
        h = act(z + w[f"layers.{i}.bias"], "selu")


def test_the_simple_variant_starts_at_zero():
    proto = without_dropout(variant="td-s", hidden_layer_sizes=(300,)).build(3, 2, 0, X=X, y=LABELS)
    w = arrays(proto)
    assert not run_proto(proto, {"X": X})[0].any()
    assert_allclose([w["layers.0.weight"].std(), w["layers.0.bias"].std()], 1.0, atol=0.1)


def test_two_classes_have_two_outputs_inside():
    w = arrays(without_dropout().build(3, 1, 0, X=X, y=LABELS))
    assert w["layers.2.weight"].shape == (6, 2)
    fitted = quietly(OrtGradientClassifier(without_dropout(embedding=None), **SETTINGS).fit, X, LABELS)
    outputs = network(X.astype(np.float64), {k: v.astype(np.float64) for k, v in fitted.weights_.items()}, "selu")
    assert_allclose(fitted.predict_proba(X)[:, 1], expit(outputs[:, 1] - outputs[:, 0]), atol=1e-5)
    assert arrays(without_dropout().build(3, 1, 0, X=X, y=X[:, :1]))["layers.2.weight"].shape == (6, 1)


@each_engine
@pytest.mark.parametrize("activation", ["selu", "mish", "tanh"])
def test_gradients(engine, activation):
    model = without_dropout(activation=activation, categories=CATEGORIES, embedding=PeriodicEmbedding(scale=0.5))
    proto = model.build(6, 2, 0, X=TABLE, y=LABELS)
    assert set(assert_gradients(proto, "scores", {"X": TABLE[:9]}, engine)) == set(arrays(proto))


def test_gradients_far_from_zero():
    proto = without_dropout(activation="mish", embedding=None).build(3, 1, 0)
    rows = 1e4 * X[:5]
    (found,) = run_proto(proto, {"X": rows})
    assert_allclose(found, network(rows.astype(np.float64), arrays(proto), "mish"), rtol=1e-4)


@pytest.mark.slow
@each_engine
def test_both_variants_learn(engine):
    X, y = load_breast_cancer(return_X_y=True)
    for variant in ("td", "td-s"):
        net = OrtGradientClassifier(RealMLP(variant, (32, 32)), engine=engine, batch_size=64, **SETTINGS)
        assert quietly(net.fit, scale(X)[:400], y[:400]).score(scale(X)[400:], y[400:]) > 0.93
    X, y = load_diabetes(return_X_y=True)
    net = OrtGradientRegressor(RealMLP("td-s", (32, 32)), engine=engine, batch_size=64, **SETTINGS)
    assert quietly(net.fit, scale(X)[:300], y[:300]).score(scale(X)[300:], y[300:]) > 0.35


def test_rates_by_parameter():
    """A step of Adam moves every element by its rate; decay alone shrinks by rate and factor."""
    model = without_dropout(categories=CATEGORIES)
    settings = SETTINGS | {"max_iter": 1, "batch_size": 300, "learning_rate_init": 1e-3}
    rates = {"embedding.weight": 0.1, "layers.1.bias": 0.1, "layers.0.activation": 0.1, "scale": 6.0}
    rates |= {"layers.1.weight": 1.0, "categories.weight": 1.0}
    start = OrtGradientClassifier(model, **settings | {"learning_rate_init": 0.0})
    start, moved = (quietly(net.fit, TABLE, LABELS) for net in (start, OrtGradientClassifier(model, **settings)))
    for name, factor in rates.items():
        step = np.abs(moved.weights_[name] - start.weights_[name])
        assert_allclose(np.median(step[step > 0]), 1e-3 * factor, rtol=2e-2, err_msg=name)
    decay = settings | {"optimizer": AdamW(beta_2=0.95, weight_decay=0.5)}
    shrunk = quietly(OrtGradientClassifier(model, **decay).fit, TABLE, LABELS)
    for name, factor in (rates | {"layers.1.bias": 0.0}).items():
        expected = -1e-3 * 0.5 * factor**2 * start.weights_[name]
        assert_allclose(shrunk.weights_[name] - moved.weights_[name], expected, atol=3e-7, err_msg=name)


def test_dropout_is_for_training_alone():
    fitted = quietly(OrtGradientClassifier(RealMLP(hidden_layer_sizes=(8,)), **SETTINGS).fit, X, LABELS)
    assert "Dropout" in {n.op_type for n in RealMLP().build(3, 1, 0).graph.node}
    assert "Dropout" not in {n.op_type for n in RealMLP("td-s").build(3, 1, 0).graph.node}
    assert_array_equal(fitted.predict_proba(X), fitted.predict_proba(X))
    plain = quietly(OrtGradientClassifier(RealMLP(hidden_layer_sizes=(8,), dropout=0.0), **SETTINGS).fit, X, LABELS)
    assert not weights_equal(fitted, plain)


def test_copies_train_the_same():
    model = RealMLP(hidden_layer_sizes=(8,), embedding=PiecewiseLinearEmbedding(3, 5), categories=CATEGORIES)
    net = OrtGradientClassifier(model, **SETTINGS)
    fitted = quietly(net.fit, TABLE, LABELS)
    for twin in (clone(net), pickle.loads(pickle.dumps(net))):
        assert weights_equal(quietly(twin.fit, TABLE, LABELS), fitted)
    restored = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(restored.predict_proba(TABLE), fitted.predict_proba(TABLE))
    assert weights_equal(quietly(restored.partial_fit, TABLE, LABELS), quietly(fitted.partial_fit, TABLE, LABELS))


@pytest.mark.slow
def test_a_search():
    grid = {"model__variant": ["td", "td-s"], "model__embedding__scale": [0.1, 1.0]}
    model = RealMLP(hidden_layer_sizes=(8,), embedding=PeriodicEmbedding())
    search = GridSearchCV(OrtGradientClassifier(model, **SETTINGS), grid, cv=2, error_score="raise")
    assert set(quietly(search.fit, X, LABELS).best_params_) == set(grid)


def test_rows_are_drawn_where_there_are_many(monkeypatch):
    monkeypatch.setattr("onnxtrain_sklearn.models.embeddings.MAX_ROWS", 50)
    few = without_dropout().build(3, 1, 0, X=X, y=LABELS)
    assert np.isfinite(arrays(few)["layers.1.bias"]).all()
    assert few != without_dropout().build(3, 1, 1, X=X, y=LABELS)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (RealMLP("tds"), "'variant' .*Got 'tds'.*Did you mean 'td-s'"),
        (RealMLP(activation="misch"), "'activation' .*Did you mean 'mish'"),
        (RealMLP(embedding="peridic"), "'embedding' .*Did you mean 'periodic'"),
        (RealMLP(embedding=PeriodicEmbedding(scale=0)), "'scale' .* Got 0"),
        (RealMLP(dropout=1.0), r"'dropout' .* \[0.0, 1.0\).* Got 1.0"),
        (RealMLP(categories={-1: 3}), "'categories' .* a dict from column numbers to numbers of codes"),
        (RealMLP(categories=[3]), "'categories' .* Got \\[3\\]"),
        (RealMLP(categories={4: 3}), "categories names column 4, but X has 4 columns"),
    ],
)
def test_errors(model, message):
    with pytest.raises(ValueError, match=message):
        model.build(4, 2, 0)
