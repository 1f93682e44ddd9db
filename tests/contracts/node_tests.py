"""ONNX's own tests of its nodes, as graphs whose gradients are compared with central differences.

A test becomes a graph that ends in one number: all its floating-point outputs under random weights, summed. The
gradient of an engine with respect to each floating-point input is compared along random directions with central
differences of the same graph in float64. They are taken a little beside the point of the test, since that is often one
where no derivative exists: zeros of Relu, ties of Max, whole numbers of Floor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._gradient import ort_training as ort
from onnxtrain_sklearn._ir.opsets import MAX_OPSET, MIN_OPSET
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.contracts.node_test_models import LOSS, NodeTest, element, with_weighted_sum
from tests.contracts.node_test_runs import Forward, Run, forward, points, reference_run, session_run, slope_along
from tests.helpers.environment import LIMITS

FAILS = "the graph with gradients does not run"
RIGHT, REFUSED, UNCHECKED, WRONG = "right", "refused", "unchecked", "wrong"


def opset_of(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 18)


def stamped(test: NodeTest, engine: str) -> int:
    """Return the opset of the test, or the nearest one that the engine takes where its nodes have the same settings."""
    own = opset_of(test.model)
    least, most = (ort.OPSETS[0], ort.OPSETS[-1]) if engine == "ort-training" else (MIN_OPSET, MAX_OPSET)
    other = min(max(own, least), most, LIMITS.opset)
    if other == own:
        return own
    with contextlib.suppress(Exception):
        onnx.checker.check_model(with_weighted_sum(test, other), full_check=True)
        return other
    return own


def outcomes(test: NodeTest, engine: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each input what an engine makes of it, and the reason."""
    opset = stamped(test, engine)
    run = forward(test, with_weighted_sum(test, opset))
    whole = node_outcome(test, with_weighted_sum(test, opset), test.wrt, engine, run)
    if whole[0] == RIGHT:
        yield from ((name, *whole) for name in test.wrt)
        return
    for name in test.wrt:
        result = node_outcome(test, with_weighted_sum(test, opset), [name], engine, run) if len(test.wrt) > 1 else whole
        if result[0] == REFUSED:
            result = node_outcome(test, with_weighted_sum(test, opset, constants=True), [name], engine, run)
        yield (name, *result)


def node_outcome(
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
        return (WRONG, f"{FAILS}: {error}") if runs_at_all(model, feeds) else (UNCHECKED, "this runtime cannot run it")
    half, wanted = has(model, TensorProto.FLOAT16), float(run(feeds, [LOSS])[0])
    if not np.allclose(loss, wanted, *([1e-2] * 2 if half else [1e-3] * 2), equal_nan=True):
        return UNCHECKED, f"the runtime computes other values: {float(loss):.6g} for {wanted:.6g}"
    results = [compared(run, feeds, name, g, half=half) for name, g in zip(wrt, gradients, strict=True)]
    return next((r for kind in (WRONG, UNCHECKED) for r in results if r[0] == kind), (RIGHT, ""))


def gradient_of(model: onnx.ModelProto, graph: onnx.ModelProto) -> Run:
    """Return what runs the graph with gradients: onnxruntime, unless it cannot run the graph without them either."""
    try:
        return session_run(graph)
    except Exception:
        if runs_at_all(model, {}):
            raise
        return reference_run(graph)


def runs_at_all(model: onnx.ModelProto, feeds: dict[str, Any]) -> bool:
    """Whether onnxruntime takes the graph without gradients, and runs it where it is fed."""
    with contextlib.suppress(Exception):
        run = session_run(model)
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
    wanted, found = slope_along(run, feeds, name, direction, tolerance), float(parts.sum())
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
