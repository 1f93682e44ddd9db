"""Every kind of X that the estimators take, and what a fitted estimator holds and exports."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import get_tags

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor, losses
from onnxtrain_sklearn.losses import LOSSES
from onnxtrain_sklearn.models import BaseBuilder
from tests.helpers.environment import available_engines
from tests.helpers.estimators import scaled_blobs, small_classifier, small_regressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def run_onnx(estimator: OrtGradientClassifier | OrtGradientRegressor, X: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of the exported graph in a session of its own."""
    session = onnxruntime.InferenceSession(estimator.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: np.asarray(X, np.float32)})


def as_memmap(X: np.ndarray, folder: object, dtype: type) -> np.memmap:
    mapped = np.memmap(folder / f"X-{np.dtype(dtype)}", dtype, "w+", shape=X.shape)
    mapped[...] = X
    mapped.flush()
    return np.memmap(folder / f"X-{np.dtype(dtype)}", dtype, "r", shape=X.shape)


KINDS = {
    "float32": lambda X, folder: X.astype(np.float32),
    "Fortran order": lambda X, folder: np.asfortranarray(X),
    "strided": lambda X, folder: np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2],
    "read-only": lambda X, folder: np.frombuffer(X.tobytes()).reshape(X.shape),
    "list": lambda X, folder: X.tolist(),
    "objects": lambda X, folder: X.astype(object),
    "frame": lambda X, folder: pd.DataFrame(X),
    "frame of nullable types": lambda X, folder: pd.DataFrame(X).astype("Float64"),
    "memory map": lambda X, folder: as_memmap(X, folder, np.float64),
    "memory map of float32": lambda X, folder: as_memmap(X, folder, np.float32),
    **{kind: lambda X, folder, kind=kind: getattr(sp, kind)(X) for kind in (
        "csr_matrix", "csc_matrix", "coo_matrix", "lil_matrix", "dok_matrix", "bsr_matrix", "dia_matrix",
        "csr_array", "csc_array", "coo_array", "dok_array",
    )},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_X_trains_to_the_same_bits(kind, tmp_path):
    X, y = scaled_blobs()
    X = np.round(X, 2).astype(np.float32).astype(np.float64)
    X[np.abs(X) < 0.5] = 0
    reference, other = small_classifier().fit(X, y), KINDS[kind](X, tmp_path)
    fitted = small_classifier().fit(other, y)
    for name, array in reference.weights_.items():
        assert_array_equal(array, fitted.weights_[name])
    assert_array_equal(reference.decision_function(X), fitted.decision_function(other))
    assert_allclose(reference.predict_proba(X), fitted.predict_proba(other), rtol=0, atol=5e-7)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, bool, np.float16, np.int32])
def test_numbers_of_every_type(dtype):
    X, y = scaled_blobs()
    X = (np.abs(X) * 10).astype(dtype)
    a, b = small_classifier().fit(X, y), small_classifier().fit(X.astype(np.float32), y)
    assert_array_equal(a.decision_function(X), b.decision_function(X.astype(np.float32)))


def test_a_sparse_matrix_is_never_made_dense_as_a_whole(monkeypatch):
    X, y = sp.random(3000, 40, 0.05, format="csr", random_state=0), np.arange(3000) % 2
    largest, toarray = [], sp.csr_matrix.toarray

    def recorded(self, *args, **kwargs):
        largest.append(self.shape[0])
        return toarray(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_matrix, "toarray", recorded)
    OrtGradientClassifier(Linear(), batch_size=100, max_iter=2).fit(X, y)
    assert max(largest) == 100


def test_names_of_the_columns_are_kept_and_held_to():
    X, y = scaled_blobs()
    frame = pd.DataFrame(X, columns=list("abcde"))
    fitted = small_classifier().fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    assert_array_equal(fitted.predict(frame), small_classifier().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="same order"):
        fitted.predict(frame[list("edcba")])
    with pytest.raises(ValueError, match="unseen at fit time"):
        fitted.predict(frame.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="same order"):
        fitted.partial_fit(frame[list("edcba")], y)
    with pytest.warns(UserWarning, match="valid feature names"):
        fitted.predict(X)
    fitted.fit(X, y)
    assert not hasattr(fitted, "feature_names_in_")


def test_columns_numbered_by_pandas_are_no_names():
    X, y = scaled_blobs()
    fitted = small_classifier().fit(pd.DataFrame(X), y)
    assert not hasattr(fitted, "feature_names_in_")
    fitted.predict(X)


@pytest.mark.parametrize("n", [1, 2])
def test_tiny_data(n):
    X, y = scaled_blobs(50)
    assert small_regressor(max_iter=3).fit(X[:n], y[:n]).predict(X[:n]).shape == (n,)
    assert small_classifier(max_iter=3).partial_fit(X[:n], y[:n], classes=[0, 1]).predict(X[:n]).shape == (n,)


