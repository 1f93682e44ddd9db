"""Callbacks: what is done in the course of training, by the protocol of ``sklearn.callback``.

Estimators take them in their parameter ``callbacks``. Where scikit-learn has ``set_callbacks`` (1.9), it sets those
that are told of the levels of a pipeline or a search around the estimator, such as scikit-learn's ``ProgressBar``.
"""

from __future__ import annotations

from ._callbacks.base import Callback as Callback
from ._callbacks.base import TrainingInProgress as TrainingInProgress
from ._callbacks.checkpoint import Checkpoint as Checkpoint
from ._callbacks.metric_logger import MetricLogger as MetricLogger
from ._callbacks.snapshots import SnapshotEnsemble as SnapshotEnsemble
from ._callbacks.watching import EarlyStopping as EarlyStopping
from ._callbacks.watching import EpochScoring as EpochScoring
from ._callbacks.watching import GradientStatistics as GradientStatistics
from ._callbacks.weights import LearningRateFinder as LearningRateFinder
from ._callbacks.weights import WeightAveraging as WeightAveraging
from ._support.components import registered

CALLBACKS: dict[str, type[Callback]] = registered(Callback, vars())
"""The callbacks imported above, by name."""
