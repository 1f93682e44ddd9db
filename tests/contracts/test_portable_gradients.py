"""Every gradient that the engine "portable" returns is right, and what it cannot do it refuses.

It is held to the cases of the other engine, and to cases of its own for the operators that the other one lacks. All
are compared with central differences in float64, as described in ``test_gradients.py``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import _runtime
from onnxtrain_sklearn._gradient import portable
from onnxtrain_sklearn._gradient.engine import gradient_graph
from onnxtrain_sklearn._graph.versions import MAX_OPSET
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts import test_gradients as shared
from tests.contracts.test_gradients import CUBE, IMAGE, LABELS, MATRIX, Case, draw, ints, model_of, positive, session

CASES: list[Case] = [one for one in shared.CASES if "opset 11 to 21" not in one.refused]
# onnxruntime 1.19 computes these in float32 even where the input is not, too coarsely for differences.
COARSE = {"y = ReduceL2(x)": "y = Abs(x)", "y = ReduceL2<noop_with_empty_axes = 1>(x)": "y = Abs(x)"}
OPSETS = (11, 13, 17, 18, 21, 23)
NEWEST = min(MAX_OPSET, _runtime.limits().opset)

# Bodies of shared cases that this engine refuses too, whatever the form: a part of each, and of the reason.
REFUSED = {
    'reduction = "mul"': "only reductions 'none' and 'add'",
    'reduction = "min"': "only reductions 'none' and 'add'",
    'reduction = "max"': "only reductions 'none' and 'add'",
    "storage_order = 1": "storage_order=1",
    "OneHot(": "has no gradient for it",
    "LayerNormalization(x, s, b) y = Mul(z, m)": "further outputs",
}
MAY_REFUSE = (
    "needs opset (13|16) or newer|needs fixed sizes|must be fixed|not known to agree|further outputs|training_mode must"
)

NO_KERNEL = "NOT_IMPLEMENTED|ValidateOpsetForDomain|ValidateNoTransposeReduce|Type Error"
"""What a runtime says of graphs that it cannot run: no kernel, an opset too new, its own fault, a type not allowed."""

OTHER_VALUES = {
    "AveragePool": "onnxruntime counts the padding of ceil_mode otherwise than the standard",
    "ReduceL2": "onnxruntime 1.19 fails on reductions that noop_with_empty_axes turns off",
    "Dropout": "what is dropped is random; test_portable.py holds the mask to what was dropped",
}
"""Operators whose value can differ from the reference's, and why."""


def case(operator, body, *, refused="", opsets=(18,), wrt=(), reference="", **arrays):
    """Add a case of an operator that the other engine lacks, or differentiates in part."""
    rng = np.random.default_rng(len(CASES))
    drawn = {name: draw(rng, values) for name, values in arrays.items()}
    body = body.replace("<>", "")
    CASES.append(Case(operator, body, drawn, refused, wrt=tuple(wrt), opsets=tuple(opsets), reference=reference))


def inside(*shape):
    """Numbers in (-0.9, 0.9)."""
    return np.random.default_rng(3).uniform(-0.9, 0.9, size=shape).astype(np.float32)


for name in "Sinh Cosh Tan Atan Asinh Softsign Sign Floor Ceil Round HardSigmoid Selu Elu Celu".split():
    case(name, f"y = {name}(x) ", x=MATRIX, opsets=(12, 18, 22))
for name in ("Acos", "Asin", "Atanh"):
    case(name, f"y = {name}(x)", x=inside(2, 3), opsets=(11, 18))
case("Acosh", "y = Acosh(x)", x=positive(2, 3) + 1)
case("HardSwish", "y = HardSwish(x)", x=4 * inside(4, 6), opsets=(14, 18, 22))
case("Mish", "y = Mish(x)", x=MATRIX)
case(
    "Shrink", "y = Shrink<lambd = 0.3, bias = 0.1>(x)", x=(4, 5),
    reference="l = Constant<value_float = 0.3>() k = CastLike(l, x) a = Abs(x) o = Greater(a, k) g = Sign(x) "
    "b = Constant<value_float = 0.1>() c = CastLike(b, x) d = Mul(c, g) e = Sub(x, d) z = Sub(x, x) y = Where(o, e, z)",
)  # fmt: skip
case("ThresholdedRelu", "y = ThresholdedRelu<alpha = 0.4>(x)", x=(4, 5))
case("Swish", "y = Swish<alpha = 1.7>(x)", x=MATRIX, opsets=(24,))
case("Elu", "y = Elu<alpha = 0.4>(x)", x=(4, 5))
case("Celu", "y = Celu<alpha = 0.4>(x)", x=(4, 5))
case("Selu", "y = Selu<alpha = 1.2, gamma = 0.7>(x)", x=(4, 5))
case("HardSigmoid", "y = HardSigmoid<alpha = 0.4, beta = 0.3>(x)", x=(4, 5))
case("Gelu", 'y = Gelu<approximate = "tanh">(x)', x=MATRIX, opsets=(20,))
case("CastLike", "s = Sin(z) l = CastLike(x, s) y = Mul(l, s)", x=MATRIX, z=MATRIX, wrt=["x"])
case("PRelu", "y = PRelu(x, s)", x=CUBE, s=positive(3, 1), opsets=OPSETS)
case("PRelu", "y = PRelu(x, s)", x=CUBE, s=positive(4))
for name in ("Sum", "Mean", "Max", "Min"):
    case(name, f"y = {name}(x, z, v)", x=CUBE, z=(3, 1), v=(4,), opsets=OPSETS)
    case(name, f"y = {name}(x)", x=MATRIX)
