"""The classifier and the regressor that train on a Dask cluster."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.statistics import Moments
from .._data.targets import rows_that_count
from .._estimators.base import BaseOrtGradient
from .._estimators.call import Call, generator_of, optional_data
from .._estimators.classifier import CLASSES_ENTRY, OrtGradientClassifier
from .._estimators.config import TrainingConfig, is_on
from .._estimators.fit import train
from .._estimators.outputs import known_classes, require_probabilities
from .._estimators.parameters import SET, attributes, naming_places
from .._estimators.pickling import cloned
from .._estimators.regressor import OrtGradientRegressor
from .._estimators.streams import joined_parts, require_hard_labels
from .._utils.params import POSITIVE, Declaration, Instance, check_parameters, declare, documented
from .._utils.typing import MatrixLike
from ..callbacks.checkpoint import Checkpoint
from ..exceptions import InvalidParameterError, warn
from ..losses.regression import reconstructs
from ..models import resolve_builder
from .averaging import LocalSGD
from .cluster import Cluster
from .partitions import ClusterStream, read
from .predictions import is_collection, on_partitions
from .rounds import ClusterBatches, ClusterStep, training_step

if TYPE_CHECKING:
    from typing_extensions import Self

FEWEST_ROUNDS, FEWEST_STEPS = 20, 8
"""Rounds, and steps of a round, below which the momentum of the outer optimizer may overshoot.

Mean squared errors on other rows of one regression, one seed, with 4 shards at a learning rate of 0.01, by the plain
mean and by the default: 0.079 and 1.352 after 40 rounds of 2 steps, 0.076 and 0.629 after 40 of 4, 0.069 and 0.028
after 40 of 8, 0.082 and 0.188 after 10 of 8, 0.072 and 0.138 after 5 of 32, 0.046 and 0.021 after 20 of 32. At a rate
of 0.001 the default was better in each of six such settings.
"""


@dataclass
class _FitStream(ClusterStream):
    """The stream of a fit: makes its minibatches and its step."""

    averaging: Any = None
    n_shards: int = 1
    estimator: Any = None
    used: ClusterBatches | None = None
    step: ClusterStep | None = None

    def batches(
        self, estimator: Any, state: Any, loss: Any, *, ignores: bool, size: int, shuffle: bool, drop_last: bool
    ) -> Any:
        """Return the plan of the windows of all shards."""
        self.estimator = estimator
        row_bytes = sum(int(np.prod(state.shapes[one.name])) * one.dtype.itemsize for one in state.graph.inputs)
        plan = self.planned(self.n_shards, size, row_bytes)
        accumulate = int(TrainingConfig.of(estimator).optimizer.accumulate)
        self.used = ClusterBatches(
            self, self.averaging, plan, size, shuffle=shuffle, drop_last=drop_last, accumulate=accumulate
        )
        return self.used

    def training_step(self, step: Any, state: Any, settings: Any, sparse: Any) -> ClusterStep:
        """Build the windows; return the step that trains them."""
        assert self.used is not None
        self.step = training_step(self, self.used, self.averaging, step, self.estimator, state, settings, sparse)
        return self.step

    def warn_of_few_steps(self) -> None:
        """Warn if the outer optimizer had too few rounds, or too short ones, for its momentum."""
        if self.step is None or self.used is None or self.n_shards == 1 or not self.averaging.outer_momentum:
            return
        n_rounds, n_steps = self.step.round, self.used.steps_of_round
        if n_rounds < FEWEST_ROUNDS or n_steps < FEWEST_STEPS:
            warn(
                f"The {self.n_shards} shards took {n_rounds} rounds of {n_steps} steps. With fewer than "
                f"{FEWEST_ROUNDS} rounds, or rounds of fewer than {FEWEST_STEPS} steps, the momentum of the outer "
                f"optimizer may overshoot at a high learning rate: lower batch_size, sync_every or n_shards, raise "
                f"max_iter, or compare the plain mean, LocalSGD(outer_learning_rate=1, outer_momentum=0).",
                ConvergenceWarning,
            )


# fmt: off
@dataclass(kw_only=True, eq=False, repr=False)
class OnCluster:
    """What both estimators of a cluster add to the local ones, from which they derive too."""

    client: Any = declare(None, Declaration("distributed.Client or None", """
