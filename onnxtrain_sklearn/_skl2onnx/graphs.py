"""Graphs of this package within those that skl2onnx writes: types of variables, opsets, unique names.

The converters of the estimators, of the recipes and of meta-estimators share this module. Nothing here knows an
estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .._fitted import skl2onnx_bridge
from .._ir.files import require_whole
from .._ir.opsets import converted
from .._ir.protobuf import to_proto
from .._ir.queries import graphs_in
from .._ir.shapes import infer_shapes
from .._utils.errors import reason
from .._utils.typing import Container, Operator, Scope, Variable
from ..exceptions import ModelError

VARIABLE_TYPES = {
    "FloatTensorType": ir.DataType.FLOAT,
    "DoubleTensorType": ir.DataType.DOUBLE,
    "Int64TensorType": ir.DataType.INT64,
    "Int32TensorType": ir.DataType.INT32,
    "BooleanTensorType": ir.DataType.BOOL,
    "StringTensorType": ir.DataType.STRING,
}


def number_type(operator: Operator) -> Any:
    """Return the type of numeric outputs: that of the first numeric input, as with all converters of skl2onnx."""
    types = skl2onnx_bridge.types()
    numeric = [one.type for one in operator.inputs if not isinstance(one.type, types.StringTensorType)]
    return type(types.guess_tensor_type(numeric[0])) if numeric else types.FloatTensorType


def whole_classes(classes: np.ndarray) -> np.ndarray:
    """Return classes as int64 or strings, the labels that skl2onnx has; raise ModelError for fractions."""
    if classes.dtype.kind not in "iubf":
        return classes.astype(str)
    if classes.dtype.kind == "f" and not (classes == np.rint(classes)).all():
        raise ModelError(f"skl2onnx has labels that are integers or strings, the classes are {classes.tolist()}.")
    return classes.astype(np.int64)


def append_to_container(
    model: ir.Model, inputs: Sequence[Variable], outputs: Sequence[Variable], scope: Scope, container: Container
) -> None:
    """Add the nodes and weights of ``model`` to the container under unique names; its ends get those of variables."""
    proto = require_whole(to_proto(model), "A graph of skl2onnx")
    ends = zip((*proto.graph.input, *proto.graph.output), (*inputs, *outputs), strict=True)
    names = {value.name: variable.full_name for value, variable in ends}
    for tensor in proto.graph.initializer:  # the container's own method would merge equal weights
        names[tensor.name] = scope.get_unique_variable_name(tensor.name)
        tensor.name = names[tensor.name]
        container.initializers.append(tensor)
    for name in (name for node in proto.graph.node for name in node.output):
        if name and name not in names:
            names[name] = scope.get_unique_variable_name(name)
    for node in proto.graph.node:
        container.check_white_black_list(node.op_type)
        node.name = scope.get_unique_operator_name(node.name)
        node.input[:] = [names[name] for name in node.input]
        # Name omitted outputs, because skl2onnx would take two empty names for one.
        node.output[:] = [names[name] if name else scope.get_unique_variable_name("unused") for name in node.output]
        container.nodes.append(node)
        container.node_domain_version_pair_sets.add((node.domain, model.opset_imports[node.domain]))


def require_sortable(ir_graph: ir.Graph, name: str) -> None:
    """Raise if the graph has a node that skl2onnx cannot sort topologically: with a subgraph or an omitted input."""
    for node in ir_graph:
        subgraphs = graphs_in(node)
        if subgraphs or None in node.inputs:
            what = "a subgraph" if subgraphs else "an omitted optional input"
            raise ModelError(
                f"Node {node.name!r} ({node.op_type}) has {what}, and skl2onnx cannot order such nodes. Take to_onnx() "
                f"of the {name} itself, and onnx.compose.merge_models to join it with the steps before."
            )


def in_target_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return ``model`` in the opset that skl2onnx targets; raise ModelError if ONNX's converter cannot.

    Unlike :func:`.opsets.in_opset`, the error names the opset to ask skl2onnx for, and the model may have outputs that
    are sequences of dicts.
    """
    own = model.opset_imports[""]
    if own == opset:
        return model
    try:
        proto = converted(to_proto(model), opset)
    except Exception as error:
        raise ModelError(
            f"The graph is of opset {own}, and ONNX's converter cannot bring it to opset {opset}: {reason(error)}. "
            f"Take opset {own}, or one nearer to it."
        ) from error
    return infer_shapes(ir.from_proto(proto))
