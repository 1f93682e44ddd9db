"""Every gradient that the engine "ort-training" returns is right, and what it cannot do it refuses.

The cases are compared with central differences of the forward graph in float64. A case has a body that computes `y`
from its inputs; what is differentiated is the sum of `y` under fixed random weights, so that a transposed, unreduced or
misplaced gradient shows. Each right case is run in several forms: with the arrays as inputs, as initializers, with a
symbolic first dimension of `x`, and in float64 behind a cast of the loss.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts.differences import reference_gradients
from tests.contracts.gradient_cases import extra_opset, model_of
from tests.contracts.ort_training_cases import CASES
from tests.helpers.environment import RULES, available_engines
from tests.helpers.sessions import session

pytestmark = pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")


# Operators with kernels in float64 for themselves and their gradients at opset 18; other sessions cannot be created.
FLOAT64 = """
    Abs Add Ceil Clip Concat Div Dropout Exp Expand Flatten Floor Gather GatherElements GatherND Gemm Identity Log
    Max Min Mul Neg Pad Pow Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceSum Relu Reshape Round Sigmoid Sign
    Slice SoftmaxCrossEntropyLoss Softplus Split Sqrt Squeeze Sub Tanh Tile TopK Transpose Trilu Unsqueeze Where
""".split()


@functools.cache
def expected_of_builder(index):
    return reference_gradients(CASES[index], index)


def variants_of_builder():
    for index, one in enumerate(CASES):
        for opset in one.opsets:
            yield pytest.param(index, opset, "inputs", id=f"{one.operator or 'others'}-{index}-opset{opset}")
        opset = extra_opset(one)
        if not one.refused and opset is not None:
            dynamic = ["dynamic"] * bool(one.arrays["x"].ndim)
            initializers = ["initializers"] * (not dynamic or bool(one.dynamic))
            double = ["float64"] * (one.operator in FLOAT64 and opset == 18)
            for form in [*double, *dynamic, *initializers]:
                yield pytest.param(index, opset, form, id=f"{one.operator}-{index}-{form}")


def covered_by_builder(index, opset, form):
    return [(CASES[index].operator, CASES[index].refused or form)]


def proven_by_builder(index, opset, form):
    return CASES[index].operator or "others"


@pytest.mark.proof(operators=proven_by_builder)
@pytest.mark.thinned(by=covered_by_builder)
@pytest.mark.parametrize(("index", "opset", "form"), variants_of_builder())
def test_gradient_is_right_or_refused(index, opset, form):
    one = CASES[index]
    refused = one.refused or (one.dynamic if form == "dynamic" else "")
    if refused:
        with pytest.raises(UnsupportedOperatorError, match=refused):
            gradient_graph(
                model_of(one, opset, one.arrays, np.ones((), np.float32), form), wrt=one.names, engine="ort-training"
            )
        return
    kind = np.float64 if form == "float64" else np.float32
    arrays = {name: a.astype(kind) if a.dtype.kind == "f" else a for name, a in one.arrays.items()}
    weighting, loss, wanted = expected_of_builder(index)
    arrays["weighting"] = weighting.astype(kind)
    model = model_of(one, opset, {n: a for n, a in arrays.items() if n != "weighting"}, arrays["weighting"], form)
    run = session(gradient_graph(model, wrt=one.names, engine="ort-training"))
    feeds = {i.name: arrays[i.name] for i in run.get_inputs()}
    value, *gradients = run.run(["loss", *(f"{name}_grad" for name in one.names)], feeds)
    np.testing.assert_allclose(value, loss, rtol=1e-4, atol=1e-5)
    for name, gradient in zip(one.names, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        assert gradient.dtype == kind
        wanted[name].assert_equal(gradient, 2e-4, 2e-5, name)


def test_every_proven_operator_has_a_right_case():
    folded = {"CastLike"}  # it is a Cast before the engine sees the graph
    assert set(RULES["ort-training"]) | folded == {one.operator for one in CASES if not one.refused}
