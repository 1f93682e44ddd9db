"""Every gradient through what the portable engine lowers to other operators, or enters, is right or refused.

Recurrences, control flow, sequences, operators that the standard defines as functions. The cases are compared with
central differences in float64, as described in ``gradient_cases.py``.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._gradient import lowering as expand
from onnxtrain_sklearn._gradient import subgraph_rules as control
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts.differences import NO_KERNEL, reference_gradients
from tests.contracts.gradient_cases import in_type, model_of, operators
from tests.contracts.lowered_cases import CASES
from tests.contracts.portable_forms import MAY_REFUSE, lacks_double
from tests.helpers.sessions import session


@functools.cache
def expected_of_lowered(index):
    return reference_gradients(CASES[index], index, opset=18)


def variants_of_lowered():
    for index, one in enumerate(CASES):
        for opset in one.opsets:
            yield pytest.param(index, opset, "inputs", id=f"{one.operator}-{index}-opset{opset}")
        opset = one.opsets[-1]
        if not one.refused:
            yield pytest.param(index, opset, "float64", id=f"{one.operator}-{index}-float64")
            if one.arrays["x"].ndim:
                yield pytest.param(index, opset, "dynamic", id=f"{one.operator}-{index}-dynamic")


def runs(model):
    """Return a session, or None where this runtime lacks a kernel or the opset."""
    try:
        return session(model)
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)):
            raise
        return None


def feeds_of(run, arrays):
    return {i.name: arrays[i.name] for i in run.get_inputs()}


def covered_by_lowered(index, opset, form):
    one = CASES[index]
    return [(name, one.refused or (one.dynamic if form == "dynamic" else "") or form) for name in operators(one)]


def proven_by_lowered(index, opset, form):
    return operators(CASES[index])


@pytest.mark.proof(operators=proven_by_lowered)
@pytest.mark.thinned(by=covered_by_lowered)
@pytest.mark.parametrize(("index", "opset", "form"), variants_of_lowered())
def test_gradient_is_right_or_refused(index, opset, form):
    kind = np.float64 if form == "float64" else np.float32
    one = in_type(CASES[index], kind)
    arrays = {name: a.astype(kind) if a.dtype.kind == "f" else a for name, a in one.arrays.items()}
    refused = one.refused or (one.dynamic if form == "dynamic" else "")
    if refused:
        with pytest.raises(UnsupportedOperatorError, match=refused):
            gradient_graph(model_of(one, opset, arrays, np.ones((), kind), form), wrt=one.names, engine="portable")
        return
    weighting, loss, wanted = expected_of_lowered(index)
    weights = weighting.astype(kind)
    model = model_of(one, opset, arrays, weights, form)
    feeds = {**arrays, "weighting": weights}
    given = None if form == "float64" and lacks_double(one) else runs(model)
    if given is None and not lacks_double(one):
        pytest.skip("this runtime lacks a kernel or the opset")
    if given is not None:
        np.testing.assert_allclose(given.run(["loss"], feeds_of(given, feeds))[0], loss, rtol=1e-4, atol=1e-4)
    try:
        graph = gradient_graph(model, wrt=one.names, engine="portable")
    except UnsupportedOperatorError as error:
        if opset >= 16 or not any(reason in str(error) for reason in MAY_REFUSE):
            raise
        return
    names = ["loss", *(f"{name}_grad" for name in one.names)]
    run = runs(graph)
    if run is None:
        pytest.skip("this runtime lacks a kernel or the opset")
    value, *gradients = run.run(names, feeds_of(run, feeds))
    np.testing.assert_allclose(value, loss, rtol=1e-4, atol=1e-4)
    for name, gradient in zip(one.names, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        assert gradient.dtype == kind
        tolerance = (1e-5, 1e-7) if kind is np.float64 else (2e-4, 2e-5)
        wanted[name].assert_equal(gradient, *tolerance, name)


def test_every_lowering_has_a_right_case():
    right = {node for one in CASES if not one.refused for node in re.findall(r"(\w+)\s*[<(]", one.body)}
    assert set(expand.LOWERINGS) | set(control.RULES) <= right
