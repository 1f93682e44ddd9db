"""Mutations that somebody would make who wants a reader of graphs to crash, to hang, or to misread.

Each function takes a generator of random numbers and the model, and changes it in place. What is random about a model
is changed by :mod:`tests.fuzz.mutations`; here it is built.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from google.protobuf.message import DecodeError

from tests.fuzz.messages import copy_of, messages
from tests.fuzz.values import NUMBERS, WORDS

make = onnx.helper.make_node
TYPES = [onnx.AttributeProto.AttributeType.Value(name) for name in onnx.AttributeProto.AttributeType.keys()]  # noqa: SIM118
METADATA = [
    *("onnxtrain/kept_type", "onnxtrain/fake_quantization", "onnxtrain/dynamic_quantization", "onnxtrain/one_hot"),
    *("onnxtrain/row_losses", "onnxtrain/stop_gradient", "onnxtrain/constant of x", "keras/BatchNormalization"),
    *("onnxtrain_sklearn.types_of_file", "onnxtrain_sklearn.table", "onnxtrain_sklearn.training", "exporter", "shares"),
    *("pkg.torch.export.ExportedProgram.graph_signature", "pkg.onnxscript.optimizer.folded_from"),
    *("pkg.torch.export.graph_signature.InputSpec.kind", "pkg.torch.export.graph_signature.InputSpec.target"),
    *("pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.original_node_name"),
]
"""Keys under which this package and exporters keep what they know."""

TOLD: list[Any] = [
    "", "FLOAT16", "NOTHING", "0", "-1", "True", "null", "[]", "{}", '{"a": 1}', '{"classes": 3, "columns": null}',
    "%x : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%y, %p, %b), kwargs = {})",
    "%x : [num_users=99999999999999999999] = call_function[target=](args = (((((((), kwargs = {", "(" * 5000,
    "['', 'a', 'b']", "['" * 2000, "p_a: PARAMETER target='a'\n# outputs", "é\0", "[" * 100_000,
]  # fmt: skip


def _output(model: onnx.ModelProto, value: str) -> None:
    """Let the first output be another value."""
    if model.graph.output:
        model.graph.output[0].name = value


def _first(model: onnx.ModelProto) -> str:
    return model.graph.output[0].name if model.graph.output else "x"


def recursive_functions(rng: random.Random, model: onnx.ModelProto) -> None:
    """Call functions in a circle, or define one function twice, or in place of an operator of the standard."""
    kind = rng.choice(["self", "circle", "twice", "standard"])
    imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("round", 1)]
    calls = {
        "self": [("a", "a")],
        "circle": [("a", "b"), ("b", "c"), ("c", "a")],
        "twice": [("a", "Neg"), ("a", "Tanh")],
    }
    if kind == "standard":
        nodes = [node for node in model.graph.node if node.domain == ""]
        name = rng.choice(nodes).op_type if nodes else "Neg"
        model.functions.append(
            onnx.helper.make_function("", name, ["x"], ["y"], [make("Neg", ["x"], ["y"])], imports[:1])
        )
        return
    for name, inner in calls[kind]:
        domain = "" if inner in ("Neg", "Tanh") else "round"
        body = [make(inner, ["x"], ["y"], domain=domain)]
        model.functions.append(onnx.helper.make_function("round", name, ["x"], ["y"], body, imports))
    model.graph.node.append(make("a", [_first(model)], ["rounded"], domain="round"))
    model.opset_import.add(domain="round", version=1)
    _output(model, "rounded")


def signatures(rng: random.Random, model: onnx.ModelProto) -> None:
    """Call a function with more or fewer operands than it has, with attributes that it lacks, or names twice."""
    inputs, outputs = rng.choice(
        [(["x"], ["y"]), (["x", "x"], ["y"]), (["x", ""], ["y", "y"]), ([], ["y"]), (["x"], [])]
    )
    body = [make("LeakyRelu", ["x"], ["y"])]
    body[0].attribute.add(name="alpha", ref_attr_name=rng.choice(["slope", "", "nowhere"]), type=rng.choice(TYPES))
    made = onnx.helper.make_function("own", "odd", inputs, outputs, body, [onnx.helper.make_opsetid("", 18)])
    if rng.random() < 0.5:
        made.attribute.append(rng.choice(["slope", "", "alpha"]))
    if rng.random() < 0.5:
        made.attribute_proto.append(onnx.helper.make_attribute("slope", rng.choice([0.5, 1, "s", [0.5], [1]])))
    model.functions.append(made)
    model.opset_import.add(domain="own", version=1)
    given = [_first(model)] * rng.choice([0, 1, 1, 2, 5])
    results = ["odd", "odd2", ""][: rng.choice([0, 1, 1, 2, 3])]
    settings = rng.choice([{}, {"slope": 0.5}, {"slope": "s"}, {"slope": [1]}, {"other": 1}])
    model.graph.node.append(make("odd", given, results, domain="own", **settings))
    _output(model, "odd")


def references(rng: random.Random, model: onnx.ModelProto) -> None:
    """Refer to an attribute of a function where there is none."""
    nodes = list(model.graph.node)
    if not nodes:
        return
    node = rng.choice(nodes)
    if node.attribute and rng.random() < 0.7:
        rng.choice(node.attribute).ref_attr_name = rng.choice(["alpha", "", "x", "nowhere"])
    else:
        node.attribute.add(name=rng.choice(["alpha", "axis", "to", "value"]), ref_attr_name="x", type=rng.choice(TYPES))


def shadows(rng: random.Random, model: onnx.ModelProto) -> None:
    """Put a body around the first output whose names are those of the graph around it."""
    first, weights = _first(model), [t.name for t in model.graph.initializer] or ["w"]
    inner = rng.choice([first, rng.choice(weights), "shadow", ""])
    value = onnx.ValueInfoProto()
    if model.graph.output:
        value.CopyFrom(model.graph.output[0])
    value.name = inner
    held = [onnx.numpy_helper.from_array(np.ones(2, np.float32), rng.choice([*weights, inner, first]))]
    branch = onnx.helper.make_graph(
        [make("Identity", [first], [inner])], "branch", [], [value], held if rng.random() < 0.5 else []
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    results = rng.choice([["chosen"], [first], ["chosen", "chosen"], ["chosen", ""], []])
    if rng.random() < 0.5:
        node = make("If", ["yes"], results, then_branch=branch, else_branch=branch)
    else:
        go, i = (
            onnx.helper.make_tensor_value_info(n, t, []) for n, t in (("go", 9), (rng.choice(["i", "go", first]), 7))
        )
        state = copy_of(value)
        state.name = rng.choice(["s", "go", first, *weights])
        body = onnx.helper.make_graph([make("Identity", [state.name], [inner])], "b", [i, go, state], [go, value], held)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(rng.choice([2, 0, -1])), "trips"))
        node = make(
            "Loop", [rng.choice(["trips", ""]) if rng.random() < 0.1 else "trips", "yes", first], results, body=body
        )
    model.graph.node.append(node)
    _output(model, results[0] if results else "chosen")


def sizes(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let a weight tell of more numbers than it has bytes, none, or a product that overflows."""
    tensors = [m for m in messages(model) if isinstance(m, onnx.TensorProto)]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    kind = rng.choice(["dims", "empty", "field", "two", "segment", "small type", "string"])
    if kind == "dims":
        tensor.dims[:] = rng.choice(
            [[2**31, 2**31], [2**32, 2**32], [2**62, 4], [-1], [-1, -1], [0, 2**62], [2**63 - 1], [1] * 200, [3, -1, 0]]
        )
    elif kind == "empty":
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    elif kind == "field":
        numbers = rng.choice(["int32_data", "int64_data", "double_data", "uint64_data", "float_data"])
        tensor.ClearField("raw_data")
        getattr(tensor, numbers).extend([1] * rng.choice([1, 2, 12]))
    elif kind == "two":
        tensor.raw_data = tensor.raw_data + tensor.raw_data
    elif kind == "segment":
        tensor.segment.begin, tensor.segment.end = rng.choice([(0, 1), (5, 2), (-1, 2**62)])
    elif kind == "small type":
        tensor.data_type = rng.choice([21, 22, 23, 17, 18, 19, 20, 16, 10, 0, 24, 25, 26])
    else:
        tensor.data_type = onnx.TensorProto.STRING
        tensor.string_data[:] = [b"\xff\xfe", b"", b"x" * 1000]


