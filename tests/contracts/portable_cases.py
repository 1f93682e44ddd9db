"""The cases that the engine "portable" is held to: those of the other engine, and those that the other one lacks."""

from __future__ import annotations

import numpy as np

from tests.contracts import test_gradients as shared
from tests.contracts.test_gradients import CUBE, IMAGE, LABELS, MATRIX, Case, draw, ints, positive

CASES: list[Case] = [one for one in shared.CASES if "opset 11 to 21" not in one.refused]
OPSETS = (11, 13, 17, 18, 21, 23)


def case(operator, body, *, refused="", opsets=(18,), wrt=(), fed=(), reference="", **arrays):
    """Add a case of an operator that the other engine lacks, or differentiates in part."""
    rng = np.random.default_rng(len(CASES))
    drawn = {name: draw(rng, values) for name, values in arrays.items()}
    body = body.replace("<>", "")
    CASES.append(Case(operator, body, drawn, refused, "", tuple(wrt), tuple(opsets), tuple(fed), reference))


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

# Statistics that are further outputs, by themselves and beside the value.
case("LayerNormalization", "z, y, d = LayerNormalization(x, s, b)", x=CUBE, s=(4,), b=(4,), opsets=(17, 18, 21))
case("LayerNormalization", "z, m, y = LayerNormalization<axis = 1>(x, s)", x=CUBE, s=(3, 4))
case(
    "LayerNormalization", "z, m, d = LayerNormalization(x, s, b) q = Mul(m, d) y = Add(z, q)", x=CUBE, s=(4,), b=(4,),
    reference="i = Constant<value_ints = [-1]>() m = ReduceMean(x, i) c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q, i) "
    "e = Constant<value_float = 0.00001>() f = CastLike(e, x) w = Add(v, f) r = Sqrt(w) d = Reciprocal(r) "
    "k = Mul(c, d) n = Mul(k, s) z = Add(n, b) p = Mul(m, d) y = Add(z, p)",
)  # fmt: skip
TRAINING = " = BatchNormalization<training_mode = 1, momentum = 0.7>(x, s, b, m, v)"
FURTHER = {"x": IMAGE, "opsets": (14, 15, 18, 21), **STATISTICS}
for body in ("z, y, u", "z, n, y"):
    case("BatchNormalization", body + TRAINING, **FURTHER)
case("BatchNormalization", f"z, n, u{TRAINING} q = ReduceSum(z) p = Mul(n, u) y = Mul(p, q)", **FURTHER)
body = f"l = Exp(m) z, y, u{TRAINING.replace('m, v', 'l, v')}"
case("BatchNormalization", body, **FURTHER, refused="kernels overwrite")
body = "y, n, u = BatchNormalization<training_mode = 1>(x, s, b, m, v)"
case("BatchNormalization", body, x=(4, 2), wrt="xsb", **STATISTICS)
for body, refused in (("y, n, u, p, q", ""), ("z, n, u, p, q", "saved statistics")):
    body += " = BatchNormalization(x, s, b, m, v)" + " y = ReduceSum<keepdims = 0>(p)" * bool(refused)
    case("BatchNormalization", body, x=IMAGE, opsets=(13,), wrt="xsb", refused=refused, **STATISTICS)
FED = {"r": np.float32(0.5), "wrt": ["x"], "fed": ["t"], "opsets": (12, 13, 18, 21)}
case("Dropout", "y = Dropout(x, r, t)", x=MATRIX, t=np.array(False), **FED)

for size, n in ((3, 5), (5, 4), (1, 2)):
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= size // 2
    case(
        "LRN", f"y = LRN<size = {size}, alpha = 0.7, beta = 0.6, bias = 1.3>(x)", x=(2, n, 2, 3),
        near=near.astype(np.float32), k=ints(0, 0, -1), l=np.float32(0.7 / size), b=np.float32(0.6), c=np.float32(1.3),
        wrt=["x"], opsets=(11, 13, 18, 21),
        reference="f = Reshape(x, k) q = Mul(f, f) s = MatMul(near, q) t = Mul(s, l) u = Add(t, c) p = Pow(u, b) "
        "z = Div(f, p) o = Shape(x) y = Reshape(z, o)",
    )  # fmt: skip
