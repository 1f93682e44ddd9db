"""Converters of skl2onnx for ``OrtGradientClassifier`` and ``OrtGradientRegressor``, to predict or to transform.

A converter brings the inference graph to the requested opset, and adds its nodes and weights to the container under
names that are unique in the whole graph. So one graph can contain several of the estimators, and its outputs are those
of ``predict``. Numeric outputs have the type of the input, as with all converters of skl2onnx; inside, the graph keeps
its own type.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .._estimators.base import BaseOrtGradient
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.fitted_state import predicting_model
from .._estimators.regressor import OrtGradientRegressor
from .._fitted import skl2onnx_bridge
from .._fitted.fitted_model import Table
from .._importers.quantization import requantized
from .._inference.graph import Decoding, OutputOptions, inference_model
from .._ir.control_flow import unroll
from .._ir.edits import replace_input
from .._recipes.features import LastHiddenLayers
from .._utils.typing import Container, Operator, Scope
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .graphs import VARIABLE_TYPES, append_to_container, in_target_opset, require_sortable, whole_classes

CLASSIFIER_OPTIONS = {
    "zipmap": [True, False, "columns"],
    "raw_scores": [True, False],
    "nocl": [True, False],
    "output_class_labels": [False, True],
}
"""The options of the classifier's converter. skl2onnx itself implements ``zipmap`` and ``output_class_labels``."""


def register_estimators() -> None:
    """Register the converters of the classifier and the regressor with skl2onnx, where they predict or transform."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    register = skl2onnx_bridge.register
    name = "OnnxtrainSklearnClassifier"
    register(OrtGradientClassifier, name, _classifier_types, _convert_classifier, CLASSIFIER_OPTIONS)
    register(OrtGradientRegressor, "OnnxtrainSklearnRegressor", _regressor_types, _convert_regressor)
    if not skl2onnx_bridge.has_converter(FeatureStep):
        register(FeatureStep, "OnnxtrainSklearnFeatures", _feature_types, _convert_features)
        for kind in (Pipeline, FeatureUnion, ColumnTransformer):
            skl2onnx_bridge.read_before_parsing(kind, with_feature_steps)


class FeatureStep(TransformerMixin, BaseEstimator):
    """An estimator where ``transform`` is called, not ``predict``: before a model in a pipeline, or in a union."""

    def __init__(self, estimator: BaseOrtGradient) -> None:
        self.estimator = estimator
        self._state = estimator._state  # what the functions of this module read


def with_feature_steps(model: Any) -> Any:
    """Return a pipeline, a union or a ColumnTransformer whose estimators of this package are transformers.

    A copy, if there are some; skl2onnx would take what they predict for what the next step reads.
    """
    name = next(n for n in ("transformers_", "transformer_list", "steps") if hasattr(model, n))
    steps = getattr(model, name)
    read = [(label, _as_transformer(one), *rest) for label, one, *rest in (steps[:-1] if name == "steps" else steps)]
    return _with_steps(model, name, [*read, *(steps[-1:] if name == "steps" else [])])


def _as_transformer(model: Any) -> Any:
    if isinstance(model, BaseOrtGradient):
        return FeatureStep(model)
    if isinstance(model, LastHiddenLayers):  # its converter is that of predict
        raise ModelError(
            f"{type(model).__name__} has no converter for transform, before a model in a pipeline or in a union: "
            f"convert it as a model, or use OrtGradientRegressor or OrtGradientClassifier for the features."
        )
    if not hasattr(model, "steps"):
        return model
    return _with_steps(model, "steps", [(label, _as_transformer(one)) for label, one in model.steps])


def _with_steps(model: Any, name: str, steps: list[Any]) -> Any:
    if all(new[1] is old[1] for new, old in zip(steps, getattr(model, name), strict=True)):
        return model
    twin = copy.copy(model)
    setattr(twin, name, steps)
    return twin


def _feature_types(operator: Operator) -> None:
    estimator = operator.raw_operator.estimator
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].set_type(_number_type(operator)([rows, estimator._n_features()]))


def _convert_features(scope: Scope, operator: Operator, container: Container) -> None:
    _embed(operator.raw_operator.estimator._features_model(), scope, operator, container)


def _classifier_types(operator: Operator) -> None:
    check_is_fitted(operator.raw_operator)
    types = skl2onnx_bridge.types()
    rows = operator.inputs[0].get_first_dimension()
    decoding = _decoding(operator.raw_operator, operator.scope_inst)
    if decoding.positions is not None:
        raise ModelError("skl2onnx knows one label a row, and these rows have one at each position: call to_onnx().")
    classes = _declared_classes(decoding)
    label = types.Int64TensorType if classes.dtype.kind == "i" else types.StringTensorType
    operator.outputs[0].set_type(label([rows, len(classes)] if decoding.task == "multilabel" else [rows]))
    operator.outputs[1].set_type(_number_type(operator)([rows, len(classes)]))


def _regressor_types(operator: Operator) -> None:
    check_is_fitted(operator.raw_operator)
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].set_type(_number_type(operator)([rows, *_target_shape(operator.raw_operator)]))


def _target_shape(estimator: BaseOrtGradient) -> tuple[int, ...]:
    return estimator._state.decoding.row_shape or (estimator.n_outputs_,)


def _number_type(operator: Operator) -> Any:
    """Check the inputs of the operator, and return skl2onnx's type for its numeric outputs."""
    types = skl2onnx_bridge.types()
    name = type(operator.raw_operator).__name__
    if _accepted_table(operator.raw_operator) is not None:
        return types.FloatTensorType
    graph = operator.raw_operator._state.graph
    if graph.batch is not None:
        what = "takes a list of examples" if graph.takes_examples else f"runs on {graph.batch} rows at a time"
        raise ModelError(f"skl2onnx knows matrices of any number of rows, and {name} {what}: call to_onnx().")
    if len(operator.inputs) != 1:
        raise ModelError(
            f"{name} takes one matrix, got {len(operator.inputs)} inputs: declare one initial type, or put a "
            f"ColumnTransformer before it."
        )
    kind = operator.inputs[0].type
    if type(kind).__name__ not in VARIABLE_TYPES or isinstance(kind, types.StringTensorType):
        raise ModelError(f"{name} takes numbers, got a {type(kind).__name__}: encode it in a step before.")
    return type(types.guess_tensor_type(kind))


