"""Converter of skl2onnx for the estimator of several outputs, so that it can end a pipeline.

The outputs are those of its own ``to_onnx``, by name. Numbers have the type of the input, as with all converters of
skl2onnx.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from sklearn.utils.validation import check_is_fitted

from .._fitted import skl2onnx_bridge
from .._ir.edits import replace_input
from .._ir.protobuf import from_bytes
from .._multi_output.estimator import OrtGradientMultiOutput
from .._utils.typing import Container, Estimator, Operator, Parsers, Scope, Variable
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .graphs import VARIABLE_TYPES, append_to_container, in_target_opset, number_type, require_sortable

NAME = "OnnxtrainSklearnMultiOutput"


def register_multi_output() -> None:
    """Register the converter with skl2onnx."""
    if not skl2onnx_bridge.has_converter(OrtGradientMultiOutput):
        skl2onnx_bridge.replace(OrtGradientMultiOutput, NAME, _declare, _convert, parser=_parse)


def _exported(estimator: Estimator) -> ir.Model:
    check_is_fitted(estimator)
    model = from_bytes(estimator.to_onnx().SerializeToString())
    inputs = model.graph.inputs
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) != 2 or estimator._state.graph.batch:
        raise ModelError(
            f"skl2onnx passes one matrix of any number of rows, and this {type(estimator).__name__} takes "
            f"{', '.join(f'{x.name!r} {x.shape}' for x in inputs)}: call to_onnx()."
        )
    return model


def _parse(
    scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Variable]:
    """Declare the outputs by the names that they have in the graph."""
    operator = scope.declare_local_operator(NAME, estimator)
    operator.inputs = inputs
    types = skl2onnx_bridge.types()
    number = number_type(operator)
    for value in _exported(estimator).graph.outputs:
        is_text = value.dtype is ir.DataType.STRING
        kind: Any = types.StringTensorType if is_text else number
        kind = types.Int64TensorType if value.dtype is ir.DataType.INT64 else kind
        shape = [None, *(size if isinstance(size, int) else None for size in list(value.shape or [])[1:])]
        operator.outputs.append(scope.declare_local_variable(value.name or "", kind(shape)))
    return list(operator.outputs)


def _declare(operator: Operator) -> None:
    """Keep the types that the parser declares."""


def _convert(scope: Scope, operator: Operator, container: Container) -> None:
    estimator = operator.raw_operator
    model = in_target_opset(_exported(estimator), container.target_opset_any_domain(""))
    graph, name = model.graph, type(estimator).__name__
    require_sortable(graph, name)
    kinds = [type(one.type).__name__ for one in operator.inputs]
    if len(kinds) != 1 or kinds[0] not in VARIABLE_TYPES or kinds[0] == "StringTensorType":
        raise ModelError(f"{name} takes one matrix of numbers, got {', '.join(kinds)}: encode them in a step before.")
    op = GraphBuilder(graph, prefix="embedded", constant_nodes=True)
    own = graph.inputs[0]
    given = ir.val(op.name("input"), VARIABLE_TYPES[kinds[0]], ("N", None))
    replace_input(graph, own, given, given if given.dtype == own.dtype else op.Cast(given, to=own.dtype))
    for i, variable in enumerate(operator.outputs):
        final = graph.outputs[i]
        wanted = VARIABLE_TYPES[type(variable.type).__name__]
        graph.outputs[i] = op.Identity(final) if wanted == final.dtype else op.Cast(final, to=wanted)
        graph.outputs[i].name = op.taken.free(f"final_{i}")
    graph.sort()
    append_to_container(model, operator.inputs, operator.outputs, scope, container)
