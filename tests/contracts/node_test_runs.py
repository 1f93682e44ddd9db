"""ONNX's node tests: how their graphs are run, and slopes by central differences."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.defs
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.contracts.node_test_models import LOSS, NodeTest, in_double, number, weights_of_outputs
from tests.contracts.references import Erf, Gelu

Run: TypeAlias = Callable[[dict[str, Any], list[str]], list[Any]]


def session_run(model: onnx.ModelProto) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in run.get_inputs()}
    return lambda feeds, outputs: run.run(outputs, {n: copied(v) for n, v in feeds.items() if n in names})


def copied(value: Any) -> Any:
    """BatchNormalization writes into what it is fed."""
    return value.copy() if isinstance(value, np.ndarray) else value


def reference_run(model: onnx.ModelProto) -> Run:
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
        for start in (session_run, reference_run):
            with contextlib.suppress(Exception):
                run = Forward(start(graph), double)
                if _gives(
                    run({**test.inputs, **weights_of_outputs(test)}, test.of), [test.outputs[name] for name in test.of]
                ):
                    return run
    return None


def _gives(values: list[Any], wanted: list[Any]) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.allclose(number(a), number(b), 1e-2, 1e-3, equal_nan=True)
        for a, b in zip(values, wanted, strict=True)
    )


def doubles(feeds: dict[str, Any]) -> dict[str, Any]:
    return {n: v.astype(np.float64) if getattr(v, "dtype", np.dtype(int)).kind == "f" else v for n, v in feeds.items()}


def points(test: NodeTest, run: Forward) -> Iterator[dict[str, Any]]:
    """Yield points a little beside that of the test where the graph has outputs of the same shapes, then that point."""
    shapes = [np.shape(test.outputs[name]) for name in test.of]
    for seed, sizes in enumerate((1, 1, -1, -1, 0, 0)):
        feeds = {n: moved_a_little(v, seed, sizes) if n in test.wrt else v for n, v in test.inputs.items()}
        feeds |= weights_of_outputs(test)
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            *values, loss = run(feeds, [*test.of, LOSS])
            again = run(feeds, [LOSS])[0]  # what is drawn at random is not the same twice
            if [np.shape(v) for v in values] == shapes and np.isfinite(loss) and loss == again:
                yield feeds
    yield {**test.inputs, **weights_of_outputs(test)}


def moved_a_little(value: np.ndarray, seed: int, sizes: int) -> np.ndarray:
    """Move every number by about a hundredth; a single whole number may tell a size, and goes the way of ``sizes``."""
    if value.size == 1 and value.item() == int(value.item()):
        return np.asarray(value + sizes * 0.01).astype(value.dtype)
    rng = np.random.default_rng(seed)
    step = 0.01 * rng.uniform(0.5, 1, value.shape) * rng.choice([-1, 1], value.shape)
    return np.asarray(value + step).astype(value.dtype)


def slope_along(
    run: Forward, feeds: dict[str, Any], name: str, direction: np.ndarray, tolerance: float
) -> float | None:
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
