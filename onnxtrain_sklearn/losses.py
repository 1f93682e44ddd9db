"""Losses as ONNX subgraphs, their links, the penalty on the weights, and the registry of losses.

A loss is written for one minibatch: scores and targets of shape (N, k) go in, a matrix (N, k) or a column (N, 1)
of losses comes out. :func:`append_loss` turns it into the scalar that is differentiated, the weighted mean over
rows of the plain mean over a row's columns, ``sum_i w_i mean_j l_ij / sum_i w_i``, so that a row of weight zero
changes nothing. Losses see the scores before the final activation (logits, log-means): the *link* names that
activation, and :func:`apply_link` emits it for prediction. No gradient is written by hand; the operators used are
those that every gradient engine has proven, in forms whose derivative is a subgradient at the kinks too: a model that
starts at zero has scores of exactly 0.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ._graph.links import LINKS, Link, TargetScaling, Task, apply_link
from ._graph.loss_terms import append_loss, append_pairwise_loss, append_penalty
from ._losses.base import Loss
from ._losses.classification import Focal, Hinge, LogLoss, ModifiedHuber, SquaredHinge
from ._losses.regression import AbsoluteError, Elastic, Gamma, Huber, LogCosh, Poisson, Quantile, SquaredError, Tweedie
from ._support.components import resolve

__all__ = [
    "LINKS", "LOSSES", "AbsoluteError", "Elastic", "Focal", "Gamma", "Hinge", "Huber", "Link", "LogCosh", "LogLoss",
    "Loss", "LossSource", "ModifiedHuber", "Poisson", "Quantile", "SquaredError", "SquaredHinge", "TargetScaling",
    "Task", "Tweedie",
    "append_loss", "append_pairwise_loss", "append_penalty", "apply_link", "resolve_loss",
]  # fmt: skip

LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "absolute_error": AbsoluteError,
    "huber": Huber,
    "quantile": Quantile,
    "poisson": Poisson,
    "gamma": Gamma,
    "tweedie": Tweedie,
    "log_cosh": LogCosh,
    "elastic": Elastic,
    "log_loss": LogLoss,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "modified_huber": ModifiedHuber,
    "focal": Focal,
}

for _loss in (Loss, *LOSSES.values()):
    _loss.__module__ = __name__  # the path by which pickles name it


@runtime_checkable
class LossSource(Protocol):
    """What becomes a loss when it is given for one: a block of ``onnxtrain_sklearn.classic.onnxblock``."""

    def as_loss(self, widths: tuple[int, ...] = ()) -> Loss:
        """Return the loss on outputs of a graph that have ``widths`` columns; empty: on one output."""


def resolve_loss(loss: str | Loss | LossSource, widths: tuple[int, ...] = ()) -> Loss:
    """Return the loss that a name or an object stands for, its parameters validated."""
    if isinstance(loss, LossSource) and not isinstance(loss, type):
        loss = loss.as_loss(widths)
    return resolve("loss", loss, LOSSES, Loss)
