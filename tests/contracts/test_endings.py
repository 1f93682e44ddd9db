"""Contract of every way in which a graph ends in probabilities: training begins from what the graph gives itself.

The reference knows nothing of activations: it computes the graph's own output by the ONNX reference implementation in
float64, takes the cross-entropy of these probabilities, and differentiates it by central differences.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning, UnsupportedOperatorError
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
N = 24
X = rng.normal(size=(N, 4)).astype(np.float32)
SIDE = X @ np.array([1.0, -1.0, 0.5, 0.0])
TWO = (SIDE + rng.normal(size=N) > 0).astype(int)
THREE = np.digitize(SIDE + rng.normal(size=N), [-0.5, 0.8])
LABELS = np.c_[TWO, 1 - TWO, X[:, 0] > 0].astype(int)
COUNTS = np.round(np.exp(SIDE / 2)) + 1.0

CONSTANTS = """
    one = Constant <value_float = 1.0> () zero = Constant <value_float = 0.0> () two = Constant <value_float = 2.0> ()
    minus = Constant <value_float = -1.0> () half = Constant <value_float = 0.5> ()
    low = Constant <value_float = 1e-6> () high = Constant <value_float = 0.999999> ()
    tiny = Constant <value_float = 1e-9> ()
    i0 = Constant <value_ints = [0]> () i1 = Constant <value_ints = [1]> () i2 = Constant <value_ints = [2]> ()
    i12 = Constant <value_ints = [1, 2]> () flat = Constant <value_ints = [-1]> () s1 = Constant <value_int = 1> ()
    rows = Constant <value_ints = [-1, 1]> () no = Constant <value = bool {0}> () s0 = Constant <value_int = 0> ()
    sixth = Constant <value_float = 0.16666667> ()
