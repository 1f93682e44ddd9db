"""Training steps in ONNX's own form: a model whose ``training_info`` holds the step beside the inference graph.

``training_model`` writes it, ``read_training_model`` reads it. A step runs the nodes of both graphs as one graph: the
algorithm in ``training_info`` reads data and weights by their names in the inference graph, and its own initializers
are the optimizer's state. Bindings name the output that replaces each initializer. Therefore each weight is a separate
array here; the other exports have one vector of all parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir

from .._ir.edits import append_output, replace_inputs
from .._ir.files import read
from .._ir.protobuf import to_proto
from .._utils.errors import refusing
from ..exceptions import ModelError
from ..graph import GraphBuilder, new_graph
from .exported import AVERAGE, PARAMETERS, STATISTICS, ExportedTraining, StateTensor, cut_members, joined_vector
from .folder import require_own_graph, require_state
from .graphs import compact_proto
from .manifest import manifest_of, read_manifest
from .step_graph import StepGraph, step_graph

KEY = "onnxtrain_sklearn.training"
"""Key of the manifest in the metadata of the model."""


def training_model(exported: ExportedTraining, inference: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``inference`` with the training step in ``training_info``."""
    if exported.front is not None:
        raise ModelError(
            "This model encodes columns of a table before it is trained, but the step in training_info reads the "
            "inputs of the inference graph. Take export_training, whose graphs encode the columns."
        )
    graph = inference.graph
    kind = ir.DataType.from_numpy(exported.parts.parameters.vector.dtype)
    held = {tensor.name for tensor in graph.initializer if tensor.data_type == kind}
    step = _with_named_weights(exported, step_graph(exported), held)

    # Both graphs become one, so no value of the algorithm may have a name of the inference graph by accident.
    taken = {
        *held,
        *(v.name for v in graph.input),
        *(name for node in graph.node for name in (node.name, *node.output)),
    }
    shared = {*step.data, *(one.name for one in step.state)}
    values = [*step.model.graph.inputs, *step.model.graph.outputs]
    if clash := [v.name for v in values if v.name in taken and v.name not in shared]:
        raise ModelError(
            f"The inference graph and the training step both have a value {clash[0]!r}. Rename it in the inference "
            f"graph, or take export_training."
        )
    manifest = manifest_of(exported, step, {}, {})
    algorithm = compact_proto(step.model, "training", taken)
    versions = {one.domain: one.version for one in inference.opset_import}
    for one in algorithm.opset_import:
        if one.domain or versions.get("") != one.version:
            raise ModelError(
                f"training_info takes operators of the default domain in one version, but the training step uses "
                f"{one.domain or 'ai.onnx'!r} {one.version}, and the inference graph {versions}. Take export_training."
            )
    result = deepcopy(inference)
    result.ir_version = max(result.ir_version, algorithm.ir_version, 7)
    info = result.training_info.add()
    info.algorithm.CopyFrom(algorithm.graph)

    # The algorithm reads data and weights in the inference graph; the rest of the state is its own initializers.
    state = {one.name: one.value for one in step.state if one.name not in held}
    given = {*step.data, *held, *state}
    inputs = [type(v).FromString(v.SerializeToString()) for v in info.algorithm.input if v.name not in given]
    del info.algorithm.input[:]
    info.algorithm.input.extend(inputs)
    info.algorithm.initializer.extend(onnx.numpy_helper.from_array(np.array(v), name) for name, v in state.items())
    _add_bindings(info.update_binding, {one.name: one.output for one in step.state})

    # A graph without inputs computes the optimizer's state before the first step.
    op = new_graph([], ir.DataType.FLOAT, "initialization")
    op = GraphBuilder(op.graph, prefix="initialization", constant_nodes=True)
    initial = {}
    for tensor in step.state:
        if tensor.name in state and tensor.role != PARAMETERS:
            fill = ir.tensor(np.array([tensor.initial], tensor.value.dtype))
            value = op.ConstantOfShape(list(tensor.value.shape), value=fill)
            initial[tensor.name] = f"{tensor.name}/initial"
            like = ir.val("like", ir.DataType.from_numpy(tensor.value.dtype), tensor.value.shape)
            append_output(op.graph, value, initial[tensor.name], like)
    info.initialization.CopyFrom(to_proto(ir.Model(op.graph, ir_version=8)).graph)
    _add_bindings(info.initialization_binding, initial)
    entry = result.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(manifest, allow_nan=False)
    return result


