"""Every gradient that the engine "portable" returns is right, and what it cannot do it refuses.

It is held to the cases of the other engine, and to cases of its own for the operators that the other one lacks. All
are compared with central differences in float64, as described in ``gradient_cases.py``.
"""

from __future__ import annotations

import functools
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.contracts import lowered_cases
from tests.contracts.differences import NO_KERNEL, reference_gradients
from tests.contracts.gradient_cases import Case, extra_opset, model_of, operators
from tests.contracts.portable_cases import CASES
from tests.contracts.portable_forms import MAY_REFUSE, NEWEST, opsets, refusal
from tests.helpers.environment import RULES, RUNTIME_VERSION
from tests.helpers.sessions import session

# onnxruntime 1.19 computes these in float32 even where the input is not, too coarsely for differences.
COARSE = {"y = ReduceL2(x)": "y = Abs(x)", "y = ReduceL2<noop_with_empty_axes = 1>(x)": "y = Abs(x)"}

OTHER_VALUES = {
    "AveragePool": "onnxruntime counts the padding of ceil_mode otherwise than the standard",
    "STFT": "onnxruntime 1.19 fails on complex signals",
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"),
        "onnxruntime 1.19 fails on reductions over no axes, or returns their input; test_empty_reductions.py has them",
    ),
}
"""Operators whose value can differ from the reference's, and why."""

REFUSED_GRAPHS = {
    "Conv": r"Op \(Mul\) \[ShapeInferenceError\] Incompatible dimensions",
    "LayerNormalization": r"Size of X\.shape\[axis:\] must be larger than 1",
}
"""What onnxruntime 1.21 says of graphs that are right: sizes of auto_pad are inferred
wrongly, and one number is not normalized."""


@functools.cache
def expected(index):
    one = CASES[index]
    if one.body in COARSE and (not one.arrays["x"].ndim or "noop" in one.body):
        one = replace(one, reference=COARSE[one.body])
    return reference_gradients(one, index)


def variants():
    met = set()
    for index, one in enumerate(CASES):
        for opset in plain_opsets(one, met):
            yield pytest.param(index, opset, "inputs", id=f"{one.operator or 'others'}-{index}-opset{opset}")
        opset = extra_opset(one)
        if opset is not None:
            for form in ["float64"] * (not refusal(one)) + ["dynamic"] * bool(one.arrays["x"].ndim):
                yield pytest.param(index, opset, form, id=f"{one.operator or 'others'}-{index}-{form}")


def plain_opsets(one, met):
    """Return the opsets in which a case is run with all arrays as inputs, in float32.

    The last is always one. Each other has been enough for a case of the same body but for its numbers, which ``met``
    holds, and for one that is run in it both in float64 and with a symbolic dimension in float32.
    """
    found, body = list(opsets(one)), re.sub(r"[-\d.]+", "#", one.body)
    if refusal(one):
        return found
    twice = {extra_opset(one)} if one.arrays["x"].ndim else set()
    kept = [opset for opset in found[:-1] if opset not in twice and (body, opset) not in met]
    met.update((body, opset) for opset in found)
    return [*kept, found[-1]]


def differences_or_skip(index, opset, arrays, form):
    """Return the model, its loss and its gradients by central differences; skip what none computes."""
    if CASES[index].operator == "Dropout" and arrays.get("t", False):
        pytest.skip("what is dropped is random; test_portable.py holds the mask to what was dropped")
    if CASES[index].operator == "STFT" and arrays["x"].shape[-1] == 2 and RUNTIME_VERSION.startswith("1.19"):
        pytest.skip(OTHER_VALUES["STFT"])
    if CASES[index].operator == "OneHot" and 5 in arrays.get("i", ()) and onnx.__version__.startswith("1.22"):
        pytest.skip("the reference of onnx 1.22 wraps indices out of range, whose rows the standard leaves off")
    with skipping_without_kernel(CASES[index].operator):
        weighting, loss, wanted = expected(index)
    arrays["weighting"] = weighting.astype(arrays["x"].dtype)
    return model_of(CASES[index], opset, without_weighting(arrays), arrays["weighting"], form), loss, wanted


@contextmanager
def skipping_without_kernel(operator):
    try:
        yield
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)) and not refused_itself(operator, str(error)):
            raise
        pytest.skip(f"this runtime cannot run the graph itself: {error}")


def refused_itself(operator, message):
    return RUNTIME_VERSION.startswith("1.21") and re.search(REFUSED_GRAPHS.get(operator, "(?!)"), message)


