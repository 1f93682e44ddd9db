"""Tell the weights of a graph from settings of its operators and from running statistics.

:func:`parameters_of` finds the weights of a graph of known make; ``roles`` judges the constants of foreign ones with
the same tables. Nothing here changes a graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .._ir.queries import reaching
from ..exceptions import ModelError

TRAINED_TYPES: dict[ir.DataType | None, np.dtype[Any]] = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.DOUBLE: np.dtype(np.float64),
}


NOT_WEIGHTS: dict[str, frozenset[int]] = {
    "BatchNormalization": frozenset({3, 4}),
    "CastLike": frozenset({1}),
    "Clip": frozenset({1, 2}),
    "DequantizeLinear": frozenset({1}),
    "Dropout": frozenset({1}),
    "OneHot": frozenset({1, 2}),
    "Pad": frozenset({2}),
    "Pow": frozenset({1}),
    "QuantizeLinear": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2}),
    "RotaryEmbedding": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}
"""Float inputs that are settings or statistics, not weights: operator -> positions."""


BOUNDS: dict[str, int] = {"Max": 1, "Min": 1, "Where": 0}
"""Operators for which a single number is a bound or a filler, not a weight: operator -> most axes of the number."""


_EPSILON_FEEDS = frozenset({("Sqrt", 0), ("Log", 0), ("Reciprocal", 0), ("Div", 1)})
"""Operators and positions that a small summand keeps finite: an Add that only they read adds an epsilon."""


RUNNING_STATISTICS: dict[str, frozenset[int]] = {"BatchNormalization": frozenset({3, 4})}
"""Inputs that are running statistics: operator -> positions."""


def parameters_of(graph: ir.Graph, scores: ir.Value) -> list[str]:
    """Return the float initializers that ``scores`` depends on and that some operator reads as a weight."""
    reached = reaching(scores)
    return [
        name
        for name, value in graph.initializers.items()
        if name in reached
        and value.dtype in TRAINED_TYPES
        # one reader is enough; operators of other domains have no known settings
        and any(node.domain or not is_setting(array_of(value), node, index) for node, index in value.uses())
        and array_of(value).size
    ]


def is_setting(array: np.ndarray, node: ir.Node, index: int) -> bool:
    """Return True if a node reads ``array`` as a setting, or a single number as a bound or an epsilon."""
    wanted = index in NOT_WEIGHTS.get(node.op_type, ())
    if wanted or array.size != 1:
        return wanted
    if node.op_type in BOUNDS:
        return array.ndim <= BOUNDS[node.op_type]
    small = bool(0 < array.ravel()[0] <= 1e-3) and node.op_type == "Add"
    return small and all((user.op_type, i) in _EPSILON_FEEDS for user, i in node.outputs[0].uses())


def statistics_of(graph: ir.Graph) -> list[str]:
    """Return the names of the initializers that are running statistics."""
    return [
        name
        for name, value in graph.initializers.items()
        if any(not node.domain and index in RUNNING_STATISTICS.get(node.op_type, ()) for node, index in value.uses())
    ]


def common_dtype(graph: ir.Graph, parameters: list[str]) -> np.dtype[Any]:
    """Return the type of all parameters; raise ModelError where there are two."""
    dtypes = {TRAINED_TYPES[graph.initializers[name].dtype] for name in parameters}
    if len(dtypes) > 1:
        raise ModelError("The graph mixes float32 and float64 parameters; cast it to one type before training.")
    return dtypes.pop()


def array_of(value: ir.Value) -> np.ndarray:
    """Return the array of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def listing(graph: ir.Graph) -> str:
    """Return names and types of the initializers, for a message."""
    return ", ".join(f"{name!r} ({value.dtype})" for name, value in graph.initializers.items()) or "none"
