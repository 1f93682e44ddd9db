"""Fitted scikit-learn models as ONNX graphs, by skl2onnx's converters, each of which is watched.

What a converter adds to the graph is noted with the estimator that it converted: so each number in the graph is known
by its owner. The graph has one input, a matrix of numbers, whether the model takes columns by name or not.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.semi_supervised import SelfTrainingClassifier

from ._converters import calibration, ensembles, linear, nearest, processes
from ._converters.source import Converter, Known, Source
from ._graph.builder import GraphBuilder
from ._graph.model import load, to_proto
from ._repairs import repair
from .exceptions import ModelError

OPSET = 18

Path = tuple["str | int", ...]


CONVERTERS: dict[type, Converter] = {
    **calibration.CONVERTERS,
    **ensembles.CONVERTERS,
    **linear.CONVERTERS,
    **nearest.CONVERTERS,
    **processes.CONVERTERS,
}
"""The converters of our own, which come before skl2onnx's."""


@dataclass
class Watched:
    """What each converter added: the estimator that it converted, its nodes and its initializers.

    Of some initializers it is known which attribute they are.
    """

    estimator: Any
    nodes: frozenset[str]
    initializers: frozenset[str]
    known: tuple[Known, ...] = ()


def converted(estimator: Any) -> tuple[ir.Model, list[Watched]]:
    """Return a fitted model as a graph, and what each converter added to it.

    Raises
    ------
    ModelError
        skl2onnx cannot convert it.
    """
    import skl2onnx
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter

    estimator = unwrapped(estimator)
    watched: list[Watched] = []
    kinds = {type(part) for part in _parts(estimator)} & set(sklearn_operator_name_map)
    watching = _watching(get_converter, watched)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it reads attributes that scikit-learn means to drop
            proto = skl2onnx.convert_sklearn(
                estimator,
                initial_types=_inputs(estimator),
                target_opset={"": OPSET, "ai.onnx.ml": 3},
                options=_options(estimator),
                custom_conversion_functions=dict.fromkeys(kinds, watching),
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"skl2onnx cannot convert this {type(estimator).__name__}: {' '.join(str(error).split())[:500]}"
        ) from error
    model = _stamped(load(proto))
    _join_inputs(model.graph)
    for one in watched:
        repair(model.graph, one.estimator, one.nodes)
    return model, watched


def unwrapped(estimator: Any) -> Any:
    """Return what searches, thresholds, self-training and FrozenEstimators hold, at the steps of a pipeline too.

    skl2onnx does not know all of them, and takes no threshold into account.
    """
    if isinstance(estimator, FrozenEstimator):
        return unwrapped(estimator.estimator)
    if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV | SelfTrainingClassifier):
        return unwrapped(estimator.estimator_)
    if isinstance(estimator, BaseSearchCV) and hasattr(estimator, "best_estimator_"):
        return unwrapped(estimator.best_estimator_)
    if isinstance(estimator, Pipeline):
        steps = [(name, unwrapped(step)) for name, step in estimator.steps]
        if any(new is not old for (_, new), (_, old) in zip(steps, estimator.steps, strict=True)):
            estimator = copy.copy(estimator)
            estimator.steps = steps
    return estimator


def _inputs(estimator: Any) -> list[tuple[str, Any]]:
    """Return the inputs of the graph: a matrix, or one for each column where columns are taken by their names."""
    from skl2onnx.common.data_types import FloatTensorType

    if not any(_takes_names(part) for part in _parts(estimator)):
        return [("X", FloatTensorType([None, estimator.n_features_in_]))]
    return [(str(name), FloatTensorType([None, 1])) for name in estimator.feature_names_in_]


def _takes_names(part: Any) -> bool:
    if not isinstance(part, ColumnTransformer):
        return False
    return any(isinstance(name, str) for _, _, columns in part.transformers_ for name in np.ravel(columns))


