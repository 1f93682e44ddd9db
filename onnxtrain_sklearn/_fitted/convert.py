"""Convert fitted scikit-learn models to ONNX, by the converters of this package and of skl2onnx.

:func:`converted` is the entry point. skl2onnx orders the estimators and calls one converter for each: this package's
converter if :data:`CONVERTERS` has one for the settings and the types of the data, else its own. The nodes and
initializers that each converter adds are recorded with the estimator, so that parameters can be traced to attributes.
The graph has one input, a numeric matrix, or one input per column if some columns hold text.

:func:`convert` runs a converter of this package inside skl2onnx; :func:`parsers` and :func:`shape_calculators` declare
its outputs there. :func:`converters_of_boosters` lends skl2onnx the converters of LightGBM and XGBoost.
"""

from __future__ import annotations

import copy
import importlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
from sklearn.base import ClassifierMixin, is_classifier, is_outlier_detector
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, OrdinalEncoder

from .._importers.load import load
from .._ir.protobuf import to_proto
from .._utils.typing import Container, Estimator, Operator, Parsers, Scope, Variable
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..losses import Huber, Loss, Quantile, Tweedie
from . import skl2onnx_bridge
from .converters import kernels, linear, meta, neighbors, preprocessing, svm, trees
from .converters.context import ConversionRecord, Converter, Source, labels
from .converters.trees import encoder_of_text
from .corrections import repair, why_unconverted
from .fitted_model import is_gap, walk
from .model_record import columns_taken, record_of, unwrapped
from .text_encoder import name_inputs

CONVERTERS: dict[type, Converter] = {
    **trees.CONVERTERS,
    **meta.CONVERTERS,
    **preprocessing.CONVERTERS,
    **linear.CONVERTERS,
    **kernels.CONVERTERS,
    **neighbors.CONVERTERS,
    **svm.CONVERTERS,
}
"""The converters of this package, by class; they have precedence over skl2onnx's."""


