"""Mutations of a model: each changes its graph, or a message of it.

Each function takes a generator of random numbers and the model, changes it in place and returns nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from google.protobuf.message import DecodeError

from tests.fuzz.growth import laughs, many, nest
from tests.fuzz.messages import bytes_of, copy_of, field_of_message, messages
from tests.fuzz.values import FLOATS, NUMBERS, OPERATORS, WORDS


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [m for m in messages(model) if isinstance(m, onnx.GraphProto)]


def _names(model: onnx.ModelProto) -> list[str]:
    graphs = _graphs(model)
    found = [n for g in graphs for node in g.node for n in (*node.input, *node.output) if n]
    return found + [v.name for g in graphs for v in (*g.initializer, *g.input, *g.output)] or ["x"]


def rename(rng: random.Random, model: onnx.ModelProto) -> None:
    """Rename a value wherever it is, to a name that may collide."""
    names = _names(model)
    old = rng.choice(names)
    new = rng.choice([rng.choice(names), rng.choice(WORDS), f"{rng.choice(names)}_grad"])
    for graph in _graphs(model):
        for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
            value.name = new if value.name == old else value.name
        for node in graph.node:
            for names_of in (node.input, node.output):
                names_of[:] = [new if name == old else name for name in names_of]


def rewire(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a node read another value, its own output perhaps, one input more or one less."""
    nodes = [node for graph in _graphs(model) for node in graph.node]
    if not nodes:
        return
    node, name = rng.choice(nodes), rng.choice([*_names(model), "", "nowhere"])
    which = rng.choice([node.input, node.output])
    if not which or rng.random() < 0.2:
        which.append(name)
    elif rng.random() < 0.2:
        del which[rng.randrange(len(which))]
    else:
        which[rng.randrange(len(which))] = name


