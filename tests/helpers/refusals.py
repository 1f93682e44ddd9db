"""A small classifier, rows for it, and the proof that a refused call leaves it as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, OrtGradientClassifier

rng = np.random.RandomState(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
y = np.array([3, 5])[(X[:, 0] > 0).astype(int)]
WEIGHTS = {"W": rng.normal(size=(4, 1)), "b": np.zeros(1)}


def parsed(nodes: str, output: str = "float[N,1] z", inputs: str = "float[N,4] X", **arrays: Any) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => ({output}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in (arrays or WEIGHTS).items():
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def fresh(**parameters: Any) -> OrtGradientClassifier:
    return OrtGradientClassifier(
        **{"model": MLP((3,)), "max_iter": 2, "batch_size": 16, "random_state": 0} | parameters
    )


def assert_unchanged_by(
    estimator: OrtGradientClassifier, call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """``call`` raises; attributes, predictions and the training that follows are as if it had not been made."""
    before = dict(vars(estimator))
    fitted = hasattr(estimator, "classes_")
    expected = estimator.predict_proba(X) if fitted else None
    with pytest.raises(error, match=re.compile(message, flags=re.DOTALL)):
        call()
    assert vars(estimator) == before
    if fitted:
        assert_array_equal(estimator.predict_proba(X), expected)
