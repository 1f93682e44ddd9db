"""Time of a training step with each engine, and the size of its gradient graphs.

A step is one minibatch: gradients, then the update of all weights, over buffers that are filled once; no rows are
gathered and no epochs are counted, so this is what the engines differ in. The engines alternate, and the least of the
repetitions of each counts, as in ``fit_step.py``. An environment with the training build of onnxruntime has both
engines on one runtime, others have the portable one alone. Numbers of different runs of this program cannot be
compared, the ratios of one run can.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from fit_step import CASES, RATE

from onnxtrain_sklearn import MLP, SGD, AdamW
from onnxtrain_sklearn._gradient.engine import available_engines, differentiate
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.trainable import TrainableModel, trainable_model
from onnxtrain_sklearn._ort import devices, packages
from onnxtrain_sklearn._training.loss_graph import LOSS, TARGET, training_graph
from onnxtrain_sklearn._training.parameters import FlatParameters
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.step_parts import OptimizerState, Rates, StepParts, StepSettings
from onnxtrain_sklearn.losses import LogLoss
from onnxtrain_sklearn.optimizers import Optimizer

OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(), "adamw": AdamW()}

LENET = """
    <ir_version: 8, opset_import: ["": 18]> lenet (float[N, 1, 28, 28] X) => (float[N, 10] scores) {
        c1 = Conv <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (X, K1, k1)
        r1 = Relu(c1)
        p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
        c2 = Conv <kernel_shape = [5, 5]> (p1, K2, k2)
        r2 = Relu(c2)
        p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
        flat = Flatten(p2)
        h1 = Gemm(flat, W1, b1)
        a1 = Relu(h1)
        h2 = Gemm(a1, W2, b2)
        a2 = Relu(h2)
        scores = Gemm(a2, W3, b3)
    }"""
LENET_SHAPES = {
    **{"K1": (6, 1, 5, 5), "k1": (6,), "K2": (16, 6, 5, 5), "k2": (16,)},
    **{"W1": (400, 120), "b1": (120,), "W2": (120, 84), "b2": (84,), "W3": (84, 10), "b3": (10,)},
}


@dataclass(frozen=True)
class Net:
    """A network that ends in scores of classes, its minibatch, and how many steps one repetition runs."""

    name: str
    model: TrainableModel
    batch: int
    classes: int
    steps: int


def mlp(number: int) -> Net:
    case = CASES[number]
    n_features, *hidden, classes = case.layers
    model = trainable_model(load(MLP(hidden).build(n_features, classes, np.random.RandomState(0))))
    return Net(str(case), model, case.batch_size, classes, case.steps)


def lenet() -> Net:
    proto, rng = onnx.parser.parse_model(LENET), np.random.default_rng(0)
    for name, shape in LENET_SHAPES.items():
        array = rng.normal(size=shape, scale=0.1).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return Net("LeNet b32", trainable_model(load(proto)), batch=32, classes=10, steps=100)


def settings(net: Net, optimizer: str, engine: str) -> StepSettings:
    return StepSettings(
        loss=LogLoss(),
        task="multiclass",
        link="softmax",
        n_scores=net.classes,
        optimizer=OPTIMIZERS[optimizer],
        alpha=0.0,
        l1_ratio=0.0,
        max_grad_norm=None,
        engine=engine,
        device=devices.resolve_device(),
        session_options=None,
        seed=0,
    )


def new_step(net: Net, optimizer: str, engine: str) -> HostStep:
    """Return a step with random rows in its buffers."""
    rng, parameters = np.random.default_rng(0), FlatParameters(net.model.weights(), net.model.dtype)
    parts = StepParts(net.model, settings(net, optimizer, engine), parameters, {}, OptimizerState(), net.batch)
    step = HostStep(parts)
    columns = step.select(net.batch).columns
    columns["X"][...] = rng.standard_normal(columns["X"].shape)
    columns[TARGET][...] = rng.integers(net.classes, size=net.batch)
    return step


def measure(net: Net, optimizer: str, repeat: int, engines: Sequence[str] = ()) -> dict[str, float]:
    """Return the microseconds of a step of each engine: the least of ``repeat`` alternating runs."""
    steps = {engine: new_step(net, optimizer, engine) for engine in engines or available_engines()}
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeat):
        for engine, step in steps.items():
            best[engine] = min(best[engine], seconds(step, net.steps) / net.steps * 1e6)
    return best


def seconds(step: HostStep, count: int) -> float:
    step.compute_gradients(float(step.batch_size))
    step.update(Rates(RATE))  # wakes up the threads
    start = time.process_time()
    for _ in range(count):
        step.compute_gradients(float(step.batch_size))
        step.update(Rates(RATE))
    return time.process_time() - start


def operators(net: Net, engine: str) -> Counter[str]:
    """Return how often each operator occurs in the gradient graph, before onnxruntime optimizes it."""
    graph = training_graph(net.model, settings(net, "sgd", engine), {}, net.batch)
    gradient = differentiate(graph, net.model.parameters, LOSS, engine).model
    return Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(gradient.graph))


def print_times(nets: Sequence[Net], repeat: int) -> None:
    engines = available_engines()
    print(f"{'microseconds per step':<26} {'':<6} {'steps':>6} {' '.join(f'{name:>12}' for name in engines)}  ratio")
    for net in nets:
        for optimizer in OPTIMIZERS:
            best = measure(net, optimizer, repeat)
            times = " ".join(f"{best[name]:>12,.1f}" for name in engines)
            ratio = f"{best['portable'] / best['ort-training']:.2f}x" if len(engines) > 1 else "-"
            print(f"{net.name:<26} {optimizer:<6} {net.steps:>6} {times}  {ratio:>5}", flush=True)


def print_sizes(nets: Sequence[Net]) -> None:
    print("\nnodes of the gradient graph, forward pass and loss included")
    for net in nets:
        for engine in available_engines():
            counts = operators(net, engine)
            listing = ", ".join(f"{count} {operator}" for operator, count in counts.most_common())
            print(f"{net.name:<26} {engine:<13} {sum(counts.values()):>4}  {listing}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of a training step with each engine, and sizes of the graphs.")
    parser.add_argument("--repeat", type=int, default=7, help="alternating repetitions (default: %(default)s)")
    numbers = f"numbers from 0 to {len(CASES)}, the last is LeNet (default: all)"
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES) + 1), help=numbers)
    options = parser.parse_args(arguments)
    nets = [mlp(number) if number < len(CASES) else lenet() for number in options.cases]
    print(f"onnxruntime {packages.version()}, up to {devices.available_threads()} threads")
    print_times(nets, options.repeat)
    print_sizes(nets)


if __name__ == "__main__":
    main()
