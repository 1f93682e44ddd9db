"""Random small graphs at every opset: predictions, loss and gradients beside onnxruntime's of the file as given.

    python -m tests.fuzz.opsets --cases 1000 [--first 5000] [--engine portable]
    python -m tests.fuzz.opsets --case 4711

A graph is made from its number alone. Its reference is the file itself, run by onnxruntime: the loss of a step is
computed from its outputs in float64, and gradients are central differences of that loss in the weights of the file.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainError
from tests.fuzz.reference import File
from tests.helpers.environment import LIMITS, available_engines

ROWS, RATE = 4, 2.0**-6
SHAPES = {2: [6], 3: [3, 2], 4: [1, 3, 2]}
EVERY, SHOWN = 500, 3
"""Cases between two lines of progress, and outcomes of a kind that are shown beside those that failed."""

make = onnx.helper.make_node


class Drawn:
    """A graph in the making: nodes from ``X`` to ``Y``, and the shape of the value at hand."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)
        self.numbers = np.random.RandomState(number % 2**31)
        self.opset = self.rng.randint(7, min(26, LIMITS.opset))
        self.shape = list(SHAPES[self.rng.choice([2, 2, 3, 3, 4])])
        self.row = list(self.shape)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.last, self.count = "X", 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = self.name()
        tensor = onnx.numpy_helper.from_array(np.asarray(array, dtype), name)
        if self.rng.random() < 0.5:
            self.initializers.append(tensor)
        else:
            self.nodes.append(make("Constant", [], [name], value=tensor))
        return name

    def weight(self, *shape: int) -> str:
        name = f"W{len(self.initializers)}"
        array = self.numbers.normal(size=shape).astype(np.float32)
        self.initializers.append(onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> None:
        name = self.name()
        self.nodes.append(make(operator, [self.last, *inputs], [name], **attributes))
        self.last = name

    @property
    def rank(self) -> int:
        return len(self.shape) + 1

    def axis(self, least: int = 1) -> int:
        """Return an axis, counted from the end where the opset takes that."""
        axis = self.rng.randrange(least, self.rank)
        return axis - self.rank if self.opset >= 13 and self.rng.random() < 0.4 else axis

    # --- operators ---

    def weigh(self) -> None:
        """Multiply the last axis by a matrix."""
        width = self.rng.choice([2, 3])
        self.add("MatMul", self.weight(self.shape[-1], width))
        self.shape[-1] = width

    def scale(self) -> None:
        self.add(self.rng.choice(["Add", "Mul", "Sub"]), self.weight(self.shape[-1]))

    def activate(self) -> None:
        plain = ["Tanh", "Sigmoid", "Softplus", "Softsign", "Identity", "Elu", "Selu", "LeakyRelu", "HardSigmoid"]
        kind = self.rng.choice(plain)
        slopes = {"Elu": 0.7, "LeakyRelu": 0.3, "HardSigmoid": 0.25}
        given = kind in slopes and self.rng.random() < 0.5
        self.add(kind, **({"alpha": slopes[kind]} if given else {}))

    def normalize(self) -> None:
        """Apply an operator that is coerced to two axes before opset 13; its axis may be left out."""
        kind = self.rng.choice(["Softmax", "Softmax", "LogSoftmax", "Hardmax"])
        if kind == "Hardmax" and self.rng.random() < 0.7:
            kind = "Softmax"
        self.add(kind, **({} if self.rng.random() < 0.3 else {"axis": self.axis()}))
        if kind == "Hardmax":
            self.scale()

    def clip(self) -> None:
        low, high = self.rng.choice([(-0.83, 0.91), (None, 0.77), (-0.71, None)])
        if self.opset < 11:
            self.add("Clip", **{k: v for k, v in (("min", low), ("max", high)) if v is not None})
            return
        bounds = ["" if b is None else self.constant(b) for b in (low, high)]
        self.add("Clip", *bounds[: 2 if high is not None else 1])

    def pad(self) -> None:
        pads = [0] + [self.rng.choice([0, 1]) for _ in self.shape] + [0] + [self.rng.choice([0, 1]) for _ in self.shape]
        mode = self.rng.choice(["constant", "constant", "edge"])
        given = mode == "constant" and self.rng.random() < 0.5
        if self.opset < 11:
            self.add("Pad", pads=pads, mode=mode, **({"value": 0.5} if given else {}))
        else:
            more = [self.constant(pads, np.int64), *([self.constant(0.5)] if given else [])]
            self.add("Pad", *more, mode=mode)
        half = len(pads) // 2
        self.shape = [n + pads[i + 1] + pads[half + i + 1] for i, n in enumerate(self.shape)]

    def slice(self) -> None:
        axis = self.rng.randrange(1, self.rank)
        if self.shape[axis - 1] < 2:
            return
        start, end = self.rng.choice([(0, -1), (1, 1000), (-1, 1000)])
        if self.opset < 10:
            self.add("Slice", starts=[start], ends=[end], axes=[axis])
        else:
            self.add("Slice", *(self.constant([n], np.int64) for n in (start, end, axis)))
        n = self.shape[axis - 1]
        self.shape[axis - 1] = 1 if start == -1 else n - 1

    def reduce(self) -> None:
        if self.rank < 3:
            return
        kinds = ["ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "ReduceMax"]
        kind, axis, keep = self.rng.choice(kinds), self.axis(), self.rng.choice([0, 1])
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            self.add(kind, self.constant([axis], np.int64), keepdims=keep)
        else:
            self.add(kind, axes=[axis], **({} if keep else {"keepdims": 0}))
        axis = axis % self.rank - 1
        self.shape[axis : axis + 1] = [1] if keep else []

    def squeeze(self) -> None:
        ones = [i + 1 for i, n in enumerate(self.shape) if n == 1]
        squeezes = bool(ones) and self.rank > 2 and self.rng.random() < 0.5
        if not squeezes and self.rank >= 5:
            return
        axis = self.rng.choice(ones) if squeezes else self.rng.randint(1, self.rank)
        kind = "Squeeze" if squeezes else "Unsqueeze"
        if self.opset >= 13:
            self.add(kind, self.constant([axis], np.int64))
        else:
            self.add(kind, axes=[axis])
        self.shape[axis - 1 : axis - 1 + squeezes] = [] if squeezes else [1]

    def split(self) -> None:
        axis = self.rng.randrange(1, self.rank)
        n = self.shape[axis - 1]
        if n < 2:
            return
        names, sizes = [self.name(), self.name()], [n - 1, 1]
        given = n % 2 or self.rng.random() < 0.5
        more = [self.constant(sizes, np.int64)] if given and self.opset >= 13 else []
        attributes: dict[str, Any] = {"split": sizes} if given and self.opset < 13 else {}
        if not given and self.opset >= 18:
            attributes["num_outputs"] = 2
        self.nodes.append(make("Split", [self.last, *more], names, axis=axis, **attributes))
        self.last = self.name()
        self.nodes.append(make("Concat", names[::-1], [self.last], axis=axis))

    def resize(self) -> None:
        if self.rank != 4:
            return
        mode = self.rng.choice(["nearest", "linear"])
        scales = [
            1.0,
            1.0,
            *(self.rng.choice([1.0, 1.5, 2.0, *([0.5, 0.7] if self.opset >= 10 else [])]) for _ in range(2)),
        ]
        sizes = [int(np.floor(np.float32(n) * np.float32(s))) for n, s in zip(self.shape, scales[1:], strict=True)]
        if min(sizes) < 1:
            return
        if self.opset < 9:
            self.add("Upsample", mode=mode, scales=scales)
        elif self.opset < 11:
            self.add("Upsample" if self.opset == 9 else "Resize", self.constant(scales), mode=mode)
        else:
            kind = self.rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", None])
            more = {} if kind is None else {"coordinate_transformation_mode": kind}
            roi = "" if self.opset >= 13 else self.constant(np.zeros(8))
            self.add("Resize", roi, self.constant(scales), mode=mode, **more)
        self.shape = sizes

    def pool(self) -> None:
        if self.rank != 4 or min(self.shape[1:]) < 2:
            return
        kind = self.rng.choice(["AveragePool", "MaxPool"])
        more: dict[str, Any] = {"count_include_pad": 1} if kind == "AveragePool" and self.rng.random() < 0.5 else {}
        self.add(kind, kernel_shape=[2, 2], pads=[1, 0, 0, 1], **more)

    def standardize(self) -> None:
        """Apply a BatchNormalization with its running statistics."""
        n = self.shape[0]
        if self.rank < 3:
            return
        mean, variance = self.numbers.normal(size=n), self.numbers.uniform(0.5, 2, size=n)
        stored = [self.weight(n), self.weight(n), self.constant(mean), self.constant(variance)]
        self.add("BatchNormalization", *stored, **({} if self.rng.random() < 0.5 else {"epsilon": 0.01}))

    def drop(self) -> None:
        ratio = {"ratio": 0.3} if self.opset < 12 and self.rng.random() < 0.5 else {}
        self.add("Dropout", **ratio)

    def call(self) -> None:
        """Call a local function, whose attribute may be left out; a second one may call it."""
        if not self.functions:
            imports = [onnx.helper.make_opsetid("", self.opset), onnx.helper.make_opsetid("own", 1)]
            body = make("LeakyRelu", ["x"], ["y"])
            body.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
            inner = onnx.helper.make_function("own", "inner", ["x"], ["y"], [body], imports)
            inner.attribute_proto.append(onnx.helper.make_attribute("slope", 0.6))
            steps = [make("inner", ["x"], ["z"], domain="own"), make("Tanh", ["z"], ["u"])]
            again = make("inner", ["u"], ["y"], domain="own")
            again.attribute.add(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
            outer = onnx.helper.make_function("own", "outer", ["x"], ["y"], [*steps, again], imports)
            outer.attribute_proto.append(onnx.helper.make_attribute("slope", -0.4))
            self.functions = [inner, outer]
        kind = self.rng.choice(["inner", "outer"])
        self.add(kind, domain="own", **({"slope": 0.25} if self.rng.random() < 0.4 else {}))

    def model(self) -> onnx.ModelProto:
        steps = [
            *(self.weigh, self.scale, self.activate, self.normalize, self.clip, self.pad, self.slice, self.reduce),
            *(self.squeeze, self.split, self.resize, self.pool, self.standardize, self.drop, self.call),
        ]
        for _ in range(self.rng.randint(2, 5)):
            self.rng.choice(steps)()
        self.add("Flatten")
        width = int(np.prod(self.shape))
        given = ["" if self.rng.random() < 0.3 else self.weight(1)] if self.opset >= 11 else [self.weight(1)]
        self.nodes.append(make("Gemm", [self.last, self.weight(width, 1), *filter(None, given)], ["Y"]))
        info = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes,
            "drawn",
            [info("X", onnx.TensorProto.FLOAT, ["N", *self.row])],
            [info("Y", onnx.TensorProto.FLOAT, ["N", 1])],
            self.initializers,
        )
        imports = [onnx.helper.make_opsetid("", self.opset)]
        imports += [onnx.helper.make_opsetid("own", 1)] if self.functions else []
        ir_version = 8 if self.functions else (4 if self.opset < 13 else 8)
        return onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=imports, functions=self.functions)


# one case.


def run(number: int, engine: str | None = None) -> str:
    """Return "right", "refused ..." or "wrong ..." for a case."""
    drawn = Drawn(number)
    proto = drawn.model()
    engine = engine or drawn.rng.choice(available_engines())
    X = drawn.numbers.normal(size=(ROWS, *drawn.row)).astype(np.float32)
    names = [t.name for t in proto.graph.initializer if t.name.startswith("W")]
    try:
        file = File(proto, names)
        weights = {name: file.held[name] for name in names}
        feeds = {"X": X, **weights}
        expected = file(feeds)[0].astype(np.float64).ravel()
    except Exception as error:
        return f"unrun {str(error)[:200]}"
    y = drawn.numbers.normal(size=ROWS) + expected
    settings = {"optimizer": "sgd", "learning_rate_init": RATE, "max_iter": 1, "batch_size": ROWS, "engine": engine}
    estimator = OrtGradientRegressor(proto, loss="squared_error", shuffle=False, alpha=0.0, **settings)
    try:
        estimator.fit(X, y)
    except OnnxTrainError as error:
        return refusal(error)
    loss = np.mean((expected - y) ** 2)
    if not np.isclose(estimator.loss_curve_[0], loss, rtol=1e-3, atol=1e-4):
        return f"wrong loss {estimator.loss_curve_[0]}, {loss} by the file"
    trained = estimator.weights_
    moved = {n: trained[n].reshape(weights[n].shape).astype(np.float32) for n in names if n in trained}
    gradients = {n: (weights[n].astype(np.float64) - moved[n]) / RATE for n in moved}
    outcome = compare(
        file, feeds, lambda outputs: float(np.mean((outputs[0].ravel() - y) ** 2)), gradients, drawn.numbers
    )
    if outcome.startswith("wrong"):
        return outcome
    given = file({**feeds, **moved})[0]
    if not np.allclose(estimator.predict(X), given.ravel(), rtol=1e-3, atol=1e-3 * max(1.0, np.abs(given).max())):
        return "wrong predictions of the trained weights"
    return outcome


def refusal(error: OnnxTrainError) -> str:
    """Return the outcome of a refused graph: wrong where it was refused as it became another one."""
    bad = "file as given" in str(error) or "would not start" in str(error)
    return f"{'wrong' if bad else 'refused'} {type(error).__name__}: {str(error)[:300]}"


def compare(
    file: File,
    feeds: dict[str, np.ndarray],
    loss: Callable[[list[np.ndarray]], float],
    gradients: dict[str, np.ndarray],
    numbers: np.random.RandomState,
) -> str:
    """Return "right" or "wrong ..." of gradients of a loss of a file's outputs, "kink ..." where it has none.

    Each gradient is compared along a direction of its own. A file that cannot be computed in float64 is taken with
    larger steps, and directions with two slopes are drawn anew.
    """
    file.use_double(feeds)
    start, aside = loss(file.precise(feeds)), []
    steps = (2.0**-15, 2.0**-18) if file.exact else (2.0**-7, 2.0**-9)
    for name, gradient in gradients.items():
        for _ in range(3):
            direction = numbers.normal(size=gradient.shape)
            slope, size = float((gradient * direction).sum()), max(1.0, float(np.abs(gradient * direction).sum()))
            found, two = [], False
            for step in steps:
                ends = []
                for sign in (step, -step):
                    near = feeds[name] + sign * direction
                    ends.append(loss(file.precise({**feeds, name: near})))
                found.append((ends[0] - ends[1]) / (2 * step))
                sides = (ends[0] - start) / step, (start - ends[1]) / step  # a kink at hand has two slopes
            two = abs(sides[0] - sides[1]) > 0.02 * size or abs(found[0] - found[1]) > 0.01 * size
            if not two:
                break
        else:
            aside.append(name)
            continue
        if abs(slope - found[1]) > (0.01 if file.exact else 0.03) * size:
            return f"wrong gradient of {name}: {slope}, {found} by differences"
    kind = "float64" if file.exact else "float32"
    return f"kink of {', '.join(aside)} in {kind}: {sides}" if aside else "right"


def main(run: Callable[[int, str | None], str], module: str, told: str) -> int:
    """Run the cases of the command line; 1: one was wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=told.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="run this one case")
    parser.add_argument("--engine", help="differentiate all cases with this engine")
    given = parser.parse_args()
    numbers = [given.case] if given.case is not None else range(given.first, given.first + given.cases)
    counts, started = Counter[str](), time.monotonic()
    for done, number in enumerate(numbers, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = run(number, given.engine)
            except Exception as error:
                outcome = f"foreign {type(error).__name__}: {str(error)[:300]}"
        kind = outcome.partition(" ")[0]
        counts[kind] += 1
        if kind in ("wrong", "foreign"):
            print(f"FAILED python -m {module} --case {number}\n  {outcome}", flush=True)
        elif given.case is not None or (kind != "right" and counts[kind] <= SHOWN):
            print(f"{number}: {outcome}", flush=True)
        if done % EVERY == 0 or done == len(numbers):
            print(f"{done} cases in {time.monotonic() - started:.0f} s: {dict(counts)}", flush=True)
    return int(bool(counts["wrong"] + counts["foreign"]) or not counts["right"])


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.opsets", __doc__))