"""

ONE = {  # of one score z (N, 1): the nodes, and the output
    "sigmoid": ("p = Sigmoid(z)", "[N,1] p"),
    "Identity": ("a = Sigmoid(z) b = Identity(a) p = Identity(b)", "[N,1] p"),
    "Squeeze": ("a = Sigmoid(z) p = Squeeze(a, i1)", "[N] p"),
    "Reshape to a vector": ("a = Sigmoid(z) p = Reshape(a, flat)", "[N] p"),
    "Reshape to a column": ("f = Squeeze(z, i1) a = Sigmoid(f) p = Reshape(a, rows)", "[N,1] p"),
    "Flatten": ("a = Sigmoid(z) b = Unsqueeze(a, i2) p = Flatten(b)", "[N,1] p"),
    "Unsqueeze": ("a = Sigmoid(z) p = Unsqueeze(a, i12)", "[N,1,1,1] p"),
    "Transpose": ("a = Sigmoid(z) b = Unsqueeze(a, i2) p = Transpose <perm = [0, 2, 1]> (b)", "[N,1,1] p"),
    "Clip": ("a = Sigmoid(z) p = Clip(a, low, high)", "[N,1] p"),
    "Max and Min": ("a = Sigmoid(z) b = Max(a, low) p = Min(b, high)", "[N,1] p"),
    "Cast": ("d = Cast <to = 11> (z) a = Sigmoid(d) p = Cast <to = 1> (a)", "[N,1] p"),
    "Mul": ("a = Sigmoid(z) b = Mul(a, one) p = Mul(one, b)", "[N,1] p"),
    "Div": ("a = Sigmoid(z) p = Div(a, one)", "[N,1] p"),
    "Add and Sub": ("a = Sigmoid(z) b = Add(a, zero) p = Sub(b, zero)", "[N,1] p"),
    "Pow": ("a = Sigmoid(z) p = Pow(a, one)", "[N,1] p"),
    "Dropout": ("a = Sigmoid(z) p = Dropout(a, half, no)", "[N,1] p"),
    "1 / (1 + exp(-z))": ("a = Neg(z) e = Exp(a) b = Add(e, one) p = Reciprocal(b)", "[N,1] p"),
    "one over 1 + exp(-z)": ("a = Mul(z, minus) e = Exp(a) b = Add(one, e) p = Div(one, b)", "[N,1] p"),
    "exp(z) / (1 + exp(z))": ("e = Exp(z) b = Add(one, e) p = Div(e, b)", "[N,1] p"),
    "1 - sigmoid": ("a = Sigmoid(z) p = Sub(one, a)", "[N,1] p"),
    "sigmoid of -z": ("a = Sub(zero, z) p = Sigmoid(a)", "[N,1] p"),
    "1 + -sigmoid": ("a = Sigmoid(z) b = Neg(a) p = Add(b, one)", "[N,1] p"),
    "log of sigmoid": ("a = Sigmoid(z) p = Log(a)", "[N,1] p"),
    "log of sigmoid and epsilon": ("a = Sigmoid(z) b = Add(a, tiny) p = Log(b)", "[N,1] p"),
    "-softplus(-z)": ("a = Neg(z) b = Softplus(a) p = Neg(b)", "[N,1] p"),
    "Concat": ("a = Sigmoid(z) b = Sub(one, a) p = Concat <axis = 1> (b, a)", "[N,2] p"),
    "Concat of the last axis": ("a = Sigmoid(z) b = Sub(one, a) p = Concat <axis = -1> (b, a)", "[N,2] p"),
    "Concat the other way": ("a = Sigmoid(z) b = Sub(one, a) p = Concat <axis = 1> (a, b)", "[N,2] p"),
    "Concat of 1 + -p": ("a = Sigmoid(z) m = Neg(a) b = Add(m, one) p = Concat <axis = 1> (b, a)", "[N,2] p"),
    "Concat of -1 * p": ("a = Sigmoid(z) m = Mul(a, minus) b = Add(one, m) p = Concat <axis = 1> (b, a)", "[N,2] p"),
    "Concat of sigmoids": ("m = Neg(z) b = Sigmoid(m) a = Sigmoid(z) p = Concat <axis = 1> (b, a)", "[N,2] p"),
    "Concat of reshaped": (
        "a = Sigmoid(z) f = Squeeze(a, i1) b = Sub(one, f) c = Unsqueeze(b, i1) d = Unsqueeze(f, i1) "
        "q = Concat <axis = 1> (c, d) p = Identity(q)",
        "[N,2] p",
    ),
    "Concat of logarithms": (
        "a = Sigmoid(z) b = Sub(one, a) c = Log(b) d = Log(a) p = Concat <axis = 1> (c, d)",
        "[N,2] p",
    ),
    "Clip of Concat": ("a = Sigmoid(z) b = Sub(one, a) c = Concat <axis = 1> (b, a) p = Clip(c, low, high)", "[N,2] p"),
    "HardSigmoid": ("a = HardSigmoid(z) p = Identity(a)", "[N,1] p"),
    "(tanh + 1) / 2": ("a = Tanh(z) b = Add(a, one) p = Div(b, two)", "[N,1] p"),
    "product of sigmoids": ("a = Sigmoid(z) b = Mul(z, half) c = Sigmoid(b) p = Mul(a, c)", "[N,1] p"),
    "1 - exp(-exp(z))": ("e = Exp(z) m = Neg(e) f = Exp(m) p = Sub(one, f)", "[N,1] p"),
    "normal distribution": ("h = Mul(z, half) a = Erf(h) b = Add(a, one) p = Mul(b, half)", "[N,1] p"),
    "mean of sigmoids": ("a = Sigmoid(z) b = Mul(z, half) c = Sigmoid(b) p = Mean(a, c)", "[N,1] p"),
}
PAIR = {  # of two scores z (N, 2)
    "softmax": ("p = Softmax(z)", "[N,2] p"),
    "column by Gather": ("a = Softmax(z) p = Gather <axis = 1> (a, i1)", "[N,1] p"),
    "flat column": ("a = Softmax(z) p = Gather <axis = 1> (a, s1)", "[N] p"),
    "first column": ("a = Softmax(z) p = Gather <axis = 1> (a, s0)", "[N] p"),
    "column by Slice": ("a = Softmax(z) p = Slice(a, i1, i2, i1)", "[N,1] p"),
}
MANY = {  # of three scores z (N, 3)
    "softmax": ("p = Softmax <axis = 1> (z)", "[N,3] p"),
    "softmax of the last axis": ("p = Softmax(z)", "[N,3] p"),
    "Unsqueeze": ("a = Softmax(z) p = Unsqueeze(a, i12)", "[N,1,1,3] p"),
    "softmax of an image": ("u = Unsqueeze(z, two_three) p = Softmax <axis = 1> (u)", "[N,3,1,1] p"),
    "softmax, Flatten": ("u = Unsqueeze(z, two_three) a = Softmax <axis = 1> (u) p = Flatten(a)", "[N,3] p"),
    "softmax of a sequence": ("u = Unsqueeze(z, i0) a = Softmax <axis = 2> (u) p = Squeeze(a, i0)", "[N,3] p"),
    "LogSoftmax": ("p = LogSoftmax(z)", "[N,3] p"),
    "log of softmax": ("a = Softmax(z) p = Log(a)", "[N,3] p"),
    "log of softmax and epsilon": ("a = Softmax(z) b = Add(tiny, a) p = Log(b)", "[N,3] p"),
    "exp of LogSoftmax": ("a = LogSoftmax(z) p = Exp(a)", "[N,3] p"),
    "exp(z) / sum": ("e = Exp(z) s = ReduceSum(e, i1) p = Div(e, s)", "[N,3] p"),
    "exp(z) / sum, twice": ("e = Exp(z) f = Exp(z) s = ReduceSum(f, i1) p = Div(e, s)", "[N,3] p"),
    "exp(z) / reshaped sum": (
        "e = Exp(z) s = ReduceSum <keepdims = 0> (e, i1) t = Unsqueeze(s, i1) p = Div(e, t)",
        "[N,3] p",
    ),
    "exp(z) times reciprocal": ("e = Exp(z) s = ReduceSum(e, i1) r = Reciprocal(s) p = Mul(e, r)", "[N,3] p"),
    "exp(z - max) / sum": (
        "m = ReduceMax(z, i1) d = Sub(z, m) e = Exp(d) s = ReduceSum(e, i1) p = Div(e, s)",
        "[N,3] p",
    ),
    "exp(z) / (sum + epsilon)": ("e = Exp(z) s = ReduceSum(e, i1) t = Add(s, tiny) p = Div(e, t)", "[N,3] p"),
    "exp(z - logsumexp)": ("l = ReduceLogSumExp(z, i1) d = Sub(z, l) p = Exp(d)", "[N,3] p"),
    "z - log(sum(exp(z)))": ("e = Exp(z) s = ReduceSum(e, i1) l = Log(s) p = Sub(z, l)", "[N,3] p"),
    "sigmoids over their sum": ("a = Sigmoid(z) s = ReduceSum(a, i1) p = Div(a, s)", "[N,3] p"),
    "sigmoids over their norm": (
        "a = Sigmoid(z) s = ReduceL1(a, i1) b = Clip(s, tiny) f = Shape(a) e = Expand(b, f) p = Div(a, e)",
        "[N,3] p",
    ),
    "LpNormalization": ("a = Sigmoid(z) p = LpNormalization <axis = 1, p = 1> (a)", "[N,3] p"),
    "softmax over its sum": ("a = Softmax(z) s = ReduceSum(a, i1) p = Div(a, s)", "[N,3] p"),
    "softplus over its sum": ("a = Softplus(z) s = ReduceSum(a, i1) p = Div(a, s)", "[N,3] p"),
    "Clip": ("a = Softmax(z) p = Clip(a, low)", "[N,3] p"),
    "temperature": ("t = Div(z, two) p = Softmax(t)", "[N,3] p"),
    "mean of two": ("a = Softmax(z) h = Mul(z, half) b = Softmax(h) s = Add(a, b) p = Div(s, two)", "[N,3] p"),
    "Mean": ("a = Softmax(z) h = Mul(z, half) b = Softmax(h) p = Mean(a, b)", "[N,3] p"),
    "ReduceMean of a stack": (
        "a = Softmax(z) h = Mul(z, half) b = Softmax(h) c = Unsqueeze(a, i0) d = Unsqueeze(b, i0) "
        "s = Concat <axis = 0> (c, d) p = ReduceMean <keepdims = 0> (s, i0)",
        "[N,3] p",
    ),
    "log of a mean": ("a = Softmax(z) h = Mul(z, half) b = Softmax(h) m = Mean(a, b) p = Log(m)", "[N,3] p"),
    "mixed with a prior": ("a = Softmax(z) b = Mul(a, half) p = Add(b, sixth)", "[N,3] p"),
}
SEVERAL = {  # three labels
    "sigmoids": ("p = Sigmoid(z)", "[N,3] p"),
    "Clip": ("a = Sigmoid(z) p = Clip(a, low, high)", "[N,3] p"),
    "Unsqueeze": ("a = Sigmoid(z) p = Unsqueeze(a, i1)", "[N,1,3] p"),
    "log of sigmoids": ("a = Sigmoid(z) p = Log(a)", "[N,3] p"),
    "HardSigmoid": ("p = HardSigmoid(z)", "[N,3] p"),
    "means": ("a = Sigmoid(z) h = Mul(z, half) b = Sigmoid(h) p = Mean(a, b)", "[N,3] p"),
}
MEANS = {  # of a regressor of counts
    "Exp": ("p = Exp(z)", "[N,1] p"),
    "Squeeze of Exp": ("a = Exp(z) p = Squeeze(a, i1)", "[N] p"),
    "Softplus": ("p = Softplus(z)", "[N,1] p"),
    "Softplus and epsilon": ("a = Softplus(z) b = Add(a, low) p = Reshape(b, flat)", "[N] p"),
    "sigmoid": ("a = Sigmoid(z) p = Mul(a, two)", "[N,1] p"),
    "square": ("a = Add(z, two) p = Mul(a, a)", "[N,1] p"),
    "Clip": ("a = Add(z, two) p = Clip(a, low)", "[N,1] p"),
    "Relu": ("a = Add(z, two) b = Relu(a) p = Add(b, low)", "[N,1] p"),
}


def _of_classes(p: np.ndarray, y: np.ndarray) -> float:
    p = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
    return float(-np.mean(np.log(p[np.arange(N), y])))


def _of_labels(p: np.ndarray, y: np.ndarray) -> float:
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def _poisson(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(p[:, 0] - y * np.log(p[:, 0])))


def _gamma(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(np.log(p[:, 0]) + y / p[:, 0]))


Case = tuple[dict[str, tuple[str, str]], int, np.ndarray, str, Callable[[np.ndarray, np.ndarray], float]]
TASKS: dict[str, Case] = {
    "one score": (ONE, 1, TWO, "log_loss", _of_classes),
    "two scores": (PAIR, 2, TWO, "log_loss", _of_classes),
    "classes": (MANY, 3, THREE, "log_loss", _of_classes),
    "labels": (SEVERAL, 3, LABELS, "log_loss", _of_labels),
    "poisson": (MEANS, 1, COUNTS, "poisson", _poisson),
    "gamma": (MEANS, 1, COUNTS, "gamma", _gamma),
}
CASES = [(task, name) for task, case in TASKS.items() for name in case[0]]
IDS = [f"{task}: {name}" for task, name in CASES]


@cache
def graph_with_ending(task: str, name: str) -> onnx.ModelProto:
    """Return a linear model with this ending."""
    tail, output = TASKS[task][0][name]
    k = TASKS[task][1]
    extra = "two_three = Constant <value_ints = [2, 3]> ()"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[N,4] X) => (float{output}) '
        f"{{ {CONSTANTS} {extra} z = Gemm(X, W, B) {tail} }}"
    )
    draw = np.random.RandomState(1)
    for weight, array in (("W", draw.normal(size=(4, k)) * 0.3), ("B", draw.normal(size=k) * 0.1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), weight))
    return model


def estimator_of_ending(task: str, model: Any, **settings: Any) -> Any:
    kind = OrtGradientRegressor if task in ("poisson", "gamma") else OrtGradientClassifier
    return kind(model, loss=TASKS[task][3], optimizer=SGD(), batch_size=N, max_iter=1, random_state=0, **settings)


def own(task: str, name: str) -> np.ndarray:
    """Return what onnxruntime computes of the graph as it was given, a column each."""
    session = onnxruntime.InferenceSession(
        graph_with_ending(task, name).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return ending_probabilities(task, name, session.run(None, {"X": X})[0])


def ending_probabilities(task: str, name: str, output: np.ndarray) -> np.ndarray:
    columns = np.asarray(output).reshape(N, -1)
    return np.exp(columns) if (columns < 0).any() and task not in ("poisson", "gamma") else columns


@cache
def reference_slopes(task: str, name: str) -> dict[str, np.ndarray]:
    """Return the gradient of the loss of the graph's own output, by central differences in float64."""
    loss, y = TASKS[task][4], TASKS[task][2]
    model = onnx.ModelProto()
    model.CopyFrom(graph_with_ending(task, name))
    del model.graph.initializer[:]
    for weight in ("W", "B"):
        model.graph.input.append(onnx.helper.make_tensor_value_info(weight, onnx.TensorProto.DOUBLE, None))
    for node in model.graph.node:  # constants and casts stay in float64
        for attribute in node.attribute:
            if node.op_type == "Cast":
                attribute.i = onnx.TensorProto.DOUBLE
            elif attribute.name in ("value_float", "value_floats"):
                numbers = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                array = np.array(numbers if attribute.floats else numbers[0], np.float64)
                attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))
    evaluator = ReferenceEvaluator(model)
    weights = {
        w.name: onnx.numpy_helper.to_array(w).astype(float) for w in graph_with_ending(task, name).graph.initializer
    }

    def value(changed: dict[str, np.ndarray]) -> float:
        with np.errstate(all="ignore"):
            output = evaluator.run(None, {"X": X.astype(np.float64), **changed})[0]
        return loss(ending_probabilities(task, name, output), y)

    slopes = {}
    for weight, array in weights.items():
        slopes[weight] = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[at] = 1e-3  # the Erf of the reference is one of float32
            high, low = (value({**weights, weight: array + sign * step}) for sign in (1, -1))
            slopes[weight][at] = (high - low) / 2e-3
    return slopes


