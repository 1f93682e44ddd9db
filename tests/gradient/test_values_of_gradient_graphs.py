"""A gradient graph computes the outputs that onnxruntime computes of the model as given."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import available_engines
from tests.helpers.faults import change_gradient_graphs
from tests.helpers.graphs import W, model
from tests.helpers.sessions import evaluate

LEAKY = "H = MatMul (X, W) A = LeakyRelu <alpha = 0.3> (H) B = Tanh (A) Y = ReduceSum <keepdims = 0> (B)"
SMALL = LEAKY.replace("(B)", "(S)").replace("Y =", "S = Mul (B, small) Y =")
COMPARED = {
    "plain": {},
    "free sizes": {"x": "float[N, M] X, float s", "body": f"Z = Mul (X, s) {LEAKY.replace('X,', 'Z,')}"},
    "indices": {"x": "float[N, 3] X, int64[K] I", "body": f"G = Gather (X, I) {LEAKY.replace('X,', 'G,')}"},
    "roots": {"body": f"Q = Sqrt (X) {LEAKY.replace('X,', 'Q,')}"},  # of negative numbers there are none
    "small": {"body": SMALL, "weights": f"{W}, float small = {{0.00001}}"},
    "steps": {"body": LEAKY.replace("Tanh", "Floor")},
}


def drop_slopes(model):
    """Stand for a faulty rewrite."""
    for node in model.graph:
        if node.op_type == "LeakyRelu":
            node.attributes.pop("alpha", None)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("given", COMPARED.values(), ids=COMPARED)
def test_values_that_differ_are_refused_by_node(engine, given, monkeypatch):
    proto = model(**{"body": LEAKY, "y": "float Y", **given})
    gradient_graph(proto, wrt="W", engine=engine)
    change_gradient_graphs(monkeypatch, drop_slopes)
    with pytest.raises(ModelError, match=r"as given: output 'Y' .* first node that differs is 'A' \(LeakyRelu\)"):
        gradient_graph(proto, wrt="W", engine=engine)


def round_otherwise(model):
    """Stand for a rewrite that is right."""
    graph = model.graph
    op = GraphBuilder(graph, prefix="rounded", constant_nodes=True)
    for node in [node for node in graph if node.op_type == "Sin"]:
        node.replace_input_with(0, op.Mul(node.inputs[0], 1.0000002))
    graph.sort()


@pytest.mark.parametrize("engine", available_engines())
def test_rounding_is_no_difference(engine, monkeypatch):
    body = "H = MatMul (X, W) L = Mul (H, large) S = Sin (L) Y = ReduceSum <keepdims = 0> (S)"
    proto = model(body, y="float Y", weights=f"{W}, float large = {{10000000}}")
    change_gradient_graphs(monkeypatch, round_otherwise)
    X = np.random.RandomState(0).normal(size=(3, 3)).astype(np.float32)
    found = evaluate(gradient_graph(proto, wrt="W", engine=engine), X=X)[0]
    assert abs(found - evaluate(proto, X=X)[0]) > 0.1  # large enough to be taken for an error


OTHERS = {
    "random": {"body": LEAKY.replace("B = Tanh (A)", "R = RandomNormalLike <scale = 9.0> (A) B = Add (A, R)")},
    "large": {"x": "float[400000, 3] X"},
    "text": {
        "x": "string[N] X",
        "body": f"""F = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_floats = [1.0]> (X)
            U = Unsqueeze (F, one) {LEAKY.replace("X,", "U,")}""",
        "weights": "float[1, 1] W = {2}, int64[1] one = {1}",
        "more": (', "ai.onnx.ml": 2', ""),
    },
    "size that does not fit": {"x": "float[N, 2, M] X", "body": f"F = Flatten (X) {LEAKY.replace('X,', 'F,')}"},
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_graphs_that_random_inputs_say_nothing_of(given, monkeypatch):
    proto = model(**{"body": LEAKY, "y": "float Y", **given})
    change_gradient_graphs(monkeypatch, drop_slopes)
    assert gradient_graph(proto, wrt="W", engine="portable").graph.output[-1].name == "W_grad"
