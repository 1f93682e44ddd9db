"""Errors of onnxruntime are given their real reason: a type without kernels, an index beyond a table."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TABLE = "(int64[N, 2] X) => (float[N, 2] Y) <float[3, 1] W = {1, 2, 3}> { e = Gather(W, X) Y = Flatten(e) }"
ELEMENTS = """(float[N, 3] X, int64[N, 2] i) => (float[N, 2] Y) <float[3] W = {1, 2, 3}>
    { p = Mul(X, W) Y = GatherElements <axis = 1> (p, i) }"""
IDS = np.array([[0, 1], [2, 1], [1, 0]] * 3)


def regressor(graph, **settings):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> net {graph}')
    return OrtGradientRegressor(model, max_iter=2, **settings)


@pytest.mark.parametrize("operator", ["Conv(X, W)", "AveragePool <kernel_shape = [3, 3]> (P)"])
def test_unsupported_operator_type_is_named(operator):
    graph = f"""(double[N, 1, 4, 4] X) => (double[N, 4] Y) <double[1, 1, 3, 3] W = {{1, 2, 3, 1, 2, 3, 1, 2, 3}},
        double[1] s = {{2}}> {{ P = Mul(X, s) c = {operator} Y = Flatten(c) }}"""
    expected = r"lacks a kernel .* type of its inputs, float64, .* whatever the opset\. Export the model in float32"
    with pytest.raises(ModelError, match=expected) as caught:
        regressor(graph).fit(np.ones((9, 1, 4, 4)), np.ones((9, 4)))
    assert "another opset" not in str(caught.value)


def test_bfloat16_is_computed_in_float32():
    """The text has the bits of 1, 2 and 3."""
    graph = """(float[N, 3] X) => (float[N, 1] Y) <bfloat16[3, 1] W = {16256, 16384, 16448}, float[1] c = {1}>
        { h = Cast <to = 16> (X) z = MatMul(h, W) q = Cast <to = 1> (z) Y = Mul(q, c) }"""
    fitted = regressor(graph, trainable=["c"], learning_rate_init=0.0).fit(np.ones((9, 3)), np.ones(9))
    assert fitted.predict(np.ones((1, 3))) == 6


@pytest.mark.parametrize("index", [9, -7])
def test_ids_beyond_the_vocabulary_are_named(index):
    beyond = np.where(np.arange(9)[:, None] == 7, index, IDS)
    expected = rf"The index {index} is beyond a table of 3 rows .*vocabulary.* from 0 to 2 are valid"
    fitted = regressor(TABLE).fit(IDS, np.ones((9, 2)))
    for call in (lambda: fitted.predict(beyond), lambda: regressor(TABLE).fit(beyond, np.ones((9, 2)))):
        with pytest.raises(ModelError, match=expected) as caught:
            call()
        assert "batch axis" not in str(caught.value)


def test_indices_of_elements_beyond_the_axis_are_named():
    fitted = regressor(ELEMENTS).fit({"X": np.ones((9, 3)), "i": IDS}, np.ones((9, 2)))
    with pytest.raises(ModelError, match=r"An index in X, .* is beyond the size"):
        fitted.predict({"X": np.ones((9, 3)), "i": np.full((9, 2), 9)})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("X",), r"Add \['i'\]\.$"),
        (("X", "i", "z"), r"Leave out \['z'\]"),
        (("X", "z"), r"Add \['i'\]\. Leave out \['z'\]"),
    ],
)
def test_keys_of_a_dict_that_are_missing_or_too_many_are_named(keys, expected):
    data = {"X": np.ones((9, 3)), "i": IDS, "z": IDS}
    with pytest.raises(ValueError, match=expected):
        regressor(ELEMENTS).fit({key: data[key] for key in keys}, np.ones((9, 2)))