def covered_by_ending(task, name, engine=None):
    """Return the task with the engine, and the operators of an ending."""
    return {(task, engine), *re.findall(r"[A-Z]\w+(?= ?[<(])", TASKS[task][0][name][0])}


@pytest.mark.thinned(by=covered_by_ending)
@pytest.mark.parametrize(("task", "name"), CASES, ids=IDS)
def test_untrained_estimator_predicts_graph_output(task, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fitted = estimator_of_ending(task, graph_with_ending(task, name), learning_rate_init=0).fit(X, TASKS[task][2])
    expected = own(task, name)
    if task in ("poisson", "gamma"):
        assert_allclose(fitted.predict(X), expected[:, 0], rtol=1e-5)
        return
    found = fitted.predict_proba(X)
    assert_allclose(found[:, -expected.shape[1] :], expected, rtol=0, atol=3e-6)
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(["probabilities"], {"X": X})[0][:, -expected.shape[1] :], expected, rtol=0, atol=3e-6)


@pytest.mark.proof
@pytest.mark.thinned(by=covered_by_ending)
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("task", "name"), CASES, ids=IDS)
def test_the_gradient_is_that_of_the_loss_of_the_graphs_own_output(task, name, engine):
    trained = estimator_of_ending(task, graph_with_ending(task, name), learning_rate_init=1.0, engine=engine)
    if engine == "ort-training" and {"HardSigmoid", "Mean"} & {
        node.op_type for node in graph_with_ending(task, name).graph.node
    }:
        with pytest.raises(UnsupportedOperatorError):
            trained.fit(X, TASKS[task][2])
        return
    fitted = trained.fit(X, TASKS[task][2])
    before = {w.name: onnx.numpy_helper.to_array(w) for w in graph_with_ending(task, name).graph.initializer}
    for weight, slope in reference_slopes(task, name).items():
        assert_allclose(before[weight] - fitted.weights_[weight], slope, rtol=1e-3, atol=2e-5)
