"""Fitted scikit-learn models as ONNX graphs, by skl2onnx's converters, each of which is watched.

What a converter adds to the graph is noted with the estimator that it converted: so each number in the graph is known
by its owner. The graph has one input, a matrix of numbers, whether the model takes columns by name or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
from sklearn.compose import ColumnTransformer

from ._converters.registry import CONVERTERS
from ._converters.source import Known
from ._embedding import OPSET, convert, parsers, shape_calculators
from ._graph.builder import GraphBuilder
from ._graph.model import load, to_proto
from ._repairs import repair
from ._walk import last_step, unwrapped, walk
from .exceptions import ModelError


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
    kinds = {type(part) for part in _parts(estimator)} & {*sklearn_operator_name_map, *CONVERTERS}
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
                custom_shape_calculators=shape_calculators(),
                custom_parsers=parsers(),
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
    if type(last) not in sklearn_operator_name_map:
        return {}
    known = get_converter(sklearn_operator_name_map[type(last)]).get_allowed_options() or {}
    return {id(last): {"zipmap": False}} if "zipmap" in known else {}


def _parts(root: Any) -> Iterator[Any]:
    """Yield the estimators within ``root``, itself included."""
    for _, part in walk(root):
        yield part


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


def _watching(theirs: Callable[[str], Callable[..., None]], watched: list[Watched]) -> Callable[..., None]:
    """Return a converter that notes what it adds; booleans among attributes become the integers that ONNX takes."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        nodes, initializers, add_node = len(container.nodes), len(container.initializers), container.add_node
        estimator = operator.raw_operator
        container.add_node = lambda *names, **attributes: add_node(
            *names, **{key: _without_booleans(value) for key, value in attributes.items()}
        )
        container.initializers_strings.clear()  # by which equal numbers of different estimators would become one
        try:
            known = convert(scope, operator, container)
            if known is None:
                theirs(operator.type)(scope, operator, container)
        finally:
            container.add_node, operator.raw_operator = add_node, estimator
        watched.append(
            Watched(
                estimator,
                frozenset(node.name for node in container.nodes[nodes:]),
                frozenset(tensor.name for tensor in container.initializers[initializers:]),
                tuple(known or ()),
            )
        )

    return converted


def _without_booleans(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(v, bool | np.bool_) for v in value):
        return [int(v) if isinstance(v, bool | np.bool_) else v for v in value]
    if isinstance(value, np.ndarray) and value.dtype == bool:
        return value.astype(np.int64)
    return value
