"""ONNX's node tests: the tests themselves, and graphs of them that end in one number."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import base
from onnx.backend.test.loader import load_model_tests
from onnx.reference.ops import op_pool_common

from tests.helpers.selection import few

FLOATS = {TensorProto.FLOAT16: np.float16, TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}
NARROW = {TensorProto.BFLOAT16} | {kind for name, kind in TensorProto.DataType.items() if re.match("FLOAT[4-8]E", name)}
LOSS = "node_test/loss"

CUBES = {"test_averagepool_3d_default", "test_lppool_3d_default", "test_maxpool_3d_default"}
"""Pools of cubes of 32 numbers an edge, on which the reference takes seconds; smaller ones are among the tests."""


@dataclass(frozen=True, eq=False)
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
        return [name for name in floats if np.isfinite(number(self.outputs[name])).all()] or floats


def element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0


@functools.cache
def node_tests() -> dict[str, list[NodeTest]]:
    """Return the tests that have a floating-point input and output, by operator."""
    found: dict[str, list[NodeTest]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"), _quick_loading():
        warnings.simplefilter("ignore")
        loaded = {test.name: test for test in load_model_tests(kind="node")}
    for test in loaded.values():
        plain = loaded.get(re.sub("_expanded.*", "", test.name), test)
        one = _as_test(test)
        if one.wrt and one.of and one.name not in CUBES:
            found.setdefault(plain.model.graph.node[0].op_type, []).append(one)
    return found


@contextlib.contextmanager
def _quick_loading() -> Iterator[None]:
    """Neither pool cubes, whose tests are left out, nor read the source of each test for ONNX's documentation."""
    exact = op_pool_common.pool

    def pool(
        padded: np.ndarray, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *rest: Any, **more: Any
    ) -> Any:
        if tuple(x_shape) == (1, 3, 32, 32, 32):
            return np.zeros((*x_shape[:2], *out_shape), padded.dtype)
        return exact(padded, x_shape, kernel, strides, out_shape, *rest, **more)

    with mock.patch.object(op_pool_common, "pool", pool), mock.patch.object(base, "process_snippet"):
        yield


def without_repetitions(tests: list[NodeTest]) -> list[NodeTest]:
    """Return the tests of an operator, of those that put it into others as few as hold these with the same attributes.

    There are hundreds, of thousands of nodes, which differ in the shapes and types of the operator.
    """
    expanded = {
        test: {(node.op_type, *sorted(a.name for a in node.attribute)) for node in test.model.graph.node}
        for test in tests
        if "_expanded" in test.name
    }
    kept = few(expanded)
    return [test for test in tests if test not in expanded or test in kept]


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


def with_weighted_sum(test: NodeTest, opset: int, *, constants: bool = False) -> onnx.ModelProto:
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


def weights_of_outputs(test: NodeTest) -> dict[str, np.ndarray]:
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


def as_double(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f" else value


def number(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)