def places(rng: random.Random, model: onnx.ModelProto) -> None:
    """Keep a weight, or a Constant in a body or a function, in a file that bytes cannot name."""
    tensors = [m for m in messages(model) if isinstance(m, onnx.TensorProto)]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")
    for key in rng.sample(["location", "offset", "length", "checksum", "location"], rng.choice([0, 1, 3])):
        tensor.external_data.add(
            key=key, value=rng.choice(["/etc/passwd", "../x", "x", "0", "-1", str(2**64), "", "1e3"])
        )


def sparse(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give sparse weights whose indices are out of range, not sorted, of another rank or type."""
    indices: list[Any] = [[0, 1], [1, 0], [0, 0], [-1, 0], [0, 2**40], [[0, 1], [1, 0]], [], [0.5, 1.0]]
    where = onnx.numpy_helper.from_array(np.array(rng.choice(indices)), "i")
    names = [t.name for t in model.graph.initializer] or ["w"]
    values = onnx.numpy_helper.from_array(
        np.ones(rng.choice([0, 1, 2, 5]), np.float32), rng.choice([*names, "", "new"])
    )
    made = onnx.helper.make_sparse_tensor(values, where, rng.choice([[4], [2, 2], [0], [2**40, 2**40], [-1], []]))
    kind = rng.choice(["initializer", "constant", "attribute", "body"])
    if kind == "initializer":
        model.graph.sparse_initializer.append(made)
        return
    node = make("Constant", [], ["sparse"])
    attribute = node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(made)
    if kind == "attribute" and model.graph.node:
        rng.choice(model.graph.node).attribute.append(attribute)
    else:
        model.graph.node.insert(0, node)
        if rng.random() < 0.5:
            model.graph.node.append(make("Mul", [_first(model), "sparse"], ["thin"]))
            _output(model, "thin")


def training(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add training information that binds what there is not, or the model's own graph."""
    info = model.training_info.add()
    names = [t.name for t in model.graph.initializer] or ["w"]
    for graph in (info.algorithm, info.initialization):
        if rng.random() < 0.6:
            graph.CopyFrom(copy_of(model.graph))
    for bindings in (info.update_binding, info.initialization_binding):
        for _ in range(rng.choice([0, 1, 2])):
            bindings.add(key=rng.choice([*names, "", "nowhere"]), value=rng.choice([_first(model), "nowhere", ""]))


def annotations(rng: random.Random, model: onnx.ModelProto) -> None:
    """Annotate values that there are not, with parameters of quantization that are none."""
    names = [t.name for t in model.graph.initializer] or ["w"]
    note = model.graph.quantization_annotation.add(tensor_name=rng.choice([*names, "", "nowhere"]))
    for key in rng.sample(["SCALE_TENSOR", "ZERO_POINT_TENSOR", "", "x", "SCALE_TENSOR"], rng.choice([0, 1, 3])):
        note.quant_parameter_tensor_names.add(key=key, value=rng.choice([*names, "", "nowhere"]))


def told(rng: random.Random, model: onnx.ModelProto) -> None:
    """Say under the keys of this package and of exporters what is not so."""
    kinds = (
        onnx.ModelProto,
        onnx.GraphProto,
        onnx.NodeProto,
        onnx.ValueInfoProto,
        onnx.TensorProto,
        onnx.FunctionProto,
    )
    every = [m for m in messages(model) if isinstance(m, kinds)]
    declared = [m for m in every if isinstance(m, onnx.ValueInfoProto | onnx.TensorProto)]
    for _ in range(rng.choice([1, 1, 3, 10])):
        message: Any = rng.choice(rng.choice([every, declared or every]))
        wild = json.dumps(
            {rng.choice(["classes", "columns", "inputs", "x"]): rng.choice([None, 3, [], "é", [[1]], {}])}
        )
        message.metadata_props.add(key=rng.choice(METADATA), value=rng.choice([*TOLD, wild]))
    if rng.random() < 0.4:
        model.producer_name = rng.choice(["pytorch", "tf2onnx", "skl2onnx", "keras", "onnxtrain_sklearn", "jax2onnx"])


def imports(rng: random.Random, model: onnx.ModelProto) -> None:
    """Import operators twice, in other versions, of domains that nobody knows, or not at all."""
    kind = rng.choice(["both", "none", "huge", "many", "functions"])
    if kind == "both":
        model.opset_import.add(domain=rng.choice(["", "ai.onnx"]), version=rng.choice([1, 7, 11, 13, 18, 25, 2**40]))
    elif kind == "none":
        del model.opset_import[:]
    elif kind == "huge":
        for one in model.opset_import:
            one.version = rng.choice([0, -1, 2**31, 2**63 - 1, -(2**63), 1, 999])
    elif kind == "many":
        for i in range(rng.choice([10, 3000])):
            model.opset_import.add(domain=f"d{i}", version=i)
    else:
        for function in model.functions:
            function.opset_import.add(domain="", version=rng.choice([1, 6, 7, 12, 13, 28, -1]))


def kinds_of_attributes(rng: random.Random, model: onnx.ModelProto) -> None:
    """Give an attribute another kind than its content has, none, twice, or content of every kind."""
    nodes = [node for graph in messages(model) if isinstance(graph, onnx.GraphProto) for node in graph.node]
    held = [a for node in nodes for a in node.attribute]
    if not held:
        return
    attribute = rng.choice(held)
    kind = rng.choice(["type", "type", "every", "name", "twice", "list"])
    if kind == "type":
        attribute.type = rng.choice(TYPES)
    elif kind == "every":
        attribute.f, attribute.i, attribute.s = 0.5, 2, b"\xff"
        attribute.ints.extend([1, 2**62])
        attribute.floats.append(float("nan"))
        attribute.strings.append(b"\xfe")
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.ones(2)))
    elif kind == "name":
        attribute.name = rng.choice(["", "axis", "value", "n" * 5000, "body", "\0"])
    elif kind == "twice":
        next(node for node in nodes if attribute in node.attribute).attribute.append(copy_of(attribute))
    else:
        attribute.ints[:] = rng.choice([[], [2**63 - 1], [-(2**63)], [0] * 10000, [-1, -1]])
        attribute.type = onnx.AttributeProto.INTS