def _with_named_weights(exported: ExportedTraining, step: StepGraph, held: set[str]) -> StepGraph:
    """Return the step with an array for each weight of the inference graph in place of their vectors."""
    layout, graph = exported.parts.parameters, step.model.graph
    op = GraphBuilder(graph, dtype=ir.DataType.from_numpy(layout.vector.dtype), prefix="named")
    predicts = AVERAGE if any(one.role == AVERAGE for one in step.state) else PARAMETERS
    names = {predicts: layout.names, STATISTICS: layout.running_statistics}
    state: list[StateTensor] = []
    for one in step.state:
        if one.role not in names:
            state.append(one)
            continue
        if missing := [name for name in names[one.role] if name not in held]:
            raise ModelError(
                f"The inference graph does not hold {missing[0]!r} as it is trained: adapters are merged in it, "
                f"weights of other types (integers among them) are trained in float32, and a SnapshotEnsemble holds "
                f"several. Take export_training, which writes the vectors that are trained."
            )
        # the vector is joined from inputs, and cut into outputs
        old = next(value for value in graph.inputs if value.name == one.name)
        new = next(value for value in graph.outputs if value.name == one.output)
        inputs = {name: ir.val(name, old.dtype, shape) for name, shape in one.members}
        graph.inputs.extend(inputs.values())
        replace_inputs(graph, {one.name: joined_vector(op, list(inputs.values()))})
        graph.outputs.remove(new)
        views = layout.prediction_views()
        for name, array in cut_members(op, new, one.members):
            append_output(graph, op.Identity(array), f"{name}/trained", inputs[name])
            state.append(StateTensor(name, f"{name}/trained", one.role, views[name], ((name, views[name].shape),)))
    graph.sort()
    return replace(step, state=tuple(state))


def _add_bindings(bindings: Any, names: Mapping[str, str]) -> None:
    for name, output in names.items():
        binding = bindings.add()
        binding.key, binding.value = name, output


def read_training_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, bytes], dict[str, np.ndarray]]:
    """Return the manifest, the graphs of a step and of predictions, and the state of a model with ``training_info``.

    Weights that are kept beside the file are read from its folder.
    """
    what, model = os.fspath(path), read(path)
    texts = {entry.key: entry.value for entry in model.metadata_props}
    if not model.training_info or KEY not in texts:
        raise ModelError(f"{what} holds no training step of this package: write it by to_training_onnx().")
    manifest = read_manifest(texts[KEY], f"The manifest in {what}")
    info = model.training_info[0]
    state = {entry.key for entry in info.update_binding}
    held = [*model.graph.initializer, *info.algorithm.initializer]
    tensors = {t.name: t for t in held if t.name in state}
    values = {}
    for name, tensor in tensors.items():
        with refusing(f"The tensor {name!r} in {what} cannot be read"):
            values[name] = np.array(onnx.numpy_helper.to_array(tensor))
    require_state(manifest, values, what)
    # a step runs the nodes of the inference graph and of the algorithm as one graph, with the state as inputs
    step = _with_inputs(model, tensors)
    step.graph.node.extend(info.algorithm.node)
    step.graph.initializer.extend(one for one in info.algorithm.initializer if one.name not in tensors)
    step.graph.input.extend(info.algorithm.input)
    present = {value.name for value in step.graph.input}
    step.graph.input.extend(_declared_input(tensor) for name, tensor in tensors.items() if name not in present)
    del step.graph.output[:]
    step.graph.output.extend(info.algorithm.output)
    graphs = {"step": step, "predict": _with_inputs(model, tensors)}
    contents = {name: graph.SerializeToString() for name, graph in graphs.items()}
    for name, graph in contents.items():
        require_own_graph(graph, f"The graph {name!r} of {what}")
    return manifest, contents, values


def _with_inputs(model: onnx.ModelProto, state: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
    """Return the inference graph with its trained weights as inputs."""
    result = deepcopy(model)
    del result.training_info[:], result.metadata_props[:]
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in state]
    trained = [tensor for tensor in model.graph.initializer if tensor.name in state]
    del result.graph.initializer[:]
    result.graph.initializer.extend(kept)
    result.graph.input.extend(_declared_input(tensor) for tensor in trained)
    return result


def _declared_input(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
