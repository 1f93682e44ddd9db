"""Graphs of float64 are trained in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.sessions import session as session_of
from tests.helpers.steps import data, fill, mlp, new_step
from tests.helpers.training import quietly


def double(activation):
    """A graph of float64, with weights that float32 cannot hold."""
    proto = mlp(activation="tanh" if activation == "softmax" else activation)
    for node in proto.graph.node:
        node.op_type = "Softmax" if node.op_type == "Tanh" and activation == "softmax" else node.op_type
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for initializer in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer).astype(np.float64) * np.pi / 3
        initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto


REFERENCES = {"tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0)}


def squared_error(arrays, X, y, activation):
    hidden = REFERENCES[activation](X @ arrays["layers.0.weight"] + arrays["layers.0.bias"])
    return np.mean((hidden @ arrays["layers.1.weight"] + arrays["layers.1.bias"] - y[:, None]) ** 2)


@pytest.mark.parametrize("activation", ["tanh", "logistic"])
def test_float64_gradients_have_float64_precision(activation):
    X, y = (array.astype(np.float64) * 1.1 for array in data())
    step = new_step(double(activation), batch=8)
    assert step.parameters.vector.dtype == np.float64
    arrays = step.parameters.weights()
    assert_allclose(step.compute_gradients(fill(step, X, y)), squared_error(arrays, X, y, activation), rtol=1e-13)
    for name, array in arrays.items():
        slopes = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            changed = {sign: array.copy() for sign in (1, -1)}
            for sign, copy in changed.items():
                copy[index] += sign * 1e-5
            values = [squared_error(arrays | {name: changed[sign]}, X, y, activation) for sign in (1, -1)]
            slopes[index] = (values[0] - values[1]) / 2e-5
        assert_allclose(step.parameters.gradient_view(name), slopes, rtol=0, atol=1e-9, err_msg=name)


@each_engine
@pytest.mark.parametrize("activation", ["tanh", "relu", "softmax"])
def test_float64_graphs_give_float64_back(activation, engine):
    X, y = (array.astype(np.float64) for array in data(40))
    proto = double(activation)
    regressor = OrtGradientRegressor(proto, learning_rate_init=0.05, max_iter=3, random_state=0, engine=engine)
    quietly(regressor.fit, X, y)
    lacking = engine == "ort-training" and activation == "softmax"  # its gradient has no float64 kernel there
    trained = np.float32 if lacking else np.float64
    assert regressor._state.parameters.vector.dtype == trained
    assert {array.dtype for array in regressor.weights_.values()} == {np.dtype(np.float64)}
    exported = regressor.to_onnx()
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    session = session_of(exported)
    assert_array_equal(regressor.predict(X), session.run(None, {"X": X})[0].ravel())
    assert regressor.predict(X).dtype == np.float64


@pytest.mark.parametrize("activation", ["tanh", "relu", "softmax"])
def test_float64_frozen_parameters_keep_every_bit(activation):
    X, y = (array.astype(np.float64) for array in data(40))
    proto = double(activation)
    regressor = OrtGradientRegressor(proto, trainable="layers.1.*", max_iter=2, random_state=0)
    quietly(regressor.fit, X, y)
    quietly(regressor.partial_fit, X, y)
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    for name in ("layers.0.weight", "layers.0.bias"):
        assert_array_equal(regressor.weights_[name], arrays[name])
