"""The cases of operators that the portable engine lowers or enters: recurrences, control flow, sequences, functions."""

from __future__ import annotations

import numpy as np

from tests.contracts.gradient_cases import MATRIX, bools, ints
from tests.contracts.recurrence_cases import CASES, case

__all__ = ["CASES"]

# control flow.

BRANCHES = """
    y = If(c) <then_branch = one () => (float{0} u) {{ a = Sin(h) u = Mul(a, w) }},
               else_branch = two () => (float{0} v) {{ b = Tanh(x) v = Sub(b, h) }}>"""
for truth in (True, False):
    condition = {"c": np.bool_(truth), "fed": ["c"]}
    case("If", "h = Tanh(x)" + BRANCHES.format("[D, 3]"), x=MATRIX, w=(3,), opsets=(11, 13, 18, 21), **condition)
    case("If", "h = Sigmoid(w)" + BRANCHES.format("[D, 3]"), x=MATRIX, w=MATRIX, wrt=["w"], **condition)
    case("If", "h = Tanh(x)" + BRANCHES.format("[]"), x=(), w=(), **condition)
    body = """
        p, q = If(c) <
            then_branch = one () => (float[D, 3] a, float[3] b) { a = Sin(x) b = Identity(w) },
            else_branch = two () => (float[D, 3] d, float[3] e) {
                d = If(k) <then_branch = three () => (float[D, 3] f) { f = Mul(x, w) },
                           else_branch = four () => (float[D, 3] g) { g = Exp(x) }>
                e = Tanh(w) }>
        y = Mul(p, q)"""
    case("If", body, x=MATRIX, w=(3,), k=np.bool_(True), **condition)
SCAN = """
    e, s = Scan<num_scan_inputs = 1{0}, body = step (float[2] h, float[{1}] xt) => (float[2] hn, float[2] o) {{
        a = MatMul(xt, w) b = Add(a, h) hn = Tanh(b) o = Mul(hn, h) }}>(h0, x)
    """
for end in ("y = Tanh(s)", "y = Mul(s, e)", "y = Identity(e)"):
    case("Scan", SCAN.format("", 3) + end, x=(4, 3), w=(3, 2), h0=(2,), opsets=(11, 18, 21))
    case("Scan", SCAN.format("", 3) + end, x=(4, 3), w=(3, 2), h0=(2,), wrt=["w"])
    case("Scan", SCAN.format("", 3) + end, x=(4, 3), w=(3, 2), h0=(2,), wrt=["h0"])
for settings in ("scan_input_directions = [1]", "scan_output_directions = [1]", "scan_output_axes = [1]",
                 "scan_output_axes = [-1], scan_output_directions = [1], scan_input_directions = [1]"):  # fmt: skip
    case("Scan", SCAN.format(f", {settings}", 3) + "y = Tanh(s)", x=(4, 3), w=(3, 2), h0=(2,))
case("Scan", SCAN.format(", scan_input_axes = [1]", 3) + "y = Tanh(s)", x=(3, 4), w=(3, 2), h0=(2,))
body = """
    p, q, y = Scan<num_scan_inputs = 2, body = step (float[3] h, float[3] k, float[3] a, float[3] b) =>
        (float[3] hn, float[3] kn, float[3] o) {
            m = Mul(a, k) hn = Add(h, m) n = Mul(hn, w) kn = Sin(n) u = Mul(b, kn) o = Sub(u, h) }>(h0, k0, x, z)"""
case("Scan", body, x=(4, 3), z=(4, 3), h0=(3,), k0=(3,), w=(3,))
case("Scan", body, x=(4, 3), z=(4, 3), h0=(3,), k0=(3,), w=(3,), wrt=["k0"])
body = """
    e, y = Scan<num_scan_inputs = 1, body = step (float[2] h, float[3, 2] xt) => (float[2] hn, float[3, 2] o) {
        hn, o = Scan<num_scan_inputs = 1, body = inner (float[2] k, float[2] v) => (float[2] kn, float[2] q) {
            a = Mul(v, w) b = Add(a, k) kn = Tanh(b) q = Mul(kn, h) }>(h, xt) }>(h0, x)"""
case("Scan", body, x=(2, 3, 2), w=(2,), h0=(2,))
LOOP = """
    e, s = Loop(m, t, x) <body = step (int64 i, bool c, float[D, 3] h) => (bool cn, float[D, 3] hn, float[D, 3] o) {
        a = Sin(h) b = Mul(a, w) hn = Add(b, h) o = Mul(hn, w) {0} }>
    """
