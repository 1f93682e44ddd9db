"""The fused kernels against the formulas: what onnxruntime-training defines is evaluated here, in any environment.

``tests/contracts/test_optimizers.py`` holds the kernels themselves to the references, where they are installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain_sklearn.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Optimizer, adam, update_graph
from onnxtrain_sklearn.optimizers.base import running_average

WITH_KERNELS = {
    "adam": Adam(),
    "adam, other settings": Adam(beta_1=0.7, beta_2=0.95, epsilon=0.01),
    "adamw": AdamW(),
    "adamw, other settings": AdamW(beta_1=0.7, beta_2=0.95, epsilon=0.01, weight_decay=0.3),
    "sgd": SGD(),
}


def adam_kernel(node, rate, t, w, g, m, v):
    """com.microsoft.AdamOptimizer, with bias corrections and its decoupled weight decay."""
    alpha, beta, epsilon, decay = (node.attributes[name].as_float() for name in ("alpha", "beta", "epsilon", "lambda"))
    m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
    direction = m / (1 - alpha**t) / (np.sqrt(v / (1 - beta**t)) + epsilon)
    return t + 1, m, v, w - rate * (direction + decay * w)


KERNELS = {
    "Add": np.add, "Div": np.divide, "Mul": np.multiply, "Sqrt": np.sqrt, "Sub": np.subtract,
    "SGDOptimizer": lambda rate, w, g: w - rate * g,
}  # fmt: skip


def run(update, rate, t, arrays, *factor):
    """Return the results of an update graph, in float64."""
    graph, values = update.model.graph, {**arrays, **update.scalars(rate, t, *factor)}
    values |= {name: value.const_value.numpy().astype(float) for name, value in graph.initializers.items()}
    for node in graph:
        given = [values[x.name] for x in node.inputs]
        results = adam_kernel(node, *given) if node.op_type == "AdamOptimizer" else [KERNELS[node.op_type](*given)]
        values |= dict(zip((x.name for x in node.outputs), results, strict=True))
    return {name.removeprefix("new_"): values[name] for name in (x.name for x in graph.outputs)}


def error_of_kernel(optimizer: Any, *, scheduled: bool = False) -> float:
    """Return how far the kernel moves the parameters from where the formula does, relative to the moves."""
    rng = np.random.default_rng(0)
    start, factor = rng.normal(size=300), [0.5] if scheduled else []
    ends = []
    for fused in (True, False):
        update = update_graph(optimizer, ir.DataType.FLOAT, fused=fused, scheduled=scheduled)
        assert any(node.domain for node in update.model.graph) == fused
        arrays = {"parameters": start, **{name: np.zeros(300) for name in update.slots}}
        gradients = np.random.default_rng(1)
        for t in range(1, 9):
            g = gradients.normal(size=300) * np.exp(3 * gradients.normal(size=300))
            arrays = run(update, 0.02, t, {**arrays, "gradients": g}, *factor)
        ends.append(arrays["parameters"])
    return float((np.abs(ends[0] - ends[1]) / np.abs(ends[1] - start).max()).max())


def test_every_optimizer_with_a_kernel_is_compared():
    kinds = {kind for kind in OPTIMIZERS.values() if issubclass(kind, Optimizer) and kind().fused() is not None}
    assert kinds == {type(optimizer) for optimizer in WITH_KERNELS.values()}


@pytest.mark.parametrize("name", WITH_KERNELS)
@pytest.mark.each(by=lambda name: name)
def test_kernel_computes_the_formula(name):
    assert error_of_kernel(WITH_KERNELS[name]) < 1e-6


def test_kernel_computes_the_formula_of_a_scheduled_decay():
    assert error_of_kernel(AdamW(weight_decay=0.3), scheduled=True) < 1e-6


def epsilon_in_the_root(op, g, state, k, optimizer):
    first = running_average(op, state["first_moment"], g, optimizer.beta_1)
    second = running_average(op, state["second_moment"], op.Mul(g, g), optimizer.beta_2)
    direction = op.Div(first, op.Sqrt(op.Add(second, k["epsilon"])))
    return op.Mul(direction, k["learning_rate"]), {"first_moment": first, "second_moment": second}


def decay_of_the_new_parameters(self, op, p, g, state, k):
    step, moments = adam.adam_step(op, g, state, k, self)
    moved = op.Sub(p, step)
    return op.Sub(moved, op.Mul(moved, k["decay"])), moments


CHANGES = {
    "step": (adam, "adam_step", epsilon_in_the_root),
    "decay": (AdamW, "update", decay_of_the_new_parameters),
    "bias corrections": (
        Adam, "scalars", lambda self, learning_rate, t: {"learning_rate": learning_rate, "epsilon": self.epsilon}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.each(by=lambda name: name)
def test_changed_formula_is_told_from_the_kernel(name, monkeypatch):
    """A change of the formula alone makes the comparisons above fail."""
    monkeypatch.setattr(*CHANGES[name])
    assert error_of_kernel(WITH_KERNELS["adamw, other settings"]) > 1e-4
