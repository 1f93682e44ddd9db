"""What reading changed in a file, as descriptions list it."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxtrain_sklearn import OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.RandomState(0).normal(size=(20, 3)).astype(np.float32)

FILES = {
    "plain": ("H = Tanh(Z) Y = MatMul(H, B)", ()),
    "fused": ("H = com.microsoft.FastGelu(Z) Y = MatMul(H, B)", ("fused operators of onnxruntime replaced",)),
    "transposition that moves nothing": (
        "H = Transpose <perm = [0, 1]> (Z) Y = MatMul(H, B)",
        ("transpositions that move nothing removed",),
    ),
    "two changes": (
        "T = Transpose <perm = [0, 1]> (Z) E = Exp(T) S = Add(E, one) H = Div(one, S) Y = MatMul(H, B)",
        ("transpositions that move nothing removed", "exponents of sigmoids bounded"),
    ),
    "equal parameters of a detached copy": (
        "C = Identity(A) W = MatMul(X, C) H = Add(Z, W) Y = MatMul(H, B)",
        ("parameters of PyTorch restored",),
    ),
}


def file_of(nodes):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        net (float[N, 3] X) => (float[N, 1] Y) <float[1, 1] one = {{1}}> {{ Z = MatMul(X, A) {nodes} }}""")
    rng = np.random.RandomState(1)
    for name, shape in {"A": (3, 4), "B": (4, 1)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_description_lists_the_passes_that_changed_a_file(kind, fitted):
    nodes, restored = FILES[kind]
    regressor = OrtGradientRegressor(file_of(nodes), max_iter=1, random_state=0)
    described = (regressor.fit(X, X[:, 0]) if fitted else regressor).describe()
    assert described.restored == restored
    told = f"read with {', '.join(restored)}"
    assert (told in str(described).splitlines()) is bool(restored)
