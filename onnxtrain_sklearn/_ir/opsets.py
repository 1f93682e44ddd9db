"""Convert models to a supported opset and IR version, and inline functions, so that every operator keeps its meaning.

:func:`readable` converts a model that was read, :func:`in_opset` a model to a newer opset, and :func:`inlined` replaces
the calls of functions. ONNX's converter does the conversion, or the model is refused: no graph is interpreted by the
rules of another opset. But ONNX's converter and its inliner silently change the meaning of a few nodes, and do not read
the forms of the oldest opsets. :func:`converted` writes such nodes in another form before and after the converter, or
refuses them, and :func:`without_old_forms` renews the oldest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.inliner
import onnx.numpy_helper
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir

from .._ort import sessions
from .._ort.sessions import SupportedVersions
from .._utils.errors import reason
from ..exceptions import ModelError
from ..graph import INT64, Names
from .files import require_whole
from .protobuf import from_proto
from .queries import all_values, every_node
from .shapes import infer_shapes

MIN_OPSET, MAX_OPSET = 11, 26
"""The opsets that the gradients are tested with; later ones add settings to operators (28: SpaceToDepth)."""

OLDEST_IR = 4
"""Oldest IR version that graphs get: in earlier versions, initializers had to be inputs too."""

OLD_OPSET, RENEWED_OPSET = 13, 18
"""Graphs below the first opset that are to be rewritten are converted to the second."""

TYPES_SINCE = {
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
"""Element types that were added after IR version 10: type -> version."""


def readable(proto: onnx.ModelProto, supported: SupportedVersions | None = None, *, renew: bool = False) -> ir.Model:
    """Return the model in supported versions, converted if necessary; ``renew`` converts old opsets upwards.

    ``supported`` are by default those of the installed onnxruntime.
    """
    opset = _opset_of_proto(proto)
    if supported is None and opset < OLD_OPSET:  # the model may be converted, and errors name the supported versions
        supported = sessions.supported_versions()
    elif supported is None:
        ml_opset = max((o.version for o in proto.opset_import if o.domain == "ai.onnx.ml"), default=0)
        supported = sessions.versions_for(opset=opset, ml_opset=ml_opset, ir_version=proto.ir_version)
    least = RENEWED_OPSET if renew and opset < OLD_OPSET else MIN_OPSET
    model = from_proto(_in_opset_range(without_old_forms(proto), supported, least))
    _name_nodes(model.graph)  # the converter drops names
    ml_opset = model.opset_imports.get("ai.onnx.ml", 0)
    if ml_opset > supported.ml_opset and any(node.domain == "ai.onnx.ml" for node in every_node(model.graph)):
        raise ModelError(  # ONNX has no converter for this domain
            f"The graph is of opset {ml_opset} of ai.onnx.ml; {supported.runtime} reads opsets up to "
            f"{supported.ml_opset}. Export the model again with one of these, or use a newer onnxruntime."
        )
    # Lower the IR version to the newest supported one, unless the graph uses newer element types.
    model.ir_version = max(model.ir_version, OLDEST_IR)
    newest = supported.ir_version
    if model.ir_version > newest:
        infer_shapes(model)  # to know the types
        newer = [v for v in all_values(model) if v.dtype is not None and TYPES_SINCE.get(v.dtype, 0) > newest]
        if newer:
            raise ModelError(
                f"The graph is of IR version {model.ir_version} and uses {newer[0].dtype} in {newer[0].name!r}, which "
                f"IR version {newest}, the newest that {supported.runtime} reads, lacks."
            )
        model.ir_version = newest
    return model


def _in_opset_range(proto: onnx.ModelProto, supported: SupportedVersions, least: int) -> onnx.ModelProto:
    """Convert the default opset into the range that can be trained, or raise ModelError."""
    opset = _opset_of_proto(proto)
    newest = min(MAX_OPSET, supported.opset)
    target = min(max(opset, least), newest)
    if opset == target:
        return proto
    try:
        result = converted(proto, target)
    except Exception as error:
        other = " or use a newer onnxruntime" if newest < opset <= MAX_OPSET else ""
        raise ModelError(
            f"The graph is of opset {opset}; {supported.runtime} can train opsets {MIN_OPSET} to {newest}, and ONNX's "
            f"converter cannot bring it to {target}: {reason(error)}. Export the model again with an opset in that "
            f"range (18 is a good choice){other}."
        ) from error
    # Restore the exporters' metadata, which the converter drops and the importers need. First outputs identify nodes.
    nodes = {node.output[0]: node for node in proto.graph.node if node.output}
    values = {value.name: value for value in proto.graph.value_info}
    for node in (node for node in result.graph.node if node.output and node.output[0] in nodes):
        node.metadata_props.extend(nodes[node.output[0]].metadata_props)
    kept = {value.name for value in result.graph.value_info}
    result.graph.metadata_props.extend(proto.graph.metadata_props)
    result.graph.value_info.extend(v for name, v in values.items() if v.metadata_props and name not in kept)
    return result


def in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in a newer default opset, with inferred shapes; ModelError if ONNX's converter fails."""
    try:
        proto = converted(ir.to_proto(model), opset)
    except Exception as error:
        raise ModelError(f"ONNX's converter cannot bring the graph to opset {opset}: {reason(error)}") from error
    result = from_proto(proto)
    _name_nodes(result.graph)
    return infer_shapes(result)