The cluster. None: the current client. Clones share it; pickles and copies have None."""))
    averaging: LocalSGD | None = declare(None, Declaration("LocalSGD or None", """
How shards of the rows train together (:class:`LocalSGD`). None: ``LocalSGD()``.""",
        (Instance(LocalSGD, "a LocalSGD"), None)))
    checkpoint: str | os.PathLike[str] | Checkpoint | None = declare(None, Declaration(
        "str, path, Checkpoint or None", """
Folder, or :class:`~onnxtrain_sklearn.callbacks.Checkpoint`, of the files from which the same call of ``fit`` resumes
after each epoch, to the same bits, also on another cluster. The client writes them. None: no files. The states of
workers need no files: a worker that dies is replaced within ``fit``."""))
    timeout: float | None = declare(None, Declaration("float or None", """
Seconds that a round, or the reading of the table, may take. None: no limit. A cluster without a worker that runs tasks
is an error after 20 seconds anyway.""", (POSITIVE, None)))
    # fmt: on

    _local: ClassVar[type[BaseOrtGradient]]

    def _train(
        self: Any, X: Any, y: Any, sample_weight: Any, validation: Any, classes: ArrayLike | None = None
    ) -> None:
        local = self._local(**_local_parameters(self))
        callbacks = [*(self.callbacks or ())]
        if self.checkpoint is not None:
            given = self.checkpoint
            callbacks.append(given if isinstance(given, Checkpoint) else Checkpoint(given))
        local.callbacks = callbacks or None
        self.check_declared()
        if SET in vars(self):
            vars(local)[SET] = vars(self)[SET]
        resumes = is_on(self.warm_start) and "_state" in vars(self)
        if resumes:
            vars(local).update(_fitted_attributes(copy.deepcopy(self)))
        resumed = vars(local).get("_state")
        _require_minibatches(local, validation)
        averaging = LocalSGD() if self.averaging is None else self.averaging
        check_parameters(averaging, averaging.valid)
        config = TrainingConfig.of(local)
        task = local._output_spec()
        known = None
        if task.classifies:
            is_graph = resolve_builder(local.model) is None and not hasattr(local.model, "fit")
            known = known_classes(classes, local.classes_ if resumes else None, of_columns=is_graph)

        cluster = Cluster(self.client, self.timeout)
        try:
            n_workers = cluster.n_workers
            table = read(cluster, X, y, sample_weight)
            stored = any(isinstance(one, Checkpoint) for one in callbacks)
            facts = table.learn(task, known, with_content=stored)
            samples = table.sample(task, facts)
            rows = sum(one.n_counted for one in facts)
            auto = min(n_workers, max(1, rows // config.batch_size))
            n_shards = auto if isinstance(averaging.n_shards, str) else min(int(averaging.n_shards), rows)
            rng = (
                local._state.rng
                if resumes
                else generator_of(local, lambda: [repr(n_shards).encode(), *(one.content.encode() for one in facts)])
            )
            stream = _FitStream.of(table, task, facts, samples, rng)
            stream.averaging, stream.n_shards = averaging, n_shards
            sample_X, sample_y, weights = joined_parts([one for _, one in samples])
            call = Call(sample_X, sample_y, weights, known, validation, resume=resumes, stream=stream)
            try:
                train(local, call)
            finally:
                # After a divergence or an interrupt too; after other errors, train has restored the state.
                if vars(local).get("_state") is not resumed:
                    for name in _fitted_attributes(self):
                        del vars(self)[name]
                    vars(self).update(_fitted_attributes(local), n_shards_=n_shards)
            stream.warn_of_few_steps()
        finally:
            cluster.close()

    @property
    def partial_fit(self) -> Any:
        """Raise AttributeError; the local estimator has this method."""
        raise AttributeError("Only a local estimator has the method partial_fit: to_local() returns one.")

    @property
    def initialize(self) -> Any:
        """Raise AttributeError; the local estimator has this method."""
        raise AttributeError("Only a local estimator has the method initialize: to_local() returns one.")

    def predict(self, X: Any) -> Any:
        """Predict labels, or numbers.

        Parameters
        ----------
        X : Dask data frame or array, or data in memory
            Predictions of Dask collections are lazy. Those of a data frame keep its index and its divisions.

        Returns
        -------
        Dask series or data frame of a data frame, Dask array of an array, or ndarray
        """
        local: Any = super()
        return on_partitions(self, "predict", X) if is_collection(X) else local.predict(X)

    def to_local(self: Any) -> Any:
        """Return an independent copy as the local estimator, which needs no Dask.

        Returns
        -------
        OrtGradientClassifier or OrtGradientRegressor
        """
        check_is_fitted(self)
        local = self._local(**_local_parameters(self))
        vars(local).update(_fitted_attributes(copy.deepcopy(self)))
        vars(local).pop("n_shards_", None)
        return local

    def __sklearn_clone__(self: Any) -> Any:
        """Return an unfitted copy with the same client."""
        client, self.client = self.client, None
        try:
            twin = cloned(self)
        finally:
            self.client = client
        twin.client = client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without the client."""
        above: Any = super()
        return {**above.__getstate__(), "client": None}

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin


