"""Convolutional networks beside PyTorch eager: CPU and wall time of a step, and the forms of single layers.

Needs PyTorch and onnxscript beside the package. Each network is exported by PyTorch with random weights, in training
mode and in evaluation mode, and both sides take steps of SGD on the same random images. The sides
alternate and the least of the repetitions counts. ``--layers`` compares the forms of the gradient rules for layers of
these networks instead: the bounds in ``_gradient/rules/convolution_products.py`` come from that table.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import torch
from convolution_networks import NETWORKS
from engine_step import Net, settings
from fit_step import RATE, compile_at_once

from onnxtrain_sklearn._gradient.rules import convolution_products as products
from onnxtrain_sklearn._gradient.rules.windows import Layout, Windows
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import devices, sessions
from onnxtrain_sklearn._ort.binding import Binding
from onnxtrain_sklearn._training.loss_graph import TARGET
from onnxtrain_sklearn._training.parameters import FlatParameters
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.step_parts import OptimizerState, Rates, StepParts
from onnxtrain_sklearn.graph import GraphBuilder

Run = Callable[[], object]
Form = Callable[[GraphBuilder, Layout, ir.Value, ir.Value], "ir.Value | None"]

CLASSES = 1000
LAYERS = (
    (3, 64, 64, 7, 2, 1), (64, 64, 16, 3, 1, 1), (64, 128, 16, 3, 2, 1), (64, 128, 16, 1, 2, 1),
    (128, 128, 8, 3, 1, 1), (256, 256, 4, 3, 1, 1), (256, 512, 4, 3, 2, 1), (512, 512, 2, 3, 1, 1),
    (64, 64, 56, 3, 1, 1), (256, 64, 32, 1, 1, 1), (128, 32, 4, 3, 1, 1), (1024, 128, 2, 1, 1, 1),
    (40, 40, 16, 7, 1, 40), (160, 160, 4, 7, 1, 160), (88, 88, 8, 3, 1, 88),
)  # fmt: skip
"""Channels read and written, height and width, size of the kernel, stride, groups."""


def least(runs: Mapping[str, Run], repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the milliseconds of each run: the least of ``repeat`` alternating ones."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeat):
        for name, run in runs.items():
            start = clock()
            run()
            best[name] = min(best[name], (clock() - start) * 1e3)
    return best


def exported(network: torch.nn.Module, size: int, *, training: bool) -> bytes:
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    settings = {"training": mode, "do_constant_folding": not training, "opset_version": 18, "dynamo": False}
    names = {"input_names": ["X"], "output_names": ["scores"], "dynamic_axes": {"X": {0: "N"}, "scores": {0: "N"}}}
    content = io.BytesIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        torch.onnx.export(network, (torch.randn(2, 3, size, size),), content, **settings, **names)
    return content.getvalue()


def their_step(network: torch.nn.Module, batch: int, size: int) -> Run:
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, CLASSES, (batch,))

    def run() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def our_step(net: Net, session_options: Mapping[str, object] | None = None) -> HostStep:
    weights, model, rng = net.model.weights(), net.model, np.random.default_rng(0)
    moved = {name: weights[name] for name in model.running_statistics}
    parameters = FlatParameters({name: weights[name] for name in model.parameters}, model.dtype, moved)
    chosen = replace(settings(net, "sgd", "portable"), session_options=session_options)
    parts = StepParts(model, chosen, parameters, {}, OptimizerState(), net.batch)
    step = HostStep(parts)
    columns = step.select(net.batch).columns
    columns["X"][...] = rng.standard_normal(columns["X"].shape)
    columns[TARGET][...] = rng.integers(CLASSES, size=net.batch)
    return step


def compare(name: str, batch: int, size: int, repeat: int, *, training: bool) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]().train(training)
    model = trainable_model(load(exported(network, size, training=training)))
    start = time.process_time()
    step = our_step(Net(name, model, batch, CLASSES, 1))
    built = time.process_time() - start
    runs = {
        "ours": lambda: (step.compute_gradients(float(batch)), step.update(Rates(RATE))),
        "torch": their_step(network.train(training), batch, size),
    }
    cpu, wall = (least(runs, repeat, clock) for clock in (time.process_time, time.perf_counter))
    ratios = " ".join(f"{t['ours'] / t['torch']:>9.2f}" for t in (cpu, wall))
    mode = "training" if training else "evaluation"
    print(f"{name:<20} {mode:<11} {cpu['ours']:>9.1f} {cpu['torch']:>9.1f} {ratios} {built:>7.1f}", flush=True)


def as_run(form: Form, layout: Layout, a: np.ndarray, b: np.ndarray) -> Run | None:
    """Return the run of a graph that holds the form alone; None where the form does not take the layout."""
    values = [ir.val(name, ir.DataType.FLOAT, array.shape) for name, array in (("a", a), ("b", b))]
    op = GraphBuilder(ir.Graph(values, [], nodes=[], opset_imports={"": 18}, name="form"))
    result = form(op, layout, *values)
    if result is None:
        return None
    shape = op.shape(result)
    result.name = "result"
    op.graph.outputs.append(result)
    content = to_proto(ir.Model(op.graph, ir_version=8)).SerializeToString()
    session = sessions.create_session(content, devices.resolve_device())
    return Binding(session, {"a": a, "b": b}, {"result": np.zeros(shape, np.float32)}).run


def convolution(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value:
    w = c.windows
    return op.Conv(x, kernel, strides=w.strides, pads=w.begin + w.end, group=c.groups)


def transposed(op: GraphBuilder, c: Layout, kernel: ir.Value, g: ir.Value) -> ir.Value:
    """Return the general form of the input's gradient, but for elements that no window reads."""
    w = c.windows
    more = [c.sizes[i] + w.begin[i] + w.end[i] - w.covered(i, c.steps[i]) for i in range(2)]
    return op.ConvTranspose(
        g, kernel, strides=w.strides, pads=w.begin + w.end, group=c.groups, output_padding=more if any(more) else None
    )


