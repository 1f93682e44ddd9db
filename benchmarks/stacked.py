"""Small networks one by one, and many of them stacked in one graph of batched products.

A search trains many networks of one shape. Stacked, their weights are slices of one tensor, and one graph computes all
gradients: each product is a batched product. Each network has a minibatch of its own. The table gives microseconds of
the gradients of one network (forward and backward, without the update): run alone, and run in stacks. Above 1 the
ratio says that stacking pays. ``--device cuda`` needs a build of onnxruntime for CUDA; there the arrays are in the
device's memory, and a run ends when the device has finished. On a CPU with llvmlite, one network runs as compiled code
too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import onnx

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._compiler.code import BoundCode
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ort.binding import Array, Binding, DeviceArray
from onnxtrain_sklearn._ort.devices import Device, resolve_device
from onnxtrain_sklearn._ort.sessions import create_session
from onnxtrain_sklearn._training.programs import can_compile, compiled_code

CASES = (((20, 10, 2), 32), ((30, 32, 2), 32), ((30, 100, 2), 200), ((64, 128, 10), 200))
STACKS = (4, 16, 64)

NETWORK = """
    <ir_version: 8, opset_import: ["": 18]>
    network (float[{batch}, {inputs}] X, float[{batch}, {outputs}] Y,
             float[{inputs}, {hidden}] W1, float[1, {hidden}] b1,
             float[{hidden}, {outputs}] W2, float[1, {outputs}] b2) => (float loss) {{
        p1 = MatMul(X, W1)
        h1 = Add(p1, b1)
        a1 = Relu(h1)
        p2 = MatMul(a1, W2)
        scores = Add(p2, b2)
        logarithms = LogSoftmax <axis = -1> (scores)
        picked = Mul(logarithms, Y)
        total = ReduceSum <keepdims = 0> (picked)
        loss = Neg(total)
    }}"""
WEIGHTS = ("W1", "b1", "W2", "b2")


def network(layers: Sequence[int], batch: int, models: int | None) -> onnx.ModelProto:
    """Return the graph with the gradients of ``models`` stacked networks, or of one that is not stacked."""
    inputs, hidden, outputs = layers
    text = NETWORK.format(inputs=inputs, hidden=hidden, outputs=outputs, batch=batch)
    if models is not None:
        text = text.replace("float[", f"float[{models}, ")
    return gradient_graph(onnx.parser.parse_model(text), wrt=WEIGHTS, engine="portable")


def bound(model: onnx.ModelProto, device: Device) -> Binding:
    """Return a session bound to arrays of random numbers in the memory of the device."""
    session, rng = create_session(model.SerializeToString(), device), np.random.default_rng(0)

    def place(shape: Sequence[int]) -> Array:
        array = rng.normal(size=shape, scale=0.1).astype(np.float32)
        return array if device.memory is None else DeviceArray(array, device.memory)

    inputs = {value.name: place(value.shape) for value in session.get_inputs()}
    return Binding(session, inputs, {value.name: place(value.shape) for value in session.get_outputs()})


def compiled(model: onnx.ModelProto) -> BoundCode:
    """Return the function that a graph is compiled to, bound to arrays of random numbers."""
    code, rng = compiled_code(load(model)), np.random.default_rng(0)
    arrays = {name: rng.normal(size=size, scale=0.1).astype(np.float32) for name, size in code.inputs.items()}
    return BoundCode(code, arrays, {name: np.zeros(size, np.float32) for name, size in code.outputs.items()})


def microseconds(run: Binding | BoundCode, seconds: float) -> float:
    """Return the time of a run, the mean over about so many seconds."""
    for _ in range(3):
        run.run()
    runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        run.run()
        runs += 1
    return 1e6 * (time.perf_counter() - start) / runs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Gradients of small networks, one by one and stacked.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=5, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="of one repetition (default: %(default)s)")
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    compiles = device.memory is None and can_compile()
    columns = ["network", "alone, µs", *["alone, compiled (ratio)"] * compiles]
    columns += [f"stack of {k}, each (ratio)" for k in STACKS]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for layers, batch in CASES:
        runs: dict[int | str, Binding | BoundCode] = {"alone": bound(network(layers, batch, None), device)}
        if compiles:
            runs["compiled"] = compiled(network(layers, batch, None))
        runs |= {k: bound(network(layers, batch, k), device) for k in STACKS}
        best = dict.fromkeys(runs, np.inf)
        for _ in range(options.repeat):
            for k, run in runs.items():
                best[k] = min(best[k], microseconds(run, options.seconds) / (k if isinstance(k, int) else 1))
        alone = best.pop("alone")
        cells = [f"{found:.1f} ({alone / found:.2f})" for found in best.values()]
        print(f"| {list(layers)}, batch {batch} | {alone:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