def _name_nodes(graph: ir.Graph) -> None:
    names = Names()
    for node in every_node(graph):
        node.name = names.free(node.name, 0) if node.name else names.numbered(node.op_type, 0)


# Conversion to another opset without a change of meaning.
#
# ONNX's converter leaves the nodes of :data:`CHANGES` as they are, or converts them wrongly, without an error.


COERCING = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Operators that flatten their input to a matrix at their axis before opset 13, and work along the axis since then."""

CHANGES = {
    **dict.fromkeys(COERCING, 13),
    "BatchNormalization": 14,
    "GroupNormalization": 21,
    "Resize": 11,
    "Scan": 9,
    "Upsample": 10,
}
"""The opset in which the meaning of an operator changed: an unchanged node computes something else from there on."""


def converted(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return the model, checked, in another default opset; raise the error of the converter, or ModelError."""
    own = _opset_of_proto(require_whole(proto, "ONNX's converter of opsets"))
    affected = [node for graph in graphs_of(proto.graph) for node in graph.node if _changes(node, own, opset)]
    doubles = set[str]()
    if affected or own < CHANGES["Resize"] <= opset:
        copy = deepcopy(proto)
        proto = copy
        types = _types(proto)
        doubles = {name for name, kind in types.items() if kind.elem_type == onnx.TensorProto.DOUBLE}
        for graph in graphs_of(proto.graph):
            nodes = list(graph.node)
            del graph.node[:]
            for node in nodes:
                graph.node.extend(_kept(node, nodes, own, opset, types) if _changes(node, own, opset) else [node])
    result = onnx.version_converter.convert_version(proto, opset)
    if own < CHANGES["Resize"] <= opset:
        for graph in graphs_of(result.graph):
            _resize_as_before(graph)
            _widen_bounds(graph, doubles)
    onnx.checker.check_model(result)
    return result


def _opset_of_proto(proto: onnx.ModelProto | onnx.FunctionProto) -> int:
    return int(next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0))


def _changes(node: onnx.NodeProto, own: int, other: int) -> bool:
    low, high = sorted((own, other))
    return node.domain in ("", "ai.onnx") and low < CHANGES.get(node.op_type, 0) <= high


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yield a GraphProto or FunctionProto and the graphs in its nodes, each before those inside it."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from graphs_of(inner)