@pytest.mark.parametrize("batch_size", [1, 7, 89, 90, 5000, "auto"])
def test_every_row_is_seen_once_an_epoch_at_any_batch_size(batch_size):
    X, y = scaled_blobs()
    settings = {"optimizer": "sgd", "learning_rate_init": 0, "max_iter": 1, "target_scaling": None}
    fitted = small_regressor(batch_size=batch_size, **settings).fit(X, y)
    w, b = fitted.weights_["weight"], fitted.weights_["bias"]
    assert_allclose(fitted.loss_, np.mean((X @ w + b - y[:, None]) ** 2), rtol=1e-5)
    assert fitted.t_ == 90


def test_one_feature_and_a_thousand_outputs():
    X, y = scaled_blobs()
    assert small_classifier().fit(X[:, :1], y).predict(X[:, :1]).shape == (90,)
    Y = np.random.RandomState(0).normal(size=(90, 1000))
    fitted = small_regressor(max_iter=2).fit(X, Y)
    assert fitted.predict(X).shape == (90, 1000)
    assert fitted.n_outputs_ == 1000


def test_numpy_scalars_as_parameters():
    X, y = scaled_blobs()
    plain = small_classifier(batch_size=16, learning_rate_init=0.5, alpha=0.25, max_iter=3, tol=0.125).fit(X, y)
    numpy = small_classifier(
        batch_size=np.int64(16), learning_rate_init=np.float32(0.5), alpha=np.float16(0.25), max_iter=np.int8(3),
        tol=np.float32(0.125), n_iter_no_change=np.uint8(10), random_state=np.int64(0),
        optimizer__max_grad_norm=np.float64(1e6),
    ).fit(X, y)  # fmt: skip
    assert_allclose(plain.predict_proba(X), numpy.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("task", ["regression", "outputs", "binary", "multiclass", "multilabel", "strings"])
def test_the_exported_graph_predicts_the_same_bits(task):
    X, y = scaled_blobs(classes=3 if task == "multiclass" else 2)
    targets = {"outputs": np.c_[y, 1.0 - y], "multilabel": np.c_[y, y, 1 - y], "strings": np.array(list("abc"))[y]}
    make = small_regressor if task in ("regression", "outputs") else small_classifier
    fitted = make().fit(X, targets.get(task, y))
    X = X.astype(np.float32)
    outputs = run_onnx(fitted, X)
    assert_array_equal(fitted.predict(X), outputs[0].reshape(fitted.predict(X).shape))
    if make is small_classifier:
        assert_array_equal(fitted.predict_proba(X), outputs[1])
        assert [output.name for output in fitted.to_onnx().graph.output] == ["label", "probabilities"]
    onnx.checker.check_model(fitted.to_onnx(), full_check=True)


@pytest.mark.parametrize("name", [name for name, kind in LOSSES.items() if kind().targets == "labels"])
def test_the_exported_graph_of_every_loss_predicts_the_same_bits(name):
    X, y = scaled_blobs()
    make = small_regressor if "regression" in LOSSES[name].tasks else small_classifier
    fitted = make(loss=name, max_iter=2).fit(X, y + 1)
    X = X.astype(np.float32)
    outputs = run_onnx(fitted, X)
    assert_array_equal(fitted.predict(X), outputs[0].reshape(fitted.predict(X).shape))
    if make is small_classifier:
        second = fitted.predict_proba(X) if hasattr(fitted, "predict_proba") else fitted.decision_function(X)
        assert_array_equal(second, outputs[1].reshape(second.shape))


def test_fitted_attributes():
    X, y = scaled_blobs()
    fitted = small_classifier(max_iter=3, batch_size=30).fit(X, y)
    assert (fitted.n_features_in_, fitted.n_outputs_, fitted.n_iter_, fitted.t_) == (5, 1, 3, 270)
    assert fitted.loss_ == fitted.loss_curve_[-1]
    assert fitted.best_loss_ == min(fitted.loss_curve_)
    assert fitted.validation_scores_ is None
    assert fitted.best_validation_score_ is None
    assert (fitted.engine_, fitted.device_) == (available_engines()[0], "cpu")
    assert isinstance(fitted.model_, onnx.ModelProto)
    assert fitted.model_ == fitted.to_onnx()
    assert list(fitted.weights_) == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    fitted.weights_["layers.0.bias"][...] = 7  # a copy
    assert not (fitted.weights_["layers.0.bias"] == 7).any()


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "score"])
def test_nothing_works_before_fit(method):
    X, y = scaled_blobs()
    with pytest.raises(NotFittedError):
        getattr(small_classifier(), method)(*([X, y] if method == "score" else [X]))
    assert not hasattr(small_classifier(), "model_")
    assert not hasattr(small_classifier(), "weights_")
    with pytest.raises(NotFittedError):
        small_classifier().to_onnx()