for go_on in ("cn = Identity(c)", "r = ReduceSum<keepdims = 0>(hn) l = CastLike(limit, r) cn = Less(r, l)"):
    for end in ("y = Identity(e)", "y = Mul(s, e)"):
        extra = {"limit": np.int64(2), "fed": ["m", "limit"]} if "limit" in go_on else {"fed": ["m"]}
        case(
            "Loop", LOOP.replace("{0}", go_on) + end,
            x=MATRIX, w=(3,), m=np.int64(4), t=np.bool_(True), opsets=(13, 18, 21) if "limit" not in go_on else (18,),
            **extra,
        )  # fmt: skip
for rounds, begins in ((0, True), (-3, True), (4, False)):
    for end in ("y = Identity(e)", "k = ReduceSum<keepdims = 0>(s) y = Add(k, e)"):
        body = LOOP.replace("{0}", "cn = Identity(c)") + end
        case(
            "Loop", body, x=MATRIX, w=(3,), m=np.int64(rounds), t=np.bool_(begins), opsets=(13, 18, 21), fed=["m", "t"]
        )
        case("Loop", body, x=MATRIX, w=(3,), m=np.int64(rounds), t=np.bool_(begins))
body = """
    y = Loop(m, t, x) <body = step (int64 i, bool c, float h) => (bool cn, float hn) {
        f = CastLike(i, h) a = Mul(f, h) b = Sin(a) d = Mul(b, w) hn = Add(d, h) cn = Identity(c) }>"""
case(
    "Loop",
    body.replace("float h)", "float[D, 3] h)").replace("float hn)", "float[D, 3] hn)"),
    x=MATRIX,
    w=(),
    m=np.int64(3),
    t=np.bool_(True),
)
case(
    "Loop",
    body.replace("float h)", "float[] h)").replace("float hn)", "float[] hn)"),
    x=MATRIX,
    w=(3,),
    m=np.int64(3),
    t=np.bool_(True),
)
grown = """
    y = Loop(m, t, x) <body = step (int64 i, bool c, float[K, 3] h) => (bool cn, float[L, 3] hn) {
        a = Mul(h, h) hn = Concat<axis = 0>(h, a) cn = Identity(c) }>"""
case("Loop", grown, x=MATRIX, m=np.int64(2), t=np.bool_(True), refused="to keep its size")

inside = """
    y = If(c) <
        then_branch = one () => (float[D, 3] u) {
            p, e = GRU<hidden_size = 3>(x, w, r) a = Constant<value_ints = [0]>() u = Squeeze(e, a) },
        else_branch = two () => (float[D, 3] v) {
            q = SequenceConstruct(x, x) o = SequenceAt(q, j) b = Constant<value_ints = [0]>()
            v = ReduceSum<keepdims = 0>(o, b) }>"""
for truth in (True, False):
    more = {"w": (1, 9, 3), "r": (1, 9, 3), "j": np.int64(1), "c": np.bool_(truth), "fed": ["c"]}
    case("If", inside, x=(4, 2, 3), **more)
chance = """
    y = If(c) <then_branch = one () => (float[2, 3] u) {{ {0} }},
               else_branch = two () => (float[2, 3] v) {{ v = Tanh(x) }}>"""
dropout, more = chance.format("u = Dropout(x, ratio, t)"), {"ratio": 0.5, "c": np.bool_(True), "fed": ["c"]}
case("If", dropout, x=MATRIX, t=np.bool_(True), wrt=["x"], refused="other numbers", **more)
case("If", dropout, x=MATRIX, t=np.bool_(False), wrt=["x"], **more)
noise = chance.format("k = RandomNormalLike(x) u = Mul(x, k)")
case("If", noise, x=MATRIX, c=np.bool_(True), fed=["c"], refused="other numbers")

# resampling.

for mode in ("nearest", "linear", "cubic"):
    for coordinates in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"):
        body = f'y = Resize<mode = "{mode}", coordinate_transformation_mode = "{coordinates}">'
        opsets = (19,) if "symmetric" in coordinates and "half" in coordinates else (11, 13, 18, 19)
        scales = np.array([1, 1, 1.5, 0.6], np.float32)
        if opsets[0] > 11:
            case("Resize", body + "(x, , s)", x=(2, 1, 4, 5), s=scales, wrt=["x"], opsets=opsets)
        else:
            case(
                "Resize",
                body + "(x, o, s)",
                x=(2, 1, 4, 5),
                o=np.zeros(0, np.float32),
                s=scales,
                wrt=["x"],
                opsets=opsets,
            )
        case("Resize", body + "(x, , , n)", x=(2, 1, 4, 5), n=ints(2, 1, 7, 3), opsets=(18,))
for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    case(
        "Resize",
        f'y = Resize<nearest_mode = "{rounding}">(x, , s)',
        x=(3, 5),
        s=np.array([1.7, 0.5], np.float32),
        wrt=["x"],
    )
