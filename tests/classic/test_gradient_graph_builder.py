"""GradientGraphBuilder: the gradient of a loss as a graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain_sklearn.classic.training_session import GradientGraphBuilder
from tests.classic.test_training_session import ENGINES, WEIGHTS, feed, numpy_gradients, with_loss


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_graph_builder(tmp_path, engine):
    builder = GradientGraphBuilder(with_loss(), {"loss"}, {"W", "X"}, "loss", engine=engine)
    with pytest.raises(RuntimeError, match=r"call build\(\) first"):
        builder.get_model()
    builder.build()
    builder.save(tmp_path / "gradient.onnx")
    model = onnx.load(tmp_path / "gradient.onnx")
    assert model.SerializeToString() == builder.get_model()
    assert [o.name for o in model.graph.output] == ["loss", "P", "W_grad", "X_grad"]
    session = onnxruntime.InferenceSession(builder.get_model(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["W_grad"], feed())[0], numpy_gradients(WEIGHTS)["W"], rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="must hold the loss 'loss' alone"):
        GradientGraphBuilder(with_loss(), {"P"}, {"W"}, "loss")
    with pytest.raises(TypeError, match="sets of names"):
        GradientGraphBuilder(with_loss(), "loss", {"W"}, "loss")
    with pytest.raises(ValueError, match="wrt names 'w'"):
        GradientGraphBuilder(with_loss(), {"loss"}, {"w"}, "loss").build()
