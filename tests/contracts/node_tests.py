"""ONNX's own tests of its nodes, as graphs whose gradients are compared with central differences.

A test becomes a graph that ends in one number: all its floating-point outputs under random weights, summed. The
gradient of an engine with respect to each floating-point input is compared along random directions with central
differences of the same graph in float64. They are taken a little beside the point of the test, since that is often one
where no derivative exists: zeros of Relu, ties of Max, whole numbers of Floor.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.defs
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn._gradient.engine import gradient_graph
from onnxtrain_sklearn._gradient.ort_training import engine as ort
from onnxtrain_sklearn._graph.versions import MAX_OPSET, MIN_OPSET
from onnxtrain_sklearn._runtime import capabilities
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.contracts.references import Erf, Gelu

FLOATS = {TensorProto.FLOAT16: np.float16, TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}
NARROW = {TensorProto.BFLOAT16} | {kind for name, kind in TensorProto.DataType.items() if re.match("FLOAT[4-8]E", name)}
LOSS = "node_test/loss"
FAILS = "the graph with gradients does not run"
RIGHT, REFUSED, UNCHECKED, WRONG = "right", "refused", "unchecked", "wrong"


SLOW = {"test_averagepool_3d_default", "test_lppool_3d_default"}
"""Half a minute each, in the reference, for cubes of 32 numbers an edge; smaller ones are among the tests."""


@dataclass(frozen=True)
class NodeTest:
    """A test of the onnx package: a model, what it is fed, and what it has to give."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @property
    def wrt(self) -> list[str]:
        """Return the inputs that are tensors of floating-point numbers, of any width."""
        return [i.name for i in self.model.graph.input if element(i) in {*FLOATS, *NARROW} and i.name in self.inputs]

    @property
    def of(self) -> list[str]:
        """Return the outputs that are tensors of floating-point numbers."""
        kinds = {o.name: element(o) for o in self.model.graph.output if o.name in self.outputs}
        floats = [name for name, kind in kinds.items() if kind in {*FLOATS, *NARROW}]
        return [name for name in floats if np.isfinite(_number(self.outputs[name])).all()] or floats


def element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0


@functools.cache
def node_tests() -> dict[str, list[NodeTest]]:
    """Return the tests that have a floating-point input and output, by operator."""
    found: dict[str, list[NodeTest]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        loaded = {test.name: test for test in load_model_tests(kind="node")}
    for test in loaded.values():
        plain = loaded.get(re.sub("_expanded.*", "", test.name), test)
        one = _as_test(test)
        if one.wrt and one.of and one.name not in SLOW:
            found.setdefault(plain.model.graph.node[0].op_type, []).append(one)
    return found


def _as_test(test: Any) -> NodeTest:
    inputs, outputs = test.data_sets[0]
    graph = test.model.graph
    return NodeTest(
        test.name,
        test.model,
        dict(zip([i.name for i in graph.input], map(_plain, inputs), strict=False)),
        dict(zip([o.name for o in graph.output], map(_plain, outputs), strict=False)),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


# --- the graph that ends in one number ---


def with_loss(test: NodeTest, opset: int, *, constants: bool = False) -> onnx.ModelProto:
    """Return the model with the weighted sum of its outputs as a further output; the weights are further inputs.

    With ``constants`` what is no floating-point number is an initializer, as in the graphs that exporters write.
    """
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    _stamp(model, opset)
    graph, terms = model.graph, []
    for output in [o for o in graph.output if o.name in test.of]:
        kind, name = wide_kind(output), f"{output.name}/"
        shape = np.shape(test.outputs[output.name])
        graph.input.append(helper.make_tensor_value_info(f"{name}weights", kind, shape))
        graph.node.extend(
            [
                helper.make_node("Cast", [output.name], [f"{name}wide"], to=kind),
                helper.make_node("Mul", [f"{name}wide", f"{name}weights"], [f"{name}weighted"]),
                helper.make_node("ReduceSum", [f"{name}weighted"], [f"{name}sum"], keepdims=0),
                helper.make_node("Cast", [f"{name}sum"], [f"{name}term"], to=TensorProto.FLOAT),
            ]
        )
        terms.append(f"{name}term")
    graph.node.append(helper.make_node("Sum" if len(terms) > 1 else "Identity", terms, [LOSS]))
    graph.output.append(helper.make_tensor_value_info(LOSS, TensorProto.FLOAT, []))
    if constants:
        _fix(test, graph)
    return model


def _stamp(model: onnx.ModelProto, opset: int) -> None:
    others = [o for o in model.opset_import if o.domain not in ("", "ai.onnx")]
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", opset), *others])
    model.ir_version = 10


def _fix(test: NodeTest, graph: onnx.GraphProto) -> None:
    arrays = {n: v for n, v in test.inputs.items() if isinstance(v, np.ndarray) and v.dtype.kind in "iub"}
    kept = [i for i in graph.input if i.name not in arrays]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())


def wide_kind(output: onnx.ValueInfoProto) -> int:
    return TensorProto.DOUBLE if element(output) == TensorProto.DOUBLE else TensorProto.FLOAT


def weights(test: NodeTest) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(test.name))
    outputs = {o.name: o for o in test.model.graph.output}
    return {
        f"{name}/weights": rng.normal(size=np.shape(test.outputs[name])).astype(FLOATS[wide_kind(outputs[name])])
        for name in test.of
    }


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all floating-point numbers in float64, those of its attributes and subgraphs too."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _double_graph(result.graph)
    return result


