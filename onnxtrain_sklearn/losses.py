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

from ._graph.links import LINKS as LINKS
from ._graph.links import Link as Link
from ._graph.links import TargetScaling as TargetScaling
from ._graph.links import Task as Task
from ._graph.links import apply_link as apply_link
from ._graph.loss_terms import append_loss as append_loss
from ._graph.loss_terms import append_pairwise_loss as append_pairwise_loss
from ._graph.loss_terms import append_penalty as append_penalty
from ._losses.base import Loss as Loss
from ._losses.classification import Focal as Focal
from ._losses.classification import Hinge as Hinge
from ._losses.classification import LogLoss as LogLoss
from ._losses.classification import ModifiedHuber as ModifiedHuber
from ._losses.classification import SquaredHinge as SquaredHinge
from ._losses.regression import AbsoluteError as AbsoluteError
from ._losses.regression import Elastic as Elastic
from ._losses.regression import Gamma as Gamma
from ._losses.regression import Huber as Huber
from ._losses.regression import LogCosh as LogCosh
from ._losses.regression import Poisson as Poisson
from ._losses.regression import Quantile as Quantile
from ._losses.regression import SquaredError as SquaredError
from ._losses.regression import Tweedie as Tweedie
from ._support.components import registered, resolve

LOSSES: dict[str, type[Loss]] = registered(Loss, vars())
"""The losses imported above, by name."""


@runtime_checkable
class LossSource(Protocol):
    """What becomes a loss when it is given for one: a block of ``onnxtrain_sklearn.classic.onnxblock``."""

    def as_loss(self, widths: tuple[int, ...] = ()) -> Loss:
        """Return the loss on outputs of a graph that have ``widths`` columns; empty: on one output."""


def resolve_loss(loss: str | Loss | LossSource, widths: tuple[int, ...] = ()) -> Loss:
    """Return the loss that a name or an object stands for, its parameters validated."""
    if not isinstance(loss, str | Loss | type) and isinstance(loss, LossSource):
        loss = loss.as_loss(widths)
    return resolve("loss", loss, LOSSES, Loss)
