"""Random graphs of further kinds: bodies, recurrent operators, several inputs and outputs, classifiers, float64.

    python -m tests.fuzz.kinds --cases 1000 [--first 5000] [--engine portable]
    python -m tests.fuzz.kinds --case 4711

Two of five cases compare ``gradient_graph`` with the file, the others a training step, as tests/fuzz/opsets.py does. A
graph is made from its number alone; its reference is the file itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime

from onnxtrain_sklearn import (
    Inputs,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    gradient_graph,
)
from onnxtrain_sklearn.exceptions import OnnxTrainError
from tests.fuzz.opsets import RATE, ROWS, Drawn, compare, main, make, refusal
from tests.fuzz.reference import File, in_double
from tests.helpers.environment import available_engines

FLOAT, BOOL, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64
WORDS = np.array(["ant", "bee", "cat"])
info = onnx.helper.make_tensor_value_info


class Kind(Drawn):
    """A graph in the making, of more kinds than :class:`Drawn`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.rng = random.Random(f"kind {number}")
        self.weights = 0
        self.gradient = self.rng.random() < 0.4
        if self.gradient:
            self.opset = max(11, self.opset)
        self.inputs = [info("X", FLOAT, ["N", *self.row])]
        self.rows = {"X": list(self.row)}
        self.heads: list[str] = []

    def weight(self, *shape: int) -> str:
        name = self.name_of_weight()
        self.initializers.append(self.array(name, *shape))
        return name

    def name_of_weight(self) -> str:
        self.weights += 1
        return f"W{self.weights}"

    def array(self, name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(0.7 * self.numbers.normal(size=shape).astype(np.float32), name)

    def emit(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node, and return its last output; onnxruntime crashes on a Loop with results that have no name."""
        names = ["" if operator != "Loop" else self.name() for _ in range(outputs - 1)] + [self.name()]
        self.nodes.append(make(operator, list(inputs), names, **attributes))
        return names[-1]

    def reshaped(self, value: str, sizes: list[int]) -> str:
        return self.emit("Reshape", value, self.constant(sizes, np.int64))

    # --- recurrent operators ---

    def recur(self) -> None:
        if self.rank != 3:
            return
        kind, direction = (
            self.rng.choice(["LSTM", "GRU", "RNN"]),
            self.rng.choice(["forward", "reverse", "bidirectional"]),
        )
        gates, d, h = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional"), self.rng.choice([1, 2])
        attributes: dict[str, Any] = {"hidden_size": h}
        if direction != "forward" or self.rng.random() < 0.3:
            attributes["direction"] = direction
        if kind == "GRU" and self.rng.random() < 0.5:
            attributes["linear_before_reset"] = self.rng.choice([0, 1])
        if self.rng.random() < 0.4:
            per = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
            smooth = ["Sigmoid", "Tanh", "Softsign", "HardSigmoid", "Softplus"]
            attributes["activations"] = [self.rng.choice(smooth) for _ in range(per * d)]
        if self.rng.random() < 0.15:
            attributes["clip"] = 0.9
        if kind == "LSTM" and self.rng.random() < 0.15:
            attributes["input_forget"] = 1
        width = self.shape[-1]
        steps = self.emit("Transpose", self.last, perm=[1, 0, 2])
        given = [steps, self.weight(d, gates * h, width), self.weight(d, gates * h, h)]
        bias = self.weight(d, 2 * gates * h) if self.rng.random() < 0.7 else ""
        states = [
            self.state(steps, width, d, h) if self.rng.random() < 0.4 else "" for _ in range(1 + (kind == "LSTM"))
        ]
        peepholes = [self.weight(d, 3 * h)] if kind == "LSTM" and self.rng.random() < 0.3 else []
        given += [bias, "", *states, *peepholes]
        while not given[-1]:
            given.pop()
        which = self.rng.choice([1, 1, 2, 2, *([3] if kind == "LSTM" else [])])
        out = self.emit(kind, *given, outputs=which, **attributes)
        if which == 1:  # (T, D, N, H)
            self.last = self.reshaped(self.emit("Transpose", out, perm=[2, 0, 1, 3]), [0, 0, d * h])
            self.shape = [self.shape[0], d * h]
        else:
            self.last = self.reshaped(self.emit("Transpose", out, perm=[1, 0, 2]), [0, d * h])
            self.shape = [d * h]

    def state(self, steps: str, width: int, d: int, h: int) -> str:
        """Return a first state (D, N, H), made of the first step."""
        first = self.emit("Gather", steps, self.constant([0], np.int64), axis=0)
        parts = [self.emit("MatMul", first, self.weight(width, h)) for _ in range(d)]
        return parts[0] if d == 1 else self.emit("Concat", *parts, axis=0)

    # --- bodies ---

    def layer(self, value: str, width: int, out: int, nodes: list[Any], held: list[Any]) -> str:
        """Append a layer to a body; its weights are there, or in the graph around it."""
        name = self.name_of_weight()
        (held if self.rng.random() < 0.5 else self.initializers).append(self.array(name, width, out))
        product, bent = self.name(), self.name()
        nodes.append(make("MatMul", [value, name], [product]))
        nodes.append(make(self.rng.choice(["Tanh", "Sigmoid", "Softsign", "Identity"]), [product], [bent]))
        return bent

    def branch(self) -> None:
        """Choose between two layers, by a constant or by the data."""
        width, out = self.shape[-1], self.rng.choice([2, 3])
        if self.rng.random() < 0.4:
            condition = self.constant(self.rng.random() < 0.5, bool)
        else:
            total = self.emit("ReduceSum", self.last, keepdims=0)
            zero = self.constant(0.0)
            condition = self.emit("Less", *((total, zero) if self.rng.random() < 0.5 else (zero, total)))
        graphs = []
        for _ in range(2):
            nodes: list[Any] = []
            held: list[Any] = []
            end = self.layer(self.last, width, out, nodes, held)
            result = info(end, FLOAT, ["N", *self.shape[:-1], out])
            graphs.append(onnx.helper.make_graph(nodes, "branch", [], [result], held))
        self.last = self.emit("If", condition, then_branch=graphs[0], else_branch=graphs[1])
        self.shape[-1] = out

    def loop(self) -> None:
        """Apply a layer so many times; take the last value, or all of them."""
        width, trips = self.shape[-1], self.rng.choice([1, 2, 3])
        declared = ["N", *self.shape]
        i, go, more, a = (self.name() for _ in range(4))
        nodes: list[Any] = []
        held: list[Any] = []
        end = self.layer(a, width, width, nodes, held)
        nodes.append(make("Identity", [go], [more]))
        outputs = [info(more, BOOL, []), info(end, FLOAT, declared)]
        scans = self.rank < 5 and self.rng.random() < 0.5
        if scans:
            all_of = self.name()
            nodes.append(make("Identity", [end], [all_of]))
            outputs.append(info(all_of, FLOAT, declared))
        body = onnx.helper.make_graph(
            nodes, "body", [info(i, INT64, []), info(go, BOOL, []), info(a, FLOAT, declared)], outputs, held
        )
        given = [self.constant(trips, np.int64), self.constant(True, bool), self.last]
        out = self.emit("Loop", *given, outputs=1 + scans, body=body)
        if scans:
            out = self.emit("Transpose", out, perm=[1, 0, *range(2, self.rank + 1)])
            self.shape = [trips, *self.shape]
        self.last = out

    def scan(self) -> None:
        """Go over the second axis, forward or backward, with a state."""
        if self.rank != 3 or self.opset < 9:
            return
        width = self.shape[-1]
        steps = self.emit("Transpose", self.last, perm=[1, 0, 2])
        axes = [self.constant([0], np.int64)] if self.opset >= 18 else []
        start = self.emit("ReduceMean", steps, *axes, keepdims=0,
                          **({} if axes else {"axes": [0]}))  # fmt: skip
        a, x, total, o = (self.name() for _ in range(4))
        nodes: list[Any] = []
        held: list[Any] = []
        end = self.layer(a, width, width, nodes, held)
        nodes += [make("Add", [end, x], [total]), make("Softsign", [total], [o])]
        declared = ["N", width]
        body = onnx.helper.make_graph(
            nodes, "body", [info(a, FLOAT, declared), info(x, FLOAT, declared)],
            [info(total, FLOAT, declared), info(o, FLOAT, declared)], held,
        )  # fmt: skip
        attributes: dict[str, Any] = {"num_scan_inputs": 1}
        if self.rng.random() < 0.5:
            attributes["scan_input_directions"] = [self.rng.choice([0, 1])]
        if self.rng.random() < 0.3:
            attributes["scan_output_directions"] = [self.rng.choice([0, 1])]
        names = [self.name(), self.name()]
        self.nodes.append(make("Scan", [start, steps], names, body=body, **attributes))
        if self.rng.random() < 0.5:
            self.last, self.shape = names[0], [width]
        else:
            self.last = self.emit("Transpose", names[1], perm=[1, 0, 2])

    # --- inputs and outputs ---

    def further(self) -> None:
        """Join another input to the value at hand."""
        name, width = f"X{len(self.inputs)}", self.rng.choice([1, 2])
        self.inputs.append(info(name, FLOAT, ["N", width]))
        self.rows[name] = [width]
        flat = self.emit("Flatten", self.last)
        own = self.emit("MatMul", name, self.weight(width, 2)) if self.rng.random() < 0.5 else name
        self.last = self.emit("Concat", *((flat, own) if self.rng.random() < 0.5 else (own, flat)), axis=1)
        self.shape = [int(np.prod(self.shape)) + (width if own == name else 2)]

    def head(self, name: str) -> str:
        """Add an output, and return its kind."""
        kind = self.rng.choice(["numbers", "two numbers", "softmax", "softmax", "logits", "sigmoid", "logit", "pair"])
        width = {"two numbers": 2, "softmax": 3, "logits": 3, "pair": 2}.get(kind, 1)
        size = int(np.prod(self.shape))
        more = [self.weight(width)] if self.opset < 11 or self.rng.random() < 0.7 else []
        ends = kind in ("numbers", "two numbers", "logits", "logit")
        score = name if ends else self.name()
        self.nodes.append(make("Gemm", [self.last, self.weight(size, width), *more], [score]))
        if not ends:
            axis = {} if kind == "sigmoid" or self.rng.random() < 0.3 else {"axis": 1}
            self.nodes.append(make("Sigmoid" if kind == "sigmoid" else "Softmax", [score], [name], **axis))
        self.heads.append(name)
        return kind

    def graph(self) -> tuple[onnx.ModelProto, dict[str, str]]:
        """Return the model, and the kinds of its outputs."""
        new = [self.recur, self.branch, self.loop, self.scan]
        old = [
            *(self.weigh, self.scale, self.activate, self.normalize, self.clip, self.pad, self.slice, self.reduce),
            *(self.squeeze, self.split, self.resize, self.pool, self.standardize, self.drop, self.call),
        ]
        for _ in range(self.rng.randint(1, 4)):
            self.rng.choice(new if self.rng.random() < 0.5 else old)()
        for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
            self.further()
        self.last = self.emit("Flatten", self.last)
        names = ["Y"] if self.rng.random() < 0.75 else ["Y", "Z"]
        kinds = {name: self.head(name) for name in names}
        widths = {"two numbers": 2, "softmax": 3, "logits": 3, "pair": 2}
        graph = onnx.helper.make_graph(
            self.nodes, "drawn", self.inputs,
            [info(name, FLOAT, ["N", widths.get(kind, 1)]) for name, kind in kinds.items()], self.initializers,
        )  # fmt: skip
        imports = [onnx.helper.make_opsetid("", self.opset)]
        imports += [onnx.helper.make_opsetid("own", 1)] if self.functions else []
        ir_version = 8 if self.functions or self.opset >= 13 else 4
        model = onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=imports, functions=self.functions)
        return model, kinds


# losses of the outputs of the file, in float64.


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def losses_of_rows(kind: str, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the loss of each row for an output as the file gives it."""
    if "number" in kind:
        return np.asarray(((scores.reshape(len(target), -1) - target.reshape(len(target), -1)) ** 2).mean(axis=1))
    if kind in ("logit", "sigmoid"):
        s = scores.ravel()
        if kind == "sigmoid":
            return np.asarray(-np.log(np.where(target == 1, s, 1 - s)))
        return np.asarray(np.logaddexp(0, np.where(target == 1, -s, s)))
    log_p = log_softmax(scores) if kind == "logits" else np.log(scores)
    return np.asarray(-log_p[np.arange(len(target)), target])


def probabilities(kind: str, scores: np.ndarray) -> np.ndarray:
    """Return what ``predict_proba`` gives for an output of the file."""
    if kind in ("logit", "sigmoid"):
        p = scores.ravel() if kind == "sigmoid" else 1 / (1 + np.exp(-scores.ravel().astype(np.float64)))
        return np.stack([1 - p, p], axis=1)
    return np.exp(log_softmax(scores.astype(np.float64))) if kind == "logits" else scores


# one case.


def run(number: int, engine: str | None = None) -> str:
    """Return "right", "refused ...", "wrong ...", "kink ..." or "unrun ..." for a case."""
    drawn = Kind(number)
    proto, kinds = drawn.graph()
    engine = engine or drawn.rng.choice(available_engines())
    feeds = {name: drawn.numbers.normal(size=(ROWS, *row)).astype(np.float32) for name, row in drawn.rows.items()}
    names = [f"W{i + 1}" for i in range(drawn.weights)]
    if drawn.rng.random() < 0.2:
        wide = in_double(proto)
        wide_feeds = {name: array.astype(np.float64) for name, array in feeds.items()}
        with suppress(Exception):  # not every operator has a kernel
            file = File(wide, names)
            file({**wide_feeds, **{name: file.held[name] for name in names}})
            proto, feeds = wide, wide_feeds
    try:
        if drawn.gradient:
            _give_total(drawn, proto)
        file = File(proto, names)
        known = {**feeds, **{name: file.held[name] for name in names}}
        outputs = dict(zip(file.outputs, file(known), strict=True))
    except Exception as error:
        return f"unrun {str(error)[:200]}"
    if drawn.gradient:
        return _gradient(drawn, proto, file, known, engine)
    return _training(drawn, proto, kinds, file, known, outputs, engine)


def _training(
    drawn: Kind, proto: onnx.ModelProto, kinds: dict[str, str], file: File, known: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray], engine: str,
) -> str:  # fmt: skip
    feeds = {name: known[name] for name in drawn.rows}
    targets, given = {}, {}
    for name, kind in kinds.items():
        if "number" in kind:
            noise = drawn.numbers.normal(size=outputs[name].shape)
            targets[name] = given[name] = (
                outputs[name] + noise if kind == "two numbers" else (outputs[name] + noise).ravel()
            )
        else:
            classes = 3 if kind in ("softmax", "logits") else 2
            targets[name] = np.arange(ROWS) % classes
            given[name] = WORDS[targets[name]] if drawn.rng.random() < 0.4 else targets[name]
    weights = drawn.numbers.randint(1, 4, size=ROWS).astype(float) if drawn.rng.random() < 0.3 else None
    shares = np.full(ROWS, 1 / ROWS) if weights is None else weights / weights.sum()

    def loss(arrays: list[np.ndarray]) -> float:
        found = dict(zip(file.outputs, arrays, strict=True))
        return float(sum(shares @ losses_of_rows(kind, found[n], targets[n]) for n, kind in kinds.items()))

    settings: dict[str, Any] = {"optimizer": "sgd", "learning_rate_init": RATE, "max_iter": 1, "batch_size": ROWS,
                                "engine": engine, "shuffle": False, "alpha": 0.0}  # fmt: skip
    X: Any = feeds["X"] if len(feeds) == 1 else Inputs(feeds)
    if len(kinds) > 1:
        named = {name: "squared_error" if "number" in kind else "log_loss" for name, kind in kinds.items()}
        estimator: Any = OrtGradientMultiOutput(proto, loss=named, **settings)
        y: Any = given
    else:
        (kind,), (y,) = kinds.values(), given.values()
        make_one: Any = OrtGradientRegressor if "number" in kind else OrtGradientClassifier
        estimator = make_one(proto, loss="squared_error" if "number" in kind else "log_loss", **settings)
    try:
        estimator.fit(X, y, **({} if weights is None else {"sample_weight": weights}))
    except OnnxTrainError as error:
        return refusal(error)
    start = loss([array.astype(np.float64) for array in outputs.values()])
    if not np.isfinite(start):
        return "unrun a probability of the file is zero"
    if not np.isclose(estimator.loss_curve_[0], start, rtol=1e-3, atol=1e-4):
        return f"wrong loss {estimator.loss_curve_[0]}, {start} by the file"
    trained = estimator.weights_
    names = [name for name in known if name not in feeds]
    moved = {n: trained[n].reshape(known[n].shape).astype(known[n].dtype) for n in names if n in trained}
    means = {node.input[1] for node in proto.graph.node if node.op_type == "Sub"}  # of an input: standardizes it
    gradients = {n: np.zeros(known[n].shape) for n in names if n not in means}  # of a branch that is never taken
    gradients |= {n: (known[n].astype(np.float64) - moved[n]) / RATE for n in moved}
    outcome = compare(file, known, loss, gradients, drawn.numbers)
    if outcome.startswith("wrong"):
        return outcome
    after = dict(zip(file.outputs, file({**known, **moved}), strict=True))
    return _predictions(estimator, X, kinds, after) or outcome


def _predictions(estimator: Any, X: Any, kinds: dict[str, str], after: dict[str, np.ndarray]) -> str:
    """Return what is wrong with the predictions of the trained weights; "" for nothing."""
    numbers = any("number" in kind for kind in kinds.values())
    several = len(kinds) > 1
    found = estimator.predict(X) if numbers else None
    labels = any("number" not in kind for kind in kinds.values())
    chances = estimator.predict_proba(X) if labels else None
    for name, kind in kinds.items():
        if "number" in kind:
            got, expected = (found[name] if several else found), after[name]
        else:
            got, expected = (chances[name] if several else chances), probabilities(kind, after[name])
        got = np.asarray(got).reshape(expected.shape)
        if not np.allclose(got, expected, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(expected).max())):
            return f"wrong predictions {name} of the trained weights"
    return ""