def converter_of(estimator: Estimator) -> Converter | None:
    """Return the converter of this package for an estimator; None if it has none for the class or the settings."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None


def converted(
    estimator: Estimator,
    columns: Mapping[str, bool] | None = None,
    placeholders: Mapping[str, str] | None = None,
) -> tuple[ir.Model, list[ConversionRecord]]:
    """Return a fitted model as a graph, and the record of what each converter added to it.

    The graph takes one numeric matrix, or, given ``columns``, one input for each column: names map to True for text.
    ``placeholders`` are those of :class:`~.fitted_model.TableColumn`.

    Raises
    ------
    ModelError
        The model cannot be converted.
    """
    estimator = _with_counted_classes(unwrapped(estimator))
    records: list[ConversionRecord] = []
    parts = [part for _, part in walk(estimator)]
    if (network := next((part for part in parts if hasattr(type(part), "to_onnx")), None)) is not None:
        # Refuse it, because its weights would be constants of the graph.
        within = "" if network is estimator else f" in this {type(estimator).__name__}"
        raise ModelError(
            f"{type(network).__name__}{within} is a network of onnxtrain_sklearn, not a fitted model of scikit-learn. "
            f"Go on training it by its own partial_fit, or by fit with warm_start=True; or give an ONNX graph as "
            f"model: its to_onnx(), or skl2onnx.to_onnx of a pipeline."
        )
    skl2onnx = skl2onnx_bridge.package()
    inputs = _inputs(estimator, columns)
    watching = _recording(skl2onnx_bridge.converter, records, placeholders or {})
    try:
        with converters_of_boosters(parts), warnings.catch_warnings():
            kinds = {type(part) for part in parts} & {*skl2onnx_bridge.converted_classes(), *CONVERTERS}
            warnings.simplefilter("ignore", FutureWarning)  # skl2onnx reads deprecated attributes of scikit-learn
            warnings.filterwarnings("ignore", "The conversion of", UserWarning)  # predictions are compared afterwards
            proto = skl2onnx.convert_sklearn(
                estimator,
                name=type(estimator).__name__,  # the default name is random: equal models would give different files
                initial_types=inputs,
                target_opset={"": CONVERTED_OPSET, "ai.onnx.ml": 3},
                options=_options(estimator),
                custom_conversion_functions=dict.fromkeys(kinds, watching),
                custom_shape_calculators=shape_calculators(),
                custom_parsers=parsers(),
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(why_unconverted(estimator, error)) from error

    # skl2onnx declares the oldest opset that has all operators. Set the opset for which the converters emitted, if the
    # graph is valid in it.
    model = load(proto)
    newer = model.clone()
    newer.graph.opset_imports[""] = CONVERTED_OPSET
    checked = newer.clone()
    for output in checked.graph.outputs:  # for several labels, skl2onnx often declares wrong types
        output.type = output.shape = None
    checked.graph.outputs.clear()
    with suppress(Exception):  # inference also fails on operators of other domains
        onnx.checker.check_model(to_proto(checked), full_check=True)
        model = newer
    if columns is not None:
        name_inputs(model.graph, list(columns))
    for one in records:
        repair(model.graph, one.estimator, one.nodes)
    return model, records


def _with_counted_classes(estimator: Estimator) -> Any:
    """Return a copy of a multi-output model whose classes are 0, 1, 2, ...: skl2onnx cannot mix types of labels."""
    if isinstance(estimator, MultiOutputClassifier):
        estimator = copy.copy(estimator)
        estimator.classes_ = [np.arange(len(known)) for known in estimator.classes_]
    elif isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        estimator = copy.copy(estimator)
        estimator.steps = [*estimator.steps[:-1], (name, _with_counted_classes(last))]
    return estimator


def _inputs(estimator: Estimator, columns: Mapping[str, bool] | None) -> list[tuple[str, Any]]:
    """Return the inputs of the graph: one matrix, or one input for each named column."""
    types = skl2onnx_bridge.types()
    if columns is not None:
        kinds = {True: types.StringTensorType, False: types.FloatTensorType}
        return [(name, kinds[is_text]([None, 1])) for name, is_text in columns.items()]
    if not hasattr(estimator, "n_features_in_"):
        raise ModelError(
            f"This {type(estimator).__name__} has no n_features_in_, the number of columns that it was fitted to. Give "
            f"a model that is fitted to a matrix, or to texts in a pipeline that begins with their encoder."
        )
    return [("X", types.FloatTensorType([None, estimator.n_features_in_]))]


def _options(estimator: Estimator) -> dict[int, dict[str, Any]] | None:
    """Return the options for skl2onnx, or None if none are needed, because options make it search whole ensembles.

    The last classifier of a pipeline needs an entry, even if it is empty. Otherwise skl2onnx adds a zipmap, which not
    all classifiers support.
    """
    last = record_of(estimator).last
    if "zipmap" in skl2onnx_bridge.allowed_options(type(last)):
        return {id(last): {"zipmap": False}}
    options: dict[int, dict[str, Any]] = {}
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
        options[id(estimator)] = {}
    return options or None


def _with_placeholders(estimator: Estimator, placeholders: Mapping[str, str]) -> Any:
    """Return a copy of an encoder with placeholders in place of missing values among its categories."""
    if not placeholders or not isinstance(estimator, OneHotEncoder | OrdinalEncoder):
        return estimator
    twin = copy.copy(estimator)
    twin.categories_ = [
        np.array([placeholders.get(str(one), one) if is_gap(one) else one for one in known], known.dtype)
        for known in estimator.categories_
    ]
    return twin


def _convertible(estimator: Estimator, placeholders: Mapping[str, str]) -> Any:
    """Return an estimator with equivalent settings that skl2onnx supports.

    skl2onnx imputes text only if a string marks missing values.
    """
    changed: dict[str, object] = {}
    if isinstance(estimator, SimpleImputer) and any(isinstance(s, str) for s in estimator.statistics_):
        missing = str(estimator.missing_values)
        changed = {
            "missing_values": placeholders.get(missing, missing) if is_gap(estimator.missing_values) else missing
        }
    if isinstance(estimator, KBinsDiscretizer) and estimator.encode == "onehot":  # graphs have no sparse matrices
        changed = {"encode": "onehot-dense"}
    twin = copy.copy(estimator) if changed else estimator
    vars(twin).update(changed)
    return twin


def _recording(
    theirs: Callable[[str], Callable[..., None]], records: list[ConversionRecord], placeholders: Mapping[str, str]
) -> Callable[..., None]:
    """Return a converter that also records what it adds, and writes booleans in attributes as integers."""

    def converted(scope: Scope, operator: Operator, container: Container) -> None:
        nodes = len(container.nodes)
        initializers = len(container.initializers)
        add_node = container.add_node
        estimator = operator.raw_operator

        def add_without_booleans(*names: Any, **attributes: Any) -> Any:
            for key, value in attributes.items():
                if isinstance(value, list | tuple) and any(isinstance(v, bool | np.bool_) for v in value):
                    attributes[key] = [int(v) if isinstance(v, bool | np.bool_) else v for v in value]
                elif isinstance(value, np.ndarray) and value.dtype == bool:
                    attributes[key] = value.astype(np.int64)
            return add_node(*names, **attributes)

        container.add_node = add_without_booleans
        # Prevent skl2onnx from sharing equal arrays of different estimators, which training must keep separate.
        container.initializers_strings.clear()
        try:
            operator.raw_operator = _with_placeholders(estimator, placeholders)
            source = convert(scope, operator, container)
            if source is None:
                operator.raw_operator = _convertible(estimator, placeholders)
                theirs(operator.type)(scope, operator, container)
        finally:
            container.add_node, operator.raw_operator = add_node, estimator
        records.append(
            ConversionRecord(
                estimator,
                frozenset(node.name for node in container.nodes[nodes:]),
                frozenset(tensor.name for tensor in container.initializers[initializers:]),
                *((tuple(source.known), source.marked) if source else ()),
            )
        )

    return converted


# Adapter that runs this package's converters inside skl2onnx.
#
# The nodes and parameters that a converter emits are added to skl2onnx's container. skl2onnx orders the estimators, and
# converts those without a converter of this package, even if they are nested in an estimator that has one.


CONVERTED_OPSET = 18

_NUMBERS = {
    "BooleanTensorType": ir.DataType.BOOL,
    "FloatTensorType": ir.DataType.FLOAT,
    "Int64TensorType": ir.DataType.INT64,
}
_DTYPES = {**_NUMBERS, "StringTensorType": ir.DataType.STRING}
"""The ONNX types for the names of skl2onnx's type classes."""


