"""Callbacks: hooks that run during training, by the protocol of ``sklearn.callback``.

Estimators take them in their parameter ``callbacks``. Where scikit-learn has ``set_callbacks`` (1.9), that method sets
callbacks that also follow a pipeline or a search around the estimator, such as scikit-learn's ``ProgressBar``.

``base`` has the class to derive from and the interface of the training, ``monitoring`` the callbacks that watch,
``weights`` those that change or keep weights, ``checkpoint`` the files from which a training resumes.
"""

from __future__ import annotations

from .._utils.params import registered
from .base import Callback as Callback
from .base import TrainingInProgress as TrainingInProgress
from .checkpoint import Checkpoint as Checkpoint
from .monitoring import EarlyStopping as EarlyStopping
from .monitoring import EpochScoring as EpochScoring
from .monitoring import GradientStatistics as GradientStatistics
from .monitoring import MetricLogger as MetricLogger
from .monitoring import TimeLimit as TimeLimit
from .weights import LearningRateFinder as LearningRateFinder
from .weights import SnapshotEnsemble as SnapshotEnsemble
from .weights import WeightAveraging as WeightAveraging

CALLBACKS: dict[str, type[Callback]] = registered(Callback, vars())
"""The callbacks imported above, by name."""
