"""Files of opset 10 and before, some of IR version 3: they start from what the operators of their opset compute."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import OrtGradientRegressor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 2, 3)).astype(np.float32)
SCALE, SHIFT, MEAN, VARIANCE = (RANDOM.uniform(0.5, 2, (2, 3)).astype(np.float32) for _ in range(4))
CHANNELS, ROW = np.array([2, -1], np.float32), np.array([3, -2, 1], np.float32)
STATISTICS = {"s": SCALE, "b": SHIFT, "m": MEAN, "v": VARIANCE}
NORMALIZED = (X - MEAN) / np.sqrt(VARIANCE + 1e-5) * SCALE + SHIFT
make = onnx.helper.make_node


def old_file(nodes, held, opset, ir_version, row):
    """A file whose only output is a product with a vector of what ``nodes`` compute, flattened."""
    width = int(np.prod(row))
    held = {**held, "W": np.linspace(-1, 1, width, dtype=np.float32).reshape(width, 1)}
    nodes = [*nodes, make("Flatten", ["h"], ["f"]), make("MatMul", ["f", "W"], ["Y"])]
    inputs = [onnx.helper.make_tensor_value_info("X", 1, ["N", 2, 3])]
    if ir_version < 4:
        inputs += [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in held.items()]
    output = onnx.helper.make_tensor_value_info("Y", 1, ["N", 1])
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = onnx.helper.make_graph(nodes, "old", inputs, [output], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)


PADS = [make("Pad", ["X"], ["h"], pads=[0, 0, 1, 0, 0, 2])]
ELEMENTS = [make("BatchNormalization", ["X", *STATISTICS], ["h"], spatial=0)]
COMPUTED = [
    make("Constant", [], ["c"], value=onnx.numpy_helper.from_array(SCALE)),
    make("Identity", ["m"], ["other"]),
    make("BatchNormalization", ["X", "c", "b", "other", "v"], ["h"], spatial=0),
]
SHARED = [make("BatchNormalization", ["X", *STATISTICS], ["n"], spatial=0), make("Add", ["n", "m"], ["h"])]
CASES = {
    **{f"computed statistics, {n}": (COMPUTED, {k: STATISTICS[k] for k in "bmv"}, n, NORMALIZED) for n in (7, 8)},
    "shared statistics": (SHARED, STATISTICS, 7, NORMALIZED + MEAN),
    **{f"pads, {n}": (PADS, {}, n, np.pad(X, ((0, 0), (0, 0), (1, 2)))) for n in (2, 6, 7, 8, 9, 10)},
    **{f"statistics of elements, {n}": (ELEMENTS, STATISTICS, n, NORMALIZED) for n in (7, 8)},
    "axis": ([make("Mul", ["X", "c"], ["h"], broadcast=1, axis=1)], {"c": CHANNELS}, 6, X * CHANNELS[:, None]),
    "from the end": ([make("Sub", ["X", "c"], ["h"], broadcast=1, axis=-2)], {"c": CHANNELS}, 6, X - CHANNELS[:, None]),
    "no operand that broadcasts": ([make("Mul", ["X", "X"], ["h"])], {}, 6, X * X),
    "last axis": ([make("Add", ["X", "r"], ["h"], broadcast=1)], {"r": ROW}, 6, X + ROW),
    "all axes": ([make("Div", ["X", "e"], ["h"], broadcast=1, axis=1)], {"e": SCALE}, 6, X / SCALE),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Training has not converged")
@pytest.mark.parametrize("ir_version", [3, 4])
@pytest.mark.parametrize("case", CASES)
def test_training_starts_from_outputs_of_old_file(case, ir_version):
    nodes, held, opset, hidden = CASES[case]
    row = hidden.shape[1:]
    proto = old_file(nodes, held, opset, ir_version, row)
    y = X[:, 0, 0].astype(np.float64)
    model = OrtGradientRegressor(
        proto, optimizer="sgd", learning_rate_init=0.01, max_iter=1, batch_size=30, target_scaling=None, trainable="W"
    ).fit(X, y)
    flat, start = hidden.reshape(30, -1).astype(np.float64), np.linspace(-1, 1, int(np.prod(row)))
    gradient = 2 * flat.T @ (flat @ start - y) / len(y)
    assert_allclose(model.weights_["W"].ravel(), start - 0.01 * gradient, rtol=1e-3, atol=1e-5)
    assert_allclose(model.predict(X), flat @ model.weights_["W"].ravel(), rtol=1e-3, atol=1e-4)
