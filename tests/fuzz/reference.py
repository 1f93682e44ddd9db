"""The file of a drawn graph as a function of its weights, run by onnxruntime, and in float64 where that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.reference
import onnxruntime

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
FLOAT_ONLY = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that stay float32 whatever the graph computes in: regions and scales."""


class File:
    """The outputs of a model by the values of its weights, which become inputs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    names : sequence of str
        Initializers that are varied.

    Attributes
    ----------
    outputs : list of str
        Names of the outputs.
    exact : bool
        Whether :meth:`precise` computes in float64.
    """

    def __init__(self, proto: onnx.ModelProto, names: Sequence[str]) -> None:
        live = onnx.ModelProto()
        live.CopyFrom(proto)
        graphs = list(graphs_of(live))
        self.held = {t.name: onnx.numpy_helper.to_array(t) for graph in graphs for t in graph.initializer}
        known = {value.name for value in live.graph.input}
        for graph in graphs:  # a body sees the inputs of the graph around it
            varied = [tensor for tensor in graph.initializer if tensor.name in names]
            for tensor in varied:
                if tensor.name not in known:
                    value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                    live.graph.input.append(value)
                graph.initializer.remove(tensor)
        self.live, self.outputs, self.exact = live, [value.name for value in live.graph.output], False
        self._session = session(live)
        self._double: Any = None
        self._wide = {value.name: value.type.tensor_type.elem_type == DOUBLE for value in live.graph.input}

    def __call__(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs, by onnxruntime."""
        return [np.asarray(array) for array in self._session.run(None, feeds)]

    def use_double(self, feeds: dict[str, np.ndarray]) -> None:
        """Find what computes the outputs in float64: onnxruntime, or the evaluator of onnx.

        It is used only if it agrees with onnxruntime on the file as it is.
        """
        expected = [array.astype(np.float64) for array in self(feeds)]
        wide = in_double(self.live)
        for build in (session, onnx.reference.ReferenceEvaluator):
            try:
                evaluator = build(wide)
                found = evaluator.run(None, as_doubles(feeds))
            except Exception:  # no kernel for float64, or an operator that the evaluator has not
                continue
            near = [
                np.shape(a) == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-4)
                for a, b in zip(found, expected, strict=True)
            ]
            if all(near):
                self._double, self.exact = evaluator, True
                return

    def precise(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs as float64, computed so where that is possible."""
        if self._double is None:
            narrow = {k: v.astype(np.float64 if self._wide[k] else np.float32) for k, v in feeds.items()}
            return [array.astype(np.float64) for array in self(narrow)]
        return [np.asarray(array, np.float64) for array in self._double.run(None, as_doubles(feeds))]


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that runs a model as it is, without optimizations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def as_doubles(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}


# a graph in float64.


def in_double(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that computes in float64 what it computes in float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    graphs = list(graphs_of(wide))
    nodes = [node for graph in graphs for node in graph.node] + [n for f in wide.functions for n in f.node]
    narrow = {node.input[i] for node in nodes for i in FLOAT_ONLY.get(node.op_type, ()) if i < len(node.input)}
    for graph in graphs:
        for tensor in graph.initializer:
            if tensor.name not in narrow:
                _widen(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor_type = value.type.tensor_type
            tensor_type.elem_type = DOUBLE if tensor_type.elem_type == FLOAT else tensor_type.elem_type
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and not narrow & set(node.output):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = DOUBLE
    return wide


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and the bodies in it."""
    front = [proto.graph]
    while front:
        graph = front.pop()
        yield graph
        front += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
