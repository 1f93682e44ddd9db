"""GradientGraphBuilder: the gradient of a loss as a graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain_sklearn.classic.training_session import GradientGraphBuilder
from tests.classic.test_training_session import BODY, ENGINES, WEIGHTS, feed, numpy_gradients, with_loss


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
    with pytest.raises(TypeError, match="sets of names"):
        GradientGraphBuilder(with_loss(), "loss", {"W"}, "loss")
    with pytest.raises(ValueError, match="must each hold a name"):
        GradientGraphBuilder(with_loss(), {"loss"}, set(), "loss")
    with pytest.raises(ValueError, match="Unknown name 'w' in x_names"):
        GradientGraphBuilder(with_loss(), {"loss"}, {"w"}, "loss").build()
    with pytest.raises(ValueError, match="computes no value 'X' to start from"):
        GradientGraphBuilder(with_loss(), {"X"}, {"W"}, "loss").build()


LOSSES = with_loss(
    BODY + " A = Mul(b, b) N = ReduceSum<keepdims = 0>(W)",
    outputs="float loss, float[N, 1] P, float[4] A, float N",
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("y_names", "loss", "wrt", "seeds"),
    [
        ({"loss", "P"}, "loss", "W", []),
        ({"loss", "N"}, "loss", "W", ["N_grad"]),
        ({"loss", "A"}, "loss", "b", ["A_grad"]),
        ({"loss", "A"}, "loss", "W", []),
        ({"A"}, "loss", "b", ["A_grad"]),
        ({"A", "N"}, "N", "b", ["A_grad"]),
    ],
)
def test_several_outputs_to_start_from(y_names, loss, wrt, seeds, engine):
    builder = GradientGraphBuilder(LOSSES, y_names, {wrt}, loss, engine=engine)
    builder.build()
    session = onnxruntime.InferenceSession(builder.get_model(), providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["X", "y", *seeds]
    given = {"A_grad": np.array([1, -2, 3, 0.5], np.float32), "N_grad": np.array(0.75, np.float32)}
    found = session.run([f"{wrt}_grad"], {**feed(), **{name: given[name] for name in seeds}})[0]
    expected = numpy_gradients(WEIGHTS)[wrt].astype(float) if "loss" in y_names else np.zeros(WEIGHTS[wrt].shape)
    expected = expected + (0.75 if "N_grad" in seeds else 0)
    expected = expected + (2 * WEIGHTS["b"] * given["A_grad"] if "A_grad" in seeds else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
