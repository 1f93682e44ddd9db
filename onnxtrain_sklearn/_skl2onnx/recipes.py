"""Converters of skl2onnx for RealMLP and TabM.

What is embedded is the graph of ``to_onnx``, which takes the raw table: one matrix of numbers, or, if a column is
text, an input for each column.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from sklearn.utils.validation import check_is_fitted

from .._fitted import skl2onnx_bridge
from .._ir.edits import replace_input
from .._ir.protobuf import from_bytes
from .._recipes.base import ClassifierRecipe
from .._recipes.realmlp import RealMLPClassifier, RealMLPRegressor
from .._recipes.tabm import TabMClassifier, TabMRegressor
from .._utils.typing import Container, Operator, Scope, Variable
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .graphs import VARIABLE_TYPES, append_to_container, in_target_opset, number_type, require_sortable, whole_classes

OPTIONS = {
    "zipmap": [True, False, "columns"],
    "nocl": [True, False],
    "output_class_labels": [False, True],
}
"""The options of the classifiers' converter; without a decision function, they have no raw scores."""


def register_recipes() -> None:
    """Register the converters of RealMLP and TabM with skl2onnx."""
    for classifier in (RealMLPClassifier, TabMClassifier):
        name = f"OnnxtrainSklearn{classifier.__name__}"
        skl2onnx_bridge.register(classifier, name, _classifier_types, _convert, OPTIONS)
    for regressor in (RealMLPRegressor, TabMRegressor):
        skl2onnx_bridge.register(regressor, f"OnnxtrainSklearn{regressor.__name__}", _regressor_types, _convert)


def _classifier_types(operator: Operator) -> None:
    estimator = operator.raw_operator
    check_is_fitted(estimator)
    types = skl2onnx_bridge.types()
    rows = operator.inputs[0].get_first_dimension()
    columns = len(estimator.classes_)
    is_text = estimator.classes_.dtype.kind in "OUS" and not _numbers_classes(estimator, operator.scope_inst)
    label = types.StringTensorType if is_text else types.Int64TensorType
    operator.outputs[0].set_type(label([rows, columns] if estimator._task == "multilabel" else [rows]))
    operator.outputs[1].set_type(number_type(operator)([rows, columns]))


def _regressor_types(operator: Operator) -> None:
    check_is_fitted(operator.raw_operator)
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].set_type(number_type(operator)([rows, operator.raw_operator.n_outputs_]))


def _numbers_classes(estimator: Any, scope: Scope) -> bool:
    return bool(scope.get_options(estimator, {"nocl": False})["nocl"])


def _convert(scope: Scope, operator: Operator, container: Container) -> None:
    estimator = operator.raw_operator
    model = in_target_opset(from_bytes(estimator.to_onnx().SerializeToString()), container.target_opset_any_domain(""))
    graph, name = model.graph, type(estimator).__name__
    require_sortable(graph, name)
    op = GraphBuilder(graph, prefix="embedded", constant_nodes=True)
    _read_columns(op, operator.inputs, estimator)
    for i, variable in enumerate(operator.outputs):
        final = graph.outputs[i]
        wanted = VARIABLE_TYPES.get(type(variable.type).__name__)
        if isinstance(estimator, ClassifierRecipe) and i == 0:
            if _numbers_classes(estimator, scope) and estimator._task != "multilabel":
                final = op.ArgMax(graph.outputs[1], axis=1, keepdims=False)
            elif wanted is ir.DataType.INT64:
                whole_classes(estimator.classes_)  # raises for fractions
        graph.outputs[i] = op.Identity(final) if wanted in (None, final.dtype) else op.Cast(final, to=wanted)
        graph.outputs[i].name = op.taken.free(f"final_{i}")
    del graph.outputs[len(operator.outputs) :]  # what a loss predicts besides, of which skl2onnx knows nothing
    graph.sort()
    append_to_container(model, operator.inputs, operator.outputs, scope, container)


def _read_columns(op: GraphBuilder, variables: list[Variable], estimator: Any) -> None:
    """Replace the inputs of the graph by the variables, in place; numbers may come as one matrix or as columns."""
    graph, names = op.graph, estimator._inputs.names
    given = [ir.val(op.name("input"), _type_of(one, estimator), ("N", None)) for one in variables]
    columns = [list(one.type.shape or [])[1:] for one in variables]
    if estimator._inputs.takes_columns:
        wanted = [value.dtype for value in graph.inputs]
        kinds_given = [_KINDS.get(value.dtype, "a number") for value in given]
        fits = len(given) == len(wanted) and all(size == [1] for size in columns)
        kinds_wanted = [_KINDS.get(dtype, "a number") for dtype in wanted]
        agree = all(
            one == other or (one, other) == ("times in int64", "a number")
            for one, other in zip(kinds_given, kinds_wanted, strict=False)
        )
        if not fits or not agree:
            kinds = ", ".join(f"{column!r} {kind}" for column, kind in zip(names, kinds_wanted, strict=True))
            raise ModelError(
                f"{type(estimator).__name__} was trained on a table with text or times: declare an initial type of "
                f"shape [None, 1] for each column ({kinds}), and put it first in a pipeline; got "
                f"{[(one.raw_name, one.type.shape) for one in variables]}. Or take its own to_onnx()."
            )
        for own, value in zip(list(graph.inputs), given, strict=True):
            replace_input(graph, own, value, value if value.dtype == own.dtype else op.Cast(value, to=own.dtype))
        return
    width = sum(size[0] if len(size) == 1 and isinstance(size[0], int) else len(names) for size in columns)
    if width != len(names) or any(value.dtype is ir.DataType.STRING for value in given):
        raise ModelError(
            f"{type(estimator).__name__} was trained on {len(names)} columns of numbers, got "
            f"{[(one.raw_name, one.type) for one in variables]}."
        )
    own = graph.inputs[0]
    parts = [value if value.dtype == own.dtype else op.Cast(value, to=own.dtype) for value in given]
    replace_input(graph, own, given[0], parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1))
    graph.inputs[:] = given


_KINDS: dict[ir.DataType | None, str] = {ir.DataType.STRING: "text", ir.DataType.INT64: "times in int64"}


def _type_of(variable: Variable, estimator: Any) -> ir.DataType:
    kind = type(variable.type).__name__
    if kind not in VARIABLE_TYPES:
        raise ModelError(f"{type(estimator).__name__} takes numbers and text, got a {kind} ({variable.raw_name!r}).")
    return VARIABLE_TYPES[kind]
