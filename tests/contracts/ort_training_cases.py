"""The cases that the engine "ort-training" is held to."""

from __future__ import annotations

import numpy as np

from tests.contracts.gradient_cases import CUBE, IMAGE, MATRIX, Case, adding_to, bools, ints, positive

CASES: list[Case] = []
case = adding_to(CASES)
OPSETS = (11, 12, 13, 17, 18, 21)
BROADCAST = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 3), (2, 1)),
    ((2, 1), (1, 3)),
    ((1, 3), (2, 3)),
    ((3,), (4, 2, 3)),
    ((2, 3), (1, 1, 1)),
    ((2, 3), ()),
    ((), (2,)),
    ((), ()),
]
AMBIGUOUS = "may be equal or broadcast"


def mixed(left, right):
    """Whether a symbolic first dimension of the left operand meets one of the right that is not 1."""
    met = right[-len(left)] if left and len(right) >= len(left) else 1
    return AMBIGUOUS if met != 1 else ""


# elementwise, one operand.

for name in ("Abs", "Cos", "Erf", "Exp", "Identity", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Sin", "Softplus", "Tanh"):
    case(name, f"y = {name}(x)", x=MATRIX, opsets=OPSETS)
    case(name, f"y = {name}(x)", x=())
for name in ("Ceil", "Floor", "Round", "Sign"):
    case(name, f"y = {name}(x)", x=MATRIX, opsets=OPSETS)
    case(name, f"f = {name}(x) y = Mul(x, f)", x=MATRIX)
for name in ("Log", "Reciprocal", "Sqrt"):
    case(name, f"y = {name}(x)", x=positive(2, 3), opsets=OPSETS)
    case(name, f"y = {name}(x)", x=positive())
for alpha in (0.0, 2.0):
    case("LeakyRelu", f"y = LeakyRelu<alpha = {alpha}>(x)", x=MATRIX)
case("LeakyRelu", "y = LeakyRelu<alpha = -0.3>(x)", x=MATRIX, refused="negative alpha")
for shape in (MATRIX, ()):
    case("Gelu", "y = Gelu(x)", x=shape, opsets=(20, 21))
case("Gelu", 'y = Gelu<approximate = "tanh">(x)', x=MATRIX, opsets=(20,), refused="tanh")
case("Cast", "d = Cast<to = 11>(x) q = Mul(d, d) y = Cast<to = 1>(q)", x=MATRIX, reference="y = Mul(x, x)")
through = "i = Cast<to = 6>(x) f = {}(i{}) y = Mul(x, f)"
case("Cast", through.format("Cast<to = 1>", ""), x=MATRIX, reference=through.format("CastLike", ", x"))
case("CastLike", "d = Sin(x) l = CastLike(d, x) y = Mul(l, l)", x=MATRIX, opsets=(17, 18, 21))
case("Clip", "y = Clip(x, a, b)", x=MATRIX, a=-0.5, b=0.5, wrt=["x"], opsets=(12, 13, 18, 21))
case("Clip", "y = Clip(x, a)", x=MATRIX, a=-0.5, wrt=["x"])
case("Clip", "y = Clip(x, , b)", x=MATRIX, b=0.5, wrt=["x"])
case("Clip", "y = Clip(x, a, b)", x=(), a=-5.0, b=5.0, wrt=["x"])
case("Clip", "y = Clip(x, a, b)", x=MATRIX, a=-0.5, b=0.5, wrt=["x"], opsets=(11,), refused="opset 12")
case("Clip", "z = Sin(a) w = Clip(x, z, b) y = Mul(w, z)", x=MATRIX, a=-0.5, b=0.5, refused="bounds")
case("Trilu", "y = Trilu(x)", x=(3, 3), opsets=(14, 18, 21))
case("Trilu", "y = Trilu<upper = 0>(x, k)", x=CUBE, k=np.int64(1))
case("Trilu", "y = Trilu(x, k)", x=CUBE, k=np.int64(-1))

# elementwise, several operands.

for name in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
    for left, right in BROADCAST:
        case(name, f"y = {name}(x, z)", x=left, z=positive(*right), dynamic=mixed(left, right))
    case(name, f"y = {name}(z, x)", x=positive(2, 3), z=(3,), wrt=["x"], opsets=OPSETS[1:])
    case(name, f"y = {name}(x, z)", x=MATRIX, z=positive(3), wrt=["x"])
    case(name, f"y = {name}(x, x)", x=MATRIX)
    case(name, f"a = Tanh(x) b = {name}(a, a) y = {name}(b, x)", x=MATRIX)
    case(name, f"r = Reshape(x, s) y = {name}(r, z)", x=(3,), z=positive(2, 3), s=ints(1, 3), fed=["s"])
    case(name, f"r = Reshape(x, s) y = {name}(z, r)", x=positive(2), z=(1, 3), s=ints(2, 1), fed=["s"])
    unknown = {"s": ints(1, 3), "fed": ["s"], "opsets": (12,), "refused": "opset 13"}
    case(name, f"r = Reshape(x, s) y = {name}(r, z)", x=(3,), z=(2, 3), **unknown)
for name in ("Max", "Min"):
    case(name, f"y = {name}(x, z, w)", x=MATRIX, z=(3,), w=(1, 3), opsets=OPSETS[1:])
    case(name, f"y = {name}(x, z, w, v)", x=(3,), z=MATRIX, w=MATRIX, v=(), dynamic=AMBIGUOUS)
    case(name, f"y = {name}(x)", x=MATRIX)
for name in ("Max", "Min"):
    case(name, f"r = Reshape(x, s) y = {name}(r, r)", x=(6,), s=ints(2, 3), fed=["s"])
case("Pow", "y = Pow(x, e)", x=positive(2, 3), e=2.5, wrt=["x"], opsets=OPSETS)
case("Pow", "y = Pow(x, e)", x=MATRIX, e=[2.0, 3.0, 1.0], wrt=["x"])
case("Pow", "y = Pow(x, e)", x=(3,), e=[[2.0, 2.0, 3.0], [3.0, 1.0, 2.0]], wrt=["x"], dynamic=AMBIGUOUS)
case("Pow", "y = Pow(x, e)", x=MATRIX, e=ints(2))
case("Pow", "y = Pow(x, e)", x=(), e=2.0, wrt=["x"])
case("Pow", "y = Pow(x, e)", x=positive(2, 3), e=(3,), refused="exponent")
case("Pow", "z = Sin(x) w = Pow(e, z) y = Add(w, x)", x=(3,), e=positive(2, 3), wrt=["x"], refused="exponent")
for left, right in BROADCAST:
    condition = np.resize([True, False, True], np.broadcast_shapes(left, right)[-1:])
    case("Where", "y = Where(c, x, z)", x=left, z=right, c=condition, dynamic=mixed(left, right))
case("Where", "y = Where(c, x, z)", x=(1, 3), z=(1, 3), c=bools([1, 0, 1], [0, 1, 1]), opsets=OPSETS, dynamic=AMBIGUOUS)
case("Where", "y = Where(c, x, z)", x=MATRIX, z=MATRIX, c=bools([1, 0, 1], [0, 1, 1]), fed=["c"], dynamic=AMBIGUOUS)
case("Where", "r = Reshape(x, s) y = Where(c, r, z)", x=(3,), z=(2, 1), c=bools(1, 0, 1), s=ints(1, 3), fed=["s"])

# products.

for left, right in [
    ((2, 3), (3, 4)),
    ((1, 3), (3, 1)),
    ((2, 2, 3), (3, 4)),
    ((2, 3), (2, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((1, 1, 2, 3), (2, 3, 2)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (3,)),
    ((2, 2, 3), (3,)),
    ((3,), (2, 3, 4)),
]:
    case("MatMul", "y = MatMul(x, w)", x=left, w=right, opsets=OPSETS if left == (2, 3) else (18,))
    case("MatMul", "y = MatMul(x, w)", x=left, w=right, wrt=["w"])
for left, right in [((2, 2, 3), (2, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((2, 4, 2, 3), (2, 4, 3, 2))]:
    case("MatMul", "y = MatMul(x, w)", x=left, w=right, dynamic=AMBIGUOUS)
case("MatMul", "y = MatMul(x, w)", x=(2, 2, 3), w=(1, 3, 2))
case("MatMul", "t = Transpose(x) y = MatMul(x, t)", x=MATRIX)
case("MatMul", "r = Reshape(x, s) y = MatMul(r, w)", x=(6,), w=(5, 3, 4), s=ints(1, 2, 3), fed=["s"])
case("MatMul", "r = Reshape(x, s) y = MatMul(r, w)", x=(6,), w=(3,), s=ints(2, 3), fed=["s"])
for a in (0, 1):
    for b in (0, 1):
        shapes = {"x": (3, 2) if a else (2, 3), "w": (4, 3) if b else (3, 4)}
        flags = f"transA = {a}, transB = {b}"
        for bias in ((4,), (2, 4), (2, 1), (1, 4), (1, 1), (1,), ()):
            ambiguous = AMBIGUOUS if bias[:1] == (2,) and not a else ""
            case("Gemm", f"y = Gemm<{flags}, alpha = 0.5, beta = 2.0>(x, w, b)", **shapes, b=bias, dynamic=ambiguous)
        case("Gemm", f"y = Gemm<{flags}>(x, w, b)", **shapes, b=(4,), opsets=OPSETS if a < b else (18,))
        case("Gemm", f"y = Gemm<{flags}>(x, w)", **shapes)
        case("Gemm", f"y = Gemm<{flags}>(x, w, b)", **shapes, b=(4,), wrt=["b"])
case("Gemm", "y = Gemm<beta = 0.0>(x, w, b)", x=MATRIX, w=(3, 4), b=(4,), wrt=["x", "w"])
case("Gemm", "y = Gemm(x, x)", x=(3, 3))
case("Gemm", "y = Gemm(x, w, w)", x=(3, 3), w=(3, 3), dynamic=AMBIGUOUS)
case("Gemm", "r = Reshape(b, s) y = Gemm(x, w, r)", x=MATRIX, w=(3, 4), b=(4,), s=ints(1, 4), fed=["s"])
case("Gemm", "y = Gemm<alpha = 0.0>(x, w, b)", x=MATRIX, w=(3, 4), b=(4,), refused="alpha")
case("Gemm", "y = Gemm<beta = 0.0>(x, w, b)", x=MATRIX, w=(3, 4), b=(4,), refused="beta")


def conv(settings, x, w, *bias, **options):
    extra = {"b": bias} if bias else {}
    case("Conv", f"y = Conv<{settings}>(x, w{', b' if bias else ''})", x=x, w=w, **extra, **options)


conv("kernel_shape = [3, 3]", IMAGE, (3, 2, 3, 3), 3, opsets=OPSETS)
conv("pads = [1, 1, 1, 1]", IMAGE, (3, 2, 3, 3), 3)
for one in ("x", "w", "b"):
    conv("pads = [0, 1, 1, 0], strides = [2, 1]", IMAGE, (3, 2, 3, 3), 3, wrt=[one])
conv("dilations = [2, 1], pads = [1, 0, 1, 0]", (1, 2, 5, 4), (3, 2, 2, 2), 3)
conv("group = 2", (2, 4, 3, 3), (6, 2, 2, 2), 6)
conv("group = 4", (2, 4, 3, 3), (4, 1, 2, 2))
conv("group = 4", (2, 4, 9), (4, 1, 3), refused="groups")
conv("group = 2", (1, 4, 3, 3, 3), (2, 2, 2, 2, 2), refused="groups")
conv("strides = [2], pads = [1, 1]", (2, 2, 5), (3, 2, 3), 3)
conv("strides = [1, 1, 1]", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), 2)
for mode in ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"):
    conv(f'auto_pad = "{mode}"', IMAGE, (3, 2, 2, 3), 3)
    conv(f'auto_pad = "{mode}", strides = [2, 2]', (2, 2, 5, 5), (3, 2, 3, 3))
case(
    "Conv", 'r = Reshape(x, s) y = Conv<auto_pad = "SAME_UPPER">(r, w)',
    x=(20,), w=(2, 1, 3, 3), s=ints(1, 1, 4, 5), fed=["s"], refused="auto_pad",
)  # fmt: skip

# pooling and normalization.

for pads in ("", ", pads = [1, 1, 1, 1]", ", pads = [0, 0, 1, 1]"):
    settings = f", strides = [2, 2]{pads}"
    for mode in (0, 1):
        body = f"y = AveragePool<kernel_shape = [3, 3]{settings}, count_include_pad = {mode}>(x)"
        case("AveragePool", body, x=IMAGE, dynamic="must be fixed")
    case("MaxPool", f"y = MaxPool<kernel_shape = [3, 3]{settings}>(x)", x=IMAGE)
for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    for settings in ("", ", count_include_pad = 1, strides = [2, 2]"):
        body = f'y = AveragePool<kernel_shape = [3, 2], auto_pad = "{mode}"{settings}>(x)'
        case("AveragePool", body, x=IMAGE, dynamic="must be fixed")
    case("MaxPool", f'y = MaxPool<kernel_shape = [3, 2], auto_pad = "{mode}">(x)', x=IMAGE)
case("AveragePool", "y = AveragePool<kernel_shape = [2, 2]>(x)", x=IMAGE, opsets=OPSETS, dynamic="must be fixed")
case("AveragePool", "y = AveragePool<kernel_shape = [2]>(x)", x=CUBE, dynamic="must be fixed")
case(
    "AveragePool", "y = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)",
    x=(2, 2, 5, 5), dynamic="must be fixed",
)  # fmt: skip
for opset, settings, shape, reason in [
    (18, "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1, count_include_pad = 1", (2, 2, 5, 5), "ceil_mode"),
    (19, "kernel_shape = [2, 2], dilations = [2, 2]", (2, 2, 5, 5), "dilations"),
    (18, "kernel_shape = [2, 2, 2]", (1, 2, 3, 3, 3), "three dimensions"),
]:
    case("AveragePool", f"y = AveragePool<{settings}>(x)", x=shape, opsets=(opset,), refused=reason)
case("MaxPool", "y = MaxPool<kernel_shape = [2, 2]>(x)", x=IMAGE, opsets=OPSETS)
for settings in ("ceil_mode = 1, strides = [2, 2]", "dilations = [2, 2]"):
    case("MaxPool", f"y, i = MaxPool<kernel_shape = [2, 2], {settings}>(x)", x=(2, 2, 5, 5))
case("MaxPool", "y = MaxPool<kernel_shape = [2]>(x)", x=CUBE)
case("MaxPool", "y = MaxPool<kernel_shape = [2, 2, 2]>(x)", x=(1, 2, 3, 3, 3))
case("MaxPool", "y = MaxPool<kernel_shape = [2, 2], storage_order = 1>(x)", x=IMAGE, refused="storage_order")
case(
    "MaxPool", "r = Reshape(x, s) y = MaxPool<kernel_shape = [2, 2]>(r)",
    x=(12,), s=ints(1, 1, 4, 3), fed=["s"], refused="must be fixed",
)  # fmt: skip
for shape in (CUBE, (2, 3, 4, 2), (2, 2, 2, 2, 2)):
    case("GlobalAveragePool", "y = GlobalAveragePool(x)", x=shape, opsets=OPSETS if len(shape) == 4 else (18,))
case("GlobalAveragePool", "r = Reshape(x, s) y = GlobalAveragePool(r)", x=(12,), s=ints(2, 1, 3, 2), fed=["s"])
for settings, shape in [
    ("axis = -1", (4,)), ("axis = 1", (3, 4)), ("axis = -2", (3, 4)), ("axis = 0", CUBE), ("epsilon = 0.1", (4,)),
]:  # fmt: skip
    start = f"LayerNormalization<{settings}>"
    case("LayerNormalization", f"y = {start}(x, s, b)", x=CUBE, s=shape, b=shape, opsets=(17, 18, 21))
    case("LayerNormalization", f"y, m, d = {start}(x, s, b)", x=CUBE, s=shape, b=shape)
    case("LayerNormalization", f"y = {start}(x, s)", x=CUBE, s=shape)
for one in ("x", "s", "b"):
    twice = "z = LayerNormalization(x, s, b) y = LayerNormalization(z, s, b)"
    case("LayerNormalization", "y = LayerNormalization(x, s, b)", x=CUBE, s=(4,), b=(4,), wrt=[one])
    case("LayerNormalization", twice, x=CUBE, s=(4,), b=(4,), wrt=[one])
case("LayerNormalization", twice, x=CUBE, s=(4,), b=(4,))
case("LayerNormalization", "y = LayerNormalization(x, s, b)", x=(2, 1), s=(1,), b=(1,), refused="single element")
body = "z, m, d = LayerNormalization(x, s, b) y = Mul(z, m)"
case("LayerNormalization", body, x=CUBE, s=(4,), b=(4,), refused="Mean")
for name in ("Softmax", "LogSoftmax"):
    for settings in ("", "<axis = 0>", "<axis = 1>", "<axis = 2>", "<axis = -1>", "<axis = -2>"):
        case(name, f"y = {name}{settings}(x)", x=(2, 3, 2), opsets=(12,) if settings else (11, 12))
        case(name, f"y = {name}{settings}(x)", x=(2, 3, 2), opsets=(18,) if settings else (13, 17, 18, 21))
    case(name, f"y = {name}(x)", x=(3,))

# losses and dropout.

LABELS, GRID = ints(1, 0), ints([1, 0], [2, 1])
for reduction in ("mean", "sum", "none"):
    name, start = "SoftmaxCrossEntropyLoss", f'SoftmaxCrossEntropyLoss<reduction = "{reduction}"'
    case(name, f"y = {start}>(x, t)", x=MATRIX, t=LABELS, opsets=OPSETS[1:], fed=["t"])
    case(name, f"y, p = {start}>(x, t)", x=MATRIX, t=LABELS.astype(np.int32))
    case(name, f"y = {start}, ignore_index = 0>(x, t)", x=MATRIX, t=LABELS)
    case(name, f"y = {start}, ignore_index = -1>(x, t)", x=MATRIX, t=ints(1, -1))
    case(name, f"y = {start}, ignore_index = 1>(x, t, w)", x=MATRIX, t=LABELS, w=positive(3), wrt=["x"])
    case(name, f"y = {start}>(x, t, w)", x=(2, 3, 2), t=GRID, w=positive(3), wrt=["x"])
    case(name, f"y = {start}, ignore_index = 1>(x, t, w)", x=(2, 3, 2), t=GRID, w=positive(3), wrt=["x"])
case(name, "l, y = SoftmaxCrossEntropyLoss(x, t)", x=MATRIX, t=LABELS, refused="log_prob")
case(name, "l, p = SoftmaxCrossEntropyLoss(x, t) y = Mul(l, p)", x=MATRIX, t=LABELS, refused="log_prob")
case(name, "l = SoftmaxCrossEntropyLoss(x, t, w) y = Mul(l, w)", x=MATRIX, t=LABELS, w=positive(3), refused="weights")
for body in ("y = Dropout(x)", "y, m = Dropout(x)", "y, m = Dropout(x) f = Cast<to = 1>(m)"):
    case("Dropout", body, x=MATRIX, opsets=OPSETS)
RATIO = {"r": np.float32(0.5), "wrt": ["x"]}
for outputs in ("y", "y, m"):
    case("Dropout", f"{outputs} = Dropout(x, r, t)", x=MATRIX, t=bools(0)[0], opsets=OPSETS[1:], **RATIO)
    case("Dropout", f"{outputs} = Dropout(x, r)", x=MATRIX, **RATIO)
    fed = {"t": bools(1)[0], "fed": ["t"], "refused": "training_mode"}
    case("Dropout", f"{outputs} = Dropout(x, r, t)", x=MATRIX, **fed, **RATIO)

# reductions.

for name in ("ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceL2"):
    root = {"reference": "q = Mul(x, x) s = ReduceSum<keepdims = {0}>(q{1}) y = Sqrt(s)"} if name == "ReduceL2" else {}
    for opset in OPSETS:
        for keep in (0, 1):
            for axes in ((1,), (-1, 0), None):
                case(
                    name,
                    f"y = {name}<keepdims = {keep}>(x)" if axes is None
                    else f"y = {name}<keepdims = {keep}>(x, a)" if opset >= (13 if name == "ReduceSum" else 18)
                    else f"y = {name}<keepdims = {keep}, axes = {list(axes)}>(x)",
                    x=CUBE, a=ints(*axes or ()), opsets=(opset,),
                    **{key: body.format(keep, "" if axes is None else ", a") for key, body in root.items()},
                )  # fmt: skip
    single = f"y = {'Abs' if name == 'ReduceL2' else 'Identity'}(x)"
    case(name, f"y = {name}<noop_with_empty_axes = 1>(x)", x=CUBE, reference=single)
    case(name, f"y = {name}<noop_with_empty_axes = 1, keepdims = 0>(x, a)", x=CUBE, a=ints(), reference=single)
for name in ("ReduceSum", "ReduceMean", "ReduceLogSumExp"):
    case(name, f"y = {name}<keepdims = 0>(x)", x=())
    case(name, f"r = Reshape(x, s) y = {name}<keepdims = 0>(r, a)", x=(12,), s=ints(2, 3, 2), a=ints(1), fed=["s", "a"])
case("ReduceL2", "y = ReduceL2(x)", x=(), refused="scalar")

# selecting and arranging.

REPEATED, FOLLOWING = (ints(2, 0, 2), ints([0, 1], [1, 1]), ints(-1, 0, -1)), (np.int64(1), ints(1, 2), ints(-2, 2))
for index in (*FOLLOWING, *REPEATED, np.array([1, 0], np.int32)):
    case("Gather", "y = Gather(x, i)", x=(3, 2), i=index, opsets=(18,) if index.ndim else OPSETS)
    case("Gather", "y = Gather<axis = 1>(x, i)", x=(2, 3, 2), i=index)
    case("Gather", "y = Gather<axis = -1>(x, i)", x=(2, 3), i=index, fed=["i"])
case("GatherElements", "y = GatherElements(x, i)", x=(3, 2), i=ints([1, 1], [0, 0], [1, 1]), opsets=OPSETS)
case("GatherElements", "y = GatherElements<axis = 1>(x, i)", x=(2, 3), i=ints([1, 1], [2, 0]))
case("GatherElements", "y = GatherElements<axis = -1>(x, i)", x=(2, 3), i=ints([-1, 1], [-2, -2]))
case("GatherElements", "y = GatherElements<axis = 1>(x, i)", x=(2, 3, 2), i=ints([[1, 1], [2, 0]], [[0, 0], [0, 2]]))
for index in (ints([1, 1], [2, 0]), ints([[1, 2]]), ints([-1], [0])):  # of log-likelihoods, and of some rows alone
    picked = "l = LogSoftmax<axis = 1>(x) y = GatherElements<axis = {}>(l, i)"
    case("LogSoftmax", picked.format(1), x=(2, 3), i=index.reshape(-1, index.shape[-1]))
    case("LogSoftmax", picked.format(0), x=(3, 3), i=index.reshape(-1, index.shape[-1]))
case("GatherND", "y = GatherND(x, i)", x=MATRIX, i=ints([0, 1], [1, 2], [0, 1]), opsets=OPSETS[1:])
case("GatherND", "y = GatherND(x, i)", x=(3, 2), i=ints([-1], [0], [-1]))
case("GatherND", "y = GatherND<batch_dims = 1>(x, i)", x=(2, 3, 2), i=ints([[-1, 0], [0, 1]], [[1, 1], [2, 0]]))
case("GatherND", "y = GatherND(x, i)", x=MATRIX, i=ints([0, 1]), opsets=(11,), refused="opset 12")
case("ScatterElements", "y = ScatterElements(x, i, u)", x=(3, 2), i=ints([1, 0], [0, 2]), u=(2, 2), opsets=OPSETS)
case("ScatterElements", "y = ScatterElements<axis = -1>(x, i, u)", x=MATRIX, i=ints([-1, 0], [0, -2]), u=(2, 2))
case("ScatterND", "y = ScatterND(x, i, u)", x=(3, 2), i=ints([2], [0]), u=(2, 2), opsets=OPSETS)
case("ScatterND", "y = ScatterND(x, i, u)", x=(3, 2), i=ints([2, 1], [-1, 0], [0, 0]), u=(3,))
for one in ("x", "u"):
    case("ScatterElements", "y = ScatterElements(x, i, u)", x=(3, 2), i=ints([1, 0], [0, 2]), u=(2, 2), wrt=[one])
    case("ScatterND", "y = ScatterND(x, i, u)", x=(3, 2), i=ints([2], [0]), u=(2, 2), wrt=[one])
for name, index in (("ScatterElements", ints([1, 0], [0, 2])), ("ScatterND", ints([2], [0]))):
    for reduction in ("add", "mul", "max", "min"):
        body = f'y = {name}<reduction = "{reduction}">(x, i, u)'
        case(name, body, x=(3, 2), i=index, u=(2, 2), refused="reduction")
case("TopK", "y, i = TopK(x, k)", x=(2, 4), k=ints(2), opsets=OPSETS)
case("TopK", "y, i = TopK<axis = 0, largest = 0, sorted = 0>(x, k)", x=(4, 2), k=ints(2))
for opset in OPSETS:
    options = {"x": CUBE, "opsets": (opset,)}
    case("Slice", "y = Slice(x, a, b)", a=ints(0, 1), b=ints(2, 3), **options)
    case("Slice", "y = Slice(x, a, b, c)", a=ints(1, -3), b=ints(2**62, -1), c=ints(1, -1), **options)
    case("Slice", "y = Slice(x, a, b, c, d)", a=ints(0, 1), b=ints(3, 9), c=ints(1, 2), d=ints(2, 1), **options)
case("Slice", "y = Slice(x, a, b, c)", x=CUBE, a=ints(1), b=ints(3), c=ints(2), fed=["a", "b", "c"])
stepped = {"x": CUBE, "a": ints(3), "b": ints(0), "c": ints(2), "d": ints(-1), "refused": "steps"}
case("Slice", "y = Slice(x, a, b, c, d)", **stepped)
case("Slice", "y = Slice(x, a, b, c, d)", **stepped, fed=["d"])
for opset in OPSETS:
    case("Pad", "y = Pad(x, p)", x=MATRIX, p=ints(1, 0, 0, 2), opsets=(opset,))
    case("Pad", "y = Pad(x, p, v)", x=MATRIX, p=ints(1, 0, 0, 2), v=1.5, wrt=["x"], opsets=(opset,))
case("Pad", "y = Pad(x, p)", x=MATRIX, p=ints(0, -1, 0, 2))
case("Pad", "z = Sin(v) w = Pad(x, p, z) y = Mul(w, v)", x=MATRIX, p=ints(1, 0, 0, 2), v=1.5, refused="constant value")
case("Pad", "y = Pad(x, p, , a)", x=MATRIX, p=ints(1, 2, 1, 2), a=ints(1, 0), refused="axes")
for mode in ("reflect", "edge"):
    case("Pad", f'y = Pad<mode = "{mode}">(x, p)', x=MATRIX, p=ints(1, 0, 0, 2), refused="mode")
case("Tile", "y = Tile(x, r)", x=MATRIX, r=ints(2, 3), opsets=OPSETS)
case("Tile", "y = Tile(x, r)", x=(2, 1, 3), r=ints(1, 2, 2), fed=["r"])
for perm in ("", "<perm = [0, 2, 1]>", "<perm = [2, 0, 1]>", "<perm = [1, 2, 0]>"):
    case("Transpose", f"y = Transpose{perm}(x)", x=CUBE, opsets=(18,) if perm else OPSETS)
case("Transpose", "r = Reshape(x, s) y = Transpose(r)", x=(12,), s=ints(2, 6), fed=["s"])
for axis in (0, 1, 2, 3, -1, -2):
    case("Flatten", f"y = Flatten<axis = {axis}>(x)", x=CUBE)
case("Flatten", "y = Flatten(x)", x=CUBE, opsets=OPSETS)
case("Reshape", "y = Reshape(x, s)", x=CUBE, s=ints(-1, 4), opsets=OPSETS[2:])
case("Reshape", "y = Reshape(x, s)", x=CUBE, s=ints(0, -1), opsets=OPSETS)
case("Reshape", "y = Reshape<allowzero = 1>(x, s)", x=CUBE, s=ints(4, -1), opsets=(14, 18))
case("Reshape", "y = Reshape(x, s)", x=(1, 1), s=ints())
case("Reshape", "q = Shape(x) y = Reshape(z, q)", x=MATRIX, z=(6,))
case("Expand", "y = Expand(x, s)", x=(3, 1), s=ints(2, 3, 4), opsets=OPSETS, dynamic=AMBIGUOUS)
case("Expand", "y = Expand(x, s)", x=MATRIX, s=ints(2, 1), dynamic=AMBIGUOUS)
case("Expand", "y = Expand(x, s)", x=MATRIX, s=ints(4, 1, 1))
case("Expand", "y = Expand(x, s)", x=(1, 3), s=ints(2, 3), dynamic=AMBIGUOUS)
for shape in ((), (3,), (1, 3), (2, 3)):
    case("Expand", "y = Expand(x, s)", x=shape, s=ints(2, 3), fed=["s"])
case("Expand", "q = Shape(x) e = Expand(z, q) y = Mul(x, e)", x=MATRIX, z=(3,))
for opset in OPSETS:
    newer = opset >= 13
    for axes in ([1], [0, -1]):
        extra = {"a": ints(*axes)} if newer else {}
        settings = "(x, a)" if newer else f"<axes = {axes}>(x)"
        case("Unsqueeze", f"y = Unsqueeze{settings}", x=MATRIX, opsets=(opset,), **extra)
    extra = {"a": ints(1, -1)} if newer else {}
    settings = "(x, a)" if newer else "<axes = [1, -1]>(x)"
    case("Squeeze", f"y = Squeeze{settings}", x=(2, 1, 3, 1), opsets=(opset,), **extra)
case("Squeeze", "y = Squeeze(x)", x=(2, 1, 3), opsets=(13, 18, 21))
case("Squeeze", "r = Reshape(x, s) y = Squeeze(r)", x=(6,), s=ints(2, 1, 3), fed=["s"])
for axis in (0, 1, -1):
    case("Concat", f"y = Concat<axis = {axis}>(x, z, w)", x=CUBE, z=CUBE, w=CUBE, opsets=(13, 18, 21))
case("Concat", "y = Concat<axis = 1>(x, z)", x=(2, 3, 1), z=(2, 1, 1), opsets=OPSETS)
case("Concat", "y = Concat<axis = 0>(x, z)", x=MATRIX, z=MATRIX, opsets=(11,), dynamic="opset 13")
case("Concat", "y = Concat<axis = 1>(x, x, z)", x=MATRIX, z=(2, 1))
case("Concat", "a = Concat<axis = 1>(x, z) b = Concat<axis = 1>(x, z) y = Mul(a, b)", x=MATRIX, z=(2, 1), wrt=["x"])
case("Concat", "y = Concat<axis = 1>(x, z, z)", x=MATRIX, z=(2, 1), wrt=["x"])
case("Split", "a, b = Split<axis = 1>(x) y = Mul(a, b)", x=(2, 4), opsets=(11, 12, 13, 17))
case("Split", "a, b = Split<axis = 1, num_outputs = 2>(x) y = Mul(a, b)", x=(2, 4), opsets=(18, 21))
body = "a, b = Split<axis = -1>(x, s) y = Concat<axis = 1>(b, a)"
case("Split", body, x=(2, 4), s=ints(3, 1), opsets=OPSETS[2:])
case("Split", "a, b = Split(x, s) y = Mul(a, b)", x=(2, 4), s=ints(1, 1), fed=["s"])
for one in ("a", "b", "c"):
    case("Split", f"a, b, c = Split<axis = 1>(x, s) y = Tanh({one})", x=(2, 6), s=ints(3, 1, 2), opsets=(13, 18, 21))
    case("Split", f"a, b, c = Split<axis = -1>(x) y = Tanh({one})", x=(2, 6), opsets=(11, 13))
case("Split", "a, b = Split<axis = 1>(x, s) y = Tanh(a)", x=(2, 4), s=ints(3, 1), fed=["s"], refused="outputs")

# refused altogether.

for body, arrays in {
    "y = Elu(x)": {"x": MATRIX},
    "y = ReduceMax(x)": {"x": MATRIX},
    "y = Sum(x, x)": {"x": MATRIX},
    "y = CumSum(x, a)": {"x": MATRIX, "a": np.int64(1)},
    'y = Einsum<equation = "ij,jk->ik">(x, z)': {"x": MATRIX, "z": (3, 2)},
    "v = Concat<axis = 0>(a, x) y = OneHot(i, d, v)": {"x": (1,), "a": (1,), "i": ints(0, 2), "d": np.int64(3)},
    "y = ConvTranspose(x, w)": {"x": IMAGE, "w": (2, 3, 2, 2)},
    "y = GlobalMaxPool(x)": {"x": IMAGE},
    "y = BatchNormalization(x, s, b, m, v)": {"x": CUBE, "s": (3,), "b": (3,), "m": (3,), "v": positive(3)},
    "y = NegativeLogLikelihoodLoss(x, t)": {"x": MATRIX, "t": LABELS},
    "c = ReduceMax<keepdims = 0>(x) l = Cast<to = 9>(c) "
    "y = If(l)<then_branch = a () => (float u) {u = Sin(x)}, else_branch = b () => (float v) {v = Cos(x)}>": {"x": ()},
}.items():
    case("", body, refused="proven right", **arrays)
case("", "y = Relu(x)", x=MATRIX, opsets=(10,), refused="opset 11 to 21")
case("", "y = Relu(x)", x=MATRIX, opsets=(22, 23), refused="opset 11 to 21")
