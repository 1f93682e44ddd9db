"""Fitted scikit-learn models as ONNX graphs, by skl2onnx's converters, each of which is watched.

What a converter adds to the graph is noted with the estimator that it converted: so each number in the graph is known
by its owner. The graph has one input, a matrix of numbers, whether the model takes columns by name or not.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
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
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import Pipeline

from ._graph.builder import GraphBuilder
from ._graph.model import load, to_proto
from ._outputs import is_estimator_an_output, own_converter, shapes_of_chain
from ._repairs import repair
from .exceptions import ModelError

OPSET = 18

Path = tuple["str | int", ...]


@dataclass
class Watched:
    """What each converter added: the estimator that it converted, its nodes and its initializers."""

    estimator: Any
    nodes: frozenset[str]
    initializers: frozenset[str]


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

    estimator = _with_counted_classes(unwrapped(estimator))
    watched: list[Watched] = []
    kinds = {type(part) for part in _parts(estimator)} & {*sklearn_operator_name_map, ClassifierChain}
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
                custom_shape_calculators={ClassifierChain: shapes_of_chain},
            )
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
    """Return what searches, thresholds and FrozenEstimators hold, at the steps of a pipeline too.

    skl2onnx does not know all of them, and takes no threshold into account.
    """
    if isinstance(estimator, FrozenEstimator):
        return unwrapped(estimator.estimator)
    if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV):
        return unwrapped(estimator.estimator_)
    if isinstance(estimator, BaseSearchCV) and hasattr(estimator, "best_estimator_"):
        return unwrapped(estimator.best_estimator_)
    if isinstance(estimator, Pipeline):
        steps = [(name, unwrapped(step)) for name, step in estimator.steps]
        if any(new is not old for (_, new), (_, old) in zip(steps, estimator.steps, strict=True)):
            estimator = copy.copy(estimator)
            estimator.steps = steps
    return estimator


def _with_counted_classes(estimator: Any) -> Any:
    """Return a model that ends in an estimator an output with numbers for classes: skl2onnx mixes no types of them."""
    if isinstance(estimator, MultiOutputClassifier):
        estimator = copy.copy(estimator)
        estimator.classes_ = [np.arange(len(known)) for known in estimator.classes_]
    elif isinstance(estimator, Pipeline):
        (name, last), estimator = estimator.steps[-1], copy.copy(estimator)
        estimator.steps = [*estimator.steps[:-1], (name, _with_counted_classes(last))]
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
    ends = [last, *map(last_step, last.estimators_)] if is_estimator_an_output(last) else [last]
    names = {id(end): sklearn_operator_name_map.get(type(end)) for end in ends}
    known = {key: get_converter(name).get_allowed_options() or {} if name else {} for key, name in names.items()}
    return {key: {"zipmap": False} if "zipmap" in options else {} for key, options in known.items()}


def _watching(converter_of: Callable[[str], Callable[..., None]], watched: list[Watched]) -> Callable[..., None]:
    """Return a converter that notes what it adds; booleans among attributes become the integers that ONNX takes."""
    from skl2onnx._parse import _parse_sklearn

    def converted(scope: Any, operator: Any, container: Any) -> None:
        nodes, initializers, add_node = len(container.nodes), len(container.initializers), container.add_node
        container.add_node = lambda *names, **attributes: add_node(
            *names, **{key: _without_booleans(value) for key, value in attributes.items()}
        )
        try:
            container.initializers_strings.clear()  # it would let equal numbers of several estimators be one
            convert = own_converter(operator.raw_operator, _parse_sklearn) or converter_of(operator.type)
            convert(scope, operator, container)
        finally:
            container.add_node = add_node
        watched.append(
            Watched(
                operator.raw_operator,
                frozenset(node.name for node in container.nodes[nodes:]),
                frozenset(tensor.name for tensor in container.initializers[initializers:]),
            )
        )

    return converted


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
    checked = newer.clone()
    for output in checked.graph.outputs:  # what is declared of several labels a row is often wrong
        output.type = output.shape = None
    checked.graph.outputs.clear()
    try:
        onnx.checker.check_model(to_proto(checked), full_check=True)
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