def names(rng: random.Random, model: onnx.ModelProto) -> None:
    """Take names away, or give two values or ends the same one."""
    kind = rng.choice(["empty output", "empty input", "graph", "initializer", "own input", "direct", "same", "long"])
    nodes, graph = list(model.graph.node), model.graph
    node = rng.choice(nodes) if nodes else None
    if kind == "empty output" and node is not None and node.output:
        node.output[rng.randrange(len(node.output))] = ""
    elif kind == "empty input" and node is not None and node.input:
        node.input[rng.randrange(len(node.input))] = ""
    elif kind == "graph":
        graph.name = ""
    elif kind == "initializer" and graph.initializer:
        rng.choice(graph.initializer).name = ""
    elif kind == "own input" and node is not None and node.input and node.output:
        node.output[0] = node.input[0]
    elif kind == "direct" and (graph.initializer or graph.input):
        graph.output.insert(0, copy_of(graph.output[0] if graph.output else graph.input[0]))
        graph.output[0].name = rng.choice([*(t.name for t in graph.initializer), *(v.name for v in graph.input)])
    elif kind == "same" and graph.input:
        graph.input[0].name = rng.choice([_first(model), *(t.name for t in graph.initializer)])
    elif node is not None:
        node.name = rng.choice(["n" * 200_000, "\x1b[2J", "a\0b"])


