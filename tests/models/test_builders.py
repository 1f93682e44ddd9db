"""Builders that ask for more than two sizes: the shape of a row, the rows to train on, their targets and weights."""

from __future__ import annotations

import functools
import pickle
from typing import ClassVar

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

from onnxtrain_sklearn import Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.models import KEYWORDS, BaseBuilder, keywords_of
from tests.helpers.data import blobs, line
from tests.helpers.training import weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

IMAGES, DIGITS = load_digits(return_X_y=True)
IMAGES, DIGITS = (IMAGES[:300] / 16.0).astype(np.float32).reshape(-1, 8, 8), DIGITS[:300]
SETTINGS = {"learning_rate_init": 0.02, "max_iter": 15, "batch_size": 50, "tol": 0.0, "random_state": 0}


def with_weights(text: str, **arrays: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


class Convolution(BaseBuilder):
    """A convolution over images of one channel, and a linear layer."""

    def __init__(self, channels: int = 4) -> None:
        self.channels = channels

    def build(self, n_features, n_outputs, random_state=None, *, row_shape):
        height, width = row_shape
        rng, c, flat = random_state, self.channels, self.channels * (height // 2) * (width // 2)
        return with_weights(
            f"""g (float[N, {height}, {width}] X) => (float[N, {n_outputs}] scores)
            <int64[1] channel = {{1}}>
            {{ image = Unsqueeze(X, channel)
               maps = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, kernel, offset)
               active = Relu(maps)
               pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (active)
               flat = Flatten(pooled)
               scores = Gemm(flat, weight, bias) }}""",
            kernel=rng.normal(0, 0.3, (c, 1, 3, 3)),
            offset=np.zeros(c),
            weight=rng.normal(0, flat**-0.5, (flat, n_outputs)),
            bias=np.zeros(n_outputs),
        )


class Standardized(BaseBuilder):
    """A linear model behind the standardization of its rows; its bias starts at the mean of the targets."""

    def build(self, n_features, n_outputs, random_state=None, *, X, y, sample_weight=None):
        mean = np.average(X, axis=0, weights=sample_weight)
        deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=sample_weight))
        values = ", ".join
        return with_weights(
            f"""g (float[N, {n_features}] X) => (float[N, {n_outputs}] scores)
            {{ mean = Constant <value = float[{n_features}] {{{values(f"{x:.9g}" for x in mean)}}}> ()
               deviation = Constant <value = float[{n_features}] {{{values(f"{x:.9g}" for x in deviation)}}}> ()
               centered = Sub(X, mean)
               scaled = Div(centered, deviation)
               scores = Gemm(scaled, weight, bias) }}""",
            weight=np.zeros((n_features, n_outputs)),
            bias=np.average(y.reshape(len(y), -1), axis=0, weights=sample_weight),
        )


class Recorder(Linear):
    """A linear model that keeps what its builder is called with."""

    seen: ClassVar[list[dict[str, object]]] = []

    def build(self, n_features, n_outputs, random_state=None, *, row_shape, X, y, sample_weight):
        assert n_features == np.prod(row_shape)
        self.seen.append({"row_shape": row_shape, "X": X, "y": y, "sample_weight": sample_weight})
        return super().build(n_features, n_outputs, random_state)


@pytest.fixture
def seen():
    Recorder.seen.clear()
    yield Recorder.seen
    Recorder.seen.clear()


def test_a_convolution_is_sized_to_images():
    fitted = OrtGradientClassifier(Convolution(), **SETTINGS).fit(IMAGES, DIGITS)
    assert fitted.score(IMAGES, DIGITS) > 0.9
    assert fitted.n_features_in_ == 64
    assert [d.dim_value for d in fitted.to_onnx().graph.input[0].type.tensor_type.shape.dim][1:] == [8, 8]
    assert_array_equal(fitted.predict(IMAGES.reshape(-1, 64)), fitted.predict(IMAGES))
    assert weights_equal(fitted, pickle.loads(pickle.dumps(fitted)))
    assert weights_equal(fitted, clone(fitted).fit(IMAGES, DIGITS))


@pytest.mark.long
def test_a_search_over_a_convolution():
    grid = {"model__channels": [2, 3]}
    search = GridSearchCV(
        OrtGradientClassifier(Convolution(), **SETTINGS | {"max_iter": 3}), grid, cv=2, error_score="raise"
    ).fit(IMAGES, DIGITS)
    assert len(search.best_estimator_.weights_["kernel"]) == search.best_params_["model__channels"]
    scores = cross_val_score(
        OrtGradientClassifier(Convolution(), early_stopping=True, **SETTINGS), IMAGES, DIGITS, cv=2, error_score="raise"
    )
    assert (scores > 0.3).all()


def test_later_calls_go_on_with_the_graph_of_the_first():
    passes = OrtGradientClassifier(Convolution(), **SETTINGS)
    passes.partial_fit(IMAGES[:100], DIGITS[:100], classes=range(10))
    passes.partial_fit(IMAGES[100:].reshape(-1, 64), DIGITS[100:])
    assert passes.t_ == 300
    warm = OrtGradientClassifier(Convolution(), warm_start=True, **SETTINGS | {"max_iter": 2}).fit(IMAGES, DIGITS)
    assert warm.fit(IMAGES, DIGITS).n_iter_ == 4
    with pytest.raises(ValueError, match="64 features"):
        passes.predict(IMAGES[:, :4])


