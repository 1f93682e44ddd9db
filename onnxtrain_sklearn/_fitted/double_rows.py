"""Rows that trees split, computed in float64 as scikit-learn does.

A tree compares numbers with thresholds: where a scaler or another step computes these numbers, float32 may land on the
other side of a threshold, and another leaf predicts something else. So the steps before a tree are computed a second
time, in float64, with the fitted numbers as scikit-learn has them. The trees of scikit-learn round their rows to
float32; those over histograms compare float64. No gradient reaches a number before a tree, so that such numbers are
constants, whatever else reads them: else the splits would move while the leaves are trained.

The data of such a model are float64, as rounding them to float32 could change a side, too: the input of the graph, or
each numeric column of its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from .._graph.builder import GraphBuilder
from .._graph.cast_types import DOUBLE, FLOAT
from .._graph.queries import constant
from .._graph.shapes import infer_shapes
from .._support.typing import Estimator
from .converters.category_splits import exact_thresholds
from .provenance import FORMS, Origin
from .traversal import follow

_MOVED = frozenset(
    "Cast Concat Expand Flatten Gather GatherElements Identity Reshape Slice Split Squeeze Transpose Unsqueeze "
    "Where".split()
)
"""Operators whose numbers are some of those that they read."""

_COMPUTED = frozenset(
    "Abs Add Clip Cos Div Exp Gemm Log MatMul Max Min Mul Neg Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum "
    "ReduceSumSquare Relu Sigmoid Sin Softmax Sqrt Sub Sum Tanh".split()
)
"""Operators that compute numbers, and have kernels for float64."""


def split_in_double(model: ir.Model, origins: Sequence[Origin], root: Estimator) -> list[Origin]:
    """Compute the rows of trees in float64, in place; return the origins of the parameters that are left."""
    graph = model.graph
    finders = [node for node in graph if node.domain == "ai.onnx.ml" and node.op_type.startswith("TreeEnsemble")]
    if not finders:
        return list(origins)
    infer_shapes(model)
    doubled = _Doubled(graph, {one.name: numbers for one in origins if (numbers := _numbers(one, root)) is not None})
    finders = [node for node in finders if node.inputs[0] is not None and doubled.is_computed(node.inputs[0])]
    if finders:
        doubled.take_float64()
    for node in finders:
        rows = node.inputs[0]
        assert rows is not None
        booster = _histogram_booster(graph, node, origins, root)
        rows = doubled.of(rows)
        if booster is not None:
            _compare_in_double(node, exact_thresholds(booster))
        node.replace_input_with(0, rows if booster is not None else doubled.op.Cast(rows, to=FLOAT))
    graph.sort()
    common.RemoveUnusedNodesPass()(model)
    return [one for one in origins if one.name in graph.initializers and one.name not in doubled.read]


def _numbers(origin: Origin, root: Estimator) -> np.ndarray | None:
    """Return the numbers of a parameter as the fitted model has them; None where no attribute holds them."""
    if not origin.attribute:
        return None
    there, _ = FORMS[origin.form]
    with np.errstate(all="ignore"):
        return there(np.asarray(follow(follow(root, origin.owner), origin.attribute), np.float64))


def _histogram_booster(graph: ir.Graph, node: ir.Node, origins: Sequence[Origin], root: Estimator) -> Any:
    """Return the booster over histograms that a node finds the leaves of."""
    for reshaped in [user for value in node.outputs for user, _ in value.uses()]:
        for one in origins:
            owner = follow(root, one.owner)
            is_booster = isinstance(owner, HistGradientBoostingClassifier | HistGradientBoostingRegressor)
            if is_booster and one.role == "leaf_values" and _gathers(reshaped, graph.initializers[one.name]):
                return owner
    return None


def _gathers(node: ir.Node, leaves: ir.Value) -> bool:
    """Whether the leaves are gathered by what a node begins: a cast, and a change of shape."""
    if node.op_type == "Gather":
        return node.inputs[0] is leaves
    onward = node.op_type in ("Cast", "Reshape")
    return onward and any(_gathers(user, leaves) for value in node.outputs for user, _ in value.uses())


def _compare_in_double(node: ir.Node, thresholds: np.ndarray) -> None:
    for name, numbers in (("nodes_values", thresholds), ("target_weights", None)):
        old = node.attributes.pop(name)
        array = np.asarray(old.value if numbers is None else numbers, np.float64)
        node.attributes[f"{name}_as_tensor"] = ir.AttrTensor(f"{name}_as_tensor", ir.tensor(array))


class _Doubled:
    """Values of a graph in float64, each computed once.

    Attributes
    ----------
    op : GraphBuilder
    read : set of str
        The parameters that were read.
    """

    def __init__(self, graph: ir.Graph, numbers: Mapping[str, np.ndarray]) -> None:
        self.op = GraphBuilder(graph, prefix="double", constant_nodes=True)
        self.read: set[str] = set()
        self._graph, self._numbers = graph, numbers
        self._made: dict[ir.Value, ir.Value] = {}

    def take_float64(self) -> None:
        """Let the real inputs of the graph be float64; what read them reads them as float32."""
        for value in self._graph.inputs:
            if value.dtype is ir.DataType.FLOAT:
                users = list(value.uses())
                value.dtype, single = ir.DataType.DOUBLE, self.op.Cast(value, to=FLOAT)
                single.shape, self._made[single] = value.shape, value
                for node, index in users:
                    node.replace_input_with(index, single)

    def is_computed(self, value: ir.Value) -> bool:
        """Whether a number is computed before a value, and not only moved."""
        return any(node.op_type in _COMPUTED for node in self._makers(value))

    def _makers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes before a value that compute or move real numbers, up to others."""
        seen, front = set[ir.Value](), [value]
        while front:
            value = front.pop()
            node = value.producer()
            if node is None or value in seen or node.domain or node.op_type not in _MOVED | _COMPUTED:
                continue
            seen.add(value)
            yield node
            front += [x for x in node.inputs if x is not None and _is_real(x)]

    def of(self, value: ir.Value) -> ir.Value:
        """Return a real value in float64; others as they are."""
        if value not in self._made:
            self._made[value] = self._in_double(value)
        return self._made[value]

    def _in_double(self, value: ir.Value) -> ir.Value:
        node, array = value.producer(), constant(value)
        if not _is_real(value) or value.dtype is ir.DataType.DOUBLE:
            return value
        if array is not None:
            return self.op.constant(self._exact(value, array))
        if node is None or node.domain or node.op_type not in _MOVED | _COMPUTED or self._is_exact(value):
            return self.op.Cast(value, to=DOUBLE)
        inputs = [x and self.of(x) for x in node.inputs]
        attributes = {name: a.value for name, a in node.attributes.items()}
        if node.op_type == "Cast":
            attributes["to"] = DOUBLE
        results = self.op.emit(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        for old, new in zip(node.outputs, results, strict=True):
            new.type = ir.TensorType(ir.DataType.DOUBLE) if _is_real(old) else old.type
            new.shape = old.shape
            self._made[old] = new
        return self._made[value]

    def _is_exact(self, value: ir.Value) -> bool:
        """Whether float32 holds a value exactly: it is made of other types than real ones, such as codes of text."""
        nodes = list(self._makers(value))
        read = [x for node in nodes for x in node.inputs if x is not None and _is_real(x)]
        return not any(node.op_type in _COMPUTED for node in nodes) and not any(
            x in self._made or constant(x) is not None or x.is_graph_input() for x in read
        )

    def _exact(self, value: ir.Value, array: np.ndarray) -> np.ndarray:
        """Return a constant as the fitted model has it, or as the graph has it."""
        if value.is_initializer() and value.name:
            self.read.add(value.name)
        exact = self._numbers.get(value.name or "")
        if (
            exact is None
            or exact.size != array.size
            or not np.allclose(exact.ravel(), array.ravel(), 1e-6, equal_nan=True)
        ):
            return array.astype(np.float64)
        return exact.reshape(array.shape)


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