def _types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Return the types of values as far as they are known."""
    found: dict[str, onnx.TypeProto.Tensor] = {}
    for graph in graphs_of(onnx.shape_inference.infer_shapes(proto).graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            found[value.name] = value.type.tensor_type
        for tensor in graph.initializer:
            found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    return found


def _kept(
    node: onnx.NodeProto,
    nodes: list[onnx.NodeProto],
    own: int,
    opset: int,
    types: Mapping[str, onnx.TypeProto.Tensor],
) -> list[onnx.NodeProto]:
    """Return nodes that the converter turns into equivalents of ``node``; raise ModelError if no such nodes exist.

    ``own`` is the opset of the node and ``opset`` the new one. ``nodes`` are all nodes of its graph.
    """
    if node.op_type in COERCING:
        kind = types.get(node.input[0])
        rank = len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None
        return _kept_softmax(node, nodes, own < opset, rank)
    if (node.op_type == "Resize" and own < opset) or node.op_type == "Upsample":
        return [node]
    if node.op_type == "BatchNormalization":
        mode = _number(node, "training_mode", 0)
        if not mode and not any(node.output[1:]):
            return [node]
        raise _refused(node, own, opset, "it computes the statistics of the batch")
    why = {
        "GroupNormalization": "its scales were those of groups, and are those of channels since then",
        "Scan": "its first axis was that of the rows, and there is none since then",
        "Resize": "its coordinates were others",
    }
    raise _refused(node, own, opset, why[node.op_type])


def _kept_softmax(
    node: onnx.NodeProto, nodes: list[onnx.NodeProto], upwards: bool, rank: int | None
) -> list[onnx.NodeProto]:
    """Return a softmax along the same axes; ``nodes`` are the nodes of its graph."""
    given = _number(node, "axis", 1 if upwards else -1)
    axis = given + rank if given < 0 and rank is not None else given
    is_last = given == -1 or (rank is not None and axis == rank - 1)
    if upwards:
        if is_last:
            return [_with_axis(node, -1 if rank is None else rank - 1)]
        return _flattened(node, given)
    others = {name for other in nodes if other.op_type == "Reshape" for name in other.input}
    flattened = any(other.op_type == "Flatten" and node.input[0] in other.output for other in nodes)
    if not is_last or rank is None or flattened or node.output[0] in others:  # the converter removes these
        raise _refused(node, 13, 12, "it works along an axis, and on a matrix before")
    return [_with_axis(node, rank - 1)]


def _with_axis(node: onnx.NodeProto, axis: int) -> onnx.NodeProto:
    result = deepcopy(node)
    _drop(result, "axis")
    result.attribute.append(onnx.helper.make_attribute("axis", axis))
    return result


def _flattened(node: onnx.NodeProto, axis: int) -> list[onnx.NodeProto]:
    """Return the node on a matrix, whose columns are the axes from ``axis`` on."""
    x, y = node.input[0], node.output[0]
    inner = _with_axis(node, 1)
    inner.input[0], inner.output[0] = f"{y}/matrix", f"{y}/of_matrix"
    return [
        onnx.helper.make_node("Shape", [x], [f"{y}/shape"]),
        onnx.helper.make_node("Flatten", [x], [f"{y}/matrix"], axis=axis),
        inner,
        onnx.helper.make_node("Reshape", [f"{y}/of_matrix", f"{y}/shape"], [y]),
    ]


def _refused(node: onnx.NodeProto, own: int, opset: int, why: str) -> ModelError:
    return ModelError(
        f"{proto_label(node)} means something else in opset {opset} than in opset {own}, and cannot be converted: "
        f"{why}. Export the model again in an opset from 18 on."
    )


def proto_label(node: onnx.NodeProto) -> str:
    """Return the operator and the name of a node, or its first output if it has none."""
    return f"{node.op_type} node {node.name or next(iter(node.output), '')!r}"


def _resize_as_before(graph: onnx.GraphProto) -> None:
    """Restore the coordinates of nodes that were Upsample, or Resize of opset 10, in place.

    The converter makes them "half_pixel". In earlier opsets, the position in the input is the number of the pixel
    divided by the scale, rounded down along an axis that grows, and up along an axis that shrinks.
    """
    nodes = list(graph.node)
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in nodes:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            known[node.output[0]] = onnx.numpy_helper.to_array(value)
    del graph.node[:]
    for node in nodes:
        graph.node.extend(_as_before(node, known) if node.op_type == "Resize" else [node])


def _as_before(node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> list[onnx.NodeProto]:
    node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    if next((a.s for a in node.attribute if a.name == "mode"), b"nearest") != b"nearest":
        return [node]
    scales, x, y = node.input[2], node.input[0], node.output[0]
    sizes = known.get(scales)
    if sizes is not None and ((sizes >= 1).all() or (sizes <= 1).all()):
        node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor" if (sizes >= 1).all() else "ceil"))
        return [node]
    # Some axes may grow and others shrink: resize twice, first along those that grow.
    grow, shrink = onnx.NodeProto(), onnx.NodeProto()
    for other, mode in ((grow, "floor"), (shrink, "ceil")):
        other.CopyFrom(node)
        other.attribute.append(onnx.helper.make_attribute("nearest_mode", mode))
    shrink.name = ""
    grow.input[:], grow.output[:] = [x, node.input[1], f"{y}/grown_scales"], [f"{y}/grown"]
    shrink.input[:] = [f"{y}/grown", node.input[1], f"{y}/shrunk_scales"]
    if sizes is not None:
        return [
            _constant(f"{y}/grown_scales", np.maximum(sizes, 1)),
            _constant(f"{y}/shrunk_scales", np.minimum(sizes, 1)),
            grow,
            shrink,
        ]
    return [
        _constant(f"{y}/one", np.ones(1, np.float32)),
        onnx.helper.make_node("Max", [scales, f"{y}/one"], [f"{y}/grown_scales"]),
        onnx.helper.make_node("Min", [scales, f"{y}/one"], [f"{y}/shrunk_scales"]),
        grow,
        shrink,
    ]


def _constant(name: str, numbers: np.ndarray) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(numbers))


def _widen_bounds(graph: onnx.GraphProto, doubles: set[str]) -> None:
    """Convert constants that were attributes of Clip and Pad to float64 if the operands are, in place."""
    read = {
        name
        for node in graph.node
        if node.op_type in ("Clip", "Pad") and node.input[0] in doubles
        for name in node.input[1:]
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in read:
            for attribute in node.attribute:
                if attribute.t.data_type == onnx.TensorProto.FLOAT:
                    wide = onnx.numpy_helper.to_array(attribute.t).astype(np.float64)
                    attribute.t.CopyFrom(onnx.numpy_helper.from_array(wide))


# Functions: calls of local functions are replaced by their bodies, without a change of meaning.
#
# ONNX's inliner ignores the default values of attributes, and copies the constants of a function for each call.


_CONSTANT_OF = "onnxtrain/constant of "
"""Prefix of the doc_string that marks a function's constant during inlining, because the inliner keeps doc_strings."""


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the bodies of its functions in place of their calls."""
    if not proto.functions:
        return proto
    result = onnx.shape_inference.infer_shapes(proto)
    functions = {_key(function): function for function in result.functions}
    opset = _opset_of_proto(result)
    for function in functions.values():
        own = _opset_of_proto(function)
        for node in (node for graph in graphs_of(function) for node in graph.node):
            if own and opset and _changes(node, own, opset):
                raise ModelError(
                    f"{proto_label(node)} in the function {function.name!r} of opset {own} means something else in "
                    f"opset {opset}, that of the graph; runtimes differ in which of them they take. Export the model "
                    f"with one opset for both."
                )
    for graph in (graph for whole in (result.graph, *functions.values()) for graph in graphs_of(whole)):
        for node in graph.node:
            if (called := functions.get((node.domain, node.op_type, node.overload))) is not None:
                _fill_defaults(node, called, functions)
    for function in functions.values():
        for i, node in enumerate(node for graph in graphs_of(function) for node in graph.node):
            if node.op_type == "Constant" and not node.domain and not any(a.ref_attr_name for a in node.attribute):
                node.doc_string = f"{_CONSTANT_OF}{'/'.join(_key(function))}/{i}\n{node.doc_string}"
    return _with_shared_constants(onnx.inliner.inline_local_functions(result, convert_version=True))


def _with_shared_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Join the copies of each constant of a function that is called several times, in place.

    A weight of a function that is called twice is one weight: a copy for each call would be trained on its own.
    """
    graphs = list(graphs_of(model.graph))
    first: dict[str, onnx.NodeProto] = {}
    same: dict[str, str] = {}
    for graph in graphs:
        for node in graph.node:
            if node.doc_string.startswith(_CONSTANT_OF):
                mark, _, node.doc_string = node.doc_string.partition("\n")
                if not any(node.output[0] == output.name for output in graph.output):  # outputs keep their names
                    if mark not in first:
                        first[mark] = deepcopy(node)
                    same[node.output[0]] = first[mark].output[0]
    called_again = {name for copy, name in same.items() if copy != name}
    for graph in graphs:
        for node in graph.node:
            node.input[:] = [same.get(name, name) for name in node.input]
    for graph in graphs:
        for k in reversed(range(len(graph.node))):
            if graph.node[k].op_type == "Constant" and same.get(graph.node[k].output[0]) in called_again:
                del graph.node[k]
    for node in (node for node in first.values() if node.output[0] in called_again):
        model.graph.node.insert(0, node)  # before all nodes that read the constant, also in bodies
    return model


