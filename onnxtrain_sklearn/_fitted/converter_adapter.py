"""Adapter that runs this package's converters inside skl2onnx.

What a converter emits becomes nodes and initializers of skl2onnx's container. skl2onnx orders the estimators and
converts those without a converter here, also where they are nested in an estimator that has one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from sklearn.base import ClassifierMixin, is_outlier_detector
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline

from .._graph.builder import GraphBuilder
from .._graph.protobuf import to_proto
from .._support.typing import Container, Estimator, Operator, Parsers, Scope, Variable
from ..exceptions import ModelError
from . import skl2onnx_bridge
from .converters.category_splits import encoder_of_text
from .converters.context import Source, labels
from .converters.registry import CONVERTERS, converter_of
from .record import record_of
from .steps import columns_taken, unwrapped

CONVERTED_OPSET = 18

_NUMBERS = {
    "BooleanTensorType": ir.DataType.BOOL,
    "FloatTensorType": ir.DataType.FLOAT,
    "Int64TensorType": ir.DataType.INT64,
}
_DTYPES = {**_NUMBERS, "StringTensorType": ir.DataType.STRING}
"""The types of data by their classes in skl2onnx."""


def convert(scope: Scope, operator: Operator, container: Container) -> Source | None:
    """Convert an estimator by a converter of this package and return what it noted, None where there is none."""
    estimator = operator.raw_operator
    own = converter_of(estimator)
    taken = _DTYPES if own is not None and own.takes_text else _NUMBERS
    if own is None or any(type(variable.type).__name__ not in taken for variable in operator.inputs):
        return None
    inputs = [_given(variable, taken) for variable in operator.inputs]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": CONVERTED_OPSET, "ai.onnx.ml": 3}, name="converted")
    name = scope.get_unique_operator_name(type(estimator).__name__)
    op = GraphBuilder(graph, prefix=name, constant_nodes=True)
    rows = inputs[0] if own.takes_text else _joined(op, inputs, columns_taken(estimator))
    options = container.get_options(estimator, {"raw_scores": False}, fail=False) or {}

    def convert_inner(estimator: Estimator, x: ir.Value, raw_scores: bool) -> list[ir.Value]:
        variable = operator.inputs[0] if x is inputs[0] else _variable(scope, estimator, op.Identity(x))
        outputs = _declared(scope, container, estimator, variable, raw_scores)
        graph.inputs.extend(ir.val(v.full_name, _DTYPES.get(type(v.type).__name__, ir.DataType.FLOAT)) for v in outputs)
        return list(graph.inputs[-len(outputs) :])

    source = Source(op, estimator, rows, name, bool(options.get("raw_scores")), convert_inner, inputs=inputs)
    results = own.emit(source)
    if results is not None:
        _add(graph, results, [variable.full_name for variable in operator.outputs], container)
    return None if results is None else source


def _given(variable: Variable, dtypes: Mapping[str, ir.DataType]) -> ir.Value:
    columns = list(variable.type.shape or [])[1:]
    return ir.val(variable.full_name, dtypes[type(variable.type).__name__], ("N", *(columns or [None])))


def _joined(op: GraphBuilder, inputs: Sequence[ir.Value], columns: int | None) -> ir.Value:
    """Return the inputs of an estimator as one matrix of float32."""
    parts = [x if x.dtype is ir.DataType.FLOAT else op.Cast(x, to=int(ir.DataType.FLOAT)) for x in inputs]
    if len(parts) > 1:
        return op.Concat(*parts, axis=1)
    parts[0].shape = ir.Shape(["N", columns])
    return parts[0]


def _variable(scope: Scope, estimator: Estimator, rows: ir.Value) -> Any:
    """Return rows that a converter computes as a variable of skl2onnx, for another converter."""
    variable = scope.declare_local_variable(
        "rows", skl2onnx_bridge.types().FloatTensorType([None, estimator.n_features_in_])
    )
    variable.init_status(is_fed=True)  # skl2onnx does not find inputs behind constants
    rows.name = variable.full_name
    return variable


def _declared(scope: Scope, container: Container, estimator: Estimator, rows: Variable, raw_scores: bool) -> list[Any]:
    """Let skl2onnx convert a nested estimator; return its outputs."""
    estimator = unwrapped(estimator)
    record = record_of(estimator)
    known = skl2onnx_bridge.allowed_options(type(record.last))
    if raw_scores and "raw_scores" not in known and record.has_probabilities:
        raise ModelError(f"The ONNX form of {record.last_name} gives probabilities and no decision function.")
    options = {"zipmap": False} if "zipmap" in known else {}
    options |= {"raw_scores": raw_scores} if "raw_scores" in known else {}
    for holder in (scope, container):
        holder.add_options(id(record.last), options)
    return list(skl2onnx_bridge.parse(scope, estimator, [rows], parsers()))


def _add(graph: ir.Graph, results: Sequence[ir.Value], names: Sequence[str], container: Container) -> None:
    """Add the nodes and parameters of a graph to the container; the results get the names of the outputs."""
    op = GraphBuilder(graph, prefix=f"{names[0]}/out", constant_nodes=True)
    for value, name in zip(results, names, strict=True):
        value = op.Identity(value) if value.producer() is None else value
        value.name = name
        graph.outputs.append(value)
    proto = to_proto(ir.Model(graph, ir_version=10))
    container.initializers.extend(proto.graph.initializer)
    container.nodes.extend(proto.graph.node)
    container.node_domain_version_pair_sets.update((d, v) for d, v in graph.opset_imports.items())


# Declarations for skl2onnx


def parsers() -> dict[type, Callable[..., Any]]:
    """Return the parsers for skl2onnx, by class; it has its own for classifiers."""
    declared = [kind for kind, own in CONVERTERS.items() if own.columns is not None]
    made = {kind: _declared_outputs for kind in declared if not issubclass(kind, ClassifierMixin)}
    made |= dict.fromkeys(_classifiers_of_our_own(), _declared_classifier)
    boosters = dict.fromkeys((HistGradientBoostingClassifier, HistGradientBoostingRegressor), _behind_encoders)
    return {**made, **boosters, ColumnTransformer: _by_position, TransformedTargetRegressor: _behind_steps}


def _by_position(
    scope: Scope, transformer: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Parse a ColumnTransformer by positions: matrices within ensembles have no column names.

    skl2onnx ignores the order of the columns where all of them are taken, so that they are selected here.
    """
    parts = [(name, part, list(transformer._transformer_to_input_indices[name]))
             for name, part, _ in transformer.transformers_]  # fmt: skip
    if len(inputs) == 1:
        (rows,), inputs = inputs, []
        for i, (name, part, places) in enumerate(parts):
            start = sum(len(before) for _, _, before in parts[:i])
            inputs += [_selected_columns(scope, rows, places, transformer.n_features_in_)] if places else []
            parts[i] = (name, part, list(range(start, start + len(places))))
    twin = copy.copy(transformer)
    twin.transformers_ = parts
    return list(skl2onnx_bridge.parse_column_transformer(scope, twin, inputs, custom_parsers=custom_parsers))


