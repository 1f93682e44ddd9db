"""Low-rank factors begin as those of peft, and 20 steps end where PyTorch's do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import GraphModel, LoRA, OrtGradientClassifier
from tests.helpers.data import DATA
from tests.helpers.environment import each_engine
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def known():
    with np.load(DATA / "lora_run.npz") as archive:
        return dict(archive)


def estimator(run, **settings):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 5] X) => (float[N, 3] Y) {
        H = Gemm(X, W1, b1) T = Tanh(H) Y = MatMul(T, W2) }"""
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(run[name], name) for name in ("W1", "b1", "W2"))
    common = {
        "learning_rate_init": 0.02,
        "batch_size": 8,
        "max_iter": 1,
        "shuffle": False,
        "tol": NEVER,
    }
    given = GraphModel(model, output_kind="scores")
    return OrtGradientClassifier(given, adapters=LoRA(2, alpha=4.0), **common | settings)


@each_engine
def test_twenty_steps_end_as_in_pytorch(engine):
    run = known()
    fitted = estimator(run, engine=engine, learning_rate_init=0.0).fit(run["X"], run["y"])
    start = {f"W{i}.lora_A": run[f"A{i}"].T for i in (1, 2)} | {"W1.lora_B": np.zeros((2, 6))}
    fitted.load_state(start | {"W2.lora_B": np.zeros((2, 3))}).set_params(learning_rate_init=0.02)
    fitted.partial_fit(run["X"], run["y"])
    for i in (1, 2):
        assert_allclose(fitted.adapters_[f"W{i}.lora_A"], run[f"final/A{i}"].T, rtol=0, atol=2e-5)
        assert_allclose(fitted.adapters_[f"W{i}.lora_B"], run[f"final/B{i}"].T, rtol=0, atol=2e-5)
    assert_allclose(fitted.loss_, run["losses"].mean(), rtol=1e-5)


def test_factors_begin_as_those_of_peft():
    run = known()
    start = estimator(run, learning_rate_init=0.0, random_state=0).fit(run["X"], run["y"]).adapters_
    for i, inputs in ((1, 5), (2, 6)):
        first = start[f"W{i}.lora_A"]
        assert first.shape == (inputs, 2)
        assert 0.5 / np.sqrt(inputs) < np.abs(first).max() <= 1 / np.sqrt(inputs)
        assert_array_equal(start[f"W{i}.lora_B"], 0)
