"""TabM: its graph, its initial weights, what decays, and what it learns."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from onnxtrain_sklearn import AdamW, OrtGradientClassifier, OrtGradientRegressor, TabM
from onnxtrain_sklearn.models import Embedded, PeriodicEmbedding, PiecewiseLinearEmbedding
from tests.helpers.differences import assert_gradients, run_proto
from tests.helpers.environment import each_engine
from tests.helpers.training import quietly, weights_equal

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=(200, 3)), RNG.integers(0, 4, 200)]).astype(np.float32)
LABELS = (X[:, 0] + X[:, 3] > 1.5).astype(np.int64)
CATEGORIES = {3: 4}
SETTINGS = {"learning_rate_init": 0.005, "max_iter": 8, "batch_size": 50, "random_state": 0}
FORMS = [
    {},
    {"mini": True},
    {"embedding": PiecewiseLinearEmbedding(3, 5)},
    {"mini": True, "embedding": PeriodicEmbedding(3, 4, 0.5)},
]


def small(**parameters: object) -> TabM:
    defaults = {"n_members": 4, "hidden_layer_sizes": (6, 5), "dropout": 0.0, "categories": CATEGORIES}
    return TabM(**defaults | parameters)


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}


def with_random_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        array = array + 0.3 * RNG.normal(size=array.shape).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return proto


def member(columns: np.ndarray, w: dict[str, np.ndarray], j: int, *, mini: bool) -> np.ndarray:
    """Return the outputs of one member for the columns of the network's input."""
    h = columns * w["input_weight"][j] if mini else columns
    for i in range(2):
        if mini:
            h = h @ w[f"layers.{i}.weight"] + w[f"layers.{i}.bias"]
        else:
            h = (h * w[f"layers.{i}.input_weight"][j]) @ w[f"layers.{i}.weight"]
            h = h * w[f"layers.{i}.output_weight"][j] + w[f"layers.{i}.bias"][j]
        h = np.maximum(h, 0)
    return h @ w["heads.weight"][j] + w["heads.bias"][j]


COLUMNS = np.hstack([X[:, :3], X[:, [3]] == np.arange(4)]).astype(np.float64)


@pytest.mark.parametrize("mini", [False, True])
def test_the_graph_is_its_formula(mini):
    proto = with_random_weights(small(mini=mini).build(4, 3, 0, X=X, y=LABELS))
    onnx.checker.check_model(proto, full_check=True)
    expected = np.stack([member(COLUMNS, arrays(proto), j, mini=mini) for j in range(4)], axis=1)
    (found,) = run_proto(proto, {"X": X})
    assert found.shape == (200, 4, 3)
    assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("mini", [False, True])
def test_predictions_are_means_over_the_members(mini):
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    fitted = quietly(OrtGradientClassifier(small(mini=mini), **SETTINGS).fit, X, three)
    outputs = [member(COLUMNS, fitted.weights_, j, mini=mini) for j in range(4)]
    assert_allclose(fitted.predict_proba(X), np.mean([softmax(o, axis=1) for o in outputs], axis=0), atol=1e-5)
    binary = quietly(OrtGradientClassifier(small(mini=mini), **SETTINGS).fit, X, LABELS)
    assert binary.weights_["heads.weight"].shape == (4, 5, 2)
    outputs = [member(COLUMNS, binary.weights_, j, mini=mini) for j in range(4)]
    expected = np.mean([expit(o[:, 1] - o[:, 0]) for o in outputs], axis=0)
    assert_allclose(binary.predict_proba(X)[:, 1], expected, atol=1e-5)
    model, y = small(mini=mini), X[:, 0] * 2
    regressor = quietly(OrtGradientRegressor(model, target_scaling=None, **SETTINGS).fit, X, y)
    expected = np.mean([member(COLUMNS, regressor.weights_, j, mini=mini)[:, 0] for j in range(4)], axis=0)
    assert_allclose(regressor.predict(X), expected, atol=1e-5)


def test_initial_weights():
    w = arrays(TabM(categories=CATEGORIES).build(4, 2, 0))
    assert w["layers.2.weight"].shape == (512, 512)
    assert w["heads.weight"].shape == (32, 512, 2)
    first = w["layers.0.input_weight"]
    assert set(np.unique(first)) == {-1.0, 1.0}
    assert (first[:, 0, 3:] == first[:, :1, 3]).all()  # the codes of a column have one sign
    assert len(np.unique(first[:, 0, :3], axis=0)) > 5
    others = [name for name in w if "put_weight" in name and name != "layers.0.input_weight"]
    assert len(others) == 5
    assert all((w[name] == 1).all() for name in others)
    for i, n_in in enumerate((7, 512, 512)):
        assert_allclose(np.abs(w[f"layers.{i}.weight"]).max(), n_in**-0.5, rtol=1e-2)
        assert (w[f"layers.{i}.bias"] == w[f"layers.{i}.bias"][0]).all()
    assert_allclose(np.abs(w["heads.weight"]).max(), 512**-0.5, rtol=1e-2)
    assert not (w["heads.bias"] == w["heads.bias"][0]).all()


