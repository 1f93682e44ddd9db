"""GroupNormalization one after the other: ONNX infers no shape behind the first, and rules need one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
CHAIN = "a = {}(x, scale, bias) b = Relu(a) c = {}(b, scale, bias) y = ReduceMean(c, axes)"
GROUPS = "GroupNormalization<num_groups = 4>"


def test_two_group_normalizations_train_as_instance_ones():
    """Groups of one channel are instances."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(16, 4, 6)).astype(np.float32), rng.normal(size=16)
    found = []
    for kind in (GROUPS, "InstanceNormalization"):
        text = f"""<ir_version: 10, opset_import: ["": 21]> net (float[N, 4, 6] x) => (float[N, 1, 1] y)
            <float[4] scale = {{1, 0.5, 2, -1}}, float[4] bias = {{0.1, 0.2, -0.3, 0}}, int64[2] axes = {{1, 2}}>
            {{ {CHAIN.format(kind, kind)} }}"""
        net = OrtGradientRegressor(onnx.parser.parse_model(text), optimizer=SGD(), engine="portable", max_iter=3)
        found.append(net.set_params(learning_rate_init=0.1, shuffle=False).fit(X, y).weights_)
    for name in ("scale", "bias"):
        assert_allclose(found[0][name], found[1][name], rtol=0, atol=1e-6)
