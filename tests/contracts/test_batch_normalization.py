"""Gradients of batch normalization far from zero, with wide and narrow deviations, in each type and form.

Channels of few pixels take another form than those of many, or of an unknown number.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import gradient_graph
from tests.helpers.sessions import session

EPSILON, MOMENTUM = 2**-9, 0.75
MANY, FEW = (16, 2, 16, 8), (16, 2, 8, 8)


def model_of(kind, training, sizes):
    outputs, running = ("y, n, u", f", {kind}[2] n, {kind}[2] u") if training else ("y", "")
    settings, shape = (
        f"training_mode = {training}, epsilon = {EPSILON}, momentum = {MOMENTUM}",
        ", ".join(map(str, sizes)),
    )
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 15]> net (
            {kind}[{shape}] x, {kind}[2] s, {kind}[2] b, {kind}[2] m, {kind}[2] v, {kind}[{shape}] weighting
        ) => ({kind} loss, {kind}[{shape}] y{running}) {{
            {outputs} = BatchNormalization<{settings}>(x, s, b, m, v)
            p = Mul(y, weighting) loss = ReduceSum<keepdims = 0>(p) }}""")


def arrays_of(dtype, mean, deviation, shape):
    """Cotangents that go with the values: the sums over both are large. Numbers are as the type rounds them."""
    rng = np.random.default_rng(0)
    noise = np.clip(rng.normal(size=shape), -2.5, 2.5)
    arrays = {"x": mean + deviation * noise, "s": [1.5, 0.5], "b": [0.2, -0.1]}
    arrays |= {"m": [mean, mean], "v": [deviation**2] * 2, "weighting": np.sign(noise) * rng.uniform(size=shape)}
    return {name: np.asarray(array, dtype) for name, array in arrays.items()}


def expected(x, s, b, m, v, weighting, training):
    """The formulas in float64: the gradients, the output and the next running statistics."""
    n, g, axes = x.size // 2, weighting, (0, *range(2, x.ndim))
    channels = (1, 2, *[1] * (x.ndim - 2))
    mean, variance = (x.mean(axes), x.var(axes)) if training else (m, v)
    inverse = 1 / np.sqrt(variance.reshape(channels) + EPSILON)
    z, factor = (x - mean.reshape(channels)) * inverse, s.reshape(channels) * inverse
    sums = {"b": g.sum(axes), "s": (g * z).sum(axes)}
    less = (sums["b"].reshape(channels) + z * sums["s"].reshape(channels)) / n if training else 0
    gradients = {"x_grad": factor * (g - less), "s_grad": sums["s"], "b_grad": sums["b"]}
    moved = {"n": m * MOMENTUM + mean * (1 - MOMENTUM), "u": v * MOMENTUM + variance * (1 - MOMENTUM)}
    return gradients | {"y": z * s.reshape(channels) + b.reshape(channels)} | (moved if training else {})


def gradients_of(kind, training, sizes):
    return gradient_graph(model_of(kind, training, sizes), wrt=["x", "s", "b"], engine="portable")


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (MANY, MANY),
        (FEW, FEW),
        (FEW, ("N", *FEW[1:])),
        (FEW, ("N", 2, "H", "W")),
        ((24, 2), (24, 2)),
        ((24, 2, 9), (24, 2, 9)),
        ((24, 2, 3, 2, 4), (24, 2, 3, 2, 4)),
        ((300, 2, 1, 1), (300, 2, 1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize(
    ("kind", "mean", "deviation", "near"),
    [
        ("float", 3.0, 2.0, 2e-6),
        ("float", 300.0, 1e-2, 3e-3),
        ("float", -1e4, 1e8, 2e-6),
        ("double", 300.0, 1e-2, 1e-9),
    ],
)
def test_results_are_those_of_the_formulas(training, kind, mean, deviation, near, shape, sizes):
    arrays = arrays_of({"float": np.float32, "double": np.float64}[kind], mean, deviation, shape)
    right = expected(**{name: array.astype(np.float64) for name, array in arrays.items()}, training=training)
    graph = gradients_of(kind, training, sizes)
    found = session(graph).run(list(right), {n: a.copy() for n, a in arrays.items()})
    for name, result in zip(right, found, strict=True):
        assert np.abs(result - right[name]).max() <= near * np.abs(right[name]).max(), name


@pytest.mark.parametrize(("sizes", "few"), [(FEW, True), (("N", *FEW[1:]), True), (MANY, False), ((24, 2), False)])
@pytest.mark.parametrize("training", [0, 1])
def test_the_statistics_of_a_batch_are_computed_once(training, sizes, few):
    """Mean and variance by one reduction each; with few pixels, a kernel stands for each product with a vector."""
    nodes = gradients_of("float", training, sizes).graph.node
    found = Counter(node.op_type for node in nodes)
    assert found["ReduceMean"] == 2 * training
    assert found["BatchNormalization"] == 1 + few * (3 if training else 2)
    assert not any(one.name == "training_mode" and one.i for node in nodes for one in node.attribute)


def test_float16_keeps_the_operator():
    nodes = gradients_of("float16", 1, FEW).graph.node
    assert [node.op_type for node in nodes].count("BatchNormalization") == 1
    assert any(one.name == "training_mode" and one.i for node in nodes for one in node.attribute)


def test_sums_of_float16_are_finite():
    """Cotangents times values 90 from the mean, added up before the division by the deviation, are infinite there.

    onnxruntime computes them in float32 on a CPU; the reference evaluator rounds the result of each node.
    """
    arrays = arrays_of(np.float16, 0.0, 90.0, MANY)
    right = expected(**{name: array.astype(np.float64) for name, array in arrays.items()}, training=0)
    assert np.abs(right["s_grad"]).max() * 90 > np.finfo(np.float16).max
    found = ReferenceEvaluator(gradients_of("float16", 0, MANY)).run(list(right), arrays)
    for name, gradient in zip(right, found, strict=True):
        assert np.abs(gradient - right[name]).max() <= 1e-2 * np.abs(right[name]).max(), name