case(
    "Resize",
    'y = Resize<mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5>(x, , s)',
    x=(1, 1, 4, 5),
    s=scales,
    wrt=["x"],
)
for mode in ("linear", "cubic"):
    case(
        "Resize",
        f'y = Resize<mode = "{mode}", antialias = 1>(x, , s)',
        x=(1, 1, 6, 7),
        s=np.array([1, 1, 0.5, 0.6], np.float32),
        wrt=["x"],
    )
case(
    "Resize",
    'y = Resize<mode = "linear", axes = [3, 2]>(x, , s)',
    x=(1, 2, 4, 5),
    s=np.array([1.5, 0.6], np.float32),
    wrt=["x"],
)
case("Resize", 'y = Resize<mode = "linear">(x, , s)', x=(1, 2, 4, 5), s=scales, fed=["s"], wrt=["x"])
case(
    "Resize",
    'y = Resize<mode = "linear", axes = [1], keep_aspect_ratio_policy = "not_larger">(x, , , n)',
    x=(4, 5),
    n=ints(3),
    refused="stretch",
)
crop = 'Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 0.7>'
crop += "(x, o, , n)"
case("Resize", f"y = {crop}", x=(4, 5), o=np.array([0.2, 0.1, 1.3, 0.8], np.float32), n=ints(3, 4), wrt=["x"])
for corners in (0, 1):
    body = f"y = AffineGrid<align_corners = {corners}>(x, n)"
    case("AffineGrid", body, x=(2, 2, 3), n=ints(2, 3, 4, 5), opsets=(20,))
    case("AffineGrid", body, x=(2, 3, 4), n=ints(2, 1, 2, 3, 4), opsets=(20,))

# sequences.

SEQUENCE = "s = SequenceConstruct(x, z, w) "
for position in (0, 2, -1):
    case(
        "SequenceAt",
        SEQUENCE + "y = SequenceAt(s, i)",
        x=MATRIX,
        z=MATRIX,
        w=MATRIX,
        i=np.int64(position),
        opsets=(11, 18),
    )
case(
    "SequenceAt",
    SEQUENCE + "y = SequenceAt(s, i)",
    x=MATRIX,
    z=MATRIX,
    w=MATRIX,
    i=np.int64(1),
    fed=["i"],
    refused="must be constant",
)
case("SequenceAt", SEQUENCE + "y = SequenceAt(s, i)", x=MATRIX, z=MATRIX, w=MATRIX, i=np.int64(3), refused="outside")
for settings in ("axis = 0", "axis = -1", "axis = 1, new_axis = 1"):
    case("ConcatFromSequence", SEQUENCE + f"y = ConcatFromSequence<{settings}>(s)", x=MATRIX, z=MATRIX, w=MATRIX)
case(
    "SequenceInsert",
    "s = SequenceConstruct(x) e = SequenceInsert(s, z, i) t = SequenceInsert(e, w) y = ConcatFromSequence<axis = 0>(t)",
    x=MATRIX,
    z=(1, 3),
    w=(2, 3),
    i=np.int64(0),
)
case(
    "SequenceErase",
    SEQUENCE + "t = SequenceErase(s, i) y = ConcatFromSequence<axis = 0>(t)",
    x=MATRIX,
    z=(1, 3),
    w=(2, 3),
    i=np.int64(-2),
)
case(
    "SequenceEmpty",
    "s = SequenceEmpty<dtype = 1>() t = SequenceInsert(s, x) y = ConcatFromSequence<axis = 0>(t)",
    x=MATRIX,
)
for split, arrays in (("", {}), (", n", {"n": np.int64(2)})):
    for keep in (1,) if arrays else (0, 1):  # with split given, onnxruntime fails without keepdims
        body = f"s = SplitToSequence<axis = 1, keepdims = {keep}>(x{split})"
        body += " a = SequenceAt(s, i) b = SequenceAt(s, j) y = Mul(a, b)"
        case("SplitToSequence", body, x=(2, 5), i=np.int64(0), j=np.int64(1), **arrays)
case(
    "SplitToSequence",
    "s = SplitToSequence<axis = 1>(x, n) y = SequenceAt(s, i)",
    x=(2, 5),
    i=np.int64(-1),
    n=ints(1, 4),
)
case(
    "SplitToSequence",
    "s = SplitToSequence<axis = 0>(x) y = ConcatFromSequence<axis = 1>(s)",
    x=(2, 5),
    dynamic="must be fixed",
)
case("OptionalGetElement", "o = Optional(x) e = OptionalGetElement(o) y = Mul(e, e)", x=MATRIX, opsets=(15, 18))
case(
    "OptionalGetElement",
    "s = SequenceConstruct(z, x) o = Optional(s) e = OptionalGetElement(o) y = SequenceAt(e, i)",
    x=MATRIX,
    z=MATRIX,
    i=np.int64(1),
)