for axes in ("", "axes = [0, 1, 2, 3]", "axes = [2, 3]", "axes = [-1]"):
    case(
        "MeanVarianceNormalization", f"y = MeanVarianceNormalization<{axes}>(x)", x=IMAGE, opsets=(11, 13, 18, 21),
        reference=f"a = Constant<value_ints = {axes.partition('= ')[2] or '[0, 2, 3]'}>() m = ReduceMean(x, a) "
        "c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q, a) d = Sqrt(v) y = Div(c, d)",
    )  # fmt: skip
for p in (1, 2, 3):
    case(
        "GlobalLpPool", f"y = GlobalLpPool<p = {p}>(x)", x=IMAGE, k=np.float32(p), wrt=["x"], opsets=(11, 18, 21, 22),
        reference="a = Abs(x) q = Pow(a, k) i = Constant<value_ints = [2, 3]>() s = ReduceSum(q, i) r = Reciprocal(k) "
        "y = Pow(s, r)",
    )  # fmt: skip
    for settings in ("", ", strides = [2, 1], pads = [1, 0, 0, 1]", ', auto_pad = "SAME_UPPER"'):
        case("LpPool", f"y = LpPool<p = {p}, kernel_shape = [2, 3]{settings}>(x)", x=IMAGE, opsets=(11, 18, 21, 22))
case("LpPool", "y = LpPool<kernel_shape = [2, 2], dilations = [2, 1]>(x)", x=IMAGE)
case(
    "LpPool", "y = LpPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)", x=(2, 2, 5, 5),
    reference="e = Constant<value_ints = [0, 0, 0, 0, 0, 0, 1, 1]>() p = Pad(x, e) "
    "y = LpPool<kernel_shape = [2, 2], strides = [2, 2]>(p)",
)  # fmt: skip
body = "y = MaxPool<kernel_shape = [2, 2], storage_order = 1, strides = [2, 2]>(x)"
case("MaxPool", body, x=IMAGE, opsets=(11, 13, 18, 22))
case("MaxPool", "y, i = MaxPool<kernel_shape = [2, 2], storage_order = 1>(x)", x=IMAGE, opsets=(17, 18, 21))
PLACES = ints([[[0, 3], [13, 11]], [[20, 22], [30, 28]]])
body = "y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 0, 0]>(x, i)"
case("MaxUnpool", body, x=(1, 2, 2, 2), i=ints([[[0, 3], [10, 8]], [[13, 14], [21, 23]]]), opsets=(13, 18, 22))
SHAPED = {"x": (1, 2, 2, 2), "i": PLACES, "opsets": (13, 18, 22)}
for inputs, extra in (
    ("x, i", {}),
    ("x, i, o", {"o": ints(1, 2, 4, 4)}),
    ("x, i, o", {"o": ints(1, 2, 5, 5), "refused": "output_shape"}),
):
    case("MaxUnpool", f"y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>({inputs})", **SHAPED, **extra)
case("Col2Im", "y = Col2Im(x, i, k)", x=(2, 12, 6), i=ints(4, 3), k=ints(2, 2), opsets=(18, 21))
case("Col2Im", "y = Col2Im<pads = [0, 1, 0, 1]>(x, i, k)", x=(1, 4, 12), i=ints(4, 3), k=ints(2, 2))
case("Col2Im", "y = Col2Im<strides = [2, 2], dilations = [1, 2]>(x, i, k)", x=(2, 4, 4), i=ints(4, 5), k=ints(2, 2))
for shape in ((1, 1), (2, 2), (3, 3), (2, 3, 3)):
    case("Det", "y = Det(x)", x=shape, opsets=(11, 18, 22))
