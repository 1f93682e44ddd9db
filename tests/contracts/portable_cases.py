"""The cases that the engine "portable" is held to: those of the other engine, and those that the other one lacks."""

from __future__ import annotations

import numpy as np

from tests.contracts.gradient_cases import CUBE, IMAGE, MATRIX, ints, positive
from tests.contracts.portable_basic_cases import CASES, STATISTICS, case, inside

__all__ = ["CASES"]

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
# onnxruntime-training 1.19 would fuse the Transpose of the cotangent with the product of the gradient, in float64 too.
case("MatMul", "t = MatMul(x, w) y = Transpose<perm = [0, 2, 1]>(t)", x=CUBE, w=(2, 4, 5))
for shape in ((3, 3), (2, 1, 2, 2)):
    near_identity = np.eye(shape[-1], dtype=np.float32) + inside(*shape) / 4
    case("com.microsoft.Inverse", "y = com.microsoft.Inverse(x)", x=near_identity, opsets=(11, 18, 21))