@pytest.mark.parametrize("mini", [False, True])
@pytest.mark.parametrize(
    ("embedding", "source"),
    [
        (PiecewiseLinearEmbedding(3, 5), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        (PeriodicEmbedding(3, 4), [0, 0, 1, 1, 2, 2, 0, 1, 2]),
        (PeriodicEmbedding(3, 4, form="plr"), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_first_vectors_behind_an_embedding_are_normal_by_column(mini, embedding, source):
    w = arrays(TabM(500, mini=mini, embedding=embedding, categories=CATEGORIES).build(4, 2, 0, X=X))
    assert w["layers.1.weight"].shape == (512, 512)
    assert "layers.2.weight" not in w
    first = w["input_weight" if mini else "layers.0.input_weight"][:, 0]
    chunks = first[:, [source.index(i) for i in range(3)] + [9]]
    assert_array_equal(first, chunks[:, [*source, 3, 3, 3, 3]])
    assert_allclose([chunks.mean(), chunks.std()], [0.0, 1.0], atol=0.06)
    assert np.abs(np.corrcoef(chunks.T) - np.eye(4)).max() < 0.2


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_table_without_numbers(form):
    codes = np.indices((4, 4)).reshape(2, -1).T.astype(np.float32)
    builder = small(categories={0: 4, 1: 4}, **form)
    first = arrays(builder.build(2, 2, 0, X=codes))["input_weight" if "mini" in form else "layers.0.input_weight"]
    assert_array_equal(first, first[:, :, [0, 0, 0, 0, 4, 4, 4, 4]])
    assert set(np.unique(first)) == {-1.0, 1.0}  # as without an embedding: there is nothing to embed
    net = quietly(OrtGradientClassifier(builder, **SETTINGS | {"max_iter": 100}).fit, codes, codes[:, 0] > 1)
    assert net.score(codes, codes[:, 0] > 1) == 1.0


@each_engine
@pytest.mark.parametrize("form", FORMS)
def test_gradients(engine, form):
    proto = with_random_weights(small(activation="tanh", **form).build(4, 2, 0, X=X, y=LABELS))
    names = assert_gradients(proto, "scores", {"X": X[:9]}, engine)
    assert set(names) == set(arrays(proto))


@each_engine
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_learn(engine, form):
    rows, y = load_breast_cancer(return_X_y=True)
    model = small(hidden_layer_sizes=(16, 16), categories=None, dropout=0.1, **form)
    net = OrtGradientClassifier(model, engine=engine, **SETTINGS)
    assert quietly(net.fit, scale(rows)[:400], y[:400]).score(scale(rows)[400:], y[400:]) > 0.93
    rows, y = load_diabetes(return_X_y=True)
    net = OrtGradientRegressor(model, engine=engine, **SETTINGS | {"max_iter": 20})
    assert quietly(net.fit, scale(rows)[:300], y[:300]).score(scale(rows)[300:], y[300:]) > 0.35


def test_biases_do_not_decay():
    model = small(embedding=PiecewiseLinearEmbedding(3, 5))
    settings = SETTINGS | {"max_iter": 1, "batch_size": 200}
    fitted = [
        quietly(OrtGradientClassifier(model, optimizer=AdamW(weight_decay=d), **settings).fit, X, LABELS).weights_
        for d in (0.0, 5.0)
    ]
    for name, array in fitted[0].items():
        decays = name.endswith("weight") and name != "embedding.weight"  # which starts at zero
        assert np.array_equal(array, fitted[1][name]) != decays, name


def test_copies_train_the_same():
    net = OrtGradientClassifier(small(dropout=0.2, embedding=PiecewiseLinearEmbedding(3, 5)), **SETTINGS)
    fitted = quietly(net.fit, X, LABELS)
    for twin in (clone(net), pickle.loads(pickle.dumps(net))):
        assert weights_equal(quietly(twin.fit, X, LABELS), fitted)
    restored = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(restored.predict_proba(X), fitted.predict_proba(X))
    assert weights_equal(quietly(restored.partial_fit, X, LABELS), quietly(fitted.partial_fit, X, LABELS))


@pytest.mark.slow
def test_a_search():
    grid = {"model__mini": [False, True], "model__n_members": [2, 3]}
    search = GridSearchCV(OrtGradientClassifier(small(), **SETTINGS), grid, cv=2, error_score="raise")
    assert set(quietly(search.fit, X, LABELS).best_params_) == set(grid)


def test_behind_embedded():
    model = Embedded(PiecewiseLinearEmbedding(3, 5), small(categories=None), columns=[0, 1])
    assert model.n_members == 4
    assert quietly(OrtGradientClassifier(model, **SETTINGS).fit, X, LABELS).predict_proba(X).shape == (200, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TabM(0), "'n_members' .* Got 0"),
        (TabM(hidden_layer_sizes="aut"), "'hidden_layer_sizes' .* Got 'aut'"),
        (TabM(mini="yes"), "'mini' .* a bool. Got 'yes'"),
        (TabM(embedding="piecewise"), "'embedding' .*Did you mean 'piecewise_linear'"),
        (TabM(embedding="piecewise_linear"), "build needs X, the rows to train on"),
        (TabM(categories={9: 2}), "categories names column 9, but X has 4 columns"),
    ],
)
def test_errors(model, message):
    with pytest.raises(ValueError, match=message):
        model.build(4, 2, 0)