def _selected_columns(scope: Scope, rows: Variable, places: list[int], columns: int) -> Any:
    """Return some columns of a matrix, with their number declared."""
    if places == list(range(columns)) and list(rows.type.shape)[1:] == [columns]:
        return rows
    operator = scope.declare_local_operator("SklearnArrayFeatureExtractor")
    operator.inputs, operator.column_indices = [rows], places
    operator.outputs.append(scope.declare_local_variable("columns", type(rows.type)([None, len(places)])))
    return operator.outputs[0]


def _behind_encoders(
    scope: Scope, booster: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Parse a histogram booster behind encoders of the columns of text that it encodes itself."""
    if any(type(variable.type).__name__ == "StringTensorType" for variable in inputs):
        columns = [_encoded_column(scope, booster, i, one) for i, one in enumerate(inputs)]
        operator = scope.declare_local_operator("SklearnConcat")
        operator.inputs = columns
        operator.outputs.append(
            scope.declare_local_variable("columns", skl2onnx_bridge.types().FloatTensorType([None, len(columns)]))
        )
        inputs = list(operator.outputs)
    return _parsed_by_skl2onnx(scope, booster, inputs, custom_parsers)


def _behind_steps(
    scope: Scope, regressor: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Parse a regressor of transformed targets behind the steps before its last one, which may take text."""
    inner = unwrapped(regressor.regressor_)
    while isinstance(inner, Pipeline):
        if len(inner.steps) > 1:
            inputs = list(skl2onnx_bridge.parse(scope, inner[:-1], inputs, parsers()))
        inner = unwrapped(inner.steps[-1][1])
    return _declared_outputs(scope, regressor, inputs, custom_parsers)


def _encoded_column(scope: Scope, booster: Estimator, column: int, variable: Variable) -> Any:
    """Return a column as numbers: of text, the places of the categories."""
    encoder = encoder_of_text(booster, column)
    if encoder is None:
        return variable
    return skl2onnx_bridge.parse(scope, encoder, [variable], parsers())[0]


def _parsed_by_skl2onnx(
    scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers
) -> list[Any]:
    """Return the outputs that skl2onnx declares for an estimator without a parser of this package."""
    others = {kind: parser for kind, parser in (custom_parsers or {}).items() if kind is not type(estimator)}
    return list(skl2onnx_bridge.parse(scope, estimator, inputs, others))


def shape_calculators() -> dict[type, Callable[..., Any]]:
    """Return the shape calculators for skl2onnx, by class."""
    declared = {kind: _declare_columns for kind, own in CONVERTERS.items() if own.columns is not None}
    return declared | dict.fromkeys(_classifiers_of_our_own(), _declare_classes)


def _classifiers_of_our_own() -> list[type]:
    """Return the classifiers that skl2onnx does not know."""
    return [
        kind for kind in CONVERTERS if issubclass(kind, ClassifierMixin) and not skl2onnx_bridge.has_converter(kind)
    ]


def _declared_classifier(
    scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Declare the outputs of a classifier that skl2onnx does not know: labels and scores."""
    if converter_of(estimator) is None:
        raise ModelError(f"{' '.join(repr(estimator).split())} has no ONNX form: other settings of it have one.")
    types = skl2onnx_bridge.types()
    operator = scope.declare_local_operator(type(estimator).__name__, estimator)
    operator.inputs = inputs
    of_text = not isinstance(estimator.classes_, list) and labels(estimator).dtype.kind == "U"
    label = types.StringTensorType if of_text else types.Int64TensorType  # several labels are 0 and 1
    operator.outputs.append(scope.declare_local_variable("label", label()))
    operator.outputs.append(scope.declare_local_variable("probabilities", types.FloatTensorType()))
    return list(operator.outputs)


def _declare_classes(operator: Operator) -> None:
    label, scores = operator.outputs
    label.type = type(label.type)([None])
    scores.type = type(scores.type)([None, len(operator.raw_operator.classes_)])


def _declared_outputs(
    scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Declare the outputs of a converter of this package: one, and labels before it for an outlier detector."""
    known = skl2onnx_bridge.has_converter(type(estimator))
    if converter_of(estimator) is None and not known:
        raise ModelError(f"{' '.join(repr(estimator).split())} has no ONNX form: other settings of it have one.")
    if converter_of(estimator) is None:
        return _parsed_by_skl2onnx(scope, estimator, inputs, custom_parsers)
    operator = scope.declare_local_operator(type(estimator).__name__, estimator)
    operator.inputs = inputs
    if is_outlier_detector(estimator):
        operator.outputs.append(scope.declare_local_variable("label", skl2onnx_bridge.types().Int64TensorType()))
    operator.outputs.append(scope.declare_local_variable("variable", skl2onnx_bridge.types().FloatTensorType()))
    return list(operator.outputs)


def _declare_columns(operator: Operator) -> None:
    """Declare the number of columns of a converter of this package; skl2onnx declares those of its own."""
    own = converter_of(operator.raw_operator)
    if own is None or own.columns is None:
        operator.infer_types()
        return
    for output in operator.outputs:
        output.type = type(output.type)([None, own.columns(operator.raw_operator)])