def test_images_are_for_builders_that_ask_for_their_shape():
    with pytest.raises(ValueError, match="dim 3"):
        OrtGradientClassifier(**SETTINGS).fit(IMAGES, DIGITS)


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_builder_receives_rows_and_targets_of_a_regression(seen, wide):
    X, y = line(outputs=2 if wide else 1)
    OrtGradientRegressor(Recorder(), max_iter=1, random_state=0).fit(X.astype(np.float64), y)
    (call,) = seen
    assert call["row_shape"] == (4,)
    assert_array_equal(call["X"], X)
    assert (call["X"].dtype, call["y"].dtype) == (np.float32, np.float64)
    assert_allclose(call["y"], y.reshape(len(y), -1))
    assert call["sample_weight"] is None


def test_builder_receives_rows_and_classes_of_a_classification(seen):
    X, y = blobs(classes=3)
    labels = np.array(["c", "a", "b"])[y]
    OrtGradientClassifier(Recorder(), class_weight={"c": 2.0}, max_iter=1).fit(X, labels)
    assert_array_equal(seen[0]["y"], np.searchsorted(["a", "b", "c"], labels))
    assert seen[0]["y"].dtype == np.int64
    assert_array_equal(seen[0]["sample_weight"], np.where(labels == "c", 2.0, 1.0))


def test_the_data_cannot_be_changed_by_a_builder(seen):
    X, y = blobs()
    OrtGradientClassifier(Recorder(), max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match="read-only"):
        seen[0]["X"][0] = 0.0


def test_sparse_rows_stay_sparse(seen):
    X, y = blobs()
    OrtGradientClassifier(Recorder(), max_iter=1).fit(sp.csr_matrix(X.astype(np.float64)), y)
    assert sp.issparse(seen[0]["X"])
    assert seen[0]["X"].dtype == np.float32
    assert_array_equal(seen[0]["X"].toarray(), X)


def test_rows_that_are_not_trained_on_are_not_seen(seen):
    X, y = blobs()
    weights = np.ones(len(X))
    weights[::4] = 0.0
    fitted = OrtGradientClassifier(Recorder(), early_stopping=True, validation_split=0.2, max_iter=1, random_state=0)
    fitted.fit(X, y, sample_weight=weights)
    rows = [np.flatnonzero((row == X).all(axis=1)).item() for row in seen[0]["X"]]
    assert rows == sorted(rows)
    assert len(rows) == 72
    assert weights[rows].all()
    assert_array_equal(seen[0]["y"], y[rows])
    assert len(seen[0]["sample_weight"]) == 72
    assert fitted.t_ == 72


def test_builder_that_only_records_trains_the_same(seen):
    plain, shown = (OrtGradientClassifier(m, max_iter=3, random_state=0).fit(*blobs()) for m in (Linear(), Recorder()))
    assert weights_equal(plain, shown)


def test_weights_start_from_the_data():
    X, y = line()
    X, y = (1000.0 + 50.0 * X).astype(np.float32), 300.0 + y
    still = OrtGradientRegressor(Standardized(), learning_rate_init=0.0, max_iter=1, random_state=0).fit(X, y)
    assert_allclose(still.predict(X), y.mean(), rtol=1e-6)
    assert OrtGradientRegressor(Standardized(), optimizer="lbfgs").fit(X, y).score(X, y) > 0.95
    assert set(still.weights_) == {"weight", "bias"}


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_a_builder_sees_targets_in_the_units_that_are_trained(seen, loss):
    X, y = line()
    y, weights = 300.0 + 50.0 * y, np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    settings = {"loss": loss, "early_stopping": True, "max_iter": 1, "random_state": 0}
    OrtGradientRegressor(Recorder(), **settings).fit(X, y, weights)
    rows = [np.flatnonzero((row == X).all(axis=1)).item() for row in seen[0]["X"]]
    assert 0 < len(rows) < len(y)
    own, w = y[rows], weights[rows]
    mean = np.average(own, weights=w)
    deviation = np.sqrt(np.average((own - mean) ** 2, weights=w))
    expected = own / mean if loss == "poisson" else (own - mean) / deviation
    assert_allclose(seen[0]["y"][:, 0], expected, rtol=1e-9, atol=1e-12)
    OrtGradientRegressor(Recorder(), target_scaling=None, **settings).fit(X, y, weights)
    assert_array_equal(seen[1]["y"][:, 0], own)


class FromLeastSquares(Linear):
    """A linear model that starts from the least-squares solution of the rows that it sees."""

    def build(self, n_features, n_outputs, random_state=None, *, X, y):
        model = super().build(n_features, n_outputs, random_state)
        solution = np.linalg.lstsq(np.c_[X, np.ones(len(X))].astype(np.float64), y, rcond=None)[0]
        for initializer, array in zip(model.graph.initializer, (solution[:-1], solution[-1]), strict=True):
            initializer.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), initializer.name))
        return model