def _convert_classifier(scope: Scope, operator: Operator, container: Container) -> None:
    estimator = operator.raw_operator
    decoding = _decoding(estimator, scope)
    raw_scores = container.get_options(estimator, {"raw_scores": None})["raw_scores"]
    if raw_scores is False and not decoding.has_probabilities:
        raise ModelError(
            f"raw_scores=False asks for probabilities, but loss={estimator.loss!r} gives only scores. Set the option "
            f"raw_scores=True of the {type(estimator).__name__}, or of the estimator around it."
        )
    form = OutputOptions(raw_scores=bool(raw_scores) or not decoding.has_probabilities, per_class=True)
    _embed(inference_model(*predicting_model(estimator._state), decoding, form=form), scope, operator, container)


def _convert_regressor(scope: Scope, operator: Operator, container: Container) -> None:
    estimator = operator.raw_operator
    # skl2onnx knows a single output of regressors.
    decoding = replace(estimator._state.decoding, distribution=None)
    model = inference_model(*predicting_model(estimator._state), decoding)
    _embed(model, scope, operator, container)


def _decoding(estimator: OrtGradientClassifier, scope: Scope) -> Decoding:
    """Return the decoding with labels of a type that skl2onnx supports: strings or int64."""
    decoding: Decoding = estimator._state.decoding
    classes = _declared_classes(decoding)
    if scope.get_options(estimator, {"nocl": False})["nocl"]:
        classes = np.arange(len(classes))
    return replace(decoding, classes=whole_classes(classes))


def _declared_classes(decoding: Decoding) -> np.ndarray:
    if decoding.groups:
        raise ModelError("skl2onnx takes classifiers of several labels of several classes alone: take to_onnx().")
    assert isinstance(decoding.classes, np.ndarray)
    return decoding.classes


