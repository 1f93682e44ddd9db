"""The gradient of each operator is differentiated again, rightly or not at all.

Products of Hessians with random vectors are compared with central differences of the gradient, in float64.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import gradient_graph, hvp_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts import references
from tests.contracts.differences import forward_values
from tests.contracts.gradient_cases import Case, in_type, model_of, operators
from tests.contracts.portable_cases import CASES
from tests.contracts.portable_forms import refusal
from tests.helpers.environment import NEWEST_OPSET
from tests.helpers.sessions import session

STEPS = {np.float64: 1e-5, np.float32: 1e-3}
TOLERANCE = {np.float64: 1e-5, np.float32: 3e-2}

WITHOUT = {
    "CumProd": "its own derivative is not known",
    "ReduceProd": "its own derivative is not known",
}
"""Operators whose gradient has no gradient."""

JUMPING = {"MaxRoiPool"}
"""Operators without a kernel in float64 whose gradient jumps where their operands are moved so far."""

DRAWING = {"Bernoulli", "Dropout", "RandomNormalLike", "RandomUniformLike"}
"""Operators that draw other numbers for each end of a difference."""


def reason_of(case):
    """Return the part of the error with which a second derivative is refused; empty if it is right."""
    if 'reduction = "mul"' in case.body:
        return "its own derivative is not known"
    return "" if "noop_with_empty_axes" in case.body else WITHOUT.get(case.operator, "")


def cases():
    for index, case in enumerate(CASES):
        if not refusal(case) and not operators(case) & (DRAWING | JUMPING) and max(case.opsets) <= NEWEST_OPSET:
            yield pytest.param(index, id=f"{case.operator or 'others'}-{index}")


def proven(index):
    return operators(CASES[index])


def covered(index):
    words = frozenset(re.findall(r"[A-Za-z_]{3,}", CASES[index].body))
    return [words, *operators(CASES[index])]


def results(model, names, ending):
    """Return the function that runs a graph: in onnxruntime, or in the reference for want of a kernel in float64."""
    try:
        run = session(model).run
    except Exception:
        run = ReferenceEvaluator(model, new_ops=references.OPERATORS).run
    wanted = {value.name for value in model.graph.input}
    return lambda feeds: run(
        [f"{n}_{ending}" for n in names], {n: np.array(a) for n, a in feeds.items() if n in wanted}
    )


def prepared(index, dtype):
    """Return a model whose ``total`` is differentiated, its inputs, directions, and slopes of its gradient there."""
    case, step = in_type(CASES[index], dtype), STEPS[dtype]
    arrays = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in case.arrays.items()}
    everything = Case("", case.body, arrays, fed=tuple(arrays))
    rng = np.random.default_rng(index)
    forward = model_of(everything, max(case.opsets), arrays, np.ones((), dtype), "inputs")
    forward.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    )
    shape = np.shape(forward_values(forward)[0]({**arrays, "weighting": np.ones((), dtype)}))
    feeds = {**arrays, "weighting": rng.normal(size=shape).astype(dtype)}
    model = model_of(case, max(case.opsets), arrays, feeds["weighting"], "inputs")
    gradient = results(gradient_graph(model, case.names, "total", engine="portable"), case.names, "grad")
    vectors = {name: rng.normal(size=arrays[name].shape).astype(dtype) for name in case.names}
    above, below = (
        gradient({**feeds, **{n: arrays[n] + dtype(move) * v for n, v in vectors.items()}}) for move in (step, -step)
    )
    slopes = [(one.astype(np.float64) - other) / (2 * step) for one, other in zip(above, below, strict=True)]
    return model, {**feeds, **{f"{n}_vector": v for n, v in vectors.items()}}, slopes


@pytest.mark.proof(operators=proven)
@pytest.mark.thinned(by=covered)
@pytest.mark.parametrize("index", cases())
def test_second_derivative_is_right_or_refused(index):
    dtype, names = np.float64, CASES[index].names
    try:
        model, feeds, expected = prepared(index, dtype)
    except Exception:
        dtype = np.float32  # what has no kernel in float64 is compared coarsely
        try:
            model, feeds, expected = prepared(index, dtype)
        except Exception as error:
            pytest.skip(f"the gradient itself does not run: {str(error)[:200]}")
    if reason := reason_of(CASES[index]):
        with pytest.raises(UnsupportedOperatorError, match=reason):
            hvp_graph(model, names, "total", engine="portable")
        return
    try:
        product = results(hvp_graph(model, names, "total", engine="portable"), names, "hvp")
    except UnsupportedOperatorError as error:
        assert re.search("kernel is not known|index .* differ", str(error))  # noqa: PT017
        pytest.skip(str(error))
    try:
        found = product(feeds)
    except ValueError as error:
        if "64 array objects" not in str(error):  # onnx's reference of LpPool
            raise
        pytest.skip(str(error))
    scale = max(1.0, *(np.abs(values).max(initial=0) for values in expected))
    for name, one, other in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=name)
