"""Low-rank adapters (LoRA): insert trained factors beside frozen matrices of a graph, and take them out again.

:class:`LoRA` holds the settings. :func:`with_low_rank` inserts the factors and :func:`without_low_rank` removes them.
The matrices of a large model are frozen. Beside each matrix, a product of two thin matrices is trained. The optimizer
keeps state only for these factors, and only they must be stored for each task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ._ir.edits import bypass, insert_after, remove_unread_initializers
from ._ir.queries import attribute, is_in_file
from ._ir.shapes import infer_shapes
from ._model.few_bits import is_product_of_few_bits, matrix_shape
from ._model.trainable import TrainableModel
from ._model.weights import LowRank, array_of, factors_of_matrices
from ._utils.params import COUNT, POSITIVE, Component, Rules
from .exceptions import InvalidParameterError
from .graph import GraphBuilder

__all__ = ["LoRA"]


class LoRA(Component):
    r"""Train low-rank factors beside frozen matrices.

    .. math:: W + \frac{α}{r} B A

    If W has n inputs and m outputs, B has the shape (m, r) and A the shape (r, n). A is initialized uniformly within
    :math:`\pm 1/\sqrt{n}` (Kaiming's distribution with a slope of √5), drawn by the estimator's ``random_state``. B
    is initialized with zeros, so that training begins from the given model. The initial values and the scale are those
    of the peft library.

    Matrices are the weights of Gemm, of MatMul on either side, and of Conv. The factors of a Conv are a convolution
    with r channels and a 1x1 convolution. The factors of ``NAME`` are called ``NAME.lora_A`` and ``NAME.lora_B`` and
    have the layout of the graph: if it stores W transposed, (inputs, outputs), A is (inputs, r) and B is (r, outputs).
    A matrix that several nodes read is changed for all of them. A matrix of 4 or 8 bits (onnxruntime's MatMulNBits)
    stays as it is: training uses its dequantized floats, and exported files hold the factors beside it. For grouped
    convolutions, W is flattened to (out_channels, in_channels / groups * kernel_size).

    Hu et al., "LoRA: Low-rank adaptation of large language models", 2021.

    Parameters
    ----------
    rank : int, default=8
        The rank r of the changes.
    targets : "all", str, or list of str, default="all"
        Names or glob patterns (``"*query*"``) of the matrices to adapt; "all": all matrices. A pattern may also match
        other parameters, which it ignores, but it must match at least one matrix.
    alpha : float, default=8.0
        The product of the factors is multiplied by ``alpha / rank``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import MLP, LoRA, OrtGradientClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> given = MLP((32,)).build(n_features=64, n_outputs=10, random_state=0)
    >>> adapted = OrtGradientClassifier(given, adapters=LoRA(rank=2, targets=["layers.0.*"]), max_iter=1, tol=1)
    >>> [(entry.name, entry.shape) for entry in adapted.describe().of("trained")]
    [('layers.0.weight.lora_A', (64, 2)), ('layers.0.weight.lora_B', (2, 32))]
    """

    valid: ClassVar[Rules] = {"rank": (COUNT,), "alpha": (POSITIVE,)}

    def __init__(self, rank: int = 8, targets: str | Sequence[str] = "all", *, alpha: float = 8.0) -> None:
        self.rank = rank
        self.targets = targets
        self.alpha = alpha

    def validate(self) -> None:
        """Raise InvalidParameterError, which names the parameter and its valid values, if a parameter is invalid."""
        super().validate()
        given = self.targets
        known = isinstance(given, Iterable) and not isinstance(given, bytes | type) and len(self.patterns) > 0
        if not known or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise InvalidParameterError(
                f"The 'targets' parameter of LoRA must be 'all', a name or glob pattern, or a list of them. Got "
                f"{given!r} instead."
            )

    @property
    def patterns(self) -> list[str]:
        """The patterns of the matrices, as a list."""
        return [self.targets] if isinstance(self.targets, str) else list(self.targets)


# Insert factors into a graph, beside the frozen matrices of products and convolutions.
#
# The factors L and R have the layout of the matrix in the graph: L has its rows, R its columns. Nodes multiply their
# input by the factors one after the other, so that the matrix needs no gradient. If that is impossible (grouped
# convolutions, embedding matrices that are also looked up), nodes read the computed sum of matrix and change. Either
# way the change ends in an addition; without this addition, the graph is the given one.


def with_low_rank(
    graph: TrainableModel, names: Sequence[str], rank: int, scale: float, rng: np.random.RandomState | None
) -> TrainableModel:
    """Return the model with trained factors beside the matrices named in ``names``; the change is zero at first.

    ``rng`` draws the factors that multiply the input from a uniform distribution within ``1 / sqrt(n_inputs)``
    (Kaiming's with a slope of √5, as in peft); all other factors are zero. If it is None, all factors are zero.
    """
    model = graph.model.clone()
    ir_graph = model.graph
    op = GraphBuilder(ir_graph, dtype=ir.DataType.from_numpy(graph.dtype), prefix="lora", constant_nodes=True)
    found = [_changed(op, ir_graph.initializers[name], rank, scale, rng) for name in names]
    ir_graph.sort()
    infer_shapes(model)
    factors = tuple(name for one in found for name in one.factors)
    roles = {name: f"low-rank factor of {one.matrix!r}" for one in found for name in one.factors}
    parameters = (*graph.parameters, *factors)
    return replace(graph, model=model, parameters=parameters, roles={**graph.roles, **roles}, low_rank=tuple(found))


def without_low_rank(graph: TrainableModel, changes: Sequence[LowRank] | None = None) -> TrainableModel:
    """Return the model without the factors of ``changes``, by default all: what :func:`with_low_rank` was given."""
    changes = graph.low_rank if changes is None else changes
    if not changes:
        return graph
    model = graph.model.clone()
    factors = factors_of_matrices(changes)
    ir_graph = model.graph
    sums = {name for one in changes for name in one.sums}
    for node in [node for node in ir_graph if node.name in sums]:
        given, result = node.inputs[0], node.outputs[0]
        assert given is not None
        name, is_output = result.name, result.is_graph_output()
        bypass(node, given)
        if is_output:
            given.name = name
    common.RemoveUnusedNodesPass()(model)
    remove_unread_initializers(ir_graph, [name for name in ir_graph.initializers if name not in factors])
    kept = {n: reason for n, reason in graph.roles.items() if n not in factors}
    parameters = tuple(name for name in graph.parameters if name not in factors)
    left = tuple(one for one in graph.low_rank if one not in changes)
    return replace(graph, model=model, parameters=parameters, roles=kept, low_rank=left)


def matrices_of(graph: TrainableModel) -> list[str]:
    """Return the names of the initializers to which factors can be added: matrices of a Gemm, MatMul or Conv.

    These are parameters, and frozen matrices of few bits.
    """
    values = graph.model.graph.initializers.values()
    parameters = set(graph.parameters)
    found = [v for v in values if v.name in parameters or matrix_shape(v) is not None]
    return [v.name or "" for v in found if not v.is_graph_output() and next(_products_with(v), None) is not None]


@dataclass(frozen=True, eq=False)
class Product:
    """A node that multiplies by a matrix.

    Attributes
    ----------
    node : onnx_ir.Node
    index : int
        The position of the matrix among the inputs of the node.
    transposed : bool
        Whether the node multiplies by the transposed matrix.
    """

    node: ir.Node
    index: int
    transposed: bool

    @property
    def begins_left(self) -> bool:
        """True if the node multiplies its input by the rows of the matrix, so that L comes before R."""
        return self.node.op_type != "Conv" and (self.index == 1) != self.transposed


def _changed(op: GraphBuilder, matrix: ir.Value, rank: int, scale: float, rng: np.random.RandomState | None) -> LowRank:
    """Add the change to the matrix, or to the products with it; return the names of the change's parts."""
    few_bits = matrix_shape(matrix)
    name = matrix.name or ""
    products = list(_products_with(matrix))
    whole = few_bits is None and _needs_sum(matrix)
    shape = array_of(matrix).shape if few_bits is None else few_bits
    begins_left = products[0].begins_left
    kernel = len(shape) > 2 and not whole
    left = (shape[0], rank, *(1 for _ in shape[2:] if kernel))
    right = (rank, *shape[1:]) if kernel else (rank, math.prod(shape[1:]))
    first = op.taken.free(f"{name}.lora_A")
    last = op.taken.free(f"{name}.lora_B")
    names = (first, last) if begins_left else (last, first)
    dtype = op.dtype.numpy()
    inputs = shape[0] if begins_left else math.prod(shape[1:])
    first_shape = left if begins_left else right
    bound = 1 / math.sqrt(inputs)
    drawn = np.zeros(first_shape) if rng is None else rng.uniform(-bound, bound, first_shape)
    arrays = (drawn, np.zeros(right)) if begins_left else (np.zeros(left), drawn)
    factors = [op.parameter(n, a.astype(dtype)) for n, a in zip(names, arrays, strict=True)]
    if whole:  # rewire consumers of the matrix to the sum of matrix and change
        change = _times_scale(op, op.MatMul(*factors), scale)
        change = change if len(shape) == 2 else op.Reshape(change, list(shape))
        sums = [_name_of_sum(insert_after(op, matrix, lambda w: op.Add(w, change)))]
    else:
        sums = [_with_change(op, one, factors, scale) for one in products]
    return LowRank(name, *names, scale, first, tuple(sums), is_merged=few_bits is None and not is_in_file(matrix))


def _products_with(value: ir.Value, *, transposed: bool = False) -> Iterator[Product]:
    """Yield the nodes of the main graph that multiply by a matrix or its transpose."""
    rank = None if value.shape is None else len(value.shape)
    for node, index in value.uses():
        if is_product_of_few_bits(node) and index == 1:
            yield Product(node, index, transposed=True)
        if node.domain or node.graph is not value.graph:
            continue
        if node.op_type == "Conv" and index == 1 and value.is_initializer():
            yield Product(node, index, transposed=False)
        elif rank == 2 and node.op_type == "MatMul":
            yield Product(node, index, transposed=transposed)
        elif rank == 2 and node.op_type == "Gemm" and index < 2:
            turns = bool(node.attributes.get_int("transB" if index else "transA", 0))
            yield Product(node, index, transposed=transposed != turns)
        elif _passes_on(node):
            yield from _products_with(node.outputs[0], transposed=transposed != (node.op_type == "Transpose"))


def _passes_on(node: ir.Node) -> bool:
    """Return True if a node returns its input, or the transpose of its input."""
    if node.op_type == "Transpose":
        return list(attribute(node, "perm", [1, 0])) == [1, 0]
    return node.op_type == "Identity"


def _needs_sum(value: ir.Value) -> bool:
    """Return True if a node that reads the matrix needs the sum of matrix and change.

    Such nodes are grouped convolutions, products of the matrix with itself, and nodes that are not products.
    """
    products = list(_products_with(value))
    known = {(id(one.node), one.index) for one in products}
    grouped = any(one.node.attributes.get_int("group", 1) != 1 for one in products)
    squared = len({place for place, _ in known}) < len(known)
    return grouped or squared or _reads_otherwise(value, known)


def _reads_otherwise(value: ir.Value, known: set[tuple[int, int]]) -> bool:
    for node, index in value.uses():
        if (id(node), index) in known:
            continue
        inner = node.outputs[0] if _passes_on(node) and not node.domain and node.graph is value.graph else None
        if inner is None or inner.is_graph_output() or _reads_otherwise(inner, known):
            return True
    return False


def _with_change(op: GraphBuilder, one: Product, factors: Sequence[ir.Value], scale: float) -> str:
    """Add the product with the factors to the product with the matrix; return the name of the addition."""
    change = {"Conv": _convolved_with_factors, "Gemm": _gemm_with_factors}.get(
        one.node.op_type, _multiplied_by_factors
    )(op, one, factors, scale)
    return _name_of_sum(insert_after(op, one.node.outputs[0], lambda y: op.Add(y, change)))


def _convolved_with_factors(op: GraphBuilder, one: Product, factors: Sequence[ir.Value], scale: float) -> ir.Value:
    """Emit a convolution with r kernels, followed by a 1x1 convolution."""
    left, right = factors
    settings = {name: a.value for name, a in one.node.attributes.items() if name != "group"}
    return op.Conv(_times_scale(op, op.Conv(one.node.inputs[0], right, **settings), scale), left)


def _gemm_with_factors(op: GraphBuilder, one: Product, factors: Sequence[ir.Value], scale: float) -> ir.Value:
    first, last = factors if one.begins_left else factors[::-1]
    turns = one.transposed
    alpha = float(attribute(one.node, "alpha", 1.0)) * scale
    if one.index == 1:
        inner = op.Gemm(one.node.inputs[0], first, transA=one.node.attributes.get_int("transA", 0), transB=turns)
        return op.Gemm(inner, last, alpha=alpha, transB=turns)
    inner = op.Gemm(first, one.node.inputs[1], transA=turns, transB=one.node.attributes.get_int("transB", 0))
    return op.Gemm(last, inner, alpha=alpha, transA=turns)


def _multiplied_by_factors(op: GraphBuilder, one: Product, factors: Sequence[ir.Value], scale: float) -> ir.Value:
    first, last = factors if one.begins_left else factors[::-1]
    if one.transposed:
        first, last = (op.Transpose(factor, perm=[1, 0]) for factor in (first, last))
    if one.index == 1:
        return op.MatMul(_times_scale(op, op.MatMul(one.node.inputs[0], first), scale), last)
    return op.MatMul(last, _times_scale(op, op.MatMul(first, one.node.inputs[1]), scale))


def _times_scale(op: GraphBuilder, value: ir.Value, scale: float) -> ir.Value:
    return value if scale == 1 else op.Mul(value, float(scale))


def _name_of_sum(value: ir.Value) -> str:
    node = value.producer()
    assert node is not None
    return node.name or ""
