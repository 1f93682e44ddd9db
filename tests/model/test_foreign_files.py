"""Heads of networks that others exported: the body stays to the bit, names stay, the exported file trains on.

The files come from PyTorch: a multilayer perceptron, a convolutional network, a residual network with
BatchNormalization in training mode, attention, and two towers of embeddings with three inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from onnxtrain_sklearn import GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@dataclass(frozen=True)
class Network:
    """An exported network: its trained parameters by glob pattern, and by name."""

    name: str
    patterns: tuple[str, ...]
    head: frozenset[str]

    @property
    def path(self) -> Path:
        return DATA / f"{self.name}.onnx"


NETWORKS = [
    Network("mlp", ("4.*",), frozenset({"4.weight", "4.bias"})),
    Network("lenet", ("f?.*",), frozenset({"f1.weight", "f1.bias", "f2.weight", "f2.bias"})),
    Network("residual_bn", ("f.*",), frozenset({"f.weight", "f.bias"})),
    Network("attention", ("f.*", "m2.bias"), frozenset({"f.weight", "f.bias", "m2.bias"})),
    Network("two_tower", ("o.*",), frozenset({"o.weight", "o.bias"})),
]
EACH = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
ENGINES = pytest.mark.parametrize("engine", available_engines())
BOTH = pytest.mark.skipif(len(available_engines()) < 2, reason="needs onnxruntime-training")


def rows_of_file(network):
    """Return X as the network's inputs take it, and y: the data that came with it, or enlarged digits."""
    if network.name == "lenet":
        digits = load_digits()
        images = np.pad(np.kron(digits.images[:128], np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))) / 16
        return images[:, None].astype(np.float32), digits.target[:128]
    with np.load(DATA / f"{network.name}.npz") as archive:
        inputs = {k: v.reshape(-1, *v.shape[2:]) for k, v in archive.items() if k.startswith("x")}
        y = archive["y"]
    regression = network.name == "two_tower"
    return (inputs if len(inputs) > 1 else inputs["x0"]), y.reshape(-1, 1)[:, 0] if regression else y.ravel()


def estimator(network, model=None, **settings):
    kind = OrtGradientRegressor if network.name == "two_tower" else OrtGradientClassifier
    defaults = {"learning_rate_init": 0.01, "max_iter": 3, "batch_size": 16, "random_state": 0}
    return kind(str(network.path) if model is None else model, **defaults | settings)


def tuned_network(network, engine, **settings):
    return estimator(network, trainable=list(network.patterns), engine=engine, **settings).fit(*rows_of_file(network))


def initializers(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def run_foreign(model, X, output):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = X if isinstance(X, dict) else {session.get_inputs()[0].name: X}
    return session.run([output], feeds)[0]


@EACH
@ENGINES
def test_the_head_is_trained_and_the_body_stays_to_the_bit(network, engine):
    given, trained = initializers(onnx.load(network.path)), tuned_network(network, engine)
    assert trained.engine_ == engine
    assert network.head < set(given)
    assert set(trained.weights_) == set(given)
    for name, array in given.items():
        now = trained.weights_[name]
        assert now.dtype == array.dtype
        if name in network.head:
            assert (now != array).mean() > 0.9, name
        else:
            assert_array_equal(now, array, err_msg=name)
    assert trained.loss_curve_[-1] < trained.loss_curve_[0]


@EACH
@ENGINES
def test_the_exported_file_has_the_same_body_names_and_inputs(network, engine):
    given, trained = onnx.load(network.path), tuned_network(network, engine)
    exported = onnx.load_model_from_string(trained.to_onnx().SerializeToString())
    onnx.checker.check_model(exported, full_check=True)
    before, after = initializers(given), initializers(exported)
    missing = set(before) - set(after)
    assert not missing
    for name, array in before.items():
        assert_array_equal(after[name], trained.weights_[name] if name in network.head else array, err_msg=name)
    assert list(exported.graph.input) == list(given.graph.input)
    expected = ["scores"] if network.name == "two_tower" else ["label", "probabilities"]
    assert [output.name for output in exported.graph.output] == expected
    assert {(o.domain, o.version) for o in exported.opset_import} == {(o.domain, o.version) for o in given.opset_import}


@EACH
@ENGINES
def test_the_exported_file_gives_the_predictions_and_trains_on(network, engine, tmp_path):
    X, y = rows_of_file(network)
    trained = tuned_network(network, engine)
    model, last = trained.to_onnx(), "scores" if network.name == "two_tower" else "probabilities"
    found = run_foreign(model, X, last)
    predicted = trained.predict(X) if last == "scores" else trained.predict_proba(X)
    found = found.ravel() if last == "scores" else found
    assert_allclose(found, predicted, rtol=0, atol=1e-7)  # of tokens, probabilities are computed in float64
    onnx.save(model, tmp_path / "tuned.onnx")
    given = GraphModel(tmp_path / "tuned.onnx", last)
    again = estimator(network, given, trainable=list(network.patterns), engine=engine).fit(X, y)
    assert set(again.weights_) == set(trained.weights_)
    for name, array in trained.weights_.items():
        if name in network.head:
            assert (again.weights_[name] != array).mean() > 0.9, name
        else:
            assert_array_equal(again.weights_[name], array, err_msg=name)
    assert again.loss_curve_[0] < trained.loss_curve_[0]
    assert again.loss_curve_[-1] < trained.loss_curve_[-1]


@BOTH
@EACH
def test_both_engines_train_the_same_head(network):
    first, second = (tuned_network(network, engine).weights_ for engine in available_engines())
    for name in network.head:
        assert_allclose(second[name], first[name], rtol=0, atol=1e-5, err_msg=name)


@EACH
def test_given_file_is_unchanged(network):
    before = network.path.read_bytes()
    tuned_network(network, "auto", max_iter=1)
    assert network.path.read_bytes() == before


def test_head_with_frozen_statistics_equals_head_of_features():
    """With all of a body frozen, its head is a linear model on what the body gives: the statistics do not move it."""
    network = next(n for n in NETWORKS if n.name == "residual_bn")
    X, y = rows_of_file(network)
    start = estimator(network, trainable=["f.*"], learning_rate_init=0, max_iter=1).fit(X, y)
    together = start.predict_proba(X)
    assert_allclose(start.predict_proba(X[:1]), together[:1], rtol=1e-5)
    assert_allclose(start.loss_, -np.log(together[np.arange(len(y)), y]).mean(), rtol=1e-5)


@BOTH
def test_head_trains_behind_unsupported_body():
    network = next(n for n in NETWORKS if n.name == "two_tower")
    with pytest.raises(UnsupportedOperatorError, match="Elu"):
        estimator(network, engine="ort-training").fit(*rows_of_file(network))
    assert tuned_network(network, "ort-training").engine_ == "ort-training"
