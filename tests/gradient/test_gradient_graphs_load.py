"""Gradient graphs load where the given graph does; what is not valid is refused, whatever a runtime makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.sessions import session


def scalar_graph(body, x="float[N,4] X", opset=18, **arrays):
    """Return the model of a body that computes the scalar loss."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> net ({x}) => (float loss) {{ {body} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return model


# The runtime knows no shape of what comes out of a sequence, and does not look at the Split then.
SPLIT = """A = MatMul(X, W) S = SequenceConstruct(A, A) C = ConcatFromSequence <axis = 1> (S)
    P, Q = Split <axis = 1> (C) D = Mul(P, Q) loss = ReduceSum <keepdims = 0> (D)"""


def test_a_split_without_sizes():
    model = scalar_graph(SPLIT, W=np.ones((4, 3), np.float32))
    assert session(model).get_outputs()[0].name == "loss"
    with pytest.raises(ModelError, match=r"\(Split\) is not valid: it has neither"):
        gradient_graph(model, wrt="W")
    with pytest.raises(ModelError, match=r"\(Split\) is not valid: it has neither"):
        OrtGradientRegressor(model).fit(np.ones((3, 4), np.float32), np.ones(3))
    model.opset_import[0].version = 13
    assert gradient_graph(model, wrt="W")


def test_a_gradient_graph_that_does_not_load_is_an_error(monkeypatch):
    """A kernel may exist for the operators of the graph alone."""
    create = onnxruntime.InferenceSession

    def refusing(content, *arguments, **options):
        if b"W_grad" in content:
            raise RuntimeError("no kernel of Gemm")
        return create(content, *arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", refusing)
    body = "A = MatMul(X, W) loss = ReduceSum <keepdims = 0> (A)"
    with pytest.raises(ModelError, match=r"loads the graph, but not the one with its gradients.*no kernel of Gemm"):
        gradient_graph(scalar_graph(body, W=np.ones((4, 3), np.float32)), wrt="W", engine="portable")


def test_graph_the_runtime_cannot_load_is_differentiated():
    """It may be for another runtime."""
    model = scalar_graph("A = MatMul(X, W) H = acme.Thing(c) loss = ReduceSum <keepdims = 0> (A)",
                  W=np.ones((4, 3), np.float32), c=np.ones(1, np.float32))  # fmt: skip
    model.opset_import.add(domain="acme", version=1)
    assert gradient_graph(model, wrt="W").graph.output[-1].name == "W_grad"


@pytest.mark.parametrize("operator", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize(("labels", "scores"), [((2, 1), "2,3,4"), ((2,), "3,4"), ((3, 1), "3,4"), ((1,), "2,4")])
def test_labels_that_are_not_one_for_each_row_of_scores(operator, labels, scores):
    body = f'L = {operator} <reduction = "none"> (X, t) loss = ReduceSum <keepdims = 0> (L)'
    model = scalar_graph(body, x=f"float[{scores}] X", t=np.zeros(labels, np.int64))
    with pytest.raises(
        (ModelError, UnsupportedOperatorError), match=r"each row needs a label|not valid|[Rr]ank|[Dd]im"
    ):
        gradient_graph(model, wrt="X", engine="portable")
