"""Time of a training step of each engine by family of operators: the table that ``engine="auto"`` goes by.

Each family has small networks in which its operators take most of the time. An environment with the training build of
onnxruntime has both engines on one runtime. The ratio is the time of a step of the portable engine by that of
ort-training, in CPU time on one thread: below 1, the portable engine is faster. The family has the geometric mean of
its networks. The figures are those of ``FAMILIES`` in ``onnxtrain_sklearn/_gradient/engine.py``. They were checked on
networks of several families: an embedding and attention 1.07, LeNet 1.13, an embedding with a hidden layer of tanh 0.94
and 1.09 in two runs, with a linear layer 0.90 and 1.00.

With ``--compiled`` it compares what a step of compiled code saves, and what it takes to compile it, with the estimates
by which ``engine="auto"`` takes it, ``onnxtrain_sklearn/_training/step_choice.py``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
from engine_step import Net, lenet, measure, mlp, new_step

from onnxtrain_sklearn import MLP
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import packages
from onnxtrain_sklearn._ort.llvm import features
from onnxtrain_sklearn._training.programs import COMPILED
from onnxtrain_sklearn._training.step_choice import COMPILING, COMPILING_NODE, ELEMENT, NODE
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError

Shapes = Mapping[str, tuple[int, ...]]


def net(name: str, row: str, body: str, shapes: Shapes, *, batch: int = 32, steps: int = 100) -> Net:
    """Return a network of opset 18 from ``X`` to ten scores; ``row`` is the shape of a row."""
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[N, {row}] X) => (float[N, 10] scores) {{ {body} }}'
    )
    for weight, shape in shapes.items():
        array = rng.normal(size=shape, scale=0.1).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, weight))
    for constant, numbers in INTEGERS.items():
        if any(constant in node.input for node in proto.graph.node):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), constant))
    return Net(name, trainable_model(load(proto)), batch, 10, steps)


INTEGERS = {
    "heads": [0, 16, 4, 16],
    "tokens": [0, 16, 64],
    "axis1": [1],
    "axis2": [2],
    "last": [-1],
    "flat": [0, -1],
    "halves": [32, 32],
    "ends": [0, 0, 2, 0, 0, 2],
}


def convolution(channels: int, size: int, kernel: int, layers: int, batch: int = 16) -> Net:
    """Convolutions of equal channels with rectifiers, then the mean over the image."""
    pads = [kernel // 2] * 4
    body = f"h0 = Conv <pads = {pads}> (X, K0, k0) r0 = Relu(h0) "
    for i in range(1, layers):
        body += f"h{i} = Conv <pads = {pads}> (r{i - 1}, K{i}, k{i}) r{i} = Relu(h{i}) "
    body += f"m = GlobalAveragePool(r{layers - 1}) f = Flatten(m) scores = Gemm(f, W, b)"
    shapes: dict[str, tuple[int, ...]] = {"W": (channels, 10), "b": (10,)}
    for i in range(layers):
        shapes |= {f"K{i}": (channels, channels if i else 8, kernel, kernel), f"k{i}": (channels,)}
    name = f"{layers} Conv {kernel}x{kernel}, {channels} channels, {size}x{size}"
    return net(name, f"8, {size}, {size}", body.replace("'", ""), shapes, batch=batch, steps=30)


def activation(operator: str, units: int = 512) -> Net:
    """An operator on each of many units: its time is most of what the products do not take."""
    body = f"h = Gemm(X, V, a) r = {operator} s = Mul(r, scale) t = {operator.replace('(h)', '(s)')} "
    body += "scores = Gemm(t, W, b)"
    shapes = {"V": (8, units), "a": (units,), "scale": (units,), "W": (units, 10), "b": (10,)}
    return net(operator, "8", body, shapes, batch=128)


def stacked(name: str, body: str, shapes: Shapes, *, batch: int = 32) -> Net:
    """Sequences of 16 tokens of 64 numbers, and the mean over them."""
    head = " mean = ReduceMean <keepdims = 0> (last_tokens, axis1) scores = Gemm(mean, W, b)"
    return net(name, "16, 64", body + head, {**shapes, "W": (64, 10), "b": (10,)}, batch=batch, steps=50)


ATTENTION = """
    q = MatMul(X, Q) k = MatMul(X, K) v = MatMul(X, V)
    q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads)
    qt = Transpose <perm = [0, 2, 1, 3]> (q4) kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    a = MatMul(qt, kt) p = Softmax <axis = -1> (a) o = MatMul(p, vt)
    ot = Transpose <perm = [0, 2, 1, 3]> (o) of = Reshape(ot, tokens) last_tokens = MatMul(of, O)"""
SQUARE = (64, 64)


def families() -> dict[str, Iterable[Net]]:
    """Return the networks of each family."""
    tokens = {"g": (64,), "c": (64,)}
    pooling = "h = Conv <pads = [1, 1, 1, 1]> (X, K, k) p = {} f = Flatten(p) scores = Gemm(f, W, b)"
    kernel = {"K": (16, 8, 3, 3), "k": (16,), "W": (16 * 8 * 8, 10), "b": (10,)}
    windows = "<kernel_shape = [2, 2], strides = [2, 2]>"
    return {  # the operators that take most of the time first
        "convolution": [
            convolution(16, 16, 3, 3),
            convolution(64, 8, 3, 3),
            convolution(128, 4, 3, 2),
            convolution(64, 16, 1, 2),
            convolution(32, 32, 3, 2),
            convolution(16, 16, 5, 2),
        ],
        "attention": [stacked("attention", ATTENTION, dict.fromkeys("QKVO", SQUARE))],
        "leaky rectifiers": [activation("LeakyRelu(h)"), activation("LeakyRelu <alpha = 0.2> (h)", 128)],
        "lookups": [
            net(
                f"Gather, {rows} rows",
                "20",
                "w = Abs(X) c = Cast <to = 7> (w) e = Gather(T, c) m = ReduceMean <keepdims = 0> (e, axis1) "
                "scores = Gemm(m, W, b)",
                {"T": (rows, 32), "W": (32, 10), "b": (10,)},
            )
            for rows in (100, 2000, 30_000)
        ],
        "pooling": [
            net(f"{kind}Pool", "8, 16, 16", pooling.format(f"{kind}Pool {windows} (h)"), kernel, steps=50)
            for kind in ("Max", "Average")
        ],
        "normalization": [
            stacked("LayerNormalization", "last_tokens = LayerNormalization <axis = -1> (X, g, c)", tokens),
            stacked(
                "LayerNormalization twice",
                "n = LayerNormalization <axis = -1> (X, g, c) h = MatMul(n, Q) "
                "last_tokens = LayerNormalization <axis = -1> (h, d, e)",
                {**tokens, "Q": SQUARE, "d": (64,), "e": (64,)},
            ),
        ],
        "sigmoids": [activation(f"{name}(h)") for name in ("Tanh", "Sigmoid")],
        "rectifiers": [activation(f"{name}(h)") for name in ("Relu", "Exp", "Erf")],
        "shapes": [
            stacked("Transpose", "t = Transpose <perm = [0, 2, 1]> (X) h = MatMul(t, A) "
                    "last_tokens = Transpose <perm = [0, 2, 1]> (h)", {"A": (16, 16)}),
            stacked("Split and Concat", "h = MatMul(X, Q) l, r = Split <axis = 2> (h, halves) "
                    "last_tokens = Concat <axis = 2> (r, l)", {"Q": SQUARE}),
        ],
        "reductions": [
            stacked("ReduceMean", "h = MatMul(X, Q) m = ReduceMean <keepdims = 1> (h, last) "
                    "last_tokens = Sub(h, m)", {"Q": SQUARE}),
            stacked("ReduceSum", "h = MatMul(X, Q) q = Mul(h, h) m = ReduceSum <keepdims = 1> (q, last) "
                    "last_tokens = Mul(h, m)", {"Q": SQUARE}),
        ],
        "products": [mlp(number) for number in range(4)],
    }  # fmt: skip


def embedded(name: str, body: str, shapes: Shapes, last: str = "m") -> Net:
    """Sequences of 16 words, looked up among 2000, and what follows them up to the matrix ``last``."""
    words = "w = Abs(X) c = Cast <to = 7> (w) E = Gather(T, c) "
    common = {"T": (2000, 64), "W": (64, 10), "b": (10,)}
    return net(name, "16", f"{words} {body} scores = Gemm({last}, W, b)", {**common, **shapes}, steps=50)


def mixed() -> list[Net]:
    """Networks of several families, on which the order of the families is checked."""
    mean, attention = "m = ReduceMean <keepdims = 0> ({}, axis1) ", ATTENTION.replace("(X,", "(E,")
    projections = dict.fromkeys("QKVO", SQUARE)
    return [
        embedded("embedding and attention", f"{attention} {mean.format('last_tokens')}", projections),
        embedded("embedding and tanh", mean.format("E") + "h = MatMul(m, Q) t = Tanh(h)", {"Q": SQUARE}, "t"),
        embedded("embedding and a linear layer", mean.format("E"), {}),
        lenet(),
    ]  # fmt: skip


def perceptrons() -> Iterable[Net]:
    """Return perceptrons of several sizes, depths and minibatches."""
    for layers in ((8, 16, 2), (20, 100, 2), (64, 128, 10), (54, 256, 7), (64, 100, 100, 100, 10), (30, *[64] * 6, 3)):
        n_features, *hidden, classes = layers
        for batch in (16, 32, 64, 200, 512):
            model = trainable_model(load(MLP(hidden).build(n_features, classes, np.random.RandomState(0))))
            yield Net(f"{list(layers)} b{batch}", model, batch, classes, steps=100)


def print_savings(nets: Iterable[Net], repeat: int) -> None:
    """Print the microseconds that steps save and the milliseconds of compiling, each beside its estimate."""
    features()  # loads the compiler
    print(f"{'':<40} {'auto':>9} {'compiled':>9} {'saved':>8} {'estimate':>8} {'compiling':>9} {'estimate':>8}")
    for one in nets:
        size, start = new_step(one, "sgd", "auto").program.size, time.perf_counter()
        try:
            new_step(one, "sgd", COMPILED)
        except UnsupportedOperatorError as error:
            print(f"{one.name:<40} {error}")
            continue
        took = time.perf_counter() - start
        best = measure(one, "sgd", repeat, ("auto", COMPILED))
        saved, estimate = best["auto"] - best[COMPILED], (NODE * size.nodes + ELEMENT * size.elements) * 1e6
        times = f"{best['auto']:9.1f} {best[COMPILED]:9.1f} {saved:8.1f} {estimate:8.1f}"
        expected = COMPILING + COMPILING_NODE * size.nodes
        print(f"{one.name:<40} {times} {took * 1e3:9.0f} {expected * 1e3:8.0f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of a step of both engines by family of operators.")
    parser.add_argument("--repeat", type=int, default=9, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--families", nargs="+", help="names of families (default: all)")
    parser.add_argument("--compiled", action="store_true", help="what compiled code saves, beside the estimates")
    options = parser.parse_args(arguments)
    print(f"onnxruntime {packages.version()}")
    if options.compiled:
        return print_savings([*perceptrons(), *(one for nets in families().values() for one in nets)], options.repeat)
    for family, nets in {**families(), "several": mixed()}.items():
        if options.families and family not in options.families:
            continue
        ratios = []
        for one in nets:
            best = measure(one, "sgd", options.repeat)
            ratios.append(best["portable"] / best["ort-training"])
            print(f"    {one.name:<40} {best['ort-training']:10,.1f} {best['portable']:10,.1f} {ratios[-1]:6.2f}")
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{family!r}: {mean:.2f}", flush=True)


if __name__ == "__main__":
    main()