def require_right_value(index, model, arrays, loss):
    """Skip what the runtime cannot run itself, or computes otherwise than the standard."""
    with skipping_without_kernel(CASES[index].operator):
        given = session(model)
        value = given.run(["loss"], {i.name: arrays[i.name].copy() for i in given.get_inputs()})[0]
    if not np.allclose(value, loss, 1e-3, 1e-4):
        assert CASES[index].operator in OTHER_VALUES
        pytest.skip(OTHER_VALUES[CASES[index].operator])


def run_gradients(graph, arrays, names):
    run = session(graph)
    return run.run(
        ["loss", *(f"{name}_grad" for name in names)], {i.name: arrays[i.name].copy() for i in run.get_inputs()}
    )


def without_weighting(arrays):
    return {name: array for name, array in arrays.items() if name != "weighting"}


def graph_or_refusal(model, one):
    try:
        return gradient_graph(model, wrt=one.names, engine="portable")
    except ModelError as error:
        if not any(reason in str(error) for reason in MAY_REFUSE):
            raise
        return None


def covered_by_rules(index, opset, form):
    """Return the operators, each in its form or refused, and the attributes with their words."""
    words = frozenset(re.findall(r"[A-Za-z_]{3,}", CASES[index].body))
    return [words, *((name, refusal(CASES[index]) or form) for name in operators(CASES[index]))]


def proven(index, opset, form):
    return operators(CASES[index])


def rules(index, opset, form):
    return "refused" if refusal(CASES[index]) else frozenset(operators(CASES[index]))


@pytest.mark.proof(operators=proven)
@pytest.mark.each(by=rules)
@pytest.mark.thinned(by=covered_by_rules)
@pytest.mark.parametrize(("index", "opset", "form"), variants())
def test_gradient_is_right_or_refused(index, opset, form):
    one, reason = CASES[index], refusal(CASES[index])
    kind = np.float64 if form == "float64" else np.float32
    arrays = {name: a.astype(kind) if a.dtype.kind == "f" else a for name, a in one.arrays.items()}
    if reason:
        with pytest.raises(UnsupportedOperatorError, match=reason):
            gradient_graph(
                model_of(one, opset, one.arrays, np.ones((), np.float32), form), wrt=one.names, engine="portable"
            )
        return
    model, loss, wanted = differences_or_skip(index, opset, arrays, form)
    try:
        graph = graph_or_refusal(model, one)
        if graph is not None:
            assert_right(one, run_gradients(graph, arrays, one.names), arrays, loss, wanted)
    except Exception:
        require_right_value(index, model, arrays, loss)  # asked only here: that takes another session
        raise


def assert_right(one, results, arrays, loss, wanted):
    value, *gradients = results
    np.testing.assert_allclose(value, loss, rtol=1e-4, atol=1e-5)
    for name, gradient in zip(one.names, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        assert gradient.dtype == arrays[name].dtype
        double = gradient.dtype == np.float64 and one.operator != "Cast"
        wanted[name].assert_equal(gradient, *((1e-5, 1e-7) if double else (2e-4, 2e-5)), name)


def test_every_rule_has_a_right_case():
    cases = [*(one for one in CASES if not refusal(one)), *(one for one in lowered_cases.CASES if not one.refused)]
    right = {node for one in cases for node in operators(one)}
    assert set(RULES["portable"]) <= right


def test_graphs_hold_plain_operators_only():
    body = Case("", "y = Softmax(x)", {"x": np.ones((2, 3), np.float32)})
    model = model_of(body, 18, body.arrays, np.ones((2, 3), np.float32), "inputs")
    graph = gradient_graph(model, wrt="x", engine="portable")
    assert {o.domain for o in graph.opset_import} == {""}
    onnx.checker.check_model(graph, full_check=True)


@pytest.mark.skipif(NEWEST < 24, reason="TensorScatter came with opset 24")
@pytest.mark.parametrize(("steps", "start"), [(4, 0), (2, -1)])
def test_invalid_tensor_scatter_fails_at_run_time(steps, start):
    arrays = {"x": np.zeros((2, 1, 3), np.float32), "u": np.zeros((1, 3, 3), np.float32), "i": np.array([start])}
    body = 't = Transpose<perm = [1, 0, 2]>(x) y = TensorScatter<mode = "circular">(u, t, i)'
    one = Case("TensorScatter", body, arrays, wrt=("x", "u"), fed=("i",))
    graph = gradient_graph(model_of(one, 24, arrays, np.ones((1, 3, 3), np.float32), "dynamic"), wrt=["x", "u"])
    run = session(graph)
    feeds = {**arrays, "weighting": np.ones((1, 3, 3), np.float32)}
    run.run(None, {i.name: {**feeds, "i": np.array([2])}[i.name] for i in run.get_inputs()})
    feeds["x"] = np.zeros((steps, 1, 3), np.float32)
    with pytest.raises(Exception, match="TensorScatter"):
        run.run(None, {i.name: feeds[i.name] for i in run.get_inputs()})
