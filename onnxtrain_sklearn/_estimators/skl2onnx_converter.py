"""Converters of skl2onnx for the estimators, so that pipelines and ensembles that contain them convert.

:func:`register_estimators` registers them. A converter has two parts: one declares the types and shapes of the outputs,
the other converts the inference graph to the requested opset, and adds its nodes and weights to the container under
names that are unique in the whole graph. So one graph can contain several of the estimators, and its outputs are those
of ``predict``. Numeric outputs have the type of the input, as with all converters of skl2onnx; inside, the graph keeps
its own type.

skl2onnx has no converter for ``TransformedTargetRegressor``, which often wraps regressors, so this module adds one for
any regressor. ``_recipes/skl2onnx_registration`` embeds the estimators for tables with functions of this module.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .._fitted import skl2onnx_bridge
from .._fitted.fitted_model import Table
from .._importers.quantization import requantized
from .._inference.graph import Decoding, OutputOptions, inference_model
from .._ir.control_flow import unroll
from .._ir.edits import replace_input
from .._ir.files import require_whole
from .._ir.opsets import converted
from .._ir.protobuf import to_proto
from .._ir.queries import graphs_in
from .._ir.shapes import infer_shapes
from .._utils.errors import reason
from .._utils.typing import Container, Operator, Scope
from ..exceptions import ModelError
from ..graph import GraphBuilder
from .base import BaseOrtGradient
from .classifier import OrtGradientClassifier
from .fitted_state import predicting_model
from .regressor import OrtGradientRegressor

CLASSIFIER_OPTIONS = {
    "zipmap": [True, False, "columns"],
    "raw_scores": [True, False],
    "nocl": [True, False],
    "output_class_labels": [False, True],
}
"""The options of the classifier's converter. skl2onnx itself implements ``zipmap`` and ``output_class_labels``."""

VARIABLE_TYPES = {
    "FloatTensorType": ir.DataType.FLOAT,
    "DoubleTensorType": ir.DataType.DOUBLE,
    "Int64TensorType": ir.DataType.INT64,
    "Int32TensorType": ir.DataType.INT32,
    "BooleanTensorType": ir.DataType.BOOL,
    "StringTensorType": ir.DataType.STRING,
}


def register_estimators() -> None:
    """Register the converters of the classifier, of the regressor and of TransformedTargetRegressor with skl2onnx."""
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.pipeline import FeatureUnion, Pipeline

    register = skl2onnx_bridge.register
    name = "OnnxtrainSklearnClassifier"
    register(OrtGradientClassifier, name, _classifier_types, _convert_classifier, CLASSIFIER_OPTIONS)
    register(OrtGradientRegressor, "OnnxtrainSklearnRegressor", _regressor_types, _convert_regressor)
    register(TransformedTargetRegressor, "OnnxtrainSklearnTargets", _target_types, _convert_target)
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
    rows, decoding = operator.inputs[0].get_first_dimension(), _decoding(operator.raw_operator, operator.scope_inst)
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
    if classes.dtype.kind == "f" and not (classes == np.rint(classes)).all():
        raise ModelError(f"skl2onnx has labels that are integers or strings, the classes are {classes.tolist()}.")
    return replace(decoding, classes=classes.astype(np.int64) if classes.dtype.kind in "iubf" else classes)


def _declared_classes(decoding: Decoding) -> np.ndarray:
    if decoding.groups:
        raise ModelError("skl2onnx takes classifiers of several labels of several classes alone: take to_onnx().")
    assert isinstance(decoding.classes, np.ndarray)
    return decoding.classes


def _target_types(operator: Operator) -> None:
    check_is_fitted(operator.raw_operator)
    types = skl2onnx_bridge.types()
    kind, rows = operator.inputs[0].type, operator.inputs[0].get_first_dimension()
    number = types.FloatTensorType if isinstance(kind, types.StringTensorType) else type(types.guess_tensor_type(kind))
    columns = int(getattr(operator.raw_operator.transformer_, "n_features_in_", 1))
    operator.outputs[0].set_type(number([rows, columns]))


def _convert_target(scope: Scope, operator: Operator, container: Container) -> None:
    """Convert the regressor, then the inverse of the transformer of its targets."""
    from .._fitted.converters.context import Source  # needs much of scikit-learn
    from .._fitted.converters.meta import inverse_of

    outer = operator.raw_operator
    (made,) = skl2onnx_bridge.parse(scope, outer.regressor_, list(operator.inputs), {})
    given = ir.val("predicted", VARIABLE_TYPES[type(operator.outputs[0].type).__name__], ("N", None))
    opset = container.target_opset_any_domain("")
    op = GraphBuilder(ir.Graph([given], [], nodes=[], opset_imports={"": opset}, name="targets"), prefix="targets")
    y = given if given.dtype is ir.DataType.FLOAT else op.Cast(given, to=int(ir.DataType.FLOAT))

    def convert_inner(*_: object) -> Any:
        raise AssertionError("the regressor is converted already")

    y = op.Reshape(y, np.array([-1, operator.outputs[0].type.shape[1]]))
    y = inverse_of(Source(op, outer, y, "targets", False, convert_inner), y)
    y = op.Cast(y, to=int(given.dtype or ir.DataType.FLOAT))
    y.name = "inverse"
    op.graph.outputs.append(y)
    append_to_container(ir.Model(op.graph, ir_version=8), [made], scope, operator, container)


def _embed(model: ir.Model, scope: Scope, operator: Operator, container: Container) -> None:
    """Add the nodes and weights of ``model`` to the container, connected to the operator's inputs and outputs."""
    model = in_target_opset(unroll(requantized(model)), container.target_opset_any_domain(""))
    append_to_container(model, _connect(model.graph, operator), scope, operator, container)


def append_to_container(
    model: ir.Model, variables: list[Any], scope: Scope, operator: Operator, container: Container
) -> None:
    """Add the nodes and weights of ``model`` to the container under unique names; ``variables`` are its inputs."""
    proto = require_whole(to_proto(model), "A graph of skl2onnx")
    ends = zip((*proto.graph.input, *proto.graph.output), (*variables, *operator.outputs), strict=True)
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
    name, given = type(operator.raw_operator).__name__, operator.inputs
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
