"""Blocks as losses of the estimators: equal to the losses by name, weights, several outputs, and what is refused."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import SGD, GraphModel, Linear, OrtGradientClassifier, OrtGradientRegressor, losses
from onnxtrain_sklearn.classic import onnxblock
from tests.classic.test_onnxblock import WeightedAverageLoss
from tests.helpers.environment import available_engines

RNG = np.random.default_rng(4)
X = RNG.normal(size=(53, 3)).astype(np.float32)
TRUE = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0], [2.0, 0.0, -1.0]], np.float32)
Y = (X @ TRUE + [0.5, -1.0, 2.0]).astype(np.float32)
ENGINES = available_engines()
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SETTINGS = {"optimizer": SGD(), "learning_rate_init": 0.1, "random_state": 0, "batch_size": 20, "max_iter": 5}


def two_outputs():
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        two (float[N, 3] X) => (float[N, 2] Y1, float[N, 1] Y2)
        <float[3, 2] W1 = {0, 0, 0, 0, 0, 0}, float[2] b1 = {0, 0}, float[3, 1] W2 = {0, 0, 0}, float[1] b2 = {0}> {
            Z1 = MatMul(X, W1) Y1 = Add(Z1, b1) Z2 = MatMul(X, W2) Y2 = Add(Z2, b2) }""")


def assert_same_estimators(a, b):
    for name, array in a.weights_.items():
        np.testing.assert_allclose(array, b.weights_[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a.loss_curve_, b.loss_curve_, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("block", "name"), [(onnxblock.loss.MSELoss(), "squared_error"), (onnxblock.loss.L1Loss(), "absolute_error")]
)
def test_blocks_train_as_the_losses_by_name(block, name, engine):
    weights = RNG.uniform(size=len(X))
    found = [
        OrtGradientRegressor(Linear(), loss=loss, engine=engine, target_scaling=None, **SETTINGS).fit(
            X, Y, sample_weight=weights
        )
        for loss in (block, name)
    ]
    assert_same_estimators(*found)


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_of_classifiers(engine):
    block, labels = onnxblock.loss.CrossEntropyLoss(), Y.argmax(axis=1)
    found = [
        OrtGradientClassifier(Linear(), loss=loss, class_weight={1: 3.0}, engine=engine, **SETTINGS).fit(X, labels)
        for loss in (block, "log_loss")
    ]
    assert_same_estimators(*found)
    np.testing.assert_allclose(found[0].predict_proba(X).sum(axis=1), 1, rtol=1e-5)
    block = onnxblock.loss.BCEWithLogitsLoss()
    for target in (Y[:, 0] > 0, Y > 0):
        found = [
            OrtGradientClassifier(Linear(), loss=loss, engine=engine, **SETTINGS).fit(X, target.astype(int))
            for loss in (block, "log_loss")
        ]
        assert_same_estimators(*found)
        assert found[0].predict_proba(X).min() > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_documented_weighted_loss_trains_two_outputs(engine):
    settings = {**SETTINGS, "max_iter": 100, "tol": 0.0}
    regressor = OrtGradientRegressor(two_outputs(), loss=WeightedAverageLoss(), engine=engine, **settings).fit(X, Y)
    np.testing.assert_allclose(regressor.predict(X), Y, atol=0.02)
    assert regressor.score(X, Y) > 0.999
    np.testing.assert_allclose(regressor.weights_["W2"], TRUE[:, 2:], atol=0.02)
    copy = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(copy.predict(X), regressor.predict(X))
    (output,) = regressor.to_onnx().graph.output
    assert output.name == "outputs"


def test_the_loss_of_two_outputs_is_weighted_as_the_block_says():
    regressor = OrtGradientRegressor(two_outputs(), loss=WeightedAverageLoss(), **{**SETTINGS, "max_iter": 1})
    weights = np.linspace(0, 1, 53)
    regressor.set_params(batch_size=53).fit(X, Y, sample_weight=weights)
    first = np.average((Y[:, :2] ** 2).mean(axis=1), weights=weights)
    second = np.average(Y[:, 2] ** 2, weights=weights)
    np.testing.assert_allclose(regressor.loss_, 0.4 * first + 0.6 * second, rtol=1e-4)


def test_one_output_of_two_by_name():
    regressor = OrtGradientRegressor(GraphModel(two_outputs(), output="Y2"), loss=onnxblock.loss.MSELoss(), **SETTINGS)
    assert regressor.fit(X, Y[:, 2]).predict(X).shape == (53,)


def test_partial_fit_clone_and_description():
    regressor = clone(OrtGradientRegressor(two_outputs(), loss=WeightedAverageLoss(), **SETTINGS))
    assert "W1" in str(regressor.describe())
    first = regressor.partial_fit(X, Y).loss_
    assert regressor.partial_fit(X, Y).loss_ < first


def test_float64():
    regressor = OrtGradientRegressor(Linear(), loss=onnxblock.loss.MSELoss(), **SETTINGS).fit(X.astype(float), Y)
    assert np.isfinite(regressor.loss_)


class RootMeanSquare(onnxblock.Block):
    def build(self, name):
        return onnxblock.blocks.Pow(0.5)(onnxblock.loss.MSELoss()(name))


class Raw(onnxblock.Block):
    """Reduces by a node of its own, which knows no rows."""

    def build(self, name):
        target = onnxblock.blocks.InputLike(name)("target")
        difference = onnxblock.blocks.Sub()(name, target)
        node = onnx.helper.make_node("ReduceMean", [difference], ["mean"], keepdims=0, name="mean")
        self.base.graph.node.append(node)
        return "mean"


@pytest.mark.parametrize(
    "block", [onnxblock.loss.MSELoss("sum"), RootMeanSquare(), Raw(), onnxblock.loss.MSELoss("none")]
)
def test_blocks_that_are_no_mean_over_rows_are_refused(block):
    with pytest.raises(ValueError, match="is not a mean over rows"):
        OrtGradientRegressor(Linear(), loss=block, **SETTINGS).fit(X, Y)


def test_weights_of_classes_are_the_estimators():
    block = onnxblock.loss.CrossEntropyLoss(weight=np.array([1, 2, 5], np.float32))
    with pytest.raises(ValueError, match="class weights as the estimator's class_weight"):
        OrtGradientClassifier(Linear(), loss=block, **SETTINGS).fit(X, Y.argmax(axis=1))
    with pytest.raises(ValueError, match="take BCEWithLogitsLoss"):
        OrtGradientClassifier(Linear(), loss=onnxblock.loss.CrossEntropyLoss(), **SETTINGS).fit(X, Y[:, 0] > 0)


def test_a_block_class_is_no_loss():
    with pytest.raises(TypeError, match=r"got the class MSELoss; give an instance: MSELoss\(\)"):
        OrtGradientRegressor(Linear(), loss=onnxblock.loss.MSELoss).fit(X, Y)


def test_targets_that_do_not_fit():
    with pytest.raises(ValueError, match="column"):
        OrtGradientRegressor(two_outputs(), loss=WeightedAverageLoss(), **SETTINGS).fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="missing 1 required positional argument"):
        OrtGradientRegressor(Linear(), loss=WeightedAverageLoss(), **SETTINGS).fit(X, Y)


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor])
def test_the_type_hint_of_loss_admits_blocks(kind):
    hint = eval(inspect.signature(kind).parameters["loss"].annotation, dict(vars(losses)))
    assert isinstance(onnxblock.loss.MSELoss(), hint)
    assert not isinstance(3, hint)
