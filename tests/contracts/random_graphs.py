"""The operators of random graphs: for each one a function that appends it to a sketch, with random settings.

What an operator needs of its operands, such as a domain or a shape, its function sees to: it picks values that fit, or
makes them. :func:`sketches` draws whole graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, prod

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.contracts.random_moves import MOVES
from tests.contracts.sketch import LARGEST, Sketch, Value, scalar

Generator = Callable[[Sketch], object]

# elementwise.


def unary(operator: str, s: Sketch, adapt: Callable | None = None, **attributes: tuple[float, float]) -> None:
    x = s.value()
    x = adapt(s, x) if adapt else s.tamed(x)
    drawn = {name: float(np.float32(s.rng.uniform(*ends))) for name, ends in attributes.items() if s.flag()}
    s.emit(operator, [x], x.shape, x.bound + 1, **drawn)


def exponential(operator: str, s: Sketch) -> None:
    x = s.tamed(s.value(), 3.0)
    s.emit(operator, [x], x.shape, 12.0)


def gelu(s: Sketch) -> None:
    x = s.tamed(s.value())
    s.emit("Gelu", [x], x.shape, x.bound, **({"approximate": "tanh"} if s.full and s.flag() else {}))


def cast(s: Sketch) -> None:
    x = s.value()
    double = s.emit("Cast", [x], x.shape, x.bound, to=onnx.TensorProto.DOUBLE)
    s.pool.pop()
    s.emit("Cast", [double], x.shape, x.bound, to=onnx.TensorProto.FLOAT)


def cast_like(s: Sketch) -> None:
    x = s.value()
    s.emit("CastLike", [x, s.value()], x.shape, x.bound)


def two(s: Sketch) -> tuple[Value, Value, tuple[int, ...]]:
    x = s.tamed(s.value())
    z = s.tamed(s.partner(x.shape))
    x, z = (z, x) if s.flag() else (x, z)
    return x, z, np.broadcast_shapes(x.shape, z.shape)


def binary(operator: str, s: Sketch) -> None:
    x, z, shape = two(s)
    s.emit(operator, [x, z], shape, x.bound * z.bound if operator == "Mul" else x.bound + z.bound)


def division(s: Sketch) -> None:
    x, z, shape = two(s)
    s.emit("Div", [x, s.positive(z)], shape, 2 * x.bound)


def modulo(s: Sketch) -> None:
    x, z, shape = two(s)
    s.emit("Mod", [x, s.positive(z)], shape, 4, fmod=1)


def power(s: Sketch) -> None:
    if s.full and s.flag():
        x, z, shape = two(s)
        s.emit("Pow", [s.positive(x), s.tamed(z, 2.0)], shape, 12.0)
        return
    x = s.tamed(s.value(), 3.0)
    kind = s.choice([np.float32, np.int64]) if s.full else np.float32
    exponent = s.rng.integers(0 if s.full else 1, 4, size=s.choice([(), x.shape[-1:], x.shape])).astype(kind)
    s.emit("Pow", [x, s.constant(exponent)], x.shape, 12.0)


def prelu(s: Sketch) -> None:
    x = s.value()
    s.emit("PRelu", [x, s.tamed(s.partner(x.shape, into=True))], x.shape, 6 * x.bound)


def variadic(operator: str, s: Sketch) -> None:
    operands = [s.tamed(s.value())]
    for _ in range(s.number(0, 2)):
        shape = np.broadcast_shapes(*[v.shape for v in operands])
        operands.append(s.tamed(s.partner(shape)))
    s.emit(operator, operands, np.broadcast_shapes(*[v.shape for v in operands]), 12.0)


def where(s: Sketch) -> None:
    x, z, shape = two(s)
    condition = s.constant(s.rng.random(shape[s.number(0, len(shape)) :]) < 0.5)
    if s.flag():
        condition = f"b{len(s.nodes)}"
        s.nodes.append(helper.make_node("Greater", [x.name, z.name], [condition]))
    s.emit("Where", [condition, x, z], shape, max(x.bound, z.bound))


def clip(s: Sketch) -> None:
    bounds = [scalar(s, -0.6) if s.flag() else "", scalar(s, 0.6) if s.flag() else ""]
    x = s.value()
    s.emit("Clip", [x, *bounds], x.shape, x.bound)


# products.


def matmul(s: Sketch) -> None:
    x = s.tamed(s.value(1, 3))
    k, lead = x.shape[-1], x.shape[:-2]
    shapes = [(k,), (k, 2), (k, 3), (1, k, 2), (*(lead or (2,)), k, 2), (2, *[1] * len(lead), k, 1)]
    fitting = [v for v in s.pool if v.shape and v.shape[-2:][0] == k and product_of(x.shape, v.shape)]
    w = s.tamed(s.choice(fitting) if fitting and s.flag() else s.source(s.choice(shapes)))
    s.emit("MatMul", [x, w], product_of(x.shape, w.shape) or (), k * x.bound * w.bound)


def product_of(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        shape = np.matmul(np.zeros(left), np.zeros(right)).shape
    except ValueError:
        return None
    return shape if prod(shape) <= LARGEST else None


def gemm(s: Sketch) -> None:
    x, ta, tb, m = s.tamed(s.value(2, 2)), int(s.flag()), int(s.flag()), s.number(1, 3)
    k, n = x.shape if ta else x.shape[::-1]
    w = s.source((m, k) if tb else (k, m))
    bias = [s.tamed(s.source(s.choice([(m,), (n, m), (1, m), (n, 1), (1, 1), (1,), ()])))] if s.flag() else []
    factors = {name: s.choice([0.5, 2.0, -1.0]) for name in s.subset(["alpha", "beta"])}
    s.emit("Gemm", [x, w, *bias], (n, m), 2 * k * x.bound * w.bound, transA=ta, transB=tb, **factors)


def einsum(s: Sketch) -> None:
    equation = s.choice(["ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij,ij->i", "ij->ji", "i,j->ij", "ij,k->kj", "ij,ij->"])
    terms, _, output = equation.partition("->")
    sizes: dict[str, int] = {}
    operands = []
    for term in terms.split(","):
        known = [sizes.get(index) for index in term]
        fits = partial(agrees, known)
        value = s.value(len(term), len(term), fits) if s.flag() else s.source([n or s.number(1, 3) for n in known])
        sizes |= dict(zip(term, value.shape, strict=True))
        operands.append(s.tamed(value))
    output = output if "->" in equation else "ik"
    s.emit("Einsum", operands, [sizes[i] for i in output], 9 * prod(v.bound for v in operands), equation=equation)


def agrees(known: Sequence[int | None], v: Value) -> bool:
    return all(n in (None, size) for n, size in zip(known, v.shape, strict=True))


# reductions.


def reduction(operator: str, s: Sketch, adapt: Callable = Sketch.tamed) -> None:
    x = adapt(s, s.value())
    axes, keep = s.subset(range(len(x.shape))), int(s.flag())
    reduced = axes or range(len(x.shape))
    shape = [1 if i in reduced else n for i, n in enumerate(x.shape) if keep or i not in reduced]
    given = [axis - len(x.shape) * s.flag() for axis in axes]
    bound = prod(x.shape[i] for i in reduced) * x.bound
    if given and s.opset < (13 if operator == "ReduceSum" else 18):
        s.emit(operator, [x], shape, bound, axes=given, keepdims=keep)
    else:
        s.emit(operator, [x, *([s.ints(*given)] if given else [])], shape, bound, keepdims=keep)


def along_axis(operator: str, s: Sketch, **attributes) -> None:
    x = s.tamed(s.value(1))
    s.emit(operator, [x], x.shape, 3.0, axis=s.axis(x), **attributes)


def lp_normalization(s: Sketch) -> None:
    along_axis("LpNormalization", s, p=s.number(1, 2))


def cumulative_sum(s: Sketch) -> None:
    x = s.tamed(s.value(1))
    axis = s.constant(np.array(s.axis(x), np.int64))
    s.emit("CumSum", [x, axis], x.shape, 3 * x.bound, exclusive=int(s.flag()), reverse=int(s.flag()))


# normalizations, convolutions, pools.


def layer_normalization(operator: str, s: Sketch) -> None:
    x = s.tamed(s.value(1, 3, lambda v: s.full or (v.shape or (1,))[-1] > 1))
    axis = s.axis(x)
    affine = [s.source(x.shape[axis:]) for _ in range(1 + (operator == "LayerNormalization" and s.flag()))]
    s.emit(operator, [x, *affine], x.shape, 8.0, axis=axis, epsilon=0.1)


def image(s: Sketch, divisor: int = 1, low: int = 3) -> Value:
    """Return a value (N, C, ...) whose spatial axes have two elements or more."""
    found = [v for v in s.pool if low <= len(v.shape) <= 4 and v.shape[1] % divisor == 0 and min(v.shape[2:]) > 1]
    if found and s.flag():
        return s.tamed(s.choice(found[::-1]))
    spatial = [s.number(2, 4) for _ in range(s.number(max(low, 3) - 2, 2))]
    return s.source((s.number(1, 2), divisor * s.number(1, 3 // divisor), *spatial))


def instance_normalization(s: Sketch) -> None:
    x = image(s)
    s.emit("InstanceNormalization", [x, *channels(s, x)], x.shape, 8.0, epsilon=0.1)


def channels(s: Sketch, x: Value) -> list[Value]:
    return [s.source(x.shape[1:2]) for _ in range(2)]


def group_normalization(s: Sketch) -> None:
    x = image(s, divisor=2)
    groups, size = s.choice([1, 2, x.shape[1]]), x.shape[1]
    s.emit("GroupNormalization", [x, s.source([size]), s.source([size])], x.shape, 8.0, num_groups=groups, epsilon=0.1)


def batch_normalization(s: Sketch) -> None:
    x = s.tamed(s.value(2))
    moments = [s.source(x.shape[1:2]), s.source(x.shape[1:2], 0.4)]
    if s.opset >= 15 and s.flag():
        shapes = [x.shape, x.shape[1:2], x.shape[1:2]]
        y, *_ = s.emit_several(
            "BatchNormalization", [x, *channels(s, x), *moments], shapes, 8.0, training_mode=1, epsilon=0.1
        )
        s.pool[:] = [v for v in s.pool if v is y or not v.name.startswith(y.name[:-1])]
        return
    s.emit("BatchNormalization", [x, *channels(s, x), *moments], x.shape, 8.0, epsilon=0.1)


def windows(s: Sketch, x: Value, *, dilated: bool = True) -> tuple[dict, list[int]]:
    """Return the settings of windows over the spatial axes, and how many there are along each."""
    axes, sizes = range(len(x.shape) - 2), x.shape[2:]
    kernel = [s.number(1, min(3, n)) for n in sizes]
    strides = [s.number(1, 2) for _ in axes]
    settings = {"kernel_shape": kernel, "strides": strides}
    if all(k >= stride for k, stride in zip(kernel, strides, strict=True)) and s.flag():  # else the runtime fails
        mode = s.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        steps = [ceil((n - (kernel[i] - 1) * (mode == "VALID")) / strides[i]) for i, n in enumerate(sizes)]
        return settings | {"auto_pad": mode}, steps
    dilations = [s.number(1, 2) if dilated and (k - 1) * 2 < n else 1 for k, n in zip(kernel, sizes, strict=True)]
    pads = [s.number(0, (kernel[i] - 1) // 2 + 1) if kernel[i] > 1 else 0 for i in [*axes, *axes]]
    reach = [(kernel[i] - 1) * dilations[i] + 1 for i in axes]
    steps = [(n + pads[i] + pads[i + len(sizes)] - reach[i]) // strides[i] + 1 for i, n in enumerate(sizes)]
    return settings | {"pads": pads} | ({"dilations": dilations} if dilated else {}), steps


def convolution_layer(s: Sketch) -> None:
    x = image(s)
    group = s.choice([1, x.shape[1]])
    settings, steps = windows(s, x)
    width = group * s.number(1, 2)
    w = s.source((width, x.shape[1] // group, *settings["kernel_shape"]))
    bias = [s.source([width])] if s.flag() else []
    s.emit("Conv", [x, w, *bias], (x.shape[0], width, *steps), 20.0, group=group, **settings)


def transposed_convolution(s: Sketch) -> None:
    x = image(s)
    group, axes = s.choice([1, x.shape[1]]), range(len(x.shape) - 2)
    kernel, strides, dilations = ([s.number(1, 2) for _ in axes] for _ in range(3))
    pads = [s.number(0, (k - 1) * d) for k, d in zip(kernel, dilations, strict=True)]
    extra = [s.number(0, max(stride, d) - 1) for stride, d in zip(strides, dilations, strict=True)]
    spans = [(n - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 for i, n in enumerate(x.shape[2:])]
    sizes = [spans[i] + extra[i] - 2 * pads[i] for i in axes]
    width = s.number(1, 2)
    w = s.source((x.shape[1], width, *kernel))
    settings = {"strides": strides, "dilations": dilations, "output_padding": extra, "pads": pads * 2}
    shape = (x.shape[0], width * group, *sizes)
    if min(sizes) > 0 and prod(shape) <= 2 * LARGEST:
        bias = [s.source([width * group])] if s.flag() else []
        s.emit("ConvTranspose", [x, w, *bias], shape, 20.0, group=group, **settings)


def pool(operator: str, s: Sketch) -> None:
    x = image(s)
    settings, steps = windows(s, x, dilated=operator == "MaxPool" or (s.full and s.opset >= 19))
    if operator == "AveragePool":
        settings["count_include_pad"] = int(s.flag())
    s.emit(operator, [x], (*x.shape[:2], *steps), x.bound, **settings)


def global_pool(operator: str, s: Sketch) -> None:
    x = image(s)
    s.emit(operator, [x], (*x.shape[:2], *[1] * len(x.shape[2:])), x.bound)


def likelihood(operator: str, s: Sketch) -> None:
    x = s.tamed(s.value(2, 3))
    rows, classes = (x.shape[0], *x.shape[2:]), x.shape[1]
    target = s.rng.integers(0, classes, size=rows).astype(s.choice([np.int64, np.int32]))
    weights = s.rng.uniform(0.5, 1.5, classes)
    inputs = [x, s.constant(target)]
    if s.flag():
        inputs.append(s.source([classes], 0.5) if s.full and s.flag() else s.constant(weights))
    settings: dict = {"reduction": s.choice(["mean", "sum", "none"])}
    if classes > 1 and s.flag():
        settings["ignore_index"] = s.number(0, classes - 1)
    shapes = [rows if settings["reduction"] == "none" else ()]
    if operator[0] == "S" and s.full and s.flag():
        shapes.append(x.shape)
    s.emit_several(operator, inputs, shapes, 10.0, **settings)


def dropout(s: Sketch) -> None:
    x = s.value()
    s.emit("Dropout", [x], x.shape, x.bound)


SMOOTH = "Abs Asinh Atan Celu Ceil Cos Erf Floor HardSwish Identity LeakyRelu Mish Neg Relu Round Selu Sigmoid Sign Sin"
ATTRIBUTES: dict[str, dict[str, tuple[float, float]]] = {
    "Celu": {"alpha": (0.3, 2.0)},
    "Elu": {"alpha": (0.3, 2.0)},
    "HardSigmoid": {"alpha": (0.1, 0.6), "beta": (0.2, 0.7)},
    "LeakyRelu": {"alpha": (0.0, 0.9)},
    "Selu": {"alpha": (0.5, 2.0), "gamma": (0.5, 2.0)},
    "Shrink": {"lambd": (0.1, 1.0), "bias": (-0.5, 0.5)},
    "Swish": {"alpha": (0.3, 2.0)},
    "ThresholdedRelu": {"alpha": (0.1, 1.5)},
}
DOMAINS: dict[str, Callable] = {
    "Acos": Sketch.unit,
    "Acosh": partial(Sketch.positive, least=1.3),
    "Asin": Sketch.unit,
    "Atanh": Sketch.unit,
    "Log": Sketch.positive,
    "Reciprocal": Sketch.positive,
    "Sqrt": Sketch.positive,
    "Tan": Sketch.unit,
}

GENERATORS: dict[str, Generator] = {
    **{name: partial(unary, name) for name in [*SMOOTH.split(), "Softplus", "Softsign", "Tanh"]},
    **{name: partial(unary, name, **settings) for name, settings in ATTRIBUTES.items()},
    **{name: partial(unary, name, adapt=adapt) for name, adapt in DOMAINS.items()},
    **{name: partial(exponential, name) for name in ("Cosh", "Exp", "Sinh")},
    **{name: partial(binary, name) for name in ("Add", "Mul", "Sub")},
    **{name: partial(variadic, name) for name in ("Max", "Mean", "Min", "Sum")},
    **{f"Reduce{end}": partial(reduction, f"Reduce{end}") for end in "L1 L2 LogSumExp Max Mean Min".split()},
    **{f"Reduce{end}": partial(reduction, f"Reduce{end}") for end in ("Sum", "SumSquare")},
    **{name: partial(along_axis, name) for name in ("Hardmax", "LogSoftmax", "Softmax")},
    **{name: partial(layer_normalization, name) for name in ("LayerNormalization", "RMSNormalization")},
    **{name: partial(pool, name) for name in ("AveragePool", "MaxPool")},
    **{name: partial(global_pool, name) for name in ("GlobalAveragePool", "GlobalMaxPool")},
    **{name: partial(likelihood, name) for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    **MOVES,
    "BatchNormalization": batch_normalization,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Conv": convolution_layer,
    "ConvTranspose": transposed_convolution,
    "CumSum": cumulative_sum,
    "Div": division,
    "Dropout": dropout,
    "Einsum": einsum,
    "Gelu": gelu,
    "Gemm": gemm,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LpNormalization": lp_normalization,
    "MatMul": matmul,
    "Mod": modulo,
    "PRelu": prelu,
    "Pow": power,
    "ReduceLogSum": partial(reduction, "ReduceLogSum", adapt=Sketch.positive),
    "ReduceProd": partial(reduction, "ReduceProd", adapt=partial(Sketch.tamed, bound=2.0)),
    "Where": where,
}


SINCE = {
    "BatchNormalization": 15,  # before, ONNX's reference mixes in the statistics of the batch
    "GroupNormalization": 21,  # before, ONNX's checker takes it for deprecated
}


@st.composite
def sketches(draw: Callable, operators: Sequence[str], opsets: Sequence[int], *, full: bool) -> Sketch:
    """Draw a graph of one to seven of the operators, and what they need."""
    opset = draw(st.sampled_from(list(opsets)))
    named = ["none", "batch", "any"] if full else ["none", "none", "none", "batch", "any"]
    known = [name for name in operators if onnx.defs.has(name, opset) and opset >= SINCE.get(name, 0)]
    s = Sketch(draw, opset, full, draw(st.integers(0, 2**40)), draw(st.sampled_from(named)))
    for _ in range(draw(st.integers(1, 7))):
        GENERATORS[s.rng.choice(known)](s)  # Hypothesis itself draws a few of many much more often than others
    s.finish()
    return s
