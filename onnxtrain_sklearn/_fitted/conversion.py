"""Conversion of fitted scikit-learn models to ONNX graphs, by the converters of this package and of skl2onnx.

skl2onnx orders the estimators and calls the converter of each: that of this package where there is one for the settings
and the types of data, else its own. The nodes and initializers that each converter adds are recorded with the
estimator. The graph has one input, a numeric matrix, or one input per column where some columns hold text.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
from sklearn.impute import SimpleImputer
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, OrdinalEncoder

from .._graph.protobuf import load, to_proto
from .._support.typing import Container, Estimator, Operator, Scope
from ..exceptions import ModelError
from . import skl2onnx_bridge
from .boosters import converters_of_boosters
from .converter_adapter import CONVERTED_OPSET, convert, parsers, shape_calculators
from .converters.context import ConversionRecord
from .converters.registry import CONVERTERS
from .corrections import repair
from .record import record_of
from .refusals import why_unconverted
from .steps import unwrapped
from .table_graph import name_inputs
from .tables import is_gap
from .traversal import walk


def converted(
    estimator: Estimator, columns: Mapping[str, bool] | None = None, marks: Mapping[str, str] | None = None
) -> tuple[ir.Model, list[ConversionRecord]]:
    """Return a fitted model as a graph, and what each converter added to it.

    The graph takes one numeric matrix. Given ``columns``, it has one input for each by name; True stands for text.
    ``marks`` are what missing text is written as, by its usual form, where it is not that.

    Raises
    ------
    ModelError
        It cannot be converted.
    """
    skl2onnx = skl2onnx_bridge.package()
    estimator = _with_counted_classes(unwrapped(estimator))
    records: list[ConversionRecord] = []
    parts, inputs = list(_parts(estimator)), _inputs(estimator, columns)
    _require_no_network(estimator, parts)
    watching = _recording(skl2onnx_bridge.converter, records, marks or {})
    try:
        with converters_of_boosters(parts), warnings.catch_warnings():
            kinds = {type(part) for part in parts} & {*skl2onnx_bridge.converted_classes(), *CONVERTERS}
            warnings.simplefilter("ignore", FutureWarning)  # it reads attributes that scikit-learn deprecates
            warnings.filterwarnings("ignore", "The conversion of", UserWarning)  # predictions are compared afterwards
            proto = skl2onnx.convert_sklearn(
                estimator,
                name=type(estimator).__name__,  # its default is random, and equal models would not be equal files
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
    model = _stamped(load(proto))
    if columns is not None:
        name_inputs(model.graph, list(columns))
    for one in records:
        repair(model.graph, one.estimator, one.nodes)
    return model, records


def _require_no_network(root: Estimator, parts: Iterable[Estimator]) -> None:
    """Raise if an estimator of this package is among the parts: its weights would stay constants."""
    own = next((part for part in parts if hasattr(type(part), "to_onnx")), None)
    if own is not None:
        within = "" if own is root else f" in this {type(root).__name__}"
        raise ModelError(
            f"{type(own).__name__}{within} is a network of onnxtrain_sklearn, not a fitted model of scikit-learn. Go "
            f"on training it by its own partial_fit, or by fit with warm_start=True; or give an ONNX graph as model: "
            f"its to_onnx(), or skl2onnx.to_onnx of a pipeline."
        )


def _with_counted_classes(estimator: Estimator) -> Any:
    """Return a model with one estimator per output whose classes are numbered: skl2onnx does not mix their types."""
    if isinstance(estimator, MultiOutputClassifier):
        estimator = copy.copy(estimator)
        estimator.classes_ = [np.arange(len(known)) for known in estimator.classes_]
    elif isinstance(estimator, Pipeline):
        (name, last), estimator = estimator.steps[-1], copy.copy(estimator)
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
    """Return the options of skl2onnx, None where there are none: given any, it searches all estimators of ensembles.

    The last classifier of a pipeline needs an entry, if an empty one: else it gets a zipmap, which not all take.
    """
    last = record_of(estimator).last
    if "zipmap" in skl2onnx_bridge.allowed_options(type(last)):
        return {id(last): {"zipmap": False}}
    return {id(step): {} for step in _last_steps(estimator)} or None


def _last_steps(estimator: Estimator) -> Iterator[Estimator]:
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
        yield estimator


def _with_marks(estimator: Estimator, marks: Mapping[str, str]) -> Any:
    """Return an encoder whose missing categories are what they are written as, where that is not the usual form."""
    if not marks or not isinstance(estimator, OneHotEncoder | OrdinalEncoder):
        return estimator
    twin = copy.copy(estimator)
    twin.categories_ = [
        np.array([marks.get(str(one), one) if is_gap(one) else one for one in known], known.dtype)
        for known in estimator.categories_
    ]
    return twin


def _convertible(estimator: Estimator, marks: Mapping[str, str]) -> Any:
    """Return an estimator with equivalent settings that skl2onnx supports.

    It imputes text only where a string marks missing values.
    """
    changed: dict[str, object] = {}
    if isinstance(estimator, SimpleImputer) and any(isinstance(s, str) for s in estimator.statistics_):
        missing = str(estimator.missing_values)
        changed = {"missing_values": marks.get(missing, missing) if is_gap(estimator.missing_values) else missing}
    if isinstance(estimator, KBinsDiscretizer) and estimator.encode == "onehot":  # graphs have no sparse matrices
        changed = {"encode": "onehot-dense"}
    twin = copy.copy(estimator) if changed else estimator
    vars(twin).update(changed)
    return twin


def _parts(root: Estimator) -> Iterator[Any]:
    """Yield the estimators within ``root``, itself included."""
    for _, part in walk(root):
        yield part


def _stamped(model: ir.Model) -> ir.Model:
    """Set the opset that the converters were asked for: skl2onnx writes the oldest one that has all operators."""
    newer = model.clone()
    newer.graph.opset_imports[""] = CONVERTED_OPSET
    checked = newer.clone()
    for output in checked.graph.outputs:  # declared types of several labels are often wrong
        output.type = output.shape = None
    checked.graph.outputs.clear()
    try:
        onnx.checker.check_model(to_proto(checked), full_check=True)
    except onnx.checker.ValidationError:
        return model
    except Exception:  # inference fails on operators of other domains
        return model
    return newer


def _recording(
    theirs: Callable[[str], Callable[..., None]], records: list[ConversionRecord], marks: Mapping[str, str]
) -> Callable[..., None]:
    """Return a converter that records what it adds; booleans in attributes become the integers that ONNX needs."""

    def converted(scope: Scope, operator: Operator, container: Container) -> None:
        nodes, initializers, add_node = len(container.nodes), len(container.initializers), container.add_node
        estimator = operator.raw_operator
        container.add_node = lambda *names, **attributes: add_node(
            *names, **{key: _without_booleans(value) for key, value in attributes.items()}
        )
        container.initializers_strings.clear()  # else equal arrays of different estimators would be shared
        try:
            operator.raw_operator = _with_marks(estimator, marks)
            source = convert(scope, operator, container)
            if source is None:
                operator.raw_operator = _convertible(estimator, marks)
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


def _without_booleans(value: object) -> object:
    if isinstance(value, list | tuple) and any(isinstance(v, bool | np.bool_) for v in value):
        return [int(v) if isinstance(v, bool | np.bool_) else v for v in value]
    if isinstance(value, np.ndarray) and value.dtype == bool:
        return value.astype(np.int64)
    return value
