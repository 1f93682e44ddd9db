"""Linear graphs with something wrong in them, and that they are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

rng = np.random.RandomState(0)
X = rng.normal(size=(8, 3)).astype(np.float32)
y = rng.normal(size=8)


def net(body="Y = MatMul(X, W)", x="float[N,3] X", out="float[N,1] Y", domains="", functions="", opset=18, **more):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}{domains}]> net ({x}) => ({out}) {{ {body} }} {functions}'
    )
    for name, array in ({"W": np.array([[1.0], [-2], [3]], np.float32)} | more).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def fit_once(model, kind=OrtGradientRegressor, **settings):
    return kind(model, max_iter=1, batch_size=4, random_state=0, **settings).fit(X, y)


def refused(model, match, **settings):
    with pytest.raises(ModelError, match=match):
        fit_once(model, **settings)
