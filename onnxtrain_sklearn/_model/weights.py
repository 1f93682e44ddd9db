"""The weights of a trainable graph: find them among the initializers, and replace their values without a copy.

:func:`parameters_of` finds the weights of a graph that this package built; ``roles`` judges the constants of files by
the same tables. :func:`reweighted` returns a graph with other weights without copying it. A :class:`LowRank` is the
low-rank change that an adapter adds to a matrix; :func:`merged` adds such changes to the matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""Inputs that must not be zero: if only these read an Add of a small number, the number is an epsilon, not a weight."""


RUNNING_STATISTICS: dict[str, frozenset[int]] = {"BatchNormalization": frozenset({3, 4})}
"""Inputs that are running statistics: operator -> positions."""


def parameters_of(graph: ir.Graph, scores: ir.Value) -> list[str]:
    """Return the names of float initializers that ``scores`` depends on and that some operator reads as a weight."""
    reached = reaching(scores)
    return [
        name
        for name, value in graph.initializers.items()
        if name in reached
        and value.dtype in TRAINED_TYPES
        # one node that reads it as a weight is enough; settings of operators of other domains are unknown
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
    """Return the type of all parameters; raise ModelError if there are two."""
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


COPIED_AT_ONCE = 2**23
"""Bytes of weights from which a graph is copied at once, because a delayed copy keeps the old weights in memory."""


def reweighted(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a model with other values for some initializers, of equal types; ``model`` must not change afterwards."""
    template = template_of(model)
    # Derive the result from the template, because a chain of models would keep all earlier weights in memory.
    values = {**(model.arrays if isinstance(model, ReweightedModel) else {}), **arrays}
    if sum(array.nbytes for array in values.values()) < COPIED_AT_ONCE:
        result: ir.Model = ReweightedModel(template, values)
    else:
        result = template.clone()
        swap_initializers(result.graph, values)
    share_structure(result, template)
    return result


def template_of(model: ir.Model) -> ir.Model:
    """Return a model with the structure of ``model``, perhaps with other weights, without making a copy. Read only."""
    return model.template if isinstance(model, ReweightedModel) else model


def initial_value(model: ir.Model, name: str) -> np.ndarray:
    """Return the value of an initializer."""
    own = model.arrays.get(name) if isinstance(model, ReweightedModel) else None
    return array_of(template_of(model).graph.initializers[name]) if own is None else own


class ReweightedModel(ir.Model):
    """A model like ``template``, which must not change afterwards, with the values ``arrays`` of some initializers.

    The attribute ``graph`` is missing until it is first read; then ``__getattr__`` makes the copy.
    """

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
        del self.graph  # the first read then reaches __getattr__

    def __getattr__(self, name: str) -> ir.Graph:
        """Make the copy when ``graph`` is first read; any other name that reaches this method is an error."""
        if name != "graph":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        graph = self.template.graph.clone()
        swap_initializers(graph, self.arrays)
        self.graph = self._copies.setdefault(name, graph)  # setdefault is atomic: all threads get one graph
        return self.graph


@dataclass(frozen=True)
class LowRank:
    """The low-rank change of one matrix, ``scale`` times L R, and the names of its parts in the graph.

    Attributes
    ----------
    matrix : str
        The initializer of the matrix, which is frozen.
    left, right : str
        Names of the factors L and R. Of a convolution they are kernels: (out, r, 1, ...) and (r, in, k, ...).
    scale : float
        Factor of the change, alpha / rank.
    first : str
        The factor that multiplies the input. It starts random, and the other factor starts at zero.
    sums : tuple of str
        The nodes that add the change.
    is_merged : bool
        Whether predictions have the change merged into the matrix. False for a matrix of few bits or in a file, which
        stays.
    """

    matrix: str
    left: str
    right: str
    scale: float
    first: str
    sums: tuple[str, ...]
    is_merged: bool = True

    @property
    def factors(self) -> tuple[str, str]:
        """The names of both factors, the first one first."""
        return (self.left, self.right) if self.first == self.left else (self.right, self.left)


def factors_of_matrices(changes: Sequence[LowRank]) -> set[str]:
    """Return the names of all low-rank factors in ``changes``."""
    return {name for one in changes for name in one.factors}


def merged(weights: Mapping[str, np.ndarray], changes: Sequence[LowRank]) -> dict[str, np.ndarray]:
    """Return the weights with the factors merged into their matrices: computed in float64 and rounded once."""
    changes = [one for one in changes if one.is_merged]
    factors = factors_of_matrices(changes)
    result = {name: array for name, array in weights.items() if name not in factors}
    for one in changes:
        given, left, right = (np.asarray(weights[name], np.float64) for name in (one.matrix, one.left, one.right))
        change = left.reshape(len(left), -1) @ right.reshape(len(right), -1)
        result[one.matrix] = (given + one.scale * change.reshape(given.shape)).astype(weights[one.matrix].dtype)
    return result
