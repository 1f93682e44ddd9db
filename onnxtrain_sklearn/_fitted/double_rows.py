"""Rows that trees split, computed in float64 as scikit-learn does.

A tree compares numbers with thresholds: where a scaler or another step computes these numbers, float32 may land on the
other side of a threshold, and another leaf predicts something else. So the steps before a tree are computed a second
time, in float64, with the fitted numbers as scikit-learn has them. The trees of scikit-learn round their rows to
float32; those over histograms compare float64. No gradient reaches a number before a tree, so that such numbers are
constants, whatever else reads them: else the splits would move while the leaves are trained.

The data themselves arrive as float32. A number that float32 does not hold is rounded before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    for node in finders:
        rows = node.inputs[0]
        if rows is None or not doubled.is_computed(rows):
            continue
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


def _histogram_booster(graph: ir.Graph, node: ir.Node, origins: Sequence[Origin], root: Estimator) -> Estimator | None:
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

    def is_computed(self, value: ir.Value) -> bool:
        """Whether a number is computed before a value, and not only moved."""
        seen, front = set[ir.Value](), [value]
        while front:
            value = front.pop()
            node = value.producer()
            if node is None or value in seen or not _is_real(value):
                continue
            seen.add(value)
            if node.op_type not in _MOVED and node.op_type != "Constant" and not node.domain:
                if node.op_type in _COMPUTED:
                    return True
                continue
            front += [x for x in node.inputs if x is not None]
        return False

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
        if node is None or node.domain or node.op_type not in _MOVED | _COMPUTED or self._only_moves(node):
            return self.op.Cast(value, to=DOUBLE)
        inputs = [x and self.of(x) for x in node.inputs]
        attributes = {name: a.value for name, a in node.attributes.items()}
        if node.op_type == "Cast":
            attributes["to"] = DOUBLE
        results = self.op.emit(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        for old, new in zip(node.outputs, results, strict=True):
            new.dtype, new.shape = (ir.DataType.DOUBLE if _is_real(old) else old.dtype), old.shape
            self._made[old] = new
        return self._made[value]

    def _only_moves(self, node: ir.Node) -> bool:
        """Whether a node moves numbers that float32 holds exactly."""
        return all(x is None or not _is_real(x) or (constant(x) is None and not self.is_computed(x)) for x in node.inputs)

    def _exact(self, value: ir.Value, array: np.ndarray) -> np.ndarray:
        """Return a constant as the fitted model has it, or as the graph has it."""
        if value.is_initializer() and value.name:
            self.read.add(value.name)
        exact = self._numbers.get(value.name or "")
        if exact is None or exact.size != array.size or not np.allclose(exact.ravel(), array.ravel(), 1e-6, equal_nan=True):
            return array.astype(np.float64)
        return exact.reshape(array.shape)


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