case("Mod", "y = Mod<fmod = 1>(x, z)", x=4 * inside(4, 5), z=positive(5))
case("Pow", "y = Pow(x, z)", x=positive(2, 3), z=(3,), opsets=OPSETS)
case("Pow", "y = Pow(x, z)", x=positive(3), z=(2, 3))
case("Pow", "y = Pow(x, z)", x=MATRIX, z=np.array([2.0, 3.0, 0.0]), wrt=["x"])
case("Pow", "y = Pow(x, z)", x=MATRIX, z=ints(3))
case("Clip", "y = Clip(x, a, b)", x=(4, 5), a=-0.4, b=0.6, opsets=OPSETS)
case("Clip", "y = Clip(x, a, b)", x=(4, 5), a=0.6, b=-0.4)
for name in "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceSumSquare".split():
    for settings in ("", "axes = [1]", "axes = [0, -1], keepdims = 0", "keepdims = 0"):
        case(name, f"y = {name}<{settings}>(x)", x=CUBE, opsets=(11, 13, 17))
    case(name, f"y = {name}<keepdims = 0>(x, a)", x=CUBE, a=ints(1, 2), opsets=(18, 21))
for zeros in ([[1, 2, 0]], [[0, 2, 0]], [[1, 2, 3]]):
    case("ReduceProd", "y = ReduceProd<keepdims = 0>(x, a)", x=np.array(zeros, np.float32), a=ints(1))