def _key(function: onnx.FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _fill_defaults(
    node: onnx.NodeProto,
    called: onnx.FunctionProto,
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto],
) -> None:
    """Give a call the default values of the attributes that it leaves out, in place."""
    given = {a.name for a in node.attribute}
    node.attribute.extend(a for a in called.attribute_proto if a.name not in given)
    missing = set(called.attribute) - given
    for inner in (inner for graph in graphs_of(called) for inner in graph.node):
        further = functions.get((inner.domain, inner.op_type, inner.overload))
        defaults = set() if further is None else {a.name for a in further.attribute_proto}
        for attribute in inner.attribute:  # an attribute that the call leaves out is left out inside too, for a default
            if attribute.ref_attr_name in missing and attribute.name in defaults:
                raise ModelError(
                    f"{proto_label(node)} calls a function without its attribute {attribute.ref_attr_name!r}, which "
                    f"{proto_label(inner)} in it passes on as {attribute.name!r}. Give it a value."
                )


# Old forms that ONNX's converter cannot read are rewritten in the same opset.
#
# Before opset 7, ``broadcast=1, axis=k`` aligned the second operand with the axes of the first from ``k`` on. Before
# opset 9, ``spatial=0`` gave each element of a row statistics of its own. Before IR version 4, initializers were inputs
# too, and the converter adds some that are not.