def _join_inputs(graph: ir.Graph) -> None:
    """Make the inputs of one column each those of a single matrix."""
    columns = list(graph.inputs)
    if len(columns) == 1:
        return
    X = ir.Value(name=_unused("X", graph), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, len(columns)]))
    graph.inputs[:] = [X]
    op = GraphBuilder(graph, prefix="column", constant_nodes=True)
    for i, column in enumerate(columns):
        ir.convenience.replace_all_uses_with(column, op.Gather(X, np.array([i]), axis=1))
    graph.sort()


def _unused(name: str, graph: ir.Graph) -> str:
    taken = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
    while name in taken:
        name += "_"
    return name


def _options(estimator: Any) -> dict[int, dict[str, Any]]:
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter

    last = last_step(estimator)
    known = get_converter(sklearn_operator_name_map[type(last)]).get_allowed_options() or {}
    return {id(last): {"zipmap": False}} if "zipmap" in known else {}


def _watching(converter_of: Callable[[str], Callable[..., None]], watched: list[Watched]) -> Callable[..., None]:
    """Return a converter that notes what it adds; booleans among attributes become the integers that ONNX takes."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        nodes, initializers, add_node = len(container.nodes), len(container.initializers), container.add_node
        container.add_node = lambda *names, **attributes: add_node(
            *names, **{key: _without_booleans(value) for key, value in attributes.items()}
        )
        container.initializers_strings.clear()  # by which equal numbers of different estimators would become one
        try:
            known = _by_own_converter(scope, operator, container)
            if known is None:
                converter_of(operator.type)(scope, operator, container)
        finally:
            container.add_node = add_node
        watched.append(
            Watched(
                operator.raw_operator,
                frozenset(node.name for node in container.nodes[nodes:]),
                frozenset(tensor.name for tensor in container.initializers[initializers:]),
                tuple(known or ()),
            )
        )

    return converted


def _by_own_converter(scope: Any, operator: Any, container: Any) -> list[Known] | None:
    """Convert an estimator by a converter of our own, where there is one, and return what is known of parameters."""
    estimator, names = operator.raw_operator, [variable.full_name for variable in operator.inputs]
    converter = CONVERTERS.get(type(estimator))
    if converter is None or len(names) != 1 or type(operator.inputs[0].type).__name__ != "FloatTensorType":
        return None
    x = ir.val(names[0], ir.DataType.FLOAT, ("N", estimator.n_features_in_))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": OPSET, "ai.onnx.ml": 3}, name="converted")
    op = GraphBuilder(graph, prefix=scope.get_unique_operator_name(type(estimator).__name__), constant_nodes=True)
    options = container.get_options(estimator, {"raw_scores": False}, fail=False) or {}

    def within(estimator: Any, rows: ir.Value, raw_scores: bool) -> list[ir.Value]:
        variable = operator.inputs[0] if rows is x else _variable(scope, estimator, rows)
        outputs = _declared(scope, container, estimator, variable, raw_scores)
        graph.inputs.extend(ir.val(v.full_name, _DTYPES.get(type(v.type).__name__, ir.DataType.FLOAT)) for v in outputs)
        return list(graph.inputs[-len(outputs) :])

    source = Source(op, estimator, x, bool(options.get("raw_scores")), within)
    results = converter(source)
    if results is not None:
        _add(graph, results, [variable.full_name for variable in operator.outputs], container)
    return None if results is None else source.known


_DTYPES = {"Int64TensorType": ir.DataType.INT64, "StringTensorType": ir.DataType.STRING}


def _variable(scope: Any, estimator: Any, rows: ir.Value) -> Any:
    """Return rows that a converter computes as what another one takes."""
    from skl2onnx.common.data_types import FloatTensorType

    variable = scope.declare_local_variable("rows", FloatTensorType([None, estimator.n_features_in_]))
    variable.init_status(is_fed=True)  # skl2onnx would not see it behind a constant
    rows.name = variable.full_name
    return variable


def _declared(scope: Any, container: Any, estimator: Any, rows: Any, raw_scores: bool) -> list[Any]:
    """Have skl2onnx convert an estimator within another one, and return its outputs."""
    from skl2onnx._parse import _parse_sklearn

    estimator = unwrapped(estimator)
    last = last_step(estimator)
    known = container._get_allowed_options(last)
    if raw_scores and "raw_scores" not in known and hasattr(last, "predict_proba"):
        raise ModelError(f"The ONNX form of {type(last).__name__} gives probabilities and no decision function.")
    options = {"zipmap": False} if "zipmap" in known else {}
    options |= {"raw_scores": raw_scores} if "raw_scores" in known else {}
    for holder in (scope, container):
        holder.add_options(id(last), options)
    return list(_parse_sklearn(scope, estimator, [rows], custom_parsers=None))


def _add(graph: ir.Graph, results: Sequence[ir.Value], names: Sequence[str], container: Any) -> None:
    """Add the nodes and parameters of a graph to those of the container; its results get their names."""
    op = GraphBuilder(graph, prefix=f"{names[0]}/out", constant_nodes=True)
    for value, name in zip(results, names, strict=True):
        value = op.Identity(value) if value.producer() is None else value
        value.name = name
        graph.outputs.append(value)
    proto = to_proto(ir.Model(graph, ir_version=10))
    container.initializers.extend(proto.graph.initializer)
    container.nodes.extend(proto.graph.node)
    container.node_domain_version_pair_sets.update((d, v) for d, v in graph.opset_imports.items())


def _without_booleans(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(v, bool | np.bool_) for v in value):
        return [int(v) if isinstance(v, bool | np.bool_) else v for v in value]
    if isinstance(value, np.ndarray) and value.dtype == bool:
        return value.astype(np.int64)
    return value


def _parts(root: Any) -> Iterator[Any]:
    """Yield the estimators within ``root``, itself included."""
    for _, part in walk(root):
        yield part


def walk(root: Any, depth: int = 12) -> Iterator[tuple[Path, Any]]:
    """Yield every estimator within ``root`` once, with the way that leads to it; itself first."""
    seen: set[int] = set()
    front: list[tuple[Path, Any]] = [((), root)]
    while front:
        path, value = front.pop(0)
        if id(value) in seen or len(path) > depth:
            continue
        if has_attributes(value):
            seen.add(id(value))
            yield path, value
            front += [((*path, name), inner) for name, inner in vars(value).items() if _may_hold(inner)]
        elif isinstance(value, Mapping):
            front += [((*path, key), inner) for key, inner in value.items() if _may_hold(inner)]
        else:
            front += [((*path, i), inner) for i, inner in enumerate(value) if _may_hold(inner)]


def _may_hold(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == object
    return isinstance(value, list | tuple | dict) or has_attributes(value)


def has_attributes(value: Any) -> bool:
    """Whether ``value`` is an estimator, or one of scikit-learn's objects that hold some (of calibration, of trees)."""
    is_own = type(value).__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__")
    return isinstance(value, BaseEstimator) or (is_own and not isinstance(value, type))


def _stamped(model: ir.Model) -> ir.Model:
    """Stamp the opset that the converters were asked for: skl2onnx writes the oldest in which each operator exists."""
    newer = model.clone()
    newer.graph.opset_imports[""] = OPSET
    try:
        onnx.checker.check_model(to_proto(newer), full_check=True)
    except onnx.checker.ValidationError:
        return model
    except Exception:  # inference fails on operators of other domains
        return model
    return newer


def follow(root: Any, path: Path) -> Any:
    """Return what attributes and positions lead to from ``root``."""
    for part in path:
        root = getattr(root, part) if isinstance(part, str) and not isinstance(root, Mapping) else root[part]
    return root


def last_step(estimator: Any) -> Any:
    """Return the estimator that a pipeline ends in."""
    estimator = unwrapped(estimator)
    while hasattr(estimator, "steps"):
        estimator = unwrapped(estimator.steps[-1][1])
    return estimator


def first_step(estimator: Any) -> Any:
    """Return the estimator that a pipeline begins with."""
    estimator = unwrapped(estimator)
    while hasattr(estimator, "steps"):
        estimator = unwrapped(estimator.steps[0][1])
    return estimator
