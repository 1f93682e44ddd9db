"""The base class of the losses, and its subclasses by task, from which the losses of this package derive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx_ir as ir

from .._model.declared_targets import Target
from .._model.links import Link, TargetScaling, Task
from .._utils.params import Component
from ..graph import GraphBuilder

LabelKind: TypeAlias = Literal["labels", "probabilities", "counts"]


class FurtherPrediction(NamedTuple):
    """What a loss predicts of each target besides the prediction, in the unit of the targets that are trained on.

    Attributes
    ----------
    values : sequence of values of shape (N, k)
        One of them is an output (N, k). Several become an axis after the targets: (N, k, n), or (N, n) if k = 1.
    unit : {"location", "scale", "none"}
        How the numbers follow the scale of the targets: shifted, multiplied and clipped like predictions, multiplied
        like deviations of the targets, or not at all.
    """

    values: Sequence[ir.Value]
    unit: Literal["location", "scale", "none"]


class Loss(Component, ABC):
    """Base class of the losses; derive from it to write your own.

    Override ``__call__`` to emit the loss of every row. No gradient is needed: the gradient engine differentiates
    the operators. Constructor parameters are stored verbatim, as scikit-learn requires, and are then tunable
    as ``loss__NAME``.

    Attributes
    ----------
    tasks : frozenset of {"regression", "binary", "multiclass", "multilabel"}
        What the loss can be used for.
    target_scaling : {"standard", "mean"} or None
        How regression targets may be scaled for training (``target_scaling="auto"`` of the estimator). "standard": to
        mean 0 and standard deviation 1, for losses whose minimum moves with the unit of the targets. "mean": to mean
        1, for those with a log link. None, the default: the loss takes them in their own unit.
    starts_at_mean : bool
        Whether new networks of this package start near the mean of the targets, where ``target_scaling="auto"`` of the
        estimator: their first scores by the logarithm of the mean, for a log link. For losses of counts, which cannot
        be scaled. False, the default.
    judged_by : {"loss", "score"}
        How the weights of a regressor are judged on validation data, by early stopping and by fine-tuning with
        ``X_val``. "loss", the default: by this loss, which is right for any. "score": by R², which is right for the
        squared error alone.
    targets : {"labels", "probabilities", "counts"} or mapping of str to Target
        The content of ``y``. "labels", the default: labels or numbers. Soft labels of a classifier have a column for
        each class. Rows of "probabilities" sum to one; "counts" are numbers of observations of each class. The loss
        receives either as rows that sum to one, in place of one-hot rows; those of counts weigh as much as their sum.
        A mapping, for regressors, declares targets by name, with their types and shapes (:class:`Target`): ``y`` is
        then a dict, a data frame or a structured array with these names, and the loss receives a dict of values. The
        only target may also be given as it is; without targets, ``y`` is None.
    mixes_rows : bool
        Whether the loss of a row depends on the other rows of its minibatch. Then a minibatch has no padding rows, and
        a loss that declares targets also receives the weights of the rows, of mean one: ``y["sample_weight"]`` (N,).
        False, the default: the package tries it on random numbers.

    Notes
    -----
    A loss must be finite for every finite score: a row of weight zero is a product with 0, and 0 times infinity is NaN.
    Where the loss of a row depends on the other rows of the minibatch, a short minibatch is trained as it is.
    At a kink the derivatives of ``Abs`` and ``Relu`` are 0.

    Examples
    --------
    >>> from onnxtrain_sklearn.losses import Loss
    >>> class FourthPower(Loss):
    ...     def __call__(self, op, scores, y, link):
    ...         squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
    ...         return op.Mul(squared, squared)
    >>> FourthPower()
    FourthPower()
    """

    __module__ = "onnxtrain_sklearn.losses"  # the path by which pickles name it
    tasks: ClassVar[frozenset[Task]] = frozenset({"regression", "binary", "multiclass", "multilabel"})
    target_scaling: ClassVar[TargetScaling | None] = None
    starts_at_mean: ClassVar[bool] = False
    judged_by: ClassVar[Literal["loss", "score"]] = "loss"
    targets: LabelKind | Mapping[str, Target] = "labels"
    mixes_rows: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        """Emit the loss of every row and output.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators: ``op.Sub(scores, y)``.
        scores : value of shape (N, n_scores)
            The model's output before its final activation; with declared targets, in the shape that it has, (N, ...).
        y : value of shape (N, k), of the type of ``scores``
            Targets, as many as scores unless :meth:`n_scores` differs: numbers for regression; 0 or 1 for
            classification (one column for a binary problem on one score, one-hot rows for several classes, indicators
            for several labels). With declared targets, a dict of values by name.
        link : str
            The function that makes predictions of the scores: "identity", "exp", "sigmoid", "softmax", ...

        Returns
        -------
        value of shape (N, k), as the targets, or (N, 1)
            With declared targets, k is free: the loss of a row is the mean over its columns.
        """

    def n_scores(self, task: Task, n_targets: int) -> int:
        """Return the number of scores of a row that has ``n_targets`` targets: as many, unless overridden.

        The targets are numbers, or classes (one for two classes). If a number needs several scores, such as location
        and scale, the first ``n_targets`` scores are those that :meth:`link` turns into predictions, the next
        ``n_targets`` are the second parameter of each number, and so on. Models that are built get as many outputs as
        this method returns; a given graph must have them. With declared targets, ``n_targets`` is the number of
        elements of a row of all of them, and a given graph may have any scores.
        """
        return n_targets

    def of_labels(self, op: GraphBuilder, scores: ir.Value, labels: ir.Value) -> ir.Value | None:
        """Emit the loss (N, 1) of every row from its class index, ``labels`` (N,).

        It saves the memory that one-hot rows of many classes take. Return None, as the default does, if the loss needs
        these rows.
        """
        return None

    def link(self, task: Task) -> Link:
        """Return the function that turns scores into predictions for ``task``, "identity" unless overridden."""
        return "identity"

    def further_predictions(self, op: GraphBuilder, scores: ir.Value) -> Mapping[str, FurtherPrediction]:
        """Emit what the scores of a regressor tell besides its prediction; nothing, unless overridden.

        These are further outputs of the graphs of ``predict`` and ``to_onnx``, under the names that this method
        returns. Ensembles have them by :meth:`of_members`; several trained outputs have none.
        """
        return {}

    def of_members(
        self, op: GraphBuilder, predictions: ir.Value, values: Sequence[ir.Value]
    ) -> Sequence[ir.Value] | None:
        """Emit one of the further predictions of an ensemble; None, unless overridden: an ensemble has none.

        Parameters
        ----------
        op : GraphBuilder
        predictions : value of shape (N, m, k)
            The predictions of the m members. Their mean is the prediction of the ensemble.
        values : sequence of values of shape (N, m, k)
            The ``values`` of a :class:`FurtherPrediction` of the members, in the same unit.

        Returns
        -------
        sequence of values of shape (N, k), or None
        """
        return None

    def check_targets(self, y: Any) -> None:
        """Raise ValueError where the loss is not defined for the targets ``y``; every number is allowed by default.

        ``y`` is an array, or with declared targets a dict of arrays.
        """

    def check_scores(self, row: tuple[int, ...], y: Any) -> None:
        """Raise ValueError where declared targets ``y`` do not suit scores whose rows have the shape ``row``."""


class LossOfRows(Loss):
    """The loss of a graph that computes it itself: its scores are the losses."""

    tasks = frozenset({"regression"})
    targets: Mapping[str, Target] = MappingProxyType({})

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        return op.Identity(scores)


class ClassificationLoss(Loss):
    """A loss for labels, which gives scores without probabilities unless it overrides ``link``."""

    tasks = frozenset({"binary", "multiclass", "multilabel"})


class LikelihoodLoss(ClassificationLoss):
    """A loss for labels that gives probabilities: a softmax over the classes, or a sigmoid of each label."""

    def link(self, task: Task) -> Link:
        return "softmax" if task == "multiclass" else "sigmoid"


class RegressionLoss(Loss):
    """A loss for numbers that may be scaled to mean 0 and deviation 1."""

    tasks = frozenset({"regression"})
    target_scaling: ClassVar[TargetScaling | None] = "standard"


class ExponentialLoss(RegressionLoss):
    """A loss for numbers that are not negative, with a log link; they may be scaled to mean 1."""

    target_scaling = "mean"

    def link(self, task: Task) -> Link:
        return "exp"


def require_targets(loss: Loss, y: np.ndarray, valid: np.ndarray, expected: str) -> None:
    """Raise ValueError unless all targets are ``valid``."""
    if not np.all(valid):
        raise ValueError(
            f"{type(loss).__name__} needs targets that are {expected}, got {np.count_nonzero(~valid)} of {np.size(y)} "
            f"that are not, the smallest {np.min(y)}. Check y, or use a loss for targets of any sign: 'squared_error'."
        )


@runtime_checkable
class LossBlock(Protocol):
    """A source of a loss, given in its place: a block of ``onnxtrain_sklearn.classic.onnxblock``."""

    def as_loss(self, widths: tuple[int, ...] = ()) -> Loss:
        """Return the loss on outputs of a graph that have ``widths`` columns; empty: on one output."""