def convert(scope: Scope, operator: Operator, container: Container) -> Source | None:
    """Convert an estimator by this package's converter; return the :class:`Source`, or None without a converter."""
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
        variable: Any = operator.inputs[0]
        if x is not inputs[0]:  # computed rows become a variable of skl2onnx, for the nested estimator's converter
            computed = op.Identity(x)
            columns = skl2onnx_bridge.types().FloatTensorType([None, estimator.n_features_in_])
            variable = scope.declare_local_variable("rows", columns)
            variable.init_status(is_fed=True)  # otherwise skl2onnx misses a variable that depends on constants only
            computed.name = variable.full_name
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


def _declared(scope: Scope, container: Container, estimator: Estimator, rows: Variable, raw_scores: bool) -> list[Any]:
    """Declare a nested estimator, which skl2onnx converts later; return its outputs."""
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

    skl2onnx ignores the order of the columns if a part takes all of them, so the columns are selected here.
    """
    parts = [(name, part, list(transformer._transformer_to_input_indices[name]))
             for name, part, _ in transformer.transformers_]  # fmt: skip
    if len(inputs) == 1:
        (rows,), inputs = inputs, []
        for i, (name, part, places) in enumerate(parts):
            start = sum(len(before) for _, _, before in parts[:i])
            columns = transformer.n_features_in_
            parts[i] = (name, part, list(range(start, start + len(places))))
            if places == list(range(columns)) and list(rows.type.shape)[1:] == [columns]:
                inputs.append(rows)
            elif places:
                operator = scope.declare_local_operator("SklearnArrayFeatureExtractor")
                operator.inputs = [rows]
                operator.column_indices = places
                operator.outputs.append(scope.declare_local_variable("columns", type(rows.type)([None, len(places)])))
                inputs.append(operator.outputs[0])
    twin = copy.copy(transformer)
    twin.transformers_ = parts
    return list(skl2onnx_bridge.parse_column_transformer(scope, twin, inputs, custom_parsers=custom_parsers))


def _behind_encoders(
    scope: Scope, booster: Estimator, inputs: list[Variable], custom_parsers: Parsers = None
) -> list[Any]:
    """Parse a histogram booster after encoders for the columns of text, which the booster encodes internally."""
    if any(type(variable.type).__name__ == "StringTensorType" for variable in inputs):
        columns = []
        for i, variable in enumerate(inputs):  # replace text by the positions of its categories
            encoder = encoder_of_text(booster, i)
            if encoder is not None:
                variable = skl2onnx_bridge.parse(scope, encoder, [variable], parsers())[0]
            columns.append(variable)
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
    """Parse the steps before the last one of a TransformedTargetRegressor, which may take text, then the regressor."""
    inner = unwrapped(regressor.regressor_)
    while isinstance(inner, Pipeline):
        if len(inner.steps) > 1:
            inputs = list(skl2onnx_bridge.parse(scope, inner[:-1], inputs, parsers()))
        inner = unwrapped(inner.steps[-1][1])
    return _declared_outputs(scope, regressor, inputs, custom_parsers)


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
    """Return the classifiers that skl2onnx itself does not know."""
    return [kind for kind in CONVERTERS if issubclass(kind, ClassifierMixin) and not skl2onnx_bridge.knows(kind)]


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
    label = types.StringTensorType if of_text else types.Int64TensorType  # with several labels, they are 0 and 1
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
    """Declare the output of a converter of this package, preceded by labels if it is an outlier detector."""
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


# LightGBM and XGBoost are converted by onnxmltools.
#
# If the user has registered a converter with skl2onnx, that one is used. Otherwise onnxmltools's converter is
# registered while a model is converted, and removed afterwards.


_CONVERTERS = {
    "lightgbm": "onnxmltools.convert.lightgbm.operator_converters.LightGbm:convert_lightgbm",
    "xgboost": "onnxmltools.convert.xgboost.operator_converters.XGBoost:convert_xgboost",
}
"""For each package, the conversion function of onnxmltools."""

_ESTIMATORS = frozenset(
    "LGBMClassifier LGBMRegressor XGBClassifier XGBRegressor XGBRFClassifier XGBRFRegressor".split()
)
_OPTIONS = {"zipmap": [True, False, "columns"], "nocl": [True, False]}
_LOCK = threading.RLock()


def library_of(estimator: Estimator) -> str | None:
    """Return the package of an estimator, LightGBM or XGBoost; None for other ones."""
    for kind in type(estimator).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _CONVERTERS and kind.__name__ in _ESTIMATORS:
            return package
    return None


@contextmanager
def converters_of_boosters(parts: Iterable[Estimator]) -> Iterator[None]:
    """Register missing converters of ``parts`` within the context."""
    boosters = {type(part): part for part in parts if library_of(part)}
    found = {kind: part for kind, part in boosters.items() if not skl2onnx_bridge.has_converter(kind)}
    if not found:
        yield
        return
    with _LOCK:
        try:
            for part in found.values():
                _register(part)
            yield
        finally:
            for kind in found:
                skl2onnx_bridge.forget(kind, _alias(kind))


def _register(part: Estimator) -> None:
    """Register the converter of onnxmltools for the class of an estimator."""
    kind, library = type(part), library_of(part)
    assert library is not None
    if part.get_params().get("zero_as_missing"):
        raise ModelError(f"{kind.__name__}(zero_as_missing=True) has no right ONNX form. Fit it without.")
    module, _, function = _CONVERTERS[library].partition(":")
    try:
        convert: Callable[..., None] = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ModelError(
            f"skl2onnx has no converter for {kind.__name__}. Install onnxmltools, whose converter is then used "
            f"(pip install onnxmltools), or register another one with skl2onnx.update_registered_converter."
        ) from error
    shapes = skl2onnx_bridge.shapes()
    options = _OPTIONS if is_classifier(part) else None
    declare = (
        shapes.calculate_linear_regressor_output_shapes
        if options is None
        else shapes.calculate_linear_classifier_output_shapes
    )
    skl2onnx_bridge.package().update_registered_converter(kind, _alias(kind), declare, convert, options=options)


def _alias(kind: type) -> str:
    return f"Onnxtrain{kind.__module__}{kind.__qualname__}"


_OBJECTIVES = {
    "count:poisson": "poisson",
    "gamma": "gamma",
    "l1": "absolute_error",
    "mae": "absolute_error",
    "poisson": "poisson",
    "reg:absoluteerror": "absolute_error",
    "reg:gamma": "gamma",
    "regression_l1": "absolute_error",
}
"""For each objective of a regressor, the loss to train with; for all others it is the squared error."""


def loss_of_booster(estimator: Estimator) -> str | Loss:
    """Return the loss to train a regressor of LightGBM or XGBoost with."""
    objective = str(getattr(estimator, "objective_", None) or getattr(estimator, "objective", None))
    given = estimator.get_params()
    if objective == "quantile":
        return Quantile(given.get("alpha", 0.9))
    if objective == "reg:quantileerror" and np.ndim(given["quantile_alpha"]) == 0:
        return Quantile(given["quantile_alpha"])
    if objective == "huber":
        return Huber(given.get("alpha", 0.9))
    if objective == "reg:pseudohubererror":
        return Huber(given.get("huber_slope") or 1.0)
    if objective in ("tweedie", "reg:tweedie"):
        return Tweedie(given.get("tweedie_variance_power") or 1.5)
    return _OBJECTIVES.get(objective, "squared_error")