def _double_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if element(value) in FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _double_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in FLOATS:
                attribute.i = TensorProto.DOUBLE
            if attribute.type == onnx.AttributeProto.TENSOR:
                _double_tensor(attribute.t)
            for subgraph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                _double_graph(subgraph)


def _double_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def double(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f" else value


# --- how it is run ---

Run: TypeAlias = Callable[[dict[str, Any], list[str]], list[Any]]


def session(model: onnx.ModelProto) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in run.get_inputs()}
    return lambda feeds, outputs: run.run(outputs, {n: copied(v) for n, v in feeds.items() if n in names})


def copied(value: Any) -> Any:
    """BatchNormalization writes into what it is fed."""
    return value.copy() if isinstance(value, np.ndarray) else value


def reference(model: onnx.ModelProto) -> Run:
    run = ReferenceEvaluator(model, new_ops=[Erf, Gelu])
    names = {i.name for i in model.graph.input}
    return lambda feeds, outputs: run.run(outputs, {n: v for n, v in feeds.items() if n in names})


@dataclass(frozen=True)
class Forward:
    """What computes a graph as its test expects, and the steps that it is precise enough for."""

    run: Run
    double: bool

    def __call__(self, feeds: dict[str, Any], outputs: list[str]) -> list[Any]:
        return self.run(doubles(feeds) if self.double else feeds, outputs)

    @property
    def steps(self) -> tuple[float, ...]:
        return (1e-6, 1e-5, 1e-4, 1e-3, 1e-2) if self.double else (3e-3, 1e-2, 3e-2)


def forward(test: NodeTest, model: onnx.ModelProto) -> Forward | None:
    """Return what runs the graph, in float64 where that can be, and gives what the test expects."""
    for graph, double in ((in_double(model), True), (model, False)):
        for start in (session, reference):
            with contextlib.suppress(Exception):
                run = Forward(start(graph), double)
                if _gives(run({**test.inputs, **weights(test)}, test.of), [test.outputs[name] for name in test.of]):
                    return run
    return None


def _gives(values: list[Any], wanted: list[Any]) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.allclose(_number(a), _number(b), 1e-2, 1e-3, equal_nan=True)
        for a, b in zip(values, wanted, strict=True)
    )


