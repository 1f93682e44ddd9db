"""Losses of embeddings, which compare the rows of a minibatch: near for what belongs together, far for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from .._model.declared_targets import Target
from .._model.links import Link, Task, row_sum
from .._utils.params import COUNT, POSITIVE, OneOf, Rules
from ..graph import GraphBuilder
from .base import Loss

LEAST_SQUARE = 1e-12
"""Added to squares under a root, whose derivative is infinite at 0."""


class InfoNCE(Loss):
    r"""Contrastive loss of pairs: the two embeddings of a row are near, and far from those of the other rows.

    A row of scores holds two embeddings, (N, 2 d) or (N, 2, d): of two views of the row, or of an image and its text.
    With the cosines :math:`c_{ij}` of the first embedding of row i and the second of row j, the loss of a row is

    .. math:: \log \sum_j e^{c_{ij} / \tau} - c_{ii} / \tau,

    and its mean with the same in the other direction if it is symmetric. There are no targets: ``y`` is None. Rows
    meet: the other rows are those of the minibatch, which are the harder the more there are.

    Parameters
    ----------
    temperature : float, default=0.1
        The temperature :math:`\tau`, positive.
    symmetric : bool, default=True
        Whether each second embedding is also compared with all first ones.
    dimension : int, default=32
        Size d of an embedding in models that are built; a given graph has its own.

    References
    ----------
    A. van den Oord, Y. Li, O. Vinyals, "Representation learning with contrastive predictive coding", 2018.

    A. Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021, for the
    symmetric form.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.losses import InfoNCE
    >>> OrtGradientRegressor(loss=InfoNCE(temperature=0.2))
    OrtGradientRegressor(loss=InfoNCE(temperature=0.2))
    """

    name = "info_nce"
    tasks = frozenset({"regression"})
    mixes_rows = True
    targets: Mapping[str, Target] = MappingProxyType({})
    valid: ClassVar[Rules] = {"temperature": (POSITIVE,), "symmetric": (OneOf((True, False)),), "dimension": (COUNT,)}

    def __init__(self, temperature: float = 0.1, symmetric: bool = True, dimension: int = 32) -> None:
        self.temperature = temperature
        self.symmetric = symmetric
        self.dimension = dimension

    def n_scores(self, task: Task, n_targets: int) -> int:
        return 2 * self.dimension

    def check_scores(self, row: tuple[int, ...], y: Any) -> None:
        if not (len(row) == 1 and row[0] % 2 == 0) and not (len(row) == 2 and row[0] == 2):
            raise ValueError(
                f"loss='info_nce' takes two embeddings a row, (N, 2 d) or (N, 2, d), but the graph's output has "
                f"{('N', *row)}."
            )

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        shape = [int(str(d)) for d in op.shape(scores) or ()]
        n, width = shape[0], int(np.prod(shape[1:]))
        both = op.Reshape(scores, [n, width])
        one, two = (op.Slice(both, [i * width // 2], [(i + 1) * width // 2], [1]) for i in range(2))
        one, two = _unit(op, one), _unit(op, two)
        scale = 1.0 / float(self.temperature)
        pairs = op.Mul(row_sum(op, op.Mul(one, two)), scale)
        cosines = op.Mul(op.MatMul(one, op.Transpose(two, perm=[1, 0])), scale)
        against = op.ReduceLogSumExp(cosines, axes=[1], keepdims=True)
        if self.symmetric:
            other = op.ReduceLogSumExp(op.Transpose(cosines, perm=[1, 0]), axes=[1], keepdims=True)
            against = op.Mul(op.Add(against, other), 0.5)
        return op.Sub(against, pairs)


def _unit(op: GraphBuilder, rows: ir.Value) -> ir.Value:
    """Emit the rows divided by their lengths."""
    return op.Div(rows, op.Sqrt(op.Add(row_sum(op, op.Mul(rows, rows)), LEAST_SQUARE)))


class Triplet(Loss):
    r"""Triplet loss on the hardest rows of a minibatch: rows of one label are nearer than the nearest of another.

    ``y`` holds "label", a whole number for each row, or is that array. With the Euclidean distance :math:`p_i` to the
    farthest row of the same label, and :math:`n_i` to the nearest row of another label, the loss of a row is
    :math:`\max(0, p_i - n_i + m)`, or :math:`\log(1 + e^{p_i - n_i})` with ``margin="soft"``. A row whose minibatch has
    no other row of its label, or none of another label, has the loss 0. ``predict`` returns the embeddings, (N, d).

    Rows meet: the hardest rows are those of the minibatch, which should hold several rows of each label.

    Parameters
    ----------
    margin : float or "soft", default=0.2
        The margin m, positive.
    dimension : int, default=32
        Size d of an embedding in models that are built; a given graph has its own.

    References
    ----------
    A. Hermans, L. Beyer, B. Leibe, "In defense of the triplet loss for person re-identification", 2017 ("batch hard").

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.losses import Triplet
    >>> X, y = load_digits(return_X_y=True)
    >>> net = OrtGradientRegressor(loss=Triplet("soft", dimension=2), tol=0.2, n_iter_no_change=2, random_state=0)
    >>> net.fit(X / 16, y).predict(X[:3] / 16).shape
    (3, 2)
    """

    name = "triplet"
    tasks = frozenset({"regression"})
    mixes_rows = True
    targets = MappingProxyType({"label": Target(dtype="int64")})
    valid: ClassVar[Rules] = {"margin": (POSITIVE, OneOf(("soft",))), "dimension": (COUNT,)}

    def __init__(self, margin: float | str = 0.2, dimension: int = 32) -> None:
        self.margin = margin
        self.dimension = dimension

    def n_scores(self, task: Task, n_targets: int) -> int:
        return self.dimension

    def check_scores(self, row: tuple[int, ...], y: Any) -> None:
        if len(row) != 1:
            raise ValueError(f"loss='triplet' takes an embedding a row, (N, d), but the output has {('N', *row)}.")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        n = int(str((op.shape(scores) or (0,))[0]))
        squares = row_sum(op, op.Mul(scores, scores))
        # Rounded distances choose the rows; the distances to the chosen rows are then computed from differences.
        products = op.MatMul(scores, op.Transpose(scores, perm=[1, 0]))
        near = op.Sub(op.Add(squares, op.Transpose(squares, perm=[1, 0])), op.Mul(products, 2.0))
        same = op.Equal(op.Unsqueeze(y["label"], axes=[1]), op.Unsqueeze(y["label"], axes=[0]))
        place = np.arange(n, dtype=np.int64)
        positive = op.And(same, op.Not(op.Equal(op.constant(place[:, None]), place[None, :])))
        farthest = op.ArgMax(op.Where(positive, near, -1e30), axis=1, keepdims=False)
        nearest = op.ArgMin(op.Where(same, 1e30, near), axis=1, keepdims=False)
        gap = op.Sub(_distance(op, scores, farthest), _distance(op, scores, nearest))
        margin = self.margin
        losses = op.Softplus(gap) if isinstance(margin, str) else op.Relu(op.Add(gap, float(margin)))
        counts = op.And(_any(op, positive), _any(op, op.Not(same)))
        return op.Where(counts, losses, op.Mul(losses, 0.0))


def _distance(op: GraphBuilder, rows: ir.Value, chosen: ir.Value) -> ir.Value:
    """Emit the distance of each row to the chosen one, (N, 1)."""
    difference = op.Sub(rows, op.Gather(rows, chosen, axis=0))
    return op.Sqrt(op.Add(row_sum(op, op.Mul(difference, difference)), LEAST_SQUARE))


def _any(op: GraphBuilder, table: ir.Value) -> ir.Value:
    """Emit whether some element of each row is True, (N, 1)."""
    return op.Greater(row_sum(op, op.Cast(table, to=op.dtype)), 0.5)