@pytest.mark.parametrize("scaling", ["auto", None])
def test_a_start_from_the_targets_is_right_in_their_units(scaling):
    X, y = line(outputs=2)
    y = y * [100.0, 1.0] + [1000.0, -3.0]
    settings = {"learning_rate_init": 0.0, "target_scaling": scaling, "max_iter": 1, "random_state": 0}
    expected = LinearRegression().fit(X, y).predict(X)
    assert_allclose(OrtGradientRegressor(FromLeastSquares(), **settings).fit(X, y).predict(X), expected, rtol=1e-4)
    passes = OrtGradientRegressor(FromLeastSquares(), **settings).partial_fit(X[:60], y[:60])
    assert_allclose(passes.predict(X), LinearRegression().fit(X[:60], y[:60]).predict(X), rtol=1e-4)
    assert_array_equal(passes.partial_fit(X, 2 * y).predict(X), pickle.loads(pickle.dumps(passes)).predict(X))


def test_a_weight_counts_like_repeated_rows():
    X, y = line(30)
    weights = np.random.default_rng(0).integers(0, 3, 30)
    settings = {"learning_rate_init": 0.1, "batch_size": 100, "max_iter": 20, "random_state": 0}
    weighted = OrtGradientRegressor(Standardized(), **settings).fit(X, y, sample_weight=weights)
    repeated = OrtGradientRegressor(Standardized(), **settings).fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-4, atol=1e-5)


def test_the_first_call_shows_the_data(seen):
    X, y = blobs()
    passes = OrtGradientClassifier(Recorder(), random_state=0)
    for part in (slice(0, 40), slice(40, None)):
        passes.partial_fit(X[part], y[part], classes=[0, 1])
    assert len(seen) == 1
    assert_array_equal(seen[0]["X"], X[:40])
    warm = OrtGradientClassifier(Recorder(), warm_start=True, max_iter=1, random_state=0).fit(X, y)
    warm.fit(X, y)
    assert len(seen) == 2


def test_keywords_are_found_by_the_signature():
    class Wrapped(Linear):
        @functools.wraps(Convolution.build)
        def build(self, *args, **kwargs):
            return super().build(*args, **kwargs)

    class Forwarding(Linear):
        def build(self, *args, **kwargs):
            assert not kwargs
            return super().build(*args, **kwargs)

    assert keywords_of(Linear()) == set()
    assert keywords_of(Recorder()) == set(KEYWORDS)
    assert keywords_of(Wrapped()) == {"row_shape"}
    assert keywords_of(Forwarding()) == set()
    OrtGradientClassifier(Forwarding(), max_iter=1).fit(*blobs())


class FlatGraph(Convolution):
    """A builder whose graph does not take the rows that it was told of."""

    def build(self, n_features, n_outputs, random_state=None, *, row_shape):
        return Linear().build(n_features, n_outputs, random_state)


def test_a_graph_that_does_not_take_the_rows_is_refused():
    with pytest.raises(ModelError, match=r"FlatGraph.build made a graph whose input 'X' has 2 axes.*\('N', 8, 8\)"):
        OrtGradientClassifier(FlatGraph()).fit(IMAGES, DIGITS)


class Images(Convolution):
    """A builder that reads flat rows as images."""

    def build(self, n_features, n_outputs, random_state=None):
        return super().build(n_features, n_outputs, random_state, row_shape=(8, n_features // 8))


def test_flat_rows_get_the_shape_of_the_graph():
    flat = OrtGradientClassifier(Images(), **SETTINGS).fit(IMAGES.reshape(-1, 64), DIGITS)
    shaped = OrtGradientClassifier(Convolution(), **SETTINGS).fit(IMAGES, DIGITS)
    assert weights_equal(flat, shaped)
    with pytest.raises(ValueError, match=r"X has 60 features, but the graph's input 'X' takes rows of shape \(8, 7\)"):
        OrtGradientClassifier(Images()).fit(IMAGES.reshape(-1, 64)[:, :60], DIGITS)


class Doubles(BaseBuilder):
    """A linear model in float64."""

    def build(self, n_features, n_outputs, random_state=None):
        model = with_weights(f"g (double[N, {n_features}] X) => (double[N, {n_outputs}] s) {{ s = MatMul(X, w) }}")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((n_features, n_outputs)), "w"))
        return model


def test_a_graph_in_double_is_trained_on_doubles():
    X = np.random.default_rng(0).normal(size=(50, 1)) * 1e-9 + 1.0  # all are 1 in float32
    y = 1e9 * (X[:, 0] - 1.0)
    fitted = OrtGradientRegressor(Doubles(), loss="absolute_error", max_iter=1).fit(X, y)
    graph = Doubles().build(1, 1)
    given = OrtGradientRegressor(graph, loss="absolute_error", max_iter=1).fit(X, y)
    assert_array_equal(fitted.weights_["w"], given.weights_["w"])