def _local_parameters(estimator: Any) -> dict[str, Any]:
    own = {one.name for one in fields(OnCluster)}
    return {name: getattr(estimator, name) for name in estimator._own_names() if name not in own}


def _fitted_attributes(estimator: Any) -> dict[str, Any]:
    """Return what ``fit`` has set."""
    return {n: v for n, v in vars(estimator).items() if n == "_state" or (n.endswith("_") and not n.startswith("_"))}


def _require_minibatches(local: Any, validation: Any) -> None:
    """Raise for settings that need all rows in one process."""
    config = TrainingConfig.of(local)
    if not config.optimizer.takes_minibatches:
        raise InvalidParameterError(
            f"{type(config.optimizer).__name__} takes all rows at once, and they are on several workers. Set an "
            f"optimizer of minibatch steps, such as AdamW()."
        )
    if local.batch_size is None:
        raise InvalidParameterError(
            "batch_size=None takes all rows at once, and they are on several workers: set batch_size to a number."
        )
    if local.finetune not in ("auto", None):
        raise InvalidParameterError("Fine-tuning takes all rows at once, and they are on several workers.")
    if reconstructs(local.loss):
        raise ValueError(
            "loss='reconstruction' learns the rows of X in memory: fit OrtGradientRegressor to a sample, such as "
            "X.sample(frac=0.1).compute()."
        )
    task = local._output_spec()
    if task.declared:
        raise ValueError(
            f"Workers of a cluster train on labels or numbers, and loss={local.loss!r} takes targets by name. Write "
            f"the rows to Parquet files, and fit OrtGradientRegressor to them: it reads them block by block."
        )
    require_hard_labels(task, "Workers of a cluster train")
    if config.loop.early_stopping and validation is None:
        raise ValueError(
            "early_stopping needs validation rows, which lie on the client: give X_val and y_val, arrays or frames."
        )
    for name, one in zip(("X_val", "y_val", "sample_weight_val"), validation or (), strict=False):
        if is_collection(one):
            raise TypeError(f"{name} lies on the client: give a sample of the rows in memory, or {name}.compute().")


