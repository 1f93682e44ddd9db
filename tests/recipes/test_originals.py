"""RealMLP and TabM take the same first steps as the packages of their authors, from the same weights and minibatches.

Dropout is off, as the random numbers differ; all other settings are those of the recipes. The runs of the originals are
stored; where PyTorch and the packages are installed, they are trained anew too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor, RealMLP, TabM
from onnxtrain_sklearn.losses import LogLoss
from onnxtrain_sklearn.models import PiecewiseLinearEmbedding
from tests.helpers.environment import each_engine
from tests.helpers.observed import wrap_passes
from tests.helpers.originals import BATCH, CODES, RUNS, STEPS, WIDTH, computed, stored
from tests.helpers.step_options import configured
from tests.helpers.training import quietly

TOLERANCE = 1e-4
installed = all(importlib.util.find_spec(name) for name in ("torch", "pytabkit", "tabm", "rtdl_num_embeddings"))


def started(kind: type[RealMLP] | type[TabM], weights: dict[str, np.ndarray], **parameters: Any) -> Any:
    """Return a builder whose graphs start from given weights."""

    class Started(kind):  # type: ignore[misc,valid-type]
        def build(self, n_features, n_outputs, random_state=None, *, X=None, y=None):
            model = super().build(n_features, n_outputs, random_state, X=X, y=y)
            assert {t.name for t in model.graph.initializer} == set(weights)
            for tensor in model.graph.initializer:
                assert list(tensor.dims) == list(weights[tensor.name].shape), tensor.name
                tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
            return model

        @classmethod
        def _get_param_names(cls):
            return kind._get_param_names()

    return Started(**parameters)


def settings_of(name: str, weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the recipe of a run."""
    if name.startswith("tabm"):
        embedding = PiecewiseLinearEmbedding(4, 8) if "pwl" in name else None
        sizes = [WIDTH] * (2 if embedding else 3)
        parameters = {"n_members": 4, "mini": "mini" in name, "embedding": embedding, "hidden_layer_sizes": sizes}
        model = started(TabM, weights, dropout=0.0, categories=CODES, **parameters)
        return {"model": model, "learning_rate_init": 0.002, "optimizer": AdamW(weight_decay=3e-4)}
    simple, regression = "td-s" in name, name.endswith("0")
    model = started(
        RealMLP,
        weights,
        variant="td-s" if simple else "td",
        hidden_layer_sizes=[WIDTH] * 3,
        dropout=0.0,
        categories=CODES,
    )
    rate = (0.07 if simple else 0.2) if regression else 0.04
    optimizer = Adam(beta_2=0.95) if simple else AdamW(beta_2=0.95, weight_decay=0.02)
    settings = {"model": model, "learning_rate_init": rate, "learning_rate": "coslog4", "optimizer": optimizer}
    settings |= {} if simple else {"optimizer__weight_decay_schedule": "flat_cos"}
    return settings if regression else settings | {"loss": LogLoss(label_smoothing=0.1)}


def assert_same_steps(name: str, run: dict[str, np.ndarray], engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []

    def recorded(gradients: Callable[..., float], step: Any, *args: Any) -> float:
        losses.append(gradients(step, *args))
        return losses[-1]

    wrap_passes(monkeypatch, recorded)
    start, final = (
        {k.partition("/")[2]: a for k, a in run.items() if k.startswith(part)} for part in ("start/", "final/")
    )
    kind = OrtGradientRegressor if name.endswith("0") else OrtGradientClassifier
    settings = {"batch_size": BATCH, "max_iter": 1, "shuffle": False, "engine": engine} | settings_of(name, start)
    fitted = quietly(configured(kind(), **settings).fit, run["X"], run["y"])
    assert len(losses) == STEPS
    assert_allclose(losses, run["losses"], rtol=TOLERANCE, atol=TOLERANCE)
    for key, array in final.items():
        assert_allclose(fitted.weights_[key], array, rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
        assert not np.allclose(array, start[key], rtol=TOLERANCE, atol=TOLERANCE), key


@each_engine
@pytest.mark.parametrize("name", RUNS)
def test_the_first_steps_are_those_of_the_original(name, engine, monkeypatch):
    assert_same_steps(name, stored(name), engine, monkeypatch)


@pytest.mark.filterwarnings("ignore")  # those of PyTorch and Lightning
@pytest.mark.skipif(not installed, reason="needs torch, pytabkit, tabm and rtdl_num_embeddings")
@pytest.mark.parametrize("name", RUNS)
def test_the_original_trains_so_today(name, monkeypatch):
    assert_same_steps(name, computed(name), "portable", monkeypatch)
