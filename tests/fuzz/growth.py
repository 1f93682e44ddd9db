"""Mutations that make a model deep or long: nested subgraphs, functions that call functions, chains of nodes."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from tests.fuzz.messages import copy_of


def nest(rng: random.Random, model: onnx.ModelProto) -> None:
    """Put the first output into so many Ifs."""
    depth = rng.choice([1, 2, 3, 5, 8, 12, 20, 28, 60, 300, 3000])
    if not model.graph.output:
        return
    name, value = model.graph.output[0].name, copy_of(model.graph.output[0])
    if depth > 12:
        return _deep(model, depth, name, value)
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", [name], ["deep"])], "g0", [], [_renamed(value, "deep")]
    )
    both = rng.random() < 0.3 and depth <= 5  # as many again on each level
    for level in range(depth):
        out = f"deep{level}"
        other = (
            inner
            if both
            else onnx.helper.make_graph(
                [onnx.helper.make_node("Identity", [name], [f"else{level}"])],
                "e",
                [],
                [_renamed(value, f"else{level}")],
            )
        )
        node = onnx.helper.make_node("If", ["always"], [out], then_branch=inner, else_branch=other)
        inner = onnx.helper.make_graph([node], f"g{level}", [], [_renamed(value, out)])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.extend(inner.node)
    model.graph.output[0].name = inner.output[0].name


def _deep(model: onnx.ModelProto, depth: int, name: str, value: onnx.ValueInfoProto) -> None:
    """Nest in place: protobuf copies messages up to a depth of 100 only."""
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    graph, out = model.graph, "deep"
    for level in range(depth):
        node = graph.node.add(op_type="If", input=["always"], output=[out])
        for branch in ("then_branch", "else_branch"):
            attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
            attribute.g.name = f"{branch}{level}"
            attribute.g.output.append(_renamed(value, f"{branch}{level}"))
        attribute.g.node.add(op_type="Identity", input=[name], output=[f"else_branch{level}"])
        graph, out = node.attribute[0].g, f"then_branch{level}"
    graph.node.add(op_type="Identity", input=[name], output=[out])
    model.graph.output[0].name = "deep"


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    other = onnx.ValueInfoProto()
    other.CopyFrom(value)
    other.name = name
    return other


def laughs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Call functions that call functions twice, so many times over."""
    depth, calls = rng.choice(
        [(1, 3), (3, 2), (6, 2), (10, 1), (10, 2), (20, 2), (20, 3), (40, 1), (40, 2), (500, 1), (500, 2)]
    )
    for level in range(depth):
        inner = f"f{level + 1}" if level + 1 < depth else "Neg"
        domain = "laugh" if level + 1 < depth else ""
        names = ["x", *(f"v{i}" for i in range(calls))]
        nodes = [onnx.helper.make_node(inner, [a], [b], domain=domain) for a, b in pairwise(names)]
        imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("laugh", 1)]
        model.functions.append(onnx.helper.make_function("laugh", f"f{level}", ["x"], names[-1:], nodes, imports))
    if model.graph.output:
        name = model.graph.output[0].name
        model.graph.node.append(onnx.helper.make_node("f0", [name], ["laughed"], domain="laugh"))
        model.graph.output[0].name = "laughed"
        model.opset_import.add(domain="laugh", version=1)


def many(rng: random.Random, model: onnx.ModelProto) -> None:
    """Put a chain of so many nodes behind the first output."""
    count = rng.choice([10, 100, 1000])
    if not model.graph.output:
        return
    name, kind = model.graph.output[0].name, rng.choice(["Identity", "Neg", "Dropout", "Tanh"])
    for i in range(count):
        model.graph.node.append(onnx.helper.make_node(kind, [name], [f"chain{i}"]))
        name = f"chain{i}"
    model.graph.output[0].name = name
