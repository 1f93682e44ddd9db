"""Training sessions whose gradients are those of a scaled loss."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn.classic.training_session import TrainingSession
from tests.classic.test_training_session import (
    ENGINES,
    WEIGHTS,
    feed,
    numpy_gradients,
    parameters,
    train,
    with_loss,
)

GRADIENTS = [f"{name}_grad" for name in WEIGHTS]


def gradients(model, engine="auto", **attributes):
    session = TrainingSession(model, parameters("", set_gradients_as_graph_outputs=True, **attributes), engine=engine)
    return dict(zip(WEIGHTS, session.run(GRADIENTS, feed()), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["SGDOptimizer", "AdamOptimizer"])
def test_scaled_loss_gives_same_training(kind, engine):
    plain, scaled = (
        TrainingSession(with_loss(), parameters(kind, loss_scale=scale), engine=engine) for scale in (0.0, 1024.0)
    )
    assert [v.name for v in scaled.get_outputs()] == [v.name for v in plain.get_outputs()]
    np.testing.assert_allclose(train(scaled), train(plain), rtol=1e-6)
    for name, array in plain.get_state().items():
        np.testing.assert_allclose(scaled.get_state()[name], array, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_is_that_of_the_scaled_loss(engine, tmp_path):
    path = str(tmp_path / "gradient.onnx")
    found = gradients(with_loss(), engine, loss_scale=3.0, model_with_gradient_graph_path=path)
    for name, array in numpy_gradients(WEIGHTS).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
    constants = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    assert any(array.size == 1 and array.item() == 3.0 for array in constants)