def correlated(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value:
    """Return the general form of the kernel's gradient."""
    w, rows = c.windows, op.Transpose(x, perm=[1, 0, 2, 3])
    if c.groups > 1:
        parts = op.Transpose(op.Reshape(x, [0, c.groups, 1, *c.sizes]), perm=[2, 1, 0, 3, 4])
        rows = op.Reshape(parts, [1, -1, *c.sizes])
    settings = {"dilations": w.strides, "pads": w.begin + w.end, "group": c.groups}
    whole = op.Conv(rows, op.Transpose(g, perm=[1, 0, 2, 3]), **settings)
    return op.Transpose(op.Slice(whole, [0, 0], w.kernel, [2, 3]), perm=[1, 0, 2, 3])


def compare_layer(layer: tuple[int, ...], batch: int, repeat: int) -> None:
    inputs, outputs, size, kernel, stride, groups = layer
    pad, rng = (kernel - 1) // 2, np.random.default_rng(0)
    windows = Windows([kernel] * 2, [stride] * 2, [1, 1], [pad] * 2, [pad] * 2)
    steps = [(size + 2 * pad - kernel) // stride + 1] * 2
    c = Layout(windows, groups, batch, inputs, outputs, [size] * 2, steps)
    shapes = {"x": (batch, inputs, size, size), "w": tuple(c.kernel_shape), "g": (batch, outputs, *steps)}
    x, w, g = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes.values())
    tensors, window = (
        [torch.from_numpy(a) for a in (x, w, g)],
        ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups),
    )

    def theirs(*wanted: bool) -> Run:
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(tensors[2], tensors[0], tensors[1], None, *window, list(wanted))

    def forward() -> object:
        return torch.nn.functional.conv2d(tensors[0], tensors[1], stride=stride, padding=pad, groups=groups)

    kinds: dict[str, tuple[Run, Form, Form, np.ndarray, np.ndarray]] = {
        "output": (forward, convolution, products.faster_convolution, x, w),
        "input": (theirs(True, False, False), transposed, products.input_cotangent, w, g),
        "kernel": (theirs(False, True, False), correlated, products.kernel_cotangent, x, g),
    }
    texts = []
    for torch_run, general, chosen, a, b in kinds.values():
        runs = {"general": as_run(general, c, a, b), "chosen": as_run(chosen, c, a, b)}
        best = least({"torch": torch_run} | {k: r for k, r in runs.items() if r is not None}, repeat, time.process_time)
        texts.append(" ".join(f"{best[k] / best['torch']:>7.2f}" if k in best else f"{'-':>7}" for k in runs))
    name = f"{inputs}->{outputs} {size}x{size} k{kernel} s{stride} g{groups}"
    print(f"{name:<26} {'  '.join(texts)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Steps of convolutional networks beside PyTorch's.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=7, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--layers", action="store_true", help="compare the forms of single layers instead")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    compile_at_once()
    torch.set_num_threads(devices.available_threads())
    if options.layers:
        print(f"{'ratio to PyTorch':<26} {'output':>15}  {'input':>15}  {'kernel':>15}")
        print(f"{'':<26} {'general  chosen'}  {'general  chosen'}  {'general  chosen'}")
        for layer in LAYERS:
            compare_layer(layer, options.batch, options.repeat)
        return
    print(f"{'CPU milliseconds':<32} {'ours':>9} {'torch':>9} {'CPU ratio':>9} {'wall':>9} {'build s':>7}")
    for name in options.networks:
        for training in (True, False):
            compare(name, options.batch, options.size, options.repeat, training=training)


if __name__ == "__main__":
    main()
