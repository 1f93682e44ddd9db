"""Read the models of users into onnx-ir, validated, and undo changes that exporters and optimizers made to them.

:func:`load` returns a model with named nodes, no local functions, one default opset and an IR version; the installed
onnxruntime supports both versions, which stay unchanged where possible. :func:`given_graph` also brings it into the
form that is trained, and ``trainable_model`` then restores its parameters.

The tuples at the end list all passes in their order: :data:`REWRITES` work on protobuf, before ONNX's checker sees the
model; :data:`REPAIRS`, :data:`TYPED_REPAIRS` and :data:`CONVERSIONS` on onnx-ir; :data:`RESTORATIONS` restore the
parameters. Each pass is explained in its own module. :func:`run_importers` records the names of the passes that changed
the model, and ``describe()`` of an estimator prints them, so that the user sees how the graph differs from the file.
No function here changes the model that it is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.control_flow import complete_shapes, read_constant_states
from .._ir.edits import over_no_axes, remove_identity_transposes, without_empty_reductions
from .._ir.files import read, source
from .._ir.limits import nodes_of, require_loadable, require_survivable, require_values_within_limits
from .._ir.opsets import RENEWED_OPSET, inlined, readable
from .._ir.protobuf import from_proto
from .._ir.queries import all_values, every_node
from .._ir.shapes import infer_declared, is_custom_domain
from .._model.activation import use_stable_forms
from .._model.constants import dequantize
from .._model.graph_comparison import inputs_of, plain_session
from .._model.precision import widen
from .._ort import devices, sessions
from .._ort.sessions import SupportedVersions
from .._utils.errors import refusing
from ..exceptions import ModelError
from .ort_fusions import is_fused, lower
from .quantization import use_fake_quantization, use_float_products
from .tf2onnx import join_normalizations, restore_layers, without_tensorflow_operators
from .torch_parameters import drop_zero_biases, restore_parameters

DEFAULT_DOMAINS = ("", "ai.onnx")

RESERVED = "onnxtrain/"
"""Prefix that is reserved for values and metadata that this package adds to graphs in memory."""

LABELS = "labels of dictionaries"
"""Key of a model's ``meta`` for the keys of the dictionaries in which a classifier returns its scores."""


def load(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
    supported: SupportedVersions | None = None,
    *,
    in_place: bool = False,
) -> ir.Model:
    """Return a validated model in versions that ``supported`` allows, by default those of the installed onnxruntime.

    Opset and IR version stay unchanged where possible. ``in_place`` is an argument of ``_ir.files.read``. Raises
    ModelError if the model is not valid.
    """
    original = _with_graph(model, in_place=in_place)
    with refusing("The ONNX graph is not valid"):
        proto, changed = _valid(without_zip_maps(_with_one_default_opset(original)))
        proto = with_types_of_custom_operators(proto)
        # Converters of fitted models may write opset 8 or 9. These graphs are rewritten, so convert them upwards.
        of_fitted_model = any(node.domain == "ai.onnx.ml" for node in proto.graph.node)
        result = readable(proto, supported, renew=of_fitted_model)
        record(result, *changed)
        for value in (*result.graph.inputs, *(v for node in every_node(result.graph) for v in node.outputs)):
            # Older files of PaddlePaddle declare dynamic sizes as -1, which onnxruntime would take for a fixed size.
            sizes = [None if isinstance(size, int) and size < 0 else size for size in value.shape or ()]
            if value.shape is not None and sizes != list(value.shape):
                value.shape = ir.Shape(sizes)
        _refuse_contradictions(result)  # before the inputs that declare initializers are removed
        for value in all_values(result):
            if (value.name or "").startswith(RESERVED):
                raise ModelError(
                    f"The graph has a value {value.name!r}; names that begin with {RESERVED!r} are reserved."
                )
        run_importers(result, REPAIRS)
        infer_declared(result, complete_shapes)
        run_importers(result, TYPED_REPAIRS)
        require_values_within_limits(result)
        require_loadable(result)
        result.meta[LABELS] = zipped_labels(original)
    return result