def allocations(rng: random.Random, model: onnx.ModelProto) -> None:
    """Compute values of a size that no machine has, from a few bytes."""
    first, huge = _first(model), rng.choice([2**20, 2**31, 2**40, 2**62, -1])

    def constant(array: Any, name: str) -> str:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    big, two = constant([huge], "huge"), constant([huge, huge], "huge twice")
    scalar, zero, one = constant(huge, "huge number"), constant(0, "zero number"), constant(1, "one number")
    nodes = {
        "fill": [make("ConstantOfShape", [rng.choice([big, two])], ["a"])],
        "range": [make("Range", [zero, scalar, one], ["b"]), make("Cast", ["b"], ["a"], to=1)],
        "expand": [make("ReduceSum", [first], ["b"], keepdims=0), make("Expand", ["b", rng.choice([big, two])], ["a"])],
        "tile": [make("Flatten", [first], ["b"]), make("Tile", ["b", two], ["a"])],
        "one hot": [make("OneHot", [constant([1], "row"), scalar, constant(np.float32([0, 1]), "off")], ["a"])],
        "pad": [make("Flatten", [first], ["b"]), make("Pad", ["b", constant([0, 0, 0, huge], "pads")], ["a"])],
        "resize": [make("Flatten", [first], ["b"]), make("Resize", ["b", "", "", two], ["a"])],
        "random": [make("RandomNormal", [], ["a"], shape=[huge, huge])],
        "loop": [make("Identity", [first], ["a"])],
    }
    made = nodes[rng.choice(sorted(nodes))]
    model.graph.node.extend(
        [*made, make("ReduceSum", ["a"], ["all"], keepdims=0), make("Add", [first, "all"], ["grown"])]
    )
    _output(model, "grown")


