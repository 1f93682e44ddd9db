"""Losses as ONNX subgraphs, and their registry.

Derive from :class:`Loss` to write your own; :data:`LOSSES` names the losses, and :func:`resolve_loss` finds one.
To add one to the package, write its class in the file of its family and import it here.

A loss is written for one minibatch: scores and targets of shape (N, k) go in, a matrix (N, k) or a column (N, 1)
of losses comes out. :func:`append_loss` turns it into the scalar that is differentiated, the weighted mean over
rows of the plain mean over a row's columns, ``sum_i w_i mean_j l_ij / sum_i w_i``, so that a row of weight zero
changes nothing. Losses see the scores before the final activation (logits, log-means): the *link* names that
activation, and :func:`apply_link` emits it for prediction. No gradient is written by hand; the operators used are
those that every gradient engine has proven, in forms whose derivative is a subgradient at the kinks too: a model that
starts at zero has scores of exactly 0.
"""

from __future__ import annotations

from .._model.declared_targets import Target as Target
from .._model.links import LINKS as LINKS
from .._model.links import Link as Link
from .._model.links import TargetScaling as TargetScaling
from .._model.links import Task as Task
from .._model.links import apply_link as apply_link
from .._model.loss_terms import append_loss as append_loss
from .._model.loss_terms import append_pairwise_loss as append_pairwise_loss
from .._model.loss_terms import append_penalty as append_penalty
from .._utils.params import registered, resolve
from .base import FurtherPrediction as FurtherPrediction
from .base import Loss as Loss
from .base import LossBlock as LossBlock
from .classification import Dice as Dice
from .classification import Focal as Focal
from .classification import Hinge as Hinge
from .classification import LogLoss as LogLoss
from .classification import ModifiedHuber as ModifiedHuber
from .classification import Ordinal as Ordinal
from .classification import SquaredHinge as SquaredHinge
from .deviances import Gamma as Gamma
from .deviances import Poisson as Poisson
from .deviances import Tweedie as Tweedie
from .distributions import DistributionLoss as DistributionLoss
from .distributions import GammaNLL as GammaNLL
from .distributions import GaussianNLL as GaussianNLL
from .distributions import LaplaceNLL as LaplaceNLL
from .distributions import NegativeBinomial as NegativeBinomial
from .distributions import Quantiles as Quantiles
from .embeddings import InfoNCE as InfoNCE
from .embeddings import Triplet as Triplet
from .regression import AbsoluteError as AbsoluteError
from .regression import Elastic as Elastic
from .regression import EpsilonInsensitive as EpsilonInsensitive
from .regression import Huber as Huber
from .regression import LogCosh as LogCosh
from .regression import Quantile as Quantile
from .regression import Reconstruction as Reconstruction
from .regression import SquaredError as SquaredError
from .sequences import CTC as CTC
from .survival import Cox as Cox

LOSSES: dict[str, type[Loss]] = registered(Loss, vars())
"""The losses imported above, by name."""


def resolve_loss(loss: str | Loss | LossBlock, widths: tuple[int, ...] = ()) -> Loss:
    """Return the loss that a name or an object stands for, its parameters validated."""
    if not isinstance(loss, str | Loss | type) and isinstance(loss, LossBlock):
        loss = loss.as_loss(widths)
    return resolve("loss", loss, LOSSES, Loss)
