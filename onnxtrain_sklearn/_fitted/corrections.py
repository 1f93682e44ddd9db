"""Corrections of converted graphs: conversions of skl2onnx that are inexact, and missing values before an imputer.

Each correction is a function of the graph, the fitted estimator and the nodes that its converter made, with one line in
:data:`REPAIRS`. A wrong conversion without a correction is found when predictions are compared, and refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.neighbors import KNeighborsRegressor, RadiusNeighborsRegressor
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler

from .._graph.builder import GraphBuilder
from .._graph.edits import insert_behind
from .._ml_operators.preprocessing import is_imputed_later, restore_missing, split_missing
from .._runtime import capabilities
from .._support.typing import Estimator

Repair = Callable[[ir.Graph, Any, list[ir.Node]], None]


def repair(graph: ir.Graph, estimator: Estimator, names: frozenset[str]) -> None:
    """Correct the nodes of these names, which the converter of ``estimator`` made."""
    for kind, functions in REPAIRS.items():
        for function in functions if isinstance(estimator, kind) else ():
            function(graph, estimator, [node for node in graph if node.name in names])


def _targets_of_neighbors(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Hold the averaged targets in float32, as all parameters are."""
    for node in nodes:
        table = node.inputs[0] if node.op_type == "ArrayFeatureExtractor" else None
        if table is not None and table.const_value is not None and table.dtype is ir.DataType.DOUBLE:
            table.const_value = ir.tensor(table.const_value.numpy().astype(np.float32), name=table.name)
            table.dtype = ir.DataType.FLOAT
            _declare_float(node)


def _declare_float(node: ir.Node) -> None:
    for value in [value for value in node.outputs if value.dtype is ir.DataType.DOUBLE]:
        value.dtype = ir.DataType.FLOAT
        for user in [user for user, _ in value.uses() if user.op_type != "Cast"]:
            _declare_float(user)


def _ends(nodes: list[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the values that the nodes read from other nodes, without constants, and those that other nodes read."""
    made = [v for node in nodes for v in node.outputs]
    outside = [v for v in made if v.is_graph_output() or any(node not in nodes for node, _ in v.uses())]
    read = {v: None for node in nodes for v in node.inputs if v is not None and v not in made and v.const_value is None}
    makers = {v: v.producer() for v in read}
    return [v for v, maker in makers.items() if maker is None or maker.op_type != "Constant"], outside


def _leave_missing_values_out(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Keep missing values that a later step imputes out of the nodes: 0 * NaN in their gradient is NaN."""
    given, made = _ends(nodes)
    if len(given) != 1 or len(made) != 1 or not is_imputed_later(made[0]):
        return
    op = GraphBuilder(graph, prefix="missing", constant_nodes=True)
    missing, known = split_missing(op, op.Cast(given[0], to=int(ir.DataType.FLOAT)))
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is given[0]:
                node.replace_input_with(i, known)
    insert_behind(op, made[0], lambda value: restore_missing(op, missing, value))
    graph.sort()


def _match_token_pattern(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Match scikit-learn's default token pattern in any script; lower-case in a locale that is installed."""
    locale = capabilities.text_locale()
    for node in nodes:
        if node.op_type == "Tokenizer" and estimator.analyzer == "word" and estimator.token_pattern == WORDS:
            node.attributes["tokenexp"] = ir.AttrString("tokenexp", r"[\p{L}\p{N}_]+")
            node.attributes["mincharnum"] = ir.AttrInt64("mincharnum", 2)
        if node.op_type == "StringNormalizer" and locale is not None:
            node.attributes["locale"] = ir.AttrString("locale", locale)
        if node.op_type == "TfIdfVectorizer":  # shape inference does not know the number of columns
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            node.outputs[0].shape = ir.Shape([None, len(estimator.vocabulary_)])


WORDS = r"(?u)\b\w\w+\b"
"""scikit-learn's default token pattern."""

REPAIRS: dict[type, tuple[Repair, ...]] = {
    CountVectorizer: (_match_token_pattern,),
    KNeighborsRegressor: (_targets_of_neighbors,),
    MaxAbsScaler: (_leave_missing_values_out,),
    MinMaxScaler: (_leave_missing_values_out,),
    PowerTransformer: (_leave_missing_values_out,),
    RadiusNeighborsRegressor: (_targets_of_neighbors,),
    RobustScaler: (_leave_missing_values_out,),
    StandardScaler: (_leave_missing_values_out,),
}
"""The corrections by class."""