case("ReduceLogSum", "y = ReduceLogSum<axes = [1]>(x)", x=positive(2, 3, 4), opsets=(11, 17))
case("ReduceLogSum", "y = ReduceLogSum<keepdims = 0>(x)", x=positive(2, 3, 4))
for settings in ("", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"):
    case("CumSum", f"y = CumSum<{settings}>(x, a)", x=CUBE, a=np.int64(1), opsets=(11, 18))
for p in (1, 2):
    case("LpNormalization", f"y = LpNormalization<p = {p}, axis = 1>(x)", x=CUBE, opsets=(11, 18))
case("RMSNormalization", "y = RMSNormalization(x, s)", x=CUBE, s=(4,), opsets=(23,))
case("RMSNormalization", "y = RMSNormalization<axis = 1, epsilon = 0.1>(x, s)", x=CUBE, s=(3, 4), opsets=(23,))
case("InstanceNormalization", "y = InstanceNormalization(x, s, b)", x=IMAGE, s=(2,), b=(2,), opsets=(11, 18))
case("GroupNormalization", "y = GroupNormalization<num_groups = 2>(x, s, b)", x=(2, 4, 3), s=(2,), b=(2,), opsets=(18,))
case(
    "GroupNormalization", "y = GroupNormalization<num_groups = 2>(x, s, b)",
    x=(2, 4, 3), s=(4,), b=(4,), opsets=(21,),
    reference="n = Constant<value_ints = [2, 2, 6]>() k = Shape(x) r = Reshape(x, n) a = Constant<value_ints = [2]>() "
    "m = ReduceMean(r, a) c = Sub(r, m) q = Mul(c, c) v = ReduceMean(q, a) e = Constant<value_float = 0.00001>() "
    "f = CastLike(e, x) w = Add(v, f) d = Sqrt(w) z = Div(c, d) t = Reshape(z, k) i = Constant<value_ints = [1]>() "
    "u = Unsqueeze(s, i) j = Unsqueeze(b, i) l = Mul(t, u) y = Add(l, j)",
)  # fmt: skip
STATISTICS = {"s": (2,), "b": (2,), "m": (2,), "v": positive(2)}
case("BatchNormalization", "y = BatchNormalization(x, s, b, m, v)", x=IMAGE, opsets=(11, 14, 15, 18), **STATISTICS)
case("BatchNormalization", "y = BatchNormalization<epsilon = 0.1>(x, s, b, m, v)", x=(*MATRIX[:1], 2), **STATISTICS)
case(
    "BatchNormalization",
    "y, n, u = BatchNormalization<training_mode = 1>(x, s, b, m, v)",
    x=IMAGE, opsets=(14, 15, 18), wrt=["x", "s", "b"], **STATISTICS,
)  # fmt: skip
case("GlobalMaxPool", "y = GlobalMaxPool(x)", x=IMAGE, opsets=(11, 18))
for mode in ("reflect", "edge"):
    case("Pad", f'y = Pad<mode = "{mode}">(x, p)', x=(3, 4), p=ints(1, 2, 0, 1), opsets=(18, 21))
case("Pad", "y = Pad(x, p, c)", x=(3, 4), p=ints(1, 2, 0, -1), c=0.5)
case("Pad", "y = Pad(x, p, c, a)", x=(3, 4), p=ints(2, 1), c=0.5, a=ints(1))
for start, end, step in ((-1, -9, -1), (3, 0, -2), (0, 4, 2), (-3, 100, 1), (2, 2, 1)):
    case(
        "Slice", "y = Slice(x, b, e, a, s)",
        x=(3, 4), b=ints(start), e=ints(end), a=ints(1), s=ints(step), opsets=(11, 18),
    )  # fmt: skip
case("Compress", "y = Compress<axis = 1>(x, c)", x=(3, 4), c=np.array([True, False, True]))
case("DepthToSpace", "y = DepthToSpace<blocksize = 2>(x)", x=(1, 8, 2, 3))
case("DepthToSpace", 'y = DepthToSpace<blocksize = 2, mode = "CRD">(x)', x=(1, 8, 2, 3), refused="mode='DCR'")
case("SpaceToDepth", "y = SpaceToDepth<blocksize = 2>(x)", x=(1, 2, 4, 6))
case("ReverseSequence", "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)", x=(3, 4), l=ints(2, 4, 1))
for reduction in ("add", "none"):
    attribute = f'<reduction = "{reduction}">'
    case("ScatterND", f"y = ScatterND{attribute}(x, i, u)", x=(4, 3), i=ints([0], [3]), u=(2, 3), opsets=(16, 18))
    case("ScatterElements", f"y = ScatterElements{attribute}(x, i, u)", x=(4, 3), i=ints([0, 3, 1]), u=(1, 3))
case("ScatterND", 'y = ScatterND<reduction = "add">(x, i, u)', x=(4, 3), i=ints([0], [0]), u=(2, 3))
SPREAD = {"x": (2, 3, 4, 3), "w": (3, 2, 3, 2), "b": (2,)}
for settings in (
    "",
    "strides = [2, 3]",
    "pads = [1, 0, 1, 0]",
    "dilations = [1, 2]",
    "strides = [3, 2], output_padding = [1, 1]",
):
    case("ConvTranspose", f"y = ConvTranspose<{settings}>(x, w, b)", **SPREAD, opsets=(11, 18))
case(  # ONNX's own reference fails on groups
    "ConvTranspose", "y = ConvTranspose<group = 3>(x, w)", x=(2, 3, 4), w=(3, 2, 2),
    reference="x0, x1, x2 = Split<axis = 1, num_outputs = 3>(x) w0, w1, w2 = Split<axis = 0, num_outputs = 3>(w) "
    "y0 = ConvTranspose(x0, w0) y1 = ConvTranspose(x1, w1) y2 = ConvTranspose(x2, w2) y = Concat<axis = 1>(y0, y1, y2)",
)  # fmt: skip
case("ConvTranspose", "y = ConvTranspose<pads = [0, 0, 1, 0]>(x, w, b)", **SPREAD, refused="pads that differ")
for reduction in ("none", "sum", "mean"):
    text = f'NegativeLogLikelihoodLoss<reduction = "{reduction}"'
    case("NegativeLogLikelihoodLoss", f"y = {text}>(x, t)", x=MATRIX, t=LABELS, opsets=(12, 13, 18))
    case(
        "NegativeLogLikelihoodLoss",
        f"y = {text}, ignore_index = 1>(x, t, w)",
        x=(4, 3),
        t=ints(0, 2, 1, 2),
        w=positive(3),
    )
for equation in ("ij,jk->ik", "ij,jk", "ij,jk->i", "bi, jb -> ", "ij,jk->kij"):
    case("Einsum", f'y = Einsum<equation = "{equation}">(x, z)', x=MATRIX, z=(4, 2) if "b" in equation else (3, 4))
case("Einsum", 'y = Einsum<equation = "bij,bjk,k->bi">(x, z, w)', x=CUBE, z=(2, 4, 5), w=(5,))
case("Einsum", 'y = Einsum<equation = "ij->j">(x)', x=MATRIX)
case("Einsum", 'y = Einsum<equation = "...i,i->...">(x, z)', x=MATRIX, z=(3,), refused="ellipsis")
case("Einsum", 'y = Einsum<equation = "ii->i">(x)', x=(3, 3), refused="twice")
case("Hardmax", "h = Hardmax(x) y = Mul(x, h)", x=MATRIX)
case("Det", "y = Det(x)", x=(3, 3), refused="has no gradient")
case("Relu", "y = Relu(x)", x=MATRIX, opsets=(10, 27), refused="opset 11 to 26")


@functools.cache
def expected(index):
    one = CASES[index]
    if one.body in COARSE and (not one.arrays["x"].ndim or "noop" in one.body):
        one = replace(one, reference=COARSE[one.body])
    return shared.reference_gradients(one, index)


def refusal(one):
    """Return the reason for which the engine refuses a case in every form, "" where it has to be right."""
    if not any(one is other for other in shared.CASES):
        return one.refused
    return next((reason for part, reason in REFUSED.items() if part in one.body), "")


def operators(one):
    return set(re.findall(r"([A-Z]\w+)\s*[<(]", one.body))


def signature(operator, opset):
    schema = onnx.defs.get_schema(operator, opset, "")
    return [x.name for x in schema.inputs], sorted(schema.attributes.keys() - {"round_mode"})  # only of 8-bit floats


def opsets(one):
    """Return the opsets of a case, and the newest one where all its operators have the form of before."""
    last = max(one.opsets)
    more = 18 <= last < NEWEST and all(signature(name, last) == signature(name, NEWEST) for name in operators(one))
    return (*one.opsets, NEWEST) if more else one.opsets


def variants():
    for index, one in enumerate(CASES):
        for opset in opsets(one):
            yield pytest.param(index, opset, "inputs", id=f"{one.operator or 'others'}-{index}-opset{opset}")
        if 18 in one.opsets:
            for form in ["float64"] * (not refusal(one)) + ["dynamic"] * bool(one.arrays["x"].ndim):
                yield pytest.param(index, 18, form, id=f"{one.operator or 'others'}-{index}-{form}")


def differences_or_skip(index, opset, arrays, form):
    """Return the model, its loss and its gradients by central differences; skip what the runtime cannot run itself."""
    try:
        weighting, loss, wanted = expected(index)
        arrays["weighting"] = weighting.astype(arrays["x"].dtype)
        model = model_of(CASES[index], opset, without_weighting(arrays), arrays["weighting"], form)
        given = session(model)
        value = given.run(["loss"], {i.name: arrays[i.name] for i in given.get_inputs()})[0]
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)):
            raise
        pytest.skip(f"this runtime cannot run the graph itself: {error}")
    if not np.allclose(value, loss, 1e-3, 1e-4):
        assert CASES[index].operator in OTHER_VALUES
        pytest.skip(OTHER_VALUES[CASES[index].operator])
    return model, loss, wanted


