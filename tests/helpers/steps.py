"""Training steps of small networks, and the rows that are put into them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

from onnxtrain_sklearn import MLP, SGD
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._training.loss_graph import TARGET
from onnxtrain_sklearn._training.parameters import FlatParameters
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.step_parts import OptimizerState, Rates, StepParts, StepSettings
from onnxtrain_sklearn.losses import SquaredError
from tests.helpers.environment import available_engines


def new_step(proto, *, batch, trainable=None, dtype=None, output=None, **settings):
    """A step for regression, unless the settings say otherwise."""
    model = trainable_model(load(proto), output)
    defaults = {"loss": SquaredError(), "task": "regression", "link": "identity", "n_scores": 1, "optimizer": SGD()}
    defaults |= {"alpha": 0.0, "l1_ratio": 0.0, "max_grad_norm": None, "engine": available_engines()[0], "seed": 0}
    defaults |= {"device": devices.resolve_device(), "session_options": None}
    weights = model.weights()
    chosen = {name: weights.pop(name) for name in trainable or model.parameters}
    parameters = FlatParameters(chosen, np.dtype(dtype or model.dtype))
    settings = StepSettings(**(defaults | settings))
    return HostStep(StepParts(model, settings, parameters, weights, OptimizerState(), batch))


def fill(step, X, y, weights=None, column="X"):
    """Put rows into the buffers, padded as a minibatch is; return the sum of their weights."""
    weights = np.ones(len(X)) if weights is None else weights
    buffers = step.select(step.batch_size)
    for buffer, rows in ((buffers.columns[column], X), (buffers.columns[TARGET], y)):
        buffer[: len(X)] = np.reshape(rows, (len(X), *buffer.shape[1:]))
        buffer[len(X) :] = buffer[0]
    buffers.sample_weight[...] = 0
    buffers.sample_weight[: len(X)] = weights
    return float(np.sum(weights))


def filled(minibatches, buffers):
    """Write one minibatch after the other into the buffers; yield the sum of the weights of each."""
    for one in minibatches:
        one.fill(buffers)
        weight = one.weight
        del one  # it may hold the window of a stream
        yield weight


def data(n=8, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def mlp(hidden=(6,), activation="tanh", n_features=4, n_outputs=1, seed=0):
    """A graph whose biases are not zero."""
    proto, rng = MLP(hidden, activation).build(n_features, n_outputs, random_state=seed), np.random.default_rng(seed)
    for initializer in proto.graph.initializer:
        if initializer.name.endswith("bias"):
            array = rng.normal(size=tuple(initializer.dims)).astype(np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto


def mlp_weights():
    """The weights that :func:`mlp` begins with, by name."""
    return {one.name: onnx.numpy_helper.to_array(one) for one in mlp().graph.initializer}


def new_like(step, **changes):
    """The same step with other settings, on the same rows."""
    names = step.parameters.names
    other = new_step(mlp(), batch=step.batch_size, trainable=names, **changes)
    buffers, like = step.select(step.batch_size), other.select(step.batch_size)
    for name, column in buffers.columns.items():
        like.columns[name][...] = column
    like.sample_weight[...] = buffers.sample_weight
    return other


def one_step(step: HostStep, rate: float, weight: float) -> float:
    """Train on the minibatch in the buffers, whose weights sum to ``weight``; return its loss before the update."""
    rates = Rates(rate)
    loss = step.compute_gradients(weight, rates.dropout_factor)
    step.update(rates)
    return loss
