"""``transform``: hidden layers as features, and autoencoders, against forward passes in NumPy."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RowBlocks,
    TabM,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.models import GraphModel
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = load_digits(return_X_y=True)
X = (
    (scale(X[:400, X[:400].std(axis=0) > 2]) * 0.5 + 0.3).astype(np.float32).astype(float)
)  # numbers so small that no graph scales them
y = y[:400]


def classifier(**parameters):
    net = OrtGradientClassifier(MLP((12, 6)), max_iter=5, learning_rate_init=0.01, random_state=0)
    return net.set_params(**parameters)


def autoencoder(sizes=(12, 3, 12), **parameters):
    net = OrtGradientRegressor(MLP(sizes), loss="reconstruction", max_iter=5, learning_rate_init=0.01, random_state=0)
    return net.set_params(**parameters)


def layers(net, rows):
    """The hidden layers and the scores of an MLP, in float64."""
    weights = {name: array.astype(np.float64) for name, array in net.weights_.items()}
    found = [rows]
    n_layers = len(weights) // 2
    for i in range(n_layers):
        h = found[-1] @ weights[f"layers.{i}.weight"] + weights[f"layers.{i}.bias"]
        found.append(np.maximum(h, 0) if i < n_layers - 1 else h)
    return found[1:]


@each_engine
def test_transform_is_the_last_hidden_layer(engine):
    net = classifier(engine=engine).fit(X, y)
    expected = layers(net, X)[1]
    assert expected.std() > 0.05
    np.testing.assert_allclose(net.transform(X), expected, rtol=1e-4, atol=1e-5)
    assert net.transform(X).dtype == np.float64
    assert net.transform(X.astype(np.float32)).dtype == np.float32


@each_engine
def test_transform_of_an_autoencoder_is_its_narrowest_layer(engine):
    net = autoencoder(engine=engine).fit(X)
    _, code, _, scores = layers(net, X)
    np.testing.assert_allclose(net.transform(X), code, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net.predict(X), scores * X.std(axis=0) + X.mean(axis=0), rtol=1e-4, atol=1e-4)


@each_engine
def test_reconstruction_is_a_regression_on_the_rows_themselves(engine):
    net = autoencoder(engine=engine).fit(X, y)  # y is ignored
    plain = autoencoder(engine=engine, loss="squared_error").fit(X, X)
    assert (net.predict(X) == plain.predict(X)).all()
    assert net.score(X) == net.score(X, y) == pytest.approx(r2_score(X, plain.predict(X)), abs=1e-6)
    again = autoencoder(engine=engine).partial_fit(X).partial_fit(X)
    other = autoencoder(engine=engine, loss="squared_error").partial_fit(X, X).partial_fit(X, X)
    assert (again.predict(X) == other.predict(X)).all()


@pytest.mark.parametrize("scoring", [None, "r2"])
def test_reconstruction_scores_held_out_rows(scoring):
    net = autoencoder(early_stopping=True, scoring=scoring).fit(X, X_val=X[:50])
    assert net.best_validation_score_ == pytest.approx(r2_score(X[:50], net.predict(X[:50])), abs=1e-5)
    split = autoencoder(early_stopping=True, scoring=scoring, validation_split=np.arange(30)).fit(X)
    assert split.best_validation_score_ == pytest.approx(r2_score(X[:30], split.predict(X[:30])), abs=1e-5)


def test_weights_of_rows_count_in_reconstructions():
    weights = np.arange(len(X)) % 3
    kept = np.repeat(np.arange(len(X)), weights)
    net = autoencoder((4,), optimizer="lbfgs").fit(X, sample_weight=weights)
    repeated = autoencoder((4,), optimizer="lbfgs").fit(X[kept])
    assert net.loss_ == pytest.approx(repeated.loss_, rel=0.02)


def test_named_value_may_be_chosen_after_fit():
    net = classifier(model=GraphModel(MLP((12, 6)), features="model/Relu")).fit(X, y)
    np.testing.assert_allclose(net.transform(X), layers(net, X)[0], rtol=1e-4, atol=1e-5)
    net.set_params(model__features="scores")
    np.testing.assert_allclose(net.transform(X), layers(net, X)[2], rtol=1e-4, atol=1e-4)
    net.set_params(model__features="model/None")
    with pytest.raises(ModelError, match=r"features='model/None' is no float tensor.* 'model/Relu'"):
        net.transform(X)


def test_transform_follows_further_training():
    net = classifier().partial_fit(X, y, classes=range(10))
    before = net.transform(X)
    np.testing.assert_allclose(net.partial_fit(X, y).transform(X), layers(net, X)[1], rtol=1e-4, atol=1e-5)
    assert np.abs(net.transform(X) - before).max() > 1e-3
    assert (pickle.loads(pickle.dumps(net)).transform(X) == net.transform(X)).all()


def test_sparse_rows_have_the_features_of_dense_ones():
    net = classifier().fit(X, y)
    np.testing.assert_allclose(net.transform(sp.csr_matrix(X)), net.transform(X), rtol=1e-5, atol=1e-6)


def test_features_have_names_and_may_be_a_frame():
    net = classifier().fit(X, y).set_output(transform="pandas")
    names = [f"ortgradientclassifier{i}" for i in range(6)]
    assert list(net.get_feature_names_out()) == names
    assert list(net.transform(X).columns) == names


@pytest.mark.parametrize(
    "model", [Linear(), MLP(()), TabM(n_members=3, hidden_layer_sizes=(4,)), LogisticRegression(max_iter=5)]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_without_a_hidden_layer_have_no_transform(model):
    given = model.fit(X, y) if hasattr(model, "fit") else model
    net = OrtGradientClassifier(given, max_iter=1, finetune=None)
    assert hasattr(net, "transform") == hasattr(model, "fit")  # nothing is known of a given model before it is read
    assert not hasattr(net.fit(X, y), "transform")


def test_value_with_rows_on_another_axis_is_refused():
    tabm = GraphModel(TabM(n_members=3, hidden_layer_sizes=(4,)), features="model/MatMul")
    with pytest.raises(ModelError, match="first axis is not that of the rows"):
        OrtGradientClassifier(tabm, max_iter=1).fit(X, y).transform(X)


def test_pipelines_and_unions_convert_with_features():
    rows, labels = X[:200].astype(np.float32), y[:200]
    table = ColumnTransformer([("some", autoencoder(), list(range(20))), ("others", "passthrough", [20, 21])])
    for steps in (
        [autoencoder()],
        [classifier()],
        [StandardScaler(), make_pipeline(StandardScaler(), autoencoder((3,)))],
        [FeatureUnion([("code", autoencoder()), ("layer", classifier())])],
        [table],
    ):
        from skl2onnx import to_onnx

        model = make_pipeline(*steps, LogisticRegression(max_iter=2000, C=0.1)).fit(rows, labels)
        proto = to_onnx(model, rows[:1], options={id(model): {"zipmap": False}}, target_opset=18)
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        found = session.run(None, {session.get_inputs()[0].name: rows})[1]
        np.testing.assert_allclose(found, model.predict_proba(rows), atol=2e-5)
        assert model.score(rows, labels) > 0.15


def test_autoencoder_is_no_regressor():
    assert is_regressor(autoencoder(loss="squared_error"))
    assert not is_regressor(autoencoder())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda table: autoencoder().fit(sp.csr_matrix(X)), TypeError, "not sparse, got a sparse matrix"),
        (lambda table: autoencoder().fit(RowBlocks(table, target="c0")), TypeError, "rows in memory"),
        (lambda table: autoencoder().transform(X), NotFittedError, "not fitted"),
        (lambda table: autoencoder().fit(X).transform(table), TypeError, "rows in memory"),
        (lambda table: OrtGradientClassifier(loss="reconstruction").fit(X, y), ValueError, "take OrtGradientRegressor"),
        (lambda table: OrtGradientMultiOutput(loss={"a": "reconstruction"}).fit(X, {"a": X}), ValueError, "alone"),
        (lambda table: autoencoder(loss="squared_error").fit(X), ValueError, "requires y"),
    ],
)
def test_unsuitable_calls_are_refused(call, error, message, tmp_path):
    table = tmp_path / "rows.parquet"
    pd.DataFrame(X).add_prefix("c").to_parquet(table)
    with pytest.raises(error, match=message):
        call(str(table))