@documented(attributes=attributes(score="Accuracy", classes=CLASSES_ENTRY))
@naming_places
@dataclass(kw_only=True, eq=False, repr=False)
class DaskOrtGradientClassifier(OnCluster, OrtGradientClassifier):
    """Train an ONNX graph for classification on the workers of a Dask cluster.

    Shards of the rows train at the same time, each as :class:`~onnxtrain_sklearn.OrtGradientClassifier` trains, and
    their weights are averaged every few hundred steps (:class:`LocalSGD`). The client holds no data but a sample.

    {parameters}
    {attributes}
    n_shards_ : int
        Parts of the rows that were trained at the same time.

    See Also
    --------
    onnxtrain_sklearn.OrtGradientClassifier : The same on one machine.

    Notes
    -----
    A cluster is slower than one machine for small networks with few steps between averages:
    :meth:`LocalSGD.epoch_seconds` estimates it.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> from onnxtrain_sklearn.dask import DaskOrtGradientClassifier, LocalSGD
    >>> classifier = DaskOrtGradientClassifier(MLP((16,)), averaging=LocalSGD(n_shards=4))
    >>> classifier.get_params()["averaging__n_shards"]
    4
    """

    __module__ = "onnxtrain_sklearn.dask"  # the path by which pickles name it

    _local = OrtGradientClassifier

    def fit(  # type: ignore[override]  # rows of a cluster have no old ones
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : Dask data frame or array, str, path, list of paths, or RowBlocks
            The rows. Partitions are read where they are needed. Paths name Parquet files that all workers see.
        y : Dask series, data frame or array, str, or list of str
            Labels, in the same partitions as ``X``; or the name of their column, or columns.
        sample_weight : Dask series or array, or str, default=None
            Weights of the rows, >= 0, or the name of their column; None: one.
        X_val, y_val, sample_weight_val : array-like, default=None
            Validation rows in memory, which the client scores after each epoch.
        classes : array-like of shape (n_classes,), or list of them, default=None
            All labels, if ``y`` lacks some; None: the labels in ``y``.

        Returns
        -------
        self

        Raises
        ------
        ClusterError
            Workers die again and again, are paused, or are gone, or ``timeout`` is over; the message names the shard
            or the partition.
        ValueError, TypeError, ModelError, DivergenceError
            As in :meth:`onnxtrain_sklearn.OrtGradientRegressor.fit`; the message names the partition.
        """
        self._train(X, y, sample_weight, optional_data("val", X_val, y_val, sample_weight_val), classes)
        return self

    @available_if(require_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities; lazily for Dask collections.

        Parameters
        ----------
        X : as in :meth:`predict`
        """
        return on_partitions(self, "predict_proba", X) if is_collection(X) else super().predict_proba(X)

    def decision_function(self, X: Any) -> Any:
        """Return the scores; lazily for Dask collections.

        Parameters
        ----------
        X : as in :meth:`predict`
        """
        return on_partitions(self, "decision_function", X) if is_collection(X) else super().decision_function(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`, without paths

        Returns
        -------
        float
        """
        if not is_collection(X):
            return super().score(X, y, sample_weight)
        sums = [one for one in _of_partitions(self, X, y, sample_weight, _right_labels) if one[1]]
        total = sum(weight for _, weight in sums)
        return float(sum(score * weight for score, weight in sums) / total)


@documented(attributes=attributes(score="R²"))
@naming_places
@dataclass(kw_only=True, eq=False, repr=False)
class DaskOrtGradientRegressor(OnCluster, OrtGradientRegressor):
    """Train an ONNX graph for regression on the workers of a Dask cluster.

    Shards of the rows train at the same time, each as :class:`~onnxtrain_sklearn.OrtGradientRegressor` trains, and
    their weights are averaged every few hundred steps (:class:`LocalSGD`). The client holds no data but a sample.

    {parameters}
    {attributes}
    n_shards_ : int
        Parts of the rows that were trained at the same time.

    See Also
    --------
    onnxtrain_sklearn.OrtGradientRegressor : The same on one machine.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> from onnxtrain_sklearn.dask import DaskOrtGradientRegressor
    >>> DaskOrtGradientRegressor(MLP((16,)), timeout=600).get_params()["timeout"]
    600
    """

    __module__ = "onnxtrain_sklearn.dask"  # the path by which pickles name it

    _local = OrtGradientRegressor

    def fit(  # type: ignore[override]  # rows of a cluster have no old ones
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : Dask data frame or array, str, path, list of paths, or RowBlocks
            The rows. Partitions are read where they are needed. Paths name Parquet files that all workers see.
        y : Dask series, data frame or array, str, or list of str
            Targets, in the same partitions as ``X``; or the name of their column, or columns.
        sample_weight : Dask series or array, or str, default=None
            Weights of the rows, >= 0, or the name of their column; None: one.
        X_val, y_val, sample_weight_val : array-like, default=None
            Validation rows in memory, which the client scores after each epoch.

        Returns
        -------
        self

        Raises
        ------
        ClusterError
            Workers die again and again, are paused, or are gone, or ``timeout`` is over; the message names the shard
            or the partition.
        ValueError, TypeError, ModelError, DivergenceError
            As in :meth:`onnxtrain_sklearn.OrtGradientRegressor.fit`; the message names the partition.
        """
        self._train(X, y, sample_weight, optional_data("val", X_val, y_val, sample_weight_val))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict numbers.

        Parameters
        ----------
        X : Dask data frame or array, or data in memory
            Predictions of Dask collections are lazy. Those of a data frame keep its index and its divisions.
        return_std : bool, default=False
            As in :meth:`onnxtrain_sklearn.OrtGradientRegressor.predict`, for data in memory.

        Returns
        -------
        Dask series or data frame of a data frame, Dask array of an array, or ndarray
        """
        if not return_std:
            return super().predict(X)
        if is_collection(X):
            raise ValueError("return_std=True is for rows in memory: map to_local().predict over the partitions of X.")
        return OrtGradientRegressor.predict(self, X, return_std=True)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², the coefficient of determination.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`, without paths

        Returns
        -------
        float
            With several outputs the mean of theirs.
        """
        if not is_collection(X):
            return super().score(X, y, sample_weight)
        errors: Any = 0.0
        moments = Moments()
        for own, of_targets in _of_partitions(self, X, y, sample_weight, _squared_errors):
            errors = errors + own
            moments = moments.merge(of_targets)
        spread = moments.deviation**2 * moments.weight
        varies = spread > 0
        return float(np.mean(np.where(varies, 1 - errors / np.where(varies, spread, 1), errors == 0)))


def _of_partitions(estimator: Any, X: Any, y: Any, sample_weight: Any, function: Callable[..., Any]) -> list[Any]:
    """Return a function of the local estimator and each partition that has rows, computed on the workers."""
    check_is_fitted(estimator)
    cluster = Cluster(estimator.client, estimator.timeout)
    try:
        table = read(cluster, X, y, sample_weight)
        local = cluster.send(estimator.to_local())
        asked = [cluster.submit(function, local, part) for part in table.parts]
        return [one for one in cluster.gather(asked, table.places) if one is not None]
    finally:
        cluster.close()


def _right_labels(local: Any, part: Any) -> tuple[float, float] | None:
    """Return the accuracy on a partition, and the weight of its rows; None if none of them counts."""
    X, y, weights = part
    if not len(y):
        return None
    counted, _, own = rows_that_count(y, y, weights, local.ignore_label)
    total = float(len(np.asarray(counted)) if own is None else np.sum(np.asarray(own)))
    return (local.score(X, y, weights), total) if total else None


def _squared_errors(local: Any, part: Any) -> tuple[np.ndarray, Moments] | None:
    """Return the sum of the squared errors on a partition, and the moments of its targets, by column."""
    X, y, weights = part
    if not len(y):
        return None
    truth, found = (array.reshape(len(y), -1).astype(np.float64) for array in (y, local.predict(X)))
    factors = np.ones((len(y), 1)) if weights is None else weights.astype(np.float64)[:, np.newaxis]
    return (factors * (truth - found) ** 2).sum(axis=0), Moments().update(truth, factors[:, 0])
