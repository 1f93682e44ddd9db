"""Operators of a library: a body that has them stays as it is, and what follows is trained.

Two libraries stand for all: onnxruntime-extensions, where it is installed, and one that is put in the place of
onnxruntime's own functions, which every session must have been given.
"""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, Runtime
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.sessions import forget_libraries, replace_registration

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LIBRARY_OPTION = "register_custom_ops_library"
RNG = np.random.RandomState(0)
X = RNG.standard_normal((40, 3)).astype(np.float32)
PARTS = np.hstack([np.minimum(X, 0), np.maximum(X, 0)]).astype(np.float64)
W = RNG.standard_normal((6, 1)).astype(np.float32)
STEP = {"optimizer": "sgd", "learning_rate_init": 0.1, "batch_size": 40, "max_iter": 1, "target_scaling": None}


def network(body="a, b = ai.onnx.contrib.NegPos(X)", **weights):
    """Return a linear model of the negative and the positive parts of the inputs, which an operator separates."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.contrib": 1]>
        net (float[N, 3] X) => (float[N, 1] Y) {{ {body} c = Concat<axis = 1>(a, b) Y = MatMul(c, W) }}""")
    weights = {"W": W, **weights}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


class Stand:
    """Sessions that know the operator only where the library was given to their options."""

    path = "/stand/in/for/a/library.so"

    def __init__(self):
        self.given = []

    def register(self, settings, path):
        self.given.append(settings)

    def session(self, model, settings, **more):
        proto = onnx.load_model_from_string(model)
        found = [node for node in proto.graph.node if node.domain == "ai.onnx.contrib"]
        if found and not any(settings is one for one in self.given):
            raise RuntimeError("Fatal error: ai.onnx.contrib:NegPos(-1) is not a registered function/op")
        nodes = list(proto.graph.node)
        for node in found:
            place, positive = nodes.index(node), onnx.helper.make_node("Relu", node.input, node.output[1:])
            negative = onnx.helper.make_node("Sub", [node.input[0], node.output[1]], node.output[:1])
            nodes[place : place + 1] = [positive, negative]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        return self.real(proto.SerializeToString(), settings, **more)

    real = staticmethod(onnxruntime.InferenceSession)


@pytest.fixture(params=["stand-in", "extensions"])
def library(request, monkeypatch):
    """Return the path of a library, and the function that creates a session that has it."""
    forget_libraries(monkeypatch)
    if request.param == "stand-in":
        stand = Stand()
        replace_registration(monkeypatch, stand.register)
        monkeypatch.setattr(onnxruntime, "InferenceSession", stand.session)
        options = onnxruntime.SessionOptions()
        stand.register(options, stand.path)
        return stand.path, partial(stand.session, settings=options, providers=["CPUExecutionProvider"])
    path = pytest.importorskip("onnxruntime_extensions").get_library_path()
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(path)
    return path, partial(onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"])


def test_a_head_is_trained_behind_the_operator(library, monkeypatch):
    path, session = library
    y = X[:, 0].astype(np.float64)
    fitted = OrtGradientRegressor(network(), runtime=Runtime(session_options={LIBRARY_OPTION: path}), **STEP).fit(X, y)
    expected = W.ravel() - 0.1 * 2 * PARTS.T @ (PARTS @ W.ravel() - y) / 40
    assert_allclose(fitted.weights_["W"].ravel(), expected, rtol=1e-4, atol=1e-6)
    assert_allclose(fitted.predict(X), PARTS @ expected, rtol=1e-4, atol=1e-5)
    assert fitted.describe().compared.startswith("file as given compared")
    (exported,) = session(fitted.to_onnx().SerializeToString()).run(None, {"X": X})
    assert_allclose(exported.ravel(), fitted.predict(X), rtol=1e-6)
    forget_libraries(monkeypatch)  # as in a process that was told of no library
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_more_than_a_linear_head(library):
    """Minibatches of unequal size, a hidden layer, classes, and validation rows."""
    path, _ = library
    y = np.where(np.abs(X[:, 0]) > 0.7, "far", "near")
    body = "a, b = ai.onnx.contrib.NegPos(X)"
    proto = network(body)
    proto.graph.node[-1].output[0] = "h"
    proto.graph.node.extend(
        [onnx.helper.make_node("Tanh", ["h"], ["t"]), onnx.helper.make_node("MatMul", ["t", "V"], ["Y"])]
    )
    held = {"W": RNG.standard_normal((6, 5)).astype(np.float32), "V": RNG.standard_normal((5, 1)).astype(np.float32)}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in held.items())
    settings = {
        "runtime": Runtime(session_options={LIBRARY_OPTION: [path]}),
        "random_state": 0,
        "batch_size": 16,
    }
    fitted = OrtGradientClassifier(proto, max_iter=60, learning_rate_init=0.05, early_stopping=True, **settings)
    assert fitted.fit(X, y).loss_curve_[-1] < 0.8 * fitted.loss_curve_[0]
    hidden = np.tanh(PARTS @ fitted.weights_["W"])
    assert_allclose(fitted.decision_function(X), (hidden @ fitted.weights_["V"]).ravel(), rtol=1e-4, atol=1e-4)


def test_gradients_do_not_pass_the_operator(library):
    path, _ = library
    deeper = network("h = MatMul(X, U) a, b = ai.onnx.contrib.NegPos(h)", U=np.eye(3, dtype=np.float32))
    settings = {"runtime": Runtime(session_options={LIBRARY_OPTION: path}), **STEP}
    with pytest.raises(UnsupportedOperatorError, match="NegPos"):
        OrtGradientRegressor(deeper, **settings).fit(X, X[:, 0])
    fitted = OrtGradientRegressor(deeper, trainable="W", **settings).fit(X, X[:, 0])
    held = {one.name: onnx.numpy_helper.to_array(one) for one in fitted.to_onnx().graph.initializer}
    assert_array_equal(held["U"], np.eye(3))
    assert_array_equal(held["W"], fitted.weights_["W"])
    assert not np.array_equal(fitted.weights_["W"], W)


def test_an_unknown_operator_names_the_option(library):
    with pytest.raises(ModelError, match=r"NegPos.*session_options=\{'register_custom_ops_library': path\}"):
        OrtGradientRegressor(network(), **STEP).fit(X, X[:, 0])


def test_libraries_that_cannot_be_loaded():
    for given, error, message in (
        ("/no/such/library.so", ModelError, "cannot load the library of custom operators '/no/such/library.so'"),
        ([3], TypeError, "must be the path of a library, or a list of paths"),
    ):
        model = OrtGradientRegressor(network(), runtime=Runtime(session_options={LIBRARY_OPTION: given}))
        with pytest.raises(error, match=message):
            model.fit(X, X[:, 0])
        assert not hasattr(model, "loss_")