def operator(rng: random.Random, model: onnx.ModelProto) -> None:
    """Put another operator in the place of one, or a new node on a connection."""
    graph = rng.choice(_graphs(model))
    if not graph.node:
        return
    i = rng.randrange(len(graph.node))
    if rng.random() < 0.5:
        graph.node[i].op_type = rng.choice([*OPERATORS, "Identity", "Nonsense", ""])
        return
    name = f"inserted_{rng.randrange(10**6)}"
    inputs = [rng.choice(_names(model)) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    graph.node.insert(i, onnx.helper.make_node(rng.choice(OPERATORS), inputs, [name]))
    if graph.node[i + 1].input:
        graph.node[i + 1].input[rng.randrange(len(graph.node[i + 1].input))] = name


def attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give a node an attribute that its schema knows, or drop one, with a value of any type."""
    nodes = [node for graph in _graphs(model) for node in graph.node if onnx.defs.has(node.op_type)]
    if not nodes:
        return
    node = rng.choice(nodes)
    known = sorted(onnx.defs.get_schema(node.op_type).attributes)
    if node.attribute and rng.random() < 0.3:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif known:
        tensor = onnx.numpy_helper.from_array(np.array(rng.choice([0, 1.5, [1, 2], []]), np.float32))
        wild: list[Any] = [
            rng.choice(NUMBERS),
            rng.choice([-2, -1, 0, 1, 2, 3]),
            0.5,
            "CRD",
            [1, 1],
            [0.5],
            [-1],
            tensor,
        ]
        node.attribute.append(onnx.helper.make_attribute(rng.choice(known), rng.choice(wild)))


def versions(rng: random.Random, model: onnx.ModelProto) -> None:
    """Declare another opset or IR version, twice or not at all."""
    kind = rng.choice(["opset", "opset", "ir", "drop", "add", "function"])
    if kind == "ir":
        model.ir_version = rng.choice([0, 1, 2, 3, 4, 7, 8, 10, 11, 13, 14, 99, -1, 2**40])
    elif kind == "drop" and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif kind == "function" and model.functions:
        del rng.choice(model.functions).opset_import[:]
    elif kind == "add" or not model.opset_import:
        model.opset_import.add(
            domain=rng.choice(["", "ai.onnx", *WORDS]), version=rng.choice([-1, 0, 1, 13, 18, 2**40])
        )
    else:
        rng.choice(model.opset_import).version = rng.choice([*range(-1, 30), 2**31 - 1, 2**40])


def types(rng: random.Random, model: onnx.ModelProto) -> None:
    """Declare another type or shape of a value, or none."""
    values = [v for g in _graphs(model) for v in (*g.input, *g.output, *g.value_info)]
    if not values:
        return
    value = rng.choice(values)
    kind = rng.choice(["none", "shape", "rank", "size", "type", "sequence", "map", "optional", "sparse"])
    tensor = value.type.tensor_type
    if kind == "none":
        value.ClearField("type")
    elif kind == "shape":
        tensor.ClearField("shape")
    elif kind == "rank":
        for _ in range(rng.choice([1, 2, 9])):
            tensor.shape.dim.add(dim_value=rng.choice([0, 1, 3, -1]))
    elif kind == "size" and tensor.shape.dim:
        dim = rng.choice(tensor.shape.dim)
        dim.dim_value = rng.choice(NUMBERS)
        if rng.random() < 0.5:
            dim.dim_param = rng.choice([*WORDS, "N", "M"])
    elif kind == "type":
        tensor.elem_type = rng.choice([*range(-1, 30), 999])
    elif kind == "sequence":
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == "optional":
        value.type.optional_type.elem_type.tensor_type.elem_type = 1
    elif kind == "sparse":
        value.type.sparse_tensor_type.elem_type = 1
    else:
        value.type.map_type.key_type = rng.choice([7, 8, 1])
        value.type.map_type.value_type.tensor_type.elem_type = 1


def weights(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change an initializer: its numbers, type, shape, bytes or place."""
    graph = rng.choice([g for g in _graphs(model) if g.initializer] or [model.graph])
    if not graph.initializer:
        return
    i = rng.randrange(len(graph.initializer))
    tensor = graph.initializer[i]
    kind = rng.choice(
        [
            "dims",
            "dims",
            "bytes",
            "type",
            "cast",
            "values",
            "string",
            "input",
            "all",
            "constant",
            "sparse",
            "twice",
            "both",
        ]
    )
    if kind == "dims":
        sizes = [rng.choice([*NUMBERS, 1, 2, 3]) for _ in range(rng.choice([0, 1, 2, 3, 12]))]
        tensor.dims[:] = rng.choice(
            [sizes, [0, 5], [*tensor.dims, 1], [2**20, 2**20], [1] * 70, list(tensor.dims)[::-1]]
        )
    elif kind == "bytes":
        tensor.raw_data = bytes_of(rng, tensor.raw_data)
    elif kind == "type":
        tensor.data_type = rng.choice([*range(0, 27), 999])
    elif kind == "both":
        tensor.float_data.extend([1.0] * rng.choice([1, 3, 1000]))
    elif kind == "string":
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([b"a", "b", "\xe9"], object), tensor.name))
    elif kind == "input":
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    elif kind == "all":
        for other in graph.initializer:
            graph.input.append(onnx.helper.make_tensor_value_info(other.name, other.data_type, other.dims))
    elif kind == "constant":
        graph.node.insert(0, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
        del graph.initializer[i]
    elif kind == "sparse":
        indices = onnx.numpy_helper.from_array(np.arange(2), "i")
        values = onnx.numpy_helper.from_array(np.ones(2, np.float32), rng.choice([tensor.name, ""]))
        graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    elif kind == "twice":
        graph.initializer.append(tensor)
    else:
        _numbers(rng, tensor, kind)


def _numbers(rng: random.Random, tensor: onnx.TensorProto, kind: str) -> None:
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except Exception:
        return
    if kind == "cast":
        array = array.astype(rng.choice([np.float16, np.float64, np.int64, np.int8, bool, np.complex64, np.uint8]))
    elif array.size and array.dtype.kind == "f":
        array = np.array(array)
        array.flat[rng.randrange(array.size)] = rng.choice(FLOATS)
    elif array.dtype.kind == "i":
        array = np.full_like(array, rng.choice([-1, 0, 1, 2, 100]))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def ends(rng: random.Random, model: onnx.ModelProto) -> None:
    """Take inputs or outputs away, or give further ones."""
    graph = rng.choice(_graphs(model))
    values = rng.choice([graph.input, graph.output])
    kind = rng.choice(["none", "one", "twice", "further"])
    if kind == "none" or not values:
        del values[:]
    elif kind == "one":
        del values[rng.randrange(len(values))]
    elif kind == "twice":
        values.append(rng.choice(values))
    else:
        values.append(onnx.helper.make_tensor_value_info(rng.choice(_names(model)), rng.choice([1, 7, 11]), None))


def subgraphs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Drop the subgraph of a node, or give one to a node that has none."""
    found = [(n, a) for g in _graphs(model) for n in g.node for a in n.attribute if a.HasField("g")]
    if found and rng.random() < 0.6:
        node, attribute = rng.choice(found)
        if rng.random() < 0.5:
            node.attribute.remove(attribute)
        else:
            attribute.g.CopyFrom(rng.choice([onnx.GraphProto(), copy_of(model.graph)]))
    elif model.graph.node:
        rng.choice(model.graph.node).attribute.append(onnx.helper.make_attribute("body", copy_of(model.graph)))


def copies(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give the model what it has beside its graph: metadata, training information, annotations."""
    kind = rng.choice(["training", "metadata", "quantization", "domain", "function"])
    if kind == "training":
        model.training_info.add().algorithm.CopyFrom(copy_of(model.graph))
    elif kind == "metadata":
        model.metadata_props.add(key=rng.choice(WORDS), value=rng.choice(WORDS))
    elif kind == "quantization":
        model.graph.quantization_annotation.add(tensor_name=rng.choice(_names(model)))
    elif kind == "domain" and model.graph.node:
        rng.choice(model.graph.node).domain = rng.choice(WORDS)
    elif model.graph.node:
        node = rng.choice(model.graph.node)
        nodes = [copy_of(node)]
        imports = list(model.opset_import)
        made = onnx.helper.make_function(node.domain, node.op_type, list(node.input), list(node.output), nodes, imports)
        model.functions.append(made)


MUTATIONS: dict[str, tuple[Callable[[random.Random, onnx.ModelProto], None], int]] = {
    function.__name__: (function, weight)
    for function, weight in (
        *((field_of_message, 22), (rename, 7), (rewire, 7), (operator, 9), (attribute, 16), (versions, 5)),
        *((types, 10), (weights, 20), (ends, 5), (subgraphs, 4), (nest, 3), (laughs, 2), (many, 1), (copies, 4)),
    )
}


def mutate(rng: random.Random, model: onnx.ModelProto, count: int) -> list[str]:
    """Change a model in place by so many mutations; return their names."""
    names, chances = list(MUTATIONS), [weight for _, weight in MUTATIONS.values()]
    chosen = rng.choices(names, chances, k=count)
    for name in chosen:
        with contextlib.suppress(
            ValueError, TypeError, IndexError, OverflowError, DecodeError
        ):  # not all can be changed
            MUTATIONS[name][0](rng, model)
    return chosen