def given_graph(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> ir.Model:
    """Return the graph of a file in the form that is trained: with floats of one type, and layers as single nodes."""
    result = load(model, in_place=True)
    run_importers(result, CONVERSIONS)
    return result


def checked(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Validate a model; return it without local functions, in its own opset and IR version."""
    proto = _with_graph(model)
    with refusing("The ONNX graph is not valid"):
        return _valid(proto)[0]


def zipped_labels(proto: onnx.ModelProto) -> list[Any]:
    """Return the keys of the dictionaries that hold a classifier's scores; empty if the scores are tensors."""
    zips = (node for node in proto.graph.node if node.op_type == "ZipMap")
    attributes = (a for node in zips for a in node.attribute if a.name.startswith("classlabels_"))
    return next(([*a.ints, *(text.decode() for text in a.strings)] for a in attributes), [])


def _with_graph(model: onnx.ModelProto | bytes | str | os.PathLike[str], *, in_place: bool = False) -> onnx.ModelProto:
    """Read a model; raise if it exceeds the limits or has no nodes or outputs."""
    proto = read(model, in_place=in_place)
    if not proto.graph.node or not proto.graph.output:
        raise ModelError(
            f"There is no ONNX graph with nodes and outputs in {source(model)}: it is not an ONNX model, or a "
            f"truncated or empty one."
        )
    # Refuse sparse tensors, because training would not keep them sparse.
    if proto.graph.sparse_initializer:
        raise ModelError("The ONNX graph has sparse initializers, which cannot be trained; store them as dense ones.")
    for node in (node for graph in (proto.graph, *proto.functions) for node in nodes_of(graph)):
        inner = (graph for a in node.attribute for graph in (a.g, *a.graphs))
        if any(a.HasField("sparse_tensor") or a.sparse_tensors for a in node.attribute) or any(
            graph.sparse_initializer for graph in inner
        ):
            raise ModelError(
                f"Node {node.name!r} ({node.op_type}) holds sparse tensors, which cannot be trained; store them as "
                "dense ones (a Constant: as its attribute value)."
            )
    return proto


def _valid(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Rewrite the model so that ONNX's checker accepts it; return it and the names of the rewrites that changed it."""
    require_survivable(proto)
    proto = _with_one_default_opset(_without_own_marks(proto))
    what = "local functions cannot be inlined" if proto.functions else "graph is not valid"
    changed = []
    with refusing(f"The ONNX {what}"):
        for name, rewritten in REWRITES:
            before, proto = proto, rewritten(proto)
            if proto is not before:
                changed.append(name)
        proto = _typed_outputs(proto)
        shaped = proto
        if any(
            _lacks_shape(value) for value in proto.graph.output
        ):  # ONNX's checker, unlike onnxruntime, needs a shape
            shaped = deepcopy(proto)
            for value in (value for value in shaped.graph.output if _lacks_shape(value)):
                value.type.tensor_type.shape.SetInParent()
        onnx.checker.check_model(_with_files_as_inputs(shaped))
    return proto, changed


def _with_files_as_inputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs in place of weights in files, whose absolute paths ONNX's checker refuses."""
    outside = [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return proto
    result = deepcopy(proto)
    names = {tensor.name for tensor in outside}
    del result.graph.initializer[:]
    result.graph.initializer.extend(t for t in proto.graph.initializer if t.name not in names)
    given = {value.name for value in result.graph.input}
    for tensor in (t for t in outside if t.name not in given):
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        result.graph.input.append(value)
    return result


def _without_own_marks(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without metadata whose names are reserved for this package's own marks.

    A file with such metadata, by accident or on purpose, would mislead the passes that read these marks.
    """

    def marked(model: onnx.ModelProto) -> list[Any]:
        found: list[Any] = [model.graph, *model.functions]
        for whole in list(found):
            nodes = list(nodes_of(whole))
            bodies = [body for node in nodes for a in node.attribute for body in (a.g, *a.graphs)]
            found += [*nodes, *bodies]
            for graph in (whole, *bodies):  # the inputs and outputs of a function are names, without metadata
                fields = ("value_info", *(("initializer", "input", "output") if hasattr(graph, "initializer") else ()))
                found += [one for field in fields for one in getattr(graph, field)]
        return [one for one in found if any(entry.key.startswith(RESERVED) for entry in one.metadata_props)]

    if not marked(proto):
        return proto
    result = deepcopy(proto)
    for one in marked(result):
        kept = [entry for entry in one.metadata_props if not entry.key.startswith(RESERVED)]
        del one.metadata_props[:]
        one.metadata_props.extend(kept)
    return result


def without_zip_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with scores as tensors in place of dictionaries, for which onnx-ir has no type."""
    if not any(node.op_type == "ZipMap" for node in proto.graph.node):
        return proto
    result = deepcopy(proto)
    declared = {value.name: value for value in [*result.graph.output, *result.graph.value_info]}
    for node in [n for n in result.graph.node if n.op_type == "ZipMap"]:
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        if node.output and (value := declared.get(node.output[0])) is not None:
            value.type.Clear()
            value.type.tensor_type.elem_type = ir.DataType.FLOAT.value
            value.type.tensor_type.shape.dim.add()
            value.type.tensor_type.shape.dim.add()
    return result


def _with_one_default_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with one import of the default domain, named "".

    If there are several, the last one counts, as in onnxruntime; skl2onnx may write two.
    """
    versions = [o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS]
    graphs = [proto.graph, *proto.functions]
    domains = {node.domain for graph in graphs for node in nodes_of(graph)}
    if not versions and not proto.functions and domains.isdisjoint(DEFAULT_DOMAINS):
        versions = [RENEWED_OPSET]  # no import and no default operators, as in onnxmltools' graphs for XGBoost
    if not versions:
        raise ModelError(
            "The ONNX graph has nodes of the default domain, but imports no opset for it: the model is not valid, or "
            "truncated. Runtimes that accept it guess different opsets. Import the opset that it was written for."
        )
    aliased = not domains.isdisjoint(DEFAULT_DOMAINS[1:])
    if [o.domain for o in proto.opset_import if o.domain in DEFAULT_DOMAINS] == [""] and not aliased:
        return proto
    result = deepcopy(proto)
    del result.opset_import[:]
    result.opset_import.extend(o for o in proto.opset_import if o.domain not in DEFAULT_DOMAINS)
    result.opset_import.add(domain="", version=versions[-1])
    for node in (node for graph in (result.graph, *result.functions) for node in nodes_of(graph)):
        node.domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    return result


def _typed_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with types for outputs that declare none."""
    if all(_is_declared(value) for value in proto.graph.output):
        return proto
    inferred = onnx.shape_inference.infer_shapes(proto)
    known = {value.name: value.type for value in (*inferred.graph.value_info, *inferred.graph.output)}
    result = deepcopy(proto)
    for value in (value for value in result.graph.output if not _is_declared(value)):
        if value.name in known:
            value.type.CopyFrom(known[value.name])
    untyped = [value for value in result.graph.output if not _has_type(value)]
    if untyped:  # run the model for operators that onnxruntime supports and ONNX's inference does not
        session = sessions.create_session(proto.SerializeToString(), devices.resolve_device())
        found = {value.name: value.type for value in session.get_outputs()}
        for value in untyped:
            kind = found[value.name]
            if not kind.startswith("tensor("):
                raise ModelError(f"Output {value.name!r} has no declared type, and is a {kind}: declare it.")
            value.type.tensor_type.elem_type = onnx.TensorProto.DataType.Value(kind[len("tensor(") : -1].upper())
    return result


def _has_type(value: Any) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(value.type.tensor_type.elem_type))


def _is_declared(value: Any) -> bool:
    return _has_type(value) and not _lacks_shape(value)


def _lacks_shape(value: Any) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.HasField("shape")


def _refuse_contradictions(model: ir.Model) -> None:
    """Raise if a graph input or a declared value has another type or shape than its initializer."""
    initializers = [v for graph in model.graphs() for v in graph.initializers.values()]
    for value in initializers:
        held = value.const_value
        if held is None or not isinstance(value.type, ir.TensorType):
            continue
        sizes = None if value.shape is None else list(value.shape)
        fits = sizes is None or len(sizes) == len(held.shape)
        if fits and sizes is not None:
            fits = all(not isinstance(n, int) or n == m for n, m in zip(sizes, held.shape, strict=True))
        if not fits or value.dtype != held.dtype:
            raise ModelError(
                f"The graph declares {value.name!r} as {value.dtype}{value.shape}, but its initializer is "
                f"{held.dtype}{held.shape}. Correct the declaration, among the inputs or in value_info, or remove it."
            )


def _without_empty_reductions(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not over_no_axes(proto.graph):
        return proto
    onnx.checker.check_model(proto)  # before the rewrite, which could turn an invalid node into a valid one
    return without_empty_reductions(proto)


def _without_fused_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    opset = next(o.version for o in proto.opset_import if not o.domain)
    if not any(is_fused(node.domain, node.op_type, opset) for node in nodes_of(proto.graph)):
        return proto
    return ir.to_proto(lower(from_proto(proto)))


_ROWS, _FREE = (2, 5), (3, 4)
"""The number of rows, and the size of other free axes, in each of the two runs."""


def with_types_of_custom_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with declared types and shapes of results of custom operators, which only a library knows.

    Run the file on random inputs twice, with different numbers of rows and other free sizes. A size that is equal in
    both runs is fixed; one that is the number of rows in both is the batch axis; any other is free. A file that does
    not run is returned unchanged.
    """
    functions = {(function.domain, function.name) for function in proto.functions}
    declared = {
        value.name
        for value in (*proto.graph.value_info, *proto.graph.output)
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape")
    }
    wanted = [
        name
        for node in proto.graph.node
        if is_custom_domain(node.domain) and (node.domain, node.op_type) not in functions
        for name in node.output
        if name and name not in declared
    ]
    if not wanted:
        return proto
    # Make the results outputs of a copy of the graph, and run the copy twice.
    shown = deepcopy(proto)
    outputs = {value.name for value in proto.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in outputs)
    session = plain_session(shown)
    feeds = [_drawn(proto, rows, free) for rows, free in zip(_ROWS, _FREE, strict=True)]
    runs = [None if session is None or feed is None else session.run(wanted, feed) for feed in feeds]
    if runs[0] is None or runs[1] is None:
        return proto
    result = deepcopy(proto)
    batch = next((d.dim_param for value in inputs_of(proto) for d in value.type.tensor_type.shape.dim[:1]), "") or "N"
    for name, first, second in zip(wanted, runs[0], runs[1], strict=True):
        if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.ndim == second.ndim:
            kind = onnx.TensorProto.STRING if first.dtype.kind in "OSU" else ir.DataType.from_numpy(first.dtype)
            pairs = zip(first.shape, second.shape, strict=True)
            sizes = [a if a == b else batch if (a, b) == _ROWS else None for a, b in pairs]
            value = onnx.helper.make_tensor_value_info(name, int(kind), sizes)
            known = next((v for v in (*result.graph.output, *result.graph.value_info) if v.name == name), None)
            (result.graph.value_info.add() if known is None else known).CopyFrom(value)
    return result


def _drawn(proto: onnx.ModelProto, rows: int, free: int) -> dict[str, np.ndarray] | None:
    """Return random inputs of ``rows`` rows, with size ``free`` of other free axes; None if one is not numeric."""
    rng, feeds = np.random.RandomState(0), {}
    for value in inputs_of(proto):
        kind = value.type.tensor_type
        if not kind.elem_type or (dtype := ir.DataType(kind.elem_type).numpy()).kind not in "fiub":
            return None
        sizes = [d.dim_value or (free if i else rows) for i, d in enumerate(kind.shape.dim)]
        feeds[value.name] = rng.standard_normal(sizes).astype(dtype)
    return feeds


_RESTORED = "onnxtrain/restored"
"""Key in the ``meta`` of a model. Clones do not inherit ``meta``: a pass that returns a clone has to copy it."""


class Importer(NamedTuple):
    """A pass over a model: its name in ``describe()``, and a function that returns True if it changed the model."""

    name: str
    run: Callable[[ir.Model], bool]


def run_importers(model: ir.Model, importers: Sequence[Importer]) -> None:
    """Run passes in order, in place, and record those that changed the model."""
    for importer in importers:
        if importer.run(model):
            record(model, importer.name)


def record(model: ir.Model, *names: str) -> None:
    """Record the names of passes that changed a model."""
    model.meta[_RESTORED] = tuple(dict.fromkeys((*restored(model), *names)))


def restored(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the passes that changed a model, in their order."""
    found: tuple[str, ...] = model.meta.get(_RESTORED, ())
    return found


REWRITES: tuple[tuple[str, Callable[[onnx.ModelProto], onnx.ModelProto]], ...] = (
    # Inline functions first: they may have another opset, and ONNX's converter drops them.
    ("functions inlined", inlined),
    ("operators of TensorFlow replaced", without_tensorflow_operators),
    ("reductions over no axes replaced", _without_empty_reductions),
    ("fused operators of onnxruntime replaced", _without_fused_operators),
)
"""Rewrites of nodes that ONNX's checker or its inference does not know or misreads.

A rewrite returns the argument itself if there is nothing to change, because a copy would duplicate all weights.
"""

REPAIRS = (
    Importer("computed zero biases of PyTorch removed", drop_zero_biases),
    Importer("transpositions that move nothing removed", remove_identity_transposes),
    # Before IR version 4, files list every initializer among the inputs.
    Importer(
        "initializers removed from the inputs",
        lambda model: bool(common.RemoveInitializersFromInputsPass()(model).modified),
    ),
)
"""Passes over every model before its shapes are inferred, as PyTorch's computed biases may make inference fail."""

TYPED_REPAIRS = (Importer("exponents of sigmoids bounded", use_stable_forms),)
"""Passes over every model that read types and ranks."""

CONVERSIONS = (
    Importer("float16 and bfloat16 widened to float32", widen),
    Importer("dynamic quantization computed with floats", use_float_products),
    Importer("static quantization computed with floats", use_fake_quantization),
    # After the pairs, integer constants with a DequantizeLinear alone are left.
    Importer("integer constants dequantized", dequantize),
    Importer("BatchNormalization of Keras joined", join_normalizations),
)
"""Passes over a file that is to be trained."""

RESTORATIONS = (
    Importer("parameters of PyTorch restored", restore_parameters),
    Importer("layers of Keras restored", restore_layers),
    Importer("constant states of loops read from outside", read_constant_states),
)
"""Passes before the parameters of a graph are selected. After them, each parameter is one initializer."""