case("Det", "y = Det(x)", x=[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
for settings in ("", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"):
    case("CumProd", f"y = CumProd<{settings}>(x, a)", x=CUBE, a=np.int64(1), opsets=(26,))
    for zeros in ([[2, 0, 3, -1]], [[0, 2, 0, 3]], [[1, 2, 3, 0]], [[0, 0, 3, 2]]):
        case("CumProd", f"y = CumProd<{settings}>(x, a)", x=np.array(zeros, np.float32), a=np.int64(-1), opsets=(26,))

case("Range", "l = Constant<value_float = 9.0>() k = CastLike(l, x) y = Range(x, k, z)", x=0.3, z=1.7, opsets=(18, 21))
case("Range", "y = Range(x, l, z)", x=3.0, z=-0.7, l=1.1, opsets=(15, 18))
case("EyeLike", "e = EyeLike<k = 1>(x) y = Mul(x, e)", x=MATRIX, opsets=(11, 18, 22))
for one in ("Normal", "Uniform"):
    settings = {"Normal": "mean = 2.0, scale = 0.000000001", "Uniform": "low = 2.0, high = 2.000000001"}[one]
    case(
        f"Random{one}Like", f"e = Random{one}Like<{settings}>(x) y = Mul(x, e)", x=MATRIX, opsets=(11, 18, 22),
        reference="y = Add(x, x)",
    )  # fmt: skip
case(  # the standard's own function draws 1 with the probability 1 - x
    "Bernoulli", "e = Bernoulli(x) y = Mul(x, e)", x=[[0.0, 1.0], [1.0, 0.0]], opsets=(15, 18, 22),
    reference="r = Round(x) b = Cast<to = 9>(r) n = Not(b) e = CastLike(n, x) y = Mul(x, e)",
)  # fmt: skip
QUANTIZED = np.array([[3, 120, 7, 9, 1], [200, 5, 40, 0, 77]], np.uint8)
COLUMN, ROW = ints([0], [1]), ints([0, 1, 2, 3, 4])
for settings, scale, places, opsets in (
    ("", 0.4, ints([0]), (11, 13, 18, 21, 23)),
    ("", [0.4], ints([0]), (13,)),
    ("axis = 0", [0.4, 0.7], COLUMN, (13, 18, 21, 23)),
    ("axis = -1", [0.1, 0.2, 0.3, 0.4, 0.5], ROW, (13, 18, 21)),
    ("axis = 1, block_size = 2", (2, 3), 3 * COLUMN + ROW // 2, (21, 23)),
    ("axis = 0, block_size = 2", (1, 5), ROW, (21,)),
):
    zero = np.full(scale if isinstance(scale, tuple) else np.shape(scale), 5, np.uint8)
    taken = np.broadcast_to(places, QUANTIZED.shape).copy()
    plain = "f = CastLike(q, x) s = Reshape(x, w) p = Gather(s, n) y = Mul(f, p)"
    shifted = plain.replace(
        "y = Mul(f", "k = Reshape(z, w) g = CastLike(k, x) o = Gather(g, n) d = Sub(f, o) y = Mul(d"
    )
    arrays = {"x": scale, "q": QUANTIZED, "n": taken, "w": ints(-1)}
    case("DequantizeLinear", f"y = DequantizeLinear<{settings}>(q, x)", **arrays, opsets=opsets, reference=plain)
    body = f"y = DequantizeLinear<{settings}>(q, x, z)"
    case("DequantizeLinear", body, **arrays, z=zero, opsets=opsets, reference=shifted)
for x in ((3, 4), positive(2, 3), -positive(2, 3)):
    case(
        "DynamicQuantizeLinear", "q, y, z = DynamicQuantizeLinear(x)", x=x, opsets=(11, 18, 21),
        reference="a = ReduceMax<keepdims = 0>(x) b = ReduceMin<keepdims = 0>(x) n = Neg(b) p = Relu(a) m = Relu(n) "
        "t = Add(p, m) k = Constant<value_float = 255.0>() l = CastLike(k, x) y = Div(t, l)",
    )  # fmt: skip
case(
    "MelWeightMatrix", "m = MelWeightMatrix(b, d, r, x, h) c = CastLike(m, x) y = Mul(c, x)",
    x=10.5, h=np.float32(4000), b=np.int64(4), d=np.int64(16), r=np.int64(8192),
)  # fmt: skip

for n in (5, 6):
    for settings in ("", "inverse = 1", "onesided = 1"):
        for last in (1, 2)[: 1 + ("onesided" not in settings)]:
            case("DFT", f"y = DFT<{settings}>(x)", x=(2, n, last), opsets=(17, 18))
            case("DFT", f"y = DFT<{settings}>(x)", x=(2, n, last), opsets=(20, 21))
    for length in (4, 9):
        for settings in ("axis = 2", "axis = -2, onesided = 1", "axis = 2, inverse = 1"):
            case("DFT", f"y = DFT<{settings}>(x, n)", x=(2, 2, n, 1), n=np.int64(length))
        for settings in ("", "inverse = 1", "onesided = 1"):
            shape, axis = (2, n, 3, 1), np.int64(1)
            case("DFT", f"y = DFT<{settings}>(x, n, a)", x=shape, n=np.int64(length), a=axis, opsets=(20,))
    case("DFT", "y = DFT<onesided = 1, inverse = 1>(x)", x=(2, n, 2), opsets=(18, 20))
    for length in (n, 2 * n - 2):
        given = {"x": (2, n, 2), "n": np.int64(length), "refused": "runtimes disagree" * (length == n)}
        case("DFT", "y = DFT<onesided = 1, inverse = 1>(x, n)", **given, opsets=(18, 20))
WINDOW = {"w": positive(4), "s": np.int64(2)}
case("STFT", "y = STFT<onesided = 1>(x, s, w)", x=(2, 9, 1), **WINDOW, opsets=(17, 18, 21))
case("STFT", "y = STFT<onesided = 0>(x, s, w)", x=(2, 8, 1), **WINDOW)
case("STFT", "y = STFT<onesided = 1>(x, s, , l)", x=(2, 10, 1), s=np.int64(3), l=np.int64(5))
case("STFT", "y = STFT<onesided = 0>(x, s, w, l)", x=(2, 8, 2), **WINDOW, l=np.int64(4))
case("STFT", "y = STFT(x, s, w)", x=(2, 9, 1), **WINDOW, refused="onesided")

for mode, older in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
    for padding in ("zeros", "border", "reflection"):
        for aligned in (0, 1):
            bodies = [
                f'y = GridSample<mode = "{m}", padding_mode = "{padding}", align_corners = {aligned}>(x, z)'
                for m in (mode, older)
            ]
            arrays = {"x": (2, 2, 3, 4), "z": 1.6 * inside(2, 2, 3, 2)}
            case("GridSample", bodies[0], **arrays, opsets=(20, 22))
            case("GridSample", bodies[1], **arrays, opsets=(16, 18), reference=bodies[0])
for padding in ("zeros", "border", "reflection"):
    body = f'y = GridSample<padding_mode = "{padding}">(x, z)'
    case("GridSample", body, x=(2, 2, 3, 2, 3), z=1.4 * inside(2, 1, 2, 3, 3), opsets=(20, 22))
REGIONS = {"z": [[0.2, 0.4, 3.3, 2.9], [1.1, 0.3, 5.7, 4.2], [-2.2, 1.3, 2.1, 1.9]], "i": ints(1, 0, 1)}
IN_BATCH = {"x": (2, 2, 4, 5), **REGIONS}
for settings in ("", 'coordinate_transformation_mode = "output_half_pixel", '):
    for ratio in (0, 2):
        body = f"sampling_ratio = {ratio}, output_height = 2, output_width = 3, spatial_scale = 0.9>(x, z, i)"
        case("RoiAlign", f"y = RoiAlign<{settings}{body}", **IN_BATCH, opsets=(16, 18, 22))
case("RoiAlign", "y = RoiAlign<sampling_ratio = 1, output_height = 2>(x, z, i)", **IN_BATCH, opsets=(13,))
case("RoiAlign", 'y = RoiAlign<mode = "max", sampling_ratio = 2>(x, z, i)', **IN_BATCH, refused="mode='max'")
case(
    "MaxRoiPool", "y = MaxRoiPool<pooled_shape = [2, 2], spatial_scale = 0.5>(x, z)",
    x=(2, 2, 6, 6), z=[[1.0, 0.3, 2.0, 6.0, 7.7], [0.0, 2.4, 0.0, 10.0, 8.3]], opsets=(13, 18, 21),
    a=ints(0, 2, 3), b=ints(1, 1, 0), c=ints(2, 5, 4), d=ints(0, 0, 1), e=ints(1, 5, 6),
    reference="f = Slice(x, b, c, a) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(f) "
    "g = Slice(x, d, e, a) q = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(g) y = Concat<axis = 0>(p, q)",
)  # fmt: skip
case("DeformConv", "y = DeformConv(x, w, o)", x=(2, 2, 3, 4), w=(3, 2, 2, 2), o=inside(2, 8, 2, 3), opsets=(19, 22))
case(
    "DeformConv",
    "y = DeformConv<pads = [1, 0, 1, 1], strides = [1, 2], dilations = [2, 1], group = 2, offset_group = 2>"
    "(x, w, o, b, m)",
    x=(2, 4, 4, 4), w=(4, 2, 2, 2), o=1.5 * inside(2, 16, 4, 2), b=(4,), m=positive(2, 8, 4, 2), opsets=(19, 22),
)  # fmt: skip

# Images whose sizes only a run can tell.
for settings, w in (
    ("", (3, 4, 2, 3)),
    ("pads = [1, 1, 1, 1]", (3, 4, 3, 3)),
    ("strides = [2, 2]", (3, 4, 2, 3)),
    ("strides = [3, 2], pads = [1, 0, 0, 1], dilations = [1, 2]", (3, 4, 2, 2)),
    ("group = 2, strides = [1, 2]", (2, 2, 2, 2)),
):
    arrays = {"x": (2, 4, 6, 7), "b": ints(0, 1), "e": ints(5, 7), "a": ints(2, 3), "fed": ["b", "e"]}
    case("Conv", f"r = Slice(x, b, e, a) y = Conv<{settings}>(r, w, c)", **arrays, w=w, c=w[:1])
    kernel = ", ".join([f"kernel_shape = {list(w[2:])}", *[settings.removeprefix("group = 2, ")] * bool(settings)])
    for name in ("MaxPool", "LpPool", "AveragePool"):
        more = ", count_include_pad = 1" * (name == "AveragePool")
        if not more or "dilations" not in settings:  # AveragePool has them since opset 19
            case(name, f"r = Slice(x, b, e, a) y = {name}<{kernel}{more}>(r)", **arrays)
case(
    "AveragePool", "r = Slice(x, b, e, a) y = AveragePool<kernel_shape = [2, 2], pads = [1, 0, 1, 0]>(r)",
    **arrays, refused="must be fixed",
)  # fmt: skip

UPDATES = {"x": (2, 4, 3), "u": (2, 3, 3), "opsets": (24, 26)}
CIRCULAR = 'y = TensorScatter<mode = "circular">'
case("TensorScatter", f"{CIRCULAR}(x, u, i)", **UPDATES, i=ints(3, 2))
case("TensorScatter", f"{CIRCULAR}(x, u, i)", **UPDATES, i=ints(7, 13), fed=["i"])
case("TensorScatter", f"{CIRCULAR}(x, u, i)", x=(2, 3, 2), u=(2, 3, 2), i=ints(1, 2), opsets=(24,))
case("TensorScatter", f"t = Transpose<perm = [1, 0, 2]>(x) {CIRCULAR}(u, t, i)", x=(3, 2, 2), u=(2, 4, 2), i=ints(2, 3),
     opsets=(24,))  # fmt: skip
case("TensorScatter", f"t = Transpose<perm = [1, 0, 2]>(x) {CIRCULAR}(t, u, i)", x=(4, 2, 2), u=(2, 3, 2), i=ints(2, 0),
     opsets=(24,))  # fmt: skip
for axis, index in ((1, ints(2, 1)), (-1, ints(4, 3)), (-2, ints(3, 1))):
    shape = np.array([2, 3, 4, 5])
    shape[axis] = 2
    body = f'y = TensorScatter<mode = "circular", axis = {axis}>(x, u, i)'
    case("TensorScatter", body, x=(2, 3, 4, 5), u=tuple(shape), i=index, opsets=(24,))
case("TensorScatter", "y = TensorScatter<axis = 1>(x, u, i)", x=(2, 4), u=(2, 2), i=ints(2, 0), opsets=(24,))
for mode in ("linear", "circular"):
    body = f'y = TensorScatter<mode = "{mode}">'
    case("TensorScatter", f"{body}(x, u)", **UPDATES)
    case("TensorScatter", f"{body}(x, u, i)", **UPDATES, i=ints(1, 0))
    case("TensorScatter", f"{body}(x, u, i)", **UPDATES, i=ints(0, 1), fed=["i"])
    for one in ("x", "u"):
        case("TensorScatter", f"{body}(x, u, i)", **UPDATES, i=ints(0, 1), wrt=[one])
    case("TensorScatter", f"{body}(x, u)", x=(2, 2, 3), u=(2, 3, 3), opsets=(24,), refused="3 steps is longer than")
