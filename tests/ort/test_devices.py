"""Training on execution providers other than the CPU's gives what the CPU gives; each is tested where it is."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    Runtime,
)
from tests.helpers.data import DATA
from tests.helpers.several_outputs import KINDS, data, graph
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PROVIDERS = {
    "OpenVINOExecutionProvider": ({"runtime": Runtime(providers=["OpenVINOExecutionProvider"])}, 1e-4),
    "CUDAExecutionProvider": ({"device": "cuda"}, 1e-3),
}
DIGITS, LABELS = load_digits(return_X_y=True)
X, y = (DIGITS[:400] / 16).astype(np.float32), LABELS[:400]

INPUTS = {"a": (1, 4), "b": (3, 1)}
SETTINGS = {
    "adamw": {"optimizer": "adamw", "learning_rate_init": 0.01},
    "sgd": {"optimizer": SGD(momentum=0.9, nesterov=True), "learning_rate_init": 0.1},
    "penalty and clipping": {"alpha": 0.1, "optimizer__max_grad_norm": 0.5, "learning_rate_init": 0.01},
    "lbfgs": {"optimizer": LBFGS()},
}


@pytest.fixture(params=PROVIDERS)
def provider(request):
    if request.param not in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {request.param}")
    return PROVIDERS[request.param]


def device_classifier(**settings):
    return configured(
        OrtGradientClassifier(),
        **{"model": MLP((24,)), "max_iter": 5, "batch_size": 64, "random_state": 0, "engine": "portable"} | settings,
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_ends_as_on_the_cpu(settings, provider):
    where, tolerance = provider
    host, other = device_classifier(**settings).fit(X, y), device_classifier(**settings, **where).fit(X, y)
    assert other.device_ == where.get("device", "cpu")
    assert_allclose(other.loss_curve_, host.loss_curve_, rtol=tolerance)
    for name, array in host.weights_.items():
        assert_allclose(other.weights_[name], array, rtol=0, atol=10 * tolerance, err_msg=name)
    assert_allclose(other.predict_proba(X), host.predict_proba(X), rtol=0, atol=10 * tolerance)
    assert (other.predict(X) == host.predict(X)).mean() > 0.99


def test_regression_and_validation(provider):
    where, tolerance = provider
    settings = {"model": MLP((8,)), "max_iter": 8, "early_stopping": True, "random_state": 0, "engine": "portable"}
    host, other = (configured(OrtGradientRegressor(), **settings, **more).fit(X, X.sum(1)) for more in ({}, where))
    assert_allclose(other.validation_scores_, host.validation_scores_, rtol=0.01, atol=10 * tolerance)
    assert_allclose(other.predict(X), host.predict(X), rtol=0.01, atol=0.01)


NETWORKS = {
    "lenet": "convolutions, whose kernels must be aligned in the memory of a device",
    "residual_bn": "batch normalization, whose statistics a device moves",
    "encoder": "gradients that are broadcast along two axes before they are added",
    "lstm": "loops",
    "attention": "lookups in a table",
}


NOT_LOADED = {"lstm", "attention"}
"""Networks that OpenVINO refuses to load, with a message of its own."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, provider):
    where, tolerance = provider
    if "runtime" in where and name in NOT_LOADED:
        pytest.skip("OpenVINO does not load this network")
    known = np.load(DATA / f"{name}.npz")
    rows, labels = (known["X"], known["y"]) if "X" in known else (np.concatenate(known["x0"]), known["y"].ravel())
    settings = {"optimizer": SGD(), "learning_rate_init": 0.05, "max_iter": 2, "batch_size": 20, "random_state": 0}
    host, other = (
        configured(
            OrtGradientClassifier(
                str(DATA / f"{name}.onnx"),
                engine="portable",
            ),
            **settings,
            **more,
        ).fit(rows, labels)
        for more in ({}, where)
    )
    assert_allclose(other.loss_curve_, host.loss_curve_, rtol=tolerance)
    for key, array in host.weights_.items():
        assert_allclose(other.weights_[key], array, rtol=0, atol=tolerance, err_msg=key)
    assert_allclose(other.predict_proba(rows), host.predict_proba(rows), rtol=0, atol=tolerance)


@pytest.mark.parametrize("operator", ["Sum", "Max", "Min"])
def test_operands_that_are_broadcast_along_different_axes(operator, provider):
    where, tolerance = provider
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 1, 4] a, float[N, 3, 1] b) => (float[N, 12] y)
        <float[3, 4] c = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, int64[2] flat = {0, 12}>
        { s = OPERATOR(a, c, b) y = Reshape(s, flat) }""".replace("OPERATOR", operator)
    )
    rng = np.random.default_rng(0)
    rows = {name: 5 + 3 * rng.normal(size=(50, *shape)).astype(np.float32) for name, shape in INPUTS.items()}
    settings = {"optimizer": SGD(), "max_iter": 3, "batch_size": 16, "random_state": 0, "engine": "portable"}
    targets = np.zeros((50, 12))
    host, other = (
        configured(
            OrtGradientRegressor(
                graph,
            ),
            **settings,
            **more,
        ).fit(rows, targets)
        for more in ({}, where)
    )
    assert_allclose(other.weights_["c"], host.weights_["c"], rtol=tolerance)
    assert_allclose(other.predict(rows), host.predict(rows), rtol=tolerance)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_several_outputs(early_stopping, provider):
    where, tolerance = provider
    rows, targets = data(60)
    settings = {
        "max_iter": 5,
        "batch_size": 16,
        "random_state": 0,
        "engine": "portable",
        "early_stopping": early_stopping,
    }
    losses = {name: kind.loss for name, kind in KINDS.items()}
    weights = {"number": np.arange(60) % 3, "class": np.arange(60) % 2}
    host, other = (
        configured(
            OrtGradientMultiOutput(
                graph(list(KINDS)),
                loss=losses,
            ),
            **settings,
            **more,
        ).fit(rows, targets, weights)
        for more in ({}, where)
    )
    assert_allclose(other.loss_curve_, host.loss_curve_, rtol=tolerance)
    assert_allclose(other.validation_scores_, host.validation_scores_, rtol=0.01) if early_stopping else None
    for name, array in host.weights_.items():
        assert_allclose(other.weights_[name], array, rtol=0, atol=10 * tolerance, err_msg=name)
    for name, own in host.predict(rows).items():
        assert own.dtype.kind in "Ui" or np.allclose(other.predict(rows)[name], own, atol=0.01), name
    twin = pickle.loads(pickle.dumps(other))
    assert_array_equal(twin.predict(rows)["number"], other.predict(rows)["number"])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_there(how, provider):
    fitted = device_classifier(**provider[0]).partial_fit(X, y, classes=np.arange(10))
    twin = how(fitted)
    assert_array_equal(twin.predict_proba(X), fitted.predict_proba(X))
    assert_allclose(twin.partial_fit(X, y).predict_proba(X), fitted.partial_fit(X, y).predict_proba(X), atol=1e-6)


def test_the_exported_graph_runs_on_the_cpu(provider):
    where, tolerance = provider
    fitted = device_classifier(**where).fit(X, y)
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    probabilities = session.run(["probabilities"], {session.get_inputs()[0].name: X})[0]
    assert_allclose(probabilities, fitted.predict_proba(X), rtol=0, atol=10 * tolerance)