def _number(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def doubles(feeds: dict[str, Any]) -> dict[str, Any]:
    return {n: v.astype(np.float64) if getattr(v, "dtype", np.dtype(int)).kind == "f" else v for n, v in feeds.items()}


# --- the comparison ---


def points(test: NodeTest, run: Forward) -> Iterator[dict[str, Any]]:
    """Yield points a little beside that of the test where the graph has outputs of the same shapes, then that point."""
    shapes = [np.shape(test.outputs[name]) for name in test.of]
    for seed, sizes in enumerate((1, 1, -1, -1, 0, 0)):
        feeds = {n: moved(v, seed, sizes) if n in test.wrt else v for n, v in test.inputs.items()}
        feeds |= weights(test)
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            *values, loss = run(feeds, [*test.of, LOSS])
            again = run(feeds, [LOSS])[0]  # what is drawn at random is not the same twice
            if [np.shape(v) for v in values] == shapes and np.isfinite(loss) and loss == again:
                yield feeds
    yield {**test.inputs, **weights(test)}


def moved(value: np.ndarray, seed: int, sizes: int) -> np.ndarray:
    """Move every number by about a hundredth; a single whole number may tell a size, and goes the way of ``sizes``."""
    if value.size == 1 and value.item() == int(value.item()):
        return np.asarray(value + sizes * 0.01).astype(value.dtype)
    rng = np.random.default_rng(seed)
    step = 0.01 * rng.uniform(0.5, 1, value.shape) * rng.choice([-1, 1], value.shape)
    return np.asarray(value + step).astype(value.dtype)


def slope(run: Forward, feeds: dict[str, Any], name: str, direction: np.ndarray, tolerance: float) -> float | None:
    """Return the central difference of the first two steps that agree, None where no two do: there is no derivative."""
    last = math.nan
    for step in run.steps:
        found = difference(run, feeds, name, direction, step)
        if abs(found - last) <= tolerance / 2:
            return last
        last = found
    return None


def difference(run: Forward, feeds: dict[str, Any], name: str, direction: np.ndarray, step: float) -> float:
    own = doubles(feeds) if run.double else feeds
    ends = [np.asarray(own[name] + k * step * direction).astype(own[name].dtype) for k in (-1, 1)]
    try:
        losses = [float(run({**own, name: end}, [LOSS])[0]) for end in ends]
    except Exception:  # another shape, beside a tie of Unique
        return math.nan
    return (losses[1] - losses[0]) / (2 * step)


def opset_of(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 18)


def stamped(test: NodeTest, engine: str) -> int:
    """Return the opset of the test, or the nearest one that the engine takes where its nodes have the same settings."""
    own = opset_of(test.model)
    least, most = (ort.OPSETS[0], ort.OPSETS[-1]) if engine == "ort-training" else (MIN_OPSET, MAX_OPSET)
    other = min(max(own, least), most, capabilities.limits().opset)
    if other == own:
        return own
    with contextlib.suppress(Exception):
        onnx.checker.check_model(with_loss(test, other), full_check=True)
        return other
    return own


def outcomes(test: NodeTest, engine: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each input what an engine makes of it, and the reason."""
    opset = stamped(test, engine)
    run = forward(test, with_loss(test, opset))
    whole = outcome(test, with_loss(test, opset), test.wrt, engine, run)
    if whole[0] == RIGHT:
        yield from ((name, *whole) for name in test.wrt)
        return
    for name in test.wrt:
        result = outcome(test, with_loss(test, opset), [name], engine, run) if len(test.wrt) > 1 else whole
        if result[0] == REFUSED:
            result = outcome(test, with_loss(test, opset, constants=True), [name], engine, run)
        yield (name, *result)


def outcome(
    test: NodeTest, model: onnx.ModelProto, wrt: list[str], engine: str, run: Forward | None
) -> tuple[str, str]:
    try:
        graph = gradient_graph(model, wrt=wrt, of=LOSS, engine=engine)
    except (UnsupportedOperatorError, ModelError) as error:
        return REFUSED, str(error)
    if run is None or any(isinstance(v, np.ndarray) and v.dtype.isbuiltin != 1 for v in test.inputs.values()):
        return UNCHECKED, "nothing computes what the test expects"
    found = (UNCHECKED, "")
    for feeds in points(test, run):
        found = at_point(model, graph, wrt, run, feeds)
        if found[0] == RIGHT:
            break
        if found[0] == WRONG and not found[1].startswith(FAILS):
            break
    return found


def at_point(
    model: onnx.ModelProto, graph: onnx.ModelProto, wrt: list[str], run: Forward, feeds: dict[str, Any]
) -> tuple[str, str]:
    """Compare the gradients at one point."""
    try:
        loss, *gradients = gradient_of(model, graph)(feeds, [LOSS, *(f"{name}_grad" for name in wrt)])
    except Exception as error:
        return (WRONG, f"{FAILS}: {error}") if runs(model, feeds) else (UNCHECKED, "this runtime cannot run it")
    half, wanted = has(model, TensorProto.FLOAT16), float(run(feeds, [LOSS])[0])
    if not np.allclose(loss, wanted, *([1e-2] * 2 if half else [1e-3] * 2), equal_nan=True):
        return UNCHECKED, f"the runtime computes other values: {float(loss):.6g} for {wanted:.6g}"
    results = [compared(run, feeds, name, g, half=half) for name, g in zip(wrt, gradients, strict=True)]
    return next((r for kind in (WRONG, UNCHECKED) for r in results if r[0] == kind), (RIGHT, ""))


def gradient_of(model: onnx.ModelProto, graph: onnx.ModelProto) -> Run:
    """Return what runs the graph with gradients: onnxruntime, unless it cannot run the graph without them either."""
    try:
        return session(graph)
    except Exception:
        if runs(model, {}):
            raise
        return reference(graph)


def runs(model: onnx.ModelProto, feeds: dict[str, Any]) -> bool:
    """Whether onnxruntime takes the graph without gradients, and runs it where it is fed."""
    with contextlib.suppress(Exception):
        run = session(model)
        return not feeds or bool(run(feeds, [LOSS]))
    return False


def has(model: onnx.ModelProto, kind: int) -> bool:
    return any(element(value) == kind for value in (*model.graph.input, *model.graph.output))


def compared(run: Forward, feeds: dict[str, Any], name: str, gradient: np.ndarray, *, half: bool) -> tuple[str, str]:
    if gradient.shape != feeds[name].shape or gradient.dtype != feeds[name].dtype:
        return WRONG, f"{gradient.dtype}{gradient.shape} is the gradient of {feeds[name].dtype}{feeds[name].shape}"
    if not gradient.size:
        return RIGHT, ""
    direction = direction_in(gradient.shape)
    parts = gradient.astype(np.float64) * direction
    tolerance = (2e-2 if half else 1e-3) * max(1.0, float(np.linalg.norm(parts)))
    wanted, found = slope(run, feeds, name, direction, tolerance), float(parts.sum())
    if wanted is None:
        return UNCHECKED, f"no derivative with respect to {name} here"
    if not abs(found - wanted) <= tolerance:
        return WRONG, f"{name}: {found:.6g} along a direction in which differences say {wanted:.6g}"
    return RIGHT, ""


def direction_in(shape: tuple[int, ...]) -> np.ndarray:
    """Return a random direction of some dozens of numbers: with all of many, one is always at a kink."""
    rng = np.random.default_rng(0)
    share = min(1.0, 60 / math.prod(shape))
    return rng.normal(size=shape) * (rng.uniform(size=shape) < share)