def test_predict_proba_is_missing_without_probabilities():
    assert hasattr(small_classifier(), "predict_proba")
    assert not hasattr(small_classifier(loss="hinge"), "predict_proba")
    assert not hasattr(small_classifier(loss=losses.SquaredHinge()), "predict_proba")
    assert hasattr(small_classifier(loss=losses.Focal(1.0)), "predict_proba")
    fitted = small_classifier(max_iter=1).fit(*scaled_blobs())
    assert hasattr(fitted.set_params(loss="hinge"), "predict_proba")  # what was trained counts
    with pytest.raises(AttributeError, match="predict_proba"):
        _ = small_classifier(loss="hinge").predict_proba


@pytest.mark.parametrize(
    ("loss", "positive"),
    [("huber", False), ("poisson", True), ("gamma", True), (losses.Gamma(), True), ("unknown", False), (3, False)],
)
def test_tags_tell_of_targets_that_must_not_be_negative(loss, positive):
    assert get_tags(small_regressor(loss=loss)).target_tags.positive_only is positive


def test_parameters_are_stored_as_they_were_given():
    graph, optimizer, names = MLP((3,)).build(2, 1), SGD(), ["a"]
    estimator = OrtGradientClassifier(graph, optimizer=optimizer, trainable=names, learning_rate_init="nonsense")
    assert estimator.model is graph
    assert estimator.optimizer is optimizer
    assert estimator.trainable is names
    assert estimator.learning_rate_init == "nonsense"


def test_fit_changes_no_parameter_and_no_argument():
    X, y = scaled_blobs()
    graph = MLP((3,)).build(5, 1, 0)
    before, data = graph.SerializeToString(), X.copy()
    estimator = OrtGradientClassifier(graph, optimizer=SGD(momentum=0.9), max_iter=3)
    parameters = {name: repr(value) for name, value in estimator.get_params().items()}
    estimator.fit(X, y)
    assert graph.SerializeToString() == before
    assert_array_equal(X, data)
    assert {name: repr(value) for name, value in estimator.get_params().items()} == parameters


class TwoLayers(BaseBuilder):
    """A builder of one's own, with another input name, in float64."""

    def __init__(self, width: int = 4, surplus: int = 0) -> None:
        self.width = width
        self.surplus = surplus

    def build(self, n_features, n_outputs, random_state=None):
        rng, k = np.random.RandomState(0), n_outputs + self.surplus
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> g (double[N,{n_features}] rows) => (double[N,{k}] out)'
            "{ a = MatMul(rows, U) h = Tanh(a) out = MatMul(h, V) }"
        )
        for name, shape in (("U", (n_features, self.width)), ("V", (self.width, k))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape), name))
        return model


def test_user_defined_builder_trains():
    X, y = scaled_blobs(classes=3)
    fitted = OrtGradientClassifier(TwoLayers(6), learning_rate_init=0.05, max_iter=40, random_state=0).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert fitted.weights_["U"].shape == (5, 6)
    assert fitted.weights_["U"].dtype == np.float64
    with pytest.raises(ValueError, match=r"output has 5 column\(s\), but y has 3 classes"):
        OrtGradientClassifier(TwoLayers(6, surplus=2)).fit(X, y)


def test_nothing_is_warned_of_in_a_plain_fit():
    X, y = scaled_blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        OrtGradientClassifier(learning_rate_init=0.05, tol=1e-3, random_state=0).fit(X, y).predict_proba(X)
        OrtGradientRegressor(learning_rate_init=0.05, tol=1e-3, random_state=0).fit(X, y).predict(X)


class Untouched(str):
    """The name of an attribute that a look through all of them meets."""

    def endswith(self, *args: object) -> bool:
        raise AssertionError("another thread that fits the estimator may change its attributes meanwhile")


@pytest.mark.parametrize("make", [small_classifier, small_regressor])
def test_is_fitted_does_not_scan_attributes(make):
    X, y = scaled_blobs()
    estimator = make()
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    vars(estimator.fit(X, y))[Untouched("other")] = 0
    assert estimator.weights_
    assert len(estimator.predict(X.tolist())) == len(X)
    assert estimator.score(X, y) <= 1.0


@pytest.mark.parametrize("labels", [1, 2, 4, (2, 2), (3, 4)], ids=str)
def test_types_of_scores_and_probabilities_follow_the_data(labels):
    """Of 2, 3 and 5 classes, and of two labels a row."""
    X, _ = scaled_blobs()
    places = np.arange(len(X))
    y = places % (labels + 1) if isinstance(labels, int) else np.stack([places % k for k in labels], axis=1)
    fitted = small_classifier(max_iter=1).fit(X, y)
    for given, wanted in ((np.float32, np.float32), (np.float64, np.float64), (np.int64, np.float64)):
        for method in (fitted.decision_function, fitted.predict_proba):
            found = method(X.astype(given))
            assert {part.dtype for part in (found if isinstance(found, list) else [found])} == {np.dtype(wanted)}