# transformers, and cropping.

case("CenterCropPad", "y = CenterCropPad(x, n)", x=(4, 5), n=ints(3, 8), wrt=["x"])
case("CenterCropPad", "y = CenterCropPad<axes = [1, -3]>(x, n)", x=(4, 5, 3), n=ints(2, 7), wrt=["x"])
ROTARY = {"x": (2, 3, 4, 6), "c": (10, 3), "s": (10, 3), "p": ints([0, 3, 1, 2], [5, 2, 2, 9])}
for settings in ("", "<interleaved = 1>", "<rotary_embedding_dim = 4>"):
    narrow = {"c": (10, 2), "s": (10, 2)} if "4" in settings else {}
    case("RotaryEmbedding", f"y = RotaryEmbedding{settings}(x, c, s, p)", **{**ROTARY, **narrow}, opsets=(23,))
case(
    "RotaryEmbedding",
    "y = RotaryEmbedding<num_heads = 2>(x, c, s)",
    x=(2, 3, 8),
    c=(2, 3, 2),
    s=(2, 3, 2),
    opsets=(23,),
)

QKV = {"x": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 6)}
for settings in ("", "<is_causal = 1>", "<scale = 0.7>", "<softcap = 0.8>"):
    case("Attention", f"y = Attention{settings}(x, k, v)", **QKV, opsets=(23, 24))
case("Attention", "y = Attention(x, k, v, m)", **QKV, m=(3, 5), opsets=(23, 24))
case("Attention", "y = Attention<softcap = 0.8>(x, k, v, m)", **QKV, m=(2, 1, 3, 5), opsets=(23, 24))
masked = bools([1, 1, 0, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1])
case("Attention", "y = Attention(x, k, v, m)", **QKV, m=masked, opsets=(23, 24))
case(
    "Attention",
    "y = Attention<is_causal = 1>(x, k, v, m)",
    **QKV,
    m=bools([1, 1, 0, 1, 0], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]),
    opsets=(23, 24),
)
nothing = bools([1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1])  # ONNX's own reference gives NaN in that row
plain = """
    t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) half = Constant<value_float = 0.5>() o = CastLike(half, x)
    r = Mul(s, o) e = Exp(r) f = CastLike(m, x) n = Mul(e, f) a = Constant<value_ints = [-1]>() d = ReduceSum(n, a)
    least = Constant<value_float = 0.000001>() j = CastLike(least, x) u = Max(d, j) p = Div(n, u) y = MatMul(p, v)"""
case("Attention", "y = Attention(x, k, v, m)", **QKV, m=nothing, opsets=(23, 24), reference=plain)
case("Attention", "y, a, b = Attention(x, k, v, , p, q)", **QKV, p=(2, 2, 3, 4), q=(2, 2, 3, 6), opsets=(23, 24))
case(
    "Attention",
    "z, a, b = Attention<is_causal = 1>(x, k, v, , p, q) d = ReduceSum(a) e = ReduceSum(b) f = Mul(d, e) y = Mul(z, f)",
    **QKV,
    p=(2, 2, 3, 4),
    q=(2, 2, 3, 6),
    opsets=(23, 24),
)
case("Attention", "y = Attention(x, k, v)", x=(2, 4, 3, 4), k=(2, 2, 5, 4), v=(2, 2, 5, 6), opsets=(23, 24))
case(
    "Attention",
    "y = Attention<q_num_heads = 2, kv_num_heads = 2>(x, k, v)",
    x=(2, 3, 8),
    k=(2, 5, 8),
    v=(2, 5, 6),
    opsets=(23, 24),
)
case(
    "Attention",
    "y = Attention<q_num_heads = 4, kv_num_heads = 2>(x, k, v)",
    x=(2, 3, 8),
    k=(2, 5, 4),
    v=(2, 5, 6),
    opsets=(23, 24),
)

case(
    "Attention", "y = Attention(x, k, v, m)", **QKV, m=bools([1], [0], [1]), opsets=(23,), refused="as wide as its keys"
)
case("Attention", "y, a, b, s = Attention(x, k, v)", **QKV, opsets=(23,))
case("Attention", "a, b, c, y = Attention(x, k, v)", **QKV, opsets=(23,), refused="qk_matmul_output")
case("Attention", "y = Attention<softmax_precision = 1>(x, k, v)", **QKV, opsets=(23,), refused="softmax_precision")
case("Attention", "y = Attention(x, k, v, , , , n)", **QKV, n=ints(5, 3), opsets=(24,), refused="nonpad_kv_seqlen")
