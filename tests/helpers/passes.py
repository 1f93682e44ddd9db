"""Forward and backward passes of the classic interfaces against central differences in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
from onnx.reference import ReferenceEvaluator

from tests.helpers.environment import available_engines

ENGINES = available_engines()


def net(body, outputs, *, inputs="float[N, 3] X", weights="float[3, 2] W = {1, -2, 3, 0.5, 0.25, -1}", opset=18):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> net ({inputs}) => ({outputs}) <{weights}> {{ {body} }}'
    )


BIAS = "float[3, 2] W = {1, -2, 3, 0.5, 0.25, -1}, float[2] b = {0.5, -0.25}"
ONE = ("Z = MatMul(X, W) S = Add(Z, b) Y = Tanh(S)", "float[N, 2] Y")
TWO = ("Z = MatMul(X, W) Y = Tanh(Z) V = Add(Y, b)", "float[N, 2] Y, float[N, 2] V")
THREE = (
    "Z = MatMul(X, W) Y = Tanh(Z) V = Add(Y, b) E = Exp(V) S = ReduceSum<keepdims = 0>(E)",
    "float[N, 2] V, float S, float[N, 2] Y",
)


def _in_double(model):
    """Return the model with its frozen weights in float64; the evaluator asks no type of what it is fed."""
    double = onnx.ModelProto()
    double.CopyFrom(model)
    for tensor in double.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(array.astype(float) if array.dtype.kind == "f" else array, tensor.name)
        )
    return double


def slopes(model, feeds, grads, step=1e-6):
    """Return the slope of the sum of all outputs, each times its gradient, along each float feed, by name."""
    run = ReferenceEvaluator(_in_double(model))
    double = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}

    def total(changed):
        found = run.run(list(grads), {**double, **changed})
        return sum(float(np.sum(y * g)) for y, g in zip(found, grads.values(), strict=True))

    result = {}
    for name, array in double.items():
        if array.dtype.kind != "f":
            continue
        result[name] = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            plus, minus = array.copy(), array.copy()
            plus[index] += step
            minus[index] -= step
            result[name][index] = (total({name: plus}) - total({name: minus})) / (2 * step)
    return result