def _embed(model: ir.Model, scope: Scope, operator: Operator, container: Container) -> None:
    """Add the nodes and weights of ``model`` to the container, connected to the operator's inputs and outputs."""
    model = in_target_opset(unroll(requantized(model)), container.target_opset_any_domain(""))
    append_to_container(model, _connect(model.graph, operator), operator.outputs, scope, container)


def _connect(ir_graph: ir.Graph, operator: Operator) -> list[Any]:
    """Cast and reshape the graph's inputs and outputs to those that the operator declares.

    Returns the variables of the inputs.
    """
    estimator = operator.raw_operator
    require_sortable(ir_graph, type(estimator).__name__)
    op = GraphBuilder(ir_graph, prefix="embedded", constant_nodes=True)
    table = _accepted_table(estimator)
    variables = list(operator.inputs) if table is None else _table_variables(operator, table, ir_graph)
    row = _row_shape(estimator) if table is None else (1,)
    for own, variable in zip(list(ir_graph.inputs), variables, strict=True):
        given = ir.val(op.name("input"), VARIABLE_TYPES[type(variable.type).__name__], ("N", None))
        value = given if given.dtype == own.dtype else op.Cast(given, to=own.dtype)
        replace_input(ir_graph, own, given, value if len(row) == 1 else op.Reshape(value, shape=[0, *row]))
    for i, variable in enumerate(operator.outputs):
        final = ir_graph.outputs[i]
        rank = None if final.shape is None else len(final.shape)
        if isinstance(estimator, OrtGradientRegressor) and rank != len(_target_shape(estimator)) + 1:
            final = op.Reshape(final, shape=[-1, *_target_shape(estimator)])
        wanted = VARIABLE_TYPES.get(type(variable.type).__name__)
        ir_graph.outputs[i] = op.Identity(final) if wanted in (None, final.dtype) else op.Cast(final, to=wanted)
    return variables


def _accepted_table(estimator: BaseOrtGradient) -> Table | None:
    fitted = estimator._state.fitted
    return None if fitted is None else fitted.table


def _table_variables(operator: Operator, table: Table, ir_graph: ir.Graph) -> list[Any]:
    """Return the variables of the table columns that the graph reads, in its order."""
    name = type(operator.raw_operator).__name__
    given = operator.inputs
    shapes = ([1], []) if table.documents else ([1],)
    if len(given) != len(table.columns) or any(list(variable.type.shape[1:]) not in shapes for variable in given):
        raise ModelError(
            f"{name} was trained on a table of {len(table.columns)} columns, some of them text: declare an initial "
            f"type of shape [None, 1] for each, got {[(v.raw_name, v.type.shape) for v in given]}. In a pipeline it "
            f"must come first."
        )
    for column, variable in zip(table.columns, given, strict=True):
        kind = type(variable.type).__name__
        if column.kind != "unused" and (kind == "StringTensorType") != (column.kind == "text"):
            raise ModelError(f"{name} takes {column.kind} in column {column.name!r}, which is declared a {kind}.")
        if column.kind != "unused" and kind not in VARIABLE_TYPES:
            raise ModelError(f"{name} takes no {kind}, which column {column.name!r} is declared as.")
    by_name = dict(zip((column.name for column in table.columns), given, strict=True))
    return [by_name[str(value.name)] for value in ir_graph.inputs]


def _row_shape(estimator: BaseOrtGradient) -> tuple[int, ...]:
    """Return the shape of a row of the graph's only input; skl2onnx passes rows of several axes flattened."""
    shapes = estimator._state.shapes
    if len(shapes) != 1:
        raise ModelError(
            f"The graph has {len(shapes)} inputs: {', '.join(map(repr, shapes))}. skl2onnx passes one array to "
            f"{type(estimator).__name__}; take its own to_onnx()."
        )
    ((name, row),) = shapes.items()
    if not row:
        raise ModelError(f"Input {name!r} of the graph is 1-D; skl2onnx passes a 2-D array.")
    return row
