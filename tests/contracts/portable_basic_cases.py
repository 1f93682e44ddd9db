"""The first cases of the engine "portable": those of the other engine, functions of elements, reductions, products."""

from __future__ import annotations

import numpy as np

from tests.contracts import ort_training_cases
from tests.contracts.gradient_cases import CUBE, IMAGE, MATRIX, Case, adding_to, ints, positive
from tests.contracts.ort_training_cases import LABELS

CASES: list[Case] = [one for one in ort_training_cases.CASES if "opset 11 to 21" not in one.refused]
OPSETS = (11, 13, 17, 18, 21, 23)
case = adding_to(CASES)


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
case("ThresholdedRelu", "y = ThresholdedRelu<alpha = -0.4>(x)", x=(4, 5))
case("Swish", "y = Swish<alpha = 1.7>(x)", x=MATRIX, opsets=(24,))
case("Elu", "y = Elu<alpha = 0.4>(x)", x=(4, 5))
case("Celu", "y = Celu<alpha = 0.4>(x)", x=(4, 5))
case("Selu", "y = Selu<alpha = 1.2, gamma = 0.7>(x)", x=(4, 5))
case("HardSigmoid", "y = HardSigmoid<alpha = 0.4, beta = 0.3>(x)", x=(4, 5))
case("Gelu", 'y = Gelu<approximate = "tanh">(x)', x=MATRIX, opsets=(20,))
case("CastLike", "s = Sin(z) l = CastLike(x, s) y = Mul(l, s)", x=MATRIX, z=MATRIX, wrt=["x"])
case("CastLike", "y = CastLike(x, x)", x=MATRIX)
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
SINGLE = {"ReduceL1": "Abs(x)", "ReduceLogSum": "Log(x)", "ReduceSumSquare": "Mul(x, x)"}  # of single elements
for name, single in (SINGLE | dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceProd"), "Identity(x)")).items():
    everything = {"x": positive(2, 3) if name == "ReduceLogSum" else MATRIX, "reference": f"y = {single}"}
    case(name, f"y = {name}<noop_with_empty_axes = 1>(x)", opsets=(18, 21), **everything)
    case(name, f"y = {name}<noop_with_empty_axes = 1, keepdims = 0>(x, a)", a=ints(), **everything)
for zeros in ([[1, 2, 0]], [[0, 2, 0]], [[1, 2, 3]]):
    case("ReduceProd", "y = ReduceProd<keepdims = 0>(x, a)", x=np.array(zeros, np.float32), a=ints(1))
case("ReduceLogSum", "y = ReduceLogSum<axes = [1]>(x)", x=positive(2, 3, 4), opsets=(11, 17))
case("ReduceLogSum", "y = ReduceLogSum<keepdims = 0>(x)", x=positive(2, 3, 4))
case("ReduceLogSum", "y = ReduceLogSum<keepdims = 0>(x, a)", x=positive(2, 3, 4), a=ints(0, 2))
for settings in ("", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"):
    case("CumSum", f"y = CumSum<{settings}>(x, a)", x=CUBE, a=np.int64(1), opsets=(11, 18))
for p in (1, 2):
    case("LpNormalization", f"y = LpNormalization<p = {p}, axis = 1>(x)", x=CUBE, opsets=(11, 18))
case("LpNormalization", "r = Relu(x) y = LpNormalization<axis = 1, p = 1>(r)", x=[[-1.0, -2.0], [1.0, 3.0]])
case("RMSNormalization", "y = RMSNormalization(x, s)", x=CUBE, s=(4,), opsets=(23,))
case("RMSNormalization", "y = RMSNormalization<axis = 1, epsilon = 0.1>(x, s)", x=CUBE, s=(3, 4), opsets=(23,))
case("InstanceNormalization", "y = InstanceNormalization<epsilon = 0.5>(x, s, b)", x=IMAGE, s=(2,), b=(2,))
case("InstanceNormalization", "y = InstanceNormalization(x, s, b)", x=IMAGE, s=(2,), b=(2,), opsets=(11, 18))
case("GroupNormalization", "y = GroupNormalization<num_groups = 2>(x, s, b)", x=(2, 4, 3), s=(2,), b=(2,), opsets=(18,))
for settings, epsilon in (("", 0.00001), (", epsilon = 0.5", 0.5)):
    case(
        "GroupNormalization", f"y = GroupNormalization<num_groups = 2{settings}>(x, s, b)",
        x=(2, 4, 3), s=(4,), b=(4,), opsets=(21,),
        reference="n = Constant<value_ints = [2, 2, 6]>() k = Shape(x) r = Reshape(x, n) "
        "a = Constant<value_ints = [2]>() m = ReduceMean(r, a) c = Sub(r, m) q = Mul(c, c) v = ReduceMean(q, a) "
        f"e = Constant<value_float = {epsilon:.5f}>() "
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
NORMED = "n = GroupNormalization<num_groups = 1>(x, s, b) y = Sum(n, z)"  # only the runtime infers the shape of n
case("GroupNormalization", NORMED, x=(1, 2, 4), z=(3, 2, 4), s=(1,), b=(1,))
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
case("DepthToSpace", "y = DepthToSpace<blocksize = 2>(x)", x=(1, 8, 2, 3), opsets=(11, 13, 18, 21))
case("DepthToSpace", 'y = DepthToSpace<blocksize = 2, mode = "CRD">(x)', x=(2, 8, 2, 3), opsets=(11, 13, 18, 21))
case("DepthToSpace", 'y = DepthToSpace<blocksize = 3, mode = "CRD">(x)', x=(1, 18, 2, 1))
case("SpaceToDepth", "y = SpaceToDepth<blocksize = 2>(x)", x=(1, 2, 4, 6), opsets=(11, 13, 18, 21))
case("ReverseSequence", "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)", x=(3, 4), l=ints(2, 4, 1))
for reduction in ("add", "none"):
    attribute = f'<reduction = "{reduction}">'
    case("ScatterND", f"y = ScatterND{attribute}(x, i, u)", x=(4, 3), i=ints([0], [3]), u=(2, 3), opsets=(16, 18))
    case("ScatterElements", f"y = ScatterElements{attribute}(x, i, u)", x=(4, 3), i=ints([0, 3, 1]), u=(1, 3))
ZEROS = {"x": [[1.0, 2.0], [0.0, 3.0], [0.0, 1.5], [2.0, -1.0]], "u": [[2.0, 0.0], [0.0, 0.0], [-3.0, 1.5]]}
for reduction in ("add", "mul", "max", "min"):  # several updates for one place
    attribute, opsets = f'<reduction = "{reduction}">', (16, 18, 21) if reduction in ("add", "mul") else (18, 21)
    case("ScatterND", f"y = ScatterND{attribute}(x, i, u)", x=(4, 3), i=ints([0], [0], [-1]), u=(3, 3), opsets=opsets)
    case("ScatterElements", f"y = ScatterElements{attribute}(x, i, u)", x=(4, 2), i=ints([0, 1], [0, -3]), u=(2, 2))
    body = f'y = ScatterElements<axis = 1, reduction = "{reduction}">(x, i, u)'
    case("ScatterElements", body, x=(2, 4), i=ints([0, 0, 0], [3, 2, 3]), u=(2, 3), opsets=opsets)
case("ScatterElements", 'y = ScatterElements<reduction = "mul">(x, i, u)', **ZEROS, i=ints([0, 1], [0, 1], [0, 2]))
case("ScatterND", 'y = ScatterND<reduction = "mul">(x, i, u)', **ZEROS, i=ints([0], [0], [1]))
case("OneHot", "y = OneHot(i, d, x)", x=(2,), i=ints([0, 2], [-1, 5]), d=np.int64(3), opsets=(11, 18, 21))
case("OneHot", "y = OneHot<axis = 0>(i, d, x)", x=(2,), i=ints(0, 1), d=np.int64(3))
case(
    "OneHot",
    "a = Abs(x) j = Cast<to = 1>(a) v = Constant<value_floats = [0.5, 2.0]>() d = Constant<value_float = 3.0>() "
    "h = OneHot(j, d, v) g = CastLike(h, x) t = ReduceSum(g) y = Mul(x, t)",
    x=[0.5, 1.5],
)
case("Unique", "y = Unique(x)", x=(3, 4), opsets=(13, 18, 21))
case("Unique", "y, i, j, k = Unique<sorted = 0>(x)", x=(3, 4))
case("Unique", "y, i = Unique<axis = 0>(x)", x=(3, 2))
case("Unique", "y = Unique<axis = -1>(x)", x=(2, 3))
for settings, x, w in (  # a kernel for each channel
    ("pads = [0, 2]", (2, 3, 6), (3, 1, 3)),
    ("pads = [3, 0], dilations = [2]", (2, 3, 5), (3, 1, 3)),
    ("pads = [3, 1]", (2, 3, 5), (3, 1, 3)),
    ("pads = [1, 1, 1, 1]", (2, 3, 4, 5), (3, 1, 3, 3)),
    ("pads = [1, 0, 0, 1]", (2, 3, 4, 5), (3, 1, 2, 2)),
    ("", (2, 3, 4, 5), (3, 1, 3, 3)),
):
    settings = ", ".join(["group = 3", *[settings] * bool(settings)])
    case("Conv", f"y = Conv<{settings}>(x, w, b)", x=x, w=w, b=(3,), opsets=(11, 18))
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
for settings in (
    "pads = [0, 0, 1, 0]",
    "pads = [0, 1, 2, 0], strides = [2, 1], output_padding = [1, 0]",
):
    case("ConvTranspose", f"y = ConvTranspose<{settings}>(x, w, b)", **SPREAD, opsets=(11, 18, 21, 22))
for settings, pads in (
    ('auto_pad = "VALID"', "0, 0, 0, 0"),
    ('auto_pad = "SAME_UPPER"', "0, 0, 1, 1"),
    ('auto_pad = "SAME_LOWER"', "1, 1, 0, 0"),
    ("output_shape = [6, 4]", "2, 0, 1, 0"),
    ('output_shape = [6, 3], auto_pad = "SAME_UPPER"', "1, 0, 2, 1"),
):
    body, plain = (f"y = ConvTranspose<{one}, strides = [2, 1]>(x, w, b)" for one in (settings, f"pads = [{pads}]"))
    case("ConvTranspose", body, **SPREAD, opsets=(11, 18, 21, 22), reference=plain)
body = "y = ConvTranspose<output_padding = [1, 0], dilations = [2, 1]>(x, w, b)"
case("ConvTranspose", body, **SPREAD, refused="not less than the stride")
case("ConvTranspose", "y = ConvTranspose<output_shape = [9, 9]>(x, w, b)", **SPREAD, refused="larger than")
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
case("Einsum", 'y = Einsum<equation = "ij,ij->">(x, z)', x=MATRIX, z=MATRIX, opsets=(12, 13, 18, 21))
case("Einsum", 'y = Einsum<equation = "ij->">(x)', x=MATRIX)
case("Einsum", 'y = Einsum<equation = "ij,j->ij">(x, z)', x=MATRIX, z=(3,))
for equation, left, right in [
    ("...i,i->...", CUBE, (4,)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (1, 3, 4, 2)),
    ("...ij,jk", (2, 3, 4), (4, 2)),
    ("b...,b->b...", CUBE, (2,)),
    ("i...,...i->...", (4, 2), (2, 4)),
    ("bi...->b...", CUBE, None),
    ("...,...->...", (2, 1), (1, 3)),
    ("...j,...j->...", (3, 1, 2), (1, 2, 2)),
    ("ii->i", (3, 3), None),
    ("ii->", (3, 3), None),
    ("ii", (3, 3), None),
    ("bii->bi", (2, 3, 3), None),
    ("iij->ij", (2, 2, 3), None),
    ("iji,ij->j", (2, 3, 2), (2, 3)),
    ("ij,jj->ij", (2, 3), (3, 3)),
    ("iii->i", (2, 2, 2), None),
    ("...ii->...i", (2, 3, 3), None),
]:
    operands = {"x": left} | ({} if right is None else {"z": right})
    case("Einsum", f'y = Einsum<equation = "{equation}">({", ".join(operands)})', **operands)
case("Einsum", 'y = Einsum<equation = "iA,Aj">(x, z)', x=MATRIX, z=(3, 2))
case("Einsum", 'y = Einsum<equation = "ij,ij->ij">(x, z)', x=(2, 1), z=(1, 3), refused="sizes of the index")
case("Einsum", 'y = Einsum<equation = "bi,iA">(x, z)', x=MATRIX, z=(3, 2), refused="capital and small letters")
case("Hardmax", "h = Hardmax(x) y = Mul(x, h)", x=MATRIX)
case("Relu", "y = Relu(x)", x=MATRIX, opsets=(10, 27), refused="opset 11 to 26")
