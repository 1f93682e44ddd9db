"""``bench``: time a training step of a network on this machine with each engine."""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._estimators.source import source_of
from .._gradient.engine import available_engines
from .._model.trainable import TensorSpec
from .._training.history import Epoch
from ..exceptions import ModelError
from .arguments import apply_settings, parsed_settings
from .console import Command, Console, Outcome, Record, UsageError, sentence
from .model_option import BUILDERS, ModelOption, model_named

STEPS = 16
"""Minibatches of an epoch."""


@dataclass
class Timer:
    """Callback that ends training after some seconds, and keeps the time of each epoch but the first."""

    seconds: float
    begun: float = 0.0
    last: float = 0.0
    epochs: list[float] = field(default_factory=list)

    def __call__(self, epoch: Epoch) -> bool:
        now = time.perf_counter()
        if epoch.number == 1:
            self.begun = now
        else:
            self.epochs.append(now - self.last)
        self.last = now
        return len(self.epochs) > 2 and now - self.begun > self.seconds


@dataclass(frozen=True)
class Problem:
    """Random rows for a network, as one array or by input, and their targets."""

    X: Any
    y: np.ndarray
    classifies: bool


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", default="mlp", help=f"{', '.join(BUILDERS)} or an ONNX file; default: %(default)s")
    add("--batch", type=_positive_number, default=32, metavar="ROWS", help="rows of a minibatch; default: %(default)s")
    add(
        "--features", type=_positive_number, default=20, metavar="N", help="columns, of a builder; default: %(default)s"
    )
    add("--classes", type=_positive_number, default=2, metavar="N", help="classes, of a builder; default: %(default)s")
    add("--seconds", type=float, default=1.0, help="time for each engine; default: %(default)s")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="parameters of the estimator")


def _positive_number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"a number from 1, got {text}")
    return value


def _bench(options: argparse.Namespace, console: Console) -> Outcome:
    option = model_named(options.model)
    if option.kind not in ("builder", "graph"):
        raise UsageError(f"bench takes a builder ({', '.join(BUILDERS)}) or an ONNX graph, got {options.model!r}.")
    settings = parsed_settings(options.set)
    if fixed := [name for name in ("batch_size", "max_iter", "callbacks", "model") if name in settings]:
        raise UsageError(f"--set {fixed[0]!r} is set by bench itself (--batch, --seconds).")
    problem = _built_problem(options) if option.kind == "builder" else _graph_problem(option, options)
    wanted = settings.get("engine", "auto")
    engines = available_engines() if wanted == "auto" else (str(wanted),)
    results = {}
    for engine in engines:
        console.progress(f"timing {option.text} with the engine {engine}")
        results[engine] = _timed(option, problem, settings | {"engine": engine}, options)
    record = {"model": option.text, "batch": options.batch, "engines": results}
    return Outcome(record, _bench_lines(record), any(one["error"] is None for one in results.values()))


def _built_problem(options: argparse.Namespace) -> Problem:
    rng, rows = np.random.default_rng(0), options.batch * STEPS
    if not 2 <= options.classes <= rows:
        raise UsageError(f"--classes must be 2 to {rows}, the rows of {STEPS} minibatches, got {options.classes}.")
    X = rng.normal(size=(rows, options.features)).astype(np.float32)
    return Problem(X, np.arange(rows) % options.classes, True)


def _graph_problem(option: ModelOption, options: argparse.Namespace) -> Problem:
    """Return random rows in the shapes of a graph's inputs.

    Integers are zeros and ones, which are valid indices of embeddings of any size.
    """
    source, fitted = source_of(option.model, None)
    if fitted is not None:
        raise UsageError(
            f"{option.text} is the file of a fitted model, which is fine-tuned by other steps: give a graph."
        )
    rng, rows = np.random.default_rng(0), options.batch * STEPS
    arrays = {spec.name: _random_rows(rng, rows, spec) for spec in source.inputs}
    width = math.prod(size for size in source.output_row if size is not None)
    X = arrays if len(arrays) > 1 else next(iter(arrays.values()))
    if None in source.output_row or len(source.output_row) > 1:
        raise UsageError(f"bench takes graphs with an output of rows of known length, got {source.output_row}.")
    if source.link in ("softmax", "sigmoid"):
        return Problem(X, np.arange(rows) % max(2, width), True)
    return Problem(X, rng.normal(size=(rows, width)).squeeze(), False)


def _random_rows(rng: np.random.Generator, rows: int, spec: TensorSpec) -> np.ndarray:
    if None in spec.shape[1:]:
        raise UsageError(f"The input {spec.name!r} has the shape {spec.shape}: bench takes graphs of known sizes.")
    shape = (rows, *(int(size) for size in spec.shape[1:] if size is not None))
    if spec.dtype.kind == "f":
        return rng.normal(size=shape).astype(spec.dtype)
    return rng.integers(0, 2, shape).astype(spec.dtype)


def _timed(
    option: ModelOption, problem: Problem, settings: Mapping[str, object], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the microseconds of a step in the fastest epoch and in the middle one, and of a prediction of a row."""
    timer = Timer(options.seconds)
    kind: Any = OrtGradientClassifier if problem.classifies else OrtGradientRegressor
    estimator = kind(option.model, batch_size=options.batch, max_iter=10**9, tol=0.0, random_state=0)
    apply_settings(estimator, {"n_iter_no_change": math.inf, **settings})
    estimator.callbacks = [timer]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(problem.X, problem.y)
    except ModelError as error:
        return {"error": sentence(error)}
    steps = np.array(timer.epochs) / STEPS * 1e6
    return {
        "error": None,
        "steps": len(steps) * STEPS,
        "microseconds_per_step": {"least": float(np.min(steps)), "median": float(np.median(steps))},
        "rows_per_second": float(options.batch / np.median(steps) * 1e6),
        "microseconds_per_prediction": _prediction_time(estimator, problem),
    }


def _prediction_time(estimator: Any, problem: Problem) -> float:
    """Return the least time of a prediction of one row."""
    one = {name: array[:1] for name, array in problem.X.items()} if isinstance(problem.X, dict) else problem.X[:1]
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        estimator.predict(one)
        times.append(time.perf_counter() - begun)
    return min(times) * 1e6


def _bench_lines(record: Record) -> list[str]:
    lines = [f"{record['model']}, minibatches of {record['batch']} rows"]
    for engine, one in record["engines"].items():
        if one["error"] is not None:
            lines.append(f"{engine}: {one['error']}")
            continue
        step = one["microseconds_per_step"]
        lines.append(
            f"{engine}: {step['least']:.0f} µs a step at best, {step['median']:.0f} µs in the middle of {one['steps']} "
            f"steps, {one['rows_per_second']:,.0f} rows a second; {one['microseconds_per_prediction']:.0f} µs to "
            f"predict a row"
        )
    return lines


BENCH = Command(_bench_arguments, _bench)
