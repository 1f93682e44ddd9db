"""A small network with a loss, its data, and training sessions over it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from onnxtrain_sklearn.classic.training_session import TrainingParameters

RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (np.maximum(X @ [[1.0], [-2.0], [0.5]], 0) + 0.3).astype(np.float32)
WEIGHTS = {
    "W": RNG.normal(size=(3, 4)).astype(np.float32),
    "b": RNG.normal(size=4).astype(np.float32),
    "V": RNG.normal(size=(4, 1)).astype(np.float32),
}
BODY = "Z = MatMul(X, W) S = Add(Z, b) H = Tanh(S) P = MatMul(H, V)"


def net(body=BODY, inputs="float[N, 3] X", outputs="float[N, 1] P", weights=WEIGHTS):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


def with_loss(body=BODY, **options):
    loss = " D = Sub(P, y) Q = Mul(D, D) loss = ReduceMean<keepdims = 0>(Q)"
    given = {"inputs": "float[N, 3] X, float[N, 1] y", "outputs": "float loss, float[N, 1] P", **options}
    return net(body + loss, **given).SerializeToString()


def parameters(optimizer="SGDOptimizer", **attributes):
    result = TrainingParameters()
    result.loss_output_name, result.training_optimizer_name = "loss", optimizer
    for name, value in attributes.items():
        setattr(result, name, value)
    return result


def feed(rate=None, rows=slice(None)):
    found = {"X": X[rows], "y": Y[rows]}
    return found if rate is None else {**found, "Learning_Rate": np.array([rate], np.float32)}


def train(session, steps=5, rate=0.01):
    return [float(session.run(["loss"], feed(rate))[0]) for _ in range(steps)]
