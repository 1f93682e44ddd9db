"""Transformers as PyTorch's older exporter writes them train as they do in PyTorch, on every engine.

Their shapes come from chains of Shape, Gather, Concat and Reshape, and their opsets (13 and 14) have no operator yet
that adds up what the gradient of an embedding scatters. The archives hold rows, and losses and scores of twenty steps
of gradient descent over all of them that PyTorch made in float64.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientClassifier, gradient_graph
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETTINGS = {"optimizer": SGD(momentum=0.0), "learning_rate_init": 0.05, "batch_size": 24, "max_iter": 20, "tol": 0}
NETWORKS = {
    "bert": "text and mask as inputs, opset 13",
    "encoder": "nn.TransformerEncoder, normalized first, opset 14",
    "gpt": "causal attention, opset 14",
}


def rows_of_transformer(name):
    """Return X, y, and what PyTorch came to."""
    with np.load(DATA / f"{name}.npz") as archive:
        known = dict(archive)
    y, losses, scores = (known.pop(key) for key in ("y", "losses", "scores"))
    return known if len(known) > 1 else next(iter(known.values())), y, losses, scores


def transformer_probabilities(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def opset(proto):
    return next(o.version for o in proto.opset_import if not o.domain)


@pytest.mark.slow
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", NETWORKS)
def test_twenty_steps_as_in_pytorch(name, engine):
    X, y, losses, scores = rows_of_transformer(name)
    classifier = OrtGradientClassifier(DATA / f"{name}.onnx", engine=engine, shuffle=False, **SETTINGS).fit(X, y)
    assert_allclose(classifier.loss_curve_, losses, rtol=1e-5)
    assert_allclose(classifier.predict_proba(X), transformer_probabilities(scores), rtol=1e-5, atol=1e-6)
    given_back = classifier.to_onnx()
    onnx.checker.check_model(given_back, full_check=True)
    assert opset(given_back) == opset(onnx.load(DATA / f"{name}.onnx"))


def test_gradient_with_a_dynamic_batch():
    """The rows stay symbolic: only ranks and the other sizes are known."""
    model = onnx.load(DATA / "gpt.onnx")
    scores = model.graph.output[0].name
    model.graph.node.extend([onnx.helper.make_node("ReduceSum", [scores], ["loss"], name="loss", keepdims=0)])
    model.graph.output.insert(0, onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    table = next(w for w in model.graph.initializer if w.name == "t.weight")
    model.graph.initializer.remove(table)
    table = onnx.numpy_helper.to_array(table)
    model.graph.input.append(onnx.helper.make_tensor_value_info("table", onnx.TensorProto.FLOAT, table.shape))
    for node in model.graph.node:
        node.input[:] = ["table" if x == "t.weight" else x for x in node.input]
    graph = gradient_graph(model, wrt="table", engine="portable")
    assert opset(graph) == 16
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (2, 5):
        rows = np.arange(6 * count).reshape(count, 6) % 20
        (gradient,) = session.run(["table_grad"], {"X": rows, "table": table})
        direction = np.random.default_rng(0).normal(size=table.shape).astype(np.float32)
        ahead, behind = (session.run(["loss"], {"X": rows, "table": table + h * direction})[0] for h in (1e-2, -1e-2))
        assert_allclose((ahead - behind) / 2e-2, (gradient * direction).sum(), rtol=2e-3)
