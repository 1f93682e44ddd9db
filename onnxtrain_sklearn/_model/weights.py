"""Collect weights, settings and statistics of a graph, and rebuild it with other weights.

:func:`parameters_of` finds the weights; :func:`reweighted` returns the same graph with other values. Nothing here
changes a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from .._ir.edits import swap_initializers
from .._ir.queries import reaching, share_structure
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

RUNNING_STATISTICS: dict[str, frozenset[int]] = {"BatchNormalization": frozenset({3, 4})}


def parameters_of(graph: ir.Graph, scores: ir.Value) -> list[str]:
    """Return the float initializers that ``scores`` depends on and that some operator reads as a weight."""
    reached = reaching(scores)
    return [
        name
        for name, value in graph.initializers.items()
        if name in reached and value.dtype in TRAINED_TYPES and _is_weight(value) and array_of(value).size
    ]


def _is_weight(value: ir.Value) -> bool:
    return any(node.domain or not is_setting(array_of(value), node, index) for node, index in value.uses())


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
    return [
        name
        for name, value in graph.initializers.items()
        if any(not node.domain and index in RUNNING_STATISTICS.get(node.op_type, ()) for node, index in value.uses())
    ]


def common_dtype(graph: ir.Graph, parameters: list[str]) -> np.dtype[Any]:
    dtypes = {TRAINED_TYPES[graph.initializers[name].dtype] for name in parameters}
    if len(dtypes) > 1:
        raise ModelError("The graph mixes float32 and float64 parameters; cast it to one type before training.")
    return dtypes.pop()


def array_of(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def listing(graph: ir.Graph) -> str:
    return ", ".join(f"{name!r} ({value.dtype})" for name, value in graph.initializers.items()) or "none"


# Models with the form of another and other weights. Graphs of small models are copied only when first requested.
#
# Before its first step, a fit of a known structure reads the form of its graph and its initial weights. Neither takes a
# copy of the graph, which costs more than all other parts of that time.


COPIED_AT_ONCE = 2**23
"""Bytes of weights from which on a graph is copied at once: beside a template, its weights are held too."""


class ReweightedModel(ir.Model):
    """A model as ``template``, which must not be changed later, with the values ``arrays`` of some initializers."""

    __slots__ = ("_copies", "arrays", "template")

    def __init__(self, template: ir.Model, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(
            template.graph,
            ir_version=template.ir_version,
            producer_name=template.producer_name,
            producer_version=template.producer_version,
            domain=template.domain,
            model_version=template.model_version,
            doc_string=template.doc_string,
            functions=tuple(template.functions.values()),
            metadata_props=dict(template.metadata_props),
        )
        self.template, self.arrays = template, arrays
        self._copies: dict[str, ir.Graph] = {}
        del self.graph  # so that its first reader comes to __getattr__

    def __getattr__(self, name: str) -> ir.Graph:
        """Return the graph, which is made here; other attributes exist."""
        if name != "graph":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        graph = self.template.graph.clone()
        swap_initializers(graph, self.arrays)
        self.graph = self._copies.setdefault(name, graph)  # one for all of several threads that come at once
        return self.graph


def reweighted(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return ``model``, which must not be changed later, with other values of some initializers, of their types."""
    template = form_of(model)
    before = model.arrays if isinstance(model, ReweightedModel) else {}
    values = {**before, **arrays}
    if sum(array.nbytes for array in values.values()) < COPIED_AT_ONCE:
        result: ir.Model = ReweightedModel(template, values)
    else:
        result = template.clone()
        swap_initializers(result.graph, values)
    share_structure(result, template)
    return result


def form_of(model: ir.Model) -> ir.Model:
    """Return a model equal to ``model`` but for the values of weights, to be read only: no graph is copied for it."""
    return model.template if isinstance(model, ReweightedModel) else model


def initial_value(model: ir.Model, name: str) -> np.ndarray:
    """Return the value of an initializer."""
    own = model.arrays.get(name) if isinstance(model, ReweightedModel) else None
    return array_of(form_of(model).graph.initializers[name]) if own is None else own