def declared(rng: random.Random, model: onnx.ModelProto) -> None:
    """Declare sizes and types that contradict one another or the numbers."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    kind = rng.choice(["symbols", "twice", "negative", "weights", "optional"])
    if kind == "symbols":
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if rng.random() < 0.5:
                    dim.dim_param = rng.choice(["N", "M", "", "N*2", "N + 1", "-1", "unk__0", "3", "n" * 3000])
    elif kind == "twice":
        for node in model.graph.node:
            for name in node.output:
                model.graph.value_info.append(
                    onnx.helper.make_tensor_value_info(
                        name, rng.choice([1, 7, 8, 11]), rng.choice([None, [], [7], ["N", 2]])
                    )
                )
    elif kind == "weights":
        for tensor in model.graph.initializer:
            model.graph.value_info.append(onnx.helper.make_tensor_value_info(tensor.name, 11, [99]))
    elif values:
        value = rng.choice(values)
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = rng.choice([-1, 0, 2**62, *NUMBERS])
        if kind == "optional":
            value.type.optional_type.elem_type.sequence_type.elem_type.tensor_type.elem_type = 1
    if rng.random() < 0.1:
        model.graph.doc_string = rng.choice(WORDS)


ATTACKS: dict[str, Callable[[random.Random, onnx.ModelProto], None]] = {
    function.__name__: function
    for function in (
        *(recursive_functions, signatures, references, shadows, sizes, places, sparse, training, annotations, told),
        *(imports, kinds_of_attributes, names, allocations, declared),
    )
}


def attack(rng: random.Random, model: onnx.ModelProto) -> list[str]:
    """Change a model in place by one or two attacks; return their names."""
    chosen = rng.choices(list(ATTACKS), k=rng.choice([1, 1, 1, 2]))
    for name in chosen:
        with contextlib.suppress(
            ValueError, TypeError, IndexError, OverflowError, DecodeError
        ):  # not all can be changed
            ATTACKS[name](rng, model)
    return chosen
