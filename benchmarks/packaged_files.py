"""The gradient of an ONNX file, such as one that a package ships, beside differences of its output.

    python benchmarks/packaged_files.py FILE [NAME=2,3,... ...]

Inputs are random; NAME=SIZES gives the shape of an input, 2 is the size of its other free axes. The scalar is the sum
of the first output times random numbers. It is differentiated with respect to all float inputs and matrices of weights
at once, and the slope along the gradient is compared with central differences of steps of several lengths, of which the
nearest is printed. The largest difference between the outputs of both graphs is relative to the largest number.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
from onnx import numpy_helper

from onnxtrain_sklearn import vjp_graph

STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


def prepared(path: str, sizes: dict[str, list[int]]) -> onnx.ModelProto:
    """Return the model with fixed shapes of its inputs, in an opset with gradients, with weights as initializers."""
    model = onnx.load(path)
    if model.opset_import[0].version < 11:
        model = onnx.version_converter.convert_version(model, 18)
    graph = model.graph
    for node in [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]:
        held = graph.initializer.add()
        held.CopyFrom(node.attribute[0].t)
        held.name = node.output[0]
        graph.node.remove(node)
    held_names = {tensor.name for tensor in graph.initializer}
    for value in (v for v in graph.input if v.name not in held_names):
        for i, axis in enumerate(value.type.tensor_type.shape.dim):
            size = sizes[value.name][i] if value.name in sizes else axis.dim_value or 2
            axis.Clear()
            axis.dim_value = size
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def main() -> None:
    path, *given = sys.argv[1:]
    pairs = (text.split("=") for text in given)
    model = prepared(path, {name: [int(size) for size in numbers.split(",")] for name, numbers in pairs})
    rng, graph = np.random.default_rng(0), model.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    feeds = {}
    for value in (v for v in graph.input if v.name not in held):
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        feeds[value.name] = (rng.normal(size=shape) / 2 if kind.kind == "f" else rng.integers(0, 2, shape)).astype(kind)
    weights = {
        name: numpy_helper.to_array(tensor)
        for name, tensor in held.items()
        if tensor.data_type in FLOATS and len(tensor.dims) >= 2 and np.prod(tensor.dims) > 8
    }
    wrt = [*weights, *(name for name, array in feeds.items() if array.dtype.kind == "f")]
    of, at = graph.output[0].name, {**feeds, **weights}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3

    def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])

    expected = session(model).run([of], feeds)[0]
    made = session(vjp_graph(model, wrt, of, weights_as_inputs=True))
    cotangent = rng.normal(size=expected.shape).astype(expected.dtype)
    at[f"{of}_cotangent"] = cotangent
    found, *gradients = made.run([of, *(f"{name}_grad" for name in wrt)], at)
    norm = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients))
    scale = np.sqrt(sum((at[name].astype(np.float64) ** 2).sum() for name in wrt))
    errors = {}
    for step in STEPS:
        ends = []
        for length in (step * scale / norm, -step * scale / norm):
            moved = {n: (at[n] + length * g).astype(at[n].dtype) for n, g in zip(wrt, gradients, strict=True)}
            ends.append((made.run([of], at | moved)[0].astype(np.float64) * cotangent).sum())
        errors[step] = abs((ends[0] - ends[1]) / (2 * step * scale) / norm - 1)
    best = min(errors, key=lambda step: errors[step])
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    print(
        f"{path}: {len(weights)} weights, {len(wrt) - len(weights)} inputs: outputs {apart:.0e} apart, slope off by "
        f"{errors[best]:.2%} (step {best:g})"
    )


if __name__ == "__main__":
    main()