def without_weighting(arrays):
    return {name: array for name, array in arrays.items() if name != "weighting"}


def graph_or_refusal(model, one):
    try:
        return gradient_graph(model, wrt=one.names, engine="portable")
    except UnsupportedOperatorError as error:
        if not re.search(MAY_REFUSE, str(error)):
            raise
        return None


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
    graph = graph_or_refusal(model, one)
    if graph is None:
        return
    run = session(graph)
    value, *gradients = run.run(
        ["loss", *(f"{name}_grad" for name in one.names)], {i.name: arrays[i.name] for i in run.get_inputs()}
    )
    np.testing.assert_allclose(value, loss, rtol=1e-4, atol=1e-5)
    for name, gradient in zip(one.names, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        assert gradient.dtype == kind
        scale = max(1.0, np.abs(wanted[name]).max(initial=0))
        tolerance = (1e-5, 1e-7) if kind is np.float64 and one.operator != "Cast" else (2e-4, 2e-5)
        np.testing.assert_allclose(gradient, wanted[name], rtol=tolerance[0], atol=tolerance[1] * scale, err_msg=name)


def test_every_rule_has_a_right_case():
    from tests.contracts import test_fallback_gradients as others

    cases = [*(one for one in CASES if not refusal(one)), *(one for one in others.CASES if not one.refused)]
    right = {node for one in cases for node in operators(one)}
    assert set(portable.RULES) <= right


def test_graphs_hold_plain_operators_only():
    body = Case("", "y = Softmax(x)", {"x": np.ones((2, 3), np.float32)})
    model = model_of(body, 18, body.arrays, np.ones((2, 3), np.float32), "inputs")
    graph = gradient_graph(model, wrt="x", engine="portable")
    assert {o.domain for o in graph.opset_import} == {""}
    onnx.checker.check_model(graph, full_check=True)
