"""Base class of the estimators for raw tables: preprocessing, training of the members, one graph that predicts.

What is fitted is the graph alone: pickles hold its bytes, ``predict`` runs it, and ``to_onnx`` returns it. A recipe
says how numbers are scaled and which network is trained by which settings.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from .._data.targets import Targets, row_weights
from .._estimators.html import HtmlRepr
from .._estimators.interrupts import raise_or_warn
from .._estimators.scoring import Scoring
from .._graph.links import Task
from .._runtime import devices
from .._runtime.devices import Device
from .._support.declared import Declared
from .._support.typing import MatrixLike
from .examples import TableExamples
from .fitted_graph import FittedGraph
from .member_tasks import MemberTasks, TracedRecipe, epochs_of
from .members import (
    MemberRecipe,
    MemberTraining,
    Network,
    PreparedMember,
    TrainedMembers,
    prepared_members,
    train_members,
)
from .preprocessing import Preprocessing
from .raw_table import CategoricalFeatures, categorical_columns, read_table, warn_of_columns

if TYPE_CHECKING:
    from typing_extensions import Self


DEFAULT_SCORING: Mapping[Task, Scoring] = {"binary": "accuracy", "multiclass": "accuracy", "multilabel": "neg_log_loss"}
"""Scores of classes. All labels of a row are rarely right where there are many: that share would tell epochs apart by
chance, or not at all."""


class BaseRecipe(TracedRecipe, FittedGraph, Declared, HtmlRepr, BaseEstimator, ABC):
    """An estimator that takes a raw table."""

    categorical_features: CategoricalFeatures
    n_ensembles: int
    validation_fraction: float | None
    scoring: Scoring | None
    callbacks: Sequence[object] | None
    random_state: int | np.random.RandomState | None
    engine: str
    device: str

    _scaling: ClassVar[str]
    _drops_constants: ClassVar[bool] = False
    _early_stopping: ClassVar[bool | str] = "best_epoch"
    classes_: np.ndarray
    n_outputs_: int
    _task: Task

    @abstractmethod
    def _encode(self, y: ArrayLike) -> Targets:
        """Return the targets."""

    @abstractmethod
    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> Network:
        """Return the estimator to train on ``n_rows`` rows of the preprocessed table."""

    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the preprocessing and train the network.

        Parameters
        ----------
        X : data frame, table of Arrow or array-like of shape (n_samples, n_features)
            Numbers and categories; None, NaN and the missing values of pandas are missing.
        y : array-like of shape (n_samples,)
            Targets; for several numbers, or labels that are 0 or 1, of shape (n_samples, n_outputs).
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss and in the validation score, >= 0; None: one. The preprocessing counts all
            rows alike, but those of weight 0 not at all.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid.
        DivergenceError
            The loss became NaN or infinite.

        After an error the estimator is what it was before. After an interrupt (Ctrl-C) it keeps the weights reached so
        far; members of an ensemble that were not begun are left out.
        """
        self.check_declared()
        before = dict(vars(self))
        try:
            tasks = MemberTasks(self)
            interrupted = tasks.run(lambda: self._fit(X, y, sample_weight, tasks))
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        if interrupted is not None:
            raise_or_warn(interrupted, self)
        return self

    def _fit(
        self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None, tasks: MemberTasks
    ) -> KeyboardInterrupt | None:
        """Fit; return the interrupt that ended the training early."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = read_table(self, X, reset=True)
        categorical = categorical_columns(table, self.categorical_features)
        warn_of_columns(table, self.categorical_features)
        targets = self._encode(y)
        check_consistent_length(table.columns[0], targets.values)
        weights = row_weights(sample_weight, targets, getattr(self, "class_weight", None))
        device = devices.resolve_device(self.device)
        examples = TableExamples(table, categorical, targets, weights)
        training = MemberTraining(self._early_stopping, self._watched(targets), tasks.fit)
        trained = train_members(self._members(examples), training, examples, device)
        self._keep(examples, trained, device)
        return trained.interrupted

    def _members(self, examples: TableExamples) -> Iterator[PreparedMember]:
        """Yield the networks to train."""
        recipe = MemberRecipe(self._scaling, self._drops_constants, self._network)
        shares = self.n_ensembles, self.validation_fraction
        return prepared_members(recipe, examples, *shares, examples.generator(self))

    def _watched(self, targets: Targets) -> Scoring | None:
        """Return the score on the rows held out; the recipes' authors watch the accuracy, not the loss."""
        if self.scoring is None:
            return DEFAULT_SCORING.get(targets.task)
        if self.validation_fraction is None:
            raise ValueError(
                f"scoring={self.scoring!r} needs rows that are held out: set validation_fraction, 0.2 for example."
            )
        return self.scoring

    def _keep(self, examples: TableExamples, trained: TrainedMembers, device: Device) -> None:
        """Set the fitted attributes, all at once."""
        networks = trained.networks
        vars(self).update(
            _graph=trained.graph.content,
            _prediction=trained.graph,
            _inputs=trained.preprocessing,
            _device=device,
            _predictors={},
            _epochs=epochs_of(networks),
            n_outputs_=networks[0].n_outputs_,
            n_iter_=max(network.n_iter_ for network in networks),
            loss_curves_=[network.loss_curve_ for network in networks],
            validation_scores_=[network.validation_scores_ for network in networks],
            engine_=networks[0].engine_,
            device_=networks[0].device_,
        )
        if examples.classes is not None:
            self.classes_, self._task = examples.classes, examples.targets.task

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def even_batch(n_rows: int, most: int) -> int:
    """Return the rows of a minibatch, at most ``most``, that make the fewest steps of about equal size."""
    return math.ceil(n_rows / math.ceil(n_rows / most))
