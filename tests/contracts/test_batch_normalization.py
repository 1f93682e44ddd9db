"""Gradients of batch normalization far from zero, with wide and narrow deviations, in each type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn._gradient.engine import gradient_graph
from tests.helpers.sessions import session

SHAPE, AXES = (16, 2, 16, 8), (0, 2, 3)
EPSILON = 2**-10


def model_of(kind, training):
    outputs = "y, n, u" if training else "y"
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 15]> net (
            {kind}[16, 2, 16, 8] x, {kind}[2] s, {kind}[2] b, {kind}[2] m, {kind}[2] v, {kind}[16, 2, 16, 8] weighting
        ) => ({kind} loss) {{
            {outputs} = BatchNormalization<training_mode = {training}, epsilon = {EPSILON}>(x, s, b, m, v)
            p = Mul(y, weighting) loss = ReduceSum<keepdims = 0>(p) }}""")


def arrays_of(dtype, mean, deviation):
    """Cotangents that go with the values: the sums over both are large. Numbers are as the type rounds them."""
    rng = np.random.default_rng(0)
    noise = np.clip(rng.normal(size=SHAPE), -2.5, 2.5)
    arrays = {"x": mean + deviation * noise, "s": [1.5, 0.5], "b": [0.2, -0.1]}
    arrays |= {"m": [mean, mean], "v": [deviation**2] * 2, "weighting": np.sign(noise) * rng.uniform(size=SHAPE)}
    return {name: np.asarray(array, dtype) for name, array in arrays.items()}


def expected(x, s, b, m, v, weighting, training):
    """The formulas in float64."""
    n, g, channels = x.size // 2, weighting, (1, 2, 1, 1)
    mean, variance = (x.mean(AXES), x.var(AXES)) if training else (m, v)
    inverse = 1 / np.sqrt(variance.reshape(channels) + EPSILON)
    z, factor = (x - mean.reshape(channels)) * inverse, s.reshape(channels) * inverse
    sums = {"b": g.sum(AXES), "s": (g * z).sum(AXES)}
    less = (sums["b"].reshape(channels) + z * sums["s"].reshape(channels)) / n if training else 0
    return {"x": factor * (g - less), **sums}


@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize(
    ("kind", "mean", "deviation", "near"),
    [
        ("float", 3.0, 2.0, 2e-6),
        ("float", 300.0, 1e-2, 2e-3),
        ("float", -1e4, 1e8, 2e-6),
        ("double", 300.0, 1e-2, 1e-9),
    ],
)
def test_gradients_are_those_of_the_formulas(training, kind, mean, deviation, near):
    arrays = arrays_of({"float": np.float32, "double": np.float64}[kind], mean, deviation)
    right = expected(**{name: array.astype(np.float64) for name, array in arrays.items()}, training=training)
    graph = gradient_graph(model_of(kind, training), wrt=["x", "s", "b"], engine="portable")
    found = session(graph).run([f"{name}_grad" for name in right], {n: a.copy() for n, a in arrays.items()})
    for name, gradient in zip(right, found, strict=True):
        assert np.abs(gradient - right[name]).max() <= near * np.abs(right[name]).max(), name


def test_sums_of_float16_are_finite():
    """Cotangents times values 90 from the mean, added up before the division by the deviation, are infinite there.

    onnxruntime computes them in float32 on a CPU; the reference evaluator rounds the result of each node.
    """
    arrays = arrays_of(np.float16, 0.0, 90.0)
    right = expected(**{name: array.astype(np.float64) for name, array in arrays.items()}, training=0)
    assert np.abs(right["s"]).max() * 90 > np.finfo(np.float16).max
    graph = gradient_graph(model_of("float16", 0), wrt=["x", "s", "b"], engine="portable")
    found = ReferenceEvaluator(graph).run([f"{name}_grad" for name in right], arrays)
    for name, gradient in zip(right, found, strict=True):
        assert np.abs(gradient - right[name]).max() <= 1e-2 * np.abs(right[name]).max(), name