def _give_total(drawn: Kind, proto: onnx.ModelProto) -> None:
    """Add the sum of the numbers of the first output, each times a constant, as an output."""
    kind = proto.graph.output[0].type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    numbers = drawn.numbers.normal(size=(ROWS, kind.shape.dim[1].dim_value)).astype(dtype)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, "factors"))
    proto.graph.node.append(make("Mul", ["Y", "factors"], ["fuzz/product"]))
    proto.graph.node.append(make("ReduceSum", ["fuzz/product"], ["total"], keepdims=0))
    proto.graph.output.append(info("total", kind.elem_type, []))


def _gradient(drawn: Kind, proto: onnx.ModelProto, file: File, known: dict[str, np.ndarray], engine: str) -> str:
    """Compare ``gradient_graph`` of the sum with the file."""
    feeds = {name: known[name] for name in drawn.rows}
    own = [t.name for t in proto.graph.initializer if t.name in known]
    wrt = drawn.rng.sample([*own, *feeds], drawn.rng.randint(1, len(own) + len(feeds)))
    expected = file(known)
    try:
        graph = gradient_graph(proto, wrt=wrt, of="total", engine=engine)
    except OnnxTrainError as error:
        return refusal(error)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    ready = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = dict(zip([v.name for v in ready.get_outputs()], ready.run(None, feeds), strict=True))
    for name, array in zip(file.outputs, expected, strict=True):
        if not np.allclose(found[name], array, rtol=1e-3, atol=1e-4):
            return f"wrong output {name} of the gradient graph: {found[name]}, {array} by the file"
    gradients = {}
    for name in wrt:
        gradient = found[f"{name}_grad"]
        if gradient.shape != known[name].shape:
            return f"wrong shape {gradient.shape} of the gradient of {name}"
        gradients[name] = gradient.astype(np.float64)
    at = file.outputs.index("total")
    total: Callable[[list[np.ndarray]], float] = lambda arrays: float(arrays[at])  # noqa: E731
    return compare(file, known, total, gradients, drawn.numbers)


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.kinds", __doc__))