LISTED_IR = 4
"""The first IR version in which initializers need not be inputs."""

BROADCASTING = 7
"""The first opset in which operands broadcast as in NumPy."""

RESHAPES = 5
"""The first opset in which Reshape takes the shape as an input."""

CHANGED = frozenset("Add And Div Equal Gemm Greater Less Mul Or PRelu Pow Sub Xor".split())
"""The operators that broadcast by attributes in earlier opsets."""

ROWS = 97
"""Size of free axes while a model is converted: the converter to opset 7 takes fixed axes only."""


def without_old_forms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without old forms that the converter cannot read; the same object if it has none."""
    opset = _opset_of_proto(proto)
    old = opset < 11 and proto.ir_version < LISTED_IR
    broadcasts = opset < BROADCASTING and any(node.op_type in CHANGED for node in proto.graph.node)
    elementwise = opset < 9 and any(_number(node, "spatial", 1) == 0 for node in proto.graph.node)
    if not (old or broadcasts or elementwise):
        return proto
    result = deepcopy(proto)
    result.ir_version = max(result.ir_version, LISTED_IR)
    if broadcasts or elementwise:
        ranks = _ranks(proto)
        uses = Counter(name for node in proto.graph.node for name in node.input)
        nodes = list(result.graph.node)
        del result.graph.node[:]
        for node in nodes:
            if node.op_type == "BatchNormalization" and _number(node, "spatial", 1) == 0:
                result.graph.node.extend(_over_elements(result.graph, node, ranks, uses, opset))
            else:
                result.graph.node.extend(_aligned(node, ranks) if _number(node, "broadcast", 0) else [node])
    if opset >= BROADCASTING:
        return result
    # Convert to opset 7 as if free axes were fixed, and give inputs and outputs their own shapes back.
    fixed = deepcopy(result)
    del fixed.graph.value_info[:]
    for value in (*fixed.graph.input, *fixed.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.dim_value = ROWS
    renewed = onnx.version_converter.convert_version(fixed, BROADCASTING)
    del renewed.graph.value_info[:]
    declared = {value.name: value for value in (*result.graph.input, *result.graph.output)}
    for value in (*renewed.graph.input, *renewed.graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    return renewed


def _aligned(node: onnx.NodeProto, ranks: dict[str, int]) -> list[onnx.NodeProto]:
    """Return nodes that broadcast as NumPy does: one that adds the missing axes to the second operand, and ``node``."""
    # Without ``axis`` the last axes are aligned, as in NumPy.
    if node.op_type == "Gemm" or not any(a.name == "axis" for a in node.attribute):
        _drop(node, "broadcast")
        return [node]
    first, second = (ranks.get(name) for name in node.input[:2])
    if first is None or second is None:
        return [node]  # the converter refuses it
    axis = _number(node, "axis", 0)
    missing = first - second - (axis if axis >= 0 else axis + first)
    _drop(node, "broadcast", "axis")
    if missing <= 0:
        return [node]
    name = f"{node.output[0]}/operand"
    moved = onnx.helper.make_node(
        "Unsqueeze", [node.input[1]], [name], axes=list(range(second, second + missing)), name=f"{node.name}/operand"
    )
    node.input[1] = name
    return [moved, node]


def _over_elements(
    graph: onnx.GraphProto, node: onnx.NodeProto, ranks: dict[str, int], uses: Counter[str], opset: int
) -> list[onnx.NodeProto]:
    """Return nodes for a BatchNormalization of ``spatial=0``, which normalizes each element by its own statistics."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    rank = ranks.get(node.input[0])
    own = [held.get(name) for name in node.input[1:5]]
    shared = [i for i, tensor in enumerate(own, 1) if tensor is None or uses[tensor.name] > 1]
    if rank is None or len(node.output) > 1 or (shared and opset < RESHAPES):
        return [node]  # the converter refuses it
    _drop(node, "spatial")
    if rank == 2:
        return [node]
    declared = {value.name: value for value in graph.input}
    for tensor in (tensor for i, tensor in enumerate(own, 1) if tensor is not None and i not in shared):
        size = math.prod(tensor.dims)
        tensor.dims[:] = [size]
        if tensor.name in declared:
            kind = declared[tensor.name].type.tensor_type
            kind.shape.Clear()
            kind.shape.dim.add(dim_value=size)
    given, result = node.input[0], node.output[0]
    names = {stem: f"{result}/{stem}" for stem in ("flat", "shape", "normalized")}
    vectors = list[onnx.NodeProto]()
    for i in shared:  # operands that are computed, or that other nodes read in their own shape
        name, vector = node.input[i], f"{result}/statistic_{i}"
        size = onnx.helper.make_tensor(f"{vector}/size", INT64, [1], [-1])
        vectors.append(onnx.helper.make_node("Constant", [], [size.name], value=size))
        vectors.append(onnx.helper.make_node("Reshape", [name, size.name], [vector]))
        node.input[i] = vector
    node.input[0], node.output[0] = names["flat"], names["normalized"]
    return [
        *vectors,
        onnx.helper.make_node("Flatten", [given], [names["flat"]], axis=1),
        node,
        onnx.helper.make_node("Shape", [given], [names["shape"]]),
        onnx.helper.make_node("Reshape", [names["normalized"], names["shape"]], [result]),
    ]


def _ranks(proto: onnx.ModelProto) -> dict[str, int]:
    return {name: len(kind.shape.dim) for name, kind in _types(proto).items() if kind.HasField("shape")}


def _number(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _drop(node: onnx.NodeProto, *names: str) -> None:
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)
