"""The gradients of the last layers are computed first, while what they are computed from is in the cache."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from onnxtrain_sklearn import MLP, OrtGradientRegressor, Runtime, clear_cache
from tests.helpers.observed import record_pass_sessions

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(32, 5)).astype(np.float32)
y = X[:, 0] * X[:, 1]


@pytest.fixture
def graphs(monkeypatch):
    """Return the list of the gradient graphs that sessions are made for."""
    clear_cache()
    return record_pass_sessions(monkeypatch)


def fitted_graph(graphs, **settings):
    model = OrtGradientRegressor(MLP([8, 8, 8, 8]), batch_size=32, max_iter=1, engine="portable", **settings)
    model.fit(X, y)
    return graphs[0]


def makers(graph):
    """Return the names of the nodes that compute the gradients of the kernels, the first layer's first."""
    maker = {name: node.name for node in graph.graph.node for name in node.output}
    kernels = [v.name for v in graph.graph.output if v.name.endswith("_grad") and len(v.type.tensor_type.shape.dim) > 1]
    return [maker[name] for name in kernels]


def run_order(graph, folder):
    """Return the names of nodes in the order in which onnxruntime runs them."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "run")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    session.run(None, {v.name: np.ones(v.shape, types[v.type]) for v in session.get_inputs()})
    with open(session.end_profiling(), encoding="utf-8") as file:
        events = [event["name"] for event in json.load(file) if event.get("cat") == "Node"]
    return [name.removesuffix("_kernel_time") for name in events if name.endswith("_kernel_time")]


def test_onnxruntime_computes_the_gradients_of_the_last_layers_first(graphs, tmp_path):
    graph = fitted_graph(graphs)
    order, kernels = run_order(graph, tmp_path), makers(graph)
    places = [order.index(name) for name in kernels]
    assert len(places) == 5
    assert places == sorted(places, reverse=True)


def test_each_gradient_is_computed_before_the_backward_pass_goes_on(graphs, tmp_path):
    graph = fitted_graph(graphs)
    order, kernels = run_order(graph, tmp_path), makers(graph)
    between = np.diff([order.index(name) for name in reversed(kernels)])
    assert between.min() > 1  # nodes of the backward pass run between the gradients of two layers


def test_the_order_of_a_graph_that_computes_activations_again_is_kept(graphs):
    graph = fitted_graph(graphs, runtime=Runtime(checkpoint_activations=True))
    places = [[node.name for node in graph.graph.node].index(name) for name in makers(graph)]
    last = len(graph.graph.node) - 1
    assert places == sorted(places, reverse=True)
    assert last - places[-1] > len(places)  # of the last layer, before the cotangents of the others
