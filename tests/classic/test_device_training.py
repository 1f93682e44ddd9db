"""Estimators whose training goes on on devices and comes back."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, SGD, Adam, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import SnapshotEnsemble
from onnxtrain_sklearn.classic.artifacts import read_checkpoint
from onnxtrain_sklearn.classic.optimizers import OrtAdamW
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss
from tests.classic.test_artifacts import FILES, OnDevice
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training
from tests.helpers.sessions import evaluate

RNG = np.random.default_rng(11)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (np.tanh(X @ RNG.normal(size=(4, 3))) + 0.1 * RNG.normal(size=(60, 3))).astype(np.float32)
LABELS = np.array(["a", "b", "c"])[Y.argmax(axis=1)]
RATE = {"learning_rate_init": 0.01, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

CASES = {
    "regression": (OrtGradientRegressor(MLP(5), **RATE), Y, Y),
    "one target": (OrtGradientRegressor(MLP(5), loss="huber", optimizer=SGD(), **RATE), Y[:, 0], Y[:, :1]),
    "counts": (OrtGradientRegressor(Linear(), loss="poisson", **RATE), np.exp(Y[:, 0]), np.exp(Y[:, :1])),
    "two classes": (OrtGradientClassifier(MLP(5), optimizer=Adam(), **RATE), Y[:, 0] > 0, (Y[:, :1] > 0) * 1.0),
    "several classes": (OrtGradientClassifier(MLP(5), **RATE), LABELS, Y.argmax(axis=1)),
    "several labels": (OrtGradientClassifier(MLP(5), **RATE), (Y > 0).astype(int), (Y > 0) * 1.0),
    "clipped": (OrtGradientRegressor(MLP(5), optimizer=SGD(max_grad_norm=0.1), **RATE), Y, Y),
    "the official AdamW": (OrtGradientRegressor(MLP(5), optimizer=OrtAdamW(weight_decay=0.1), **RATE), Y, Y),
    "float64": (OrtGradientRegressor(Linear(), optimizer=AdamW(weight_decay=0.1), **RATE), Y, Y),
}


def trained_network(name):
    estimator, y, target = CASES[name]
    target = target if name == "several classes" else target.astype(np.float32)
    return clone(estimator).set_params(max_iter=3).fit(X.astype(float) if name == "float64" else X, y), target


@needs_training
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", CASES)
def test_a_device_goes_on_and_the_weights_come_back(tmp_path, name, engine):
    estimator, target = trained_network(name)
    estimator.set_params(engine=engine).export_artifacts(tmp_path)
    device = OnDevice(tmp_path, 0.01)
    y = CASES[name][1]
    fresh, _ = trained_network(name)
    fresh.load_checkpoint(tmp_path / "checkpoint")  # which is without the optimizer's state, as the device begins
    for _ in range(30):
        value, scores = device.step(X, target)
        fresh.partial_fit(X, y)
        np.testing.assert_allclose(value, fresh.loss_, rtol=1e-3)
    assert scores.shape[0] == 60
    device.save(tmp_path / "trained", optimizer=True)
    before = estimator.predict(X)
    assert estimator.load_checkpoint(tmp_path / "trained") is estimator
    for weight, array in fresh.weights_.items():
        np.testing.assert_allclose(estimator.weights_[weight], array, rtol=0, atol=1e-4)
    if np.asarray(before).dtype.kind == "f":
        assert np.abs(estimator.predict(X) - before).max() > 0
    estimator.partial_fit(X, y)  # with the optimizer's state of the device
    fresh.partial_fit(X, y)
    for weight, array in fresh.weights_.items():
        np.testing.assert_allclose(estimator.weights_[weight], array, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", CASES)
def test_the_evaluation_model_computes_the_loss(tmp_path, name, engine):
    estimator, target = trained_network(name)
    estimator.set_params(engine=engine).export_artifacts(tmp_path, prefix="net_")
    checkpoint = read_checkpoint(tmp_path / "net_checkpoint")
    for weight, array in estimator.weights_.items():
        np.testing.assert_allclose(checkpoint[weight], array, rtol=1e-6)
    for file in FILES:
        assert (tmp_path / f"net_{file}.onnx").exists()
    model = onnx.load(tmp_path / "net_eval_model.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    data, label = (v.name for v in model.graph.input[:2])
    assert label == ("labels" if name == "several classes" else "target")
    (value,) = session.run(["loss"], {data: X, label: target, **checkpoint})
    again = OrtGradientClassifier if hasattr(estimator, "classes_") else OrtGradientRegressor
    assert again
    first = estimator.partial_fit(X, CASES[name][1]).loss_
    np.testing.assert_allclose(value, first, rtol=1e-4)


def test_a_checkpoint_replaces_snapshots_and_its_weights_must_be_finite(tmp_path):
    settings = {"learning_rate_init": 0.05, "max_iter": 6, "n_iter_no_change": np.inf, "random_state": 0}
    averaged = OrtGradientRegressor(MLP(5), callbacks=[SnapshotEnsemble(3)], **settings).fit(X, Y)
    other = OrtGradientRegressor(MLP(5), **settings | {"random_state": 1, "alpha": 0.0}).fit(X, Y)
    other.export_artifacts(tmp_path / "other")
    predictions = averaged.load_checkpoint(tmp_path / "other" / "checkpoint").predict(X)
    np.testing.assert_array_equal(predictions, other.predict(X))
    other._state.parameters.buffer[0] = np.nan
    other.export_artifacts(tmp_path / "diverged")
    with pytest.raises(ModelError, match="NaN or infinite"):
        averaged.load_checkpoint(tmp_path / "diverged" / "checkpoint")
    np.testing.assert_array_equal(averaged.predict(X), predictions)


def test_frozen_parameters_stay(tmp_path):
    estimator = OrtGradientRegressor(MLP(5), trainable=["*weight*"], **RATE).fit(X, Y)
    estimator.export_artifacts(tmp_path)
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.frozen
    assert set(checkpoint.trained) == set(estimator._state.parameters.names)


def test_a_fitted_pipeline(tmp_path):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    estimator = OrtGradientClassifier(pipeline, finetune=None, **RATE).fit(X, LABELS)
    estimator.export_artifacts(tmp_path)
    before = estimator.predict_proba(X)
    estimator.partial_fit(X, LABELS)
    np.testing.assert_allclose(estimator.load_checkpoint(tmp_path / "checkpoint").predict_proba(X), before, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"alpha": 0.1}, "no penalty on weights, but alpha=0.1"),
        ({"optimizer": SGD(momentum=0.9)}, "SGD without momentum"),
        ({"optimizer": Adam(weight_decay=0.1)}, "Adam without weight decay"),
        ({"optimizer": "rmsprop"}, "not RMSprop"),
        ({"optimizer": "lbfgs"}, "not LBFGS"),
    ],
)
def test_unsupported_device_features_are_refused(tmp_path, settings, match):
    estimator = OrtGradientRegressor(Linear(), **RATE).fit(X, Y).set_params(**settings)
    with pytest.raises(ValueError, match=match):
        estimator.export_artifacts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_other_models_are_refused(tmp_path):
    other = OrtGradientRegressor(MLP(7), **RATE).fit(X, Y)
    other.export_artifacts(tmp_path / "other")
    estimator = OrtGradientRegressor(MLP(5), **RATE).fit(X, Y)
    before = estimator.weights_
    with pytest.raises(ValueError, match="of another model"):
        estimator.load_checkpoint(tmp_path / "other" / "checkpoint")
    part = OrtGradientRegressor(MLP(5), trainable=["*weight*"], **RATE).fit(X, Y)
    part.export_artifacts(tmp_path / "part")
    (tmp_path / "file").write_bytes(b"none")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        estimator.load_checkpoint(tmp_path / "file")
    for name, array in estimator.weights_.items():
        np.testing.assert_array_equal(array, before[name])


def test_before_fit(tmp_path):
    for call in (OrtGradientRegressor().export_artifacts, OrtGradientRegressor().load_checkpoint):
        with pytest.raises(ValueError, match="not fitted"):
            call(tmp_path)


class SumOfSquares(Loss):
    """The sum over the rows, written as a mean of losses that are multiplied by their number."""

    def __init__(self, in_graph=True):
        self.in_graph = in_graph

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, y)
        rows = op.Cast(op.Shape(scores, start=0, end=1), to=op.dtype) if self.in_graph else op.shape(scores)[0]
        return op.Mul(op.Mul(error, error), rows if self.in_graph else float(rows))


@pytest.mark.parametrize("engine", available_engines())
def test_loss_that_reads_the_number_of_rows(tmp_path, engine):
    settings = {"optimizer": SGD(), "batch_size": 20, "max_iter": 1, "engine": engine, "target_scaling": None, **RATE}
    estimator = OrtGradientRegressor(Linear(), loss=SumOfSquares(), **settings).fit(X, Y)
    estimator.export_artifacts(tmp_path)
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    inputs = {value.name for value in evaluation.graph.input}
    given = {name: array for name, array in estimator.weights_.items() if name in inputs}
    for rows in (7, 20):
        loss = evaluate(evaluation, X=X[:rows], target=Y[:rows].astype(np.float32), **given)[0]
        expected = ((estimator.predict(X[:rows]) - Y[:rows]) ** 2).mean(axis=1).sum()
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
    estimator = OrtGradientRegressor(Linear(), loss=SumOfSquares(in_graph=False), **settings).fit(X, Y)
    with pytest.raises(ModelError, match=r"any number of rows, for which SumOfSquares emits no loss\. .* op\.Shape"):
        estimator.export_artifacts(tmp_path / "other")
