"""A run holds one graph: the form that is trained is derived from it, kept between calls, and left out of pickles."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, OrtGradientRegressor
from tests.helpers.data import line
from tests.helpers.training import weights_equal

X, Y = line()


def free() -> onnx.ModelProto:
    """Return a network whose input does not say how many columns it has: its trained form is another graph."""
    model = MLP((40,)).build(X.shape[1], 1, 0)
    del model.graph.input[0].type.tensor_type.shape.dim[1]
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "columns"
    return model


def in_training_mode() -> onnx.ModelProto:
    """Return a network with a BatchNormalization in training mode."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] z)
        { h, m, v = BatchNormalization <training_mode = 1> (X, scale, shift, mean, variance)  z = Gemm(h, W, b) }"""
    )
    arrays = {
        "scale": np.ones(4), "shift": np.zeros(4), "mean": np.zeros(4), "variance": np.ones(4), "W": np.ones((4, 1)),
        "b": np.zeros(1),
    }  # fmt: skip
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


GRAPHS = {
    "free columns": (free, {}),
    "training mode": (in_training_mode, {}),
    "frozen statistics": (in_training_mode, {"trainable": ["W", "b"]}),
}


def passed(case: str, passes: int = 1) -> OrtGradientRegressor:
    graph, parameters = GRAPHS[case]
    estimator = OrtGradientRegressor(graph(), batch_size=30, random_state=0, **parameters)
    for _ in range(passes):
        estimator.partial_fit(X, Y)
    return estimator


@pytest.mark.parametrize("case", GRAPHS)
def test_a_copy_goes_on_exactly(case):
    estimator = passed(case)
    copy = pickle.loads(pickle.dumps(estimator))
    assert copy._state.live.trained_form is None
    assert_array_equal(copy.predict(X), estimator.predict(X))
    assert copy._state.live.trained_form is None  # who predicts needs no other form
    assert weights_equal(copy.partial_fit(X, Y), estimator.partial_fit(X, Y))


@pytest.mark.parametrize("case", GRAPHS)
def test_later_call_keeps_the_graph_form(case):
    estimator = passed(case)
    form = estimator._state.live.trained_form
    assert estimator.partial_fit(X[:50], Y[:50])._state.live.trained_form is form


def test_another_choice_of_parameters_makes_another_form():
    estimator = passed("training mode")
    moving = estimator._state.trained_form.running_statistics
    estimator.set_params(trainable=["W", "b"]).partial_fit(X, Y)
    assert moving
    assert not estimator._state.trained_form.running_statistics


def test_a_pickle_holds_one_graph():
    state = passed("free columns").__getstate__()["_state"]["state"]
    inner = {name: value["state"] for name, value in state.items() if isinstance(value, dict) and "state" in value}
    graphs = [name for name, values in inner.items() if isinstance(values.get("model"), bytes)]
    assert graphs == ["graph"]
